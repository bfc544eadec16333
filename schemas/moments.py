"""Means and other moments of a number by bit pushing: the form of its values, what is asked, what comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.items import CATEGORIES, NUMBERS, column_kind
from sfumato.schemas.locations import check_degrees, check_user_id
from sfumato.schemas.release import CELLS_SCHEMA

MAX_BITS = 52  # whole numbers up to here are exact in a float64
EVERYBODY, OTHER = "everybody", "other"  # names of groups
Signed = Literal["no", "shift", "split"]
Method = Literal["adaptive", "weighted"]


@dataclass(frozen=True)
class FixedPoint:
    """The form of a column's values: whole multiples of 2^-fraction_bits, the nearest to each value.

    bits: of the magnitude, fraction_bits of them below the point. signed: `no`, values lie in 0..(2^bits - 1) steps;
    `shift`, `offset` is added first, in the column's unit, and taken away from the results; `split`, the sign is kept
    apart and each bit position exists once for positive and once for negative values (paper 002, Section 3.4). Values
    outside the range are moved to its ends. Raises RequestError for what cannot be.
    """

    bits: int = 16
    fraction_bits: int = 0
    signed: Signed = "no"
    offset: float = 0.0

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 1 <= self.bits <= MAX_BITS:
            raise RequestError(f"bits: must lie in 1..{MAX_BITS}, got {self.bits}")
        if type(self.fraction_bits) is not int or not -MAX_BITS <= self.fraction_bits <= MAX_BITS:
            raise RequestError(f"fraction_bits: must lie in -{MAX_BITS}..{MAX_BITS}, got {self.fraction_bits}")
        if self.signed not in get_args(Signed):
            raise RequestError(f"signed: must be one of {', '.join(get_args(Signed))}, got {self.signed!r}")
        if not math.isfinite(self.offset) or (self.offset and self.signed != "shift"):
            raise RequestError(f"signed: shift:OFFSET needs a finite number, got {self.offset}")

    @property
    def step(self) -> float:
        """The distance between neighbouring values, in the column's unit."""
        return 2.0**-self.fraction_bits

    @property
    def most(self) -> int:
        """The largest magnitude, in steps."""
        return (1 << self.bits) - 1

    @property
    def low(self) -> float:
        """The least value, in the column's unit."""
        return -self.most * self.step if self.signed == "split" else 0.0 - self.offset

    @property
    def high(self) -> float:
        """The greatest value, in the column's unit."""
        return self.most * self.step - self.offset


@dataclass(frozen=True)
class ValueColumns:
    """The columns of a number's log. Raises RequestError for names that cannot be.

    user_id: None where every row is another user's. group: a column of text, integers, booleans or dates. latitude,
    longitude: of the place whose map cell is a row's group, degrees; both or none.
    """

    column: str
    user_id: str | None = "user_id"
    group: str | None = None
    latitude: str | None = None
    longitude: str | None = None

    def __post_init__(self) -> None:
        if self.column == self.user_id:
            raise RequestError(f"column: {self.column!r} is the column of user ids")
        if self.group is not None and self.group in (self.user_id, self.column):
            raise RequestError(f"group_by: {self.group!r} is the column of user ids, or that of the values")

        if (self.latitude is None) != (self.longitude is None):
            raise RequestError("latitude_column, longitude_column: a place needs both")

    def names(self) -> list[str]:
        names = (self.user_id, self.column, self.group, self.latitude, self.longitude)
        return list(dict.fromkeys(name for name in names if name is not None))

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        """See Columns.check."""
        column_types = {}
        if self.user_id is not None:
            column_types[self.user_id] = check_user_id(schema, self.user_id, path)
        column_types[self.column] = column_kind(schema, self.column, "column", NUMBERS, path)
        if self.group is not None:
            column_types[self.group] = column_kind(schema, self.group, "group_by", CATEGORIES, path)
        for role, name in (("latitude", self.latitude), ("longitude", self.longitude)):
            if name is not None:
                check_degrees(schema, name, role, path)
        return column_types


@dataclass(frozen=True)
class Statistic:
    """What is estimated of a column, by name: `mean`, or with a power K `moment:K` (the mean of the Kth power).

    `transforms/moments/derived_statistics.py` has the names; a plan with another name raises RequestError.
    """

    name: str

    @property
    def power(self) -> int:
        """K of `moment:K`; 0 for others."""
        return int(self.name.partition(":")[2] or 0)


