"""Distribution functions with 95% bands, and their quantiles (paper 004, Section 4.2).

By a hierarchy: every level has its own sample, so a node has two estimates, its own count and the sum of its
children's. From the root down, each node's users are divided among its children in proportion to the counts of their
level. Where children are missing, the difference is what the threshold hid; it is spread evenly over the missing ones.

By an interactive search: the range has 2^h bins. Each of h rounds queries one histogram, with a bucket border at the
next split of every quantile's search. So all quantiles share the rounds: a user is in one bucket, whatever the number
of quantiles. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import Z
from sfumato.transforms.histogram.item_encoding import NumberBins
from sfumato.transforms.histogram.sampling_round import Sampling, Trie, hidden_count
from sfumato.transforms.histogram.user_sample import ItemCounts, threshold
from sfumato.transforms.privacy.admission import NoisyUserCounts


def quantile(curve: Curve, share: float) -> Quantile:
    """Returns the value at which the curve reaches a share, and the first and last values at which its band contains
    it.
    """
    last = len(curve.value) - 1
    earliest = curve.value[min(int(np.searchsorted(curve.high, share, side="left")), last)]
    latest = curve.value[min(int(np.searchsorted(curve.low, share, side="right")), last)]
    middle = float(np.interp(share, curve.share, curve.value))
    return Quantile(share, middle, min(float(earliest), middle), max(float(latest), middle))


def banded(
    value: NDArray[np.float64], share: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> Curve:
    """Returns the curve through known points, float64[n] each and ascending, and its band.

    Between two points the curve is only known to rise. So the band there reaches from the lower bound on the left to
    the upper bound on the right, and the curve has every point but its ends twice.
    """
    low, high = np.clip(np.maximum.accumulate(low), 0, 1), np.clip(np.maximum.accumulate(high), 0, 1)
    twice = np.repeat(np.arange(len(value)), 2)[1:-1]
    return Curve(value[twice], share[twice], np.repeat(low[:-1], 2), np.repeat(high[1:], 2))


def unknown_curve(low: float, high: float) -> Curve:
    """Returns the curve over a range without any published count: its band is everything."""
    ends = np.array([0.0, 1.0])
    return banded(np.array([low, high]), ends, ends, ends)


def bounds(
    below: NDArray[np.float64],
    users: NDArray[np.float64] | float,
    spread: tuple[NDArray[np.float64], NDArray[np.float64]],
    absent: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns lower and upper bounds of the share of users below some values, float64[n] each.

    Args:
        below: float64[n], estimated published users below each value.
        users: estimated published users in all.
        spread: by how many users `below` may be too high and too low, float64[n] each.
        absent: how many unpublished users there may be below and above each value, float64[n] each.
    """
    (fewer, more), (unseen_below, unseen_above) = spread, absent
    return (below - fewer) / (users + unseen_above), (below + more + unseen_below) / (users + unseen_below)


