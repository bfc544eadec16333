import re

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from benchmarks.city_people import make_people
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, Region, deinterleave
from sfumato.transforms.synth.city import HOUR_US, HOURS, WEEK_START_US, City, build_city, clock_offset_us, rhythm_table
from sfumato.transforms.synth.landscape import RISK_SIDE
from sfumato.transforms.synth.people import make_records, record_schema
from sfumato.transforms.synth.random_streams import alias_probabilities
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
