import hashlib
from collections.abc import Iterator
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from benchmarks.city_people import density_on, make_people
from sfumato.schemas.region import Grid, Region, deinterleave
from sfumato.transforms.synth.city import (
    CROWD,
    ELSEWHERE,
    EVENT_SHARE,
    EVENTS,
    HOUR_US,
    HOURS,
    SEASON,
    SEASON_CENTRE,
    SEASON_SHARE,
    City,
    away_share,
    build_city,
    build_city_on,
    day_rhythm,
    event_of,
    plan_day,
    rhythm_table,
    weather_of,
)
from sfumato.transforms.synth.landscape import SIZE_KM
from sfumato.transforms.synth.people import DEFAULT_REGION, make_records
from sfumato.transforms.synth.random_streams import alias_probabilities
from tests.statistics import FLAKE_RATE

SIDE = 256
USERS = 100_000
REGION = Region(-125.00, 30.00, -124.85, 30.13)
"""Where the city lies in these tests: its clock is eight hours behind UTC."""
MONTH = [date(2026, 10, 22) + timedelta(days=number) for number in range(30)]
FRIDAY, SATURDAY, SUNDAY = (date(2026, 11, number) for number in (6, 7, 8))  # Saturday is an event's
DAY_US = 24 * HOUR_US


def logs(day: date, users: int = USERS, record: int = 0, seed: int = 0, region: Region = REGION) -> pa.Table:
    return make_records(0, users, record, city=build_city_on(day, SIDE), seed=seed, region=region, day=day)


@pytest.fixture(scope="module")
def weekend() -> Iterator[dict[date, pa.Table]]:
    return {day: logs(day) for day in (FRIDAY, SATURDAY, SUNDAY)}


