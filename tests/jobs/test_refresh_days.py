"""A refresh by the days of a time zone: days of 23 and 25 hours, folders of another calendar, rows that came late."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines import cli, refresh
from sfumato.pipelines.refresh import newest_day, read_config
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.jobs.test_refresh import Place
from tests.seeds import seeded_rng

BERLIN = {"time_column": "time", "time_zone": "Europe/Berlin", "folders": [-1, 0]}
OPTIONS: dict[str, Any] = {"region": [-1, 50, 1, 51], "depth": 3, "epsilon": 4, "trust": "central"}
BUDGET = [{"epsilon": 8, "days": 1}, {"epsilon": 40, "days": 30}]


def write_day(folder: Path, day: date, rows_an_hour: int = 20, **more: Any) -> None:
    """The logs of a day of UTC: so many rows in every hour, each of another user."""
    begin = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    times = np.concatenate([np.arange(0, 24 * 3600, 3600 // rows_an_hour) + begin, more.get("also", [])])
    rng = seeded_rng(begin)
    ids = rng.choice(10**9, len(times), replace=False)
    places = {"latitude": rng.uniform(50, 51, len(times)), "longitude": rng.uniform(-1, 1, len(times))}
    (folder / f"dt={day}").mkdir(parents=True)
    times = pa.array(times.astype(np.int64) * 1000, pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"user_id": ids, **places, "time": times}), folder / f"dt={day}" / "log.parquet")


def utc_days(folder: Path, day: str, before: int = 2, after: int = 2) -> Path:
    middle = date.fromisoformat(day)
    for offset in range(-before, after + 1):
        write_day(folder, middle + timedelta(days=offset))
    return folder


def published(place: Place, day: str, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Publishes a day and returns the counters of rows that the operator sees."""
    capsys.readouterr()
    assert place.refresh("--date", day, "--verbose", "--log_format", "json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    metrics = next(line["metrics"] for line in lines if line["event"] == "metrics")
    return {name: metrics.get(name, 0) for name in ("read_rows", "earlier_days_rows", "later_days_rows")}


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-20", 24)])
def test_a_day_of_berlin_has_its_own_hours(
    tmp_path: Path, day: str, hours: int, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path / "place", utc_days(tmp_path / "logs", day), rows_of_day=BERLIN, options=OPTIONS)
    found = published(place, day, capsys)
    assert found["read_rows"] == 20 * hours
    assert sum(found.values()) == 20 * 48  # of the two folders
    stated = place.release(day).manifest["parameters"]
    assert (stated["day_column"], stated["time_zone"], stated["days_read"]) == ("time", "Europe/Berlin", day)


@pytest.mark.slow
def test_neighbouring_days_read_one_file_and_each_pays_for_its_own_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = utc_days(tmp_path / "logs", "2026-03-29")
    place = Place(tmp_path / "place", logs, rows_of_day=BERLIN, options=OPTIONS, budget=BUDGET)
    found = [published(place, f"2026-03-{day}", capsys)["read_rows"] for day in (28, 29, 30)]
    assert found == [20 * 24, 20 * 23, 20 * 24]
    charges = open_ledger(str(place.folder / "ledger.db")).history(with_limits=True).charges
    assert [(str(charge.period), charge.epsilon, charge.also_charged) for charge in charges] == [
        (f"2026-03-{day}", 4, ()) for day in (28, 29, 30)
    ]
    assert set(charges[0].files) & set(charges[1].files)  # the file of 28 March in UTC
    # By another zone the same rows would be in two days.
    place.write(rows_of_day={**BERLIN, "time_zone": "Europe/Lisbon"}, options=OPTIONS, budget=BUDGET)
    assert place.refresh("--date", "2026-03-31") == 2
    assert "was charged for a file of this input" in capsys.readouterr().err
    place.write(options=OPTIONS, budget=BUDGET)  # or by no time at all
    assert place.refresh("--date", "2026-03-31") == 0  # a file that no day has read
    assert place.refresh("--date", "2026-03-28", "--attempt", "2") == 2  # of which 29 March has read a part


@pytest.mark.slow
def test_rows_that_came_late_in_a_file_are_counted_for_the_operator_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yesterday = datetime(2026, 11, 19, 12, tzinfo=UTC).timestamp()
    write_day(tmp_path / "logs", date(2026, 11, 20), also=np.full(37, yesterday))
    rows = {"time_column": "time", "time_zone": "UTC"}
    place = Place(tmp_path / "place", tmp_path / "logs", rows_of_day=rows, options=OPTIONS)
    assert place.refresh("--date", "2026-11-20") == 0
    quiet = capsys.readouterr()
    assert "37" not in quiet.err.replace("0.37", "")
    assert "earlier_days" not in quiet.err
    place = Place(tmp_path / "again", tmp_path / "logs", rows_of_day=rows, options=OPTIONS)
    found = published(place, "2026-11-20", capsys)
    assert found == {"read_rows": 20 * 24, "earlier_days_rows": 37, "later_days_rows": 0}


def test_a_day_waits_for_all_its_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = utc_days(tmp_path / "logs", "2026-11-20", before=0)
    place = Place(tmp_path / "place", logs, rows_of_day=BERLIN, options=OPTIONS)
    assert place.refresh("--date", "2026-11-20") == 75
    assert "dt=2026-11-19" in capsys.readouterr().err
    assert place.refresh("--date", "2026-11-21") == 0


@pytest.mark.parametrize(
    ("rows", "day"),
    [
        (None, "2026-11-20"),
        ({"time_column": "time", "time_zone": "Asia/Kolkata", "folders": [-1, 0]}, "2026-11-21"),
        ({"time_column": "time", "time_zone": "America/Sao_Paulo", "folders": [0, 1]}, "2026-11-19"),
    ],
)
def test_without_a_date_it_is_the_last_day_that_is_over_in_its_zone(
    tmp_path: Path, rows: Any, day: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 11, 21, 20, tzinfo=UTC).astimezone(tz)  # 01:30 on the 22nd in Kolkata

    monkeypatch.setattr(refresh, "datetime", Clock)
    place = Place(tmp_path / "place", utc_days(tmp_path / "logs", "2026-11-20", 0, 0), rows_of_day=rows)
    assert str(newest_day(read_config(str(place.config)))) == day
    assert ZoneInfo(read_config(str(place.config)).time_zone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--time_zone", "Europe/Berlin"], "time_zone: requires --day_column"),
        (["--day_column", "time"], "day_column: requires --period"),
        (["--period", "2026-11-20"], "period: needs a ledger"),
        (["--day_column", "time", "--time_zone", "Europe/Berlim", "--period", "2026-11-20"], "did you mean"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str], words: str, capsys: Any) -> None:
    job = [
        "heatmap",
        "--input",
        str(tmp_path),
        "--output",
        str(tmp_path / "o"),
        "--region=-1,50,1,51",
        "--epsilon",
        "1",
    ]
    assert cli.main([*job, *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("time", "rows_of_day: write"),
        ({"time_column": "time"}, "rows_of_day: write"),
        ({**BERLIN, "time_zone": "Berlin"}, "rows_of_day: time_zone: no time zone is named 'Berlin'"),
        ({**BERLIN, "folders": [1]}, "folders is one of"),
        ({**BERLIN, "folders": 0}, "folders is one of"),
        ({**BERLIN, "folder": 0}, "rows_of_day: unknown key 'folder'"),
        ({**BERLIN, "time_column": ""}, "are names"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, rows: Any, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path / "place", utc_days(tmp_path / "logs", "2026-11-20", 0, 0), rows_of_day=rows)
    assert place.refresh("--date", "2026-11-20") == 2
    assert words in capsys.readouterr().err
