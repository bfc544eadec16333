"""Lines 8 and 15: a file of a release was edited, its manifest was cut in half, and `ledger verify` saw nothing.

Line 9 in part: a ledger that was deleted or put back from an old copy began a new budget.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.pipelines import cli
from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.ledger import Limit
from sfumato.transforms.release.catalog import check_not_lost
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import commit_release
from sfumato.transforms.release.release_folder import publish
from tests.attacks.releases import manifest_of, publish_release
from tests.unit.privacy.ledger.helpers import charge, ledger

DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for day in DAYS:
        publish_release(tmp_path, f"taxis-{day}", day)
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    return cli.main(["ledger", *arguments, "--ledger", str(folder / "ledger.db")])


def verify(folder: Path, *more: str) -> int:
    return run(folder, "verify", "--releases", str(folder / "out"), *more)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_format(path: Path) -> None:
    path.write_text(path.read_text().replace("sfumato-release/2", "sfumato-release/9"))


def evaluation(path: Path) -> None:
    path.write_text(path.read_text().replace("sfumato-release/2", "sfumato-evaluation/2"))


def refusal(path: Path) -> None:
    """It claims that nothing was published, and would be passed over."""
    for other in path.parent.iterdir():
        if other.name != "index.html":
            other.unlink()
    path.write_text(json.dumps({"format": "sfumato-refusal/2"}))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("density.npy", flip, "density.npy is damaged"),
        ("cells.parquet", flip, "cells.parquet is damaged"),
        ("index.html", flip, "index.html is damaged"),
        ("density.npy", cut, "density.npy is damaged"),
        ("density.npy", Path.unlink, "density.npy is gone"),
        ("manifest.json", cut, "no release here"),
        ("manifest.json", Path.unlink, "no release here"),
        ("manifest.json", other_format, "manifest.json was written by a newer version of sfumato"),
        ("manifest.json", evaluation, "release taxis-2026-11-19 (dataset taxis, 2026-11-19) was published and is gone"),
        ("manifest.json", refusal, "release taxis-2026-11-19 (dataset taxis, 2026-11-19) was published and is gone"),
    ],
)
def test_what_was_done_to_a_release_is_noticed(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[[Path], object], words: str
) -> None:
    assert verify(place) == 0
    assert "3 releases charged as stated, and unchanged" in capsys.readouterr().out
    change(place / "out" / "releases" / DAYS[1] / name)
    assert verify(place) == 4
    assert words in capsys.readouterr().err


def test_every_problem_is_told_at_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(place / "out" / "releases" / DAYS[0])
    cut(place / "out" / "releases" / DAYS[1] / "manifest.json")
    flip(place / "out" / "releases" / DAYS[2] / "cells.parquet")
    assert verify(place) == 4
    told = capsys.readouterr().err
    assert all(f"release taxis-{day} (dataset taxis, {day}) was published and is gone" in told for day in DAYS[:2])
    assert "no release here" in told
    assert "cells.parquet is damaged" in told


def test_a_folder_with_files_of_a_release_and_no_manifest_is_noticed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = place / "out" / "deeper" / "stray"
    stray.mkdir(parents=True)
    (stray / "cells.parquet").write_bytes(b"cells")
    assert verify(place) == 4
    assert f"{stray}: no release here" in capsys.readouterr().err


def test_a_replaced_release_and_an_evaluation_are_no_problem(place: Path) -> None:
    book = ledger(place)
    book.set_limits("taxis", Limit.parse_all("9/1d"))
    book.reserve(charge(f"taxis-{DAYS[2]}-2", DAYS[2]))
    shutil.rmtree(place / "out" / "releases" / DAYS[2])
    assert verify(place) == 4
    publish_again(place, f"taxis-{DAYS[2]}-2")
    evaluated = place / "out" / "evaluated"
    evaluated.mkdir()
    (evaluated / "manifest.json").write_text('{"format": "sfumato-evaluation/2"}')
    (evaluated / "runs.csv").write_text("")
    assert verify(place) == 0


def publish_again(place: Path, release_id: str) -> None:
    reservation = ledger(place).history().reservations[release_id]
    output = str(place / "out" / "releases" / str(reservation.charge.period))
    publish(output, {"manifest.json": json.dumps(manifest_of(reservation)).encode()}, release_id, overwrite=False)
    commit_release(output, release_id, None, str(place / "ledger.db"))


def test_other_datasets_may_stand_elsewhere(place: Path) -> None:
    publish_release(place, "bikes", DAYS[0], "elsewhere/bikes", dataset="Bikes")
    assert verify(place) == 4
    assert verify(place, "--dataset", "Taxis") == 0
    assert verify(place, "--releases", str(place / "elsewhere")) == 0


# --- reading and resuming ---


def test_a_damaged_file_is_an_error_when_it_is_read(place: Path) -> None:
    folder = place / "out" / "releases" / DAYS[0]
    flip(folder / "density.npy")
    release = open_release(folder)  # the manifest alone
    with pytest.raises(RequestError, match=r"density\.npy is damaged: it is not the file that was published"):
        _ = release.density
    assert release.read("cells.parquet")


def test_a_file_that_was_put_there_is_not_read(place: Path) -> None:
    folder = place / "out" / "releases" / DAYS[0]
    (folder / "moments.parquet").write_bytes(b"forged")
    with pytest.raises(RequestError, match=r"has no moments\.parquet"):
        _ = open_release(folder).moments


def test_a_damaged_release_is_not_noted_as_published(tmp_path: Path) -> None:
    output = publish_release(tmp_path, "one", DAYS[0])
    flip(output / "density.npy")
    with pytest.raises(LedgerError, match=r"density\.npy is damaged"):
        commit_release(str(output), "one", None, str(tmp_path / "ledger.db"))


# --- a ledger that was lost, or put back from an old copy ---


def test_a_lost_or_old_ledger_is_noticed_by_every_job(place: Path) -> None:
    book = ledger(place)
    shutil.copy(place / "ledger.db", place / "old.db")
    publish_release(place, "taxis-2026-11-21", "2026-11-21")
    whole = book.history()
    beside = str(place / "out" / "releases" / "2026-11-22")
    for output, timeline in ((beside, None), (str(place / "new" / "one"), str(place / "out"))):
        check_not_lost(whole, "taxis", output, timeline)
        (place / "ledger.db").rename(place / "kept.db")
        with pytest.raises(LedgerError, match="has 0 entries without it"):
            check_not_lost(ledger(place).history(), "Taxis", output, timeline)
        check_not_lost(ledger(place).history(), "bikes", output, timeline)  # a new dataset may have a ledger of its own
        shutil.copy(place / "old.db", place / "ledger.db")
        with pytest.raises(LedgerError, match=r"2026-11-21 was charged to dataset taxis by entry 7 of a ledger"):
            check_not_lost(ledger(place).history(), "taxis", output, timeline)
        (place / "kept.db").rename(place / "ledger.db")
    (place / "ledger.db").unlink()
    check_not_lost(ledger(place).history(), "taxis", str(place / "new" / "one"))  # of what nothing can be seen


# --- backup and restore ---


def test_a_copy_of_a_ledger_gives_it_back(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = str(place / "copy")
    assert run(place, "backup", copy) == 0
    before = ledger(place).history()
    (place / "ledger.db").unlink()
    assert verify(place) == 2  # there is none
    assert run(place, "restore", copy) == 0
    assert "7 entries restored" in capsys.readouterr().out
    assert ledger(place).history() == before
    assert run(place, "restore", copy) == 0
    assert "0 entries restored" in capsys.readouterr().out
    assert verify(place) == 0


def test_newer_entries_are_never_written_over(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, newer = str(place / "copy"), str(place / "newer")
    assert run(place, "backup", copy) == 0
    old = (place / "ledger.db").read_bytes()
    publish_release(place, "taxis-2026-11-21", "2026-11-21")
    assert run(place, "restore", copy) == 2
    assert "nothing is written over" in capsys.readouterr().err
    assert ledger(place).history().entries == 9
    assert run(place, "backup", newer) == 0
    (place / "ledger.db").write_bytes(old)
    assert run(place, "backup", newer) == 4  # the copy knows more than the ledger
    assert "restored from an old copy" in capsys.readouterr().err
    assert run(place, "restore", newer) == 0
    assert ledger(place).history().entries == 9
    assert run(place, "backup", copy) == 0  # a newer copy of the same ledger


@pytest.mark.parametrize("content", [b"", b"no ledger\n", b"[" * 100_000])
def test_a_copy_that_is_none_restores_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "copy").write_bytes(content)
    assert run(tmp_path, "restore", str(tmp_path / "copy")) == (4 if content else 2)
    assert not (tmp_path / "ledger.db").exists()


def test_a_copy_of_another_ledger_restores_nothing(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    publish_release(other, "one", DAYS[0])
    publish_release(other, "two", DAYS[1])
    assert run(place, "backup", str(place / "copy")) == 0
    assert run(other, "restore", str(place / "copy")) == 4
    assert run(other, "restore", str(place / "nowhere")) == 2
    assert ledger(other).history().entries == 5
    flip(place / "copy")
    assert run(place, "restore", str(place / "copy")) == 4
