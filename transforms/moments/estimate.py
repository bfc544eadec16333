"""From tallies of reports to bit means, and from these to a quantity's mean with its variance. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py, xlogy

from sfumato.transforms.moments.quantities import Slots
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.moments.tally import Tally

_MEANS = np.sin((np.arange(128) + 0.5) * (math.pi / 256)) ** 2  # as likely as one another under Beta(1/2, 1/2)
_HIGHER = 0.5  # by how much the log of a bit's chance to be the highest falls from bit to bit
_CERTAIN = 1e4  # of evidence, where a bit cannot be empty
_UNKNOWN = 0.25  # variance of the mean of a bit of which nothing is known
_SHRINK = 2.0  # reports that everybody's bit mean counts for in a group whose tallies carry noise


@dataclass(frozen=True, eq=False)
class Bits:
    """Bit means of one quantity, of G groups: mean, variance, reports float64[G, S]; used float64[S].

    mean is unbiased, so noise may lead it outside 0..1. variance: of mean. used: the chance that a bit is in use, by
    `in_use` or `above_threshold`; it falls from bit to bit.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    reports: NDArray[np.float64]
    used: NDArray[np.float64]

    def total(self, slots: Slots) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The quantity's mean, up to its base, and the variance of that: float64[G] each (Equation 2).

        Averaged over the highest bit in use; the variance has what that leaves open as well.
        """
        total, variance = np.zeros(len(self.mean)), np.zeros(len(self.mean))
        for side in slots.sides():
            weight, used = slots.weight[side], self.used[side]
            mean = self.mean[:, side] @ (weight * used)
            upto = np.cumsum(self.mean[:, side] * weight, axis=1) - mean[:, None]
            spread = np.cumsum(self.variance[:, side] * weight**2, axis=1) + upto**2
            highest = used - np.append(used[1:], 0.0)  # the chance that a bit is the highest in use
            variance += spread @ highest + (1 - used[0]) * mean**2
            total += mean
        return total, variance


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


def in_use(
    means: NDArray[np.float64],
    variances: NDArray[np.float64],
    slots: Slots,
    told: RandomisedResponse,
    reports: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """The chance that each bit is in use, given its estimated mean: float64[S].

    Values fill their bits up to some highest one, and the bits above are empty; which one is the highest is not known.
    Given it, a bit below has a mean of Beta(1/2, 1/2), and each higher bit is less likely to be the highest by
    e^-1/2. In place of squashing what lies below a threshold (Section 4.4), the estimates are averaged over the
    highest bit with its posterior chances.

    means, variances: float64[S]. reports: float64[S], how many told each bit, whose likelihood is binomial; None where
    they carry other noise than their coins, so that the means are taken for normal.
    """
    chances = np.zeros(len(means))
    for side in slots.sides():
        mean, variance = means[side], variances[side]
        if reports is None:
            evidence = _normal_evidence(mean, variance)
        else:
            share = np.clip(mean * told.gain + 1 - told.truth, 0, 1)
            evidence = _binomial_evidence(share, reports[side], told)
        log_chance = np.concatenate([[0.0], np.cumsum(evidence - _HIGHER)])  # of no bit, of the first, ...
        posterior = np.exp(log_chance - log_chance.max())
        chances[side] = np.cumsum(posterior[::-1])[::-1][1:] / posterior.sum()
    return chances


def _binomial_evidence(
    share: NDArray[np.float64], reports: NDArray[np.float64], told: RandomisedResponse
) -> NDArray[np.float64]:
    """Log of how much likelier reports, of which a share told 1, are of a bit in use than of an empty one."""
    ones, zeros = share * reports, (1 - share) * reports

    def log_likelihood(mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(xlogy(ones[:, None], _told(mean)) + xlog1py(zeros[:, None], -_told(mean)))

    def _told(mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean * told.gain + (1 - told.truth)

    used = _log_mean_exp(log_likelihood(_MEANS))
    return np.asarray(np.minimum(used - log_likelihood(np.zeros(1))[:, 0], _CERTAIN))


def _normal_evidence(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
    used = _log_mean_exp(-((mean[:, None] - _MEANS) ** 2) / (2 * variance[:, None]))
    return np.asarray(np.minimum(used + mean**2 / (2 * variance), _CERTAIN))


def _log_mean_exp(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    most = logs.max(axis=1)
    return np.asarray(most + np.log(np.exp(logs - most[:, None]).mean(axis=1)))


def above_threshold(
    means: NDArray[np.float64], variances: NDArray[np.float64], slots: Slots, multiple: float
) -> NDArray[np.float64]:
    """1 for bits that are in use, 0 for those that the paper's rule squashes: float64[S].

    For each sign, the bits above the highest one whose mean exceeds `multiple` of its standard deviation are squashed.
    (Section 4.4 asks each bit by itself; but values that fill their range up to some bit leave none below it empty.)
    None is where no bit exceeds it, since then nothing can be told, and where the multiple is 0.
    """
    sure = means > multiple * np.sqrt(variances)
    used = np.ones(len(means))
    if multiple == 0 or not sure.any():
        return used
    for side in slots.sides():
        seen = np.flatnonzero(sure[side])
        used[side] = np.arange(side.stop - side.start) <= (seen[-1] if len(seen) else -1)
    return used
