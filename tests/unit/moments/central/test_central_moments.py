"""Sums, means, variances and moments by a trusted curator: budgets, exact answers, intervals, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from benchmarks.evaluation.moments_in_memory import run_centrally
from sfumato.schemas.known_digits import laplace_z
from sfumato.schemas.moments import EVERYBODY, Statistic, ValueRange
from sfumato.transforms.moments.central.central_moments import CentralSums
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.privacy.discrete_laplace import MIN_NOISE_EPSILON
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

ALL = ("count", "sum", "mean", "variance", "moment:2", "moment:5")
SPAN = ValueRange(-20.0, 100.0)


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"central moments" * 3), {"number": number})


def plan(epsilon: float = 1.0, span: ValueRange | None = SPAN, names: tuple[str, ...] = ALL) -> CentralMomentsPlan:
    return CentralMomentsPlan(statistics=tuple(map(Statistic, names)), epsilon=epsilon, span=span)


def truth(name: str, values: NDArray[np.float64], span: ValueRange = SPAN) -> float:
    x = np.clip(values, span.low, span.high)
    known = {"count": float(len(x)), "sum": x.sum(), "mean": x.mean(), "variance": x.var()}
    return float(known[name] if name in known else (x ** Statistic(name).power).mean())


def ages(n: int, seed: int = 0) -> NDArray[np.float64]:
    return seeded_rng(seed).normal(30, 25, n)


@pytest.mark.parametrize("span", [None, SPAN])
@pytest.mark.parametrize("names", [("count",), ALL])
@pytest.mark.parametrize("epsilon", [1e-5, 1.0, 30.0])
def test_the_parts_of_epsilon_add_up(span: ValueRange | None, names: tuple[str, ...], epsilon: float) -> None:
    if span is not None and names == ("count",):
        return
    found = plan(epsilon, span, names)
    assert epsilon * (1 - 1e-12) <= math.fsum(found.shares.values()) <= epsilon
    assert ("range" in found.shares) == (span is None and names != ("count",))
    assert found.admission().cost == found.shares["admission"]
    assert found.shares["sums"] / found.scale >= MIN_NOISE_EPSILON
    assert found.scale & (found.scale - 1) == 0


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e-8, 1e8, 1e110])
def test_intervals_scale_with_the_range(size: float) -> None:
    """No square of a value is too small or too large for a number: an interval would have no width, or no ends."""
    values = seeded_rng(2).random(500)
    one, scaled = (
        next(run_centrally(factor * values, plan(0.3, ValueRange(0.0, factor), ("mean",)), key()).estimates())
        for factor in (1.0, size)
    )
    assert 0 < one.low < one.value < one.high < 1  # the noise differs: the key is bound to the range
    assert scaled.high - scaled.low == pytest.approx(size * (one.high - one.low), rel=0.3)


@pytest.mark.parametrize(("end", "names"), [(1e120, ("mean",)), (1e60, ("variance",)), (-1e15, ("mean", "moment:8"))])
def test_estimates_of_a_huge_range_are_finite(end: float, names: tuple[str, ...]) -> None:
    """Requests of ten times that are refused: the sums of a range must not end in an error after the charge."""
    far = ValueRange(min(end, 0.0), max(end, 0.0))
    found = run_centrally(np.full(1000, end), plan(span=far, names=names), key())
    assert all(np.isfinite([one.value, one.stddev, one.low, one.high]).all() for one in found.estimates())


@pytest.mark.false_alarm(6 * FLAKE_RATE)
def test_many_users_and_little_noise_give_the_exact_statistics() -> None:
    """Noise beyond four widths of the interval, 17 standard deviations, has a probability below 1e-9."""
    values = ages(30_000)
    estimates = list(run_centrally(values, plan(30.0), key()).estimates())
    assert [(one.group, one.statistic) for one in estimates] == [(EVERYBODY, name) for name in ALL]
    for one in estimates:
        exact = truth(one.statistic, values)
        assert abs(one.value - exact) <= 4 * (one.high - one.low)
        assert one.high - one.low <= 1e-3 * max(abs(exact), 1)
        assert one.clients == pytest.approx(30_000, abs=30)


def equal_laplace_tail(number: int, x: float) -> float:
    """P[|X_1 + ... + X_m| > x] for independent Laplace variates of scale 1, as the difference of two gammas."""
    nodes, weights = np.polynomial.laguerre.laggauss(60)
    # X = A - B with A, B Gamma(m): P[A - B > x] = E_B[P[A > x + B]].
    density = weights * nodes ** (number - 1) / math.gamma(number)
    return 2 * float((density * stats.gamma.sf(x + nodes, number)).sum())


@pytest.mark.parametrize("number", [1, 2, 3, 9])
def test_intervals_are_wide_enough_for_any_number_of_equal_terms(number: int) -> None:
    """At 95% never below, and at most 97%; never below at the levels of simultaneous intervals either."""
    for level in (0.95, 0.99, 1 - 1e-4):
        miss = equal_laplace_tail(number, laplace_z(level) * math.sqrt(2 * number))
        assert miss <= (1 - level) * (1 + 1e-6)
        if level == 0.95:
            assert miss >= 0.03


def fieller(one: CentralSums, polynomial: NDArray[np.float64], end: int) -> float:
    """An end of the interval by bisection, from the largest multiple of its noise that a sum minus m users may have."""
    slots, noise, z = one.slots[0], one.plan.noise_stddev, laplace_z(0.95)

    def beyond(mean: float) -> float:
        about = polynomial - mean
        return float(abs(slots @ about) - z * noise * math.sqrt((about**2).sum()))

    start = float(slots @ polynomial / slots.sum())
    return float(optimize.brentq(beyond, start, start + end * 400))


def test_a_mean_has_fiellers_interval() -> None:
    for number in range(3):
        state = run_centrally(ages(300, number), plan(names=("mean",)), key(number))
        (one,) = state.estimates()
        line = np.array([SPAN.low, SPAN.high])
        assert one.low == pytest.approx(max(fieller(state, line, -1), SPAN.low), abs=1e-9)
        assert one.high == pytest.approx(min(fieller(state, line, 1), SPAN.high), abs=1e-9)


@pytest.mark.false_alarm(2e-8)
@pytest.mark.parametrize(("users", "epsilon", "skewed"), [(60, 1.0, True), (400, 0.1, False), (5_000, 0.5, True)])
def test_intervals_hold_the_truth(users: int, epsilon: float, skewed: bool) -> None:
    """95% or more, with up to 7% misses allowed by the goal: refused only where misses exceed 5% beyond chance."""
    rng = seeded_rng(users)
    values = rng.exponential(4.0, users) - 20 if skewed else ages(users)
    states = [run_centrally(values, plan(epsilon), key(number)) for number in range(150)]
    for rows in zip(*(list(state.estimates()) for state in states), strict=True):
        exact = truth(rows[0].statistic, values)
        missed = sum(not one.low <= exact <= one.high for one in rows)
        assert stats.binomtest(missed, 150, 0.07, "greater").pvalue > FLAKE_RATE
        # Too wide an interval is a fault as well. A value that is cut at an end of its range has a smaller error.
        ends = states[0].value_range(Statistic(rows[0].statistic))
        if users == 5_000 and not any(one.value in ends for one in rows):
            error = math.sqrt(np.mean([(one.value - exact) ** 2 for one in rows]))
            # Of 150 squares, whose mean has a deviation of 16%, the root is below 1 / 1.7 with less than 1e-8.
            assert np.median([one.stddev for one in rows]) < 1.7 * error


@pytest.mark.false_alarm(3 * FLAKE_RATE)
def test_nothing_is_known_of_nobody() -> None:
    """An interval narrower than all that is possible is an error of a 95% interval: it may happen in 5% of runs."""
    keys, narrower = 300, dict.fromkeys(("mean", "variance", "count"), 0)
    for number in range(keys):
        rows = {one.statistic: one for one in run_centrally(np.zeros(0), plan(), key(number)).estimates()}
        narrower["mean"] += (rows["mean"].low, rows["mean"].high) != (SPAN.low, SPAN.high)
        narrower["variance"] += (rows["variance"].low, rows["variance"].high) != (0.0, 60.0**2)
        narrower["count"] += rows["count"].low > 0
        assert SPAN.low <= rows["mean"].value <= SPAN.high
        assert all(math.isfinite(one.value) for one in rows.values())
    assert max(narrower.values()) <= stats.binom.isf(FLAKE_RATE, keys, 0.05)


def test_noise_depends_on_the_key_and_the_range() -> None:
    values = ages(1000)

    def slots(low: float, number: int) -> list[float]:
        return list(run_centrally(values, plan(1.0, ValueRange(low, 100.0)), key(number)).slots[0])

    assert slots(-20.0, 0) == slots(-20.0, 0)
    assert slots(-20.0, 0) != slots(-20.0, 1)
    # The noise itself is new where the range is: else the difference of two releases would have none.
    state = [run_centrally(np.zeros(0), plan(1.0, ValueRange(low, 100.0)), key()) for low in (-20.0, -20.5)]
    assert state[0].slots.tolist() != state[1].slots.tolist()


def pairs(users: int, number: int) -> np.ndarray:
    """Two numbers of correlation 0.6; some lie outside the ranges."""
    x, other = seeded_rng(number).normal(size=(2, users))
    values: np.ndarray = 600 + 150 * x + 1j * (50 + 20 * (0.6 * x + 0.8 * other))
    return values


PAIR = (ValueRange(0.0, 1000.0), ValueRange(0.0, 100.0))


def of_pairs(epsilon: float, spans: tuple[ValueRange | None, ValueRange | None] = PAIR) -> CentralMomentsPlan:
    names = ("covariance", "correlation", "variance", "mean", "count")
    return CentralMomentsPlan(
        statistics=tuple(map(Statistic, names)), epsilon=epsilon, span=spans[0], second_span=spans[1], has_second=True
    )


@pytest.mark.false_alarm(5 * FLAKE_RATE)
@pytest.mark.parametrize("spans", [PAIR, (None, None)])
def test_intervals_hold_clipped_covariances_and_correlations(spans: tuple[ValueRange | None, ...]) -> None:
    """Of 3,000 users at epsilon 1 in 80 runs: at least 94% of the time, but for a rate of FLAKE_RATE."""
    held = dict.fromkeys(("covariance", "correlation", "variance", "mean", "count"), 0)
    widths = []
    for number in range(80):
        values = pairs(3000, number)
        state = run_centrally(values, of_pairs(1.0, (spans[0], spans[1])), key(number))
        x, y = (
            np.clip(one, span.low, span.high) for one, span in zip((values.real, values.imag), state.spans, strict=True)
        )
        (own, both), (_, other) = np.cov(x, y, bias=True)
        truth = {"covariance": both, "correlation": both / math.sqrt(own * other)}
        truth |= {"variance": own, "mean": x.mean(), "count": len(x)}
        for one in state.estimates():
            held[one.statistic] += one.low <= truth[one.statistic] <= one.high
            if one.statistic == "correlation":
                widths.append(one.high - one.low)
    for hits in held.values():
        assert stats.binomtest(hits, 80, 0.94, "less").pvalue > FLAKE_RATE
    assert np.median(widths) < 0.4


@pytest.mark.false_alarm(FLAKE_RATE)
def test_nothing_is_known_of_a_correlation_of_few_users() -> None:
    """An interval narrower than all that is possible is an error of a 95% interval: it may happen in 5% of runs."""
    values, keys = pairs(20, 1), 12
    runs = [run_centrally(values, of_pairs(0.1), key(number)).estimates() for number in range(keys)]
    found = [one for rows in runs for one in rows if one.statistic == "correlation"]
    narrower = sum((one.low, one.high) != (-1.0, 1.0) for one in found)
    assert len(found) == keys
    assert narrower <= stats.binom.isf(FLAKE_RATE, keys, 0.05)
