"""Flows from noisy counts of pairs: shrunk counts, their intervals, and which pairs are listed. All post-processing.

Counts of similar pairs have a common prior, learned from them (empirical Bayes): a distribution on a grid of counts,
fitted by a few steps of expectation maximisation to make the noisy counts likely (nonparametric maximum likelihood:
Kiefer and Wolfowitz 1956; Robbins 1956). After each step it is smoothed, except for the probability of 0 (Silverman,
Jones, Wilson and Nychka 1990): otherwise few counts would make a prior of spikes, with intervals that are too short.
The noise is discrete Laplace of a known scale, so the posterior of each count is exact given the prior. A count far
above the noise gets a flat prior: its noisy count with the noise's own interval.

Pairs next to each other are alike. So a pair's prior is learned from all pairs of its level whose siblings and
neighbours have a similar number of trips. A pair is listed where it has a trip with a probability of at least LISTED.
All others are in the rests: for every pair of coarse cells, the sum of all noisy counts in it, minus the listed
estimates. So the rows of a coarse pair add up to its unbiased noisy count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sfumato.schemas.known_digits import Z_95
from sfumato.schemas.region import deinterleave
from sfumato.transforms.flows.user_trips import Codes, split_pairs
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev

_STEPS = 40  # of expectation maximisation
_STEP = 0.2  # of the grid, in scales of the noise
_TOP, _FLAT = 30.0, 15.0  # scales: the grid's end, and from where a prior is flat
_SMOOTH = 0.5  # scales, to each side: the prior of counts above 0 varies slowly
_PSEUDO_COUNTS = 5.0  # of a broad prior, mixed in: a class of few counts determines its prior poorly
_LEAST = 100  # counts of a class; smaller ones join a neighbour
_ERROR = 0.05  # probability outside of an interval

Array = NDArray[np.float64]
LISTED = 0.5
# Limits of the siblings' mean, in scales of the noise.
CLASSES = (-0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True, eq=False)
class MeasuredLevel:
    """The noisy counts of one level: all pairs of the first level, below it the 16 children of each split pair."""

    level: int  # of the cells of a pair
    nodes: Codes  # uint64[n], codes of the pairs, in groups of 16 siblings
    is_split: NDArray[np.bool_]  # bool[n], whether a pair's children are measured in its place
    noisy: NDArray[np.int64]  # int64[n], noisy counts of trips; 0 where a pair is split
    rate: float  # the noise has P[Z = k] proportional to e^(-rate |k|)


@dataclass(frozen=True)
class CountPosterior:
    """The posterior of n counts: float64[n] each."""

    mean: Array  # and variance: of the posterior
    variance: Array
    low: Array  # and high: ends of the 95% interval, whole numbers of at least 0
    high: Array
    present: Array  # the probability that the count is above 0


def posterior_counts(noisy: NDArray[np.int64], rate: float, classes: NDArray[np.int64]) -> CountPosterior:
    """Returns the posterior of each count.

    noisy: int64[n], counts with discrete Laplace noise, P[Z = k] proportional to e^(-rate |k|), of a rate > 0. classes:
    int64[n], ordered classes of counts that are expected to be alike, by other noisy counts. Each learns a prior of its
    own.
    """
    result = np.zeros((5, len(noisy)))
    joined = _joined(classes)
    for one in np.unique(joined):
        at = np.flatnonzero(joined == one)
        values, places, numbers = np.unique(noisy[at], return_inverse=True, return_counts=True)
        result[:, at] = np.stack(_posterior(values, numbers, rate))[:, places]
    return CountPosterior(*result)


def _joined(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merges small classes into the next, and a small last class into the one before.

    Each then has at least _LEAST counts.
    """
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
    """Returns the posterior's attributes for each distinct noisy count; `numbers` states how often each occurs."""
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
        reach = max(round(_SMOOTH / (rate * step)), 1)
        kernel = np.concatenate([np.arange(1.0, reach + 2), np.arange(reach, 0.0, -1)])  # a triangle, of sum 1
        kernel = kernel / kernel.sum()
        for _ in range(_STEPS):
            expected = (weights / (likely @ prior)) @ likely * prior
            prior = (expected + _PSEUDO_COUNTS * broad) / (weights.sum() + _PSEUDO_COUNTS)
            # The probabilities above 0 are averaged over neighbours; that of 0 stays.
            smooth = np.convolve(np.pad(prior[1:], reach, mode="edge"), kernel, mode="valid")
            smooth *= float(prior[1:].sum()) / max(float(smooth.sum()), 1e-300)
            prior = np.concatenate([prior[:1], smooth])
        masses = likely[~flat[near]] * prior
        masses /= masses.sum(axis=1, keepdims=True)
        below = np.cumsum(masses, axis=1)
        mean[~flat] = masses @ grid
        variance[~flat] = np.maximum(masses @ grid**2 - mean[~flat] ** 2, 0)
        low[~flat], high[~flat] = _shortest(below, grid)
        present[~flat] = 1 - masses[:, 0]
    return mean, variance, low, high, present