def check_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """Returns the shares. Raises RequestError unless there is one and all lie strictly between 0 and 1."""
    if not shares or not all(math.isfinite(share) and 0 < share < 1 for share in shares):
        raise RequestError(f"quantiles: must be numbers between 0 and 1, got {','.join(f'{s:g}' for s in shares)}")
    return tuple(shares)


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A distribution over [low, high], uniform within each of n pieces. Arrays are float64[n + 1], one value a border.

    Attributes:
        edges: borders of the pieces.
        below: estimated users below each border.
        path: the variance that dividing nodes adds to `below`, in users^2.
        fewer, more: by how many users `below` may be too high or too low, as the hidden users lie in their nodes.
        absent: users below each border that may exist although no node of the first level shows them.
        excess: (1 - p) / p, the variance that sampling gives to the estimate of one user.
    """

    edges: NDArray[np.float64]
    below: NDArray[np.float64]
    path: NDArray[np.float64]
    fewer: NDArray[np.float64]
    more: NDArray[np.float64]
    absent: NDArray[np.float64]
    excess: float

    @property
    def users(self) -> float:
        return float(self.below[-1])

    def curve(self) -> Curve:
        """Returns the distribution function at the borders of the pieces."""
        if not self.users:
            return unknown_curve(float(self.edges[0]), float(self.edges[-1]))
        noise = Z * np.sqrt(self.path)
        spread = (self.fewer + noise, self.more + noise)
        low, high = bounds(self.below, self.users, spread, (self.absent, self.absent[-1] - self.absent))
        share = self.below / self.users
        return banded(self.edges, share, np.minimum(low, share), np.maximum(high, share))

    def answer(self, low: float, high: float) -> RangeAnswer:
        """Returns the estimated users with values in [low, high); parts of a piece count in proportion.

        The interval holds where the users of a piece may lie in it, and how many users the threshold may hide.
        """
        ends = np.array([low, high])
        before, after = np.interp(ends, self.edges, self.below)
        paths = np.interp(ends, self.edges, self.path)
        inside = float(after - before)
        # The first level's sample gives the total, with variance excess x users. The divisions on the paths to both
        # ends give the range's share of it.
        variance = self.excess * inside * (inside / self.users) + float(paths.sum())
        stddev = float(np.sqrt(variance))
        left = np.searchsorted(self.edges, ends, side="right") - 1
        right = np.searchsorted(self.edges, ends, side="left")
        too_high = np.array([before, after]) - self.below[left] + np.maximum(self.fewer[left], self.fewer[right])
        too_low = self.below[right] - np.array([before, after]) + np.maximum(self.more[left], self.more[right])
        absent = float(self.absent[right[1]] - self.absent[left[0]])
        return RangeAnswer(
            low,
            high,
            inside,
            stddev,
            max(inside - Z * stddev - float(too_high[1] + too_low[0]), 0.0),
            inside + Z * stddev + float(too_low[1] + too_high[0]) + absent,
        )


def build_hierarchy(trie: Trie, scale: NumberBins) -> Hierarchy:
    """Returns the distribution of a trie over the bins of a range. An empty trie has no users."""
    # The pieces start as one node, the complete range. Each level divides the pieces that have a published child.
    sampling, bits = trie.levels[0].sampling, scale.bits
    excess = (1 - sampling.rate) / sampling.rate
    max_hidden = float(hidden_count(sampling))  # users of one unpublished node
    top = trie.levels[0]
    # For each piece, in order: its first bin, its number of bins, its users, and its row among the published nodes of
    # the level above (-1 for an unpublished piece). `path`, `fewer` and `more` are Hierarchy's, at lower borders.
    first_bin, bins = np.zeros(1, np.int64), np.full(1, 1 << bits)
    users = np.array([float(top.counts.sum())])
    path, fewer, more = np.zeros(1), np.zeros(1), np.zeros(1)
    node_row = np.zeros(1, np.int64)
    for number, level in enumerate(trie.levels):
        width = 1 << (bits - level.level)
        # The piece that contains each published node of this level.
        parents = np.zeros(len(level), np.int64) if number == 0 else trie.parents[number - 1]
        piece_of_row = np.full(int(node_row.max()) + 1, -1)
        piece_of_row[node_row[node_row >= 0]] = np.flatnonzero(node_row >= 0)
        piece = piece_of_row[parents]
        # The children of all pieces, in order, each with its piece (`parent`). An undivided piece is its own child.
        divided = np.zeros(len(users), bool)
        divided[piece] = True
        child_count = np.where(divided, bins // width, 1)
        parent = np.repeat(np.arange(len(users)), child_count)
        first_child = np.cumsum(child_count) - child_count
        offset = np.arange(len(parent)) - first_child[parent]
        child_size = np.where(divided, width, bins)[parent]
        child_first = first_bin[parent] + offset * child_size
        child = first_child[piece] + (level.items.astype(np.int64) * width - first_bin[piece]) // width
        child_row = np.full(len(parent), -1)
        child_row[child] = np.arange(len(level))
        # A published child has its count. The rest of the piece's users is hidden, and spread evenly over its missing
        # children.
        published = np.zeros(len(parent))
        published[child] = level.counts
        published_in = np.bincount(parent, published, minlength=len(users))
        is_missing = divided[parent] & (child_row < 0)
        missing_in = np.bincount(parent, is_missing, minlength=len(users))
        hidden = np.where(missing_in > 0, np.maximum(users - published_in, 0), 0.0)
        hidden_each = (hidden / np.maximum(missing_in, 1))[parent]
        child_users = np.where(is_missing, hidden_each, published)
        piece_users = np.where(divided, published_in + hidden, 1.0)
        share = np.where(divided[parent], child_users / piece_users[parent], 1.0)
        # The counts below and above a border are Bin(c, p) each: the share's variance is s (1 - s) excess / users.
        share_before = _sum_before(share, first_child)
        variance = np.where(divided, users, 0.0)[parent] * np.clip(share_before * (1 - share_before), 0, None) * excess
        path = np.maximum(_interpolated(path, share_before, parent) + variance, 0)  # rounding may leave -1e-11
        # Bounds of the hidden users before each child: they may be in the first missing children or in the last ones,
        # up to `max_hidden` in each.
        missing_before = _sum_before(is_missing.astype(float), first_child)
        hidden_users, estimated = hidden[parent], hidden_each * missing_before
        min_before = np.maximum(hidden_users - max_hidden * (missing_in[parent] - missing_before), 0)
        max_before = np.minimum(hidden_users, max_hidden * missing_before)
        fewer = _interpolated(fewer, share_before, parent) + (estimated - np.minimum(min_before, estimated))
        more = _interpolated(more, share_before, parent) + (np.maximum(max_before, estimated) - estimated)
        users, first_bin, bins, node_row = users[parent] * share, child_first, child_size, child_row
    borders = np.append(first_bin, 1 << bits)
    width = 1 << (bits - top.level)
    seen = np.searchsorted((top.items.astype(np.int64) + 1) * width, borders, side="right")
    return Hierarchy(
        edges=scale.at(borders),
        below=np.append(0, np.cumsum(users)),
        path=np.append(path, 0),
        fewer=np.append(fewer, 0),
        more=np.append(more, 0),
        absent=np.asarray(max_hidden * (borders // width - seen), dtype=np.float64),
        excess=excess,
    )


def _sum_before(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns for each child, the sum over earlier children of its piece. starts: int64[pieces], the first child of
    each.
    """
    running = np.cumsum(values) - values
    piece = np.searchsorted(starts, np.arange(len(values)), side="right") - 1
    return running - running[starts][piece]


