"""Differences of four siblings: a prior learned from all families of a level, and shrinkage of noisy differences. Pure.

A family is the four children of a node. Its contrast is its members' users less a quarter of the parent's users T:
three independent numbers. The energy of a contrast is its sum of squares. A family of roughness rho has the expected
energy S = rho T^2, evenly in all directions. rho is one of ROUGHNESS, from nearly even to all users in one child.
A measured contrast has the energy E of the noise on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUGHNESS = np.geomspace(1e-4, 0.74, 14)
LARGEST = 0.75  # roughness of a family all of whose users are in one child: (3/4)^2 + 3 (1/4)^2
FLAT = np.full(len(ROUGHNESS), 1 / len(ROUGHNESS))
SIGNAL = 4.0  # deviations of the contrast's noise: a family with a larger T is strong
_ITERATIONS = 30  # of EM
_PULL = 4.0  # families that the weights of the level above count as
_CARRY = 0.97  # share of the weights that a level takes from the one above; the rest is flat
_MAX_FAMILIES = 1 << 14  # that weights are learned from: more would not change them


@dataclass(frozen=True)
class Weights:
    """The prior probabilities of each kind of family, for weak and for strong families of a level: float64[2, kinds].

    A kind is a roughness, or a roughness with more attributes.
    """

    values: NDArray[np.float64]

    def of_families(self, strong: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The weights for each family, float64[n, kinds]."""
        return np.asarray(self.values[strong.astype(np.int64)])


class Learner:
    """Learns the weights level by level, from the root down. Each level starts from the weights of the one above.

    Strong and weak families (T above or below SIGNAL deviations) have weights of their own. The first weak families
    start from the weights of the strong ones.

    prior: float64[kinds], the weights before any family is seen.
    """

    def __init__(self, prior: NDArray[np.float64] = FLAT) -> None:
        self._prior = prior
        self._found: list[NDArray[np.float64] | None] = [None, None]

    def learn(self, likelihood: NDArray[np.float64], strong: NDArray[np.bool_]) -> Weights:
        """The weights of largest posterior probability, by EM, for likelihoods float64[n, kinds] of n families."""
        for kind in (1, 0):
            of = likelihood[strong == bool(kind)]
            if len(of):
                begin = next(
                    (one for one in (self._found[kind], self._found[1 - kind]) if one is not None), self._prior
                )
                self._found[kind] = _learn(of, _CARRY * begin + (1 - _CARRY) * self._prior)
        weak, strong_ = (one if one is not None else other for one, other in (self._found, self._found[::-1]))
        return Weights(np.stack([self._prior if one is None else one for one in (weak, strong_)]))


def _learn(likelihood: NDArray[np.float64], begin: NDArray[np.float64]) -> NDArray[np.float64]:
    likelihood = likelihood[:: 1 + len(likelihood) // _MAX_FAMILIES]
    weights = begin
    for _ in range(_ITERATIONS):
        posterior = likelihood * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        weights = (posterior.sum(axis=0) + _PULL * begin) / (len(posterior) + _PULL)
    return weights


@dataclass(frozen=True)
class Energies:
    """The energies of signal S and of noise E of n families at each roughness: float64[n, 14] each."""

    signal: NDArray[np.float64]
    noise: NDArray[np.float64]

    @classmethod
    def from_users(
        cls, squared: NDArray[np.float64], users: NDArray[np.float64], noise: NDArray[np.float64], sampling: float
    ) -> Energies:
        """Energies of families.

        Args:
            squared: float64[n], T^2 or its expectation.
            users: float64[n], T.
            noise: float64[n], energy of the privacy noise.
            sampling: energy that each user adds because users are a sample; (0.75 - rho) of it shows in contrasts.
        """
        return cls(
            ROUGHNESS * squared[:, None],
            np.maximum(noise[:, None] + sampling * (LARGEST - ROUGHNESS) * users[:, None], 1e-9),
        )

    @property
    def kept(self) -> NDArray[np.float64]:
        """S / (S + E): the share of a measured contrast that shrinkage keeps."""
        return self.signal / (self.signal + self.noise)

    def likelihood(self, energy: NDArray[np.float64]) -> NDArray[np.float64]:
        """The likelihood of measured energies float64[n], up to a factor for each family: of three normal variates."""
        total = self.signal + self.noise
        logs = -1.5 * (np.log(total) + energy[:, None] / total)
        return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))

    def unknown(self) -> NDArray[np.float64]:
        """S E / (S + E): the energy that stays unknown after a measurement."""
        return self.noise * self.kept


def project(children: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest points to rows float64[n, 4] that are >= 0 and add up to `total`, float64[n] >= 0."""
    falling = -np.sort(-children, axis=1)
    excess = (np.cumsum(falling, axis=1) - total[:, None]) / np.arange(1, 5)
    last = np.maximum((falling > excess).sum(axis=1), 1) - 1
    return np.asarray(np.maximum(children - excess[np.arange(len(children)), last][:, None], 0.0))
