"""Training data of a local network: squares in simulated worlds, their inputs, and their true users.

A world (expected users by cell) agrees with a noisy grid. It is drawn from a random cascade fitted to the grid. The
cascade is a quadtree over the cells. A node divides its users among its four children by shares from a Dirichlet
distribution. Its concentration is one of a few values; expectation maximisation over all nodes of a level estimates the
frequency of each value. From the root down, shares are drawn from their posterior, given the noisy counts below each
child. So a world agrees with counts that are large against their noise. Elsewhere it is as uneven as the fitted
distribution. Nothing was counted below the grid's cells, so their shares are drawn with the frequencies of the level
above.

A network trained on such worlds with fresh noise learns to estimate users from such counts. Its inputs are the noisy
counts of boxes around a square, at many scales, in units of their noise. This costs no budget: it uses only the noisy
grid. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import gammaln

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.field_counts import NoisyGrid, SummedAreaTable

CONCENTRATIONS = np.geomspace(0.03, 30, 10)
_BINS = 8  # of nodes, by their users in deviations of their children's noise
_MIN_INFORMATIVE_BIN = 2  # nodes of lower bins hold no information on how shares are spread
_PRIOR_DRAWS = 24  # proposals for each concentration, where noise is large
_NOISE_DRAWS = 48  # proposals around the measured shares, where noise is small
_SMALL_NOISE_STRENGTH = 15.0  # noise is small above this many users, in deviations
_PRIOR_NODES = 20.0  # weight of the frequencies of the level above, in nodes
_LEAST_SHARE = 1e-3
_CHUNK = 512  # nodes that are processed together, so that their arrays fit into a processor's cache
_STRETCH = 0.25  # a world is scaled by a factor up to e^0.25, because cities have more scales than a tree of halves
# Centre, width and height of each box, in widths and heights of the square; the square itself is the first.
AROUND = (
    *((0.0, 0.0, scale, scale) for scale in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0, 40.0)),
    *((float(x), float(y), 1.0, 1.0) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)),
    (0.0, 0.0, 3.0, 1.0),
    (0.0, 0.0, 1.0, 3.0),
)
INPUTS = len(AROUND) + 4


class _Nodes(NamedTuple):
    """Some nodes of a level and their children, in the order of `_children`; 0 where the grid does not cover a child.

    Attributes:
        users: of the nodes, float64[n].
        measured: noisy count of each child, float64[n, 4].
        inside: share of each child that the grid covers, float64[n, 4].
        noise: standard deviation of the noise of each child, float64[n, 4].
    """

    users: NDArray[np.float64]
    measured: NDArray[np.float64]
    inside: NDArray[np.float64]
    noise: NDArray[np.float64]


def sample_world(grid: NoisyGrid, users: float, rng: Generator) -> NDArray[np.float64]:
    """Samples a world: expected users by cell, float64[2 rows, 2 columns], row 0 in the north.

    users: number of users; the world has about this number, unless the grid's total contradicts it.
    """
    rows, columns = grid.users.shape
    levels = math.ceil(math.log2(max(rows, columns, 2)))
    side = 1 << levels
    # A random offset of the tree in every world, so that a network does not learn its borders.
    top, left = int(rng.integers(side - rows + 1)), int(rng.integers(side - columns + 1))
    window = (slice(top, top + rows), slice(left, left + columns))
    measured, cells = [np.zeros((side, side))], [np.zeros((side, side))]
    measured[0][window], cells[0][window] = grid.users, 1.0
    for _ in range(levels):
        measured.append(_children(measured[-1]).sum(axis=1).reshape(len(measured[-1]) // 2, -1))
        cells.append(_children(cells[-1]).sum(axis=1).reshape(len(cells[-1]) // 2, -1))
    total = float(grid.users.sum())
    consistent = abs(total - users) <= 3 * grid.noise_stddev * math.sqrt(rows * columns)
    world = np.array([[users if consistent else max(total, 1.0)]])
    typical = np.full(len(CONCENTRATIONS), 1 / len(CONCENTRATIONS))
    weights = np.tile(typical, (_BINS, 1))
    for level in reversed(range(levels)):
        covered = _children(cells[level])
        noise = grid.noise_stddev * np.sqrt(covered)
        nodes = _Nodes(world.ravel(), _children(measured[level]), covered / 4**level, noise)
        shares, weights, typical = _draw_shares(nodes, typical, level == 0, rng)
        world = _merge_children(world.ravel()[:, None] * shares, world.shape)
    world = world[window]
    strength = _bin(world.ravel() / max(grid.noise_stddev, 1e-9))
    shares = _dirichlet(CONCENTRATIONS[_choose(weights[strength], rng)], rng)  # of children that were not counted
    return _merge_children(world.ravel()[:, None] * shares, world.shape)


def _bin(strength: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.clip(np.floor(np.log2(np.maximum(strength, 1e-9)) / 1.5) + 2, 0, _BINS - 1), dtype=np.int64)


def _draw_shares(
    nodes: _Nodes, above: NDArray[np.float64], single: bool, rng: Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Draws shares float64[n, 4] of nodes' users, and estimates the level's weights, by bin and over all bins.

    single: whether children are cells, with Laplace noise; sums of cells have nearly normal noise.
    """
    strength = nodes.users / np.maximum(nodes.noise.max(axis=1), 1e-9)
    bins = _bin(strength)
    likelihood = np.ones((len(bins), len(CONCENTRATIONS)))
    drawn = np.zeros((len(bins), len(CONCENTRATIONS), 4))
    covered = nodes.inside.any(axis=1)
    for near, propose in ((False, _propose_from_prior), (True, _propose_from_counts)):
        chosen = np.nonzero(covered & ((strength > _SMALL_NOISE_STRENGTH) == near))[0]
        for first in range(0, len(chosen), _CHUNK):
            at = chosen[first : first + _CHUNK]
            likelihood[at], drawn[at] = propose(_Nodes(*(column[at] for column in nodes)), single, rng)
    weights, typical = _learn(likelihood, bins, above)
    shares = drawn[np.arange(len(bins)), _choose(likelihood * weights[bins], rng)]
    return shares, weights, typical


