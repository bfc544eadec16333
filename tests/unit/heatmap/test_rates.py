"""Rates and their intervals: what they cover exactly, on lattices and through the real state machine."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.places import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap import rates as heatmap_rates
from sfumato.transforms.heatmap.rates import estimate_rates, published_categories, rate_intervals, split_by_interval
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from tests.seeds import seeded_rng
from tests.statistics import discrete_laplace_pmf

WANTED = (0.93, 0.97)
MANY = 10**9  # noisy sums: their sum is normal


def test_the_quantiles_of_the_normal_distribution_are_those_of_scipy() -> None:
    """They are literals, so that a run need not load SciPy's functions."""
    level, error = heatmap_rates.LEVEL, heatmap_rates._AVERAGE_ERROR
    assert special.ndtri((1 + level) / 2) == heatmap_rates._TWO_SIDED
    assert special.ndtri(level) == heatmap_rates._ONE_SIDED
    assert special.ndtri(1 - error) == heatmap_rates._AVERAGE_Z


def noise_pmf(epsilon: float, sums: int) -> np.ndarray:
    """Of the sum of so many discrete Laplace variates."""
    one = discrete_laplace_pmf(epsilon, int(16 / epsilon))
    return reduce(np.convolve, [one] * sums)


def exact_coverage(users: int, p: float, epsilon: float, shards: int = 1, categories: int = 2, noise: float = 1.0):
    """The probability that the interval holds p, summed over all outcomes. noise: factor on the stated stddev."""
    mine, rest = noise_pmf(epsilon, shards), noise_pmf(epsilon, shards * (categories - 1))
    reach, rest_reach = len(mine) // 2, len(rest) // 2
    least, most = (int(one) for one in stats.binom.ppf([1e-7, 1 - 1e-7], users, p))
    probability = np.zeros((most - least + 2 * reach + 1, most - least + 2 * rest_reach + 1))
    for x in range(least, most + 1):
        row, column = x - least, most - x
        probability[row : row + len(mine), column : column + len(rest)] += stats.binom.pmf(x, users, p) * np.outer(
            mine, rest
        )
    row, column = np.nonzero(probability > 1e-8)
    weight = probability[row, column]
    assert 1 - weight.sum() < 2e-3
    counts, others = row + least - reach + 0.0, column + users - most - rest_reach + 0.0
    stddev = np.full(len(counts), noise * np.sqrt(shards) * discrete_laplace_stddev(epsilon))
    _, low, high = rate_intervals(counts, others, stddev, categories - 1, shards)
    return float(weight[(low <= p) & (p <= high)].sum() / weight.sum())


@pytest.mark.parametrize("categories", [2, 3])
@pytest.mark.parametrize(("epsilon", "shards"), [(1.0, 1), (1.0, 3), (0.3, 1)])
def test_intervals_cover_what_they_say(epsilon: float, shards: int, categories: int) -> None:
    """Exactly, by summation over all outcomes: no simulation, no tolerance."""
    for users, p in ((20, 0.3), (60, 0.1), (60, 0.5), (200, 0.02), (200, 0.2), (600, 0.01)):
        covered = exact_coverage(users, p, epsilon, shards, categories)
        assert WANTED[0] <= covered <= WANTED[1], (users, p, covered)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_rate_of_nothing_on_the_lattice(shards: int) -> None:
    """Many cells may share it, so nothing evens out what whole numbers do: the upper end's test of 0, for any noise."""
    for epsilon in np.arange(0.2, 1.005, 0.02):
        probability = noise_pmf(float(epsilon), shards)
        counts = np.arange(len(probability)) - len(probability) // 2 + 0.0
        stddev = np.full(len(probability), np.sqrt(shards) * discrete_laplace_stddev(float(epsilon)))
        _, low, _ = rate_intervals(counts, np.full(len(probability), 1e4), stddev, 1, shards)
        assert WANTED[0] <= probability[low == 0].sum() <= WANTED[1], epsilon


def test_a_rate_of_nothing_is_covered_no_more_often_than_others() -> None:
    """Two-sided tests cover it 97.5 times in 100, and give no interval to the lowest 2.5 in 100 of counts."""
    for users in (100, 400):
        assert WANTED[0] <= exact_coverage(users, 0.0, 0.5, 2) <= 0.965
        assert exact_coverage(users, 1.0, 0.5, 2) == pytest.approx(exact_coverage(users, 0.0, 0.5, 2), abs=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.7, 1.3])
def test_wrong_noise_shows(noise: float) -> None:
    covered = exact_coverage(200, 0.1, 0.3, 3, noise=noise)
    assert not WANTED[0] <= covered <= WANTED[1]


