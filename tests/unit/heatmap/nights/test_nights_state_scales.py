"""Scales of variances, learned from innovations of known variance."""

import numpy as np
import pytest

from sfumato.transforms.heatmap.nights.nights_state import VarianceScales
from tests.seeds import seeded_rng


@pytest.mark.parametrize("truth", [0.2, 1.0, 6.0])
def test_the_drift_is_learned(truth: float) -> None:
    """60 nights of 2,000 families. The scale's logarithm has a deviation of about 0.03; the test allows 0.25."""
    rng, scales = seeded_rng(1), VarianceScales()
    noise, drift = rng.gamma(2, 1, 2000), rng.gamma(1, 1, 2000)
    for _ in range(60):
        square = (rng.normal(size=(2000, 3)) ** 2).sum(axis=1) * (noise + truth * drift)
        scales = scales.learned(square, noise + scales.drift * drift, scales.drift * drift, np.zeros(2000))
    assert abs(np.log(scales.drift / truth)) < 0.25
    assert scales.night == 1


def test_one_wild_innovation_moves_little() -> None:
    ones = np.ones(100)
    moved = VarianceScales().learned(np.where(np.arange(100) == 3, 1e9, 3.0), ones, ones / 2, ones / 2)
    assert 1 < moved.drift < 1.6


def test_a_night_without_families_changes_nothing() -> None:
    none = np.zeros(0)
    assert VarianceScales().learned(none, none, none, none).drift == 1
