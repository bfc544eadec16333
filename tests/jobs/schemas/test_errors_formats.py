"""What an earlier version wrote is read; what a newer version wrote is said to be newer, and never damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import FormatError, RequestError, check_format
from sfumato.transforms.nights.night import nights_before
from sfumato.transforms.nights.nights_state import NightsState
from sfumato.transforms.privacy.ledger.history import FORMAT, OLDEST, replay
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.ranges.model_file import archive_bytes, open_model, read_archive, read_model
from sfumato.transforms.ranges.tuner import open_tuner
from sfumato.transforms.release.catalog import disagreement, find_releases, read_folders
from sfumato.transforms.release.published_release import open_release
from tests import DATA

VERSIONS = sorted(path for path in DATA.iterdir() if path.is_dir())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what an earlier version wrote."""
    folder: Path = request.param
    return Path(shutil.copytree(folder, tmp_path / folder.name))


def test_an_earlier_ledger_is_read_charged_and_copied(written: Path) -> None:
    book = open_ledger(str(written / "ledger.db"))
    history = book.history(with_limits=True)
    states = {name: (one.manifest is not None, one.refusal is not None) for name, one in history.reservations.items()}
    assert states == {
        "city-2026-11-17": (True, False),
        "city-2026-11-18": (True, False),
        "gauss": (True, False),
        "few": (False, True),
        "model": (True, False),
    }
    assert history.reservations["city-2026-11-17"].pruned is not None
    assert str(history.reservations["city-2026-11-18"].charge.rotation) == "1/3"
    assert history.reservations["gauss"].charge.rho is not None
    assert replay((written / "ledger.copy").read_bytes().splitlines()) == book.history()
    book.backup((written / "ledger.copy").read_bytes())
    assert cli.main(["ledger", "show", "--ledger", str(written / "ledger.db")]) == 0
    book.set_limits("city", history.limits["city"][:1])
    assert book.history().entries == history.entries + 1


def test_entries_that_an_earlier_version_reads_keep_its_format(written: Path) -> None:
    open_ledger(str(written / "ledger.db")).set_limits(
        "new", open_ledger(str(written / "ledger.db")).history().limits["city"]
    )
    entry = open_ledger(str(written / "ledger.db")).backup().splitlines()[-1]
    assert json.loads(entry)["format"] == f"{FORMAT.partition('/')[0]}/{OLDEST}"


def test_earlier_releases_are_read_and_agree_with_their_ledger(written: Path) -> None:
    history = open_ledger(str(written / "ledger.db")).history()
    releases, problems = find_releases(str(written))
    assert (len(releases), problems) == (4, [])
    assert [disagreement(release, history) for release in releases] == [None] * 4
    for release in releases:
        present = {path.name for path in Path(release.path).iterdir()}
        assert release.damage(present) == []
    assert open_release(written / "gauss").cells["count"].sum() > 0


def test_an_earlier_model_answers(written: Path) -> None:
    answers, share = open_model(written / "model").answer(np.array([3.06]), np.array([1.06]), np.array([20_000.0]))
    assert share[0] > 0.3
    assert 0 < answers.users[0] < 4000


def test_a_night_goes_on_from_an_earlier_state(written: Path) -> None:
    state = nights_before([str(written / "2026-11-18")], date(2026, 11, 19)).state
    assert state is not None
    assert state.night == date(2026, 11, 18)
    assert state.predict(date(2026, 11, 19), 3000.0).counts.sum() == pytest.approx(3000, rel=0.01)


# --- newer formats ---

NEWER = r"written by a newer version of sfumato \(format 9; this version reads up to \d+\); upgrade sfumato"


def _newer_manifest(folder: Path, name: str = "2026-11-18") -> None:
    path = folder / name / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": manifest["format"].rpartition("/")[0] + "/9", "more": {}}))


def _read_newer_release(folder: Path) -> None:
    _newer_manifest(folder)
    open_release(folder / "2026-11-18")


def _read_newer_refusal(folder: Path) -> None:
    _newer_manifest(folder, "few")
    open_release(folder / "few")


def _read_newer_timeline(folder: Path) -> None:
    """A night of a newer version is not left out as if there were none."""
    (folder / "releases").mkdir()
    (folder / "2026-11-18").rename(folder / "releases" / "2026-11-18")
    _newer_manifest(folder, "releases/2026-11-18")
    read_folders(str(folder))


def _read_newer_model(folder: Path) -> None:
    metadata, arrays = read_archive((folder / "model" / "model.npz").read_bytes())
    read_model(archive_bytes({**metadata, "format": "sfumato-ranges/9", "kind": "another"}, arrays), "model.npz")


def _read_newer_tuner(folder: Path) -> None:
    (folder / "tuner.npz").write_bytes(archive_bytes({"format": "sfumato-tuner/9"}, {"more": np.zeros(1)}))
    open_tuner(str(folder / "tuner.npz"))


def _read_newer_nights(folder: Path) -> None:
    table = pq.read_table(folder / "2026-11-18" / "nights.parquet")
    about = json.loads(table.schema.metadata[b"sfumato.nights"])
    text = json.dumps({**about, "format": 9, "scales": "another form"}).encode()
    NightsState.from_table(table.replace_schema_metadata({b"sfumato.nights": text}), 4)


READERS = [
    _read_newer_release,
    _read_newer_refusal,
    _read_newer_timeline,
    _read_newer_model,
    _read_newer_tuner,
    _read_newer_nights,
]


@pytest.mark.parametrize("read", READERS)
def test_a_newer_file_is_not_said_to_be_damaged(tmp_path: Path, read: Callable[[Path], None]) -> None:
    folder = Path(shutil.copytree(VERSIONS[-1], tmp_path / "copy"))
    with pytest.raises(FormatError, match=NEWER):
        read(folder)


def test_a_command_ends_with_the_status_of_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(VERSIONS[-1], tmp_path / "copy"))
    _newer_manifest(folder, "gauss")
    assert cli.main(["export", str(folder / "gauss"), "--output", str(tmp_path / "map.csv")]) == 2
    assert "upgrade sfumato" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stated", "kind", "words"),
    [
        ("sfumato-x/4", FormatError, "newer version of sfumato .format 4; this version reads up to 3.; upgrade"),
        ("sfumato-x/999999", FormatError, "newer"),
        ("sfumato-x/1", FormatError, "older version of sfumato .format 1; this version reads from 2."),
        ("sfumato-y/4", RequestError, "must have the format 'sfumato-x/3', got 'sfumato-y/4'"),
        ("sfumato-x/" + "9" * 5000, RequestError, "must have the format"),
        (None, RequestError, "got 'None'"),
        (3, RequestError, "got '3'"),
    ],
)
def test_formats_are_compared_by_number(stated: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check_format("the file", stated, "sfumato-x/3", 2)
    assert type(caught.value) is kind
    check_format("the file", "sfumato-x/3", "sfumato-x/3", 2)
    check_format("the file", "sfumato-x/2", "sfumato-x/3", 2)
