"""Algorithm 2 of paper 000 as it was before there were other schedules: against plain loops, and its figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.guarantee import Population
from sfumato.schemas.places import Places
from sfumato.transforms.heatmap.methods import Adaptive
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.posterior.estimator import density, estimate_density
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.schedule import advance, plan
from sfumato.transforms.heatmap.state import HeatmapState
from sfumato.transforms.locations.shards import ShardGroup, key_dtype
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.privacy.noise import discrete_laplace
from sfumato.transforms.secagg.shard_sums import ShardQuery, sum_shards
from tests.keys import earlier_key
from tests.seeds import seeded_rng

KEY = earlier_key(b"golden" * 5, {})
DEPTH = 8
RUNS: list[tuple[int, dict[str, Any]]] = [
    (10_000, {}),
    (30_000, {"dropout": 0.1}),
    (30_000, {"shard_size": 1000, "dropout": 0.3, "calibration": 0.05}),
    (20_000, {"shard_size": 5000, "noise_source": "client", "epsilon": 3.0, "split_count": 10.0,
              "sub_query_share": 0.1}),
    (20_000, {"epsilon": 0.3, "target": "printed"}),
    (20_000, {"shard_size": 1000, "dropout": 0.4, "population": 20_000, "epsilon": 8.0, "simulated_dropout": 0.1,
              "start_level": 2}),
]  # fmt: skip
# Vector length and epsilon of each sub-query, as the program gave them when it had no other schedule.
KNOWN = [
    [(4, 0.0116), (16, 0.0463), (64, 0.1851), (256, 0.7469)],
    [(4, 0.0066), (16, 0.0263), (64, 0.1053), (256, 0.4183), (1024, 0.4335)],
    [(4, 0.0416), (16, 0.1664), (64, 0.782)],
    [(4, 0.3), (16, 0.3), (64, 0.3), (256, 0.3), (970, 0.3), (2251, 0.3), (4448, 0.3), (6812, 0.3), (7029, 0.3),
     (7180, 0.27)],
    [(4, 0.0029), (16, 0.0118), (57, 0.042), (220, 0.2403)],
    [(16, 0.1011), (64, 0.4021), (256, 1.4802), (1024, 6.0166)],
]  # fmt: skip


def crowd(users: int, shards: int) -> ShardGroup:
    rng = seeded_rng(1)
    crowded, near = rng.random(users) < 0.7, (rng.normal(20_000, 3000, users) % 4**DEPTH).astype(np.int64)
    codes = np.where(crowded, near, rng.integers(0, 4**DEPTH, users))
    keys = (rng.integers(0, shards, users) << (2 * DEPTH)) | codes
    return ShardGroup(0, shards, Places(DEPTH), np.sort(keys.astype(key_dtype(Places(DEPTH)))))


def earlier_start(users: int, parameters: HeatmapParameters) -> HeatmapState:
    """A run's begin as it was: a public number of users cost nothing, and a noisy user count had a label of its own."""
    budget = Budget(parameters.epsilon)
    if parameters.population is not None:
        return plan(Population(float(parameters.population), "public"), budget, parameters)
    epsilon = parameters.admission().epsilon
    noise = discrete_laplace(KEY, "population", np.zeros(1, dtype=np.uint64), 1, epsilon)
    population = Population(float(users + noise[0, 0]), "noisy", epsilon, discrete_laplace_stddev(epsilon))
    return plan(population, budget.charge(epsilon), parameters)


def finish(users: int, parameters: HeatmapParameters) -> HeatmapState:
    state = earlier_start(users, parameters)
    group = crowd(users, state.cohort.shards)
    while state.query is not None:
        totals = sum_shards(group, state.query, KEY, parameters.shard_noise, parameters.simulated_dropout)
        state = advance(state, totals, parameters)
    return state


def paper(values: dict[str, Any]) -> HeatmapParameters:
    model = "planned" if values.get("trust") == "central" else "paper"
    own = {"depth": DEPTH, "schedule": "paper", "estimator": "last", "participation": model}
    return heatmap_parameters("adaptive", {**own, **values})


