"""Noisy counts of trips by pair in an adaptive tree: the only place where flows get their noise. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.flows.count_posterior import posterior_counts
from sfumato.transforms.flows.flow_plan import FlowPlan
from sfumato.transforms.flows.pair_codes import Codes, count_prefixes
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.noise import discrete_laplace

_CHILDREN = np.arange(16, dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class MeasuredLevel:
    """The noisy counts of one level: all pairs of the first level, below it the 16 children of each split pair.

    Attributes:
        level: of the cells of a pair.
        nodes: uint64[n], codes of the pairs, in groups of 16 siblings.
        is_split: bool[n], whether a pair's children are measured in its place.
        noisy: int64[n], noisy counts of trips; 0 where a pair is split.
        rate: the noise has P[Z = k] proportional to e^(-rate |k|).
    """

    level: int
    nodes: Codes
    is_split: NDArray[np.bool_]
    noisy: NDArray[np.int64]
    rate: float


def measure_flows(
    codes: Codes, counts: NDArray[np.int64], bits: int, plan: FlowPlan, users: float, key: RunKey
) -> list[MeasuredLevel]:
    """Draws the noise of a release: everything that is made of the result is post-processing.

    A trip is in one pair of each measured level on its way to the pair that it ends in. A change of one trip costs the
    epsilons of these pairs over K, at most tree_epsilon / K together, and a user adds or removes at most K trips.

    Args:
        codes: uint64[n] ascending, distinct codes of pairs of level bits / 4, at least plan.depth.
        counts: int64[n], trips of each pair, at most plan.max_trips of each user.
        bits: of a code.
        plan: the budget.
        users: a noisy number of users.
        key: of the run's noise.
    """
    levels = plan.levels(users)
    # Another noise under one key would share the draws: the difference of two releases would have next to none.
    key = key.narrowed({"plan": asdict(plan), "levels": list(levels)})
    nodes = np.arange(16 ** levels[0], dtype=np.uint64)
    measured = []
    for splits, level in enumerate(levels):
        is_last = level == levels[-1]
        exact = count_prefixes(codes, counts, nodes, bits - 4 * level)
        is_split = np.zeros(len(nodes), dtype=bool)
        if not is_last:
            epsilon = plan.split_epsilon
            rough = exact + _noise(key, f"splits {level}", nodes, epsilon, plan)
            expected = posterior_counts(rough, epsilon / plan.max_trips, np.zeros(len(nodes), np.int64)).mean
            is_split = expected >= plan.split_limit(splits + 1, level + 1 == levels[-1])
        epsilon = plan.final_epsilon(splits, is_last)
        noisy = np.zeros(len(nodes), np.int64)
        noisy[~is_split] = exact[~is_split] + _noise(key, f"trips {level}", nodes[~is_split], epsilon, plan)
        measured.append(MeasuredLevel(level, nodes, is_split, noisy, epsilon / plan.max_trips))
        nodes = (nodes[is_split][:, None] << np.uint64(4) | _CHILDREN).ravel()
        if not len(nodes):
            break
    return measured


def _noise(key: RunKey, label: str, nodes: Codes, epsilon: float, plan: FlowPlan) -> NDArray[np.int64]:
    return discrete_laplace(key, label, nodes, 1, epsilon, plan.max_trips)[:, 0]
