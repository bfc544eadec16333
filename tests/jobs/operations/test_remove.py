"""`sfumato releases remove`: what goes, what the notice says, and that nothing publishes the release again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.operations import releases
from sfumato.transforms.release.release_folder import remove_files
from tests.conftest import make_logs, write_files
from tests.refreshes import DAYS, Place

GONE = DAYS[1]
NOTICE = ["index.html", "manifest.json"]
REASON = "a file of another city was in it"


@pytest.fixture
def place(backfilled: Place, tmp_path: Path) -> Place:
    """Three published nights."""
    return backfilled.copy(tmp_path / "place")


def job(place: Place, release_id: str, epsilon: str) -> list[str]:
    """A job of its own over the logs of the night that is taken down."""
    return [
        "heatmap", "--input", f"{place.folder}/logs/dt={GONE}", "--output", f"{place.folder}/alone",
        "--region=-1,50,1,51", "--depth", "3", "--epsilon", epsilon, "--key_file", f"{place.folder}/key",
        "--release_id", release_id, "--ledger", f"{place.folder}/ledger.db", "--dataset", "city", "--period", GONE,
    ]  # fmt: skip


@pytest.mark.slow
def test_remove_leaves_a_notice_that_repeats_no_result(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, before = place.manifest(GONE), place.history
    assert place.remove(GONE, reason=REASON) == 0
    assert f"later releases based on it, which stay unchanged: city-{DAYS[2]}" in capsys.readouterr().out
    assert place.files(GONE) == NOTICE
    notice = json.loads((place.night(GONE) / "manifest.json").read_text())
    assert notice["reason"] == REASON
    assert notice["removed_manifest"]["sha256"] == before.reservations[f"city-{GONE}"].manifest
    assert not {"results", "nights", "parameters"} & set(notice)
    assert set(notice["privacy"]) == {"adjacency", "trust", "epsilon", "delta", "participation"}  # the charge's alone
    assert manifest["results"]["users"]  # which the notice must not repeat
    assert REASON in (place.night(GONE) / "index.html").read_text()
    assert sorted(path.name[:10] for path in (place.published / "maps").iterdir()) == [DAYS[0], DAYS[2]]
    assert f"releases/{GONE}" not in (place.published / "timeline.json").read_text()
    assert place.verify() == 0
    assert f"taken down: city-{GONE}" in capsys.readouterr().out
    assert place.history.charges == before.charges  # spent is spent


@pytest.mark.slow
def test_only_a_new_charge_publishes_it_again(place: Place) -> None:
    place.remove(GONE)
    before, entries = place.contents(), place.entries
    assert place.refresh("--date", GONE) == 0
    assert place.contents() == before
    assert cli.main(job(place, f"city-{GONE}", "4")) == 2
    assert not (place.folder / "alone").exists()
    assert place.refresh("--date", GONE, "--attempt", "2") == 0
    assert "cells.parquet" in place.files(GONE)
    assert place.entries == entries + 2
    assert sum(one.period.first.isoformat() == GONE for one in place.history.charges) == 2
    assert place.verify() == 0


def test_later_nights_start_from_what_is_left(place: Place) -> None:
    place.remove(DAYS[2])
    write_files(make_logs(900, 2, seed=9), place.folder / "logs" / "dt=2026-11-21", 1)
    assert place.refresh("--date", "2026-11-21") == 0
    manifest = place.manifest("2026-11-21")
    assert manifest["parameters"]["warm_start"]["release_id"] == f"city-{GONE}"
    assert manifest["nights"]["rests_on"] == [f"{DAYS[0]}:{GONE}", "2026-11-21"]
    assert place.verify() == 0


@pytest.mark.parametrize("step", ["entry", "file", "files", "page", "notice", "timeline"])
def test_removal_that_died_is_completed_by_the_next(place: Place, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every death `verify` finds nothing wrong, no later night starts from it, and nothing publishes it."""
    written = 0

    def some_and_die(paths: list[str]) -> None:
        remove_files(paths[: {"entry": 0, "file": 1, "files": len(paths)}[step]])
        raise KeyboardInterrupt

    def write_and_die(path: str, content: bytes) -> None:
        nonlocal written
        if written == (1 if step == "page" else 0):
            raise KeyboardInterrupt
        written += 1
        Path(path).write_bytes(content)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "timeline":
            patch.setattr(releases, "update_timeline", die)
        elif step in ("page", "notice"):
            patch.setattr(releases, "write_file", write_and_die)
        else:
            patch.setattr(releases, "remove_files", some_and_die)
        assert place.remove(GONE, reason=REASON) != 0
    assert place.verify() == 0
    assert place.refresh("--date", GONE) == 0
    assert place.remove(GONE, reason="another reason") == 0
    assert place.verify() == 0
    assert place.files(GONE) == NOTICE
    assert REASON in (place.night(GONE) / "manifest.json").read_text()
    assert f"releases/{GONE}" not in (place.published / "timeline.json").read_text()
    after = place.contents()
    assert place.remove(GONE) == 0
    assert place.contents() == after


