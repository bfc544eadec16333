"""A ledger that was restored from an old copy lacked the charges made since, and nobody could make them again."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines import cli
from sfumato.schemas.errors import BudgetError, LedgerError
from sfumato.schemas.ledger import Limit
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.keys import FixedSecret
from sfumato.transforms.privacy.ledger.history import RECOVER, entry_bytes, read_entries, recover_content, replay
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from sfumato.transforms.privacy.user_hashes import rotation_key, with_partition
from sfumato.transforms.release.catalog import check_not_lost, disagreement, lost_charges
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import manifest_at
from tests.attacks.releases import publish_release
from tests.unit.privacy.ledger.helpers import charge, ledger

EARLIER = Path(__file__).parents[1] / "data" / "version_0_1_0"
LOST_DAY = "2026-11-21"


def run(folder: Path, *arguments: str) -> int:
    return cli.main(["ledger", *arguments, "--ledger", str(folder / "ledger.db")])


@pytest.fixture
def restored(tmp_path: Path) -> Path:
    """Two published days; the ledger was restored from a copy that was made between them."""
    publish_release(tmp_path, "taxis-2026-11-20", "2026-11-20")
    assert run(tmp_path, "backup", str(tmp_path / "copy")) == 0
    publish_release(tmp_path, f"taxis-{LOST_DAY}", LOST_DAY)
    (tmp_path / "ledger.db").unlink()
    assert run(tmp_path, "restore", str(tmp_path / "copy")) == 0
    return tmp_path


def test_lost_charges_are_named_and_made_again(restored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(restored / "out")
    assert run(restored, "restore", str(restored / "copy")) == 0
    assert "Charges that were made after the copy are not in it" in capsys.readouterr().out
    assert run(restored, "verify", "--releases", out) == 4
    shown = capsys.readouterr().err
    assert f"release taxis-{LOST_DAY} was never charged" in shown
    assert "sfumato ledger restore --releases FOLDER" in shown
    assert run(restored, "restore", "--releases", out) == 0
    shown = capsys.readouterr().out
    assert f"taxis-{LOST_DAY}: epsilon 1 for taxis, {LOST_DAY}, charged again (published" in shown
    assert "1 of 2 charges were lost, and are charged again" in shown
    book = ledger(restored)
    with pytest.raises(BudgetError):
        book.reserve(charge("more", LOST_DAY, "0.1"))
    check_not_lost(book.history(), "taxis", str(restored / "out" / "releases" / "new"), out)
    assert run(restored, "verify", "--releases", out) == 0
    assert f"charged again after their entries were lost: taxis-{LOST_DAY}" in capsys.readouterr().out
    assert run(restored, "restore", "--releases", out) == 0
    assert "0 of 2 charges" in capsys.readouterr().out


def test_a_copy_and_the_releases_at_once(restored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (restored / "ledger.db").unlink()
    assert run(restored, "restore", str(restored / "copy"), "--releases", str(restored / "out")) == 0
    assert "1 of 2 charges were lost" in capsys.readouterr().out
    assert run(restored, "verify", "--releases", str(restored / "out")) == 0


def test_without_a_copy_the_releases_alone_give_the_charges_back(
    restored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (restored / "ledger.db").unlink()
    assert run(restored, "restore", "--releases", str(restored / "out")) == 2
    assert "sfumato ledger limit --dataset taxis" in capsys.readouterr().err
    assert run(restored, "limit", "--dataset", "taxis", "--budget", "1/1d,10/365d") == 0
    assert run(restored, "restore", "--releases", str(restored / "out")) == 0
    assert "2 of 2 charges were lost" in capsys.readouterr().out
    assert run(restored, "verify", "--releases", str(restored / "out")) == 0


def test_a_lost_charge_counts_even_above_the_limits(restored: Path) -> None:
    """It was spent. A ledger that left it out would spend it again."""
    book = ledger(restored)
    book.set_limits("taxis", Limit.parse_all("1/30d"))
    assert run(restored, "restore", "--releases", str(restored / "out")) == 0
    history = book.history(with_limits=True)
    assert sum(one.epsilon for one in history.charges) == 2
    with pytest.raises(BudgetError):
        book.reserve(charge("more", LOST_DAY, "0.1"))


def test_a_release_that_was_charged_anew_is_not_charged_again_silently(restored: Path) -> None:
    ledger(restored).reserve(charge(f"taxis-{LOST_DAY}", LOST_DAY))
    before = ledger(restored).history()
    assert run(restored, "restore", "--releases", str(restored / "out")) == 4
    assert ledger(restored).history() == before


@pytest.mark.parametrize(
    "damage", [{"privacy": {}}, {"privacy": None}, {"release_id": "a b"}, {"ledger": {"hash": "h"}}]
)
def test_a_manifest_that_does_not_state_its_charge_is_an_error(restored: Path, damage: dict[str, object]) -> None:
    path = restored / "out" / "releases" / LOST_DAY / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    known = restored / "out" / "releases" / "2026-11-20" / "manifest.json"
    known.write_text(
        json.dumps({**json.loads(known.read_text()), "privacy": None})
    )  # of which the ledger has the charge
    before = ledger(restored).history()
    assert run(restored, "restore", "--releases", str(restored / "out")) == 4
    assert ledger(restored).history() == before


def test_what_can_be_charged_again_is_although_something_else_cannot(
    restored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unreadable = restored / "out" / "another"
    shutil.copytree(restored / "out" / "releases" / LOST_DAY, unreadable)
    manifest = json.loads((unreadable / "manifest.json").read_text())
    manifest["ledger"]["hash"], manifest["format"] = "f" * 64, "sfumato-release/9"
    (unreadable / "manifest.json").write_text(json.dumps(manifest))
    assert run(restored, "restore", "--releases", str(restored / "out")) == 4
    assert f"taxis-{LOST_DAY}" in ledger(restored).history().reservations
    shown = capsys.readouterr().err
    assert "cannot be made again" in shown
    assert f"{unreadable}: manifest.json was written by a newer version of sfumato" in shown


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
    assert run(tmp_path, "restore", "--releases", str(tmp_path / "release")) == 4
    assert ledger(tmp_path).history() == before


def test_a_changed_manifest_is_still_noticed(restored: Path) -> None:
    """The charge that was made again holds the manifest's digest, and so does a later change of it show."""
    assert run(restored, "restore", "--releases", str(restored / "out")) == 0
    path = restored / "out" / "releases" / LOST_DAY / "manifest.json"
    path.write_text(path.read_text().replace('"epsilon": 1.0', '"epsilon": 0.5'))
    assert run(restored, "verify", "--releases", str(restored / "out")) == 4


