"""How users are spread inside cells that no sub-query split, learned from the families of cells that it did. Pure.

Users are independent draws from a density. Where a node is split further, the density's shares of its children are a
quarter each, plus a contrast whose expected energy is rho, evenly in all three directions (`contrasts`). rho falls with
the users T of the family: log rho = a + b log(T / 100), at most log 0.74. Each level has its own a and b, which start
from those of the level above. Below the finest known level, the last a and b continue.

A family's measured energy has the expectation rho (T^2 - T) + 3/4 T + noise: the spread of the density, of a finite
sample, and of the privacy noise. Gamma quasi-likelihood gives a and b. It needs the expectation alone to be right,
whatever the distribution of energies.

Source: McCullagh and Nelder (1989), Generalized Linear Models, chapter 9 (quasi-likelihood).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.posterior.contrasts import ROUGHNESS
from sfumato.transforms.heatmap.posterior.full_tree import by_family
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts

Floats = NDArray[np.float64]
_LEVELS_BELOW = 12  # of a leaf; deeper levels are like the last
_USERS = 100.0  # T at which rho is exp(a)
_LARGEST_LOG = float(np.log(ROUGHNESS[-1]))
_FIRST_LAW = np.array([np.log(0.1), -0.4])
_CHANGE = np.array([0.5, 0.1])  # standard deviation of a and of b from one level to the next
_DISPERSION = 4.0  # of energies about their expectation, relative to independent normal contrasts
_STEPS = 12  # of Fisher scoring


@dataclass(frozen=True)
class WithinCells:
    """The spread of users inside the n leaves of a full tree, in the order of its entries.

    Attributes:
        users: float64[n], expected users, at least 0.
        squared: float64[n], expected square of the users.
        roughness: float64[n, levels], the expected rho of the families one level below the leaf, two levels, and so on.
        node_users: by level and node, expected users; a node has the sum of its leaves.
        energy: by level, of each family of measured nodes: the expected energy of its users' contrasts, without noise.
            The root's level has none.
    """

    users: Floats
    squared: Floats
    roughness: Floats
    node_users: list[Floats]
    energy: list[Floats]


def learn_within_cells(unbiased: UnbiasedCounts, expected: Floats, variance: Floats) -> WithinCells:
    """Learns the spread inside leaves from the families of their tree.

    Args:
        unbiased: users of the nodes without shrinkage.
        expected: float64[leaves], posterior users of the leaves; negative ones count as 0.
        variance: float64[leaves], of the errors of these.
    """
    full = unbiased.full
    positive = np.maximum(expected, 0.0)
    users = full.sums(full.by_level(positive))
    node_variance = unbiased.node_variances()
    law, laws = _FIRST_LAW, [_FIRST_LAW]  # by level of the parents
    energy = [np.zeros(0)]
    for level in range(1, len(full.codes)):
        parents = full.parents[level]
        measured = by_family(unbiased.measured_variance[level])
        part = measured / measured.sum(axis=1, keepdims=True)
        contrast = by_family(unbiased.users[level]) - unbiased.users[level - 1][parents][:, None] / 4
        noise = (measured * (1 - part)).sum(axis=1)
        noise += ((part - 0.25) ** 2).sum(axis=1) * node_variance[level - 1][parents]
        law = _fit(law, users[level - 1][parents], (contrast**2).sum(axis=1), noise)
        laws.append(law)
        many = users[level - 1][parents]
        energy.append(_rho(law, many) * np.maximum(many**2 - many, 0.0) + 0.75 * many)
    squared = positive**2 + np.maximum(variance, 0.0)
    return WithinCells(positive, squared, _roughness(1 + full.leaf_levels, positive, np.array(laws)), users, energy)


def _fit(before: Floats, users: Floats, energy: Floats, noise: Floats) -> Floats:
    """The a and b of a level's families, float64[2], by Fisher scoring from those of the level above."""
    many = users > 1
    users, energy, noise = users[many], energy[many], noise[many]
    x = np.stack([np.ones_like(users), np.log(users / _USERS)])
    law = before
    for _ in range(_STEPS):
        rho = np.exp(np.minimum(law @ x, _LARGEST_LOG))
        signal = rho * (users**2 - users)
        expected = signal + 0.75 * users + noise
        weight = signal / expected
        score = x @ (weight * (energy - expected) / expected) / _DISPERSION - (law - before) / _CHANGE**2
        information = (x * weight**2) @ x.T / _DISPERSION + np.diag(1 / _CHANGE**2)
        law = law + np.clip(np.linalg.solve(information, score), -1, 1)
    return law


def _rho(law: Floats, users: Floats) -> Floats:
    """The roughness of families of some users, float64[n], by laws float64[2] or float64[2, n]."""
    return np.asarray(np.exp(np.minimum(law[0] + law[1] * np.log(np.maximum(users, 1.0) / _USERS), _LARGEST_LOG)))


def _roughness(level: NDArray[np.int64], users: Floats, laws: Floats) -> Floats:
    """rho of families of these levels and users, one level further down, and so on: float64[n, _LEVELS_BELOW]."""
    found = []
    for step in range(_LEVELS_BELOW):
        law = laws[np.minimum(level + step, len(laws) - 1)]
        rho = _rho(law.T, users)
        users = users * (1 + 4 * rho) / 4  # of the child of an average user
        found.append(rho)
    return np.stack(found, axis=1)
