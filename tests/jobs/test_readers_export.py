"""`sfumato export` as a command: what it writes, what it refuses, and what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.pipelines.cli import main
from sfumato.transforms.release.release_folder import publish
from tests.unit.release.city import city_release


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("city") / "release"
    publish(str(folder), city_release("adaptive", depth=4).files, "made-up", overwrite=False)
    return folder


def test_it_prints_what_it_wrote(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "map.csv"
    assert main(["export", str(folder), "--output", str(output), "--licence", "ODbL-1.0"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(output), f"{output}.statement.json"]
    assert json.loads(Path(f"{output}.statement.json").read_text())["licence"] == "ODbL-1.0"
    assert main(["export", str(folder), "--output", str(tmp_path / "map"), "--format", "geojson"]) == 0
    assert json.loads((tmp_path / "map").read_text())["type"] == "FeatureCollection"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "{out}/map.png"], "format: {out}/map.png has no suffix of a format; name one of geotiff"),
        (["--output", "{out}/map", "--format", "shp"], "format: there is no format 'shp'"),
        (["--output", "{out}/map", "--format", "geotif"], "did you mean geotiff?"),
        (["--output", "{out}"], "format: {out} has no suffix"),
        (["--output", "{out}", "--format", "csv"], "output: name a file"),
        (["--output", "{out}/map.csv", "--table", "items"], "table: {folder} has no table 'items'; it has answers,"),
        (["--output", "{out}/map.tif", "--table", "cells"], "table: format geotiff takes none"),
        (["--output", "{out}/map.geojson", "--table", "totals"], "table: totals of {folder} has no shapes"),
        (["--output", "{out}/map.tif", "--resolution", "8"], "resolution: format geotiff takes none"),
        (["--output", "{out}/map.tif", "--resolution", "16"], "resolution: must be a whole number in 0..15"),
        (["--output", "{out}/map.tif", "--lisence", "x"], "unknown option --lisence; did you mean --licence?"),
        ([], "output: required"),
        (["--output", "{folder}/manifest.json/x.csv"], "output: {folder}/manifest.json/x.csv cannot be written"),
        (["--output", "{folder}/manifest.json"], "output: {folder}/manifest.json exists already"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"out": str(tmp_path), "folder": str(folder)}
    assert main(["export", str(folder), *(one.format(**places) for one in arguments)]) == 2
    assert words.format(**places) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_release_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--output", str(tmp_path / "map.csv")]) == 2
    assert "no release here" in capsys.readouterr().err


@pytest.mark.slow
def test_it_needs_no_beam_and_loads_no_library_before_it_knows_its_format(folder: Path, tmp_path: Path) -> None:
    code = f"""import sys
from sfumato.pipelines.cli import main
assert main(["export", {str(folder)!r}, "--output", {str(tmp_path / "map.xyz")!r}]) == 2
heavy = [name for name in ("apache_beam", "rasterio", "geopandas", "xarray", "pyogrio", "h3") if name in sys.modules]
assert not heavy, heavy
assert main(["export", {str(folder)!r}, "--output", {str(tmp_path / "map.tif")!r}]) == 0
assert "apache_beam" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
