"""Borders that follow a change of density: what the levels above show of them, on maps with a shore."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from scipy import stats

from sfumato.schemas.region import Grid, Region
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, TreeMeasurement, measure
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts, WithinCells, learn_within_cells
from sfumato.transforms.zones.area_estimates import AreaUsers, estimate_areas
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

DEPTH, USERS, NOISE = 5, 40_000, 3.0
BOX = shapely.box(0.0, 0.0, 1.0, 1.0)
GRID = Grid(Region(0.0, 0.0, 1.0, 1.0), DEPTH)
ISLAND = shapely.Point(0.48, 0.53).buffer(0.37, quad_segs=64)


def draw(rng: np.random.Generator, island: bool) -> tuple[np.ndarray, UnbiasedCounts, WithinCells]:
    """Users evenly on the island, or in the square, and a noisy map of them."""
    at = rng.random((4 * USERS, 2))
    at = at[shapely.contains_xy(ISLAND, at) if island else slice(None)][:USERS]
    counts = np.bincount(GRID.codes(at[:, 0], at[:, 1]).astype(np.int64), minlength=4**DEPTH)
    noisy = counts + rng.normal(0, NOISE, 4**DEPTH)
    tree = Tree.uniform(DEPTH, DEPTH)
    full = FullTree.from_trees(tree)
    own = measure(full, [TreeMeasurement(tree, noisy, np.full(4**DEPTH, NOISE**2))])
    unbiased = UnbiasedCounts.from_measurements(full, own, float(noisy.sum()), 4**DEPTH * NOISE**2)
    return at, unbiased, learn_within_cells(unbiased, np.maximum(noisy, 0.0), np.full(4**DEPTH, NOISE**2))


def wards(rng: np.random.Generator, number: int) -> np.ndarray:
    found = shapely.get_parts(shapely.voronoi_polygons(shapely.multipoints(rng.random((number, 2))), extend_to=BOX))
    return np.asarray(shapely.intersection(found, BOX))


def estimates(island: bool, cut_by_the_shore: bool) -> tuple[np.ndarray, list[AreaUsers], list[AreaUsers]]:
    """The truth of the wards of 12 maps, and per map the estimates with and without the correction."""
    truth, with_borders, without = [], [], []
    for key in range(12):
        rng = seeded_rng([key, island, cut_by_the_shore])
        at, unbiased, within = draw(rng, island)
        zones = wards(rng, 24)
        if cut_by_the_shore:
            zones = shapely.intersection(zones, ISLAND)
            zones = zones[shapely.area(zones) > 0.002]
        truth.append(shapely.contains_xy(zones[:, None], at[:, 0], at[:, 1]).sum(axis=1))
        with_borders.append(estimate_areas(GRID, unbiased, within, zones))
        without.append(estimate_areas(GRID, unbiased, within, zones, borders=False))
    return np.concatenate(truth).astype(float), with_borders, without


def errors(truth: np.ndarray, found: list[AreaUsers]) -> tuple[np.ndarray, float]:
    """Errors, and the share of intervals that hold the truth."""
    low, high = (np.concatenate(ends) for ends in zip(*(one.intervals() for one in found), strict=True))
    return np.concatenate([one.users for one in found]) - truth, float(((low <= truth) & (truth <= high)).mean())


@pytest.mark.slow
def test_wards_that_end_at_a_shore_are_covered() -> None:
    """With independent errors of cut cells 95% coverage is refuted, and with what the levels above show it is not.

    The limits are binomial, at a rate of false alarms of 10^-9.
    """
    truth, found, plain = estimates(island=True, cut_by_the_shore=True)
    _, covered = errors(truth, found)
    _, covered_plain = errors(truth, plain)
    limit = float(stats.binom.ppf(FLAKE_RATE, len(truth), 0.95)) / len(truth)
    assert covered_plain < limit < covered


@pytest.mark.slow
def test_wards_that_have_nothing_to_do_with_the_density_keep_their_errors() -> None:
    """The stated deviation grows by a fifth at most."""
    truth, found, plain = estimates(island=False, cut_by_the_shore=False)
    _, covered = errors(truth, found)
    stated, stated_plain = (np.mean([np.mean(one.stddev**2) for one in each]) for each in (found, plain))
    assert stated < 1.2**2 * stated_plain
    assert covered > float(stats.binom.ppf(FLAKE_RATE, len(truth), 0.95)) / len(truth)


def test_a_zone_is_told_from_its_own_border_alone() -> None:
    """The island as one zone: the error is stated, and is the same with other zones beside it."""
    at, unbiased, within = draw(seeded_rng([4, 5]), True)
    alone = estimate_areas(GRID, unbiased, within, np.array([ISLAND]))
    plain = estimate_areas(GRID, unbiased, within, np.array([ISLAND]), borders=False)
    both = estimate_areas(GRID, unbiased, within, np.array([ISLAND, shapely.box(0.1, 0.1, 0.33, 0.47)]))
    error = abs(alone.users[0] - len(at))
    assert 5 * plain.stddev[0] < error < 3 * alone.stddev[0]
    assert (alone.users[0], alone.stddev[0]) == (both.users[0], both.stddev[0])
