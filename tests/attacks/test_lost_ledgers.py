"""Ledgers that were lost or put back from an old copy, and releases that somebody changed, are noticed.

A file of a release was edited, its manifest was cut in half, and `ledger verify` saw nothing. A ledger that was deleted
or put back from an old copy began a new budget: it lacked the charges made since, and forgot releases that were taken
down. Now what it lost is charged again from the releases' manifests and from the notices of those taken down.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import BudgetError, LedgerError, RequestError
from sfumato.schemas.guarantee import ZERO_OUT
from sfumato.schemas.ledger import Limit, Period
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.history import RECOVER, recover_content, replay
from sfumato.transforms.privacy.ledger.ledger import Ledger, open_ledger
from sfumato.transforms.release import catalog
from sfumato.transforms.release.catalog import check_not_lost, disagreement
from sfumato.transforms.release.notices import removal_files, stated_charge
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import commit_release, ledger_metadata
from sfumato.transforms.release.release_folder import publish
from tests.attacks.releases import chained, entries_of, manifest_of, publish_release
from tests.unit.privacy.ledger.helpers import charge, ledger

EARLIER = Path(__file__).parents[1] / "data" / "version_0_1_0"
DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
LOST_DAY = "2026-11-21"
LOST = f"taxis-{LOST_DAY}"
REASON = "a wrong file was published"


def run(folder: Path, *arguments: str) -> int:
    return cli.main(["ledger", *arguments, "--ledger", str(folder / "ledger.db")])


def verify(folder: Path, *more: str) -> int:
    return run(folder, "verify", "--releases", str(folder / "out"), *more)


def recover(folder: Path, releases: str | Path = "out") -> int:
    """Charges again what the releases state and the ledger lost."""
    return run(folder, "restore", "--releases", str(folder / releases))


def back_up(folder: Path, name: str) -> None:
    assert run(folder, "backup", str(folder / name)) == 0


def put_back(folder: Path, name: str) -> None:
    """The ledger is lost, and restored from a copy."""
    (folder / "ledger.db").unlink()
    assert run(folder, "restore", str(folder / name)) == 0


def edit(path: Path, **changes: object) -> None:
    """Changes fields of a manifest."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three published days."""
    for day in DAYS:
        publish_release(tmp_path, f"taxis-{day}", day)
    return tmp_path


# --- releases that somebody changed ---


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def newer_format(path: Path) -> None:
    edit(path, format="sfumato-release/9")


def refusal(path: Path) -> None:
    """It claims that nothing was published, and would be passed over."""
    for other in path.parent.iterdir():
        if other.name != "index.html":
            other.unlink()
    path.write_text(json.dumps({"format": "sfumato-refusal/2"}))


def stray(path: Path) -> None:
    """A folder with a file of a release and no manifest."""
    folder = path.parent.parent / "deeper" / "stray"
    folder.mkdir(parents=True)
    (folder / "cells.parquet").write_bytes(b"cells")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("density.npy", flip, "density.npy is damaged"),
        ("cells.parquet", flip, "cells.parquet is damaged"),
        ("index.html", flip, "index.html is damaged"),
        ("density.npy", cut, "density.npy is damaged"),
        ("density.npy", Path.unlink, "density.npy is missing"),
        ("manifest.json", cut, "no release found"),
        ("manifest.json", Path.unlink, "no release found"),
        ("manifest.json", stray, "stray: no release found"),
        ("manifest.json", newer_format, "manifest.json was written by a newer version of sfumato"),
        ("manifest.json", refusal, "release taxis-2026-11-19 (dataset taxis, 2026-11-19) was published but is missing"),
    ],
)
def test_what_was_done_to_a_release_is_noticed(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[[Path], object], words: str
) -> None:
    assert verify(place) == 0
    change(place / "out" / "releases" / DAYS[1] / name)
    capsys.readouterr()
    assert verify(place) == 4
    assert words in capsys.readouterr().err


def test_a_replaced_release_is_no_problem(place: Path) -> None:
    book = ledger(place)
    book.set_limits("taxis", Limit.parse_all("9/1d"))
    again = book.reserve(charge(f"taxis-{DAYS[2]}-2", DAYS[2]))
    output = place / "out" / "releases" / DAYS[2]
    shutil.rmtree(output)
    assert verify(place) == 4
    files = {"manifest.json": json.dumps(manifest_of(again)).encode()}
    publish(str(output), files, again.charge.release_id, overwrite=False)
    commit_release(str(output), again.charge.release_id, None, str(place / "ledger.db"))
    assert verify(place) == 0


