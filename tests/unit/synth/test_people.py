"""The people of the synthetic city, their trips, and the random streams that both are drawn from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from benchmarks.city_people import make_people
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, Region, deinterleave
from sfumato.transforms.synth.city import ELSEWHERE, HOME, WORK, City, build_city, rhythm_table
from sfumato.transforms.synth.people import (
    CANDIDATES,
    DISTRICTS,
    SHARES,
    TRIP_SCHEMA,
    make_trips,
)
from sfumato.transforms.synth.random_streams import alias_probabilities, alias_table, random_bits, scramble_63
from tests.statistics import FLAKE_RATE

SIDE = 256
USERS = 200_000
EAST_REGION = Region(10.0, -1.0, 10.5, -0.5)


@pytest.fixture(scope="module")
def city() -> City:
    return build_city(SIDE)


@pytest.fixture(scope="module")
def people(city: City) -> pa.Table:
    return make_people(0, USERS, city=city, region=EAST_REGION)


def test_any_part_of_the_people_is_the_same_people(city: City, people: pa.Table) -> None:
    part = make_people(99_990, 170_003, city=city, region=EAST_REGION)
    assert part.equals(people.slice(99_990, 170_003 - 99_990))


@pytest.mark.false_alarm(FLAKE_RATE)
def test_positions_follow_the_mixture_of_the_three_rasters(city: City, people: pa.Table) -> None:
    shares = np.bincount(rhythm_table() & 3, minlength=3) / (1 << 16)
    tables = city.tables.reshape(3, -1)
    density = sum(share * alias_probabilities(table) for share, table in zip(shares, tables, strict=True))
    grid = Grid(EAST_REGION, 8)  # the cells of the model itself
    x, y = deinterleave(grid.codes(people["longitude"].to_numpy(), people["latitude"].to_numpy()))
    counts = np.bincount(y * SIDE + x, minlength=SIDE**2)
    assert not counts[density == 0].any()
    fine = density > 10 / USERS
    observed = np.append(counts[fine], counts[~fine].sum())
    expected = np.append(density[fine], density[~fine].sum()) * USERS
    assert fine.sum() > 1000
    assert stats.chisquare(observed, expected).pvalue > FLAKE_RATE


def test_the_distance_from_home_fits_all_records_of_a_user(city: City) -> None:
    """A record within half a cell's diagonal of home lies in the home's cell: the others' distances follow from it."""
    users, records = 2000, 6
    table = make_people(0, users, city=city, records_per_user=records, region=EAST_REGION)
    north, east, far = (
        table[name].to_numpy().reshape(records, users) for name in ("latitude", "longitude", "km_from_home")
    )
    assert np.isfinite(far).all()
    assert far.min() >= 0
    width = EAST_REGION.east - EAST_REGION.west
    half = np.radians(width / SIDE) * EARTH_RADIUS_KM / 2 * 2**0.5
    nearest = far.argmin(axis=0), np.arange(users)
    at_home = far[nearest] <= half
    assert 0.3 < at_home.mean() < 1
    middle = np.radians((EAST_REGION.south + EAST_REGION.north) / 2)
    wide, tall = (east - east[nearest]) * np.cos(middle), north - north[nearest]
    straight = np.radians(np.hypot(wide, tall)) * EARTH_RADIUS_KM
    assert (np.abs(far - straight)[:, at_home] <= 2 * half).all()
    assert np.median(far[:, at_home]) > 4 * half  # the distances differ by far more than that


# --- trips ---


TRIPS = 60_000


def matrix(table: pa.Table, level: int, region: Region = PENUMBRA) -> np.ndarray:
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


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize("level", [4])
def test_trips_follow_the_matrix(city: City, level: int) -> None:
    """Chi-square over pairs that expect 10 trips or more, and all others as one."""
    found = matrix(make_trips(0, TRIPS, 0, city=city, seed=level), level).ravel()
    expected = expected_flows(city, level).ravel()
    assert expected.sum() == pytest.approx(1)
    often = expected * TRIPS >= 10
    observed = np.append(found[often], found[~often].sum())
    shares = np.append(expected[often], expected[~often].sum())
    assert stats.chisquare(observed, shares / shares.sum() * TRIPS).pvalue > FLAKE_RATE
    assert found[expected == 0].sum() == 0


def test_a_user_has_the_same_places_in_every_trip_and_block(city: City) -> None:
    whole = make_trips(0, 2_000, 3, city=city)
    parts = pa.concat_tables([make_trips(0, 700, 3, city=city), make_trips(700, 2_000, 3, city=city)])
    assert whole.equals(parts)
    assert whole.schema.equals(TRIP_SCHEMA)
    assert len(np.unique(whole["user_id"].to_numpy())) == 2_000
    width = (PENUMBRA.east - PENUMBRA.west) / 256
    squares = []
    for trip in range(6):
        table = make_trips(0, 2_000, trip, city=city)
        for name in ("origin", "destination"):
            x, y = (table[f"{name}_{axis}"].to_numpy() for axis in ("longitude", "latitude"))
            squares.append(np.floor((x - PENUMBRA.west) / width) + 1000 * np.floor((PENUMBRA.north - y) / width))
    assert max(len(set(places)) for places in zip(*squares, strict=True)) <= 3  # home, work, elsewhere


# --- random streams ---


@given(
    weights=st.integers(0, 8).flatmap(
        lambda bits: st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1 << bits, max_size=1 << bits)
    )
)
def test_an_alias_table_has_the_distribution_it_was_built_from(weights: list[float]) -> None:
    given_weights = np.array(weights)
    if not given_weights.sum():
        given_weights[0] = 1.0
    expected = given_weights / given_weights.sum()
    found = alias_probabilities(alias_table(given_weights))
    assert np.allclose(found, expected, rtol=0, atol=1e-12)
    assert not found[expected == 0].any()


def test_words_are_splitmix64() -> None:
    """The first outputs of the generator's published form for the seed 1234567."""
    words = random_bits(1234567, np.arange(1, 4, dtype=np.uint64))
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_scramble_can_be_undone() -> None:
    """It is a bijection of all 63-bit numbers, so that ids stay distinct for any number of users."""
    key, mask = 0x1234_5678_9ABC_DEF0, (1 << 63) - 1
    values = [0, 1, 2**62, 2**63 - 1, 987_654_321]
    for value, scrambled in zip(values, scramble_63(np.array(values, dtype=np.uint64), key).tolist(), strict=True):
        word = scrambled ^ (scrambled >> 32)
        for shift, multiplier in ((29, 0x9E3779B97F4A7C15), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
            word = word * pow(multiplier, -1, 1 << 63) & mask
            word ^= (word >> shift) ^ (word >> 2 * shift)
        assert word ^ (key & mask) == value
