"""Worlds that could be behind a noisy grid, sampled from a random cascade that is learned from the grid itself.

A node of a quadtree over the cells passes its users on to its four children by shares from a Dirichlet distribution,
whose concentration is one of a few values, and how often each occurs at a level is learned from all its nodes
(expectation maximisation). From the root down, shares are drawn from their posterior, given the noisy counts below each
child: so a world agrees with the counts as far as these can be trusted, and is as uneven as they let on where not.
Below the grid's cells nothing was counted, and shares are drawn as they were a level above.

A network that is trained on such worlds, with fresh noise, learns how such counts are to be read, and it costs nothing:
all that is used is the noisy grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import gammaln

from sfumato.transforms.ranges.counts import NoisyGrid

CONCENTRATIONS = np.geomspace(0.03, 30, 10)
SUBDIVISION = 2  # cells of a world along each side of a grid's cell
_BINS = 8  # nodes are told apart by how many users they have, in deviations of their children's noise
_TOLD = 2  # the first bin whose nodes say something of how shares are spread
_PRIOR_DRAWS = 24  # proposals for each concentration, where noise is large
_NOISE_DRAWS = 48  # proposals about the measured shares, where it is small
_SMALL_NOISE = 15.0
_TIE = 20.0  # nodes that the weights of the level above stand for
_LEAST_SHARE = 1e-3
_CHUNK = 512  # nodes that are seen to together: all that is known of them fits into a processor's cache


@dataclass(frozen=True)
class _Nodes:
    """Some nodes of a level and their children, in the order of `_families`.

    users: float64[n]. measured, inside, noise: float64[n, 4], of each child the noisy count, the share of it that the
    grid covers, and the deviation of the noise; all three are 0 where it covers nothing.
    """

    users: NDArray[np.float64]
    measured: NDArray[np.float64]
    inside: NDArray[np.float64]
    noise: NDArray[np.float64]

    def part(self, of: NDArray[np.int64]) -> _Nodes:
        """Some of them."""
        return _Nodes(self.users[of], self.measured[of], self.inside[of], self.noise[of])


def sample_world(grid: NoisyGrid, users: float, rng: Generator) -> NDArray[np.float64]:
    """Expected users of the cells of a world, float64[2 rows, 2 columns], row 0 in the north; in all about `users`."""
    rows, columns = grid.users.shape
    levels = math.ceil(math.log2(max(rows, columns, 2)))
    side = 1 << levels
    # The tree's borders lie elsewhere in every world, so that none of them is learned.
    top, left = int(rng.integers(side - rows + 1)), int(rng.integers(side - columns + 1))
    place = (slice(top, top + rows), slice(left, left + columns))
    measured, cells = [np.zeros((side, side))], [np.zeros((side, side))]
    measured[0][place], cells[0][place] = grid.users, 1.0
    for _ in range(levels):
        measured.append(_families(measured[-1]).sum(axis=1).reshape(len(measured[-1]) // 2, -1))
        cells.append(_families(cells[-1]).sum(axis=1).reshape(len(cells[-1]) // 2, -1))
    total = float(grid.users.sum())
    known = abs(total - users) <= 3 * grid.noise_stddev * math.sqrt(rows * columns)
    world = np.array([[users if known else max(total, 1.0)]])
    typical = np.full(len(CONCENTRATIONS), 1 / len(CONCENTRATIONS))
    weights = np.tile(typical, (_BINS, 1))
    for level in reversed(range(levels)):
        covered = _families(cells[level])
        noise = grid.noise_stddev * np.sqrt(covered)
        nodes = _Nodes(world.ravel(), _families(measured[level]), covered / 4**level, noise)
        shares, weights, typical = _split(nodes, typical, level == 0, rng)
        world = _together(world.ravel()[:, None] * shares)
    world = world[place]
    strength = _bin(world.ravel() / max(grid.noise_stddev, 1e-9))
    return _together_at(world.ravel()[:, None] * _free(strength, weights, rng), world.shape)


def _bin(strength: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.clip(np.floor(np.log2(np.maximum(strength, 1e-9)) / 1.5) + 2, 0, _BINS - 1), dtype=np.int64)


def _split(
    nodes: _Nodes, above: NDArray[np.float64], single: bool, rng: Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Shares float64[n, 4] of nodes' users, and the level's weights by bin and altogether.

    single: children are cells, with Laplace noise; sums of cells have nearly normal noise.
    """
    strength = nodes.users / np.maximum(nodes.noise.max(axis=1), 1e-9)
    bins = _bin(strength)
    likelihood = np.ones((len(bins), len(CONCENTRATIONS)))
    drawn = np.zeros((len(bins), len(CONCENTRATIONS), 4))
    covered = nodes.inside.any(axis=1)
    for near, propose in ((False, _anywhere), (True, _around)):
        chosen = np.nonzero(covered & ((strength > _SMALL_NOISE) == near))[0]
        for first in range(0, len(chosen), _CHUNK):
            at = chosen[first : first + _CHUNK]
            likelihood[at], drawn[at] = propose(nodes.part(at), single, rng)
    weights, typical = _learn(likelihood, bins, above)
    shares = drawn[np.arange(len(bins)), _choose(likelihood * weights[bins], rng)]
    return shares, weights, typical


