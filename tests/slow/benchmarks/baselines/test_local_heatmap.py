"""The local baseline: its privacy by brute force, its errors, and the budgets of its rounds."""

import itertools
import math

import numpy as np
import pytest

from benchmarks.baselines.heatmap_methods import AdaptiveGrid
from benchmarks.baselines.local_heatmap import RANDOMISED_RESPONSE, run_local, sum_reports
from sfumato.transforms.heatmap.methods import Adaptive, Flat
from tests.seeds import seeded_rng

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
    costs = [result.spent.epsilon or 0.0 for result in state.results]
    if state.has_disjoint_cohorts:
        assert costs == [2.0] * len(costs)
        ranges = [result.shard_range for result in state.results]
        assert [first for first, _ in ranges[1:]] == [end for _, end in ranges[:-1]]  # type: ignore[misc]
    else:
        assert math.isclose(sum(costs), 2.0)
    for result in state.results:  # all clients are in the counts, within the noise of their total
        spread = result.spent.noise_stddev * math.sqrt(len(result.counts))
        assert abs(result.counts.sum() - CLIENTS) < 6.2 * spread
        assert spread < CLIENTS


def test_counts_are_those_of_the_cells_with_the_stated_noise() -> None:
    clients = codes(4)
    state = run_local(clients, CLIENTS, Flat(), DEPTH, 1.0, seeded_rng(5))
    errors = state.results[0].counts - np.bincount(clients.astype(np.int64), minlength=256)
    assert abs(errors.std() / state.results[0].spent.noise_stddev - 1) < 6.2 / math.sqrt(2 * 256)
    with pytest.raises(TypeError, match="adaptive_grid has encodings without prefixes"):
        run_local(clients, CLIENTS, AdaptiveGrid(), DEPTH, 1.0, seeded_rng(6))
