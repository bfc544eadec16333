"""The columns that a job reads from location logs, and their types."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as pt

from sfumato.schemas.errors import MissingColumnError, RequestError
from sfumato.schemas.slots import Slots

# Why a row of a log is dropped.
DROP_REASONS = (
    "null_user_id", "null_coordinate", "not_finite", "out_of_range", "out_of_region", "null_value", "no_prefix_code",
    "not_utf8", "bad_weight", "unknown_category", "negative_value",
)  # fmt: skip

MAX_CATEGORIES = 16
TIME_TYPE = pa.timestamp("us", "UTC")  # of times that a file holds as text
_BOOLEAN = ("false", "true")

# Kinds of columns that a job accepts, in the order of _KINDS.
CATEGORIES = ("text", "integers", "booleans", "dates")
PREFIXES = ("text", "integers", "dates")
NUMBERS = ("integers", "floating-point numbers")


def is_text(kind: pa.DataType) -> bool:
    """Returns whether an Arrow type holds strings."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


_KINDS = (
    ("text", is_text),
    ("integers", lambda kind: pt.is_integer(kind) and not pt.is_uint64(kind)),
    ("booleans", pt.is_boolean),
    ("dates", pt.is_date),
    ("floating-point numbers", pt.is_floating),
)
_ADVICE = {
    CATEGORIES: "categories; use `sfumato quantiles` for the distribution of a number, or convert it to text",
    PREFIXES: "text, integers or dates; convert it to text",
    NUMBERS: "integers or floating-point numbers; convert it",
}


class Columns(Protocol):
    """The columns that a job reads."""

    def __hash__(self) -> int: ...

    def names(self) -> list[str]:
        """Returns the columns to read, each once."""

    def text_types(self) -> dict[str, pa.DataType]:
        """Returns the type of each column, for reading text formats and data frames."""

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        """Checks the columns of one file. Returns {column: kind} for columns that must be equal in all files.

        Raises RequestError if a column is missing or has the wrong type.
        """


@dataclass(frozen=True)
class Auxiliary:
    """Auxiliary data: a column that holds one of a few categories. Raises RequestError for others.

    Attributes:
        categories: 2 to MAX_CATEGORIES different names. They must be public: categories from the logs would reveal
            that a user has a rare category. Booleans, and the integers 0 and 1, have the categories false and true, in
            either order.
        assumed: whether the categories are the default of booleans.
    """

    column: str
    categories: tuple[str, ...] = _BOOLEAN
    assumed: bool = False

    def __post_init__(self) -> None:
        if not self.column:
            raise RequestError("auxiliary: must be the name of a column, got an empty name")
        if not all(self.categories):
            raise RequestError(f"categories: must not be empty, got {','.join(self.categories)!r}")
        if not 2 <= len(self.categories) <= MAX_CATEGORIES:
            raise RequestError(f"categories: must be between 2 and {MAX_CATEGORIES} names, got {len(self.categories)}")
        twice = [name for name in self.categories if self.categories.count(name) > 1]
        if twice:
            raise RequestError(f"categories: must differ, got {twice[0]!r} twice")

    @property
    def is_boolean(self) -> bool:
        """Returns whether the categories are false and true."""
        return set(self.categories) == set(_BOOLEAN)

    def check(self, schema: pa.Schema, path: str) -> None:
        """Raises RequestError if the column is missing, or the categories do not fit its type."""
        kind = field_type(schema, self.column, "auxiliary", path)
        names = ",".join(self.categories)
        if pt.is_boolean(kind):
            if not self.is_boolean:
                raise RequestError(
                    f"{path}: column {self.column!r} holds booleans; give --categories false,true instead of {names!r}"
                )
        elif pt.is_integer(kind):
            if not (self.is_boolean or all(_is_integer(name) for name in self.categories)):
                raise RequestError(
                    f"{path}: column {self.column!r} holds {kind}; give whole numbers such as --categories 0,1,2, or "
                    f"false,true for 0 and 1, instead of {names!r}"
                )
        elif not holds_text(kind):
            raise RequestError(f"{path}: column {self.column!r} must hold booleans, integers or text, got {kind}")
        elif self.assumed:
            raise RequestError(
                f"{path}: column {self.column!r} holds {kind}; give its values as --categories a,b,c. They are "
                "published, so do not take them from the logs"
            )


def _is_integer(text: str) -> bool:
    """Returns whether text is an integer of 64 bits, signed or unsigned, in its usual form."""
    try:
        return str(int(text)) == text and -(1 << 63) <= int(text) < 1 << 64
    except ValueError:
        return False


