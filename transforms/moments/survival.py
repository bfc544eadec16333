"""The posterior of a survival function, P[X >= t] by strata of thresholds, from noisy answers. Pure.

The model is a hidden Markov chain over the strata from the lowest up. Its states are levels of the share of users who
reach a stratum's thresholds: 1, values between on a grid, and 0. Shares never rise. A share between 0 and 1 drops to 0
from one stratum to the next with probability 1 / (strata from there on + 1). A share of 1 ends with the same
probability, and a tenth of that goes straight to 0. In between a share stays at its level, or falls to a level that is
uniform below it or near it on the scale of log-odds. A forward and a backward pass give the exact posterior under this
model.

A stratum is a block of equally many neighbouring thresholds between two powers of two. Strata of positive and of
negative values are apart. A stratum is in use if at least one user reaches it. S is the number of strata of one sign,
L the number of levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlog1py, xlogy

from sfumato.transforms.moments.randomised_response import RandomisedResponse

_LOG_ODDS = np.linspace(-10.5, 10.5, 71)  # ends of the cells in which a share between 0 and 1 may lie
_CELLS = len(_LOG_ODDS) - 1
LEVELS = np.concatenate([[0.0], expit((_LOG_ODDS[:-1] + _LOG_ODDS[1:]) / 2), [1.0]])
_STAY = 0.7  # probability that a share stays at its level from a stratum to the next
_NEAR_CELLS = 10  # a share falls by at most so many cells, or to any level below
_MODEL_ERROR = 0.05  # standard deviation of a share's answers from which the model's level counts more than they do
_LEAST_LOG = -500.0  # of a likelihood, so that no state is impossible by rounding
_RELATIVE = 2.0  # errors count relative to the size of the values: squared, so by the power 2


def _falls() -> NDArray[np.float64]:
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
    """The model with the answers of everybody on the strata of one sign.

    Attributes:
        likelihood: float64[S, L], of the answers, up to a factor for each stratum.
        share: float64[S, L], each stratum's share in each state. Between 0 and 1 it is near the unbiased share where
            that is precise, and near the level where it is not. So the estimate of many answers is unbiased.
        variance: float64[S, L], of share.
        top: float64[S], the highest threshold of each stratum, in units.
    """

    likelihood: NDArray[np.float64]
    share: NDArray[np.float64]
    variance: NDArray[np.float64]
    top: NDArray[np.float64]

    @classmethod
    def from_answers(
        cls,
        answered: NDArray[np.float64],
        reports: NDArray[np.float64],
        top: NDArray[np.float64],
        response: RandomisedResponse,
    ) -> Survival:
        """The model of these answers.

        Args:
            answered: float64[S], shares of reported 1s, in 0..1.
            reports: float64[S], number of reports; where counts have noise, the equivalent number without it.
            top: see the attributes.
            response: how clients report.
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

    def _step(self, stratum: int, power: float) -> NDArray[np.float64]:
        """The weights from the states of the stratum below (rows) to those of a stratum: float64[L, L]."""
        remaining = len(self.top) - stratum
        end = 1 / (remaining + 1)  # probability that no user reaches this stratum, given that some reach the one below
        step = np.zeros((len(LEVELS), len(LEVELS)))
        step[0, 0] = 1
        step[1:-1, 0], step[1:-1, 1:-1] = end, (1 - end) * _FALLS
        step[-1, 0], step[-1, 1:-1], step[-1, -1] = 0.1 * end, 0.9 * end / _CELLS, 1 - end
        step[:, 1:] *= (self.top[stratum - 1] / self.top[stratum]) ** power
        return step

    def _start(self) -> NDArray[np.float64]:
        each = 1 / (len(self.top) + 1)
        return np.concatenate([[each], np.full(_CELLS, each / _CELLS), [1 - 2 * each]])

    def probabilities(self, power: float = _RELATIVE) -> NDArray[np.float64]:
        """The posterior probability of each stratum's states, weighted by top^-power: float64[S, L].

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

    def total(self, weight: NDArray[np.float64], power: float = _RELATIVE) -> tuple[float, float]:
        """The posterior mean and variance of the sum of weight times share. power: see `probabilities`.

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
