"""`sfumato releases prune`: what goes, what stays, and that the ledger still proves every release."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.operations import releases
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.release_folder import remove_files
from tests.conftest import make_logs, write_files
from tests.once import made_once
from tests.refreshes import CONFIG, Place
from tests.unit.privacy.ledger.helpers import charge

DAYS = ("2026-11-01", "2026-11-18", "2026-11-19", "2026-11-20")
# 2026-11-20 is within the two days, and 2026-11-01 is the newest of its depth.
PRUNED = DAYS[1:3]
BUDGET = [{"epsilon": 40, "days": 30}]


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 11, 22, 3, tzinfo=UTC)

    monkeypatch.setattr(releases, "datetime", Clock)


@pytest.fixture
def place(backfilled: Place, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Four published nights. The first has another depth, as before a change of the configuration."""

    def publish(folder: Path) -> None:
        made = backfilled.copy(folder / "place")
        write_files(make_logs(900, 2, seed=5), made.folder / "logs" / f"dt={DAYS[0]}", 1)
        made.write(budget=BUDGET, options={**CONFIG["options"], "depth": 3})
        assert made.refresh("--date", DAYS[0]) == 0
        made.write(budget=BUDGET)

    return Place(made_once(tmp_path_factory, "prune", publish) / "place", None).copy(tmp_path / "place")


def prune(place: Place, *more: str, keep: str = "2d") -> int:
    return place.releases("prune", "--keep", keep, *more)


def shown_nights(place: Place) -> dict[str, Any]:
    """What the timeline says of each night."""
    return {night["date"]: night for night in json.loads((place.published / "timeline.json").read_text())["nights"]}


@pytest.mark.slow
def test_prune_keeps_manifests_and_the_ledger_proves_them(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before, entries = place.contents(), place.entries
    assert prune(place) == 0
    assert "2 of 4 releases pruned" in capsys.readouterr().out
    for day in DAYS:
        manifest = f"published/releases/{day}/manifest.json"
        assert place.contents()[manifest] == before[manifest]
        assert (place.files(day) == ["manifest.json"]) == (day in PRUNED)
    history = place.history
    assert history.entries == entries + 2
    assert {name for name, one in history.reservations.items() if one.pruned} == {f"city-{day}" for day in PRUNED}
    assert place.verify() == 0
    said = capsys.readouterr().out
    assert "4 releases charged as stated" in said
    assert "2 of them pruned" in said
    assert place.ledger("show", "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    states = {one["release_id"].removeprefix("city-"): one["state"] for one in shown["charges"]}
    assert states == {day: "pruned" if day in PRUNED else "published" for day in DAYS}
    assert shown["limits"][0]["epsilon_spent"] == "16"  # a removed map has been seen


@pytest.mark.slow
def test_page_lists_a_pruned_night_without_a_map(place: Place) -> None:
    """And every link leads somewhere."""
    prune(place)
    nights = shown_nights(place)
    for day in DAYS:
        assert (nights[day]["map"] is None) == nights[day]["pruned"] == (day in PRUNED)
    assert sorted(path.name[:10] for path in (place.published / "maps").iterdir()) == [DAYS[0], DAYS[3]]
    links = re.findall(r'href="(releases/[^"]+)"', (place.published / "index.html").read_text())
    assert len(links) >= len(DAYS)
    for link in (*links, *(night["map"] for night in nights.values() if night["map"])):
        assert (place.published / link).exists(), link


def test_dry_run_removes_nothing_nor_does_a_second_run(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before = place.contents()
    assert prune(place, "--dry_run") == 0
    said = capsys.readouterr().out
    assert all(f"release city-{day}, " in said for day in PRUNED)
    assert place.contents() == before
    prune(place)
    after = place.contents()
    assert after != before
    assert prune(place) == 0
    assert place.contents() == after


@pytest.mark.slow
def test_later_runs_leave_a_pruned_night_as_it_is(place: Place) -> None:
    prune(place)
    before = place.contents()
    assert place.refresh("--date", "2026-11-19") == 0  # published already
    page = {f"published/{name}" for name in ("index.html", "latest.json", "timeline.json")}
    assert {name for name, one in place.contents().items() if before.get(name) != one} <= page
    write_files(make_logs(900, 2, seed=9), place.folder / "logs" / "dt=2026-11-21", 1)
    assert place.refresh("--date", "2026-11-21") == 0
    assert place.manifest("2026-11-21")["parameters"]["warm_start"]["release_id"] == "city-2026-11-20"
    assert place.refresh("--date", "2026-11-19", "--attempt", "2") == 0  # charged anew, from nothing that is gone
    assert "cells.parquet" in place.files("2026-11-19")
    assert place.verify() == 0


@pytest.mark.parametrize("step", range(4))
def test_prune_that_died_is_completed_by_the_next(place: Place, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert place.verify() == 0
    assert prune(place) == 0
    assert place.verify() == 0
    assert all(place.files(day) == ["manifest.json"] for day in PRUNED)
    assert {day for day, night in shown_nights(place).items() if night["pruned"]} == set(PRUNED)
    assert sum(one.pruned is not None for one in place.history.reservations.values()) == 2


def test_prune_keeps_what_a_charged_run_starts_from(place: Place) -> None:
    ledger = open_ledger(str(place.folder / "ledger.db"))
    ledger.reserve(charge("crashed", "2026-11-21", dataset="city", starts_from="city-2026-11-19"), ())
    prune(place)
    assert "cells.parquet" in place.files("2026-11-19")
    assert place.files("2026-11-18") == ["manifest.json"]


def test_prune_spares_a_release_that_is_not_in_order(place: Place) -> None:
    """Otherwise a prune would remove the evidence that somebody changed a release."""
    damaged = place.night("2026-11-18") / "cells.parquet"
    damaged.write_bytes(damaged.read_bytes() + b"0")
    before = place.contents()
    assert prune(place) == 4
    assert place.contents() == before


def test_prune_by_another_ledger_removes_nothing(place: Place) -> None:
    (place.folder / "ledger.db").unlink()
    assert prune(place) == 2
    open_ledger(str(place.folder / "ledger.db")).reserve(charge("x"), Limit.parse_all("1/1d"))
    before = place.contents()
    assert prune(place) == 4
    assert place.contents() == before


def test_verify_finds_files_without_an_entry_gone(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    prune(place)
    for path in place.night("2026-11-20").iterdir():
        if path.name != "manifest.json":
            path.unlink()
    assert place.verify() == 4
    said = capsys.readouterr().err
    assert "2026-11-20: cells.parquet is missing" in said
    assert "2026-11-19" not in said


def test_verify_passes_over_changes_but_not_over_a_release(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    changed = place.published / "changes"
    nights = [str(place.night(day)) for day in DAYS[1:3]]
    assert cli.main(["changes", *nights, "--output", str(changed)]) == 0
    assert place.verify() == 0
    (changed / "cells.parquet").write_bytes(b"")  # as if a release had been hidden by the manifest of changes
    capsys.readouterr()
    assert place.verify() == 4
    assert str(changed) in capsys.readouterr().err


@pytest.mark.parametrize("keep", ["90", "0d", "-1d", "d", "1.5d", "999999d", ""])
def test_prune_refuses_wrong_ages(tmp_path: Path, keep: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert prune(Place(tmp_path, None), keep=keep) == 2
    assert "keep: must be a number of days, such as 90d" in capsys.readouterr().err
