import itertools
import math
from collections import Counter

import numpy as np
import pytest
from numpy.random import Generator
from scipy import stats

from benchmarks.baselines.mean_mechanisms import (
    LaplaceNoise,
    MeanMechanism,
    Piecewise,
    RandomisedRounding,
    SubtractiveDithering,
    max_report,
    piecewise,
    respond,
    unbiased_share,
)
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

HIGH = 1023.0
VALUES = seeded_rng(5).uniform(0, HIGH, 60) ** 2 / HIGH  # not symmetric about the middle
RUNS = 6000
WRONG = [0.85, 1.15]
MECHANISMS = [
    LaplaceNoise(0.7),
    LaplaceNoise(3.0),
    RandomisedRounding(),
    RandomisedRounding(0.7),
    RandomisedRounding(3.0),
    SubtractiveDithering(),
    SubtractiveDithering(0.7),
    SubtractiveDithering(3.0),
    Piecewise(0.7),
    Piecewise(3.0),
]


def variance(mechanism: MeanMechanism, values: np.ndarray = VALUES) -> float:
    """Of one estimate, from the formulas in the docstrings."""
    n, centred = len(values), 2 * values / HIGH - 1
    if isinstance(mechanism, LaplaceNoise):
        return 2 * (HIGH / mechanism.epsilon) ** 2 / n
    if isinstance(mechanism, Piecewise):
        root = math.exp(mechanism.epsilon / 2)
        each = centred**2 / (root - 1) + (root + 3) / (3 * (root - 1) ** 2)
        return float((HIGH / 2) ** 2 * each.mean() / n)
    growth = math.inf if mechanism.epsilon is None else math.exp(mechanism.epsilon)
    if isinstance(mechanism, RandomisedRounding):
        c = 1.0 if mechanism.epsilon is None else (growth + 1) / (growth - 1)
        return float((HIGH / 2) ** 2 * (c**2 - (centred**2).mean()) / n)
    assert isinstance(mechanism, SubtractiveDithering)
    return HIGH**2 * (1 / 12 + (0.0 if mechanism.epsilon is None else growth / (growth - 1) ** 2)) / n


def estimates(mechanism: MeanMechanism) -> np.ndarray:
    generator = seeded_rng(11)
    return np.array([mechanism.estimate_mean(VALUES, HIGH, generator) for _ in range(RUNS)])


def variance_p(sample: np.ndarray, expected: float) -> float:
    """Two-sided. A mean of 60 reports has a kurtosis below 3.1: Laplace's is 3 + 3 / 60, the others are bounded."""
    z = (sample.var(ddof=1) / expected - 1) / math.sqrt(2.1 / len(sample))
    return float(2 * stats.norm.sf(abs(z)))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_estimates_are_unbiased_with_the_stated_variance(mechanism: MeanMechanism) -> None:
    sample, expected = estimates(mechanism), variance(mechanism)
    z = (sample.mean() - VALUES.mean()) / math.sqrt(expected / RUNS)
    assert 2 * stats.norm.sf(abs(z)) > FLAKE_RATE
    assert variance_p(sample, expected) > FLAKE_RATE
    for wrong in WRONG:
        assert variance_p(sample, expected * wrong**2) < FLAKE_RATE


class Scripted(Generator):
    """Hands out the uniform numbers it is given, one for each call and client."""

    def __init__(self, uniforms: tuple[float, ...]) -> None:
        super().__init__(np.random.PCG64(0))
        self.left = list(uniforms)

    def random(self, size: int) -> np.ndarray:
        return np.full(size, self.left.pop(0))


def distribution(mechanism: MeanMechanism, value: float) -> Counter[float]:
    """How often each output occurs for one client, over a grid of both uniform numbers that the client draws."""
    grid = (np.arange(32) + 0.5) / 32
    draws = itertools.product(grid.tolist(), repeat=2)
    return Counter(round(mechanism.estimate_mean(np.array([value]), HIGH, Scripted(draw)), 6) for draw in draws)


