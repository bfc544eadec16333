"""Means and other moments of a number by bit pushing: its fixed-point form, columns, estimates and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import CATEGORIES, NUMBERS, check_degrees, check_user_id, column_kind
from sfumato.schemas.release import CELL_FIELDS, CELLS_SCHEMA, INDEX_FIELDS, described, zones_schema

MAX_BITS = 52  # integers of this many bits are exact in a float64
EVERYBODY, OTHER = "everybody", "other"  # names of groups
SUMS = ("count", "sum", "log_product")  # statistics that grow with the number of users
PAIRS = ("covariance", "correlation")  # statistics of two columns
Signed = Literal["no", "shift", "split"]
Method = Literal["threshold", "adaptive", "weighted", "auto"]


@dataclass(frozen=True)
class FixedPoint:
    """The fixed-point form of a column's values: the nearest multiple of the step 2^-fraction_bits.

    Values outside the range are clamped to it. Raises RequestError for a value out of range.

    Attributes:
        bits: of the magnitude, 1..MAX_BITS.
        fraction_bits: how many of them are below the point; negative for steps above 1.
        signed: `no`, values are 0..(2^bits - 1) steps. `shift`, `offset` is added before and subtracted from the
            results. `split`, each bit exists once for positive and once for negative values (paper 002, Section 3.4).
        offset: in the column's unit.

    >>> FixedPoint(bits=8, fraction_bits=2).step
    0.25
    """

    bits: int = 16
    fraction_bits: int = 0
    signed: Signed = "no"
    offset: float = 0.0

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 1 <= self.bits <= MAX_BITS:
            raise RequestError(f"bits: must be between 1 and {MAX_BITS}, got {self.bits}")
        if type(self.fraction_bits) is not int or not -MAX_BITS <= self.fraction_bits <= MAX_BITS:
            raise RequestError(f"fraction_bits: must be between -{MAX_BITS} and {MAX_BITS}, got {self.fraction_bits}")
        if self.signed not in get_args(Signed):
            raise RequestError(f"signed: must be one of {', '.join(get_args(Signed))}, got {self.signed!r}")
        if not math.isfinite(self.offset) or (self.offset and self.signed != "shift"):
            raise RequestError(f"signed: shift:OFFSET needs a finite number, got {self.offset}")

    @property
    def step(self) -> float:
        """Returns the distance between neighbouring values, in the column's unit."""
        return 2.0**-self.fraction_bits

    @property
    def code_bits(self) -> int:
        """Bits of a value's code: those of the magnitude, and with `split` signs one for the sign."""
        return self.bits + (self.signed == "split")

    @property
    def max_magnitude(self) -> int:
        """Returns the largest magnitude, in steps."""
        return (1 << self.bits) - 1

    @property
    def low(self) -> float:
        """Returns the smallest value, in the column's unit."""
        return -self.max_magnitude * self.step if self.signed == "split" else 0.0 - self.offset

    @property
    def high(self) -> float:
        """Returns the largest value, in the column's unit."""
        return self.max_magnitude * self.step - self.offset


@dataclass(frozen=True)
class ValueRange:
    """The range that values are clipped to, in the column's unit. Raises RequestError unless low < high, and finite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.high - self.low) and self.low < self.high and self.step):
            raise RequestError(f"range: must be LOW,HIGH, finite and LOW < HIGH, got {self.low:g},{self.high:g}")

    @property
    def step(self) -> float:
        """Returns a difference that no result tells from 0, in the column's unit."""
        return 2.0**-MAX_BITS * (self.high - self.low)


@dataclass(frozen=True)
class ValueColumns:
    """The columns of a log with a number. Raises RequestError if one has two roles, or a coordinate lacks the other."""

    column: str
    user_id: str | None = "user_id"  # None if every row counts as a user of its own
    group: str | None = None  # text, integers, booleans or dates
    latitude: str | None = None  # in degrees; the map cell of the location is a row's group
    longitude: str | None = None
    second: str | None = None  # of a second number, for covariances and correlations

    def __post_init__(self) -> None:
        if self.column == self.user_id:
            raise RequestError(f"column: {self.column!r} is the column of user ids")
        if self.second is not None and self.second in (self.user_id, self.column):
            raise RequestError(f"second_column: {self.second!r} is the column of user ids, or that of --column")
        if self.group is not None and self.group in (self.user_id, self.column, self.second):
            raise RequestError(f"group_by: {self.group!r} is the column of user ids, or that of the values")
        if (self.latitude is None) != (self.longitude is None):
            raise RequestError("latitude_column, longitude_column: a location needs both")

    def names(self) -> list[str]:
        names = (self.user_id, self.column, self.second, self.group, self.latitude, self.longitude)
        return list(dict.fromkeys(name for name in names if name is not None))

    def text_types(self) -> dict[str, pa.DataType]:
        texts = (self.user_id, self.group)
        return {name: pa.string() if name in texts else pa.float64() for name in self.names()}

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        if self.user_id is not None:
            check_user_id(schema, self.user_id, path)
        found = {}
        for name, option, kinds in (
            (self.column, "column", NUMBERS),
            (self.second, "second_column", NUMBERS),
            (self.group, "group_by", CATEGORIES),
        ):
            if name is not None:
                found[name] = column_kind(schema, name, option, kinds, path)
        for role, name in (("latitude", self.latitude), ("longitude", self.longitude)):
            if name is not None:
                check_degrees(schema, name, role, path)
        return found


