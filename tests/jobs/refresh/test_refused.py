"""Refusals and warnings of `sfumato refresh` and `sfumato ledger` before anything is charged."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from apache_beam.io.filesystem import BeamIOError

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.ledger import Ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests.conftest import make_logs, write_files
from tests.once import made_once
from tests.permissions import permissions_hold
from tests.refreshes import CONFIG, Place
from tests.rejections import rejects

DAY = "2026-11-20"
OPTIONS = CONFIG["options"]
ROWS = {"time_column": "time", "time_zone": "Europe/Berlin", "folders": [-1, 0]}


@pytest.fixture
def place(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A day with one small file, in a folder of an hour."""

    def make(folder: Path) -> None:
        write_files(make_logs(300, 1, seed=1), folder / f"dt={DAY}" / "hour=03", 1)

    return Place(tmp_path / "place", made_once(tmp_path_factory, "hour", make))


# --- the configuration and the arguments ---


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"options": {**OPTIONS, "epsilonn": 1}}, "config: options"),
        ({"options": {**OPTIONS, "seed": 1}}, "config: options"),
        ({"options": {**OPTIONS, "day_column": "time"}}, "config: options: day_column"),
        ({"options": {**OPTIONS, "hours": "8-9"}}, "config: options: hours"),
        ({"options": {**OPTIONS, "basemap": "s3://bucket/city.geojson"}}, "config: options: basemap"),
        ({"options": {**OPTIONS, "epsilon": "much"}}, "epsilon"),
        ({"options": {"depth": 6}}, "region"),
        ({"job": "heatmaps"}, "config: job"),
        ({"beam": {"runnerr": "DirectRunner"}}, "command line"),
        ({"beam": {"dry_run": True}}, "config: beam"),
        ({"output": "s3://bucket/maps"}, "config: output"),
        ({"runner_config": "cloud9"}, "runner_config"),
        ({"key_file": "nokey"}, "key_file"),
        ({"rotation": 0}, "config: rotation"),
        ({"rotation": 3, "job": "hotspots", "options": {"column": "kind"}}, "config: rotation"),
        ({"rotation": 3, "options": {**OPTIONS, "population": 900}}, "population"),
        ({"late": "3d"}, "config: late"),
        ({"late": {"days": 61, "epsilon": 1}}, "config: late"),
        ({"rows_of_day": "time"}, "config: rows_of_day"),
        ({"rows_of_day": {**ROWS, "time_zone": "Berlin"}}, "config: rows_of_day"),
        ({"rows_of_day": {**ROWS, "time_zone": 1}}, "config: rows_of_day"),
        ({"rows_of_day": {"time_zone": "Europe/Berlin"}}, "config: rows_of_day"),
        ({"rows_of_day": {**ROWS, "folders": [1]}}, "config: rows_of_day"),
        ({"rows_of_day": {**ROWS, "folder": 0}}, "config: rows_of_day"),
    ],
)
def test_refresh_refuses_a_wrong_configuration(place: Place, changes: dict[str, Any], subject: str) -> None:
    place.write(**changes)
    with pytest.raises(RequestError, match=f"^{subject}: "):
        place.run("--date", DAY)
    assert not place.has_ledger


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--date", "20.11.2026"], "date"),
        (["--backfill", "2026-11-20:2026-11-18"], "period"),
        (["--attempt", "x"], "attempt"),
        (["--attempt", "0"], "attempt"),
        (["--date", DAY, "--backfill", "2026-11-18:2026-11-20"], "backfill"),
        (["--date", DAY, "--memory", "1G"], "memory"),
        (["--date", DAY, "--memory=1G"], "memory"),
        (["--date", DAY, "--depth", "4"], "depth"),
    ],
)
def test_refresh_refuses_wrong_arguments(place: Place, arguments: list[str], option: str) -> None:
    """An option of the job belongs in the configuration."""
    with rejects(option):
        place.run(*arguments)