def simulated(rng, users, p: float, epsilon: float, shards: int, categories: int, draws: int):
    """Counts of the category and of all others, float64[draws] each, and the standard deviation of one's noise."""
    x = rng.binomial(users, p, draws)
    probability = -np.expm1(-epsilon)
    noise = [
        np.subtract(*rng.negative_binomial(sums, probability, (2, draws)))
        for sums in (shards, shards * (categories - 1))
    ]
    stddev = np.full(draws, np.sqrt(shards) * discrete_laplace_stddev(epsilon))
    return x + noise[0] + 0.0, users - x + noise[1] + 0.0, stddev


@pytest.mark.parametrize(("shards", "categories"), [(1, 2), (10, 3), (100, 2)])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_large_cells_and_many_shards(epsilon: float, shards: int, categories: int) -> None:
    """20,000 draws deviate by 0.0015; six of these, a probability of 2e-9, beside 0.945 to 0.96."""
    rng, draws = seeded_rng(7), 20_000
    for users, p in ((1000, 0.05), (10_000, 0.01), (10_000, 0.5), (100_000, 0.2)):
        counts, rest, stddev = simulated(rng, users, p, epsilon, shards, categories, draws)
        _, low, high = rate_intervals(counts, rest, stddev, categories - 1, shards)
        assert 0.936 <= ((low <= p) & (p <= high)).mean() <= 0.969, (users, p)


def test_cells_lost_in_noise_are_conservative() -> None:
    rng, draws = seeded_rng(8), 20_000
    for users, p in ((0, 0.5), (20, 0.1), (50, 0.5)):
        counts, rest, stddev = simulated(rng, users, p, 0.3, 100, 2, draws)
        rate, low, high = rate_intervals(counts, rest, stddev, 1, 100)
        assert ((low <= p) & (p <= high)).mean() >= 0.936
        assert np.isnan(rate).mean() > 0.4
        assert np.array_equal(np.isnan(rate), (low == 0) & (high == 1))


def test_lost_and_unasked_shards_widen_the_sampling() -> None:
    """A tenth of the users is counted, each with a weight of ten."""
    rng, draws, p = seeded_rng(9), 20_000, 0.1
    counts, rest, stddev = (10 * one for one in simulated(rng, 500, p, 1.0, 4, 2, draws))
    _, low, high = rate_intervals(counts, rest, stddev, 1, 4, sampling_weight=10)
    assert 0.936 <= ((low <= p) & (p <= high)).mean() <= 0.969
    _, low, high = rate_intervals(counts, rest, stddev, 1, 4)
    assert ((low <= p) & (p <= high)).mean() < 0.8


amounts = st.floats(-1e6, 1e6) | st.floats(-100, 100) | st.just(0.0)


@given(amounts, amounts, st.floats(1e-6, 1e5), st.integers(1, 5), st.integers(1, 1000), st.floats(1, 20))
def test_every_cell_has_an_interval(
    counts: float, rest: float, stddev: float, others: int, noisy_sums: int, sampling_weight: float
) -> None:
    arrays = (np.array([one]) for one in (counts, rest, stddev))
    rate, low, high = rate_intervals(*arrays, others, noisy_sums, sampling_weight)
    assert 0 <= low[0] <= high[0] <= 1
    assert np.isnan(rate[0]) == ((low[0], high[0]) == (0, 1))
    assert np.isnan(rate[0]) or low[0] <= rate[0] <= high[0]


@pytest.mark.slow
@given(amounts, amounts, st.floats(0.5, 1e4), st.integers(1, 1000))
def test_of_two_categories_one_mirrors_the_other(counts: float, rest: float, stddev: float, sums: int) -> None:
    n, r, noise = (np.array([one]) for one in (counts, rest, stddev))
    rate, low, high = rate_intervals(n, r, noise, 1, sums)
    other, other_low, other_high = rate_intervals(r, n, noise, 1, sums)
    assert np.allclose([1 - rate, 1 - high, 1 - low], [other, other_low, other_high], atol=1e-6, equal_nan=True)


def test_without_noise_it_is_wilsons() -> None:
    n, r = np.array([5000.0, 4000.0]), np.array([5000.0, 6000.0])
    _, low, high = rate_intervals(n, r, np.full(2, 1e-3), 1, MANY)
    for k in range(2):
        wilson = stats.binomtest(int(n[k]), 10_000).proportion_ci(method="wilson")
        assert (low[k], high[k]) == pytest.approx(tuple(wilson), abs=4e-5)


