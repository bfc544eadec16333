"""Baselines of maps: local reports, PrivHP, the trusted server of paper 001, and k-median."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks.baselines.emd_trusted_server import analysed_aggregate
from benchmarks.baselines.heatmap_methods import AdaptiveGrid
from benchmarks.baselines.k_median import k_median, median_cost
from benchmarks.baselines.local_heatmap import RANDOMISED_RESPONSE, run_local, sum_reports
from benchmarks.baselines.privhp import privhp_density
from sfumato.transforms.counting.methods import Adaptive, Emd, Flat
from tests.seeds import seeded_rng

# The local baseline: its privacy by brute force, its errors, and the budgets of its rounds.

DEPTH, CLIENTS = 4, 20_000


def codes(seed: int) -> np.ndarray:
    rng = seeded_rng(seed)
    return np.where(rng.random(CLIENTS) < 0.3, 77, rng.integers(0, 256, CLIENTS)).astype(np.uint64)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_a_report_is_locally_private(epsilon: float) -> None:
    """Every vector that a client may send, for two cells of a tree of five entries: the largest ratio is e^epsilon."""
    flip = RANDOMISED_RESPONSE.flip(epsilon)
    most = 0.0
    for sent in itertools.product((0, 1), repeat=5):
        likelihood = [
            math.prod(1 - flip if bit == (entry == cell) else flip for entry, bit in enumerate(sent)) for cell in (0, 1)
        ]
        most = max(most, likelihood[0] / likelihood[1])
    assert math.isclose(most, math.exp(epsilon))


def test_sums_are_those_of_clients_who_flip_every_bit() -> None:
    rng, counts, epsilon, draws = seeded_rng(1), np.array([40, 0, 160]), 0.7, 4000
    flip = RANDOMISED_RESPONSE.flip(epsilon)
    bits = np.repeat(np.eye(3, dtype=bool), counts, axis=0)
    one_by_one = np.array([(bits ^ (rng.random(bits.shape) < flip)).sum(axis=0) for _ in range(draws)])
    by_client = (one_by_one - 200 * flip) / (1 - 2 * flip)
    summed = np.array([sum_reports(counts, 200, epsilon, rng) for _ in range(draws)])
    stddev = math.sqrt(200) * RANDOMISED_RESPONSE.stddev(epsilon)
    for found in (by_client, summed):
        assert (np.abs(found.mean(axis=0) - counts) < 6.2 * stddev / math.sqrt(draws)).all()
        assert (np.abs(found.std(axis=0) / stddev - 1) < 6.2 / math.sqrt(2 * draws)).all()
    assert RANDOMISED_RESPONSE.cost(RANDOMISED_RESPONSE.stddev(epsilon)) == pytest.approx(epsilon)


@pytest.mark.parametrize("method", [Adaptive(schedule="paper", estimator="last", sub_query_share=0.2), Adaptive()])
def test_no_client_spends_more_than_epsilon(method: Adaptive) -> None:
    state = run_local(codes(2), 1e6, method, DEPTH, 2.0, seeded_rng(3))
    assert len(state.results) > 1
    costs = [result.cost or 0.0 for result in state.results]
    if state.has_disjoint_shards:
        assert costs == [2.0] * len(costs)
        ranges = [result.shard_range for result in state.results]
        assert [first for first, _ in ranges[1:]] == [end for _, end in ranges[:-1]]  # type: ignore[misc]
    else:
        assert math.isclose(sum(costs), 2.0)
    for result in state.results:  # all clients are in the counts, within the noise of their total
        spread = result.noise_stddev * math.sqrt(len(result.counts))
        assert abs(result.counts.sum() - CLIENTS) < 6.2 * spread
        assert spread < CLIENTS


def test_counts_are_those_of_the_cells_with_the_stated_noise() -> None:
    clients = codes(4)
    state = run_local(clients, CLIENTS, Flat(), DEPTH, 1.0, seeded_rng(5))
    errors = state.results[0].counts - np.bincount(clients.astype(np.int64), minlength=256)
    assert abs(errors.std() / state.results[0].noise_stddev - 1) < 6.2 / math.sqrt(2 * 256)
    with pytest.raises(TypeError, match="adaptive_grid has encodings without prefixes"):
        run_local(clients, CLIENTS, AdaptiveGrid(), DEPTH, 1.0, seeded_rng(6))


# PrivHP: exact without noise, pruned, and private as it says.


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_privhp_adds_the_noise_of_its_budgets(epsilon: float) -> None:
    """Two cells: the root and one level below it, whose counters have Laplace noise of half of epsilon each."""
    sums, generator = np.array([1e4, 1e4]), seeded_rng(3)
    found = [privhp_density(sums, 2, epsilon, 8, 1, generator)[0] * 2e4 - 1e4 for _ in range(4000)]
    # A child is moved by half of both children's noise: (a - b) / 2 of two Laplace variates of scale 2 / epsilon.
    expected = 2 * 2 * (2 / epsilon) ** 2 / 4
    assert np.var(found) == pytest.approx(expected, rel=6 * math.sqrt(3.5 / 4000))


# The form of the EMD method that the paper analyses: its levels, their budgets, and its map without noise.


def test_the_analysed_form_measures_every_level_by_its_weight() -> None:
    scales: list[tuple[float, int]] = []

    def noise(scale: float, count: int) -> np.ndarray:
        scales.append((scale, count))
        return np.zeros(count)

    sums = np.zeros((64, 64))
    sums[5, 9], sums[40, 50] = 30.0, 70.0
    found = analysed_aggregate(sums, 2.0, Emd(20, 0.8, "refined"), noise)
    np.testing.assert_allclose(found, sums / 100, atol=1e-12)
    weights = [0.8 ** abs(level - 2) for level in range(7)]
    np.testing.assert_allclose([1 / scale for scale, _ in scales], [2.0 * one / sum(weights) for one in weights])
    assert [count for _, count in scales] == [1, 4, 16, 64, 80, 80, 80]


# Centres of least mean distance from the users of a map.


def test_k_median_finds_separate_towns() -> None:
    mass = np.zeros((64, 64))
    towns = [(10, 10), (50, 12), (30, 55)]
    for row, column in towns:
        mass[row - 1 : row + 2, column - 1 : column + 2] = 1.0
    found = k_median(mass, 3, seeded_rng(0))
    expected = sorted(((column + 0.5) / 64, (row + 0.5) / 64) for row, column in towns)
    np.testing.assert_allclose(sorted(found.tolist()), expected)
    assert median_cost(mass, found) == pytest.approx((4 * 1 + 4 * 2) / 9 / 64)
    assert median_cost(mass, found[:2]) > 5 * median_cost(mass, found)
