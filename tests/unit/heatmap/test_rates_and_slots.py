"""Rates, maps of slots and bounds of lists: what their intervals cover, exactly and through the state machine."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, stats

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.region import Places
from sfumato.schemas.slots import Slots
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting import rates as heatmap_rates
from sfumato.transforms.counting.rates import estimate_rates, published_categories, rate_intervals, split_by_interval
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.heatmap import slot_maps
from sfumato.transforms.heatmap.release import add_up_to
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.slot_maps import SlotMaps, SlotPosterior, estimated_users, infer_slots
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.report import count_measures as count_measures
from sfumato.transforms.statistics.posterior.full_tree import FullTree
from tests.seeds import seeded_rng
from tests.statistics import discrete_laplace_pmf
from tests.unit.release.city import CityRelease, city_release, city_rows

WANTED = (0.93, 0.97)


MANY = 10**9  # noisy sums: their sum is normal


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


@pytest.mark.parametrize(("epsilon", "shards", "categories"), [(1.0, 1, 2), (1.0, 3, 2), (1.0, 1, 3)])
def test_rate_intervals_cover_exactly(epsilon: float, shards: int, categories: int) -> None:
    """Exactly, by summation over all outcomes: no simulation, no tolerance."""
    for users, p in ((20, 0.3), (60, 0.1), (60, 0.5), (200, 0.02), (200, 0.2), (600, 0.01)):
        covered = exact_coverage(users, p, epsilon, shards, categories)
        assert WANTED[0] <= covered <= WANTED[1], (users, p, covered)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_rate_of_nothing_is_covered_on_the_lattice(shards: int) -> None:
    """Many cells may share it, so nothing evens out what whole numbers do: the upper end's test of 0, for any noise."""
    for epsilon in np.arange(0.2, 1.005, 0.05):
        probability = noise_pmf(float(epsilon), shards)
        counts = np.arange(len(probability)) - len(probability) // 2 + 0.0
        stddev = np.full(len(probability), np.sqrt(shards) * discrete_laplace_stddev(float(epsilon)))
        _, low, _ = rate_intervals(counts, np.full(len(probability), 1e4), stddev, 1, shards)
        assert WANTED[0] <= probability[low == 0].sum() <= WANTED[1], epsilon


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


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize(("epsilon", "shards", "categories"), [(1.0, 1, 2), (0.3, 10, 3)])
def test_rate_intervals_cover_large_cells_and_many_shards(epsilon: float, shards: int, categories: int) -> None:
    """Four times 20,000 draws of intervals that cover 0.945 to 0.96: binomial tails of 4e-10 (Chernoff)."""
    rng, draws = seeded_rng(7), 20_000
    for users, p in ((1000, 0.05), (10_000, 0.01), (10_000, 0.5), (100_000, 0.2)):
        counts, rest, stddev = simulated(rng, users, p, epsilon, shards, categories, draws)
        _, low, high = rate_intervals(counts, rest, stddev, categories - 1, shards)
        assert 0.934 <= ((low <= p) & (p <= high)).mean() <= 0.969, (users, p)


@pytest.mark.false_alarm(1e-9)
def test_rate_intervals_widen_by_the_sampling_weight() -> None:
    """A tenth of the users is counted, each with a weight of ten."""
    rng, draws, p = seeded_rng(9), 20_000, 0.1
    counts, rest, stddev = (10 * one for one in simulated(rng, 500, p, 1.0, 4, 2, draws))
    _, low, high = rate_intervals(counts, rest, stddev, 1, 4, sampling_weight=10)
    assert 0.934 <= ((low <= p) & (p <= high)).mean() <= 0.969
    _, low, high = rate_intervals(counts, rest, stddev, 1, 4)
    assert ((low <= p) & (p <= high)).mean() < 0.8


amounts = st.floats(-1e6, 1e6) | st.floats(-100, 100) | st.just(0.0)


