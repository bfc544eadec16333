"""Statistics from means of quantities, against closed forms and against simulated estimators."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.moments import FixedPoint, Statistic
from sfumato.transforms.moments import statistic_kinds
from sfumato.transforms.moments.statistic_kinds import Means, Result, StatisticContext, Variance
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

Z = float(stats.norm.ppf(0.975))
RARE = float(stats.norm.isf(FLAKE_RATE / 2))
DRAWS = 5_000


def evaluate(statistic: Statistic, way: Variance, found: dict[str, Means], centre: float, users: np.ndarray) -> Result:
    """Of values that may be nearly anything."""
    context = StatisticContext(way, users, centre=centre)
    return statistic_kinds.evaluate(statistic, found, context, [FixedPoint(52, 0, "split")])


def means(value: object, variance: object, clients: object = 100.0) -> Means:
    value = np.atleast_1d(np.asarray(value, float))
    spread, clients = (np.broadcast_to(np.asarray(one, float), value.shape) for one in (variance, clients))
    return Means(value, spread, value - Z * np.sqrt(spread), value + Z * np.sqrt(spread), clients)


@pytest.mark.parametrize(("name", "kind"), [("mean", "value"), ("moment:3", "power:3")])
def test_means_and_moments_are_the_quantitys(name: str, kind: str) -> None:
    found = evaluate(Statistic(name), "centred", {kind: means([5.0, -2.0], 4.0, [90.0, 7.0])}, 0.0, np.ones(2))
    assert found.value.tolist() == [5.0, -2.0]
    assert found.stddev.tolist() == [2.0, 2.0]
    assert found.low == pytest.approx(np.array([5, -2]) - 2 * Z)
    assert found.high == pytest.approx(np.array([5, -2]) + 2 * Z)
    assert found.clients.tolist() == [90.0, 7.0]


def test_geometric_means_and_products_are_through_logarithms() -> None:
    logs = {"log2": means([3.0], 0.01)}
    mean = evaluate(Statistic("geometric_mean"), "centred", logs, 0.0, np.array([50.0]))
    assert mean.value == pytest.approx([8.0])
    assert mean.stddev == pytest.approx([8 * math.log(2) * 0.1], rel=0.01)  # the delta method
    assert mean.low == pytest.approx([2 ** (3 - 0.1 * Z)])
    assert mean.high == pytest.approx([2 ** (3 + 0.1 * Z)])
    product = evaluate(Statistic("log_product"), "centred", logs, 0.0, np.array([50.0]))
    assert product.value == pytest.approx([50 * math.log(8)])  # of 50 eights
    assert product.stddev == pytest.approx([50 * math.log(2) * 0.1])
    assert (product.high - product.low) == pytest.approx(2 * Z * product.stddev)


def check(found: np.ndarray, truth: float, stated: np.ndarray) -> None:
    """The mean is the truth and the spread what is stated; both within what so many draws allow."""
    assert abs(found.mean() - truth) < RARE * found.std() / math.sqrt(len(found))
    kurtosis = float(stats.kurtosis(found, fisher=False))
    ratio = found.var() / (stated**2).mean()
    slack = RARE * math.sqrt((kurtosis - 1) / len(found))
    assert abs(ratio - 1) < slack < 0.5


@pytest.mark.false_alarm(2 * FLAKE_RATE)
def test_the_raw_variance_is_unbiased_and_spreads_as_stated() -> None:
    """E[x^2] - mean^2 + the mean's variance, of independent estimates of both."""
    rng, mean, truth = seeded_rng(1), 6.0, 500.0
    one = means(mean + rng.normal(0, 1.5, DRAWS), 1.5**2)
    square = means(truth + mean**2 + rng.normal(0, 4.0, DRAWS), 4.0**2)
    found = evaluate(Statistic("variance"), "raw", {"value": one, "power:2": square}, 0.0, np.ones(DRAWS))
    # The stated spread has 4 mean^2 v with the estimated mean, 4 v^2 larger on average, where it should have 2 v^2.
    check(found.value, truth, np.sqrt(found.stddev**2 - 4 * 1.5**4))


