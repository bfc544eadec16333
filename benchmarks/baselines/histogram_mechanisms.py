"""Mechanisms for a histogram that sample each client with one probability (paper 004, Section 5).

All of them treat clients alike. So their distribution depends on the true counts alone, and a comparison needs no item
of each client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta
from sfumato.transforms.histogram.sampling_round import Sampling
from sfumato.transforms.privacy.budget import check_epsilon


class HistogramMechanism(Protocol):
    """Samples each client with probability `rate` and estimates the histogram of the whole population."""

    @property
    def name(self) -> str:
        """The name in the tables."""

    @property
    def rate(self) -> float:
        """The probability to sample a client."""

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B] of the whole population, given its true counts int64[B]."""


@dataclass(frozen=True)
class ThresholdedSample:
    """Sample and threshold (paper 004, Section 3): sampled counts from the threshold on, scaled by 1 / rate.

    The estimate of a count that is not published is 0.
    """

    name: str
    sampling: Sampling

    @property
    def rate(self) -> float:
        """See HistogramMechanism.rate."""
        return self.sampling.rate

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]. Variance of a bucket of x users far above the threshold: x (1 - rate) / rate."""
        sampled = sample_counts(counts, self.rate, generator)
        return np.where(sampled >= self.sampling.threshold, sampled, 0) / self.sampling.rate


@dataclass(frozen=True)
class SampledMechanism:
    """What the mechanisms with noise have in common. Raises RequestError for a number out of range.

    rate: probability to sample a client.
    epsilon: of the sampled clients.
    """

    rate: float
    epsilon: float

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_epsilon(self.epsilon)


@dataclass(frozen=True)
class CentralLaplace(SampledMechanism):
    """Laplace(1 / epsilon) noise on each of the B sampled counts (Dwork 2006), scaled by 1 / rate.

    Pure epsilon for adding or removing one user, who changes one count by one. As in paper 004, the sampled clients
    get epsilon and sampling earns nothing. With `amplified`, the sample is secret and the noise is what epsilon allows
    for the population. PyDP draws from the operating system, so the noise does not repeat with the generator.
    """

    amplified: bool = False

    @property
    def name(self) -> str:
        """See HistogramMechanism.name."""
        return "central Laplace, amplified" if self.amplified else "central Laplace"

    @property
    def noise_scale(self) -> float:
        """Scale of the Laplace noise on a sampled count, in sampled clients."""
        return 1 / (amplified_epsilon(self.epsilon, self.rate) if self.amplified else self.epsilon)

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]. Variance per bucket: x (1 - rate) / rate + 2 (noise_scale / rate)^2."""
        from pydp.algorithms.numerical_mechanisms import LaplaceMechanism  # optional: extra `bench`

        add_noise = LaplaceMechanism(1 / self.noise_scale, 1.0).add_noise
        sampled = sample_counts(counts, self.rate, generator).astype(np.float64)
        return np.array([add_noise(value) for value in sampled.tolist()]) / self.rate


@dataclass(frozen=True)
class HadamardResponse(SampledMechanism):
    """Local differential privacy by the Hadamard response (Acharya, Sun and Zhang 2019).

    Each sampled client sends one of K = 2^ceil(log2(B + 1)) outputs, K the order of a Hadamard matrix. A client with
    item x sends an output with sign +1 in row x + 1 with probability e^epsilon / (1 + e^epsilon), else one with sign
    -1, uniform in both cases. Each report is pure epsilon by itself for replacing one user's item.
    """

    @property
    def name(self) -> str:
        """See HistogramMechanism.name."""
        return "local Hadamard"

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]: the transform of the reports' histogram at x + 1, times c / rate.

        c = (e^epsilon + 1) / (e^epsilon - 1). Variance given a sample of m clients, x of them in the bucket:
        (c^2 m - x) / rate^2.
        """
        sampled = sample_counts(counts, self.rate, generator)
        order = hadamard_order(len(counts))
        reports = hadamard_respond(np.repeat(np.arange(len(counts)), sampled), order, self.epsilon, generator)
        spectrum = walsh_hadamard(np.bincount(reports, minlength=order))
        return spectrum[1 : len(counts) + 1] / (math.tanh(self.epsilon / 2) * self.rate)


@dataclass(frozen=True)
class DirectEncoding(SampledMechanism):
    """Local differential privacy by k-ary randomised response (direct encoding in Wang et al. 2017).

    Each sampled client sends its own item with probability (e^epsilon - 1) / (e^epsilon + B - 1), else an item drawn
    uniformly among all B. Each report is pure epsilon by itself for replacing one user's item.
    """

    @property
    def name(self) -> str:
        """See HistogramMechanism.name."""
        return "local direct"

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]. Drawn from the counts: the reports of all clients have no other law.

        With t the probability of the own item and u = (1 - t) / B, the variance given a sample of m clients, x of them
        in the bucket: (x (t + u) (1 - t - u) + (m - x) u (1 - u)) / (t rate)^2.
        """
        sampled = sample_counts(counts, self.rate, generator)
        buckets, users = len(counts), int(sampled.sum())
        own = math.expm1(self.epsilon) / (math.exp(self.epsilon) + buckets - 1)
        kept = generator.binomial(sampled, own)
        others = generator.multinomial(users - int(kept.sum()), np.full(buckets, 1 / buckets))
        return np.asarray((kept + others - users * (1 - own) / buckets) / (own * self.rate))


