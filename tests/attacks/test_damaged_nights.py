"""A night's manifest was cut: the next night left it out in silence. Its noise must not protect other data too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from sfumato.pipelines import cli
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.conftest import make_logs, write_files
from tests.keys import write_key

DAYS = ["2026-11-18", "2026-11-19", "2026-11-20"]
DAMAGED, NEW = DAYS[1:]
CONFIG = {
    "dataset": "city", "input": "logs", "output": "published", "ledger": "ledger.db", "key_file": "key",
    "budget": [{"epsilon": 4, "days": 1}],
    "options": {"region": [-1, 50, 1, 51], "depth": 3, "epsilon": 4, "trust": "central"},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two published nights, and the logs of a third."""
    write_key(tmp_path / "key")
    (tmp_path / "refresh.yaml").write_text(yaml.safe_dump(CONFIG))
    for number, day in enumerate(DAYS):
        write_files(make_logs(300, 1, seed=number), tmp_path / "logs" / f"dt={day}", 2)
    for day in DAYS[:2]:
        assert refresh(tmp_path, day) == 0
    return tmp_path


def refresh(place: Path, day: str) -> int:
    return cli.main(["refresh", "--config", str(place / "refresh.yaml"), "--date", day])


def release(place: Path, day: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (place / "published" / "releases" / day).iterdir()}


def cut(place: Path) -> None:
    manifest = place / "published" / "releases" / DAMAGED / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:500])


def state(place: Path) -> None:
    """Damages the file that the next night starts from."""
    (place / "published" / "releases" / DAMAGED / "nights.parquet").write_bytes(b"")


def lost(place: Path) -> None:
    shutil.rmtree(place / "published" / "releases" / DAMAGED)


def emptied(place: Path) -> None:
    shutil.rmtree(place / "published")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, state, lost, emptied])
def test_the_refusal_is_the_same_whatever_the_logs_hold(
    place: Path, damage: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes before any record is read, and before the charge: it follows from published files and the ledger."""
    damage(place)  # type: ignore[operator]
    entries, said = open_ledger(str(place / "ledger.db")).history().entries, set()
    capsys.readouterr()
    logs = place / "logs" / f"dt={NEW}"
    for change in (lambda: None, lambda: (logs / "log-0.parquet").unlink(), lambda: damage_logs(logs)):
        change()
        assert refresh(place, NEW) == 4
        said.add(capsys.readouterr().err)
    assert len(said) == 1
    assert open_ledger(str(place / "ledger.db")).history().entries == entries


def damage_logs(logs: Path) -> None:
    (logs / "log-1.parquet").write_bytes(b"no log")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, state, lost])
def test_a_night_is_made_again_from_its_own_charge_or_not_at_all(
    place: Path, damage: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same noise over other logs would show the difference: one user's rows that were deleted since."""
    whole = release(place, DAMAGED)
    damage(place)  # type: ignore[operator]
    before = open_ledger(str(place / "ledger.db")).history()
    logs = place / "logs" / f"dt={DAMAGED}"
    logs.rename(place / "kept")
    write_files(make_logs(300, 1, seed=1).slice(1), logs, 2)  # without one user
    left = (place / "published" / "releases" / DAMAGED).exists() and release(place, DAMAGED)
    capsys.readouterr()
    assert refresh(place, DAMAGED) == 2
    assert "was charged for other input" in capsys.readouterr().err
    assert left == ((place / "published" / "releases" / DAMAGED).exists() and release(place, DAMAGED))
    shutil.rmtree(logs)
    (place / "kept").rename(logs)
    assert refresh(place, DAMAGED) == 0
    assert release(place, DAMAGED) == whole
    assert open_ledger(str(place / "ledger.db")).history() == before
