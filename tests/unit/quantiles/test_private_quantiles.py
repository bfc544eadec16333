"""Private quantiles: intervals, margins, ranges, and the hierarchy's noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.locations import NUMBERS, ItemColumns
from sfumato.transforms.histogram.item_encoding import NumberBins, NumberItems
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.quantiles.exponential_draw import SpreadUsers
from sfumato.transforms.quantiles.plan import HierarchyNoise, QuantilesPlan
from sfumato.transforms.quantiles.private_quantiles import (
    PrivateDistribution,
    Values,
    draw_borders,
    fit_hierarchy,
    measure_hierarchy,
    private_distribution,
    whole_numbers,
)
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.quantiles.borders import spread

# Private distributions beside the true ones: errors as planned, intervals that hold, whole numbers, nobody.

KEY = RunKey.derive(FixedSecret(bytes(range(32))), {"of": "a test"})
HERE = Values(-6.0, 6.0, 6.0)
USERS = 40_000


def binned(values: np.ndarray, bits: int, ends: Values = HERE) -> SpreadUsers:
    share = (np.clip(values, ends.low, ends.high) - ends.low) / (ends.high - ends.low)
    bins, counts = np.unique(np.minimum(share * 2**bits, 2**bits - 1).astype(np.int64), return_counts=True)
    return SpreadUsers(bins, counts, bits)


def released(users: SpreadUsers, plan: QuantilesPlan, run: int, values: Values = HERE) -> PrivateDistribution:
    admission = NoisyUserCounts(float(users.counts.sum()), 0.0, 0.01, 0.0)
    return private_distribution(users, plan, KEY.narrowed({"run": run}), values, ((-1.0, 1.0),), admission)


def plan_of(method: str, bits: int, **more: object) -> QuantilesPlan:
    levels = (4, 8, 12) if method == "hierarchical" else ()
    base = {"epsilon": 0.5, "shares": (0.2, 0.5, 0.9), "bits": bits, "method": method, "levels": levels}
    return QuantilesPlan(**{**base, **more})  # type: ignore[arg-type]


@pytest.mark.false_alarm(4e-9)  # three quantiles; the ratio at 8 standard errors
@pytest.mark.slow
@pytest.mark.parametrize(("method", "bits"), [("exponential", 20), ("hierarchical", 12)])
def test_intervals_hold_and_errors_are_as_planned(method: str, bits: int) -> None:
    """Each quantile apart, since those of one run share draws: misses above 5% only by luck of 1e-9."""
    values, plan, runs = np.sort(seeded_rng(5).normal(0, 1, USERS)), plan_of(method, bits), 150
    users = binned(values, bits)
    truth = np.quantile(values, plan.shares, method="inverted_cdf")
    found = [released(users, plan, run).quantiles for run in range(runs)]
    misses = sum(
        np.array([not one.low <= true <= one.high for one, true in zip(run, truth, strict=True)]) for run in found
    )
    assert (misses <= stats.binom.isf(FLAKE_RATE, runs, 0.05)).all()
    assert {one.share for run in found for one in run} == set(plan.shares)
    if bits >= 12:
        errors = np.searchsorted(values, [[one.value for one in run] for run in found]) - USERS * np.array(plan.shares)
        # The mean square of `runs` errors with tails no heavier than Laplace's (kurtosis 6): 8 standard errors.
        ratio = float(np.sqrt((errors**2).mean(axis=0)).mean() / plan.rank_stddev())
        assert 0.4 < ratio < 1.9


@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize("dense", [True, False])
def test_margins_are_those_of_the_ranks_errors(dense: bool) -> None:
    """The end of an interval is on its own side of the quantile with 97.5%, for dense values and for a few numbers."""
    # Heaps of the same sizes in each run: how near the middle an end of a heap lies decides how often gaps matter.
    heaps = np.random.default_rng(4).choice([-4.0, -1.0, 0.5, 3.0], USERS)
    values = np.sort(seeded_rng(5).uniform(-6, 6, USERS) if dense else heaps)
    plan, runs = plan_of("exponential", 20), 120
    users, draws = binned(values, 20), plan.draws(USERS)
    misses, far = np.zeros(len(draws.ends) * 2, np.int64), 0
    for run in range(runs):
        ranks = [users.below(border) for border in draw_borders(users, draws, KEY.narrowed({"run": run}))]
        for number, (share, (low, high)) in enumerate(zip(draws.shares, draws.ends, strict=True)):
            assert low is not None
            assert high is not None
            misses[2 * number : 2 * number + 2] += [ranks[low] > share * USERS, ranks[high] < share * USERS]
        for share, number in zip(draws.shares, draws.quantiles, strict=True):
            far += abs(ranks[number] - share * USERS) > 1 + math.log(20) / math.sqrt(2) * draws.stddevs[number]
    assert (misses <= stats.binom.isf(FLAKE_RATE / len(misses), runs, 0.025)).all()
    # Without the term for gaps, margins would be too narrow for a few numbers.
    least = stats.binom.isf(FLAKE_RATE, runs * len(draws.shares), 0.05)
    assert far > least if not dense else far <= least


@pytest.mark.false_alarm(3e-9)
def test_whole_numbers_have_a_bin_each() -> None:
    items = NumberItems(ItemColumns("age", "user_id", NUMBERS), 16.5, 90.0, 20)
    whole = whole_numbers(items)
    assert (whole.low, whole.high, whole.bits) == (17.0, 17.0 + 128, 7)
    assert whole_numbers(NumberItems(items.columns, 0.0, 1000.0, 9)).bits == 9  # too few bins: as it was
    ages = seeded_rng(1).integers(17, 91, 5000)
    ends, plan = Values(17.0, 145.0, 90.0, True), plan_of("exponential", 20, epsilon=1.0, shares=(0.01, 0.5, 0.99))
    users, truth = binned(ages, 7, ends), np.quantile(ages, plan.shares, method="inverted_cdf")
    runs = [released(users, plan, run, ends).quantiles for run in range(30)]
    for number, true in enumerate(truth.tolist()):
        ones = [run[number] for run in runs]
        assert {float(one.value).is_integer() for one in ones} == {True}
        assert max(one.high for one in ones) <= 90
        assert sum(not one.low <= true <= one.high for one in ones) <= stats.binom.isf(FLAKE_RATE, 30, 0.05)


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("epsilon", {"epsilon": 0.0}),
        ("epsilon", {"epsilon": 1e-7}),
        ("quantiles", {"shares": (0.5, 1.0)}),
        ("quantiles", {"shares": ()}),
        ("method", {"method": "interactive"}),
        ("bits", {"method": "hierarchical"}),
        ("bits", {"method": "hierarchical", "levels": (21,), "bits": 21}),
        ("population", {"population": 0}),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(option: str, changes: dict[str, object]) -> None:
    with rejects(option):
        QuantilesPlan(**{"epsilon": 0.5, "shares": (0.5,), "bits": 12, "method": "exponential", **changes})


def test_ranges_hold_on_whole_dollars_with_a_heap_at_an_end() -> None:
    """A tenth of the users at 10, an end of two ranges. The interval misses with 5%: 1e-9 for this many misses."""
    rng, ranges = seeded_rng(7), ((0.0, 10.0), (10.0, 20.0), (20.0, 100.0))
    values = np.where(rng.random(20_000) < 0.1, 10, np.floor(np.clip(rng.lognormal(2.7, 0.7, 20_000), 0, 99)))
    truth = np.array([((values >= low) & (values < high)).sum() for low, high in ranges])
    plan = QuantilesPlan(1.0, (0.5,), 12, "hierarchical", (4, 8, 12), population=20_000)
    held = {}
    for edges in ((10.0, 20.0), ()):
        scale = NumberBins(0.0, 100.0, 12, edges)
        bins, counts = np.unique(scale.of(values), return_counts=True)
        users = SpreadUsers(bins.astype(np.int64), counts, 12)
        found = []
        for number in range(12):
            key = RunKey.derive(FixedSecret(b"heaps" * 8), {"number": number})
            answers = private_distribution(users, plan, key, Values(0.0, 100.0, 100.0, edges=edges), ranges).ranges
            found += [one.users_low <= true <= one.users_high for one, true in zip(answers, truth, strict=True)]
            if edges:
                assert all(one.users_high - one.users_low < 2.1 * 1.96 * one.stddev for one in answers)
        held[edges] = sum(found)
    # Where an end cuts a bin, the interval holds all of the bin's users.
    assert min(held.values()) >= stats.binom.ppf(1e-9, 36, 0.95)


# The hierarchy of noisy counts beside generalised least squares by matrices.

TREES = [(5, (1, 3, 5)), (3, (3,))]
HIERARCHY_KEY = RunKey.derive(FixedSecret(bytes(range(32))), {"of": "a test"})


def queries(bits: int, levels: tuple[int, ...]) -> np.ndarray:
    """Every count of the tree as a row of weights over the bins."""
    return np.concatenate([np.kron(np.eye(1 << one), np.ones((1, 1 << (bits - one)))) for one in levels])


@pytest.mark.parametrize(("bits", "levels"), TREES)
def test_covariances_are_those_of_least_squares(bits: int, levels: tuple[int, ...]) -> None:
    noise, matrix = HierarchyNoise(bits, levels, 1.0), queries(bits, levels)
    own = discrete_laplace_stddev(1 / len(levels)) ** 2
    exact = np.linalg.inv(matrix.T @ matrix) * own
    values = np.sort(np.append(np.arange((1 << bits) + 1.0), [0.3, 1.7, (1 << bits) - 0.5]))
    below = np.clip(values[:, None] - np.arange(1 << bits), 0, 1)
    wanted = below @ exact @ below.T
    low, high = np.triu_indices(len(values))
    assert noise.covariance(values[low], values[high]) == pytest.approx(wanted[low, high], rel=1e-9, abs=1e-9 * own)


@pytest.mark.parametrize(("bits", "levels"), TREES)
def test_estimates_are_those_of_least_squares(bits: int, levels: tuple[int, ...]) -> None:
    noise, matrix = HierarchyNoise(bits, levels, 1.0), queries(bits, levels)
    counts = seeded_rng(bits).integers(300, 900, 1 << bits)
    noisy = measure_hierarchy(spread(counts.tolist(), bits), noise, HIERARCHY_KEY)
    exact = np.linalg.lstsq(matrix, np.concatenate(noisy).astype(float), rcond=None)[0]
    hierarchy = fit_hierarchy(noisy, noise, NumberBins(-3.0, 5.0, bits))
    assert np.diff(hierarchy.below) == pytest.approx(exact, rel=1e-9)
    answer = hierarchy.answer(-3 + 8 / (1 << bits), 1.0)
    assert answer.users == pytest.approx(exact[1 : 1 << (bits - 1)].sum(), rel=1e-9)
    curve = hierarchy.curve(bits)
    assert curve.share[::2] == pytest.approx(np.append(0, np.cumsum(exact)[:-1]) / exact.sum(), abs=1e-9)


@pytest.mark.false_alarm(1e-8)
def test_every_level_has_noise_of_its_own_share_drawn_once() -> None:
    noise = HierarchyNoise(12, (4, 8, 12), 0.3)
    users = spread([0, 5] * 2048, 12)
    once, again = (measure_hierarchy(users, noise, HIERARCHY_KEY) for _ in range(2))
    for one, other, level in zip(once, again, noise.levels, strict=True):
        assert np.array_equal(one, other)
        drawn = one - (np.tile([0, 5], 2048) if level == 12 else 5 << (11 - level))
        if level == 12:
            assert chi_square_p(drawn, discrete_laplace_pmf(0.1, 400)) > FLAKE_RATE
            assert chi_square_p(drawn, discrete_laplace_pmf(0.2, 400)) < FLAKE_RATE
        assert abs(drawn.mean()) < 6.2 * discrete_laplace_stddev(0.1) / (1 << level) ** 0.5 * 1.3


def test_a_tree_of_nobody_has_a_curve_or_says_so() -> None:
    for number in range(20):
        noise = HierarchyNoise(3, (3,), 0.1)
        key = HIERARCHY_KEY.narrowed({"number": number})
        hierarchy = fit_hierarchy(measure_hierarchy(spread([0] * 8, 3), noise, key), noise, NumberBins(0.0, 1.0, 3))
        assert hierarchy.users >= 0
        assert (np.diff(hierarchy.below) >= 0).all()
        if hierarchy.users:
            assert hierarchy.curve(3).share[-1] == 1
            assert hierarchy.answer(0.1, 0.7).users >= 0
