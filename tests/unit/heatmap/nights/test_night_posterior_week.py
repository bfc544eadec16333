"""The hierarchical model of a week against a dense Gaussian posterior of all of its effects."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.heatmap.nights import night_posterior
from sfumato.transforms.heatmap.nights.night_posterior import PRIOR, WEEK, WeekData, infer_week
from sfumato.transforms.heatmap.posterior.inference import Learner
from tests.seeds import seeded_rng

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
def test_a_family_of_one_kind_has_the_dense_posterior(weekday: int, kind: int) -> None:
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


def test_kinds_have_the_dense_likelihoods() -> None:
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


def test_nothing_known_expects_nothing_and_doubts_everything() -> None:
    data = WeekData(
        np.zeros((1, WEEK, 4)), np.zeros((1, WEEK)), 4, np.zeros((1, 4)), np.array([np.inf]), np.array([0.01])
    )
    found = infer_week(data, _Fixed(np.eye(KINDS)[20]), STRONG)
    effects = sum(float(getattr(night_posterior, name)[20]) for name in ("_LEVEL", "_GROUP", "_DAY", "_NIGHT"))
    assert found.mean[0] == pytest.approx(np.zeros(4))
    assert found.variance[0] == pytest.approx(effects + 0.01)


def test_a_mixture_doubts_more_than_its_kinds_do_on_average() -> None:
    data, *_ = _family(seeded_rng(8), 1)
    each = [infer_week(data, _Fixed(np.eye(KINDS)[kind]), STRONG) for kind in (3, 50)]
    both = infer_week(data, _Fixed((np.eye(KINDS)[3] + np.eye(KINDS)[50]) / 2), STRONG)
    lower, upper = sorted(float(one.mean[0, 0]) for one in each)
    assert lower <= both.mean[0, 0] <= upper
    assert both.variance[0] >= min(float(one.variance[0]) for one in each)
