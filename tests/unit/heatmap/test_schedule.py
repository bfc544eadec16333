"""The state machine of sub-queries: budgets, refusals, and cohorts of which each answers one."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RefusedError, RequestError
from sfumato.schemas.places import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods import METHODS, Adaptive, Method
from sfumato.transforms.heatmap.methods.adaptive import target_epsilon, update_tree
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.plan import make_plan
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.schedule import advance, check_plan, plan
from sfumato.transforms.heatmap.state import ALL_REMAINING, Estimate, HeatmapState, Query
from sfumato.transforms.locations.shards import Cohort, Participation, ShardGroup, key_dtype
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.privacy.noise import discrete_laplace
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.shard_sums import NOTHING, ShardQuery, ShardTotals, sum_shards
from tests.admitted import count_population, start
from tests.keys import earlier_key
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.heatmap.methods.oracle import group_of

KEY = RunKey.derive(FixedSecret(b"schedule" * 4), {})


PAPER = Adaptive(schedule="paper", estimator="last")


def finish(parameters: HeatmapParameters, users: int, shares: np.ndarray):
    """Runs the state machine on noiseless counts that follow `shares`, float64[2^d * 2^d] by code."""
    state = start(users, parameters, KEY)
    total = np.concatenate(([0], np.cumsum(shares))) * users
    while state.query:
        index = state.query.encoding.tree.index
        below = np.round(total[(index.boundaries >> np.uint64(2 * (parameters.depth - 6))).astype(int)])
        sums = index.sum_intervals(np.diff(below.astype(np.int64))[None, :])[0]
        state = advance(state, ShardTotals(sums, state.cohort.shards), parameters)
    return state


def even_shares() -> np.ndarray:
    return np.full(4**6, 4.0**-6)


def test_the_papers_run_of_10_000_users() -> None:
    """Paper 000, Table 1 and Appendix A: vector length 340 = 4 + 16 + 64 + 256, and 0.76 left for the last.

    The paper does not count its users; here a hundredth of epsilon is for that, besides its 1.
    """
    state = finish(
        HeatmapParameters(population=10_000, epsilon=1 / 0.99, dropout=0, method=PAPER), 10_000, even_shares()
    )
    assert [a.spent.vector_length for a in state.results] == [4, 16, 64, 256]
    assert round(state.results[-1].spent.epsilon, 2) == 0.76


@given(
    st.floats(0.01, 10),
    st.integers(100, 10**7),
    st.floats(0.01, 2),
    st.integers(1, 12),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_papers_spending_never_exceeds_the_budget_and_ends_equal_to_it(
    epsilon: float, users: int, calibration: float, stages: int, seed: int, public: bool
) -> None:
    parameters = HeatmapParameters(
        depth=6,
        epsilon=epsilon,
        shard_size=1000,
        method=replace(PAPER, calibration=calibration, max_sub_queries=stages),
        population=users if public else None,
    )
    shares = seeded_rng(seed).dirichlet(np.full(4**6, 0.05))
    state = finish(parameters, users, shares)
    charges = [a.spent.epsilon for a in state.results] + [state.population.epsilon]
    assert math.fsum(charges) == epsilon
    assert state.budget.spent == epsilon
    assert len(state.results) <= stages
    for so_far in range(len(state.budget.charges)):
        assert math.fsum(state.budget.charges[:so_far]) <= epsilon


def test_the_target_is_two_standard_deviations_over_all_shards() -> None:
    state = start(100_000, HeatmapParameters(population=100_000), KEY)
    epsilon = target_epsilon(state, 64, 0.1)
    assert math.isclose(2 * state.noise_stddev(epsilon), 0.1 * 100_000 / 64)
    assert math.isclose(state.noise_stddev(epsilon), math.sqrt(10) * discrete_laplace_stddev(epsilon))
    # As printed: the factor does nothing, and c U / T is one standard deviation of every shard.
    assert math.isclose(discrete_laplace_stddev(target_epsilon(state, 64, 0.1, "printed")), 0.1 * 100_000 / 64)
    assert math.isclose(discrete_laplace_stddev(target_epsilon(state, 64, 0.1, "literal_factor")), 0.1 * 100_000 / 128)
    weighted = start(100_000, HeatmapParameters(population=100_000, contribution="all", gamma=1000), KEY)
    assert math.isclose(2 * weighted.noise_stddev(target_epsilon(weighted, 64, 0.1)), 0.1 * 100_000 / 64)


@pytest.mark.parametrize(
    ("users", "printed"),
    [
        (10_000, [0.01131364816007492, 0.04525097313957988, 0.18077309093243188]),
        (100_000, [0.003577706855891111, 0.014310712939686405, 0.05723552747969013, 0.22847608844135425]),
    ],
)
def test_epsilons_are_those_that_the_authors_printed(users: int, printed: list[float]) -> None:
    """Eqs. 7 and 8 with c = 0.1 on complete levels: the outputs in ebagdasa/location-heatmaps, commit 5aaf63c."""
    state = start(users, HeatmapParameters(population=users), KEY)
    assert np.allclose([target_epsilon(state, 4**n, 0.1) for n in range(1, len(printed) + 1)], printed, rtol=1e-9)


def test_ablations_split_by_a_count_and_spend_equal_shares() -> None:
    """Paper 000, Table 3: a fixed epsilon of 0.1 a level and a fixed threshold of 10 users."""
    method = replace(PAPER, split_count=10, sub_query_share=0.1)
    state = finish(HeatmapParameters(population=10_000, epsilon=1, dropout=0, method=method), 10_000, even_shares())
    spent = [a.spent.epsilon for a in state.results]
    assert [round(one, 9) for one in spent[:-1]] == [0.1] * (len(spent) - 1)
    assert math.fsum([*spent, state.population.epsilon]) == 1.0
    assert [a.spent.vector_length for a in state.results][:5] == [4, 16, 64, 256, 1024]
    sizes = {len(a.counts) for a in state.results}
    assert max(sizes) == 1024  # 10,000 / 1024 users a cell are fewer than 10


def test_splits_and_collapses_by_threshold() -> None:
    tree = Tree.uniform(4, 1)  # entries 4, 5, 6, 7
    updated = update_tree(tree, np.array([20.001, 20.0, 5.001, 5.0]), threshold=20)
    assert updated.nodes.tolist() == [1, 4, 5, 6, 16, 17, 18, 19]
    assert updated.entries.tolist() == [1, 5, 6, 16, 17, 18, 19]  # the root owns what node 7 left


def test_the_finest_level_is_not_split() -> None:
    tree = Tree.uniform(2, 2)
    assert update_tree(tree, np.full(16, 1e9), 2) == tree


def test_a_tree_that_stops_changing_gets_the_rest_of_the_budget() -> None:
    parameters = HeatmapParameters(depth=6, epsilon=1.0, population=10**7, method=replace(PAPER, calibration=5))
    state = finish(parameters, 10**7, even_shares())
    trees = [a.tree for a in state.results]
    assert trees[-1] == trees[-2]
    assert state.results[-1].spent.epsilon == state.budget.total - math.fsum(
        [state.population.epsilon, *(a.spent.epsilon for a in state.results[:-1])]
    )


def test_lost_shards_are_spoken_for_and_counted() -> None:
    parameters = HeatmapParameters(population=100_000, method=PAPER)
    state = start(100_000, parameters, KEY)
    state = advance(state, ShardTotals(np.full(4, 20_000), 8), parameters)
    assert state.results[0].counts.tolist() == [25_000] * 4
    assert state.results[0].spent.shards_lost == 2
    whole = advance(start(100_000, parameters, KEY), ShardTotals(np.full(4, 25_000), 10), parameters)
    ratio = state.results[0].spent.noise_stddev / whole.results[0].spent.noise_stddev
    assert math.isclose(ratio, 10 / 8 * math.sqrt(8 / 10))


def test_with_central_noise_no_figure_but_the_counts_depends_on_who_is_there() -> None:
    """A public population far above the number of users must not show that number. Only noisy counts may differ."""
    parameters = HeatmapParameters(population=10**8, trust="central", method=PAPER)
    states = [
        advance(start(users, parameters, KEY), ShardTotals(np.full(4, users), live), parameters)
        for users, live in ((10, 640), (11, 704), (0, 0))
    ]
    assert len({(one.results[0].spent, one.budget, one.cohort) for one in states}) == 1
    assert states[0].results[0].spent.shards_lost == 0
    assert states[0].results[0].counts.tolist() == [10.0] * 4  # not scaled: no shard is spoken for


@pytest.mark.parametrize("schedule", ["auto", "two_query", "lean"])
@pytest.mark.parametrize("categories", [1, 3])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 25.0])
def test_no_sub_query_has_more_entries_than_are_allowed(schedule: str, categories: int, epsilon: float) -> None:
    """However little noise there is: then hardly any price is too high."""
    shares = seeded_rng(4).dirichlet(np.full(4**6, 0.05))
    codes = seeded_rng(5).choice(4**6, 5000, p=shares) | np.arange(5000) % categories << 12
    places = Places(6, categories)
    shards = np.arange(5000) // 1000 << places.bits
    keys = np.sort((shards | codes).astype(key_dtype(places)))
    for limit in (48, 300, 2000):
        for cohorts in ("shared", "disjoint"):
            values = {"depth": 6, "population": 5000, "shard_size": 1000, "dropout": 0.2, "epsilon": epsilon}
            values |= {"schedule": schedule, "max_entries": limit, "cohorts": cohorts}
            parameters = heatmap_parameters("adaptive", values, categories)
            state = start(5000, parameters, KEY)
            group = ShardGroup(0, 5, places, keys)
            while state.query is not None:
                state = advance(state, sum_shards(group, state.query, KEY), parameters)
            assert max(result.spent.vector_length for result in state.results) <= limit
            assert state.budget.spent == epsilon


@pytest.mark.parametrize("share", [0.1, 0.2, 0.25, 1 / 3, 0.5])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
def test_no_crumb_of_the_budget_is_left_that_buys_nothing(share: float, epsilon: float) -> None:
    made = make_plan(HeatmapParameters(population=10**5, epsilon=epsilon, method=replace(PAPER, sub_query_share=share)))
    counting = made.state.population.epsilon
    assert math.fsum([counting, *(one.epsilon for one in made.sub_queries)]) == epsilon
    assert min(one.epsilon for one in made.sub_queries) > 0.01 * epsilon


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("adaptive", {"gamma": 2 * 10**7, "schedule": "paper"}),
        ("hierarchical", {"gamma": 3 * 10**7}),
        ("count_min", {"gamma": 10_000, "epsilon": 0.01}),
        ("emd", {"gamma": 2 * 10**7}),
    ],
)
def test_a_gamma_that_a_later_sub_query_could_not_bear_is_refused_before_the_first(
    baselines: None, method: str, values: dict[str, float]
) -> None:
    parameters = heatmap_parameters(method, {"contribution": "all", **values})
    with rejects("gamma"):
        check_plan(parameters)


@given(st.sampled_from(sorted(METHODS)), st.floats(0.01, 30), st.integers(1, 10**7), st.sampled_from(["one", "all"]))
@settings(max_examples=60, deadline=None)
def test_a_plan_that_begins_comes_to_its_end(method: str, epsilon: float, gamma: int, contribution: str) -> None:
    """Whatever is refused is refused at once; and what runs spends no more than its budget."""
    values = {"depth": 5, "epsilon": epsilon, "gamma": gamma, "contribution": contribution, "users": 20_000}
    parameters = heatmap_parameters(method, values)
    try:
        check_plan(parameters)
    except RequestError:
        return
    made = make_plan(parameters)
    assert made.spent <= made.state.budget.spent <= epsilon
    assert max(one.epsilon for one in made.sub_queries) <= made.spent
    assert made.state.query is None


def test_a_methods_own_options_may_not_hide_those_of_every_method() -> None:
    @dataclass(frozen=True)
    class Hiding(Adaptive):
        epsilon: float = 2.0

    with pytest.raises(TypeError, match="options that every method has: epsilon"):
        HeatmapParameters(method=Hiding())


@pytest.mark.parametrize(("model", "words"), [("paper", "too few users"), ("planned", "simulated_dropout: all of")])
def test_no_live_shard_is_a_refusal_in_words_of_public_figures(model: Participation, words: str) -> None:
    parameters = HeatmapParameters(population=100_000, participation=model)
    told = set()
    for users in (5, 100_000):
        state = start(users, parameters, KEY)
        with pytest.raises(RefusedError, match=words) as caught:
            advance(state, ShardTotals(np.zeros(4, dtype=np.int64), 0), parameters)
        told.add(str(caught.value))
    assert len(told) == 1


def test_the_population_is_counted_privately_and_paid_for() -> None:
    """Over 4,000 keys the count has the noise of the epsilon that it is charged, and not 0.7 or 1.3 of it."""
    parameters = HeatmapParameters(epsilon=2, population_share=0.25)
    counts = [
        count_population(50_000, parameters, RunKey.derive(FixedSecret(b"population" * 3), {"i": i}))[0].users
        for i in range(4000)
    ]
    noise = np.array(counts).astype(np.int64) - 50_000
    assert chi_square_p(noise, discrete_laplace_pmf(0.5, 60)) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(noise, discrete_laplace_pmf(0.5 / scale, 60)) < FLAKE_RATE
    state = start(50_000, parameters, KEY)
    assert state.budget.charges == (0.5,)
    assert state.population.epsilon == 0.5
    known = start(50_000, HeatmapParameters(population=49_000), KEY)  # which is counted as well, and planned from
    assert known.budget.charges == (known.population.epsilon,)
    assert math.isclose(known.population.epsilon, 0.01)
    assert (known.population.users, known.population.source, known.cohort.users) == (49_000, "public", 49_000)
    assert known.population.counted is not None
    assert 0 < abs(known.population.counted - 50_000) < 2300


def test_a_modulus_that_is_too_small_is_refused_with_the_least_that_would_do() -> None:
    with rejects("modulus") as caught:
        check_plan(HeatmapParameters(population=100_000, modulus=10_000))
    least = int(str(caught.value).split("would do is ")[1].split()[0])
    check_plan(HeatmapParameters(population=100_000, modulus=least))
    with pytest.raises(RequestError):
        check_plan(HeatmapParameters(population=100_000, modulus=least - 1))
    check_plan(HeatmapParameters(population=100_000, modulus=10_000, allow_overflow=True))
    # Without a public figure it would be known only after the users are counted, and paid for.
    with rejects("modulus"):
        check_plan(HeatmapParameters(users=100_000, modulus=1 << 30))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", math.nan),
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.inf),
        ("epsilon", 30.1),
        ("epsilon", 1e-5),
        ("depth", 0),
        ("depth", 21),
        ("shard_size", 1),
        ("dropout", -0.1),
        ("dropout", 0.95),
        ("dropout", math.nan),
        ("simulated_dropout", 1.5),
        ("max_bad_fraction", math.nan),
        ("users", 0),
        ("population", 0),
        ("population_share", 0.0),
        ("expansion", 0.5),
        ("calibration", 0.0),
        ("calibration", math.nan),
        ("expansion", math.nan),
        ("split_threshold", -1.0),
        ("overflow_probability", 0.0),
        ("start_level", 11),
        ("max_sub_queries", 0),
        ("target", "exact"),
        ("split_count", 0.0),
        ("split_count", math.nan),
        ("sub_query_share", 0.0),
        ("sub_query_share", math.nan),
        ("modulus", 1),
        ("noise_source", "gaussian"),
        ("trust", "local"),
    ],
)
def test_bad_parameters_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field):
        heatmap_parameters("adaptive", {field: value})


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

    def max_rounds(self, depth: int) -> int:
        return len(self.parts)

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        done = len(state.results)
        if done == len(self.parts):
            return None
        return Query(TreeEncoding(Tree.uniform(depth, self.level)), self.cost, self.parts[done])

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
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
    groups: Sequence[ShardGroup], parameters: HeatmapParameters, users: int | None = None, key: RunKey = COHORTS_KEY
) -> tuple[HeatmapState, list[ShardQuery]]:
    """The final state over these groups, and its queries."""
    there = sum(int(group.sizes().sum()) for group in groups) if users is None else users
    state, asked = start(there, parameters, key), []
    while state.query is not None:
        asked.append(state.query)
        state = advance(state, total(groups, state.query, parameters, key), parameters)
    return state, asked


def total(groups: Sequence[ShardGroup], query: ShardQuery, parameters: HeatmapParameters, key: RunKey) -> ShardTotals:
    parts = [sum_shards(group, query, key, parameters.shard_noise, parameters.simulated_dropout) for group in groups]
    return functools.reduce(operator.add, parts, NOTHING)


def disjoint(users: int, shards: int, **changes: object) -> HeatmapParameters:
    values = {"depth": DEPTH, "population": users, "shard_size": max(2, users // shards), "dropout": 0.5, **changes}
    return heatmap_parameters("adaptive", {"cohorts": "disjoint", **values})


def even(shards: int, size: int) -> ShardGroup:
    """Shards of exactly so many users."""
    rng = seeded_rng(3)
    return group_of([(s, int(c), 1) for s in range(shards) for c in rng.integers(0, 4**DEPTH, size)], shards, DEPTH)


# --- nobody is asked twice ---


@pytest.mark.parametrize("depth", [DEPTH, 12])
@pytest.mark.parametrize("shards", [2, 7, 40])
def test_every_shard_answers_exactly_one_sub_query(shards: int, depth: int) -> None:
    users = 100 * shards
    rows, parameters = crowd(users), disjoint(users, shards, depth=depth)
    if depth > DEPTH:
        low = np.uint64(2 * depth)
        rows = Rows(Places(depth), rows.users >> low << low, rows.codes << np.uint64(2 * (depth - DEPTH)))
    state = start(users, parameters, COHORTS_KEY)
    assert state.cohort.shards == shards
    state, asked = run(rows.shard_groups(state.cohort), parameters)
    assert len(asked) == min(shards, 2 if depth == DEPTH else 3)
    covered = [number for result in state.results for number in range(*result.shard_range or ())]
    assert covered == list(range(shards))
    # What is said to have been asked, and what a shard does when it is asked.
    for number in range(shards):
        alone = ShardGroup(number, 1, Places(depth), np.zeros(300, dtype=np.uint64))
        results = [sum_shards(alone, query, COHORTS_KEY) for query in asked]
        assert [one.live for one in results].count(1) == 1
        assert sum(one.live for one in results) == 1
        for one, query in zip(results, asked, strict=True):
            first, last = query.shard_range or (0, 0)
            assert one.live == (first <= number < last)
            assert one.live or not one.sums.any()


def test_one_shard_is_asked_whole_and_not_said_to_be_divided() -> None:
    group, parameters = even(1, 100), heatmap_parameters("adaptive", {"depth": DEPTH, "population": 100})
    _, asked = run([group], parameters)
    assert [query.shard_range for query in asked] == [None, None]
    with rejects("cohorts"):
        check_plan(disjoint(100, 1))
    check_plan(heatmap_parameters("adaptive", {"cohorts": "disjoint"}))  # of how many shards is still to be counted


@pytest.mark.parametrize(
    "parts",
    [
        ((0, 0.5), (0, 0.5)),  # again
        ((0, 0.5), (0.4, 1)),  # overlapping
        ((0.5, 0.8), (0, 0.5)),  # backwards: not known to be free
        ((0, 0.3), (0.3, 0.6), (0.5, 1)),
        (None, (0, 0.5)),  # all have answered
        ((0, 0.5), None),
    ],
)
def test_asking_anybody_twice_raises(parts: tuple[Part, ...]) -> None:
    parameters = HeatmapParameters(depth=DEPTH, population=1000, shard_size=100, method=Asking(parts, cost=0.3))
    with pytest.raises(ValueError, match="shard_fractions"):
        run([even(10, 100)], parameters, 1000)


@pytest.mark.parametrize("parts", [((0, 1), (0, 1)), ((0, 1), (0.9, 1)), ((0, 1), None), ((0.5, 1), (0, 0.5))])
def test_once_the_last_shard_has_answered_nothing_is_left_to_ask_with(parts: tuple[Part, ...]) -> None:
    parameters = HeatmapParameters(depth=DEPTH, population=1000, shard_size=100, method=Asking(parts, cost=0.3))
    state, asked = run([even(10, 100)], parameters, 1000)
    assert len(asked) == 1
    assert (state.budget.remaining, state.next_query_budget.remaining, state.remaining_shards) == (0, 0, 0)


@pytest.mark.parametrize("part", [(0, 0.01), (0.5, 0.5), (0.5, 0.4), (-0.1, 0.5), (0, 1.2), (1.0, 1.1)])
def test_a_part_without_a_shard_or_beyond_them_raises(part: tuple[float, float]) -> None:
    parameters = HeatmapParameters(depth=DEPTH, population=1000, shard_size=100, method=Asking((part,)))
    with pytest.raises(ValueError, match="shard_fractions"):
        start(1000, parameters, COHORTS_KEY)


@pytest.mark.parametrize("shards", [2, 7, 40])
def test_a_user_more_changes_the_answers_of_one_sub_query_alone(shards: int) -> None:
    """Neighbouring inputs under one key: the same questions, and all results but their own bit for bit the same."""
    users = 100 * shards
    rows, parameters = crowd(users), disjoint(users, shards)
    cohort = start(users, parameters, COHORTS_KEY).cohort
    state, asked = run(rows.shard_groups(cohort), parameters)
    for position in (0.001, 0.05, 0.3, 0.999):
        more = one_more(rows, position).shard_groups(cohort)
        own = next(
            i
            for i, one in enumerate(asked)
            if one.shard_range and one.shard_range[0] <= position * shards < one.shard_range[1]
        )
        for number, query in enumerate(asked):
            both = rows.shard_groups(cohort), more
            before, after = (total(groups, query, parameters, COHORTS_KEY) for groups in both)
            exact = [
                total(groups, query, replace(parameters, trust="central", method=Asking()), COHORTS_KEY)
                for groups in both
            ]
            assert after.live == before.live
            assert np.abs(exact[1].sums - exact[0].sums).sum() == (number == own)
            assert number == own or np.array_equal(after.sums, before.sums)
        # In a whole run later queries may depend on this user; earlier ones do not.
        new, _ = run(more, parameters)
        for old, one in list(zip(state.results, new.results, strict=True))[:own]:
            assert one.encoding == old.encoding
            assert np.array_equal(one.counts, old.counts)


# --- what it costs ---


def respond(state: HeatmapState, rng: np.random.Generator) -> ShardTotals:
    assert state.query is not None
    first, last = state.query.shard_range or (0, state.cohort.shards)
    return ShardTotals(rng.poisson(10, state.query.encoding.length).astype(np.int64), last - first)


@given(
    st.floats(0.01, 20),
    st.integers(1, 40),
    st.booleans(),
    st.lists(st.floats(0.05, 0.95), max_size=4, unique=True),
    st.sampled_from([ALL_REMAINING, 0.001, 0.5]),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_each_part_has_the_whole_rest_of_the_budget_and_nobody_spends_more(
    epsilon: float, shards: int, public: bool, borders: list[float], cost: float, last_too: bool
) -> None:
    places = sorted({0, *(round(border * shards) for border in borders), *([shards] if last_too else [])})
    parts = tuple((a / shards, b / shards) for a, b in itertools.pairwise(places))
    if not parts:
        return
    users = 100 * shards
    parameters = HeatmapParameters(
        depth=DEPTH,
        epsilon=epsilon,
        shard_size=100,
        population=users if public else None,
        users=users,
        method=Asking(parts, cost),
    )
    population, budget = count_population(users, parameters, COHORTS_KEY)
    if Cohort.plan(population.users, users, 100, parameters.dropout).shards != shards:
        return  # the noisy user count came out far lower
    state, rng = plan(population, budget, parameters), seeded_rng(0)
    counted = state.population.epsilon
    assert counted > 0  # also where a public figure makes the plan
    while state.query is not None:
        assert state.next_query_budget.remaining == epsilon - counted
        state = advance(state, respond(state, rng), parameters)
        assert state.budget.spent <= epsilon
    assert len(state.results) == len(parts)
    for result in state.results:
        assert math.fsum([counted, result.spent.epsilon]) == epsilon
    assert state.budget.spent == epsilon
    assert [result.spent.index for result in state.results] == list(range(1, 1 + len(parts)))


@pytest.mark.parametrize("changes", [{}, {"schedule": "lean"}, {"schedule": "two_query"}, {"depth": 14}])
@pytest.mark.parametrize("cohorts", ["auto", "shared", "disjoint"])
@pytest.mark.parametrize("public", [True, False])
def test_the_adaptive_methods_budget_is_spent_to_the_last_bit(changes: dict, cohorts: str, public: bool) -> None:
    values = {"users": 70_000, "population": 70_000 if public else None, "cohorts": cohorts, **changes}
    parameters = heatmap_parameters("adaptive", values)
    state, rng = start(70_000, parameters, COHORTS_KEY), seeded_rng(0)
    while state.query is not None:
        state = advance(state, respond(state, rng), parameters)
    spent = [result.spent.epsilon for result in state.results]
    assert len(spent) >= 2
    assert state.budget.spent == 1.0
    if state.has_disjoint_cohorts:
        assert cohorts != "shared"
        assert {math.fsum([state.population.epsilon, one]) for one in spent} == {1.0}
    else:
        assert cohorts != "disjoint"
        assert math.fsum([state.population.epsilon, *spent]) == 1.0


def test_what_a_client_sends_and_spends_is_one_answer() -> None:
    for population in (100_000, None):
        planned = make_plan(HeatmapParameters(users=100_000, population=population))
        assert planned.state.has_disjoint_cohorts
        lengths = [one.vector_length for one in planned.sub_queries]
        assert len(set(lengths)) == 2
        assert planned.entries == max(lengths)
        assert planned.bits == max(one.bits_per_client for one in planned.sub_queries)
        assert {one.epsilon for one in planned.sub_queries} == {planned.spent}
        assert planned.spent == planned.state.budget.total - planned.state.population.epsilon
        assert math.isclose(planned.spent, 0.99)


# --- noise and scale ---


def test_each_part_has_its_own_sub_querys_noise_and_only_its_shards() -> None:
    """A planned shard's noise is one draw, of its sub-query's label, however many users it has."""
    parameters = disjoint(4000, 40, dropout=0.0, epsilon=0.7)
    group = even(40, 100)
    state, asked = run([group], parameters)
    drawn = []
    for query, result in zip(asked, state.results, strict=True):
        first, last = query.shard_range or (0, 0)
        assert query.index == result.spent.index
        shards = np.arange(first, last, dtype=np.uint64)
        assert math.isclose(query.epsilon, 0.99 * 0.7)
        noise = discrete_laplace(
            query.bind(COHORTS_KEY), f"shard noise {query.index}", shards, query.encoding.length, query.epsilon
        )
        exact = query.encoding.count(group, slice(first, last))
        assert np.allclose(result.counts, (exact + noise).sum(axis=0) * (40 / (last - first)), rtol=1e-12)
        drawn.append(noise)
    assert len(drawn) == 2
    # The same shards in the other sub-query would have had other noise.
    again = [
        discrete_laplace(COHORTS_KEY, f"shard noise {index}", np.arange(4, dtype=np.uint64), 64, 0.7)
        for index in (1, 2)
    ]
    assert not np.array_equal(*again)


@pytest.mark.parametrize("vanish", [0.0, 0.2])
@pytest.mark.parametrize("noise", ["shard", "client"])
@pytest.mark.parametrize("participation", get_args(Participation))
def test_noise_of_a_part_scaled_to_all_has_the_stated_deviation(
    participation: Participation, noise: str, vanish: float
) -> None:
    """Over 60 keys, of 2 of 8 shards and of the other 6; the variance is neither that of 30% more nor of 30% less."""
    group, keys, wrong = even(8, 100), 60, {0.7: 0, 1.3: 0}
    parameters = HeatmapParameters(
        depth=DEPTH, epsilon=0.5, population=800, shard_size=100, dropout=0.5, simulated_dropout=vanish,
        noise_source=noise, participation=participation, method=Asking(level=3),
    )  # fmt: skip
    errors: dict[int, list[np.ndarray]] = {1: [], 2: []}
    stated = {}
    for number in range(keys):
        key = RunKey.derive(FixedSecret(b"deviation" * 4), {"number": number})
        state, asked = run([group], parameters, 800, key)
        for query, result in zip(asked, state.results, strict=True):
            exact = sum_shards(group, query, key, None, vanish).sums * (8 / result.spent.shards)
            errors[query.index].append(result.counts - exact)
            stated[query.index] = result.spent.noise_stddev
    for index, found in errors.items():
        sample = np.concatenate(found)
        assert len(sample) == keys * 64
        # The kurtosis of a sum of Polya differences is at most that of one, 3 + 3 / shape and so below 6 here.
        deviations = 6.2 * math.sqrt(5 / len(sample))
        ratio = float(np.mean(sample**2)) / stated[index] ** 2
        assert abs(ratio - 1) < deviations
        for scale in wrong:
            assert abs(ratio / scale**2 - 1) > deviations
    # Two of eight shards, scaled by four: twice the deviation of all eight. The others by 4/3.
    assert math.isclose(stated[1] / stated[2], math.sqrt(3))
    # Only in the paper's model does the noise grow with those who are there, twice as many as are required.
    shape = (1 - vanish) * 100 / 50 if participation == "paper" else 1
    whole = math.sqrt(8 * shape) * discrete_laplace_stddev(asked[0].epsilon)
    assert math.isclose(stated[1], 2 * whole)


def test_an_answer_of_a_part_is_in_users_of_everybody() -> None:
    """At epsilon 30 noise is 0 but for a probability of 1e-12 an entry."""
    sizes = [100, 110, 95, 130, 80, 105, 90, 120]
    group = group_of([(s, 9, 1) for s, size in enumerate(sizes) for _ in range(size)], 8, DEPTH)
    parameters = HeatmapParameters(
        depth=DEPTH, epsilon=30, population=sum(sizes), shard_size=100, dropout=0.5, method=Asking()
    )
    state, _ = run([group], parameters)
    assert [result.counts.max() for result in state.results] == [4 * 210, sum(sizes[2:]) / 6 * 8]
    assert [result.shard_range for result in state.results] == [(0, 2), (2, 8)]


def test_lost_shards_of_a_part_are_spoken_for_by_those_of_the_part() -> None:
    """Shards 1 and 5 of 8 have too few users; the parts are the first 4 and the last 4."""
    sizes = [100, 20, 100, 100, 100, 30, 100, 100]
    group = group_of([(s, 9, 1) for s, size in enumerate(sizes) for _ in range(size)], 8, DEPTH)
    parameters = HeatmapParameters(
        depth=DEPTH, epsilon=30, population=800, shard_size=100, dropout=0.5, participation="paper",
        method=Asking(((0, 0.5), (0.5, 1))),
    )  # fmt: skip
    state, _ = run([group], parameters)
    whole, _ = run([even(8, 100)], parameters)
    for result, full in zip(state.results, whole.results, strict=True):
        assert (result.spent.shards, result.spent.shards_lost, full.spent.shards_lost) == (4, 1, 0)
        assert result.counts.max() == pytest.approx(300 * 8 / 3)
        assert math.isclose(result.spent.noise_stddev / full.spent.noise_stddev, math.sqrt(4 / 3))


@pytest.mark.parametrize("empty", [0, 1])
def test_a_part_without_any_user_is_refused_in_the_papers_model_alone(empty: int) -> None:
    filled = range(4, 8) if empty == 0 else range(4)
    group = group_of([(s, 9, 1) for s in filled for _ in range(100)], 8, DEPTH)
    parameters = HeatmapParameters(
        depth=DEPTH, population=800, shard_size=100, dropout=0.5, method=Asking(((0, 0.5), (0.5, 1)))
    )
    with pytest.raises(RefusedError, match="none of 4 shards had the required 50 survivors"):
        run([group], replace(parameters, participation="paper"))
    state, _ = run([group], parameters)
    assert [result.spent.shards_lost for result in state.results] == [0, 0]


def test_groups_without_a_shard_of_the_part_add_nothing() -> None:
    """80 shards in two groups of 64 and 16: the first part has none of the second."""
    rows, parameters = crowd(8000), disjoint(8000, 80)
    cohort = start(8000, parameters, COHORTS_KEY).cohort
    groups = rows.shard_groups(cohort)
    assert [group.first for group in groups] == [0, 64]
    state, asked = run(groups, parameters)
    assert asked[0].shard_range == (0, 8)
    beside = sum_shards(groups[1], asked[0], COHORTS_KEY)
    assert (beside.live, beside.sums.any()) == (0, False)
    backwards, _ = run(groups[::-1], parameters)
    for one, other in zip(state.results, backwards.results, strict=True):
        assert np.array_equal(one.counts, other.counts)


# --- who is asked how ---


def test_a_trusted_server_asks_no_parts() -> None:
    """There is one sum, with one noise: parts would only have fewer users each."""
    for users in (1000, 100_000, 10**7):
        for cohorts in ("auto", "shared"):
            values = {"users": users, "population": users, "trust": "central", "cohorts": cohorts}
            assert not run_evenly(heatmap_parameters("adaptive", values)).has_disjoint_cohorts
        with rejects("cohorts"):
            heatmap_parameters("adaptive", {**values, "cohorts": "disjoint"})
    with pytest.raises(ValueError, match="shard_fractions: central noise"):
        start(1000, HeatmapParameters(population=1000, shard_size=100, trust="central", method=Asking()), COHORTS_KEY)


def run_evenly(parameters: HeatmapParameters) -> HeatmapState:
    state, rng = start(0, parameters, COHORTS_KEY), seeded_rng(0)
    while state.query is not None:
        state = advance(state, respond(state, rng), parameters)
    return state


def test_parts_are_chosen_from_public_figures_alone() -> None:
    """The same for whoever is there, and only where there are shards to divide."""
    for users in (10_000, 20_000, 100_000, 10**6):
        parameters = heatmap_parameters("adaptive", {"population": users, "users": users})
        chosen = [start(there, parameters, COHORTS_KEY).query for there in (0, 5, users)]
        assert len({(one.shard_range, one.epsilon, one.encoding) for one in chosen if one}) == 1
    single = start(0, heatmap_parameters("adaptive", {"population": 10_000}), COHORTS_KEY)
    many = start(0, heatmap_parameters("adaptive", {"population": 10**6}), COHORTS_KEY)
    assert single.query is not None
    assert many.query is not None
    assert single.query.shard_range is None
    assert many.query.shard_range == (0, 10)


def test_the_papers_schedule_asks_everybody_always() -> None:
    state = run_evenly(HeatmapParameters(population=10**6, method=Adaptive(schedule="paper", estimator="last")))
    assert len(state.results) >= 2
    assert [result.shard_range for result in state.results] == [None] * len(state.results)
    with rejects("cohorts"):
        Adaptive(schedule="paper", cohorts="disjoint")


def test_in_memory_runs_ask_parts_as_the_job_does() -> None:
    rows, parameters = crowd(4000), disjoint(4000, 40)
    mine = run_in_memory(rows, 4000, parameters, COHORTS_KEY)
    state, _ = run(rows.shard_groups(start(4000, parameters, COHORTS_KEY).cohort), parameters)
    assert mine.budget == state.budget
    for one, other in zip(mine.results, state.results, strict=True):
        assert one.spent == other.spent
        assert np.array_equal(one.counts, other.counts)
    shared = run_in_memory(
        rows, 4000, replace(parameters, method=replace(parameters.method, cohorts="shared")), COHORTS_KEY
    )
    assert not shared.has_disjoint_cohorts