def test_removal_of_every_release_leaves_no_page(place: Place) -> None:
    for day in DAYS:
        assert place.remove(day) == 0
    left = {path.name for path in place.published.rglob("*") if path.is_file()}
    assert left == set(NOTICE)
    assert not (place.published / "index.html").exists()
    assert place.verify() == 0


def test_remove_spares_a_changed_manifest_as_evidence(place: Place) -> None:
    """So it does a forged notice."""
    manifest = place.night(GONE) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"epsilon": 4.0', '"epsilon": 3.0'))
    before = place.contents()
    assert place.remove(GONE) == 4
    assert place.contents() == before
    place.remove(DAYS[2])
    notice = (place.night(DAYS[2]) / "manifest.json").read_text()
    forged = place.night(DAYS[0])
    for path in forged.iterdir():
        path.unlink()
    (forged / "manifest.json").write_text(notice.replace(DAYS[2], DAYS[0]))
    assert place.remove(DAYS[0]) == 4
    assert place.verify() == 4


def test_remove_takes_no_copy_down_for_the_release(place: Place) -> None:
    copied = place.published / "releases" / "2026-12-01"
    shutil.copytree(place.night(GONE), copied)
    before = place.contents()
    assert place.remove(GONE) == 4
    assert place.contents() == before
    shutil.rmtree(copied)
    assert place.remove(GONE) == 0
    assert place.files(GONE) == NOTICE


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "x" * 301])
def test_remove_wants_a_reason_of_one_line(backfilled: Place, reason: str) -> None:
    before = backfilled.contents()
    assert backfilled.remove(GONE, reason=reason) == 2
    assert backfilled.contents() == before


def test_remove_takes_a_release_by_its_folder(place: Place) -> None:
    """One outside of a timeline."""
    assert cli.main(job(place, "alone", "1")) == 0
    alone, ledger = place.folder / "alone", f"{place.folder}/ledger.db"
    assert cli.main(["releases", "remove", str(alone), "--ledger", ledger, "--reason", REASON]) == 0
    assert sorted(path.name for path in alone.iterdir()) == NOTICE


@pytest.mark.slow
def test_remove_takes_a_release_down_in_a_bucket(place: Place) -> None:
    pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")
    from tests.storage import BUCKET, names, put, storage_emulator

    published, ledger = f"{BUCKET}/published", f"{place.folder}/ledger.db"
    with storage_emulator():
        for name, content in place.contents().items():
            if name.startswith("published/"):
                put(f"{BUCKET}/{name}", content)
        command = ["releases", "remove", f"city-{GONE}", "--timeline", published, "--ledger", ledger]
        for _ in range(2):  # the second has nothing to do
            assert cli.main([*command, "--reason", REASON]) == 0
        assert sorted(names(f"{published}/releases/{GONE}")) == NOTICE
        assert sorted(name[:10] for name in names(f"{published}/maps")) == [DAYS[0], DAYS[2]]
        assert cli.main(["ledger", "verify", "--ledger", ledger, "--releases", published]) == 0
