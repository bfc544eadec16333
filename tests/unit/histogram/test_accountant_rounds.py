"""Several rounds: against product distributions, the sum of the rounds, and a fine grid of losses."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from sfumato.transforms.histogram.accountant import delta, max_rate, rounds_delta
from tests.rejections import rejects
from tests.unit.histogram.oracle import hockey_stick, published


def worst_product(epsilon: float, rate: float, threshold: int, counts: range) -> float:
    """The largest divergence of two rounds, where the user's item has any count in either round."""
    laws = [published(k, rate, threshold, counts.stop) for k in range(counts.stop)]
    worst = 0.0
    for first, second in product(counts, counts):
        more = np.outer(laws[first], laws[second])
        less = np.outer(laws[first - 1], laws[second - 1])
        worst = max(worst, hockey_stick(more, less, epsilon), hockey_stick(less, more, epsilon))
    return worst


@pytest.mark.parametrize(("epsilon", "rate", "threshold"), [(1.0, 0.3, 4), (0.5, 0.6, 3), (2.0, 0.5, 6), (0.2, 0.9, 2)])
def test_two_rounds_are_no_worse_than_said(epsilon: float, rate: float, threshold: int) -> None:
    truth = worst_product(epsilon, rate, threshold, range(1, 40))
    said = rounds_delta(epsilon, rate, threshold, 2)
    # Pessimism has three sources: the pointwise supremum over counts, chords, and rounding; a few per cent here.
    assert truth <= said <= 1.25 * truth


def test_an_adaptive_second_round_is_no_worse_than_said() -> None:
    """The second round's count depends on what the first one published: the worst for each outcome."""
    epsilon, rate, threshold, last = 1.0, 0.3, 4, 40
    laws = [published(k, rate, threshold, last) for k in range(last)]
    worst = 0.0
    for k in range(1, last):
        total = 0.0
        for more, less in zip(laws[k], laws[k - 1], strict=True):
            # sup over k' of sum [more P_k' - e^eps less P_k'-1]+, outcome by outcome
            total += max(
                float(np.maximum(more * laws[j] - math.exp(epsilon) * less * laws[j - 1], 0).sum())
                for j in range(1, last)
            )
        worst = max(worst, total)
    assert worst <= rounds_delta(epsilon, rate, threshold, 2)
    assert worst >= worst_product(epsilon, rate, threshold, range(1, last))


@pytest.mark.parametrize("rounds", [2, 6, 24])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.4, 0.95])
def test_never_worse_than_the_sum(rounds: int, epsilon: float, rate: float) -> None:
    for threshold in (1, 20):
        together = rounds_delta(epsilon, rate, threshold, rounds)
        assert together <= min(1.0, rounds * delta(epsilon / rounds, rate, threshold))
        assert together >= delta(epsilon, rate, threshold)  # publishing only one of them is one way of using them


def test_far_better_than_the_sum_where_it_matters() -> None:
    rate = max_rate(1 / 12, 1e-8 / 12, 20)
    assert rounds_delta(1.0, 6 * rate, 20, 12) <= 1e-8


@pytest.mark.parametrize(("epsilon", "rate", "rounds"), [(1.0, 0.2, 6), (1.0, 0.13, 24), (3.0, 0.35, 12)])
def test_the_grid_costs_little(epsilon: float, rate: float, rounds: int) -> None:
    fine = rounds_delta(epsilon, rate, 20, rounds, steps=2000)
    usual = rounds_delta(epsilon, rate, 20, rounds)
    coarse = rounds_delta(epsilon, rate, 20, rounds, steps=40)
    rounding = 1e-10  # the finer grid has the longer transform, and so the larger allowance for its rounding
    assert fine - rounding <= usual <= 1.01 * fine + rounding
    # A coarse grid is as safe. It costs a factor 2 of delta at most here, and so a few per cent of the rate.
    assert usual - rounding <= coarse <= 2 * fine + rounding


def test_one_round_is_exact() -> None:
    assert rounds_delta(1.0, 0.105, 11, 1) == delta(1.0, 0.105, 11)


def test_more_rounds_cost_more() -> None:
    deltas = [rounds_delta(1.0, 0.2, 20, rounds) for rounds in (1, 2, 4, 8, 16, 200)]
    assert deltas == sorted(deltas)
    assert deltas[-1] <= 1


@pytest.mark.parametrize("rounds", [0, 1.5, True, math.nan])
def test_bad_rounds_are_refused(rounds: int) -> None:
    with rejects("rounds"):
        rounds_delta(1.0, 0.1, 5, rounds)
    with rejects("epsilon"):
        rounds_delta(math.nan, 0.1, 5, 2)
