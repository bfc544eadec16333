"""Trips of users against loops over rows: pairs, consecutive records, bounds, and codes of pairs."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from shapely.geometry import box

from sfumato.schemas.locations import DROP_REASONS, LocationColumns, TripColumns
from sfumato.schemas.region import Grid, Region, ground_metres
from sfumato.transforms.flows.request import FlowsRequest
from sfumato.transforms.flows.user_trips import (
    MAX_PAIR_DEPTH,
    RecordItems,
    TripItems,
    TripRule,
    count_prefixes,
    count_trips,
    join_cells,
    split_pairs,
)
from sfumato.transforms.histogram.user_sample import merge
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.flows.samples import key_of
from tests.unit.zones.polygons import write_geojson

REGION = Region(-1.0, 50.0, 1.0, 51.0)
CELLS = Grid(REGION, MAX_PAIR_DEPTH)
COLUMNS = TripColumns(("a", "b"), ("c", "d"))
KEY = key_of(0)


def everybody(users: np.ndarray) -> np.ndarray:
    return np.ones(len(users), dtype=bool)


def trip_batch(rows: int, seed: int = 0) -> pa.RecordBatch:
    """Rows of 40 users, of which some lack an id, a coordinate or lie outside."""
    rng = seeded_rng(seed)
    place = rng.uniform([-1, 50, -1, 50], [1, 51, 1, 51], (rows, 4))
    ids = rng.integers(0, 40, rows)
    place[:3, 0] = [np.nan, 5.0, 200.0]
    place[3:5, 3] = [np.nan, 49.0]
    columns = [pa.array([*ids.tolist()[:-1], None]), *(pa.array(place[:, i]) for i in range(4))]
    columns[4] = pa.array([None if row == 6 else value for row, value in enumerate(place[:, 3].tolist())], pa.float64())
    return pa.RecordBatch.from_arrays(columns, ["user_id", "a", "b", "c", "d"])


def code(x: float, y: float) -> np.ndarray:
    return CELLS.codes(np.array([x]), np.array([y]))


def test_trips_are_pairs_of_good_rows_bad_ones_are_counted() -> None:
    batch = trip_batch(300)
    seen: list[np.ndarray] = []

    def drawn(users: np.ndarray) -> np.ndarray:
        seen.append(users)
        return everybody(users)

    encoded = TripItems(COLUMNS, CELLS).encode(batch, KEY, drawn)
    expected = []
    for row in batch.to_pylist():
        ends = [row[name] for name in "abcd"]
        inside = row["user_id"] is not None and None not in ends
        if inside and all(REGION.holds(np.array([x]), np.array([y]))[0] for x, y in (ends[:2], ends[2:])):
            expected.append(int(join_cells(code(*ends[:2]), code(*ends[2:]), MAX_PAIR_DEPTH)[0]))
    assert sorted(encoded.sample.items.tolist()) == sorted(expected)
    assert len(np.concatenate(seen)) == len(expected) == 300 - 7
    dropped = dict(zip(DROP_REASONS, encoded.dropped, strict=True))
    assert {name: n for name, n in dropped.items() if n} == {
        "null_user_id": 1, "null_coordinate": 1, "not_finite": 2, "out_of_range": 1, "out_of_region": 2,
    }  # fmt: skip


def records(rows: int, seed: int) -> pa.RecordBatch:
    rng = seeded_rng(seed)
    place = rng.choice([-0.9, -0.5, 0.0, 0.4], (rows, 2)) * [1, 0.4] + np.array([0, 50.5])
    times = rng.choice(50_000, rows, replace=False).astype(float)
    return pa.RecordBatch.from_arrays(
        [pa.array(rng.integers(0, 30, rows)), pa.array(place[:, 1]), pa.array(place[:, 0]), pa.array(times)],
        ["user_id", "latitude", "longitude", "t"],
    )


@pytest.mark.parametrize(("gap", "distance"), [(600.0, 0.0), (3600.0, 1.0), (1e9, 50_000.0)])
def test_consecutive_records_are_those_of_a_loop_over_users(gap: float, distance: float) -> None:
    """In two batches of mixed order, as from several files."""
    batches = [records(400, seed) for seed in (1, 2)]
    items = RecordItems(LocationColumns(time="t"), CELLS)
    sample = merge([items.encode(one, KEY, everybody).sample for one in batches])
    rows = sorted(
        (row["user_id"], row["t"], int(code(row["longitude"], row["latitude"])[0]))
        for one in batches
        for row in one.to_pylist()
    )
    width, height = (side / CELLS.side for side in ground_metres(REGION))
    expected = []
    for (user, time, cell), (next_user, next_time, next_cell) in pairwise(rows):
        if user != next_user or next_time - time > gap:
            continue
        (x1, y1), (x2, y2) = (
            [sum((one >> (2 * i + shift) & 1) << i for i in range(20)) for shift in (1, 0)] for one in (cell, next_cell)
        )
        if np.hypot((x2 - x1) * width, (y2 - y1) * height) >= distance:
            pair = join_cells(np.array([cell], np.uint64), np.array([next_cell], np.uint64), MAX_PAIR_DEPTH)
            expected.append(int(pair[0]))
    (counted,) = count_trips(sample, 1000, TripRule(gap, distance, REGION), KEY)
    names, counts = np.unique(np.array(expected, np.uint64), return_counts=True)
    assert expected
    assert counted.items.tolist() == names.tolist()
    assert counted.counts.tolist() == counts.tolist()


@pytest.mark.parametrize("bound", [1, 3, 10])
def test_of_each_user_at_most_k_trips_count(bound: int) -> None:
    items = TripItems(COLUMNS, CELLS)
    batches = [trip_batch(500, seed) for seed in range(3)]
    sample = merge([items.encode(one, KEY, everybody).sample for one in batches])
    (counted,) = count_trips(sample, bound, None, KEY)
    _, trips = np.unique(np.repeat(sample.users, sample.records.astype(int)), return_counts=True)
    assert counted.counts.sum() == np.minimum(trips, bound).sum()
    (reordered,) = count_trips(
        merge([items.encode(one, KEY, everybody).sample for one in batches[::-1]]), bound, None, KEY
    )
    assert reordered.items.tolist() == counted.items.tolist()


@pytest.mark.false_alarm(FLAKE_RATE)
def test_each_trip_is_drawn_with_the_same_probability() -> None:
    """A user has 3 trips of one pair and 1 of another: of 800 keys 3/4 draw the first, (binomial)."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array([7] * 4), *(pa.array([value] * 4) for value in (0.1, 50.2, 0.3)), pa.array([50.4, 50.4, 50.4, 50.8])],
        ["user_id", "a", "b", "c", "d"],
    )
    common = int(join_cells(code(0.1, 50.2), code(0.3, 50.4), MAX_PAIR_DEPTH)[0])
    sample = TripItems(COLUMNS, CELLS).encode(batch, KEY, everybody).sample
    drawn = [count_trips(sample, 1, None, key_of(number))[0].items.tolist() for number in range(800)]
    of_common = sum(one == [common] for one in drawn)
    assert stats.binomtest(of_common, 800, 0.75).pvalue > FLAKE_RATE


