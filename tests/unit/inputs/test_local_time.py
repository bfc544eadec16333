"""Days of 23, 24 and 25 hours, and others: which moments they have, in files of every format."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.errors import DataError, MissingColumnError
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.log_layout import DayRows, LogLayout, hours_of
from sfumato.schemas.rectangle import PENUMBRA, Region
from sfumato.transforms.inputs.local_time import of_days, zone_warning
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import inspect_log, read_batches, slice_file
from tests.rejections import rejects

QUARTER = 900  # seconds
HOURS = [
    ("Europe/Berlin", "2026-03-29", 23),
    ("Europe/Berlin", "2026-10-25", 25),
    ("Europe/Berlin", "2026-11-20", 24),
    ("America/Sao_Paulo", "2018-11-04", 23),  # begins at 01:00
    ("America/Sao_Paulo", "2018-02-17", 25),
    ("Asia/Kolkata", "2026-03-29", 24),
    ("Australia/Lord_Howe", "2026-04-05", 24.5),
    ("Pacific/Apia", "2011-12-30", 0),  # there was no such day
    ("America/St_Johns", "2006-10-28", 1499 / 60),  # the clocks went back at 00:01 of the next day
]


def moments(day: date, step: int = QUARTER) -> np.ndarray:
    """Seconds since 1970 of the day in UTC, and of two days on either side."""
    noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
    return np.arange(noon - 60 * 3600, noon + 60 * 3600, step)


@pytest.mark.parametrize(("zone", "text", "hours"), HOURS)
def test_a_day_has_the_hours_of_its_zone(zone: str, text: str, hours: float) -> None:
    day = date.fromisoformat(text)
    seconds = moments(day, 60 if "St_Johns" in zone else QUARTER)
    expected = [datetime.fromtimestamp(int(second), UTC).astimezone(ZoneInfo(zone)).date() for second in seconds]
    for column in (pa.array(seconds), pa.array(seconds * 1000, pa.timestamp("ms")), pa.array(seconds + 0.5)):
        kept, before, after = of_days(column, DayRows("time", zone, day, day))
        assert kept.tolist() == [one == day for one in expected]
        assert before == sum(one < day for one in expected)
        assert after == sum(one > day for one in expected)
    assert kept.sum() * (seconds[1] - seconds[0]) / 3600 == hours


def test_a_row_without_a_time_is_of_no_day() -> None:
    day = date(2026, 11, 20)
    numbers = pa.array([np.nan, None, np.inf, 1e300, -1e300, 1.0], pa.float64())
    kept, before, after = of_days(numbers, DayRows("time", "Europe/Berlin", day, day))
    assert (kept.any(), before, after) == (False, 1, 0)
    kept, before, after = of_days(pa.array([None, None], pa.timestamp("us")), DayRows("time", "UTC", day, day))
    assert (kept.any(), before, after) == (False, 0, 0)


@pytest.mark.parametrize("form", ["parquet", "views", "csv", "ndjson"])
@pytest.mark.parametrize("named", [False, True])  # whether the job reads the column of times as well
def test_files_of_every_format_give_the_rows_of_the_day(tmp_path: Path, form: str, named: bool) -> None:
    day, zone = date(2026, 3, 29), ZoneInfo("Europe/Berlin")
    seconds = moments(day)
    number = np.arange(len(seconds))
    ids = pa.array([f"user{one}" for one in number], pa.string_view() if form == "views" else pa.string())
    places = number / 1000
    table = pa.table({"user_id": ids, "latitude": places, "longitude": places})
    path = tmp_path / f"log.{form.replace('views', 'parquet')}"
    if form in ("parquet", "views"):
        times = pa.array(seconds * 10**6, pa.timestamp("us"))
        pq.write_table(table.append_column("time", times), path, row_group_size=100)
    elif form == "csv":
        texts = [datetime.fromtimestamp(int(one), UTC).isoformat() for one in seconds]
        pyarrow.csv.write_csv(table.append_column("time", pa.array(texts)), path)
    else:
        rows = table.append_column("time", pa.array(seconds)).to_pandas()
        rows.to_json(path, orient="records", lines=True)
    layout = LogLayout(days=DayRows("time", "Europe/Berlin", day, day))
    columns = LocationColumns(time="time") if named else LocationColumns()
    parts = slice_file(LogFile(str(path), layout=layout))
    batches = [batch for part in parts for batch in read_batches(part, columns)]
    assert all(batch.num_rows and set(batch.schema.names) == set(columns.names()) for batch in batches)
    found = [str(one) for batch in batches for one in batch.column("user_id").to_pylist()]
    begin = datetime(2026, 3, 29, tzinfo=zone).timestamp()
    end = datetime(2026, 3, 30, tzinfo=zone).timestamp()
    assert end - begin == timedelta(hours=23).total_seconds()
    expected = [f"user{one}" for one in number if begin <= seconds[one] < end]
    assert [one.removeprefix("b'").removesuffix("'") for one in found] == expected


def test_all_missing_columns_are_named_at_once(tmp_path: Path) -> None:
    day = date(2026, 11, 20)
    pq.write_table(pa.table({"user_id": [1], "latitude": [0.1], "geometry": ["POINT (0 0)"]}), tmp_path / "log.parquet")
    layout = LogLayout(days=DayRows("time", "UTC", day, day))
    log = LogFile(str(tmp_path / "log.parquet"), layout=layout)
    columns = LocationColumns(user_id="rider", auxiliary=Auxiliary("ill"), weight="size")
    with rejects("day_column") as caught:
        inspect_log(log, columns)
    assert isinstance(caught.value, MissingColumnError)
    assert caught.value.missing == (
        ("day_column", "time"), ("user_id_column", "rider"), ("longitude_column", "longitude"),
        ("weight_column", "size"), ("auxiliary", "ill"),
    )  # fmt: skip
    assert all(f"{name!r} (--{option}" in str(caught.value) for option, name in caught.value.missing)
    layout = replace(layout, geometry="point")
    with rejects("day_column") as caught_of_points:
        inspect_log(replace(log, layout=layout), LocationColumns())
    assert isinstance(caught_of_points.value, MissingColumnError)
    assert caught_of_points.value.missing == (("day_column", "time"), ("geometry_column", "point"))
    with rejects("day_column", DataError):
        list(read_batches(next(slice_file(log)), columns))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8-9", {8}), ("08:00-09:00", {8}), ("23", {23}), ("22-5", {22, 23, 0, 1, 2, 3, 4}), ("0-24", set(range(24)))],
)
@pytest.mark.parametrize(
    ("zone", "day"), [("Europe/Berlin", "2026-03-29"), ("Asia/Kolkata", "2026-11-20"), ("UTC", None)]
)
def test_hours_are_those_of_the_clocks_of_a_zone(text: str, expected: set[int], zone: str, day: str | None) -> None:
    date_of_rows = None if day is None else date.fromisoformat(day)
    seconds = moments(date_of_rows or date(2026, 11, 20))
    kept, *_ = of_days(pa.array(seconds), DayRows("t", zone, date_of_rows, date_of_rows, hours_of(text)))
    clocks = [datetime.fromtimestamp(int(second), UTC).astimezone(ZoneInfo(zone)) for second in seconds]
    assert kept.tolist() == [one.hour in expected and date_of_rows in (None, one.date()) for one in clocks]
    assert kept.any()


@pytest.mark.parametrize("text", ["24", "8-8", "24-3", "8-25", "8:9", "8:30-9", "", "-", "5-0", "9-8"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with rejects("hours"):
        hours_of(text)


PORTO = Region(-8.8, 41, -8.5, 41.3)
OTHER_SIGN = Region(8.5, 41, 8.8, 41.3)  # between Corsica and Sardinia


@pytest.mark.parametrize(
    ("region", "time_zone", "is_warned"),
    [
        (OTHER_SIGN, "Europe/Lisbon", True),
        (OTHER_SIGN, "UTC", False),
        (OTHER_SIGN, None, False),
        (PORTO, "Europe/Berlin", True),
        (PORTO, "Europe/Lisbon", False),
        (PORTO, "Europe/London", False),  # the same clocks
        (PORTO, "Etc/UTC", False),
        (Region(4.2, 50.7, 4.5, 51), "Europe/Paris", False),  # Brussels
        (Region(-112.3, 33.2, -111.8, 33.7), "America/Los_Angeles", False),  # Phoenix, in summer
        (Region(-10, 36, -5, 43), "Europe/Madrid", False),  # Portugal, too
        (Region(-180, -85, 180, 85), "Asia/Tokyo", False),
    ],
)
def test_zone_warning_compares_clocks(region: Region, time_zone: str | None, is_warned: bool) -> None:
    warning = zone_warning(region, time_zone)
    assert (warning is not None) == is_warned
    if warning is not None:
        assert time_zone is not None
        assert time_zone in warning
        assert "--region" in warning
        assert len(warning) < 400


@pytest.mark.parametrize("time_zone", [None, "Europe/Stockholm"])
def test_zone_warning_knows_a_region_at_sea(time_zone: str | None) -> None:
    warning = zone_warning(Region(-11.89, 57.6, -11.8, 57.8), time_zone)  # Gothenburg's without the sign
    assert warning is not None
    assert "at sea" in warning
    assert zone_warning(Region(11.6, 57.6, 11.8, 57.8), time_zone) is None  # with islands and a coast
    assert zone_warning(PENUMBRA, time_zone) is None
