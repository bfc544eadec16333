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
_CHUNK = 2000


@dataclass(frozen=True)
class _Proposals:
    """Of some nodes: shares float64[n, k, 4], and how each fits each concentration, up to a factor a node."""

    nodes: NDArray[np.int64]
    shares: NDArray[np.float64]
    fit: NDArray[np.float64]  # [n, k, concentrations]


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
        inside = _families(cells[level])
        noise = grid.noise_stddev * np.sqrt(inside)
        shares, weights, typical = _split(
            world.ravel(), _families(measured[level]), inside / 4**level, noise, typical, level == 0, rng
        )
        world = _together(world.ravel()[:, None] * shares)
    world = world[place]
    strength = _bin(world.ravel() / max(grid.noise_stddev, 1e-9))
    return _together_at(world.ravel()[:, None] * _free(strength, weights, rng), world.shape)


def _bin(strength: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.floor(np.log2(np.maximum(strength, 1e-9)) / 1.5) + 2, 0, _BINS - 1).astype(np.int64)


def _split(
    users: NDArray[np.float64],
    measured: NDArray[np.float64],
    inside: NDArray[np.float64],
    noise: NDArray[np.float64],
    above: NDArray[np.float64],
    single: bool,
    rng: Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Shares float64[n, 4] of nodes' users, and the level's weights by bin and altogether.

    inside: float64[n, 4], the share of each child that the grid covers. single: children are cells, with Laplace noise;
    sums of cells have nearly normal noise.
    """
    strength = users / np.maximum(noise.max(axis=1), 1e-9)
    bins = _bin(strength)
    proposals = []
    for near in (False, True):
        nodes = np.nonzero((strength > _SMALL_NOISE) == near)[0]
        for first in range(0, len(nodes), _CHUNK):
            some = nodes[first : first + _CHUNK]
            propose = _around if near else _anywhere
            proposals.append(propose(some, users[some], measured[some], inside[some], noise[some], single, rng))
    likelihood = np.empty((len(users), len(CONCENTRATIONS)))
    for one in proposals:
        likelihood[one.nodes] = one.fit.mean(axis=1)
    weights, typical = _learn(likelihood, bins, above)
    shares = np.empty((len(users), 4))
    for one in proposals:
        chance = np.einsum("nka,na->nk", one.fit, weights[bins[one.nodes]]).cumsum(axis=1)
        drawn = (chance < rng.random(len(chance))[:, None] * chance[:, -1:]).sum(axis=1)
        shares[one.nodes] = one.shares[np.arange(len(chance)), np.minimum(drawn, chance.shape[1] - 1)]
    return shares, weights, typical


def _anywhere(
    nodes: NDArray[np.int64],
    users: NDArray[np.float64],
    measured: NDArray[np.float64],
    inside: NDArray[np.float64],
    noise: NDArray[np.float64],
    single: bool,
    rng: Generator,
) -> _Proposals:
    """Shares drawn from every concentration's Dirichlet, weighed by how they fit the measurements."""
    count = len(CONCENTRATIONS)
    drawn = rng.gamma(np.repeat(CONCENTRATIONS, _PRIOR_DRAWS)[:, None], size=(count * _PRIOR_DRAWS, 4)) + 1e-12
    shares = drawn[None] * inside[:, None, :]
    shares /= np.maximum(shares.sum(axis=2, keepdims=True), 1e-300)
    off = (measured[:, None, :] - users[:, None, None] * shares) / np.maximum(noise, 1e-9)[:, None, :]
    unlikely = np.abs(off) * math.sqrt(2) if single else off**2 / 2
    fit = -(unlikely * (inside > 0)[:, None, :]).sum(axis=2)
    fit = np.exp(fit - fit.max(axis=1, keepdims=True))
    by_concentration = np.zeros((len(nodes), count * _PRIOR_DRAWS, count))
    of = np.repeat(np.arange(count), _PRIOR_DRAWS)
    by_concentration[:, np.arange(count * _PRIOR_DRAWS), of] = fit
    return _Proposals(nodes, shares, by_concentration)


def _around(
    nodes: NDArray[np.int64],
    users: NDArray[np.float64],
    measured: NDArray[np.float64],
    inside: NDArray[np.float64],
    noise: NDArray[np.float64],
    single: bool,
    rng: Generator,
) -> _Proposals:
    """Shares drawn about the measured ones, weighed by how they fit each concentration's Dirichlet."""
    size = (len(nodes), _NOISE_DRAWS, 4)
    error = rng.laplace(size=size) / math.sqrt(2) if single else rng.normal(size=size)
    drawn = measured[:, None, :] + error * noise[:, None, :]
    variance = noise**2
    pull = variance / np.maximum(variance.sum(axis=1, keepdims=True), 1e-300)
    drawn = drawn + (users[:, None] - drawn.sum(axis=2))[..., None] * pull[:, None, :]
    # What noise took below nothing is reflected: cut off there, it would look as if most children had no users at all.
    drawn = np.abs(drawn) * (inside > 0)[:, None, :]
    shares = drawn / np.maximum(drawn.sum(axis=2, keepdims=True), 1e-300)
    logs = np.log(np.maximum(shares, _LEAST_SHARE)).sum(axis=2)[..., None]
    density = gammaln(4 * CONCENTRATIONS) - 4 * gammaln(CONCENTRATIONS) + (CONCENTRATIONS - 1) * logs
    return _Proposals(nodes, shares, np.exp(density - density.max(axis=(1, 2), keepdims=True)))


def _learn(
    likelihood: NDArray[np.float64], bins: NDArray[np.int64], above: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How often each concentration occurs, by bin and altogether: each is tied to what is known more generally."""
    telling = bins >= _TOLD
    typical = above
    for _ in range(30):
        chance = likelihood[telling] * typical
        chance /= chance.sum(axis=1, keepdims=True) + 1e-300
        typical = chance.sum(axis=0) + _TIE * above
        typical = typical / typical.sum()
    weights = np.tile(typical, (_BINS, 1))
    for _ in range(10):
        chance = likelihood[telling] * weights[bins[telling]]
        chance /= chance.sum(axis=1, keepdims=True) + 1e-300
        sums = np.zeros_like(weights)
        np.add.at(sums, bins[telling], chance)
        weights = sums + _TIE * typical
        weights /= weights.sum(axis=1, keepdims=True)
    return weights, typical


def _free(bins: NDArray[np.int64], weights: NDArray[np.float64], rng: Generator) -> NDArray[np.float64]:
    """Shares float64[n, 4] of nodes of which nothing more is known."""
    chance = weights.cumsum(axis=1)[bins]
    kind = np.minimum((chance < rng.random(len(bins))[:, None]).sum(axis=1), len(CONCENTRATIONS) - 1)
    drawn = rng.gamma(CONCENTRATIONS[kind][:, None], size=(len(bins), 4)) + 1e-12
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True))


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
