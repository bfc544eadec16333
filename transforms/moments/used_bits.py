"""The bits in use: the distribution of the highest bit in use.

The model: every bit is equally likely to be the highest bit in use. That bit and an unknown share of the bits below it
are in use, with bit means from Beta(1/2, 1/2); all others are empty. `BitEstimates.quantity_mean` averages over the
highest bit, in place of squashing bit means below a threshold (paper 002, Section 4.4). A quantity with a sign has a
distribution for each sign. S is the number of bits: of one sign where one sign is named, else of all signs together.
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

_MEANS = np.sin((np.arange(128) + 0.5) * (math.pi / 256)) ** 2  # equally likely under Beta(1/2, 1/2)
_USED_SHARES = (np.arange(64) + 0.5) / 64  # of the bits below the highest one; equally likely
_MAX_EVIDENCE = 1e4  # where a bit cannot be empty
# Values double from one highest bit to the next. So a squared error that is relative to them falls by a factor of 4.
_LOG_ERROR_STEP = math.log(4)


@dataclass(frozen=True, eq=False)
class UsedBits:
    """The distribution of the highest bit in use.

    highest: for each sign float64[S + 1], the probabilities that it is no bit, the first, ..., the last.
    """

    highest: Sequence[NDArray[np.float64]]

    def bit_probabilities(self) -> NDArray[np.float64]:
        """The probability that the highest bit in use is each bit or one above it: float64[S], sign after sign."""
        return np.concatenate([np.cumsum(cases[::-1])[::-1][1:] for cases in self.highest])

    def weighted(self) -> UsedBits:
        """The same with each case weighted by 4^-position of the highest bit.

        The mean over these has the least expected squared error relative to the size of the values. Without the
        weights, a small probability of very large values would dominate.
        """
        weights = (cases * np.exp(-_LOG_ERROR_STEP * np.arange(len(cases))) for cases in self.highest)
        return UsedBits([case_weights / case_weights.sum() for case_weights in weights])


def posterior(
    shares: NDArray[np.float64], reports: NDArray[np.float64], slots: Slots, response: RandomisedResponse
) -> UsedBits:
    """The distribution of the highest bit given the reports.

    Args:
        shares: float64[S], of reported 1s, in 0..1.
        reports: float64[S], number of reports on each bit. Where counts have noise or come from an earlier release, the
            equivalent number of reports without noise.
        slots: of the quantity.
        response: how clients report a bit.
    """
    highest = []
    for side in slots.sides():
        evidence = _binomial_evidence(shares[side], reports[side], response)
        log_probability = np.concatenate([[0.0], evidence + _below(evidence)])
        probability = np.exp(log_probability - log_probability.max())
        highest.append(probability / probability.sum())
    return UsedBits(highest)


def _below(evidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log evidence of the bits below each bit: float64[S]. All are in use with one probability from Uniform(0, 1).

    So a few values other than 0, with empty lower bits, are no evidence against a high bit.
    """
    each = np.logaddexp(np.log1p(-_USED_SHARES)[:, None], np.log(_USED_SHARES)[:, None] + evidence)
    before = np.hstack([np.zeros((len(_USED_SHARES), 1)), np.cumsum(each, axis=1)[:, :-1]])
    return _log_mean_exp(before.T)


def _binomial_evidence(
    share: NDArray[np.float64], reports: NDArray[np.float64], response: RandomisedResponse
) -> NDArray[np.float64]:
    """Log likelihood ratio of the reports for a bit in use against an empty one: float64[S]."""
    ones, zeros = share * reports, (1 - share) * reports

    def log_likelihood(mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(xlogy(ones[:, None], _reported(mean)) + xlog1py(zeros[:, None], -_reported(mean)))

    def _reported(mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean * response.gain + (1 - response.truth_probability)

    used = _log_mean_exp(log_likelihood(_MEANS))
    return np.asarray(np.minimum(used - log_likelihood(np.zeros(1))[:, 0], _MAX_EVIDENCE))


def _log_mean_exp(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = logs.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logs - largest[:, None]).mean(axis=1)))


def above_threshold(
    means: NDArray[np.float64], variances: NDArray[np.float64], slots: Slots, multiple: float
) -> UsedBits:
    """The paper's squashing: bits above the highest one whose mean exceeds `multiple` standard deviations are empty.

    Section 4.4 decides for each bit by itself. But values that fill their range up to some bit leave none below it
    empty. Each sign has its own highest bit. If only one sign has a bit above the threshold, all bits of the other are
    empty. Nothing is squashed where no bit of either sign exceeds the threshold, or where the multiple is 0.

    Args:
        means: float64[S], bit means.
        variances: float64[S], of means.
        slots: of the quantity.
        multiple: the threshold in standard deviations, >= 0.
    """
    clear = means > multiple * np.sqrt(variances)
    all_used = multiple == 0 or not clear.any()
    highest = []
    for side in slots.sides():
        seen = np.flatnonzero(clear[side])
        last = side.stop - side.start if all_used else (seen[-1] + 1 if len(seen) else 0)
        highest.append(np.eye(1, side.stop - side.start + 1, last)[0])
    return UsedBits(highest)
