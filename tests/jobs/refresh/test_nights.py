"""`sfumato refresh` over several nights: cohorts, corrections, and rows of the days around a night."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shapely.geometry import box

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.operations import refresh_config
from sfumato.pipelines.operations.refresh_config import example_request, newest_day, read_config
from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import Region
from sfumato.schemas.refresh import RowsOfDay
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import DatedRelease
from sfumato.transforms.nights.night import nights_before
from sfumato.transforms.nights.nights_state import NightsState
from sfumato.transforms.privacy.ledger.charge_rules import ReusedFileError
from sfumato.transforms.release.timeline_view import timeline_view
from tests.conftest import make_logs
from tests.refreshes import NIGHTS, ROTATING, Place
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import write_geojson

# --- rotating cohorts, and the nights that a map rests on ---


@pytest.mark.slow
def test_night_asks_its_cohort_on_a_budget_for_one(month: Place) -> None:
    """The budget fits no two maps of all users."""
    charges = month.history.charges
    for night, charge in zip(NIGHTS, charges, strict=False):
        rotation = month.manifest(night)["privacy"]["rotation"]
        assert rotation == {"cohort": 1 + night.toordinal() % 3, "cohorts": 3}
        assert charge.rotation is not None
        assert (charge.rotation.cohort, charge.rotation.cohorts) == (rotation["cohort"], 3)
        assert charge.epsilon == 4  # the limit of any three days
    assert len({charge.rotation.partition for charge in charges if charge.rotation}) == 1
    assert month.verify() == 0


def test_night_rests_on_all_before_it(month: Place) -> None:
    first = month.manifest(NIGHTS[0])["nights"]
    assert first["started_anew"]
    assert first["rests_on"] == [str(NIGHTS[0])]
    for night, before in zip(NIGHTS[1:4], NIGHTS, strict=False):
        stated = month.manifest(night)
        assert stated["nights"]["rests_on"] == [f"{NIGHTS[0]}:{night}"]
        assert stated["nights"]["started_anew"] is None
        assert stated["parameters"]["warm_start"]["release_id"] == f"city-{before}"
        assert "not part of this release" in stated["late_files"]
    # Intervals are of the estimate, and not of the night's own noise.
    assert "all nights of `nights.rests_on`" in stated["errors"]["intervals"]
    assert "sub-query" not in stated["errors"]["intervals"]
    assert any("that both releases queried" in one for one in stated["privacy"]["assumptions"])


def test_timeline_shows_what_one_user_has_spent(month: Place) -> None:
    content = json.loads((month.published / "timeline.json").read_bytes())
    nights = [DatedRelease.from_json(one) for one in content["nights"]]
    assert [night.rotation for night in nights] == [charge.rotation for charge in month.history.charges]
    assert nights[0].started_anew is not None
    assert [night.rests_on for night in nights[1:]] == [(f"{NIGHTS[0]}:{night}",) for night in NIGHTS[1:4]]
    view = timeline_view({"timeline.json": json.dumps(content).encode()})
    assert "any one user is at most ε 4 in 3 days" in view.guarantee
    assert [(chip.term, chip.text) for chip in view.chips] == [
        ("Most spent on one user by these releases", "ε 8"),  # the first cohort was asked again on the fourth night
        ("Most spent on one user in the last 3 days, with refused runs", "ε 4 of 4"),
    ]
    assert view.body.kind == "timeline"
    assert "was queried. The counts are scaled to all users" in view.body.nights[-1].notes[0]


@pytest.mark.slow
def test_state_follows_from_published_answers(month: Place) -> None:
    again = nights_before([month.release(night).path for night in NIGHTS[:4]], NIGHTS[4]).state
    published = NightsState.from_table(month.release(NIGHTS[3]).arrow_table("nights.parquet"), 6)
    assert again is not None
    assert (again.night, again.rests_on) == (published.night, published.rests_on)
    mine, theirs = again.to_table(), published.to_table()
    assert mine.schema.equals(theirs.schema, check_metadata=True)
    assert mine.equals(theirs)  # to the last bit


@pytest.mark.slow
def test_night_that_comes_late_is_added_to_the_next(tmp_path: Path, nights: Path) -> None:
    place = Place(tmp_path, nights, **ROTATING)
    for number in (0, 2, 3, 1):
        assert place.refresh("--date", str(NIGHTS[number])) == 0
    assert place.manifest(NIGHTS[3])["nights"]["rests_on"] == [str(NIGHTS[0]), f"{NIGHTS[2]}:{NIGHTS[3]}"]
    assert place.manifest(NIGHTS[1])["nights"]["rests_on"] == [f"{NIGHTS[0]}:{NIGHTS[1]}"]
    place.crash(str(NIGHTS[4]))
    assert place.refresh("--date", str(NIGHTS[4])) == 0
    stated = place.manifest(NIGHTS[4])
    assert stated["nights"]["rests_on"] == [f"{NIGHTS[0]}:{NIGHTS[4]}"]
    start, added = f"city-{NIGHTS[1]}", [f"city-{NIGHTS[2]}", f"city-{NIGHTS[3]}"]
    assert stated["parameters"]["warm_start"]["release_id"] == start
    assert stated["parameters"]["warm_start"]["added"] == added
    charge = place.history.reservations[f"city-{NIGHTS[4]}"].charge
    assert charge.starts_from == ",".join([start, *added])
    assert place.verify() == 0


def test_plan_of_a_night_is_that_of_its_cohort(month: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """A third of the users of the last map, whose estimated number is 900, or 300 asked ones with their noise."""
    capsys.readouterr()
    assert month.refresh("--date", str(NIGHTS[4]), "--dry_run") == 0
    text = capsys.readouterr().out
    (users,) = re.findall(r"for 1/3 of as many users as the release .* had, ([\d,]+):", text)
    expected = float(month.manifest(NIGHTS[3])["results"]["users"]) / 3
    assert abs(float(users.replace(",", "")) - expected) <= 1
    assert f"adaptive: {users} users in" in text


# --- corrections for late files ---


def yesterdays(folder: Path, nights: Path, **changes: Any) -> tuple[Place, date]:
    """A published night that can still be corrected; then more files of it arrive."""
    night = datetime.now(UTC).date() - timedelta(days=1)
    shutil.copytree(nights / f"dt={NIGHTS[0]}", folder / "logs" / f"dt={night}")
    place = Place(folder / "place", folder / "logs", **{**ROTATING, **changes})
    assert place.refresh() == 0
    entries = place.entries
    assert place.refresh() == 0
    assert place.entries == entries  # nothing came late
    pq.write_table(make_logs(300, 2, seed=9), place.folder / "logs" / f"dt={night}" / "late.parquet")
    return place, night


def test_late_files_make_a_correction_with_its_own_charge(tmp_path: Path, nights: Path) -> None:
    late = {"late": {"days": 3, "epsilon": 1.5}, "budget": [{"epsilon": 9, "days": 3}]}  # enough for another
    place, night = yesterdays(tmp_path, nights, **late)
    assert place.refresh() == 0
    stated = place.manifest(night)
    assert (stated["release_id"], stated["corrects"]) == (f"city-{night}-late", f"city-{night}")
    assert stated["privacy"]["epsilon"] == 1.5
    history = place.history
    assert [float(charge.epsilon) for charge in history.charges] == [4, 1.5]
    assert {str(charge.rotation) for charge in history.charges} == {str(Rotation.of_night(night, 3))}
    assert place.verify() == 0
    assert place.refresh() == 0
    assert place.entries == history.entries  # a correction is made once
    page = json.loads((place.published / "timeline.json").read_text())
    assert [one["release_id"] for one in page["nights"]] == [f"city-{night}-late"]
    pq.write_table(make_logs(200, 2, seed=10), place.folder / "logs" / f"dt={night}" / "later.parquet")
    assert place.refresh() == 0
    assert place.entries == history.entries  # and not corrected again
    assert place.remove(f"{night}-late") == 0
    removed = place.entries
    assert place.refresh("--date", str(night)) == 0
    assert place.entries == removed  # the charge that was corrected does not publish the night anew
    assert not (place.night(night) / "cells.parquet").exists()
    shutil.rmtree(place.night(night))  # nor where the notice of the removal is gone too
    assert place.refresh("--date", str(night)) == 0
    assert place.entries == removed
    assert not (place.night(night) / "cells.parquet").exists()


def test_late_files_are_left_out_without_a_policy(
    tmp_path: Path, nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, _ = yesterdays(tmp_path, nights, late="ignore")
    entries = place.entries
    assert place.refresh() == 0
    assert "came after" in capsys.readouterr().err
    assert place.entries == entries


# --- days of a time zone: of 23 and 25 hours, in folders of another calendar, with rows that came late ---

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


def counted(place: Place, day: str, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Publishes a day and returns the counters of rows that the operator sees."""
    capsys.readouterr()
    assert place.refresh("--date", day, "--verbose", "--log_format", "json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    metrics = next(line["metrics"] for line in lines if line["event"] == "metrics")
    return {name: metrics.get(name, 0) for name in ("read_rows", "earlier_days_rows", "later_days_rows")}


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-20", 24)])
def test_day_of_berlin_has_its_own_hours(
    tmp_path: Path, day: str, hours: int, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = utc_days(tmp_path / "logs", day, 1, 0)
    place = Place(tmp_path / "place", logs, rows_of_day=BERLIN, options=OPTIONS)
    found = counted(place, day, capsys)
    assert found["read_rows"] == 20 * hours
    assert sum(found.values()) == 20 * 48  # of the two folders
    stated = place.manifest(day)["parameters"]
    assert (stated["day_column"], stated["time_zone"], stated["days_read"]) == ("time", "Europe/Berlin", day)


def test_nights_of_zones_count_one_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of Berlin, by zones of a file whose name is relative to the configuration, not to the working directory."""
    logs = utc_days(tmp_path / "logs", "2026-11-20", 1, 1)
    write_geojson(tmp_path / "halves.geojson", [(box(-1, 50, 0, 51), {"id": "W"}), (box(0, 50, 1, 51), {"id": "E"})])
    options = {"zones": "../halves.geojson", "id_column": "id", "hours": "8-9", "epsilon": 8, "max_bad_fraction": 1}
    place = Place(
        tmp_path / "place", logs, job="zones", rows_of_day={**BERLIN, "folders": [0]}, options=options, budget=BUDGET
    )
    monkeypatch.chdir("/")
    for day in ("2026-11-19", "2026-11-20"):
        assert counted(place, day, capsys)["read_rows"] == 20
        stated = place.manifest(day)["parameters"]
        assert (stated["hours"], stated["days_read"], stated["day_column"]) == ("8-9", day, "time")
        assert abs(place.release(day).zones_table["users"].sum() - 20) < 10  # of 480 in the day
    assert place.verify() == 0
    place.write(job="zones", options=options, budget=BUDGET)
    with pytest.raises(RequestError, match=r"^config: options: hours: requires `rows_of_day"):
        place.run("--date", "2026-11-21")
    place.write(job="zones", options={"zones": "no.geojson", "id_column": "id", "epsilon": 8}, budget=BUDGET)
    with pytest.raises(RequestError, match=re.escape(f"zones: {place.folder / 'no.geojson'} ")):
        place.run("--date", "2026-11-21")


@pytest.mark.slow
def test_neighbouring_days_pay_for_their_own_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Although both read a file of both."""
    logs = utc_days(tmp_path / "logs", "2026-03-29")
    place = Place(tmp_path / "place", logs, rows_of_day=BERLIN, options=OPTIONS, budget=BUDGET)
    found = [counted(place, f"2026-03-{day}", capsys)["read_rows"] for day in (28, 29, 30)]
    assert found == [20 * 24, 20 * 23, 20 * 24]
    charges = place.history.charges
    assert [(str(charge.period), charge.epsilon, charge.also_charged) for charge in charges] == [
        (f"2026-03-{day}", 4, ()) for day in (28, 29, 30)
    ]
    assert set(charges[0].files) & set(charges[1].files)  # the file of 28 March in UTC
    # By another zone the same rows would be in two days.
    place.write(rows_of_day={**BERLIN, "time_zone": "Europe/Lisbon"}, options=OPTIONS, budget=BUDGET)
    with rejects("input", ReusedFileError):
        place.run("--date", "2026-03-31")
    place.write(options=OPTIONS, budget=BUDGET)  # or by no time at all
    assert place.refresh("--date", "2026-03-31") == 0  # a file that no day has read
    assert place.refresh("--date", "2026-03-28", "--attempt", "2") == 2  # of which 29 March has read a part


@pytest.mark.slow
def test_late_rows_are_counted_for_the_operator_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yesterday = datetime(2026, 11, 19, 12, tzinfo=UTC).timestamp()
    write_day(tmp_path / "logs", date(2026, 11, 20), also=np.full(37, yesterday))
    rows = {"time_column": "time"}  # its times have no zone
    place = Place(tmp_path / "place", tmp_path / "logs", rows_of_day=rows, options=OPTIONS)
    assert place.refresh("--date", "2026-11-20") == 0
    quiet = capsys.readouterr()
    assert not re.search(r"\b37\b(?! entries)", quiet.err.replace("0.37", ""))  # an adaptive map may have 37 nodes
    assert "earlier_days" not in quiet.err
    place = Place(tmp_path / "again", tmp_path / "logs", rows_of_day=rows, options=OPTIONS)
    found = counted(place, "2026-11-20", capsys)
    assert found == {"read_rows": 20 * 24, "earlier_days_rows": 37, "later_days_rows": 0}
    assert place.manifest("2026-11-20")["parameters"].get("time_zone") is None


def test_day_waits_for_all_its_folders(tmp_path: Path) -> None:
    logs = utc_days(tmp_path / "logs", "2026-11-20", 0, 1)
    place = Place(tmp_path / "place", logs, rows_of_day=BERLIN, options=OPTIONS)
    assert place.refresh("--date", "2026-11-20") == 75
    assert place.refresh("--date", "2026-11-21") == 0


@pytest.mark.parametrize(
    ("rows", "day"),
    [
        (None, "2026-11-20"),
        ({"time_column": "time", "time_zone": "Asia/Kolkata", "folders": [-1, 0]}, "2026-11-21"),
        ({"time_column": "time", "time_zone": "America/Sao_Paulo", "folders": [0, 1]}, "2026-11-19"),
    ],
)
def test_newest_day_is_over_in_its_zone(
    tmp_path: Path, days: Path, rows: Any, day: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 11, 21, 20, tzinfo=UTC).astimezone(tz)  # 01:30 on the 22nd in Kolkata

    monkeypatch.setattr(refresh_config, "datetime", Clock)
    config = read_config(str(Place(tmp_path / "place", days, rows_of_day=rows).config))
    assert str(newest_day(config)) == day
    assert ZoneInfo(config.time_zone)


@pytest.mark.parametrize(("users", "least"), [(300, 0), (3_000, 0), (60_000, 15_000), (300_000, 75_000)])
def test_a_starting_configuration_fits_its_users(users: int, least: int, tmp_path: Path) -> None:
    words = ["refresh", "--init", str(tmp_path / "new"), "--users", str(users), "--region", "13,52,14,53"]
    assert cli.main(words) == 0
    file = tmp_path / "new" / "refresh.yaml"
    config = read_config(str(file))
    assert (config.min_users, config.rotation) == (least, 1)
    assert example_request(config).given(("region", "trust")) == {"region": Region(13, 52, 14, 53), "trust": "central"}
    (limit,) = config.budget
    assert 30 * config.options["epsilon"] <= limit.epsilon < 31 * config.options["epsilon"]
    with rejects("folder"):
        cli.run_command("refresh --init", words[2:])
    with rejects("region"):
        cli.run_command("refresh --init", [str(tmp_path / "another"), "--users", "300"])
    with rejects("region"):
        cli.run_command("refresh --init", [*words[2:], "--zones", "stops.geojson"])
    columns = {"user_id_column": "no", "latitude_column": "y", "longitude_column": "Länge: WGS", "decimal": ","}
    with rejects("time_zone"):
        cli.run_command("refresh --init", [str(tmp_path / "another"), *words[3:], "--time_zone", "Asia/Tokyo"])
    named = [word for name, value in columns.items() for word in (f"--{name}", value)]
    own = [*named, "--dates", "mdy", "--day_column", "at", "--time_zone", "Asia/Tokyo"]
    assert cli.main(["refresh", "--init", str(tmp_path / "own"), *words[3:], *own]) == 0
    config = read_config(str(tmp_path / "own" / "refresh.yaml"))
    assert example_request(config).given((*columns, "dates")) == {**columns, "dates": "mdy"}
    assert config.rows_of_day == RowsOfDay("at", "Asia/Tokyo", (0,))


def test_a_starting_configuration_for_zones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["refresh", "--init", "new", "--users", "300000", "--zones", "my stops.geojson"]
    with rejects("zones"):
        cli.run_command("refresh --init", words[2:])
    stops = [
        {"type": "Feature", "properties": {"stop": one, "called": f"{one} Street"},
         "geometry": {"type": "Point", "coordinates": [13 + 0.01 * i, 52]}}
        for i, one in enumerate("abc")
    ]  # fmt: skip
    (tmp_path / "my stops.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": stops}))
    assert cli.main(words) == 0
    assert "--epsilon 2 halves" in capsys.readouterr().out
    config = read_config("new/refresh.yaml")
    assert (config.job, config.min_users, config.rotation) == ("histogram", 75_000, 1)
    request = example_request(config)
    assert (Path(request.zones).resolve(), request.trust) == (tmp_path / "my stops.geojson", "central")
    assert (request.id_column, request.label_column, request.radius) == ("stop", "called", 300)
    assert 30 * config.options["epsilon"] <= config.budget[0].epsilon