@pytest.mark.parametrize(("run", "known"), list(zip(RUNS, KNOWN, strict=True)))
def test_sub_queries_are_those_that_they_were(
    run: tuple[int, dict[str, Any]], known: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the noise that there was then, which knew the number of the sub-query alone."""
    users, values = run
    monkeypatch.setattr(ShardQuery, "bind", lambda _, key: key)
    state = finish(users, paper(values))
    assert [(one.spent.vector_length, round(one.spent.epsilon, 4)) for one in state.results] == known
    assert state.budget.spent == state.budget.total


def deviation(epsilon: float, unit: float) -> float:
    """Eq. 5, as it is printed."""
    beta = math.exp(-epsilon / unit)
    return math.sqrt(2 * beta) / (1 - beta) / unit


def epsilon_of(stddev: float, unit: float) -> float:
    """Eq. 8, as it is printed."""
    s = stddev * unit
    return -unit * math.log((s * s + 1 - math.sqrt(2 * s * s + 1)) / (s * s))


def entries_of(nodes: set[int]) -> list[int]:
    return sorted(node for node in nodes if not {4 * node + child for child in range(4)} <= nodes)


@pytest.mark.parametrize(
    "run", [*RUNS, (20_000, {"contribution": "all", "gamma": 100}), (10_000, {"trust": "central"})]
)
def test_trees_and_epsilons_follow_from_the_answers_by_the_printed_equations(run: tuple[int, dict[str, Any]]) -> None:
    users, values = run
    parameters = paper(values)
    state, method, unit = finish(users, parameters), parameters.method, parameters.distribution_gamma or 1
    assert isinstance(method, Adaptive)
    sums = 1 if parameters.is_central else state.cohort.shards
    nodes = {node for level in range(method.start_level + 1) for node in range(4**level, 2 * 4**level)}
    asked: list[set[int]] = []
    remaining = state.budget.total - state.population.epsilon
    for place, result in enumerate(state.results):
        assert set(result.tree.nodes.tolist()) == nodes
        entries = entries_of(nodes)
        assert result.tree.entries.tolist() == entries
        if method.sub_query_share is None:  # Eqs. 7 and 8, c U / T being two deviations of the sum over all shards
            two = 1 if method.target == "printed" else 2
            goal = method.calibration * state.cohort.users / len(entries) / two
            target = epsilon_of(goal / (1 if method.target == "printed" else math.sqrt(sums)), unit)
            enough = method.expansion * target <= remaining  # Eq. 9
        else:
            target = method.sub_query_share * state.budget.total
            enough = target < remaining
        final = nodes in asked or not enough or place + 1 == method.max_sub_queries
        assert math.isclose(result.spent.epsilon, remaining if final else target, rel_tol=1e-9)
        assert final == (place + 1 == len(state.results))
        remaining -= result.spent.epsilon
        asked.append(nodes)
        if final:
            break
        threshold = method.split_count or method.split_threshold * math.sqrt(sums) * deviation(remaining, unit)
        known = dict(zip(entries, result.counts.tolist(), strict=True))
        children = {4 * node + child for node, count in known.items() if count > threshold for child in range(4)}
        kept = {node for node in nodes if known.get(node, math.inf) > threshold / 4}
        nodes = {1} | kept | {node for node in children if node < 2 * 4**DEPTH}
    assert remaining == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("schedule", ["paper", "auto", "lean", "two_query"])
def test_the_last_answer_is_published_bit_for_bit(schedule: str) -> None:
    for values in ({}, {"simulated_dropout": 0.1, "dropout": 0.3}, {"shard_size": 1000, "dropout": 0.3}):
        parameters = paper({**values, "schedule": schedule})
        state = finish(20_000, parameters)
        made, last = parameters.method.decode(state, DEPTH), state.results[-1]
        assert made.tree == last.tree
        assert made.counts.tobytes() == last.counts.tobytes()
        assert made.stddev.tolist() == [last.spent.noise_stddev] * last.spent.vector_length
        assert made.slope == 0
        assert np.array_equal(estimate_density(made), density(made.tree, made.counts))


def test_another_estimator_asks_the_same() -> None:
    last, bayes = (finish(20_000, paper({"estimator": name})) for name in ("last", "bayes"))
    for one, other in zip(last.results, bayes.results, strict=True):
        assert one.spent == other.spent
        assert one.counts.tobytes() == other.counts.tobytes()
