"""The accountant against brute force over all counts, high precision, product distributions, and the paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from benchmarks.baselines.sampling_bounds import frequency_bound, min_threshold, omission_bound, theorem_delta
from sfumato.transforms.histogram.accountant import delta, max_rate, profile, rounds_delta
from sfumato.transforms.histogram.plan import corollary_rate, corollary_threshold
from tests.rejections import rejects
from tests.unit.histogram.oracle import divergences, hockey_stick, precise_delta, published

# The accountant rounds up by 1e-9 of p times a binomial probability; the divergence is at least 1 / (2 tau) of that in
# the cases below (Mills' ratio), and the oracle in floating point is good to 1e-12.
SLACK = 1e-6

# (epsilon, rate, threshold, item counts that certainly hold the worst case: far beyond tau / q and tau / s)
CASES = [
    (1.0, 0.105, 11, 200),
    (0.1, 0.016, 5, 1500),
    (0.05, 0.2, 17, 600),
    (0.3, 0.97, 60, 400),  # above 1 - e^-epsilon: the add direction counts, too
    (1.0, 0.7, 114, 400),
    (0.5, 0.9, 1, 100),
]


@pytest.mark.parametrize(("epsilon", "rate", "threshold", "last"), CASES)
@pytest.mark.parametrize("sign", [1, -1])
def test_profile_is_the_largest_divergence_over_all_counts(
    epsilon: float, rate: float, threshold: int, last: int, sign: int
) -> None:
    remove, add = (float(values[0]) for values in profile([sign * epsilon], rate, threshold))
    for found, truth in zip((remove, add), divergences(sign * epsilon, rate, threshold, range(1, last)), strict=True):
        assert found >= truth * (1 - 1e-12)
        # Where it is 0 or far below everything that matters the floor shows.
        assert found <= truth * (1 + SLACK) + 1e-15


@pytest.mark.parametrize(
    ("epsilon", "rate", "threshold", "counts"),
    [
        (1.0, 0.105, 20, range(20, 60)),
        (1.0, 0.7, 114, range(118, 160)),
        (3.0, 0.5, 40, range(40, 60)),
    ],
)
def test_delta_is_above_the_truth_and_hardly_so(epsilon: float, rate: float, threshold: int, counts: range) -> None:
    truth = precise_delta(epsilon, rate, threshold, counts)
    assert truth <= mpmath.mpf(delta(epsilon, rate, threshold)) <= truth * (1 + SLACK)


@given(
    epsilon=st.floats(1e-3, 6.0), rate=st.floats(1e-6, 0.999), threshold=st.integers(1, 300), more=st.floats(1.0, 3.0)
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_delta_is_monotone_and_below_the_theorem(epsilon: float, rate: float, threshold: int, more: float) -> None:
    here = delta(epsilon, rate, threshold)
    rounding = here * SLACK + 1e-299
    assert delta(epsilon * more, rate, threshold) <= here + rounding
    assert delta(epsilon, rate, math.ceil(threshold * more)) <= here + rounding
    assert delta(epsilon, rate / more, threshold) <= here + rounding
    assert here <= rate
    assert here <= theorem_delta(epsilon, rate, threshold) * (1 + 1e-9) + 1e-299


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_paper_bounds_at_known_points(epsilon: float) -> None:
    rate = corollary_rate(epsilon)
    assert corollary_threshold(1e-8) == 20
    assert min_threshold(epsilon, 1e-8, rate) == 11
    assert 2.3 < max_rate(epsilon, 1e-8, 20) / rate < 2.45
    assert theorem_delta(epsilon, rate, 20) <= 1e-8


def test_paper_bounds_have_its_printed_numbers() -> None:
    assert corollary_rate(1.0) == pytest.approx(0.105, abs=5e-4)
    assert corollary_threshold(math.exp(-9.3)) == 10  # C_alpha = 0.9346
    # Its Theorem 1 promises nothing above 1 - e^-epsilon, where the exact guarantee still may.
    assert theorem_delta(1.0, 0.7, 200) == 1.0
    assert delta(1.0, 0.7, 200) < 1e-12


def test_the_accuracy_bounds_of_the_paper_hold() -> None:
    """Section 3.3, against sums of the binomial law; and its two numeric examples."""
    for users, rate, threshold, error in itertools.product((10, 300, 3000), (0.05, 0.4), (1, 20), (0.1, 0.5)):
        law = stats.binom.pmf(np.arange(users + 1), users, rate)
        assert law[:threshold].sum() <= omission_bound(users, rate, threshold) + 1e-12
        far = np.abs(np.arange(users + 1) - users * rate) > error * users * rate
        assert law[far].sum() <= frequency_bound(users, rate, error) + 1e-12
    assert omission_bound(1000, 0.1, 20) == pytest.approx(math.exp(-32))
    assert omission_bound(1000, 0.1, 20) < 1e-13
    # It inverts its bound with ln(1 / (2 beta)) = 10; that of 2 e^-10 is ln(2 / beta) = 10.
    assert frequency_bound(3000, 0.1, math.sqrt(0.1)) == pytest.approx(4 * math.exp(-10) / 2)


def test_max_rate_and_min_threshold_err_on_the_safe_side() -> None:
    for epsilon, wanted, threshold in [(1.0, 1e-8, 20), (0.1, 1e-6, 7), (3.0, 1e-10, 300), (0.5, 0.3, 1)]:
        rate = max_rate(epsilon, wanted, threshold)
        words = round(rate * 2**32)
        assert words / 2**32 == rate
        assert delta(epsilon, rate, threshold) <= wanted < delta(epsilon, (words + 1) / 2**32, threshold)
        assert min_threshold(epsilon, wanted, rate) == threshold


@pytest.mark.parametrize(
    "arguments",
    [(1e-6, 1e-7, 20), (700.0, 0.3, 5), (1e-300, 0.5, 3), (0.1, 1 - 2**-32, 10), (0.1, 0.97, 10**5), (3.0, 2**-32, 1)],
)
def test_delta_is_finite_at_extremes(arguments: tuple[float, float, int]) -> None:
    assert 0 < delta(*arguments) <= arguments[1]
    # At an infinite epsilon what is left is the probability that exactly tau holders are all sampled.
    assert delta(500.0, 0.3, 5) == pytest.approx(0.3**5, rel=1e-8)


@pytest.mark.parametrize(
    ("n", "p", "x"),
    [
        (10**5, 1e-3, 150),
        (10**6, 0.3, 301_000),
        (4 * 10**9, 3e-10, 12),
    ],
)
def test_scipy_is_as_good_as_the_safety_margin_assumes(n: int, p: float, x: int) -> None:
    with mpmath.workdps(60):
        rate = mpmath.mpf(p)
        peak = mpmath.binomial(n, x) * rate**x * (1 - rate) ** (n - x)
        tail, term = mpmath.mpf(0), peak
        for v in range(x, x + 20_000):
            term *= mpmath.mpf(n - v) / (v + 1) * rate / (1 - rate)
            tail += term
        assert abs(mpmath.mpf(float(stats.binom.pmf(x, n, p))) / peak - 1) < 1e-12
        assert abs(mpmath.mpf(float(special.betainc(x + 1, n - x, p))) / tail - 1) < 1e-12


SHARES = (0.0, 1.0, -0.1, math.nan, True)
REFUSED = [
    ("epsilon", lambda bad: delta(bad, 0.1, 5), (0.0, -1.0, math.nan, math.inf)),
    ("epsilon", lambda bad: theorem_delta(bad, 0.1, 5), (0.0, math.inf)),
    ("epsilon", lambda bad: max_rate(bad, 1e-8, 5), (0.0, math.inf)),
    ("epsilon", lambda bad: min_threshold(bad, 1e-8, 0.1), (0.0, math.inf)),
    ("epsilon", corollary_rate, (0.0, math.inf)),
    ("epsilon", lambda bad: rounds_delta(bad, 0.1, 5, 2), (math.nan,)),
    ("rate", lambda bad: delta(1.0, bad, 5), SHARES),
    ("rate", lambda bad: min_threshold(0.01, 1e-8, bad), (0.9999,)),  # it would need a threshold above 2**16
    ("delta", lambda bad: max_rate(1.0, bad, 5), SHARES),
    ("delta", lambda bad: max_rate(1.0, bad, 1), (1e-12,)),  # out of reach: with a threshold of 1 delta is the rate
    ("delta", corollary_threshold, SHARES),
    ("threshold", lambda bad: delta(1.0, 0.1, bad), (0, -3, 2.5, True, math.nan)),
    ("threshold", lambda bad: max_rate(1.0, 1e-8, bad), (0, 2.5)),
    ("rounds", lambda bad: rounds_delta(1.0, 0.1, 5, bad), (0, 1.5, True, math.nan)),
]


@pytest.mark.parametrize(("option", "call", "values"), REFUSED)
def test_accountant_rejects_bad_numbers(
    option: str, call: Callable[[float], object], values: tuple[float, ...]
) -> None:
    for bad in values:
        with rejects(option):
            call(bad)


# --- several rounds ---


def worst_product(epsilon: float, rate: float, threshold: int, counts: range) -> float:
    """The largest divergence of two rounds, where the user's item has any count in either round."""
    laws = [published(k, rate, threshold, counts.stop) for k in range(counts.stop)]
    worst = 0.0
    for first, second in product(counts, counts):
        more = np.outer(laws[first], laws[second])
        less = np.outer(laws[first - 1], laws[second - 1])
        worst = max(worst, hockey_stick(more, less, epsilon), hockey_stick(less, more, epsilon))
    return worst


