"""The whole protocol in memory: every statistic against NumPy, honest intervals, rounds, priors, and bad requests."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.evaluation.moments_in_memory import ProtocolResult, run_in_memory
from sfumato.schemas.moments import EVERYBODY, FixedPoint, MomentEstimate, Statistic
from sfumato.transforms.moments.client_values import BLOCK_CLIENTS, Block, encode
from sfumato.transforms.moments.local.allocation import Prior, Tuning
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.tally import count_reports
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.moments.blocks import block_of

ODDS = 1e-10  # that a normal error is beyond RARE standard deviations
RARE = float(stats.norm.isf(ODDS / 2))
MEAN, VARIANCE = Statistic("mean"), Statistic("variance")
FORM = FixedPoint(10)
Draw = Callable[[np.random.Generator, int], np.ndarray]
DATA: dict[str, Draw] = {
    "normal": lambda rng, n: np.clip(np.rint(rng.normal(400, 90, n)), 0, 1023),
    "uniform": lambda rng, n: rng.integers(0, 1024, n).astype(float),
    "exponential": lambda rng, n: np.minimum(np.rint(rng.exponential(100, n)), 1023),
    "two values": lambda rng, n: 1023.0 * rng.integers(0, 2, n),
}


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"protocol tests" * 2), {"number": number})


def by_name(found: ProtocolResult) -> dict[str, MomentEstimate]:
    return {one.statistic: one for one in found.estimates}


def run(block: Block, plan: MomentsPlan, groups: int, number: int = 0) -> MomentsState:
    state = MomentsState(plan)
    for _ in plan.stages:
        queries = state.next_queries()
        counted = [count_reports(block, one, groups, plan.response, key(number)) for one in queries]
        state = state.advance(queries, plan.protect(queries, counted, key(number)))
    return state


@functools.cache
def truth_of(kind: str) -> dict[str, float]:
    """Of so many that their own error is a twentieth of an estimate's or less."""
    return {"mean": DATA[kind](seeded_rng(12), 2_000_000).mean()}


def covered(kind: str, plan: MomentsPlan, clients: int, runs: int) -> dict[str, int]:
    """How many 95% intervals hold the truth about where fresh clients come from."""
    rng, draw, truth = seeded_rng(11), DATA[kind], truth_of(kind)
    hits = dict.fromkeys(truth, 0)
    for number in range(runs):
        for one in run_in_memory(draw(rng, clients), plan, key(number)).estimates:
            hits[one.statistic] += one.low <= truth[one.statistic] <= one.high
    return hits


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize(
    ("kind", "epsilon"),
    [("uniform", 1.0), ("exponential", 4.0), ("two values", None)],
)
def test_intervals_of_one_round_hold_the_mean(kind: str, epsilon: float | None) -> None:
    plan = MomentsPlan(form=FORM, method="weighted", epsilon=epsilon, tuning=Tuning(weighted_power=0.75))
    runs = 300
    hits = covered(kind, plan, 3000, runs)["mean"]
    assert stats.binomtest(hits, runs, 0.95).pvalue > FLAKE_RATE
    short = 2 * stats.norm.cdf(0.7 * 1.959964) - 1  # the test would see an interval that is 30% too short
    assert stats.binomtest(round(short * runs), runs, 0.95).pvalue < FLAKE_RATE


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize(("kind", "epsilon"), [("normal", None), ("uniform", 4.0)])
def test_intervals_of_two_rounds_hold_the_mean(kind: str, epsilon: float | None) -> None:
    hits = covered(kind, MomentsPlan(form=FORM, epsilon=epsilon), 4000, 120)["mean"]
    assert stats.binomtest(hits, 120, 0.95, "less").pvalue > FLAKE_RATE


def numpy_statistics(values: np.ndarray) -> dict[str, float]:
    found = {
        "mean": values.mean(),
        "variance": values.var(),
        "moment:3": (values**3).mean(),
        "moment:4": (values**4).mean(),
    }
    if (values > 0).all():
        logs = np.log(values)
        found |= {"geometric_mean": math.exp(logs.mean()), "log_product": logs.sum()}
    return found


