"""`sfumato refresh` on outputs that were damaged, emptied or moved: the next night says so, one command repairs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.operations import published_nights
from sfumato.schemas.errors import LedgerError
from sfumato.transforms.release.catalog import DatedFolders, read_folders
from tests.conftest import make_logs, write_files
from tests.once import made_once
from tests.refreshes import DAYS, NIGHTS, ROTATING, Place, repair

FIRST, _, DAMAGED, LAST, NEW = map(str, NIGHTS)
PUBLISHED = [str(night) for night in NIGHTS[:4]]


@pytest.fixture
def series(month: Place, tmp_path: Path) -> Place:
    """Four published nights and the logs of a fifth."""
    return month.copy(tmp_path / "series")


@pytest.fixture(scope="session")
def undamaged(month: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The fifth night's files without any damage."""

    def publish(folder: Path) -> None:
        assert month.copy(folder / "series").refresh("--date", NEW) == 0

    return data_of(Place(made_once(tmp_path_factory, "undamaged", publish) / "series", None), NEW)


def data_of(place: Place, night: str) -> dict[str, bytes]:
    """The files of a night that do not state when it was charged."""
    return {
        path.name: path.read_bytes() for path in place.night(night).iterdir() if path.suffix in (".parquet", ".npy")
    }


Damage = Callable[[Place, str], None]


def replaced(name: str, content: bytes | None) -> Damage:
    """Puts this in the place of a night's file, or removes the file."""

    def damage(place: Place, night: str) -> None:
        path = place.night(night) / name
        path.unlink() if content is None else path.write_bytes(content)

    return damage


def no_folder(place: Place, night: str) -> None:
    shutil.rmtree(place.night(night))


cut = replaced("manifest.json", b'{"format": "sfumato-release/2", "release_id": "ci')
empty = replaced("manifest.json", b"")
no_manifest = replaced("manifest.json", None)
MANIFESTS = [cut, empty, no_manifest]
MANIFESTS += [replaced("manifest.json", content) for content in (b"{}", b'{"format": "sfumato-releasf/2"}')]
changed_cells = replaced("cells.parquet", b"")


@pytest.mark.parametrize("damage", MANIFESTS)
def test_no_night_goes_on_without_a_damaged_one(
    series: Place, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(series, DAMAGED)
    before = series.contents()
    with pytest.raises(LedgerError) as refused:
        series.run("--date", NEW)
    manifest = f"{series.night(DAMAGED)}/manifest.json"
    assert manifest in str(refused.value)
    assert repair(str(refused.value))[-1] == DAMAGED
    assert series.contents() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "name"),
    [(cut, DAMAGED), (no_manifest, LAST), (no_folder, LAST), (changed_cells, LAST)]
    + [(replaced("nights.parquet", content), LAST) for content in (b"wrong", None)],
)
def test_named_command_repairs_a_damaged_night(
    series: Place, undamaged: dict[str, bytes], damage: Damage, name: str
) -> None:
    whole = series.contents()
    damage(series, name)
    assert series.verify() == 4
    with pytest.raises(LedgerError) as refused:
        series.run("--date", NEW)
    assert cli.main(repair(str(refused.value))) == 0
    assert series.contents() == whole  # and nothing is left beside it, or charged
    assert series.verify() == 0
    assert series.refresh("--date", NEW) == 0
    assert data_of(series, NEW) == undamaged


@pytest.mark.slow
def test_night_that_a_later_state_covers_may_be_gone(series: Place, undamaged: dict[str, bytes]) -> None:
    """Such as one that was moved to an archive: no later night reads it."""
    no_folder(series, DAMAGED)
    assert series.refresh("--date", NEW) == 0
    assert data_of(series, NEW) == undamaged


def test_manifest_without_a_charge_stops_the_nights(series: Place) -> None:
    """It may be all that is left of a charge which the ledger lost."""
    series.night(NEW).mkdir()
    empty(series, NEW)
    for arguments in (["--date", NEW], ["--date", NEW, "--dry_run"]):
        with pytest.raises(LedgerError, match=f"{series.night(NEW)}/manifest.json"):
            series.run(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, no_folder])
def test_night_that_is_lost_for_good_is_taken_down(series: Place, damage: Damage) -> None:
    shutil.rmtree(series.folder / "logs" / f"dt={LAST}")
    damage(series, LAST)
    before = series.contents()
    assert series.remove(LAST, "--dry_run") == 0
    assert series.contents() == before
    assert series.remove(LAST) == 0
    assert series.files(LAST) == ["index.html", "manifest.json"]
    assert series.verify() == 0
    assert series.refresh("--date", NEW) == 0
    assert series.manifest(NEW)["nights"]["rests_on"] == [f"{FIRST}:{DAMAGED}", NEW]


@pytest.mark.slow
def test_page_shows_a_damaged_night_with_its_cost(series: Place) -> None:
    def timeline() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((series.published / "timeline.json").read_bytes())
        return found

    whole = timeline()
    cut(series, LAST)
    assert series.refresh("--date", FIRST) == 0  # published already: nothing but its page is written
    content = timeline()
    assert [one["date"] for one in content["nights"]] == PUBLISHED
    shown, was = content["nights"][-1], whole["nights"][-1]
    assert shown["damaged"]
    assert shown["map"] is None
    same = ("release_id", "folder", "job", "epsilon", "delta", "rotation", "created")
    assert {name: shown[name] for name in same} == {name: was[name] for name in same}
    assert content["spending"] == whole["spending"]
    page = (series.published / "index.html").read_text()
    assert "Damaged releases" in page
    assert "heatmap (damaged)" in page
    assert json.loads((series.published / "latest.json").read_bytes())["date"] == DAMAGED
    assert series.refresh("--date", LAST) == 0
    assert timeline() == whole


