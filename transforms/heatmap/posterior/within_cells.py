"""How users are spread inside cells that no sub-query split, learned from the families of cells that it did. Pure.

Users are independent draws from a density. Where a node is split further, the density's shares of its children are a
quarter each, plus a slope, plus a contrast whose expected energy is rho, evenly in all three directions (`contrasts`).

- The slope continues a part of the gradient between neighbours. The part is learned as in `inference`.
- rho falls with the users T of the family: log rho = a + b log(T / 100), at most log 0.74. Each level has its own a and
  b, which start from those of the level above. A family's measured energy has the expectation
  rho (T^2 - T) + 3/4 T + noise: the spread of the density, of a finite sample, and of the privacy noise. Gamma
  quasi-likelihood gives a and b. It needs the expectation alone to be right, whatever the distribution of energies.
- Below the finest known level, the last a and b continue.

Source: McCullagh and Nelder (1989), Generalized Linear Models, chapter 9 (quasi-likelihood).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.posterior.contrasts import ROUGHNESS, SIGNAL
from sfumato.transforms.heatmap.posterior.full_tree import EAST, SOUTH, by_family
from sfumato.transforms.heatmap.posterior.inference import predict_contrasts
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
        east, south: float64[n], by how much the density grows over the leaf's width and height, relative to its mean.
            Their sizes add up to at most 2, so the density is nowhere negative.
        roughness: float64[n, levels], the expected rho of the families one level below the leaf, two levels, and so on.
    """

    users: Floats
    squared: Floats
    east: Floats
    south: Floats
    roughness: Floats

    def shares(self, leaves: NDArray[np.int64], area: Floats, east: Floats, south: Floats) -> Floats:
        """The expected share of a leaf's users in a part of it.

        Args:
            leaves: int64[p], the leaf of each part.
            area: float64[p], the part's share of the leaf's area.
            east, south: float64[p], from the leaf's centre to the part's centroid, in widths and heights of the leaf.
        """
        return np.clip(area * (1 + self.east[leaves] * east + self.south[leaves] * south), 0.0, 1.0)


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
    slope, law = np.zeros(2), _FIRST_LAW
    slopes, laws = [], []  # by level of the family: the slope's part for weak and for strong families; a and b
    for level in range(1, len(full.codes)):
        parents = full.parents[level]
        total = users[level - 1][parents]
        measured = by_family(unbiased.measured_variance[level])
        part = measured / measured.sum(axis=1, keepdims=True)
        contrast = by_family(unbiased.users[level]) - unbiased.users[level - 1][parents][:, None] / 4
        noise = (measured * (1 - part)).sum(axis=1)
        noise += ((part - 0.25) ** 2).sum(axis=1) * node_variance[level - 1][parents]
        scale = np.maximum(noise, 1e-12) + 0.75 * total
        bases = [full.gradient(level - 1, parents, users)] if level >= 2 else []
        strong = _strong(total, noise)
        predicted, found = predict_contrasts(bases, contrast, 1 / (scale + (0.05 * total) ** 2 + 1e-9), strong, total)
        slope = np.where(np.isnan(found), slope, np.minimum(found, 1.0))
        law = _fit(law, total, ((contrast - predicted) ** 2).sum(axis=1), noise)
        slopes.append(slope)
        laws.append(law)
    return _leaves(unbiased, positive, variance, users, np.array(slopes or [slope]), np.array(laws or [law]))


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


def _strong(users: Floats, noise: Floats) -> NDArray[np.bool_]:
    return np.asarray(users > SIGNAL * np.sqrt(noise + 0.75 * users))


def _roughness(level: NDArray[np.int64], users: Floats, laws: Floats) -> Floats:
    """rho one level below leaves of these levels and users, two levels below, and so on: float64[n, _LEVELS_BELOW]."""
    found = []
    for step in range(_LEVELS_BELOW):
        law = laws[np.minimum(level + step, len(laws) - 1)]
        rho = np.exp(np.minimum(law[:, 0] + law[:, 1] * np.log(np.maximum(users, 1.0) / _USERS), _LARGEST_LOG))
        users = users * (1 + 4 * rho) / 4  # of the child of an average user
        found.append(rho)
    return np.stack(found, axis=1)


def _leaves(
    unbiased: UnbiasedCounts, expected: Floats, variance: Floats, users: list[Floats], slopes: Floats, laws: Floats
) -> WithinCells:
    full = unbiased.full
    strong = _strong(expected, unbiased.leaf_variances()).astype(np.int64)
    level = np.repeat(np.arange(len(full.leaves)), [int(leaf.sum()) for leaf in full.leaves])
    east, south = [], []
    for at, leaf in enumerate(full.leaves):
        children = full.gradient(at, np.flatnonzero(leaf), users)
        east.append(children @ EAST)
        south.append(children @ SOUTH)
    # A density T (1 + g x) over x in -1/2..1/2 has g T / 8 more in the eastern half than half of T.
    part = slopes[np.minimum(level, len(slopes) - 1), strong] / np.maximum(expected, 1e-9)
    growth = np.stack([4 * np.concatenate(east) * part, 4 * np.concatenate(south) * part])
    growth *= np.minimum(1.0, 2.0 / np.maximum(np.abs(growth).sum(axis=0), 1e-9))
    squared = expected**2 + np.maximum(variance, 0.0)
    return WithinCells(expected, squared, growth[0], growth[1], _roughness(level, expected, laws))
