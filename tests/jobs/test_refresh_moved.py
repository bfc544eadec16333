"""A day's files that are renamed, moved or copied after its charge: the same content is the same input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import find_releases, read_folders
from tests.conftest import make_logs, write_files
from tests.jobs.test_refresh import Place

DAY = "2026-11-20"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    write_files(make_logs(900, 2, seed=2), tmp_path / "logs" / f"dt={DAY}", 3)
    return Place(tmp_path / "place", tmp_path / "logs")


def rename(place: Place) -> None:
    for number, file in enumerate(sorted((place.folder / "logs" / f"dt={DAY}").iterdir())):
        file.rename(file.with_name(f"part-{9 - number}.parquet"))  # in another order


def move(place: Place) -> None:
    (place.folder / "logs").rename(place.folder / "archive")
    place.write(input="archive")


def into_folders(place: Place) -> None:
    for number, file in enumerate(sorted((place.folder / "logs" / f"dt={DAY}").iterdir())):
        below = file.parent / f"hour={number}"
        below.mkdir()
        file.rename(below / "log.parquet")


def copy(place: Place) -> None:
    shutil.copytree(place.folder / "logs", place.folder / "copy")  # with other times
    shutil.rmtree(place.folder / "logs")
    place.write(input="copy")


CHANGES = [rename, move, into_folders, copy]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_charged_day_is_resumed_as_the_same_release(
    place: Place, change: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Place(tmp_path / "undisturbed", tmp_path / "logs")
    assert other.refresh("--date", DAY) == 0
    place.crash(DAY)
    entries = place.entries
    change(place)  # type: ignore[operator]
    assert place.refresh("--date", DAY) == 0
    assert place.entries == entries + 1  # the publication, and no charge
    for name in ("cells.parquet", "density.npy", "answers.parquet"):
        found, expected = (one.folder / "published/releases" / DAY / name for one in (place, other))
        assert found.read_bytes() == expected.read_bytes()
    assert "came after" not in capsys.readouterr().err


@pytest.mark.parametrize("change", CHANGES)
def test_a_published_day_stays_and_nothing_looks_late(
    place: Place, change: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.refresh("--date", DAY) == 0
    entries, cells = place.entries, (place.folder / "published/releases" / DAY / "cells.parquet").read_bytes()
    change(place)  # type: ignore[operator]
    capsys.readouterr()
    assert place.refresh("--date", DAY) == 0
    assert place.entries == entries
    assert (place.folder / "published/releases" / DAY / "cells.parquet").read_bytes() == cells
    assert "came after" not in capsys.readouterr().err


def test_files_under_another_date_are_not_charged_twice(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.refresh("--date", DAY) == 0
    charges = open_ledger(str(place.folder / "ledger.db")).history().charges
    (place.folder / "logs" / f"dt={DAY}").rename(place.folder / "logs" / "dt=2026-11-21")
    assert place.refresh("--date", "2026-11-21") == 2
    assert f"data of {DAY}, was charged for a file of this input" in capsys.readouterr().err
    assert open_ledger(str(place.folder / "ledger.db")).history().charges == charges


def test_a_charged_file_that_is_gone_stops_the_run_and_says_so(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.crash(DAY)
    entries = place.entries
    next(iter((place.folder / "logs" / f"dt={DAY}").iterdir())).unlink()
    assert place.refresh("--date", DAY) == 2
    assert "was charged for other input" in capsys.readouterr().err
    assert place.entries == entries


@pytest.mark.slow
@pytest.mark.parametrize("moved", ["releases", f"releases/{DAY}"])
def test_releases_behind_a_link_are_the_same_for_a_refresh_and_for_verify(
    place: Place, moved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refresh found them, and `ledger verify` said that there is no release."""
    write_files(make_logs(900, 2, seed=3), place.folder / "logs" / "dt=2026-11-21", 2)
    assert place.refresh("--date", DAY) == 0
    published = place.folder / "published"
    (published / moved).rename(tmp_path / "disk")
    (published / moved).symlink_to(tmp_path / "disk")
    (published / "newest").symlink_to(published / "releases")
    assert place.refresh("--date", "2026-11-21") == 0
    assert place.release("2026-11-21").manifest["parameters"]["warm_start"]["release_id"] == f"city-{DAY}"
    assert sorted(read_folders(str(published)).releases) == [DAY, "2026-11-21"]
    capsys.readouterr()
    assert place.ledger("verify", "--releases", str(published)) == 0
    assert len(find_releases(str(published))[0]) == 2