def test_under_noise_alone_it_is_fiellers() -> None:
    """The roots of (n - p N)^2 = z^2 V ((1 - p)^2 + (k - 1) p^2), far from the ends."""
    n, r, noise, others, z = 3e6, 5e6, 1e5, 2, 1.959964
    a, b, c = ((n + r) ** 2 - z**2 * noise**2 * (1 + others), -n * (n + r) + z**2 * noise**2, n**2 - (z * noise) ** 2)
    _, low, high = rate_intervals(np.array([n]), np.array([r]), np.array([noise]), others, MANY)
    assert np.sort(np.roots([a, 2 * b, c])) == pytest.approx([low[0], high[0]], rel=1e-5)


@pytest.mark.parametrize("x", [-3.0, -1.0, 0.0, 0.5, 1.5, 1.8, 2.5, 4.0])
def test_near_an_end_it_is_feldman_and_cousins(x: float) -> None:
    """Against their construction on a grid: for every mean, outcomes by likelihood ratio until they make up 95%."""
    means, outcomes = np.arange(0, 7, 0.01), np.arange(-12, 14, 0.01)
    probability = stats.norm.pdf(outcomes[None, :], means[:, None])
    ratio = probability / stats.norm.pdf(outcomes, np.maximum(outcomes, 0))
    order = np.argsort(-ratio, axis=1, kind="stable")
    before = np.cumsum(np.take_along_axis(probability * 0.01, order, axis=1), axis=1)
    accepted = np.zeros_like(ratio, bool)
    np.put_along_axis(accepted, order, before <= 0.95, axis=1)
    holds = means[accepted[:, np.abs(outcomes - x).argmin()]]
    users, noise = 1e9, 1e4  # so many that a rate's only doubt is the category's own noise
    _, low, high = rate_intervals(np.array([x * noise]), np.array([users]), np.array([noise]), 1, MANY)
    assert low[0] * users / noise == pytest.approx(holds.min(), abs=0.025)
    assert high[0] * users / noise == pytest.approx(holds.max(), abs=0.025)


@pytest.mark.slow
def test_which_rates_are_told() -> None:
    tree = Tree.uniform(4, 1)
    three = np.array([[90.0, 0, 10, 5], [10, 50, 80, -9], [0, 50, 10, 3]])
    plain = Estimate(tree, three.sum(axis=0), np.ones(4))
    assert estimate_rates(plain, (), 1) is None
    rates = estimate_rates(replace(plain, by_category=three, category_stddev=np.full(4, 2.0)), ("a", "b", "c"), 3)
    assert rates is not None
    assert rates.names == ("a", "b", "c")
    assert rates.rate.shape == rates.low.shape == rates.high.shape == (3, 4)
    assert rates.rate[:, 0].tolist() == [0.9, 0.1, 0.0]
    expected = rate_intervals(three[1], three[0] + three[2], np.full(4, 2.0), 2, 3)
    for told, one in zip((rates.rate, rates.low, rates.high), expected, strict=True):
        np.testing.assert_array_equal(told[1], one)
    assert published_categories(("well", "ill")) == [1]
    assert published_categories(("false", "true")) == [1]
    assert published_categories(("true", "false")) == [0]
    two = estimate_rates(replace(plain, by_category=three[:2], category_stddev=np.full(4, 2.0)), ("well", "ill"), 3)
    assert two is not None
    assert two.names == ("ill",)
    assert two.rate[0, 0] == pytest.approx(0.1)


def categorised(tree: Tree, users: list[float], rate: float = 0.5) -> Estimate:
    by_category = np.outer([1 - rate, rate], users)
    return Estimate(tree, by_category.sum(axis=0), np.ones(len(users)), by_category, np.ones(len(users)))


def test_nodes_split_while_their_children_would_be_known() -> None:
    """At a rate of a half, a width of 0.1 takes about 384 users where there is no noise, and a child has a quarter."""
    tree = Tree.uniform(5, 1)
    estimate = categorised(tree, [4 * 400.0, 4 * 370.0, 400.0, 20.0])
    split, collapse = split_by_interval(estimate, 0.01, 0.1, 1, 10.0)
    assert split.tolist() == [tree.entries[0]]
    assert collapse.tolist() == []  # 20 users say little, and are more than the count rule's threshold
    _, collapse = split_by_interval(estimate, 0.01, 0.1, 1, 30.0)
    assert collapse.tolist() == [tree.entries[3]]
    split, _ = split_by_interval(estimate, 30.0, 0.1, 1, 10.0)  # noise alone makes 0.1 of 400 wide
    assert split.tolist() == []
    split, _ = split_by_interval(categorised(tree, [4 * 400.0, 4 * 370.0, 400.0, 20.0], 0.02), 0.01, 0.1, 1, 10.0)
    assert split.tolist() == tree.entries[:3].tolist()  # a rate near 0 is known sooner