@given(amounts, amounts, st.floats(1e-6, 1e5), st.integers(1, 5), st.integers(1, 1000), st.floats(1, 20))
@settings(max_examples=40)
def test_rate_intervals_exist_for_every_cell(
    counts: float, rest: float, stddev: float, others: int, tail_sums: int, sampling_weight: float
) -> None:
    arrays = (np.array([one]) for one in (counts, rest, stddev))
    rate, low, high = rate_intervals(*arrays, others, tail_sums, sampling_weight)
    assert 0 <= low[0] <= high[0] <= 1
    assert np.isnan(rate[0]) == ((low[0], high[0]) == (0, 1))
    assert np.isnan(rate[0]) or low[0] <= rate[0] <= high[0]


@pytest.mark.parametrize("x", [-3.0, 0.0, 1.5, 2.5])
def test_rate_intervals_are_feldman_and_cousins_at_an_end(x: float) -> None:
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
def test_estimate_rates_of_published_categories() -> None:
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


def test_split_by_interval_splits_while_children_are_known() -> None:
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
    stddev = np.full(64, result.noise_stddev)
    estimate = Estimate(Tree.uniform(3, 3), counts.sum(axis=0), stddev, counts, stddev)
    live = result.shards - result.shards_lost
    unlisted = np.array(0.5), *[np.full(64, np.nan)] * 3
    with pytest.MonkeyPatch.context() as patch:  # simultaneous intervals take long, and are tested elsewhere
        patch.setattr(heatmap_rates, "_simultaneous", lambda *_: unlisted)
        rates = estimate_rates(estimate, tuple("abc"[:categories]), min(state.noisy_sums, live), 5 / live)
    assert rates is not None
    return (rates.low[-1] <= RATE) & (rates.high[-1] >= RATE)


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize(("categories", "epsilon"), [(3, 0.5)])
def test_rates_cover_through_shards(categories: int, epsilon: float) -> None:
    """20 runs of 64 cells whose intervals cover 0.945 to 0.96: binomial tails of 2e-9 (Chernoff)."""
    covered = np.mean([covered_by_the_job(seed, categories, epsilon) for seed in range(20)])
    assert 0.900 <= covered <= 0.997


@pytest.mark.parametrize(("sums", "cells"), [(1, 1), (1, 1000), (20, 1000), (100, 30_000)])
def test_simultaneous_deviations_bound_laplace_noise(sums: int, cells: int) -> None:
    """Of the noise whose tails are the heaviest at this deviation, at most 2.5% exceed the bound in any cell.

    Exactly: a sum of n Laplace variables is a difference of two gamma variables of shape n.
    """
    bound = count_measures.simultaneous_deviations(cells, sums)
    scaled = bound * np.sqrt(2 * sums)
    most = sums + 40 * np.sqrt(sums) + 50
    exceeding, _ = integrate.quad(
        lambda one: stats.gamma.pdf(one, sums) * stats.gamma.sf(scaled + one, sums), 0, most, limit=500, epsabs=0
    )
    assert 0.01 * 0.025 / cells < exceeding < 0.025 / cells


DEPTH, USERS = 6, 30_000


SLOTS = Slots.parse("t", "0,6,9,12,15,18,21,24")


@pytest.fixture(scope="module")
def release() -> CityRelease:
    return city_release("adaptive", DEPTH, USERS, SLOTS, trust="central")


def maps_of(rows: Rows, trust: str, key: int, **options: Any) -> SlotMaps:
    values = {"depth": DEPTH, "trust": trust, "population": len(rows.users), "shard_size": 10_000, **options}
    parameters = heatmap_parameters("adaptive", values, slots=rows.places.bins)
    state = run_in_memory(rows, len(rows.users), parameters, RunKey.derive(FixedSecret(b"%032d" % key), {}))
    estimate = add_up_to(parameters.method.decode(state, DEPTH), state.users_estimate()[0])
    made = SlotMaps.from_state(state, estimate)
    assert made is not None
    return made


def exact(rows: Rows, maps: SlotMaps) -> np.ndarray:
    """True users of the maps' cells by slot."""
    counts = rows.histogram().reshape(rows.places.bins, -1)
    owner = maps.tree.index.owners(np.arange(4**DEPTH, dtype=np.uint64))
    return np.stack([np.bincount(owner, one, len(maps.tree.entries)) for one in counts])