@dataclass(frozen=True)
class LocationColumns:
    """Names of the columns of a location log. Raises RequestError if they contradict each other.

    Without weight and time, all records of a user have equal weights.
    """

    user_id: str = "user_id"
    latitude: str = "latitude"
    longitude: str = "longitude"
    weight: str | None = None  # numbers >= 0
    time: str | None = None  # the weight of a record is the time until the user's next record
    max_dwell: float = 3600.0  # upper bound of the weights from times, in seconds
    auxiliary: Auxiliary | None = None  # a category for each record
    slots: Slots | None = None  # of local time, in which records are counted separately; without weights
    records_per_user: int = 1  # largest number of slots in which a user counts, each by one record

    def __post_init__(self) -> None:
        if self.auxiliary is not None and self.slots is not None:
            raise RequestError("auxiliary: cannot be combined with --slots")
        if self.records_per_user > 1:
            if self.slots is None or self.records_per_user > len(self.slots):
                most = 1 if self.slots is None else len(self.slots)
                raise RequestError(
                    f"records_per_user: must be at most {most}, one for each slot, got {self.records_per_user}"
                )
            if self.weight is not None:
                raise RequestError(
                    "weight_column: cannot be combined with --records_per_user: records then have equal weights"
                )
        if self.weight is not None and self.time is not None:
            raise RequestError("weight_column, time_column: cannot be combined; give one of them")
        if not (math.isfinite(self.max_dwell) and self.max_dwell > 0):
            raise RequestError(f"max_dwell: must be a finite number of seconds > 0, got {self.max_dwell}")
        if self.auxiliary is not None and self.auxiliary.column in (self.user_id, self.latitude, self.longitude):
            raise RequestError(
                f"auxiliary: must not be a column of user ids or coordinates, got {self.auxiliary.column!r}"
            )

    @property
    def categories(self) -> int:
        """Returns the number of categories; 1 without auxiliary data."""
        return len(self.auxiliary.categories) if self.auxiliary else 1

    @property
    def bins(self) -> int:
        """Returns the number of bins of a cell's records: categories or slots; 1 without either."""
        return self.categories if self.slots is None else len(self.slots)

    def metadata(self) -> dict[str, Any]:
        """Returns the columns by role, in JSON's types, with slots if any."""
        own = asdict(self)
        del own["slots"], own["records_per_user"]  # the keys of maps without slots stay as they were
        slots = self.slots
        return own if slots is None else {**own, "slots": slots.metadata(), "records_per_user": self.records_per_user}

    @property
    def has_weights(self) -> bool:
        """Returns whether records have weights, by a column of weights or of times."""
        return self.weight is not None or self.time is not None

    @property
    def dwell_limit(self) -> float | None:
        """Returns the upper bound of weights from times, in seconds; None if weights are not from times."""
        return None if self.time is None else self.max_dwell

    def names(self) -> list[str]:
        return list(dict.fromkeys([self.user_id, self.latitude, self.longitude, *self.names_beside_coordinates()]))

    def names_beside_coordinates(self) -> list[str]:
        """Returns the columns to read except coordinates, each once."""
        beside = (one.column for one in (self.auxiliary, self.slots) if one is not None)
        more = (self.weight, self.time, *beside)
        return list(dict.fromkeys([self.user_id, *(one for one in more if one is not None)]))

    @property
    def _times(self) -> list[str]:
        """Returns the columns of times."""
        return [one for one in (self.time, self.slots.column if self.slots else None) if one is not None]

    def text_types(self) -> dict[str, pa.DataType]:
        types = {name: pa.float64() for name in (self.latitude, self.longitude, self.weight) if name is not None}
        types |= dict.fromkeys(self._times, TIME_TYPE)
        if self.auxiliary is not None:
            types[self.auxiliary.column] = pa.bool_() if self.auxiliary.is_boolean else pa.string()
        return types | {self.user_id: pa.string()}

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        check_user_id(schema, self.user_id, path)
        for role, name in (("latitude", self.latitude), ("longitude", self.longitude)):
            check_degrees(schema, name, role, path)
        if self.weight is not None:
            weight = field_type(schema, self.weight, "weight_column", path)
            if not (pt.is_floating(weight) or pt.is_integer(weight)):
                raise RequestError(f"{path}: column {self.weight!r} must hold weights as numbers, got {weight}")
        for column in self._times:
            check_time(schema, column, path)
        if self.auxiliary is not None:
            self.auxiliary.check(schema, path)
        return {}


def field_type(schema: pa.Schema, name: str, option: str, path: str) -> pa.DataType:
    """Returns the type of a column's values, dictionary-encoded or not. Raises MissingColumnError."""
    if name not in schema.names:
        raise MissingColumnError.of(path, [(option, name)], schema.names)
    kind = schema.field(name).type
    return kind.value_type if pt.is_dictionary(kind) else kind


