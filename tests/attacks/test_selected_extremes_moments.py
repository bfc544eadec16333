"""Moments: a place is listed as above or below the average only where it is.

Finding 13 of guarantee.md's table, for means by cell: the highest of many noisy means is high by chance. Before, every
page listed the five highest cells, whatever was known of them; these simulations fail on that code.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks.coverage_moments import listed
from tests.statistics import FLAKE_RATE

RUNS = 30


def wrong_lists(spread: float, clients: int, epsilon: float) -> tuple[int, int]:
    """Of so many runs, in how many a listed cell is on the other side; how many cells were listed in all."""
    wrong, all_listed = 0, 0
    for number in range(RUNS):
        differs, truth = listed(number, spread=spread, clients=clients, epsilon=epsilon)
        signs: NDArray[np.float64] = np.sign(truth)
        wrong += bool((differs != 0).any() and (signs[differs != 0] != differs[differs != 0]).any())
        all_listed += int(np.count_nonzero(differs))
    return wrong, all_listed


@pytest.mark.parametrize(("clients", "epsilon"), [(60_000, 2.0), (60_000, 0.5)])
def test_lists_hold_no_cell_that_is_not_truly_above_or_below(clients: int, epsilon: float) -> None:
    """Cells differ hardly: whatever is listed could as well be noise."""
    wrong, _ = wrong_lists(2.0, clients, epsilon)
    assert stats.binomtest(wrong, RUNS, 0.05, "greater").pvalue > FLAKE_RATE


@pytest.mark.slow
def test_cells_that_do_differ_are_listed() -> None:
    """Else an empty list would pass: cells deviate by 60, and are known to about 15."""
    wrong, all_listed = wrong_lists(60.0, 200_000, 4.0)
    assert stats.binomtest(wrong, RUNS, 0.05, "greater").pvalue > FLAKE_RATE
    assert all_listed > RUNS
