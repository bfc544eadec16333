"""Outputs that were damaged, emptied or moved."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
import pytest
from apache_beam.io.filesystems import FileSystems
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sfumato.pipelines import cli, published_nights
from sfumato.transforms.files import read_file
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import DatedFolders, read_folders
from tests.conftest import make_logs, write_files
from tests.jobs.test_refresh import Place
from sfumato.transforms.release.catalog import find_releases, read_folders

# ---------------------------------------------------------------- `sfumato refresh` after a night's files were damaged or lost: the next night says so, and one command repairs it

NIGHTS = [date(2026, 11, 17) + timedelta(days=number) for number in range(4)]
FIRST, DAMAGED, LAST, NEW = map(str, NIGHTS)
ROTATING = {"rotation": 4, "budget": [{"epsilon": 4, "days": 4}]}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Three published nights, and the logs of a fourth; not to be changed."""
    folder = tmp_path_factory.mktemp("published")
    for number, night in enumerate(NIGHTS):
        write_files(make_logs(600, 1, seed=number), folder / "own" / f"dt={night}", 1)
    place = Place(folder, folder / "own", **ROTATING)
    with pytest.MonkeyPatch.context() as patch:  # pictures are blank in the tests, which make releases again
        patch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)
        assert place.refresh("--backfill", f"{FIRST}:{LAST}") == 0
    return place


@pytest.fixture(scope="module")
def undamaged(published: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The fourth night's files without any damage."""
    place = copy_of(published, tmp_path_factory.mktemp("undamaged") / "place")
    assert place.refresh("--date", NEW) == 0
    return files_of(place, NEW)


def copy_of(published: Place, folder: Path) -> Place:
    shutil.copytree(published.folder, folder)
    place = Place.__new__(Place)
    place.folder, place.config = folder, folder / "refresh.yaml"
    return place


@pytest.fixture
def place(published: Place, tmp_path: Path) -> Place:
    return copy_of(published, tmp_path / "place")


def night(place: Place, name: str) -> Path:
    return place.folder / "published" / "releases" / name


def files_of(place: Place, name: str) -> dict[str, bytes]:
    """The files of a night that do not state when it was charged."""
    return {
        path.name: path.read_bytes() for path in night(place, name).iterdir() if path.suffix in (".parquet", ".npy")
    }


def contents(place: Place) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.folder.rglob("*") if path.is_file()}


def cut(place: Place, name: str) -> None:
    manifest = night(place, name) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:1000])


def empty(place: Place, name: str) -> None:
    (night(place, name) / "manifest.json").write_bytes(b"")


def no_release(place: Place, name: str) -> None:
    (night(place, name) / "manifest.json").write_text("{}")


def other_kind(place: Place, name: str) -> None:
    (night(place, name) / "manifest.json").write_text('{"format": "sfumato-releasf/2"}')


def no_manifest(place: Place, name: str) -> None:
    (night(place, name) / "manifest.json").unlink()


def no_folder(place: Place, name: str) -> None:
    shutil.rmtree(night(place, name))


def changed_state(place: Place, name: str) -> None:
    state = night(place, name) / "nights.parquet"
    state.write_bytes(state.read_bytes()[:-5] + b"wrong")


def no_state(place: Place, name: str) -> None:
    (night(place, name) / "nights.parquet").unlink()


def changed_cells(place: Place, name: str) -> None:
    (night(place, name) / "cells.parquet").write_bytes(b"")


def repair(said: str) -> list[str]:
    """The arguments of the command that a message names."""
    found = re.search(r"make it again: sfumato (refresh --config \S+ --date \d{4}-\d{2}-\d{2})", said)
    assert found, said
    return shlex.split(found[1])


MANIFESTS = [cut, empty, no_release, other_kind, no_manifest]


