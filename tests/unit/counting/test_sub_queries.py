"""The state machine of sub-queries: budgets, refusals, and shards of which each answers one."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.evaluation.in_memory import Rows
from sfumato.schemas.errors import RefusedError, RequestError
from sfumato.schemas.region import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.methods import METHODS, Adaptive, Method
from sfumato.transforms.counting.methods.adaptive import target_cost, update_tree
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import make_plan
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, Query
from sfumato.transforms.counting.sub_queries import advance, check_first_query, first_state
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.locations.shards import Participation, ShardGroup, ShardPlan, key_dtype
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.shard_sums import NOTHING, ShardQuery, ShardTotals, sum_shards
from tests.admitted import count_population, start
from tests.keys import earlier_key
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.counting.methods.oracle import group_of

KEY = RunKey.derive(FixedSecret(b"schedule" * 4), {})


PAPER = Adaptive(schedule="paper", estimator="last")


def finish(parameters: CountParameters, users: int, shares: np.ndarray):
    """Runs the state machine on noiseless counts that follow `shares`, float64[2^d * 2^d] by code."""
    state = start(users, parameters, KEY)
    total = np.concatenate(([0], np.cumsum(shares))) * users
    while state.query:
        index = state.query.encoding.tree.index
        below = np.round(total[(index.boundaries >> np.uint64(2 * (parameters.depth - 6))).astype(int)])
        sums = index.sum_intervals(np.diff(below.astype(np.int64))[None, :])[0]
        state = advance(state, ShardTotals(sums, state.shard_plan.shards), parameters)
    return state


def even_shares() -> np.ndarray:
    return np.full(4**6, 4.0**-6)


def test_papers_run_of_10_000_users() -> None:
    """Paper 000, Table 1 and Appendix A: vector length 340 = 4 + 16 + 64 + 256, and 0.76 left for the last.

    The paper does not count its users; here a hundredth of epsilon is for that, besides its 1.
    """
    state = finish(CountParameters(population=10_000, epsilon=1 / 0.99, dropout=0, method=PAPER), 10_000, even_shares())
    assert [a.vector_length for a in state.results] == [4, 16, 64, 256]
    assert round(state.results[-1].cost, 2) == 0.76


@given(
    st.floats(0.01, 10),
    st.integers(100, 10**7),
    st.floats(0.01, 2),
    st.integers(1, 12),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_papers_spending_ends_equal_to_the_budget(
    epsilon: float, users: int, calibration: float, stages: int, seed: int, public: bool
) -> None:
    parameters = CountParameters(
        depth=6,
        epsilon=epsilon,
        shard_size=1000,
        method=replace(PAPER, calibration=calibration, max_sub_queries=stages),
        population=users if public else None,
    )
    shares = seeded_rng(seed).dirichlet(np.full(4**6, 0.05))
    state = finish(parameters, users, shares)
    charges = [a.cost for a in state.results] + [state.population.cost]
    assert math.fsum(charges) == epsilon
    assert state.budget.spent == epsilon
    assert len(state.results) <= stages
    for so_far in range(len(state.budget.charges)):
        assert math.fsum(state.budget.charges[:so_far]) <= epsilon


@pytest.mark.parametrize(
    ("users", "printed"),
    [
        (10_000, [0.01131364816007492, 0.04525097313957988, 0.18077309093243188]),
        (100_000, [0.003577706855891111, 0.014310712939686405, 0.05723552747969013, 0.22847608844135425]),
    ],
)
def test_target_cost_is_what_the_authors_printed(users: int, printed: list[float]) -> None:
    """Eqs. 7 and 8 with c = 0.1 on complete levels: the outputs in ebagdasa/location-heatmaps, commit 5aaf63c."""
    state = start(users, CountParameters(population=users), KEY)
    assert np.allclose([target_cost(state, 4**n, 0.1) for n in range(1, len(printed) + 1)], printed, rtol=1e-9)


def test_ablations_split_by_a_count_and_spend_equal_shares() -> None:
    """Paper 000, Table 3: a fixed epsilon of 0.1 a level and a fixed threshold of 10 users."""
    method = replace(PAPER, split_count=10, sub_query_share=0.1)
    state = finish(CountParameters(population=10_000, epsilon=1, dropout=0, method=method), 10_000, even_shares())
    spent = [a.cost for a in state.results]
    assert [round(one, 9) for one in spent[:-1]] == [0.1] * (len(spent) - 1)
    assert math.fsum([*spent, state.population.cost]) == 1.0
    assert [a.vector_length for a in state.results][:5] == [4, 16, 64, 256, 1024]
    sizes = {len(a.counts) for a in state.results}
    assert max(sizes) == 1024  # 10,000 / 1024 users a cell are fewer than 10


def test_update_tree_splits_and_collapses_by_threshold() -> None:
    tree = Tree.uniform(4, 1)  # entries 4, 5, 6, 7
    updated = update_tree(tree, np.array([20.001, 20.0, 5.001, 5.0]), threshold=20)
    assert updated.nodes.tolist() == [1, 4, 5, 6, 16, 17, 18, 19]
    assert updated.entries.tolist() == [1, 5, 6, 16, 17, 18, 19]  # the root owns what node 7 left


def test_lost_shards_are_made_up_for_and_counted() -> None:
    parameters = CountParameters(population=100_000, method=PAPER)
    state = start(100_000, parameters, KEY)
    state = advance(state, ShardTotals(np.full(4, 20_000), 8), parameters)
    assert state.results[0].counts.tolist() == [25_000] * 4
    assert state.results[0].shards_lost == 2
    whole = advance(start(100_000, parameters, KEY), ShardTotals(np.full(4, 25_000), 10), parameters)
    ratio = state.results[0].noise_stddev / whole.results[0].noise_stddev
    assert math.isclose(ratio, 10 / 8 * math.sqrt(8 / 10))


def test_central_noise_reveals_the_users_by_its_counts_only() -> None:
    """A public population far above the number of users must not show that number. Only noisy counts may differ."""
    parameters = CountParameters(population=10**8, trust="central", method=PAPER)
    states = [
        advance(start(users, parameters, KEY), ShardTotals(np.full(4, users), live), parameters)
        for users, live in ((10, 640), (11, 704), (0, 0))
    ]
    assert len({(str(one.results[0].entry()), one.budget, one.shard_plan) for one in states}) == 1
    assert states[0].results[0].shards_lost == 0
    assert states[0].results[0].counts.tolist() == [10.0] * 4  # not scaled: no shard is spoken for


@pytest.mark.parametrize(
    ("schedule", "categories", "epsilon", "limit"),
    [("auto", 1, 0.3, 48), ("auto", 3, 25.0, 300), ("two_query", 1, 25.0, 300), ("lean", 3, 1.0, 300)],
)
def test_no_sub_query_has_more_entries_than_are_allowed(
    schedule: str, categories: int, epsilon: float, limit: int
) -> None:
    """However little noise there is: then hardly any price is too high."""
    shares = seeded_rng(4).dirichlet(np.full(4**6, 0.05))
    codes = seeded_rng(5).choice(4**6, 5000, p=shares) | np.arange(5000) % categories << 12
    places = Places(6, categories)
    shards = np.arange(5000) // 1000 << places.bits
    group = ShardGroup(0, 5, places, np.sort((shards | codes).astype(key_dtype(places))))
    for choice in ("shared", "disjoint"):
        values = {"depth": 6, "population": 5000, "shard_size": 1000, "dropout": 0.2, "epsilon": epsilon}
        values |= {"schedule": schedule, "max_entries": limit, "shards": choice}
        state, _ = run([group], heatmap_parameters("adaptive", values, categories), 5000, KEY)
        assert max(result.vector_length for result in state.results) <= limit
        assert state.budget.spent == epsilon


@given(st.sampled_from(sorted(METHODS)), st.floats(0.01, 30), st.integers(1, 10**7), st.sampled_from(["one", "all"]))
@settings(max_examples=30, deadline=None)
def test_check_plan_accepts_only_plans_that_end(method: str, epsilon: float, gamma: int, contribution: str) -> None:
    """Whatever is refused is refused at once; and what runs spends no more than its budget."""
    values = {"depth": 5, "epsilon": epsilon, "gamma": gamma, "contribution": contribution, "users": 20_000}
    parameters = heatmap_parameters(method, values)
    try:
        check_first_query(parameters)
    except RequestError:
        return
    made = make_plan(parameters)
    assert made.spent <= made.state.budget.spent <= epsilon
    assert max(one.cost for one in made.sub_queries) <= made.spent
    assert made.state.query is None


@pytest.mark.parametrize("model", get_args(Participation))
def test_refusal_without_live_shards_states_public_figures_only(model: Participation) -> None:
    parameters = CountParameters(population=100_000, participation=model)
    told = set()
    for users in (5, 100_000):
        state = start(users, parameters, KEY)
        with pytest.raises(RefusedError) as caught:
            advance(state, ShardTotals(np.zeros(4, dtype=np.int64), 0), parameters)
        told.add(str(caught.value))
    assert len(told) == 1


@pytest.mark.false_alarm(3e-9)
def test_count_of_the_population_is_private_and_paid_for() -> None:
    """Over 3,000 keys the count has the noise of the epsilon that it is charged, and not 0.7 or 1.3 of it.

    The last count, with noise of epsilon 0.01, is exact with a probability of 0.005, so not all
    of four counts are; it is more than 2,300 off with a probability of e^-23.
    """
    parameters = CountParameters(epsilon=2, population_share=0.25)
    keys = [RunKey.derive(FixedSecret(b"population" * 3), {"i": i}) for i in range(3000)]
    counts = [count_population(50_000, parameters, key)[0].users for key in keys]
    noise = np.array(counts).astype(np.int64) - 50_000
    assert chi_square_p(noise, discrete_laplace_pmf(0.5, 60)) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(noise, discrete_laplace_pmf(0.5 / scale, 60)) < FLAKE_RATE
    state = start(50_000, parameters, KEY)
    assert state.budget.charges == (0.5,)
    assert state.population.cost == 0.5
    # A public figure is counted as well, and planned from.
    known = [start(50_000, CountParameters(population=49_000), key) for key in keys[:4]]
    for one in known:
        assert one.budget.charges == (one.population.cost,)
        assert math.isclose(one.population.cost, 0.01)
        assert (one.population.users, one.population.source, one.shard_plan.users) == (49_000, "public", 49_000)
        assert abs((one.population.counted or 0) - 50_000) < 2300
    assert any(one.population.counted != 50_000 for one in known)


COHORTS_KEY = earlier_key(b"cohorts" * 5, {})


DEPTH = 6


Part = tuple[float, float] | None


@dataclass(frozen=True)
class Asking(Method):
    """Asks one level of one part after the other."""

    NAME: ClassVar[str] = "asking"
    TEXT: ClassVar[str] = "a level, part by part"

    parts: tuple[Part, ...] = ((0, 0.25), (0.25, 1))
    cost: float = ALL_REMAINING
    level: int = 2

    def most_sub_queries(self, depth: int) -> int:
        return len(self.parts)

    def next_query(self, state: CountState, depth: int) -> Query | None:
        done = len(state.results)
        if done == len(self.parts):
            return None
        return Query(TreeEncoding(Tree.uniform(depth, self.level)), self.cost, self.parts[done])

    def decode(self, state: CountState, depth: int) -> Estimate:
        return state.results[-1].to_estimate()


def crowd(users: int, seed: int = 0) -> Rows:
    """Users of random hashes, half of them crowded into a few cells."""
    rng = seeded_rng(seed)
    codes = np.where(rng.random(users) < 0.5, rng.choice(rng.integers(0, 4**DEPTH, 5), users), 0)
    codes = np.where(codes == 0, rng.integers(0, 4**DEPTH, users), codes).astype(np.uint64)
    low = np.uint64(2 * DEPTH)
    return Rows(Places(DEPTH), np.sort(rng.integers(0, 1 << 64, users, dtype=np.uint64)) >> low << low, codes)


def one_more(rows: Rows, position: float) -> Rows:
    """The rows and one user more, at a place of the hash in [0, 1)."""
    low = 2 * DEPTH
    user = np.uint64(int(position * 2.0**64) >> low << low)
    at = int(np.searchsorted(rows.users, user))
    return Rows(rows.places, np.insert(rows.users, at, user), np.insert(rows.codes, at, np.uint64(77)))


def run(
    groups: Sequence[ShardGroup], parameters: CountParameters, users: int | None = None, key: RunKey | None = None
) -> tuple[CountState, list[ShardQuery]]:
    """The final state over these groups, and its queries."""
    key = key or COHORTS_KEY
    there = sum(int(group.sizes().sum()) for group in groups) if users is None else users
    state, queries = start(there, parameters, key), []
    while state.query is not None:
        queries.append(state.query)
        state = advance(state, total(groups, state.query, parameters, key), parameters)
    return state, queries


def total(groups: Sequence[ShardGroup], query: ShardQuery, parameters: CountParameters, key: RunKey) -> ShardTotals:
    parts = [
        sum_shards(group, query, key, parameters.shard_noise_source, parameters.simulated_dropout) for group in groups
    ]
    return functools.reduce(operator.add, parts, NOTHING)


def disjoint(users: int, shards: int, **changes: object) -> CountParameters:
    values = {"depth": DEPTH, "population": users, "shard_size": max(2, users // shards), "dropout": 0.5, **changes}
    return heatmap_parameters("adaptive", {"shards": "disjoint", **values})


def even(shards: int, size: int) -> ShardGroup:
    """Shards of exactly so many users."""
    rng = seeded_rng(3)
    return group_of([(s, int(c), 1) for s in range(shards) for c in rng.integers(0, 4**DEPTH, size)], shards, DEPTH)


def ten_shards(parts: tuple[Part, ...]) -> CountParameters:
    return CountParameters(depth=DEPTH, population=1000, shard_size=100, method=Asking(parts, cost=0.3))


def eight_shards(*parts: Part, **changes: Any) -> CountParameters:
    values = {"depth": DEPTH, "population": 800, "shard_size": 100, "dropout": 0.5, **changes}
    return CountParameters(method=Asking(parts or Asking().parts), **values)


@pytest.mark.parametrize(("shards", "depth"), [(2, DEPTH), (40, DEPTH), (7, 12)])
def test_every_shard_answers_exactly_one_sub_query(shards: int, depth: int) -> None:
    users = 100 * shards
    rows, parameters = crowd(users), disjoint(users, shards, depth=depth)
    if depth > DEPTH:
        low = np.uint64(2 * depth)
        rows = Rows(Places(depth), rows.users >> low << low, rows.codes << np.uint64(2 * (depth - DEPTH)))
    state = start(users, parameters, COHORTS_KEY)
    assert state.shard_plan.shards == shards
    state, queries = run(rows.shard_groups(state.shard_plan), parameters)
    assert len(queries) == min(shards, 2 if depth == DEPTH else 3)
    covered = [number for result in state.results for number in range(*result.shard_range or ())]
    assert covered == list(range(shards))
    # What is said to have been asked, and what a shard does when it is asked.
    for number in range(shards):
        alone = ShardGroup(number, 1, Places(depth), np.zeros(300, dtype=np.uint64))
        results = [sum_shards(alone, query, COHORTS_KEY) for query in queries]
        assert [one.live for one in results].count(1) == 1
        assert sum(one.live for one in results) == 1
        for one, query in zip(results, queries, strict=True):
            first, last = query.shard_range or (0, 0)
            assert one.live == (first <= number < last)
            assert one.live or not one.sums.any()


@pytest.mark.parametrize(
    "parts",
    [
        ((0, 0.5), (0, 0.5)),  # again
        ((0, 0.5), (0.4, 1)),  # overlapping
        ((0.5, 0.8), (0, 0.5)),  # backwards: not known to be free
        ((0, 0.3), (0.3, 0.6), (0.5, 1)),
        (None, (0, 0.5)),  # all have answered
        ((0, 0.5), None),
        ((0, 0.01),),  # no shard
        ((0.5, 0.5),),
        ((0.5, 0.4),),
        ((-0.1, 0.5),),  # beyond the shards
        ((0, 1.2),),
        ((1.0, 1.1),),
    ],
)
def test_advance_raises_where_anybody_is_asked_twice(parts: tuple[Part, ...]) -> None:
    with pytest.raises(ValueError, match="shard_fractions"):
        run([even(10, 100)], ten_shards(parts), 1000)


@pytest.mark.parametrize("shards", [2, 40])
def test_one_user_more_changes_the_answers_of_one_sub_query(shards: int) -> None:
    """Neighbouring inputs under one key: the same questions, and all results but their own bit for bit the same."""
    users = 100 * shards
    rows, parameters = crowd(users), disjoint(users, shards)
    noiseless = replace(parameters, trust="central", method=Asking())
    shard_plan = start(users, parameters, COHORTS_KEY).shard_plan
    state, queries = run(rows.shard_groups(shard_plan), parameters)
    for position in (0.001, 0.05, 0.3, 0.999):
        more = one_more(rows, position).shard_groups(shard_plan)
        ranges = [one.shard_range or (0, 0) for one in queries]
        own = next(i for i, (first, last) in enumerate(ranges) if first <= position * shards < last)
        for number, query in enumerate(queries):
            both = rows.shard_groups(shard_plan), more
            before, after = (total(groups, query, parameters, COHORTS_KEY) for groups in both)
            exact = [total(groups, query, noiseless, COHORTS_KEY).sums for groups in both]
            assert after.live == before.live
            assert np.abs(exact[1] - exact[0]).sum() == (number == own)
            assert number == own or np.array_equal(after.sums, before.sums)
        # In a whole run later queries may depend on this user; earlier ones do not.
        new, _ = run(more, parameters)
        for old, one in list(zip(state.results, new.results, strict=True))[:own]:
            assert one.encoding == old.encoding
            assert np.array_equal(one.counts, old.counts)


def respond(state: CountState, rng: np.random.Generator) -> ShardTotals:
    assert state.query is not None
    first, last = state.query.shard_range or (0, state.shard_plan.shards)
    return ShardTotals(rng.poisson(10, state.query.encoding.length).astype(np.int64), last - first)


@given(
    st.floats(0.01, 20),
    st.integers(1, 40),
    st.booleans(),
    st.lists(st.floats(0.05, 0.95), max_size=4, unique=True),
    st.sampled_from([ALL_REMAINING, 0.001, 0.5]),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_each_part_has_the_whole_rest_of_the_budget(
    epsilon: float, shards: int, public: bool, borders: list[float], cost: float, last_too: bool
) -> None:
    places = sorted({0, *(round(border * shards) for border in borders), *([shards] if last_too else [])})
    parts = tuple((a / shards, b / shards) for a, b in itertools.pairwise(places))
    if not parts:
        return
    users = 100 * shards
    parameters = CountParameters(
        depth=DEPTH,
        epsilon=epsilon,
        shard_size=100,
        population=users if public else None,
        users=users,
        method=Asking(parts, cost),
    )
    population, budget = count_population(users, parameters, COHORTS_KEY)
    if ShardPlan.for_users(population.users, users, 100, parameters.dropout).shards != shards:
        return  # the noisy user count came out far lower
    state, rng = first_state(population, budget, parameters), seeded_rng(0)
    counted = state.population.cost
    assert counted > 0  # also where a public figure makes the plan
    while state.query is not None:
        assert state.next_query_budget.remaining == epsilon - counted
        state = advance(state, respond(state, rng), parameters)
        assert state.budget.spent <= epsilon
    assert len(state.results) == len(parts)
    for result in state.results:
        assert math.fsum([counted, result.cost]) == epsilon
    assert state.budget.spent == epsilon
    assert [result.query.index for result in state.results] == list(range(1, 1 + len(parts)))


@pytest.mark.parametrize(
    ("changes", "shards", "public"),
    [
        ({}, "auto", False),
        ({}, "disjoint", True),
        ({"schedule": "lean"}, "shared", True),
        ({"schedule": "two_query"}, "auto", True),
        ({"depth": 14}, "shared", False),
        ({"depth": 14}, "disjoint", False),
    ],
)
def test_budget_of_adaptive_is_spent_to_the_last_bit(changes: dict, shards: str, public: bool) -> None:
    values = {"users": 70_000, "population": 70_000 if public else None, "shards": shards, **changes}
    state = run_evenly(heatmap_parameters("adaptive", values), 70_000)
    spent = [result.cost for result in state.results]
    assert len(spent) >= 2
    assert state.budget.spent == 1.0
    if state.has_disjoint_shards:
        assert shards != "shared"
        assert {math.fsum([state.population.cost, one]) for one in spent} == {1.0}
    else:
        assert shards != "disjoint"
        assert math.fsum([state.population.cost, *spent]) == 1.0


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize(
    ("participation", "noise", "vanish"),
    [("planned", "shard", 0.2), ("planned", "client", 0.2), ("paper", "client", 0.0)],
)
def test_noise_of_a_part_has_the_stated_deviation(participation: Participation, noise: str, vanish: float) -> None:
    """Over 60 keys, of 2 of 8 shards and of the other 6; the variance is neither that of 30% more nor of 30% less."""
    group, keys = even(8, 100), 60
    changes = {"epsilon": 0.5, "simulated_dropout": vanish, "noise_source": noise, "participation": participation}
    parameters = replace(eight_shards(**changes), method=Asking(level=3))
    errors: dict[int, list[np.ndarray]] = {1: [], 2: []}
    stated = {}
    for number in range(keys):
        key = RunKey.derive(FixedSecret(b"deviation" * 4), {"number": number})
        state, queries = run([group], parameters, 800, key)
        for query, result in zip(queries, state.results, strict=True):
            exact = sum_shards(group, query, key, None, vanish).sums * (8 / result.shards)
            errors[query.index].append(result.counts - exact)
            stated[query.index] = result.noise_stddev
    for index, found in errors.items():
        sample = np.concatenate(found)
        assert len(sample) == keys * 64
        # The kurtosis of a sum of Polya differences is at most that of one, 3 + 3 / shape and so below 6 here.
        deviations = 6.2 * math.sqrt(5 / len(sample))
        ratio = float(np.mean(sample**2)) / stated[index] ** 2
        assert abs(ratio - 1) < deviations
        for scale in (0.7, 1.3):
            assert abs(ratio / scale**2 - 1) > deviations
    # Two of eight shards, scaled by four: twice the deviation of all eight. The others by 4/3.
    assert math.isclose(stated[1] / stated[2], math.sqrt(3))
    # Only in the paper's model does the noise grow with those who are there, twice as many as are required.
    shape = (1 - vanish) * 100 / 50 if participation == "paper" else 1
    assert math.isclose(stated[1], 2 * math.sqrt(8 * shape) * discrete_laplace_stddev(queries[0].cost))


def run_evenly(parameters: CountParameters, users: int = 0) -> CountState:
    state, rng = start(users, parameters, COHORTS_KEY), seeded_rng(0)
    while state.query is not None:
        state = advance(state, respond(state, rng), parameters)
    return state


def test_parts_are_chosen_from_public_figures_only() -> None:
    """The same for whoever is there, and only where there are shards to divide."""
    ranges = {}
    for users in (10_000, 20_000, 100_000, 10**6):
        parameters = heatmap_parameters("adaptive", {"population": users, "users": users})
        chosen = [start(there, parameters, COHORTS_KEY).query for there in (0, 5, users)]
        assert len({(one.shard_range, one.cost, one.encoding) for one in chosen if one}) == 1
        ranges[users] = chosen[0].shard_range if chosen[0] else None
    assert ranges[10_000] is None
    assert ranges[10**6] == (0, 10)
