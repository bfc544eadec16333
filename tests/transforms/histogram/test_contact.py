"""Limited contact is the Poisson sample up to a stated chance; the paper's way of asking, and a fixed size, are not."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import delta
from sfumato.transforms.histogram.contact import ContactPlan, refuse_fixed_size
from tests.transforms.histogram.oracle import hockey_stick


@pytest.mark.parametrize(
    ("population", "rate", "slack"), [(1000, 0.1, 3.0), (10**6, 0.3, 5.0), (50, 0.5, 1.0), (10**9, 0.01, 6.0)]
)
def test_overflow_chances_are_safe_and_close(population: int, rate: float, slack: float) -> None:
    plan = ContactPlan(population, rate, slack)
    mean = population * rate
    assert plan.asked == math.ceil(mean + slack * math.sqrt(mean))
    with mpmath.workdps(50):
        p = mpmath.mpf(rate)
        term = mpmath.binomial(population, plan.asked) * p**plan.asked * (1 - p) ** (population - plan.asked)
        tail, v = mpmath.mpf(0), plan.asked
        while v < population and (not tail or term > tail * 1e-15):
            term *= mpmath.mpf(population - v) / (v + 1) * p / (1 - p)
            tail += term
            v += 1
        # Terms fall at least geometrically with the last ratio, which is below 1.
        assert tail <= plan.overflow_chance * (1 + 1e-11)
        assert plan.overflow_chance <= tail * (1 + 1e-6)


def test_the_usual_slack_costs_next_to_nothing() -> None:
    plan = ContactPlan(10**6, 0.1)
    assert plan.asked == 103_163
    assert plan.extra_delta(1.0, rounds=12) < 1e-18


def test_extra_delta_is_the_union_over_rounds_and_both_neighbours() -> None:
    plan = ContactPlan(1000, 0.1, 4.0)
    assert plan.extra_delta(1.0, 3) == pytest.approx(3 * (1 + math.e) * plan.overflow_chance)
    assert plan.extra_delta(800.0) == 1.0
    everybody = ContactPlan(100, 0.9)
    assert (everybody.asked, everybody.overflow_chance, everybody.extra_delta(1.0)) == (100, 0.0, 0.0)


def contacted(n: int, holders: int, asked: int, chance: float, threshold: int) -> NDArray[np.float64]:
    """What is published of an item with so many holders if `asked` users toss coins (paper 004, Section 3.2)."""
    law = np.zeros(n + 1)
    for among in range(min(holders, asked) + 1):
        law += stats.hypergeom.pmf(among, n, holders, asked) * stats.binom.pmf(np.arange(n + 1), among, chance)
    law[0] = law[:threshold].sum()
    law[1:threshold] = 0
    return law


def test_coins_of_a_fixed_group_are_not_the_poisson_sample() -> None:
    """45 samples of 300 users, 49 asked: one user more or less in an item of all shows 240 times as much."""
    n, rate, epsilon, threshold = 300, 0.15, 0.2, 30
    assert rate < 1 - math.exp(-epsilon)  # well within Theorem 1
    plan = ContactPlan(n, rate, 0.5)
    chance = n * rate / plan.asked
    everybody, one_less = (contacted(n, k, plan.asked, chance, threshold) for k in (n, n - 1))
    leak = max(hockey_stick(everybody, one_less, epsilon), hockey_stick(one_less, everybody, epsilon))
    assert leak > 200 * delta(epsilon, rate, threshold)


def test_first_come_contact_stays_within_its_delta() -> None:
    """The Poisson sample of two items, abandoned if more than `asked` users draw themselves: all outcomes."""
    n, rate, epsilon, threshold = 24, 0.3, 0.5, 3
    plan = ContactPlan(n, rate, 1.0)
    assert plan.overflow_chance > 1e-3

    def law(first: int, second: int) -> NDArray[np.float64]:
        joint = np.outer(
            stats.binom.pmf(np.arange(n + 1), first, rate), stats.binom.pmf(np.arange(n + 1), second, rate)
        )
        total = np.add.outer(np.arange(n + 1), np.arange(n + 1))
        out = np.zeros((n + 1, n + 1))
        shown = np.where(np.arange(n + 1) >= threshold, np.arange(n + 1), 0)
        kept = total <= plan.asked
        np.add.at(out, (shown[np.nonzero(kept)[0]], shown[np.nonzero(kept)[1]]), joint[kept])
        return np.append(out, joint[~kept].sum())

    allowed = delta(epsilon, rate, threshold) + plan.extra_delta(epsilon)
    for first in range(1, n + 1):
        more, less = law(first, n - first), law(first - 1, n - first)
        assert max(hockey_stick(more, less, epsilon), hockey_stick(less, more, epsilon)) <= allowed


def test_a_fixed_size_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"contact: a sample of 500 users of fixed size leaks.*sampling rate \(here 0\.2\)"
    ):
        refuse_fixed_size(500, 0.2)
    with pytest.raises(RequestError, match="held back"):
        refuse_fixed_size()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 0.1), "population"),
        ((10, math.nan), "rate"),
        ((10, 1.0), "rate"),
        ((10, 0.1, 0.0), "slack"),
        ((10, 0.1, math.nan), "slack"),
    ],
)
def test_bad_plans_are_refused(arguments: tuple[int, float], name: str) -> None:
    with pytest.raises(RequestError, match=f"{name}: must be"):
        ContactPlan(*arguments)


def test_bad_budgets_are_refused() -> None:
    plan = ContactPlan(100, 0.1)
    with pytest.raises(RequestError, match="epsilon: must be"):
        plan.extra_delta(math.inf)
    with pytest.raises(RequestError, match="rounds: must be"):
        plan.extra_delta(1.0, 0)