def test_a_damaged_or_added_file_is_not_read_or_committed(place: Path) -> None:
    folder = place / "out" / "releases" / DAYS[0]
    flip(folder / "density.npy")
    (folder / "moments.parquet").write_bytes(b"forged")
    release = open_release(folder)  # the manifest alone
    with pytest.raises(RequestError, match=r"density\.npy is damaged"):
        _ = release.density
    assert release.read("cells.parquet")
    with pytest.raises(RequestError, match="has no table 'moments'"):
        _ = release.moments
    with pytest.raises(LedgerError, match=r"density\.npy is damaged"):
        commit_release(str(folder), f"taxis-{DAYS[0]}", None, str(place / "ledger.db"))


# --- a ledger that was lost, or put back from an old copy ---


def test_a_lost_or_old_ledger_is_noticed_by_every_job(place: Path) -> None:
    book = ledger(place)
    shutil.copy(place / "ledger.db", place / "old.db")
    publish_release(place, LOST, LOST_DAY)
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


def test_a_copy_of_a_ledger_gives_it_back(place: Path) -> None:
    back_up(place, "copy")
    before = ledger(place).history()
    (place / "ledger.db").unlink()
    assert verify(place) == 2  # there is none
    for _ in range(2):  # nothing more is restored
        assert run(place, "restore", str(place / "copy")) == 0
        assert ledger(place).history() == before
    assert verify(place) == 0


def test_newer_entries_are_never_written_over(place: Path) -> None:
    copy, newer = str(place / "copy"), str(place / "newer")
    back_up(place, "copy")
    old = (place / "ledger.db").read_bytes()
    publish_release(place, LOST, LOST_DAY)
    assert run(place, "restore", copy) == 2
    assert ledger(place).history().entries == 9
    back_up(place, "newer")
    (place / "ledger.db").write_bytes(old)
    assert run(place, "backup", newer) == 4  # the copy knows more than the ledger
    assert run(place, "restore", newer) == 0
    assert ledger(place).history().entries == 9
    back_up(place, "copy")  # a newer copy of the same ledger


@pytest.mark.parametrize("content", [b"", b"no ledger\n", b"[" * 100_000])
def test_a_copy_that_is_none_restores_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "copy").write_bytes(content)
    assert run(tmp_path, "restore", str(tmp_path / "copy")) == (4 if content else 2)
    assert not (tmp_path / "ledger.db").exists()


def test_a_copy_of_another_ledger_restores_nothing(place: Path) -> None:
    other = place / "other"
    other.mkdir()
    publish_release(other, "one", DAYS[0])
    back_up(place, "copy")
    assert run(other, "restore", str(place / "copy")) == 4
    assert run(other, "restore", str(place / "nowhere")) == 2
    assert ledger(other).history().entries == 3
    flip(place / "copy")
    assert run(place, "restore", str(place / "copy")) == 4


# --- charges that a restored ledger lacks ---


def publish_two_days(folder: Path, copy: str) -> None:
    """Publishes two days, and copies the ledger after the first."""
    publish_release(folder, "taxis-2026-11-20", "2026-11-20")
    back_up(folder, copy)
    publish_release(folder, LOST, LOST_DAY)


@pytest.fixture
def restored(tmp_path: Path) -> Path:
    """Two published days; the ledger was restored from a copy that was made between them."""
    publish_two_days(tmp_path, "copy")
    put_back(tmp_path, "copy")
    return tmp_path


