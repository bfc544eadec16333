"""Rasters against brute force: every pixel by its cell's bounds, every cell by the sum of its pixels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import shapely
from hypothesis import given, settings

from sfumato.schemas.region import Grid
from sfumato.schemas.tree import Tree
from sfumato.transforms.export import map_raster
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.map_raster import MapRaster, raster_of_cells
from sfumato.transforms.heatmap.release import cells_table
from sfumato.transforms.heatmap.state import Estimate
from tests.conftest import REGION
from tests.seeds import seeded_rng
from tests.unit.schemas.test_tree import DEPTH, trees

GRID = Grid(REGION, DEPTH)


def random_cells(tree: Tree, seed: int = 3) -> pa.Table:
    rng = seeded_rng(seed)
    entries = len(tree.entries)
    return cells_table(Estimate(tree, rng.normal(50, 60, entries), rng.uniform(1, 3, entries)), GRID)


def bands_of(raster: MapRaster) -> dict[str, np.ndarray]:
    return {band.name: band.values for band in raster.bands}


@given(trees())
@settings(max_examples=30, deadline=None)
def test_each_pixel_has_the_value_of_the_cell_that_its_centre_lies_in(tree: Tree) -> None:
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
def test_pixels_coarser_than_cells_have_their_sum_and_no_interval(tree: Tree) -> None:
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
    for _, cell in cells.sample(40, random_state=1).iterrows():
        point = cell.geometry.representative_point() if hasattr(cell.geometry, "area") else None
        assert point is not None
        column = int(np.searchsorted(density.longitudes + (density.longitudes[1] - density.longitudes[0]) / 2, point.x))
        row = int((density.region.north - point.y) / (density.region.north - density.region.south) * density.shape[0])
        area = cell["count"] / cell["density"]
        assert bands["density_low"][row, column] == pytest.approx(cell["users_low"] / area)
        assert bands["density_high"][row, column] == pytest.approx(cell["users_high"] / area)


def test_bands_without_a_stated_error_are_left_out(sources: dict[str, ExportSource]) -> None:
    assert list(bands_of(sources["flat"].raster)) == ["users", "density", "density_stddev"]
    assert list(bands_of(sources["central"].raster))[2:4] == ["density_low", "density_high"] or set(
        bands_of(sources["central"].raster)
    ) == {"users", "density", "density_low", "density_high", "density_stddev"}
    assert {"mean_value", "mean_low", "mean_high", "mean_stddev"} <= set(bands_of(sources["moments"].raster))
    assert "users" not in bands_of(sources["moments"].raster)
    assert "difference_low" in bands_of(sources["changes"].raster)
    assert any(name.startswith("rate") for name in bands_of(sources["rates"].raster))


def test_hot_spots_show_the_finest_level_alone_and_nothing_elsewhere(sources: dict[str, ExportSource]) -> None:
    source = sources["hotspots"]
    cells, users = source.release.cells, bands_of(source.raster)["users"]
    finest = cells[cells["depth"] == cells["depth"].max()]
    assert len(set(cells["depth"])) > 1
    assert np.nansum(users) == pytest.approx(finest["count"].sum())
    assert (~np.isnan(users)).sum() == len(finest)


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
    assert users.sum() == pytest.approx(source.release.manifest["results"]["users"])
    row, column = 3, 5
    square = table.iloc[row * users.shape[1] + column]
    assert source.raster.longitudes[column] == pytest.approx((square["west"] + square["east"]) / 2)
    assert source.raster.latitudes[row] == pytest.approx((square["south"] + square["north"]) / 2)
