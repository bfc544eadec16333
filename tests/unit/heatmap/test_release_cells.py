import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely
from hypothesis import given, settings

from sfumato.schemas.region import Grid, area_km2
from sfumato.schemas.release import CELLS_SCHEMA, cells_schema
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.rates import Rates, estimate_rates
from sfumato.transforms.heatmap.release import cells_table
from sfumato.transforms.heatmap.state import Estimate
from tests.conftest import REGION
from tests.unit.schemas.test_tree import DEPTH, trees

GRID = Grid(REGION, DEPTH)


def estimate(tree: Tree, counts: np.ndarray, stddev: float) -> Estimate:
    return Estimate(tree, counts, np.full(len(counts), stddev))


@given(trees())
@settings(max_examples=40, deadline=None)
def test_geometries_partition_the_region(tree: Tree) -> None:
    """What a node's descendants leave over: areas agree with the tree's, nothing overlaps, all is covered."""
    table = cells_table(estimate(tree, np.arange(len(tree.entries), dtype=float), 2.0), GRID)
    shapes = shapely.from_wkb(table["geometry"].to_numpy())
    cell = (REGION.east - REGION.west) * (REGION.north - REGION.south) / 4**DEPTH
    assert np.allclose(shapely.area(shapes) / cell, tree.areas)
    assert np.isclose(shapely.area(shapely.union_all(shapes)), cell * 4**DEPTH)
    density = np.array(table["density"].to_pylist(), dtype=float)
    assert (np.isnan(density) == (tree.areas == 0)).all()


def test_columns_bounds_and_density() -> None:
    table = cells_table(estimate(Tree.uniform(DEPTH, 1), np.array([4.0, -1, 2, 3]), 1.5), GRID).to_pandas()
    assert table["cell_id"].tolist() == ["r0", "r1", "r2", "r3"]
    north_west = table.iloc[0]
    assert north_west[["west", "south", "east", "north"]].tolist() == [-1.0, 50.5, 0.0, 51.0]
    # A degree of latitude is about 111.2 km; one of longitude that times the cosine.
    assert north_west["density"] == pytest.approx(4 / (111.195 * 0.5 * 111.195 * np.cos(np.radians(50.75))), rel=1e-3)
    assert (table["stddev"] == 1.5).all()


def test_the_whole_globe() -> None:
    globe = area_km2(np.array([-180.0]), np.array([-90.0]), np.array([180.0]), np.array([90.0]))
    assert globe[0] == pytest.approx(510.06e6, rel=1e-4)


def test_it_is_geoparquet() -> None:
    buffer = io.BytesIO()
    pq.write_table(cells_table(estimate(Tree.uniform(DEPTH, 1), np.ones(4), 1.0), GRID), buffer)
    file = pq.ParquetFile(buffer)
    assert file.schema_arrow.names == CELLS_SCHEMA.names
    geo = json.loads(file.schema_arrow.metadata[b"geo"])
    assert geo["version"] == "1.1.0"
    assert geo["columns"][geo["primary_column"]]["encoding"] == "WKB"


def test_geopandas_reads_it(tmp_path) -> None:
    geopandas = pytest.importorskip("geopandas")
    path = tmp_path / "cells.parquet"
    pq.write_table(cells_table(estimate(Tree.uniform(DEPTH, 2), np.ones(16), 1.0), GRID), path)
    frame = geopandas.read_parquet(path)
    assert frame.crs.to_string() == "OGC:CRS84"
    assert frame.geometry.is_valid.all()


def by_category(counts: list[list[float]], noise: float = 3.0) -> Estimate:
    array = np.array(counts)
    each = np.full(array.shape[1], noise)
    return Estimate(Tree.uniform(DEPTH, 1), array.sum(axis=0), each, array, each)


def rates(of: Estimate, names: tuple[str, ...]) -> Rates:
    found = estimate_rates(of, names, 4)
    assert found is not None
    return found


def test_two_categories_have_one_rate() -> None:
    counted = by_category([[90.0, 5, 0, 400], [10.0, 5, -2, 600]])
    table = cells_table(counted, GRID, ("false", "true"), rates(counted, ("false", "true")))
    added = [
        "rate",
        "rate_low",
        "rate_high",
        "rate_shrunk",
        "simultaneous_low",
        "simultaneous_high",
        "count_false",
        "count_true",
    ]
    assert table.schema.names == [*CELLS_SCHEMA.names[:-1], *added, "geometry"]
    assert table["count_true"].to_pylist() == [10, 5, -2, 600]
    assert table["rate_shrunk"].to_pylist()[2] is None
    assert table["rate_shrunk"].to_pylist()[3] < 0.6  # towards the average, which is lower
    rate, low, high = (np.array(table[name].to_pylist(), dtype=float) for name in added[:3])
    assert rate[[0, 3]].tolist() == [0.1, 0.6]
    assert low[0] < 0.1 < high[0]
    assert low[3] < 0.6 < high[3]
    assert table["rate"].to_pylist()[2] is None  # nobody is there to have a rate
    assert (low[2], high[2]) == (0, 1)


def test_each_of_several_categories_has_a_rate() -> None:
    names = ("sick", "well", "who knows")
    counted = by_category([[90.0, 5, 0, 400], [10.0, 5, -2, 600], [50.0, 1, 2, 3]])
    told = rates(counted, names)
    table = cells_table(counted, GRID, names, told)
    assert table.schema == cells_schema(names, names)
    assert table["count_who knows"].to_pylist() == [50, 1, 2, 3]
    for place, name in enumerate(names):
        for kind, values in (("rate", told.rate), ("rate_low", told.low), ("rate_high", told.high)):
            column = np.array(table[f"{kind}_{name}"].to_pylist(), dtype=float)
            np.testing.assert_array_equal(column, values[place])
    assert all(
        b"description" in table.schema.field(name).metadata
        for name in table.schema.names
        if name.startswith(("rate", "simultaneous", "count_"))
    )


def test_without_auxiliary_data_the_table_is_as_ever() -> None:
    table = cells_table(estimate(Tree.uniform(DEPTH, 1), np.ones(4), 1.0), GRID)
    assert table.schema == cells_schema() == CELLS_SCHEMA


def test_geopandas_reads_rates(tmp_path) -> None:
    geopandas = pytest.importorskip("geopandas")
    counted = by_category([[90.0, 5, 0, 400], [10.0, 5, -2, 600]])
    path = tmp_path / "cells.parquet"
    pq.write_table(cells_table(counted, GRID, ("no", "yes"), rates(counted, ("no", "yes"))), path)
    frame = geopandas.read_parquet(path)
    assert frame["rate"].isna().tolist() == [
        False,
        frame["rate_low"][1] == 0 and frame["rate_high"][1] == 1,
        True,
        False,
    ]
