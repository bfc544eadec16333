"""The tree without noise: exact counts, and every node of more than 10 users split, level by level."""

import numpy as np

from benchmarks.comparison import draw_cohort
from benchmarks.noiseless_tree import run_without_noise
from sfumato.schemas.tree import node_levels
from tests.seeds import seeded_rng


def test_counts_are_exact_and_large_nodes_are_split() -> None:
    truth = seeded_rng(2).poisson(np.linspace(0, 4, 32**2)).reshape(32, 32)
    rows, _ = draw_cohort(truth, 1500, 1)
    state = run_without_noise(rows, int(truth.sum()), 1)
    assert len(state.results) > 3
    for result in state.results:
        tree = result.tree
        exact = np.bincount(tree.index.owners(rows.codes), minlength=len(tree.entries))
        assert result.counts.tolist() == exact.tolist()
    last = state.results[-1]
    deepest = node_levels(last.tree.entries) == 5
    assert (last.counts[~deepest] <= 10).all()