@pytest.mark.slow
def test_slots_add_up_to_the_map_and_are_not_negative(release: CityRelease) -> None:
    table = pq.read_table(io.BytesIO(release.files["slots.parquet"])).to_pandas()
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"])).to_pandas()
    assert (table["users"] >= 0).all()
    assert (table["expected"] >= 0).all()
    assert table["users"].sum() == pytest.approx(cells["count"].sum(), rel=1e-9)
    for name, value in table.groupby("cell_id")["users"].sum().items():
        inside = cells["cell_id"].str.startswith(name)
        assert cells["count"][inside].sum() == pytest.approx(value, rel=1e-6, abs=1e-6)
    region = release.manifest["slots"]["region"]
    assert sum(one["users"] for one in region) == pytest.approx(release.manifest["results"]["users"])


@pytest.mark.slow
@pytest.mark.false_alarm(3e-9)
@pytest.mark.parametrize(
    ("trust", "epsilon", "most"), [("central", 0.5, 0.975), ("secagg", 1.0, 0.975), ("central", 4.0, 0.995)]
)
def test_slot_intervals_cover_the_users(trust: str, epsilon: float, most: float) -> None:
    """Of cells with at least 3 users, over ten keys; 95% nominal. 10,000 intervals have a deviation of 0.2%.

    Where the noise is below a user, counts jump by more than a deviation, and intervals cover more. Of 70 intervals of
    the whole region 21 miss with a probability of 2e-9.
    """
    covered, region = [], []
    for key in range(10):
        rows = city_rows(DEPTH, USERS, slots=7, seed=key)
        maps = maps_of(rows, trust, key, epsilon=epsilon)
        truth = exact(rows, maps)
        there = truth >= 3
        covered.append(((maps.low <= truth) & (truth <= maps.high))[there])
        profile = maps.profile()
        region += [one["low"] <= true <= one["high"] for one, true in zip(profile, truth.sum(axis=1), strict=True)]
    share = np.concatenate(covered)
    assert len(share) > 10_000
    assert 0.93 < share.mean() < most
    assert region.count(False) < 21


Array = NDArray[np.float64]


# The root, two of its children split, one of their children split again.
SMALL = FullTree.from_trees(Tree.of(3, np.array([4 << 2, 6 << 2, (4 << 2 | 1) << 2], dtype=np.uint64)))


def dense(
    full: FullTree, counts: Array, measured: Array, totals: list[Array], kappa: list[float]
) -> tuple[Array, Array]:
    """Posterior mean and variance of one component of every node, level by level, by one large linear system.

    The root has a flat prior; e of a family is N(0, diag(s) - s s' / sum(s)).
    """
    sizes = [len(codes) for codes in full.codes]
    first = np.concatenate([[0], np.cumsum(sizes)])
    nodes = int(first[-1])
    loading, covariance = np.zeros((nodes, 1)), np.zeros((nodes, nodes))  # on the root's x, and of the rest
    loading[0] = 1
    for level in range(1, len(sizes)):
        for family, parent in enumerate(full.parents[level].tolist()):
            rows = first[level] + 4 * family + np.arange(4)
            users = np.maximum(totals[level][4 * family : 4 * family + 4], 1e-3)
            share, s = users / users.sum(), kappa[level] * users**2
            above = first[level - 1] + parent
            loading[rows] = share[:, None] * loading[above]
            cross = share[:, None] * covariance[above]
            covariance[rows] = cross
            covariance[:, rows] = cross.T
            own = np.diag(s) - np.outer(s, s) / s.sum()
            covariance[np.ix_(rows, rows)] = np.outer(share, share) * covariance[above, above] + own
    leaves = np.concatenate([first[level] + np.flatnonzero(leaf) for level, leaf in enumerate(full.leaves)])
    prior = covariance + 1e8 * loading @ loading.T
    gain = prior[:, leaves] @ np.linalg.inv(prior[np.ix_(leaves, leaves)] + np.diag(measured))
    return gain @ counts, np.diag(prior - gain @ prior[leaves])


