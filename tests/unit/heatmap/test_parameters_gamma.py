import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.heatmap_methods import BASELINES, AdaptiveGrid
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population
from sfumato.schemas.places import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods import METHODS, Emd, Flat, Method
from sfumato.transforms.heatmap.parameters import COST, MIN_QUERY_SHARE, HeatmapParameters, max_counted, vector_length
from sfumato.transforms.heatmap.plan import make_plan
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.schedule import check_plan, plan
from sfumato.transforms.heatmap.state import ALL_REMAINING, Estimate, HeatmapState, Query
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, noise_quantile
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON
from sfumato.transforms.secagg.encodings import TreeEncoding, l1_sensitivity, stored_total
from sfumato.transforms.secagg.modulus import choose_window, min_window
from tests.rejections import rejects
from tests.seeds import seeded_rng

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
