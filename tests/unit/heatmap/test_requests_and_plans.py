"""Options of a heatmap, the gamma that they ask for, and plans from public figures."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy.stats import norm, poisson

from benchmarks.baselines.heatmap_methods import BASELINES, AdaptiveGrid
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population
from sfumato.schemas.ledger import Charge, Limit, Period, parse_amount, parse_day
from sfumato.schemas.places import Places
from sfumato.schemas.requests.request_base import range_text
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods import METHODS, Adaptive, Emd, Flat, Method
from sfumato.transforms.heatmap.parameters import COST, MIN_QUERY_SHARE, HeatmapParameters, max_counted, vector_length
from sfumato.transforms.heatmap.plan import make_plan, overflow_probability
from sfumato.transforms.heatmap.request import (
    HeatmapRequest,
    PlanRequest,
    heatmap_parameters,
    option_grid,
    parameter_owners,
)
from sfumato.transforms.heatmap.rotation_plan import RotationChoice, floor_amount, make_rotation_plan, rotation_table
from sfumato.transforms.heatmap.schedule import check_plan, plan, window_for
from sfumato.transforms.heatmap.state import ALL_REMAINING, Estimate, HeatmapState, Query
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.ledger.windows import fits
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, noise_quantile, rho_for_delta
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON
from sfumato.transforms.secagg.encodings import TreeEncoding, l1_sensitivity, stored_total
from sfumato.transforms.secagg.modulus import choose_window, min_window
from tests.rejections import rejects
from tests.seeds import seeded_rng


def test_parameter_owners_names_the_methods() -> None:
    owners = parameter_owners()
    assert owners["calibration"] == ("adaptive",)
    assert owners["depth"] == ()
    assert "method" not in owners


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("depth", 0), ("epsilon", 0), ("delta", 1), ("population", 0), ("shard_size", 1), ("dropout", 0.95),
        ("colluding", -1), ("simulated_dropout", 2), ("max_bad_fraction", -1), ("trust", "local"), ("schedule", "best"),
        ("refine", "width"), ("contribution", "some"), ("participation", "none"), ("noise_source", "sun"),
    ],
)  # fmt: skip
def test_request_rejects_what_parameters_reject(option: str, wrong: Any) -> None:
    """A range is declared once, so a request and the parameters refuse a value in the same words."""
    with pytest.raises(RequestError) as refused:
        HeatmapRequest.of({"input": "i", "output": "o", "region": "0,0,1,1", option: wrong})
    assert str(refused.value).startswith(f"{option}: must be ")
    assert range_text(HeatmapRequest.model_fields[option]) in str(refused.value)
    with pytest.raises(RequestError) as direct:
        heatmap_parameters("adaptive", {option: wrong})
    assert str(direct.value).partition(", got")[0] == str(refused.value).partition(", got")[0]
    if option in PlanRequest.model_fields:
        with pytest.raises(RequestError) as planned:
            PlanRequest.of({"users": 10, option: [wrong]})
        assert str(planned.value).partition(", got")[0] == str(refused.value).partition(", got")[0]


@pytest.mark.parametrize("name", ["depth", "epsilon", "delta", "max_bad_fraction", "participation", "noise_source"])
def test_request_has_the_defaults_of_the_parameters(name: str) -> None:
    assert HeatmapRequest.model_fields[name].default == getattr(HeatmapParameters(), name)
    assert HeatmapRequest.of({"input": "i", "output": "o", "region": "0,0,1,1"}).parameters == HeatmapParameters()


def test_defaults_are_the_dataclasses_own() -> None:
    assert heatmap_parameters("adaptive", {}) == HeatmapParameters()
    assert heatmap_parameters("flat", {"level": 4, "depth": None, "allow_overflow": False}) == HeatmapParameters(
        method=Flat(level=4)
    )


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("adaptiv", {}, "method: there is no 'adaptiv', there are adaptive, flat.*did you mean adaptive"),
        ("nothing", {}, "method: there is no 'nothing'"),
        ("flat", {"calibration": 0.1}, "calibration: applies only with --method adaptive"),
        ("flat", {"levle": 3}, "levle: a heatmap has no such option; did you mean level?"),
        ("flat", {"level": None, "xyzzy": None}, "xyzzy: a heatmap has no such option"),
        ("flat", {"depth": 5.0}, "depth: must be a whole number in 1..20, got 5.0"),
        ("flat", {"depth": "5"}, "depth: must be a whole number in 1..20, got 5"),
        ("flat", {"epsilon": True}, r"epsilon: must be a number in \[0.0001, 30\], got True"),
        ("flat", {"allow_overflow": "yes"}, "allow_overflow: must be true or false, got 'yes'"),
        ("flat", {"trust": 1}, "trust: must be one of central, secagg, got 1"),
        ("flat", {"max_bad_fraction": -0.5}, r"max_bad_fraction: must be a number in \[0, 1\], got -0.5"),
        ("flat", {"level": 11}, "level"),
        ("flat", {"keep_top": 0.0}, "keep_top"),
        ("flat", {"keep_top": float("nan")}, "keep_top"),
        ("flat", {"depth": 13}, "depth"),
        ("adaptive", {"start_level": 11}, "start_level"),
        ("adaptive", {"gamma": 0}, "gamma"),
        ("adaptive", {"contribution": "some"}, "contribution"),
        ("adaptive", {"modulus": 1 << 63}, "modulus"),
        ("adaptive", {"schedule": "best"}, "schedule: must be one of auto, two_query, lean, paper, got 'best'"),
        ("adaptive", {"schedule": ""}, "schedule"),
        ("adaptive", {"estimator": "first"}, "estimator: must be one of bayes, last, got 'first'"),
        ("adaptive", {"cohorts": "none"}, "cohorts: must be one of auto, shared, disjoint, got 'none'"),
        ("adaptive", {"cohorts": "disjoint", "schedule": "paper"}, "cohorts: is no option of the paper's schedule"),
        ("adaptive", {"max_entries": 100, "schedule": "paper"}, "max_entries: is no option of the paper's schedule"),
        ("adaptive", {"calibration": 0.2}, "calibration: is an option of the paper's schedule; give --schedule paper"),
        (
            "adaptive",
            {"max_sub_queries": 2, "schedule": "lean"},
            "max_sub_queries: is an option of the paper",
        ),
        (
            "adaptive",
            {"interval_width": 0.2},
            "interval_width: is .* interval; give --refine interval",
        ),
        ("adaptive", {"cohorts": "disjoint", "trust": "central"}, "cohorts: .* central noise"),
        ("adaptive", {"refine": "width"}, "refine: must be one of count, interval, got 'width'"),
        ("adaptive", {"refine": "interval"}, "refine: .* auxiliary"),
        ("adaptive", {"refine": "interval", "schedule": "paper"}, "refine: .* auxiliary"),
        ("adaptive", {"refine": "interval", "interval_width": 0.0}, "interval_width: must be a number > 0 and < 1"),
        ("adaptive", {"refine": "interval", "interval_width": 1.0}, "interval_width"),
        ("adaptive", {"refine": "interval", "interval_width": -0.1}, "interval_width"),
        ("adaptive", {"refine": "interval", "interval_width": float("nan")}, "interval_width"),
        ("adaptive", {"max_entries": 15}, "max_entries: must be a whole number in 16..16777216, got 15"),
        ("adaptive", {"max_entries": 1 << 25}, "max_entries"),
        ("adaptive", {"max_entries": 100.0}, "max_entries"),
        ("adaptive", {"blur_weight": 0.0}, "blur_weight"),
        ("adaptive", {"blur_weight": -1.0}, "blur_weight"),
        ("adaptive", {"blur_weight": float("nan")}, "blur_weight: must be a number > 0 .*, got nan"),
        ("adaptive", {"blur_weight": float("inf")}, "blur_weight"),
        ("adaptive", {"target": "literal"}, "target"),
        (
            "adaptive",
            {"rounding": "up", "contribution": "all"},
            "rounding: must be one of systematic, independent, got",
        ),
        ("adaptive", {"rounding": "independent"}, "rounding: .* use it with contribution all"),
        ("adaptive", {"rounding": "independent", "contribution": "top"}, "rounding"),
        ("flat", {"estimator": "best"}, "estimator: must be one of bayes, last, got 'best'"),
        ("flat", {"estimator": "bayes", "keep_top": 50.0}, "keep_top"),
        ("flat", {"schedule": "lean"}, "schedule: applies only with --method adaptive"),
        ("emd", {"estimator": "bayes"}, "estimator: applies only with --method adaptive or flat"),
        ("flat", {"cohorts": "shared"}, "cohorts: applies only with --method adaptive"),
        ("flat", {"max_entries": 100}, "max_entries: applies only with --method adaptive"),
        ("flat", {"refine": "interval"}, "refine: applies only with --method adaptive"),
    ],
)
def test_bad_options_are_refused_by_name(method: str, values: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        heatmap_parameters(method, values)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_only_methods_that_count_by_category_take_auxiliary_data(method: str) -> None:
    if method in ("adaptive", "flat"):
        assert heatmap_parameters(method, {}, 2).categories == 2
        return
    with pytest.raises(RequestError, match=f"auxiliary: method {method} makes no rates; use adaptive or flat"):
        heatmap_parameters(method, {}, 2)


@pytest.mark.parametrize("categories", [0, -1, 1 << 20])
def test_categories_out_of_range_are_refused(categories: int) -> None:
    with pytest.raises(RequestError, match="categories"):
        heatmap_parameters("adaptive", {}, categories)


def test_rates_may_be_what_is_refined_by() -> None:
    assert heatmap_parameters("adaptive", {"refine": "interval", "interval_width": 0.05}, 2).categories == 2


def test_facts_tell_methods_with_equal_options_apart() -> None:
    metadata = {name: str(heatmap_parameters(name, {}).metadata()) for name in METHODS}
    assert len(set(metadata.values())) == len(METHODS)
    assert HeatmapParameters(method=Adaptive(calibration=0.2)).metadata()["calibration"] == 0.2


def test_a_grid_has_every_combination_and_spares_methods_foreign_options() -> None:
    values = {"epsilon": [0.5, 1.0], "calibration": [0.1, 0.2, 0.1], "level": [3]}
    grid = option_grid(["adaptive", "flat", "adaptive"], values)
    assert len(grid) == 2 * 2 + 2
    assert ("adaptive", {"epsilon": 0.5, "calibration": 0.2}) in grid
    assert ("flat", {"epsilon": 1.0, "level": 3}) in grid


def test_a_grid_refuses_what_no_method_has_and_what_is_too_much() -> None:
    with rejects("calibration"):
        option_grid(["flat"], {"calibration": [0.1]})
    with pytest.raises(RequestError, match="more than 10,000 combinations"):
        option_grid(["flat"], {"users": list(range(1, 102)), "shard_size": list(range(2, 102))})
    with pytest.raises(RequestError, match="there is no 'x'"):
        option_grid(["x"], {})
    with pytest.raises(ValueError, match=r"epsilon: must be a number in \[0.0001, 30\], got ''"):
        PlanRequest.of({"users": "1", "epsilon": "1,,2"})


def test_paper_schedule_has_the_papers_estimator_except_over_nights() -> None:
    given = {"input": "i", "output": "o", "region": "0,0,1,1", "schedule": "paper"}
    alone, (planned,) = (
        HeatmapRequest.of(given).parameters,
        PlanRequest.of({"users": 1000, "schedule": "paper"}).settings(),
    )
    assert alone.method == planned.method == Adaptive(schedule="paper", estimator="last")
    assert HeatmapRequest.of({**given, "night": "2026-11-20"}).parameters.method == Adaptive(schedule="paper")


ROUNDINGS = ("systematic", "independent")


KEY = RunKey.derive(FixedSecret(b"gamma" * 8), {})


def length_of(parameters: HeatmapParameters, users: float, noisy_sums: int) -> int:
    return vector_length(parameters.epsilon, parameters.categories << (2 * parameters.depth), users, noisy_sums)


def chosen(**values: Any) -> int:
    gamma = HeatmapParameters(contribution="all", **values).distribution_gamma
    assert gamma is not None
    return gamma


def test_the_figures_of_the_docs() -> None:
    assert chosen() == 363
    assert chosen(trust="central") == 14_482
    assert chosen(epsilon=0.1) == 37
    assert HeatmapParameters().distribution_gamma is None
    assert HeatmapParameters(method=Emd()).distribution_gamma == 363


@given(st.floats(0.01, 30), st.integers(2, 1 << 24), st.integers(1, 1 << 40) | st.none(), st.booleans())
def test_rounding_has_a_hundredth_of_the_noise_variance_and_no_smaller_gamma_does(
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


def test_a_quarter_is_what_rounding_can_cost_and_it_does() -> None:
    """Users half here and half there, and an odd gamma: the sum of S users has a variance of S / 4."""
    gamma, users = 5, 4000
    rng = seeded_rng(0)
    offsets = rng.random(users)
    sums = np.floor(gamma / 2 + offsets).sum()
    assert abs(sums - users * gamma / 2) < 6.2 * math.sqrt(users / 4)
    assert np.floor(gamma / 2 + offsets).var() == pytest.approx(0.25, abs=6.2 / math.sqrt(users))


@pytest.mark.parametrize("users", [2293, 10_000, 1_000_000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_independent_rounding_asks_for_more(users: int, epsilon: float) -> None:
    parameters = HeatmapParameters(
        contribution="all", rounding="independent", depth=6, users=users, epsilon=epsilon, method=Flat()
    )
    gamma = parameters.distribution_gamma
    assert gamma is not None
    d = length_of(parameters, users, round(users / 10_000) or 1)
    assert 4 <= d <= 4096
    widened = (discrete_laplace_stddev(epsilon, gamma + d) / discrete_laplace_stddev(epsilon, gamma)) ** 2
    capped = gamma == int(COST * epsilon / MIN_NOISE_EPSILON)
    assert widened <= (1 + COST) * (1 + 1e-6) or capped
    assert widened <= 1.1
    assert gamma >= chosen(depth=6, users=users, epsilon=epsilon, method=Flat())


def test_what_stands_out_bounds_the_vector() -> None:
    """No tree that splits what has more users than two deviations of the noise has more such leaves' children."""
    parameters = HeatmapParameters(depth=10, epsilon=1.0)
    d = length_of(parameters, 10_000, 1)
    deviations = 2 * discrete_laplace_stddev(1e-6, 1) * 1e-6  # of epsilon 1, in the limit of a large gamma
    assert d == pytest.approx(4 * 10_000 / deviations, abs=1)
    assert length_of(replace(parameters, depth=3), 10_000, 1) == 64
    assert length_of(HeatmapParameters(depth=3, categories=2, method=Twice()), 10_000, 1) == 128


