"""What the server of a heatmap knows between sub-queries, and what it asks and publishes. Nothing here is raw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.guarantee import Population, SubQuery
from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.secagg.encodings import Encoding
from sfumato.transforms.secagg.shards import ShardQuery

EVERYTHING = math.inf


@dataclass(frozen=True)
class Question:
    """What clients are to send next, and the epsilon it may cost; EVERYTHING spends all that remains."""

    encoding: Encoding
    epsilon: float


@dataclass(frozen=True)
class Answer:
    """A sub-query's noisy sums, float64[length], in users, for the entries of its encoding."""

    encoding: Encoding
    counts: NDArray[np.float64]
    spent: SubQuery


@dataclass(frozen=True)
class HeatmapState:
    """What the server knows between sub-queries. query is None when all is done.

    unit: what a user's weights sum to (1 for one location a user). noisy_sums: sums that carry noise of their own and
    are added up: the shards, or one where the noise is central.
    """

    population: Population
    cohort: Cohort
    budget: Budget
    unit: int
    noisy_sums: int
    query: ShardQuery | None = None
    answers: tuple[Answer, ...] = ()

    def noise_stddev(self, epsilon: float, sensitivity: int = 1) -> float:
        """Standard deviation, in users, of an entry's sum over all shards at this epsilon (Eq. 5)."""
        one = discrete_laplace_stddev(epsilon, sensitivity * self.unit) / self.unit
        return math.sqrt(self.noisy_sums) * one


@dataclass(frozen=True)
class Estimate:
    """A method's map: users float64[T] for the entries of a tree, and their standard deviations float64[T]."""

    tree: Tree
    counts: NDArray[np.float64]
    stddev: NDArray[np.float64]