@pytest.mark.false_alarm(6 * ODDS)
@pytest.mark.parametrize(
    ("form", "shift", "names", "epsilon", "way"),
    [
        (FixedPoint(9, 1), 90.0, ("mean", "variance", "moment:3", "geometric_mean", "log_product"), 6.0, "centred"),
        (FixedPoint(9, 1, "shift", 100.0), 0.0, ("mean", "variance", "moment:3", "moment:4"), None, "raw"),
        (FixedPoint(8, 1, "split"), -10.0, ("mean", "variance", "moment:3", "moment:4"), 6.0, "centred"),
        (FixedPoint(8, 0, "shift", -60.0), 190.0, ("mean", "variance"), None, "centred"),  # no value is below 60
    ],
)
def test_every_statistic_is_near_numpys(
    form: FixedPoint, shift: float, names: tuple[str, ...], epsilon: float | None, way: str
) -> None:
    """Within what its own stated error allows; and that is small beside the number itself."""
    rng = seeded_rng(5)
    steps = np.rint((shift + rng.normal(0, 25, 300_000)) / form.step)
    values = np.clip(steps * form.step, max(form.low, -125), min(form.high, 250))
    values = np.maximum(values, form.step) if form.signed == "no" else values
    _, clamped = encode(values, form)
    assert clamped == 0
    plan = MomentsPlan(
        form=form,
        statistics=tuple(map(Statistic, names)),
        epsilon=epsilon,
        variance=way,  # type: ignore[arg-type]
        tuning=Tuning(squash=0.0 if epsilon is not None else None),  # under noise it would bias the estimates
    )
    found, expected = by_name(run_in_memory(values, plan, key())), numpy_statistics(values)
    assert list(found) == list(names)
    for name, one in found.items():
        assert abs(one.value - expected[name]) < RARE * one.stddev
        assert one.low < one.value < one.high
        assert one.group == EVERYBODY
        scale = abs(expected[name]) if name != "mean" else 25.0
        if name in ("mean", "geometric_mean", "log_product") or (name == "variance" and way == "centred"):
            assert one.stddev < 0.2 * max(scale, 25.0)
    parts = len(plan.quantities)
    assert found["mean"].clients == pytest.approx(300_000 / parts, abs=RARE * math.sqrt(300_000 / parts))


def test_centred_variances_are_the_better_ones() -> None:
    """Far from zero E[x^2] - E[x]^2 is the difference of two large numbers (Lemma 3.5)."""
    values = DATA["normal"](seeded_rng(0), 50_000) + 8000
    spread = {}
    for way in ("centred", "raw"):
        plan = MomentsPlan(form=FixedPoint(14), statistics=(VARIANCE,), variance=way)  # type: ignore[arg-type]
        spread[way] = by_name(run_in_memory(values, plan, key()))["variance"].stddev
    assert spread["centred"] < 0.2 * spread["raw"]


@pytest.mark.false_alarm(60 * ODDS)
def test_bit_charts_tell_how_often_each_bit_was_set_and_read() -> None:
    n = 3 * BLOCK_CLIENTS // 2
    values = DATA["exponential"](seeded_rng(3), n)
    plan = MomentsPlan(form=FORM, statistics=(MEAN, Statistic("moment:2")), epsilon=2.0, bits_per_client=2)
    charts = {one.quantity: one for one in run_in_memory(values, plan, key()).bits}
    assert list(charts) == ["value", "power:2"]
    chart = charts["value"]
    assert chart.weight.tolist() == (2.0 ** np.arange(10)).tolist()
    truth = (values.astype(int)[:, None] >> np.arange(10) & 1).mean(axis=0)
    assert (np.abs(chart.mean - truth) < RARE * chart.stddev).all()
    for one in charts.values():
        expected, noise = n * one.read_probability, 4 * plan.noise_stddev**2  # of ones and zeros, in two rounds
        assert one.reports.sum() == pytest.approx(n, abs=RARE * math.sqrt(2 * n / 2 + 2 * noise * len(expected)))
        # Every bit is queried with its probability: a binomial number of reports.
        assert (np.abs(one.reports - expected) <= RARE * np.sqrt(expected + noise) + 1).all()
        assert one.read_probability.sum() == pytest.approx(2 / 2)
        assert not one.squashed[0]