@settings(max_examples=30)
@given(
    st.integers(15, 50),
    st.sampled_from(ROUNDINGS),
    st.floats(0.1, 10),
    st.sampled_from([1000, 10_000]),
    st.sampled_from([None, 2293, 10**6]),
)
def test_a_modulus_holds_its_gamma_and_not_the_next(
    bits: int, rounding: str, epsilon: float, shard_size: int, users: int | None
) -> None:
    values: dict[str, Any] = {"rounding": rounding, "epsilon": epsilon, "shard_size": shard_size, "depth": 6}
    values |= {"users": users, "contribution": "all"}
    free = HeatmapParameters(**values).distribution_gamma
    assert free is not None

    def needed(gamma: int) -> int:
        parameters, many = HeatmapParameters(**values, gamma=gamma), users or 1 << 30
        state = plan(Population(float(many), "public"), Budget(epsilon), parameters)
        d = length_of(parameters, many, state.cohort.shards)
        probability = parameters.overflow_probability / parameters.method.max_rounds(6)
        counting = parameters.admission().epsilon
        counted = max_counted(min(many, 1.05 * shard_size), counting, probability)
        return min_window(
            expected_size=counted + noise_quantile(counting, 0.1 * probability),
            honest_survivors=None,
            epsilon=MIN_QUERY_SHARE * epsilon,
            sensitivity=l1_sensitivity(gamma, parameters.rounding, math.ceil(MIN_QUERY_SHARE * d)),
            gamma=gamma,
            entries=d,
            shards=state.cohort.shards,
            probability=0.9 * probability,
        ).modulus

    if (least := needed(1)) > 1 << bits:
        told = f"modulus: {1 << bits} holds the sums of no gamma, the least that would do for gamma 1 is {least};"
        with pytest.raises(RequestError, match=told):
            HeatmapParameters(**values, modulus=1 << bits)
        return
    gamma = HeatmapParameters(**values, modulus=1 << bits).distribution_gamma
    assert gamma is not None
    assert gamma <= free
    assert needed(gamma) <= 1 << bits
    assert gamma == free or needed(gamma + 1) > 1 << bits


