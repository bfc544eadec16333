"""What is counted: cells, public zones, values of a column, or bins of its numbers.

Encodes Arrow batches as (user hash, item code) pairs of the drawn users; drops and counts bad rows. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import DROP_REASONS, ItemColumns, LocationColumns, TripColumns, holds_text
from sfumato.schemas.moments import OTHER
from sfumato.schemas.region import Grid, Locator
from sfumato.schemas.slots import DaySlots
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.histogram.user_sample import Sample, add_pairs
from sfumato.transforms.inputs.text_values import decoded, utf8_texts, without_views
from sfumato.transforms.locations.encode import NULL_USER, encode_locations
from sfumato.transforms.privacy.keys import RunKey, keyed_hash
from sfumato.transforms.privacy.user_hashes import hash_users

MAX_BITS = 30
_BLOCK_ROWS = 1 << 16  # drawn at once: temporary columns stay in the processor's cache
Drawn = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]  # uint64[n] user hashes -> bool[n], who is in the sample
_NOT_FINITE, _NULL_VALUE, _NO_CODE, _NOT_UTF8 = map(
    DROP_REASONS.index, ("not_finite", "null_value", "no_prefix_code", "not_utf8")
)


@dataclass(frozen=True)
class NumberBins:
    """2^bits bins of [low, high], of one width between two neighbouring edges. Without edges all have one width.

    An edge, strictly inside the range, is a border of two bins, so that no bin holds users on both of its sides: how
    the users of a bin lie in it is not known, and many may have one value. Raises RequestError if the range is empty or
    not finite, bits is not in 1..30, or there are too many edges.

    Example:
        >>> bins = NumberBins(0, 100, 3, edges=(10,))
        >>> bins.of(np.array([9.99, 10, 100])).tolist()
        [0, 1, 7]
        >>> bins.at(np.array([0, 1, 8])).tolist()
        [0.0, 10.0, 100.0]
    """

    low: float
    high: float
    bits: int
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise RequestError(
                f"range: LOW,HIGH must be finite numbers with LOW < HIGH, got {self.low:g},{self.high:g}"
            )
        if not np.isfinite(self.high - self.low):
            raise RequestError(f"range: {self.low:g},{self.high:g} is too wide for a floating-point number")
        if not 1 <= self.bits <= MAX_BITS:
            raise RequestError(f"bits: must be between 1 and {MAX_BITS}, got {self.bits}")
        if len(self.edges) >= 1 << self.bits:
            raise RequestError(f"ranges: {len(self.edges)} ends need more than {1 << self.bits} bins; raise --bits")

    @classmethod
    def of_ranges(cls, low: float, high: float, bits: int, ranges: Sequence[tuple[float, float]]) -> NumberBins:
        """Returns bins with borders at the ends of some ranges. Raises RequestError."""
        ends = {end for pair in ranges for end in pair}
        return cls(low, high, bits, tuple(sorted(end for end in ends if low < end < high)))

    @cached_property
    def _knots(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns the ends of the range and its edges, and the number of bins below each."""
        values = np.array([self.low, *self.edges, self.high])
        last, count = 1 << self.bits, len(self.edges)
        wanted = np.round((values - self.low) / (self.high - self.low) * last).astype(np.int64)
        rank = np.arange(count + 2)
        below = np.maximum.accumulate(wanted - rank) + rank  # each edge has a bin of its own below it
        return values, np.minimum(below, last - rank[::-1])

    def of(self, values: NDArray[np.float64]) -> NDArray[np.int32]:
        """Returns the bin of each value, int32[n]; `high` is in the last one. values: float64[n] in low..high."""
        knots, below = self._knots
        if not self.edges:
            places = (values - self.low) / (self.high - self.low) * (1 << self.bits)
            return np.minimum(places.astype(np.int32), (1 << self.bits) - 1)
        part = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(self.edges))
        share = (values - knots[part]) / (knots[part + 1] - knots[part])
        inside = (share * (below[part + 1] - below[part])).astype(np.int64)
        return np.asarray(np.minimum(below[part] + inside, below[part + 1] - 1), dtype=np.int32)

    def at(self, places: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the value at each place, float64[n]. places: in bins from the low end, 0..2^bits."""
        if not self.edges:
            return np.asarray(self.low + (self.high - self.low) * places / (1 << self.bits), dtype=np.float64)
        knots, below = self._knots
        return np.interp(places, below, knots)

    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the place of each value in bins from the low end, float64[n], 0..2^bits; see `at`."""
        knots, below = self._knots
        return np.interp(values, knots, below)


@dataclass(frozen=True)
class EncodedItems:
    """The drawn users' records of a batch, and the numbers of its rows.

    dropped: unusable rows by reason, in the order of DROP_REASONS. clamped: values outside the range, which count at
    its border.
    """

    sample: Sample
    rows: int
    dropped: tuple[int, ...]
    clamped: int = 0


class Items(ABC):
    """The source of items. Implementations are dataclasses, and have the `columns` to read."""

    NOUN: ClassVar[str] = "item"
    columns: LocationColumns | ItemColumns | TripColumns

    @property
    def days(self) -> int:
        """Returns over how many days the published counts are means, 1 for counts; then a user counts once a day."""
        return 1

    @property
    def record(self) -> str:
        """Returns what a user has several of at an item."""
        return "record" if self.days == 1 else "day"

    @abstractmethod
    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        """Encodes a batch's records of the drawn users."""

    def counted_once_a_day(self, sample: Sample) -> Sample:
        """Returns the sample with a record for each user's day at an item; unchanged for counts.

        sample: all records of its users.
        """
        return sample

    def stated(self) -> dict[str, Any]:
        """Returns what tells these items from others, in JSON's types: the run's key is bound to it."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def place(self) -> dict[str, Any]:
        """Returns where the items are, for the manifest; empty for items that are no places."""
        return {}


@dataclass(frozen=True)
class CellItems(Items):
    """Cells of a grid: codes with two bits for each level of its depth."""

    NOUN: ClassVar[str] = "cell"
    columns: LocationColumns
    grid: Grid

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        return _encode_places(batch, self.columns, self.grid, key, drawn)

    def place(self) -> dict[str, Any]:
        return {"region": asdict(self.grid.region), "grid": {"depth": self.grid.depth, "side": self.grid.side}}


@dataclass(frozen=True)
class ZoneItems(Items):
    """Public zones: the code of a place is the index of its zone."""

    NOUN: ClassVar[str] = "zone"
    columns: LocationColumns
    locator: ZoneLocator

    @property
    def days(self) -> int:
        return len(self.columns.slots) if isinstance(self.columns.slots, DaySlots) else 1

    @property
    def zones(self) -> Zones:
        """The zones, without coarser levels."""
        return self.locator.zones

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        return _encode_places(batch, self.columns, self.locator, key, drawn)

    def counted_once_a_day(self, sample: Sample) -> Sample:
        if self.days == 1:
            return sample
        pairs, bits = add_pairs(sample), 2 * self.locator.depth  # of the zone, below those of the day
        zones = pairs.items.astype(np.uint64) & np.uint64((1 << bits) - 1)
        return Sample.from_arrays(pairs.users, zones)

    def stated(self) -> dict[str, Any]:
        return {"columns": asdict(self.columns), "zones": self.zones.digest}

    def place(self) -> dict[str, Any]:
        return self.zones.place()


@dataclass(frozen=True)
class ColumnItems(Items):
    """Values of a column: texts as keyed hashes, booleans and dates as texts, integers unchanged.

    digits: length of the prefix code; integers outside 0..10^digits - 1 are dropped. None accepts all integers.
    """

    columns: ItemColumns
    digits: int | None = None

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        rows, dropped = _present(batch, self.columns)
        values = rows.column(1)
        if pt.is_dictionary(values.type) and pt.is_integer(values.type.value_type):
            values = values.dictionary_decode()
        is_text = not pt.is_integer(values.type)
        usable = None
        if is_text:
            usable, reason = (
                utf8_texts(values),
                _NOT_UTF8,
            )  # for all users: the draw must not decide whether a run fails
        elif self.digits is not None:
            numbers = values.to_numpy(zero_copy_only=False)
            usable, reason = (numbers >= 0) & (numbers < 10**self.digits), _NO_CODE
        if usable is not None:
            dropped[reason] += len(usable) - usable.sum()
            rows, values = rows.filter(pa.array(usable)), values.filter(pa.array(usable))
        users, kept = _drawn_users(rows, key, drawn)
        values = values.filter(kept)
        if is_text:
            sample = _sample_texts(users, values, key)
        else:
            numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
            sample = Sample.from_arrays(users, numbers.view(np.uint64))
        return EncodedItems(sample, batch.num_rows, tuple(dropped.tolist()))


@dataclass(frozen=True)
class ListedItems(Items):
    """Values of a column by their place in a public list of distinct texts; all others are one more item, `other`."""

    columns: ItemColumns
    listed: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.listed or "" in self.listed or len(set(self.listed)) < len(self.listed) or OTHER in self.listed:
            raise RequestError(f"items_file: must list different items, one a line, none of them {OTHER!r}")

    @property
    def names(self) -> NDArray[np.object_]:
        """Returns the text of each code: object[n]."""
        return np.array([*self.listed, OTHER], dtype=object)

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        rows, dropped = _present(batch, self.columns)
        users, kept = _drawn_users(rows, key, drawn)
        values = rows.column(1).filter(kept)
        if not pt.is_dictionary(values.type):
            values = values.dictionary_encode()
        places = {name.encode(): place for place, name in enumerate(self.listed)}
        texts = values.dictionary if holds_text(values.type.value_type) else values.dictionary.cast(pa.string())
        codes = [places.get(text, len(self.listed)) for text in texts.cast(pa.large_binary()).to_pylist()]
        items = np.array(codes, dtype=np.uint64)[values.indices.to_numpy(zero_copy_only=False)]
        return EncodedItems(Sample.from_arrays(users, items), batch.num_rows, tuple(dropped.tolist()))


@dataclass(frozen=True)
class NumberItems(Items):
    """Numbers in [low, high] as the index of their bin. Values outside are clamped and counted.

    low, high, bits, edges: see NumberBins.
    """

    columns: ItemColumns
    low: float
    high: float
    bits: int
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _ = self.scale

    @property
    def scale(self) -> NumberBins:
        """Returns the bins. Raises RequestError."""
        return NumberBins(self.low, self.high, self.bits, self.edges)

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        rows, dropped = _present(batch, self.columns)
        values = decoded(rows.column(1))
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        usable = ~np.isnan(numbers)  # infinity is clamped to the range
        if not usable.all():
            dropped[_NOT_FINITE] += len(usable) - usable.sum()
            rows, numbers = rows.filter(pa.array(usable)), numbers[usable]
        clamped = int(np.count_nonzero(numbers < self.low) + np.count_nonzero(numbers > self.high))
        users, kept = _drawn_users(rows, key, drawn)
        drawn_numbers = numbers[kept.to_numpy(zero_copy_only=False)]  # a copy
        np.clip(drawn_numbers, self.low, self.high, out=drawn_numbers)
        items = self.scale.of(drawn_numbers).view(np.uint32)
        return EncodedItems(Sample.from_arrays(users, items), batch.num_rows, tuple(dropped.tolist()), clamped)


def _encode_places(
    batch: pa.RecordBatch, columns: LocationColumns, locator: Locator, key: RunKey, drawn: Drawn
) -> EncodedItems:
    encoded = encode_locations(batch, columns, locator, key.subkey("users"), drawn)
    return EncodedItems(Sample.from_arrays(encoded.users, encoded.codes), encoded.rows, encoded.dropped)


def _present(batch: pa.RecordBatch, columns: ItemColumns) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Returns the rows with a user and a value, as columns (user, value), and the numbers of dropped rows by reason."""
    rows = pa.RecordBatch.from_arrays([without_views(batch.column(name)) for name in columns.names()], columns.names())
    dropped = np.zeros(len(DROP_REASONS), dtype=np.int64)
    null_user, null_value = (pc.is_null(column) for column in rows.columns)
    if rows.column(0).null_count or pc.any(null_value).as_py():
        dropped[NULL_USER] = pc.sum(null_user).as_py()
        dropped[_NULL_VALUE] = pc.sum(pc.and_not(null_value, null_user)).as_py()
        rows = rows.filter(pc.invert(pc.or_(null_user, null_value)))
    return rows, dropped


def _drawn_users(rows: pa.RecordBatch, key: RunKey, drawn: Drawn) -> tuple[NDArray[np.uint64], pa.Array]:
    users = hash_users(rows.column(0), key.subkey("users"))
    kept = np.empty(len(users), dtype=bool)
    for first in range(0, len(users), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        kept[block] = drawn(users[block])
    return users[kept], pa.array(kept)


def _sample_texts(users: NDArray[np.uint64], values: pa.Array, key: RunKey) -> Sample:
    """Encodes `values`, one for each sampled user's record; booleans and dates become texts."""
    if not pt.is_dictionary(values.type):
        values = values.dictionary_encode()
    indices = values.indices.to_numpy(zero_copy_only=False)
    present, positions = np.unique(indices, return_inverse=True)
    names = values.dictionary.take(pa.array(present)).cast(pa.string()).to_pylist()
    codes = keyed_hash(key.subkey("items"), np.array(names, dtype=object))
    return Sample.from_arrays(users, codes[positions], texts=dict(zip(codes.tolist(), names, strict=True)))
