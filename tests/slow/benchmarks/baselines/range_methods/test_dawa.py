import itertools
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.baselines.range_methods.dawa import (
    UNITS,
    Dawa,
    bucket_deviations,
    cheapest_partition,
    cost_sensitivity,
)
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from tests.seeds import seeded_rng
from tests.slow.benchmarks.baselines.range_methods.partition_checks import (
    assert_a_partition_by_key,
    noise,
)
from tests.statistics import FLAKE_RATE
from tests.unit.ranges.method_checks import assert_discrete_laplace
from tests.unit.ranges.oracle import run_key, town

PEOPLE = town(6, 4000)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
def test_parts_cover_the_field_once_by_key(epsilon: float) -> None:
    assert_a_partition_by_key(Dawa(), PEOPLE, epsilon)


@pytest.mark.false_alarm(1e-9)  # one p-value
def test_buckets_are_counted_with_the_rest_of_epsilon() -> None:
    added, stated = noise(Dawa(dawa_share=0.4), PEOPLE, 1.0, 20)
    assert_discrete_laplace(added, 0.6, wrong=1.0)
    np.testing.assert_allclose(stated, discrete_laplace_stddev(0.6) ** 2)


@pytest.mark.parametrize("level", range(5))
def test_deviation_changes_by_at_most_its_sensitivity(level: int) -> None:
    generator, most = seeded_rng(level), 0
    own = cost_sensitivity(level, 0)
    for _ in range(2000):
        counts = generator.poisson(generator.choice([0.1, 1, 10]), 1 << level)
        counts[generator.integers(1 << level)] += generator.integers(0, 30)
        more = counts.copy()
        more[generator.integers(1 << level)] += 1
        most = max(most, abs(int((bucket_deviations(more, level) - bucket_deviations(counts, level))[0])))
    assert most <= own
    assert most >= own - 1
    assert cost_sensitivity(level, 4) == own + cost_sensitivity(4, 0)


# Four cells have five partitions: each pair is whole or not, or all four are one bucket. Their probabilities are
# summed up exactly, from the noise's distribution as the module's text has it.


def cost(base: int, step: int, epsilon: float, reach: int) -> np.ndarray:
    """The distribution of base - G over -reach..reach, what lies below in its first place."""
    probabilities = np.zeros(2 * reach + 1)
    beta = math.exp(-epsilon / step)
    g = np.arange(base + reach + 1)
    probabilities[base + reach - g] = (1 - beta) * beta**g
    probabilities[0] += beta ** (base + reach + 1)
    return probabilities


def no_dearer(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of two independent costs: the first's distribution where it is at most the second, and the second's else."""
    above = np.append(np.cumsum(other[::-1])[::-1], 0)
    at_least = np.cumsum(one[::-1])[::-1] - one
    return one * above[:-1], other * at_least


def add(one: np.ndarray, other: np.ndarray, reach: int) -> np.ndarray:
    both = np.convolve(one, other)[reach:-reach]
    both[0] += one.sum() * other.sum() - both.sum()
    return both


def probabilities(counts: list[int], epsilon: float, penalty: float, reach: int = 3000) -> np.ndarray:
    """Of: all four as one bucket; then (first pair whole or not) x (second pair whole or not)."""
    charge = round(UNITS * (penalty + 4 / epsilon))

    def bucket(cells: list[int]) -> np.ndarray:
        m = len(cells)
        deviation = math.floor(UNITS * sum(abs(x - sum(cells) / m) for x in cells) + 1e-9)
        step = math.ceil(2 * UNITS * (1 - 1 / m)) + math.ceil(2 * UNITS * (1 - 1 / 4))
        return cost(deviation + charge, step, epsilon, reach)

    pairs = []
    for pair in (counts[:2], counts[2:]):
        pairs.append(no_dearer(bucket(pair), add(bucket(pair[:1]), bucket(pair[1:]), reach)))
    whole, found = bucket(counts), [0.0]
    for first, second in itertools.product(*pairs):
        instead, cut = no_dearer(whole, add(first, second, reach))
        found[0] += instead.sum()
        found.append(cut.sum())
    return np.array(found)


FOUR = [[0, 0, 0, 0], [3, 0, 0, 0], [2, 2, 5, 1], [40, 0, 3, 3]]


@pytest.mark.false_alarm(1e-8)  # one p-value, of bins that expect 20 and so have a heavier tail than chi-square
@pytest.mark.parametrize("counts", FOUR)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_partitions_follow_the_stated_noise(counts: list[int], epsilon: float) -> None:
    runs, seen = 3000, np.zeros(5)
    for key in range(runs):
        levels = cheapest_partition(np.array(counts), epsilon, 0.7, run_key(key))[1].tolist()
        if levels == [2]:
            seen[0] += 1
        else:
            seen[1 + 2 * (levels[0] == 0) + (levels[-1] == 0)] += 1
    expected = probabilities(counts, epsilon, 0.7)
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    assert p_value(seen, expected) > FLAKE_RATE
    if counts in FOUR[1:3]:  # of the others the partition says less about epsilon
        assert p_value(seen, probabilities(counts, 2 * epsilon, 0.7)) < 1e-4


def p_value(seen: np.ndarray, expected: np.ndarray) -> float:
    """Of a chi-square test. The rarest are pooled until 20 are expected."""
    order = np.argsort(expected)
    wanted, found = expected[order] * seen.sum(), seen[order]
    rare = 1 + np.searchsorted(np.cumsum(wanted), 20)
    pooled = [np.append(one[:rare].sum(), one[rare:]) for one in (found, wanted)]
    return float(stats.chisquare(pooled[0], pooled[1] * seen.sum() / pooled[1].sum()).pvalue)


@pytest.mark.parametrize("counts", [*FOUR, [0, 1, 0, 0], [0, 9, 0, 0], [7, 8, 8, 8], [1, 30, 30, 30], [0, 9, 50, 3]])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_partition_tells_more_than_epsilon_of_a_user(counts: list[int], epsilon: float) -> None:
    worst = 0.0
    for cell in range(4):
        more = counts.copy()
        more[cell] += 1
        ratios = np.log(probabilities(more, epsilon, 0.7) / probabilities(counts, epsilon, 0.7))
        worst = max(worst, np.abs(ratios).max())
    assert 0.05 * epsilon < worst <= epsilon