def test_lost_charges_are_named_and_made_again(restored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a later change of the manifest still shows: the charge that was made again holds its digest."""
    capsys.readouterr()
    assert verify(restored) == 4
    assert f"release {LOST} was never charged" in capsys.readouterr().err
    assert recover(restored) == 0
    assert f"{LOST}: epsilon 1 for taxis, {LOST_DAY}, charged again" in capsys.readouterr().out
    book = ledger(restored)
    with pytest.raises(BudgetError):
        book.reserve(charge("more", LOST_DAY, "0.1"))
    check_not_lost(book.history(), "taxis", str(restored / "out" / "releases" / "new"), str(restored / "out"))
    assert verify(restored) == 0
    assert f"charged again after their entries were lost: {LOST}" in capsys.readouterr().out
    entries = book.history().entries
    assert recover(restored) == 0
    assert book.history().entries == entries
    path = restored / "out" / "releases" / LOST_DAY / "manifest.json"
    path.write_text(path.read_text().replace('"epsilon": 1.0', '"epsilon": 0.5'))
    assert verify(restored) == 4


@pytest.mark.parametrize("has_copy", [True, False])
def test_the_releases_give_charges_back_after_a_copy_or_alone(restored: Path, has_copy: bool) -> None:
    (restored / "ledger.db").unlink()
    if has_copy:
        assert run(restored, "restore", str(restored / "copy"), "--releases", str(restored / "out")) == 0
    else:
        assert recover(restored) == 2  # nobody knows the limits
        assert run(restored, "limit", "--dataset", "taxis", "--budget", "1/1d,10/365d") == 0
        assert recover(restored) == 0
    assert len(ledger(restored).history().charges) == 2
    assert verify(restored) == 0


def test_a_lost_charge_counts_even_above_the_limits(restored: Path) -> None:
    """It was spent. A ledger that left it out would spend it again."""
    book = ledger(restored)
    book.set_limits("taxis", Limit.parse_all("1/30d"))
    assert recover(restored) == 0
    history = book.history(with_limits=True)
    assert sum(one.epsilon for one in history.charges) == 2
    with pytest.raises(BudgetError):
        book.reserve(charge("more", LOST_DAY, "0.1"))


@pytest.mark.parametrize(
    "damage", [{"privacy": {}}, {"privacy": None}, {"release_id": "a b"}, {"ledger": {"hash": "h"}}]
)
def test_a_manifest_that_does_not_state_its_charge_is_an_error(restored: Path, damage: dict[str, object]) -> None:
    edit(restored / "out" / "releases" / LOST_DAY / "manifest.json", **damage)
    # Of this one the ledger has the charge.
    edit(restored / "out" / "releases" / "2026-11-20" / "manifest.json", privacy=None)
    before = ledger(restored).history()
    assert recover(restored) == 4
    assert ledger(restored).history() == before


def test_one_unreadable_release_keeps_no_other_from_recovery(restored: Path) -> None:
    unreadable = restored / "out" / "another"
    shutil.copytree(restored / "out" / "releases" / LOST_DAY, unreadable)
    stated = json.loads((unreadable / "manifest.json").read_text())["ledger"]
    edit(unreadable / "manifest.json", ledger={**stated, "hash": "f" * 64}, format="sfumato-release/9")
    assert recover(restored) == 4
    assert LOST in ledger(restored).history().reservations


@pytest.mark.parametrize(
    ("folder", "change"),
    [
        ("few", {"reason": ""}),
        ("few", {"privacy": {"adjacency": "add or remove", "epsilon_spent": 0, "delta": 0}}),
        ("gauss", {"privacy": {"epsilon": 0.5, "delta": 1e-6, "rho": 0.5, "trust": "central"}}),
        ("gauss", {"privacy": {"epsilon": 0.5, "delta": 0, "rho": 0.007, "trust": "central"}}),
        ("2026-11-18", {"cohorts": 7}),
    ],
)
def test_no_manifest_makes_a_ledger_that_cannot_be_read(tmp_path: Path, folder: str, change: dict[str, Any]) -> None:
    shutil.copy(EARLIER / "ledger.db", tmp_path / "ledger.db")
    shutil.copytree(EARLIER / folder, tmp_path / "release")
    path = tmp_path / "release" / "manifest.json"
    manifest = json.loads(path.read_text()) | {"release_id": "another"}
    manifest["ledger"]["hash"] = "f" * 64
    if "cohorts" in change:
        partition = ledger(tmp_path).history().reservations["city-2026-11-18"].charge.rotation
        assert partition is not None
        manifest["ledger"]["partition"] = partition.partition
        manifest["privacy"]["rotation"]["cohorts"] = change["cohorts"]
    else:
        manifest |= change
    path.write_text(json.dumps(manifest))
    before = ledger(tmp_path).history()
    assert recover(tmp_path, "release") == 4
    assert ledger(tmp_path).history() == before


def test_what_an_earlier_version_published_is_charged_again(tmp_path: Path) -> None:
    """Gaussian noise, a cohort, a refusal and a pruned release, from a copy that holds the limits alone."""
    whole = open_ledger(str(shutil.copy(EARLIER / "ledger.db", tmp_path / "whole.db"))).history()
    lines = (EARLIER / "ledger.copy").read_bytes().splitlines(keepends=True)
    (tmp_path / "copy").write_bytes(lines[0])
    assert run(tmp_path, "restore", str(tmp_path / "copy")) == 0
    assert run(tmp_path, "limit", "--dataset", "other", "--budget", "5:1e-5/1d") == 0
    assert recover(tmp_path, EARLIER) == 0
    history = open_ledger(str(tmp_path / "ledger.db")).history()
    for name, lost in whole.reservations.items():
        found = history.reservations[name]
        assert found.lost == lost.hash
        assert (found.manifest, found.refusal) == (lost.manifest, lost.refusal)
        same = {"request": "", "binding": "", "files": (), "also_charged": (), "starts_from": None}
        expected = replace(lost.charge, **same, rotation=None)  # its manifests name no partition, so it counts for all
        if lost.refusal is not None:
            expected = replace(expected, trust=found.charge.trust)
        assert found.charge == expected
    for folder in ("2026-11-17", "2026-11-18", "gauss", "model"):
        assert disagreement(open_release(EARLIER / folder), history) is None


@pytest.mark.parametrize(
    "change",
    [
        {"lost": ""}, {"lost": None}, {"manifest": None}, {"refusal": "no"}, {"manifest": 7}, {"epsilon": "0"},
        {"release_id": "taxis-2026-11-20"},  # which is charged already
    ],
)  # fmt: skip
def test_a_forged_recovery_is_refused(restored: Path, change: dict[str, object]) -> None:
    content = recover_content(charge("forged", LOST_DAY), "h" * 64, "m", None)
    replay(chained(entries_of(restored), (RECOVER, content)))
    with pytest.raises(LedgerError):
        replay(chained(entries_of(restored), (RECOVER, {**content, **change})))


def test_a_lost_charge_counts_for_the_other_days_of_its_files(tmp_path: Path) -> None:
    """`--allow_reuse` charges a file's earlier days too. A ledger that left them out would spend them again."""
    back, files, book = Period.parse("2026-11-20"), ("a" * 32,), ledger(tmp_path)
    book.reserve(charge("earlier", str(back), "0.5", files=files), Limit.parse_all("1.5/1d,10/365d"))
    book.reserve(charge(LOST, LOST_DAY, files=files), allow_reuse=True)
    output = publish_release(tmp_path, LOST, LOST_DAY, limits=(), files=files)
    (tmp_path / "ledger.db").unlink()
    assert run(tmp_path, "limit", "--dataset", "taxis", "--budget", "1/1d") == 0
    assert recover(tmp_path, output) == 0
    assert [str(one.period) for one in ledger(tmp_path).history().charges] == [LOST_DAY, str(back)]
    with pytest.raises(BudgetError):
        ledger(tmp_path).reserve(charge("more", str(back), "0.1"))


# --- releases that were taken down ---


def take_down(folder: Path) -> int:
    places = ["--ledger", f"{folder}/ledger.db", "--reason", REASON]
    return cli.main(["releases", "remove", f"{folder}/out/releases/{LOST_DAY}", *places])


@pytest.fixture
def taken_down(tmp_path: Path) -> Path:
    """Two days, of which the second was taken down; and copies of the ledger from before its charge and its removal."""
    publish_two_days(tmp_path, "before its charge")
    back_up(tmp_path, "before its removal")
    assert take_down(tmp_path) == 0
    return tmp_path


@pytest.mark.parametrize("copy", ["before its charge", "before its removal"])
def test_its_charge_counts_and_nothing_publishes_it(
    taken_down: Path, copy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every job notices a removal that its ledger lost. Once it is restored, it is as if it had never been lost."""
    put_back(taken_down, copy)
    capsys.readouterr()
    assert verify(taken_down) == 4
    assert f"{taken_down}/out/releases/{LOST_DAY}: release {LOST} was " in capsys.readouterr().err
    beside = "taxis", str(taken_down / "out" / "releases" / "new")
    with pytest.raises(LedgerError):
        check_not_lost(ledger(taken_down).history(), *beside)
    assert recover(taken_down) == 0
    check_not_lost(ledger(taken_down).history(), *beside)
    book = ledger(taken_down)
    history = book.history(with_limits=True)
    assert history.reservations[LOST].removal == REASON
    assert [one.epsilon for one in history.charges] == [1, 1]
    with pytest.raises(BudgetError):
        book.reserve(charge("more", LOST_DAY, "0.1"))
    with pytest.raises(RequestError, match="taken down"):
        book.reserve(charge(LOST, LOST_DAY))
    assert verify(taken_down) == 0
    entries = history.entries
    assert take_down(taken_down) == 0
    assert recover(taken_down) == 0
    assert verify(taken_down) == 0
    assert book.history().entries == entries


def test_a_restoration_that_died_before_the_removal_is_completed(
    taken_down: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(taken_down, "before its charge")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "remove", die)
        assert recover(taken_down) != 0
    assert ledger(taken_down).history().reservations[LOST].removal is None
    assert verify(taken_down) == 4
    assert recover(taken_down) == 0
    assert verify(taken_down) == 0


def test_a_notice_states_the_whole_charge(tmp_path: Path) -> None:
    """Of cohorts, of bits, of both adjacencies, with Gaussian noise, and of files that other days were charged for."""
    book = ledger(tmp_path)
    plain = charge("plain", LOST_DAY)
    elsewhere = (("buses", Period.parse("2026-01-01:2026-01-07")), ("taxis", Period.parse("2026-11-20")))
    charges = [
        plain,
        replace(plain, release_id="zero", adjacency=ZERO_OUT),
        replace(plain, release_id="cohort", rotation=Rotation(7, 30, "0123456789abcdef" * 2)),
        replace(plain, release_id="files", also_charged=elsewhere),
        replace(plain, release_id="bits", bits=2),
    ]
    book.set_limits("taxis", Limit.parse_all("10/1d,10/1d@zero-out"))
    gauss = open_ledger(str(shutil.copy(EARLIER / "ledger.db", tmp_path / "other.db"))).history()
    charges += [one.charge for one in gauss.reservations.values() if one.charge.rho is not None]
    assert len(charges) > 5
    assert any(one.epsilon % 1 for one in charges)
    reserved = book.reserve(plain)
    for one in charges:
        reservation = replace(reserved, charge=one, manifest="m", pruned="2026-11-22", removal=REASON)
        found = stated_charge("folder", removal_files(reservation, ledger_metadata(reservation))["manifest.json"])
        assert (found.hash, found.manifest, found.refusal) == (reservation.hash, "m", None)
        assert found.removal == REASON
        same: dict[str, object] = {"request": "", "binding": "", "files": (), "starts_from": None}
        assert found.charge == replace(one, **same)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"reason": ""},
        {"reason": "two\nlines"},
        {"reason": None},
        {"removed_manifest": {"sha256": "f" * 64}},
        {"removed_manifest": {}},
        {"privacy": {}},
        {"release_id": "taxis-2026-11-20"},
    ],
)
@pytest.mark.parametrize("copy", ["before its charge", "before its removal"])
def test_a_forged_notice_is_evidence_that_stays(taken_down: Path, copy: str, change: dict[str, object]) -> None:
    put_back(taken_down, copy)
    edit(taken_down / "out" / "releases" / LOST_DAY / "manifest.json", **change)
    before = ledger(taken_down).history()
    is_unknown = copy == "before its charge" and change.get("removed_manifest") == {"sha256": "f" * 64}
    assert recover(taken_down) == (0 if is_unknown else 4)
    if not is_unknown:  # nobody knows the manifest of a release that only the notice names; its cost counts anyway
        assert ledger(taken_down).history() == before
    assert ledger(taken_down).history(with_limits=True)


def test_an_unreadable_manifest_is_no_manifest_without_a_charge(
    taken_down: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(taken_down, "before its charge")

    def fail(_: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(catalog, "manifest_at", fail)
    before = ledger(taken_down).history()
    assert recover(taken_down) == 4
    assert ledger(taken_down).history() == before
