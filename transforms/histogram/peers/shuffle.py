"""The shuffle model: every client adds Bernoulli noise to every bucket (Balcer and Cheu 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta
from sfumato.transforms.histogram.peers.base import check_rate, sample_counts
from sfumato.transforms.privacy.budget import check_epsilon


@dataclass(frozen=True)
class BernoulliShuffle:
    """Each of the m sampled clients sends its item and, with probability q for each bucket, one message more.

    The server sees m (an empty client still sends its noise; adjacency: one client's item or nothing) and the number of
    messages by bucket, subtracts m q and scales by 1 / rate. q is the least that is (epsilon, delta)-private by the
    exact divergence, where Balcer and Cheu ask for `closed_form_messages`. With `zeroed` the noise is mirrored, 1 - q
    for q, and a bucket with at most m messages counts as empty: their own analyser, which is biased and leaves the
    truly empty buckets at exactly 0.
    """

    rate: float
    epsilon: float
    delta: float
    zeroed: bool = False

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_epsilon("epsilon", self.epsilon)
        check_delta(self.delta)

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "shuffle, zeroed" if self.zeroed else "shuffle"

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]. Variance given the sample, where not zeroed: m q (1 - q) / rate^2.

        Raises RequestError where the sample is too small for any q.
        """
        sampled = sample_counts(counts, self.rate, generator)
        users = int(sampled.sum())
        probability = message_rate(users, self.epsilon, self.delta)
        noise = generator.binomial(users, probability, size=len(counts)).astype(np.float64)
        if not self.zeroed:
            return np.asarray((sampled + noise - users * probability) / self.rate)
        # sampled + users - noise messages arrived, of which users (1 - chance) were expected as noise
        return np.where(sampled > noise, sampled - noise + users * probability, 0.0) / self.rate


def shuffle_delta(users: int, probability: float, epsilon: float) -> float:
    """The exact delta at epsilon of Bin(users, chance) against the same shifted by one, the larger of both directions.

    P(v) / Q(v) = v (1 - q) / ((m + 1 - v) q) grows with v for P = 1 + Bin(m, q) and Q = Bin(m, q), so each divergence
    is a difference of two tails.
    """
    m, q, growth = users, probability, math.exp(epsilon)
    first = math.floor(growth * q * (m + 1) / (1 - q + growth * q)) + 1  # least v with P(v) > e^epsilon Q(v)
    with_user = _at_least(first - 1, m, q) - growth * _at_least(first, m, q)
    last = math.ceil(q * (m + 1) / (growth * (1 - q) + q)) - 1  # greatest v with Q(v) > e^epsilon P(v)
    without_user = _at_most(last, m, q) - growth * _at_most(last - 1, m, q)
    return max(with_user, without_user, 0.0)


def message_rate(users: int, epsilon: float, delta: float) -> float:
    """The least q (to 1e-9 of itself, on the safe side) at which m users' noise gives (epsilon, delta).

    Raises RequestError where not even q = 1/2 does: too few users.
    """
    low, high = 0.0, 0.5
    if not shuffle_delta(users, high, epsilon) <= delta:
        raise RequestError(
            f"rate: {users} sampled clients cannot hide one at epsilon {epsilon}, delta {delta} in the shuffle model; "
            "sample more of them"
        )
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if shuffle_delta(users, middle, epsilon) <= delta:
            high = middle
        else:
            low = middle
    return high


def closed_form_messages(epsilon: float, delta: float) -> float:
    """Balcer and Cheu's m q, expected noise messages in a bucket: 50 ln(2 / delta) / epsilon^2, for q <= 1/2.

    The noise's standard deviation is sqrt(m q (1 - q)), at most the root of this.
    """
    return 50 * math.log(2 / delta) / epsilon**2


def _at_least(value: int, users: int, probability: float) -> float:
    """P[Bin(users, chance) >= value]."""
    if value <= 0:
        return 1.0
    return float(bdtrc(value - 1, users, probability)) if value <= users else 0.0


def _at_most(value: int, users: int, probability: float) -> float:
    """P[Bin(users, chance) <= value]."""
    if value < 0:
        return 0.0
    return float(bdtr(value, users, probability)) if value < users else 1.0
