"""sfumato releases remove: what goes, what the notice says, and that nothing publishes the release again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
import pytest
from sfumato.pipelines import cli, releases
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.release_folder import remove_files
from tests.conftest import make_logs, write_files
from tests.keys import write_key

DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
GONE = DAYS[1]
REASON = "a file of another city was in it"
CONFIG = """
dataset: city
input: logs
output: published
ledger: ledger.db
key_file: key
budget: [{epsilon: 40, days: 30}]
options: {region: [-1, 50, 1, 51], depth: 3, epsilon: 4, shard_size: 300, dropout: 0.4}
"""


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nights that were published; not to be changed."""
    folder = tmp_path_factory.mktemp("nights")
    write_key(folder / "key")
    (folder / "refresh.yaml").write_text(CONFIG)
    for number, day in enumerate(DAYS):
        write_files(make_logs(900, 2, seed=number), folder / "logs" / f"dt={day}", 1)
        assert refresh(folder, day) == 0
    return folder


@pytest.fixture
def place(nights: Path, tmp_path: Path) -> Path:
    shutil.copytree(nights, tmp_path / "place")
    return tmp_path / "place"


def refresh(place: Path, day: str, *more: str) -> int:
    return cli.main(["refresh", "--config", str(place / "refresh.yaml"), "--date", day, *more])


def remove(place: Path | str, *more: str, release: str = f"city-{GONE}", reason: str = REASON) -> int:
    places = ["--timeline", f"{place}/published", "--ledger", f"{place}/ledger.db"]
    return cli.main(["releases", "remove", release, *places, "--reason", reason, *more])


def verify(place: Path | str) -> int:
    return cli.main(["ledger", "verify", "--ledger", f"{place}/ledger.db", "--releases", f"{place}/published"])


