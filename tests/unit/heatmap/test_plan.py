import math

import pytest
from scipy.stats import poisson

from benchmarks.baselines.heatmap_methods import BASELINES
from sfumato.transforms.heatmap.methods import Adaptive
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.plan import make_plan, overflow_probability
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.schedule import plan, window_for
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from tests.rejections import rejects
from tests.seeds import seeded_rng

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
