"""Baselines of histograms, quantiles, and flows."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numpy.random import Generator
from scipy import linalg, stats

from benchmarks.baselines.histogram_mechanisms import (
    BernoulliShuffle,
    CentralLaplace,
    DirectEncoding,
    HadamardResponse,
    HistogramMechanism,
    ThresholdedSample,
    UnaryEncoding,
    amplified_epsilon,
    hadamard_order,
    hadamard_respond,
    message_rate,
    shuffle_delta,
)
from benchmarks.baselines.quantile_mechanisms import greedy_ranks
from sfumato.transforms.histogram.sampling_round import Histogram, Sampling
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p

DELTA = 1e-8
COUNTS = np.array([0, 900, 40, 3000, 260])
RUNS = 3000
WRONG = [0.7, 1.3]


def estimates(mechanism: HistogramMechanism, counts: np.ndarray = COUNTS, runs: int = RUNS) -> np.ndarray:
    generator = seeded_rng(7)
    return np.array([mechanism.estimate(counts, generator) for _ in range(runs)])


def variance(mechanism: HistogramMechanism, counts: np.ndarray = COUNTS) -> np.ndarray:
    """Float64[B], from the formulas in the docstrings averaged over the sample."""
    p, n = mechanism.rate, counts.sum()
    sampling = counts * (1 - p) / p
    if isinstance(mechanism, CentralLaplace):
        return sampling + 2 * (mechanism.noise_scale / p) ** 2
    if isinstance(mechanism, HadamardResponse):
        c = (math.exp(mechanism.epsilon) + 1) / (math.exp(mechanism.epsilon) - 1)
        return sampling + (c**2 * n - counts) / p
    if isinstance(mechanism, DirectEncoding):
        t = math.expm1(mechanism.epsilon) / (math.exp(mechanism.epsilon) + len(counts) - 1)
        u = (1 - t) / len(counts)
        return sampling + (counts * (t + u) * (1 - t - u) + (n - counts) * u * (1 - u)) / (t**2 * p)
    if isinstance(mechanism, UnaryEncoding):
        own, other = mechanism.bits
        noise = counts * own * (1 - own) + (n - counts) * other * (1 - other)
        return sampling + noise / ((own - other) ** 2 * p)
    assert isinstance(mechanism, BernoulliShuffle)
    q = message_rate(round(n * p), mechanism.epsilon, mechanism.delta)
    return sampling + n * p * q * (1 - q) / p**2


def variance_p(sample: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Two-sided p-values, one a column, of sample variances. No sample here has a kurtosis above Laplace's 6."""
    z = (sample.var(axis=0, ddof=1) / expected - 1) / math.sqrt(5 / len(sample))
    return 2 * stats.norm.sf(np.abs(z))


UNBIASED = [
    CentralLaplace(0.4, 0.5),
    CentralLaplace(1.0, 0.5),
    CentralLaplace(0.4, 0.5, amplified=True),
    HadamardResponse(0.4, 0.8),
    HadamardResponse(1.0, 0.8),
    DirectEncoding(0.4, 0.8),
    DirectEncoding(1.0, 0.8),
    UnaryEncoding(0.4, 0.8),
    UnaryEncoding(1.0, 0.8, optimised=False),
    BernoulliShuffle(0.4, 0.8, DELTA),
    BernoulliShuffle(1.0, 0.8, DELTA),
]


# Two p-values of two sides for each of five buckets. The variance of 3,000 Laplace variates is skew: 2e-8 above.
@pytest.mark.false_alarm(2e-7)
@pytest.mark.parametrize("mechanism", UNBIASED, ids=repr)
def test_estimates_are_unbiased_with_the_stated_variance(mechanism: HistogramMechanism) -> None:
    sample, expected = estimates(mechanism), variance(mechanism)
    z = (sample.mean(axis=0) - COUNTS) / np.sqrt(expected / RUNS)
    assert stats.norm.sf(np.abs(z)).min() > FLAKE_RATE
    assert variance_p(sample, expected).min() > FLAKE_RATE


@pytest.mark.false_alarm(1e-9)  # one p-value
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_laplace_noise_has_its_scale(epsilon: float) -> None:
    counts = np.full(40_000, 12)
    noise = CentralLaplace(1.0, epsilon).estimate(counts, seeded_rng(1)) - counts
    assert stats.kstest(noise, "laplace", args=(0, 1 / epsilon)).pvalue > FLAKE_RATE
    for wrong in WRONG:
        assert stats.kstest(noise, "laplace", args=(0, wrong / epsilon)).pvalue < FLAKE_RATE


