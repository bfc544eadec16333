"""Flows from noisy counts of pairs: shrunk counts, their intervals, and which pairs are listed. All post-processing.

Pairs next to each other are alike. So a pair's prior is learned from all pairs of its level whose siblings have about
as many trips (`count_posterior`). Of a pair's 15 siblings, those that share its origin's or its destination's cell
count more. A pair is listed where it has a trip with a probability of at least LISTED. The others are added up into the
pair of cells around them, its rest, and where that cannot be told from 0 into the next, up to the whole region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.flows.count_posterior import CountPosterior, posterior_counts
from sfumato.transforms.flows.flow_tree import MeasuredLevel
from sfumato.transforms.flows.pair_codes import Codes
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev

LISTED = 0.9
_CLASSES = (-0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # limits of the siblings' mean, in scales of the noise
_Z = 1.959964

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Flows:
    """Listed pairs and rests, n rows in the order of levels and codes. Together they hold all trips, each once.

    Attributes:
        level: int64[n], of the cells of the pair; 0 for the region.
        pair: uint64[n], code.
        is_rest: bool[n], the trips of the pair without those of finer listed pairs and finer rests within it.
        trips, stddev: float64[n], posterior means and standard deviations.
        low, high: float64[n], 95% intervals.
        noisy: int64[n], unbiased noisy counts of the same trips, before pairs were chosen.
        noise_stddev: float64[n], of their noise.
    """

    level: NDArray[np.int64]
    pair: Codes
    is_rest: NDArray[np.bool_]
    trips: Array
    stddev: Array
    low: Array
    high: Array
    noisy: NDArray[np.int64]
    noise_stddev: Array

    def __len__(self) -> int:
        return len(self.pair)


def estimate_flows(levels: Sequence[MeasuredLevel]) -> Flows:
    """The flows of a release, from its noisy counts alone."""
    posteriors = _posteriors(levels)
    rows: list[dict[str, NDArray[np.generic]]] = []
    # Of pairs that are not listed, by their parent's code: posterior mean and variance, noisy count, its variance.
    waiting, sums = np.zeros(0, np.uint64), np.zeros((0, 4))
    by_level = dict(zip((one.level for one in levels), zip(levels, posteriors, strict=True), strict=True))
    for level in range(levels[-1].level, -1, -1):
        if len(waiting):
            waiting, sums = _added_up(waiting, sums)
            mean, spread = sums[:, 0], np.sqrt(sums[:, 1])
            listed = (mean - _Z * spread >= 1) | (level == 0)
            rows.append(_rest_rows(level, waiting[listed], sums[listed]))
            waiting, sums = waiting[~listed] >> np.uint64(4), sums[~listed]
        if level in by_level:
            measured, posterior = by_level[level]
            listed = ~measured.is_split & (posterior.present >= LISTED)
            rows.append(_pair_rows(measured, posterior, listed))
            other = ~measured.is_split & ~listed
            noise = discrete_laplace_stddev(measured.rate)
            more = np.stack(
                [
                    posterior.mean[other],
                    posterior.variance[other],
                    measured.noisy[other].astype(np.float64),
                    np.full(int(other.sum()), noise**2),
                ],
                axis=1,
            )
            waiting = np.concatenate([waiting, measured.nodes[other] >> np.uint64(4)])
            sums = np.concatenate([sums, more])
    columns = {name: np.concatenate([row[name] for row in reversed(rows)]) for name in rows[0]}
    return Flows(**columns)


def _posteriors(levels: Sequence[MeasuredLevel]) -> list[CountPosterior]:
    """The posterior of every pair that is not split, level by level."""
    found: list[CountPosterior] = []
    within = np.zeros(0)  # expected trips of the split pairs of the level above
    for measured in reversed(levels):
        kept = ~measured.is_split
        expected = measured.noisy.astype(np.float64)
        expected[measured.is_split] = within
        classes = np.digitize(_of_siblings(expected) * measured.rate, _CLASSES)
        known = posterior_counts(measured.noisy[kept], measured.rate, classes[kept])
        whole = CountPosterior.empty(len(kept))
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


def _added_up(pairs: Codes, sums: Array) -> tuple[Codes, Array]:
    """Equal pairs as one."""
    names, places = np.unique(pairs, return_inverse=True)
    return names, np.stack([np.bincount(places, column, len(names)) for column in sums.T], axis=1)


def _rest_rows(level: int, pairs: Codes, sums: Array) -> dict[str, NDArray[np.generic]]:
    mean, spread = sums[:, 0], np.sqrt(sums[:, 1])
    return {
        "level": np.full(len(pairs), level),
        "pair": pairs,
        "is_rest": np.ones(len(pairs), dtype=bool),
        "trips": mean,
        "stddev": spread,
        "low": np.maximum(np.floor(mean - _Z * spread), 0),
        "high": np.ceil(mean + _Z * spread),
        "noisy": np.rint(sums[:, 2]).astype(np.int64),
        "noise_stddev": np.sqrt(sums[:, 3]),
    }


def _pair_rows(
    measured: MeasuredLevel, posterior: CountPosterior, listed: NDArray[np.bool_]
) -> dict[str, NDArray[np.generic]]:
    shown = int(listed.sum())
    return {
        "level": np.full(shown, measured.level),
        "pair": measured.nodes[listed],
        "is_rest": np.zeros(shown, dtype=bool),
        "trips": posterior.mean[listed],
        "stddev": np.sqrt(posterior.variance[listed]),
        "low": posterior.low[listed],
        "high": posterior.high[listed],
        "noisy": measured.noisy[listed],
        "noise_stddev": np.full(shown, discrete_laplace_stddev(measured.rate)),
    }
