"""A comparison as it is requested: every option of a heatmap, with several values each."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import create_model

from sfumato.schemas.requests.log_columns import LogColumns
from sfumato.schemas.requests.publish_request import PublishRequest, RegionOfMap
from sfumato.schemas.requests.request_base import METHOD, OUTPUT, Several, option
from sfumato.transforms.evaluation.cases import EARLIER, MARGIN
from sfumato.transforms.evaluation.density_metrics import METRICS
from sfumato.transforms.heatmap.heatmap_options import Option, heatmap_options
from sfumato.transforms.heatmap.heatmap_request import request_fields
from sfumato.transforms.heatmap.methods import METHODS

# An evaluation knows how many users there are, and `dropout` is the share of its clients that vanish.
_NOT_OFFERED = ("population", "population_share", "simulated_dropout")
_OWN = (
    Option("dropout", float, 0.0, "share of the clients that vanish; shards tolerate it"),
    Option(EARLIER, int, 0, "1: start from a release of another cohort of the same size; or 0"),
    Option(MARGIN, float, None, "what a shard may lack beside the dropout; default: five deviations of its size"),
)
SWEPT = {name: declared for name, declared in heatmap_options().items() if name not in _NOT_OFFERED}
SWEPT |= {declared.name: declared for declared in _OWN}


class CompareOptions(LogColumns, RegionOfMap, PublishRequest):
    """Heatmap methods side by side on data that one may look at."""

    JOB: ClassVar[str] = "compare"
    COMMAND: ClassVar[str] = "compare"
    ABOUT: ClassVar[str] = (
        "Compares heatmap methods side by side on data that you may look at: an evaluation, never a release. Each "
        "method meets the same cohorts, once for every combination of the values given; every option of `sfumato "
        "heatmap` takes several, separated by commas. The table shows means over keys and their standard errors."
    )
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --users 100000 --epsilon 0.5,1 --output table"
    )

    methods: Several[str] = option(
        ("adaptive", "flat", "emd"),
        f"of {', '.join(METHODS)}",
        METHOD,
        common=True,
        metavar="NAMES",
    )
    metrics: Several[str] = option(
        ("mse", "l1", "mape", "smape", "maape"), f"of {', '.join(METRICS)}", OUTPUT, common=True, metavar="NAMES"
    )
    keys: int = option(10, "runs of each setting: cohorts and noise", METHOD, common=True, ge=1, le=10_000)
    blur: float = option(
        0.0, "standard deviation of a Gaussian filter, in sides of the region", OUTPUT, ge=0, le=1, allow_inf_nan=False
    )
    truth: Literal["everybody", "cohort"] = option(
        "everybody",
        "what maps are compared with: the density of everybody, or of the users in the cohort",
        OUTPUT,
    )


CompareRequest: type[CompareOptions] = create_model(
    "CompareRequest", __base__=CompareOptions, **request_fields(SWEPT, many=True)
)
