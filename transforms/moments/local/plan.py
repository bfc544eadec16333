"""The plan of users' reports: queries and their privacy, and the error from public figures only. Pure.

A query asks clients about one quantity, in the paper's round 1 or 2: for a bit, or whether it reaches a threshold. A
stage is the queries that need only the tallies of earlier stages, so they run at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import NOISE_Z, Z
from sfumato.schemas.moments import FixedPoint, Method, Statistic
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.local.allocation import Prior, Tuning, by_variance, chosen_method, min_threshold_users
from sfumato.transforms.moments.local.quantities import CENTRED, Quantity
from sfumato.transforms.moments.local.tally import Query, RandomisedResponse, Tally, with_noise
from sfumato.transforms.moments.statistic_kinds import Variance, check_statistics, quantities_of
from sfumato.transforms.observability.text_tables import TYPICAL_USERS, mean_errors_table, significant
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.discrete_laplace import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev

Array = NDArray[np.float64]

_MIN_EPSILON = 1000 * MIN_NOISE_EPSILON  # of a release, for each bit that a client reports
_CODE_BITS = 64  # of both columns together


@dataclass(frozen=True, kw_only=True)
class MomentsPlan:
    """The queries of one column or of two, and their privacy. Every quantity has its own part of the clients.

    Attributes:
        form: of the values.
        statistics: to estimate; each name once.
        method: `threshold` (two rounds), `adaptive` (two) or `weighted` (one); `auto` chooses by the number of users
            (allocation.py). Thresholds are for all users, not for groups.
        epsilon: local, of all that a client reports; None: no randomised response.
        release_epsilon: of the whole release, for adding or removing one user. None: the same as epsilon; if that is
            None too, counts are exact.
        bits_per_client: different bits of one quantity that a client reports.
        variance: about the estimated mean in two phases (`centred`), or as E[x^2] - E[x]^2 (`raw`).
        tuning: the protocol's parameters.
        prior: by quantity, an earlier release instead of the first round.
        second: form of a second column; None without one.

    Raises:
        RequestError: a value is out of range.
    """

    form: FixedPoint
    statistics: tuple[Statistic, ...] = (Statistic("mean"),)
    method: Method = "adaptive"
    epsilon: float | None = None
    release_epsilon: float | None = None
    bits_per_client: int = 1
    variance: Variance = "centred"
    tuning: Tuning = field(default_factory=Tuning)
    prior: Mapping[str, Prior] = field(default_factory=dict)
    second: FixedPoint | None = None

    def __post_init__(self) -> None:
        check_statistics(self.statistics, self.second is not None)
        for name, value, choices in (("method", self.method, Method), ("variance", self.variance, Variance)):
            if value not in get_args(choices):
                raise RequestError(f"{name}: must be one of {', '.join(get_args(choices))}, got {value!r}")
        for statistic in self.statistics:
            if "log2" in quantities_of(statistic, self.variance) and self.form.signed != "no":
                raise RequestError(
                    f"statistics: {statistic.name} is defined only for positive values; leave out --signed"
                )
        if self.second is not None and self.form.code_bits + self.second.code_bits > _CODE_BITS:
            raise RequestError(
                f"second_bits: both columns have {_CODE_BITS} bits in all at most, with their signs; got "
                f"{self.form.code_bits} and {self.second.code_bits}"
            )
        max_bits = min(len(Quantity(self.form, kind, second=self.second).slots) for kind in self.quantities)
        if isinstance(self.bits_per_client, bool) or not 1 <= self.bits_per_client <= max_bits:
            raise RequestError(f"bits_per_client: must be between 1 and {max_bits}, got {self.bits_per_client}")
        _ = self.response  # checks epsilon
        if self.released_epsilon is not None:
            min_epsilon = _MIN_EPSILON * self.bits_per_client
            if not min_epsilon <= self.released_epsilon <= MAX_NOISE_EPSILON:
                name = "epsilon" if self.release_epsilon is None else "group_epsilon"
                raise RequestError(
                    f"{name}: must be between {min_epsilon:g} and {MAX_NOISE_EPSILON:g}, got {self.released_epsilon:g}"
                )

    def stated(self) -> dict[str, Any]:
        """Returns what tells this plan from others: the run's key is bound to it."""
        fields = {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__}
        return {
            **fields,
            "prior": {
                kind: [bits.weight.tolist(), bits.mean.tolist(), bits.stddev.tolist()]
                for kind, bits in self.prior.items()
            },
            "form": asdict(self.form),
            "tuning": asdict(self.tuning),
            "statistics": [statistic.name for statistic in self.statistics],
            "second": None if self.second is None else asdict(self.second),
        }

    @property
    def forms(self) -> tuple[FixedPoint, ...]:
        """Returns the forms of the values, of one column or of two."""
        return (self.form,) if self.second is None else (self.form, self.second)

    @property
    def released_epsilon(self) -> float | None:
        """Returns the epsilon of the whole release, for adding or removing one user; None: counts are exact."""
        if self.release_epsilon is not None or self.epsilon is None:
            return self.release_epsilon
        return min(self.epsilon, MAX_NOISE_EPSILON)

    def admission(self, max_bad_fraction: float = 0.1, min_users: int = 0) -> AdmissionRule:
        """Returns the rule for the two noisy counts of users that admit a run, with their share of the epsilon."""
        return AdmissionRule((self.released_epsilon or 1.0) * ADMISSION_SHARE, max_bad_fraction, min_users)

    @property
    def tally_epsilon(self) -> float | None:
        """Returns the epsilon of all tallies together: the rest after the admission."""
        return None if self.released_epsilon is None else self.released_epsilon * (1 - ADMISSION_SHARE)

    @property
    def noise_stddev(self) -> float:
        """Returns the standard deviation of the noise on every count of a tally, in reports."""
        return 0.0 if self.tally_epsilon is None else discrete_laplace_stddev(self.tally_epsilon, self.bits_per_client)

    def protect(self, queries: Sequence[Query], tallies: Sequence[Tally], key: RunKey) -> list[Tally]:
        """Returns the tallies of a stage with the noise that makes them public."""
        epsilon = self.tally_epsilon
        if epsilon is None:
            return list(tallies)
        return [
            with_noise(tally, query.name, self.bits_per_client, epsilon, query.bound_key(key))
            for query, tally in zip(queries, tallies, strict=True)
        ]

    @cached_property
    def response(self) -> RandomisedResponse:
        """Returns how clients report a bit."""
        return RandomisedResponse(self.epsilon, self.bits_per_client)

    def method_for(self, users: float) -> Method:
        """Returns the method of a run: as planned, or chosen by its number of users."""
        return chosen_method(users, self.epsilon, self.form.bits) if self.method == "auto" else self.method

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """Returns the kinds of the queried quantities, in the order of their parts of the clients."""
        return tuple(
            dict.fromkeys(kind for statistic in self.statistics for kind in quantities_of(statistic, self.variance))
        )

    @cached_property
    def stages(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Returns the stages in order, each with the (quantity, round) of its queries.

        What is about a mean needs it first.
        """
        centred = [kind for kind in self.quantities if kind in CENTRED]
        others = [kind for kind in self.quantities if kind not in CENTRED]
        stages = (
            tuple((kind, number) for kind in phase if number in self._rounds(kind))
            for phase in (others, centred)
            for number in (1, 2)
        )
        return tuple(stage for stage in stages if stage)

    def _rounds(self, kind: str) -> tuple[int, ...]:
        if self.method == "weighted":
            return (1,)
        return (2,) if kind in self.prior else (1, 2)

    def part(self, kind: str) -> tuple[float, float]:
        """Returns the interval of the positions of the clients who report a quantity."""
        part, place = 1 / len(self.quantities), self.quantities.index(kind)
        return place * part, 1.0 if self.quantities[-1] == kind else (place + 1) * part

    def mean_error(self, users: int) -> float:
        """Returns the error of the mean at 95%, if all bits are set for half of the users (Lemma 3.3)."""
        slots = Quantity(self.form, "value").slots
        half = np.full(len(slots), 0.5)
        probabilities = by_variance(slots, half, np.ones(len(slots)), self.response, 0.5, self.bits_per_client)
        each = float((slots.weight**2 * self.response.variance(half) / probabilities).sum())
        first, last = self.part(self.quantities[0])
        reports = self.bits_per_client * (last - first)
        return Z * math.sqrt(each / (users * reports))

    def accuracy(self) -> str:
        """Returns the error to expect in one phrase."""
        error = significant(self.mean_error(TYPICAL_USERS))
        return f"the mean of values spread evenly errs by ±{error} (95%), if {TYPICAL_USERS:,} users take part"

    def text(self, grouping: Grouping | None) -> str:
        """Returns the reports of a client, and the noise and error of the release, for a terminal."""
        response, quantities = self.response, self.quantities
        bits = f"{response.reports} bit{'s'[: response.reports != 1]}"
        lines = [
            f"method {self.method}: a client sends {bits} about one of {len(quantities)}: {', '.join(quantities)}",
            *(
                f"{name} lie in {one.low:.10g} to {one.high:.10g}, in steps of {one.step:.6g}; others count as an end"
                for name, one in zip(("values", "those of the second column"), self.forms, strict=False)
            ),
        ]
        if response.epsilon is None:
            lines.append("each bit is sent as it is: no differential privacy")
        else:
            lines.append(
                f"local epsilon {response.epsilon:g}: a bit is sent as it is with probability "
                f"{response.truth_probability:.4f}, else flipped"
            )
        if self.released_epsilon is not None:
            lines.append(
                f"epsilon {self.released_epsilon:g} for adding or removing one user: "
                f"noise ±{significant(NOISE_Z * self.noise_stddev)} (95%) on every count of reports"
            )
        if self.method == "auto":
            users = min_threshold_users(self.epsilon, self.form.bits)
            below = f", or weighted for fewer than {users:,.0f} users by a noisy count" if users > 0 else ""
            lines.append(f"auto takes: threshold{below}")
        if grouping is not None:
            lines.append(grouping.text)
        errors = mean_errors_table(lambda users: f"±{significant(self.mean_error(users))}")
        return "\n".join([*lines, "", "Error of the mean, for values spread evenly over the range:", "", errors])
