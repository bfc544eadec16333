"""A ledger that was restored from an old copy forgot releases that were taken down, and they cost nothing any more."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sfumato.pipelines import cli
from sfumato.schemas.errors import BudgetError, LedgerError, RequestError
from sfumato.schemas.ledger import ZERO_OUT, Charge, Limit, Period
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.ledger import Ledger, open_ledger
from sfumato.transforms.release import catalog
from sfumato.transforms.release.notices import removal_files, stated_charge
from sfumato.transforms.release.publishing import ledger_metadata
from tests.attacks.releases import publish_release
from tests.unit.privacy.ledger.helpers import charge, ledger

DAY, REASON = "2026-11-21", "a wrong file was published"
NAME = f"taxis-{DAY}"


def run(folder: Path, *arguments: str) -> int:
    return cli.main(["ledger", *arguments, "--ledger", str(folder / "ledger.db")])


def back_up(folder: Path, name: str) -> None:
    assert run(folder, "backup", str(folder / name)) == 0


def take_down(folder: Path) -> int:
    places = ["--ledger", f"{folder}/ledger.db", "--reason", REASON]
    return cli.main(["releases", "remove", f"{folder}/out/releases/{DAY}", *places])


@pytest.fixture
def taken_down(tmp_path: Path) -> Path:
    """Two days, of which the second was taken down; and copies of the ledger from before its charge and its removal."""
    publish_release(tmp_path, "taxis-2026-11-20", "2026-11-20")
    back_up(tmp_path, "before its charge")
    publish_release(tmp_path, NAME, DAY)
    back_up(tmp_path, "before its removal")
    assert take_down(tmp_path) == 0
    return tmp_path


@pytest.mark.parametrize("copy", ["before its charge", "before its removal"])
def test_its_charge_counts_and_nothing_publishes_it(
    taken_down: Path, copy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (taken_down / "ledger.db").unlink()
    assert run(taken_down, "restore", str(taken_down / copy)) == 0
    assert run(taken_down, "verify", "--releases", str(taken_down / "out")) == 4
    assert f"{taken_down}/out/releases/{DAY}: release {NAME} was " in capsys.readouterr().err
    assert run(taken_down, "restore", "--releases", str(taken_down / "out")) == 0
    assert f"{NAME}: taken down" in capsys.readouterr().out
    book = ledger(taken_down)
    history = book.history(with_limits=True)
    assert history.reservations[NAME].removal == REASON
    assert [one.epsilon for one in history.charges] == [1, 1]
    with pytest.raises(BudgetError):
        book.reserve(charge("more", DAY, "0.1"))
    with pytest.raises(RequestError, match="taken down"):
        book.reserve(charge(NAME, DAY))
    assert run(taken_down, "verify", "--releases", str(taken_down / "out")) == 0
    entries = history.entries
    assert take_down(taken_down) == 0
    assert run(taken_down, "restore", "--releases", str(taken_down / "out")) == 0
    assert run(taken_down, "verify", "--releases", str(taken_down / "out")) == 0
    assert book.history().entries == entries


def test_a_restoration_that_died_before_the_removal_is_completed(
    taken_down: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (taken_down / "ledger.db").unlink()
    assert run(taken_down, "restore", str(taken_down / "before its charge")) == 0

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "remove", die)
        assert run(taken_down, "restore", "--releases", str(taken_down / "out")) != 0
    assert ledger(taken_down).history().reservations[NAME].removal is None
    assert run(taken_down, "verify", "--releases", str(taken_down / "out")) == 4
    assert run(taken_down, "restore", "--releases", str(taken_down / "out")) == 0
    assert run(taken_down, "verify", "--releases", str(taken_down / "out")) == 0


def test_a_job_notices_a_removal_that_its_ledger_lost(taken_down: Path) -> None:
    (taken_down / "ledger.db").unlink()
    assert run(taken_down, "restore", str(taken_down / "before its removal")) == 0
    places = "taxis", str(taken_down / "out" / "releases" / "new")
    with pytest.raises(LedgerError, match="does not know it"):
        catalog.check_not_lost(ledger(taken_down).history(), *places)
    assert run(taken_down, "restore", "--releases", str(taken_down / "out" / "releases" / DAY)) == 0
    catalog.check_not_lost(ledger(taken_down).history(), *places)


def test_a_pruned_release_whose_record_is_lost_can_be_taken_down(tmp_path: Path) -> None:
    """The ledger forgot that its files were removed, so the release looks damaged, and a person must decide."""
    output = publish_release(tmp_path, NAME, DAY)
    back_up(tmp_path, "before it was pruned")
    ledger(tmp_path).prune(NAME)
    for path in output.iterdir():
        if path.name != "manifest.json":
            path.unlink()
    assert run(tmp_path, "verify", "--releases", str(output)) == 0
    (tmp_path / "ledger.db").unlink()
    assert run(tmp_path, "restore", str(tmp_path / "before it was pruned"), "--releases", str(output)) == 0
    assert run(tmp_path, "verify", "--releases", str(output)) == 4
    assert take_down(tmp_path) == 0
    assert run(tmp_path, "verify", "--releases", str(output)) == 0


def test_a_notice_states_the_whole_charge(tmp_path: Path) -> None:
    """Of cohorts, of bits, of both adjacencies, with Gaussian noise, and of files that other days were charged for."""
    book = ledger(tmp_path)
    plain = charge("plain", DAY)
    elsewhere = (("buses", Period.parse("2026-01-01:2026-01-07")), ("taxis", Period.parse("2026-11-20")))
    charges = [
        plain,
        replace(plain, release_id="zero", adjacency=ZERO_OUT),
        replace(plain, release_id="cohort", rotation=Rotation(7, 30, "0123456789abcdef" * 2)),
        replace(plain, release_id="files", also_charged=elsewhere),
        replace(plain, release_id="bits", bits=2),
    ]
    book.set_limits("taxis", Limit.parse_all("10/1d,10/1d@zero-out"))
    shared = Path(__file__).parents[1] / "data" / "version_0_1_0"
    gauss = open_ledger(str(shutil.copy(shared / "ledger.db", tmp_path / "other.db"))).history()
    charges += [one.charge for one in gauss.reservations.values() if one.charge.rho is not None]
    assert len(charges) > 5
    assert any(one.epsilon % 1 for one in charges)
    for one in charges:
        reservation = replace(_reservation(book, plain), charge=one, manifest="m", pruned="2026-11-22", removal=REASON)
        content = removal_files(reservation, ledger_metadata(reservation))["manifest.json"]
        found = stated_charge("folder", content)
        assert (found.hash, found.manifest, found.refusal) == (reservation.hash, "m", None)
        assert found.removal == REASON
        same: dict[str, object] = {"request": "", "binding": "", "files": (), "starts_from": None}
        assert found.charge == replace(one, **same)  # type: ignore[arg-type]


def _reservation(book: Ledger, one: Charge):  # type: ignore[no-untyped-def]
    return book.history().reservations.get(one.release_id) or book.reserve(one)


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
    (taken_down / "ledger.db").unlink()
    assert run(taken_down, "restore", str(taken_down / copy)) == 0
    path = taken_down / "out" / "releases" / DAY / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    before = ledger(taken_down).history()
    is_unknown = copy == "before its charge" and change.get("removed_manifest") == {"sha256": "f" * 64}
    assert run(taken_down, "restore", "--releases", str(taken_down / "out")) == (0 if is_unknown else 4)
    if not is_unknown:  # nobody knows the manifest of a release that only the notice names; its cost counts anyway
        assert ledger(taken_down).history() == before
    assert ledger(taken_down).history(with_limits=True)


def test_an_unreadable_manifest_is_no_manifest_without_a_charge(
    taken_down: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (taken_down / "ledger.db").unlink()
    assert run(taken_down, "restore", str(taken_down / "before its charge")) == 0

    def fail(_: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(catalog, "manifest_at", fail)
    assert run(taken_down, "restore", "--releases", str(taken_down / "out")) == 4
    assert "cannot be made again" in capsys.readouterr().err


def test_a_lost_charge_counts_again_for_the_other_days_of_its_files(tmp_path: Path) -> None:
    """`--allow_reuse` charges a file's earlier days too. A ledger that left them out would spend them again."""
    back, files, book = Period.parse("2026-11-20"), ("a" * 32,), ledger(tmp_path)
    book.reserve(charge("earlier", str(back), "0.5", files=files), Limit.parse_all("1.5/1d,10/365d"))
    book.reserve(charge(NAME, DAY, files=files), allow_reuse=True)
    output = publish_release(tmp_path, NAME, DAY, limits=(), files=files)
    (tmp_path / "ledger.db").unlink()
    assert run(tmp_path, "limit", "--dataset", "taxis", "--budget", "1/1d") == 0
    assert run(tmp_path, "restore", "--releases", str(output)) == 0
    assert [str(one.period) for one in ledger(tmp_path).history().charges] == [DAY, str(back)]
    with pytest.raises(BudgetError):
        ledger(tmp_path).reserve(charge("more", str(back), "0.1"))
