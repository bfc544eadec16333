import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.errors import RefusedError, RequestError
from sfumato.schemas.places import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods import METHODS, Adaptive
from sfumato.transforms.heatmap.methods.adaptive import target_epsilon, update_tree
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.plan import make_plan
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.schedule import advance, check_plan
from sfumato.transforms.locations.shards import Participation, ShardGroup, key_dtype
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.secagg.shard_sums import ShardTotals, sum_shards
from tests.admitted import count_population, start
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf

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


def flat() -> np.ndarray:
    return np.full(4**6, 4.0**-6)


def test_the_papers_run_of_10_000_users() -> None:
    """Paper 000, Table 1 and Appendix A: vector length 340 = 4 + 16 + 64 + 256, and 0.76 left for the last.

    The paper does not count its users; here a hundredth of epsilon is for that, besides its 1.
    """
    state = finish(HeatmapParameters(population=10_000, epsilon=1 / 0.99, dropout=0, method=PAPER), 10_000, flat())
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
    state = finish(HeatmapParameters(population=10_000, epsilon=1, dropout=0, method=method), 10_000, flat())
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
    state = finish(parameters, 10**7, flat())
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
