"""The attack's stated deviations: 95% intervals covered 83 to 87% of sums of cells, 68 to 94% of populated cells.

Cells: `users_low` to `users_high` of cells that hold people. Sums: users and 1.96 deviations as `Release.total` gives
them. `python -m benchmarks.coverage` shows both on five maps.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.places import Places
from sfumato.transforms.heatmap.posterior.estimator import unbiased_counts
from sfumato.transforms.heatmap.posterior.unbiased import Z_95, user_intervals
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.unit.release.city import city_density

DEPTH, KEYS = 7, 40


def crowded(side: int) -> np.ndarray:
    """The made-up city, half of whose users are in 30 cells: posterior deviations are too small on such maps."""
    density = city_density(side).ravel()
    spots = seeded_rng(1).choice(side * side, 30, replace=False)
    density = density / density.sum() / 2
    density[spots] += 0.5 / 30
    return density


@pytest.mark.slow
@pytest.mark.parametrize(("users", "delta"), [(3_000, 0.0), (40_000, 0.0), (40_000, 1e-6)])
def test_cells_and_sums_of_cells_are_covered_as_stated(users: int, delta: float) -> None:
    """delta: above 0 with Gaussian noise."""
    side = 1 << DEPTH
    density, rng = crowded(side), seeded_rng(users)
    noise = {"delta": delta, "noise": "gaussian"} if delta else {}
    parameters = heatmap_parameters("adaptive", {"depth": DEPTH, "population": users, "epsilon": 1.0, **noise})
    places = Places(DEPTH)
    cells, sums = [], []
    for key in range(KEYS):
        codes = rng.choice(side * side, users, p=density).astype(np.uint64)
        hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), users, dtype=np.uint64)) << np.uint64(places.bits)
        run_key = RunKey.derive(FixedSecret(b"stated deviation"), {"key": key, "users": users})
        state = run_in_memory(Rows(places, hashes, codes), users, parameters, run_key)
        estimate = parameters.method.decode(state, DEPTH)
        index = estimate.tree.index
        entry = index.owner[np.searchsorted(index.boundaries, codes, side="right") - 1]
        truth = np.bincount(entry, minlength=len(estimate.counts))
        unbiased = unbiased_counts(estimate, state)
        low, high = user_intervals(unbiased.leaf_users, np.sqrt(unbiased.leaf_variances()))
        cells.append(np.mean(((low <= truth) & (truth <= high))[truth > 0]))
        # A stretch of the map in the order of its cells, of random length: neighbours, as in a polygon.
        first, last = np.sort(rng.choice(len(truth), 2, replace=False))
        inside = np.zeros(len(truth))
        inside[first : last + 1] = 1
        total, stddev = unbiased.total(inside)
        sums.append((total - truth @ inside) / max(stddev, 1e-9))
    # Of cells, errors are nearly independent: thousands of them, 0.95 plus what Laplace tails and whole numbers change.
    assert 0.925 <= np.mean(cells) <= 0.985
    # 40 independent sums: more than 7 outside, where 2 are expected, has a probability of 7e-4 if 95% are covered; and
    # their mean square, 1 with a standard error of sqrt(2 / 40) = 0.22 (0.3 with heavy tails), is below 2.
    assert np.sum(np.abs(sums) > Z_95) <= 7
    assert 0.3 < np.mean(np.square(sums)) < 2.0
