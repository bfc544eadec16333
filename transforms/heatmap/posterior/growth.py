"""Which tree to measure next: a node is split where that tells more of its children than it blurs of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.contrasts import FLAT, ROUGHNESS, SIGNAL, Energies
from sfumato.transforms.heatmap.posterior.infer import Posterior
from sfumato.transforms.heatmap.posterior.levels import FullTree, children_of, to_children

_SURPRISE = 0.1  # share of unmeasured families that may be of any roughness, whatever was learned
_CONCENTRATION = 2.0  # see `_below`
_WORTH_A_LOOK = 0.1  # of its cost must a split gain at once; its children's gains may pay for the rest
_LEAST_COST = 0.02  # of the most that a split can cost: what no measurement has shown may still be there
_ALWAYS = 2  # levels of nodes that are always split


@dataclass(frozen=True)
class _Candidates:
    """Nodes of a level, there or supposed: paths uint64[n], ascending; users, variance, spoilt float64[n].

    spoilt: see `next_tree`. age: int64[n], levels below a measured leaf; -1 for nodes that have children. split:
    bool[n], whether its children are among the candidates of the next level; profit: float64[n], gain less cost of
    splitting.
    """

    codes: NDArray[np.uint64]
    users: NDArray[np.float64]
    variance: NDArray[np.float64]
    spoilt: NDArray[np.float64]
    age: NDArray[np.int64]
    split: NDArray[np.bool_]
    profit: NDArray[np.float64]


def next_tree(
    posterior: Posterior,
    noise: float,
    sampling: float,
    price: float,
    toll: float,
    levels: int,
    afresh: bool = False,
    most: int = 1 << 17,
) -> Tree:
    """The full tree of largest total profit.

    noise: variance of the noise in an entry of the next sub-query. sampling: as for `infer`. price: what a unit of
    blur costs, in units of the squared error that a split saves; 1 is even, more makes smaller trees. toll: what a
    split has to gain beside, in units of `noise`. levels: most by which a measured leaf is refined. afresh: the
    posterior is of an earlier time, so that what it says has to be measured again as if it never had been. most: of the
    nodes of a level that were never measured, so many are looked at, those with the best gain for the cost.

    All in squared users by area. Gain: the contrast of a node's children has energy S or so, of which S E / (S + E)
    stays unknown once it is measured with noise E: S^2 / (S + E) is gained where it was unknown, on children of a
    quarter of the node's area. Cost: the node's own sum is then one of four noisy entries, with three more variances;
    the noise energy in its family's contrast grows by 9/4 of one, of which (S / (S + E))^2 shows in the family's
    estimate, on nodes of the node's area; so for the family of its parent, at a quarter, and on. What was measured
    before lessens it. Each node's `spoilt` adds up (S / (S + E))^2 over its ancestors' families, at a quarter for each
    level. Then a node is split where its profit and its descendants' are together above 0, from below: the best pruning
    of the tree of candidates. The root and its children, where they are candidates, are split whatever it costs.
    """
    full = posterior.full
    old = _spoilt(posterior, noise, sampling)
    levels_of: list[_Candidates] = []
    coming: list[NDArray[np.float64]] | None = None
    codes: NDArray[np.uint64] | None = None
    for level in range(full.depth + 1):
        here: list[tuple[NDArray[Any], ...]] = []
        if level < len(full.codes):
            age = np.where(full.leaves[level], 0, -1)
            here.append((full.codes[level], posterior.users[level], posterior.variance[level], old[level], age))
        if codes is not None and coming is not None:
            here.append((codes, *coming))
        if not here:
            break
        parts = [np.concatenate(part) for part in zip(*here, strict=True)]
        order = np.argsort(parts[0], kind="stable")
        node_codes, users, variance, spoilt, age = (part[order] for part in parts)
        if level == full.depth:
            none = np.zeros(len(users), dtype=bool)
            levels_of.append(_Candidates(node_codes, users, variance, spoilt, age, none, np.zeros(len(users))))
            break
        weights = _weights(posterior, level + 1, users, noise, sampling)
        energies = Energies.of(users**2 + variance, users, np.full(len(users), 3 * noise), sampling)
        gain = 4 * (weights * energies.signal * energies.kept).sum(axis=1)
        there = age < 0
        if there.any() and not afresh:
            gain[there] = _gain_again(posterior, level + 1, noise, sampling)
        cost = (price * 9 * np.maximum(spoilt, _LEAST_COST) + toll) * noise
        supposed = ~there & (age < levels) & (gain > _WORTH_A_LOOK * cost)
        if supposed.sum() > most:  # the others would not be in the tree either, or not for long
            worth = np.where(supposed, gain / cost, 0)
            supposed &= worth > np.partition(worth, len(worth) - most - 1)[len(worth) - most - 1]
        levels_of.append(_Candidates(node_codes, users, variance, spoilt, age, there | supposed, gain - cost))
        codes, coming = None, None
        if supposed.any():
            below = _below(users[supposed], weights[supposed])
            shows = (weights[supposed] * energies.kept[supposed] ** 2).sum(axis=1)
            codes = children_of(node_codes[supposed])
            coming = [
                to_children(one)
                for one in (below, variance[supposed] / 16, (shows + spoilt[supposed]) / 4, age[supposed] + 1)
            ]
    return _prune(full.depth, levels_of)


def _below(users: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Users of each child of a node that was never measured, for what its own children may gain.

    A quarter, and more where families are rough: the root mean square of four children is sqrt(1 + 4 rho) quarters,
    and the gain grows faster than the square; _CONCENTRATION = 2, for 1, was chosen on synthetic maps.
    """
    return np.asarray(users / 4 * np.sqrt(1 + 4 * _CONCENTRATION * (weights @ ROUGHNESS)))


