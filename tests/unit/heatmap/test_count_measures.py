"""What maps list: bounds that hold for all cells at once."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.heatmap import count_measures as module
from tests.seeds import seeded_rng


@pytest.mark.parametrize(("sums", "cells"), [(1, 1), (1, 1000), (20, 1000), (100, 30_000)])
def test_the_lists_bounds_hold_for_sums_of_laplace_noise(sums: int, cells: int) -> None:
    """Of the noise whose tails are the heaviest at this deviation, at most 2.5% exceed the bound in any cell."""
    rng = seeded_rng(3)
    noise = rng.laplace(size=(sums, 200_000)).sum(axis=0) / np.sqrt(2 * sums)
    bound = module.simultaneous_deviations(cells, sums)
    assert (noise > bound).mean() <= 0.025 / cells + 3 * np.sqrt(0.025 / cells / 200_000)
    assert bound < 4 * np.sqrt(2 * np.log(cells / 0.025)) + np.log(cells / 0.025) / np.sqrt(2 * sums)
