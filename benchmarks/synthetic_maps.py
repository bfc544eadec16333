"""Seven kinds of made-up maps: constants of the estimator are chosen on these, never on the maps it is judged by."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.region import interleave
from sfumato.transforms.ranges.field_counts import ExactCounts
from sfumato.transforms.synth.landscape import city_rasters

KINDS = ("city", "even", "mixed", "spiky", "blobs", "points", "roads")
_USERS = 4e6


def synthetic_map(kind: str, seed: int = 1) -> NDArray[np.int64]:
    """Users on a grid, int64[512, 512], about four million. Raises KeyError for an unknown kind."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    density = {"city": _city, "blobs": _blobs, "points": _points, "roads": _roads}.get(kind, _cascade(kind))(rng)
    return rng.poisson(density / density.sum() * _USERS)


def draw_users(density: NDArray[np.floating], depth: int, users: int, generator: Generator) -> ExactCounts:
    """Draws users from a density, evenly inside its cells.

    Args:
        density: float[2^d, 2^d], row 0 in the north; it need not sum to 1.
        depth: of the counts.
        users: how many.
        generator: of the draws.
    """
    probabilities = np.cumsum(density.ravel(), dtype=np.float64)
    at = np.searchsorted(probabilities, generator.random(users) * probabilities[-1], side="right")
    y, x = np.divmod(np.minimum(at, len(probabilities) - 1), density.shape[1])
    scale = (1 << depth) / density.shape[1]
    x, y = (((axis + generator.random(users)) * scale).astype(np.uint32) for axis in (x, y))
    return ExactCounts.from_codes(depth, interleave(x, y))


def _cascade(kind: str):  # type: ignore[no-untyped-def]
    """Shares of four quarters drawn from a Dirichlet distribution, nine times over: even to spiky."""
    concentration, growth = {"even": (3.0, 1 / 3), "mixed": (0.8, 1 / 3), "spiky": (0.25, 1 / 6)}.get(kind, (1.0, 0.0))

    def make(rng: np.random.Generator) -> NDArray[np.float64]:
        cells = np.ones((1, 1))
        for level in range(9):
            side = len(cells)
            parts = rng.gamma(concentration * (1 + growth * level), 1, (side, side, 2, 2))
            parts /= parts.sum(axis=(2, 3), keepdims=True)
            cells = (cells[:, :, None, None] * parts).transpose(0, 2, 1, 3).reshape(2 * side, 2 * side)
        return cells

    return make


def _city(rng: np.random.Generator) -> NDArray[np.float64]:
    """The project's own synthetic city: blocks, parks, a river."""
    return np.asarray(city_rasters(512)[0], dtype=np.float64)


def _blobs(rng: np.random.Generator) -> NDArray[np.float64]:
    """A mixture of 25 normal distributions of different widths."""
    y, x = np.mgrid[0:512, 0:512] / 512
    density = np.zeros((512, 512))
    for _ in range(25):
        (cx, cy), width = rng.random(2), rng.uniform(0.01, 0.15)
        density += rng.gamma(0.7) * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 2 / width**2) / width**1.2
    return density


def _points(rng: np.random.Generator) -> NDArray[np.float64]:
    """4,000 single cells around 40 centres, with Zipf's sizes, in an empty land."""
    sizes = 1 / np.arange(1, 41)
    centre = rng.random((40, 2))[rng.choice(40, 4000, p=sizes / sizes.sum())]
    cells = (np.clip(centre + rng.normal(0, 0.03, (4000, 2)), 0, 0.9999) * 512).astype(int)
    density = np.zeros((512, 512))
    np.add.at(density, tuple(cells.T), rng.permutation(1 / np.arange(1, 4001)))
    return density


def _roads(rng: np.random.Generator) -> NDArray[np.float64]:
    """120 straight lines, most of them along the grid, and hardly anybody between them."""
    density = np.full((512, 512), 1e-4)
    for _ in range(120):
        angle = rng.choice([0.0, np.pi / 2, rng.random() * np.pi])
        along = np.arange(0, rng.uniform(0.1, 0.9) * 512, 0.5)
        line = (rng.random(2) * 512 + np.outer(along, [np.cos(angle), np.sin(angle)])).astype(int)
        line = line[((line >= 0) & (line < 512)).all(axis=1)]
        np.add.at(density, tuple(line.T), rng.gamma(0.5))
    return density
