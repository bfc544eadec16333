"""Commands that read releases, and the page of a release, made again from its folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.pipelines.command_line.cli import main, parse_command, run_command
from sfumato.pipelines.command_line.run import request_class, request_of
from sfumato.pipelines.operations.inspect_logs import inspect_command
from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import Region
from sfumato.transforms.release.release_folder import publish
from tests.refreshes import DAYS, Place
from tests.releases import COMMANDS, Releases, assert_page_follows
from tests.unit.release.city import city_release

# --- `sfumato export` as a command: what it writes, what it refuses, and what it does not need ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("city") / "release"
    publish(str(folder), city_release("adaptive", depth=4).files, "made-up", overwrite=False)
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "{out}/map.png"], "format: the suffix of {out}/map.png is unknown; use one of geotiff"),
        (["--output", "{out}/map", "--format", "geotif"], "did you mean geotiff?"),
        (["--output", "{out}", "--format", "csv"], "output: must name a file"),
        (["--output", "{out}/map.csv", "--table", "items"], "table: {folder} has no table 'items'; it has answers,"),
        (["--output", "{out}/map.tif", "--table", "cells"], "table: cannot be combined with --format geotiff"),
        (["--output", "{out}/map.tif", "--lisence", "x"], "unknown option --lisence; did you mean --licence?"),
        ([], "output: required"),
        (["--output", "{folder}/manifest.json/x.csv"], "output: cannot create {folder}/manifest.json/x.csv"),
        (["--output", "{folder}/manifest.json"], "output: {folder}/manifest.json already exists"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"out": str(tmp_path), "folder": str(folder)}
    assert main(["export", str(folder), *(one.format(**places) for one in arguments)]) == 2
    assert words.format(**places) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_export_refuses_what_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no release found"):
        run_command("export", [str(tmp_path), "--output", "map.csv"])


@pytest.mark.slow
def test_export_loads_no_beam_and_no_unused_library(folder: Path, tmp_path: Path) -> None:
    code = f"""import sys
from sfumato.pipelines.command_line.cli import main
assert main(["export", {str(folder)!r}, "--output", {str(tmp_path / "map.xyz")!r}]) == 2
heavy = [name for name in ("apache_beam", "rasterio", "geopandas", "xarray", "pyogrio", "h3") if name in sys.modules]
assert not heavy, heavy
assert main(["export", {str(folder)!r}, "--output", {str(tmp_path / "map.tif")!r}]) == 0
assert "apache_beam" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- a release's page made again from its folder alone ---


@pytest.mark.parametrize("kind", COMMANDS)
def test_page_follows_from_published_files(kind: str, published: Releases) -> None:
    assert_page_follows(published[kind])


def test_a_night_leads_to_its_timeline(backfilled: Place) -> None:
    night = backfilled.night(DAYS[2])
    (link,) = re.findall(r'<a href="([^"]*)">All nights</a>', (night / "index.html").read_text())
    assert (night / link).resolve() == backfilled.published / "index.html"
    assert_page_follows(night)


def test_inspect_command_holds_the_options_of_the_job(tmp_path: Path) -> None:
    options = {"input": "a b.csv", "output": "x", "region": "2,48,3,49", "user_id_column": "rider", "decimal": ","}
    request = request_of("heatmap", {**options, "day_column": "t", "hours": "8-9"})
    command = inspect_command(request)
    assert command is not None
    kind, arguments = request_class("inspect"), shlex.split(command)[2:]
    parsed, _ = parse_command(kind, arguments)
    assert parsed.given(kind.model_fields) == {
        "input": ("a b.csv",), "region": Region(2, 48, 3, 49), "user_id_column": "rider", "decimal": ",",
        "time_column": "t",
    }  # fmt: skip
    assert inspect_command(request_of("key", {"action": "new", "file": "k"})) is None


@pytest.mark.parametrize("swapped", [6, 300])
def test_inspect_looks_again_with_exchanged_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], swapped: int
) -> None:
    """Not for a few rows. Its next command is not a map of the wrong place, and finds nothing more to exchange."""
    logs, region = tmp_path / "taxis.csv", "--region=-122.5,37.6,-122.3,37.8"
    places = [(37.7 + n / 1e4, -122.4 + n / 1e4) for n in range(300)]
    places = [place[::-1] if n < swapped else place for n, place in enumerate(places)]
    rows = (f"{n % 90},{lat},{lon},2026-11-20T08:00:00Z\n" for n, (lat, lon) in enumerate(places))
    logs.write_text("rider,lat,lon,time\n" + "".join(rows))
    assert main(["inspect", "--input", str(logs), region]) == 0
    first = capsys.readouterr().out
    assert ("sfumato heatmap" in first) == (swapped < 300)
    if swapped == 300:
        again = shlex.split(first.splitlines()[-1])
        assert again[:2] == ["sfumato", "inspect"]
        assert again[again.index("--latitude_column") + 1] == "lon"
        assert region in again
        assert main(again[1:]) == 0
        assert "sfumato heatmap" in capsys.readouterr().out
