"""Trips of users: encoded from batches, made of consecutive records, and bounded by a keyed draw. Pure.

A trip is a pair of cells of level MAX_PAIR_DEPTH, the finest that the region's sides are divided into. A cell's code
has two bits a level (`schemas/region.py`), a pair's code four: the origin's two before the destination's two. So the
first 4 l bits of a pair's code are the code of the pair of cells of level l in which it lies, and pairs in the order of
their codes are in the order of a tree with 16 children a node.

Every function here works on all records of its users at once: no other user, no order and no file has an effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.locations import LocationColumns, TripColumns
from sfumato.schemas.region import Locator, Region, deinterleave, ground_metres
from sfumato.transforms.histogram.item_encoding import Drawn, EncodedItems, Items
from sfumato.transforms.histogram.user_sample import ItemCounts, Sample, add_pairs, run_starts, sum_by_item
from sfumato.transforms.locations.encode import EncodedLocations, encode_locations
from sfumato.transforms.privacy.keys import RunKey, random_bits

MAX_PAIR_DEPTH = 15  # 60 bits
_TWO_BITS, _FOUR_BITS = np.uint64(3), np.uint64(15)
Codes = NDArray[np.uint64]
PAIR_BITS = 4 * MAX_PAIR_DEPTH
_CELL_BITS, _TIME_BITS = 2 * MAX_PAIR_DEPTH, 64 - 2 * MAX_PAIR_DEPTH
_ROW = "row of the batch"  # no column of a log is read under this name
_EPOCH = 1 << (_TIME_BITS - 1)  # seconds before 1970 that a record may be: 272 years


def join_cells(origins: Codes, destinations: Codes, depth: int) -> Codes:
    """Codes of pairs, uint64[n], of origins and destinations, uint64[n] codes of cells of level `depth`."""
    pairs = np.zeros(len(origins), np.uint64)
    for level in range(depth):
        at = np.uint64(2 * level)
        digit = ((origins >> at) & _TWO_BITS) << np.uint64(2) | ((destinations >> at) & _TWO_BITS)
        pairs |= digit << np.uint64(4 * level)
    return pairs


def split_pairs(pairs: Codes, depth: int) -> tuple[Codes, Codes]:
    """Returns the inverse of `join_cells`: origins and destinations, uint64[n] each."""
    origins, destinations = np.zeros_like(pairs), np.zeros_like(pairs)
    for level in range(depth):
        digit = (pairs >> np.uint64(4 * level)) & _FOUR_BITS
        origins |= (digit >> np.uint64(2)) << np.uint64(2 * level)
        destinations |= (digit & _TWO_BITS) << np.uint64(2 * level)
    return origins, destinations


def count_prefixes(codes: Codes, counts: NDArray[np.int64], nodes: Codes, bits: int) -> NDArray[np.int64]:
    """Returns the counts of nodes: int64[m].

    codes: uint64[n] ascending, distinct, of pairs. counts: int64[n], of each. nodes: uint64[m], in any order, prefixes
    of codes. bits: that a code has more than a node.
    """
    before = np.concatenate(([0], np.cumsum(counts)))
    first = np.searchsorted(codes, nodes << np.uint64(bits))
    last = np.searchsorted(codes, (nodes << np.uint64(bits)) | np.uint64((1 << bits) - 1), side="right")
    return np.asarray(before[last] - before[first])


@dataclass(frozen=True)
class TripItems(Items):
    """Rows with two places, as Items: pairs of the locator's cells, which are of level MAX_PAIR_DEPTH."""

    columns: TripColumns
    locator: Locator

    def encode(self, batch: pa.RecordBatch, key: RunKey, drawn: Drawn) -> EncodedItems:
        """See Items.encode. A row is usable where both of its places have a cell."""
        user_key = key.subkey("users")
        begin, end = self.columns.ends
        rows = batch.append_column(_ROW, pa.array(np.arange(batch.num_rows)))
        first = self._located(rows, begin, user_key)
        kept = np.asarray(first.values, dtype=np.int64)
        rest = rows.take(pa.array(kept))
        second = self._located(rest, end, user_key)
        places = np.searchsorted(kept, np.asarray(second.values, dtype=np.int64))
        pairs = join_cells(first.codes[places].astype(np.uint64), second.codes.astype(np.uint64), MAX_PAIR_DEPTH)
        in_sample = drawn(second.users)
        dropped = tuple(a + b for a, b in zip(first.dropped, second.dropped, strict=True))
        sample = Sample.from_arrays(second.users[in_sample], pairs[in_sample])
        return EncodedItems(sample, batch.num_rows, dropped)

    def _located(self, rows: pa.RecordBatch, place: LocationColumns, key: bytes) -> EncodedLocations:
        """Returns one place of each row, with the row's number as its value."""
        columns = replace(place, weight=_ROW)
        return encode_locations(
            rows.select([place.user_id, place.latitude, place.longitude, _ROW]), columns, self.locator, key
        )


@dataclass(frozen=True)
class RecordItems(Items):
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
    """The rule by which two consecutive records of a user are a trip."""

    max_gap: float  # longest time between them, in seconds
    min_distance: float  # least distance between the centres of their cells, in metres, at the region's middle latitude
    region: Region

    def trips(self, sample: Sample) -> Sample:
        """Returns the trips of all records of some users, as pairs.

        Records of one second are in the order of their cells.
        """
        records = add_pairs(sample)
        order = np.lexsort((records.items, records.users))
        users, items = records.users[order], records.items[order].astype(np.uint64)
        times = (items >> np.uint64(_CELL_BITS)).astype(np.int64)
        cells = items & np.uint64((1 << _CELL_BITS) - 1)
        is_trip = (users[1:] == users[:-1]) & (np.diff(times) <= self.max_gap)
        if self.min_distance > 0:
            width, height = (side / (1 << MAX_PAIR_DEPTH) for side in ground_metres(self.region))
            x, y = deinterleave(cells)
            is_trip &= np.hypot(np.diff(x) * width, np.diff(y) * height) >= self.min_distance
        pairs = join_cells(cells[:-1][is_trip], cells[1:][is_trip], MAX_PAIR_DEPTH)
        return Sample.from_arrays(users[1:][is_trip], pairs)


def count_trips(sample: Sample, max_trips: int, rule: TripRule | None, key: RunKey) -> list[ItemCounts]:
    """Returns the trips of some users by pair, at most `max_trips` of each user: one ItemCounts, exact.

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
