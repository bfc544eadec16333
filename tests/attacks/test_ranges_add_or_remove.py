"""Attacks 2 and 3, for `sfumato ranges build`: what one user more in the logs changes, under the same key.

Adjacency is add or remove one user. Under one key the noise is the same, so two runs on logs that differ in one user
show all that the user changes: the count of the one part that holds them, by 1, before noise that the charge pays for.
How many parts there are, where they lie and what is planned follow from noisy values.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.build_steps import collect
from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.methods import ag, privtree
from sfumato.transforms.ranges.methods.ag import AdaptiveGrid
from sfumato.transforms.ranges.methods.privtree import PrivTree
from sfumato.transforms.ranges.noisy_counts import NoisyGrid
from tests.transforms.ranges.oracle import people_at, run_key, spec_of
from tests.transforms.ranges.test_ranges_plan import plan

KEY = RunKey.derive(FixedSecret(b"add or remove one user"), {"job": "ranges"})
ADMISSION = NoisyUserCounts(
    300.0, 0.0, 2.0**-7, discrete_laplace_stddev(2.0**-7)
)  # noisy, so that it may be the same for both


def neighbours(seed: int, users: int = 300) -> tuple[ExactCounts, ExactCounts, int]:
    """People, the same with one user more, and that user's cell."""
    codes = np.random.default_rng(seed).integers(0, 4**12, users + 1).astype(np.uint64)
    return ExactCounts.from_codes(12, codes[:-1]), ExactCounts.from_codes(12, codes), int(codes[-1])


@pytest.mark.parametrize("method", ["grid", "ug"])
@pytest.mark.parametrize("seed", range(5))
def test_a_user_changes_one_count_of_a_grid_by_one(method: str, seed: int) -> None:
    asked = plan(method, epsilon=0.5)
    without, with_them, code = neighbours(seed)
    one, other = (collect(people, ADMISSION, asked, KEY).counts for people in (without, with_them))
    assert isinstance(one, NoisyGrid)
    assert isinstance(other, NoisyGrid)
    np.testing.assert_array_equal(one.x_edges, other.x_edges)
    np.testing.assert_array_equal(one.y_edges, other.y_edges)
    held = ExactCounts.from_codes(12, np.array([code], np.uint64)).on_grid(one.x_edges, one.y_edges)
    np.testing.assert_array_equal(other.users - one.users, held)
    assert one.noise_stddev == other.noise_stddev


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


@pytest.mark.parametrize("method", ["grid", "ug", "ag", "privtree", "dawa", "auto"])
def test_no_plan_looks_at_the_exact_number_of_users(method: str) -> None:
    """With the same noisy number of users, 300 people and nobody are planned for alike."""
    asked = plan(method, epsilon=1.0)
    found = [
        collect(people, ADMISSION, asked, KEY)
        for people in (neighbours(0)[0], ExactCounts.from_codes(12, np.empty(0, np.uint64)))
    ]
    assert found[0].spec == found[1].spec
    assert found[0].population == found[1].population
    if method in ("grid", "ug", "auto"):
        assert found[0].counts.users.shape == found[1].counts.users.shape  # type: ignore[union-attr]


# --- what an observer counts: the size of a file, and whether anybody is there ---


def log_ratios(one: list[Any], other: list[Any], least: int) -> list[float]:
    """ln of how much oftener an outcome is in one than in the other, of outcomes that occur `least` times in both."""
    first, second = Counter(one), Counter(other)
    common = [value for value in first if min(first[value], second[value]) >= least]
    assert common
    return [math.log(first[value] / second[value]) for value in common]


def leaves_with_and_without(runs: int) -> list[list[int]]:
    """How many leaves PrivTree has in an empty field and with one user in it, at epsilon 1."""
    method, nobody = PrivTree(), people_at(3, np.empty(0), np.empty(0))
    return [
        [len(method.collect(people, spec_of(3, 1.0, 1.0), run_key(key)).users) for key in range(first, first + runs)]
        for people, first in ((nobody, 0), (people_at(3, np.array([5]), np.array([2])), runs))
    ]


def test_the_number_of_parts_tells_no_more_than_epsilon() -> None:
    """In 2,000 runs each. The exact probabilities are in tests/transforms/ranges/methods/test_privtree.py.

    An outcome that occurs k >= 200 times in both has an error of its logarithm of at most sqrt(2 / 200) = 0.1; six of
    them are exceeded with a probability below 1e-8. Half of epsilon pays for the tree.
    """
    assert max(map(abs, log_ratios(*leaves_with_and_without(2000), least=200))) <= 0.5 + 0.6


def test_a_split_by_exact_counts_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = privtree.add_noise

    def exact(counts: np.ndarray, epsilon: float, key: RunKey, label: str) -> np.ndarray:
        return counts if "level" in label else real(counts, epsilon, key, label)

    monkeypatch.setattr(privtree, "add_noise", exact)
    with pytest.raises(AssertionError):
        log_ratios(*leaves_with_and_without(300), least=30)