@pytest.mark.false_alarm(2 * FLAKE_RATE)
@pytest.mark.slow
def test_centred_variance_of_everybody_is_unbiased() -> None:
    """The squares are about the very estimate of the mean: E[(x - c)^2] is too large by that estimate's variance."""
    rng, mean, truth = seeded_rng(2), 600.0, 50.0
    estimated = mean + rng.normal(0, 3.0, DRAWS)
    squares = truth + (mean - estimated) ** 2 + rng.normal(0, 4.0, DRAWS)
    found = [
        evaluate(
            Statistic("variance"), "centred", {"value": means(c, 9.0), "square": means(s, 16.0)}, float(c), np.ones(1)
        )
        for c, s in zip(estimated, squares, strict=True)
    ]
    check(np.array([one.value[0] for one in found]), truth, np.array([one.stddev[0] for one in found]))


@pytest.mark.false_alarm(3 * FLAKE_RATE)
@pytest.mark.slow
def test_groups_centred_variances_are_unbiased() -> None:
    """About everybody's estimated mean, of which a group's own is a part by its number of clients."""
    rng, truth = seeded_rng(3), np.array([60.0, 80.0, 70.0])
    mean, share, variance = np.array([10.0, 13.0, 9.0]), np.array([0.7, 0.2, 0.1]), np.array([2.0, 7.0, 14.0])
    found = np.empty((DRAWS, 3))
    for draw in range(DRAWS):
        estimated = mean + rng.normal(0, np.sqrt(variance))
        centre = float(share @ estimated)
        squares = truth + (mean - centre) ** 2 + rng.normal(0, 3.0, 3)
        given = {"value": means(estimated, variance, 1000 * share), "square": means(squares, 9.0, 1000 * share)}
        found[draw] = evaluate(Statistic("variance"), "centred", given, centre, np.ones(3)).value
    assert (np.abs(found.mean(axis=0) - truth) < RARE * found.std(axis=0) / math.sqrt(DRAWS)).all()


def test_a_variance_is_never_negative() -> None:
    given = {"value": means([5.0, 5.0], 1.0), "square": means([-9.0, 0.5], [1.0, 4.0])}
    found = evaluate(Statistic("variance"), "centred", given, 5.0, np.ones(2))
    assert found.value[0] == found.low[0] == found.high[0] == 0  # 9 below 0, give or take 2
    assert found.low[1] == 0 < found.high[1]
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()


@pytest.mark.parametrize(
    ("name", "form", "least", "most"),
    [
        ("mean", FixedPoint(4), 0, 15),
        ("mean", FixedPoint(4, 1, "shift", 2.0), -2, 5.5),
        ("mean", FixedPoint(3, 0, "split"), -7, 7),
        ("variance", FixedPoint(3, 0, "split"), 0, 49),
        ("moment:2", FixedPoint(3, 0, "split"), 0, 49),
        ("moment:2", FixedPoint(4, 1, "shift", 2.0), 0, 5.5**2),
        ("moment:3", FixedPoint(3, 0, "split"), -343, 343),
        ("geometric_mean", FixedPoint(4, 1), 0.5, 7.5),
    ],
)
def test_results_lie_within_what_values_can_have(name: str, form: FixedPoint, least: float, most: float) -> None:
    for value in (-1e3, 1e3):
        found = dict.fromkeys(("value", "square", "power:2", "power:3", "log2"), means(value, 1e4))
        if name == "variance":
            found["value"] = means(0.0, 0.0)
        one = statistic_kinds.evaluate(Statistic(name), found, StatisticContext("centred", np.array([10.0])), [form])
        ends = [one.low[0], one.value[0], one.high[0]]
        assert ends == sorted(ends)
        assert least <= ends[0]
        assert ends[2] <= most
        assert one.value[0] == pytest.approx(least if value < 0 else most)


@pytest.mark.false_alarm(FLAKE_RATE)
def test_a_noisy_number_of_users_makes_their_product_noisier() -> None:
    logs, users = {"log2": means([3.0], 0.01)}, np.array([50.0])
    context = StatisticContext("centred", users, 16.0)
    one = statistic_kinds.evaluate(Statistic("log_product"), logs, context, [FixedPoint(52)])
    rng = seeded_rng(1)
    drawn = (users + 4 * rng.normal(size=DRAWS)) * (3 + 0.1 * rng.normal(size=DRAWS)) * math.log(2)
    assert one.stddev[0] == pytest.approx(drawn.std(), rel=RARE / math.sqrt(2 * DRAWS))


