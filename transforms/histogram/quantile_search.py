"""Several quantiles by one interactive search (paper 004, Section 4.2). Pure.

The range has 2^h bins. Each of h rounds queries one histogram, with a bucket border at the next split of every
quantile's search. So all quantiles share the rounds: a user is in one bucket, whatever the number of quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile
from sfumato.transforms.histogram.curve import DEVIATIONS, banded, bounds, quantile, unknown_curve
from sfumato.transforms.histogram.sampling_round import Sampling, hidden_count
from sfumato.transforms.histogram.user_sample import ItemCounts, threshold
from sfumato.transforms.privacy.admission import NoisyUserCounts


@dataclass(frozen=True, eq=False)
class Search:
    """The result of a search.

    Attributes:
        curve: the distribution function at all splits.
        quantiles: one for each share; none if the first round published nothing.
        users: estimated users, one number a round.
        published: published counts, one number a round. After an empty round the rest is 0 and never read.
        admission: the noisy counts of users that admitted the run; None if the run had no admission.
    """

    curve: Curve
    quantiles: tuple[Quantile, ...]
    users: tuple[float, ...]
    published: tuple[int, ...]
    admission: NoisyUserCounts | None = None


def search_quantiles(
    rounds: Sequence[ItemCounts], sampling: Sampling, shares: Sequence[float], low: float, high: float
) -> Search:
    """Binary searches for several quantiles of values in [low, high], one step a round.

    The searches end at a round that publishes nothing; each quantile then is the middle of its current interval.

    Args:
        rounds: each round's raw counts by bins 0..2^len(rounds) - 1. The search reads one histogram of each, after the
            threshold.
        sampling: of every round.
        shares: of users below the quantiles, in 0..1.
        low: lower end of the range.
        high: upper end of the range.
    """
    bits = len(rounds)
    first = np.zeros(len(shares), dtype=np.int64)
    size = 1 << bits  # of the interval that each search has reached, in bins
    queried, found, totals, published = [], [], [], []
    for sampled in rounds:
        width = size // 2
        splits, split_of = np.unique(first + width, return_inverse=True)
        below, total, buckets = _shares_below(sampled, sampling, splits)
        if not buckets:
            break
        size = width
        queried.append(splits)
        found.append(below)
        totals.append(total)
        published.append(buckets)
        first = np.where(below[0][split_of] < np.asarray(shares), first + width, first)
    scale = (high - low) / (1 << bits)
    if not queried:
        return Search(unknown_curve(low, high), (), (0.0,) * bits, (0,) * bits)
    unread = bits - len(queried)
    users = np.array(totals + [0] * unread) / sampling.rate
    curve = _curve(np.concatenate(queried), np.concatenate(found, axis=1), 1 << bits, low, scale)
    quantiles = []
    for share, at in zip(shares, first.tolist(), strict=True):
        value = low + (at + size / 2) * scale
        band = quantile(curve, share)
        quantiles.append(Quantile(share, value, min(band.low, value), max(band.high, value)))
    return Search(curve, tuple(quantiles), tuple(users.tolist()), (*published, *[0] * unread))


def _shares_below(
    sampled: ItemCounts, sampling: Sampling, splits: NDArray[np.int64]
) -> tuple[NDArray[np.float64], int, int]:
    """One round's shares of users below n splits.

    Returns:
        float64[3, n], the estimated shares and their lower and upper 95% bounds; the number of published sampled users;
        the number of published buckets.
    """
    bucket = np.searchsorted(splits, sampled.items.astype(np.int64), side="right")
    counts = np.zeros(len(splits) + 1, dtype=np.int64)
    np.add.at(counts, bucket, sampled.counts)
    histogram = threshold(ItemCounts(np.arange(len(counts), dtype=np.uint64), counts), sampling, 0)
    if not len(histogram):
        return np.empty((3, len(splits))), 0, 0
    shown = np.zeros(len(counts), dtype=np.int64)
    shown[histogram.items.astype(np.int64)] = histogram.sampled
    total = int(shown.sum())
    below, users = np.cumsum(shown)[:-1] / sampling.rate, total / sampling.rate
    share = below / users
    # X ~ Bin(c, p) on both sides of the split: Var(share) = F (1 - F) (1 - p) / (p U).
    noise = DEVIATIONS * np.sqrt(share * (1 - share) * (1 - sampling.rate) / sampling.rate * users)
    hidden = hidden_count(sampling) * (shown == 0).astype(float)
    left = np.cumsum(hidden)[:-1]
    low, high = bounds(below, users, (noise, noise), (left, hidden.sum() - left))
    return np.array([share, low, high]), total, len(histogram)


def _curve(splits: NDArray[np.int64], shares: NDArray[np.float64], bins: int, low: float, scale: float) -> Curve:
    """The curve through all splits. shares: float64[3, n] of `_shares_below`; it averages those of one split."""
    at, row, repeats = np.unique(splits, return_inverse=True, return_counts=True)
    share, lower, upper = (np.bincount(row, column) / repeats for column in shares)
    share = np.maximum.accumulate(share)
    value = low + scale * np.concatenate(([0], at, [bins]))
    columns = (share, np.minimum(lower, share), np.maximum(upper, share))
    return banded(value, *(np.concatenate(([0], column, [1])) for column in columns))
