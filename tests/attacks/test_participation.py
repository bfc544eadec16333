"""Who takes part shows neither in noise, lost shards nor the existence of a release, and the manifest says so."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import replace
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from numpy.typing import NDArray
from scipy import stats

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RefusedError
from sfumato.schemas.guarantee import Population
from sfumato.schemas.region import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import make_plan
from sfumato.transforms.counting.sub_queries import advance, first_state, start_run
from sfumato.transforms.heatmap.plan import trust_table
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.locations.read import BuildShards
from sfumato.transforms.locations.shards import ShardGroup, ShardPlan
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.admission import UserCounts, check_admission, count_users
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace, geometric_table
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, random_bits, random_bits_16
from sfumato.transforms.privacy.shared_noise import Noise, colluding_epsilon
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import (
    NOTHING,
    ShardQuery,
    ShardTotals,
    draw_shard_noise,
    planned_shards,
    sum_client_shares,
    sum_shards,
)
from tests.admitted import count_population, start
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf, polya_difference_pmf
from tests.unit.release.city import city_release

# Attack 3 of the table: the noise of *other* cells showed who was there, because it grew with the survivors.


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


def parameters_of(users: int, **values: Any) -> CountParameters:
    own = {"depth": DEPTH, "population": users, "level": 4, "dropout": 0.05}
    return heatmap_parameters("flat", {**own, **values})


def answer(rows: Rows, parameters: CountParameters, query: ShardQuery, key: RunKey) -> ShardTotals:
    shard_plan = start(0, parameters, key).shard_plan
    groups = rows.shard_groups(shard_plan)
    noise, dropout = parameters.shard_noise_source, parameters.simulated_dropout
    return functools.reduce(operator.add, [sum_shards(one, query, key, noise, dropout) for one in groups], NOTHING)


def query_of(users: int, parameters: CountParameters, key: RunKey = KEY) -> ShardQuery:
    query = start(users, parameters, key).query
    assert query is not None
    return query


@pytest.mark.parametrize(
    ("users", "shard_size", "noise"),
    [(20, 10_000, "client"), (300, 30, "shard"), (300, 2, "client"), (0, 100, "shard")],
)
def test_a_user_more_moves_their_own_entry_alone(users: int, shard_size: int, noise: str) -> None:
    """Under one key all other entries are the same, number by number: their noise does not know of the user."""
    parameters = parameters_of(max(users, 200), shard_size=shard_size, noise_source=noise)
    query = query_of(users, parameters)
    rows = crowd(users)
    without, with_them = answer(rows, parameters, query, KEY), answer(with_one_more(rows), parameters, query, KEY)
    moved = np.zeros(query.encoding.length, dtype=np.int64)
    moved[-1] = 1
    assert np.array_equal(with_them.sums - without.sums, moved)
    assert with_them.live == without.live == start(0, parameters, KEY).shard_plan.shards


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


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize(("users", "noise"), [(0, "shard"), (20, "client"), (5000, "shard")])
def test_the_noise_has_the_stated_epsilon_for_any_users(users: int, noise: str) -> None:
    """No less with too few users, no more with too many: the shards are planned for 100."""
    epsilon, sample = 0.5, []
    parameters = parameters_of(100, shard_size=100, noise_source=noise, epsilon=epsilon)
    rows = crowd(users)
    for number in range(16):
        key = RunKey.derive(FixedSecret(b"participant" * 3), {"number": number})
        query = query_of(users, parameters, key)
        exact = sum(
            query.encoding.count(one, slice(0, one.shards)).sum(axis=0)
            for one in rows.shard_groups(start(0, parameters, key).shard_plan)
        )
        sample.append(answer(rows, parameters, query, key).sums - exact)
    drawn = np.concatenate(sample)
    assert len(drawn) == 16 * 256
    assert chi_square_p(drawn, discrete_laplace_pmf(query.cost, 60)) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(drawn, discrete_laplace_pmf(query.cost / scale, 60)) < FLAKE_RATE


def test_lost_shards_depend_on_the_plan_alone() -> None:
    """300 users, dropout 0.3: the same shards are lost whether there are 0, 300 or 3,000 users, or one more.

    Of 150 shards none is lost with a probability of 0.7^150 = 6e-24.
    """
    parameters = parameters_of(300, shard_size=2, dropout=0.3, simulated_dropout=0.3)
    query = query_of(300, parameters)
    shards = start(0, parameters, KEY).shard_plan.shards
    kept = planned_shards(np.arange(shards, dtype=np.uint64), query, KEY, 0.3)
    assert 0 < kept.sum() < shards
    found = {answer(crowd(users), parameters, query, KEY).live for users in (0, 299, 300, 3000)}
    found.add(answer(with_one_more(crowd(300)), parameters, query, KEY).live)
    assert found == {int(kept.sum())}


def test_the_stated_noise_depends_on_the_plan_alone() -> None:
    """Windows may follow the noisy count; the noise level, the shards and the epsilons may not."""
    parameters = parameters_of(1000, shard_size=100)
    stated = set()
    for users in (0, 20, 1000, 5000):
        state = start(users, parameters, KEY)
        assert state.query is not None
        spent = advance(state, answer(crowd(users), parameters, state.query, KEY), parameters).results[0]
        stated.add((spent.cost, spent.noise_stddev, spent.shards, spent.shards_lost, spent.vector_length))
        assert count_population(users, parameters, KEY)[0].users == 1000
    assert len(stated) == 1


# Attack 2 of the table: `--population N --shard_size 16777216 --dropout 0` succeeded if and only if n >= N.


POPULATION = 500
KEYS = [RunKey.derive(FixedSecret(b"existence" * 4), {"number": number}) for number in range(12)]


def one_shard(**values: Any) -> CountParameters:
    own = {"depth": 8, "population": POPULATION, "shard_size": 1 << 24, "dropout": 0.0}
    return heatmap_parameters("adaptive", {**own, **values})


def is_published(users: int, parameters: CountParameters, key: RunKey) -> bool:
    try:
        run_in_memory(crowd(users), POPULATION, parameters, key)
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize("users", [0, POPULATION - 1, POPULATION, POPULATION + 1])
def test_a_shard_answers_however_few_users_it_has(users: int) -> None:
    """In the paper's model the outcome showed whether there are as many users as said: that model is not protected."""
    assert all(is_published(users, one_shard(), key) for key in KEYS)
    paper = one_shard(participation="paper")
    assert [is_published(users, paper, key) for key in KEYS[:2]] == [users >= POPULATION] * 2