def test_unseen_bits_widen_the_interval_of_the_variance() -> None:
    """The mean may be larger by 10 than chance allows, so that the squares about it are too large by 100."""
    given = {"value": means(5.0, 1.0), "square": means(400.0, 100.0)}
    plain = evaluate(Statistic("variance"), "centred", given, 5.0, np.ones(1))
    given["value"] = replace(given["value"], high=given["value"].high + 10)
    found = evaluate(Statistic("variance"), "centred", given, 5.0, np.ones(1))
    assert plain.low[0] - found.low[0] == pytest.approx(100)
    # And what the squares' own unseen bits may add is in the upper end.
    given["square"] = replace(given["square"], high=given["square"].high + 70)
    above = evaluate(Statistic("variance"), "centred", given, 5.0, np.ones(1)).high[0] - found.high[0]
    assert above == pytest.approx(70, rel=0.01)


def of_pair(name: str, found: dict[str, Means], centres: tuple[float, float]) -> Result:
    forms = [FixedPoint(52, 0, "split")] * 2
    users = np.ones(len(found["product"].value))
    context = StatisticContext("centred", users, 0.0, *centres)
    return statistic_kinds.evaluate(Statistic(name), found, context, forms)


@pytest.mark.false_alarm(2 * FLAKE_RATE)
@pytest.mark.slow
def test_a_covariance_is_unbiased_and_spreads_as_stated() -> None:
    """About the very estimates of both means, which come from different users: the errors' product is 0 on average."""
    rng, truth, mean, second = seeded_rng(4), 35.0, 600.0, 50.0
    x, y = mean + rng.normal(0, 3.0, DRAWS), second + rng.normal(0, 2.0, DRAWS)
    products = truth + (mean - x) * (second - y) + rng.normal(0, 4.0, DRAWS)
    found = [
        of_pair(
            "covariance", {"value": means(a, 9.0), "second_value": means(b, 4.0), "product": means(c, 16.0)}, (a, b)
        )
        for a, b, c in zip(x.tolist(), y.tolist(), products.tolist(), strict=True)
    ]
    check(np.array([one.value[0] for one in found]), truth, np.array([one.stddev[0] for one in found]))


def test_groups_covariances_are_about_their_own_means() -> None:
    """Everybody's centres are far from the group's means: what that adds to the products is taken away."""
    given = {"value": means([10.0], 0.0), "second_value": means([-3.0], 0.0), "product": means([5.0 + 8 * -7], 0.0)}
    found = of_pair("covariance", given, (2.0, 4.0))
    assert found.value == pytest.approx([5.0])
    assert found.high - found.low == pytest.approx([0.0])


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize("truth", [-0.9, -0.3, 0.0, 0.6, 0.97])
def test_a_correlations_interval_holds_it(truth: float) -> None:
    """With independent normal errors of the covariance and of both variances."""
    rng, runs = seeded_rng(5), 2000
    noise = rng.normal(0, 1, (3, runs))
    given = {
        "value": means(np.zeros(runs), 1e-6),
        "second_value": means(np.zeros(runs), 1e-6),
        "product": means(6 * truth + 0.3 * noise[0], 0.09),
        "square": means(9 + 0.5 * noise[1], 0.25),
        "second_square": means(4 + 0.2 * noise[2], 0.04),
    }
    found = of_pair("correlation", given, (0.0, 0.0))
    held = ((found.low <= truth) & (truth <= found.high)).sum()
    assert stats.binomtest(int(held), runs, 0.94, "less").pvalue > FLAKE_RATE
    assert np.median(found.stddev) < 1.6 * found.value.std()
    assert (np.abs(found.value) <= 1).all()


def test_a_correlation_of_a_variance_that_may_be_0_is_not_known() -> None:
    given = {
        **{kind: means([0.0], 0.01) for kind in ("value", "second_value")},
        "product": means([0.5], 0.01),
        "square": means([0.9], 1.0),
        "second_square": means([2.0], 0.01),
    }
    found = of_pair("correlation", given, (0.0, 0.0))
    assert (found.low, found.high) == (-1.0, 1.0)
