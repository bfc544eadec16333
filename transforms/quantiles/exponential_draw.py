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
the second alone (a factor 1 - 2^-40). Floating point adds up positive weights from the smallest to the largest: each
probability is exact within a factor 1 +- 2^-28 for up to 2^24 runs of equal weights. Random numbers have 256 bits. So
the privacy loss of a draw is at most epsilon + 2^-26.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.privacy.keys import random_bits

STEP_BITS = 10
_STEPS = 1 << STEP_BITS  # of a bin
_CORPUT = np.array([int(f"{number:0{STEP_BITS}b}"[::-1], 2) for number in range(_STEPS)])
_FLOOR = 2.0**-120
_DEPTH = 160 * math.log(2)  # weights below exp(-_DEPTH) are left to the floor


@dataclass(frozen=True, eq=False)
class SpreadUsers:
    """Exact numbers of users by bin, spread over the steps of each bin. They may be used in a private draw only.

    Attributes:
        bins: int64[m], the bins that have users, ascending.
        counts: int64[m], users of each, >= 1.
        bits: the range has 2^bits bins.
    """

    bins: NDArray[np.int64]
    counts: NDArray[np.int64]
    bits: int

    @property
    def steps(self) -> int:
        """Steps of the whole range. Borders are numbered 0..steps."""
        return 1 << (self.bits + STEP_BITS)

    @cached_property
    def _below_bin(self) -> NDArray[np.int64]:
        """Users below each of `bins`, and all users: int64[m + 1]."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    def below(self, border: int) -> int:
        """The number of users below a border."""
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

        Args:
            first: first border.
            last: last border.
            low: lowest rank, in users below of the whole range; at most that of `last`.
            high: highest rank, at least `low`.

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
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The first term of the borders' weights, where it is above 2^-160.

    Args:
        users: exact numbers of users.
        first: first border.
        last: last border, >= first.
        share: of the users between these two that should be below the border, in 0..1.
        epsilon: of the draw.

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
    """Three uniform integers of 256 bits."""
    bits = random_bits(subkey, np.full(6, number, np.uint64), np.arange(6, dtype=np.uint64))
    return [int.from_bytes(bits[2 * i : 2 * i + 2].tobytes(), "little") for i in range(3)]