def test_whether_a_run_goes_on_depends_on_the_noisy_count_alone() -> None:
    """The outcome of a user more is that of the same noisy count, whatever the true one is."""
    rule = one_shard(epsilon=30).admission()
    for key in KEYS:
        counts = [count_users(UserCounts(users), rule, key) for users in (POPULATION - 1, POPULATION)]
        for admission in counts:
            check_admission(admission, rule)  # neither is refused: 10% and the noise are allowed for
            start_run(admission, one_shard(epsilon=30))
        assert counts[1].users - counts[0].users == 1


def test_every_planned_shard_group_exists_without_any_user() -> None:
    """Groups were made of users, so that who was missing took theirs along."""
    for weighted in (False, True):
        shard_plan = replace(ShardPlan.for_users(200_000, None, 100, 0.05), participation="planned")
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            nobody = pipeline | "Nobody" >> beam.Create([], reshuffle=False).with_output_types(bytes)
            planned = pipeline | "ShardPlan" >> beam.Create([shard_plan])
            built = nobody | BuildShards(Places(8), planned, Spill(), weighted)
            sizes = built | beam.Map(lambda group: (group.first, group.shards, int(group.sizes().sum())))
            step = 1 << shard_plan.shift(weighted)
            expected = [(first, min(step, 2000 - first), 0) for first in range(0, 2000, step)]
            assert_that(sizes, equal_to(expected))


# Attack 4 of the table: `participation.delta` stood beside the truth (stated 2e-8, true 3.5e-4).


@pytest.mark.parametrize("method", ["adaptive", "flat", "emd"])
def test_planned_shards_protect_who_takes_part(method: str) -> None:
    """Zero, because there is no channel: see test_noise_independent_of_data and test_existence_of_a_release."""
    privacy = city_release(method).manifest["privacy"]
    told = privacy["participation"]
    assert {name: told[name] for name in ("model", "protected", "epsilon", "delta")} == {
        "model": "planned", "protected": True, "epsilon": 0.0, "delta": 0.0,
    }  # fmt: skip
    assert "do not depend on who takes part" in told["description"]
    assert privacy["adjacency"].startswith(
        "add or remove one user: two datasets are neighbours if one is the other plus"
    )
    assert "still reports" not in privacy["adjacency"]
    assert all(one["shards_lost"] == 0 for one in privacy["sub_queries"])


def test_the_papers_model_claims_nothing_finite_and_warns() -> None:
    release = city_release("adaptive", participation="paper")
    privacy = release.manifest["privacy"]
    told = privacy["participation"]
    assert (told["model"], told["protected"], told["epsilon"], told["delta"]) == ("paper", False, None, 1.0)
    assert privacy["adjacency"].startswith("zero-out")
    (warning,) = (one for one in release.manifest["warnings"] if "participation paper" in one)
    assert "Not protected" in warning
    assert "Who takes part is not protected" in release.page  # with the manifest, which the page shows