def _shortest(below: Array, grid: Array) -> tuple[Array, Array]:
    """Returns the ends of the shortest 95% interval among some that split the 5% differently: float64[n] each.

    below: float64[n, g], the probability of each point of the grid, float64[g], and of all below it.
    """
    low, high = np.zeros(len(below)), np.full(len(below), np.inf)
    for part in np.linspace(0.5, 0, 6).tolist() + np.linspace(0.6, 1, 5).tolist():
        left = grid[(below > part * _ERROR).argmax(axis=1)]
        right = grid[(below >= 1 - (1 - part) * _ERROR - 1e-12).argmax(axis=1)]
        shorter = right - left < high - low
        low, high = np.where(shorter, left, low), np.where(shorter, right, high)
    return low, high


@dataclass(frozen=True, eq=False)
class Flows:
    """Listed pairs, then rests: n rows. Together they hold all trips, each once.

    For listed pairs `trips` and `stddev` are posterior means and standard deviations; for rests they are what the
    listed pairs leave of the noisy count, which may be negative, and the standard deviation of its error.
    """

    level: NDArray[np.int64]  # int64[n], of the cells of the pair; 0 for the region
    pair: Codes  # uint64[n]
    is_rest: NDArray[np.bool_]  # bool[n], the trips of a coarse pair without those of the listed pairs within it
    trips: Array  # float64[n], as all that follow but `noisy`
    stddev: Array
    low: Array  # and high: 95% intervals
    high: Array
    present: Array  # the probability that the row has a trip
    noisy: NDArray[np.int64]  # int64[n], noisy counts of the same trips
    noise_stddev: Array  # of their noise

    def __len__(self) -> int:
        return len(self.pair)


def estimate_flows(levels: Sequence[MeasuredLevel]) -> Flows:
    """Returns the flows of a release, from its noisy counts only."""
    within = rest_level(levels[0].level)
    coarse = [(one.nodes >> np.uint64(4 * (one.level - within))).astype(np.int64) for one in levels]
    return flows_and_rests(levels, _posteriors(levels), coarse, within, 16**within)


def flows_and_rests(
    levels: Sequence[MeasuredLevel],
    posteriors: Sequence[CountPosterior],
    coarse: Sequence[NDArray[np.int64]],
    within: int,
    size: int,
) -> Flows:
    """Returns the listed pairs and the rests.

    Args:
        levels: noisy counts.
        posteriors: of the pairs of each level.
        coarse: of each level int64[n], the rest to which each pair belongs, 0..size - 1.
        within: the level of rests.
        size: number of rests.
    """
    rows: list[dict[str, Any]] = []
    # Of each coarse pair: all noisy counts less listed estimates, the variance of that; noisy counts that are not
    # listed, the variance of their noise.
    rest = np.zeros((4, size))
    for measured, posterior, place in zip(levels, posteriors, coarse, strict=True):
        listed = ~measured.is_split & (posterior.present >= LISTED)
        counted, stddev, shown = ~measured.is_split, discrete_laplace_stddev(measured.rate), int(listed.sum())
        noise = stddev**2
        rows.append(
            {
                "level": np.full(shown, measured.level),
                "pair": measured.nodes[listed],
                "is_rest": np.zeros(shown, dtype=bool),
                "trips": posterior.mean[listed],
                "stddev": np.sqrt(posterior.variance[listed]),
                "low": posterior.low[listed],
                "high": posterior.high[listed],
                "present": posterior.present[listed],
                "noisy": measured.noisy[listed],
                "noise_stddev": np.full(shown, stddev),
            }
        )
        # The expected noise of a listed pair, given its count, has the noise's variance minus the posterior's.
        left = np.where(listed, measured.noisy - posterior.mean, measured.noisy)
        spread = np.where(listed, np.maximum(noise - posterior.variance, 0), noise)
        other = counted & ~listed
        parts = ((counted, left), (counted, spread), (other, measured.noisy), (other, np.full(len(other), noise)))
        for total, (at, values) in zip(rest, parts, strict=True):
            total += np.bincount(place[at], values[at], size)
    rows.append(_rest_rows(within, *rest))
    return Flows(**{name: np.concatenate([row[name] for row in rows]) for name in rows[0]})


def rest_level(start: int) -> int:
    """Returns the level of the pairs whose rests are published, of a tree that starts at level `start`.

    Their number is public, and so are the rows of rests: nothing is chosen by its count.
    """
    return start - 2 if start > 3 else start - 1


