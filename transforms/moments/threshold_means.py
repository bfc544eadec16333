"""A quantity's mean with an interval, and the second round's probabilities, from answers on thresholds. Pure.

After Lau and Scarlett (arXiv 2604.07796): E[X] is the sum of P[X >= t] over all thresholds t, which are first spread
over powers of two, and then over what the first answers left. Two things differ. Every threshold can be asked about in
both rounds, so no tail is cut, and their reports are pooled. And the estimate is a posterior mean under shares that
never rise (survival.py), which removes most of the noise of thresholds that all or no users reach.

An octave is the thresholds from one power of two to the next. There are S strata and O octaves, of all signs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.moments.allocation import capped
from sfumato.transforms.moments.bit_means import EMPTY, MeanEstimate, bit_means, evidence, normal_quantile, unseen_bits
from sfumato.transforms.moments.quantities import Thresholds
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.moments.survival import LEVELS, Survival
from sfumato.transforms.moments.tally import Tally


@dataclass(frozen=True, eq=False)
class ThresholdEstimates:
    """Answers of everybody on the strata of thresholds of one quantity.

    Attributes:
        counted: the noisy tally, of one group.
        slots: the strata.
        response: how clients report.
        noise: variance of the noise on each count.
    """

    counted: Tally
    slots: Thresholds
    response: RandomisedResponse
    noise: float

    @cached_property
    def _survival(self) -> list[Survival]:
        """The posterior of each sign."""
        answered, reports = evidence(self.counted, self.response, self.noise)
        top = (self.slots.below + self.slots.width).astype(np.float64)
        return [
            Survival.from_answers(answered[side], reports[side], top[side], self.response)
            for side in self.slots.sides()
        ]

    def probabilities(self, reports: int) -> NDArray[np.float64]:
        """The probabilities of the next round's questions: float64[S], see `allocation.capped`.

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

    def quantity_mean(self, level: float = 0.95, empty: float = EMPTY, evenly: bool = False) -> MeanEstimate:
        """The quantity's mean, up to its base, with an interval.

        The value is the posterior mean. Up to the highest octave with clear answers the interval is that of the
        posterior without weights by size. Octaves above add at least nothing, and at most what `unseen_bits` says.

        Args:
            level: of the interval, 0..1.
            empty: octaves with at most this probability to be in use add nothing.
            evenly: whether low thresholds weigh as much as high ones, as those of a logarithm do. The posterior pulls
                shares near 1 to 1, which adds up over many thresholds where a few users have the smallest value. So
                the interval then holds that of the unbiased shares too.
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
        return MeanEstimate(*(np.array([one]) for one in (value, spread, min(low, value), max(high, value))))

    def octaves(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Each octave like a bit: what all its thresholds weigh, and the mean share of users who reach them.

        Returns:
            The columns weight, mean, stddev, reports, squashed of BitMeans, with O rows.
        """
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
    def _octave_weight(self) -> NDArray[np.float64]:
        return np.bincount(self.slots.octave, np.abs(self.slots.weight)).astype(np.float64)

    @cached_property
    def _octave_answers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The share of 1s of an octave's reports without bias, and its variance: float64[O] each.

        As shares never rise, an octave's share bounds those of the octaves above, whatever the reports of its strata.
        """
        ones, zeros = (
            np.bincount(self.slots.octave, counts[0]).astype(np.int64)[None]
            for counts in (self.counted.ones, self.counted.zeros)
        )
        mean, variance = bit_means(Tally(ones, zeros), self.response, self.noise * np.bincount(self.slots.octave)[None])
        return mean[0], variance[0]
