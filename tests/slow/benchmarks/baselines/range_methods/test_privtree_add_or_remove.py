"""What one user more in the logs changes in PrivTree, under the same key."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.range_methods import privtree
from benchmarks.baselines.range_methods.privtree import PrivTree
from sfumato.transforms.privacy.keys import RunKey
from tests.unit.ranges.oracle import people_at, run_key, spec_of


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
    """In 2,000 runs each. The exact probabilities are in test_privtree.py.

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
