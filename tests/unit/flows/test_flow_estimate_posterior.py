"""Posteriors of noisy counts: exact given the prior, covered as stated, and better than the noisy counts."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.flows.flow_estimate import posterior_counts
from tests.seeds import seeded_rng


def noisy(exact: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    p = 1 - np.exp(-rate)
    return exact + rng.geometric(p, len(exact)) - rng.geometric(p, len(exact))


@pytest.mark.parametrize(("rate", "error"), [(0.3, 0.4), (1.0, 0.15)])
def test_posteriors_of_a_known_prior_are_bayes_rule(rate: float, error: float) -> None:
    """Counts are 0 with probability 0.6, else geometric of mean 10: Bayes' rule by hand beside what is learned."""
    rng = seeded_rng(3)
    exact = np.where(rng.random(40_000) < 0.6, 0, rng.geometric(0.1, 40_000))
    values = noisy(exact, rate, rng)
    found = posterior_counts(values, rate, np.zeros(len(values), np.int64))
    counts = np.arange(400)
    prior = np.where(counts == 0, 0.6, 0.4 * 0.1 * 0.9 ** np.maximum(counts - 1.0, 0))
    names, places = np.unique(values, return_inverse=True)
    masses = prior * np.exp(-rate * np.abs(names[:, None] - counts))
    expected = (masses @ counts / masses.sum(axis=1))[places]
    assert np.abs(found.mean - expected).mean() < error  # the noise has a mean absolute value of 1 / rate
    assert np.abs(found.mean - exact).mean() < 1.05 * np.abs(expected - exact).mean()
    assert found.mean.mean() == pytest.approx(exact.mean(), abs=0.1)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
def test_intervals_cover_what_they_say(rate: float) -> None:
    """Heavy-tailed counts with many zeros: 93 to 98% of 30,000, also of those above 0 that noise lifted highest."""
    rng = seeded_rng(5)
    exact = np.where(rng.random(30_000) < 0.6, 0, np.floor(rng.pareto(1.2, 30_000) * 2)).astype(np.int64)
    values = noisy(exact, rate, rng)
    found = posterior_counts(values, rate, np.zeros(len(values), np.int64))
    held = (found.low <= exact) & (exact <= found.high)
    assert 0.94 < held.mean() < 0.99  # zeros have whole ends: at least 95%
    listed = found.present >= 0.5
    assert 0.93 < held[listed].mean() < 0.98
    highest = np.argsort(-found.mean)[:300]
    assert held[highest].mean() > 0.9  # 270 of 300: below it by chance with a probability of 5e-4 at 95%


def test_a_count_far_above_the_noise_keeps_its_value_and_the_noises_interval() -> None:
    values = np.array([0, 1, 2, 10_000])
    found = posterior_counts(values, 1.0, np.zeros(4, np.int64))
    assert found.mean[3] == 10_000
    assert (found.low[3], found.high[3]) == (9_997, 10_003)  # P[|Z| > 3] = 2.7%, P[|Z| > 2] = 7.3%
    assert found.present[3] == 1


def test_classes_learn_priors_of_their_own_and_small_ones_join() -> None:
    rng = seeded_rng(7)
    exact = np.repeat([0, 9, 9], [3_000, 3_000, 20])
    values = noisy(exact, 0.5, rng)
    classes = np.repeat([0, 5, 9], [3_000, 3_000, 20])
    found = posterior_counts(values, 0.5, classes)
    assert found.mean[:3_000].mean() < 0.2
    assert np.abs(found.mean[3_000:] - 9).mean() < 1.0  # the 20 of the last class share the prior of the one before
    none = posterior_counts(values[:0], 0.5, classes[:0])
    assert len(none.mean) == 0
