"""Maps of a plane: two columns of plain coordinates in any unit, through the whole job and what reads its release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from matplotlib.axes import Axes

import sfumato
from sfumato.pipelines import cli
from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Plane
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.timeline_view import night_map
from tests.transforms.release.test_timeline_view import read

# Whole pixels of a large picture: beyond degrees, and beyond what the reader of degrees takes for degrees times 10^7.
REGION = (1_000_000, -500, 4_000_000, 999_500)
USERS, EPSILON = 4_000, 20.0


def points(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Three quarters of the users in the south-west of the picture, the others in its east."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(1_100_000, 1_700_000, USERS), rng.integers(0, 200_000, USERS)
    x[: USERS // 4] = rng.integers(3_000_000, 3_900_000, USERS // 4)
    return x, y


def write_logs(folder: Path, seed: int = 0) -> str:
    x, y = points(seed)
    away = np.array([0, 10**9])  # two more users, who are out of the picture
    columns = {"user_id": np.arange(USERS + 2), "px": np.append(x, away), "py": np.append(y, away)}
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "logs.parquet")
    return str(folder / "*.parquet")


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[sfumato.Release]:
    """Maps of two days."""
    folder = tmp_path_factory.mktemp("picture")
    return [
        sfumato.heatmap(
            write_logs(folder / f"day{day}", day), region=REGION, axes=("px", "py"), depth=5, epsilon=EPSILON,
            trust="central", seed=day, output=folder / f"map{day}",
        )
        for day in (0, 1)
    ]  # fmt: skip


def test_cells_have_the_planes_coordinates_and_unit(releases: list[sfumato.Release]) -> None:
    release = releases[0]
    assert release.manifest["region"] == {
        "west": 1e6, "south": -500, "east": 4e6, "north": 999_500, "axes": ["px", "py"]
    }  # fmt: skip
    assert release.grid is not None
    assert release.grid.region == Plane(1e6, -500.0, 4e6, 999_500.0, ("px", "py"))
    cells = release.arrow_table("cells.parquet")
    assert not {"h3", "quadkey"} & set(cells.column_names)
    assert cells.schema.field("west").metadata[b"unit"] == b"of the axis"
    assert cells.schema.field("density").metadata[b"unit"].startswith(b"users per square unit")
    assert json.loads(cells.schema.metadata[b"geo"])["columns"]["geometry"]["crs"] is None
    x, y = points(0)
    counts = {name: np.asarray(cells[name]) for name in ("west", "south", "east", "north", "count", "density")}
    for west, south, east, north, count, density in zip(*counts.values(), strict=True):
        if density is not None and density == count / ((east - west) * (north - south)):  # no finer cells within
            true = ((x >= west) & (x < east) & (y >= south) & (y < north)).sum()
            # Noise of epsilon 20 / 3 or more in each cell: beyond 8 with a probability below 1e-20.
            assert abs(count - true) < 8
    assert abs(release.manifest["results"]["users"] - USERS) < 8


def test_its_page_and_plot_speak_of_no_globe(releases: list[sfumato.Release]) -> None:
    release = releases[0]
    view = release.read("index.html").decode()
    report = view[view.index("</head>") : view.index("<script type=")]
    assert "3,000,000 × 1,000,000 (px, py)" in report
    for word in ("km²", "°", "longitude", "latitude", " km", " m "):
        assert word not in report
    axes: Axes = release.plot()
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_aspect()) == ("px", "py", 1.0)


def test_changes_and_timelines_are_of_the_plane(releases: list[sfumato.Release], tmp_path: Path) -> None:
    changes = sfumato.changes(*releases, output=tmp_path / "changes")
    assert "h3" not in changes
    assert json.loads((tmp_path / "changes" / "manifest.json").read_text())["region"]["axes"] == ["px", "py"]
    night = read(night_map("2026-11-20", open_release(releases[0].path)))
    assert night.region.axes == ("px", "py")
    assert night.finest_metres == (3_000_000 / 32, 1_000_000 / 32)
    assert night.layer.measures[0].scale.unit == "users per square unit"


def test_a_map_starts_from_one_of_the_same_plane_alone(releases: list[sfumato.Release], tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", 2)
    given: dict[str, Any] = {"depth": 5, "epsilon": EPSILON, "seed": 3, "warm_start": releases[0].path}
    again = sfumato.heatmap(logs, region=REGION, axes=("px", "py"), **given)
    assert abs(again.manifest["results"]["users"] - USERS) < 40
    with pytest.raises(RequestError, match="warm_start: the release is of region"):
        sfumato.heatmap(logs, region=REGION, axes=("py", "px"), **given)


def test_exports_have_plain_coordinates_or_refuse(releases: list[sfumato.Release], tmp_path: Path) -> None:
    release = releases[0]
    release.export(tmp_path / "cells.csv")
    head = (tmp_path / "cells.csv").read_text().splitlines()[0].split(",")
    assert "latitude" not in head
    stated = json.loads((tmp_path / "cells.csv-metadata.json").read_text())["notes"][0]
    assert stated["crs"] == "none: a plane with the axes px and py, in units of the logs"
    for name in ("cells.geojson", "cells.gpkg", "cells.tif", "cells.pmtiles"):
        with pytest.raises(RequestError, match="needs longitudes and latitudes; this map is of a plane"):
            release.export(tmp_path / name)


@pytest.mark.parametrize("zones", [["--h3", "8"], ["--zones", "none.geojson", "--id_column", "id"]])
def test_the_plane_is_named_before_zones_are_read(
    zones: list[str], releases: list[sfumato.Release], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Millions of cells of H3, or a file that is not there, are not what is wrong."""
    given = ["--release", releases[0].path, "--output", str(tmp_path / "zones.csv")]
    assert cli.main(["zones", *given, *zones]) == 2
    assert "a plane with the axes px and py" in capsys.readouterr().err


