"""Other mechanisms for flows at the same pure epsilon, of one trip a user: baselines of `benchmarks/flows.py`.

- `uniform_grid`: discrete Laplace noise on every pair of one level, as dp_mobility_report does on a given tessellation.
- `private_od`: an adaptive tree of pairs, after Private-OD (arXiv 2306.09471). The text of that paper was not at hand.
  Known: adaptive pairs of cells, noise on their counts. Assumed, as in private quadtrees (Cormode et al., ICDE 2012):
  16 children a node; the budget of a level grows with the level by a factor of 2^(1/3); a node is split where its noisy
  count exceeds a threshold, and the noisy counts of the last nodes are published.
- `density_grid`: after Shaham, Ghinita and Shahabi (EDBT 2022), whose methods divide each dimension by the noisy
  density. Known: the grid gets finer where a noisy count is larger. Assumed: as in adaptive grids (Qardaji et al., ICDE
  2013), a coarse level has a share of the budget, and each of its pairs gets the level below it that balances noise and
  uniformity.

Each takes the threshold or level that has the least error on the exact data, which no release could know. So they are
shown at their best.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.flows.user_trips import count_prefixes

Counts = NDArray[np.int64]
_GROWTH = 2 ** (1 / 3)
_CHILDREN = np.arange(16, dtype=np.uint64)


def _laplace(rng: np.random.Generator, epsilon: float, n: int) -> Counts:
    p = 1 - np.exp(-epsilon)
    return rng.geometric(p, n) - rng.geometric(p, n)


def thresholded(noisy: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """Counts below a threshold, and negative ones, as 0."""
    return np.where(noisy >= max(least, 0), noisy, 0.0)


def uniform_grid(
    codes: NDArray[np.uint64], counts: Counts, bits: int, level: int, epsilon: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Noisy counts of all pairs of a level: float64[16^level]."""
    exact = count_prefixes(codes, counts, np.arange(16**level, dtype=np.uint64), bits - 4 * level)
    return (exact + _laplace(rng, epsilon, len(exact))).astype(np.float64)


def private_od(
    codes: NDArray[np.uint64],
    counts: Counts,
    bits: int,
    depth: int,
    epsilon: float,
    threshold: float,
    rng: np.random.Generator,
    level: int,
) -> NDArray[np.float64]:
    """Estimates of all pairs of a level, from an adaptive tree of this depth: float64[16^level].

    threshold: noisy count from which a node is split.
    """
    shares = _GROWTH ** np.arange(1, depth + 1)
    shares *= epsilon / shares.sum()
    nodes, estimate = np.arange(16, dtype=np.uint64), np.zeros(16**level)
    for place in range(1, depth + 1):
        noisy = count_prefixes(codes, counts, nodes, bits - 4 * place) + _laplace(rng, shares[place - 1], len(nodes))
        split = (noisy >= threshold) & (place < depth)
        _add(estimate, nodes[~split], np.maximum(noisy[~split], 0), place, level)
        nodes = (nodes[split][:, None] << np.uint64(4) | _CHILDREN).ravel()
    return estimate


def density_grid(
    codes: NDArray[np.uint64],
    counts: Counts,
    bits: int,
    start: int,
    epsilon: float,
    cells_per_trip: float,
    rng: np.random.Generator,
    level: int,
) -> NDArray[np.float64]:
    """Estimates of all pairs of a level, from an adaptive grid: float64[16^level].

    Args:
        start: the coarse level, which has half of the budget.
        cells_per_trip: how many pairs a coarse pair is divided into, for each of its noisy trips times epsilon.
    """
    nodes, estimate = np.arange(16**start, dtype=np.uint64), np.zeros(16**level)
    coarse = count_prefixes(codes, counts, nodes, bits - 4 * start) + _laplace(rng, epsilon / 2, len(nodes))
    wanted = np.log(np.maximum(coarse * epsilon * cells_per_trip, 1)) / np.log(16)
    finer = np.clip(np.rint(wanted), 0, level - start).astype(int)
    for more in np.unique(finer).tolist():
        inner = nodes[finer == more]
        inner = (inner[:, None] << np.uint64(4 * more) | np.arange(16**more, dtype=np.uint64)).ravel()
        exact = count_prefixes(codes, counts, inner, bits - 4 * (start + more))
        noisy = exact + _laplace(rng, epsilon / 2, len(inner))
        _add(estimate, inner, np.maximum(noisy, 0), start + more, level)
    return estimate


def _add(
    estimate: NDArray[np.float64], nodes: NDArray[np.uint64], trips: NDArray[np.float64], place: int, level: int
) -> None:
    """Adds trips of nodes of one level to their pairs of another, evenly where these are finer."""
    if place >= level:
        np.add.at(estimate, (nodes >> np.uint64(4 * (place - level))).astype(np.int64), trips)
        return
    within = 16 ** (level - place)
    first = (nodes.astype(np.int64) * within)[:, None] + np.arange(within)
    estimate[first.ravel()] += np.repeat(trips / within, within)
