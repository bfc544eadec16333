"""sfumato releases prune: what goes, what stays, and that the ledger still proves every release."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
import pytest
from sfumato.pipelines import cli, releases
from sfumato.schemas.ledger import Limit
from sfumato.transforms.files import read_file
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.release_folder import remove_files
from sfumato.transforms.release.release_index import update_timeline
from tests.conftest import make_logs, write_files
from tests.jobs.test_releases_remove import contents, files, verify
from tests.keys import write_key
from tests.unit.privacy.ledger.helpers import charge

DAYS = ("2026-11-01", "2026-11-18", "2026-11-19", "2026-11-20")
CONFIG = """
dataset: city
input: logs
output: published
ledger: ledger.db
key_file: key
budget: [{epsilon: 40, days: 30}]
options: {region: [-1, 50, 1, 51], depth: 4, epsilon: 4, shard_size: 300, dropout: 0.4}
"""


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 11, 22, 3, tzinfo=UTC)

    monkeypatch.setattr(releases, "datetime", Clock)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nights that were published; not to be changed."""
    folder = tmp_path_factory.mktemp("nights")
    write_key(folder / "key")
    for number, day in enumerate(DAYS):
        write_files(make_logs(900, 2, seed=number), folder / "logs" / f"dt={day}", 1)
    (folder / "refresh.yaml").write_text(CONFIG)
    for day in DAYS:
        # The first night has another depth, as before a change of the configuration.
        config = CONFIG.replace("depth: 4", "depth: 3") if day == DAYS[0] else CONFIG
        (folder / "refresh.yaml").write_text(config)
        assert refresh(folder, day) == 0
    return folder


@pytest.fixture
def place(nights: Path, tmp_path: Path) -> Path:
    shutil.copytree(nights, tmp_path / "place")
    return tmp_path / "place"


def refresh(place: Path, day: str, *more: str) -> int:
    return cli.main(["refresh", "--config", str(place / "refresh.yaml"), "--date", day, *more])


def prune(place: Path | str, *more: str, keep: str = "2d") -> int:
    published, ledger = f"{place}/published", f"{place}/ledger.db"
    return cli.main(["releases", "prune", "--timeline", published, "--ledger", ledger, "--keep", keep, *more])


