"""Local differential privacy: the Hadamard response (Acharya, Sun and Zhang 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.transforms.histogram.peers.base import check_rate, sample_counts
from sfumato.transforms.privacy.budget import check_epsilon


@dataclass(frozen=True)
class HadamardResponse:
    """Each sampled client sends one of K = 2^ceil(log2(B + 1)) outputs, K the order of a Hadamard matrix.

    A client with item x sends, with probability e^epsilon / (1 + e^epsilon), an output drawn uniformly from those with
    sign +1 in row x + 1, else from the others (row 0 has no others). Pure epsilon for each report by itself, whoever
    sees it; adjacency: one user's item replaced.
    """

    rate: float
    epsilon: float

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_epsilon("epsilon", self.epsilon)

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "local Hadamard"

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]: the transform of the reports' histogram at x + 1, times c / rate.

        c = (e^epsilon + 1) / (e^epsilon - 1). Variance given a sample of m clients, x of them in the bucket:
        (c^2 m - x) / rate^2.
        """
        sampled = sample_counts(counts, self.rate, generator)
        order = hadamard_order(len(counts))
        reports = respond(np.repeat(np.arange(len(counts)), sampled), order, self.epsilon, generator)
        spectrum = walsh_hadamard(np.bincount(reports, minlength=order))
        return spectrum[1 : len(counts) + 1] / (math.tanh(self.epsilon / 2) * self.rate)


def hadamard_order(buckets: int) -> int:
    """K, the smallest power of two above the number of buckets: row 0 of the matrix tells nothing."""
    return 1 << buckets.bit_length()


def respond(items: NDArray[np.int64], order: int, epsilon: float, generator: Generator) -> NDArray[np.int64]:
    """One output in 0..order-1 for each client, int64[m], given the items int64[m].

    The sign at (row, output) is -1 to the number of bits that both have set. An output of the wrong sign is mended by
    turning the lowest bit of the row, which maps the outputs of one sign one to one to those of the other.
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
