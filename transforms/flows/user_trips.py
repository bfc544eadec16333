"""Trips of users: encoded from batches, made of consecutive records, and bounded by a keyed draw. Pure.

A trip is a pair of cells of level MAX_PAIR_DEPTH (`pair_codes`), the finest that the region's sides are divided into.
Every function here works on all records of its users at once: no other user, no order and no file has an effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.locations import LocationColumns, TripColumns
from sfumato.schemas.region import Locator, Region, deinterleave, ground_metres
from sfumato.transforms.flows.pair_codes import MAX_PAIR_DEPTH, Codes, join_cells
from sfumato.transforms.histogram.item_encoding import Drawn, EncodedItems
from sfumato.transforms.histogram.user_sample import ItemCounts, Sample, add_pairs, run_starts, sum_by_item
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.privacy.keys import RunKey, random_bits

PAIR_BITS = 4 * MAX_PAIR_DEPTH
_CELL_BITS, _TIME_BITS = 2 * MAX_PAIR_DEPTH, 64 - 2 * MAX_PAIR_DEPTH
_ROW = "row of the batch"  # no column of a log is read under this name
_EPOCH = 1 << (_TIME_BITS - 1)  # seconds before 1970 that a record may be: 272 years


@dataclass(frozen=True)
class TripItems:
    """Rows with two places, as Items: pairs of the locator's cells, which are of level MAX_PAIR_DEPTH."""

    columns: TripColumns
    locator: Locator

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        """See Items.encode. A row is usable where both of its places have a cell."""
        user_key = key.subkey("users")
        begin, end = self.columns.ends
        rows = pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(np.arange(batch.num_rows))], [*batch.schema.names, _ROW]
        )
        first = encode_locations(_numbered(rows, begin), _with_row(begin), self.locator, user_key)
        kept = np.asarray(first.values, dtype=np.int64)
        rest = rows.take(pa.array(kept))
        second = encode_locations(_numbered(rest, end), _with_row(end), self.locator, user_key)
        places = np.searchsorted(kept, np.asarray(second.values, dtype=np.int64))
        pairs = join_cells(first.codes[places].astype(np.uint64), second.codes.astype(np.uint64), MAX_PAIR_DEPTH)
        in_sample = drawn(second.users)
        dropped = tuple(a + b for a, b in zip(first.dropped, second.dropped, strict=True))
        sample = Sample.from_arrays(second.users[in_sample], pairs[in_sample])
        return EncodedItems(sample, batch.num_rows, dropped)


@dataclass(frozen=True)
class RecordItems:
    """Records with a time, as Items: the upper bits are the time in seconds, the lower ones the cell."""

    columns: LocationColumns
    locator: Locator

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        """See Items.encode."""
        encoded = encode_locations(batch, self.columns, self.locator, key.subkey("users"), drawn)
        assert encoded.values is not None
        seconds = np.clip(np.floor(encoded.values) + _EPOCH, 0, (1 << _TIME_BITS) - 1).astype(np.uint64)
        items = seconds << np.uint64(_CELL_BITS) | encoded.codes.astype(np.uint64)
        sample = Sample.from_arrays(encoded.users, items)
        return EncodedItems(sample, encoded.rows, encoded.dropped)


@dataclass(frozen=True)
class TripRule:
    """What makes a trip of two consecutive records of a user.

    Attributes:
        max_gap: longest time between them, in seconds.
        min_distance: least distance between the centres of their cells, in metres, at the region's middle latitude.
    """

    max_gap: float
    min_distance: float
    region: Region

    def trips(self, sample: Sample) -> Sample:
        """The trips of all records of some users, as pairs. Records of one second are in the order of their cells."""
        records = add_pairs(sample)
        order = np.lexsort((records.items, records.users))
        users, items = records.users[order], records.items[order].astype(np.uint64)
        times = (items >> np.uint64(_CELL_BITS)).astype(np.int64)
        cells = items & np.uint64((1 << _CELL_BITS) - 1)
        is_trip = (users[1:] == users[:-1]) & (np.diff(times) <= self.max_gap)
        if self.min_distance > 0:
            is_trip &= self._distances(cells) >= self.min_distance
        pairs = join_cells(cells[:-1][is_trip], cells[1:][is_trip], MAX_PAIR_DEPTH)
        return Sample.from_arrays(users[1:][is_trip], pairs)

    def _distances(self, cells: Codes) -> NDArray[np.float64]:
        """From each cell to the next, metres: float64[n - 1]."""
        width, height = (side / (1 << MAX_PAIR_DEPTH) for side in ground_metres(self.region))
        x, y = deinterleave(cells)
        return np.asarray(np.hypot(np.diff(x) * width, np.diff(y) * height))


def _with_row(columns: LocationColumns) -> LocationColumns:
    return LocationColumns(columns.user_id, columns.latitude, columns.longitude, weight=_ROW)


def _numbered(rows: pa.RecordBatch, columns: LocationColumns) -> pa.RecordBatch:
    return rows.select([columns.user_id, columns.latitude, columns.longitude, _ROW])


def count_trips(sample: Sample, max_trips: int, rule: TripRule | None, key: RunKey) -> list[ItemCounts]:
    """The trips of some users by pair, at most `max_trips` of each user: one ItemCounts, exact.

    Args:
        sample: all records of its users: pairs, or with a rule records with times.
        max_trips: K. Of a user with more trips, K are drawn without replacement, each trip with the same probability.
        rule: of records with times; None for pairs.
        key: of the draw.
    """
    trips = add_pairs(sample) if rule is None else add_pairs(rule.trips(sample))
    order = np.argsort(trips.users, kind="stable")
    users, pairs, records = (column[order] for column in (trips.users, trips.items, trips.records))
    copies = records.astype(np.int64)
    users, pairs = np.repeat(users, copies), np.repeat(pairs, copies).astype(np.uint64)
    starts = run_starts(users)
    sizes = np.diff(starts, append=len(users))
    if sizes.max(initial=0) > max_trips:
        number = np.arange(len(users)) - np.repeat(np.cumsum(copies) - copies, copies)
        mixed = random_bits(key.subkey("trips"), users, pairs)[:, 0]
        drawn = random_bits(key.subkey("drawn trips"), mixed, number.astype(np.uint64))[:, 0]
        chosen = np.lexsort((drawn, users))
        rank = np.arange(len(users)) - np.repeat(starts, sizes)
        pairs = pairs[chosen[rank < max_trips]]
    return [sum_by_item(pairs)]
