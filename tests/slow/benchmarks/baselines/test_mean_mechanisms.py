"""Baselines of means: published mechanisms, and bit pushing as published."""

from __future__ import annotations

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
)
from benchmarks.baselines.published_bit_pushing import PublishedBitPushing, exact_quotas
from benchmarks.evaluation.moments_in_memory import run_in_memory
from sfumato.schemas.moments import FixedPoint
from sfumato.transforms.moments.local.allocation import Tuning
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
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


@pytest.mark.false_alarm(2e-9)  # two p-values
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


@pytest.mark.false_alarm(1e-9)  # one p-value
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_laplace_is_exactly_epsilon_private(epsilon: float) -> None:
    """Its reports have the stated density, and the densities of 0 and of the bound differ by e^epsilon at most."""
    generator = seeded_rng(3)
    # As many that a scale of 1.15 has a distance of 7 deviations more than what p = 0.001 needs.
    reports = [LaplaceNoise(epsilon).estimate_mean(np.array([100.0]), HIGH, generator) for _ in range(30_000)]
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


# The paper's algorithms against their formulas, by brute force, and beside the product.

BITS, PUBLISHED_RUNS, CLIENTS = 4, 2000, 300
PLACES = 2.0 ** np.arange(BITS)


def draw(generator: np.random.Generator, clients: int = CLIENTS) -> np.ndarray:
    """Clients with independent values, as Lemma 3.1 has them."""
    return generator.integers(0, 11, clients).astype(np.float64)


def published_estimates(mechanism: PublishedBitPushing) -> np.ndarray:
    generator = seeded_rng(3)
    return np.array([mechanism.estimate_mean(draw(generator), 2.0**BITS - 1, generator) for _ in range(PUBLISHED_RUNS)])


def lemma(power: float, epsilon: float | None) -> float:
    """Lemma 3.1, with the variance of Section 3.3: the sum of 4^j (m (1 - m) + noise) / n_j."""
    means = np.array([np.mean(np.arange(11) >> bit & 1) for bit in range(BITS)])
    noise = 0.0 if epsilon is None else math.exp(epsilon) / (math.exp(epsilon) - 1) ** 2
    quotas = CLIENTS * PLACES**power / (PLACES**power).sum()
    return float((PLACES**2 * (means * (1 - means) + noise) / quotas).sum())


@pytest.mark.false_alarm(2e-9)  # two p-values
@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_one_round_is_unbiased_with_the_variance_of_lemma_3_1(epsilon: float | None, power: float) -> None:
    found = published_estimates(PublishedBitPushing(epsilon, first_share=0, power=power))
    expected = lemma(power, epsilon)
    assert 2 * stats.norm.sf(abs(found.mean() - 5) / math.sqrt(expected / PUBLISHED_RUNS)) > FLAKE_RATE
    spread = abs(stats.norm.isf(FLAKE_RATE / 2)) * math.sqrt(2 / PUBLISHED_RUNS)
    assert found.var(ddof=1) / expected == pytest.approx(1, abs=spread + 0.02)  # 0.02: rounded quotas


def test_quotas_are_exact() -> None:
    """Every number is one of the two whole numbers about its share, and they add up."""
    generator = seeded_rng(1)
    for _ in range(100):
        shares = generator.dirichlet(np.ones(7))
        clients = int(generator.integers(1, 1000))
        counts = exact_quotas(shares, clients)
        assert counts.sum() == clients
        assert np.all(np.abs(counts - shares * clients) < 1)


def test_squashing_empties_the_bits_that_noise_fills() -> None:
    """Values of 4 bits in a form of 14, where the noise of the upper ten is far above the mean."""
    generator = seeded_rng(5)
    plain, squashed = (
        np.array([one.estimate_mean(draw(generator, 5000), 2.0**14 - 1, generator) - 5 for _ in range(60)])
        for one in (PublishedBitPushing(2.0), PublishedBitPushing(2.0, squash=3.0))
    )
    assert np.abs(squashed).mean() < np.abs(plain).mean() / 20


@pytest.mark.false_alarm(7e-9)  # two means at 6.5 deviations of 120 runs, 2e-9 each; one p-value of two sides
def test_the_product_with_the_papers_tuning_has_the_same_error() -> None:
    """`--tuning paper` draws a bit for each client: its error is that of the published form without exact quotas."""
    generator, key = seeded_rng(7), RunKey.derive(FixedSecret(b"published"), {"test": "published"})
    plan = MomentsPlan(form=FixedPoint(BITS), tuning=Tuning.from_paper(local=False))
    errors: dict[str, list[float]] = {"product": [], "published": []}
    for run in range(120):
        values = draw(generator, 500)
        found = run_in_memory(values, plan, key.narrowed({"run": str(run)})).estimates[0].value
        errors["product"].append(found - values.mean())
        mechanism = PublishedBitPushing(quotas=False)
        errors["published"].append(mechanism.estimate_mean(values, 2.0**BITS - 1, generator) - values.mean())
    product, published = (np.array(errors[name]) for name in errors)
    for one in (product, published):
        assert abs(one.mean()) < 6.5 * one.std() / math.sqrt(120)
    # the ratio of two variances of 120 normal errors each
    assert stats.f.sf(max(product.var() / published.var(), published.var() / product.var()), 119, 119) > FLAKE_RATE