def test_what_an_earlier_version_published_is_charged_again(tmp_path: Path) -> None:
    """Gaussian noise, a cohort, a refusal and a pruned release, from a copy that holds the limits alone."""
    whole = open_ledger(str(shutil.copy(EARLIER / "ledger.db", tmp_path / "whole.db"))).history()
    lines = (EARLIER / "ledger.copy").read_bytes().splitlines(keepends=True)
    (tmp_path / "copy").write_bytes(lines[0])
    assert run(tmp_path, "restore", str(tmp_path / "copy")) == 0
    assert run(tmp_path, "limit", "--dataset", "other", "--budget", "5:1e-5/1d") == 0
    assert run(tmp_path, "restore", "--releases", str(EARLIER)) == 0
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


def test_a_cohort_is_charged_again_as_the_cohort(tmp_path: Path) -> None:
    key = rotation_key(FixedSecret(hashlib.sha256(b"key").digest()), "taxis", 30)
    rotation = with_partition(Rotation(7, 30), key)
    output = publish_release(tmp_path, "night", "2026-11-20", rotation=rotation)
    path = output / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["privacy"]["rotation"] = {"cohort": 7, "cohorts": 30}
    path.write_text(json.dumps(manifest))
    (found,), problems, number = lost_charges(str(output), replay([]))
    assert (problems, number) == ([], 1)
    assert found.charge.rotation == rotation
    assert manifest_at(str(output)) == path.read_bytes()
    assert found.manifest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "change", [{"lost": ""}, {"lost": None}, {"manifest": None}, {"refusal": "no"}, {"manifest": 7}, {"epsilon": "0"}]
)
def test_a_forged_recovery_is_refused(restored: Path, change: dict[str, object]) -> None:
    entries = SqliteStore(str(restored / "ledger.db")).read()
    content = recover_content(charge("forged", LOST_DAY), "h" * 64, "m", None)
    head = read_entries(entries)[-1]["hash"]
    replay([*entries, entry_bytes(len(entries), head, "t", "n", RECOVER, content)])
    with pytest.raises(LedgerError):
        replay([*entries, entry_bytes(len(entries), head, "t", "n", RECOVER, {**content, **change})])
    again = {**content, "release_id": "taxis-2026-11-20"}
    with pytest.raises(LedgerError, match="again"):
        replay([*entries, entry_bytes(len(entries), head, "t", "n", RECOVER, again)])
    assert ledger(restored).history().charges[0].epsilon == Decimal(1)
