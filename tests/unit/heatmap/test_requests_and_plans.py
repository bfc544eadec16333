"""Options of a heatmap, the gamma that they ask for, and plans from public figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import poisson

from benchmarks.baselines.heatmap_methods import AdaptiveGrid
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population
from sfumato.schemas.ledger import Charge, Limit, Period, parse_amount, parse_day, rounded_down
from sfumato.schemas.region import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.methods import METHODS, Adaptive, Emd, Flat, Method
from sfumato.transforms.counting.parameters import COST, MIN_QUERY_SHARE, CountParameters, max_counted, vector_length
from sfumato.transforms.counting.plan import make_plan
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, Query
from sfumato.transforms.counting.sub_queries import check_first_query, first_state
from sfumato.transforms.heatmap.request import HeatmapRequest, PlanRequest, heatmap_parameters
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.nights.plan import RotationChoice, make_rotation_plan
from sfumato.transforms.privacy.additive_noise import LAPLACE, NOISES, LaplaceNoise
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.discrete_laplace import MIN_NOISE_EPSILON
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.ledger.windows import fits
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, noise_quantile, rho_for_delta
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import TreeEncoding, l1_sensitivity, stored_total
from sfumato.transforms.secagg.modulus import min_window
from tests.rejections import rejects
from tests.seeds import seeded_rng

MINIMAL = {"input": "i", "output": "o", "region": "0,0,1,1"}


# One row an option: the method, other options, the option that is refused, and values of it.
BAD_VALUES: list[tuple[str, dict[str, Any], str, tuple[Any, ...]]] = [
    ("adaptive", {}, "epsilon", (math.nan, 0.0, -1.0, math.inf, 30.1, 1e-5, True)),
    ("adaptive", {}, "shard_size", (1,)),
    ("adaptive", {}, "dropout", (-0.1, 0.95, math.nan)),
    ("adaptive", {}, "max_bad_fraction", (math.nan, -0.5)),
    ("adaptive", {}, "modulus", (1, 1 << 63)),
    ("adaptive", {}, "trust", ("local", 1)),
    ("adaptive", {}, "max_entries", (15, 1 << 25, 100.0)),
    ("adaptive", {}, "blur_weight", (0.0, -1.0, math.nan, math.inf)),
    ("adaptive", {"refine": "interval"}, "interval_width", (0.0, 1.0, -0.1, math.nan)),
    ("adaptive", {"schedule": "paper"}, "sub_query_share", (0.0, math.nan)),
    ("adaptive", {"schedule": "paper"}, "start_level", (11,)),
    ("adaptive", {"contribution": "all"}, "gamma", (0, -3, MAX_GAMMA + 1, 1.5, math.nan, True, "auto")),
    ("adaptive", {"contribution": "all"}, "modulus", (5000,)),  # which holds the sums of no gamma
    ("flat", {}, "level", (11, -1, True)),
    ("flat", {}, "keep_top", (0.0, -1, 100.1, math.nan, math.inf)),
    ("flat", {}, "depth", (13,)),
    ("emd", {}, "emd_width", (0, 5000, 2.5)),
    ("emd", {}, "emd_decay", (0.4, math.nan)),
]


@pytest.mark.parametrize(("method", "others", "option", "values"), BAD_VALUES)
def test_heatmap_parameters_reject_bad_values(
    method: str, others: dict[str, Any], option: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        with rejects(option):
            heatmap_parameters(method, {**others, option: value})


@pytest.mark.parametrize(
    ("method", "values", "option"),
    [
        ("adaptiv", {}, "method"),
        ("flat", {"calibration": 0.1}, "calibration"),
        ("flat", {"level": None, "xyzzy": None}, "xyzzy"),
        ("flat", {"estimator": "bayes", "keep_top": 50.0}, "keep_top"),
        ("emd", {"estimator": "bayes"}, "estimator"),
        ("emd", {"depth": 20, "emd_width": 4, "emd_decay": 0.5}, "emd_decay"),  # next to nothing for the finest level
        ("adaptive", {"shards": "disjoint", "schedule": "paper"}, "shards"),
        ("adaptive", {"max_entries": 100, "schedule": "paper"}, "max_entries"),
        ("adaptive", {"calibration": 0.2}, "calibration"),
        ("adaptive", {"interval_width": 0.2}, "interval_width"),
        ("adaptive", {"refine": "interval"}, "refine"),
        ("adaptive", {"refine": "interval", "schedule": "paper"}, "refine"),
        ("adaptive", {"shards": "disjoint", "trust": "central"}, "shards"),
        ("adaptive", {"trust": "central", "noise_source": "client"}, "noise_source"),
        ("adaptive", {"rounding": "independent"}, "rounding"),
        ("adaptive", {"rounding": "independent", "contribution": "one"}, "rounding"),
        ("adaptive", {"categories": 1 << 20}, "categories"),
        ("emd", {"categories": 2}, "auxiliary"),
        ("adaptive", {"categories": 3, "max_entries": 47}, "max_entries"),
        ("adaptive", {"slots": 24, "schedule": "paper"}, "schedule"),
        ("adaptive", {"slots": 24, "shards": "disjoint"}, "shards"),
        ("adaptive", {"slots": 24, "estimator": "last"}, "estimator"),
        ("adaptive", {"slots": 24, "contribution": "all"}, "contribution"),
        ("adaptive", {"slots": 24, "participation": "paper"}, "participation"),
        ("adaptive", {"slots": 24, "max_entries": 100}, "max_entries"),
        ("flat", {"slots": 24}, "slots"),
        ("adaptive", {"rotation": 3, "population": 1000}, "population"),
        ("adaptive", {"rotation": 3, "users": 1000}, "users"),
        ("adaptive", {"rotation": 3, "participation": "paper"}, "participation"),
        ("adaptive", {"rotation": 3, "slots": 24}, "slots"),
        ("adaptive", {"rotation": 367}, "rotation"),
    ],
)
def test_heatmap_parameters_reject_contradictions(method: str, values: dict[str, Any], option: str) -> None:
    counts = {name: values.pop(name) for name in ("categories", "slots", "rotation") if name in values}
    with rejects(option):
        heatmap_parameters(method, values, **counts)


TIMED = "time_column=time slots=hour"


@pytest.mark.parametrize(
    ("options", "rejected"),
    [
        ("epsilon=much", "epsilon"),
        ("region=1,50,-1,51", "region"),
        ("region=-1,50,1", "region"),
        ("release_id=../x", "release_id"),
        ("key_file=missing seed=1", "key_file and seed"),
        ("weight_column=weight time_column=time", "weight_column, time_column"),
        ("max_dwell=60", "max_dwell"),
        ("time_column=time max_dwell=0", "max_dwell"),
        ("categories=a,b", "categories"),
        ("auxiliary=level categories=1", "categories"),
        ("auxiliary=level categories=1,2,1", "categories"),
        ("auxiliary=level categories=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "categories"),
        ("auxiliary=user_id", "auxiliary"),
        ("auxiliary=ill method=emd", "auxiliary"),
        ("slots=hour", "slots"),
        ("time_column=time slots=7,24", "slots"),
        ("time_column=time time_zone=UTC", "time_zone"),
        (f"{TIMED} time_zone=Mars", "time_zone"),
        (f"{TIMED} max_dwell=60", "max_dwell"),
        (f"{TIMED} auxiliary=ill", "auxiliary"),
        (f"{TIMED} method=flat", "slots"),
        ("records_per_user=2", "records_per_user"),
        ("time_column=time slots=0,7,24 records_per_user=3", "records_per_user"),
        (f"{TIMED} records_per_user=2 weight_column=seconds", "weight_column"),
        (f"{TIMED} records_per_user=2 contribution=top", "contribution"),
        (f"{TIMED} records_per_user=2 simulated_dropout=0.1", "simulated_dropout"),
        ("night=2026-11-20 auxiliary=ill", "auxiliary"),
    ],
)
def test_heatmap_request_rejects_contradictions(options: str, rejected: str) -> None:
    with rejects(rejected):
        HeatmapRequest.of({**MINIMAL, **dict(one.split("=") for one in options.split())})


def test_paper_schedule_has_the_papers_estimator_not_at_night() -> None:
    given = {**MINIMAL, "schedule": "paper"}
    (planned,) = PlanRequest.of({"users": 1000, "schedule": "paper"}).settings()
    assert HeatmapRequest.of(given).parameters.method == planned.method == PAPER
    assert HeatmapRequest.of({**given, "night": "2026-11-20"}).parameters.method == Adaptive(schedule="paper")


ROUNDINGS = ("systematic", "independent")


KEY = RunKey.derive(FixedSecret(b"gamma" * 8), {})


def length_of(parameters: CountParameters, users: float, noisy_sums: int) -> int:
    return vector_length(parameters.epsilon, parameters.categories << (2 * parameters.depth), users, noisy_sums)


def chosen(**values: Any) -> int:
    gamma = CountParameters(contribution="all", **values).distribution_gamma
    assert gamma is not None
    return gamma


def test_gamma_is_that_of_the_docs() -> None:
    assert chosen() == 363
    assert chosen(trust="central") == 14_482
    assert chosen(epsilon=0.1) == 37
    assert CountParameters().distribution_gamma is None
    assert CountParameters(method=Emd()).distribution_gamma == 363


@given(st.floats(0.01, 30), st.integers(2, 1 << 24), st.integers(1, 1 << 40) | st.none(), st.booleans())
def test_gamma_is_the_least_whose_rounding_is_a_hundredth(
    epsilon: float, shard_size: int, users: int | None, central: bool
) -> None:
    values: dict[str, Any] = {"epsilon": epsilon, "shard_size": shard_size, "users": users, "method": Flat()}
    gamma = chosen(trust="central" if central else "secagg", **values)
    together = min(users or math.inf, 1 << 24 if central else 1.05 * shard_size)

    def share(gamma: int) -> float:
        noise = discrete_laplace_stddev(epsilon, gamma)
        return together / 4 / noise**2 if noise else math.inf

    assert share(gamma) <= COST * (1 + 1e-9) or gamma >= COST * epsilon / MIN_NOISE_EPSILON - 1
    assert gamma == 1 or share(gamma - 1) > COST * (1 - 1e-9)


@settings(max_examples=30)
@given(
    st.integers(15, 50),
    st.sampled_from(ROUNDINGS),
    st.floats(0.1, 10),
    st.sampled_from([1000, 10_000]),
    st.sampled_from([None, 2293, 10**6]),
)
def test_modulus_holds_its_gamma_and_not_the_next(
    bits: int, rounding: str, epsilon: float, shard_size: int, users: int | None
) -> None:
    values: dict[str, Any] = {"rounding": rounding, "epsilon": epsilon, "shard_size": shard_size, "depth": 6}
    values |= {"users": users, "contribution": "all"}
    free = CountParameters(**values).distribution_gamma
    assert free is not None

    def needed(gamma: int) -> int:
        parameters, many = CountParameters(**values, gamma=gamma), users or 1 << 30
        state = first_state(Population(float(many), "public"), Budget(epsilon), parameters)
        d = length_of(parameters, many, state.shard_plan.shards)
        probability = parameters.overflow_probability / parameters.method.most_sub_queries(6)
        counting = parameters.admission().cost
        counted = max_counted(min(many, 1.05 * shard_size), counting, probability)
        return min_window(
            expected_size=counted + noise_quantile(counting, 0.1 * probability),
            noise=Noise(),
            cost=MIN_QUERY_SHARE * epsilon,
            sensitivity=l1_sensitivity(gamma, parameters.rounding, math.ceil(MIN_QUERY_SHARE * d)),
            gamma=gamma,
            entries=d,
            shards=state.shard_plan.shards,
            probability=0.9 * probability,
        ).modulus

    if (least := needed(1)) > 1 << bits:
        told = f"modulus: {1 << bits} holds the sums of no gamma, the least that would do for gamma 1 is {least};"
        with pytest.raises(RequestError, match=told):
            CountParameters(**values, modulus=1 << bits)
        return
    gamma = CountParameters(**values, modulus=1 << bits).distribution_gamma
    assert gamma is not None
    assert gamma <= free
    assert needed(gamma) <= 1 << bits
    assert gamma == free or needed(gamma + 1) > 1 << bits


@dataclass(frozen=True)
class Twice(Method):
    """A hundredth of epsilon for one level, or `share`; the rest for another."""

    NAME: ClassVar[str] = "twice"
    TEXT: ClassVar[str] = "two levels"
    CATEGORIES: ClassVar[bool] = True

    level: int = 1
    final: int = 2
    share: float = MIN_QUERY_SHARE

    def most_sub_queries(self, depth: int) -> int:
        return 2

    def next_query(self, state: CountState, depth: int) -> Query | None:
        if len(state.results) == 2:
            return None
        level = self.final if state.results else self.level
        epsilon = ALL_REMAINING if state.results else self.share * state.budget.total
        return Query(TreeEncoding(Tree.uniform(depth, level)), epsilon)

    def decode(self, state: CountState, depth: int) -> Estimate:
        return state.results[-1].to_estimate()


def test_check_plan_rejects_sensitivity_without_noise() -> None:
    large = CountParameters(contribution="all", gamma=10**8, users=10_000, epsilon=0.5)
    with rejects("gamma"):
        check_first_query(large)
    # gamma alone is small, and so is the first vector; 4^10 entries want an epsilon of 0.01.
    grows = CountParameters(
        contribution="all", gamma=10, rounding="independent", users=10_000, method=Twice(level=1, final=10, share=0.985)
    )
    with rejects("rounding"):
        make_plan(grows)
    make_plan(replace(grows, rounding="systematic"))


@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize("trust", ["secagg", "central"])
@pytest.mark.parametrize("method", [*METHODS, "adaptive_grid"])
def test_every_method_runs_with_independent_rounding(baselines: None, method: str, trust: str) -> None:
    """What it says of its noise is that of gamma + d, and the counts are right within it."""
    depth, users, gamma, rng = 3, 400, 300, seeded_rng(0)
    values: dict[str, Any] = {"depth": depth, "contribution": "all", "gamma": gamma, "rounding": "independent"}
    values |= {"trust": trust, "epsilon": 20.0, "dropout": 0.2}
    own = AdaptiveGrid(grid_side=4) if method == "adaptive_grid" else METHODS[method]()
    parameters = CountParameters(method=own, **values)
    hashes = np.repeat(np.sort(rng.integers(0, 2**64, users, dtype=np.uint64)), 2)
    codes = np.sort(rng.integers(0, 4**depth, (users, 2)), axis=1).ravel().astype(np.uint64)
    total = stored_total(gamma, "independent")
    rows = Rows(Places(depth), hashes, codes, np.tile(np.array([total // 3, total - total // 3]), users))
    state = run_in_memory(rows, users, parameters, KEY)
    for result in state.results:
        sensitivity = gamma * result.encoding.entries_per_location + result.encoding.length
        least = discrete_laplace_stddev(result.cost, sensitivity) / gamma
        assert least <= result.noise_stddev <= 1.2 * least
    exact = np.bincount(codes.astype(int), rows.weights, 4**depth) / total
    estimate = parameters.method.decode(state, depth)
    whole = float(estimate.counts.sum())
    assert whole == pytest.approx(exact.sum(), abs=8 * float(np.sqrt((estimate.stddev**2).sum())) + 1)


PAPER = Adaptive(schedule="paper", estimator="last")


def test_make_plan_is_exact_for_flat() -> None:
    made = make_plan(
        heatmap_parameters(
            "flat", {"users": 100_000, "population": 100_000, "level": 6, "epsilon": 0.5, "dropout": 0.0}
        )
    )
    assert made.entries == 4**6
    assert math.isclose(made.noise_stddev, math.sqrt(10) * discrete_laplace_stddev(0.99 * 0.5))
    assert made.min_visible_users == 2 * made.noise_stddev
    assert made.visible_level == min(6, int(math.log(100_000 / made.min_visible_users, 4)))


@pytest.mark.parametrize("dropout", [0.02, 0.06])
def test_make_plan_expects_shards_with_too_few_survivors_lost(dropout: float) -> None:
    made = make_plan(CountParameters(users=100_000))
    assert math.isclose(made.shards_lost(dropout), poisson.cdf(9_499, 10_000 * (1 - dropout)))


def test_make_plan_rejects_what_the_run_would() -> None:
    with rejects("modulus"):
        make_plan(CountParameters(users=100_000, modulus=100))
    with rejects("gamma"):
        make_plan(CountParameters(users=1000, contribution="all", gamma=(1 << 31) - 1, epsilon=0.01))
    with pytest.raises(ValueError, match="users"):
        make_plan(CountParameters())


@pytest.mark.parametrize("method", ["emd", "count_min"])
def test_make_plan_has_no_single_noise_for_several_answers(baselines: None, method: str) -> None:
    made = make_plan(heatmap_parameters(method, {"users": 10_000, "depth": 5}))
    assert (made.min_visible_users, made.visible_level) == (None, None)
    assert make_plan(CountParameters(users=10_000, depth=3)).visible_level <= 3


def rotating(**given: Any) -> CountParameters:
    return CountParameters(**({"users": 300_000, "population_share": 0.01} | given))


class Quiet(LaplaceNoise):
    """A kind of noise that anyone would prefer."""

    NAME: ClassVar[Any] = "quiet"

    def stddev(self, cost: float, sensitivity: float = 1) -> float:
        return super().stddev(cost, sensitivity) / 10


def test_auto_does_not_choose_noise_that_is_only_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a new kind changes no release of a request that does not name it."""
    monkeypatch.setitem(NOISES, "quiet", Quiet())  # type: ignore[arg-type]
    assert CountParameters(users=1000).noise_kind == LAPLACE
    assert {choice.noise for choice in make_rotation_plan(rotating(epsilon=2.0), 30).choices} == {"laplace"}


