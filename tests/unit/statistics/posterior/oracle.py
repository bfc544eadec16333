"""What the tests of the posterior share: trees as sets of (level, path), maps, noisy grids."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sfumato.schemas.tree import Tree
from sfumato.transforms.statistics.posterior.full_tree import FullTree, TreeMeasurement, measure
from sfumato.transforms.statistics.posterior.inference import Posterior, infer
from tests.seeds import seeded_rng

Node = tuple[int, int]  # level, path


@st.composite
def trees(draw: st.DrawFn, depth: int) -> Tree:
    """Any tree: orphans, nodes of one, two or three children, the root alone."""
    levels = draw(st.lists(st.integers(0, depth), max_size=12))
    nodes = [4**level + draw(st.integers(0, 4**level - 1)) for level in levels]
    for node in draw(st.lists(st.sampled_from(nodes), max_size=4)) if nodes else []:
        if node < 4**depth:
            nodes += [4 * node + child for child in range(4)]
    return Tree.of(depth, np.array(nodes, dtype=np.uint64))


def nodes_of(tree: Tree) -> list[Node]:
    """The nodes of a tree."""
    levels = [(node.bit_length() - 1) // 2 for node in tree.nodes.tolist()]
    return [(level, node - 4**level) for level, node in zip(levels, tree.nodes.tolist(), strict=True)]


def completed(*given: Tree) -> set[Node]:
    """Four children or none: every node with its siblings, and so its ancestors."""
    full, open_ = {(0, 0)}, [node for tree in given for node in nodes_of(tree)]
    while open_:
        level, path = open_.pop()
        if level and (level, path) not in full:
            full |= {(level, path // 4 * 4 + child) for child in range(4)}
            open_.append((level - 1, path // 4))
    return full


def below(node: Node, ancestor: Node) -> bool:
    """Whether a node is another or one of its descendants."""
    return node[0] >= ancestor[0] and node[1] >> (2 * (node[0] - ancestor[0])) == ancestor[1]


def all_nodes(full: FullTree) -> list[Node]:
    """A full tree's nodes, level by level."""
    return [(level, int(path)) for level, codes in enumerate(full.codes) for path in codes]


def city(depth: int, seed: int = 1) -> np.ndarray:
    """Shares of a synthetic city, float64[4^depth] by code: round quarters of many sizes, no cell like the next."""
    rng, side = seeded_rng(seed), 1 << depth
    codes = np.arange(4**depth)
    x, y = (sum((codes >> (2 * bit + odd) & 1) << bit for bit in range(depth)) / side for odd in (1, 0))
    share = np.full(4**depth, 0.02 / 4**depth)
    for _ in range(12):
        (east, south), width, weight = rng.random(2), 0.02 + 0.1 * rng.random(), rng.random()
        quarter = np.exp(-((x - east) ** 2 + (y - south) ** 2) / (2 * width**2))
        share += weight * quarter / quarter.sum()
    share *= rng.gamma(1.0, 1.0, 4**depth)
    return share / share.sum()


def by_level(cells: np.ndarray) -> list[np.ndarray]:
    """Cells by code and all sums of them, for each level from the root: what a complete FullTree's values are."""
    values = [cells]
    while len(values[0]) > 1:
        values.insert(0, values[0].reshape(-1, 4).sum(axis=1))
    return values


def on(full: FullTree, cells: np.ndarray) -> list[np.ndarray]:
    """The sums of cells, float64[4^depth] by code, in every node of a full tree."""
    return [sums[codes.astype(int)] for sums, codes in zip(by_level(cells), full.codes, strict=False)]


def result(cells: np.ndarray, tree: Tree, stddev: float, rng: np.random.Generator) -> TreeMeasurement:
    """Noisy sums of cells at a tree's entries, with normal noise."""
    sums = np.bincount(tree.index.owner, np.add.reduceat(cells, tree.index.boundaries[:-1].astype(int)))
    return TreeMeasurement(tree, sums + rng.normal(0, stddev, len(sums)), np.full(len(sums), stddev**2))


def learned(users: float, *results: TreeMeasurement, guide: list[np.ndarray] | None = None) -> Posterior:
    """The posterior of all noisy counts, where the cohort is everybody."""
    full = FullTree.from_trees(*(one.tree for one in results))
    return infer(full, measure(full, results), users, 0.0, guide=guide)
