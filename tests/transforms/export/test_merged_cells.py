"""Merged cells against brute force: sums, shapes, and errors by `Release.total`, one row at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import shapely
from hypothesis import given, settings

from sfumato.schemas.region import Grid, area_km2
from sfumato.schemas.tree import Tree
from sfumato.transforms.export.map_layer import MapLayer, layer_of_table
from sfumato.transforms.export.merged_cells import CellErrors, merged_cells
from sfumato.transforms.heatmap.cells import cells_table
from sfumato.transforms.heatmap.posterior.unbiased import user_intervals
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.release.published_release import Release
from tests.conftest import REGION
from tests.schemas.test_tree import DEPTH, trees
from tests.transforms.export.conftest import HEATMAP_GRID

GRID = Grid(REGION, DEPTH)
INDEPENDENT = CellErrors(np.zeros(0, np.uint64), np.zeros(0), np.zeros(0), True)


def random_layer(tree: Tree) -> MapLayer:
    rng = np.random.default_rng(5)
    count, stddev = rng.normal(20, 30, len(tree.entries)), rng.uniform(1, 4, len(tree.entries))
    return layer_of_table("cells", cells_table(Estimate(tree, count, stddev), GRID))


@given(trees())
@settings(max_examples=30, deadline=None)
def test_rows_below_a_level_are_summed_and_their_shapes_joined(tree: Tree) -> None:
    """Any tree, also one whose nodes lack a parent, so that a merged row has a part of its node alone."""
    layer = random_layer(tree)
    cells = layer.table.to_pandas()
    for level in range(DEPTH + 1):
        merged = merged_cells(layer, GRID, level, INDEPENDENT)
        found = merged.table.to_pandas()
        assert merged.table["cells"].to_numpy().sum() == len(cells)
        key = cells["cell_id"].str.slice(0, level + 1)
        assert found["cell_id"].is_unique
        assert set(found["cell_id"]) == set(key)
        for number, row in found.iterrows():
            mine = (key == row["cell_id"]).to_numpy()
            assert row["cells"] == mine.sum()
            assert row["count"] == pytest.approx(cells["count"][mine].sum())
            assert row["stddev"] == pytest.approx(np.sqrt((cells["stddev"][mine] ** 2).sum()))
            whole = shapely.union_all(layer.shapes[mine])
            assert shapely.area(shapely.symmetric_difference(whole, merged.shapes[number])) < 1e-12
            if mine.sum() == 1 and len(row["cell_id"]) == len(cells["cell_id"][mine].iloc[0]):
                assert row["density"] == pytest.approx(cells["density"][mine].iloc[0], nan_ok=True)


def test_intervals_of_merged_rows_are_those_of_exact_sums(heatmap: Release) -> None:
    layer = layer_of_table("cells", heatmap.arrow_table("cells.parquet"))
    cells, errors = layer.table.to_pandas(), CellErrors.of(heatmap)
    for level in (0, 1, 3, 5):
        found = merged_cells(layer, HEATMAP_GRID, level, errors).table.to_pandas()
        for _, row in found.sample(min(len(found), 12), random_state=level).iterrows():
            mine = (cells["cell_id"].str.slice(0, level + 1) == row["cell_id"]).to_numpy()
            if mine.sum() == 1:
                expected = cells.loc[mine, ["users_low", "users_high"]].to_numpy()[0]
            else:
                users, stddev = heatmap.total(mine)
                low, high = user_intervals(np.array([users]), np.array([stddev]))
                expected = [low[0], high[0]]
                assert row["users_unbiased"] == pytest.approx(users)
                assert np.isnan(row["stddev"])
            assert row[["users_low", "users_high"]].astype(float).to_numpy() == pytest.approx(expected)
            bounds = [np.array([row[side]]) for side in ("west", "south", "east", "north")]
            assert row["density"] == pytest.approx(row["count"] / area_km2(*bounds)[0])


def test_rows_that_are_no_whole_node_have_an_upper_bound_of_their_variance(heatmap: Release) -> None:
    errors = CellErrors.of(heatmap)
    cells = heatmap.cells
    group = np.arange(len(cells)) % 3  # three groups, none of which is a node
    bound = errors.of_groups(np.ones(3, np.uint64), np.zeros(3, bool), group)
    exact = [heatmap.total(group == number)[1] for number in range(3)]
    assert (bound >= exact).all()
    assert (bound < 1.5 * np.array(exact)).all()


def test_columns_of_text_are_null_where_rows_were_merged() -> None:
    layer = random_layer(Tree.uniform(DEPTH, 2))
    names = pa.array([f"cell {number}" for number in range(layer.table.num_rows)])
    named = MapLayer(layer.name, layer.table.append_column("label", names), layer.shapes)
    assert merged_cells(named, GRID, 1, INDEPENDENT).table["label"].to_pylist() == [None] * 4
    assert merged_cells(named, GRID, 2, INDEPENDENT).table["label"].to_pylist() == names.to_pylist()


def test_rates_are_null_where_rows_were_merged(sources) -> None:
    source = sources["rates"]
    layer = source.layer
    merged = merged_cells(layer, source.release.grid, 2, CellErrors.of(source.release)).table.to_pandas()
    rates = [name for name in merged if name.startswith("rate")]
    assert rates
    assert merged.loc[merged["cells"] > 1, rates].isna().all().all()
    for name in [name for name in merged if name.startswith("count_")]:
        assert merged[name].sum() == pytest.approx(layer.table[name].to_numpy().sum())
