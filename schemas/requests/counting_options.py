"""Options of the jobs that count users with noise, and the ranges of their values, each declared once."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Interval

from sfumato.schemas.guarantee import CentralSplitOrSecagg, Trust
from sfumato.schemas.rectangle import MAX_DEPTH
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.schemas.requests.request_base import PRIVACY, PROTOCOL, option

Depth = Annotated[int, Interval(ge=1, le=MAX_DEPTH)]
Epsilon = Annotated[float, Interval(ge=1e-4, le=30)]  # the noise of a larger one is not drawn
Delta = Annotated[float, Interval(ge=0, le=1e-2)]
Users = Annotated[int, Interval(ge=1, le=1 << 40)]
ShardSize = Annotated[int, Interval(ge=2, le=1 << 24)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
Dropout = Annotated[float, Interval(ge=0, le=0.9)]
Colluding = Annotated[float, Interval(ge=0, le=0.9)]

EPSILON_HELP = "privacy budget of the complete release, above 0; a smaller one means more privacy and more noise"
DELTA_HELP = (
    "0: Laplace noise; above 0: Gaussian noise, with this delta for the complete release. The cost of Gaussian noise "
    "adds up more slowly over many releases, in a ledger whose limit has a delta"
)
TRUST_HELP = (
    "central: the operator holds the logs and adds noise once; split: each of two servers adds noise once, to the "
    "sum of all users; secagg: noise is added to the sum of each shard, which is more noise in total"
)
SHARD_SIZE_HELP = "expected users of a secure-aggregation shard, with --trust secagg (default: 10000)"
DROPOUT_HELP = (
    "largest share of a shard's clients that may fail to answer, with --trust secagg; a shard that lacks more is "
    "discarded (default: 0.05)"
)


class CountingOptions(ReleaseRequest):
    """The budget, the party that adds noise, and the shards of secure aggregation."""

    trust: CentralSplitOrSecagg = option(Trust.CENTRAL, TRUST_HELP, PRIVACY, common=True)
    epsilon: Epsilon = option(1.0, EPSILON_HELP, PRIVACY, common=True)
    delta: Delta = option(0.0, DELTA_HELP, PRIVACY)
    population: Users | None = option(
        None,
        "public number of users in the logs; the run is refused if a noisy count differs from it by more than 10%",
        PRIVACY,
        common=True,
    )
    shard_size: ShardSize | None = option(None, SHARD_SIZE_HELP, PROTOCOL)
    dropout: Dropout | None = option(None, DROPOUT_HELP, PROTOCOL)

    def parameter_values(self) -> dict[str, Any]:
        """Returns the values of these options that were given or have a default, by parameter name."""
        names = [name for name in CountingOptions.model_fields if name not in ReleaseRequest.model_fields]
        values = {name: value for name in (*names, "max_bad_fraction") if (value := getattr(self, name)) is not None}
        return {**values, "noise": "gaussian"} if self.delta else values
