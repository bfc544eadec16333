"""Training data: squares on simulated worlds, what was counted around them, and how many users are in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.counts import NoisyGrid
from sfumato.transforms.ranges.networks.cascade import sample_world
from sfumato.transforms.ranges.networks.features import Surroundings
from sfumato.transforms.ranges.table import Table

_STRETCH = 0.25  # a world is wider or narrower by up to e^0.25: cities have more scales than a tree of halves


@dataclass(frozen=True)
class Examples:
    """Squares: inputs float32[q, INPUTS], own count, its deviation (see Surroundings), true users, float32[q] each."""

    inputs: NDArray[np.float32]
    own: NDArray[np.float32]
    deviation: NDArray[np.float32]
    users: NDArray[np.float32]

    @property
    def columns(self) -> tuple[NDArray[np.float32], ...]:
        """Inputs, own, deviation, users."""
        return self.inputs, self.own, self.deviation, self.users

    @classmethod
    def of(cls, parts: list[Examples]) -> Examples:
        """All of several."""
        return cls(*(np.concatenate(column) for column in zip(*(one.columns for one in parts), strict=True)))


class World:
    """Users of the cells of a world, float64[rows, columns], spread over a field of `side` base cells.

    It is `stretch` times as wide and tall as the field, and its corner lies at `origin`.
    """

    def __init__(self, users: NDArray[np.float64], side: int, stretch: float, origin: tuple[float, float]):
        rows, columns = users.shape
        self._table = Table(np.arange(columns + 1), np.arange(rows + 1), users)
        self._chances = np.cumsum(users.ravel())
        self._columns = columns
        self._origin = origin
        self._cell = stretch * side / columns, stretch * side / rows

    def sum(self, boxes: Boxes) -> NDArray[np.float64]:
        """Users of boxes of the field, float64[q]."""
        (left, top), (width, height) = self._origin, self._cell
        x0, x1 = (boxes.x0 - left) / width, (boxes.x1 - left) / width
        return self._table.sum(Boxes(x0, (boxes.y0 - top) / height, x1, (boxes.y1 - top) / height))

    def places(self, count: int, rng: Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where users are, drawn at random: x and y in base cells of the field, in it or outside."""
        at = np.searchsorted(self._chances, rng.random(count) * self._chances[-1], side="right")
        row, column = np.divmod(np.minimum(at, len(self._chances) - 1), self._columns)
        (left, top), (width, height) = self._origin, self._cell
        return left + (column + rng.random(count)) * width, top + (row + rng.random(count)) * height


@dataclass(frozen=True)
class Squares:
    """How squares are asked for: sides from low to high, in base cells, (columns, rows) each.

    workload: boxes, in base cells, that stand for those to come; None: squares about people, anywhere alike.
    """

    low: tuple[float, float]
    high: tuple[float, float]
    workload: Boxes | None = None

    def draw(self, world: World, side: int, count: int, rng: Generator) -> Boxes:
        """`count` squares, or fewer: those whose centres lie in the field."""
        if self.workload is not None:
            at, asked = rng.integers(len(self.workload), size=count), self.workload
            return Boxes(asked.x0[at], asked.y0[at], asked.x1[at], asked.y1[at])
        x, y = world.places(count, rng)
        inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
        if not inside.any():  # of few people all may live beyond the field: then anywhere
            (x, y), inside = side * rng.random((2, count)), np.ones(count, dtype=bool)
        scale = (self.high[0] / self.low[0]) ** rng.random(int(inside.sum()))
        return Boxes.around(x[inside], y[inside], scale * self.low[0], scale * self.low[1])


def examples(
    grid: NoisyGrid, users: float, smoothing: float, squares: Squares, worlds: int, count: int, rng: Generator
) -> Examples:
    """Of several worlds, `count` squares each, half of them under other noise: see `sample_world`.

    A world is laid askew over the grid that counts it: people flock together across the borders of cells too.
    """
    parts = []
    rows, columns = grid.users.shape
    cells = Boxes.between(grid.x_edges, grid.y_edges)
    for _ in range(worlds):
        expected = sample_world(grid, users, rng)
        stretch = float(np.exp(rng.uniform(-_STRETCH, _STRETCH)))
        middle = grid.side / 2 * (1 - stretch)
        origin = middle + float(rng.random()) * grid.side / columns, middle + float(rng.random()) * grid.side / rows
        held = rng.poisson(expected).astype(np.float64)
        if not held.any():
            held[np.unravel_index(int(expected.argmax()), held.shape)] = 1.0
        world = World(held, grid.side, stretch, origin)
        counted = world.sum(cells).reshape(rows, columns)
        for _ in range(2):
            noise = rng.laplace(scale=grid.noise_stddev / np.sqrt(2), size=counted.shape)
            around = Surroundings(NoisyGrid(grid.x_edges, grid.y_edges, counted + noise, grid.noise_stddev), smoothing)
            boxes = squares.draw(world, grid.side, count // 2, rng)
            parts.append(Examples(*around.of(boxes), world.sum(boxes).astype(np.float32)))
    return Examples.of(parts)