def _choose(probabilities: NDArray[Any], rng: Generator) -> NDArray[np.int64]:
    """Which one of the last axis, drawn by chances that need not sum to 1."""
    sums = probabilities.cumsum(axis=-1)
    return np.asarray((sums < rng.random(sums.shape[:-1])[..., None] * sums[..., -1:]).sum(axis=-1))


def _dirichlet(concentrations: NDArray[np.float64], rng: Generator) -> NDArray[np.float64]:
    """A row of four shares for each concentration: float64[n, 4]."""
    # By logarithms: of small concentrations, all four gammas may be too small for numbers.
    size = len(concentrations), 4
    logs = np.log(rng.gamma(concentrations[:, None] + 1, size=size))
    logs -= rng.exponential(size=size) / concentrations[:, None]
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _anywhere(nodes: _Nodes, single: bool, rng: Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Likelihood of each concentration, float64[n, c], up to a factor a node, and shares for each, float64[n, c, 4].

    Shares are drawn from every concentration's Dirichlet, and weighed by how they fit the measurements.
    """
    drawn = _dirichlet(np.repeat(CONCENTRATIONS, _PRIOR_DRAWS), rng) + 1e-9
    noise = np.maximum(nodes.noise, 1e-9)
    measured, one = (nodes.measured / noise).astype(np.float32), (nodes.inside / noise).astype(np.float32)
    users = (nodes.users[:, None] / (nodes.inside @ drawn.T)).astype(np.float32)
    unlikely = np.zeros_like(users)
    for child, share in enumerate(drawn.T.astype(np.float32)):
        off = users * share
        off *= one[:, child, None]
        off -= measured[:, child, None]
        unlikely += np.abs(off, out=off) if single else np.square(off, out=off)
    unlikely -= unlikely.min(axis=1, keepdims=True)
    unlikely *= -math.sqrt(2) if single else -0.5
    fit = np.exp(unlikely, out=unlikely).reshape(len(users), len(CONCENTRATIONS), _PRIOR_DRAWS)
    kept = _choose(fit, rng) + _PRIOR_DRAWS * np.arange(len(CONCENTRATIONS))
    shares = drawn[kept] * nodes.inside[:, None, :]
    return fit.mean(axis=2), shares / shares.sum(axis=2, keepdims=True)


def _around(nodes: _Nodes, single: bool, rng: Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As `_anywhere`; shares are drawn about the measured ones, and weighed by how they fit each Dirichlet."""
    size = (len(nodes.users), _NOISE_DRAWS, 4)
    error = rng.laplace(size=size) / math.sqrt(2) if single else rng.normal(size=size)
    drawn = nodes.measured[:, None, :] + error * nodes.noise[:, None, :]
    variance = nodes.noise**2
    pull = variance / np.maximum(variance.sum(axis=1, keepdims=True), 1e-300)
    drawn += (nodes.users[:, None] - drawn.sum(axis=2))[..., None] * pull[:, None, :]
    # What noise took below nothing is reflected: cut off there, it would look as if most children had no users at all.
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
    """How often each concentration occurs, by bin and altogether: each is tied to what is known more generally."""
    telling = bins >= _TOLD
    typical = above
    for _ in range(30):
        probability = likelihood[telling] * typical
        probability /= probability.sum(axis=1, keepdims=True) + 1e-300
        typical = probability.sum(axis=0) + _TIE * above
        typical = typical / typical.sum()
    weights = np.tile(typical, (_BINS, 1))
    for _ in range(10):
        probability = likelihood[telling] * weights[bins[telling]]
        probability /= probability.sum(axis=1, keepdims=True) + 1e-300
        sums = np.zeros_like(weights)
        np.add.at(sums, bins[telling], probability)
        weights = sums + _TIE * typical
        weights /= weights.sum(axis=1, keepdims=True)
    return weights, typical


def _free(bins: NDArray[np.int64], weights: NDArray[np.float64], rng: Generator) -> NDArray[np.float64]:
    """Shares float64[n, 4] of nodes of which nothing more is known."""
    return _dirichlet(CONCENTRATIONS[_choose(weights[bins], rng)], rng)


def _families(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """The four children of each cell of a grid of half the side: float64[n, 4]."""
    rows, columns = cells.shape[0] // 2, cells.shape[1] // 2
    return cells.reshape(rows, 2, columns, 2).transpose(0, 2, 1, 3).reshape(-1, 4)


def _together(children: NDArray[np.float64]) -> NDArray[np.float64]:
    side = math.isqrt(len(children))
    return _together_at(children, (side, side))


def _together_at(children: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The inverse of `_families` for a grid of `shape` parents."""
    rows, columns = shape
    return children.reshape(rows, columns, 2, 2).transpose(0, 2, 1, 3).reshape(2 * rows, 2 * columns)