def test_slot_smoother_is_the_exact_posterior() -> None:
    rng = seeded_rng(3)
    leaves = len(SMALL.tree.entries)
    users = rng.uniform(0, 400, leaves)
    totals, measured = SMALL.sums(SMALL.by_level(users)), rng.uniform(5, 50, leaves)
    counts = rng.normal(0, 60, leaves)
    own = [one[:, None] for one in SMALL.by_level(counts)]
    variances = SMALL.by_level(measured)
    means, spread, kappas = slot_maps._upward(SMALL, own, variances, totals, np.array([1]))
    found, variance = slot_maps._downward(SMALL, means, spread, kappas, totals)
    wanted, exact = dense(SMALL, counts, measured, totals, [0.0, *(float(one[0]) for one in kappas[1:])])
    assert np.concatenate(found)[:, 0] == pytest.approx(wanted, rel=1e-3, abs=1e-2)
    assert np.concatenate(variance)[:, 0] == pytest.approx(exact, rel=2e-3)


def city(slots: int, users: float, seed: int) -> tuple[FullTree, Array]:
    """A uniform tree, and the expected users of its leaves by slot: two kinds of places with profiles of their own."""
    full, rng = FullTree.from_trees(Tree.uniform(6, 3)), seeded_rng(seed)
    hour = 2 * np.pi * np.arange(slots) / slots
    home, work = 1 + 0.7 * np.cos(hour), np.maximum(1 - 1.2 * np.cos(hour), 0.05)
    mix = np.repeat(rng.beta(0.7, 0.7, 16), 4)
    mass = rng.gamma(0.6, 1.0, 64)
    expected = mass * (home[:, None] / home.sum() * mix + work[:, None] / work.sum() * (1 - mix))
    return full, expected * (users / expected.sum())


def inferred(full: FullTree, truth: Array, noise: float, rng: np.random.Generator) -> tuple[SlotPosterior, Array]:
    counts = truth + rng.laplace(0, np.sqrt(noise / 2), truth.shape)
    return infer_slots(full, counts, noise, truth.sum(axis=0)), counts


def test_slot_posterior_adds_up_and_is_not_negative() -> None:
    full, expected = city(24, 2_000, 1)
    truth = seeded_rng(2).poisson(expected).astype(float)
    posterior, counts = inferred(full, truth, 50.0, seeded_rng(3))
    found, variance = posterior.leaves()
    users, stddev = estimated_users(found, variance, counts, 50.0)
    for values in (found, users):
        assert (values >= 0).all()
        assert values.sum(axis=0) == pytest.approx(truth.sum(axis=0), rel=1e-6, abs=1e-4)
    assert (stddev > 0).all()
    for level in range(1, len(full.codes)):
        summed = posterior.expected[level].reshape(-1, 4, 24).sum(axis=1)
        assert summed == pytest.approx(posterior.expected[level - 1][full.parents[level]], rel=1e-6, abs=1e-6)


@pytest.mark.false_alarm(1e-9)
def test_slot_posterior_beats_counts_and_map_times_profile() -> None:
    """Mean squared errors over 20 draws of a city and its noise; and the stated deviation is that of the error."""
    errors = np.zeros(5)
    for seed in range(20):
        full, expected = city(24, 20_000, seed)
        rng = seeded_rng([seed, 7])
        truth = rng.poisson(expected).astype(float)
        posterior, counts = inferred(full, truth, 32.0, rng)
        found, variance = posterior.leaves()
        users, stddev = estimated_users(found, variance, counts, 32.0)
        product = truth.sum(axis=0) * (counts.sum(axis=1) / counts.sum())[:, None]
        errors += [float(((one - truth) ** 2).mean()) for one in (users, counts, product)] + [
            float(((found - expected) ** 2).mean() / ((counts - expected) ** 2).mean()),
            float(((users - truth) ** 2).sum() / (stddev**2).sum()),
        ]
    ours, noisy, independent, pattern, ratio = errors / 20
    assert ours < 0.6 * noisy
    assert ours < 0.8 * independent
    assert pattern < 0.25
    assert 0.8 < ratio < 1.2
