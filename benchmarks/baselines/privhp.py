"""PrivHP, a pruned hierarchy of counts in bounded memory (Holland, Camtepe, Thapa and Xue, SIGMOD 2025).

Written from the paper's public description (arXiv 2412.09756), because its authors' code was not found. It has:

- a binary partition of the square, whose sides are halved in turn; a node's users are its count;
- noisy counters of all nodes down to a level L*, and below it a private Count-Min sketch for every level;
- noise for all counters at once, whose budgets by level minimise the sum of noise times diameter;
- consistency from the root down: two children share the difference from their parent's count evenly, none below 0;
- growth from L* on: the k nodes of largest count of each level are split, with the sketch's counts of their children.

Our choice of the constants that the description leaves open: L = ceil(log2(epsilon n)) levels, sketches of 2 k
counters a row, and L* the last level whose counters take no more memory than a sketch.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


def privhp_density(
    sums: NDArray[np.float64], users: int, epsilon: float, kept: int, rows: int, generator: Generator
) -> NDArray[np.float64]:
    """The density of the cells, float64[n], by cell code; it adds up to 1. Pure epsilon for adding or removing a user.

    Args:
        sums: float64[n], n a power of two, exact sums of the users' distributions by cell code (see schemas.region).
        users: their public number.
        epsilon: of the whole hierarchy.
        kept: k, nodes of a level that are split.
        rows: of a sketch, each with a hash function of its own.
        generator: of noise and of hash functions.
    """
    bits = len(sums).bit_length() - 1
    depth = min(bits, max(math.ceil(math.log2(max(epsilon * users, 2))), 1))
    exact = min(depth, max(math.floor(math.log2(2 * kept * rows)), 0))
    budgets = level_budgets(epsilon, depth, exact, kept, rows)
    nodes, counts = np.zeros(1, np.int64), np.maximum(sums.sum() + generator.laplace(0, 1 / budgets[0], 1), 0.0)
    density = np.zeros(len(sums))
    for level in range(1, depth + 1):
        split = np.arange(len(nodes)) if level <= exact else np.argsort(-counts, kind="stable")[:kept]
        unsplit = np.ones(len(nodes), dtype=bool)
        unsplit[split] = False
        _spread(density, nodes[unsplit], counts[unsplit], level - 1)
        true = sums.reshape(1 << level, -1).sum(axis=1)
        children = (2 * nodes[split][:, None] + np.arange(2)).ravel()
        if level <= exact:
            noisy = true[children] + generator.laplace(0, 1 / budgets[level], len(children))
        else:
            noisy = _sketched(true, 2 * kept, rows, rows / budgets[level], generator)[children]
        nodes, counts = children, consistent(counts[split], noisy.reshape(-1, 2)).ravel()
    _spread(density, nodes, counts, depth)
    total = density.sum()
    return density / total if total > 0 else np.full(len(density), 1 / len(density))


def level_budgets(epsilon: float, depth: int, exact: int, kept: int, rows: int) -> NDArray[np.float64]:
    """Epsilon of levels 0..depth, float64[depth + 1], in proportion to the root of counters times diameter.

    A level's noise moves users within the nodes of the level above, of diameter 2^-floor((level - 1) / 2). It has
    2^(level - 1) of them, and in a sketch `kept`, each with `rows` times the noise.
    """
    above = np.maximum(np.arange(depth + 1) - 1, 0)
    weight = np.where(np.arange(depth + 1) <= exact, 2.0**above, rows * kept) * 2.0 ** -(above // 2)
    return epsilon * np.sqrt(weight) / np.sqrt(weight).sum()


def consistent(parent: NDArray[np.float64], children: NDArray[np.float64]) -> NDArray[np.float64]:
    """Children float64[n, 2] >= 0 that add up to their parents float64[n] >= 0 (He, Vershynin and Zhu, COLT 2023)."""
    first = np.maximum(children, 0.0)
    moved = first - (first.sum(axis=1) - parent)[:, None] / 2
    moved[:, 0] = np.clip(moved[:, 0], 0.0, parent)
    return np.stack([moved[:, 0], parent - moved[:, 0]], axis=1)


def _sketched(
    true: NDArray[np.float64], width: int, rows: int, scale: float, generator: Generator
) -> NDArray[np.float64]:
    """Counts of every node by a Count-Min sketch of `rows` x `width` counters with Laplace noise of this scale."""
    hashes = generator.integers(width, size=(rows, len(true)))
    tables = [np.bincount(one, true, width) + generator.laplace(0, scale, width) for one in hashes]
    return np.min([table[one] for table, one in zip(tables, hashes, strict=True)], axis=0)


def _spread(density: NDArray[np.float64], nodes: NDArray[np.int64], counts: NDArray[np.float64], level: int) -> None:
    """Adds the users of nodes of a level evenly to their cells."""
    cells = density.reshape(1 << level, -1)
    cells[nodes] += (counts / cells.shape[1])[:, None]
