"""The plan of sums by a trusted curator: statistics and their privacy, and the error from public figures only. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import Z, laplace_z
from sfumato.schemas.moments import PAIRS, Statistic, ValueRange
from sfumato.transforms.moments.central.bernstein_sums import (
    BINS,
    Array,
    ExactSums,
    coefficients,
    count_magnitudes,
    sum_values,
)
from sfumato.transforms.moments.client_values import Block
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.statistic_kinds import MOMENT, check_statistics
from sfumato.transforms.observability.text_tables import TYPICAL_USERS, mean_errors_table, significant
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.discrete_laplace import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev

_OUTSIDE_SHARE = 0.01  # for the two counts of users outside the range
_RANGE_SHARE = 0.2  # for the range, where none is given: the table `shares` of benchmarks/moments_central.py
_MIN_EPSILON = 1000 * MIN_NOISE_EPSILON
_MAX_SCALE_BITS = 20  # what one user adds, in bits: finer than any noise, and sums of 2^43 users fit 63 bits
_MAX_DIGITS = 120  # before the point, of the largest power of a value: squares of its sums over users are finite
_DEGREES = {"count": 0, "sum": 1, "mean": 1, "variance": 2, "covariance": 1, "correlation": 2}


def degree_of(statistic: Statistic) -> int:
    """Returns the degree of the polynomials that a statistic is computed from.

    Raises RequestError for an unknown one.
    """
    name, colon, _ = statistic.name.partition(":")
    if not colon and name in _DEGREES:
        return _DEGREES[name]
    if statistic.name in [f"moment:{power}" for power in MOMENT.powers]:
        return statistic.power
    raise RequestError(
        "statistics: with --trust central there are count, sum, mean, variance, covariance, correlation and moment:K "
        f"(K from {MOMENT.powers[0]} to {MOMENT.powers[-1]}); got {statistic.name!r}"
    )


@dataclass(frozen=True, kw_only=True)
class CentralMomentsPlan:
    """The statistics of a column by a trusted curator, and their privacy.

    Raises:
        RequestError: a value is out of range.
    """

    statistics: tuple[Statistic, ...] = (Statistic("mean"),)  # to estimate; each name once
    epsilon: float = 1.0  # of the whole release, for adding or removing one user
    span: ValueRange | None = None  # the range that values are clipped to; None to find it
    second_span: ValueRange | None = None  # that of a second column
    has_second: bool = False  # whether there is a second column

    def __post_init__(self) -> None:
        check_statistics(self.statistics, self.has_second)
        if not _MIN_EPSILON <= self.epsilon <= MAX_NOISE_EPSILON:
            raise RequestError(
                f"epsilon: must be between {_MIN_EPSILON:g} and {MAX_NOISE_EPSILON:g}, got {self.epsilon:g}"
            )
        if self.span is not None and not self.degree:
            raise RequestError("range: numbers of users need none; leave it out, or ask for other --statistics")
        for name, span in (("range", self.span), ("second_range", self.second_span)):
            if span is None:
                continue
            digits = math.log10(max(abs(span.low), abs(span.high)))  # before the point; negative for small ones
            if digits * self.degree > _MAX_DIGITS / (1 + self.has_second):
                raise RequestError(
                    f"{name}: powers of up to {self.degree} of {span.low:g},{span.high:g} and their sums are "
                    "beyond what a number can hold; give a smaller range, or lower moments"
                )

    def stated(self) -> dict[str, Any]:
        """Returns what tells this plan from others: the run's key is bound to it."""
        return asdict(self)

    @cached_property
    def degree(self) -> int:
        """Returns the degree of the polynomials that users add up; 0 where no value is used."""
        return max(map(degree_of, self.statistics))

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Returns the degree of the polynomials in each column."""
        if not self.has_second:
            return (self.degree,)
        return self.degree, max(degree_of(one) for one in self.statistics if one.name in PAIRS)

    @property
    def slots(self) -> int:
        """Returns the number of sums of a group."""
        return math.prod(degree + 1 for degree in self.degrees)

    @property
    def spans(self) -> tuple[ValueRange | None, ...]:
        """Returns the given range of each column, None to find it."""
        return (self.span, self.second_span)[: len(self.degrees)]

    @property
    def finds_range(self) -> bool:
        """Returns whether a part of epsilon pays for the range of a column."""
        return None in self.spans and self.degree > 0

    @cached_property
    def shares(self) -> dict[str, float]:
        """Returns the epsilon of each part: admission, range, users outside the range, and the sums.

        They add up to epsilon.
        """
        parts = {"admission": ADMISSION_SHARE * self.epsilon}
        if self.finds_range:
            parts["range"] = _RANGE_SHARE * self.epsilon
        if self.degree:
            parts["outside"] = _OUTSIDE_SHARE * self.epsilon
        return {**parts, "sums": (self.epsilon - math.fsum(parts.values())) * (1 - 2**-50)}

    def admission(self, max_bad_fraction: float = 0.1, min_users: int = 0) -> AdmissionRule:
        """Returns the rule for the two noisy counts of users that admit a run."""
        return AdmissionRule(self.shares["admission"], max_bad_fraction, min_users)

    @cached_property
    def scale(self) -> int:
        """Returns what one user adds to the sums: as much as the noise can be drawn for, a power of two."""
        if not self.degree:
            return 1
        return 1 << min(_MAX_SCALE_BITS, math.floor(math.log2(self.shares["sums"] / MIN_NOISE_EPSILON)))

    @property
    def noise_stddev(self) -> float:
        """Returns the standard deviation of the noise on every released sum, in users."""
        return discrete_laplace_stddev(self.shares["sums"], self.scale) / self.scale

    @property
    def count_stddev(self) -> float:
        """Returns the standard deviation of the noise on a number of users."""
        return self.noise_stddev * math.sqrt(self.slots)

    @property
    def outside_stddev(self) -> float:
        """Returns the standard deviation of the noise on a number of users outside a range.

        A user may be outside each column's.
        """
        return discrete_laplace_stddev(self.shares["outside"], len(self.degrees))

    def exact_sums(self, block: Block, spans: Sequence[ValueRange], rows: int) -> ExactSums:
        """Returns the exact sums of a block, whose codes are the values. rows: of groups."""
        uniforms = (block.random_bits & np.uint64(0xFFFFFFFF)) * np.float64(2.0**-32)
        columns = self._columns(block.codes)
        return sum_values(columns, uniforms, block.groups, rows, spans, self.degrees, self.scale)

    def _columns(self, codes: NDArray[Any]) -> tuple[Array, ...]:
        """Returns the values of each column: float64[n]. codes: see Block."""
        return (codes.real, codes.imag) if self.has_second else (codes,)

    def count_magnitudes(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the number of values of each column by magnitude: int64[C, BINS]. codes: see Block."""
        return np.stack([count_magnitudes(column) for column in self._columns(codes)])

    def sum_magnitudes(self, counts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Returns the sum of such numbers, of no block too."""
        return sum(counts, start=np.zeros((len(self.degrees), BINS), np.int64))

    def mean_error(self, users: int) -> float:
        """Returns the error of the mean at 95%, with a given range."""
        assert self.span is not None
        middle = (self.span.high - self.span.low) / 2
        mean = coefficients(1, self.degree, -middle, middle)
        noise = self.noise_stddev * float(np.linalg.norm(mean)) * math.sqrt(self.slots / len(mean))
        return Z * noise / users

    def accuracy(self) -> str:
        """Returns the error to expect in one phrase."""
        if self.span is None:
            return f"noise of ±{significant(laplace_z(0.95) * self.count_stddev)} users (95%) on a number of users"
        error = significant(self.mean_error(TYPICAL_USERS))
        return f"the mean of values spread evenly errs by ±{error} (95%), if {TYPICAL_USERS:,} users take part"

    def text(self, grouping: Grouping | None) -> str:
        """Returns the noise and the error of the release, for a terminal."""
        shares = ", ".join(f"{name} {epsilon:.3g}" for name, epsilon in self.shares.items())
        lines = [
            f"the operator adds up the value of one record a user, and adds noise once; parts of epsilon: {shares}",
            f"noise ±{significant(laplace_z(0.95) * self.count_stddev)} (95%) on every number of users",
        ]
        spans = [("values", self.span)]
        if self.has_second:
            spans.append(("those of the second column", self.second_span))
        for name, span in spans:
            if span is not None:
                lines.append(f"{name} lie in {span.low:.10g} to {span.high:.10g}; others count as an end")
            elif self.degree:
                lines.append(f"the range of {name} follows from noisy counts of users by powers of two")
        if grouping is not None:
            lines.append(grouping.text)
        lines.append("")
        if self.span is not None:
            errors = mean_errors_table(lambda users: f"±{significant(self.mean_error(users))}")
            lines += ["Error of the mean, for values spread evenly over the range:", "", errors]
        return "\n".join(lines)
