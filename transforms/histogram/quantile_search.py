"""Quantiles by interactive search, several at once (paper 004, Section 4.2). Pure.

The range is cut into 2^h bins. Each of h rounds asks one histogram whose buckets are cut where the searches stand, so
all quantiles share the rounds: a user is in one bucket, whatever the number of quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile
from sfumato.transforms.histogram.curve import DEVIATIONS, banded, bounds, quantile, unknown_curve
from sfumato.transforms.histogram.sampling_round import Sampling, hidden_count
from sfumato.transforms.histogram.user_sample import SampledCounts, threshold
from sfumato.transforms.privacy.admission import Admission


@dataclass(frozen=True, eq=False)
class Search:
    """What the rounds published: the curve at all values tried, the quantiles, and estimated users, one a round.

    published: counts that a round published; after a round without any none is read. quantiles: none where the first
    round published nothing. admission: see Trie.
    """

    curve: Curve
    quantiles: tuple[Quantile, ...]
    users: tuple[float, ...]
    published: tuple[int, ...]
    admission: Admission | None = None


def search_quantiles(
    rounds: Sequence[SampledCounts], sampling: Sampling, shares: Sequence[float], low: float, high: float
) -> Search:
    """Binary searches for several quantiles of values in [low, high], one step a round.

    rounds: each round's sample, counted by bins 0..2^len(rounds) - 1; what is read of it is the one histogram that the
    round asks for, after its threshold. Where a round publishes nothing, the searches end in the part of the range
    that they have come to.
    """
    bits = len(rounds)
    first = np.zeros(len(shares), dtype=np.int64)
    size = 1 << bits  # of the part of the range that each search has come to
    tried, found, totals, published = [], [], [], []
    for sampled in rounds:
        width = size // 2
        splits, place = np.unique(first + width, return_inverse=True)
        below, total, buckets = _shares_below(sampled, sampling, splits)
        if not buckets:
            break
        size = width
        tried.append(splits)
        found.append(below)
        totals.append(total)
        published.append(buckets)
        first = np.where(below[0][place] < np.asarray(shares), first + width, first)
    scale = (high - low) / (1 << bits)
    if not tried:
        return Search(unknown_curve(low, high), (), (0.0,) * bits, (0,) * bits)
    unread = bits - len(tried)
    users = np.array(totals + [0] * unread) / sampling.rate
    curve = _curve(np.concatenate(tried), np.concatenate(found, axis=1), 1 << bits, low, scale)
    answers = []
    for share, at in zip(shares, first.tolist(), strict=True):
        value = low + (at + size / 2) * scale
        band = quantile(curve, share)
        answers.append(Quantile(share, value, min(band.low, value), max(band.high, value)))
    return Search(curve, tuple(answers), tuple(users.tolist()), (*published, *[0] * unread))


def _shares_below(
    sampled: SampledCounts, sampling: Sampling, splits: NDArray[np.int64]
) -> tuple[NDArray[np.float64], int, int]:
    """Of one round: the share of users below each split with its bounds, the sampled users and buckets published.

    The shares are float64[3, n]: of the published counts, and the least and the most that it may be at 95%.
    """
    bucket = np.searchsorted(splits, sampled.items.astype(np.int64), side="right")
    counts = np.zeros(len(splits) + 1, dtype=np.int64)
    np.add.at(counts, bucket, sampled.counts)
    histogram = threshold(SampledCounts(np.arange(len(counts), dtype=np.uint64), counts), sampling, 0)
    if not len(histogram):
        return np.empty((3, len(splits))), 0, 0
    shown = np.zeros(len(counts), dtype=np.int64)
    shown[histogram.items.astype(np.int64)] = histogram.sampled
    total = int(shown.sum())
    below, users = np.cumsum(shown)[:-1] / sampling.rate, total / sampling.rate
    share = below / users
    # X ~ Bin(c, p) on both sides of the split: Var(share) = F (1 - F) (1 - p) / (p U).
    noise = DEVIATIONS * np.sqrt(share * (1 - share) * (1 - sampling.rate) / sampling.rate * users)
    may_hide = hidden_count(sampling) * (shown == 0).astype(float)
    left = np.cumsum(may_hide)[:-1]
    low, high = bounds(below, users, (noise, noise), (left, may_hide.sum() - left))
    return np.array([share, low, high]), total, len(histogram)


def _curve(splits: NDArray[np.int64], shares: NDArray[np.float64], bins: int, low: float, scale: float) -> Curve:
    """The curve through every split tried, float64[3, n] as of `_shares_below`; answers at one split are averaged."""
    at, place, answers = np.unique(splits, return_inverse=True, return_counts=True)
    share, least, most = (np.bincount(place, one) / answers for one in shares)
    share = np.maximum.accumulate(share)
    value = low + scale * np.concatenate(([0], at, [bins]))
    ends = [np.concatenate(([0], one, [1])) for one in (share, np.minimum(least, share), np.maximum(most, share))]
    return banded(value, *ends)
