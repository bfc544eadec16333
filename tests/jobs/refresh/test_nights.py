"""Refreshes of several nights: cohorts, corrections, and rows of the days around a night."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
import numpy as np
import pyarrow as pa
import pytest
import yaml
from sfumato.pipelines import cli
from sfumato.schemas.ledger import Limit
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import DatedRelease
from sfumato.transforms.heatmap.nights.nights_state import NightsState
from sfumato.transforms.heatmap.warm_start import nights_before
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.timeline_view import timeline_view
from tests.conftest import make_logs, write_files
from tests.jobs.test_refresh import CONFIG, Place
from zoneinfo import ZoneInfo
import pyarrow.parquet as pq
from sfumato.pipelines import cli, refresh
from sfumato.pipelines.refresh import newest_day, read_config
from tests.jobs.test_refresh import Place
from tests.seeds import seeded_rng

# ---------------------------------------------------------------- `sfumato refresh` over several nights: rotating cohorts, the nights that a map rests on, corrections

NIGHTS = [date(2026, 11, 17) + timedelta(days=number) for number in range(5)]
ROTATING: dict[str, Any] = {"rotation": 3, "budget": [{"epsilon": 4, "days": 3}]}


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nights")
    for number, night in enumerate(NIGHTS):
        write_files(make_logs(900, 2, seed=number), folder / f"dt={night}", 2)
    return folder


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory, nights: Path) -> Place:
    """Four nights of which each asks a third of the users; not to be changed."""
    place = Place(tmp_path_factory.mktemp("month"), nights, **ROTATING)
    assert place.refresh("--backfill", f"{NIGHTS[0]}:{NIGHTS[3]}") == 0
    return place


def manifest(place: Place, night: date) -> dict[str, Any]:
    found: dict[str, Any] = place.release(str(night)).manifest
    return found


@pytest.mark.slow
def test_each_night_asks_its_cohort_on_a_budget_that_fits_no_two_maps_of_all_users(month: Place) -> None:
    charges = open_ledger(str(month.folder / "ledger.db")).history().charges
    for night, charge in zip(NIGHTS, charges, strict=False):
        asked = manifest(month, night)["privacy"]["rotation"]
        assert asked == {"cohort": 1 + night.toordinal() % 3, "cohorts": 3}
        assert charge.rotation is not None
        assert (charge.rotation.cohort, charge.rotation.cohorts) == (asked["cohort"], 3)
        assert charge.epsilon == 4  # the limit of any three days
    assert len({charge.rotation.partition for charge in charges if charge.rotation}) == 1
    assert month.ledger("verify", "--releases", str(month.folder / "published")) == 0


@pytest.mark.slow
def test_the_figures_of_a_cohort_are_scaled_to_all_users(month: Place) -> None:
    for night in NIGHTS[:4]:
        results = manifest(month, night)["results"]
        assert abs(results["users"] - 900) < 5 * results["users_stddev"] + 1
        assert month.release(str(night)).cells["count"].sum() == pytest.approx(results["users"])
        # Binomial(900, 1/3), three times, has the deviation 42; noise adds to it.
        assert 42 < results["users_stddev"] < 60


def test_every_night_rests_on_all_before_it(month: Place) -> None:
    first = manifest(month, NIGHTS[0])["nights"]
    assert first["started_anew"] == "There is no earlier release of the same region and depth."
    assert first["rests_on"] == [str(NIGHTS[0])]
    for night, before in zip(NIGHTS[1:4], NIGHTS, strict=False):
        stated = manifest(month, night)
        assert stated["nights"]["rests_on"] == [f"{NIGHTS[0]}:{night}"]
        assert stated["nights"]["started_anew"] is None
        assert stated["parameters"]["warm_start"]["release_id"] == f"city-{before}"
        assert stated["late_files"] == "Files that arrive after the charge are left out of this release."


def test_the_page_of_all_nights_says_what_rests_on_what_and_what_one_user_has_spent(month: Place) -> None:
    content = json.loads((month.folder / "published" / "timeline.json").read_bytes())
    nights = [DatedRelease.from_json(one) for one in content["nights"]]
    charges = open_ledger(str(month.folder / "ledger.db")).history().charges
    assert [night.rotation for night in nights] == [charge.rotation for charge in charges]
    assert nights[0].started_anew is not None
    assert [night.rests_on for night in nights[1:]] == [(f"{NIGHTS[0]}:{night}",) for night in NIGHTS[1:4]]
    view = timeline_view({"timeline.json": json.dumps(content).encode()})
    assert "any one user adds up to ε 4 at most in 3 days" in view.guarantee
    assert [(chip.term, chip.text) for chip in view.chips] == [
        ("Spent at most on one user", "ε 8"),  # the first cohort was asked again on the fourth night
        ("Last 3 days, at most on one user", "ε 4 of 4"),
    ]
    assert view.body.kind == "timeline"
    assert "was asked. The counts are scaled to all users" in view.body.nights[-1].notes[0]


@pytest.mark.slow
def test_anyone_can_make_the_state_again_from_the_published_answers(month: Place) -> None:
    folders = [month.release(str(night)).path for night in NIGHTS[:4]]
    again = nights_before(folders, NIGHTS[4]).state
    published = NightsState.from_table(month.release(str(NIGHTS[3])).arrow_table("nights.parquet"), 6)
    assert again is not None
    assert (again.night, again.rests_on) == (published.night, published.rests_on)
    mine, theirs = again.to_table(), published.to_table()
    assert mine.schema.equals(theirs.schema, check_metadata=True)
    assert mine.equals(theirs)  # to the last bit


@pytest.mark.slow
def test_a_night_that_comes_late_is_added_to_the_next(tmp_path: Path, nights: Path) -> None:
    place = Place(tmp_path, nights, **ROTATING)
    for number in (0, 2, 3, 1):
        assert place.refresh("--date", str(NIGHTS[number])) == 0
    assert manifest(place, NIGHTS[3])["nights"]["rests_on"] == [str(NIGHTS[0]), f"{NIGHTS[2]}:{NIGHTS[3]}"]
    assert manifest(place, NIGHTS[1])["nights"]["rests_on"] == [f"{NIGHTS[0]}:{NIGHTS[1]}"]
    place.crash(str(NIGHTS[4]))
    assert place.refresh("--date", str(NIGHTS[4])) == 0
    stated = manifest(place, NIGHTS[4])
    assert stated["nights"]["rests_on"] == [f"{NIGHTS[0]}:{NIGHTS[4]}"]
    start = stated["parameters"]["warm_start"]
    assert start["release_id"] == f"city-{NIGHTS[1]}"
    assert start["added"] == [f"city-{NIGHTS[2]}", f"city-{NIGHTS[3]}"]
    charge = open_ledger(str(tmp_path / "ledger.db")).history().reservations[f"city-{NIGHTS[4]}"].charge
    assert charge.starts_from == f"city-{NIGHTS[1]},city-{NIGHTS[2]},city-{NIGHTS[3]}"
    assert place.ledger("verify", "--releases", str(tmp_path / "published")) == 0


@pytest.mark.slow
def test_another_depth_begins_anew_and_says_so(tmp_path: Path, nights: Path) -> None:
    place = Place(tmp_path, nights, **ROTATING)
    assert place.refresh("--date", str(NIGHTS[0])) == 0
    place.write(**ROTATING, options={**CONFIG["options"], "depth": 5})
    assert place.refresh("--date", str(NIGHTS[1])) == 0
    stated = manifest(place, NIGHTS[1])
    assert stated["nights"]["started_anew"] == "There is no earlier release of the same region and depth."
    assert stated["nights"]["rests_on"] == [str(NIGHTS[1])]
    assert "warm_start" in stated["parameters"]
    assert stated["parameters"]["warm_start"] is None


@pytest.mark.slow
def test_maps_by_hour_are_of_one_night_each(tmp_path: Path, nights: Path) -> None:
    options = {**CONFIG["options"], "auxiliary": "infected"}
    for seed, night in enumerate(NIGHTS[:2]):
        logs = make_logs(300, 1, seed=seed)
        flu = pa.array(np.arange(len(logs)) % 2 == 0)
        write_files(logs.append_column("infected", flu), tmp_path / "own" / f"dt={night}", 1)
    place = Place(tmp_path, tmp_path / "own", options=options)
    assert place.refresh("--backfill", f"{NIGHTS[0]}:{NIGHTS[1]}") == 0
    assert "nights" not in manifest(place, NIGHTS[1])
    assert not (place.folder / "published" / "releases" / str(NIGHTS[1]) / "nights.parquet").exists()


def test_a_dry_run_says_that_another_number_of_cohorts_is_far_better(
    month: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for rotation, advised in ((3, False), (1, True)):
        changes = {**ROTATING, "rotation": rotation, "budget": [{"epsilon": 4, "days": 30}]}
        elsewhere = month.folder / "refresh30.yaml"
        elsewhere.write_text(yaml.safe_dump({**CONFIG, **changes, "ledger": "ledger30.db"}))
        shutil.copy(month.folder / "ledger.db", month.folder / "ledger30.db")
        open_ledger(str(month.folder / "ledger30.db")).set_limits("city", [Limit.parse("4/30d")])
        assert cli.main(["refresh", "--config", str(elsewhere), "--date", str(NIGHTS[4]), "--dry_run"]) == 0
        assert ("squared error of rotation: 3," in capsys.readouterr().out) == advised


def test_the_plan_of_a_night_is_that_of_its_cohort(month: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """A third of the users of the last map, whose estimated number is 900, or 300 asked ones with their noise."""
    capsys.readouterr()
    assert month.refresh("--date", str(NIGHTS[4]), "--dry_run") == 0
    text = capsys.readouterr().out
    (users,) = re.findall(r"for 1/3 of as many users as the release .* had, ([\d,]+):", text)
    expected = float(manifest(month, NIGHTS[3])["results"]["users"]) / 3
    assert abs(float(users.replace(",", "")) - expected) <= 1
    assert f"adaptive: {users} users in" in text


def test_a_night_states_intervals_of_its_estimate_and_not_of_its_own_noise(month: Place) -> None:
    stated = manifest(month, NIGHTS[3])
    assert "all nights of `nights.rests_on`" in stated["errors"]["intervals"]
    assert "sub-query" not in stated["errors"]["intervals"]
    assert any("whom both releases asked" in one for one in stated["privacy"]["assumptions"])


class Yesterday:
    """A night that can still be corrected."""

    def __init__(self, folder: Path, nights: Path, **changes: Any):
        self.night = datetime.now(UTC).date() - timedelta(days=1)
        shutil.copytree(nights / f"dt={NIGHTS[0]}", folder / "logs" / f"dt={self.night}")
        self.place = Place(folder / "place", folder / "logs", **{**ROTATING, **changes})
        assert self.place.refresh() == 0

    def arrive(self) -> None:
        write_files(make_logs(300, 2, seed=9), self.place.folder / "logs" / f"dt={self.night}" / "late", 1)
        late = self.place.folder / "logs" / f"dt={self.night}" / "late"
        for number, file in enumerate(sorted(late.glob("*.parquet"))):
            file.rename(late.parent / f"late{number}.parquet")
        late.rmdir()


@pytest.mark.slow
def test_files_that_arrive_late_are_published_as_a_correction_with_its_own_charge(tmp_path: Path, nights: Path) -> None:
    late = {"late": {"days": 3, "epsilon": 1.5}, "budget": [{"epsilon": 5.5, "days": 3}]}
    yesterday = Yesterday(tmp_path, nights, **late)
    night, place = yesterday.night, yesterday.place
    entries = place.entries
    assert place.refresh() == 0
    assert place.entries == entries  # nothing came late
    yesterday.arrive()
    assert place.refresh() == 0
    stated = manifest(place, night)
    assert stated["release_id"] == f"city-{night}-late"
    assert stated["corrects"] == f"city-{night}"
    assert stated["privacy"]["epsilon"] == 1.5
    charges = open_ledger(str(place.folder / "ledger.db")).history().charges
    assert [float(charge.epsilon) for charge in charges] == [4, 1.5]
    assert {str(charge.rotation) for charge in charges} == {str(Rotation.of_night(night, 3))}
    assert place.ledger("verify", "--releases", str(place.folder / "published")) == 0
    entries = place.entries
    assert place.refresh() == 0
    assert place.entries == entries  # a correction is made once
    page = json.loads((place.folder / "published" / "timeline.json").read_text())
    assert [one["release_id"] for one in page["nights"]] == [f"city-{night}-late"]


@pytest.mark.slow
def test_a_correction_that_the_budget_does_not_allow_is_said_and_left(
    tmp_path: Path, nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yesterday = Yesterday(tmp_path, nights, late={"days": 3, "epsilon": 1.5})
    yesterday.arrive()
    assert yesterday.place.refresh() == 0
    error = capsys.readouterr().err
    assert f"sfumato refresh: {yesterday.night}: release city-{yesterday.night}-late corrects" in error
    assert f"sfumato refresh: warning: {yesterday.night}: late files are left out: ledger: city may spend" in error
    assert "may spend epsilon 4 in 3 days" in error
    assert manifest(yesterday.place, yesterday.night)["release_id"] == f"city-{yesterday.night}"


def test_without_a_policy_late_files_are_left_out(
    tmp_path: Path, nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yesterday = Yesterday(tmp_path, nights, late="ignore")
    yesterday.arrive()
    entries = yesterday.place.entries
    assert yesterday.place.refresh() == 0
    assert "came after" in capsys.readouterr().err
    assert yesterday.place.entries == entries


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rotation": 0}, "rotation"),
        ({"rotation": 367}, "rotation"),
        ({"rotation": "7/30"}, "rotation"),
        ({"rotation": 3, "job": "hotspots", "options": {"column": "kind"}}, "only a heatmap asks rotating cohorts"),
        (
            {"rotation": 3, "options": {**CONFIG["options"], "population": 900}},
            "population: a rotation asks one cohort",
        ),
        ({"late": "3d"}, "late: write ignore"),
        ({"late": {"days": 3}}, "late: write ignore"),
        ({"late": {"days": 0, "epsilon": 1}}, "late: days must be a whole number from 1"),
        ({"late": {"days": 61, "epsilon": 1}}, "late: days must be a whole number from 1"),
        ({"late": {"days": 1, "epsilon": "x"}}, "late: epsilon"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    tmp_path: Path, nights: Path, changes: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, nights, **{**ROTATING, **changes})
    assert place.refresh("--date", str(NIGHTS[0])) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "ledger.db").exists() or place.entries == 0


# ---------------------------------------------------------------- A refresh by the days of a time zone: days of 23 and 25 hours, folders of another calendar, rows that came late

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
