"""Releases of maps of a plane, which an earlier version made: every command refuses them in one sentence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import sfumato
from sfumato.pipelines import cli
from sfumato.schemas.ledger import Limit
from sfumato.transforms.release.catalog import find_releases
from sfumato.transforms.release.publishing import ledger_metadata
from sfumato.transforms.release.release_folder import publish
from sfumato.transforms.release.release_index import update_timeline
from tests.unit.privacy.ledger.helpers import charge, ledger
from tests.unit.release.city import city_release

SENTENCE = r"map of a plane \(--axes\).*sfumato 0\.1 of November 2026 or earlier"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A timeline's folder with one release, whose manifest states the axes of a plane as version 0.1 did."""
    root = tmp_path_factory.mktemp("timeline")
    release = root / "releases" / "2026-11-20"
    publish(str(release), city_release("adaptive", depth=4).files, "made-up", False)
    manifest = json.loads((release / "manifest.json").read_text())
    manifest["region"]["axes"] = ["x", "y"]
    (release / "manifest.json").write_text(json.dumps(manifest))
    return root


@pytest.mark.parametrize(
    "command",
    [
        "page RELEASE",
        "export RELEASE --output OUT.csv",
        "export RELEASE --output OUT.gpkg",
        "changes RELEASE RELEASE --output OUT",
        "zones --release RELEASE --h3 8 --output OUT.csv",
        "ranges build --release RELEASE --sizes 100,500 --output OUT",
        "heatmap --input RELEASE --region 3,1,4,2 --warm_start RELEASE --output OUT",
    ],
)
def test_commands_refuse_a_release_of_a_plane(
    command: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RELEASE": str(root / "releases" / "2026-11-20"), "OUT": str(tmp_path / "out")}
    for name, place in places.items():
        command = command.replace(name, place)
    assert cli.main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a map of a plane (--axes)" in line
    assert not list(tmp_path.iterdir())


def test_python_and_timelines_refuse_a_release_of_a_plane(root: Path) -> None:
    with pytest.raises(sfumato.RequestError, match=SENTENCE):
        sfumato.open_release(root / "releases" / "2026-11-20")
    with pytest.raises(sfumato.RequestError, match=SENTENCE):
        update_timeline(str(root), None)


def test_release_of_a_plane_is_verified_and_taken_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both need the manifest only. A release that nobody can read must not stay published for that."""
    folder = tmp_path / "map"
    book = ledger(tmp_path)
    reserved = book.reserve(charge("one"), Limit.parse_all("10/30d"))
    files = city_release("adaptive", depth=4).files
    manifest = json.loads(files["manifest.json"])
    manifest["region"]["axes"] = ["x", "y"]
    manifest |= {"release_id": "one", "ledger": ledger_metadata(reserved)}
    publish(str(folder), {**files, "manifest.json": json.dumps(manifest).encode()}, "one", False)
    book.commit("one", hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest())
    place = str(tmp_path / "ledger.db")
    assert find_releases(str(tmp_path))[1] == []
    status = cli.main(["releases", "remove", str(folder), "--ledger", place, "--reason", "a wrong file"])
    assert (status, capsys.readouterr().err) == (0, "")
    assert not (folder / "cells.parquet").exists()