@pytest.mark.slow
def test_old_releases_keep_their_manifest_alone_and_the_ledger_proves_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(place)
    entries = open_ledger(str(place / "ledger.db")).history().entries
    assert prune(place) == 0
    assert "2 of 4 releases pruned" in capsys.readouterr().out
    # 2026-11-20 is within the two days, and 2026-11-01 is the newest of its depth.
    pruned = ("2026-11-18", "2026-11-19")
    for day in DAYS:
        manifest = f"published/releases/{day}/manifest.json"
        assert contents(place)[manifest] == before[manifest]
        assert (files(place, day) == ["manifest.json"]) == (day in pruned)
    history = open_ledger(str(place / "ledger.db")).history(with_limits=True)
    assert history.entries == entries + 2
    assert {name for name, one in history.reservations.items() if one.pruned} == {f"city-{day}" for day in pruned}
    assert verify(place) == 0
    said = capsys.readouterr().out
    assert "4 releases charged as stated" in said
    assert "2 of them pruned" in said
    assert cli.main(["ledger", "show", "--ledger", str(place / "ledger.db"), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in shown["charges"]] == ["published", "pruned", "pruned", "published"]
    assert shown["limits"][0]["epsilon_spent"] == "16"  # a removed map has been seen


@pytest.mark.slow
def test_the_page_lists_a_pruned_night_without_a_map_and_every_link_leads_somewhere(place: Path) -> None:
    prune(place)
    published = place / "published"
    nights = {night["date"]: night for night in json.loads((published / "timeline.json").read_text())["nights"]}
    assert [nights[day]["map"] is None for day in DAYS] == [False, True, True, False]
    assert [nights[day]["pruned"] for day in DAYS] == [False, True, True, False]
    assert sorted(path.name[:10] for path in (published / "maps").iterdir()) == [DAYS[0], DAYS[3]]
    links = re.findall(r'href="(releases/[^"]+)"', (published / "index.html").read_text())
    assert len(links) >= len(DAYS)
    for link in (*links, *(night["map"] for night in nights.values() if night["map"])):
        assert (published / link).exists(), link


def test_a_dry_run_removes_nothing_and_a_second_run_has_nothing_to_do(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(place)
    assert prune(place, "--dry_run") == 0
    said = capsys.readouterr().out
    assert "2026-11-18: release city-2026-11-18, " in said
    assert "2 of 4 releases would be pruned; nothing was removed" in said
    assert contents(place) == before
    prune(place)
    after = contents(place)
    capsys.readouterr()
    assert prune(place) == 0
    assert "0 of 4 releases pruned" in capsys.readouterr().out
    assert contents(place) == after


@pytest.mark.slow
def test_later_runs_go_on_and_a_pruned_night_stays_as_it_is(place: Path) -> None:
    prune(place)
    before = contents(place)
    assert refresh(place, "2026-11-19") == 0  # published already
    assert files(place, "2026-11-19") == ["manifest.json"]
    assert {name for name, one in contents(place).items() if before.get(name) != one} <= {
        "published/index.html",
        "published/latest.json",
        "published/timeline.json",
    }
    write_files(make_logs(900, 2, seed=9), place / "logs" / "dt=2026-11-21", 1)
    assert refresh(place, "2026-11-21") == 0
    manifest = json.loads((place / "published/releases/2026-11-21/manifest.json").read_text())
    assert manifest["parameters"]["warm_start"]["release_id"] == "city-2026-11-20"
    assert refresh(place, "2026-11-19", "--attempt", "2") == 0  # charged anew, from nothing that is gone
    assert "cells.parquet" in files(place, "2026-11-19")
    assert verify(place) == 0


def test_a_page_without_a_ledger_knows_a_pruned_night_by_its_missing_page(place: Path) -> None:
    prune(place)
    update_timeline(str(place / "published"), None)
    nights = json.loads((place / "published/timeline.json").read_text())["nights"]
    assert [night["pruned"] for night in nights] == [False, True, True, False]


@pytest.mark.parametrize("step", range(4))
def test_a_run_that_died_is_completed_by_the_next(place: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every death `verify` finds nothing wrong: the entry comes before the first file goes."""
    removed = 0

    def one_and_die(paths: list[str]) -> None:
        nonlocal removed
        for path in paths:
            if removed == (0, 1, 5)[step]:
                raise KeyboardInterrupt
            remove_files([path])
            removed += 1

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        name, function = ("update_timeline", die) if step == 3 else ("remove_files", one_and_die)
        patch.setattr(releases, name, function)
        assert prune(place) != 0
    assert verify(place) == 0
    assert prune(place) == 0
    assert verify(place) == 0
    assert files(place, "2026-11-18") == files(place, "2026-11-19") == ["manifest.json"]
    nights = json.loads((place / "published/timeline.json").read_text())["nights"]
    assert [night["pruned"] for night in nights] == [False, True, True, False]
    history = open_ledger(str(place / "ledger.db")).history()
    assert sum(one.pruned is not None for one in history.reservations.values()) == 2


def test_what_a_charged_run_starts_from_stays(place: Path) -> None:
    ledger = open_ledger(str(place / "ledger.db"))
    ledger.reserve(charge("crashed", "2026-11-21", dataset="city", starts_from="city-2026-11-19"), ())
    prune(place)
    assert "cells.parquet" in files(place, "2026-11-19")
    assert files(place, "2026-11-18") == ["manifest.json"]


def test_a_release_that_is_not_in_order_is_no_release_to_prune(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a prune would remove the evidence that somebody changed a release."""
    damaged = place / "published/releases/2026-11-18/cells.parquet"
    damaged.write_bytes(damaged.read_bytes() + b"0")
    before = contents(place)
    assert prune(place) == 4
    said = capsys.readouterr().err
    assert "nothing was pruned" in said
    assert "cells.parquet is damaged" in said
    assert contents(place) == before


def test_another_ledger_prunes_nothing(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.db"
    arguments = ["releases", "prune", "--timeline", str(place / "published"), "--keep", "2d", "--ledger", str(other)]
    assert cli.main(arguments) == 2
    assert "ledger: there is none at" in capsys.readouterr().err
    open_ledger(str(other)).reserve(charge("x"), Limit.parse_all("1/1d"))
    before = contents(place)
    assert cli.main(arguments) == 4
    assert "release city-2026-11-18 was never charged" in capsys.readouterr().err
    assert contents(place) == before


def test_a_release_without_its_files_and_without_an_entry_is_a_problem(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prune(place)
    for path in (place / "published/releases/2026-11-20").iterdir():
        if path.name != "manifest.json":
            path.unlink()
    assert verify(place) == 4
    said = capsys.readouterr().err
    assert "2026-11-20: cells.parquet is gone" in said
    assert "2026-11-19" not in said


@pytest.mark.parametrize(
    ("change", "words"), [("changed", "been changed since"), ("gone", "was published and is gone")]
)
def test_the_manifest_of_a_pruned_release_must_stay(
    place: Path, capsys: pytest.CaptureFixture[str], change: str, words: str
) -> None:
    prune(place)
    manifest = place / "published/releases/2026-11-19/manifest.json"
    if change == "gone":
        manifest.unlink()
    else:
        manifest.write_text(manifest.read_text().replace('"epsilon": 4.0', '"epsilon": 3.0'))
    assert verify(place) == 4
    assert words in capsys.readouterr().err


def test_a_file_that_comes_back_changed_is_a_problem(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = (place / "published/releases/2026-11-19/cells.parquet").read_bytes()
    prune(place)
    (place / "published/releases/2026-11-19/cells.parquet").write_bytes(original)
    assert verify(place) == 0
    assert "prune again" in capsys.readouterr().out
    (place / "published/releases/2026-11-19/cells.parquet").write_bytes(original + b"0")
    assert verify(place) == 4
    assert "cells.parquet is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("keep", ["90", "0d", "-1d", "d", "1.5d", "999999d", ""])
def test_bad_ages_are_named(place: Path, capsys: pytest.CaptureFixture[str], keep: str) -> None:
    assert prune(place, keep=keep) == 2
    assert "keep: write a number of days, such as 90d" in capsys.readouterr().err


def test_a_folder_without_releases_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prune(tmp_path) == 2
    assert "timeline: there is no release in" in capsys.readouterr().err


def test_everything_that_is_young_enough_stays(place: Path) -> None:
    before = contents(place)
    assert prune(place, keep="21d") == 0  # the first day is 21 days old
    assert {name for name, one in contents(place).items() if before.get(name) != one} == set()
    oldest = date(2026, 11, 22) - timedelta(days=21)
    assert str(oldest) == DAYS[0]


@pytest.mark.slow
def test_releases_in_a_bucket_are_pruned_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")
    from tests.storage import BUCKET, names, put, storage_emulator

    published, ledger = f"{BUCKET}/published", str(place / "ledger.db")
    with storage_emulator():
        for path in (place / "published").rglob("*"):
            if path.is_file():
                put(f"{BUCKET}/{path.relative_to(place)}", path.read_bytes())
        before = {day: read_file(f"{published}/releases/{day}/manifest.json") for day in DAYS}
        assert cli.main(["releases", "prune", "--timeline", published, "--ledger", ledger, "--keep", "2d"]) == 0
        assert "2 of 4 releases pruned" in capsys.readouterr().out
        for day in DAYS:
            assert (names(f"{published}/releases/{day}") == ["manifest.json"]) == (day in DAYS[1:3])
            assert read_file(f"{published}/releases/{day}/manifest.json") == before[day]
        assert sorted(name[:10] for name in names(f"{published}/maps")) == [DAYS[0], DAYS[3]]
        assert cli.main(["ledger", "verify", "--ledger", ledger, "--releases", published]) == 0
        assert "2 of them pruned" in capsys.readouterr().out