# The integers that hold noise are wide enough: noise that wrapped around would not have the law of its epsilon.


WRAP_KEY = RunKey.derive(FixedSecret(b"noise in small integers" * 2), {"test": "wrap"})
STREAMS = np.arange(64, dtype=np.uint64)
COUNT = 500


def drawn_one_by_one(epsilon: float) -> np.ndarray:
    """The same noise in Python's integers, which have no width, by the definition of the draws: [streams, COUNT]."""
    table, size = geometric_table(epsilon), len(geometric_table(epsilon).thresholds)
    upper = random_bits_16(WRAP_KEY.subkey("wrap", "upper"), STREAMS, 2 * COUNT)
    columns = np.arange(2 * COUNT, dtype=np.uint64)
    values = np.zeros(upper.shape, dtype=object)
    for row, stream in enumerate(STREAMS):
        here = np.full_like(columns, stream)
        lower = random_bits(WRAP_KEY.subkey("wrap", "lower"), here, columns)[:, 0]
        bits = upper[row].astype(np.uint64) << np.uint64(48) | lower >> np.uint64(16)
        for attempt in range(1, 100):
            drawn = table.lookup(bits)
            values[row, columns.astype(int)] += drawn.astype(object)
            columns = columns[drawn == size]
            if not len(columns):
                break
            place = np.full_like(columns, stream), columns
            bits = random_bits(WRAP_KEY.subkey("wrap", "beyond", attempt), *place)[:, 0]
        columns = np.arange(2 * COUNT, dtype=np.uint64)
    return values[:, :COUNT] - values[:, COUNT:]


# Means of 1, 100, 5,000 and 16,000: an int16 holds all values of the first two, and not those of the last two. None of
# 32,000 draws is that large with a probability below 1e-9.
@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(("epsilon", "least"), [(0.7, 5), (1e-2, 500), (2e-4, 1 << 15), (6.2e-5, 1 << 16)])
def test_noise_is_what_unbounded_integers_give(epsilon: float, least: int) -> None:
    noise = discrete_laplace(WRAP_KEY, "wrap", STREAMS, COUNT, epsilon)
    assert np.abs(noise).max() > least
    assert (noise == drawn_one_by_one(epsilon)).all()


# Clients who collude with a secure-aggregation server subtract their shares of the noise from a shard's sum.
#
# The paper's shares add up to the noise of epsilon over the clients that a shard needs. Without the colluders' shares
# the rest protects less: 5% of a minimal shard make epsilon 1.05 out of 1. With `colluding` the others suffice.


REQUIRED, SHARDS, REACH = 20, 256, 30
COLLUDING_KEY = RunKey.derive(FixedSecret(b"colluding" * 4), {})


def minimal_query(colluders: int, planned_clients: int | None) -> ShardQuery:
    encoding = TreeEncoding(Tree.uniform(4, 4))  # 256 entries
    window = Window(1 << 40, 1 << 39)
    noise = Noise(required=REQUIRED, colluding=colluders / REQUIRED)
    return ShardQuery(1, encoding, 1.0, window, noise, planned_clients=planned_clients)


def minimal_shards() -> ShardGroup:
    """Shards of exactly the required clients."""
    keys = (np.repeat(np.arange(SHARDS), REQUIRED) << 8) | np.tile(np.arange(REQUIRED), SHARDS)
    return ShardGroup(0, SHARDS, Places(4), keys.astype(np.uint32))


