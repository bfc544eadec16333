"""sfumato refresh from its configuration to the page, of every job, and a job of its own beside it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock
import pyarrow.parquet as pq
import pytest
import yaml
from apache_beam.io.filesystem import BeamIOError
from sfumato.pipelines import cli
from sfumato.pipelines import release_run as frame
from sfumato.pipelines.refresh import read_config
from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import read_folders
from sfumato.transforms.release.published_release import open_release
from tests.conftest import make_logs, write_files
from tests.keys import SECRET, write_key
from tests.rejections import rejects
from datetime import date
from sfumato.pipelines.published_nights import PublishedNights
from sfumato.pipelines.refresh import Refresh, read_config
from sfumato.pipelines.run import JOBS
from sfumato.schemas.requests.commands import RefreshRequest
from tests.jobs.test_refresh import Place, days, place  # noqa: F401  (fixtures)

# ---------------------------------------------------------------- `sfumato refresh` from its configuration to the page, and `sfumato ledger` on what it leaves

DAYS = ["2026-11-18", "2026-11-19", "2026-11-20"]
CONFIG: dict[str, Any] = {
    "dataset": "city",
    "input": "logs",
    "output": "published",
    "ledger": "ledger.db",
    "key_file": "key",
    "budget": [{"epsilon": 4, "days": 1}, {"epsilon": 12, "days": 30}],
    "options": {"region": [-1, 50, 1, 51], "depth": 6, "epsilon": 4, "shard_size": 300, "dropout": 0.4},
}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    for number, day in enumerate(DAYS):
        write_files(make_logs(900, 2, seed=number), folder / f"dt={day}", 2)
    return folder


class Place:
    """A folder with logs, key and configuration."""

    def __init__(self, folder: Path, days: Path, **changes: Any):
        self.folder, self.config = folder, folder / "refresh.yaml"
        shutil.copytree(days, folder / "logs")
        write_key(folder / "key")
        self.write(**changes)

    def write(self, **changes: Any) -> None:
        self.config.write_text(yaml.safe_dump({**CONFIG, **changes}))

    def refresh(self, *arguments: str) -> int:
        return cli.main(["refresh", "--config", str(self.config), *arguments])

    def crash(self, day: str) -> None:
        """A refresh that is charged, and dies before it publishes."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sfumato.transforms.release.publishing.publish", lambda *_: 1 / 0)
            with pytest.raises((RuntimeError, ZeroDivisionError), match="division by zero"):
                self.refresh("--date", day)

    def ledger(self, *arguments: str) -> int:
        return cli.main(["ledger", *arguments, "--ledger", str(self.folder / "ledger.db")])

    @property
    def entries(self) -> int:
        return open_ledger(str(self.folder / "ledger.db")).history().entries

    def release(self, day: str) -> Any:
        return open_release(self.folder / "published" / "releases" / day)


@pytest.fixture
def place(tmp_path: Path, days: Path) -> Place:
    return Place(tmp_path, days)


@pytest.fixture(scope="module")
def backfilled(tmp_path_factory: pytest.TempPathFactory, days: Path) -> Place:
    """Three days that were published; not to be changed."""
    place = Place(tmp_path_factory.mktemp("backfilled"), days)
    assert place.refresh("--backfill", "2026-11-18:2026-11-20") == 0
    return place


@pytest.mark.slow
def test_a_backfill_publishes_every_day_and_its_page(backfilled: Place) -> None:
    published = backfilled.folder / "published"
    assert sorted(path.name for path in published.iterdir()) == [
        "index.html",
        "latest.json",
        "maps",
        "releases",
        "timeline.json",
    ]
    assert sorted(path.name for path in (published / "releases").iterdir()) == DAYS
    latest = json.loads((published / "latest.json").read_text())
    assert latest["date"] == "2026-11-20"
    assert latest["release"] == "releases/2026-11-20"
    assert latest["release_id"] == "city-2026-11-20"
    page = (published / "index.html").read_text()
    assert all(f"releases/{day}" in page for day in DAYS)
    assert sorted(path.name[:10] for path in (published / "maps").iterdir()) == DAYS


