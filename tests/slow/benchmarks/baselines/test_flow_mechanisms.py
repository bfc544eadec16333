"""The other mechanisms for flows: exact without noise, and at their best with their best options."""

from __future__ import annotations

import numpy as np

from benchmarks.baselines.flow_mechanisms import density_grid, private_od, thresholded, uniform_grid
from sfumato.transforms.flows.user_trips import count_prefixes
from tests.seeds import seeded_rng
from tests.unit.flows.samples import BITS, clustered

CODES, COUNTS = clustered(5_000)
OF = (CODES, COUNTS, BITS)
EXACT = count_prefixes(CODES, COUNTS, np.arange(16**3, dtype=np.uint64), BITS - 12)
NOISELESS = 1e6


def test_without_noise_all_are_exact_at_the_level_that_they_count() -> None:
    rng = seeded_rng(0)
    assert np.array_equal(uniform_grid(*OF, 3, NOISELESS, rng), EXACT)
    assert np.array_equal(private_od(*OF, 4, NOISELESS, 1, rng, 3), EXACT)  # splits every pair with a trip
    assert np.array_equal(density_grid(*OF, 2, NOISELESS, 1e9, rng, 3)[EXACT > 0], EXACT[EXACT > 0])


def test_a_pair_that_is_not_split_is_spread_evenly() -> None:
    rng = seeded_rng(0)
    spread = private_od(*OF, 4, NOISELESS, 1e12, rng, 3)
    first = count_prefixes(CODES, COUNTS, np.arange(16, dtype=np.uint64), BITS - 4)
    assert np.allclose(spread, np.repeat(first / 256, 256))


def test_noise_has_the_size_of_the_budget() -> None:
    """The tree's levels share epsilon; the grid has all of it: mean absolute noise near 1 / epsilon."""
    rng = seeded_rng(1)
    nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64), BITS
    noise = np.abs(uniform_grid(*nothing, 3, 0.5, rng)).mean()
    assert abs(noise - 1 / np.sinh(0.5)) < 5 * 2.8 / 64
    tree = private_od(*nothing, 3, 0.5, -1e9, rng, 3)
    share = 0.5 * 2 / (2 ** (1 / 3) + 2 ** (2 / 3) + 2)
    assert abs(tree.mean() - 0.5 / np.sinh(share)) < 5 * 6 / 64  # negative counts are 0: half of the noise


def test_thresholds_take_small_counts_away() -> None:
    assert thresholded(np.array([-3.0, 0.0, 2.0, 5.0]), 4).tolist() == [0, 0, 0, 5]
    assert thresholded(np.array([-3.0, 2.0]), 0).tolist() == [0, 2]
