"""The way down the tree: accumulators add nights up exactly; a week's model against a dense posterior."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.nights import night_posterior
from sfumato.transforms.nights.night_posterior import (
    PRIOR,
    WEEK,
    Accumulated,
    WeekData,
    infer_night,
    infer_week,
    measured_shares,
    per_coordinate,
)
from sfumato.transforms.statistics.posterior.full_tree import FullTree, SubtreeSums, by_family
from sfumato.transforms.statistics.posterior.inference import Learner
from tests.seeds import seeded_rng
from tests.unit.nights.nights import CELLS, TREE, density_of

FULL = FullTree.from_trees(TREE)


TRUTH = FULL.sums(FULL.by_level(density_of(0)))


def _sums(variance: float, seed: int | None = None) -> SubtreeSums:
    noise = np.zeros(CELLS) if seed is None else seeded_rng(seed).normal(0, variance**0.5, CELLS)
    users = FULL.sums(FULL.by_level(density_of(0) + noise))
    return SubtreeSums(users, [np.full(len(codes), variance * CELLS / len(codes)) for codes in FULL.codes])


def test_accumulated_is_the_weighted_mean_of_its_nights() -> None:
    known, precision, total = Accumulated.empty(FULL), np.zeros(4), np.zeros(4)
    for seed in range(5):
        sums = _sums(1800.0 * (1 + seed), seed)
        share, variance = measured_shares(by_family(sums.users[1]), by_family(sums.variance[1]), TRUTH[0])
        once = 1 / (variance[0] + 1 / (4 * TRUTH[0][0]) + (known.night[1][0] if seed else 0.0))
        precision += once
        total += once * share[0]
        known = infer_night(FULL, known, 3, float(TRUTH[0][0]), 0.0, sums).accumulated
    np.testing.assert_allclose(known.mean[1][:, 3], total / precision, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(known.precision[1][:, 3], precision, rtol=1e-9)
    assert not known.precision[1][:, [0, 1, 2, 4, 5, 6]].any()


def test_infer_night_predicts_what_was_not_measured() -> None:
    known = infer_night(FULL, Accumulated.empty(FULL), 2, float(TRUTH[0][0]), 0.0, _sums(100.0, 1)).accumulated
    nothing = SubtreeSums([0 * one for one in TRUTH], [np.full(len(one), np.inf) for one in TRUTH])
    one, other = (infer_night(FULL, known, 2, float(TRUTH[0][0]), 0.0, tonight) for tonight in (None, nothing))
    for level in range(len(FULL.codes)):
        np.testing.assert_allclose(one.users[level], other.users[level])
        np.testing.assert_array_equal(other.accumulated.precision[level], known.precision[level])


@pytest.mark.parametrize("weekday", [2, 6])
def test_infer_night_children_add_up_to_their_parents(weekday: int) -> None:
    known = infer_night(FULL, Accumulated.empty(FULL), 2, float(TRUTH[0][0]), 0.0, _sums(1800.0, 2)).accumulated
    found = infer_night(FULL, known, weekday, 1234.0, 100.0)
    for level in range(1, len(FULL.codes)):
        np.testing.assert_allclose(by_family(found.users[level]).sum(axis=1), found.users[level - 1])
    assert found.users[0][0] == 1234


def test_measured_shares_have_the_stated_variance() -> None:
    """Four independent numbers whose sum is known: their covariance is diag(v) - v v' / sum(v)."""
    variance = np.array([[1.0, 4.0, 9.0, 2.0]])
    covariance = np.diag(variance[0]) - np.outer(variance[0], variance[0]) / variance.sum()
    assert per_coordinate(variance)[0] == pytest.approx(np.trace(covariance) / 3)
    share, _ = measured_shares(np.array([[10.0, 20.0, 30.0, 40.0]]), variance, np.array([84.0]))
    np.testing.assert_allclose(84 * share[0], np.array([10, 20, 30, 40]) - variance[0])
    assert np.isinf(per_coordinate(np.array([[1.0, np.inf, 1.0, 1.0]]))[0])


KINDS = len(PRIOR)


STRONG = np.zeros(1, dtype=bool)


