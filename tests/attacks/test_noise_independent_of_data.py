"""Attack 3 of the table: the noise of *other* cells showed who was there, because it grew with the survivors."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pytest

from benchmarks.evaluation.in_memory import Rows
from sfumato.schemas.places import Places
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.noise import discrete_laplace
from sfumato.transforms.secagg.shard_sums import NOTHING, ShardQuery, ShardTotals, planned_shards, sum_shards
from tests.admitted import count_population, start
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf

DEPTH = 8
KEY = RunKey.derive(FixedSecret(b"participant" * 3), {})


def crowd(users: int, seed: int = 0) -> Rows:
    """Users of random shards, all of them in the western half."""
    rng, low = seeded_rng(seed), np.uint64(2 * DEPTH)
    hashes = np.sort(rng.integers(0, 1 << 64, users, dtype=np.uint64)) >> low << low
    return Rows(Places(DEPTH), hashes, rng.integers(0, 4**DEPTH // 2, users).astype(np.uint64))


def with_one_more(rows: Rows) -> Rows:
    """The rows and a user in the last cell, whose hash is the largest."""
    last = np.uint64((1 << 64) - 4**DEPTH)
    return Rows(rows.places, np.append(rows.users, last), np.append(rows.codes, np.uint64(4**DEPTH - 1)))


def parameters_of(users: int, **values: Any) -> HeatmapParameters:
    own = {"depth": DEPTH, "population": users, "level": 4, "dropout": 0.05}
    return heatmap_parameters("flat", {**own, **values})


def answer(rows: Rows, parameters: HeatmapParameters, query: ShardQuery, key: RunKey) -> ShardTotals:
    cohort = start(0, parameters, key).cohort
    groups = rows.shard_groups(cohort)
    noise, dropout = parameters.shard_noise, parameters.simulated_dropout
    return functools.reduce(operator.add, [sum_shards(one, query, key, noise, dropout) for one in groups], NOTHING)


def query_of(users: int, parameters: HeatmapParameters, key: RunKey = KEY) -> ShardQuery:
    query = start(users, parameters, key).query
    assert query is not None
    return query


@pytest.mark.parametrize("noise", ["shard", "client"])
@pytest.mark.parametrize(("users", "shard_size"), [(20, 10_000), (300, 30), (300, 2), (0, 100)])
def test_a_user_more_moves_their_own_entry_alone(users: int, shard_size: int, noise: str) -> None:
    """Under one key all other entries are the same, number by number: their noise does not know of the user."""
    parameters = parameters_of(max(users, 200), shard_size=shard_size, noise_source=noise)
    query = query_of(users, parameters)
    rows = crowd(users)
    without, with_them = answer(rows, parameters, query, KEY), answer(with_one_more(rows), parameters, query, KEY)
    moved = np.zeros(query.encoding.length, dtype=np.int64)
    moved[-1] = 1
    assert np.array_equal(with_them.sums - without.sums, moved)
    assert with_them.live == without.live == start(0, parameters, KEY).cohort.shards


def test_in_the_papers_model_a_user_more_shows_in_other_entries() -> None:
    """The opposite: survivors above the required number add noise everywhere, and a lost shard comes to life."""
    surplus = parameters_of(200, shard_size=10_000, participation="paper", dropout=0.9)
    query = query_of(200, surplus)
    different = []
    for seed in range(20):
        rows = crowd(200, seed)
        both = [answer(one, surplus, query, KEY).sums[:-1] for one in (rows, with_one_more(rows))]
        different.append(not np.array_equal(*both))
    assert any(different)
    edge = parameters_of(200, shard_size=10_000, participation="paper", dropout=0)
    rows, query = crowd(199), query_of(200, edge)
    assert [answer(one, edge, query, KEY).live for one in (rows, with_one_more(rows))] == [0, 1]


@pytest.mark.parametrize("noise", ["shard", "client"])
@pytest.mark.parametrize("users", [0, 20, 5000])
def test_the_noise_is_discrete_laplace_of_the_stated_epsilon_whoever_is_there(users: int, noise: str) -> None:
    """No less with too few users, no more with too many: the shards are planned for 100."""
    epsilon, sample = 0.5, []
    parameters = parameters_of(100, shard_size=100, noise_source=noise, epsilon=epsilon)
    rows = crowd(users)
    for number in range(16):
        key = RunKey.derive(FixedSecret(b"participant" * 3), {"number": number})
        query = query_of(users, parameters, key)
        exact = sum(
            query.encoding.count(one, slice(0, one.shards)).sum(axis=0)
            for one in rows.shard_groups(start(0, parameters, key).cohort)
        )
        sample.append(answer(rows, parameters, query, key).sums - exact)
    drawn = np.concatenate(sample)
    assert len(drawn) == 16 * 256
    assert chi_square_p(drawn, discrete_laplace_pmf(query.epsilon, 60)) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(drawn, discrete_laplace_pmf(query.epsilon / scale, 60)) < FLAKE_RATE


def test_a_planned_shards_noise_is_one_draw_of_the_key() -> None:
    parameters = parameters_of(400, shard_size=100)
    query = query_of(400, parameters)
    shards = np.arange(4, dtype=np.uint64)
    drawn = discrete_laplace(query.bind(KEY), "shard noise 1", shards, query.encoding.length, query.epsilon)
    assert np.array_equal(answer(crowd(0), parameters, query, KEY).sums, drawn.sum(axis=0))


def test_lost_shards_depend_on_the_plan_alone() -> None:
    """300 users, dropout 0.3: the same shards are lost whether there are 0, 300 or 3,000 users, or one more."""
    parameters = parameters_of(300, shard_size=10, dropout=0.3, simulated_dropout=0.3)
    query = query_of(300, parameters)
    shards = start(0, parameters, KEY).cohort.shards
    kept = planned_shards(np.arange(shards, dtype=np.uint64), query, KEY, 0.3)
    assert 0 < kept.sum() < shards
    found = {answer(crowd(users), parameters, query, KEY).live for users in (0, 299, 300, 3000)}
    found.add(answer(with_one_more(crowd(300)), parameters, query, KEY).live)
    assert found == {int(kept.sum())}


def test_what_a_release_states_of_its_noise_depends_on_the_plan_alone() -> None:
    """Windows may follow the noisy count; the noise level, the shards and the epsilons may not."""
    from sfumato.transforms.heatmap.schedule import advance

    parameters = parameters_of(1000, shard_size=100)
    stated = set()
    for users in (0, 20, 1000, 5000):
        state = start(users, parameters, KEY)
        assert state.query is not None
        spent = advance(state, answer(crowd(users), parameters, state.query, KEY), parameters).results[0].spent
        stated.add((spent.epsilon, spent.noise_stddev, spent.shards, spent.shards_lost, spent.vector_length))
        assert count_population(users, parameters, KEY)[0].users == 1000
    assert len(stated) == 1