def places_km(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    region = REGION
    x = (table["longitude"].to_numpy() - region.west) / (region.east - region.west) * SIZE_KM
    y = (region.north - table["latitude"].to_numpy()) / (region.north - region.south) * SIZE_KM
    return x, y


def density(table: pa.Table, depth: int = 5) -> np.ndarray:
    codes = Grid(REGION, depth).codes(table["longitude"].to_numpy(), table["latitude"].to_numpy())
    return np.bincount(codes.view(np.int64), minlength=4**depth) / table.num_rows


def test_without_a_day_the_records_are_what_they_always_were() -> None:
    """Digests from before there were days, of the columns that are computed in whole numbers alone."""
    table = make_people(0, 1000, city=build_city(64), region=REGION, seed=4, records_per_user=2)
    digest = hashlib.sha256()
    for name in ("user_id", "timestamp"):
        digest.update(table[name].cast(pa.int64()).to_numpy().astype("<i8").tobytes())
    assert digest.hexdigest() == "fc984cd341b22ce035c9666468119daefe56bd78c69e82cc54cd097daef66034"


@pytest.mark.parametrize("region", [DEFAULT_REGION, Region(139.5, 35.5, 139.9, 35.9), Region(-1.0, 51.0, 1.0, 52.0)])
def test_all_of_a_days_times_are_on_that_day_by_utc(region: Region) -> None:
    times = logs(SUNDAY, region=region)["timestamp"].cast(pa.int64()).to_numpy()
    midnight = (SUNDAY - date(1970, 1, 1)).days * DAY_US
    assert midnight <= times.min() < midnight + HOUR_US
    assert midnight + 23 * HOUR_US < times.max() < midnight + DAY_US


def test_six_to_eight_in_ten_are_active_and_fewer_at_weekends() -> None:
    shares = {day: plan_day(day, 0, longitude=0.0).active for day in MONTH}
    assert all(0.6 <= share <= 0.8 for share in shares.values())
    weekends = [share for day, share in shares.items() if day.weekday() >= 5]
    workdays = [share for day, share in shares.items() if day.weekday() < 5]
    assert max(weekends) < min(workdays)
    assert len({round(share, 6) for share in shares.values()}) == len(MONTH)  # the weather


@pytest.mark.false_alarm(3 * FLAKE_RATE)
def test_as_many_are_active_as_planned_and_not_always_the_same(weekend: dict[date, pa.Table]) -> None:
    planned = [plan_day(day, 0, -124.925).active for day in (FRIDAY, SUNDAY)]
    first, second = (set(weekend[day]["user_id"].to_pylist()) for day in (FRIDAY, SUNDAY))
    for ids, share in zip((first, second), planned, strict=True):
        assert stats.binomtest(len(ids), USERS, share).pvalue > FLAKE_RATE
    assert stats.binomtest(len(first & second), USERS, planned[0] * planned[1]).pvalue > FLAKE_RATE
    everybody = set(make_people(0, USERS, city=build_city(SIDE), region=REGION)["user_id"].to_pylist())
    assert first | second < everybody


def test_all_records_of_a_user_are_made_or_none() -> None:
    assert logs(FRIDAY, record=0)["user_id"].equals(logs(FRIDAY, record=1)["user_id"])
    assert not logs(FRIDAY, record=0)["longitude"].equals(logs(FRIDAY, record=1)["longitude"])


@pytest.mark.false_alarm(3 * FLAKE_RATE)
def test_hours_follow_the_days_rhythm_by_the_local_clock(weekend: dict[date, pa.Table]) -> None:
    """The clock at REGION is eight hours behind UTC: the UTC Saturday begins there on Friday at 16:00."""
    for day, weekday in ((FRIDAY, 3), (SATURDAY, 4), (SUNDAY, 5)):
        times = weekend[day]["timestamp"].cast(pa.int64()).to_numpy()
        hours = (times - (day - date(1970, 1, 1)).days * DAY_US) // HOUR_US
        rhythm, _ = day_rhythm(weekday * 24 + 16, 1 + 0.15 * weather_of(day, 0))
        expected = np.bincount(rhythm >> 2, minlength=24) * (len(hours) / (1 << 16))
        assert stats.chisquare(np.bincount(hours, minlength=24), expected).pvalue > FLAKE_RATE
    assert np.bincount(hours)[:8].sum() > 0  # all the clock round


def test_day_rhythms_add_up_to_the_week() -> None:
    """Weights of the same hour and kind are in the same ratio in both, up to the share of the active."""
    week = np.bincount(rhythm_table(), minlength=4 * HOURS).reshape(7, 24, 4)
    for day in range(7):
        states, share = day_rhythm(24 * day)
        found = np.bincount(states, minlength=96).reshape(24, 4) / len(states)
        assert np.abs(found - week[day] / week[day].sum()).max() < 96 * 2.0**-16
        assert share == pytest.approx(0.77 if day < 5 else 0.64)


def test_people_keep_their_homes_from_day_to_day() -> None:
    region = REGION
    days = (date(2026, 11, 10), date(2026, 11, 11))
    tables = [logs(day, 300_000) for day in days]
    nights = []
    for table, day in zip(tables, days, strict=True):
        hours = (table["timestamp"].cast(pa.int64()).to_numpy() - (day - date(1970, 1, 1)).days * DAY_US) // HOUR_US
        chosen = (hours >= 8) & (hours < 13)  # local midnight to five
        codes = Grid(region, 8).codes(table["longitude"].to_numpy(), table["latitude"].to_numpy())
        nights.append(dict(zip(table["user_id"].to_numpy()[chosen], codes[chosen], strict=True)))
    both = nights[0].keys() & nights[1].keys()
    assert len(both) > 100
    assert np.mean([nights[0][user] == nights[1][user] for user in both]) > 0.6
    assert not tables[0]["timestamp"].slice(0, 100).equals(tables[1]["timestamp"].slice(0, 100))


def test_infection_stays_with_the_person(weekend: dict[date, pa.Table]) -> None:
    everybody = make_people(0, USERS, city=build_city(SIDE), region=REGION)
    known = dict(zip(everybody["user_id"].to_pylist(), everybody["infected"].to_pylist(), strict=True))
    for table in weekend.values():
        found = dict(zip(table["user_id"].to_pylist(), table["infected"].to_pylist(), strict=True))
        assert found == {user: known[user] for user in found}


def test_four_weeks_hold_one_event() -> None:
    for start in range(60):
        days = [date(2026, 1, 1) + timedelta(days=start + number) for number in range(28)]
        assert sum(event_of(day) is not None for day in days) == 1
    assert [day for day in MONTH if event_of(day)] == [SATURDAY]
    assert SATURDAY.weekday() == 5
    assert {event_of(SATURDAY + timedelta(days=28 * number)) for number in range(3)} == set(EVENTS)


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize("day", [FRIDAY, SATURDAY, date(2026, 6, 22)])
def test_positions_follow_the_days_density(day: date) -> None:
    table = logs(day, 300_000)
    expected = density_on(day, 0, -124.925, SIDE)
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    x, y = deinterleave(
        Grid(REGION, 8).codes(table["longitude"].to_numpy(), table["latitude"].to_numpy())  # the model's cells
    )
    counts = np.bincount(y * SIDE + x, minlength=SIDE**2).reshape(SIDE, SIDE)
    assert not counts[expected == 0].any()
    fine = expected > 10 / table.num_rows
    observed = np.append(counts[fine], counts[~fine].sum())
    wanted = np.append(expected[fine], expected[~fine].sum()) * table.num_rows
    assert fine.sum() > 1000
    assert stats.chisquare(observed, wanted * (observed.sum() / wanted.sum())).pvalue > FLAKE_RATE


def test_a_crowd_gathers_on_the_day_of_the_event_alone(weekend: dict[date, pa.Table]) -> None:
    centre = event_of(SATURDAY)
    assert centre is not None
    shares = {}
    for day, table in weekend.items():
        x, y = places_km(table)
        shares[day] = np.mean(np.hypot(x - centre[0], y - centre[1]) < 1.2)
    assert shares[SATURDAY] > 0.1
    assert shares[SATURDAY] > 1.5 * max(shares[FRIDAY], shares[SUNDAY])
    city = build_city_on(SATURDAY, SIDE)
    crowd = alias_probabilities(city.tables.reshape(5, -1)[CROWD])
    elsewhere = alias_probabilities(city.tables.reshape(5, -1)[ELSEWHERE])
    assert not crowd[elsewhere == 0].any()  # nobody stands in the water
    rhythm, _ = day_rhythm(4 * 24 + 16, 1 + 0.15 * weather_of(SATURDAY, 0))
    usual = np.hypot(*(place - middle for place, middle in zip(places_km(weekend[FRIDAY]), centre, strict=True))) < 1.2
    added = EVENT_SHARE * np.mean((rhythm & 3) == ELSEWHERE)
    assert shares[SATURDAY] == pytest.approx(added + usual.mean(), abs=0.01)


def test_the_season_moves_homes_slowly_to_the_beach_and_back() -> None:
    shares = np.array([away_share(date(2026, 1, 1) + timedelta(days=number)) for number in range(365)])
    assert 0 <= shares.min() < 1e-4
    assert SEASON_SHARE - 1e-4 < shares.max() <= SEASON_SHARE
    assert np.abs(np.diff(shares)).max() < 0.003
    near = []
    for day in (date(2026, 6, 21), date(2026, 12, 21)):
        x, y = places_km(logs(day))
        near.append(np.mean(np.hypot(x - SEASON_CENTRE[0], y - SEASON_CENTRE[1]) < 1.6))
    assert near[0] > 1.5 * near[1]
    city = build_city_on(FRIDAY, SIDE)
    assert len(city.tables) == (SEASON + 1) * SIDE**2


@pytest.mark.false_alarm(FLAKE_RATE)
def test_another_seed_has_other_people_and_weather() -> None:
    one, other = logs(FRIDAY, 1000), logs(FRIDAY, 1000, seed=1)
    assert not set(one["user_id"].to_pylist()) & set(other["user_id"].to_pylist())
    weathers = np.array([[weather_of(day, seed) for day in MONTH] for seed in (0, 1)])
    assert np.abs(weathers).max() <= 1
    assert np.abs(weathers[0] - weathers[1]).min() > 0
    assert stats.kstest(weathers.ravel(), stats.uniform(-1, 2).cdf).pvalue > FLAKE_RATE


def test_any_part_of_the_people_is_the_same_people() -> None:
    city: City = build_city_on(SATURDAY, SIDE)
    whole = logs(SATURDAY, 50_000)
    parts = [
        make_records(a, b, 0, city=city, region=REGION, seed=0, day=SATURDAY)
        for a, b in ((0, 1), (1, 33_333), (33_333, 50_000))
    ]
    assert pa.concat_tables(parts).equals(whole)


@pytest.mark.parametrize("user_id", ["int", "string"])
def test_a_day_may_have_nobody(user_id: str) -> None:
    city = build_city_on(SUNDAY, SIDE)
    tables = [make_records(i, i + 1, 0, city=city, seed=0, day=SUNDAY, user_id=user_id) for i in range(20)]
    assert {table.num_rows for table in tables} == {0, 1}
    assert len({table.schema for table in tables}) == 1
