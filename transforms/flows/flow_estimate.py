"""Flows from noisy counts of pairs: shrunk counts, their intervals, and which pairs are listed. All post-processing.

Pairs next to each other are alike. So a pair's prior is learned from all pairs of its level whose siblings and
neighbours have about as many trips (`count_posterior`). A pair is listed where it has a trip with a probability of at
least LISTED.

All others are in the rests: of every pair of coarse cells, the sum of all noisy counts in it less what is listed there.
So the rows of a coarse pair add up to its unbiased noisy count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sfumato.schemas.region import deinterleave
from sfumato.transforms.flows.count_posterior import CountPosterior, posterior_counts
from sfumato.transforms.flows.flow_tree import MeasuredLevel
from sfumato.transforms.flows.user_trips import Codes, split_pairs
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev

LISTED = 0.5
# Limits of the siblings' mean, in scales of the noise.
CLASSES = (-0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_Z = 1.959964

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Flows:
    """Listed pairs, then rests: n rows. Together they hold all trips, each once.

    Attributes:
        level: int64[n], of the cells of the pair; 0 for the region.
        pair: uint64[n], code.
        is_rest: bool[n], the trips of a coarse pair without those of the listed pairs within it.
        trips, stddev: float64[n], of listed pairs posterior means and standard deviations; of rests what the listed
            ones leave of the noisy count, which may be negative, and the standard deviation of its error.
        low, high: float64[n], 95% intervals.
        present: float64[n], the probability that the row has a trip.
        noisy: int64[n], noisy counts of the same trips.
        noise_stddev: float64[n], of their noise.
    """

    level: NDArray[np.int64]
    pair: Codes
    is_rest: NDArray[np.bool_]
    trips: Array
    stddev: Array
    low: Array
    high: Array
    present: Array
    noisy: NDArray[np.int64]
    noise_stddev: Array

    def __len__(self) -> int:
        return len(self.pair)


def estimate_flows(levels: Sequence[MeasuredLevel]) -> Flows:
    """The flows of a release, from its noisy counts alone."""
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
    """The listed pairs and the rests.

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
        # What the posterior says of a listed pair's noise has the variance of the noise less the posterior variance.
        left = np.where(listed, measured.noisy - posterior.mean, measured.noisy)
        spread = np.where(listed, np.maximum(noise - posterior.variance, 0), noise)
        other = counted & ~listed
        parts = ((counted, left), (counted, spread), (other, measured.noisy), (other, np.full(len(other), noise)))
        for total, (at, values) in zip(rest, parts, strict=True):
            total += np.bincount(place[at], values[at], size)
    rows.append(_rest_rows(within, *rest))
    return Flows(**{name: np.concatenate([row[name] for row in rows]) for name in rows[0]})


def rest_level(start: int) -> int:
    """The level of the pairs whose rests are published, of a tree that starts at level `start`.

    Their number is public, and so are the rows of rests: nothing is chosen by its count.
    """
    return start - 2 if start > 3 else start - 1


def _posteriors(levels: Sequence[MeasuredLevel]) -> list[CountPosterior]:
    """The posterior of every pair that is not split, level by level."""
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
    """What a pair's siblings suggest for it, float64[n]: never its own count, so that its noise is independent of it.

    The mean of three means: of all 15 siblings, of the three with its origin, of the three with its destination.
    """
    groups = counts.reshape(-1, 4, 4)
    total = groups.sum(axis=(1, 2), keepdims=True) - groups
    same_origin = groups.sum(axis=2, keepdims=True) - groups
    same_destination = groups.sum(axis=1, keepdims=True) - groups
    return np.asarray((total / 15 + same_origin / 3 + same_destination / 3).ravel() / 3)


def _of_neighbours(counts: Array, measured: MeasuredLevel) -> Array:
    """The mean count of the at most eight pairs that differ from a pair by one step of one end: float64[n]."""
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
        "low": np.maximum(np.floor(trips - _Z * spread), 0),
        "high": np.maximum(np.ceil(trips + _Z * spread), 0),
        "present": np.asarray(ndtr((trips - 0.5) / np.maximum(spread, 1e-9))),
        "noisy": np.rint(noisy).astype(np.int64),
        "noise_stddev": np.sqrt(noise),
    }


def estimate_zone_flows(levels: Sequence[MeasuredLevel]) -> Flows:
    """The flows of a release, from its noisy counts alone. The rest of an origin has the pair's code of the origin."""
    (measured,) = levels
    zones = round(len(measured.nodes) ** 0.5)
    noisy = measured.noisy.reshape(zones, zones).astype(np.float64)
    classes = np.digitize(_of_other_pairs(noisy).ravel() * measured.rate, CLASSES)
    posterior = posterior_counts(measured.noisy, measured.rate, classes)
    origins = (measured.nodes // np.uint64(zones)).astype(np.int64)
    return flows_and_rests(levels, [posterior], [origins], 0, zones)


def _of_other_pairs(counts: Array) -> Array:
    """What other pairs suggest for each, float64[m, m]: never its own count, so that its noise is independent of it.

    The mean of two: its origin's other trips times its destination's other ones, divided by those of neither; and the
    trips of the way back. Within one zone only the first.
    """
    one = counts.sum(axis=1, keepdims=True) - counts
    other = counts.sum(axis=0, keepdims=True) - counts
    neither = counts.sum() - one - other - counts
    product = np.maximum(one, 0) * np.maximum(other, 0) / np.maximum(neither, 1)
    back = counts.T.copy()
    np.fill_diagonal(back, np.diag(product))
    return np.asarray((product + back) / 2)