@pytest.mark.parametrize(("epsilon", "rate"), [(0.1, 0.02), (1.0, 0.25), (1.0, 1.0)])
def test_amplified_laplace_is_exactly_as_private_as_it_says(epsilon: float, rate: float) -> None:
    """A sampled user's noise is shifted by one: the likelihood ratio with and without them, over a grid of outputs."""
    scale = CentralLaplace(rate, epsilon, amplified=True).noise_scale
    assert scale == pytest.approx(1 / amplified_epsilon(epsilon, rate))
    at = np.linspace(-3, 4, 1401)
    without = stats.laplace.pdf(at, 0, scale)
    ratio = (rate * stats.laplace.pdf(at, 1, scale) + (1 - rate) * without) / without
    assert np.abs(np.log(ratio)).max() == pytest.approx(epsilon, rel=1e-12)


class Enumerated(Generator):
    """Every output once, with a uniform number just below the threshold and then just above it."""

    def __init__(self, order: int, threshold: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.order, self.threshold = order, threshold

    def integers(self, order: int, size: int) -> np.ndarray:
        assert (order, size) == (self.order, 2 * self.order)
        return np.tile(np.arange(order), 2)

    def random(self, size: int) -> np.ndarray:
        return np.repeat([np.nextafter(self.threshold, 0), np.nextafter(self.threshold, 1)], size // 2)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("buckets", range(1, 10))
def test_hadamard_is_exactly_epsilon_private(buckets: int, epsilon: float) -> None:
    """The distribution of every item's report, by enumeration of what the client draws."""
    order, truthful = hadamard_order(buckets), 1 / (1 + math.exp(-epsilon))
    assert order // 2 < buckets + 1 <= order
    weights = np.repeat([truthful, 1 - truthful], order) / order
    distribution = np.array(
        [
            np.bincount(
                hadamard_respond(np.full(2 * order, item), order, epsilon, Enumerated(order, truthful)), weights
            )
            for item in range(buckets)
        ]
    )
    signs = linalg.hadamard(order)[1 : buckets + 1]
    expected = np.where(signs > 0, truthful, 1 - truthful) * 2 / order
    np.testing.assert_allclose(distribution, expected, rtol=1e-13)
    assert distribution.max() / distribution.min() == pytest.approx(math.exp(epsilon), rel=1e-12)


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5])
def test_unary_reports_are_exactly_epsilon_private(epsilon: float, optimised: bool) -> None:
    """Two items differ in two bits; the worst pair of them has a ratio of e^epsilon."""
    own, other = UnaryEncoding(1.0, epsilon, optimised).bits
    assert own * (1 - other) / (other * (1 - own)) == pytest.approx(math.exp(epsilon), rel=1e-12)


@pytest.mark.false_alarm(1e-9)  # one p-value
@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (WRONG[0], False), (WRONG[1], False)])
def test_direct_reports_have_the_ratio_of_randomised_response(factor: float, same: bool) -> None:
    """All clients in one of 8 buckets: the other buckets' reports have e^-epsilon of the probability of the own one."""
    users, epsilon, buckets = 200_000, 1.0, 8
    counts = np.array([users, *[0] * (buckets - 1)])
    found = DirectEncoding(1.0, epsilon).estimate(counts, seeded_rng(4))
    own = math.expm1(epsilon) / (math.exp(epsilon) + buckets - 1)
    reports = round(float(found[0] * own + users * (1 - own) / buckets))
    expected = math.exp(epsilon * factor) / (math.exp(epsilon * factor) + buckets - 1)
    assert (stats.binomtest(reports, users, expected).pvalue > FLAKE_RATE) == same
    assert found.sum() == pytest.approx(users)


def brute_force_delta(users: int, probability: float, epsilon: float) -> float:
    """Both directions, output by output, with 40 digits."""
    with mpmath.workdps(40):
        q, growth = mpmath.mpf(probability), mpmath.exp(mpmath.mpf(epsilon))
        noise = [mpmath.binomial(users, k) * q**k * (1 - q) ** (users - k) for k in range(users + 1)]
        without, with_user = [*noise, mpmath.mpf(0)], [mpmath.mpf(0), *noise]
        pairs = list(zip(with_user, without, strict=True))
        return float(max(sum(max(a - growth * b, 0) for a, b in pairs), sum(max(b - growth * a, 0) for a, b in pairs)))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize(("users", "probability"), [(1, 0.5), (2, 0.3), (30, 0.02), (30, 0.5), (400, 0.1), (2000, 0.2)])
def test_shuffle_delta_is_exact(users: int, probability: float, epsilon: float) -> None:
    assert shuffle_delta(users, probability, epsilon) == pytest.approx(
        brute_force_delta(users, probability, epsilon), rel=1e-9, abs=1e-14
    )