def exact_loss(clients: int, share: float, epsilon: float) -> float:
    """The largest log ratio of the sums of two neighbours with the noise of so many clients, one user adding 1.

    By convolution of the clients' shares, Polya(share) - Polya(share) each.
    """
    values = np.arange(400)
    one = stats.nbinom.pmf(values, share, -math.expm1(-epsilon))
    spectrum = np.abs(np.fft.fft(one, 1 << 12)) ** 2  # of X - Y
    noise = np.fft.ifft(spectrum**clients).real
    centre = np.concatenate([noise[-REACH // 2 :], noise[: REACH // 2]])
    return float(np.abs(np.diff(np.log(centre))).max())


@pytest.mark.parametrize(("colluding", "epsilon"), [(0.05, 1.0), (0.2, 0.5)])
def test_the_honest_clients_shares_keep_epsilon(colluding: float, epsilon: float) -> None:
    for participation in ("planned", "paper"):
        values: dict[str, Any] = {"population": 200_000, "shard_size": 2_000, "participation": participation}
        protected = plan_of(colluding=colluding, **values)
        usual = plan_of(**values)
        required = usual.noise.required
        colluders = math.floor(colluding * required)
        assert (protected.noise.required, protected.noise.colluders) == (required, colluders)
        honest = required - colluders
        assert exact_loss(honest, 1 / protected.noise.honest, epsilon) <= epsilon + 1e-6
        loss = exact_loss(honest, 1 / usual.noise.honest, epsilon)
        assert math.isclose(loss, colluding_epsilon(epsilon, 1, honest / required), rel_tol=1e-5)
        assert loss > epsilon * 1.03


def plan_of(**values: Any) -> ShardQuery:
    parameters = CountParameters(**values)
    query = first_state(Population(200_000.0, "public"), parameters.budget, parameters).query
    assert query is not None
    return query


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("colluders", [0, 4])
def test_noise_of_epsilon_remains_only_with_colluding(colluders: int) -> None:
    """The server subtracts the shares of four of twenty clients in 256 shards of 256 entries."""
    group = minimal_shards()
    honest = np.tile(np.arange(REQUIRED) >= 4, SHARDS)
    remaining = sum_client_shares(
        group, slice(0, SHARDS), honest, minimal_query(colluders, None), COLLUDING_KEY
    ).ravel()
    laplace = discrete_laplace_pmf(1.0, REACH)
    if colluders:
        assert chi_square_p(remaining, laplace) > FLAKE_RATE
    else:
        assert chi_square_p(remaining, laplace) < FLAKE_RATE
        assert chi_square_p(remaining, polya_difference_pmf(0.8, 1.0, REACH)) > FLAKE_RATE


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("mode", ["shard", "client"])
def test_a_planned_shard_has_the_noise_of_all_required_clients(mode: str) -> None:
    group, query = minimal_shards(), minimal_query(5, REQUIRED)

    def draw(one: ShardQuery) -> NDArray[np.int64]:
        if mode == "shard":
            return draw_shard_noise(group.numbers(), group.sizes(), one, COLLUDING_KEY).ravel()
        return sum_client_shares(group, slice(0, SHARDS), None, one, COLLUDING_KEY).ravel()

    pmf = polya_difference_pmf(20 / 15, 1.0, REACH)
    assert chi_square_p(draw(query), pmf) > FLAKE_RATE
    assert chi_square_p(draw(minimal_query(0, REQUIRED)), pmf) < FLAKE_RATE
    empty = ShardGroup(0, SHARDS, Places(4), np.zeros(0, dtype=np.uint32))
    if mode == "shard":  # whoever is there
        assert (draw_shard_noise(empty.numbers(), empty.sizes(), query, COLLUDING_KEY).ravel() == draw(query)).all()


@pytest.mark.slow
def test_plans_and_releases_state_the_epsilon_against_colluders() -> None:
    usual, protected = (CountParameters(population=200_000, shard_size=2_000, colluding=one) for one in (None, 0.05))
    states = [make_plan(one).state for one in (usual, protected)]
    assert math.isclose(states[0].epsilon_against(0.05), 1.048, rel_tol=1e-3)
    assert math.isclose(states[1].epsilon_against(0.05), 1.0, rel_tol=1e-9)
    assert states[1].epsilon_against(0.2) > 1.1
    noise = [state.results[-1].noise_stddev for state in states]
    assert math.isclose(noise[1] / noise[0], math.sqrt(1900 / 1805), rel_tol=1e-9)
    assert "not with these options" not in trust_table(protected).splitlines()[2]  # central needs no such noise
    # A distribution adds to many entries with a small epsilon each, which costs much more.
    spread = make_plan(replace(usual, contribution="all")).state
    assert spread.epsilon_against(0.05) > 1.5

    stated = [city_release("flat", **given).manifest["privacy"] for given in ({}, {"colluding": 0.05})]
    assert "colluders" not in stated[0]["cohort"]
    assert stated[1]["cohort"]["colluders"] == math.floor(0.05 * stated[1]["cohort"]["required_survivors"]) > 0
    for privacy, words in zip(stated, ("if none of", "if at most"), strict=True):
        assert sum("collude" in one and words in one for one in privacy["assumptions"]) == 1


@pytest.mark.parametrize("values", [{"trust": "central"}, {"noise": "gaussian", "delta": 1e-6}])
def test_colluding_is_refused_where_noise_has_no_shares(values: dict[str, Any]) -> None:
    with rejects("colluding"):
        CountParameters(colluding=0.05, **values)
