"""The adaptive grid: cells, noise, and what one user more changes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.baselines.range_methods import ag
from benchmarks.baselines.range_methods.ag import AdaptiveGrid
from benchmarks.baselines.range_methods.partitions import Partition
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import ExactCounts, strip_edges
from tests.attacks.test_ranges_add_or_remove import KEY, neighbours
from tests.slow.benchmarks.baselines.range_methods.partition_checks import (
    assert_a_partition_by_key,
    collected,
    exact_users,
)
from tests.unit.ranges.oracle import people_at, spec_of, town

PEOPLE = town(6, 4000)
LARGEST = 60.0  # half of it is the largest that noise can keep


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
def test_parts_cover_the_field_once_by_key(epsilon: float) -> None:
    assert_a_partition_by_key(AdaptiveGrid(), PEOPLE, epsilon)


def test_cells_are_cut_by_the_rule() -> None:
    people = town(8, 300)
    found = collected(AdaptiveGrid(), people, LARGEST)
    m1 = max(10, math.ceil(math.sqrt(300 * LARGEST / 10) / 4))
    lines = strip_edges(256, 256 / m1)
    exact = people.on_grid(lines, lines)
    assert m1 == 11
    assert exact.max() > 10
    for row in range(m1):
        for column in range(m1):
            inside = (found.x0 >= lines[column]) & (found.x0 < lines[column + 1])
            inside &= (found.y0 >= lines[row]) & (found.y0 < lines[row + 1])
            m2 = max(1, math.ceil(math.sqrt(exact[row, column] * LARGEST / 2 / 5)))
            assert inside.sum() == m2**2
            widths = (found.x1 - found.x0)[inside]
            assert widths.max() - widths.min() <= 1
            assert found.x1[inside].max() == lines[column + 1]
            assert found.y1[inside].max() == lines[row + 1]


def per_key(method: AdaptiveGrid, people: ExactCounts, epsilon: float, keys: int) -> list[tuple[Partition, np.ndarray]]:
    found = [collected(method, people, epsilon, key) for key in range(keys)]
    return [(one, one.users - exact_users(one, people)) for one in found]


def z_of(ratios: np.ndarray, expected: float) -> float:
    """How many standard errors the mean over independent keys lies from what is expected."""
    return float((ratios.mean() - expected) / (ratios.std(ddof=1) / np.sqrt(len(ratios))))


@pytest.mark.parametrize("share", [0.5, 0.35])
def test_both_looks_have_the_noise_of_their_shares(share: float) -> None:
    """Cells of a few users are not cut, and two noisy counts of each are weighed by their inverse variances."""
    people = people_at(6, [5, 40], [9, 30])
    epsilon = 0.5
    runs = per_key(AdaptiveGrid(ag_share=share, ag_fine=1e6), people, epsilon, 100)
    assert all(len(one.users) == 100 for one, _ in runs)
    coarse, fine = share * epsilon, (1 - share) * epsilon
    w = coarse**2 / (coarse**2 + fine**2)

    def variance(first: float, second: float) -> float:
        return w**2 * discrete_laplace_stddev(first) ** 2 + (1 - w) ** 2 * discrete_laplace_stddev(second) ** 2

    ratios = np.array([np.mean(added**2) for _, added in runs])
    assert abs(z_of(ratios, variance(coarse, fine))) < 6.2
    for one, _ in runs:
        np.testing.assert_allclose(one.variance, variance(coarse, fine))
    for first, second in ((epsilon, fine), (coarse, epsilon)):
        assert abs(z_of(ratios, variance(first, second))) > 6.2


# What one user more in the logs changes in the adaptive grid, under the same key.


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