@pytest.mark.slow
@given(st.lists(st.floats(-500, 1e5), min_size=16, max_size=16), st.floats(0, 1), st.floats(0.5, 50))
def test_what_a_split_makes_does_not_collapse(users: list[float], rate: float, noise: float) -> None:
    """Even children of a node that was split are never collapsed, whatever the count rule says; nothing is both."""
    tree = Tree.uniform(6, 2)
    estimate = categorised(tree, users, rate)
    split, collapse = split_by_interval(estimate, noise, 0.2, 3, np.inf)
    assert not set(split.tolist()) & set(collapse.tolist())
    chosen = np.isin(tree.entries, split)
    children = replace(estimate, by_category=np.where(chosen, estimate.by_category / 4, 1e7))
    _, collapse = split_by_interval(children, noise, 0.2, 3, np.inf)
    assert collapse.tolist() == []


def test_an_estimate_without_categories_has_no_intervals() -> None:
    tree = Tree.uniform(3, 1)
    with pytest.raises(ValueError, match="no users by category"):
        split_by_interval(Estimate(tree, np.ones(4), np.ones(4)), 1.0, 0.1, 1, 5.0)


RATE = np.linspace(0.02, 0.5, 64)  # by cell of an 8 x 8 map
SIZES = np.round(20 * 50 ** np.linspace(0, 1, 64)).astype(int)  # users in it, 20 to 1000


def drawn_rows(seed: int, categories: int) -> Rows:
    """Users of an 8 x 8 map, each in the last category with their cell's probability, else in any other."""
    rng, depth = seeded_rng(seed), 3
    cells = np.repeat(np.arange(64), SIZES)
    last = rng.random(len(cells)) < RATE[cells]
    category = np.where(last, categories - 1, rng.integers(0, categories - 1, len(cells)))
    places = Places(depth, categories)
    codes = (category << (2 * depth) | cells).astype(np.uint64)
    hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), len(codes), dtype=np.uint64)) << np.uint64(places.bits)
    return Rows(places, hashes, codes)


def covered_by_the_job(seed: int, categories: int, epsilon: float, **options: object) -> np.ndarray:
    """Whether each cell's interval of the last category holds its rate, through the real shards: bool[64]."""
    rows = drawn_rows(seed, categories)
    users = len(rows.users)
    values = {"depth": 3, "epsilon": epsilon, "shard_size": users // 5, "dropout": 0.2, "population": users, **options}
    parameters = heatmap_parameters("flat", values, categories)
    state = run_in_memory(rows, users, parameters, RunKey.derive(FixedSecret(b"rates"), {"seed": seed}))
    (result,) = state.results
    counts = result.counts.reshape(categories, 64)
    stddev = np.full(64, result.spent.noise_stddev)
    estimate = Estimate(Tree.uniform(3, 3), counts.sum(axis=0), stddev, counts, stddev)
    live = result.spent.shards - result.spent.shards_lost
    unlisted = np.array(0.5), *[np.full(64, np.nan)] * 3
    with pytest.MonkeyPatch.context() as patch:  # simultaneous intervals take long, and are tested elsewhere
        patch.setattr(heatmap_rates, "_simultaneous", lambda *_: unlisted)
        rates = estimate_rates(estimate, tuple("abc"[:categories]), min(state.noisy_sums, live), 5 / live)
    assert rates is not None
    return (rates.low[-1] <= RATE) & (rates.high[-1] >= RATE)


@pytest.mark.parametrize(("categories", "epsilon"), [(2, 1.0), (3, 0.5)])
def test_rates_through_shards(categories: int, epsilon: float) -> None:
    """20 runs of 64 cells deviate by 0.006; six of these beside 0.945 to 0.96."""
    covered = np.mean([covered_by_the_job(seed, categories, epsilon) for seed in range(20)])
    assert 0.908 <= covered <= 0.997


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["secagg", "central"])
@pytest.mark.parametrize("categories", [2, 3])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_coverage_over_200_keys(epsilon: float, categories: int, trust: str) -> None:
    """12,800 cells deviate by 0.002; over all sizes and over the small ones, whose 3,200 deviate by 0.004."""
    covered = np.array([covered_by_the_job(seed, categories, epsilon, trust=trust) for seed in range(200)])
    assert WANTED[0] <= covered.mean() <= WANTED[1]
    assert covered[:, :16].mean() >= 0.92
    assert covered[:, 48:].mean() <= 0.975