@pytest.mark.parametrize("kind", [RandomisedRounding, SubtractiveDithering])
@pytest.mark.parametrize("odds", [3, 7, 15])
def test_one_bit_reports_are_exactly_epsilon_private(kind: type[MeanMechanism], odds: int) -> None:
    """At these odds of the truth, and for these values, the grid of uniforms gives the distribution without error.

    Dithering's output contains the shared number too: its distribution is that of the bit and the shared number.
    """
    distributions = [distribution(kind(math.log(odds)), HIGH * share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert all(one.keys() == distributions[0].keys() for one in distributions)
    ratios = [one[output] / other[output] for one in distributions for other in distributions for output in one]
    assert max(ratios) == pytest.approx(odds)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_response_keeps_a_bit_with_its_probability(epsilon: float) -> None:
    bits = np.arange(400_000) % 4 == 0
    reports = respond(bits, epsilon, seeded_rng(2))
    right = int(np.count_nonzero(reports == bits))
    for factor, same in ((1.0, True), (WRONG[0], False), (WRONG[1], False)):
        probability = math.exp(epsilon * factor) / (1 + math.exp(epsilon * factor))
        assert (stats.binomtest(right, len(bits), probability).pvalue > FLAKE_RATE) == same
    stddev = math.sqrt(math.exp(epsilon) / (math.exp(epsilon) - 1) ** 2 / len(bits))
    assert 2 * stats.norm.sf(abs(unbiased_share(reports, epsilon) - 0.25) / stddev) > FLAKE_RATE


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_laplace_is_exactly_epsilon_private(epsilon: float) -> None:
    """Its reports have the stated density, and the densities of 0 and of the bound differ by e^epsilon at most."""
    generator = seeded_rng(3)
    reports = [LaplaceNoise(epsilon).estimate_mean(np.array([100.0]), HIGH, generator) for _ in range(10_000)]
    assert stats.kstest(reports, "laplace", args=(100, HIGH / epsilon)).pvalue > FLAKE_RATE
    for wrong in WRONG:
        assert stats.kstest(reports, "laplace", args=(100, wrong * HIGH / epsilon)).pvalue < 1e-3
    at = np.linspace(-3 * HIGH, 3 * HIGH, 2001)
    ratio = stats.laplace.logpdf(at, 0, HIGH / epsilon) - stats.laplace.logpdf(at, HIGH, HIGH / epsilon)
    assert np.abs(ratio).max() == pytest.approx(epsilon, rel=1e-12)


def piecewise_density(at: np.ndarray, t: float, epsilon: float) -> np.ndarray:
    """Wang et al. 2019, Equation 5."""
    c = (math.exp(epsilon / 2) + 1) / (math.exp(epsilon / 2) - 1)
    most = (math.exp(epsilon) - math.exp(epsilon / 2)) / (2 * math.exp(epsilon / 2) + 2)
    left = (c + 1) / 2 * t - (c - 1) / 2
    near = (left <= at) & (at <= left + c - 1)
    return np.where(np.abs(at) > c, 0.0, np.where(near, most, most / math.exp(epsilon)))


def piecewise_outputs(t: float, epsilon: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs over a grid of what the client draws, and the probability of each."""
    near = math.exp(epsilon / 2) / (math.exp(epsilon / 2) + 1)
    places = (np.arange(points) + 0.5) / points

    class Grid(Generator):
        calls = 0

        def random(self, size: int) -> np.ndarray:
            self.calls += 1
            choice = np.repeat([near - 1e-9, near + 1e-9], size // 2)
            return choice if self.calls == 1 else np.tile(places, 2)

    outputs = piecewise(np.full(2 * points, t), epsilon, Grid(np.random.PCG64(0)))
    return outputs, np.repeat([near, 1 - near], points) / points


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("t", [-1.0, -0.3, 0.0, 0.8, 1.0])
def test_piecewise_has_its_density_mean_and_variance(t: float, epsilon: float) -> None:
    points, bins = 200_000, 40
    outputs, probabilities = piecewise_outputs(t, epsilon, points)
    end = max_report(epsilon)
    assert np.abs(outputs).max() <= end
    edges = np.linspace(-end, end, bins + 1)
    found = np.histogram(outputs, edges, weights=probabilities)[0]
    fine = (edges[:-1, None] + (np.arange(1000) + 0.5) / 1000 * np.diff(edges)[:, None]).ravel()
    expected = piecewise_density(fine, t, epsilon).reshape(bins, -1).mean(axis=1) * np.diff(edges)
    # a bin's ends and the window's: four places of 1000 in the oracle
    np.testing.assert_allclose(found, expected, atol=4e-3 * expected.max())
    root = math.exp(epsilon / 2)
    assert outputs @ probabilities == pytest.approx(t, abs=1e-9)
    spread = t**2 / (root - 1) + (root + 3) / (3 * (root - 1) ** 2)
    assert (outputs - t) ** 2 @ probabilities == pytest.approx(spread, rel=1e-6)
    worst = 4 * root / (3 * (root - 1) ** 2)
    assert spread <= worst * (1 + 1e-12)
    assert (spread == pytest.approx(worst)) == (abs(t) == 1)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_piecewise_is_exactly_epsilon_private(epsilon: float) -> None:
    end = max_report(epsilon)
    at = np.linspace(-end, end, 3001)[1:-1]
    densities = [piecewise_density(at, t, epsilon) for t in np.linspace(-1, 1, 21)]
    assert np.max(densities) / np.min(densities) == pytest.approx(math.exp(epsilon), rel=1e-12)


def test_a_tighter_bound_is_worth_its_square() -> None:
    """The mechanisms' error grows with a loose range. The same seed, a range 16 times as wide."""
    for mechanism in (SubtractiveDithering(1.0), LaplaceNoise(1.0)):
        spread = [
            np.std([mechanism.estimate_mean(VALUES, HIGH * loose, seeded_rng(run)) for run in range(2000)])
            for loose in (1, 16)
        ]
        # two standard deviations of 2000 runs, each known to 1 / sqrt(4000); six times that
        assert spread[1] / spread[0] == pytest.approx(16, rel=6 * math.sqrt(2 / 4000))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", [LaplaceNoise, RandomisedRounding, SubtractiveDithering, Piecewise])
def test_epsilon_must_be_sound(kind: type, epsilon: float) -> None:
    with rejects("epsilon"):
        kind(epsilon)


@pytest.mark.parametrize("mechanism", MECHANISMS[1:-1:2], ids=repr)
def test_values_must_lie_in_the_range(mechanism: MeanMechanism) -> None:
    generator = seeded_rng(0)
    for values in ([-0.1, 3.0], [1.0, 1023.5], [math.nan, 4.0], [math.inf]):
        with rejects("values"):
            mechanism.estimate_mean(np.array(values), HIGH, generator)
    with rejects("values"):
        mechanism.estimate_mean(np.array([]), HIGH, generator)
    for high in (0.0, -1.0, math.nan, math.inf):
        with rejects("high"):
            mechanism.estimate_mean(np.array([0.5]), high, generator)
