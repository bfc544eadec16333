"""What one user more in the logs changes in the adaptive grid, under the same key."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.baselines.range_methods import ag
from benchmarks.baselines.range_methods.ag import AdaptiveGrid
from sfumato.transforms.privacy.keys import RunKey
from tests.attacks.test_ranges_add_or_remove import KEY, neighbours
from tests.unit.ranges.oracle import spec_of


@pytest.mark.parametrize("seed", range(5))
def test_a_user_changes_one_coarse_and_one_fine_count(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ag looks twice: before noise each look differs by 1 in one count. Cuts follow from the noisy coarse counts."""
    real, looked = ag.add_noise, list[tuple[np.ndarray, float]]()

    def noisy(counts: np.ndarray, epsilon: float, key: RunKey, label: str) -> np.ndarray:
        looked.append((counts.ravel().copy(), epsilon))
        # The coarse noise of both is made such that both see the same noisy counts: then all else must be the same.
        return (
            real(np.zeros_like(counts), epsilon, key, label)
            if label == "ag coarse"
            else real(counts, epsilon, key, label)
        )

    monkeypatch.setattr(ag, "add_noise", noisy)
    without, with_them, _ = neighbours(seed)
    one, other = (AdaptiveGrid().collect(people, spec_of(12, 300.0, 0.5), KEY) for people in (without, with_them))
    for (before, first), (after, second) in zip(looked[:2], looked[2:], strict=True):
        assert (np.abs(after - before).sum(), first) == (1, second)
    assert looked[0][1] + looked[1][1] == 0.5  # exactly: both looks together cost all of epsilon
    for name in ("x0", "y0", "x1", "y1"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