@pytest.mark.parametrize("damage", MANIFESTS)
def test_no_night_goes_on_without_a_damaged_one(
    place: Place, damage: Callable[[Place, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(place, DAMAGED)
    before = contents(place)
    assert place.refresh("--date", NEW) == 4
    said = capsys.readouterr().err
    assert f"{night(place, DAMAGED)}/manifest.json" in said
    assert repair(said)[-1] == DAMAGED
    assert contents(place) == before
    assert cli.main(["doctor", "--config", str(place.config)]) == 1
    assert f"{night(place, DAMAGED)}/manifest.json" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "name"),
    [(cut, DAMAGED), (no_manifest, DAMAGED)]
    + [(one, LAST) for one in (cut, no_manifest, no_folder, changed_state, no_state, changed_cells)],
)
def test_the_named_command_makes_the_night_again_and_the_next_one_goes_on(
    place: Place,
    undamaged: dict[str, bytes],
    damage: Callable[[Place, str], None],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = {path.name: path.read_bytes() for path in night(place, name).iterdir()}
    entries = place.entries
    damage(place, name)
    assert place.ledger("verify", "--releases", str(place.folder / "published")) == 4
    capsys.readouterr()
    assert place.refresh("--date", NEW) == 4
    command = repair(capsys.readouterr().err)
    assert cli.main(command) == 0
    assert {path.name: path.read_bytes() for path in night(place, name).iterdir()} == whole
    assert [path.name for path in night(place, name).parent.iterdir() if path.name.startswith(".")] == []
    assert place.entries == entries
    assert place.ledger("verify", "--releases", str(place.folder / "published")) == 0
    assert place.refresh("--date", NEW) == 0
    assert files_of(place, NEW) == undamaged


@pytest.mark.slow
def test_a_folder_that_an_earlier_state_covers_may_be_gone(place: Place, undamaged: dict[str, bytes]) -> None:
    """Such as one that was moved to an archive: no later night reads it."""
    no_folder(place, DAMAGED)
    assert place.refresh("--date", NEW) == 0
    assert files_of(place, NEW) == undamaged


@pytest.mark.slow
def test_two_damaged_nights_are_made_again_in_their_order(
    place: Place, undamaged: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (DAMAGED, LAST):
        cut(place, name)
    assert place.refresh("--date", LAST) == 4  # it starts from the other
    command = repair(capsys.readouterr().err)
    assert command[-1] == DAMAGED
    assert cli.main(command) == 0
    assert place.refresh("--date", LAST) == 0
    assert place.refresh("--date", NEW) == 0
    assert files_of(place, NEW) == undamaged


def test_a_night_of_another_key_is_not_made_again(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (place.folder / "key").write_bytes(hashlib.sha256(b"another").digest())
    cut(place, LAST)
    before = contents(place)
    assert place.refresh("--date", LAST) == 2
    assert "another key" in capsys.readouterr().err
    assert contents(place) == before


@pytest.mark.slow
def test_what_is_no_part_of_a_release_is_not_written_over(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    cut(place, LAST)
    (night(place, LAST) / "notes.txt").write_text("of a person")
    assert place.refresh("--date", LAST) == 2
    assert "notes.txt" in capsys.readouterr().err
    assert (night(place, LAST) / "notes.txt").exists()


def test_a_manifest_that_the_ledger_does_not_know_stops_the_nights(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be all that is left of a charge which the ledger lost."""
    (night(place, NEW)).mkdir()
    empty(place, NEW)
    for arguments in (["--date", NEW], ["--date", NEW, "--dry_run"]):
        assert place.refresh(*arguments) == 4
        assert f"{night(place, NEW)}/manifest.json" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, no_folder])
def test_a_night_that_is_lost_for_good_is_taken_down(place: Place, damage: Callable[[Place, str], None]) -> None:
    shutil.rmtree(place.folder / "logs" / f"dt={LAST}")
    damage(place, LAST)
    places = ["--timeline", str(place.folder / "published"), "--ledger", str(place.folder / "ledger.db")]
    command = ["releases", "remove", f"city-{LAST}", *places, "--reason", "the disk failed"]
    before = contents(place)
    assert cli.main([*command, "--dry_run"]) == 0
    assert contents(place) == before
    assert cli.main(command) == 0
    assert sorted(path.name for path in night(place, LAST).iterdir()) == ["index.html", "manifest.json"]
    assert place.ledger("verify", "--releases", str(place.folder / "published")) == 0
    assert place.refresh("--date", NEW) == 0
    assert place.release(NEW).manifest["nights"]["rests_on"] == [f"{FIRST}:{DAMAGED}", NEW]


@pytest.mark.slow
def test_a_notice_that_is_damaged_stops_nothing(place: Place) -> None:
    places = ["--timeline", str(place.folder / "published"), "--ledger", str(place.folder / "ledger.db")]
    command = ["releases", "remove", f"city-{LAST}", *places, "--reason", "a wrong file"]
    assert cli.main(command) == 0
    notice = (night(place, LAST) / "manifest.json").read_bytes()
    cut(place, LAST)
    assert place.refresh("--date", NEW) == 0
    empty(place, LAST)
    assert cli.main(command) == 0
    assert (night(place, LAST) / "manifest.json").read_bytes() == notice


@pytest.mark.slow
def test_the_page_shows_a_damaged_night_with_its_cost(place: Place) -> None:
    whole = json.loads((place.folder / "published" / "timeline.json").read_bytes())
    cut(place, LAST)
    assert place.refresh("--date", FIRST) == 0  # published already: nothing but its page is written
    content = json.loads((place.folder / "published" / "timeline.json").read_bytes())
    assert [one["date"] for one in content["nights"]] == [FIRST, DAMAGED, LAST]
    shown, was = content["nights"][-1], whole["nights"][-1]
    assert shown["damaged"]
    assert shown["map"] is None
    same = ("release_id", "folder", "job", "epsilon", "delta", "rotation", "created")
    assert {name: shown[name] for name in same} == {name: was[name] for name in same}
    assert content["spending"] == whole["spending"]
    page = (place.folder / "published" / "index.html").read_text()
    assert "Damaged releases" in page
    assert "heatmap (damaged)" in page
    assert json.loads((place.folder / "published" / "latest.json").read_bytes())["date"] == DAMAGED
    assert place.refresh("--date", LAST) == 0
    assert json.loads((place.folder / "published" / "timeline.json").read_bytes()) == whole


@pytest.mark.slow
def test_a_night_that_is_published_while_the_folder_is_listed_is_not_gone(
    place: Place, undamaged: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = place.folder / "moved"
    night(place, LAST).rename(moved)

    def overtaken(root: str) -> DatedFolders:
        monkeypatch.undo()
        found = read_folders(root)
        moved.rename(night(place, LAST))
        return found

    monkeypatch.setattr(published_nights, "read_folders", overtaken)
    assert place.refresh("--date", NEW) == 0
    assert files_of(place, NEW) == undamaged


@pytest.mark.slow
def test_a_correction_is_made_again_as_it_was(tmp_path: Path) -> None:
    late = {"late": {"days": 60, "epsilon": 1}, "budget": [{"epsilon": 5, "days": 1}]}
    today = date.today() - timedelta(days=1)
    write_files(make_logs(600, 1, seed=1), tmp_path / "own" / f"dt={today}", 2)
    place = Place(tmp_path / "place", tmp_path / "own", **late)
    logs = place.folder / "logs" / f"dt={today}"
    (logs / "log-1.parquet").rename(place.folder / "late.parquet")
    assert place.refresh() == 0
    (place.folder / "late.parquet").rename(logs / "log-1.parquet")
    assert place.refresh() == 0
    assert place.release(str(today)).manifest["corrects"] == f"city-{today}"
    whole = {path.name: path.read_bytes() for path in night(place, str(today)).iterdir()}
    entries = place.entries
    for damage in (cut, changed_cells):
        damage(place, str(today))
        assert place.refresh("--date", str(today)) == 0
        assert {path.name: path.read_bytes() for path in night(place, str(today)).iterdir()} == whole
    assert place.entries == entries


# --- an output that was emptied ---


def test_an_output_without_any_of_its_nights_is_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as the folder below a disk that is not mounted. The series would start again there, with status 0."""
    (place.folder / "published").rename(place.folder / "elsewhere")
    before = contents(place)
    for arguments in (
        ["--date", NEW],
        ["--date", LAST],
        ["--date", NEW, "--attempt", "2"],
        ["--date", NEW, "--dry_run"],
    ):
        assert place.refresh(*arguments) == 4
        said = capsys.readouterr().err
        assert str(place.folder / "published") in said
        assert f"--backfill {FIRST}:{LAST}" in said
        (place.folder / "published").mkdir(exist_ok=True)  # the mount's own folder is there, and empty
    assert contents(place) == before
    assert cli.main(["doctor", "--config", str(place.config)]) == 1


@pytest.mark.slow
def test_all_nights_are_made_again_from_their_logs(place: Place, undamaged: dict[str, bytes]) -> None:
    shutil.rmtree(place.folder / "published")
    entries = place.entries
    assert place.refresh("--backfill", f"{FIRST}:{LAST}") == 0
    assert place.entries == entries
    assert place.ledger("verify", "--releases", str(place.folder / "published")) == 0
    assert place.refresh("--date", NEW) == 0
    assert files_of(place, NEW) == undamaged


@pytest.mark.slow
def test_a_new_output_goes_on_from_a_copy_of_the_newest_night(place: Place, undamaged: dict[str, bytes]) -> None:
    shutil.copytree(night(place, LAST), place.folder / "new" / "releases" / LAST)
    text = place.config.read_text()
    place.config.write_text(text.replace("output: published", "output: new"))
    assert place.refresh("--date", NEW) == 0
    (place.folder / "published").rename(place.folder / "old")
    (place.folder / "new").rename(place.folder / "published")
    assert files_of(place, NEW) == undamaged


@pytest.mark.slow
def test_a_moved_output_is_the_same_one(place: Place, undamaged: dict[str, bytes]) -> None:
    (place.folder / "published").rename(place.folder / "moved")
    place.config.write_text(place.config.read_text().replace("output: published", "output: moved"))
    assert place.refresh("--date", NEW) == 0
    (place.folder / "moved").rename(place.folder / "published")
    assert files_of(place, NEW) == undamaged


def test_a_series_whose_newest_night_was_taken_down_restarts(place: Place) -> None:
    shutil.rmtree(place.folder / "published")
    places = ["--timeline", str(place.folder / "published"), "--ledger", str(place.folder / "ledger.db")]
    assert cli.main(["releases", "remove", f"city-{LAST}", *places, "--reason", "the disk failed"]) == 0
    assert place.refresh("--date", NEW) == 0
    assert place.release(NEW).manifest["nights"]["rests_on"] == [NEW]


def test_nights_that_were_taken_down_or_pruned_are_not_missed(place: Place) -> None:
    places = ["--timeline", str(place.folder / "published"), "--ledger", str(place.folder / "ledger.db")]
    assert cli.main(["releases", "prune", *places, "--keep", "1d"]) == 0
    for name in (FIRST, DAMAGED, LAST):
        assert cli.main(["releases", "remove", f"city-{name}", *places, "--reason", "a wrong file"]) == 0
    assert place.refresh("--date", NEW) == 0


@pytest.mark.slow
def test_releases_of_other_series_in_the_ledger_are_not_missed(place: Place) -> None:
    """Of another dataset, and of this dataset by hand."""
    ledger = place.folder / "ledger.db"
    job = ["histogram", "--input", write_files(make_logs(600, 1, seed=9), place.folder / "other", 1)]
    job += ["--region=-1,50,1,51", "--cells", "3", "--trust", "central", "--epsilon", "1", "--allow_reuse"]
    job += ["--key_file", f"{place.folder}/key", "--ledger", str(ledger), "--period", "2026-11-18"]
    town = ["--dataset", "town", "--release_id", "town-2026-11-18", "--budget", "9/1d"]
    by_hand = ["--dataset", "city", "--release_id", "by-hand", "--period", "2026-10-01"]
    for books in (town, by_hand):
        assert cli.main([*job, "--output", f"{place.folder}/elsewhere", *books]) == 0
        shutil.rmtree(place.folder / "elsewhere")
    assert len(open_ledger(str(ledger)).history().reservations) == 5
    assert place.refresh("--date", NEW) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest.json", "nights.parquet"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_damaged_night_in_a_bucket_is_made_again(
    published: Place, tmp_path: Path, name: str, is_gone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")
    from tests.storage import BUCKET, names, put, storage_emulator

    place = Place(tmp_path / "place", published.folder / "own", output=f"{BUCKET}/published", **ROTATING)
    folder = f"{BUCKET}/published/releases/{FIRST}"
    with storage_emulator():
        assert place.refresh("--date", FIRST) == 0
        whole = {one: read_file(f"{folder}/{one}") for one in names(folder)}
        put(f"{folder}/{name}", b"{")
        if is_gone:
            FileSystems.delete([f"{folder}/{name}"])
        capsys.readouterr()
        assert place.refresh("--date", DAMAGED) == 4
        assert cli.main(repair(capsys.readouterr().err)) == 0
        assert {one: read_file(f"{folder}/{one}") for one in names(folder)} == whole
        assert place.refresh("--date", DAMAGED) == 0


# ---------------------------------------------------------------- A day's files that are renamed, moved or copied after its charge: the same content is the same input

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
