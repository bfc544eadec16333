"""The noise of counts by its distribution: how much a cost buys, and how it is drawn.

A *cost* is what noisy counts take of a privacy budget, in the unit of their noise: an epsilon for discrete Laplace
noise, a rho for discrete Gaussian noise. Costs of sub-queries add up, in the same way for both (see `mechanism`). In
all of the code `cost` means either unit; `epsilon` and `rho` mean only themselves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.guarantee import TAIL_SUMS, NoiseKind, Trust
from sfumato.transforms.privacy.discrete_gaussian import (
    discrete_gaussian,
    discrete_gaussian_quantile,
    discrete_variance,
)
from sfumato.transforms.privacy.discrete_laplace import MIN_NOISE_EPSILON, discrete_laplace
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import (
    MAX_SIGMA,
    discrete_laplace_stddev,
    epsilon_for_delta,
    epsilon_for_stddev,
    gaussian_rho,
    noise_quantile,
    rho_for_delta,
    sigma_for_rho,
)

_BY_SERVERS = "added to the sums of all users by each of two servers; the noise of either gives the guarantee"


@dataclass(frozen=True)
class AdditiveNoise(ABC):
    """A distribution of noise. Its instances are those of NOISES.

    A sensitivity is the largest norm by which one user changes the counts.

    Attributes:
        NAME: of the option and the manifest.
        UNIT: of a cost: `epsilon` or `rho`.
        NORM: of one user's change of the counts, whose largest value is the sensitivity: 1 for L1, 2 for L2.
        NEEDS_DELTA: whether a release with this noise has a delta above 0.
        HAS_SHARES: whether clients can add this noise in shares.
        MECHANISMS: the manifest's text, by the party that adds the noise.
    """

    NAME: ClassVar[NoiseKind]
    UNIT: ClassVar[str]
    NORM: ClassVar[int]
    NEEDS_DELTA: ClassVar[bool]
    HAS_SHARES: ClassVar[bool]
    MECHANISMS: ClassVar[Mapping[Trust, str]]

    @abstractmethod
    def total(self, epsilon: float, delta: float) -> float:
        """Returns the largest cost of a complete release of epsilon and delta, which is above 0 if NEEDS_DELTA."""

    @abstractmethod
    def epsilon(self, cost: float, delta: float) -> float:
        """Returns the epsilon of a cost, at the delta of the complete release."""

    def laplace_epsilon(self, cost: float) -> float:
        """Returns the epsilon of as much Laplace noise in a count as a cost has."""
        return LAPLACE.cost(self.stddev(cost))

    @abstractmethod
    def stddev(self, cost: float, sensitivity: float = 1) -> float:
        """Returns the standard deviation of the noise of a cost."""

    @abstractmethod
    def cost(self, stddev: float, sensitivity: float = 1) -> float:
        """Returns the cost of noise of this standard deviation."""

    @abstractmethod
    def min_cost(self, sensitivity: float = 1) -> float:
        """Returns the smallest cost for which noise can be drawn."""

    @abstractmethod
    def quantile(self, cost: float, probability: float, sensitivity: float = 1) -> int:
        """Returns the least t >= 0 with P[Z > t] <= probability."""

    @abstractmethod
    def kurtosis(self, cost: float, sensitivity: float = 1) -> float:
        """Returns the excess kurtosis of a draw: 0 for a normal variable."""

    def tail_sums(self, sums: int) -> int:
        """Returns n such that the sum of n Laplace variables bounds the tails of a sum of `sums` draws of this."""
        return TAIL_SUMS[self.NAME](sums)

    @abstractmethod
    def draw(
        self, key: RunKey, label: str, streams: NDArray[np.uint64], count: int, cost: float, sensitivity: float = 1
    ) -> NDArray[np.int64]:
        """Draws noise, int64[s, count]. See `discrete_laplace.geometric` for the arguments."""


class PureNoise(AdditiveNoise):
    """Noise whose cost is an epsilon, without a delta."""

    UNIT: ClassVar[str] = "epsilon"
    NORM: ClassVar[int] = 1
    NEEDS_DELTA: ClassVar[bool] = False

    def total(self, epsilon: float, delta: float) -> float:
        return epsilon

    def epsilon(self, cost: float, delta: float) -> float:
        return cost

    def laplace_epsilon(self, cost: float) -> float:
        return cost


class LaplaceNoise(PureNoise):
    """Discrete Laplace noise. Its sensitivities are integers.

    >>> round(LAPLACE.stddev(cost=0.1), 2)
    14.14
    >>> LAPLACE.quantile(cost=0.1, probability=0.05)
    23
    """

    NAME: ClassVar[NoiseKind] = "laplace"
    HAS_SHARES: ClassVar[bool] = True
    MECHANISMS: ClassVar[Mapping[Trust, str]] = {
        Trust.SECAGG: "distributed discrete Laplace (Polya shares) over secure-aggregation shards",
        Trust.CENTRAL: "discrete Laplace, added once to the sums by a trusted curator",
        Trust.SPLIT: f"discrete Laplace, {_BY_SERVERS}",
    }

    def stddev(self, cost: float, sensitivity: float = 1) -> float:
        return discrete_laplace_stddev(cost, int(sensitivity))

    def cost(self, stddev: float, sensitivity: float = 1) -> float:
        return epsilon_for_stddev(stddev, int(sensitivity))

    def min_cost(self, sensitivity: float = 1) -> float:
        return MIN_NOISE_EPSILON * sensitivity

    def quantile(self, cost: float, probability: float, sensitivity: float = 1) -> int:
        return noise_quantile(cost, probability, int(sensitivity))

    def kurtosis(self, cost: float, sensitivity: float = 1) -> float:
        decay = math.exp(-cost / sensitivity)
        return (1 + 4 * decay + decay**2) / (2 * decay)  # 3 for a small cost, more for a large one

    def draw(
        self, key: RunKey, label: str, streams: NDArray[np.uint64], count: int, cost: float, sensitivity: float = 1
    ) -> NDArray[np.int64]:
        return discrete_laplace(key, label, streams, count, cost, int(sensitivity))


class GaussianNoise(AdditiveNoise):
    """Discrete Gaussian noise.

    >>> round(GAUSSIAN.stddev(cost=0.005), 2)
    10.0
    >>> GAUSSIAN.quantile(cost=0.005, probability=0.05)
    16
    """

    NAME: ClassVar[NoiseKind] = "gaussian"
    UNIT: ClassVar[str] = "rho"
    NORM: ClassVar[int] = 2
    NEEDS_DELTA: ClassVar[bool] = True
    HAS_SHARES: ClassVar[bool] = False
    MECHANISMS: ClassVar[Mapping[Trust, str]] = {
        Trust.SECAGG: "discrete Gaussian, added to the sums of each secure-aggregation shard; a user is in one shard, "
        "whose noise gives the guarantee without that of the others",
        Trust.CENTRAL: "discrete Gaussian, added once to the sums by a trusted curator",
        Trust.SPLIT: f"discrete Gaussian, {_BY_SERVERS}",
    }

    def total(self, epsilon: float, delta: float) -> float:
        return rho_for_delta(epsilon, delta)

    def epsilon(self, cost: float, delta: float) -> float:
        return epsilon_for_delta(cost, delta)

    def stddev(self, cost: float, sensitivity: float = 1) -> float:
        return math.sqrt(discrete_variance(sigma_for_rho(cost, sensitivity)))

    def cost(self, stddev: float, sensitivity: float = 1) -> float:
        return gaussian_rho(stddev, sensitivity)  # sigma is at least the standard deviation

    def min_cost(self, sensitivity: float = 1) -> float:
        return gaussian_rho(MAX_SIGMA / 2, sensitivity)

    def quantile(self, cost: float, probability: float, sensitivity: float = 1) -> int:
        return max(0, discrete_gaussian_quantile(sigma_for_rho(cost, sensitivity), probability))

    def kurtosis(self, cost: float, sensitivity: float = 1) -> float:
        return 0.0

    def draw(
        self, key: RunKey, label: str, streams: NDArray[np.uint64], count: int, cost: float, sensitivity: float = 1
    ) -> NDArray[np.int64]:
        return discrete_gaussian(key, label, streams, count, sigma_for_rho(cost, sensitivity))


LAPLACE, GAUSSIAN = LaplaceNoise(), GaussianNoise()
NOISES: Mapping[NoiseKind, AdditiveNoise] = {kind.NAME: kind for kind in (LAPLACE, GAUSSIAN)}
# From these `auto` chooses. A new kind stays outside: it could change the noise of requests that do not name it.
AUTO_NOISES: tuple[AdditiveNoise, ...] = (LAPLACE, GAUSSIAN)