@pytest.mark.parametrize("trust", ["secagg", "central"])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_rotation_noise_is_that_of_a_cohorts_sums(trust: Any, noise: Any) -> None:
    """In shards Laplace noise falls as the root of the cohorts; other noise does not, so one cohort is best."""
    users = 54_600_000
    delta = 1e-6 if noise == "gaussian" else 0.0
    plan = make_rotation_plan(rotating(users=users, epsilon=0.5, delta=delta, trust=trust, noise=noise), 30)
    for cohorts in (1, 2, 3, 4, 7, 10, 29, 30):
        choice = plan.choice(cohorts)
        times_queried = math.ceil(30 / cohorts)
        shards = None if trust == "central" else round(users / cohorts / 10_000)
        assert (choice.times_asked, choice.shards) == (times_queried, shards)
        if noise == "laplace":
            assert math.isclose(choice.epsilon, 0.5 / times_queried)
            one = discrete_laplace_stddev(0.99 * 0.5 / times_queried)
        else:
            one = math.sqrt(times_queried / (2 * 0.99 * rho_for_delta(0.5, delta)))
        assert math.isclose(choice.noise_stddev, cohorts * math.sqrt(shards or 1) * one, rel_tol=5e-3)
    assert plan.best.cohorts == (30 if (trust, noise) == ("secagg", "laplace") else 1)


