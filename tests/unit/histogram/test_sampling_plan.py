"""Limited contact is the Poisson sample; the paper's fixed number of contacts and a fixed sample size are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import delta
from sfumato.transforms.histogram.sampling_plan import SamplePlan, contacts
from tests.rejections import rejects
from tests.unit.histogram.oracle import hockey_stick


@pytest.mark.parametrize(
    ("population", "rate", "slack"), [(1000, 0.1, 3.0), (10**6, 0.3, 5.0), (50, 0.5, 1.0), (10**9, 0.01, 6.0)]
)
def test_the_number_of_contacted_users_is_the_papers(population: int, rate: float, slack: float) -> None:
    mean = population * rate
    assert contacts(population, rate, slack) == math.ceil(mean + slack * math.sqrt(mean))
    assert rate * population <= contacts(population, rate, slack) <= population
    assert contacts(10**6, 0.1) == 103_163
    assert contacts(100, 0.9) == 100  # everybody


def contacted(n: int, holders: int, contacts: int, probability: float, threshold: int) -> NDArray[np.float64]:
    """Distribution of an item's published count with this many holders and contacts (paper 004, Section 3.2)."""
    distribution = np.zeros(n + 1)
    for among in range(min(holders, contacts) + 1):
        distribution += stats.hypergeom.pmf(among, n, holders, contacts) * stats.binom.pmf(
            np.arange(n + 1), among, probability
        )
    distribution[0] = distribution[:threshold].sum()
    distribution[1:threshold] = 0
    return distribution


def test_coins_of_a_fixed_group_are_not_the_poisson_sample() -> None:
    """45 samples of 300 users, 49 contacted: one user more or less in an item of all shows 240 times as much.

    With the paper's c of 10, 113 are contacted, and it shows less than in a Poisson sample.
    """
    n, rate, epsilon, threshold = 300, 0.15, 0.2, 30
    assert rate < 1 - math.exp(-epsilon)  # well within Theorem 1
    leaks = []
    for slack in (0.5, 10.0):
        users = contacts(n, rate, slack)
        everybody, one_less = (contacted(n, k, users, n * rate / users, threshold) for k in (n, n - 1))
        leaks.append(max(hockey_stick(everybody, one_less, epsilon), hockey_stick(one_less, everybody, epsilon)))
    poisson = delta(epsilon, rate, threshold)
    assert leaks[0] > 200 * poisson
    assert leaks[1] < poisson


@pytest.mark.parametrize("population", [10, 300, 1000])
def test_asking_each_user_independently_is_the_poisson_sample(population: int) -> None:
    """Whatever --population says: draws at rate a, then p / a, thin a count as one draw at rate p."""
    n, rate = 300, 0.15
    contact_rate = contacts(population, rate, 0.5) / population
    law = stats.binom.pmf(np.arange(n + 1), n, contact_rate)
    taking_part = stats.binom.pmf(np.arange(n + 1)[:, None], np.arange(n + 1), rate / contact_rate) @ law
    assert taking_part == pytest.approx(stats.binom.pmf(np.arange(n + 1), n, rate), abs=1e-12)


def test_a_fixed_size_is_refused() -> None:
    with rejects("contact"):
        SamplePlan(population=500, contact="fixed")
    with pytest.raises(RequestError, match="the threshold dropped"):
        SamplePlan(contact="fixed")