def _choose(probabilities: NDArray[Any], rng: Generator) -> NDArray[np.int64]:
    """Draws an index of the last axis, by probabilities that need not sum to 1."""
    sums = probabilities.cumsum(axis=-1)
    return np.asarray((sums < rng.random(sums.shape[:-1])[..., None] * sums[..., -1:]).sum(axis=-1))


def _dirichlet(concentrations: NDArray[np.float64], rng: Generator) -> NDArray[np.float64]:
    """Returns a row of four shares for each concentration: float64[n, 4]."""
    # In logarithms, because with small concentrations all four gammas can underflow.
    size = len(concentrations), 4
    logs = np.log(rng.gamma(concentrations[:, None] + 1, size=size))
    logs -= rng.exponential(size=size) / concentrations[:, None]
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _propose_from_prior(nodes: _Nodes, single: bool, rng: Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the likelihood of each concentration, float64[n, c], up to a factor a node, and shares for each,
    float64[n, c, 4].

    Shares are drawn from each concentration's Dirichlet and weighted by their fit to the measurements.
    """
    drawn = _dirichlet(np.repeat(CONCENTRATIONS, _PRIOR_DRAWS), rng) + 1e-9
    noise = np.maximum(nodes.noise, 1e-9)
    measured, inside = (nodes.measured / noise).astype(np.float32), (nodes.inside / noise).astype(np.float32)
    users = (nodes.users[:, None] / (nodes.inside @ drawn.T)).astype(np.float32)
    unlikely = np.zeros_like(users)
    for child, share in enumerate(drawn.T.astype(np.float32)):
        off = users * share
        off *= inside[:, child, None]
        off -= measured[:, child, None]
        unlikely += np.abs(off, out=off) if single else np.square(off, out=off)
    unlikely -= unlikely.min(axis=1, keepdims=True)
    unlikely *= -math.sqrt(2) if single else -0.5
    fit = np.exp(unlikely, out=unlikely).reshape(len(users), len(CONCENTRATIONS), _PRIOR_DRAWS)
    kept = _choose(fit, rng) + _PRIOR_DRAWS * np.arange(len(CONCENTRATIONS))
    shares = drawn[kept] * nodes.inside[:, None, :]
    return fit.mean(axis=2), shares / shares.sum(axis=2, keepdims=True)


def _propose_from_counts(
    nodes: _Nodes, single: bool, rng: Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draws shares around the measured ones, weighted by each Dirichlet; see `_propose_from_prior`."""
    size = (len(nodes.users), _NOISE_DRAWS, 4)
    error = rng.laplace(size=size) / math.sqrt(2) if single else rng.normal(size=size)
    drawn = nodes.measured[:, None, :] + error * nodes.noise[:, None, :]
    variance = nodes.noise**2
    pull = variance / np.maximum(variance.sum(axis=1, keepdims=True), 1e-300)
    drawn += (nodes.users[:, None] - drawn.sum(axis=2))[..., None] * pull[:, None, :]
    # Negative draws are reflected. Clipped at 0, they would look as if most children had no users.
    np.abs(drawn, out=drawn)
    shares = drawn / np.maximum(drawn.sum(axis=2, keepdims=True), 1e-300)
    logs = np.log(np.maximum(shares, _LEAST_SHARE)).sum(axis=2)[:, None, :]
    constant = gammaln(4 * CONCENTRATIONS) - 4 * gammaln(CONCENTRATIONS)
    fit = constant[:, None] + (CONCENTRATIONS - 1)[:, None] * logs
    fit -= fit.max(axis=(1, 2), keepdims=True)
    np.exp(fit, out=fit)
    return fit.mean(axis=2), shares[np.arange(len(shares))[:, None], _choose(fit, rng)]


def _learn(
    likelihood: NDArray[np.float64], bins: NDArray[np.int64], above: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimates how often each concentration occurs, by bin and over all bins, shrunk towards the more general."""
    informative = bins >= _MIN_INFORMATIVE_BIN
    typical = above
    for _ in range(30):
        probability = likelihood[informative] * typical
        probability /= probability.sum(axis=1, keepdims=True) + 1e-300
        typical = probability.sum(axis=0) + _PRIOR_NODES * above
        typical = typical / typical.sum()
    weights = np.tile(typical, (_BINS, 1))
    for _ in range(10):
        probability = likelihood[informative] * weights[bins[informative]]
        probability /= probability.sum(axis=1, keepdims=True) + 1e-300
        sums = np.zeros_like(weights)
        np.add.at(sums, bins[informative], probability)
        weights = sums + _PRIOR_NODES * typical
        weights /= weights.sum(axis=1, keepdims=True)
    return weights, typical


def _children(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the four children of each cell of a grid of half the side: float64[n, 4]."""
    rows, columns = cells.shape[0] // 2, cells.shape[1] // 2
    return cells.reshape(rows, 2, columns, 2).transpose(0, 2, 1, 3).reshape(-1, 4)


def _merge_children(children: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Returns the inverse of `_children` for a grid of `shape` parents."""
    rows, columns = shape
    return children.reshape(rows, columns, 2, 2).transpose(0, 2, 1, 3).reshape(2 * rows, 2 * columns)


class Surroundings:
    """Computes features of boxes on a noisy grid.

    grid: with nearly even edges, so that all cells have about the same width and height. smoothing: see LocalTraining.
    """

    def __init__(self, grid: NoisyGrid, smoothing: float):
        self._table = grid.table()
        rows, columns = grid.users.shape
        self._cell = grid.side / columns, grid.side / rows
        self._noise = grid.noise_stddev
        self._smoothing = smoothing

    def features(self, boxes: Boxes) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Inputs float32[q, INPUTS], and the noisy count and its approximate noise deviation, float32[q] each."""
        (across, down), (x, y) = self._cell, ((boxes.x0 + boxes.x1) / 2, (boxes.y0 + boxes.y1) / 2)
        width, height = np.maximum(boxes.x1 - boxes.x0, 1e-9), np.maximum(boxes.y1 - boxes.y0, 1e-9)
        inputs = np.empty((len(boxes), INPUTS), dtype=np.float32)
        for number, (dx, dy, wide, high) in enumerate(AROUND):
            box = Boxes.around(x + dx * width, y + dy * height, wide * width, high * height)
            counted = self._table.sum(box)
            noise = self._noise * np.sqrt(1 + box.areas / (across * down))  # even a small box overlaps one cell
            inputs[:, number] = np.arcsinh(counted / noise)
            if number == 0:
                own, deviation = counted, noise
        inputs[:, -4] = np.log(width * height / (across * down)) / 2
        inputs[:, -3] = np.log(self._noise / self._smoothing)
        inputs[:, -2], inputs[:, -1] = (x / across) % 1, (y / down) % 1
        return inputs, own.astype(np.float32), deviation.astype(np.float32)


class Examples(NamedTuple):
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
        """Returns users in boxes of the field, float64[q]."""
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

    low, high: the least and the largest sides, (columns, rows) in base cells. workload: a sample of the queries, in
    base cells; None for squares around random users.
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
    grid: NoisyGrid, users: float, smoothing: float, queries: QueryDistribution, worlds: int, count: int, rng: Generator
) -> Examples:
    """Draws examples from simulated worlds (see `sample_world`): `count` squares of each, in two halves of other noise.

    Each world is shifted and scaled against the grid that counts it, because real clusters cross the borders of cells.
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
    return Examples(*map(np.concatenate, zip(*parts, strict=True)))
