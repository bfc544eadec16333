"""Bit means from tallies of reports, and a quantity's mean with an interval from bit means. Pure.

Which bits are in use? The model: every bit is equally likely to be the highest bit in use. That bit and an unknown
share of the bits below it are in use, with bit means from Beta(1/2, 1/2); all others are empty. A quantity's mean is
averaged over the highest bit, instead of squashing bit means below a threshold (paper 002, Section 4.4). A quantity
with a sign has a distribution for each sign. S is the number of bits: of one sign where one sign is named, else of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, xlog1py, xlogy

from sfumato.transforms.moments.local.quantities import Slots
from sfumato.transforms.moments.local.tally import RandomisedResponse, Tally
from sfumato.transforms.moments.statistic_kinds import Means

Array = NDArray[np.float64]

_MEANS = np.sin((np.arange(128) + 0.5) * (math.pi / 256)) ** 2  # equally likely under Beta(1/2, 1/2)
_USED_SHARES = (np.arange(64) + 0.5) / 64  # of the bits below the highest one; equally likely
_MAX_EVIDENCE = 1e4  # where a bit cannot be empty
# Values double from one highest bit to the next. So a squared error that is relative to them falls by a factor of 4.
_LOG_ERROR_STEP = math.log(4)
_CLEAR = 3.5  # standard deviations above 0 from which a bit is clearly set in some values
EMPTY = 0.005  # bits with at most this probability to be in use count as empty
_UNKNOWN = 0.25  # variance of an unknown bit mean
_SHRINK = 2.0  # weight of the bit mean of all users in a group with noisy tallies, in reports


@dataclass(frozen=True, eq=False)
class UsedBits:
    """The distribution of the highest bit in use.

    highest: for each sign float64[S + 1], the probabilities that it is no bit, the first, ..., the last.
    """

    highest: Sequence[Array]

    def bit_probabilities(self) -> Array:
        """Returns the probability that the highest bit in use is this bit or a higher one: float64[S], by sign."""
        return np.concatenate([np.cumsum(cases[::-1])[::-1][1:] for cases in self.highest])

    def weighted(self) -> UsedBits:
        """Returns the same with each case weighted by 4^-position of the highest bit.

        The mean over these has the least expected squared error relative to the size of the values. Without the
        weights, a small probability of very large values would dominate.
        """
        weights = (cases * np.exp(-_LOG_ERROR_STEP * np.arange(len(cases))) for cases in self.highest)
        return UsedBits([case_weights / case_weights.sum() for case_weights in weights])


def bits_in_use(
    means: Array,
    variances: Array,
    slots: Slots,
    reported: tuple[Array, Array],
    response: RandomisedResponse,
    squash: float | None,
) -> UsedBits:
    """Returns the distribution of the highest bit in use: by the reports, or by the resolved tuning's `squash`.

    means, variances: float64[S], of bits. reported: see `evidence`.
    """
    return posterior(*reported, slots, response) if squash is None else above_threshold(means, variances, slots, squash)


def posterior(shares: Array, reports: Array, slots: Slots, response: RandomisedResponse) -> UsedBits:
    """Returns the distribution of the highest bit given shares of reported 1s and numbers of reports: float64[S] each.

    Where counts have noise or come from an earlier release, the numbers are the equivalent ones without noise.
    """
    highest = []
    for side in slots.sides():
        evidence = _binomial_evidence(shares[side], reports[side], response)
        log_probability = np.concatenate([[0.0], evidence + _below(evidence)])
        probability = np.exp(log_probability - log_probability.max())
        highest.append(probability / probability.sum())
    return UsedBits(highest)


def _below(evidence: Array) -> Array:
    """Returns the log evidence of the bits below each bit: float64[S].

    All are in use with one probability from Uniform(0, 1), so that a few values other than 0, with empty lower bits,
    are no evidence against a high bit.
    """
    each = np.logaddexp(np.log1p(-_USED_SHARES)[:, None], np.log(_USED_SHARES)[:, None] + evidence)
    before = np.hstack([np.zeros((len(_USED_SHARES), 1)), np.cumsum(each, axis=1)[:, :-1]])
    return _log_mean_exp(before.T)


def _binomial_evidence(share: Array, reports: Array, response: RandomisedResponse) -> Array:
    """Returns the log likelihood ratio of the reports for a bit in use against an empty one: float64[S]."""
    ones, zeros = share * reports, (1 - share) * reports

    def log_likelihood(mean: Array) -> Array:
        return np.asarray(xlogy(ones[:, None], _reported(mean)) + xlog1py(zeros[:, None], -_reported(mean)))

    def _reported(mean: Array) -> Array:
        return mean * response.gain + (1 - response.truth_probability)

    used = _log_mean_exp(log_likelihood(_MEANS))
    return np.asarray(np.minimum(used - log_likelihood(np.zeros(1))[:, 0], _MAX_EVIDENCE))


def _log_mean_exp(logs: Array) -> Array:
    largest = logs.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logs - largest[:, None]).mean(axis=1)))


def above_threshold(means: Array, variances: Array, slots: Slots, multiple: float) -> UsedBits:
    """Returns the paper's squashing: bits above the highest one whose mean exceeds `multiple` standard deviations are
    empty.

    Section 4.4 decides for each bit separately. But values that fill their range up to some bit leave none below it
    empty. Each sign has its own highest bit. If only one sign has a bit above the threshold, all bits of the other are
    empty. Nothing is squashed where no bit of either sign exceeds the threshold, or where the multiple is 0.

    means: float64[S], bit means. variances: float64[S], of means. multiple: the threshold in standard deviations, >= 0.
    """
    clear = means > multiple * np.sqrt(variances)
    all_used = multiple == 0 or not clear.any()
    highest = []
    for side in slots.sides():
        seen = np.flatnonzero(clear[side])
        last = side.stop - side.start if all_used else (seen[-1] + 1 if len(seen) else 0)
        highest.append(np.eye(1, side.stop - side.start + 1, last)[0])
    return UsedBits(highest)


@dataclass(frozen=True, eq=False)
class BitEstimates:
    """Bit means of one quantity, in G groups of S slots."""

    mean: Array  # float64[G, S], unbiased, so noise may move it outside 0..1
    variance: Array  # float64[G, S], of mean
    reports: Array  # float64[G, S], number of reports
    used_bits: UsedBits
    bits_per_client: int = 1  # their sampling errors may add up instead of cancelling
    everybody: BitEstimates | None = None  # of all groups together; None if these are they

    def quantity_mean(self, slots: Slots, level: float = 0.95, empty: float = EMPTY) -> Means:
        """Returns the quantity's mean (Equation 2) with an interval.

        The value is averaged over the highest bit in use. The interval does not rely on that prior. Up to the highest
        clear bit, it is the interval of the unbiased estimate. The bits above add at least nothing. They add at most

        - as much as the unbiased estimate of all bits allows, and
        - as much as each of them may add by its own reports, if the steps by which shares fall from bit to bit do not
          shrink above the clear bits. (This holds for values with one tail as heavy as Pareto's. It does not cover a
          few values far above all others.)

        empty: bits with at most this probability to be in use add nothing.
        """
        share = np.clip(self.mean, 0, 1)
        # An upper bound: the sum of k errors of one client has at most k times the sum of their variances.
        spread = self.variance + (self.bits_per_client - 1) * share * (1 - share) / np.maximum(self.reports, 1)
        used = self.used_bits.weighted().bit_probabilities() * slots.weight
        everybody = self if self.everybody is None else self.everybody
        z, half = normal_quantile(1 - level), normal_quantile((1 - level) / 2)
        unseen = [
            (len(cases) - 1, 0.0)
            if cases[-1] == 1  # the highest bit is in use
            else unseen_bits(
                everybody.mean[0, side], everybody.variance[0, side], np.abs(slots.weight[side]), cases, half, empty
            )
            for side, cases in zip(slots.sides(), self.used_bits.highest, strict=True)
        ]
        seen = np.zeros(len(slots), bool)
        for side, (count, _) in zip(slots.sides(), unseen, strict=True):
            seen[side.start : side.start + count] = True
        centre, error = self.mean @ (seen * slots.weight), np.sqrt(spread @ (seen * slots.weight**2))
        unbiased, unbiased_error = self.mean @ slots.weight, np.sqrt(spread @ slots.weight**2)
        above, below = unseen[0][1], unseen[1][1] if len(unseen) > 1 else 0.0
        high = (
            np.minimum(centre + half * error + above, unbiased + half * unbiased_error) if above else centre + z * error
        )
        low = (
            np.maximum(centre - half * error - below, unbiased - half * unbiased_error) if below else centre - z * error
        )
        value = self.mean @ used
        return Means(value, spread @ used**2, np.minimum(low, value), np.maximum(high, value))


def normal_quantile(outside: float) -> float:
    """Returns the standard deviations on each side of a normal distribution that leave this share outside."""
    return float(-ndtri(outside / 2))


def unseen_bits(
    mean: Array, variance: Array, weight: Array, highest: Array, z: float, empty: float
) -> tuple[int, float]:
    """Returns the number of bits up to the highest clear one, and how much the bits above add at most.

    Args:
        mean: float64[S], the bit means of all users, of one sign.
        variance: float64[S], of mean.
        weight: float64[S], absolute weights.
        highest: float64[S + 1], distribution of the highest bit in use.
        z: standard deviations on each side of the interval.
        empty: see BitEstimates.quantity_mean.
    """
    stddev = np.sqrt(variance)
    clear = np.flatnonzero(mean > _CLEAR * stddev)
    seen = int(clear[-1]) + 1 if len(clear) else 0
    upper, lower = np.minimum(np.maximum(mean, 0) + z * stddev, 1), mean - z * stddev
    above = upper[seen:]
    # The steps from the last clear bit to the next, and to it from the bit below, if that is clear.
    for bit in clear[clear >= seen - 2].tolist():
        if bit + 1 < len(mean):
            fall = min(upper[bit + 1] / lower[bit], 1.0)
            above = np.minimum(above, upper[bit + 1] * fall ** (np.arange(seen, len(mean)) - bit - 1))
    used = np.cumsum(highest[::-1])[::-1][1:][seen:]
    return seen, float((above * weight[seen:])[used > empty].sum())


def evidence(counted: Tally, response: RandomisedResponse, noise: float = 0.0) -> tuple[Array, Array]:
    """Returns all users' shares of reported 1s, and the equivalent numbers of reports without noise: float64[S] each.

    counted: of one group. noise: variance of the noise on each count.
    """
    ones, reports = counted.ones[0].astype(np.float64), np.maximum(counted.reports[0], 0).astype(np.float64)
    share = np.clip(ones / np.maximum(reports, 1), 0, 1)
    reported = np.clip(
        (share * reports + 1) / (reports + 2), 1 - response.truth_probability, response.truth_probability
    )
    sampling_variance = np.maximum(reports * reported * (1 - reported), 1e-12)
    return share, reports * sampling_variance / (sampling_variance + noise * ((1 - reported) ** 2 + reported**2))


def bit_means(
    counted: Tally, response: RandomisedResponse, noise: float | NDArray[np.floating] = 0.0
) -> tuple[Array, Array]:
    """Returns unbiased bit means and their variances: float64[G, S] each.

    A bit without reports has mean 1/2 and standard deviation 1/2. noise: variance of the noise on each count of ones
    and of zeros; one for all, or float64[G, 1].
    """
    ones, reports = counted.ones.astype(np.float64), counted.reports.astype(np.float64)
    noisy = bool(np.any(noise))
    if noisy:
        # Few reports in a group: near the bit mean of all users. Many reports: hardly moved.
        all_ones, all_reports = ones.sum(axis=0), reports.sum(axis=0)
        everybody = np.where(all_reports > 0, all_ones / np.maximum(all_reports, 1), 0.5)
        ones = ones + _SHRINK * np.clip(everybody, 0, 1)
        reports = np.maximum(reports, 0) + _SHRINK
    reported = reports > 0
    divisor = np.where(reported, reports, 1.0)
    share = np.where(reported, ones / divisor, 0.5)
    # With one more report of each kind: a bit that was never reported as 1 is not certainly empty.
    smooth = np.clip((ones + 1) / (divisor + 2), 1 / (divisor + 2), 1 - 1 / (divisor + 2))
    expected = (
        np.clip(smooth, 1 - response.truth_probability, response.truth_probability)
        if response.epsilon is not None
        else smooth
    )
    variance = response.variance(expected) / divisor
    if noisy:
        variance = variance + noise * ((1 - expected) ** 2 + expected**2) / (response.gain * divisor) ** 2
        reported &= variance < _UNKNOWN  # otherwise the noise hides the bit
    return np.where(reported, response.unbiased_share(share), 0.5), np.where(reported, variance, _UNKNOWN)