@dataclass(frozen=True)
class UnaryEncoding(SampledMechanism):
    """Local differential privacy by one bit for every bucket, each flipped by itself (Wang et al. 2017).

    A client's own bit is 1 with probability p, every other bit with probability q. `optimised`: p = 1/2 and
    q = 1 / (e^epsilon + 1), of least variance for rare items. Otherwise symmetric, as in basic RAPPOR: p = 1 - q with
    q = 1 / (e^(epsilon / 2) + 1). Each report is pure epsilon by itself for replacing one user's item.
    """

    optimised: bool = True

    @property
    def name(self) -> str:
        """See HistogramMechanism.name."""
        return "local unary, optimised" if self.optimised else "local unary, symmetric"

    @property
    def bits(self) -> tuple[float, float]:
        """p and q: the probabilities of a 1 in the client's own bucket, and in any other."""
        other = 1 / (math.exp(self.epsilon if self.optimised else self.epsilon / 2) + 1)
        return (0.5 if self.optimised else 1 - other), other

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]. Drawn from the counts: all bits are independent.

        Variance given a sample of m clients, x in the bucket: (x p (1 - p) + (m - x) q (1 - q)) / ((p - q) rate)^2.
        """
        sampled = sample_counts(counts, self.rate, generator)
        users, (own, other) = int(sampled.sum()), self.bits
        ones = generator.binomial(sampled, own) + generator.binomial(users - sampled, other)
        return np.asarray((ones - users * other) / ((own - other) * self.rate))


def hadamard_order(buckets: int) -> int:
    """K, the smallest power of two above the number of buckets. (Row 0 of the matrix has no negative output.)"""
    return 1 << buckets.bit_length()


def hadamard_respond(items: NDArray[np.int64], order: int, epsilon: float, generator: Generator) -> NDArray[np.int64]:
    """One output in 0..order-1 for each client, int64[m], given the items int64[m].

    The sign at (row, output) is -1 to the number of bits that both have set. Flipping the lowest bit of the row in an
    output maps the outputs of one sign one to one to those of the other.
    """
    rows = items + 1
    outputs = generator.integers(order, size=len(items))
    negative = generator.random(len(items)) >= 1 / (1 + math.exp(-epsilon))
    wrong = (np.bitwise_count(outputs & rows) & 1).astype(bool) != negative
    return np.where(wrong, outputs ^ (rows & -rows), outputs)


def walsh_hadamard(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """H v for the Sylvester-Hadamard matrix of order len(values), a power of two; exact integers."""
    out = values.astype(np.int64)
    step = 1
    while step < len(out):
        pairs = out.reshape(-1, 2, step)
        out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
        step *= 2
    return out


@dataclass(frozen=True)
class BernoulliShuffle(SampledMechanism):
    """The shuffle model: every client adds Bernoulli noise to every bucket (Balcer and Cheu 2020).

    Each of the m sampled clients sends its item and, with probability q for each bucket, one message more. The server
    sees m and the number of messages by bucket, subtracts m q and scales by 1 / rate. Adjacency: one client's item or
    nothing; a client without an item still sends noise. q is the least that is (epsilon, delta)-private by the exact
    divergence; Balcer and Cheu need `closed_form_messages`.

    zeroed: the paper's own analyser, with mirrored noise (1 - q for q). A bucket with at most m messages counts as
    empty. It is biased and leaves the truly empty buckets at exactly 0.
    """

    delta: float
    zeroed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.delta)

    @property
    def name(self) -> str:
        """See HistogramMechanism.name."""
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
        # sampled + users - noise messages arrived; users (1 - probability) of them are expected noise.
        return np.where(sampled > noise, sampled - noise + users * probability, 0.0) / self.rate


def shuffle_delta(users: int, probability: float, epsilon: float) -> float:
    """The exact delta at epsilon of Bin(users, probability) against the same shifted by one, in the worse direction.

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
    """The least q at which the noise of m users gives (epsilon, delta), rounded up by at most 1e-9 of itself.

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
    """P[Bin(users, probability) >= value]."""
    if value <= 0:
        return 1.0
    return float(bdtrc(value - 1, users, probability)) if value <= users else 0.0


def _at_most(value: int, users: int, probability: float) -> float:
    """P[Bin(users, probability) <= value]."""
    if value < 0:
        return 0.0
    return float(bdtr(value, users, probability)) if value < users else 1.0


def check_rate(rate: float) -> float:
    """Returns the rate. Raises RequestError unless 0 < rate <= 1 (NaN is not): with noise all clients may report."""
    if not 0 < rate <= 1:
        raise RequestError(f"rate: must be a probability > 0, got {rate}; give the share of clients to sample")
    return rate


def sample_counts(counts: NDArray[np.int64], rate: float, generator: Generator) -> NDArray[np.int64]:
    """Counts int64[B] of the sampled clients: each client of a bucket independently with probability rate."""
    return generator.binomial(counts, rate).astype(np.int64, copy=False)


def amplified_epsilon(epsilon: float, rate: float) -> float:
    """The epsilon that a mechanism may spend on a secret Poisson sample to be epsilon-private for the population.

    ln(1 + (e^epsilon - 1) / rate), add or remove one user (Li, Qardaji and Su 2012; Balle, Barthe and Gaboardi 2020).
    """
    return math.log1p(math.expm1(epsilon) / rate)