@pytest.mark.parametrize(("rounding", "bits"), [("systematic", 17), *itertools.product(ROUNDINGS, (20, 24, 32))])
def test_sub_queries_of_a_hundredth_fit_the_modulus(rounding: str, bits: int) -> None:
    """The job's own windows, of a method that asks a hundredth of epsilon, then all of it: nothing is refused."""
    values: dict[str, Any] = {"contribution": "all", "rounding": rounding, "modulus": 1 << bits, "depth": 6}
    parameters = HeatmapParameters(**values, users=50_000, method=Twice(level=1, final=5))
    made = make_plan(parameters)
    assert parameters.distribution_gamma
    assert [one.modulus for one in made.sub_queries] == [1 << bits] * 2
    assert sum(made.overflow_probabilities) <= parameters.overflow_probability


@dataclass(frozen=True)
class Twice(Method):
    """A hundredth of epsilon for one level, or `share`; the rest for another."""

    NAME: ClassVar[str] = "twice"
    TEXT: ClassVar[str] = "two levels"
    CATEGORIES: ClassVar[bool] = True

    level: int = 1
    final: int = 2
    share: float = MIN_QUERY_SHARE

    def max_rounds(self, depth: int) -> int:
        return 2

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        if len(state.results) == 2:
            return None
        level = self.final if state.results else self.level
        epsilon = ALL_REMAINING if state.results else self.share * state.budget.total
        return Query(TreeEncoding(Tree.uniform(depth, level)), epsilon)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        return state.results[-1].to_estimate()