@pytest.mark.slow
def test_each_day_starts_from_the_one_before(backfilled: Place) -> None:
    starts = [backfilled.release(day).manifest["parameters"]["warm_start"] for day in DAYS]
    assert starts[0] is None
    assert [start["release_id"] for start in starts[1:]] == ["city-2026-11-18", "city-2026-11-19"]
    reservations = open_ledger(str(backfilled.folder / "ledger.db")).history().reservations
    assert [reservations[f"city-{day}"].charge.starts_from for day in DAYS] == [
        None, "city-2026-11-18", "city-2026-11-19",
    ]  # fmt: skip


def test_the_manifest_vouches_for_the_ledger(backfilled: Place) -> None:
    history = open_ledger(str(backfilled.folder / "ledger.db")).history(with_limits=True)
    for day in DAYS:
        manifest = backfilled.release(day).manifest
        reservation = history.reservations[f"city-{day}"]
        assert manifest["ledger"] == {
            "entry": reservation.index, "hash": reservation.hash, "dataset": "city", "first_day": day, "last_day": day,
        }  # fmt: skip
        assert manifest["created"] == reservation.time
        assert manifest["privacy"]["epsilon"] == float(reservation.charge.epsilon) == 4.0
        assert reservation.manifest is not None


def test_run_again_it_spends_nothing(backfilled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    entries = backfilled.entries
    before = {path: path.read_bytes() for path in (backfilled.folder / "published").rglob("*") if path.is_file()}
    assert backfilled.refresh("--date", "2026-11-19") == 0
    told = capsys.readouterr()
    assert "is published already; nothing is charged" in told.err
    assert told.out.strip() == str(backfilled.folder / "published" / "releases" / "2026-11-19" / "index.html")
    assert backfilled.refresh("--backfill", "2026-11-18:2026-11-20") == 0
    assert backfilled.entries == entries
    assert before == {
        path: path.read_bytes() for path in (backfilled.folder / "published").rglob("*") if path.is_file()
    }


def test_the_ledger_shows_and_verifies(backfilled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert backfilled.ledger("show") == 0
    shown = capsys.readouterr().out
    assert "| 2026-11-19 | city-2026-11-19 | heatmap |       4 |     0 |" in shown
    assert "| city    | epsilon 12 in 30 days | 2026-11-20 |    12 |    0 |" in shown
    assert backfilled.ledger("show", "--format", "json", "--dataset", "city") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["epsilon"] for one in told["charges"]] == ["4", "4", "4"]
    assert backfilled.ledger("verify", "--releases", str(backfilled.folder / "published")) == 0
    shown = capsys.readouterr().out
    assert "7 entries, unbroken; every charge kept to its limits" in shown
    assert "3 releases charged as stated, and unchanged" in shown
    assert backfilled.ledger("show", "--dataset", "bikes") == 2
    assert "there are: city" in capsys.readouterr().err


def test_a_changed_release_shows(backfilled: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(backfilled.folder / "published", copy)
    manifest = copy / "releases" / "2026-11-19" / "manifest.json"
    text = manifest.read_text()
    for old, new, message in (
        ('"epsilon": 4.0', '"epsilon": 1.0', "has been changed since it was published"),
        ("city-2026-11-19", "city-2026-11-12", "was never charged"),
        (json.loads(text)["ledger"]["hash"], "0" * 64, "names another entry than the ledger's"),
    ):
        manifest.write_text(text.replace(old, new))
        assert backfilled.ledger("verify", "--releases", str(copy)) == 4
        assert message in capsys.readouterr().err


def test_a_ledger_that_was_written_anew_shows(
    backfilled: Place, tmp_path: Path, days: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its chain is whole, but the releases vouch for another one; nor does a refresh go on with it."""
    other = Place(tmp_path, days)
    shutil.copytree(backfilled.folder / "published", tmp_path / "published")
    book = open_ledger(str(tmp_path / "ledger.db"))
    for reservation in open_ledger(str(backfilled.folder / "ledger.db")).history().reservations.values():
        book.reserve(reservation.charge, read_config(str(other.config)).budget)
    assert other.ledger("verify") == 0
    assert other.ledger("verify", "--releases", str(tmp_path / "published")) == 4
    assert other.refresh("--date", "2026-11-20") == 4
    assert "holds a release that disagrees with the ledger" in capsys.readouterr().err


def test_tampering_stops_everything(
    backfilled: Place, tmp_path: Path, days: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Place(tmp_path, days)
    shutil.copy(backfilled.folder / "ledger.db", tmp_path / "ledger.db")
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("DROP TRIGGER no_update")
        database.execute("""UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), '"4"', '"1"') AS BLOB)""")
    database.close()
    assert other.refresh("--date", "2026-11-20") == 4
    assert other.ledger("verify") == 4
    assert "has been tampered with" in capsys.readouterr().err
    assert not (tmp_path / "published").exists()


def test_a_ledger_that_was_lost_is_not_begun_anew(
    backfilled: Place, tmp_path: Path, days: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor one that was put back from an old copy, nor with another attempt: the published releases show it."""
    other = Place(tmp_path, days, budget=[{"epsilon": 40, "days": 1}])
    shutil.copytree(backfilled.folder / "published", tmp_path / "published")
    write_files(make_logs(900, 2, seed=7), tmp_path / "logs" / "dt=2026-11-21", 1)
    for arguments in (
        ["--date", "2026-11-21"],
        ["--date", "2026-11-20", "--attempt", "2"],
        ["--dry_run", "--date", "2026-11-21"],
    ):
        assert other.refresh(*arguments) == 4
        assert "ledger: there is none at" in capsys.readouterr().err
    assert not (tmp_path / "ledger.db").exists()
    open_ledger(str(tmp_path / "ledger.db")).set_limits("city", read_config(str(other.config)).budget)
    assert other.refresh("--date", "2026-11-21") == 4
    assert "holds a release that disagrees with the ledger" in capsys.readouterr().err


