"""Posterior counts behind noisy counts: a prior that many counts share, learned from them (empirical Bayes). Pure.

Counts of similar pairs have a common prior: any distribution on a grid of counts, of which a few expectation
maximisation steps make the noisy counts likely (nonparametric maximum likelihood: Kiefer and Wolfowitz 1956; Robbins
1956). After each step it is smoothed, but for the probability of 0 (Silverman, Jones, Wilson and Nychka 1990): else few
counts would make a prior of spikes, with intervals that are too short. The noise is discrete Laplace of a known scale,
so the posterior of each count is exact given the prior. A count far above the noise gets a flat prior: its noisy count
with the noise's own interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev

_STEPS = 40  # of expectation maximisation
_STEP = 0.2  # of the grid, in scales of the noise
_TOP, _FLAT = 30.0, 15.0  # scales: the grid's end, and from where a prior is flat
_SMOOTH = 0.5  # scales, to each side: the prior of counts above 0 varies slowly
_PSEUDO_COUNTS = 5.0  # of a broad prior, mixed in: a class of few counts knows its prior badly
_LEAST = 100  # counts of a class; smaller ones join a neighbour
_ERROR = 0.05  # probability outside of an interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CountPosterior:
    """What is known of n counts: float64[n] each.

    Attributes:
        mean, variance: of the posterior.
        low, high: ends of the 95% interval, whole numbers of at least 0.
        present: the probability that the count is above 0.
    """

    mean: Array
    variance: Array
    low: Array
    high: Array
    present: Array


def posterior_counts(noisy: NDArray[np.int64], rate: float, classes: NDArray[np.int64]) -> CountPosterior:
    """The posterior of each count.

    Args:
        noisy: int64[n], counts with discrete Laplace noise, P[Z = k] proportional to e^(-rate |k|).
        rate: of the noise, > 0.
        classes: int64[n], ordered classes of counts that are expected to be alike, by other noisy counts. Each learns
            a prior of its own.
    """
    result = np.zeros((5, len(noisy)))
    joined = _joined(classes)
    for one in np.unique(joined):
        at = np.flatnonzero(joined == one)
        values, places, numbers = np.unique(noisy[at], return_inverse=True, return_counts=True)
        result[:, at] = np.stack(_posterior(values, numbers, rate))[:, places]
    return CountPosterior(*result)


def _joined(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Classes of at least _LEAST counts: small ones join the next, a small last one the one before."""
    names, numbers = np.unique(classes, return_counts=True)
    labels, label, held = [], 0, 0
    for number in numbers.tolist():
        labels.append(label)
        held += number
        if held >= _LEAST:
            label, held = label + 1, 0
    last = max(label - 1, 0) if held else label
    return np.asarray(np.minimum(labels, last)[np.searchsorted(names, classes)], dtype=np.int64)


def _posterior(values: NDArray[np.int64], numbers: NDArray[np.int64], rate: float) -> tuple[Array, ...]:
    """The attributes of the posterior of each of some distinct noisy counts, of which there are `numbers`."""
    stddev = discrete_laplace_stddev(rate)
    tail = math.ceil((math.log(2 / (1 + math.exp(-rate))) - math.log(_ERROR)) / rate) - 1  # P[|Z| > tail] <= 5%
    flat = values * rate > _FLAT
    mean, variance = values.astype(np.float64), np.full(len(values), stddev**2, dtype=np.float64)
    low, high, present = np.maximum(mean - tail, 0.0), mean + tail, np.ones(len(values))
    if not flat.all():
        step = max(1, math.floor(_STEP / rate))
        end = min(int(values.max()) + math.ceil(8 / rate), math.ceil(_TOP / rate))
        grid = np.arange(0, max(end, 1) + step, step, dtype=np.float64)
        near = values * rate <= _TOP
        likely = np.exp(-rate * np.abs(values[near, None] - grid))
        weights, prior = numbers[near].astype(np.float64), np.full(len(grid), 1 / len(grid))
        broad = 1 / (1 + grid)
        broad /= broad.sum()
        kernel = _kernel(max(round(_SMOOTH / (rate * step)), 1))
        for _ in range(_STEPS):
            expected = (weights / (likely @ prior)) @ likely * prior
            prior = _smoothed((expected + _PSEUDO_COUNTS * broad) / (weights.sum() + _PSEUDO_COUNTS), kernel)
        masses = likely[~flat[near]] * prior
        masses /= masses.sum(axis=1, keepdims=True)
        below = np.cumsum(masses, axis=1)
        mean[~flat] = masses @ grid
        variance[~flat] = np.maximum(masses @ grid**2 - mean[~flat] ** 2, 0)
        low[~flat], high[~flat] = _shortest(below, grid)
        present[~flat] = 1 - masses[:, 0]
    return mean, variance, low, high, present


def _kernel(reach: int) -> Array:
    """A triangle of weights that reaches so many places to each side, sum 1."""
    weights = np.concatenate([np.arange(1.0, reach + 2), np.arange(reach, 0.0, -1)])
    return np.asarray(weights / weights.sum())


def _smoothed(prior: Array, kernel: Array) -> Array:
    """The prior with its probabilities above 0 averaged over neighbours; that of 0 stays."""
    reach, above = len(kernel) // 2, float(prior[1:].sum())
    smooth = np.convolve(np.pad(prior[1:], reach, mode="edge"), kernel, mode="valid")
    return np.concatenate([prior[:1], smooth * (above / max(float(smooth.sum()), 1e-300))])


def _shortest(below: Array, grid: Array) -> tuple[Array, Array]:
    """The shortest of some intervals of 95%, whose tails share the rest in different parts: ends, float64[n] each.

    Args:
        below: float64[n, g], the probability of each point of the grid and of all below it.
        grid: float64[g].
    """
    low, high = np.zeros(len(below)), np.full(len(below), np.inf)
    for part in np.linspace(0.5, 0, 6).tolist() + np.linspace(0.6, 1, 5).tolist():
        left = grid[(below > part * _ERROR).argmax(axis=1)]
        right = grid[(below >= 1 - (1 - part) * _ERROR - 1e-12).argmax(axis=1)]
        shorter = right - left < high - low
        low, high = np.where(shorter, left, low), np.where(shorter, right, high)
    return low, high
