"""`sfumato zones --release`: tables of zones from complete releases, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import geopandas
import numpy as np
import pandas as pd
import pytest
import shapely

import sfumato
from sfumato.pipelines.cli import main

REGION = (3.00, 1.00, 3.13, 1.13)
MIDDLE = shapely.box(3.031, 1.027, 3.104, 1.098)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs, a heatmap with a category, one that starts from it, tracts, and releases of which no zones can be had."""
    folder = tmp_path_factory.mktemp("zones_of_release")
    logs = folder / "logs" / "*.parquet"
    sfumato.synth(folder / "logs", users=5000, seed=1)
    common = {"region": REGION, "depth": 6, "seed": 1}
    sfumato.heatmap(logs, output=folder / "map", auxiliary="infected", **common)
    sfumato.heatmap(logs, output=folder / "later", warm_start=folder / "map", trust="central", **common)
    sfumato.hotspots(logs, output=folder / "hotspots", region=REGION, depth=4, levels=2, epsilon=1.0, delta=1e-6)
    frame = geopandas.GeoDataFrame({"tract": ["a"]}, geometry=[MIDDLE], crs="OGC:CRS84")
    frame.to_file(folder / "tracts.geojson", driver="GeoJSON")
    return folder


def zones(folder: Path, output: Path, *options: str, release: str = "map") -> int:
    return main(["zones", "--release", str(folder / release), *options, "--output", str(output)])


@pytest.mark.slow
@pytest.mark.parametrize("release", ["map", "later"])
def test_a_tract_has_the_users_of_the_log(folder: Path, tmp_path: Path, release: str) -> None:
    """Within 6 standard deviations, with categories and with a warm start."""
    options = ("--zones", str(folder / "tracts.geojson"), "--id_column", "tract")
    assert zones(folder, tmp_path / "out.csv", *options, release=release) == 0
    row = pd.read_csv(tmp_path / "out.csv").iloc[0]
    logs = pd.concat(pd.read_parquet(path) for path in sorted((folder / "logs").glob("*.parquet")))
    inside = shapely.contains_xy(MIDDLE, logs["longitude"], logs["latitude"])
    assert len(logs) == logs["user_id"].nunique()
    assert abs(row["users"] - inside.sum()) < 6 * row["stddev"]
    assert row["stddev"] < 0.2 * inside.sum()


@pytest.mark.slow
@pytest.mark.parametrize(("option", "level"), [("--h3", "8"), ("--quadkey", "14")])
def test_cells_of_an_index_add_up_to_the_map(folder: Path, tmp_path: Path, option: str, level: str) -> None:
    assert zones(folder, tmp_path / "out.parquet", option, level) == 0
    table = geopandas.read_parquet(tmp_path / "out.parquet")
    release = sfumato.open_release(folder / "map")
    assert table["users"].sum() == pytest.approx(release.total(np.ones(len(release.cells)))[0])
    assert table["zone"].is_unique


def test_the_form_of_the_option_does_not_matter_nor_its_place(folder: Path, tmp_path: Path) -> None:
    for number, given in enumerate(
        (
            ["--release", str(folder / "map"), "--h3", "7"],
            ["--h3", "7", f"--release={folder / 'map'}"],
            ["--h3", "7", "--release", str(folder / "map")],
        )
    ):
        assert main(["zones", *given, "--output", str(tmp_path / f"{number}.geojson")]) == 0
    first, *others = [(tmp_path / f"{number}.geojson").read_bytes() for number in range(3)]
    assert all(other == first for other in others)
    assert json.loads(first)["sfumato"]["epsilon"] == 1.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "zones: name their file"),
        (("--h3", "7", "--quadkey", "9"), "h3 and quadkey: give one of them"),
        (("--h3", "16"), "h3: must be a whole number in 0..15"),
        (("--h3", "15"), "more than 1,000,000"),
        (("--h3", "7", "--id_column", "tract"), "id_column: is of a file"),
        (("--zones", "tracts.geojson"), "id_column: name the property"),
        (("--zones", "missing.geojson", "--id_column", "tract"), "cannot be read"),
        (("--h3", "7", "--input", "logs"), "unknown option --input"),
        (("--h3", "7", "--epsilon", "1"), "unknown option --epsilon"),
        (("--h3", "7", "--ledger", "ledger.db"), "unknown option --ledger"),
        (("--h3", "7", "--key_file", "key"), "unknown option --key_file"),
    ],
)
def test_options_that_do_not_fit(
    folder: Path, tmp_path: Path, options: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert zones(folder, tmp_path / "out.csv", *options) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("release", "output", "text"),
    [
        ("hotspots", "out.csv", "is of `sfumato hotspots`"),
        ("nothing", "out.csv", "no release here"),
        ("map", "out.shp", "output: must end in .parquet, .geojson, .csv"),
        ("map", "taken.csv", "exists already"),
    ],
)
def test_releases_and_outputs_that_do_not_fit(
    folder: Path, tmp_path: Path, release: str, output: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken.csv").write_text("mine")
    assert zones(folder, tmp_path / output, "--h3", "7", release=release) == 2
    assert text in capsys.readouterr().err
    assert (tmp_path / "taken.csv").read_text() == "mine"


def test_overwrite_replaces_a_table(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "taken.csv").write_text("mine")
    assert zones(folder, tmp_path / "taken.csv", "--h3", "7", "--overwrite") == 0
    assert len(pd.read_csv(tmp_path / "taken.csv")) > 30


@pytest.mark.slow
def test_a_local_release_is_read_without_beam(folder: Path, tmp_path: Path) -> None:
    code = f"""import sys; from sfumato.pipelines.cli import main
assert main(['zones', '--release', {str(folder / "map")!r}, '--h3', '7', '--output', {str(tmp_path / "o.csv")!r}]) == 0
assert 'apache_beam' not in sys.modules"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
