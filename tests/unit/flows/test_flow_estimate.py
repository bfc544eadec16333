"""Estimates of flows: rows that hold every trip once, intervals that cover, and less error than the noisy counts."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.flows.flow_estimate import estimate_flows, rest_level
from sfumato.transforms.flows.flow_tree import FlowPlan, measure_flows
from tests.unit.flows.samples import BITS, DEPTH, clustered, key_of, released, truth

CODES, COUNTS = clustered(20_000)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_rows_of_a_coarse_pair_add_up_to_its_noisy_count(epsilon: float) -> None:
    levels = measure_flows(CODES, COUNTS, BITS, FlowPlan(epsilon, depth=DEPTH), 20_000, key_of(0))
    flows = estimate_flows(levels)
    within = rest_level(levels[0].level)
    assert flows.is_rest.sum() == 16**within
    coarse = (flows.pair >> (4 * (flows.level - within)).astype(np.uint64)).astype(np.int64)
    expected = np.zeros(16**within)
    for one in levels:
        np.add.at(expected, (one.nodes >> np.uint64(4 * (one.level - within))).astype(np.int64), one.noisy)
    assert np.allclose(np.bincount(coarse, flows.trips, 16**within), expected)
    assert np.allclose(np.bincount(coarse, flows.noisy, 16**within), expected)


def test_no_row_lies_in_another_but_in_its_rest() -> None:
    flows = released(CODES, COUNTS, 1.0, 1)
    listed = {
        (level, pair)
        for level, pair in zip(flows.level[~flows.is_rest].tolist(), flows.pair[~flows.is_rest].tolist(), strict=True)
    }
    assert len(listed) == (~flows.is_rest).sum()
    for level, pair in listed:
        assert not any((level - up, pair >> (4 * up)) in listed for up in range(1, level))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_intervals_of_flows_and_of_rests_cover(epsilon: float) -> None:
    """Of some thousand rows of 12 releases: 93 to 98%; of the 50 largest of each 91% or more (600 rows)."""
    held, top, rest = [], [], []
    for number in range(12):
        flows = released(CODES, COUNTS, epsilon, number)
        exact = truth(flows, CODES, COUNTS)
        inside = (flows.low <= exact) & (exact <= flows.high)
        listed = np.flatnonzero(~flows.is_rest)
        held.append(inside[listed])
        top.append(inside[listed[np.argsort(-flows.trips[listed])[:50]]])
        zero = flows.is_rest & (flows.trips < 0)
        rest.append(inside[flows.is_rest & ~zero])
    assert 0.93 < np.concatenate(held).mean() < 0.98
    assert np.concatenate(top).mean() > 0.91
    assert 0.92 < np.concatenate(rest).mean() < 0.99


@pytest.mark.slow
def test_noisy_sums_are_unbiased() -> None:
    """The total of 60 releases, and that of one coarse pair, within five standard errors of the truth."""
    totals, spread = [], []
    for number in range(60):
        flows = released(CODES, COUNTS, 1.0, 100 + number)
        totals.append(flows.trips.sum() - COUNTS.sum())
        spread.append(np.sqrt((flows.noise_stddev**2).sum()))
    z = np.array(totals) / np.array(spread)
    assert abs(z.mean()) < 5 / np.sqrt(60)
    assert 0.6 < z.std() < 1.45


def test_shrunk_flows_have_less_error_than_noisy_counts() -> None:
    flows = released(CODES, COUNTS, 0.5, 5)
    exact = truth(flows, CODES, COUNTS)
    listed = ~flows.is_rest
    assert np.abs(flows.trips - exact)[listed].sum() < np.abs(np.maximum(flows.noisy, 0) - exact)[listed].sum()


@pytest.mark.parametrize(("start", "expected"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_the_level_of_rests_is_public(start: int, expected: int) -> None:
    assert rest_level(start) == expected


def test_nothing_but_noise_lists_next_to_nothing() -> None:
    flows = released(np.zeros(0, np.uint64), np.zeros(0, np.int64), 1.0, 9)
    assert (~flows.is_rest).sum() <= 2
