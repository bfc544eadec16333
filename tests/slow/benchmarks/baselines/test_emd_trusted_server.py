"""The form of the EMD method that the paper analyses: its levels, their budgets, and its map without noise."""

from __future__ import annotations

import numpy as np

from benchmarks.baselines.emd_trusted_server import analysed_aggregate
from sfumato.transforms.heatmap.methods import Emd


def test_the_analysed_form_measures_every_level_by_its_weight() -> None:
    scales: list[tuple[float, int]] = []

    def noise(scale: float, count: int) -> np.ndarray:
        scales.append((scale, count))
        return np.zeros(count)

    sums = np.zeros((64, 64))
    sums[5, 9], sums[40, 50] = 30.0, 70.0
    found = analysed_aggregate(sums, 2.0, Emd(20, 0.8, "refined"), noise)
    np.testing.assert_allclose(found, sums / 100, atol=1e-12)
    weights = [0.8 ** abs(level - 2) for level in range(7)]
    np.testing.assert_allclose([1 / scale for scale, _ in scales], [2.0 * one / sum(weights) for one in weights])
    assert [count for _, count in scales] == [1, 4, 16, 64, 80, 80, 80]
