"""The people of the synthetic city, their trips, and the random streams that both are drawn from."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from benchmarks.city_people import make_people
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, Region, deinterleave
from sfumato.transforms.synth.city import (
    ELSEWHERE,
    HOME,
    HOUR_US,
    HOURS,
    WEEK_START_US,
    WORK,
    City,
    build_city,
    clock_offset_us,
    rhythm_table,
)
from sfumato.transforms.synth.landscape import RISK_SIDE
from sfumato.transforms.synth.people import (
    CANDIDATES,
    DEFAULT_REGION,
    DISTRICTS,
    SHARES,
    make_records,
    make_trips,
    record_schema,
    trip_schema,
)
from sfumato.transforms.synth.random_streams import (
    alias_probabilities,
    alias_table,
    draw,
    random_bits,
    scramble_63,
    stream_key,
)
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


def local_hours(table: pa.Table, longitude: float = 10.25) -> np.ndarray:
    """Hour of the week of each record."""
    utc = table["timestamp"].cast(pa.int64()).to_numpy()
    return (utc + clock_offset_us(longitude) - WEEK_START_US) // HOUR_US


def test_columns_and_bounds(people: pa.Table) -> None:
    assert people.schema == record_schema()
    assert people.num_rows == USERS
    assert sum(column.null_count for column in people.columns) == 0
    longitude, latitude = people["longitude"].to_numpy(), people["latitude"].to_numpy()
    assert longitude.min() >= 10.0
    assert longitude.max() <= 10.5
    assert latitude.min() >= -1.0
    assert latitude.max() <= -0.5
    assert len(np.unique(people["user_id"].to_numpy())) == USERS


def test_any_part_of_the_people_is_the_same_people(city: City, people: pa.Table) -> None:
    part = make_people(99_990, 170_003, city=city, region=EAST_REGION)
    assert part.equals(people.slice(99_990, 170_003 - 99_990))


def test_the_first_records_do_not_depend_on_how_many_there_are(city: City) -> None:
    few = make_people(5, 50, city=city, seed=3, records_per_user=2)
    many = make_people(5, 50, city=city, seed=3, records_per_user=4)
    assert few.equals(many.slice(0, 90))
    assert many.slice(45, 45).equals(make_records(5, 50, 1, city=city, seed=3))


def test_a_seed_changes_every_column(city: City, people: pa.Table) -> None:
    other = make_people(0, 1000, city=city, region=EAST_REGION, seed=1)
    for name in people.column_names:
        assert not other[name].equals(people[name].slice(0, 1000))
    assert not np.isin(other["user_id"].to_numpy(), people["user_id"].to_numpy()).any()


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


@pytest.mark.false_alarm(FLAKE_RATE)
def test_hours_follow_the_rhythm(people: pa.Table) -> None:
    hours = local_hours(people)
    assert hours.min() >= 0
    assert hours.max() < HOURS
    expected = np.bincount(rhythm_table() >> 2, minlength=HOURS) * (USERS / (1 << 16))
    assert stats.chisquare(np.bincount(hours, minlength=HOURS), expected).pvalue > FLAKE_RATE
    by_hour = np.bincount(hours % 24)
    assert by_hour[[8, 12, 18]].min() > 5 * by_hour[3]


def test_by_day_people_are_in_the_centre_and_by_night_at_home(city: City, people: pa.Table) -> None:
    hours = local_hours(people)
    x = (people["longitude"].to_numpy() - 10.0) / 0.5 * 14
    y = (-0.5 - people["latitude"].to_numpy()) / 0.5 * 14
    downtown = np.hypot(x - 8.75, y - 5.0) < 0.6
    day = (hours < 5 * 24) & (hours % 24 >= 9) & (hours % 24 < 17)
    assert downtown[day].mean() > 2 * downtown[hours % 24 < 6].mean()


def test_a_user_has_one_home(city: City) -> None:
    users, records = 12_000, 12
    table = make_people(0, users, city=city, records_per_user=records, region=EAST_REGION)
    night = (local_hours(table) % 24 < 5).reshape(records, users)
    codes = Grid(EAST_REGION, 8).codes(table["longitude"].to_numpy(), table["latitude"].to_numpy())
    codes = codes.reshape(records, users)
    pairs = []
    for user in np.flatnonzero(night.sum(axis=0) >= 2):
        first, second = np.flatnonzero(night[:, user])[:2]
        pairs.append((codes[first, user], codes[second, user]))
    assert len(pairs) > 300
    assert np.mean([a == b for a, b in pairs]) > 0.6  # strangers share a cell of 65536 almost never


@pytest.mark.false_alarm(FLAKE_RATE)
def test_infection_depends_on_the_home(city: City, people: pa.Table) -> None:
    infected = people["infected"].to_numpy()
    homes = alias_probabilities(city.tables[: SIDE**2])
    risk = city.risk / 2.0**32
    assert SIDE == RISK_SIDE  # so that the two rasters' cells are the same
    expected = float(homes @ risk)
    assert stats.binomtest(int(infected.sum()), USERS, expected).pvalue > FLAKE_RATE
    night = local_hours(people) % 24 < 6
    x = (people["longitude"].to_numpy() - 10.0) / 0.5 * 14
    y = (-0.5 - people["latitude"].to_numpy()) / 0.5 * 14
    near = night & (np.hypot(x - 7.3, y - 8.6) < 0.5)
    far = night & (np.hypot(x - 7.3, y - 8.6) > 3) & (x < 9) & (y > 6)
    assert infected[near].mean() > 3 * infected[far].mean()


def test_a_users_infection_is_the_same_in_all_records(city: City) -> None:
    table = make_people(0, 5000, city=city, records_per_user=3)
    infected = table["infected"].to_numpy().reshape(3, 5000)
    assert (infected == infected[0]).all()
    assert 0 < infected[0].sum() < 1000


def test_string_ids_are_the_same_numbers_in_hexadecimal(city: City) -> None:
    numbers = make_people(0, 500, city=city)["user_id"].to_pylist()
    texts = make_people(0, 500, city=city, user_id="string")["user_id"].to_pylist()
    assert all(re.fullmatch("u[0-9a-f]{16}", text) for text in texts)
    assert [int(text[1:], 16) for text in texts] == numbers


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


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize("level", [2, 4, 5])
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


@pytest.mark.false_alarm(2 * FLAKE_RATE)
def test_draws_follow_the_weights_and_the_chosen_table() -> None:
    weights = np.array([[0, 1, 2, 5], [4, 0, 0, 4]], dtype=float)
    tables = np.concatenate([alias_table(row) for row in weights])
    words = random_bits(stream_key(3), np.arange(200_000, dtype=np.uint64))
    which = np.arange(200_000) % 2
    cells = draw(tables, which, words, 2)
    for table, row in enumerate(weights):
        counts = np.bincount(cells[which == table], minlength=4)
        assert not counts[row == 0].any()
        assert stats.chisquare(counts[row > 0], 100_000 * row[row > 0] / row.sum()).pvalue > FLAKE_RATE


def test_words_are_splitmix64() -> None:
    """The first outputs of the generator's published form for the seed 1234567."""
    words = random_bits(1234567, np.arange(1, 4, dtype=np.uint64))
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_streams_differ_by_every_part_of_their_name() -> None:
    keys = {stream_key(*name) for name in [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(keys) == 8


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_scrambled_numbers_are_distinct_positive_and_unordered(key: int) -> None:
    ids = scramble_63(np.arange(300_000, dtype=np.uint64), key)
    assert len(np.unique(ids)) == 300_000
    assert ids.min() >= 0
    assert ids.max() > 2**62
    assert abs(np.mean(np.diff(ids) > 0) - 0.5) < 0.01


def test_the_scramble_can_be_undone() -> None:
    """It is a bijection of all 63-bit numbers, so that ids stay distinct for any number of users."""
    key, mask = 0x1234_5678_9ABC_DEF0, (1 << 63) - 1
    values = [0, 1, 2**62, 2**63 - 1, 987_654_321]
    for value, scrambled in zip(values, scramble_63(np.array(values, dtype=np.uint64), key).tolist(), strict=True):
        word = scrambled ^ (scrambled >> 32)
        for shift, multiplier in (
            (29, 0x9E3779B97F4A7C15),
            (27, 0x94D049BB133111EB),
            (30, 0xBF58476D1CE4E5B9),
        ):
            word = word * pow(multiplier, -1, 1 << 63) & mask
            word ^= (word >> shift) ^ (word >> 2 * shift)
        assert word ^ (key & mask) == value
