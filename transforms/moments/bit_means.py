"""From tallies of reports to bit means, and from these to a quantity's mean with its variance. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sfumato.transforms.moments.quantities import Slots
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.moments.tally import Tally
from sfumato.transforms.moments.used_bits import InUse

Z_95 = 1.959963984540054  # standard deviations on each side that hold 95% of a normal law
_CLEAR = 3.5  # standard deviations above 0 from which a bit is set in some values for certain
EMPTY = 0.005  # the chance to be in use up to which a bit is taken for empty
_UNKNOWN = 0.25  # variance of the mean of a bit of which nothing is known
_SHRINK = 2.0  # reports that everybody's bit mean counts for in a group whose tallies carry noise


@dataclass(frozen=True, eq=False)
class Total:
    """The mean of one quantity, up to its base, in G groups: float64[G] each.

    variance: of value, by chance. low, high: the ends of an interval, which hold what unseen bits may add as well.
    """

    value: NDArray[np.float64]
    variance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bits:
    """Bit means of one quantity, of G groups: mean, variance, reports float64[G, S]; which of them are in use.

    mean is unbiased, so noise may lead it outside 0..1. variance: of mean. everybody: Bits of all groups together, None
    where these are they. together: how many bits a client told, which may go together: then their sampling errors add
    up instead of cancelling.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    reports: NDArray[np.float64]
    in_use: InUse
    together: int = 1
    everybody: Bits | None = None

    def total(self, slots: Slots, level: float = 0.95, empty: float = EMPTY) -> Total:
        """The quantity's mean (Equation 2) with an interval of this level.

        The value is averaged over the highest bit in use. The interval needs no such prior. Up to the highest bit that
        stands out clearly it is of the unbiased estimate. What the bits above add is at least nothing, and at most

        - what the unbiased estimate of all bits allows, and
        - what each of them may add by its own reports, where the steps by which shares fall from bit to bit do not
          grow smaller above the bits that stand out. (So do shares of values with one tail, as heavy as Pareto's. A few
          values far above all others are not covered by this.)

        Bits whose chance to be in use is not above `empty` add nothing.
        """
        share = np.clip(self.mean, 0, 1)
        # At most: k errors of one client have no more variance in all than k times the sum of theirs.
        spread = self.variance + (self.together - 1) * share * (1 - share) / np.maximum(self.reports, 1)
        used = self.in_use.weighed().of_bits() * slots.weight
        every = self if self.everybody is None else self.everybody
        z, half = _quantile(1 - level), _quantile((1 - level) / 2)
        unseen = [
            (len(cases) - 1, 0.0)
            if cases[-1] == 1  # all bits are in use
            else _unseen(every.mean[0, side], every.variance[0, side], np.abs(slots.weight[side]), cases, half, empty)
            for side, cases in zip(slots.sides(), self.in_use.highest, strict=True)
        ]
        seen = np.zeros(len(slots), bool)
        for side, (count, _) in zip(slots.sides(), unseen, strict=True):
            seen[side.start : side.start + count] = True
        centre, error = self.mean @ (seen * slots.weight), np.sqrt(spread @ (seen * slots.weight**2))
        whole, full = self.mean @ slots.weight, np.sqrt(spread @ slots.weight**2)
        above, below = unseen[0][1], unseen[1][1] if len(unseen) > 1 else 0.0
        high = np.minimum(centre + half * error + above, whole + half * full) if above else centre + z * error
        low = np.maximum(centre - half * error - below, whole - half * full) if below else centre - z * error
        value = self.mean @ used
        return Total(value, spread @ used**2, np.minimum(low, value), np.maximum(high, value))


def _quantile(outside: float) -> float:
    """Standard deviations on each side that leave so much of a normal law outside."""
    return float(-ndtri(outside / 2))


def _unseen(
    mean: NDArray[np.float64],
    variance: NDArray[np.float64],
    weight: NDArray[np.float64],
    highest: NDArray[np.float64],
    z: float,
    empty: float,
) -> tuple[int, float]:
    """Up to which bit everybody's stand out clearly, 0..S, and at most how much those above add; float64[S] each."""
    stddev = np.sqrt(variance)
    clear = np.flatnonzero(mean > _CLEAR * stddev)
    seen = int(clear[-1]) + 1 if len(clear) else 0
    most, least = np.minimum(np.maximum(mean, 0) + z * stddev, 1), mean - z * stddev
    above = most[seen:]
    # Steps that do not grow: from the last bit that stands out to the next, and to it from the one below, if it does.
    for bit in clear[clear >= seen - 2].tolist():
        if bit + 1 < len(mean):
            fall = min(most[bit + 1] / least[bit], 1.0)
            above = np.minimum(above, most[bit + 1] * fall ** (np.arange(seen, len(mean)) - bit - 1))
    used = np.cumsum(highest[::-1])[::-1][1:][seen:]
    return seen, float((above * weight[seen:])[used > empty].sum())


def evidence(
    counted: Tally, told: RandomisedResponse, noise: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Everybody's share of reported 1s, and of how many reports without noise it says as much: float64[S] each.

    counted: of one group. noise: variance of what was added to each count.
    """
    ones, reports = counted.ones[0].astype(np.float64), np.maximum(counted.reports[0], 0).astype(np.float64)
    share = np.clip(ones / np.maximum(reports, 1), 0, 1)
    one = np.clip((share * reports + 1) / (reports + 2), 1 - told.truth, told.truth)
    own = np.maximum(reports * one * (1 - one), 1e-12)
    return share, reports * own / (own + noise * ((1 - one) ** 2 + one**2))


def bit_means(
    counted: Tally, told: RandomisedResponse, noise: float | NDArray[np.floating] = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of the mean, float64[G, S] each, of every bit.

    noise: variance of what was added to each count of ones and of zeros, one for all or float64[G, 1]. A bit on which
    nothing is reported is half, give or take a half.
    """
    ones, reports = counted.ones.astype(np.float64), counted.reports.astype(np.float64)
    noisy = bool(np.any(noise))
    if noisy:
        # A bit with few reports in a group is near everybody's; one with many is hardly moved.
        all_ones, all_reports = ones.sum(axis=0), reports.sum(axis=0)
        everybody = np.where(all_reports > 0, all_ones / np.maximum(all_reports, 1), 0.5)
        ones = ones + _SHRINK * np.clip(everybody, 0, 1)
        reports = np.maximum(reports, 0) + _SHRINK
    asked = reports > 0
    safe = np.where(asked, reports, 1.0)
    share = np.where(asked, ones / safe, 0.5)
    # With a report more of each kind, so that a bit that was never seen set is not taken for certainly empty.
    smooth = np.clip((ones + 1) / (safe + 2), 1 / (safe + 2), 1 - 1 / (safe + 2))
    one = np.clip(smooth, 1 - told.truth, told.truth) if told.epsilon is not None else smooth
    variance = told.variance(one) / safe
    if noisy:
        variance = variance + noise * ((1 - one) ** 2 + one**2) / (told.gain * safe) ** 2
        asked &= variance < _UNKNOWN  # else the noise says less than nothing
    return np.where(asked, told.share(share), 0.5), np.where(asked, variance, _UNKNOWN)