@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize("squash", [None, 2.5])
def test_what_is_squashed_is_left_out_and_said(squash: float | None) -> None:
    """Noise lifts an empty bit in 2% of runs, and 8% beyond doubt: not in all of eight."""
    values = DATA["normal"](seeded_rng(3), 20_000)
    plan = MomentsPlan(form=FixedPoint(20), epsilon=2.0)
    left_out = []
    for number in range(8):
        found = run_in_memory(values, replace(plan, tuning=Tuning(squash=squash)), key(number))
        assert not found.bits[0].squashed[:9].any()
        left_out.append(found.bits[0].squashed[11:].all() and found.estimates[0].stddev < 20)
    assert any(left_out)
    everything = run_in_memory(values, replace(plan, tuning=Tuning(squash=0.0)), key()).bits[0]
    assert not everything.squashed.any()
    assert np.hypot.reduce(everything.weight * everything.stddev) > 200


@pytest.mark.false_alarm(2 * ODDS)
def test_caching_pools_the_reports_of_both_rounds() -> None:
    values = DATA["uniform"](seeded_rng(3), 9000)
    block = block_of(values.astype(np.uint16), None, key())
    for caching in (True, False):
        plan = MomentsPlan(form=FORM, tuning=Tuning(first_share=0.4, caching=caching))
        state = run(block, plan, 1)
        (_, first), (_, second) = state.tallies
        assert first.reports.sum() == pytest.approx(0.4 * 9000, abs=RARE * math.sqrt(0.24 * 9000))
        counted = first + second if caching else second
        bits = state.bits("value")
        assert bits.reports[0].tolist() == counted.reports[0].tolist()
        assert bits.mean[0] == pytest.approx(counted.ones[0] / counted.reports[0])
        assert state.clients().tolist() == [9000]  # everybody answered, whatever is used


def test_the_second_round_asks_where_the_first_saw_something() -> None:
    values = seeded_rng(3).integers(0, 64, 20_000).astype(np.uint16)
    state = run(block_of(values, None, key()), MomentsPlan(form=FixedPoint(16)), 1)
    (first, _), (second, _) = state.tallies
    assert first.probabilities[6:].sum() > 0.5
    assert second.probabilities[6:].sum() < 0.05
    assert second.probabilities[:6] / second.probabilities[5] == pytest.approx(2.0 ** np.arange(-5, 1), rel=0.3)


@pytest.mark.false_alarm(2 * ODDS)
@pytest.mark.parametrize(
    ("form", "epsilon"),
    [(FixedPoint(10, 2, "shift", 20.0), None), (FixedPoint(10, 0, "split"), 3.0)],
)
def test_an_earlier_release_stands_for_the_first_round(form: FixedPoint, epsilon: float | None) -> None:
    """Its bits use up all clients, each once: one more round would query them twice."""
    rng, n = seeded_rng(3), 20_000
    squash = Tuning(squash=0.0 if epsilon is not None else None)  # under noise it would bias the estimates
    plan = MomentsPlan(form=form, statistics=(MEAN, VARIANCE), epsilon=epsilon, tuning=squash)
    values = np.rint(np.clip(rng.normal(120, 20, (2, n)), 0, 230))
    earlier = run_in_memory(values[0], plan, key())
    later = replace(plan, prior={one.quantity: Prior(one.weight, one.mean, one.stddev) for one in earlier.bits})
    assert later.stages == ((("value", 2),), (("square", 2),))
    found = run_in_memory(values[1], later, key(1))
    assert sum(one.reports.sum() for one in found.bits) == pytest.approx(n, abs=1 + 60 * plan.noise_stddev)
    for one, truth in zip(found.estimates, (values[1].mean(), values[1].var()), strict=True):
        assert abs(one.value - truth) < RARE * one.stddev
        # Of 25 draws the largest was 207, of which some is for bits that went unseen; the variance is 400.
        assert epsilon is not None or one.stddev < 400
    for chart in found.bits:  # what the earlier release took for empty is watched
        assert (chart.read_probability > 0).all()
    only_value = replace(later, prior={"value": later.prior["value"]})
    assert only_value.stages == ((("value", 2),), (("square", 1),), (("square", 2),))
    reported = sum(one.reports.sum() for one in run_in_memory(values[1], only_value, key(1)).bits)
    assert reported == pytest.approx(n, abs=1 + 60 * plan.noise_stddev)
    assert replace(later, method="weighted").stages == ((("value", 1),), (("square", 1),))


