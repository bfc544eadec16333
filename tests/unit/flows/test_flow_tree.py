"""The noisy tree: exact counts without noise, the noise's law, and one trip that changes what the budget says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sfumato.transforms.flows.flow_tree import FlowPlan, measure_flows
from sfumato.transforms.flows.user_trips import count_prefixes
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.flows.samples import BITS, DEPTH, clustered, key_of

CODES, COUNTS = clustered(20_000)


def test_with_next_to_no_noise_all_counts_are_exact_and_every_trip_is_counted_once() -> None:
    levels = measure_flows(CODES, COUNTS, BITS, FlowPlan(1000.0, depth=DEPTH), 20_000, key_of(0))
    assert len(levels) > 1
    total = 0
    for one in levels:
        kept = ~one.is_split
        exact = count_prefixes(CODES, COUNTS, one.nodes[kept], BITS - 4 * one.level)
        assert np.array_equal(one.noisy[kept], exact)
        assert (one.noisy[one.is_split] == 0).all()
        total += exact.sum()
    assert total == COUNTS.sum()
    for above, below in pairwise(levels):  # the children of split pairs, and no others
        assert np.array_equal(np.unique(below.nodes >> np.uint64(4)), above.nodes[above.is_split])
        assert len(below.nodes) == 16 * above.is_split.sum()


@pytest.mark.parametrize("max_trips", [1, 3])
def test_the_noise_is_discrete_laplace_of_the_stated_rate(max_trips: int) -> None:
    plan = FlowPlan(1.0, max_trips=max_trips, depth=DEPTH)
    levels = measure_flows(CODES, COUNTS, BITS, plan, 20_000, key_of(1))
    for splits, one in enumerate(levels):
        kept = ~one.is_split
        noise = one.noisy[kept] - count_prefixes(CODES, COUNTS, one.nodes[kept], BITS - 4 * one.level)
        expected = plan.final_epsilon(splits, one.level == plan.levels(20_000)[-1]) / max_trips
        assert one.rate == pytest.approx(expected)
        if len(noise) > 1000:
            assert chi_square_p(noise, discrete_laplace_pmf(one.rate, 80)) > FLAKE_RATE


def test_equal_keys_give_equal_noise_and_other_plans_give_other_noise() -> None:
    plan = FlowPlan(1.0, depth=DEPTH)
    first, again = (measure_flows(CODES, COUNTS, BITS, plan, 20_000, key_of(2)) for _ in range(2))
    assert all(np.array_equal(a.noisy, b.noisy) for a, b in zip(first, again, strict=True))
    nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for other in (FlowPlan(1.01, depth=DEPTH), FlowPlan(1.0, depth=DEPTH, max_bad_fraction=0.2)):
        one, two = (measure_flows(*nothing, BITS, one, 500, key_of(2))[0] for one in (plan, other))
        assert (one.noisy != two.noisy).mean() > 0.3  # draws of their own agree by chance, mostly where both are 0


def test_without_trips_there_is_noise_everywhere() -> None:
    (level,) = measure_flows(
        np.zeros(0, np.uint64), np.zeros(0, np.int64), BITS, FlowPlan(1.0, depth=2), 2_000, key_of(3)
    )
    assert len(level.noisy) == 256
    assert 0.2 < (level.noisy != 0).mean() < 0.9