def files(place: Path, day: str) -> list[str]:
    return sorted(path.name for path in (place / "published" / "releases" / day).iterdir())


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_release_goes_with_its_manifest_its_map_and_its_catalogue_entry(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published, manifest = place / "published", (place / f"published/releases/{GONE}/manifest.json").read_bytes()
    before = open_ledger(str(place / "ledger.db")).history()
    assert remove(place) == 0
    said = capsys.readouterr().out
    assert "taken down" in said
    assert f"later releases that rest on it, and stay as they are: city-{DAYS[2]}" in said
    assert files(place, GONE) == ["index.html", "manifest.json"]
    notice = json.loads((published / f"releases/{GONE}/manifest.json").read_text())
    assert notice["reason"] == REASON
    assert notice["removed_manifest"]["sha256"] == before.reservations[f"city-{GONE}"].manifest
    assert not {"results", "nights", "parameters"} & set(notice)
    assert set(notice["privacy"]) == {"adjacency", "trust", "epsilon", "delta", "participation"}  # the charge's alone
    assert json.loads(manifest)["results"]["users"]  # which the notice must not repeat
    assert REASON in (published / f"releases/{GONE}/index.html").read_text()
    assert sorted(path.name[:10] for path in (published / "maps").iterdir()) == [DAYS[0], DAYS[2]]
    assert f"releases/{GONE}" not in (published / "timeline.json").read_text()
    assert verify(place) == 0
    assert f"taken down: city-{GONE}" in capsys.readouterr().out
    history = open_ledger(str(place / "ledger.db")).history(with_limits=True)
    assert history.charges == before.charges  # spent is spent


@pytest.mark.slow
def test_nothing_publishes_it_again_but_a_new_charge(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remove(place)
    before = contents(place)
    assert refresh(place, GONE) == 0
    assert "taken down; nothing is published" in capsys.readouterr().err
    assert contents(place) == before
    job = [
        "heatmap", "--input", f"{place}/logs/dt={GONE}", "--output", f"{place}/again", "--region=-1,50,1,51", "--depth",
        "3", "--epsilon", "4", "--key_file", f"{place}/key", "--release_id", f"city-{GONE}", "--ledger",
        f"{place}/ledger.db", "--dataset", "city", "--period", GONE,
    ]  # fmt: skip
    assert cli.main(job) == 2
    assert "was taken down" in capsys.readouterr().err
    assert not (place / "again").exists()
    entries = open_ledger(str(place / "ledger.db")).history().entries
    assert refresh(place, GONE, "--attempt", "2") == 0
    assert "cells.parquet" in files(place, GONE)
    history = open_ledger(str(place / "ledger.db")).history()
    assert history.entries == entries + 2
    assert sum(one.period.first.isoformat() == GONE for one in history.charges) == 2
    assert verify(place) == 0


def test_later_nights_start_from_what_is_left(place: Path) -> None:
    remove(place, release=f"city-{DAYS[2]}")
    write_files(make_logs(900, 2, seed=9), place / "logs" / "dt=2026-11-21", 1)
    assert refresh(place, "2026-11-21") == 0
    manifest = json.loads((place / "published/releases/2026-11-21/manifest.json").read_text())
    assert manifest["parameters"]["warm_start"]["release_id"] == f"city-{GONE}"
    assert manifest["nights"]["rests_on"] == [f"{DAYS[0]}:{GONE}", "2026-11-21"]
    assert verify(place) == 0


@pytest.mark.parametrize("step", ["entry", "file", "files", "page", "notice", "timeline"])
def test_a_run_that_died_is_completed_by_the_next(place: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert remove(place) != 0
    assert verify(place) == 0
    assert refresh(place, GONE) == 0
    assert remove(place, reason="another reason") == 0
    assert verify(place) == 0
    assert files(place, GONE) == ["index.html", "manifest.json"]
    assert REASON in (place / f"published/releases/{GONE}/manifest.json").read_text()
    assert f"releases/{GONE}" not in (place / "published/timeline.json").read_text()
    after = contents(place)
    assert remove(place) == 0
    assert contents(place) == after


def test_a_dry_run_removes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(place)
    assert remove(place, "--dry_run") == 0
    assert "nothing was removed" in capsys.readouterr().out
    assert contents(place) == before


def test_no_release_left_leaves_no_page(place: Path) -> None:
    for day in DAYS:
        assert remove(place, release=f"city-{day}") == 0
    left = {path.name for path in (place / "published").rglob("*") if path.is_file()}
    assert left == {"manifest.json", "index.html"}
    assert not (place / "published/index.html").exists()
    assert verify(place) == 0


def test_a_pruned_release_is_taken_down_too(place: Path) -> None:
    prune = ["releases", "prune", "--timeline", f"{place}/published", "--ledger", f"{place}/ledger.db", "--keep", "1d"]
    assert cli.main(prune) == 0
    assert files(place, DAYS[0]) == ["manifest.json"]
    assert remove(place, release=f"city-{DAYS[0]}") == 0
    assert files(place, DAYS[0]) == ["index.html", "manifest.json"]
    assert verify(place) == 0


def test_a_changed_manifest_or_a_forged_notice_is_evidence_that_stays(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = place / f"published/releases/{GONE}/manifest.json"
    manifest.write_text(manifest.read_text().replace('"epsilon": 4.0', '"epsilon": 3.0'))
    before = contents(place)
    assert remove(place) == 4
    assert contents(place) == before
    remove(place, release=f"city-{DAYS[2]}")
    notice = (place / f"published/releases/{DAYS[2]}/manifest.json").read_text()
    forged = place / f"published/releases/{DAYS[0]}"
    for path in forged.iterdir():
        path.unlink()
    (forged / "manifest.json").write_text(notice.replace(DAYS[2], DAYS[0]))
    assert remove(place, release=f"city-{DAYS[0]}") == 4
    capsys.readouterr()
    assert verify(place) == 4
    assert f"release city-{DAYS[0]} (dataset city, {DAYS[0]}) was published and is gone" in capsys.readouterr().err


def test_a_copy_is_not_taken_down_in_place_of_the_release(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = place / "published/releases/2026-12-01"
    shutil.copytree(place / f"published/releases/{GONE}", copied)
    before = contents(place)
    assert remove(place) == 4
    assert f"releases/{GONE}, {copied} all state release city-{GONE}" in capsys.readouterr().err
    assert contents(place) == before
    shutil.rmtree(copied)
    assert remove(place) == 0
    assert files(place, GONE) == ["index.html", "manifest.json"]


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "x" * 301])
def test_a_reason_is_one_line(place: Path, reason: str) -> None:
    before = contents(place)
    assert remove(place, reason=reason) == 2
    assert contents(place) == before


def test_an_unknown_release_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert remove(place, release="city-2026-11-29") == 2
    assert "release: no release 'city-2026-11-29' in" in capsys.readouterr().err


def test_a_release_outside_of_a_timeline_is_named_by_its_folder(place: Path) -> None:
    ledger = f"{place}/ledger.db"
    job = [
        "heatmap", "--input", f"{place}/logs/dt={GONE}", "--output", f"{place}/alone", "--region=-1,50,1,51", "--depth",
        "3", "--epsilon", "1", "--key_file", f"{place}/key", "--release_id", "alone", "--ledger", ledger, "--dataset",
        "city", "--period", GONE,
    ]  # fmt: skip
    assert cli.main(job) == 0
    assert cli.main(["releases", "remove", f"{place}/alone", "--ledger", ledger, "--reason", REASON]) == 0
    assert sorted(path.name for path in (place / "alone").iterdir()) == ["index.html", "manifest.json"]


@pytest.mark.slow
def test_a_release_in_a_bucket_is_taken_down_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")
    from tests.storage import BUCKET, names, put, storage_emulator

    published, ledger = f"{BUCKET}/published", str(place / "ledger.db")
    with storage_emulator():
        for path in (place / "published").rglob("*"):
            if path.is_file():
                put(f"{BUCKET}/{path.relative_to(place)}", path.read_bytes())
        command = ["releases", "remove", f"city-{GONE}", "--timeline", published, "--ledger", ledger]
        assert cli.main([*command, "--reason", REASON]) == 0
        assert sorted(names(f"{published}/releases/{GONE}")) == ["index.html", "manifest.json"]
        assert sorted(name[:10] for name in names(f"{published}/maps")) == [DAYS[0], DAYS[2]]
        assert cli.main([*command, "--reason", REASON]) == 0
        assert cli.main(["ledger", "verify", "--ledger", ledger, "--releases", published]) == 0
        assert "taken down" in capsys.readouterr().out
