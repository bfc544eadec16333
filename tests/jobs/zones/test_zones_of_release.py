"""Zones from a published heatmap, read from its files alone, and the command sfumato zones --release."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pytest
import shapely
from scipy import stats

import sfumato
from sfumato.pipelines.command_line.cli import main
from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import interleave
from sfumato.transforms.geo.zone_file import read_zones
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from sfumato.transforms.zones.release_zones import zones_from, zones_of_release
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.release.city import REGION, city_density, city_release

DEPTH, USERS = 5, 4000
BOX = shapely.box(*(REGION[side] for side in ("west", "south", "east", "north")))
KINDS: dict[str, dict[str, Any]] = {
    "secagg": {},
    "central": {"trust": "central"},
    "last": {"estimator": "last"},
    "flat": {},
}


def published(folder: Path, method: str = "adaptive", **options: Any) -> Release:
    publish(str(folder), city_release(method, DEPTH, USERS, **options).files, "made-up", overwrite=False)
    return open_release(folder)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    folder = tmp_path_factory.mktemp("releases")
    return {
        kind: published(folder / kind, "flat" if kind == "flat" else "adaptive", **options)
        for kind, options in KINDS.items()
    }


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    """The cells of the city's users: those that every release counted."""
    cells = seeded_rng(8).choice(4**DEPTH, USERS, p=city_density(1 << DEPTH).ravel())
    return interleave((cells % (1 << DEPTH)).astype(np.uint32), (cells >> DEPTH).astype(np.uint32))


def aligned(level: int) -> list[shapely.Polygon]:
    """The squares of a level of the quadtree, by rows from the north-west."""
    side = 1 << level
    x, y = np.meshgrid(np.linspace(REGION["west"], REGION["east"], side + 1)[:-1], np.arange(side))
    width, height = (REGION["east"] - REGION["west"]) / side, (REGION["north"] - REGION["south"]) / side
    north = REGION["north"] - y.ravel() * height
    return list(shapely.box(x.ravel(), north - height, x.ravel() + width, north))


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("kind", KINDS)
def test_squares_of_the_map_hold_the_users_that_they_should(
    kind: str, releases: dict[str, Release], codes: np.ndarray
) -> None:
    """Sixteen sums of cells: their squared z-scores add up to at most 1.5 times what exceeds once in 10^7."""
    table = zones_of_release(releases[kind], zones_from(aligned(2))).to_pandas()
    row, column = np.divmod(np.arange(16), 4)
    place = interleave(column.astype(np.uint32), row.astype(np.uint32)).astype(int)
    truth = np.bincount((codes >> np.uint64(2 * (DEPTH - 2))).astype(int), minlength=16)[place]
    scores = (table["users"] - truth) / table["stddev"]
    # Laplace noise has heavier tails than normal noise; sums of shards and cells are nearly normal.
    assert (scores**2).sum() < 1.5 * stats.chi2.isf(1e-7, 16)
    assert table["users"].sum() == pytest.approx(releases[kind].manifest["results"]["users"], rel=0.02)
    assert np.allclose(table["stddev"], table["noise_stddev"], rtol=0.3)


@pytest.mark.parametrize("kind", ["secagg", "central", "flat"])
def test_the_sum_of_the_map_is_that_of_release_total(kind: str, releases: dict[str, Release]) -> None:
    release = releases[kind]
    rows = len(release.cells)
    users, stddev = release.total(np.ones(rows))
    table = zones_of_release(release, zones_from([BOX])).to_pandas()
    assert table["users"][0] == pytest.approx(users, rel=1e-9)
    assert table["stddev"][0] == pytest.approx(stddev, rel=1e-6)
    assert table["share_in_map"][0] == pytest.approx(1)


@pytest.mark.parametrize("method", ["emd", "count_min"])
def test_a_method_without_errors_of_sums_is_refused(baselines: None, method: str, tmp_path: Path) -> None:
    release = published(tmp_path / "release", method)
    with pytest.raises(RequestError, match="does not state errors of sums of cells"):
        zones_of_release(release, zones_from([BOX]))