@pytest.mark.slow
def test_night_published_while_folders_are_listed_is_not_gone(
    series: Place, undamaged: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = series.folder / "moved"
    series.night(LAST).rename(moved)

    def overtaken(root: str) -> DatedFolders:
        monkeypatch.undo()
        found = read_folders(root)
        moved.rename(series.night(LAST))
        return found

    monkeypatch.setattr(published_nights, "read_folders", overtaken)
    assert series.refresh("--date", NEW) == 0
    assert data_of(series, NEW) == undamaged


@pytest.mark.slow
def test_correction_is_made_again_as_it_was(tmp_path: Path) -> None:
    late = {"late": {"days": 60, "epsilon": 1}, "budget": [{"epsilon": 5, "days": 1}]}
    today = str(date.today() - timedelta(days=1))
    write_files(make_logs(600, 1, seed=1), tmp_path / "own" / f"dt={today}", 2)
    place = Place(tmp_path / "place", tmp_path / "own", **late)
    logs = place.folder / "logs" / f"dt={today}"
    (logs / "log-1.parquet").rename(place.folder / "late.parquet")
    assert place.refresh() == 0
    (place.folder / "late.parquet").rename(logs / "log-1.parquet")
    assert place.refresh() == 0
    assert place.manifest(today)["corrects"] == f"city-{today}"
    whole = place.contents()
    for damage in (cut, changed_cells):
        damage(place, today)
        assert place.refresh("--date", today) == 0
        assert place.contents() == whole


# --- an output that was emptied or moved ---


def test_output_without_any_of_its_nights_is_refused(series: Place) -> None:
    """Such as the folder below a disk that is not mounted. The series would start again there, with status 0."""
    series.published.rename(series.folder / "elsewhere")
    before = series.contents()
    for arguments in ([NEW], [LAST], [NEW, "--attempt", "2"], [NEW, "--dry_run"]):
        with pytest.raises(LedgerError, match=str(series.published)) as refused:
            series.run("--date", *arguments)
        assert f"--backfill {FIRST}:{LAST}" in str(refused.value)
        series.published.mkdir(exist_ok=True)  # the mount's own folder is there, and empty
    assert series.contents() == before


@pytest.mark.slow
def test_all_nights_are_made_again_from_their_logs(series: Place, undamaged: dict[str, bytes]) -> None:
    shutil.rmtree(series.published)
    entries = series.entries
    assert series.refresh("--backfill", f"{FIRST}:{LAST}") == 0
    assert series.entries == entries
    assert series.verify() == 0
    assert series.refresh("--date", NEW) == 0
    assert data_of(series, NEW) == undamaged


@pytest.mark.slow
@pytest.mark.parametrize("copied", [LAST, None])
def test_series_goes_on_in_a_new_output(series: Place, undamaged: dict[str, bytes], copied: str | None) -> None:
    """Where all of it was moved to, or its newest night alone."""
    if copied is None:
        series.published.rename(series.folder / "new")
    else:
        shutil.copytree(series.night(copied), series.folder / "new" / "releases" / copied)
    series.write(**ROTATING, output="new")
    assert series.refresh("--date", NEW) == 0
    shutil.rmtree(series.published, ignore_errors=True)
    (series.folder / "new").rename(series.published)
    assert data_of(series, NEW) == undamaged


@pytest.mark.slow
def test_releases_of_other_series_are_not_missed(series: Place) -> None:
    """Of another dataset, and of this dataset by hand."""
    ledger, elsewhere = f"{series.folder}/ledger.db", series.folder / "elsewhere"
    job = ["histogram", "--input", write_files(make_logs(600, 1, seed=9), series.folder / "other", 1)]
    job += ["--region=-1,50,1,51", "--cells", "3", "--trust", "central", "--epsilon", "1", "--allow_reuse"]
    job += ["--key_file", f"{series.folder}/key", "--ledger", ledger, "--period", "2026-11-18"]
    town = ["--dataset", "town", "--release_id", "town-2026-11-18", "--budget", "9/1d"]
    by_hand = ["--dataset", "city", "--release_id", "by-hand", "--period", "2026-10-01"]
    for books in (town, by_hand):
        assert cli.main([*job, "--output", str(elsewhere), *books]) == 0
        shutil.rmtree(elsewhere)
    assert len(series.history.reservations) == len(PUBLISHED) + 2
    assert series.refresh("--date", NEW) == 0


# --- a day's files that are renamed, moved or copied after its charge: the same content is the same input ---

DAY = DAYS[2]


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
def test_charged_day_is_resumed_from_moved_files(
    place: Place, change: Callable[[Place], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells and density are those of a run that nothing stopped."""
    other = place.copy(tmp_path / "undisturbed")
    assert other.refresh("--date", DAY) == 0
    place.crash(DAY)
    entries = place.entries
    change(place)
    assert place.refresh("--date", DAY) == 0
    assert place.entries == entries + 1  # the publication, and no charge
    assert data_of(place, DAY) == data_of(other, DAY)
    assert "came after" not in capsys.readouterr().err


def test_charged_file_that_is_gone_stops_the_run(place: Place) -> None:
    place.crash(DAY)
    entries = place.entries
    next(iter((place.folder / "logs" / f"dt={DAY}").iterdir())).unlink()
    assert place.refresh("--date", DAY) == 2
    assert place.entries == entries