def _interpolated(
    values: NDArray[np.float64], share_before: NDArray[np.float64], parent: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Returns values at pieces' lower borders, interpolated to those of their children; 0 at the range's upper end.

    share_before: the share of the piece's users before each child. parent: each child's piece.
    """
    ends = np.append(values, 0.0)
    return values[parent] + share_before * (ends[parent + 1] - values[parent])


@dataclass(frozen=True, eq=False)
class Search:
    """The result of a search.

    curve: at all splits. quantiles: one for each share; none if the first round published nothing. users, published:
    estimated users and published counts of each round. After an empty round the rest is 0.
    """

    curve: Curve
    quantiles: tuple[Quantile, ...]
    users: tuple[float, ...]
    published: tuple[int, ...]
    admission: NoisyUserCounts | None = None


def search_quantiles(
    rounds: Sequence[ItemCounts], sampling: Sampling, shares: Sequence[float], low: float, high: float
) -> Search:
    """Searches for quantiles of values in low..high by bisection, at shares of the users in 0..1, a step each round.

    The searches end at a round that publishes nothing; each quantile then is the middle of its current interval.
    rounds: raw counts by bins 0..2^len(rounds) - 1. The search reads one histogram of each, after the threshold.
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
    """Returns one round's shares of users below n splits, float64[3, n]: estimates and their lower and upper 95%
    bounds.

    Also the number of published sampled users, and of published buckets.
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
    noise = Z * np.sqrt(share * (1 - share) * (1 - sampling.rate) / sampling.rate * users)
    hidden = hidden_count(sampling) * (shown == 0).astype(float)
    left = np.cumsum(hidden)[:-1]
    low, high = bounds(below, users, (noise, noise), (left, hidden.sum() - left))
    return np.array([share, low, high]), total, len(histogram)


def _curve(splits: NDArray[np.int64], shares: NDArray[np.float64], bins: int, low: float, scale: float) -> Curve:
    """Returns the curve through all splits.

    shares: float64[3, n] of `_shares_below`; it averages those of one split.
    """
    at, row, repeats = np.unique(splits, return_inverse=True, return_counts=True)
    share, lower, upper = (np.bincount(row, column) / repeats for column in shares)
    share = np.maximum.accumulate(share)
    value = low + scale * np.concatenate(([0], at, [bins]))
    columns = (share, np.minimum(lower, share), np.maximum(upper, share))
    return banded(value, *(np.concatenate(([0], column, [1])) for column in columns))
