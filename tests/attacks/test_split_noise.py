"""Trust split: each of two servers adds the noise of the stated epsilon, once, so that either's noise is enough.

A server knows its own noise and subtracts it from what is published. These tests fail if the two share a stream, if
each adds half, or if a count of the release has the noise of one server only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.guarantee import Population, Trust
from sfumato.transforms.counting.methods import Adaptive, Flat
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.sub_queries import advance_run, first_state
from sfumato.transforms.histogram.central_counts import SplitCountPlan, noisy_levels
from sfumato.transforms.histogram.count_noise import CountNoise, ItemBound, TwoServerNoise
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.additive_noise import LaplaceNoise
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.quantiles import private_quantiles
from sfumato.transforms.quantiles.exponential_draw import SpreadUsers
from sfumato.transforms.quantiles.plan import SplitQuantilesPlan
from sfumato.transforms.quantiles.private_quantiles import measure_hierarchy
from sfumato.transforms.secagg.shard_sums import ShardTotals
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf

KEY = RunKey.derive(FixedSecret(b"two servers" * 3), {})
Drawn = list[tuple[NDArray[np.int64], float]]
"""Noise of both servers, int64[2, counts], and the epsilon of each of them."""


def heatmap_noise(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> tuple[Drawn, list[NDArray[np.int64]]]:
    """Returns the noise of every sub-query of a map of nobody, and what is published of each."""
    parameters = CountParameters(trust=Trust.SPLIT, epsilon=epsilon, depth=7, method=Flat(level=7))
    drawn: Drawn = []
    draw = LaplaceNoise.draw

    def spied(self: LaplaceNoise, key: RunKey, label: str, streams: NDArray[np.uint64], *rest: float) -> NDArray:
        noise = draw(self, key, label, streams, *rest)  # type: ignore[arg-type]
        assert len(set(streams.tolist())) == len(streams)
        drawn.append((noise, float(rest[1])))
        return noise

    monkeypatch.setattr(LaplaceNoise, "draw", spied)
    state = first_state(Population(1e6, "public"), parameters.budget, parameters)
    while state.query is not None:
        zeros = ShardTotals(np.zeros(state.query.encoding.length, dtype=np.int64), state.shard_plan.shards)
        state = advance_run(state, zeros, parameters, KEY)
    return drawn, [result.counts.astype(np.int64) for result in state.results]


def histogram_noise(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> tuple[Drawn, list[NDArray[np.int64]]]:
    drawn: list[NDArray[np.int64]] = []
    draw = CountNoise.draw

    def spied(self: CountNoise, key: RunKey, label: str, items: NDArray[np.uint64]) -> NDArray[np.int64]:
        drawn.append(draw(self, key, label, items))
        return drawn[-1]

    monkeypatch.setattr(CountNoise, "draw", spied)
    plan = SplitCountPlan(epsilon=epsilon, domains=(4**7,))
    nobody = ItemCounts(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))
    published = noisy_levels([nobody], plan, KEY, [0]).levels[0].noisy
    return [(np.array(drawn), plan.rounds_epsilon)], [published]


def quantile_noise(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> tuple[Drawn, list[NDArray[np.int64]]]:
    drawn: Drawn = []
    draw = private_quantiles.discrete_laplace

    def spied(key: RunKey, label: str, streams: NDArray[np.uint64], count: int, epsilon: float) -> NDArray[np.int64]:
        drawn.append((draw(key, label, streams, count, epsilon), epsilon))
        return drawn[-1][0]

    monkeypatch.setattr(private_quantiles, "discrete_laplace", spied)
    noise = SplitQuantilesPlan(epsilon, (0.5,), 14, "hierarchical", (13, 14)).hierarchy
    nobody = SpreadUsers(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 14)
    return drawn, measure_hierarchy(nobody, noise, KEY)


@pytest.mark.false_alarm(6e-9)
@pytest.mark.parametrize("noise_of", [heatmap_noise, histogram_noise, quantile_noise])
@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_each_server_adds_the_noise_of_epsilon_once(
    noise_of: Callable[[pytest.MonkeyPatch, float], tuple[Drawn, list[NDArray[np.int64]]]],
    epsilon: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, published = noise_of(monkeypatch, epsilon)
    assert len(drawn) == len(published) > 0
    assert sum(cost for _, cost in drawn) <= epsilon
    for (noise, cost), counts in zip(drawn, published, strict=True):
        assert noise.shape == (2, len(counts))
        assert np.array_equal(noise.sum(axis=0), counts)
        for server in noise:  # what is left of a count when the other server has subtracted its own
            assert chi_square_p(server, discrete_laplace_pmf(cost, 200)) > FLAKE_RATE
        correlation = np.corrcoef(noise)[0, 1] * math.sqrt(len(counts))
        assert abs(correlation) < stats.norm.isf(FLAKE_RATE / 2) * 1.1


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 3.0])
def test_stated_noise_of_both_servers_is_the_convolution(epsilon: float) -> None:
    reach = math.ceil(60 / epsilon)
    both = np.convolve(*[discrete_laplace_pmf(epsilon, reach)] * 2)
    k = np.arange(-2 * reach, 2 * reach + 1)
    noise = TwoServerNoise("laplace", epsilon, 0.0, ItemBound())
    assert noise.survival(k) == pytest.approx(both[::-1].cumsum()[::-1], abs=1e-12)
    assert noise.stddev == pytest.approx(math.sqrt((both * k**2).sum()), rel=1e-9)


def test_split_never_divides_users_between_sub_queries() -> None:
    """Also where the plan has exactly two shards, as many as there are servers."""
    for users in (5_000, 20_000, 1e6):
        parameters = CountParameters(trust=Trust.SPLIT, depth=6, method=Adaptive())
        state = first_state(Population(users, "public"), parameters.budget, parameters)
        while state.query is not None:
            assert state.query.shard_range is None
            assert state.query.servers == 2
            shards = state.shard_plan.shards
            zeros = ShardTotals(np.zeros(state.query.encoding.length, dtype=np.int64), shards)
            state = advance_run(state, zeros, parameters, KEY)
        for result in state.results:
            one = LaplaceNoise().stddev(result.cost)
            assert result.noise_stddev == pytest.approx(math.sqrt(2) * one)
