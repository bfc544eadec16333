"""Which bits values fill: they fill them up to some highest one, which is not known. Pure.

Given the highest bit, it and an unknown share of those below it are in use, with means of Beta(1/2, 1/2); all others
are empty; before any report each bit is as likely as any other to be the highest. In place of squashing what lies below
a threshold (paper 002, Section 4.4), estimates are averaged over the highest bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py, xlogy

from sfumato.transforms.moments.quantities import Slots
from sfumato.transforms.moments.randomised_response import RandomisedResponse

_MEANS = np.sin((np.arange(128) + 0.5) * (math.pi / 256)) ** 2  # as likely as one another under Beta(1/2, 1/2)
_SHARES = (np.arange(64) + 0.5) / 64
_CERTAIN = 1e4  # of evidence, where a bit cannot be empty
_LOSS = math.log(4)  # by how much the log of a squared relative error falls from one highest bit to the next


@dataclass(frozen=True, eq=False)
class InUse:
    """The chances that the highest bit in use is none, the first, ..., the last: float64[S + 1], of each sign."""

    highest: Sequence[NDArray[np.float64]]

    def of_bits(self) -> NDArray[np.float64]:
        """The chance that each bit is in use: float64[S], of both signs one after the other."""
        return np.concatenate([np.cumsum(one[::-1])[::-1][1:] for one in self.highest])

    def weighed(self) -> InUse:
        """The same with each case weighed by 4^-place of the highest bit.

        The mean over these has the least expected squared error relative to the size of the values; under the chances
        themselves, a small one of very large values would outweigh all else.
        """
        weights = (one * np.exp(-_LOSS * np.arange(len(one))) for one in self.highest)
        return InUse([one / one.sum() for one in weights])


def posterior(
    shares: NDArray[np.float64], reports: NDArray[np.float64], slots: Slots, told: RandomisedResponse
) -> InUse:
    """What reports tell of the bits in use.

    shares: float64[S], of reports that told 1, in 0..1. reports: float64[S], how many told each bit; where counts carry
    other noise than coins, or stem from an earlier release, of how many reports they are worth.
    """
    highest = []
    for side in slots.sides():
        evidence = _binomial_evidence(shares[side], reports[side], told)
        log_probability = np.append(0.0, evidence + _below(evidence))
        probability = np.exp(log_probability - log_probability.max())
        highest.append(probability / probability.sum())
    return InUse(highest)


def _below(evidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log evidence of what lies below each bit: float64[S]. Each is in use with the same chance, of Uniform(0, 1).

    So few values that are not 0, whose lower bits are empty too, do not speak against a high bit.
    """
    each = np.logaddexp(np.log1p(-_SHARES)[:, None], np.log(_SHARES)[:, None] + evidence)
    before = np.hstack([np.zeros((len(_SHARES), 1)), np.cumsum(each, axis=1)[:, :-1]])
    return _log_mean_exp(before.T)


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


def _log_mean_exp(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    most = logs.max(axis=1)
    return np.asarray(most + np.log(np.exp(logs - most[:, None]).mean(axis=1)))


def above_threshold(means: NDArray[np.float64], variances: NDArray[np.float64], slots: Slots, multiple: float) -> InUse:
    """The paper's squashing: bits above the highest one whose mean exceeds `multiple` standard deviations are empty.

    means, variances: float64[S]. (Section 4.4 asks each bit by itself; but values that fill their range up to some bit
    leave none below it empty.) None is squashed where no bit exceeds it, since then nothing can be told, and where the
    multiple is 0.
    """
    sure = means > multiple * np.sqrt(variances)
    all_used = multiple == 0 or not sure.any()
    highest = []
    for side in slots.sides():
        seen = np.flatnonzero(sure[side])
        last = side.stop - side.start if all_used else (seen[-1] + 1 if len(seen) else 0)
        highest.append(np.eye(1, side.stop - side.start + 1, last)[0])
    return InUse(highest)