def test_refresh_takes_the_jobs_options_of_its_file(place: Place) -> None:
    place.write(options={**OPTIONS, "memory": "1G"})
    assert place.refresh("--date", DAY, "--dry_run") == 0


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--time_zone", "Europe/Berlin"], "time_zone"),
        (["--day_column", "time"], "day_column"),
        (["--period", DAY], "period"),
        (["--day_column", "time", "--time_zone", "Europe/Berlim", "--period", DAY], "time_zone"),
    ],
)
def test_job_refuses_wrong_options_of_days(tmp_path: Path, options: list[str], option: str) -> None:
    job = ["--input", str(tmp_path), "--output", str(tmp_path / "o"), "--region=-1,50,1,51", "--epsilon", "1"]
    with rejects(option):
        cli.run_command("heatmap", [*job, *options])


# --- folders, files and services that cannot be read ---


def test_refresh_without_data_is_not_ready(place: Place) -> None:
    with rejects("input", NotReadyError):
        place.run("--date", "2026-11-25")
    assert not place.has_ledger


@pytest.mark.parametrize("name", [".", f"dt={DAY}", f"dt={DAY}/hour=03"])
def test_closed_folder_of_a_day_is_no_missing_day(place: Place, name: str) -> None:
    """It looked as if the day had no data yet, which is tried again, for ever."""
    folder = place.folder / "logs" / name
    folder.chmod(0)
    with permissions_hold(), pytest.raises(RequestError, match=str(place.folder / "logs")):
        place.run("--date", DAY)
    folder.chmod(0o755)
    assert not place.has_ledger
    assert place.refresh("--date", DAY, "--dry_run") == 0


@pytest.mark.slow
def test_closed_manifest_is_no_missing_release(place: Place) -> None:
    assert place.refresh("--date", DAY) == 0
    manifest = place.night(DAY) / "manifest.json"
    manifest.chmod(0)
    with permissions_hold():
        for day in (DAY, "2026-11-21"):
            with pytest.raises(RequestError, match=str(manifest)):
                place.run("--date", day)
    manifest.chmod(0o644)
    assert place.refresh("--date", DAY) == 0


def test_two_datasets_do_not_share_a_folder(place: Place) -> None:
    assert place.refresh("--date", DAY) == 0
    place.write(dataset="town")
    with pytest.raises(RequestError, match="belongs to dataset city"):
        place.run("--date", DAY)


@pytest.mark.parametrize("gone", [False, True])
def test_refresh_refuses_a_key_that_it_cannot_read(place: Place, gone: bool) -> None:
    key = place.folder / "key"
    if gone:
        key.unlink()
    else:
        key.chmod(0)
    with permissions_hold(), rejects("key_file"):
        place.run("--date", DAY)


@pytest.mark.parametrize("listed", ["input", "output"])
def test_bucket_out_of_reach_is_not_an_empty_one(place: Place, monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    """Releases that stand unseen would let a lost ledger begin anew, and a day start from the wrong one."""
    error = pytest.importorskip("google.api_core.exceptions", reason="needs apache-beam[gcp]").ServiceUnavailable("no")

    def fail(*_: Any) -> Any:
        raise BeamIOError("List operation failed", {"": error})

    # Logs are listed by Google's client, what a folder holds by Beam's file system.
    monkeypatch.setattr("apache_beam.io.gcp.gcsfilesystem.GCSFileSystem._list", fail)
    monkeypatch.setattr("sfumato.transforms.io.storage._client", lambda: Mock(**{"list_blobs.side_effect": error}))
    monkeypatch.setattr("sfumato.transforms.io.storage._check_credentials", lambda: None)
    place.write(**{listed: "gs://bucket/folder"})
    with pytest.raises(NotReadyError, match="gs://bucket/folder"):
        place.run("--date", DAY)
    assert not place.has_ledger


# --- the clock and copies of the ledger ---


@pytest.mark.parametrize(("days", "warns"), [(400, True), (-400, True), (1 / 24, True), (-7, False)])
def test_clock_that_contradicts_the_ledger_is_a_warning(
    place: Place, days: float, warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """No refusal: an entry of a fast clock would otherwise stop all nights until its time has come."""
    other = datetime.now(UTC) + timedelta(days=days)
    Ledger(SqliteStore(str(place.folder / "ledger.db")), lambda: other).set_limits("town", Limit.parse_all("1/1d"))
    assert place.refresh("--date", DAY, "--dry_run", "--log_format", "json") == 0
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["severity"] for line in told if line["event"] == "clock"] == ["WARNING"] * warns
