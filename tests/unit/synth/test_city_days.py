import hashlib
from collections.abc import Iterator
from datetime import date

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from benchmarks.city_people import density_on, make_people
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Region, deinterleave
from sfumato.transforms.synth.city import (
    CROWD,
    ELSEWHERE,
    EVENT_SHARE,
    HOUR_US,
    build_city,
    build_city_on,
    day_rhythm,
    event_of,
    weather_of,
)
from sfumato.transforms.synth.landscape import SIZE_KM
from sfumato.transforms.synth.people import make_records
from sfumato.transforms.synth.random_streams import alias_probabilities
from tests.statistics import FLAKE_RATE

SIDE = 256
USERS = 100_000
REGION = Region(-125.00, 30.00, -124.85, 30.13)
"""Where the city lies in these tests: its clock is eight hours behind UTC."""
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


def test_without_a_day_the_records_are_what_they_always_were() -> None:
    """Digests from before there were days, of the columns that are computed in whole numbers alone."""
    table = make_people(0, 1000, city=build_city(64), region=REGION, seed=4, records_per_user=2)
    digest = hashlib.sha256()
    for name in ("user_id", "timestamp"):
        digest.update(table[name].cast(pa.int64()).to_numpy().astype("<i8").tobytes())
    assert digest.hexdigest() == "fc984cd341b22ce035c9666468119daefe56bd78c69e82cc54cd097daef66034"


@pytest.mark.parametrize("region", [PENUMBRA, Region(139.5, 35.5, 139.9, 35.9), Region(-1.0, 51.0, 1.0, 52.0)])
def test_all_of_a_days_times_are_on_that_day_by_utc(region: Region) -> None:
    times = logs(SUNDAY, region=region)["timestamp"].cast(pa.int64()).to_numpy()
    midnight = (SUNDAY - date(1970, 1, 1)).days * DAY_US
    assert midnight <= times.min() < midnight + HOUR_US
    assert midnight + 23 * HOUR_US < times.max() < midnight + DAY_US


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
