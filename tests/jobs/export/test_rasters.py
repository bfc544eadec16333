"""Rasters of maps: each pixel in its place, in GeoTIFFs and in xarray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import shapely
from hypothesis import given, settings
from rasterio.io import MemoryFile

import sfumato
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.export import map_raster
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.geotiff import write_geotiff
from sfumato.transforms.export.map_raster import Band, MapRaster, raster_of_cells
from sfumato.transforms.heatmap.release import cells_table
from sfumato.transforms.release.metadata import parquet_bytes
from sfumato.transforms.release.release_folder import publish
from tests.conftest import REGION
from tests.jobs.export.conftest import RASTERS
from tests.seeds import seeded_rng
from tests.unit.schemas.test_tree import DEPTH, trees

# --- rasters against brute force: every pixel by its cell's bounds, every cell by the sum of its pixels ---

GRID = Grid(REGION, DEPTH)


def random_cells(tree: Tree, seed: int = 3) -> pa.Table:
    rng = seeded_rng(seed)
    entries = len(tree.entries)
    return cells_table(Estimate(tree, rng.normal(50, 60, entries), rng.uniform(1, 3, entries)), GRID)


def bands_of(raster: MapRaster) -> dict[str, np.ndarray]:
    return {band.name: band.values for band in raster.bands}


@given(trees())
@settings(max_examples=30, deadline=None)
def test_pixel_has_the_value_of_the_cell_of_its_centre(tree: Tree) -> None:
    table = random_cells(tree)
    raster = raster_of_cells("cells", table, GRID, nested=False)
    bands = bands_of(raster)
    shapes = shapely.from_wkb(table["geometry"].to_numpy())
    x, y = np.meshgrid(raster.longitudes, raster.latitudes)
    at = shapely.STRtree(shapes).query(shapely.points(x.ravel(), y.ravel()), predicate="within")
    assert at[0].tolist() == list(range(x.size))  # one cell a pixel
    density = np.array(table["density"].to_pylist(), dtype=float)
    assert bands["density"].ravel() == pytest.approx(density[at[1]], rel=1e-9)
    summed = np.bincount(at[1], bands["users"].ravel(), len(shapes))
    count = np.where(np.isnan(density), 0, table["count"].to_numpy())
    assert summed == pytest.approx(count, rel=1e-9, abs=1e-9)
    area = count / np.where(density == 0, np.nan, density)
    stddev = (table["stddev"].to_numpy() / area)[at[1]]
    assert bands["density_stddev"].ravel() == pytest.approx(stddev, rel=1e-9, nan_ok=True)


@given(trees())
@settings(max_examples=20, deadline=None)
def test_coarse_pixels_have_sums_of_cells_and_no_interval(tree: Tree) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fine = bands_of(raster_of_cells("cells", random_cells(tree), GRID, nested=False))
        patch.setattr(map_raster, "MAX_LEVEL", max(tree.level - 1, 0))
        coarse = bands_of(raster_of_cells("cells", random_cells(tree), GRID, nested=False))
    if tree.level == 0:
        return
    side = len(coarse["users"])
    blocks = fine["users"].reshape(side, 2, side, 2).sum(axis=(1, 3))
    # Areas within a pixel differ by the cosine of the latitude, 1 degree from north to south in all.
    assert coarse["users"] == pytest.approx(blocks, rel=0.03, abs=0.03 * np.abs(fine["users"]).max())
    alone = np.ptp(fine["density_stddev"].reshape(side, 2, side, 2), axis=(1, 3)) == 0
    assert (~np.isnan(coarse["density_stddev"]) | ~alone | np.isnan(coarse["density"])).all() or alone.any()
    assert np.isnan(coarse["density_stddev"])[~alone].all()


def test_a_heatmaps_bands_are_those_of_its_table(sources: dict[str, ExportSource]) -> None:
    source = sources["heatmap"]
    cells, bands = source.release.cells, bands_of(source.raster)
    assert list(bands) == ["users", "density", "density_low", "density_high", "density_stddev"]
    assert bands["users"].sum() == pytest.approx(cells["count"].sum())
    density = source.raster
    for _, cell in cells[cells["density"] > 0].sample(40, random_state=1).iterrows():  # whose area is known
        point = cell.geometry.representative_point() if hasattr(cell.geometry, "area") else None
        assert point is not None
        column = int(np.searchsorted(density.longitudes + (density.longitudes[1] - density.longitudes[0]) / 2, point.x))
        row = int((density.region.north - point.y) / (density.region.north - density.region.south) * density.shape[0])
        area = cell["count"] / cell["density"]
        assert bands["density_low"][row, column] == pytest.approx(cell["users_low"] / area)
        assert bands["density_high"][row, column] == pytest.approx(cell["users_high"] / area)


def test_bands_without_a_stated_error_are_left_out(sources: dict[str, ExportSource]) -> None:
    assert list(bands_of(sources["flat"].raster)) == ["users", "density", "density_stddev"]
    assert {"density_low", "density_high"} <= set(bands_of(sources["central"].raster))
    assert {"mean_value", "mean_low", "mean_high", "mean_stddev"} <= set(bands_of(sources["moments"].raster))
    assert "users" not in bands_of(sources["moments"].raster)
    assert "difference_low" in bands_of(sources["changes"].raster)
    assert any(name.startswith("rate") for name in bands_of(sources["rates"].raster))


def test_changes_add_up_over_their_finest_cells(sources: dict[str, ExportSource]) -> None:
    source = sources["changes"]
    table, raster = source.layer.table.to_pandas(), source.raster
    leaves = table[table["leaf"]]
    bands = bands_of(raster)
    area = map_raster._pixel_areas(raster.region, raster.shape[0])
    assert np.nansum(bands["difference"] * area) == pytest.approx(leaves["difference"].sum())
    assert ((bands["difference_low"] <= bands["difference"]) & (bands["difference"] <= bands["difference_high"])).all()


def test_squares_of_a_model_tile_its_region(sources: dict[str, ExportSource]) -> None:
    source = sources["ranges"]
    table = source.layer.table.to_pandas()
    users = bands_of(source.raster)["users"]
    assert users.ravel() == pytest.approx(table["users"].to_numpy())
    assert users.min() >= 0
    # The squares share the noisy number of users; the result adds up noisy counts, some of which are below 0.
    assert users.sum() == pytest.approx(source.release.manifest["results"]["users"], abs=20)
    row, column = 3, 5
    square = table.iloc[row * users.shape[1] + column]
    assert source.raster.longitudes[column] == pytest.approx((square["west"] + square["east"]) / 2)
    assert source.raster.latitudes[row] == pytest.approx((square["south"] + square["north"]) / 2)


# --- GeoTIFFs by rasterio: the structure of a cloud-optimised file, and every pixel in its place ---


@dataclass(frozen=True)
class Large:
    """What `write_geotiff` takes of a source, with a raster of several blocks."""

    raster: MapRaster
    statement: dict[str, str]


def large() -> Large:
    values = seeded_rng(4).normal(0, 50, (1024, 1024))
    values[:100, :] = np.nan
    bands = Band("users", "users", "of the pixel", values), Band("density", "users per km2", "of the cell", -values)
    return Large(MapRaster(Region(3.0, 1.0, 3.13, 1.13), bands), {"guarantee": "at ε = 1", "licence": "not stated"})


def test_it_has_the_structure_of_a_cloud_optimised_file() -> None:
    content = write_geotiff(large())[""]  # type: ignore[arg-type]
    with MemoryFile(content) as file, file.open() as dataset:
        assert dataset.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert dataset.profile["tiled"]
        assert dataset.block_shapes == [(256, 256)] * 2
        assert dataset.overviews(1) == dataset.overviews(2) == [2, 4]
        assert dataset.compression.name == "deflate"
    # What a reader of ranges needs comes first: the header and all directories lie before the first block.
    assert content[:4] == b"II*\x00"
    assert b"LAYOUT=IFDS_BEFORE_DATA" in content[:100]


def test_pixels_and_edges_lie_where_the_region_says() -> None:
    source = large()
    with MemoryFile(write_geotiff(source)[""]) as file, file.open() as dataset:  # type: ignore[arg-type]
        assert tuple(dataset.bounds) == pytest.approx((3.0, 1.0, 3.13, 1.13))
        assert dataset.crs.to_epsg() == 4326
        assert np.isnan(dataset.nodata)
        for number, band in enumerate(source.raster.bands, 1):
            assert np.array_equal(dataset.read(number), band.values.astype(np.float32), equal_nan=True)
        assert dataset.descriptions == ("users", "density")
        assert dataset.units == ("users", "users per km2")
        assert dataset.tags(2)["description"] == "of the cell"
        assert dataset.tags()["guarantee"] == "at ε = 1"
        assert dataset.tags()["AREA_OR_POINT"] == "Area"
        longitude, latitude = dataset.xy(700, 300)
        assert longitude == pytest.approx(source.raster.longitudes[300])
        assert latitude == pytest.approx(source.raster.latitudes[700])


# --- rasters in xarray and rows in geopandas, as a notebook has them ---


@pytest.mark.parametrize("kind", RASTERS)
def test_a_dataset_has_its_place_its_units_and_its_guarantee(kind: str, folders: dict[str, Path]) -> None:
    if kind == "changes":
        with pytest.raises(sfumato.RequestError, match=r"sfumato.changes.*pandas.read_parquet.*changes.parquet"):
            sfumato.open_release(folders[kind])
        return
    release = sfumato.open_release(folders[kind])
    dataset = release.to_xarray()
    assert dataset.attrs["guarantee"] == release.guarantee
    assert dataset["y"].attrs["units"] == "degrees_north"
    assert (np.diff(dataset["y"]) < 0).all()
    assert (np.diff(dataset["x"]) > 0).all()
    region = release.manifest["region"]
    half = float(dataset["x"][1] - dataset["x"][0]) / 2
    assert [float(dataset["x"][0]) - half, float(dataset["x"][-1]) + half] == pytest.approx(
        [region["west"], region["east"]]
    )
    for name, band in dataset.data_vars.items():
        if name != "crs":
            assert band.dims == ("y", "x")
            assert band.attrs["units"]
            assert band.attrs["long_name"]
            assert band.attrs["grid_mapping"] == "crs"


def test_slots_of_time_are_a_dimension(folders: dict[str, Path], tmp_path: Path) -> None:
    """A table with a row for each slot and cell, as maps by hour have it."""
    release = sfumato.open_release(folders["flat"])
    cells = release.arrow_table("cells.parquet").select(["cell_id", "depth", "west", "south", "east", "north"])
    count = release.cells["count"].to_numpy()
    parts = []
    for slot, share in enumerate((0.2, 0.3, 0.5)):
        name = pa.array([f"{slot}-{slot + 1} h"] * len(count))
        parts.append(
            cells.append_column("slot", pa.array(np.full(len(count), slot)))
            .append_column("slot_name", name)
            .append_column("users", pa.array(count * share))
        )
    files = {path.name: path.read_bytes() for path in folders["flat"].iterdir()}
    files["slots.parquet"] = parquet_bytes(pa.concat_tables(parts[::-1]))
    publish(str(tmp_path / "release"), files, "made-up", overwrite=False)
    dataset = sfumato.open_release(tmp_path / "release").to_xarray("slots")
    assert dataset["users"].dims == ("slot", "y", "x")
    assert dataset["slot"].values.tolist() == ["0-1 h", "1-2 h", "2-3 h"]
    whole = release.to_xarray()
    assert dataset["users"].sum("slot").values == pytest.approx(whole["users"].values)
    assert float(dataset["users"].sel(slot="1-2 h").sum()) == pytest.approx(0.3 * count.sum())
    with pytest.raises(sfumato.RequestError, match=r"^table: cells has no time slots"):
        release.to_xarray("cells")
    with pytest.raises(sfumato.RequestError, match=r"^table: .* has no table 'slots'"):
        release.to_xarray("slots")


def test_a_frame_has_shapes_and_the_guarantee(folders: dict[str, Path]) -> None:
    release = sfumato.open_release(folders["moments"])
    frame = release.to_geodataframe()
    assert frame.crs.to_string() == "OGC:CRS84"
    assert frame.attrs["epsilon"] == f"{release.manifest['privacy']['epsilon']:g}"
    assert frame.geometry.is_valid.all()
    with pytest.raises(sfumato.RequestError, match=r"^table: bits .* has no shapes"):
        release.to_geodataframe("bits")
    with pytest.raises(sfumato.RequestError, match=r"^to_geodataframe: requires a table with shapes"):
        sfumato.open_release(folders["words"]).to_geodataframe()
    with pytest.raises(sfumato.RequestError, match=r"^to_xarray: requires a map of cells"):
        sfumato.open_release(folders["words"]).to_xarray()
