"""Training data of a local network: squares in simulated worlds, their inputs, and their true users. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.networks.cascade import sample_world
from sfumato.transforms.ranges.networks.features import Surroundings
from sfumato.transforms.ranges.noisy_counts import NoisyGrid
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable

_STRETCH = 0.25  # a world is scaled by a factor up to e^0.25, because cities have more scales than a tree of halves


@dataclass(frozen=True)
class Examples:
    """Training examples, one a square.

    Attributes:
        inputs: float32[q, INPUTS]; see `Surroundings.features`.
        own: the noisy count of the square itself, float32[q].
        deviation: standard deviation of its noise, float32[q].
        users: the true users, float32[q].
    """

    inputs: NDArray[np.float32]
    own: NDArray[np.float32]
    deviation: NDArray[np.float32]
    users: NDArray[np.float32]

    @property
    def columns(self) -> tuple[NDArray[np.float32], ...]:
        """Inputs, own, deviation, users."""
        return self.inputs, self.own, self.deviation, self.users

    @classmethod
    def concatenated(cls, parts: list[Examples]) -> Examples:
        """Joins parts."""
        return cls(*(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)))


class World:
    """A simulated population around a field.

    Args:
        users: of its cells, float64[rows, columns].
        side: of the field, in base cells.
        stretch: the world's width and height over those of the field.
        origin: x and y of its north-west corner, in base cells of the field.
    """

    def __init__(self, users: NDArray[np.float64], side: int, stretch: float, origin: tuple[float, float]):
        rows, columns = users.shape
        self._table = SummedAreaTable(np.arange(columns + 1), np.arange(rows + 1), users)
        self._cumulative = np.cumsum(users.ravel())
        self._columns = columns
        self._origin = origin
        self._cell = stretch * side / columns, stretch * side / rows

    def sum(self, boxes: Boxes) -> NDArray[np.float64]:
        """Users in boxes of the field, float64[q]."""
        (left, top), (width, height) = self._origin, self._cell
        x0, x1 = (boxes.x0 - left) / width, (boxes.x1 - left) / width
        return self._table.sum(Boxes(x0, (boxes.y0 - top) / height, x1, (boxes.y1 - top) / height))

    def draw_users(self, count: int, rng: Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draws positions of users: x and y in base cells of the field, float64[count] each, possibly outside it."""
        at = np.searchsorted(self._cumulative, rng.random(count) * self._cumulative[-1], side="right")
        row, column = np.divmod(np.minimum(at, len(self._cumulative) - 1), self._columns)
        (left, top), (width, height) = self._origin, self._cell
        return left + (column + rng.random(count)) * width, top + (row + rng.random(count)) * height


@dataclass(frozen=True)
class QueryDistribution:
    """The distribution of squares to be queried.

    Attributes:
        low: the least side, (columns, rows) in base cells.
        high: the largest side, likewise.
        workload: a sample of the queries, in base cells; None for squares around random users.
    """

    low: tuple[float, float]
    high: tuple[float, float]
    workload: Boxes | None = None

    def draw(self, world: World, side: int, count: int, rng: Generator) -> Boxes:
        """Draws `count` squares, and returns those whose centres lie in the field."""
        if self.workload is not None:
            return self.workload.part(rng.integers(len(self.workload), size=count))
        x, y = world.draw_users(count, rng)
        inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
        if not inside.any():  # a small population can be wholly outside the field: then draw anywhere
            (x, y), inside = side * rng.random((2, count)), np.ones(count, dtype=bool)
        scale = (self.high[0] / self.low[0]) ** rng.random(int(inside.sum()))
        return Boxes.around(x[inside], y[inside], scale * self.low[0], scale * self.low[1])


def make_examples(
    grid: NoisyGrid,
    users: float,
    smoothing: float,
    queries: QueryDistribution,
    worlds: int,
    count: int,
    rng: Generator,
) -> Examples:
    """Draws examples from simulated worlds (see `sample_world`).

    Each world is shifted and scaled against the grid that counts it, because real clusters cross the borders of cells.

    Args:
        grid: the noisy grid.
        users: number of users, public or noisy.
        smoothing: psi in users; see `Surroundings`.
        queries: the distribution of the squares.
        worlds: how many to simulate.
        count: squares of each world, in two halves with different noise.
        rng: of all draws.
    """
    parts = []
    rows, columns = grid.users.shape
    cells = Boxes.between(grid.x_edges, grid.y_edges)
    for _ in range(worlds):
        expected = sample_world(grid, users, rng)
        stretch = float(np.exp(rng.uniform(-_STRETCH, _STRETCH)))
        middle = grid.side / 2 * (1 - stretch)
        origin = middle + float(rng.random()) * grid.side / columns, middle + float(rng.random()) * grid.side / rows
        population = rng.poisson(expected).astype(np.float64)
        if not population.any():
            population[np.unravel_index(int(expected.argmax()), population.shape)] = 1.0
        world = World(population, grid.side, stretch, origin)
        counted = world.sum(cells).reshape(rows, columns)
        for _ in range(2):
            noise = rng.laplace(scale=grid.noise_stddev / np.sqrt(2), size=counted.shape)
            around = Surroundings(NoisyGrid(grid.x_edges, grid.y_edges, counted + noise, grid.noise_stddev), smoothing)
            boxes = queries.draw(world, grid.side, count // 2, rng)
            parts.append(Examples(*around.features(boxes), world.sum(boxes).astype(np.float32)))
    return Examples.concatenated(parts)