@pytest.mark.false_alarm(14 * ODDS)
@pytest.mark.parametrize("epsilon", [2.0])
def test_groups_are_told_apart_and_together_are_everybody(epsilon: float | None) -> None:
    rng, n = seeded_rng(8), 60_000
    groups = rng.choice(4, n, p=[0.5, 0.3, 0.15, 0.05]).astype(np.uint16)
    values = np.clip(np.rint(rng.normal(200 + 100 * groups.astype(float), 40)), 0, 1023)
    plan = MomentsPlan(form=FORM, statistics=(MEAN, VARIANCE), epsilon=epsilon)
    state = run(block_of(values.astype(np.uint16), groups, key()), plan, 4)
    places = np.array([0, 1, 2, 1])  # the last goes with the second
    found = list(state.estimates(["a", "b", "c"], places))
    assert [(one.group, one.statistic) for one in found] == [(g, s) for s in ("mean", "variance") for g in "abc"]
    for one in found:
        mine = values[places[groups] == "abc".index(one.group)]
        truth = mine.mean() if one.statistic == "mean" else mine.var()
        assert abs(one.value - truth) < RARE * one.stddev
        assert one.clients == pytest.approx(len(mine) / 2, abs=RARE * math.sqrt(len(mine) / 4))
    for one in state.estimates():
        truth = values.mean() if one.statistic == "mean" else values.var()
        assert abs(one.value - truth) < RARE * one.stddev
    total = state.bits("value", places).reports.sum(axis=0)
    assert total.tolist() == state.bits("value").reports[0].tolist()


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, -100.0, 155.0), (255.0, -100.0, 155.0)])
def test_the_centre_is_within_the_range(value: float, low: float, high: float) -> None:
    """Noise may lead the mean beyond; squares about what no value can be would only be larger."""
    form = FixedPoint(8, 0, "shift", 100.0)
    plan = MomentsPlan(form=form, statistics=(VARIANCE,), epsilon=0.2)
    centres = []
    for number in range(20):
        block = block_of(np.full(300, int(value), np.uint8), None, key(number))
        state = run(block, plan, 1, number)
        centres.append(state.tallies_of("square")[0][0].quantity.centre)
    assert min(centres) >= low
    assert max(centres) <= high


PAIR = (FixedPoint(10), FixedPoint(7))
OF_PAIR = (Statistic("covariance"), Statistic("correlation"), VARIANCE)


def pairs(clients: int, seed: int) -> np.ndarray:
    """Two numbers of correlation 0.6."""
    rng = seeded_rng(seed)
    x, other = rng.normal(size=(2, clients))
    x, y = 600 + 100 * x, 50 + 10 * (0.6 * x + 0.8 * other)
    return np.clip(np.rint(x), 0, 1023) + 1j * np.clip(np.rint(y), 0, 127)


def truths(values: np.ndarray) -> dict[str, float]:
    (own, both), (_, other) = np.cov(values.real, values.imag, bias=True)
    return {"covariance": both, "correlation": both / math.sqrt(own * other), "variance": own}


@pytest.mark.false_alarm(3 * ODDS)
@pytest.mark.parametrize(("method", "epsilon"), [("adaptive", 6.0), ("threshold", None)])
def test_covariances_and_correlations_are_found(method: Any, epsilon: float | None) -> None:
    """Of 200,000 users: within what the stated errors allow, and those are small but with the weighted method."""
    values = pairs(200_000, 0)
    plan = MomentsPlan(form=PAIR[0], second=PAIR[1], statistics=OF_PAIR, method=method, epsilon=epsilon)
    found = by_name(run_in_memory(values, plan, key()))
    for name, truth in truths(values).items():
        assert abs(found[name].value - truth) < RARE * found[name].stddev
        assert found[name].low < found[name].value < found[name].high
        assert method == "weighted" or found[name].stddev < 0.25 * truth
