"""Small models for tests of answers and pages, and an oracle that adds cell by cell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Field
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges.field_counts import NoisyGrid, strip_edges
from sfumato.transforms.ranges.model import GridModel, RangeModel
from tests.seeds import seeded_rng

REGION = Region(-122.52, 37.70, -122.35, 37.83)
FIELD = Field(Grid(REGION, 12))


def grid_model(cells: float = 100.0, seed: int = 3, epsilon: float = 0.5) -> RangeModel:
    """A noisy grid of a made-up city of three centres, its cells about so many base cells wide, and twice as high."""
    rng = seeded_rng(seed)
    x_edges, y_edges = strip_edges(FIELD.side, cells), strip_edges(FIELD.side, 2 * cells)
    x, y = (x_edges[1:] + x_edges[:-1]) / 2, (y_edges[1:] + y_edges[:-1]) / 2
    users = np.zeros((len(y), len(x)))
    for cx, cy, spread, weight in ((1400, 1500, 300, 90.0), (2700, 2300, 500, 40.0), (1900, 3300, 200, 60.0)):
        users += weight * np.exp(-((x[None, :] - cx) ** 2 + (y[:, None] - cy) ** 2) / (2 * spread**2))
    noise = np.rint(rng.laplace(0, 1 / epsilon, users.shape))
    counts = rng.poisson(users * (cells / 100) ** 2) + noise
    grid = NoisyGrid(x_edges, y_edges, counts.astype(np.float64), float(np.sqrt(2) / epsilon))
    return RangeModel(FIELD, GridModel(grid), "grid", epsilon)


def some_squares(n: int, seed: int = 5) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Longitudes, latitudes and sides of squares within, across and beyond the region's border."""
    rng = seeded_rng(seed)
    wide, tall = REGION.east - REGION.west, REGION.north - REGION.south
    x = REGION.west + rng.uniform(-0.2, 1.2, n) * wide
    y = REGION.south + rng.uniform(-0.2, 1.2, n) * tall
    return x, y, 10 ** rng.uniform(1, 4.3, n)
