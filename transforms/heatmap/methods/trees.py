"""What methods that ask for the entries of trees share."""

from __future__ import annotations

import math

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.state import Answer, Estimate, HeatmapState
from sfumato.transforms.secagg.encodings import TreeEncoding

MAX_UNIFORM_LEVEL = 12  # 4096 x 4096 entries: what every entry of every shard costs bounds a complete level
LEAST_SHARE = 1e-4  # of epsilon, for a level: clear of the 1e-5 below which `schedule` asks nothing


def check_uniform(method: str, name: str, level: int) -> None:
    """Raises RequestError, for the option `name`, where a method asks for every cell of too fine a level."""
    if level > MAX_UNIFORM_LEVEL:
        raise RequestError(
            f"{name}: {method} asks for every cell of a level, at most level {MAX_UNIFORM_LEVEL}, got {level}"
        )


def tree_of(answer: Answer) -> Tree:
    """The tree whose entries were asked for. Raises TypeError where the sub-query asked for something else."""
    if not isinstance(answer.encoding, TreeEncoding):
        raise TypeError(f"the answer is not one of a tree but of {type(answer.encoding).__name__}")
    return answer.encoding.tree


def total_of(answer: Answer) -> Estimate:
    """An answer's users at each entry of its tree, over all categories, and their noise."""
    tree, noise = tree_of(answer), answer.spent.noise_stddev
    by_category = answer.counts.reshape(-1, len(tree.entries))
    categories = len(by_category)
    if categories == 1:
        return Estimate(tree, answer.counts, np.full(len(answer.counts), noise))
    each = np.full(len(tree.entries), noise)
    return Estimate(tree, by_category.sum(axis=0), math.sqrt(categories) * each, by_category, each)


def last_answer(state: HeatmapState) -> Estimate:
    """The map of the last sub-query alone."""
    return total_of(state.answers[-1])
