"""Quantiles by interactive search, several at once (paper 004, Section 4.2). Pure.

The range is cut into 2^h bins. Each of h rounds asks one histogram whose buckets are cut where the searches stand, so
all quantiles share the rounds: a user is in one bucket, whatever the number of quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError
from sfumato.transforms.histogram.curve import DEVIATIONS, banded, quantile
from sfumato.transforms.histogram.sample import SampledCounts, threshold
from sfumato.transforms.histogram.sampling import Sampling
from sfumato.transforms.release.charts import Curve, Quantile

_NOTHING = "no half of the range is held by enough users for a single count to be published; nothing is published"


@dataclass(frozen=True, eq=False)
class Search:
    """What the rounds published: the curve at all values tried, the quantiles, and estimated users, one a round."""

    curve: Curve
    quantiles: tuple[Quantile, ...]
    users: tuple[float, ...]
    published: tuple[int, ...]


def search_quantiles(
    rounds: Sequence[SampledCounts], sampling: Sampling, shares: Sequence[float], low: float, high: float
) -> Search:
    """Binary searches for several quantiles of values in [low, high], one step a round.

    rounds: each round's sample, counted by bins 0..2^len(rounds) - 1; what is read of it is the one histogram that the
    round asks for, after its threshold. Raises DataError where a round publishes nothing.
    """
    bits = len(rounds)
    first = np.zeros(len(shares), dtype=np.int64)
    width = 1 << bits
    tried, found, totals, published = [], [], [], []
    for sampled in rounds:
        width //= 2
        splits, place = np.unique(first + width, return_inverse=True)
        below, total, buckets = _shares_below(sampled, sampling, splits)
        tried.append(splits)
        found.append(below)
        totals.append(total)
        published.append(buckets)
        first = np.where(below[place] < np.asarray(shares), first + width, first)
    users = np.array(totals) / sampling.rate
    scale = (high - low) / (1 << bits)
    curve = _curve(np.concatenate(tried), np.concatenate(found), float(users.mean()), sampling, 1 << bits, low, scale)
    answers = []
    for share, at in zip(shares, first.tolist(), strict=True):
        value = low + (at + 0.5) * scale
        band = quantile(curve, share)
        answers.append(Quantile(share, value, min(band.low, value), max(band.high, value)))
    return Search(curve, tuple(answers), tuple(users.tolist()), tuple(published))


def _shares_below(
    sampled: SampledCounts, sampling: Sampling, splits: NDArray[np.int64]
) -> tuple[NDArray[np.float64], int, int]:
    """Share of the published counts below each split, the sampled users published, and the buckets published."""
    bucket = np.searchsorted(splits, sampled.items.astype(np.int64), side="right")
    counts = np.zeros(len(splits) + 1, dtype=np.int64)
    np.add.at(counts, bucket, sampled.counts)
    histogram = threshold(SampledCounts(np.arange(len(counts), dtype=np.uint64), counts), sampling, 0)
    if not len(histogram):
        raise DataError(_NOTHING)
    shown = np.zeros(len(counts), dtype=np.int64)
    shown[histogram.items.astype(np.int64)] = histogram.sampled
    total = int(shown.sum())
    return np.cumsum(shown)[:-1] / total, total, len(histogram)


def _curve(
    splits: NDArray[np.int64],
    below: NDArray[np.float64],
    users: float,
    sampling: Sampling,
    bins: int,
    low: float,
    scale: float,
) -> Curve:
    """The curve through every value tried; several answers at one value are averaged, and order is restored."""
    at, place, answers = np.unique(splits, return_inverse=True, return_counts=True)
    share = np.maximum.accumulate(np.bincount(place, below) / answers)
    # X ~ Bin(c, p) on both sides of the split: Var(share) = F (1 - F) (1 - p) / (p U). A side that is not published
    # may hold tau - 1 of the sample.
    variance = share * (1 - share) * (1 - sampling.rate) / (sampling.rate * users * answers)
    hidden = (sampling.threshold - 1) / (sampling.rate * users)
    margin = DEVIATIONS * np.sqrt(variance) + np.where((share == 0) | (share == 1), hidden, 0.0)
    value = low + scale * np.concatenate(([0], at, [bins]))
    return banded(value, np.concatenate(([0], share, [1])), np.concatenate(([0], margin, [0])))