def _weights(
    posterior: Posterior, level: int, users: NDArray[np.float64], noise: float, sampling: float
) -> NDArray[np.float64]:
    """How common each roughness is among families of a level, as the nearest measured level has it: float64[n, 14]."""
    family = posterior.families[min(level, len(posterior.families) - 1)]
    strong = users > SIGNAL * np.sqrt(3 * noise + sampling * 0.75 * users)
    weights = np.tile(FLAT, (len(users), 1)) if family is None else family.weights.of(strong)
    return (1 - _SURPRISE) * weights + _SURPRISE * FLAT


def _gain_again(posterior: Posterior, level: int, noise: float, sampling: float) -> NDArray[np.float64]:
    """What measuring the families of a level once more gains, in the order of their parents: float64[families]."""
    family = posterior.families[level]
    assert family is not None
    before = Energies.of(family.users**2, family.users, family.noise, sampling)
    both = 1 / (1 / family.noise + 1 / (3 * noise))
    after = Energies.of(family.users**2, family.users, both, sampling)
    return 4 * np.asarray((family.posterior * (before.unknown() - after.unknown())).sum(axis=1))


def _spoilt(posterior: Posterior, noise: float, sampling: float) -> list[NDArray[np.float64]]:
    """For every node of the posterior, what splitting it blurs of its ancestors' families (see `next_tree`)."""
    full, finest = posterior.full, len(posterior.full.codes) - 1
    spoilt = [np.zeros(1)]
    for level in range(1, finest + 1):
        family = posterior.families[level]
        assert family is not None
        before = posterior.measured.variance[level]
        lessened = (before / (before + noise)) ** 2
        # Were all of the finest level measured again, a node here would be the sum of so many entries.
        variance = 1 / (1 / before + 1 / (noise * 4.0 ** (finest - level)))
        noisy = 3 * variance.reshape(-1, 4).mean(axis=1)
        kept = Energies.of(family.users**2, family.users, noisy, sampling).kept
        shows = (family.posterior * kept**2).sum(axis=1)
        spoilt.append(lessened * to_children(shows + spoilt[level - 1][full.parents[level]]) / 4)
    return spoilt


def _prune(depth: int, levels: list[_Candidates]) -> Tree:
    """The candidates' tree, cut where its branches do not pay."""
    worth = np.zeros(len(levels[-1].codes))
    wanted = [np.zeros(len(worth), dtype=bool)]
    for level in range(len(levels) - 2, -1, -1):
        one = levels[level]
        total = np.full(len(one.codes), -np.inf)
        total[one.split] = one.profit[one.split] + worth.reshape(-1, 4).sum(axis=1)
        wanted.append(one.split if level < _ALWAYS else total > 0)
        worth = np.maximum(total, 0)
    wanted.reverse()
    codes = [levels[0].codes]
    for level, one in enumerate(levels[:-1]):
        split = wanted[level] & np.isin(one.codes, codes[level], assume_unique=True)
        if not split.any():
            break
        codes.append(children_of(one.codes[split]))
    return FullTree(depth, tuple(codes)).tree
