"""A quantity's mean with an interval, and the second round's probabilities, from answers on thresholds. Pure.

After Lau and Scarlett (arXiv 2604.07796): E[X] is the sum of P[X >= t] over all thresholds t, which are first spread
over powers of two, and then over what the first answers left. Two things differ. Every threshold can be queried in
both rounds, so no tail is cut, and their reports are pooled. And the estimate is a posterior mean under shares that
never rise, which removes most of the noise of thresholds that all or no users reach.

The model of the shares is a hidden Markov chain over the strata from the lowest up. Its states are levels of the share
of users who reach a stratum's thresholds: 1, values between on a grid, and 0. Shares never rise. A share between 0 and
1 drops to 0 from one stratum to the next with probability 1 / (strata from there on + 1). A share of 1 ends with the
same probability, and a tenth of that goes straight to 0. In between a share stays at its level, or falls to a level
that is uniform below it or near it on the scale of log-odds. A forward and a backward pass give the exact posterior
under this model.

A stratum is a block of equally many neighbouring thresholds between two powers of two. Strata of positive and of
negative values are apart. A stratum is in use if at least one user reaches it. An octave is the thresholds from one
power of two to the next. There are S strata (of one sign, in `Survival`), O octaves, and L levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlog1py, xlogy

from sfumato.transforms.moments.local.allocation import capped
from sfumato.transforms.moments.local.bit_means import EMPTY, bit_means, evidence, normal_quantile, unseen_bits
from sfumato.transforms.moments.local.quantities import Thresholds
from sfumato.transforms.moments.local.tally import RandomisedResponse, Tally
from sfumato.transforms.moments.statistic_kinds import Means

Array = NDArray[np.float64]

_LOG_ODDS = np.linspace(-10.5, 10.5, 71)  # ends of the cells in which a share between 0 and 1 may lie
_CELLS = len(_LOG_ODDS) - 1
LEVELS = np.concatenate([[0.0], expit((_LOG_ODDS[:-1] + _LOG_ODDS[1:]) / 2), [1.0]])
_STAY = 0.7  # probability that a share stays at its level from a stratum to the next
_NEAR_CELLS = 10  # a share falls by at most this many cells, or to any level below
_MODEL_ERROR = 0.05  # standard deviation of a share's answers from which the model's level counts more than they do
_LEAST_LOG = -500.0  # of a likelihood, so that no state is impossible by rounding
_RELATIVE = 2.0  # errors count relative to the size of the values: squared, so by the power 2


def _falls() -> Array:
    """Probabilities from each level between 0 and 1 (row) to each: float64[L - 2, L - 2]."""
    ends, middles = expit(_LOG_ODDS), LEVELS[1:-1]
    uniform = np.diff(np.minimum(ends, middles[:, None]), axis=1)
    index = np.arange(_CELLS)
    near = ((index[:, None] - index >= 0) & (index[:, None] - index <= _NEAR_CELLS)).astype(np.float64)
    mixed = sum(part / part.sum(axis=1, keepdims=True) for part in (uniform, near)) / 2
    return np.asarray(_STAY * np.eye(_CELLS) + (1 - _STAY) * mixed)


_FALLS = _falls()


@dataclass(frozen=True, eq=False)
class Survival:
    """The model with the answers of all users on the strata of one sign.

    Attributes:
        likelihood: float64[S, L], of the answers, up to a factor for each stratum.
        share: float64[S, L], each stratum's share in each state. Between 0 and 1 it is near the unbiased share where
            that is precise, and near the level where it is not. So the estimate of many answers is unbiased.
        variance: float64[S, L], of share.
        top: float64[S], the highest threshold of each stratum, in units.
    """

    likelihood: Array
    share: Array
    variance: Array
    top: Array

    @classmethod
    def from_answers(cls, answered: Array, reports: Array, top: Array, response: RandomisedResponse) -> Survival:
        """Returns the model of shares of reported 1s, float64[S].

        reports: float64[S], number of reports; where counts have noise, the equivalent number without it.
        """
        expected = LEVELS * response.gain + 1 - response.truth_probability
        ones, zeros = (answered * reports)[:, None], ((1 - answered) * reports)[:, None]
        log_likelihood = xlogy(ones, expected) + xlog1py(zeros, -expected)
        log_likelihood -= log_likelihood.max(axis=1, keepdims=True)
        flip_probability = 1 - response.truth_probability
        smooth = np.clip((answered * reports + 1) / (reports + 2), flip_probability, 1 - flip_probability)
        variance = (response.variance(smooth) / np.maximum(reports, 1e-9))[:, None]
        data_weight = _MODEL_ERROR**2 / (_MODEL_ERROR**2 + variance)
        share, spread = np.tile(LEVELS, (len(top), 1)), np.zeros((len(top), len(LEVELS)))
        share[:, 1:-1] += data_weight * (response.unbiased_share(answered)[:, None] - share[:, 1:-1])
        spread[:, 1:-1] = data_weight**2 * variance
        return cls(np.exp(np.maximum(log_likelihood, _LEAST_LOG)), share, spread, top)

    def _step(self, stratum: int, power: float) -> Array:
        """Returns the weights from the states of the stratum below (rows) to those of a stratum: float64[L, L]."""
        remaining = len(self.top) - stratum
        end = 1 / (remaining + 1)  # probability that no user reaches this stratum, given that some reach the one below
        step = np.zeros((len(LEVELS), len(LEVELS)))
        step[0, 0] = 1
        step[1:-1, 0], step[1:-1, 1:-1] = end, (1 - end) * _FALLS
        step[-1, 0], step[-1, 1:-1], step[-1, -1] = 0.1 * end, 0.9 * end / _CELLS, 1 - end
        step[:, 1:] *= (self.top[stratum - 1] / self.top[stratum]) ** power
        return step

    def _start(self) -> Array:
        each = 1 / (len(self.top) + 1)
        return np.concatenate([[each], np.full(_CELLS, each / _CELLS), [1 - 2 * each]])

    def probabilities(self, power: float = _RELATIVE) -> Array:
        """Returns the posterior probability of each stratum's states, weighted by top^-power: float64[S, L].

        Args:
            power: each sequence of states is weighted by top^-power of its highest stratum in use. Without it a small
                probability of very large values would dominate the mean. Intervals take 0, the plain posterior.
        """
        strata = len(self.top)
        steps = [self._step(stratum, power) for stratum in range(1, strata)]
        found = np.empty_like(self.likelihood)
        before = self._start() * self.likelihood[0]
        for stratum in range(strata):
            if stratum:
                before = before @ steps[stratum - 1] * self.likelihood[stratum]
            before /= before.sum()
            found[stratum] = before
        after = np.ones(len(LEVELS))
        for stratum in range(strata - 2, -1, -1):
            after = steps[stratum] @ (self.likelihood[stratum + 1] * after)
            after /= after.sum()
            found[stratum] *= after
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def total(self, weight: Array, power: float = _RELATIVE) -> tuple[float, float]:
        """Returns the posterior mean and variance of the sum of weight times share. power: see `probabilities`.

        The pass carries the first two moments of the sum over the strata so far, for each state of the last.
        """
        probability = self._start()
        first, second = np.zeros((2, len(LEVELS)))
        for stratum in range(len(self.top)):
            if stratum:
                step = self._step(stratum, power)
                probability, first, second = probability @ step, first @ step, second @ step
            value, variance = weight[stratum] * self.share[stratum], weight[stratum] ** 2 * self.variance[stratum]
            second = second + 2 * value * first + (value**2 + variance) * probability
            first = first + value * probability
            probability, first, second = (one * self.likelihood[stratum] for one in (probability, first, second))
            scale = probability.sum()
            probability, first, second = probability / scale, first / scale, second / scale
        mean = float(first.sum())
        return mean, max(float(second.sum()) - mean**2, 0.0)


@dataclass(frozen=True, eq=False)
class ThresholdEstimates:
    """Answers of all users on the strata of thresholds of one quantity."""

    counted: Tally  # the noisy tally, of one group
    slots: Thresholds
    response: RandomisedResponse  # how clients report
    noise: float  # variance of the noise on each count

    @cached_property
    def _survival(self) -> list[Survival]:
        """Returns the posterior of each sign."""
        answered, reports = evidence(self.counted, self.response, self.noise)
        top = (self.slots.below + self.slots.width).astype(np.float64)
        return [
            Survival.from_answers(answered[side], reports[side], top[side], self.response)
            for side in self.slots.sides()
        ]

    def probabilities(self, reports: int) -> Array:
        """Returns the probabilities of the next round's questions: float64[S], see `allocation.capped`.

        The mean has the least variance if they are proportional to weight times the standard deviation of an answer. An
        answer is of use only where neither all users reach the thresholds nor none.
        """
        silent = float(self.response.variance(np.array(1 - self.response.truth_probability)))
        spreads = []
        for survival in self._survival:
            states = survival.probabilities()
            between = states[:, 1:-1].sum(axis=1)
            spreads.append(np.sqrt(between * (states @ (LEVELS * (1 - LEVELS))) + silent * between**2))
        return capped(np.abs(self.slots.weight) * np.concatenate(spreads), reports)

    def quantity_mean(self, level: float = 0.95, empty: float = EMPTY, evenly: bool = False) -> Means:
        """Returns the quantity's mean, up to its base, with an interval.

        The value is the posterior mean. Up to the highest octave with clear answers the interval is that of the
        posterior without weights by size. Octaves above add at least nothing, and at most what `unseen_bits` says.

        Args:
            empty: octaves with at most this probability to be in use add nothing.
            evenly: whether low thresholds weigh as much as high ones, as those of a logarithm do. The posterior pulls
                shares near 1 to 1, which adds up over many thresholds where a few users have the smallest value. So the
                interval then holds that of the unbiased shares too.
        """
        half, whole = normal_quantile((1 - level) / 2), normal_quantile(1 - level)
        mean, variance = self._octave_answers
        value, centre, spread, above = 0.0, 0.0, 0.0, [0.0, 0.0]
        for number, (survival, side) in enumerate(zip(self._survival, self.slots.sides(), strict=True)):
            sign, weight, octave = 1 - 2 * number, np.abs(self.slots.weight[side]), self.slots.octave[side]
            octaves = slice(int(octave[0]), int(octave[-1]) + 1)
            used = 1 - survival.probabilities(0)[np.flatnonzero(np.diff(octave, prepend=-1)), 0]
            seen = len(used)
            if used[-1] < 1:
                highest = np.append(1 - used[0], used - np.append(used[1:], 0))
                seen, above[number] = unseen_bits(
                    mean[octaves], variance[octaves], self._octave_weight[octaves], highest, half, empty
                )
            part, part_variance = survival.total(weight * (octave < octaves.start + seen), 0)
            value, centre = value + sign * survival.total(weight)[0], centre + sign * part
            spread += part_variance
        low, high = (
            centre + sign * ((half if end else whole) * np.sqrt(spread) + end)
            for sign, end in ((-1, above[1]), (1, above[0]))
        )
        if evenly:
            share, variances = bit_means(self.counted, self.response, np.full(self.counted.ones.shape, self.noise))
            unbiased = float(share[0] @ self.slots.weight)
            margin = half * math.sqrt(variances[0] @ self.slots.weight**2)
            low, high = min(low, unbiased - margin), max(high, unbiased + margin)
        return Means(*(np.array([one]) for one in (value, spread, min(low, value), max(high, value))))

    def octaves(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Returns each octave like a bit: the columns weight, mean, stddev, reports, squashed of BitMeans, O rows."""
        mean, stddev, used = [], [], []
        for survival, side in zip(self._survival, self.slots.sides(), strict=True):
            octave, sizes = self.slots.octave[side], np.abs(self.slots.weight[side])
            in_use = 1 - survival.probabilities()[:, 0]
            for number in np.unique(octave).tolist():
                part, variance = survival.total(sizes * (octave == number))
                mean.append(part / self._octave_weight[number])
                stddev.append(np.sqrt(variance) / self._octave_weight[number])
                used.append(in_use[octave == number][0])
        negative = self.slots.negative[np.unique(self.slots.octave, return_index=True)[1]]
        reports = np.bincount(self.slots.octave, self.counted.reports[0])
        weight = np.where(negative, -1, 1) * self._octave_weight
        return weight, np.array(mean), np.array(stddev), np.maximum(reports, 0), np.array(used) < 0.5

    @cached_property
    def _octave_weight(self) -> Array:
        return np.bincount(self.slots.octave, np.abs(self.slots.weight)).astype(np.float64)

    @cached_property
    def _octave_answers(self) -> tuple[Array, Array]:
        """Returns the share of 1s of an octave's reports without bias, and its variance: float64[O] each.

        As shares never rise, an octave's share bounds those of the octaves above, whatever the reports of its strata.
        """
        ones, zeros = (
            np.bincount(self.slots.octave, counts[0]).astype(np.int64)[None]
            for counts in (self.counted.ones, self.counted.zeros)
        )
        mean, variance = bit_means(Tally(ones, zeros), self.response, self.noise * np.bincount(self.slots.octave)[None])
        return mean[0], variance[0]