@pytest.mark.parametrize(("delta", "noise"), [(0.0, "auto"), (1e-6, "gaussian")])
def test_rotation_keeps_every_user_within_the_limit(delta: float, noise: Any) -> None:
    plan = make_rotation_plan(rotating(epsilon=2.0, delta=delta, noise=noise), 31)
    limit = Limit.from_numbers(2, delta, 31)
    for choice in plan.choices:
        epsilon = rounded_down(choice.epsilon)
        day = Period(parse_day("period", "2026-11-20"), parse_day("period", "2026-11-20"))
        rho = None
        if choice.noise == "gaussian":
            rho = parse_amount("rho", rho_for_delta(float(epsilon), choice.delta))
        charge = Charge(
            release_id="a", job="heatmap", dataset="d", period=day, request="", binding="",
            epsilon=parse_amount("e", epsilon), delta=parse_amount("d", choice.delta), rho=rho,
        )  # fmt: skip
        times_queried = math.ceil(31 / choice.cohorts)
        assert fits([charge] * times_queried, limit)
        assert not fits([charge] * (times_queried + max(1, times_queried // 50)), limit)  # next to nothing is left over


@pytest.mark.parametrize("nights", [1, 30, 31])
def test_rotation_choices_are_divisors_and_unbeaten_numbers(nights: int) -> None:
    plan = make_rotation_plan(rotating(trust="central", epsilon=8.0), nights)
    numbers = [choice.cohorts for choice in plan.choices]
    assert {one for one in range(1, nights + 1) if nights % one == 0} <= set(numbers)
    assert numbers == sorted(set(numbers))
    by_asked = {choice.times_asked: choice for choice in plan.choices}
    for cohorts in range(1, nights + 1):  # brute force over all numbers
        rotated = by_asked[math.ceil(nights / cohorts)]
        assert rotated.cohorts <= cohorts
        for added in (1, plan.added_nights):
            assert rotated.min_visible_users(added) <= plan.choice(cohorts).min_visible_users(added) * (1 + 1e-12)


@pytest.mark.parametrize(("users", "trust"), [(20_000, "central"), (300_000, "secagg")])
def test_rotation_best_has_the_least_error_of_a_typical_cell(users: int, trust: Any) -> None:
    plan = make_rotation_plan(rotating(users=users, trust=trust), 30)
    errors = [choice.stddev(plan.typical_users, 30) for choice in plan.choices]
    assert plan.choices[int(np.argmin(errors))] == plan.best
    assert math.isclose(plan.excess(plan.best.cohorts), 1)
    assert min(plan.excess(cohorts) for cohorts in range(1, 31)) >= 1 - 1e-12
    nearby = RotationChoice.min_visible_users(plan.best_of_one_night)
    assert nearby == min(choice.min_visible_users() for choice in plan.choices)


def test_rotation_plan_rejects_bad_input() -> None:
    for nights in (0, 367):
        with rejects("nights"):
            make_rotation_plan(rotating(), nights)
    with rejects("participation"):
        make_rotation_plan(rotating(participation="paper"), 30)
    with rejects("rotation"):
        make_rotation_plan(rotating(slots=24), 30)
    with pytest.raises(ValueError, match="users"):
        make_rotation_plan(CountParameters(), 30)
