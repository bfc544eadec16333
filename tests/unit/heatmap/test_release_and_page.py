"""What a release and its page hold, by method and by the place where noise is added."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import shapely
from hypothesis import given, settings

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.region import Grid, Places, Region
from sfumato.schemas.release import ANSWERS_SCHEMA
from sfumato.schemas.tree import Tree, node_names, nodes_from_names
from sfumato.schemas.views import PageView
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.counting.manifest import heatmap_manifest
from sfumato.transforms.counting.methods import METHODS
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.rates import estimate_rates
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.heatmap import view as view
from sfumato.transforms.heatmap.release import (
    add_up_to,
    cells_table,
    interval_columns,
    published_estimate,
    release_files,
)
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.seeds import seeded_rng
from tests.unit.release.city import REGION, CityRelease, city_release
from tests.unit.schemas.test_tree import DEPTH as TREE_DEPTH
from tests.unit.schemas.test_tree import trees


@functools.cache
def made(method: str, **options: Any) -> CityRelease:
    return city_release(method, **options)


def table_of(release: CityRelease, name: str) -> pa.Table:
    return pq.read_table(io.BytesIO(release.files[name]))


@pytest.mark.parametrize("method", METHODS)
def test_release_files_hold_all_answers_and_one_estimate(method: str) -> None:
    release = made(method)
    estimate, answers = release.estimate, table_of(release, "answers.parquet")
    assert answers.schema.equals(ANSWERS_SCHEMA)
    for result in release.state.results:
        mine = answers.filter(pc.equal(answers["sub_query"], result.query.index))
        assert mine["cell_id"].to_pylist() == node_names(result.tree.entries)
        assert np.array_equal(mine["users"].to_numpy(), result.counts)
        assert (mine["stddev"].to_numpy() == result.noise_stddev).all()
    cells = table_of(release, "cells.parquet")
    assert np.array_equal(cells["count"].to_numpy(), estimate.counts)
    assert np.array_equal(cells["stddev"].to_numpy(), estimate.stddev)
    raster = np.load(io.BytesIO(release.files["density.npy"]))
    assert np.array_equal(raster, estimate_density(estimate))
    assert release.files["heatmap.png"].startswith(b"\x89PNG")


def metadata_of(parameters: Any, columns: LocationColumns) -> ReleaseMetadata:
    stated = {**parameters.metadata(), "columns": columns.metadata()}
    return ReleaseMetadata("heatmap", "made-up", "2026-11-21T00:50:00Z", "operating system", True, stated)


def rated_release(method: str, names: tuple[str, ...], users: int = 4000, **options: Any) -> CityRelease:
    """The release of users in 16 x 16 cells whose last category is the more common the farther east and south."""
    depth = 4
    places = Places(depth, len(names))
    values = {"depth": depth, "shard_size": users // 4, "dropout": 0.2, "population": users, **options}
    parameters = heatmap_parameters(method, values, len(names))
    rng = seeded_rng(5)
    cells = rng.integers(0, 4**depth, users)
    last = rng.random(users) < cells / 4**depth
    category = np.where(last, len(names) - 1, rng.integers(0, len(names) - 1, users))
    hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), users, dtype=np.uint64)) << np.uint64(places.bits)
    gamma = parameters.distribution_gamma
    weights = None if gamma is None else np.full(users, gamma)
    rows = Rows(places, hashes, (category << 2 * depth | cells).astype(np.uint64), weights)
    state = run_in_memory(rows, users, parameters, RunKey.derive(FixedSecret(b"city" * 8), {}))
    metadata = metadata_of(parameters, LocationColumns(auxiliary=Auxiliary("infected", names)))
    files = release_files(state, parameters, metadata, Grid(Region(**REGION), depth))
    estimate = add_up_to(parameters.method.decode(state, depth), state.users_estimate()[0])
    return CityRelease(state, parameters, estimate, files)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("false", "true"), ("well", "ill", "unsure")])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("flat", {"trust": "central"}),
        ("adaptive", {"shards": "disjoint"}),
        ("adaptive", {"schedule": "paper", "estimator": "last"}),
    ],
)
def test_release_files_hold_the_same_rates(method: str, options: dict[str, Any], names: tuple[str, ...]) -> None:
    release = rated_release(method, names, **options)
    state, estimate, manifest = release.state, release.estimate, release.manifest
    stated = ["true"] if len(names) == 2 else list(names)
    live = state.results[-1].shards_answered
    sums = 1 if options.get("trust") == "central" else live
    rates = estimate_rates(estimate, names, sums, state.shard_plan.shards / live)
    assert rates is not None
    if options.get("shards") == "disjoint":
        assert live < state.shard_plan.shards
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"]))
    kinds = {"rate": "rate", "rate_low": "low", "rate_high": "high", "rate_shrunk": "shrunk"}
    for kind, attribute in (
        kinds | {"simultaneous_low": "simultaneous_low", "simultaneous_high": "simultaneous_high"}
    ).items():
        mine = [kind if len(stated) == 1 else f"{kind}_{name}" for name in stated]
        column = np.array([cells[name].to_pylist() for name in mine], dtype=float)
        np.testing.assert_array_equal(column, getattr(rates, attribute))
    counted = np.array([cells[f"count_{name}"].to_pylist() for name in names])
    np.testing.assert_array_equal(counted, estimate.by_category)
    unknown = np.isnan(rates.rate) | np.isnan(rates.shrunk)
    assert not unknown.all()
    shown = [measure for measure in release.layers[-1].measures if measure.kind == "rate"]
    assert len(shown) == len(stated)
    for measure, *mine in zip(shown, unknown, rates.shrunk, rates.low, rates.high, strict=True):
        nowhere, rate, low, high = mine
        assert [one is None for one in measure.value] == nowhere.tolist()
        for values, expected in ((measure.value, np.clip(rate, low, high)), (measure.low, low), (measure.high, high)):
            np.testing.assert_allclose(np.array(values, dtype=float)[~nowhere], expected[~nowhere], atol=0.0051)
    assert ("rates.png" in release.files) == (len(names) == 2)
    auxiliary = manifest["auxiliary"]
    assert (auxiliary["column"], auxiliary["categories"]) == ("infected", list(names))
    assert auxiliary["entries_per_node"] == len(names)
    assert (auxiliary["rates"]["categories"], auxiliary["rates"]["level"]) == (stated, 0.95)
    assert f"one of {len(names)} bins" in manifest["privacy"]["contribution_bound"]


def test_manifest_states_parallel_composition_of_shards() -> None:
    """Disjoint shards: each user is in one sub-query, which has the whole budget."""
    release = city_release("adaptive", shards="disjoint", simulated_dropout=0.05)
    state, privacy = release.state, release.manifest["privacy"]
    spent = state.results
    assert len(spent) > 1
    assert sum(one.cost for one in spent) > state.budget.total
    assert privacy["composition"] == "parallel"
    assert privacy["epsilon_spent"] <= privacy["epsilon"] == state.budget.total
    assert release.manifest["communication"] == {
        "vector_entries": max(one.vector_length for one in spent),
        "bits_per_client": max(one.bits_per_client for one in spent),
    }
    together = city_release("adaptive", shards="shared", simulated_dropout=0.05)
    assert together.manifest["privacy"]["composition"] == "sequential"


ONE = "one location a user, "
BY_WEIGHT = f"{ONE}chosen at random in proportion to the weights of the user's records"
ALL = {"contribution": "all", "gamma": 50}


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({}, {}, f"{ONE}chosen uniformly at random"),
        ({}, {"weight": "minutes"}, BY_WEIGHT),
        ({}, {"time": "at"}, BY_WEIGHT),
        ({"contribution": "top"}, {}, f"{ONE}the cell with most of their records or weight"),
        (ALL, {"weight": "minutes"}, "one distribution a user over the cells of all their locations, in integers with"),
        (ALL | {"rounding": "independent"}, {}, "with independent rounding of every entry"),
    ],
)
def test_manifest_states_what_a_user_adds(options: dict[str, Any], columns: dict[str, Any], words: str) -> None:
    values = {"depth": 4, "shard_size": 1000, "dropout": 0.2, "population": 4000, **options}
    parameters = heatmap_parameters("flat", values)
    metadata = metadata_of(parameters, LocationColumns(**columns))
    manifest = heatmap_manifest(made("flat", depth=4).state, parameters, metadata, Grid(Region(**REGION), 4))
    assert words in manifest["privacy"]["contribution_bound"]


BOX = Region(-1.0, 50.0, 1.0, 51.0)
TREE_GRID = Grid(BOX, TREE_DEPTH)


def estimate_on(tree: Tree, counts: np.ndarray, stddev: float) -> Estimate:
    return Estimate(tree, counts, np.full(len(counts), stddev))


@given(trees())
@settings(max_examples=40, deadline=None)
def test_cells_table_partitions_the_region(tree: Tree) -> None:
    """What a node's descendants leave over: areas agree with the tree's, nothing overlaps, all is covered."""
    table = cells_table(estimate_on(tree, np.arange(len(tree.entries), dtype=float), 2.0), TREE_GRID)
    shapes = shapely.from_wkb(table["geometry"].to_numpy())
    cell = (BOX.east - BOX.west) * (BOX.north - BOX.south) / 4**TREE_DEPTH
    assert np.allclose(shapely.area(shapes) / cell, tree.areas)
    assert np.isclose(shapely.area(shapely.union_all(shapes)), cell * 4**TREE_DEPTH)
    density = np.array(table["density"].to_pylist(), dtype=float)
    assert (np.isnan(density) == (tree.areas == 0)).all()


def test_cells_table_has_bounds_and_density() -> None:
    table = cells_table(estimate_on(Tree.uniform(TREE_DEPTH, 1), np.array([4.0, -1, 2, 3]), 1.5), TREE_GRID).to_pandas()
    assert table["cell_id"].tolist() == ["r0", "r1", "r2", "r3"]
    north_west = table.iloc[0]
    assert north_west[["west", "south", "east", "north"]].tolist() == [-1.0, 50.5, 0.0, 51.0]
    # A degree of latitude is about 111.2 km; one of longitude that times the cosine.
    assert north_west["density"] == pytest.approx(4 / (111.195 * 0.5 * 111.195 * np.cos(np.radians(50.75))), rel=1e-3)
    assert (table["stddev"] == 1.5).all()


USERS, COHORTS, DEPTH, KEYS = 40_000, 10, 6, 40


GRID = Grid(Region(0, 0, 1, 1), DEPTH)


PARAMETERS = CountParameters(depth=DEPTH, rotation=COHORTS, shard_size=1_000)


@pytest.mark.slow
@pytest.mark.false_alarm(1e-8)
def test_map_of_a_tenth_of_the_users_is_of_all() -> None:
    """The mean of 40 standard normal errors is below 1 but with probability 3e-10, their mean square in 0.15..3.2."""
    rng, places = seeded_rng(5), Places(DEPTH, 1)
    centre, width = np.array([[0.3, 0.6], [0.7, 0.4]]), np.array([0.05, 0.15])
    kind = np.arange(USERS) % 2
    place = np.clip(rng.normal(centre[kind], width[kind][:, None]), 0.001, 0.999)
    codes = GRID.locate(place[:, 0], place[:, 1])[1].astype(np.uint64)
    exact = np.bincount(codes.astype(np.int64), minlength=4**DEPTH)
    inside, crowded, errors = [], [], []
    for number in range(KEYS):
        is_active = rng.random(USERS) < 1 / COHORTS
        hashes = np.sort(rng.integers(0, 2**63, int(is_active.sum()), dtype=np.uint64)) * np.uint64(2)
        rows = Rows(places, hashes & ~places.mask, rng.permutation(codes[is_active]))
        key = RunKey.derive(FixedSecret(bytes([number + 1] * 32)), {})
        state = run_in_memory(rows, len(hashes), PARAMETERS, key)
        estimate, unbiased, _ = published_estimate(state, PARAMETERS, GRID)
        columns = interval_columns(estimate, unbiased)
        owner = estimate.tree.index.owners(np.arange(4**DEPTH, dtype=np.uint64))
        truth = np.bincount(owner, exact, len(estimate.counts))
        holds = (columns["users_low"] <= truth) & (truth <= columns["users_high"])
        inside.append(holds.mean())
        crowded.append(holds[truth > 50].mean())
        users, stddev = state.all_users_estimate()
        assert estimate.counts.sum() == pytest.approx(users)
        errors.append((users - USERS) / stddev)
    assert 0.93 < np.mean(inside) < 0.97
    assert 0.92 < np.mean(crowded) < 0.98
    assert abs(np.mean(errors)) < 1
    assert 0.15 < np.mean(np.square(errors)) < 3.2


def words(view: PageView) -> str:
    return " ".join(text for section in view.sections for text in section.paragraphs)


def numbers(values: list[float | None]) -> np.ndarray:
    return np.array(values, dtype=float)


@pytest.mark.parametrize("method", METHODS)
def test_page_has_a_layer_of_each_sub_query_and_the_map(method: str) -> None:
    release = made(method)
    layers, cells = release.layers, table_of(release, "cells.parquet").to_pandas()
    assert len(layers) == (1 if method == "flat" else len(release.state.results) + 1)
    last = layers[-1]
    assert last.cell_id == cells["cell_id"].tolist()
    shown = numbers(last.measures[0].value)
    spread = np.maximum(cells["stddev"].to_numpy(), 1e-2)
    assert (np.abs(shown - cells["count"].to_numpy()) <= 0.1 * spread).all()
    full = 4.0 ** (6 - np.array(last.level))
    assert (np.array(last.area) * full).sum() == pytest.approx(4**6, rel=1e-4)
    tree = Tree.of(6, nodes_from_names(last.cell_id, 6))
    areas = tree.areas[np.searchsorted(tree.entries, nodes_from_names(last.cell_id, 6))]
    np.testing.assert_allclose(np.array(last.area) * full, areas, atol=1e-2)


def test_page_intervals_are_the_cells_own_and_hold_the_count() -> None:
    release = made("adaptive", users=40_000)  # of 4,000 users no count may be moved
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"])).to_pandas()
    users = release.layers[-1].measures[0]
    low, high = np.minimum(cells["users_low"], cells["count"]), np.maximum(cells["users_high"], cells["count"])
    spread = np.maximum(0.025 * (high - low), 1e-3)
    moved = (low < cells["users_low"]) | (high > cells["users_high"])
    assert moved.any()  # shrinkage moved counts out of their intervals
    assert (np.abs(numbers(users.low) - low) <= spread).all()
    assert (np.abs(numbers(users.high) - high) <= spread).all()
    assert users.uncertain == (cells["count"] <= 1.96 * cells["stddev"]).tolist()
    assert users.smooth
    manifest = release.manifest
    spent = manifest["privacy"]["sub_queries"][0]
    first = release.layers[0].measures[0]
    half = (1.96 + 0.206 / (spent["shards"] - spent["shards_lost"])) * spent["noise_stddev"]
    np.testing.assert_allclose(numbers(first.high) - numbers(first.low), 2 * half, rtol=0.05)


def test_page_lists_cells_by_the_density_of_their_lower_ends() -> None:
    release = made("adaptive", users=40_000)
    users = release.layers[-1].measures[0]
    cells = table_of(release, "cells.parquet").to_pandas()
    area = (cells["count"] / cells["density"])[[row for row, *_ in users.listed]].to_numpy()
    lows = np.array([low for _, _, low, _ in users.listed])
    assert len(lows) > 3
    assert (np.diff(lows / area) <= 1e-9 * (lows / area)[:-1]).all()
    for row, value, low, high in users.listed:
        assert 0 < low < (users.low[row] or 0) <= value <= (users.high[row] or 0) < high