def test_a_gamma_depends_on_nothing_that_is_counted() -> None:
    """Users are bounded before the noisy population is known."""
    parameters = HeatmapParameters(contribution="all")
    for users in (1.0, 3000.0, 1e9):
        state = plan(Population(users, "noisy", 0.01, 1.0), Budget(1.0).charge(0.0078125), parameters)
        assert state.gamma == parameters.distribution_gamma == 363


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"gamma": 0}, "gamma: must be a whole number"),
        ({"gamma": -3}, "gamma: must be a whole number"),
        ({"gamma": MAX_GAMMA + 1}, "gamma: must be a whole number"),
        ({"gamma": 1.5}, "gamma: must be a whole number"),
        ({"gamma": math.nan}, "gamma: must be a whole number"),
        ({"gamma": True}, "gamma: must be a whole number"),
        ({"gamma": "auto"}, "gamma: must be a whole number"),
        ({"rounding": "random"}, "rounding: must be one of systematic, independent, got 'random'"),
        ({"rounding": None}, "rounding: must be one of"),
        ({"rounding": "independent", "contribution": "one"}, "rounding: independent .* contribution all"),
        ({"rounding": "independent", "contribution": "top"}, "rounding: independent .* contribution all"),
        ({"rounding": "independent", "contribution": None}, "rounding: independent .* contribution all"),
        ({"modulus": 5000}, "modulus: 5000 holds the sums of no gamma, the least that would do for gamma 1 is [0-9]+;"),
    ],
)
def test_bad_values(values: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        HeatmapParameters(**{"contribution": "all", **values})


def test_a_gamma_that_no_modulus_holds_is_refused() -> None:
    parameters = HeatmapParameters(
        contribution="all", gamma=MAX_GAMMA, users=1 << 32, shard_size=1 << 24, epsilon=30.0, method=Flat(level=1)
    )
    with rejects("gamma"):
        check_plan(parameters)
    least = min_window(
        expected_size=1e7,
        honest_survivors=10**7,
        epsilon=1.0,
        sensitivity=1 << 40,
        gamma=1 << 40,
        entries=100,
        shards=1,
        probability=1e-6,
    )
    for modulus in (None, 1 << 62):
        with rejects("gamma"):
            choose_window(least, modulus, True)


def test_a_sensitivity_for_which_no_noise_can_be_drawn_is_refused() -> None:
    large = HeatmapParameters(contribution="all", gamma=10**8, users=10_000, epsilon=0.5)
    with rejects("gamma"):
        check_plan(large)
    # gamma alone is small, and so is the first vector; 4^10 entries want an epsilon of 0.01.
    grows = HeatmapParameters(
        contribution="all",
        gamma=10,
        rounding="independent",
        users=10_000,
        method=Twice(level=1, final=10, share=0.985),
    )
    with rejects("rounding"):
        make_plan(grows)
    make_plan(replace(grows, rounding="systematic"))


def test_facts_tell_the_gamma_that_is_meant_and_the_rounding() -> None:
    metadata = HeatmapParameters(contribution="all", rounding="independent", gamma=50).metadata()
    assert (metadata["gamma"], metadata["rounding"]) == (50, "independent")
    assert HeatmapParameters(contribution="all").metadata()["gamma"] == 363
    assert HeatmapParameters(gamma=50).metadata()["gamma"] is None
    assert heatmap_parameters("emd", {"gamma": 77}).metadata()["gamma"] == 77


@pytest.mark.parametrize("trust", ["secagg", "central"])
@pytest.mark.parametrize("method", [*METHODS, *BASELINES])
def test_every_method_runs_with_independent_rounding(baselines: None, method: str, trust: str) -> None:
    """What it says of its noise is that of gamma + d, and the counts are right within it."""
    depth, users, gamma, rng = 3, 400, 300, seeded_rng(0)
    values: dict[str, Any] = {"depth": depth, "contribution": "all", "gamma": gamma, "rounding": "independent"}
    values |= {"trust": trust, "epsilon": 20.0, "dropout": 0.2}
    own = AdaptiveGrid(grid_side=4) if method == "adaptive_grid" else METHODS[method]()
    parameters = HeatmapParameters(method=own, **values)
    hashes = np.repeat(np.sort(rng.integers(0, 2**64, users, dtype=np.uint64)), 2)
    codes = np.sort(rng.integers(0, 4**depth, (users, 2)), axis=1).ravel().astype(np.uint64)
    total = stored_total(gamma, "independent")
    rows = Rows(Places(depth), hashes, codes, np.tile(np.array([total // 3, total - total // 3]), users))
    state = run_in_memory(rows, users, parameters, KEY)
    for result in state.results:
        sensitivity = gamma * result.encoding.sensitivity + result.encoding.length
        least = discrete_laplace_stddev(result.spent.epsilon, sensitivity) / gamma
        assert least <= result.spent.noise_stddev <= 1.2 * least
    exact = np.bincount(codes.astype(int), rows.weights, 4**depth) / total
    estimate = parameters.method.decode(state, depth)
    whole = float(estimate.counts.sum())
    assert whole == pytest.approx(exact.sum(), abs=8 * float(np.sqrt((estimate.stddev**2).sum())) + 1)


PAPER = Adaptive(schedule="paper", estimator="last")


def test_the_papers_plan_for_10_000_users() -> None:
    """Paper 000, Table 1: 340 entries, 0.76 for the last of four sub-queries, the count of users being paid besides."""
    made = make_plan(HeatmapParameters(users=10_000, population=10_000, dropout=0, epsilon=1 / 0.99, method=PAPER))
    assert made.entries == 340
    assert [round(one.epsilon, 2) for one in made.sub_queries][-1] == 0.76
    assert made.bits == sum(one.vector_length * (one.modulus - 1).bit_length() for one in made.sub_queries)


def test_a_flat_plan_is_exact() -> None:
    made = make_plan(
        heatmap_parameters(
            "flat", {"users": 100_000, "population": 100_000, "level": 6, "epsilon": 0.5, "dropout": 0.0}
        )
    )
    assert made.entries == 4**6
    assert math.isclose(made.noise_stddev, math.sqrt(10) * discrete_laplace_stddev(0.99 * 0.5))
    assert made.min_visible_users == 2 * made.noise_stddev
    assert made.visible_level == min(6, int(math.log(100_000 / made.min_visible_users, 4)))


@pytest.mark.parametrize("dropout", [0.0, 0.02, 0.04, 0.05, 0.06, 0.1])
def test_lost_shards_are_those_with_too_few_survivors(dropout: float) -> None:
    made = make_plan(HeatmapParameters(users=100_000))
    sizes = seeded_rng(1).poisson(10_000 * (1 - dropout), 200_000)
    assert math.isclose(made.shards_lost(dropout), poisson.cdf(9_499, 10_000 * (1 - dropout)))
    share = made.shards_lost(dropout)
    assert abs((sizes < 9_500).mean() - share) <= 6.2 * math.sqrt(share * (1 - share) / len(sizes)) + 1e-5


def test_central_noise_loses_no_shard() -> None:
    made = make_plan(HeatmapParameters(users=100_000, trust="central"))
    assert made.shards_lost(0.5) == 0
    assert math.isclose(made.sub_queries[-1].noise_stddev, discrete_laplace_stddev(made.sub_queries[-1].epsilon))


def test_the_overflow_probability_is_the_least_that_the_window_certifies() -> None:
    parameters = HeatmapParameters(users=100_000, modulus=12_000, allow_overflow=True, method=PAPER)
    state = plan(make_plan(parameters).state.population, Budget(1.0), parameters)
    assert state.query is not None
    probability = overflow_probability(state.query, state)
    assert 0 < probability <= 1
    generous = plan(state.population, Budget(1.0), HeatmapParameters(users=100_000, method=PAPER))
    assert generous.query is not None
    certified = overflow_probability(generous.query, generous)
    assert certified <= 1e-9 / 10
    encoding, epsilon = generous.query.encoding, generous.query.epsilon
    assert window_for(encoding, epsilon, generous, certified).modulus <= generous.query.window.modulus
    assert window_for(encoding, epsilon, generous, certified / 10).modulus > generous.query.window.modulus
    tiny = HeatmapParameters(users=100_000, modulus=16, allow_overflow=True)
    assert set(make_plan(tiny).overflow_probabilities) == {1.0}


def test_a_plan_refuses_what_the_run_would() -> None:
    with rejects("modulus"):
        make_plan(HeatmapParameters(users=100_000, modulus=100))
    with rejects("gamma"):
        make_plan(HeatmapParameters(users=1000, contribution="all", gamma=(1 << 31) - 1, epsilon=0.01))
    with pytest.raises(ValueError, match="users"):
        make_plan(HeatmapParameters())


def test_a_private_count_of_the_users_is_planned_for() -> None:
    made = make_plan(HeatmapParameters(users=10_000, epsilon=2, population_share=0.1))
    assert math.isclose(made.spent, 1.8)
    assert math.isclose(make_plan(HeatmapParameters(users=10_000, population=10**6, epsilon=2)).spent, 1.98)


@pytest.mark.parametrize("method", ["emd", *BASELINES])
def test_a_map_of_several_answers_has_no_one_noise_to_be_seen_over(baselines: None, method: str) -> None:
    made = make_plan(heatmap_parameters(method, {"users": 10_000, "depth": 5}))
    assert (made.min_visible_users, made.visible_level) == (None, None)
    assert make_plan(HeatmapParameters(users=10_000, depth=3)).visible_level <= 3


FLAKE_RATE = 1e-9


def rotating(**given: Any) -> HeatmapParameters:
    return HeatmapParameters(**({"users": 300_000, "population_share": 0.01} | given))


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("cohorts", [1, 2, 3, 4, 7, 10, 29, 30])
def test_noise_in_shards_is_that_of_a_cohorts_shards(cohorts: int) -> None:
    choice = make_rotation_plan(rotating(users=9_000_000, epsilon=0.5), 30).choice(cohorts)
    asked = math.ceil(30 / cohorts)
    shards = round(9_000_000 / cohorts / 10_000)
    assert (choice.times_asked, choice.shards) == (asked, shards)
    assert math.isclose(choice.epsilon, 0.5 / asked)
    one = discrete_laplace_stddev(0.99 * 0.5 / asked)
    assert math.isclose(choice.noise_stddev, cohorts * math.sqrt(shards) * one, rel_tol=1e-9)


def test_with_pure_epsilon_in_shards_noise_falls_as_the_square_root_of_the_cohorts() -> None:
    """N^2 = 2 (U / S) n^2 / (c epsilon^2), at a small epsilon, where the noise is as good as continuous."""
    plan = make_rotation_plan(rotating(users=54_600_000, epsilon=0.1), 30)
    for cohorts in (1, 2, 3, 5, 6, 10, 15, 30):  # divisors of the nights and of the shards
        expected = math.sqrt(2 * 5460 * 30**2 / cohorts) / (0.99 * 0.1)
        assert math.isclose(plan.choice(cohorts).noise_stddev, expected, rel_tol=1e-3)
    assert plan.best.cohorts == 30


def test_with_a_curator_the_noise_is_the_same_for_all_divisors_and_one_cohort_is_best() -> None:
    plan = make_rotation_plan(rotating(trust="central", epsilon=0.1), 30)
    noise = [plan.choice(cohorts).noise_stddev for cohorts in (1, 2, 3, 5, 6, 10, 15, 30)]
    assert np.allclose(noise, math.sqrt(2) * 30 / (0.99 * 0.1), rtol=1e-3)
    assert plan.best.cohorts == plan.best_of_one_night.cohorts == 1
    assert all(choice.shards is None for choice in plan.choices)


def test_gaussian_noise_in_shards_is_the_same_for_all_divisors_and_with_a_curator_it_rises() -> None:
    given = {"epsilon": 1.0, "delta": 1e-6, "noise": "gaussian"}
    divisors = (1, 2, 3, 5, 6, 10, 15, 30)
    rho = 0.99 * rho_for_delta(1.0, 1e-6)
    shards = make_rotation_plan(rotating(users=54_600_000, **given), 30)
    expected = math.sqrt(5460 * 30 / (2 * rho))
    assert np.allclose([shards.choice(one).noise_stddev for one in divisors], expected, rtol=5e-3)
    central = make_rotation_plan(rotating(trust="central", **given), 30)
    expected = [math.sqrt(one * 30 / (2 * rho)) for one in divisors]
    assert np.allclose([central.choice(one).noise_stddev for one in divisors], expected, rtol=5e-3)
    assert shards.best.cohorts == central.best.cohorts == 1


def test_of_two_distributions_of_noise_each_number_of_cohorts_has_the_smaller_one() -> None:
    plan = make_rotation_plan(rotating(epsilon=1.0, delta=1e-6), 30)
    by_cohorts = {choice.cohorts: choice for choice in plan.choices}
    assert (by_cohorts[1].noise, by_cohorts[30].noise) == ("gaussian", "laplace")
    assert (by_cohorts[1].delta, by_cohorts[30].delta) == (1e-6, 0.0)
    for name in ("laplace", "gaussian"):
        delta = 1e-6 if name == "gaussian" else 0.0
        for choice in make_rotation_plan(rotating(epsilon=1.0, delta=delta, noise=name), 30).choices:
            assert by_cohorts[choice.cohorts].noise_stddev <= choice.noise_stddev * (1 + 1e-9)


def test_a_cohort_smaller_than_a_shard_is_one_shard() -> None:
    plan = make_rotation_plan(rotating(users=50_000), 30)
    assert [choice.shards for choice in plan.choices] == [5, 3, 2, 2, 1, 1, 1, 1, 1, 1]
    # The noise of one sum for all is nearly the same from then on, and sampling alone rises.
    assert plan.best.cohorts < 30


@pytest.mark.parametrize(("delta", "noise"), [(0.0, "auto"), (1e-6, "gaussian"), (1e-6, "auto")])
def test_a_user_who_is_asked_whenever_possible_stays_within_the_limit(delta: float, noise: Any) -> None:
    plan = make_rotation_plan(rotating(epsilon=2.0, delta=delta, noise=noise), 31)
    limit = Limit.from_numbers(2, delta, 31)
    for choice in plan.choices:
        epsilon = floor_amount(choice.epsilon)
        day = Period(parse_day("period", "2026-11-20"), parse_day("period", "2026-11-20"))
        rho = None
        if choice.noise == "gaussian":
            rho = parse_amount("rho", rho_for_delta(float(epsilon), choice.delta))
        charge = Charge(
            release_id="a", job="heatmap", dataset="d", period=day, request="", binding="",
            epsilon=parse_amount("e", epsilon), delta=parse_amount("d", choice.delta), rho=rho,
        )  # fmt: skip
        asked = math.ceil(31 / choice.cohorts)
        assert fits([charge] * asked, limit)
        assert not fits([charge] * (asked + max(1, asked // 50)), limit)  # next to nothing is left over


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize("nights", [1, 2, 7, 30, 31, 365])
def test_the_choices_have_every_divisor_and_no_number_that_another_one_beats(nights: int) -> None:
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


@pytest.mark.parametrize("cohorts", [1, 4, 30])
@pytest.mark.parametrize("nights", [1, 30])
def test_the_smallest_visible_cell_has_two_deviations_of_its_own_error(cohorts: int, nights: int) -> None:
    choice = RotationChoice(cohorts, 1, 1.0, 0.0, "laplace", 3, 40.0)
    users = choice.min_visible_users(nights)
    assert math.isclose(users, 2 * choice.stddev(users, nights))
    assert math.isclose(choice.stddev(100, nights) ** 2, (40**2 + (cohorts - 1) * 100) / nights)


@pytest.mark.parametrize("users", [20_000, 300_000, 5_000_000])
@pytest.mark.parametrize("trust", ["secagg", "central"])
def test_the_best_has_the_least_squared_error_of_a_typical_cell(users: int, trust: Any) -> None:
    plan = make_rotation_plan(rotating(users=users, trust=trust), 30)
    errors = [choice.stddev(plan.typical_users, 30) for choice in plan.choices]
    assert plan.choices[int(np.argmin(errors))] == plan.best
    assert math.isclose(plan.excess(plan.best.cohorts), 1)
    assert min(plan.excess(cohorts) for cohorts in range(1, 31)) >= 1 - 1e-12
    nearby = RotationChoice.min_visible_users(plan.best_of_one_night)
    assert nearby == min(choice.min_visible_users() for choice in plan.choices)


def test_places_change_so_that_a_month_of_nights_adds_up_at_most() -> None:
    assert [make_rotation_plan(rotating(), nights).added_nights for nights in (1, 7, 30, 31, 365)] == [
        1,
        7,
        30,
        30,
        30,
    ]


def test_advice_is_for_numbers_that_are_far_from_the_best() -> None:
    plan = make_rotation_plan(rotating(), 30)
    assert plan.advice(30) is None
    assert plan.advice(29) is None or plan.excess(29) >= 1.5
    told = plan.advice(1)
    assert told is not None
    assert "rotation: 1 has" in told
    assert "rotation: 30" in told


# ---------------------------------------------------------------- a simulation


def simulated_squared_error(
    choice: RotationChoice, cells: int, users: int, shard_size: int, repeats: int, seed: int
) -> tuple[float, float]:
    """The mean squared error of a cell's count of one night, and the standard error of that mean.

    Every user has a cohort and a shard of it, drawn one by one, and the shards' sums have noise of their own.
    """
    rng = default_rng(seed)
    people = cells * users
    shards = choice.shards or 1
    p = 1 - math.exp(-0.99 * choice.epsilon)
    errors = []
    for _ in range(repeats):
        asked = rng.integers(choice.cohorts, size=people) == 0
        cell = np.repeat(np.arange(cells), users)[asked]
        shard = rng.integers(shards, size=len(cell))
        sums = np.bincount(shard * cells + cell, minlength=shards * cells).reshape(shards, cells)
        noisy = sums + rng.geometric(p, sums.shape) - rng.geometric(p, sums.shape)
        errors.append(choice.cohorts * noisy.sum(axis=0) - users)
    squared = np.square(np.asarray(errors, float)).ravel()
    assert people / choice.cohorts / shards <= 1.05 * shard_size
    return float(squared.mean()), float(squared.std() / math.sqrt(len(squared)))


@pytest.mark.parametrize("users", [20, 300])
def test_a_simulation_of_counts_has_the_stated_errors_and_the_same_order(users: int) -> None:
    cells, shard_size, nights = 40, 100, 6
    plan = make_rotation_plan(rotating(users=cells * users, shard_size=shard_size, epsilon=2.0), nights)
    found = {}
    for number, choice in enumerate(plan.choices):
        mean, error = simulated_squared_error(choice, cells, users, shard_size, 150, 20261122 + number)
        stated = choice.stddev(users) ** 2
        # The mean of 6,000 squares is near enough to normal at five of its standard errors, widened by their skewness.
        assert abs(mean - stated) < 1.3 * norm.isf(FLAKE_RATE / 2) * error
        found[choice.cohorts] = (mean, error, stated)
    by_truth = sorted(found, key=lambda one: found[one][2])
    for better, worse in itertools.pairwise(by_truth):
        margin = 6 * math.hypot(found[better][1], found[worse][1])
        if found[worse][2] - found[better][2] > 2 * margin:  # those that so many repetitions tell apart
            assert found[better][0] < found[worse][0]
    assert found[by_truth[-1]][2] > 1.5 * found[by_truth[0]][2]


# ---------------------------------------------------------------- the text, and bad input


def test_the_table_marks_the_best_and_says_what_to_configure() -> None:
    text = rotation_table(make_rotation_plan(rotating(), 30))
    (row,) = [line for line in text.splitlines() if line.endswith("| best |")]
    assert row.split("|")[1].strip() == "30"
    assert "`rotation: 30` and `options: {epsilon: 1}`" in " ".join(text.split())
    both = rotation_table(make_rotation_plan(rotating(delta=1e-6, noise="gaussian"), 30))
    (advice,) = re.findall(r"`options: ({.*?})`", " ".join(both.split()))
    options = yaml.safe_load(advice)
    request = HeatmapRequest.of({"input": "logs", "output": "out", "region": "3,1,4,2", **options})
    assert (request.epsilon, request.delta, request.parameters.count_noise.NAME) == (0.1619, 1e-6, "gaussian")


@pytest.mark.parametrize(
    ("epsilon", "text"), [(1 / 3, "0.3333"), (2 / 3, "0.6666"), (1.0, "1"), (0.00012349, "0.0001234"), (30.0, "30")]
)
def test_an_epsilon_in_text_is_never_rounded_up(epsilon: float, text: str) -> None:
    assert floor_amount(epsilon) == text


def test_nights_of_which_one_would_have_no_epsilon_are_left_out() -> None:
    plan = make_rotation_plan(rotating(epsilon=1e-3), 30)
    assert [choice.cohorts for choice in plan.choices] == [3, 4, 5, 6, 8, 10, 15, 30]
    with pytest.raises(RequestError, match="epsilon"):
        plan.choice(1)


@pytest.mark.parametrize("nights", [0, 367])
def test_nights_out_of_range_are_refused(nights: int) -> None:
    with pytest.raises(RequestError, match="nights"):
        make_rotation_plan(rotating(), nights)


def test_participation_that_is_not_protected_and_a_missing_number_of_users_are_refused() -> None:
    with pytest.raises(RequestError, match="participation"):
        make_rotation_plan(rotating(participation="paper"), 30)
    with pytest.raises(RequestError, match="slots"):
        make_rotation_plan(rotating(slots=24), 30)
    with pytest.raises(ValueError, match="users"):
        make_rotation_plan(HeatmapParameters(), 30)