@dataclass(frozen=True)
class Statistic:
    """A statistic of a column by name: `mean`, `moment:K` (the mean of the Kth power) and others.

    The names are in `transforms/moments/statistic_kinds.py`. A plan with another name raises RequestError.
    """

    name: str

    @property
    def power(self) -> int:
        """Returns K of `moment:K`; 0 for other statistics."""
        return int(self.name.partition(":")[2] or 0)


@dataclass(frozen=True)
class MomentEstimate:
    """One published number, with the ends of its 95% interval."""

    group: str  # EVERYBODY, a group's name, or OTHER
    statistic: str
    value: float
    stddev: float  # of the estimator, in the unit of `value`
    low: float
    high: float
    clients: float  # who reported, estimated if groups are private


@dataclass(frozen=True, eq=False)
class BitMeans:
    """The share of clients with each of n bits of a quantity set, as in Figure 5(b) of paper 002.

    Raises ValueError if the columns differ in length.

    With thresholds, a bit represents the thresholds from its place value to the next: the mean share that reaches them.

    quantity: `value`, `square` (squared distance from the mean), `power:K` or `log2`; with a second column
    `second_value`, `second_square`, and `product` (of both distances from the means). A bit that is probably
    unused is squashed: the estimated probability that any client uses it is below half. Estimates weight a bit by that
    probability.
    """

    quantity: str  # that has the bits
    weight: NDArray[
        np.float64
    ]  # what a set bit adds, negative for negative values; doubles from bit to bit in one sign
    mean: NDArray[np.float64]  # estimated share of the clients with the bit set; noise may move it outside 0..1
    stddev: NDArray[np.float64]  # of `mean`
    reports: NDArray[np.float64]  # number of clients who reported the bit
    squashed: NDArray[np.bool_]
    read_probability: NDArray[np.float64]  # that a client's bit was read

    def __post_init__(self) -> None:
        for name in ("mean", "stddev", "reports", "squashed", "read_probability"):
            if np.shape(getattr(self, name)) != np.shape(self.weight):
                raise ValueError(f"{name}: must hold one value for each of the {len(self.weight)} bits")


MOMENTS_SCHEMA = pa.schema(
    [
        described("group", f"{EVERYBODY!r}, a public group, or {OTHER!r}", pa.string()),
        described("statistic", "name of the statistic, as in --statistics", pa.string()),
        described("value", "estimate of the statistic, in its unit, such as that of the column for a mean"),
        described("stddev", "standard deviation of the estimator"),
        described("low", "lower end of a 95% interval"),
        described("high", "upper end of a 95% interval"),
        described("clients", "clients who reported; estimated for groups"),
    ]
)
BITS_SCHEMA = pa.schema(
    [
        described("quantity", "value, square, power:K, log2, or a quantity of the second column", pa.string()),
        described("weight", "value of a set bit, negative for negative values"),
        described("mean", "share of clients with the bit set; may lie outside 0..1"),
        described("stddev", "standard deviation of mean"),
        described("reports", "clients who reported the bit"),
        described("squashed", "probably unused: the probability that it is used is below half", pa.bool_()),
        described("read_probability", "probability that a client's bit was read"),
    ]
)


def moment_cells_schema(statistics: Sequence[str]) -> pa.Schema:
    """Returns the table of a map's cells."""
    fields = [*CELL_FIELDS, *_of_statistics(statistics), *INDEX_FIELDS, CELLS_SCHEMA.field("geometry")]
    return pa.schema(fields, metadata=CELLS_SCHEMA.metadata)


def moment_zones_schema(statistics: Sequence[str]) -> pa.Schema:
    """Returns the table of zones with a statistic."""
    zone, geometry = (zones_schema().field(name) for name in ("zone", "geometry"))
    return pa.schema([zone, *_of_statistics(statistics), geometry], metadata=CELLS_SCHEMA.metadata)


def _of_statistics(statistics: Sequence[str]) -> list[pa.Field]:
    """Returns for each statistic S the columns S_value, S_stddev, S_low, S_high, S_clients.

    The first also has S_shrunk and S_shrunk_stddev, after empirical-Bayes shrinkage towards that of all users,
    S_differs, S_simultaneous_low and S_simultaneous_high.
    """
    numbers = [MOMENTS_SCHEMA.field(name) for name in ("value", "stddev", "low", "high", "clients")]
    mine = [field.with_name(f"{statistic}_{field.name}") for statistic in statistics for field in numbers]
    shrinkage = [
        described(f"{statistics[0]}_shrunk", "the estimate after shrinkage towards the value of all users"),
        described(f"{statistics[0]}_shrunk_stddev", "standard deviation of the shrunk estimate"),
        described(
            f"{statistics[0]}_differs",
            "1 above the value of all users, -1 below, 0 unknown; simultaneous for all cells, at 95%",
            pa.int8(),
        ),
        *(
            described(
                f"{statistics[0]}_simultaneous_{end}",
                f"{side} end of an interval that holds for all cells at once, at 95%; null for a sum",
                null=True,
            )
            for end, side in (("low", "lower"), ("high", "upper"))
        ),
    ]
    return [*mine, *shrinkage]
