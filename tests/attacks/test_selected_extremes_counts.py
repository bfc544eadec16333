"""`--top` publishes the items whose noise came out high: their intervals, and those of the page, must allow for it.

A thousand items with equal counts are the worst case. Plain intervals of the ten highest hold the truth in 2% of cases.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato.transforms.histogram.central_counts import CentralCountPlan, NoisyHistogram, noisy_levels
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.statistics import FLAKE_RATE

COUNT, TOP, RELEASES = 100, 10, 500
# Of as many independent shares with a mean of 95%, the mean is below this with a probability below FLAKE_RATE.
LEAST = 0.95 - math.sqrt(-math.log(FLAKE_RATE) / (2 * RELEASES))


def released(items: int, plan: CentralCountPlan, number: int) -> NoisyHistogram:
    key = RunKey.derive(FixedSecret(b"the highest counts" * 2), {"number": number})
    counts = ItemCounts(np.arange(items, dtype=np.uint64), np.full(items, COUNT))
    return noisy_levels([counts], plan, key, (0,), TOP).levels[-1]


def held(one: NoisyHistogram) -> float:
    """The share of the intervals that hold the truth."""
    low, high = one.intervals
    return float(((low <= COUNT) & (high >= COUNT)).mean())


@pytest.mark.parametrize("noise", ["laplace", "truncated", "gaussian"])
@pytest.mark.parametrize("items", [11, 1000])
def test_intervals_of_the_highest_counts_hold(noise: str, items: int) -> None:
    plan = CentralCountPlan(noise=noise)
    assert np.mean([held(released(items, plan, number)) for number in range(RELEASES)]) > LEAST


@pytest.mark.parametrize(("noise", "delta"), [("laplace", 0.0), ("gaussian", 1e-8)])
def test_intervals_of_the_highest_public_counts_hold(noise: str, delta: float) -> None:
    plan = CentralCountPlan(delta=delta, domains=(1000,), noise=noise)
    assert np.mean([held(released(1000, plan, number)) for number in range(RELEASES)]) > LEAST


def test_intervals_that_forget_the_selection_do_not_hold() -> None:
    plan = CentralCountPlan()
    assert np.mean([held(replace(released(1000, plan, number), cut=None)) for number in range(RELEASES)]) < 0.1


def test_the_last_of_the_highest_counts_is_still_known() -> None:
    """It lies next to the cut, where the conditional interval alone reaches down to 1."""
    items = ItemCounts(np.arange(11, dtype=np.uint64), np.full(11, 10_000))
    key = RunKey.derive(FixedSecret(b"the highest counts" * 2), {})
    low, high = noisy_levels([items], CentralCountPlan(), key, (0,), TOP).levels[-1].intervals
    assert (low > 9_900).all()
    assert (high < 10_100).all()
