"""Refusals and warnings of sfumato refresh and sfumato ledger before anything is charged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
import pytest
from sfumato.pipelines import cli
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.ledger import Ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests.conftest import make_logs, write_files
from tests.jobs.test_refresh import CONFIG, Place
from tests.permissions import permissions_hold

DAY = "2026-11-20"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_files(make_logs(300, 1, seed=1), folder / f"dt={DAY}" / "hour=03", 1)
    return folder


@pytest.fixture
def place(tmp_path: Path, logs: Path) -> Place:
    return Place(tmp_path / "place", logs)


@pytest.mark.parametrize("name", [".", f"dt={DAY}", f"dt={DAY}/hour=03"])
def test_a_days_folder_that_cannot_be_listed(place: Place, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It looked as if the day had no data yet, which is tried again, for ever."""
    folder = place.folder / "logs" / name
    folder.chmod(0)
    with permissions_hold():
        assert place.refresh("--date", DAY) == 2
        assert str(place.folder / "logs") in capsys.readouterr().err
    folder.chmod(0o755)
    assert not (place.folder / "ledger.db").exists()
    assert place.refresh("--date", DAY, "--dry_run") == 0


def test_a_file_in_place_of_a_days_folder(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (place.folder / "logs" / "dt=2026-11-21").write_text("no folder")
    assert place.refresh("--date", "2026-11-21") == 2
    assert "dt=2026-11-21" in capsys.readouterr().err
    assert place.refresh("--date", "2026-11-22") == 75


def test_folders_that_hold_no_logs_may_be_closed(place: Place) -> None:
    hidden = place.folder / "logs" / f"dt={DAY}" / "_temporary"
    hidden.mkdir(mode=0)
    with permissions_hold():
        assert place.refresh("--date", DAY, "--dry_run") == 0


@pytest.mark.slow
def test_a_manifest_that_this_user_may_not_read(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.refresh("--date", DAY) == 0
    manifest = place.folder / "published" / "releases" / DAY / "manifest.json"
    manifest.chmod(0)
    with permissions_hold():
        for day in (DAY, "2026-11-21"):
            assert place.refresh("--date", day) == 2
            assert str(manifest) in capsys.readouterr().err
    manifest.chmod(0o644)
    assert place.refresh("--date", DAY) == 0


@pytest.mark.parametrize(
    ("days", "words"), [(400, "newest entry is of"), (-400, "400 days after"), (1 / 24, "set the clock")]
)
def test_a_clock_that_contradicts_the_ledger_is_named(
    place: Place, days: float, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a warning: an entry of a fast clock would otherwise stop all nights until its time has come."""
    other = datetime.now(UTC) + timedelta(days=days)
    Ledger(SqliteStore(str(place.folder / "ledger.db")), lambda: other).set_limits("town", Limit.parse_all("1/1d"))
    assert place.refresh("--date", DAY, "--log_format", "json") == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if '"event": "clock"' in line]
    assert len(warned) == 1
    assert words in warned[0]
    assert '"WARNING"' in warned[0]


def test_a_clock_that_agrees_is_not_named(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    near = datetime.now(UTC) - timedelta(days=7)
    Ledger(SqliteStore(str(place.folder / "ledger.db")), lambda: near).set_limits("town", Limit.parse_all("1/1d"))
    assert place.refresh("--date", DAY, "--dry_run", "--log_format", "json") == 0
    assert '"event": "clock"' not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--memory", "1G"), ("--memory=1G",), ("--depth", "4")])
def test_an_option_of_the_job_belongs_into_the_configuration(
    place: Place, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.refresh("--date", DAY, *arguments) == 2
    said = capsys.readouterr().err
    assert f"in options of {place.config}" in said
    place.write(options={**CONFIG["options"], "memory": "1G"})
    assert place.refresh("--date", DAY, "--dry_run") == 0


def test_a_key_that_is_gone_or_closed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    key = place.folder / "key"
    key.chmod(0)
    with permissions_hold():
        assert place.refresh("--date", DAY) == 2
    said = capsys.readouterr().err
    key.unlink()
    assert place.refresh("--date", DAY) == 2
    for text in (said, capsys.readouterr().err):
        assert f"key_file: {key} cannot be read" in text
        assert "name the key's file" in text
        assert "Error" not in text


@pytest.mark.parametrize("content", [b"no copy\n", b"\xff\xfe", b'{"format": 1}\n', b"[1]\n", b"7\n"])
def test_a_damaged_copy_is_named_and_not_the_ledger(
    place: Place, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = place.folder / "ledger.copy"
    copy.write_bytes(content)
    assert cli.main(["ledger", "restore", str(copy), "--ledger", str(place.folder / "ledger.db")]) == 4
    said = capsys.readouterr().err
    assert f"file: {copy}" in said
    assert "the ledger is damaged" not in said
    assert "Expecting value" not in said
    assert not (place.folder / "ledger.db").exists()