def test_two_datasets_do_not_share_a_folder(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.refresh("--date", "2026-11-18") == 0
    place.write(dataset="town")
    assert place.refresh("--date", "2026-11-18") == 2
    assert "is of dataset city; give each dataset its own folder" in capsys.readouterr().err


@pytest.mark.slow
def test_other_libraries_do_not_resume(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Their results might differ in a place, and two results under one charge would show what is under the noise."""
    place.crash("2026-11-20")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.pipelines.release_run.package_versions", lambda: {"numpy": "3.0.0"})
        assert place.refresh("--date", "2026-11-20") == 2
    assert "another version" in capsys.readouterr().err
    assert place.refresh("--date", "2026-11-20") == 0


@pytest.mark.slow
def test_another_result_under_the_same_charge_is_not_published(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.refresh("--date", "2026-11-20") == 0
    shutil.rmtree(place.folder / "published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.transforms.release.metadata.platform.python_version", lambda: "4.0")
        assert place.refresh("--date", "2026-11-20") == 4
    assert "has been published before, and this run differs from it" in capsys.readouterr().err
    assert not (place.folder / "published").exists()


# --- refusals that charge nothing ---


def test_no_data_for_the_date(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.refresh("--date", "2026-11-25") == 75
    assert "there are no data of 2026-11-25" in capsys.readouterr().err
    assert not (place.folder / "ledger.db").exists()


@pytest.mark.parametrize("listed", ["input", "output"])
def test_a_bucket_that_cannot_be_listed_now_is_not_an_empty_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Releases that stand unseen would let a lost ledger begin anew, and a day start from the wrong one."""
    error = pytest.importorskip("google.api_core.exceptions", reason="needs apache-beam[gcp]").ServiceUnavailable("no")

    def fail(*_: Any) -> Any:
        raise BeamIOError("List operation failed", {"": error})

    # Logs are listed by Google's client, what a folder holds by Beam's file system.
    monkeypatch.setattr("apache_beam.io.gcp.gcsfilesystem.GCSFileSystem._list", fail)
    monkeypatch.setattr("sfumato.transforms.storage._client", lambda: Mock(**{"list_blobs.side_effect": error}))
    monkeypatch.setattr("sfumato.transforms.storage._check_credentials", lambda: None)
    place.write(**{listed: "gs://bucket/folder"})
    assert place.refresh("--date", "2026-11-20") == 75
    assert "gs://bucket/folder" in (error_text := capsys.readouterr().err)
    assert "cannot be reached now" in error_text
    assert not (place.folder / "ledger.db").exists()


def test_without_a_date_it_is_yesterdays(place: Place) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    (place.folder / "logs" / "dt=2026-11-18").rename(place.folder / "logs" / "moved")
    shutil.rmtree(place.folder / "logs" / f"dt={yesterday}", ignore_errors=True)
    (place.folder / "logs" / "moved").rename(place.folder / "logs" / f"dt={yesterday}")
    assert place.refresh() == 0
    assert place.release(str(yesterday)).manifest["release_id"] == f"city-{yesterday}"


@pytest.mark.slow
def test_suspiciously_little_data(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.write(min_users=50_000)
    for _ in range(2):  # the same data are refused again, by the same noisy count, at no further cost
        assert place.refresh("--date", "2026-11-20") == 75
        error = capsys.readouterr().err
        assert "fewer than --min_users 50,000" in error
        history = open_ledger(str(place.folder / "ledger.db")).history()
        assert [charge.epsilon for charge in history.charges] == [Decimal("0.04")]
    refused = place.folder / "published" / "releases" / "2026-11-20"
    assert sorted(path.name for path in refused.iterdir()) == ["index.html", "manifest.json"]
    place.write(min_users=50)
    assert place.refresh("--date", "2026-11-20") == 0
    manifest = place.release("2026-11-20").manifest
    assert manifest["privacy"]["epsilon_spent"] == 3.96  # with the refusal's 0.04 it is what a day may cost


@pytest.mark.slow
def test_a_backfill_goes_on_where_a_day_has_no_data(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(place.folder / "logs" / "dt=2026-11-19")
    assert place.refresh("--backfill", "2026-11-18:2026-11-20") == 75
    assert "2026-11-19: input: there are no data" in capsys.readouterr().err
    assert place.release("2026-11-20").manifest["parameters"]["warm_start"]["release_id"] == "city-2026-11-18"


@pytest.mark.slow
def test_an_exhausted_budget_says_when_it_frees_up(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.write(budget=[{"epsilon": 4, "days": 2}])
    assert place.refresh("--date", "2026-11-18") == 0
    entries = place.entries
    assert place.refresh("--date", "2026-11-19") == 3
    assert "epsilon 4 in 2 days" in (error := capsys.readouterr().err)
    assert "data of 2026-11-20 or later would fit" in error
    assert place.entries == entries
    assert not (place.folder / "published" / "releases" / "2026-11-19").exists()


@pytest.mark.slow
def test_other_limits_than_the_ledgers_are_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.refresh("--date", "2026-11-18") == 0
    place.write(budget=[{"epsilon": 400, "days": 1}])
    assert place.refresh("--date", "2026-11-19") == 2
    assert "`sfumato ledger limit` changes them" in capsys.readouterr().err
    assert place.ledger("limit", "--dataset", "city", "--budget", "400/1d") == 0
    assert place.refresh("--date", "2026-11-19") == 0


@pytest.mark.slow
def test_changed_input_after_a_crash_is_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Reserved, then crashed; then the records changed. The same noise must not meet the new data."""
    place.crash("2026-11-20")
    entries, file = place.entries, place.folder / "logs" / "dt=2026-11-20" / "log-1.parquet"
    content = file.read_bytes()
    pq.write_table(make_logs(10, 1, seed=9), file)
    assert place.refresh("--date", "2026-11-20") == 2
    assert "other input, another key or another version" in capsys.readouterr().err
    file.write_bytes(content)
    write_key(place.folder / "key", SECRET[::-1])
    assert place.refresh("--date", "2026-11-20") == 2
    write_key(place.folder / "key")
    place.write(options={**CONFIG["options"], "epsilon": 3})
    assert place.refresh("--date", "2026-11-20") == 2
    assert "was charged for another request" in capsys.readouterr().err
    assert place.entries == entries
    place.write()
    for file in (place.folder / "logs").rglob("*.parquet"):
        file.rename(file.with_name(f"moved-{file.name}"))  # names and times do not matter, content does
    pq.write_table(make_logs(10, 1, seed=9), place.folder / "logs" / "dt=2026-11-20" / "late.parquet")
    for _ in range(2):  # resumed without the late file, then found published
        assert place.refresh("--date", "2026-11-20") == 0
        assert "1 file came after city-2026-11-20 was charged" in capsys.readouterr().err
        assert place.entries == entries + 1


@pytest.mark.slow
def test_a_resumed_run_gives_what_the_first_would_have(place: Place, days: Path, tmp_path_factory: Any) -> None:
    """Byte for byte but for the time of the charge: cells and density are the same as of a run that nothing stopped."""
    place.crash("2026-11-20")
    assert place.refresh("--date", "2026-11-20") == 0
    assert place.entries == 3
    before = (place.folder / "published/releases/2026-11-20/cells.parquet").read_bytes()
    shutil.rmtree(place.folder / "published")
    assert place.refresh("--date", "2026-11-20") == 0  # lost after it was published: made again, not charged again
    assert place.entries == 3
    assert (place.folder / "published/releases/2026-11-20/cells.parquet").read_bytes() == before


@pytest.mark.slow
def test_a_second_attempt_is_charged_again(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.write(budget=[{"epsilon": 8, "days": 1}])
    assert place.refresh("--date", "2026-11-20") == 0
    assert place.refresh("--date", "2026-11-20", "--attempt", "2") == 0
    assert place.release("2026-11-20").manifest["release_id"] == "city-2026-11-20-2"
    assert place.refresh("--date", "2026-11-20") == 0  # some attempt stands
    assert place.refresh("--date", "2026-11-20", "--attempt", "2") == 0
    assert len(open_ledger(str(place.folder / "ledger.db")).history().reservations) == 2
    assert place.refresh("--date", "2026-11-20", "--attempt", "3") == 3
    maps = list((place.folder / "published" / "maps").iterdir())
    timeline = (place.folder / "published" / "timeline.json").read_text()
    assert sum(path.name in timeline for path in maps) == 1
    assert place.refresh("--attempt", "0") == 2


@pytest.mark.slow
def test_another_depth_starts_anew(place: Place) -> None:
    assert place.refresh("--date", "2026-11-18") == 0
    place.write(options={**CONFIG["options"], "depth": 5})
    assert place.refresh("--date", "2026-11-19") == 0
    assert place.release("2026-11-19").manifest["parameters"]["warm_start"] is None


@pytest.mark.slow
def test_without_warm_start(place: Place) -> None:
    place.write(warm_start=False)
    assert place.refresh("--backfill", "2026-11-18:2026-11-19") == 0
    assert place.release("2026-11-19").manifest["parameters"]["warm_start"] is None


@pytest.mark.slow
def test_what_others_publish_meanwhile_is_no_stranger(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is read after the releases, so that it knows whatever was seen to stand."""

    def overtaken(root: str) -> Any:
        monkeypatch.undo()
        assert place.refresh("--date", "2026-11-18") == 0
        return read_folders(root)

    monkeypatch.setattr("sfumato.pipelines.published_nights.read_folders", overtaken)
    assert place.refresh("--date", "2026-11-19") == 0
    assert place.release("2026-11-19").manifest["parameters"]["warm_start"]["release_id"] == "city-2026-11-18"


@pytest.mark.slow
def test_who_is_slower_resumes_what_the_faster_one_began(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts from an earlier release, which had not been published when the slower one looked, and is charged."""

    def overtaken(*arguments: Any) -> Any:
        if not (place.folder / "ledger.db").exists():
            monkeypatch.undo()
            assert place.refresh("--date", "2026-11-18") == 0
            place.crash("2026-11-19")
        return real(*arguments)

    real = frame.run_release
    monkeypatch.setattr(frame, "run_release", overtaken)
    assert place.refresh("--date", "2026-11-19") == 0
    assert place.release("2026-11-19").manifest["parameters"]["warm_start"]["release_id"] == "city-2026-11-18"
    assert place.entries == 5


@pytest.mark.slow
def test_an_earlier_day_does_not_become_the_latest(place: Place) -> None:
    assert place.refresh("--date", "2026-11-20") == 0
    assert place.refresh("--date", "2026-11-18") == 0
    assert json.loads((place.folder / "published" / "latest.json").read_text())["date"] == "2026-11-20"
    assert place.release("2026-11-18").manifest["parameters"]["warm_start"] is None


# --- the configuration, as the command reads it ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {**CONFIG["options"], "epsilonn": 1}}, "unknown key 'epsilonn'; did you mean epsilon?"),
        ({"options": {**CONFIG["options"], "seed": 1}}, "options: seed is no option here"),
        ({"options": {**CONFIG["options"], "release_id": "x"}}, "options: release_id is no option here"),
        ({"job": "heatmaps"}, "did you mean heatmap?"),
        ({"job": "plan"}, "unknown key 'plan'"),
        ({"options": {"depth": 6}}, "region"),
        ({"beam": {"runnerr": "DirectRunner"}}, "unknown option --runnerr"),
        ({"beam": {"dry_run": True}}, "beam: dry_run is an option of sfumato's own"),
        ({"output": "s3://bucket/maps"}, "places are files and folders, or gs://BUCKET"),
        ({"output": "maps[1]"}, "output: must be a folder without * ? or ["),
        ({"runner_config": "cloud9"}, "no file 'cloud9'"),
        ({"key_file": "nokey"}, "key_file"),
        ({"options": {**CONFIG["options"], "epsilon": "much"}}, "epsilon"),
    ],
)
def test_bad_configurations(
    place: Place, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(**changes)
    assert place.refresh("--date", "2026-11-20") == 2
    assert message in capsys.readouterr().err
    assert not (place.folder / "ledger.db").exists()


@pytest.mark.parametrize(
    "arguments", [["--date", "20.11.2026"], ["--backfill", "2026-11-20:2026-11-18"], ["--attempt", "x"],
                  ["--date", "2026-11-20", "--backfill", "2026-11-18:2026-11-20"]]
)  # fmt: skip
def test_bad_arguments(place: Place, arguments: list[str]) -> None:
    assert place.refresh(*arguments) == 2


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with rejects("config"):
        read_config(str(tmp_path / "missing.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(RequestError, match="is not valid YAML"):
        read_config(str(tmp_path / "bad.yaml"))


def test_beams_options_are_passed_on(place: Place, tmp_path: Path) -> None:
    """Lists one by one, Google's region under the name that the jobs have for it, a runner's file beside this one."""
    (tmp_path / "runner.yaml").write_text("runner: DirectRunner\n")
    place.write(beam={"labels": ["a=1", "b=2"], "region": "europe-west1"}, runner_config="runner.yaml")
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.pipelines.release_run.run_release", lambda job, settings: seen.append(settings.options))
        assert place.refresh("--date", "2026-11-20") == 0
    told = seen[0].get_all_options()
    assert told["labels"] == ["a=1", "b=2"]
    assert told["region"] == "europe-west1"


@pytest.mark.slow
def test_a_backfill_goes_on_where_a_day_cannot_support_a_release(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (place.folder / "logs" / "dt=2026-11-19").iterdir():
        path.write_bytes(b"damaged")
    assert place.refresh("--backfill", "2026-11-18:2026-11-20") == 1
    assert "2026-11-19" in capsys.readouterr().err
    assert place.release("2026-11-20").manifest["release_id"] == "city-2026-11-20"


# ---------------------------------------------------------------- A refresh of every job that publishes a release, beside the heatmap

OTHER_JOBS: dict[str, dict[str, Any]] = {
    "histogram": {"region": "-1,50,1,51", "cells": 2, "delta": 1e-6},
    "hotspots": {"region": [-1, 50, 1, 51], "depth": 4, "levels": 2, "delta": 1e-6},
    "quantiles": {"column": "longitude", "range": [-1, 1], "bits": 6, "quantiles": [0.5, 0.9], "delta": 1e-6},
    "moments": {"column": "latitude", "statistics": ["mean", "variance"]},
    "flows": {"region": [-1, 50, 1, 51], "time_column": "longitude"},
    "zones": {"region": [-1, 50, 1, 51], "h3": 5},
    "ranges build": {"region": [-1, 50, 1, 51], "method": "grid", "sizes": [2000, 20_000]},
}


@pytest.mark.slow
@pytest.mark.parametrize("job", OTHER_JOBS)
def test_every_publishing_job_has_a_release_a_day(place: Place, job: str) -> None:  # noqa: F811
    options = {"epsilon": 4, **OTHER_JOBS[job]}
    delta = options.get("delta", 0)
    place.write(job=job, budget=[{"epsilon": 4, "delta": delta, "days": 1}], options=options)
    assert place.refresh("--backfill", "2026-11-18:2026-11-19") == 0
    assert not (place.folder / "published" / "maps").exists()
    page = (place.folder / "published" / "index.html").read_text()
    for day in ("2026-11-18", "2026-11-19"):
        assert f"releases/{day}" in page
        manifest = place.release(day).manifest
        assert (manifest["job"], manifest["release_id"]) == (job.split()[0], f"city-{day}")
        assert manifest["ledger"]["first_day"] == day
    charges = open_ledger(str(place.folder / "ledger.db")).history().charges
    assert [(float(charge.epsilon), float(charge.delta)) for charge in charges] == [(4, delta)] * 2
    assert place.ledger("verify", "--releases", str(place.folder / "published")) == 0
    entries = place.entries
    assert place.refresh("--backfill", "2026-11-18:2026-11-19") == 0  # once more: nothing is charged
    assert place.entries == entries


def test_the_jobs_of_a_refresh_are_those_that_publish() -> None:
    assert {name for name, job in JOBS.items() if job.publishes} == {"heatmap", *OTHER_JOBS}


@pytest.mark.parametrize(("left", "expected"), [("4", (1, 4)), ("2", (1, 2)), ("0.5", (0.5, 0.5))])
def test_what_is_left_of_a_charge_lowers_both_epsilons_and_raises_none(
    place: Place,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    left: str,
    expected: tuple[float, float],
) -> None:
    """A release of moments may cost more than the local epsilon, and a day is resumed with what its charge left."""
    options = {"column": "latitude", "epsilon": 1, "group_by": "user_id", "groups": "a,b", "group_epsilon": 4}
    place.write(job="moments", budget=[{"epsilon": 4, "days": 1}], options=options)
    ran: list[Any] = []
    monkeypatch.setattr("sfumato.pipelines.refresh.run_job", lambda request, _: ran.append(request))
    runner, config = RefreshRequest.of({"config": str(place.config)}), read_config(str(place.config))
    nights = PublishedNights.read(config, str(place.config))
    Refresh(config, str(place.config), runner)._run(date(2026, 11, 18), nights, None, left)
    assert (ran[0].epsilon, ran[0].group_epsilon) == expected


# ---------------------------------------------------------------- A job of its own that charges a ledger, beside a refresh

def job(at: Place, output: str, *more: str) -> list[str]:
    return [
        "heatmap", "--input", str(at.folder / "logs/dt=2026-11-20/*.parquet"),
        "--output", str(at.folder / output), "--region", "-1,50,1,51",
        "--depth", "6", "--epsilon", "4", "--shard_size", "300", "--dropout", "0.4", *more,
    ]  # fmt: skip


def books(at: Place, *budget: str) -> list[str]:
    ledger = ["--ledger", str(at.folder / "ledger.db"), "--dataset", "city", "--period", "2026-11-20"]
    return [*ledger, "--key_file", str(at.folder / "key"), *(f"--budget={one}" for one in budget)]


@pytest.mark.slow
def test_a_job_charges_a_ledger(place: Place, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert cli.main(job(place, "one", *books(place))) == 2
    assert "has no limits for dataset 'city'" in capsys.readouterr().err
    assert cli.main(job(place, "one", *books(place, "8/1d"))) == 0
    assert cli.main(job(place, "two", *books(place))) == 0  # another release id, by chance
    assert cli.main(job(place, "three", *books(place))) == 3
    assert not (place.folder / "three").exists()
    assert place.ledger("verify", "--releases", str(place.folder / "one"), "--releases", str(place.folder / "two")) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "city"], "dataset: needs a ledger; give --ledger as well"),
        (
            ["--ledger", "L", "--dataset", "c", "--period", "2026-11-20", "--budget", "9/1d"],
            "a ledger needs a kept key",
        ),
        (["--ledger", "L", "--period", "2026-11-20"], "dataset: --ledger needs it"),
        (["--ledger", "L", "--dataset", "city"], "period: --ledger needs it"),
        (["--ledger", "L", "--dataset", "c", "--period", "x", "--budget", "1/1d"], "period: write a date"),
        (["--ledger", "L", "--dataset", "c", "--period", "2026-11-20", "--budget", "1"], "budget: write EPSILON/DAYSd"),
        (["--ledger", "L", "--dataset", "a b", "--period", "2026-11-20", "--budget", "9/1d"], "dataset: letters"),
        (
            ["--ledger", "L", "--dataset", "c", "--period", "2026-11-20", "--budget", "9/1d", "--seed", "1"],
            "seed: anybody",
        ),
    ],
)
def test_bad_ledger_options(place: Place, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    options = [str(place.folder / "ledger.db") if one == "L" else one for one in options]
    assert cli.main(job(place, "out", *options)) == 2
    assert message in capsys.readouterr().err
    assert not (place.folder / "ledger.db").exists()
    assert not (place.folder / "out").exists()


def test_a_job_run_again_returns_its_release(place: Place, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    key = ["--key_file", str(place.folder / "key"), "--release_id", "mine"]
    keyed = job(place, "one", *books(place, "4/1d"), *key)
    assert cli.main(keyed) == 0
    assert cli.main(keyed) == 0
    assert "mine is published already; nothing is charged" in capsys.readouterr().err
    assert place.entries == 3


@pytest.mark.parametrize(
    "arguments",
    [["verify", "--budget", "1/1d"], ["show", "--releases", "x"], ["limit", "--dataset", "c"],
     ["limit", "--budget", "1/1d"], ["limit", "--dataset", "a b", "--budget", "1/1d"], ["audit"], ["show"], ["verify"]],
)  # fmt: skip
def test_bad_ledger_commands(tmp_path: Path, arguments: list[str]) -> None:
    assert cli.main(["ledger", *arguments, "--ledger", str(tmp_path / "ledger.db")]) == 2
    assert not (tmp_path / "ledger.db").exists()


def test_no_release_starts_from_one_that_nobody_charged(place: Place, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert cli.main(job(place, "published/releases/2026-11-18")) == 0
    assert place.refresh("--date", "2026-11-19") == 4
    warm = ["--warm_start", str(place.folder / "published/releases/2026-11-18")]
    assert cli.main(job(place, "warm", *books(place, "4/1d"), *warm)) == 2
    assert "is not in the ledger" in capsys.readouterr().err
    assert not (place.folder / "ledger.db").exists()
