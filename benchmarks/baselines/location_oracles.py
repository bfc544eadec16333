"""Maps of one location a user without a trusted curator: shuffled noise messages, and reports by a frequency oracle.

Baselines of the table of trust models. No job offers them: `--trust` simulates sums of shards, not a shuffler.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.baselines.histogram_mechanisms import BernoulliShuffle, UnaryEncoding, message_rate
from sfumato.schemas.tree import Tree
from sfumato.transforms.statistics.bisection import bisect
from sfumato.transforms.statistics.posterior.full_tree import FullTree, NodeMeasurements
from sfumato.transforms.statistics.posterior.inference import infer


def shuffled_noise_shares(
    counts: NDArray[np.int64], epsilon: float, delta: float, generator: Generator
) -> NDArray[np.float64]:
    """The estimated share of every cell, float64[4^d], by cell code: noise messages for every cell (Balcer and Cheu).

    The estimator is the heatmap's, which shrinks what noise can explain. For the noise see `BernoulliShuffle`.
    """
    users, level = int(counts.sum()), (len(counts).bit_length() - 1) // 2
    rate = message_rate(users, epsilon, delta)
    noisy = BernoulliShuffle(1.0, epsilon, delta).estimate(counts, generator)
    return _shares({level: (noisy, np.full(len(noisy), users * rate * (1 - rate)))}, level, users)


def reported_shares(
    counts: NDArray[np.int64], epsilon: float, levels: int, generator: Generator
) -> NDArray[np.float64]:
    """The estimated share of every cell, float64[4^d], by cell code: one report a user, of epsilon-local privacy.

    Every user draws one of the first `levels` levels of the quadtree and reports their cell of that level by optimised
    unary encoding. So each user spends all of epsilon on one level. Cells below the last level are even.
    """
    users, depth = int(counts.sum()), (len(counts).bit_length() - 1) // 2
    found, left = {}, counts
    for level in range(1, levels + 1):
        group = generator.binomial(left, 1 / (levels - level + 1))
        left = left - group
        members, scale = int(group.sum()), users / max(int(group.sum()), 1)
        oracle = UnaryEncoding(1.0, epsilon)
        own, other = oracle.bits
        noisy = oracle.estimate(group.reshape(4**level, -1).sum(axis=1), generator) * scale
        variance = members * other * (1 - other) / (own - other) ** 2 * scale**2
        found[level] = noisy, np.full(len(noisy), variance)
    return _shares(found, depth, users)


def local_epsilon(users: int, epsilon: float, delta: float) -> float:
    """The largest epsilon of single reports whose shuffle is (epsilon, delta)-private, for replacing one user's report.

    Feldman, McMillan and Talwar (FOCS 2021, Theorem III.1), whatever the local randomiser: with e0 at most
    ln(n / (16 ln(2 / delta))), epsilon = ln(1 + tanh(e0 / 2) (8 sqrt(e^e0 ln(4 / delta) / n) + 8 e^e0 / n)).
    """

    def shuffled(local: float) -> float:
        growth = math.exp(local)
        spread = 8 * math.sqrt(growth * math.log(4 / delta) / users) + 8 * growth / users
        return math.log1p(math.tanh(local / 2) * spread)

    most = math.log(max(users / (16 * math.log(2 / delta)), 1.0))
    if most <= epsilon or shuffled(epsilon) > epsilon:
        return epsilon  # a shuffle never costs privacy
    return most if shuffled(most) <= epsilon else bisect(lambda one: shuffled(one) <= epsilon, epsilon, most, 60)[0]


def share_messages(users: int, modulus_bits: int, security: int = 40) -> int:
    """Messages for each entry of a vector, so that a shuffler's output shows sums alone, but for 2^-security.

    Each user splits each entry into random shares modulo 2^modulus_bits (Balle, Bell, Gascon and Nissim, *Improved
    summation from shuffling*, 2019; 19 users or more). With shares of noise in the entries, sums have the noise of a
    trusted curator.
    """
    return math.ceil(2 + (2 * security + modulus_bits) / (math.log2(users) - math.log2(math.e)))


def _shares(
    measured: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]], depth: int, users: int
) -> NDArray[np.float64]:
    """Shares of all cells of a depth, from noisy counts and their variances by level."""
    last = max(measured)
    full = FullTree.from_trees(Tree.uniform(last, last))
    weighted, weights = [], []
    for level in range(last + 1):
        nothing = np.zeros(4**level), np.full(4**level, np.inf)
        noisy, variance = measured.get(level, nothing)
        weighted.append(noisy / variance)
        weights.append(1 / variance)
    cells = np.maximum(infer(full, NodeMeasurements(weighted, weights), users, 0.0).users[last], 0.0)
    return np.repeat(cells / cells.sum(), 4 ** (depth - last)) / 4 ** (depth - last)
