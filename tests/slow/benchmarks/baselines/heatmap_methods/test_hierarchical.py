"""Hierarchies of levels, their registration as methods from outside, and consistent trees."""

from __future__ import annotations

import html
import itertools
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely

import sfumato
from benchmarks.baselines.heatmap_methods import BASELINES
from benchmarks.baselines.heatmap_methods.hierarchical import Hierarchical
from benchmarks.baselines.heatmap_methods.pyramid import Pyramid, choose_levels, gain_of_splits, pruned
from benchmarks.baselines.heatmap_methods.spatial_decomposition import SpatialDecomposition, consistent_levels
from sfumato.pipelines.command_line.cli import main
from sfumato.pipelines.operations.readers import release_view
from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree, node_levels
from sfumato.transforms.counting.methods import METHODS
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.release.release_folder import publish
from sfumato.transforms.report.report import render_page
from tests.seeds import seeded_rng
from tests.unit.counting.methods.oracle import group_of, least_squares, run, some_rows
from tests.unit.release.city import city_release

DEPTH = 4
METHOD = Hierarchical()


def parameters(**options: object) -> CountParameters:
    return CountParameters(**{"depth": DEPTH, "shard_size": 100, "dropout": 0.5, "method": METHOD, **options})


@pytest.mark.parametrize("population", [400, None])
def test_every_level_is_asked_once_for_an_equal_share(population: int | None) -> None:
    state = run(parameters(population=population), group_of(some_rows(1, 400, 4, DEPTH), 4, DEPTH))
    assert [result.encoding.tree for result in state.results] == [Tree.uniform(DEPTH, i) for i in (1, 2, 3, 4)]
    left = 1 - state.population.cost
    assert math.isclose(left, 0.99)
    for result in state.results:
        assert math.isclose(result.cost, left / 4)
    assert state.budget.spent == 1
    assert len(state.results) == METHOD.most_sub_queries(DEPTH)


def noisy_levels(counts: np.ndarray, stddevs: tuple[float, ...], rng: np.random.Generator) -> list[Estimate]:
    """Noisy counts of the levels 1..3 of users uint64[64] by code."""
    return [
        Estimate(
            Tree.uniform(3, level),
            counts.reshape(4**level, -1).sum(axis=1) + rng.normal(0, stddev, 4**level),
            np.full(4**level, stddev),
        )
        for level, stddev in enumerate(stddevs, 1)
    ]


