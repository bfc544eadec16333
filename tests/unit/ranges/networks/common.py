"""Made-up people on small grids, exact and counted with noise."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from sfumato.transforms.ranges.field_counts import NoisyGrid
from tests.seeds import seeded_rng

CELL = 8  # base cells along a side of the cells of `counted`


def clumped(side: int, clumps: int, users: int, spread: float, seed: int | Generator) -> np.ndarray:
    """Users of side x side cells, in clumps of very different sizes: float64[side, side]."""
    generator = seeded_rng(seed) if isinstance(seed, int) else seed
    at, weight = generator.uniform(0, side, (clumps, 2)), generator.pareto(1.5, clumps) + 0.1
    own = generator.choice(clumps, users, p=weight / weight.sum())
    y, x = ((at[own] + generator.normal(0, spread, (users, 2))) % side).T
    return np.histogram2d(y, x, bins=side, range=[[0, side]] * 2)[0]


def counted(users: np.ndarray, noise: float, seed: int | Generator = 2, cell: int = CELL) -> NoisyGrid:
    """The cells' counts with Laplace noise of this deviation. The field is as wide as high only if `users` is."""
    rows, columns = users.shape
    generator = seeded_rng(seed) if isinstance(seed, int) else seed
    drawn = generator.laplace(scale=noise / np.sqrt(2), size=users.shape)
    return NoisyGrid(np.arange(columns + 1) * cell, np.arange(rows + 1) * cell, users + drawn, noise)


def coarse(users: np.ndarray, times: int) -> np.ndarray:
    """Sums of times x times cells."""
    rows, columns = users.shape
    return users.reshape(rows // times, times, columns // times, times).sum(axis=(1, 3))
