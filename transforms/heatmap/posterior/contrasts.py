"""How four siblings differ: a prior learned from all families of a level, and what it leaves of noisy differences.

A family's contrast is its members' users less a quarter of their parent's T: three independent numbers. A family of
roughness rho has a contrast of expected energy (sum of squares) S = rho T^2, evenly in all directions; rho is one of
ROUGHNESS, from nearly even to all users in one child. Measured contrasts have a noise energy E on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUGHNESS = np.geomspace(1e-4, 0.74, 14)
LARGEST = 0.75  # roughness of a family all of whose users are in one child: (3/4)^2 + 3 (1/4)^2
FLAT = np.full(len(ROUGHNESS), 1 / len(ROUGHNESS))
SIGNAL = 4.0  # families whose T is so many deviations of their contrast's noise learn for themselves
_TRIALS, _PULL, _CARRY = 30, 4.0, 0.97
_MOST_FAMILIES = 1 << 14  # as many as weights are learned from: more would not change them


@dataclass(frozen=True)
class Weights:
    """How common each roughness is among the families of a level, of weak and of strong signal: float64[2, 14]."""

    values: NDArray[np.float64]

    def of(self, strong: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The weights for each family, float64[n, 14]."""
        return np.asarray(self.values[strong.astype(np.int64)])


class Learner:
    """Learns the weights level by level, from the root down: each level begins from what the one above has found.

    Families of strong and of weak signal (T above or below SIGNAL deviations) learn apart; the weak, which come later,
    begin from the strong.
    """

    def __init__(self) -> None:
        self._found: list[NDArray[np.float64] | None] = [None, None]

    def learn(self, likelihood: NDArray[np.float64], strong: NDArray[np.bool_]) -> Weights:
        """The weights of largest posterior for the likelihoods float64[n, 14] of a level's families (EM)."""
        for kind in (1, 0):
            of = likelihood[strong == bool(kind)]
            if len(of):
                begin = next((one for one in (self._found[kind], self._found[1 - kind]) if one is not None), FLAT)
                self._found[kind] = _learn(of, _CARRY * begin + (1 - _CARRY) * FLAT)
        weak, strong_ = (one if one is not None else other for one, other in (self._found, self._found[::-1]))
        return Weights(np.stack([FLAT if one is None else one for one in (weak, strong_)]))


def _learn(likelihood: NDArray[np.float64], begin: NDArray[np.float64]) -> NDArray[np.float64]:
    likelihood = likelihood[:: 1 + len(likelihood) // _MOST_FAMILIES]
    weights = begin
    for _ in range(_TRIALS):
        posterior = likelihood * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        weights = (posterior.sum(axis=0) + _PULL * begin) / (len(posterior) + _PULL)
    return weights


@dataclass(frozen=True)
class Energies:
    """For n families the energies of signal S and of noise E at each roughness: float64[n, 14] each."""

    signal: NDArray[np.float64]
    noise: NDArray[np.float64]

    @classmethod
    def of(
        cls, squared: NDArray[np.float64], users: NDArray[np.float64], noise: NDArray[np.float64], sampling: float
    ) -> Energies:
        """squared: T^2 or its expectation; users: T; noise: of the privacy noise; float64[n] each.

        sampling: what a user more adds to the energy because users are a sample; (0.75 - rho) of it shows in contrasts.
        """
        return cls(
            ROUGHNESS * squared[:, None],
            np.maximum(noise[:, None] + sampling * (LARGEST - ROUGHNESS) * users[:, None], 1e-9),
        )

    @property
    def kept(self) -> NDArray[np.float64]:
        """S / (S + E): what is left of a measured contrast."""
        return self.signal / (self.signal + self.noise)

    def likelihood(self, energy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of measured energies float64[n], up to a factor a family: those of three normal variates."""
        total = self.signal + self.noise
        logs = -1.5 * (np.log(total) + energy[:, None] / total)
        return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))

    def unknown(self) -> NDArray[np.float64]:
        """S E / (S + E): the energy that stays unknown once a contrast is measured."""
        return self.noise * self.kept


def project(children: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest points to rows float64[n, 4] that are >= 0 and add up to total, float64[n] >= 0."""
    falling = -np.sort(-children, axis=1)
    excess = (np.cumsum(falling, axis=1) - total[:, None]) / np.arange(1, 5)
    last = np.maximum((falling > excess).sum(axis=1), 1) - 1
    return np.asarray(np.maximum(children - excess[np.arange(len(children)), last][:, None], 0.0))