@pytest.mark.parametrize(("rate", "stddevs"), [(1.0, (3.0, 5.0, 8.0)), (0.5, (0.5, 2.0, 1.5))])
def test_the_gain_of_a_split_is_unbiased(rate: float, stddevs: tuple[float, ...]) -> None:
    """Against the saved squared error itself, over draws of users and noise, with all cells of a level split."""
    rng, draws = seeded_rng(3), 6000
    people = rng.integers(0, 8, 4**3)
    truth, users = people / people.sum(), people.sum() * rate
    for upper in (1, 2):
        gaps = []
        for _ in range(draws):
            levels = noisy_levels(rng.binomial(people, rate), stddevs, rng)
            losses = [
                np.sum((np.repeat(one.counts / users / (64 // len(one.counts)), 64 // len(one.counts)) - truth) ** 2)
                for one in levels
            ]
            added = 4 * stddevs[upper] ** 2 - stddevs[upper - 1] ** 2 / 4
            gain = gain_of_splits(levels[upper], added, 1 - rate).sum() / users**2
            gaps.append(losses[upper - 1] - losses[upper] - gain)
        tolerance = 6.2 * np.std(gaps) / math.sqrt(draws)
        assert abs(np.mean(gaps)) < tolerance
        # Small enough to see the noise of a level, or the sample's, counted once too often.
        cells, area = 4 ** (upper + 1), 4 ** (2 - upper)
        assert cells * stddevs[upper] ** 2 / area / users**2 > tolerance
        assert rate == 1 or 0.75 * (1 - rate) / area / users > tolerance


def test_every_subregion_has_its_own_level() -> None:
    """A crowd in one cell is shown at the finest level; elsewhere, where users are spread evenly, nothing is split."""
    users = [(i % 4, 77 if i < 2000 else i % 256, 1) for i in range(4048)]
    state = run(parameters(population=4048, shard_size=1000, epsilon=2.0), group_of(users, 4, DEPTH))
    made = METHOD.decode(state, DEPTH)
    assert made.tree.level == 4
    leaf = made.tree.index.owners(np.array([77, 130], dtype=np.uint64))
    levels = node_levels(made.tree.entries)
    assert levels[leaf].tolist() == [4, 1]
    assert len(made.counts) < 20
    for level, one in enumerate(METHOD.candidates(state, DEPTH), 1):  # the others' counts are not used
        mine = levels == level
        assert made.counts[mine].tolist() == one.counts[np.isin(one.tree.entries, made.tree.entries[mine])].tolist()
        assert made.stddev[mine].tolist() == [state.results[level - 1].noise_stddev] * mine.sum()


# Methods that the package does not know: what it asks of one that a program registers, and of releases of others.


@pytest.fixture
def earlier(method: str, tmp_path: Path) -> Path:
    """A release by a method that is not registered any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, method, BASELINES[method])
        files = city_release(method, depth=4).files
    publish(str(tmp_path / "release"), files, "made-up", overwrite=False)
    return tmp_path / "release"


@pytest.mark.parametrize("method", BASELINES)
def test_open_release_unregistered_method(method: str, earlier: Path, tmp_path: Path) -> None:
    """A release by a method of another program is read, exported and has a page."""
    assert method not in METHODS
    release = sfumato.open_release(earlier)
    assert len(release.cells) == pq.read_metadata(earlier / "cells.parquet").num_rows > 1
    assert main(["export", str(earlier), "--output", str(tmp_path / "map.gpkg")]) == 0
    assert main(["export", str(earlier), "--output", str(tmp_path / "map.tif")]) == 0
    page = render_page(release_view(release))
    assert f"The method is {method}." in page
    assert BASELINES[method].SENTENCE not in html.unescape(page)
    with pytest.raises(RequestError, match="does not state errors of sums of cells"):
        release.zones([shapely.box(-74.0, 40.7, -73.9, 40.75)])


DECOMPOSITION_DEPTH = 3


def design() -> np.ndarray:
    """Which leaves each node of levels 1..3 covers: float64[84, 64], level by level."""
    rows = [
        [leaf >> 2 * (DECOMPOSITION_DEPTH - level) == cell for leaf in range(64)]
        for level in (1, 2, 3)
        for cell in range(4**level)
    ]
    return np.array(rows, dtype=float)


@pytest.mark.parametrize("variances", [(1.0, 1.0, 1.0), (9.0, 4.0, 0.5), (0.1, 3.0, 80.0)])
def test_consistent_tree_is_weighted_least_squares(variances: tuple[float, ...]) -> None:
    rng, a = seeded_rng(4), design()
    levels = [(rng.normal(5, 20, 4**level), variance) for level, variance in enumerate(variances, 1)]
    each = np.concatenate([np.full(len(counts), variance) for counts, variance in levels])
    leaves, covariance = least_squares(a, np.concatenate([counts for counts, _ in levels]), each)
    got = consistent_levels(levels)
    assert np.allclose(np.concatenate([counts for counts, _ in got]), a @ leaves, atol=1e-9)
    deviations = np.concatenate([np.full(len(counts), variance) for counts, variance in got])
    assert np.allclose(deviations, np.diag(a @ covariance @ a.T))
    for (upper, _), (lower, _) in itertools.pairwise(got):
        assert np.allclose(upper, lower.reshape(-1, 4).sum(axis=1))


@pytest.mark.parametrize("doubling", [3.0, -3.0])
def test_budgets_are_geometric_and_every_level_gains(doubling: float) -> None:
    method = SpatialDecomposition(budget_doubling=doubling)
    parameters = CountParameters(depth=DECOMPOSITION_DEPTH, shard_size=100, dropout=0.5, population=400, method=method)
    state = run(parameters, group_of(some_rows(5, 400, 4, DECOMPOSITION_DEPTH), 4, DECOMPOSITION_DEPTH))
    spent = [result.cost for result in state.results]
    assert state.budget.spent == 1
    assert np.allclose(np.divide(spent[1:], spent[:-1]), 2 ** (1 / doubling))
    raw, consistent = (
        Pyramid.candidates(method, state, DECOMPOSITION_DEPTH),
        method.candidates(state, DECOMPOSITION_DEPTH),
    )
    levels = consistent_levels([(one.counts, one.stddev[0] ** 2) for one in raw])
    for level, (before, after) in enumerate(zip(raw, consistent, strict=True)):
        assert after.counts.tolist() == levels[level][0].tolist()
        assert (after.stddev < before.stddev).all()
    chosen, every = (method.decode(state, DECOMPOSITION_DEPTH), np.concatenate([one.counts for one in consistent]))
    assert np.isin(chosen.counts, every).all()
    assert math.isclose(chosen.counts.sum(), consistent[0].counts.sum())  # whatever is split
    assert chosen.tree == pruned(consistent, choose_levels(raw, consistent, 0.0)).tree
