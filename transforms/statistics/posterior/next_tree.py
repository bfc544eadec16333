"""The tree to measure next: a node is split where the gain in detail is larger than the cost in noise. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.statistics.posterior.full_tree import FullTree, children_of
from sfumato.transforms.statistics.posterior.inference import FLAT, ROUGHNESS, SIGNAL, Energies, Posterior

Floats = NDArray[np.float64]

_SURPRISE = 0.1  # weight of the flat prior in the roughness of unmeasured families
_CONCENTRATION = 2.0  # see `next_tree`
_MIN_OWN_GAIN = 0.1  # of its cost, for a split to be a candidate; gains of its descendants may cover the rest
_MIN_COST = 0.02  # of the largest cost of a split: there may be users where none were measured
_ALWAYS_SPLIT = 2  # levels of nodes
_PRICE_STEPS, _PRICE_PRECISION = 40, 1.02  # of the bisection in `_smallest`


@dataclass(frozen=True)
class _Candidates:
    """Nodes of a level, measured or possible."""

    codes: NDArray[np.uint64]  # uint64[n], paths, ascending
    split: NDArray[np.bool_]  # bool[n], whether its children are among the candidates of the next level
    profit: Floats  # float64[n], gain less cost of splitting
    blur: Floats  # float64[n], squared error of an even spread over the children, without them; 0 where they are known


def next_tree(
    posterior: Posterior,
    noise: float,
    sampling: float,
    blur_weight: float,
    split_penalty: float,
    levels: int,
    remeasure: bool = False,
    max_nodes: int = 1 << 17,
    tolerance: float = 0.0,
) -> Tree:
    """Returns the full tree of largest total profit, without the branches that hardly reduce the map's error.

    Gains and costs are in squared users by area, where the region has the area 1. Let S be the energy of the contrast
    of a node's children, and E the noise energy in its measurement.

    - Gain: a measurement leaves S E / (S + E) of S unknown, so it gains S^2 / (S + E), on children of a quarter of the
      node's area.
    - Cost: the node's own sum becomes a sum of four noisy entries, which adds three noise variances. The noise energy
      in the contrast of its own family grows by 9/4 of one. Of this, (S / (S + E))^2 shows in the family's estimate, on
      nodes of the node's area. The family of its parent bears a quarter of that, and so do those above. A node's
      `pooled_noise` sums (S / (S + E))^2 over its ancestors' families, at a quarter for each level. Earlier
      measurements reduce it.

    A node is split where its profit and that of its descendants are together above 0, decided from below: the best
    pruning of the tree of candidates. Candidates on the first two levels are always split. Then a price of each split
    is raised as far as the expected error of the map grows by at most `tolerance` (see `_smallest`).

    Args:
        posterior: of the measurements so far.
        noise: variance of the noise in an entry of the next sub-query.
        sampling: as for `infer`.
        blur_weight: cost of a unit of blur, in units of the squared error that a split saves. 1 is even. A larger one
            makes smaller trees.
        split_penalty: minimum gain of a split beyond its blur, in units of `noise`.
        levels: the most levels by which a measured leaf is refined.
        remeasure: the posterior is of an earlier time, so all of it has to be measured again as if it were unknown.
        max_nodes: of the nodes of a level that were never measured, this many are candidates for a split: those with
            the best gain for the cost.
        tolerance: share by which the expected squared error of the map may grow for fewer entries.
    """
    full, known_error = posterior.full, 0.0
    pooled = _pooled_noise(posterior, noise, sampling)
    levels_of: list[_Candidates] = []
    below: list[Floats] | None = None  # columns of the nodes of this level that were never measured
    codes: NDArray[np.uint64] | None = None
    for level in range(full.depth + 1):
        here: list[tuple[NDArray[Any], ...]] = []
        if level < len(full.codes):
            age = np.where(full.leaves[level], 0, -1)
            here.append((full.codes[level], posterior.users[level], posterior.variance[level], pooled[level], age))
            if not remeasure:
                known_error += 4.0**level * float(posterior.variance[level][full.leaves[level]].sum())
        if codes is not None and below is not None:
            here.append((codes, *below))
        if not here:
            break
        parts = [np.concatenate(part) for part in zip(*here, strict=True)]
        order = np.argsort(parts[0], kind="stable")
        # age: levels below a measured leaf; -1 for nodes that have children.
        node_codes, users, variance, pooled_noise, age = (part[order] for part in parts)
        if level == full.depth:
            nothing = np.zeros(len(users))
            levels_of.append(_Candidates(node_codes, np.zeros(len(users), dtype=bool), nothing, nothing))
            break
        weights = _weights(posterior, level + 1, users, noise, sampling)
        energies = Energies(users**2 + variance, users, np.full(len(users), 3 * noise), sampling)
        gain = 4 * (weights * energies.signal * energies.kept).sum(axis=1)
        blur = 4 * (weights * energies.signal).sum(axis=1)
        has_children = age < 0
        if has_children.any() and not remeasure:
            gain[has_children] = _gain_of_remeasuring(posterior, level + 1, noise, sampling)
            blur[has_children] = 0.0
        cost = (blur_weight * 9 * np.maximum(pooled_noise, _MIN_COST) + split_penalty) * noise
        refined = ~has_children & (age < levels) & (gain > _MIN_OWN_GAIN * cost)
        if refined.sum() > max_nodes:  # pruning would remove most of the others anyway
            worth = np.where(refined, gain / cost, 0)
            refined &= worth > np.partition(worth, len(worth) - max_nodes - 1)[len(worth) - max_nodes - 1]
        profit, split = 4.0**level * (gain - cost), has_children | refined
        levels_of.append(_Candidates(node_codes, split, profit, 4.0**level * blur))
        codes, below = None, None
        if refined.any():
            # The effective users of a child, for the gain of its own split: a quarter, and more where families are
            # rough. The root mean square of four children is sqrt(1 + 4 rho) quarters, and the gain grows faster than
            # the square. So rho is multiplied by _CONCENTRATION, which was chosen on synthetic maps.
            rho = weights[refined] @ ROUGHNESS
            child_users = users[refined] / 4 * np.sqrt(1 + 4 * _CONCENTRATION * rho)
            shows = (weights[refined] * energies.kept[refined] ** 2).sum(axis=1)
            codes = children_of(node_codes[refined])
            below = [
                np.repeat(one, 4)
                for one in (child_users, variance[refined] / 16, (shows + pooled_noise[refined]) / 4, age[refined] + 1)
            ]
    return _smallest(full.depth, levels_of, known_error, tolerance)


def _weights(posterior: Posterior, level: int, users: Floats, noise: float, sampling: float) -> Floats:
    """Returns how common each roughness is among families of a level, by the nearest measured level: float64[n, 14]."""
    family = posterior.families[min(level, len(posterior.families) - 1)]
    strong = users > SIGNAL * np.sqrt(3 * noise + sampling * 0.75 * users)
    weights = np.tile(FLAT, (len(users), 1)) if family is None else family.weights[strong.astype(np.int64)]
    return (1 - _SURPRISE) * weights + _SURPRISE * FLAT


def _gain_of_remeasuring(posterior: Posterior, level: int, noise: float, sampling: float) -> Floats:
    """Returns the gain of measuring the families of a level again, in the order of their parents: float64[families]."""
    family = posterior.families[level]
    assert family is not None
    before = Energies(family.users**2, family.users, family.noise, sampling)
    both = 1 / (1 / family.noise + 1 / (3 * noise))
    after = Energies(family.users**2, family.users, both, sampling)
    return 4 * np.asarray((family.posterior * (before.unknown() - after.unknown())).sum(axis=1))


def _pooled_noise(posterior: Posterior, noise: float, sampling: float) -> list[Floats]:
    """Returns the `pooled_noise` of every node of the posterior, by level (see `next_tree`)."""
    full, finest = posterior.full, len(posterior.full.codes) - 1
    pooled_noise = [np.zeros(1)]
    for level in range(1, finest + 1):
        family = posterior.families[level]
        assert family is not None
        before = posterior.measured.variance[level]
        reduction = (before / (before + noise)) ** 2
        # If all of the finest level is measured again, a node here is the sum of 4^(finest - level) entries.
        variance = 1 / (1 / before + 1 / (noise * 4.0 ** (finest - level)))
        noisy = 3 * variance.reshape(-1, 4).mean(axis=1)
        kept = Energies(family.users**2, family.users, noisy, sampling).kept
        shows = (family.posterior * kept**2).sum(axis=1)
        pooled_noise.append(reduction * np.repeat(shows + pooled_noise[level - 1][full.parents[level]], 4) / 4)
    return pooled_noise


def _smallest(depth: int, levels: list[_Candidates], known_error: float, tolerance: float) -> Tree:
    """Returns the smallest tree on the line of best prunings whose expected error is above the least by at most a
    share.

    A price of each split moves along that line. The error of a tree is the blur of its nodes less the profit of its
    splits. Blur is counted for one level below each leaf. known_error: of the measured leaves, from the posterior.
    """
    tree, best_profit, blur = _prune(depth, levels)
    most = max(known_error + blur - best_profit, 0.0) * tolerance
    low, high = 0.0, max((float(one.profit.max()) for one in levels), default=0.0)
    if most <= 0 or high <= 0:
        return tree
    for _ in range(_PRICE_STEPS):
        price = math.sqrt(low * high) if low else high / 64
        found, profit, _ = _prune(depth, levels, price)
        if best_profit - profit <= most:
            low, tree = price, found
        else:
            high = price
        if high < _PRICE_PRECISION * low:
            break
    return tree


def _prune(depth: int, levels: list[_Candidates], price: float = 0.0) -> tuple[Tree, float, float]:
    """Returns the candidates' tree without the branches whose profit is below the price of their splits.

    Returns also the total profit of its splits, and the total blur of its nodes.
    """
    worth = np.zeros(len(levels[-1].codes))
    pays = [np.zeros(len(worth), dtype=bool)]
    for level in range(len(levels) - 2, -1, -1):
        nodes = levels[level]
        total = np.full(len(nodes.codes), -np.inf)
        total[nodes.split] = nodes.profit[nodes.split] - price + worth.reshape(-1, 4).sum(axis=1)
        pays.append(nodes.split if level < _ALWAYS_SPLIT else total > 0)
        worth = np.maximum(total, 0)
    pays.reverse()
    codes, profit, blur = [levels[0].codes], 0.0, 0.0
    for level, one in enumerate(levels):
        kept = np.isin(one.codes, codes[level], assume_unique=True)
        blur += float(one.blur[kept].sum())
        split = pays[level] & kept
        if not split.any():
            break
        profit += float(one.profit[split].sum())
        codes.append(children_of(one.codes[split]))
    return FullTree(depth, tuple(codes)).tree, profit, blur
