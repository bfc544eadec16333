"""The posterior of a survival function against all paths of its states, one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import special

from sfumato.transforms.moments.local.tally import RandomisedResponse
from sfumato.transforms.moments.local.threshold_means import LEVELS, Survival

TOP = np.array([1.0, 3.0, 7.0])
STRATA, INSIDE = 3, len(LEVELS) - 2


def odds_ends() -> np.ndarray:
    return special.expit(np.linspace(-10.5, 10.5, INSIDE + 1))


def fall(before: int, after: int) -> float:
    """From a level between to another: it stays, falls to a uniform level below, or to one of the eleven nearest."""
    ends = odds_ends()
    stay = 0.7 if before == after else 0.0
    if after > before:
        return stay
    width = min(ends[after], LEVELS[before]) - ends[after - 1]
    uniform = width / (LEVELS[before] - ends[0])
    near = 1 / min(before, 11) if before - after <= 10 else 0.0
    return float(stay + 0.3 * (uniform + near) / 2)


def step(before: int, after: int, stratum: int) -> float:
    one, end = INSIDE + 1, 1 / (STRATA - stratum + 1)
    if before == 0:
        return float(after == 0)
    if before == one:
        return {0: 0.1 * end, one: 1 - end}.get(after, 0.9 * end / INSIDE)
    if after == one:
        return 0.0
    return end if after == 0 else (1 - end) * fall(before, after)


def start(state: int) -> float:
    each = 1 / (STRATA + 1)
    return {0: each, INSIDE + 1: 1 - 2 * each}.get(state, each / INSIDE)


@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("power", [0.0, 2.0])
def test_the_posterior_is_the_sum_over_all_paths(epsilon: float | None, power: float) -> None:
    """Every path of states that the model allows, with its prior, likelihood and weight by its highest stratum."""
    response = RandomisedResponse(epsilon)
    answered, reports = np.array([0.9, 0.4, 0.25]), np.array([10.0, 5.0, 8.0])
    model = Survival.from_answers(answered, reports, TOP, response)
    weight = np.array([1.0, 2.0, 4.0])
    states = np.zeros((STRATA, len(LEVELS)))
    sums = np.zeros(3)
    every = range(len(LEVELS))
    table = [
        np.array([[step(before, after, stratum) for after in every] for before in every])
        for stratum in range(1, STRATA)
    ]
    for first, second in itertools.product(every, every):
        if table[0][first, second] == 0:
            continue
        path = start(first) * table[0][first, second] * table[1][second]  # float64[states of the third]
        for stratum, state in ((0, first), (1, second)):
            path = path * likelihood(state, answered[stratum] * reports[stratum], reports[stratum], response)
        last = np.array([likelihood(state, answered[2] * reports[2], reports[2], response) for state in every])
        path = path * last
        highest = [0 if first == 0 else 0 if second == 0 else 1, 2]
        path = path * np.array([TOP[highest[state > 0]] ** -power for state in every])
        states[0, first] += path.sum()
        states[1, second] += path.sum()
        states[2] += path
        mean = weight[:2] @ [model.share[0, first], model.share[1, second]] + weight[2] * model.share[2]
        variance = weight[:2] ** 2 @ [model.variance[0, first], model.variance[1, second]]
        sums += [path.sum(), path @ mean, path @ (mean**2 + variance + weight[2] ** 2 * model.variance[2])]
    np.testing.assert_allclose(model.probabilities(power), states / sums[0], rtol=1e-9, atol=1e-12)
    found = model.total(weight, power)
    np.testing.assert_allclose(found, [sums[1] / sums[0], sums[2] / sums[0] - (sums[1] / sums[0]) ** 2], rtol=1e-7)


def likelihood(state: int, ones: float, reports: float, response: RandomisedResponse) -> float:
    share = LEVELS[state] * response.gain + 1 - response.truth_probability
    if share in (0, 1):
        return float(ones == share * reports)
    return math.exp(ones * math.log(share) + (reports - ones) * math.log1p(-share))


def test_many_answers_are_believed_and_none_are_not() -> None:
    response = RandomisedResponse(1.0)
    share = np.array([1.0, 0.63, 0.0])
    answered = share * response.gain + 1 - response.truth_probability
    many = Survival.from_answers(answered, np.full(3, 1e13), TOP, response)
    np.testing.assert_allclose(
        many.probabilities() @ np.eye(len(LEVELS))[[0, -1]].T, [[0, 1], [0, 0], [1, 0]], atol=1e-9
    )
    mean, variance = many.total(np.ones(3))
    assert mean == pytest.approx(1.63, abs=1e-9)
    assert variance < 1e-6
    none = Survival.from_answers(np.full(3, 0.5), np.zeros(3), TOP, response)
    low, high = (
        Survival.from_answers(np.full(3, end), np.zeros(3), TOP, response).total(np.ones(3), 0) for end in (0, 1)
    )
    assert low[0] == pytest.approx(high[0], abs=0.01)  # without a report no answer counts
    assert none.total(np.ones(3), 0)[1] > 0.5