def test_what_needs_the_globe_refuses_a_map_of_a_plane(releases: list[sfumato.Release], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="a plane with the axes px and py"):
        releases[0].zones([shapely.box(3, 1, 4, 2)])
    with pytest.raises(RequestError, match="a plane with the axes px and py"):
        sfumato.ranges(release=releases[0].path, sizes=(1, 2), output=tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--axes", "px"], "axes: name two different columns"),
        (["--axes", "px,px"], "axes: name two different columns"),
        (["--axes", "px,pz"], "no column 'pz'; set --axes"),
        (["--axes", "px,name"], "column 'name' must hold plain coordinates as numbers"),
        (["--axes", "px,py", "--longitude_column", "px"], "longitude_column: is of places on the globe"),
        (["--axes", "px,py", "--coordinates", "e7"], "coordinates: is of places on the globe"),
        (["--axes", "px,py", "--geometry_column", "g"], "geometry_column: is of places on the globe"),
        (["--axes", "px,py", "--tiles", "https://t.example/{z}/{x}/{y}.png"], "tiles: is of places on the globe"),
        (["--axes", "px,py", "--region", "0,0,1"], "region: expected four numbers X0,Y0,X1,Y1"),
        ([], "region: 1e+06,-500,4e+06,999500 leaves the globe"),
    ],
)
def test_what_contradicts_a_plane_is_refused_before_the_charge(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    table = pa.table({"user_id": [1, 2], "px": [1.5, 2.5], "py": [1, 2], "name": ["a", "b"]})
    pq.write_table(table, tmp_path / "logs" / "logs.parquet")
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    given = ["--input", str(tmp_path / "logs" / "*.parquet"), "--output", str(tmp_path / "map")]
    given += ["--key_file", str(tmp_path / "key")]
    ledger = ["--ledger", str(tmp_path / "ledger.db"), "--dataset", "hall", "--period", "2026-11-20"]
    region = [] if "--region" in options else ["--region", ",".join(map(str, REGION))]
    assert cli.main(["heatmap", *given, *region, *ledger, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "ledger.db").exists()
    assert not (tmp_path / "map").exists()