def test_lost_shards_leave_cells_without_an_error(releases: dict[str, Release]) -> None:
    manifest = json.loads(json.dumps(releases["last"].manifest))
    manifest["privacy"]["sub_queries"][-1]["shards_lost"] = 1
    with pytest.raises(RequestError, match="does not state errors"):
        zones_of_release(dataclasses.replace(releases["last"], manifest=manifest), zones_from([BOX]))


def test_zones_may_lie_outside_have_holes_and_cross_180_degrees(releases: dict[str, Release]) -> None:
    west = shapely.box(-74.1, 40.7, -74.0, 40.75)
    ring = shapely.difference(shapely.box(-73.99, 40.72, -73.93, 40.77), shapely.box(-73.97, 40.73, -73.95, 40.75))
    across = shapely.MultiPolygon([shapely.box(179, 0, 180, 1), shapely.box(-180, 0, -179, 1)])
    table = zones_of_release(releases["central"], zones_from([west, ring, across])).to_pandas()
    assert table["share_in_map"].tolist() == pytest.approx([0.4, 1, 0])
    assert table["users"].isna().tolist() == [False, False, True]
    with pytest.raises(RequestError, match="none meets the map"):
        zones_of_release(releases["central"], zones_from([across]))


@pytest.mark.parametrize(
    ("polygons", "id_column", "text"),
    [
        ([BOX, BOX.buffer(-0.01)], None, "overlap"),
        ([shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])], None, "not a valid polygon"),
        ([shapely.Point(0, 0)], None, "radius=METRES; number 0 is Point"),
        ([], None, "there are none"),
        ([BOX], "tract", "shapely polygons have no columns"),
        ("tracts.geojson", None, "id_column: name the property"),
        ("missing.geojson", "tract", "cannot be read"),
        (geopandas.GeoSeries([BOX]), None, "states no coordinate system"),
        (geopandas.GeoDataFrame({"a": [1]}, geometry=[BOX], crs=4326), "tract", "has no column 'tract'"),
        ([shapely.box(500_000, 4_500_000, 501_000, 4_501_000)], None, "leaves the globe"),
    ],
)
def test_polygons_that_cannot_be_used(polygons: Any, id_column: str | None, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        zones_from(polygons, id_column)


def test_circles_around_points_are_zones_too(tmp_path: Path, releases: dict[str, Release]) -> None:
    """A frame, a list and a file of stops give the zones that a job counts around them."""
    middles = [one.centroid for one in aligned(1)]
    frame = geopandas.GeoDataFrame({"stop": list("abcd")}, geometry=middles, crs="OGC:CRS84")
    frame.to_file(tmp_path / "stops.geojson", driver="GeoJSON")
    of_a_job = zones_of_release(releases["central"], read_zones(str(tmp_path / "stops.geojson"), "stop", radius=900.0))
    for given, id_column in ((frame.to_crs(3857), "stop"), (middles, None), (tmp_path / "stops.geojson", "stop")):
        found = zones_of_release(releases["central"], zones_from(given, id_column, 900.0)).to_pandas()
        np.testing.assert_allclose(found["users"], of_a_job["users"].to_numpy(), rtol=1e-5, atol=1e-3)
    for radius in (0, -1, math.nan):
        with rejects("radius"):
            zones_from(middles, radius=radius)
    with rejects("zones"):
        zones_from(aligned(1), radius=900)


def test_frames_series_lists_and_files_are_the_same_zones(tmp_path: Path, releases: dict[str, Release]) -> None:
    shapes = aligned(1)
    frame = geopandas.GeoDataFrame({"tract": list("abcd")}, geometry=shapes, crs="OGC:CRS84")
    frame.to_file(tmp_path / "tracts.geojson", driver="GeoJSON")
    frame.to_parquet(tmp_path / "tracts.parquet")
    found = [
        zones_of_release(releases["central"], zones).to_pandas()
        for zones in (
            zones_from(frame, "tract"),
            zones_from(frame.to_crs(3857), "tract"),
            zones_from(frame.set_index("tract").geometry),
            zones_from(shapes),
            zones_from(tmp_path / "tracts.geojson", "tract"),
            zones_from(str(tmp_path / "tracts.parquet"), "tract"),
        )
    ]
    for one in found:
        np.testing.assert_allclose(one["users"], found[0]["users"], rtol=1e-5, atol=1e-3)
    assert [list(one["zone"]) for one in found] == [list("abcd")] * 3 + [list("0123")] + [list("abcd")] * 2


TOWN = (3.00, 1.00, 3.13, 1.13)
MIDDLE = shapely.box(3.031, 1.027, 3.104, 1.098)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs, a heatmap of them with a category, one that starts from it, and tracts."""
    folder = tmp_path_factory.mktemp("zones_of_release")
    logs = folder / "logs" / "*.parquet"
    sfumato.synth(folder / "logs", users=5000, seed=1)
    common = {"region": TOWN, "depth": 6, "seed": 1}
    sfumato.heatmap(logs, output=folder / "map", auxiliary="infected", **common)
    sfumato.heatmap(logs, output=folder / "later", warm_start=folder / "map", trust="central", **common)
    frame = geopandas.GeoDataFrame({"tract": ["a"]}, geometry=[MIDDLE], crs="OGC:CRS84")
    frame.to_file(folder / "tracts.geojson", driver="GeoJSON")
    return folder


def zones(release: str | Path, output: Path, *options: str) -> int:
    return main(["zones", "--release", str(release), *options, "--output", str(output)])


@pytest.fixture(scope="module")
def central(releases: dict[str, Release]) -> str:
    return releases["central"].path


@pytest.mark.slow
@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("release", ["later"])
def test_a_tract_has_the_users_of_the_log(folder: Path, tmp_path: Path, release: str) -> None:
    """Within 6 standard deviations, with categories and with a warm start."""
    options = ("--zones", str(folder / "tracts.geojson"), "--id_column", "tract")
    assert zones(folder / release, tmp_path / "out.csv", *options) == 0
    row = pd.read_csv(tmp_path / "out.csv").iloc[0]
    logs = pd.concat(pd.read_parquet(path) for path in sorted((folder / "logs").glob("*.parquet")))
    inside = shapely.contains_xy(MIDDLE, logs["longitude"], logs["latitude"])
    assert len(logs) == logs["user_id"].nunique()
    assert abs(row["users"] - inside.sum()) < 6 * row["stddev"]
    assert row["stddev"] < 0.2 * inside.sum()


@pytest.mark.parametrize(("option", "level"), [("--quadkey", "14")])
def test_cells_of_an_index_add_up_to_the_map(central: str, tmp_path: Path, option: str, level: str) -> None:
    assert zones(central, tmp_path / "out.parquet", option, level) == 0
    table = geopandas.read_parquet(tmp_path / "out.parquet")
    release = sfumato.open_release(central)
    assert table["users"].sum() == pytest.approx(release.total(np.ones(len(release.cells)))[0])
    assert table["zone"].is_unique


@pytest.mark.parametrize(
    ("option", "output", "options"),
    [
        ("zones", "out.csv", ()),
        ("h3 and quadkey", "out.csv", ("--h3", "7", "--quadkey", "9")),
        ("h3", "out.csv", ("--h3", "15")),  # too many cells
        ("id_column", "out.csv", ("--h3", "7", "--id_column", "tract")),
        ("zones", "out.csv", ("--zones", "missing.geojson", "--id_column", "tract")),
        ("unknown", "out.csv", ("--h3", "7", "--epsilon", "1")),
        ("/", "out.csv", ("--h3", "7", "--release", "/nothing")),  # the folder is named
        ("output", "out.shp", ("--h3", "7")),
        ("output", "taken.csv", ("--h3", "7")),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(
    central: str, tmp_path: Path, option: str, output: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken.csv").write_text("mine")
    release = () if "--release" in options else ("--release", central)
    assert main(["zones", *release, *options, "--output", str(tmp_path / output)]) == 2
    error = capsys.readouterr().err.replace(": --", ": ").replace(" and --", " and ")
    assert f"zones --release: {option}" in error
    assert [path.name for path in tmp_path.iterdir()] == ["taken.csv"]
    assert (tmp_path / "taken.csv").read_text() == "mine"