@pytest.mark.parametrize(("users", "epsilon"), [(15_860, 0.1), (65_578, 0.5), (105_353, 1.0), (300_000, 1.0)])
def test_the_message_rate_is_the_least_private_one(users: int, epsilon: float) -> None:
    probability = message_rate(users, epsilon, DELTA)
    assert 0.99 * DELTA < shuffle_delta(users, probability, epsilon) <= DELTA
    below = shuffle_delta(users, 0.7 * probability, epsilon)
    assert below > 10 * DELTA  # noise 16% too small
    grid = [shuffle_delta(users, probability * factor, epsilon) for factor in np.linspace(0.5, 1, 200)]
    assert np.all(np.diff(grid) < 0)


@pytest.mark.false_alarm(1e-9)  # one p-value
@pytest.mark.parametrize("zeroed", [False, True])
def test_shuffle_noise_has_its_distribution(zeroed: bool) -> None:
    """Only one bucket of 20,001 has clients; the others are noise, or what the zeroing leaves of it."""
    users, epsilon = 5000, 1.0
    counts = np.zeros(20_001, dtype=np.int64)
    counts[0] = users
    probability = message_rate(users, epsilon, DELTA)
    mechanism = BernoulliShuffle(1.0, epsilon, DELTA, zeroed)
    empty = mechanism.estimate(counts, seeded_rng(5))[1:]
    if zeroed:
        assert not empty.any()
        return
    noise = np.rint(empty + users * probability).astype(np.int64)
    np.testing.assert_allclose(noise - users * probability, empty, atol=1e-9)
    centre, reach = round(users * probability), 45
    for factor, same in ((1.0, True), (WRONG[0], False), (WRONG[1], False)):
        pmf = stats.binom.pmf(centre + np.arange(-reach, reach + 1), users, probability * factor)
        assert (chi_square_p(noise - centre, pmf) > FLAKE_RATE) == same


@pytest.mark.false_alarm(1e-9)  # one p-value
@pytest.mark.parametrize(
    ("rate", "threshold", "same"),
    [(0.2, 9, True), (0.14, 9, False), (0.26, 9, False), (0.2, 8, False), (0.2, 10, False)],
)
def test_a_thresholded_sample_has_its_distribution(rate: float, threshold: int, same: bool) -> None:
    """Against Bin(40, rate) with everything below the threshold at 0; the sample's are 0.2 and 9."""
    mechanism, counts = ThresholdedSample("any", Sampling.from_rate(0.2, 9)), np.full(50_000, 40)
    found = mechanism.estimate(counts, seeded_rng(2)) * mechanism.rate
    sampled = np.rint(found).astype(np.int64)
    np.testing.assert_allclose(sampled, found, atol=1e-9)
    at = np.arange(41)
    pmf = np.where(at >= threshold, stats.binom.pmf(at, 40, rate), 0.0)
    pmf[0] = 1 - pmf.sum()
    assert (chi_square_p(sampled, np.concatenate([np.zeros(40), pmf])) > FLAKE_RATE) == same


# The paper's greedy decomposition of a range against a walk through the trie, one probe at a time.

SAMPLING = Sampling.from_rate(0.25, 2)


def probes(levels: list[Histogram], border: int, bits: int) -> list[float]:
    """The counts of the nodes that cover [0, border): at each level those right of the nodes above it."""
    found, start = [], 0
    for level in levels:
        width = 1 << (bits - level.level)
        counts = dict(zip(level.items.tolist(), level.counts.tolist(), strict=True))
        while start + width <= border:
            found.append(counts.get(start // width, 0.0))
            start += width
    assert start == border
    return found


@pytest.mark.parametrize("lengths", [(1, 2, 3, 4, 5), (2, 4, 5), (5,)])
def test_ranks_are_sums_over_the_greedy_cover(lengths: tuple[int, ...]) -> None:
    generator, bits = seeded_rng(1), lengths[-1]
    levels = []
    for length in lengths:
        items = np.flatnonzero(generator.random(1 << length) < 0.7).astype(np.uint64)
        levels.append(Histogram(length, SAMPLING, items, generator.integers(2, 50, len(items))))
    found = greedy_ranks(levels, bits)
    covers = [probes(levels, border, bits) for border in range((1 << bits) + 1)]
    assert found == pytest.approx([sum(cover) for cover in covers])
    steps = np.diff((0, *lengths))
    # the whole range takes a probe more at the first level: all its nodes
    assert max(map(len, covers[:-1])) == sum(2**step - 1 for step in steps)