def check_time(schema: pa.Schema, name: str, path: str, option: str = "time_column") -> None:
    """Raises RequestError unless the column exists and holds timestamps or numbers."""
    time = field_type(schema, name, option, path)
    if not (pt.is_timestamp(time) or pt.is_floating(time) or pt.is_integer(time)):
        raise RequestError(f"{path}: column {name!r} must hold timestamps, or seconds as numbers, got {time}")


def check_degrees(schema: pa.Schema, name: str, role: str, path: str) -> None:
    """Raises RequestError unless a column holds floating-point numbers. role: `latitude` or `longitude`."""
    kind = field_type(schema, name, f"{role}_column", path)
    if pt.is_integer(kind):  # by the type only: one user's value must not decide what the column means
        raise RequestError(
            f"{path}: column {name!r} holds {kind}; set --coordinates e7 for degrees times 10^7, or convert whole "
            "degrees to floating-point numbers"
        )
    if not pt.is_floating(kind):
        raise RequestError(f"{path}: column {name!r} must hold degrees as floating-point numbers, got {kind}")


def check_user_id(schema: pa.Schema, name: str, path: str) -> None:
    """Raises RequestError unless a column exists and holds integers, strings or bytes.

    Files may differ: the integer 7 and the text "7" are one user.
    """
    kind = field_type(schema, name, "user_id_column", path)
    if not (holds_text(kind) or pt.is_integer(kind)):
        raise RequestError(f"{path}: column {name!r} must hold integers, strings or bytes, got {kind}")


def holds_text(kind: pa.DataType) -> bool:
    """Returns whether an Arrow type holds strings or bytes, dictionary-encoded or not."""
    kind = kind.value_type if pt.is_dictionary(kind) else kind
    bytes_of = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    return is_text(kind) or any(is_kind(kind) for is_kind in bytes_of)


@dataclass(frozen=True)
class ItemColumns:
    """The column of items of a log, and its column of user ids. kinds: allowed kinds of items."""

    column: str
    user_id: str = "user_id"
    kinds: tuple[str, ...] = CATEGORIES

    def __post_init__(self) -> None:
        if self.column == self.user_id:
            raise RequestError(
                f"column: must not be the column of user ids, {self.column!r}: publishing it would identify users"
            )

    def names(self) -> list[str]:
        return [self.user_id, self.column]

    def text_types(self) -> dict[str, pa.DataType]:
        return {self.column: pa.float64() if self.kinds == NUMBERS else pa.string(), self.user_id: pa.string()}

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        check_user_id(schema, self.user_id, path)
        return {self.column: column_kind(schema, self.column, "column", self.kinds, path)}


def column_kind(schema: pa.Schema, name: str, option: str, kinds: tuple[str, ...], path: str) -> str:
    """Returns the kind of a column, one of `kinds`. Raises RequestError if it is missing or has another kind."""
    held = field_type(schema, name, option, path)
    kind = next((name for name, test in _KINDS if test(held)), None)
    if kind not in kinds:
        raise RequestError(f"{path}: column {name!r} holds {held}, but must hold {_ADVICE[kinds]}")
    return kind


@dataclass(frozen=True)
class TripColumns:
    """Names of the columns of a log of trips. Raises RequestError if a column has two roles.

    origin, destination: columns of longitude and latitude in degrees, WGS 84.
    """

    origin: tuple[str, str]
    destination: tuple[str, str]
    user_id: str = "user_id"

    def __post_init__(self) -> None:
        names = self.names()
        if twice := [name for name in names if names.count(name) > 1]:
            raise RequestError(
                f"origin, destination: must be four columns other than the column of user ids, got {twice[0]!r} twice"
            )

    def names(self) -> list[str]:
        return [self.user_id, *self.origin, *self.destination]

    @property
    def ends(self) -> tuple[LocationColumns, LocationColumns]:
        """Returns the two places of a row as columns of locations."""
        begin, end = self.origin, self.destination
        return LocationColumns(self.user_id, begin[1], begin[0]), LocationColumns(self.user_id, end[1], end[0])

    def text_types(self) -> dict[str, pa.DataType]:
        return {**dict.fromkeys((*self.origin, *self.destination), pa.float64()), self.user_id: pa.string()}

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        check_user_id(schema, self.user_id, path)
        for option in ("origin", "destination"):
            for name in getattr(self, option):
                held = field_type(schema, name, option, path)
                if not (pt.is_floating(held) or pt.is_integer(held)):
                    raise RequestError(
                        f"{path}: column {name!r} must hold degrees as floating-point numbers, got {held}; set "
                        f"--{option} LON,LAT"
                    )
        return {}
