"""From tallies of reports to bit means, and from these to a quantity's mean with its variance. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sfumato.transforms.moments.in_use import InUse
from sfumato.transforms.moments.quantities import Slots
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.moments.tally import Tally

Z_95 = 1.959963984540054  # standard deviations on each side that hold 95% of a normal law
_UNKNOWN = 0.25  # variance of the mean of a bit of which nothing is known
_SHRINK = 2.0  # reports that everybody's bit mean counts for in a group whose tallies carry noise


@dataclass(frozen=True, eq=False)
class Bits:
    """Bit means of one quantity, of G groups: mean, variance, reports float64[G, S]; which of them are in use.

    mean is unbiased, so noise may lead it outside 0..1. variance: of mean. together: how many bits a client told, which
    may go together: then their sampling errors add up instead of cancelling.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    reports: NDArray[np.float64]
    in_use: InUse
    together: int = 1

    def total(self, slots: Slots) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The quantity's mean, up to its base, and the variance of that: float64[G] each (Equation 2).

        Averaged over the highest bit in use. The variance has what that leaves open as well: it is of the normal law
        with as wide a 95% interval, since cases of a small chance and a vast error would govern the mean squared one.
        """
        total, variance = np.zeros(len(self.mean)), np.zeros(len(self.mean))
        share = np.clip(self.mean, 0, 1)
        # At most: k errors of one client have no more variance in all than k times the sum of theirs.
        shared = (self.together - 1) * share * (1 - share) / np.maximum(self.reports, 1)
        for side, chance, weight in zip(slots.sides(), self.in_use.highest, self.in_use.weighed().highest, strict=True):
            places = slots.weight[side]
            upto = _running(self.mean[:, side] * places)  # the mean, if this bit is the highest
            mean = upto @ weight
            spread = _running((self.variance + shared)[:, side] * places**2)
            variance += (_half_width(upto - mean[:, None], np.sqrt(spread), chance) / Z_95) ** 2
            total += mean
        return total, variance


def _half_width(
    away: NDArray[np.float64], stddev: NDArray[np.float64], chance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far from 0 lie 95% of a mixture of normal laws: float64[G]. away: their means, stddev, float64[G, n]."""
    low, high = np.zeros(len(away)), (np.abs(away) + 5 * stddev).max(axis=1)
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # where there is no noise at all
            upper, lower = ((sign * middle[:, None] - away) / stddev for sign in (1, -1))
        # 0 / 0 is a case that lies on the edge: within.
        enough = (ndtr(np.nan_to_num(upper, nan=9.0)) - ndtr(np.nan_to_num(lower, nan=-9.0))) @ chance >= 0.95
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high)


def _running(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of none, the first, the first two, ... of each row."""
    return np.hstack([np.zeros((len(terms), 1)), np.cumsum(terms, axis=1)])


def bit_means(
    counted: Tally, told: RandomisedResponse, noise: float | NDArray[np.floating] = 0.0
) -> tuple[NDArray[np.float64], ...]:
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