PLACE = {"region": "-1,50,1,51"}
ENDS = {"origin": "a,b", "destination": "c,d"}
ZONES = {"zones": "ZONES", "id_column": "tract"}
TIMES = {"time_column": "t", **PLACE}


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("destination", {"origin": "a,b", **PLACE}),
        ("origin", {**ENDS, **PLACE, "origin": "a"}),
        ("origin, destination", {**ENDS, **PLACE, "destination": "c,b"}),
        ("origin", {**ENDS, **TIMES}),
        ("max_gap", {**ENDS, **PLACE, "max_gap": 5}),
        ("latitude_column", {**ENDS, **PLACE, "latitude_column": "b"}),
        *(("min_distance", {**TIMES, "min_distance": bad}) for bad in (-1, math.nan)),
        ("depth", {**ENDS, **PLACE, "depth": 16}),
        # Zones of a file, or cells of an index.
        ("region", {**ENDS, **ZONES, **PLACE}),
        ("depth", {**ENDS, **PLACE, "h3": 5, "depth": 7}),
        ("zones and h3", {**ENDS, **ZONES, "h3": 7}),
        ("id_column", {**ENDS, **PLACE, "id_column": "tract"}),
        ("zones", {**ENDS, **ZONES, "id_column": "block"}),
        ("region", {**ENDS, "h3": 5}),
        ("quadkey", {**ENDS, **PLACE, "quadkey": 16}),
    ],
)
def test_options_of_flows_that_cannot_be_are_refused(option: str, options: dict[str, Any], tmp_path: Path) -> None:
    zones = write_geojson(tmp_path / "zones.geojson", [(box(0, 0, 1, 1), {"tract": "t"})])
    given = {name: zones if value == "ZONES" else value for name, value in options.items()}
    with rejects(option):
        FlowsRequest.of({"input": "logs", "output": "out", **given}).resolve()


def test_a_pair_is_split_into_what_it_was_joined_from() -> None:
    rng = seeded_rng(0)
    for depth in (1, 2, 7, MAX_PAIR_DEPTH):
        origins, destinations = rng.integers(0, 4**depth, (2, 500), dtype=np.uint64)
        pairs = join_cells(origins, destinations, depth)
        assert int(pairs.max()) < 16**depth
        for found, expected in zip(split_pairs(pairs, depth), (origins, destinations), strict=True):
            assert np.array_equal(found, expected)


def test_counts_of_prefixes_are_those_of_all_pairs_within() -> None:
    rng = seeded_rng(1)
    codes = np.unique(rng.integers(0, 1 << 20, 3_000, dtype=np.uint64))
    counts = rng.integers(1, 9, len(codes))
    for bits in (0, 4, 12, 20):
        nodes = rng.permutation(np.arange(1 << (20 - bits), dtype=np.uint64))[:400]
        found = count_prefixes(codes, counts, nodes, bits)
        expected = [counts[(codes >> np.uint64(bits)) == node].sum() for node in nodes]
        assert found.tolist() == expected
    assert count_prefixes(codes[:0], counts[:0], nodes, 20).tolist() == [0] * len(nodes)