@dataclass(frozen=True)
class MomentEstimate:
    """One published number. group: EVERYBODY, a group's name, or OTHER. stddev: of the estimator, in the same unit as
    value. low, high: the ends of a 95% interval. clients: how many answered for it, estimated where groups are private.
    """

    group: str
    statistic: str
    value: float
    stddev: float
    low: float
    high: float
    clients: float


@dataclass(frozen=True, eq=False)
class BitMeans:
    """How often each bit of a quantity is set among the clients: what Figure 5(b) of paper 002 shows.

    Raises ValueError where the columns disagree in length.

    Attributes:
        quantity: what the bits are of: `value`, `square` (squared distance from the mean), `power:K` or `log2`.
        weight: float64[n], what one set bit adds to the quantity, in the quantity's unit; negative for bits of
            negative values. Within one sign the weights double from bit to bit.
        mean: float64[n], estimated share of the clients whose bit is set; noise may lead it outside 0..1.
        stddev: float64[n], standard deviation of `mean`.
        reports: float64[n], how many clients reported the bit.
        squashed: bool[n], probably empty: the estimates count a bit by the chance that it is in use, here below half.
        read_probability: float64[n], the chance with which any one client's bit was read.
    """

    quantity: str
    weight: NDArray[np.float64]
    mean: NDArray[np.float64]
    stddev: NDArray[np.float64]
    reports: NDArray[np.float64]
    squashed: NDArray[np.bool_]
    read_probability: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("mean", "stddev", "reports", "squashed", "read_probability"):
            if np.shape(getattr(self, name)) != np.shape(self.weight):
                raise ValueError(f"{name}: must hold one value for each of the {len(self.weight)} bits")


MOMENTS_SCHEMA = pa.schema(
    [
        pa.field("group", pa.string(), False, {"description": f"{EVERYBODY!r}, a public group, or {OTHER!r}"}),
        pa.field("statistic", pa.string(), False),
        pa.field("value", pa.float64(), False),
        pa.field("stddev", pa.float64(), False, {"description": "standard deviation of the estimator"}),
        pa.field("low", pa.float64(), False, {"description": "lower end of a 95% interval"}),
        pa.field("high", pa.float64(), False, {"description": "upper end of a 95% interval"}),
        pa.field("clients", pa.float64(), False, {"description": "clients who answered; estimated for groups"}),
    ]
)
BITS_SCHEMA = pa.schema(
    [
        pa.field("quantity", pa.string(), False, {"description": "value, square, power:K or log2"}),
        pa.field("weight", pa.float64(), False, {"description": "what a set bit adds, negative for negative values"}),
        pa.field("mean", pa.float64(), False, {"description": "share of clients whose bit is set; may leave 0..1"}),
        pa.field("stddev", pa.float64(), False, {"description": "standard deviation of mean"}),
        pa.field("reports", pa.float64(), False, {"description": "clients who reported the bit"}),
        pa.field(
            "squashed",
            pa.bool_(),
            False,
            {"description": "probably empty: its chance to be in use is below half"},
        ),
        pa.field("read_probability", pa.float64(), False, {"description": "chance that a client's bit was read"}),
    ]
)


def moment_cells_schema(statistics: Sequence[str]) -> pa.Schema:
    """The table of a map's cells: for each statistic S the columns S_value, S_stddev, S_low, S_high, S_clients.

    The first also has S_shrunk and S_shrunk_stddev, drawn towards everybody's by empirical Bayes, and S_differs.
    """
    shared = [CELLS_SCHEMA.field(name) for name in ("cell_id", "depth", "west", "south", "east", "north")]
    numbers = [MOMENTS_SCHEMA.field(name) for name in ("value", "stddev", "low", "high", "clients")]
    mine = [field.with_name(f"{statistic}_{field.name}") for statistic in statistics for field in numbers]
    drawn = [
        pa.field(f"{statistics[0]}_shrunk", pa.float64(), False, {"description": "drawn towards everybody's value"}),
        pa.field(f"{statistics[0]}_shrunk_stddev", pa.float64(), False),
        pa.field(
            f"{statistics[0]}_differs",
            pa.int8(),
            False,
            {"description": "1 above everybody's, -1 below, 0 not known; at 95% for all cells together"},
        ),
    ]
    return pa.schema([*shared, *mine, *drawn, CELLS_SCHEMA.field("geometry")], metadata=CELLS_SCHEMA.metadata)
