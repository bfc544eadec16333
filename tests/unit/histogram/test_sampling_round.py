"""Rates on the sampler's grid, estimates, and what an absent item may hide."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.sampling_round import HIDDEN_CONFIDENCE, Histogram, Sampling, hidden_count
from tests.rejections import rejects


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 2**-32, 0.999999999, 0.25])
def test_rates_are_rounded_down_to_the_grid(rate: float) -> None:
    sampling = Sampling.from_rate(rate, 5)
    assert sampling.rate <= rate < (sampling.rate_steps + 1) / 2**32
    assert Sampling.from_rate(sampling.rate, 5) == sampling


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan, math.inf, 1e-11, True])
def test_bad_rates_are_refused(rate: float) -> None:
    with rejects("rate"):
        Sampling.from_rate(rate, 5)


@pytest.mark.parametrize(
    ("words", "threshold"), [(0, 1), (2**32, 1), (1.5, 1), (True, 1), (5, 0), (5, math.nan), (5, True)]
)
def test_bad_words_and_thresholds_are_refused(words: int, threshold: int) -> None:
    with pytest.raises(RequestError, match="must be"):
        Sampling(words, threshold)


def test_estimates_have_the_mean_and_the_spread_of_the_truth() -> None:
    """Over the exact law of X ~ Bin(c, p): E[X / p] = c, and E[X (1 - p) / p^2] is the variance of X / p."""
    sampling = Sampling.from_rate(0.3, 1)
    count = 50
    x = np.arange(count + 1)
    law = stats.binom.pmf(x, count, sampling.rate)
    published = Histogram(0, sampling, x.astype(np.uint64), x)
    values, spreads = published.counts, published.stddev
    assert law @ values == pytest.approx(count)
    assert law @ spreads**2 == pytest.approx(count * (1 - sampling.rate) / sampling.rate)
    assert law @ (values - count) ** 2 == pytest.approx(law @ spreads**2)


@pytest.mark.parametrize("rounds", [1, 6])
@pytest.mark.parametrize(("rate", "threshold"), [(0.25, 20), (0.9, 3), (0.01, 2), (0.5, 1)])
def test_hidden_counts_are_the_last_plausible_ones(rate: float, threshold: int, rounds: int) -> None:
    hidden = hidden_count(Sampling.from_rate(rate, threshold), rounds)

    def absent(count: int) -> float:
        return float(1 - (1 - stats.binom.cdf(threshold - 1, count, rate)) ** rounds)

    assert absent(hidden) >= 1 - HIDDEN_CONFIDENCE > absent(hidden + 1)


def test_bad_questions_about_hidden_counts_are_refused() -> None:
    with rejects("rounds"):
        hidden_count(Sampling(2**30, 5), 0)