def _posteriors(levels: Sequence[MeasuredLevel]) -> list[CountPosterior]:
    """Returns the posterior of every pair that is not split, level by level."""
    found: list[CountPosterior] = []
    within = np.zeros(0)  # expected trips of the split pairs of the level above
    for measured in reversed(levels):
        kept = ~measured.is_split
        expected = measured.noisy.astype(np.float64)
        expected[measured.is_split] = within
        alike = _of_siblings(expected)
        if len(measured.nodes) == 16**measured.level:  # the first level, which has all pairs
            alike = (alike + _of_neighbours(expected, measured)) / 2
        classes = np.digitize(alike * measured.rate, CLASSES)
        known = posterior_counts(measured.noisy[kept], measured.rate, classes[kept])
        whole = CountPosterior(*np.zeros((5, len(kept))))
        for name in ("mean", "variance", "low", "high", "present"):
            getattr(whole, name)[kept] = getattr(known, name)
        whole.mean[measured.is_split] = within
        within = whole.mean.reshape(-1, 16).sum(axis=1)
        found.append(whole)
    return found[::-1]


def _of_siblings(counts: Array) -> Array:
    """Returns what a pair's siblings suggest for it, float64[n]: never its own count, so that its noise is independent
    of it.

    The mean of three means: of all 15 siblings, of the three with its origin, of the three with its destination.
    """
    groups = counts.reshape(-1, 4, 4)
    total = groups.sum(axis=(1, 2), keepdims=True) - groups
    same_origin = groups.sum(axis=2, keepdims=True) - groups
    same_destination = groups.sum(axis=1, keepdims=True) - groups
    return np.asarray((total / 15 + same_origin / 3 + same_destination / 3).ravel() / 3)


def _of_neighbours(counts: Array, measured: MeasuredLevel) -> Array:
    """Returns the mean count of the at most eight pairs that differ from a pair by one step of one end: float64[n]."""
    side = 1 << measured.level
    (x1, y1), (x2, y2) = (deinterleave(one) for one in split_pairs(measured.nodes, measured.level))
    raster = np.empty((side,) * 4)
    raster[y1, x1, y2, x2] = counts
    total, number = np.zeros_like(raster), np.zeros_like(raster)
    for axis in range(4):
        here, there = np.moveaxis(total, axis, 0), np.moveaxis(raster, axis, 0)
        seen = np.moveaxis(number, axis, 0)
        here[1:] += there[:-1]
        here[:-1] += there[1:]
        seen[1:] += 1
        seen[:-1] += 1
    return np.asarray((total / np.maximum(number, 1))[y1, x1, y2, x2])


def _rest_rows(level: int, trips: Array, variance: Array, noisy: Array, noise: Array) -> dict[str, Any]:
    spread = np.sqrt(variance)
    return {
        "level": np.full(len(trips), level),
        "pair": np.arange(len(trips), dtype=np.uint64),
        "is_rest": np.ones(len(trips), dtype=bool),
        "trips": trips,
        "stddev": spread,
        "low": np.maximum(np.floor(trips - Z_95 * spread), 0),
        "high": np.maximum(np.ceil(trips + Z_95 * spread), 0),
        "present": np.asarray(ndtr((trips - 0.5) / np.maximum(spread, 1e-9))),
        "noisy": np.rint(noisy).astype(np.int64),
        "noise_stddev": np.sqrt(noise),
    }


def estimate_zone_flows(levels: Sequence[MeasuredLevel]) -> Flows:
    """Returns the flows of a release, from its noisy counts only.

    The rest of an origin has the pair's code of the origin.
    """
    (measured,) = levels
    zones = round(len(measured.nodes) ** 0.5)
    noisy = measured.noisy.reshape(zones, zones).astype(np.float64)
    classes = np.digitize(_of_other_pairs(noisy).ravel() * measured.rate, CLASSES)
    posterior = posterior_counts(measured.noisy, measured.rate, classes)
    origins = (measured.nodes // np.uint64(zones)).astype(np.int64)
    return flows_and_rests(levels, [posterior], [origins], 0, zones)


def _of_other_pairs(counts: Array) -> Array:
    """Returns what other pairs suggest for each, float64[m, m]: never its own count, so that its noise is independent
    of it.

    The mean of two numbers: its origin's other trips times its destination's other trips, divided by the trips with
    neither; and the trips on the way back. Within one zone only the first.
    """
    from_origin = counts.sum(axis=1, keepdims=True) - counts
    to_destination = counts.sum(axis=0, keepdims=True) - counts
    neither = counts.sum() - from_origin - to_destination - counts
    product = np.maximum(from_origin, 0) * np.maximum(to_destination, 0) / np.maximum(neither, 1)
    back = counts.T.copy()
    np.fill_diagonal(back, np.diag(product))
    return np.asarray((product + back) / 2)
