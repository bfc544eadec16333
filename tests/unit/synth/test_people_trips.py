"""Trips of the synthetic city follow their stated matrix, and join a user's own places."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.region import Grid, Region, deinterleave
from sfumato.transforms.synth.city import ELSEWHERE, HOME, WORK, City, build_city
from sfumato.transforms.synth.people import CANDIDATES, DEFAULT_REGION, DISTRICTS, SHARES, make_trips, trip_schema
from sfumato.transforms.synth.random_streams import alias_probabilities

TRIPS = 60_000


@pytest.fixture(scope="module")
def city() -> City:
    return build_city(256)


def matrix(table: pa.Table, level: int, region: Region = DEFAULT_REGION) -> np.ndarray:
    """Trips by origin and destination: int64[4^level, 4^level]."""
    grid = Grid(region, level)
    begin, end = (
        grid.codes(table[f"{name}_longitude"].to_numpy(), table[f"{name}_latitude"].to_numpy()).astype(np.int64)
        for name in ("origin", "destination")
    )
    return np.bincount(begin * 4**level + end, minlength=16**level).reshape(4**level, 4**level)


def expected_flows(city: City, level: int) -> NDArray[np.float64]:
    """The probability that a trip leads from one cell of a quadtree's level to another.

    Args:
        city: without a day.
        level: 1..5, so that its cells hold whole squares of equal distances.

    Returns:
        float64[4^level, 4^level], by codes of the origin and the destination, sum 1.
    """
    squares = DISTRICTS**2
    shares = [
        alias_probabilities(city.tables[kind * city.side**2 : (kind + 1) * city.side**2])
        .reshape(DISTRICTS, city.side // DISTRICTS, DISTRICTS, city.side // DISTRICTS)
        .sum(axis=(1, 3))
        .ravel()
        for kind in (HOME, WORK, ELSEWHERE)
    ]
    at = np.stack(np.divmod(np.arange(squares), DISTRICTS), axis=1)
    distance = ((at[:, None] - at[None]) ** 2).sum(axis=2)
    matrix = np.zeros((squares, squares))
    for start, end, share in SHARES:
        towards = shares[HOME][:, None] * nearest_place(distance, shares[max(start, end)])
        matrix += share * (towards if start == HOME else towards.T)
    codes = np.arange(4**level, dtype=np.uint64)
    x, y = deinterleave(codes)
    side = 1 << level
    wide = DISTRICTS // side
    blocks = matrix.reshape(side, wide, side, wide, side, wide, side, wide).sum(axis=(1, 3, 5, 7))
    return np.asarray(blocks[y[:, None], x[:, None], y[None], x[None]])


def nearest_place(distance: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability that each square holds the first of the nearest of CANDIDATES places: float64[n, n], by rows.

    The nearest is at a distance d with probability T(d)^m - T(d+)^m, T the share at d or farther. All candidates at
    that distance are alike, so it is in each square there by the square's share.
    """
    found = np.empty(distance.shape)
    for origin, row in enumerate(distance):
        values, places = np.unique(row, return_inverse=True)
        mass = np.bincount(places, shares, len(values))
        beyond = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
        nearest = beyond[:-1] ** CANDIDATES - beyond[1:] ** CANDIDATES
        found[origin] = shares * (nearest / np.maximum(mass, 1e-300))[places]
    return found


@pytest.mark.parametrize("level", [2, 4, 5])
def test_trips_follow_the_matrix(city: City, level: int) -> None:
    """Chi-square over pairs that expect 10 trips or more, and all others as one; fails with probability 1e-9."""
    found = matrix(make_trips(0, TRIPS, 0, city=city, seed=level), level).ravel()
    expected = expected_flows(city, level).ravel()
    assert expected.sum() == pytest.approx(1)
    often = expected * TRIPS >= 10
    observed = np.append(found[often], found[~often].sum())
    shares = np.append(expected[often], expected[~often].sum())
    assert stats.chisquare(observed, shares / shares.sum() * TRIPS).pvalue > 1e-9
    assert found[expected == 0].sum() == 0


def test_the_nearest_of_four_places_by_a_loop_over_all_draws() -> None:
    """Three squares in a row: all 81 draws of four places, the first of the nearest, by hand."""
    distance = np.abs(np.subtract.outer(np.arange(3), np.arange(3))) ** 2
    distance[1] = [1, 0, 1]
    shares = np.array([0.5, 0.2, 0.3])
    expected = np.zeros((3, 3))
    for drawn in np.ndindex(3, 3, 3, 3):
        for origin in range(3):
            place = min(drawn, key=lambda one: distance[origin, one])  # min keeps the first
            expected[origin, place] += np.prod(shares[list(drawn)])
    assert np.allclose(nearest_place(distance, shares), expected)


def test_a_user_has_the_same_places_in_every_trip_and_block(city: City) -> None:
    whole = make_trips(0, 2_000, 3, city=city)
    parts = pa.concat_tables([make_trips(0, 700, 3, city=city), make_trips(700, 2_000, 3, city=city)])
    assert whole.equals(parts)
    assert whole.schema.equals(trip_schema())
    assert len(np.unique(whole["user_id"].to_numpy())) == 2_000
    width = (DEFAULT_REGION.east - DEFAULT_REGION.west) / 256
    squares = []
    for trip in range(6):
        table = make_trips(0, 2_000, trip, city=city)
        for name in ("origin", "destination"):
            x, y = (table[f"{name}_{axis}"].to_numpy() for axis in ("longitude", "latitude"))
            squares.append(
                np.floor((x - DEFAULT_REGION.west) / width) + 1000 * np.floor((DEFAULT_REGION.north - y) / width)
            )
    assert max(len(set(places)) for places in zip(*squares, strict=True)) <= 3  # home, work, elsewhere


def test_shares_add_up_and_times_are_in_the_week(city: City) -> None:
    assert sum(share for *_, share in SHARES) == 1
    table = make_trips(0, 5_000, 0, city=city, user_id="string")
    assert table["user_id"].type == pa.string()
    start = table["start"].to_numpy()
    assert np.timedelta64(3, "D") < start.max() - start.min() < np.timedelta64(5, "D")