@pytest.mark.parametrize(("epsilon", "rate", "threshold"), [(1.0, 0.3, 4), (0.2, 0.9, 2)])
def test_two_rounds_are_no_worse_than_said(epsilon: float, rate: float, threshold: int) -> None:
    truth = worst_product(epsilon, rate, threshold, range(1, 40))
    said = rounds_delta(epsilon, rate, threshold, 2)
    # Pessimism has three sources: the pointwise supremum over counts, chords, and rounding; a few per cent here.
    assert truth <= said <= 1.25 * truth


@pytest.mark.parametrize("rounds", [2, 24])
@pytest.mark.parametrize(("epsilon", "rate"), [(0.1, 0.95), (1.0, 0.4), (5.0, 1e-4)])
def test_never_worse_than_the_sum(rounds: int, epsilon: float, rate: float) -> None:
    for threshold in (1, 20):
        together = rounds_delta(epsilon, rate, threshold, rounds)
        assert together <= min(1.0, rounds * delta(epsilon / rounds, rate, threshold))
        assert together >= delta(epsilon, rate, threshold)  # publishing only one of them is one way of using them


def same_count_delta(epsilon: float, rate: float, threshold: int, rounds: int, count: int, step: float) -> float:
    """A lower bound of the delta of several rounds: the user's item has the same count in each, losses rounded down."""
    last = 4 * count
    more, less = published(count, rate, threshold, last), published(count - 1, rate, threshold, last)
    both = (more > 0) & (less > 0)
    losses = np.floor(np.log(more[both] / less[both]) / step).astype(int)
    one = np.bincount(losses - losses.min(), weights=more[both])
    total = np.ones(1)
    for _ in range(rounds):
        total = np.convolve(total, one)
    summed = step * (np.arange(len(total)) + rounds * losses.min())
    certain = float(more[less == 0].sum())  # outcomes that only one of the two logs can give
    return 1 - (1 - certain) ** rounds + float((total * np.maximum(1 - np.exp(epsilon - summed), 0)).sum())


def test_many_rounds_share_their_epsilon() -> None:
    rate, rounds = 0.4, 24
    lower = same_count_delta(1.0, rate, 20, rounds, 50, 0.002)
    assert lower > 10 * rounds * delta(1.0, rate, 20)  # so the rounds cannot have the whole epsilon each
    assert lower <= rounds_delta(1.0, rate, 20, rounds)
