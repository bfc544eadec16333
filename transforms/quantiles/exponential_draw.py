"""One draw of the exponential mechanism: a border that has about a share of the users of an interval below it. Pure.

The 2^bits bins are cut into 2^10 steps each. Step k mod 2^10 of a bin's van der Corput order holds its k-th user: one
more user of a bin adds one user to one step and moves none. So a bin that many users share can be split anywhere, and
neighbouring logs still differ in one user of one step.

The mechanism draws a border e of steps in first..last. Let b(e) and a(e) be the interval's users below and above e, and
q the share: the utility is -|d(e)| with d = (1 - q) b - q a. One more user below e adds 1 - q to d(e), one above takes
q away. So the utility of a border changes by at most m = max(q, 1 - q) in either direction, and two borders' changes
differ by at most 2 m. The weights exp(-epsilon |d| / (2 m)) give epsilon-differential privacy under adding or removing
one user (McSherry and Talwar 2007). The number of users may stay secret: d needs no public one.

How exact. A border's weight is exp(-rate (|d| - d_min)) + 2^-120, with rate = epsilon / (2 m) and d_min the least |d|
of all borders. A user changes both terms within the same bounds (times exp(-rate d_min)), so the second costs nothing:
it makes sure that no border's probability is so small that rounding shows. Borders with a first term below 2^-160 have
the second only (a factor 1 - 2^-40). Floating point adds up positive weights from the smallest to the largest: each
probability is exact within a factor 1 +- 2^-28 for up to 2^24 runs of equal weights. Random numbers have 256 bits. So
the privacy loss of a draw is at most epsilon + 2^-26.

Several quantiles, after Kaplan, Schnapp and Stemmer (ICML 2022, "Differentially Private Approximate Quantiles"): the
middle quantile splits the users, and each part draws its own middle quantile. The draws of one level have disjoint
users, so a user pays once a level. Two more draws for each quantile, below and above it, are the ends of its interval.
Adding or removing a user, instead of replacing one, makes disjoint parts cost no more than one of them.

Two things are ours. The levels' shares of epsilon are chosen for the least expected error, not equal; and the parts are
counted again at every level, so no exact number of users is needed; a rough one sets the width of intervals. The plan
follows from public figures only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.privacy.keys import random_bits

Array = NDArray[np.float64]

STEP_BITS = 10
_STEPS = 1 << STEP_BITS  # of a bin
_CORPUT = np.array([int(f"{number:0{STEP_BITS}b}"[::-1], 2) for number in range(_STEPS)])
_FLOOR = 2.0**-120
_DEPTH = 160 * math.log(2)  # weights below exp(-_DEPTH) are left to the floor


@dataclass(frozen=True, eq=False)
class SpreadUsers:
    """Exact numbers of users by bin, spread over the steps of each bin. They may be used in a private draw only."""

    bins: NDArray[np.int64]  # int64[m], the bins that have users, ascending
    counts: NDArray[np.int64]  # int64[m], users of each, >= 1
    bits: int  # the range has 2^bits bins

    @property
    def steps(self) -> int:
        """Steps of the whole range. Borders are numbered 0..steps."""
        return 1 << (self.bits + STEP_BITS)

    @cached_property
    def _below_bin(self) -> NDArray[np.int64]:
        """Users below each of `bins`, and all users: int64[m + 1]."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    def below(self, border: int) -> int:
        """Returns the number of users below a border."""
        index = int(np.searchsorted(self.bins, border >> STEP_BITS))
        users = int(self._below_bin[index])
        step = border % _STEPS
        if step and index < len(self.bins) and self.bins[index] == border >> STEP_BITS:
            rounds, rest = divmod(int(self.counts[index]), _STEPS)
            users += rounds * step + int((_CORPUT[:rest] < step).sum())
        return users

    def runs(
        self, first: int, last: int, low: float, high: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Runs of neighbouring borders of first..last with equal numbers of users below, around some ranks.

        low: lowest rank, in users below of the whole range; at most that of `last`. high: highest rank, at least `low`.

        Returns:
            Each run's first border, its number of borders (>= 1) and the users below it. Among them are all borders of
            first..last with low <= users <= high, and in both directions the next one where there is one.
        """
        below = self._below_bin
        lowest, highest = np.searchsorted(self.bins, [first >> STEP_BITS, (last >> STEP_BITS) + 1]).tolist()
        begin = min(max(int(np.searchsorted(below, low, side="left")) - 1, lowest), highest)
        end = min(max(int(np.searchsorted(below, high, side="right")), begin), highest)
        start = first if begin == lowest else int(self.bins[begin]) << STEP_BITS
        stop = last if end == highest else int(self.bins[end]) << STEP_BITS
        counts, bins = self.counts[begin:end], self.bins[begin:end]
        used = np.minimum(counts, _STEPS)  # steps of each bin that have users
        bin_of = np.repeat(np.arange(len(bins)), used)
        number = np.arange(len(bin_of)) - np.repeat(np.cumsum(used) - used, used)
        steps = (bins[bin_of] << STEP_BITS) + _CORPUT[number]
        users = (counts[bin_of] >> STEP_BITS) + (number < counts[bin_of] % _STEPS)
        order = np.argsort(steps)
        steps, running = steps[order], np.cumsum(users[order])
        inside = (steps >= start) & (steps < stop)
        base = self.below(start)
        running += base - (running[inside] - users[order][inside])[:1].sum()
        borders = np.concatenate(([start], steps[inside] + 1))
        return borders, np.diff(np.append(borders, stop + 1)), np.concatenate(([base], running[inside]))


def border_weights(
    users: SpreadUsers, first: int, last: int, share: float, epsilon: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Returns the first term of the borders' weights, where it is above 2^-160.

    last: last border, >= first. share: of the users between these two that should be below the border, in 0..1.

    Returns:
        Runs of borders of equal weights: the first border of each, its number of borders, and the weight of each of
        its borders, at most 1.
    """
    rate = epsilon / (2 * max(share, 1 - share))
    base = users.below(first)
    target = Fraction(share) * (users.below(last) - base) + base
    rank = math.floor(target)
    nearest = float(np.abs(users.runs(first, last, rank, rank + 1)[2] - rank - float(target - rank)).min())
    reach = nearest + _DEPTH / rate
    borders, lengths, below = users.runs(first, last, rank - reach, rank + 1 + reach)
    return borders, lengths, np.exp(-rate * (np.abs(below - rank - float(target - rank)) - nearest))


def draw_border(
    users: SpreadUsers, first: int, last: int, share: float, epsilon: float, subkey: bytes, number: int
) -> int:
    """Draws one of the borders first..last, with about `share` of the users between these two below it.

    Equal subkeys and numbers give equal random bits. For the other arguments see `border_weights`.
    """
    borders, lengths, weights = border_weights(users, first, last, share, epsilon)
    mass = lengths * weights
    order = np.argsort(mass)
    running = np.cumsum(mass[order])
    total, floor = float(running[-1]), (last - first + 1) * _FLOOR
    whether, which, place = _uniform(subkey, number)
    if whether * (total + floor) < floor * 2**256:
        return first + ((last - first + 1) * place >> 256)
    run = int(order[min(int(np.searchsorted(running, which / 2**256 * total, side="right")), len(order) - 1)])
    return int(borders[run]) + (int(lengths[run]) * place >> 256)


def _uniform(subkey: bytes, number: int) -> list[int]:
    """Returns three uniform integers of 256 bits."""
    bits = random_bits(subkey, np.full(6, number, np.uint64), np.arange(6, dtype=np.uint64))
    return [int.from_bytes(bits[2 * i : 2 * i + 2].tobytes(), "little") for i in range(3)]


# Where values are dense, the rank error of a draw has a Laplace distribution, which exceeds ln(20) / sqrt(2) standard
# deviations on one side with probability 2.5%. Next to a gap without values the width of the gap counts too. It has up
# to 2^(bits + STEP_BITS) borders, against one at the quantile, so a rank errs by
# ln(2) (bits + STEP_BITS) / rate more, where rate is epsilon / (2 max(q, 1 - q)) for a border at the share q.
_DENSE = math.log(20) / math.sqrt(2)
_PER_BIT = math.log(2) / math.sqrt(2)
_END_WEIGHT = 0.03  # of an interval end's squared error, where a quantile's weighs 1
_ROUNDS = 4  # the margins of intervals and the order of draws depend on each other


@dataclass(frozen=True)
class Draw:
    """One border to draw."""

    share: float  # of all users below it
    relative: float  # share of the users of its part below it, in 0..1
    level: int  # of the recursion, from 0
    low: int | None  # number of the earlier draw where its part begins; None for the range's low end
    high: int | None  # number of the earlier draw where its part ends; None for the range's high end


@dataclass(frozen=True)
class DrawPlan:
    """The draws for some quantiles and their intervals. Draws are numbered, parents before their children."""

    shares: tuple[float, ...]  # of users below the quantiles, ascending
    draws: tuple[Draw, ...]
    epsilons: tuple[float, ...]  # of each level
    stddevs: tuple[float, ...]  # expected, of each draw's rank, in users, where values are dense
    bits: int  # the range has 2^bits bins
    quantiles: tuple[int, ...]  # the numbers of the quantiles' draws
    ends: tuple[tuple[int | None, int | None], ...]  # of each interval, low and high; None for the range's end


def margin(stddev: float, bits: int) -> float:
    """Returns how far a draw's rank may err each way, in users, at 97.5% confidence, for any values."""
    return 1 + (_DENSE + _PER_BIT * (bits + STEP_BITS)) * stddev


def plan_draws(shares: Sequence[float], epsilon: float, users: float, bits: int) -> DrawPlan:
    """Returns the plan of least expected squared error of the quantiles' ranks.

    shares: of users below the quantiles, strictly between 0 and 1, distinct, ascending. epsilon: of all draws together.
    users: about how many there are, a public or noisy number; the intervals' width depends on it and on the bits.
    """
    margins = np.zeros((len(shares), 2))  # of intervals, in users
    for _ in range(_ROUNDS):
        sides = np.array([-1, 1]) * margins / max(users, 1.0)
        wanted = [(share, 0, number) for number, share in enumerate(shares)]
        for number, (share, ends) in enumerate(zip(shares, sides.tolist(), strict=True)):
            wanted += [(share + end, side, number) for end, side in zip(ends, (-1, 1), strict=True)]
        wanted = sorted(one for one in wanted if 0 < one[0] < 1)
        order, draws = _split([share for share, _, _ in wanted], [side == 0 for _, side, _ in wanted])
        number_of = {wanted[place][1:]: number for number, place in enumerate(order)}
        is_quantile = np.array([wanted[place][1] == 0 for place in order])
        epsilons, stddevs = _budget(draws, np.where(is_quantile, 1.0, _END_WEIGHT), epsilon)
        for (side, number), draw in number_of.items():
            if side:
                margins[number, (side + 1) // 2] = margin(stddevs[draw], bits)
    return DrawPlan(
        tuple(shares),
        tuple(draws),
        tuple(epsilons.tolist()),
        tuple(stddevs.tolist()),
        bits,
        tuple(number_of[0, number] for number in range(len(shares))),
        tuple((number_of.get((-1, number)), number_of.get((1, number))) for number in range(len(shares))),
    )


def _split(shares: Sequence[float], first: Sequence[bool]) -> tuple[list[int], list[Draw]]:
    """Draws for ascending shares by recursive splitting.

    shares: of all users below each border. first: whether a border is drawn before those of its part that are not.

    Returns:
        The place of each draw's share among `shares`, and the draws.
    """
    order: list[int] = []
    draws: list[Draw] = []
    parts: list[tuple[int, int, int | None, int | None]] = [(0, len(shares), None, None)]
    level = 0
    while parts:
        below: list[tuple[int, int, int | None, int | None]] = []
        for begin, end, low, high in parts:
            if begin == end:
                continue
            early = [place for place in range(begin, end) if first[place]] or range(begin, end)
            place = early[len(early) // 2]
            bottom = 0.0 if low is None else draws[low].share
            top = 1.0 if high is None else draws[high].share
            relative = (shares[place] - bottom) / (top - bottom) if top > bottom else 0.5
            below += [(begin, place, low, len(draws)), (place + 1, end, len(draws), high)]
            order.append(place)
            draws.append(Draw(shares[place], relative, level, low, high))
        parts, level = below, level + 1
    return order, draws


def _budget(draws: Sequence[Draw], weights: Array, epsilon: float) -> tuple[Array, Array]:
    """Returns each level's epsilon, and each draw's standard deviation in users.

    A draw's rank errs by its own error, a Laplace variable of scale 2 max(q, 1 - q) / epsilon, and by a mean of the
    errors of its part's ends with weights 1 - q and q. So its variance is a sum over levels of a number / epsilon^2,
    and the weighted sum over draws is least with epsilons in proportion to the cube roots of these numbers.
    """
    count = len(draws)
    influence = np.zeros((count, count))  # of each draw's own error (column) on each draw (row)
    for number, draw in enumerate(draws):
        influence[number, number] = 1.0
        if draw.low is not None:
            influence[number] += (1 - draw.relative) * influence[draw.low]
        if draw.high is not None:
            influence[number] += draw.relative * influence[draw.high]
    relative, level = np.array([draw.relative for draw in draws]), np.array([draw.level for draw in draws])
    squares = influence**2 * 2 * (2 * np.maximum(relative, 1 - relative)) ** 2
    by_level = np.stack([squares[:, level == one].sum(axis=1) for one in range(int(level.max()) + 1)], axis=1)
    roots = np.cbrt(weights @ by_level)
    epsilons = epsilon * roots / roots.sum()
    return epsilons, np.sqrt((by_level / epsilons**2).sum(axis=1))
