"""The way down the tree: accumulators add nights up exactly, and nothing measured leaves what was known."""

import numpy as np
import pytest

from sfumato.transforms.heatmap.nights.night_posterior import (
    Accumulated,
    infer_night,
    measured_shares,
    per_coordinate,
)
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, SubtreeSums, by_family
from tests.seeds import seeded_rng
from tests.unit.heatmap.nights.nights import CELLS, TREE, density_of

FULL = FullTree.from_trees(TREE)
TRUTH = FULL.sums(FULL.by_level(density_of(0)))


def _sums(variance: float, seed: int | None = None) -> SubtreeSums:
    rng = seeded_rng(seed)
    noise = rng.normal(0, variance**0.5, CELLS) if seed is not None else np.zeros(CELLS)
    users = FULL.sums(FULL.by_level(density_of(0) + noise))
    return SubtreeSums(users, [np.full(len(codes), variance * CELLS / len(codes)) for codes in FULL.codes])


def test_precise_measurements_are_the_map() -> None:
    found = infer_night(FULL, Accumulated.empty(FULL), 0, TRUTH[0][0], 0.0, _sums(1e-6))
    for users, truth in zip(found.users, TRUTH, strict=True):
        np.testing.assert_allclose(users, truth, rtol=1e-3, atol=0.5)


def test_an_accumulator_is_the_weighted_mean_of_its_nights() -> None:
    known, precision, total = Accumulated.empty(FULL), np.zeros(4), np.zeros(4)
    for seed in range(5):
        sums = _sums(1800.0 * (1 + seed), seed)
        share, variance = measured_shares(by_family(sums.users[1]), by_family(sums.variance[1]), TRUTH[0])
        once = 1 / (variance[0] + 1 / (4 * TRUTH[0][0]) + (known.night[1][0] if seed else 0.0))
        precision += once
        total += once * share[0]
        known = infer_night(FULL, known, 3, float(TRUTH[0][0]), 0.0, sums).accumulated
    np.testing.assert_allclose(known.mean[1][:, 3], total / precision, rtol=1e-9)
    np.testing.assert_allclose(known.precision[1][:, 3], precision, rtol=1e-9)
    assert not known.precision[1][:, [0, 1, 2, 4, 5, 6]].any()


def test_what_was_not_measured_is_predicted() -> None:
    known = infer_night(FULL, Accumulated.empty(FULL), 2, float(TRUTH[0][0]), 0.0, _sums(100.0, 1)).accumulated
    nothing = SubtreeSums([0 * one for one in TRUTH], [np.full(len(one), np.inf) for one in TRUTH])
    one, other = (infer_night(FULL, known, 2, float(TRUTH[0][0]), 0.0, tonight) for tonight in (None, nothing))
    for level in range(len(FULL.codes)):
        np.testing.assert_allclose(one.users[level], other.users[level])
        np.testing.assert_array_equal(other.accumulated.precision[level], known.precision[level])


@pytest.mark.parametrize("weekday", [2, 6])
def test_children_add_up_to_their_parents(weekday: int) -> None:
    known = infer_night(FULL, Accumulated.empty(FULL), 2, float(TRUTH[0][0]), 0.0, _sums(1800.0, 2)).accumulated
    found = infer_night(FULL, known, weekday, 1234.0, 100.0)
    for level in range(1, len(FULL.codes)):
        np.testing.assert_allclose(by_family(found.users[level]).sum(axis=1), found.users[level - 1])
    assert found.users[0][0] == 1234


def test_reconciled_shares_have_the_stated_variance() -> None:
    """Four independent numbers whose sum is known: their covariance is diag(v) - v v' / sum(v)."""
    variance = np.array([[1.0, 4.0, 9.0, 2.0]])
    covariance = np.diag(variance[0]) - np.outer(variance[0], variance[0]) / variance.sum()
    assert per_coordinate(variance)[0] == pytest.approx(np.trace(covariance) / 3)
    share, _ = measured_shares(np.array([[10.0, 20.0, 30.0, 40.0]]), variance, np.array([84.0]))
    np.testing.assert_allclose(84 * share[0], np.array([10, 20, 30, 40]) - variance[0])
    assert np.isinf(per_coordinate(np.array([[1.0, np.inf, 1.0, 1.0]]))[0])