class _Fixed(Learner):
    """Gives the kinds weights that were chosen before."""

    def __init__(self, weights: NDArray[np.float64]) -> None:
        super().__init__(PRIOR)
        self.weights = weights

    def learn(self, likelihood: NDArray[np.float64], strong: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.stack([self.weights, self.weights])


def _family(rng: np.random.Generator, weekday: int) -> tuple[WeekData, NDArray[np.float64], NDArray[np.float64]]:
    """A family with tonight's measurement, and its accumulators before tonight (means and precisions)."""
    mean = rng.normal(0, 0.1, (WEEK, 4))
    mean -= mean.mean(axis=1, keepdims=True)
    precision = rng.gamma(1, 300, WEEK) * (rng.random(WEEK) < 0.7)
    mean[precision == 0] = 0
    tonight = rng.normal(0, 0.1, 4)
    tonight -= tonight.mean()
    data = WeekData(mean[None], precision[None], weekday, tonight[None], np.array([0.004]), np.array([0.0003]))
    return data, mean, precision


def _with_tonight(data: WeekData, night: float) -> WeekData:
    """The same with tonight's measurement in the accumulator of its weekday."""
    once = 1 / (data.noise[0] + night + data.chance[0])
    mean, precision = data.mean.copy(), data.precision.copy()
    before = precision[0, data.weekday]
    mean[0, data.weekday] = (before * mean[0, data.weekday] + once * data.tonight[0]) / (before + once)
    precision[0, data.weekday] = before + once
    return replace(data, mean=mean, precision=precision)


def _design() -> NDArray[np.float64]:
    """s_d of the effects L, two groups, seven weekdays: float64[7, 10]."""
    design = np.zeros((WEEK, 10))
    for day in range(WEEK):
        design[day, [0, 1 + (day >= 5), 3 + day]] = 1
    return design


def _effects(kind: int) -> NDArray[np.float64]:
    level, group, day = (getattr(night_posterior, name)[kind] for name in ("_LEVEL", "_GROUP", "_DAY"))
    return np.array([level, group, group, *[day] * WEEK])


@pytest.mark.parametrize("weekday", [0, 3, 5, 6])
@pytest.mark.parametrize("kind", [0, 7, 30, KINDS - 1])
def test_infer_week_of_one_kind_is_the_dense_posterior(weekday: int, kind: int) -> None:
    data, mean, precision = _family(seeded_rng(weekday), weekday)
    night = float(night_posterior._NIGHT[kind]) + data.chance[0]
    found = infer_week(_with_tonight(data, night_posterior._NIGHT[kind]), _Fixed(np.eye(KINDS)[kind]), STRONG)

    # The unknowns are ten effects and W. Each weekday's accumulator measures s_d; tonight measures s + W.
    design = np.vstack([np.hstack([_design(), np.zeros((WEEK, 1))]), np.append(_design()[weekday], 1.0)])
    weight = np.append(precision, 1 / data.noise[0])
    values = np.vstack([mean, data.tonight[0]])
    prior = np.diag(1 / np.append(_effects(kind), night))
    covariance = np.linalg.inv(prior + design.T @ (weight[:, None] * design))
    centre = covariance @ design.T @ (weight[:, None] * values)
    np.testing.assert_allclose(found.mean[0], design[-1] @ centre, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.variance[0], design[-1] @ covariance @ design[-1], rtol=1e-9)


def test_week_kinds_have_the_dense_likelihoods() -> None:
    data, mean, precision = _family(seeded_rng(5), 2)
    known = precision > 0
    logs = night_posterior._by_kind(replace(data, tonight=np.zeros((1, 4))), slice(0, 1))[0][0]
    exact = []
    for kind in range(KINDS):
        covariance = _design() @ np.diag(_effects(kind)) @ _design().T
        covariance = covariance[np.ix_(known, known)] + np.diag(1 / precision[known])
        energy = np.einsum("dc,de,ec->", mean[known], np.linalg.inv(covariance), mean[known])
        exact.append(-1.5 * np.linalg.slogdet(covariance)[1] - energy / 2)
    np.testing.assert_allclose(logs - logs[0], np.array(exact) - exact[0], rtol=1e-9, atol=1e-9)
