"""Noise against exact probabilities, its cost where clients collude, and the budget that it is charged to."""

from __future__ import annotations

import hashlib
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.discrete_laplace import (
    GeometricTable,
    digit_table,
    discrete_laplace,
    geometric,
    geometric_table,
    polya_difference_events,
)
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, epsilon_for_stddev
from sfumato.transforms.privacy.shared_noise import Noise, colluding_epsilon
from tests.keys import earlier_key
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf, polya_difference_pmf

KEY = RunKey.derive(FixedSecret(b"noise tests" * 2), {"test": "noise"})
STREAMS = np.arange(200, dtype=np.uint64)


# Two and three digits, at both ends of what each covers.
LARGE = [(0.05, 1_000_000), (1e-8, 1), (1.5e-8, 1), (6e-5, 1), (7.0, 1_234_567)]


def draw(epsilon: float, label: str = "a") -> np.ndarray:
    return discrete_laplace(KEY, label, STREAMS, 1000, epsilon)


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("epsilon", [3.0, 1.0, 0.3, 0.05])
def test_discrete_laplace_has_its_distribution(epsilon: float) -> None:
    """Also a test of the test: noise of 0.7 or 1.3 times the scale would be noticed."""
    pmf = discrete_laplace_pmf(epsilon, math.ceil(25 / epsilon))
    assert chi_square_p(draw(epsilon).ravel(), pmf) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(draw(epsilon / scale, "wrong").ravel(), pmf) < FLAKE_RATE


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("epsilon", [5.0, 1.0, 0.01, 1e-4, 1e-6])
def test_geometric_reaches_beyond_its_table(epsilon: float) -> None:
    """The continuous limit where the table covers a small part of the distribution, exact tails elsewhere."""
    sample = geometric(KEY, "tail", STREAMS, 500, epsilon).ravel()
    if epsilon >= 0.01:
        expected = stats.geom(-np.expm1(-epsilon), loc=-1)
        reach = int(expected.isf(1e-4)) + 1
        pmf = np.concatenate([np.zeros(reach), expected.pmf(np.arange(reach + 1))])
        pmf[-1] = expected.sf(reach - 1)
        assert chi_square_p(sample, pmf) > FLAKE_RATE
    else:
        assert stats.kstest(sample * epsilon, "expon").pvalue > FLAKE_RATE


@pytest.mark.parametrize("epsilon", [2.0, 0.7, 0.05, 1e-3, 1e-6])
def test_thresholds_keep_every_likelihood_ratio_within_epsilon(epsilon: float) -> None:
    """The implemented pmf, as exact fractions: neighbouring values differ by a factor e^epsilon, to 2^-40."""
    thresholds = [1 << 64, *map(int, geometric_table(epsilon).thresholds)]
    pmf = [Fraction(a - b, 1 << 64) for a, b in itertools.pairwise(thresholds)]
    some = range(0, len(pmf) - 1, max(1, len(pmf) // 50))
    mpmath.mp.dps = 40
    for k in some:
        ratio = pmf[k] / pmf[k + 1]
        loss = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
        assert abs(loss - epsilon) < epsilon * 2.0**-16
        if epsilon >= 0.05:
            assert abs(loss - epsilon) < 2.0**-38


def realised_pmf(table: GeometricTable) -> list[Fraction]:
    thresholds = [1 << 64, *map(int, table.thresholds)]
    return [Fraction(a - b, 1 << 64) for a, b in itertools.pairwise(thresholds)]


@pytest.mark.parametrize(("epsilon", "sensitivity"), LARGE)
def test_each_digit_is_as_exact_as_stated(epsilon: float, sensitivity: int) -> None:
    """Every probability of every digit, as exact fractions, against the formula in 60 digits."""
    with mpmath.workdps(60):
        while epsilon / sensitivity < 2.0**-14:
            beta = mpmath.exp(-mpmath.mpf(epsilon) / sensitivity)
            for digit, p in enumerate(realised_pmf(digit_table(epsilon, sensitivity))):
                probability = beta**digit * (1 - beta) / (1 - beta**4096)
                assert abs(mpmath.mpf(p.numerator) / p.denominator / probability - 1) < 2.0**-51
            assert digit == 4095
            epsilon *= 4096
        top = geometric_table(epsilon, sensitivity)
        beta = mpmath.exp(-mpmath.mpf(epsilon) / sensitivity)
        for value, p in enumerate(realised_pmf(top)):
            assert abs(mpmath.mpf(p.numerator) / p.denominator / (beta**value * (1 - beta)) - 1) < 2.0**-38
        beyond = beta ** len(top.thresholds)
        assert abs(int(top.thresholds[-1]) / beyond / mpmath.mpf(2) ** 64 - 1) < 2.0**-64 / beyond


@pytest.mark.false_alarm(4e-9)
@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "sensitivity"), LARGE)
def test_digits_of_large_noise_are_distributed_and_independent(epsilon: float, sensitivity: int) -> None:
    sample = geometric(KEY, "digits", STREAMS, 1000, epsilon, sensitivity).ravel()
    rate = epsilon / sensitivity
    assert stats.kstest(sample * rate, "expon").pvalue > FLAKE_RATE
    for scale in (0.95, 1.05):
        assert stats.kstest(sample * rate * scale, "expon").pvalue < FLAKE_RATE
    low, second = sample % 4096, sample // 4096 % 4096
    beta = np.exp(-rate)
    pmf = beta ** np.arange(4096) * (1 - beta) / (1 - beta**4096)  # of G mod 4096
    assert chi_square_p(low, np.concatenate([np.zeros(4095), pmf])) > FLAKE_RATE
    for higher in (second, sample // 4096**2):
        edges = np.unique(np.concatenate([np.quantile(higher, np.linspace(0, 1, 9)), [higher.max() + 1]]))
        table = np.histogram2d(low, higher, bins=[16, edges])[0]
        table = table[:, table.sum(axis=0) >= 500]  # 30 expected in each
        assert len(table.T) < 2 or stats.chi2_contingency(table).pvalue > FLAKE_RATE


@pytest.mark.pinned
def test_noise_of_earlier_versions_can_be_made_again() -> None:
    key = earlier_key(b"noise tests" * 2, {"test": "noise"})
    drawn = {
        epsilon: hashlib.sha256(
            discrete_laplace(key, "a", STREAMS[:50], 500, epsilon).astype("<i8").tobytes()
        ).hexdigest()[:16]
        for epsilon in (3.0, 0.5, 0.0029, 1e-4)
    }
    assert drawn == {
        3.0: "b30bdd2f95b8fef7",
        0.5: "bda7df9d0675f370",
        0.0029: "f8f3187ccf8ea42f",
        1e-4: "831eb4fb0a3dd164",
    }


@pytest.mark.false_alarm(1e-9)
def test_a_row_depends_on_key_label_and_stream_alone() -> None:
    whole = draw(0.5)
    some = discrete_laplace(KEY, "a", STREAMS[[7, 3]], 1000, 0.5)
    assert np.array_equal(some, whole[[7, 3]])
    assert not np.array_equal(draw(0.5, "b"), whole)
    large = discrete_laplace(KEY, "a", STREAMS, 20, 0.05, 1_000_000)
    assert np.array_equal(discrete_laplace(KEY, "a", STREAMS[[7, 3]], 20, 0.05, 1_000_000), large[[7, 3]])
    other = RunKey.derive(FixedSecret(b"noise tests" * 2), {"test": "another request"})
    assert not np.array_equal(discrete_laplace(other, "a", STREAMS, 1000, 0.5), whole)
    # Rows and entries are uncorrelated: 100,000 products or more, of unit variance.
    z = whole / discrete_laplace_stddev(0.5)
    for product in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1], z[:, :500] * z[:, 500:]):
        assert abs(product.mean()) < 6.5 / math.sqrt(product.size)


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(("shape", "epsilon"), [(0.05, 0.5), (0.3, 0.1), (1.0, 1.0), (2.5, 0.3)])
def test_sparse_polya_differences_have_their_distribution(shape: float, epsilon: float) -> None:
    entries = 1000
    events = polya_difference_events(KEY, "sparse", STREAMS, np.full(200, shape), np.full(200, entries), epsilon)
    noise = np.zeros((200, entries), dtype=np.int64)
    np.add.at(noise, (events.row, events.slot), events.value)
    reach = math.ceil(20 / epsilon)
    assert chi_square_p(noise.ravel(), polya_difference_pmf(shape, epsilon, reach)) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(noise.ravel(), polya_difference_pmf(shape, epsilon / scale, reach)) < FLAKE_RATE


@pytest.mark.false_alarm(3e-9)
@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.05, 1_000_000), (1e-8, 1), (1.0, 1000)])
@pytest.mark.parametrize("shape", [0.05, 1.0])
def test_large_polya_differences_have_their_moments(shape: float, epsilon: float, sensitivity: int) -> None:
    entries = 200
    events = polya_difference_events(
        KEY, "large", STREAMS, np.full(200, shape), np.full(200, entries), epsilon, sensitivity
    )
    noise = np.zeros((200, entries), dtype=np.int64)
    np.add.at(noise, (events.row, events.slot), events.value)
    z = noise.ravel() / (math.sqrt(shape) * discrete_laplace_stddev(epsilon, sensitivity))
    assert abs(z.mean()) < 6.5 / math.sqrt(z.size)
    # The excess kurtosis is 3 / shape in the continuous limit; 2 + 3 / shape is the variance of z^2.
    # The squares are skewed, so 8 deviations of their mean, which have a probability below 1e-9.
    assert abs((z**2).mean() - 1) < 8 * math.sqrt((2 + 3 / shape) / z.size)
    if shape == 1:  # the discrete Laplace distribution
        assert stats.kstest(z * math.sqrt(2), "laplace").pvalue > FLAKE_RATE
        for scale in (0.8, 1.25):
            assert stats.kstest(z * math.sqrt(2) * scale, "laplace").pvalue < FLAKE_RATE


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("sensitivity", [1, 7])
def test_stddev_and_its_inverse_are_the_printed_equations(epsilon: float, sensitivity: int) -> None:
    mpmath.mp.dps = 60
    beta = mpmath.exp(-mpmath.mpf(epsilon) / sensitivity)
    stddev = mpmath.sqrt(2 * beta) / (1 - beta)  # Eq. 5
    printed = -sensitivity * mpmath.log((stddev**2 + 1 - mpmath.sqrt(2 * stddev**2 + 1)) / stddev**2)  # Eq. 8
    assert math.isclose(discrete_laplace_stddev(epsilon, sensitivity), stddev, rel_tol=1e-12)
    assert math.isclose(epsilon_for_stddev(float(stddev), sensitivity), printed, rel_tol=1e-12)


# --- Laplace and Gaussian noise behind one interface ---


ADDITIVE_KEY = RunKey.derive(FixedSecret(b"additive noise" * 2), {})
FEW_STREAMS = np.arange(50, dtype=np.uint64)


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN], ids=lambda noise: noise.NAME)
@pytest.mark.parametrize("sensitivity", [1, 1000])
@pytest.mark.parametrize("cost", [1e-4, 0.01, 1.0])
def test_additive_noise_has_its_deviation_cost_and_quantile(
    noise: AdditiveNoise, cost: float, sensitivity: int
) -> None:
    stddev = noise.stddev(cost, sensitivity)
    z = noise.draw(ADDITIVE_KEY, "a", FEW_STREAMS, 1000, cost, sensitivity).ravel() / stddev
    # 50,000 squares, whose variance is at most 5 (Laplace), and which are skewed: 7 deviations of their mean.
    assert abs((z**2).mean() - 1) < 7 * math.sqrt(5 / z.size)
    assert math.isclose(noise.cost(stddev, sensitivity), cost, rel_tol=2e-3 if sensitivity == 1 else 1e-9)
    assert noise.min_cost(sensitivity) < cost
    noise.draw(ADDITIVE_KEY, "least", FEW_STREAMS[:1], 2, noise.min_cost(sensitivity), sensitivity)
    t = noise.quantile(cost, 0.01, sensitivity)
    share = (z * stddev > t).mean()
    assert share <= 0.01 + 7.5 * math.sqrt(0.01 / z.size)


# --- what honest clients' shares of the noise leave ---


@pytest.mark.parametrize("epsilon", [0.05, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("shape", [0.3, 0.5, 0.8, 0.95, 0.99])
def test_colluding_epsilon_is_the_largest_log_ratio(epsilon: float, shape: float) -> None:
    reach = math.ceil(12 / epsilon)
    logs = np.log(polya_difference_pmf(shape, epsilon, 2 * reach))[reach:-reach]
    assert math.isclose(np.abs(np.diff(logs)).max(), colluding_epsilon(epsilon, 1, shape), rel_tol=1e-6)
    assert colluding_epsilon(epsilon, 1, shape) > epsilon


@pytest.mark.parametrize("shape", [0.3, 0.8, 0.95])
def test_colluding_epsilon_adds_up_over_entries(shape: float) -> None:
    """So a change of 1 in each of several entries costs most, and `colluding_epsilon` adds that up."""
    pmf = polya_difference_pmf(shape, 0.3, 60)
    assert (np.diff(np.log(pmf[60:]), 2) > 0).all()
    losses = [math.log(pmf[60] / pmf[60 + change]) for change in range(6)]
    bound = [change * colluding_epsilon(0.3, 1, shape) for change in range(6)]
    assert math.isclose(losses[1], bound[1], rel_tol=1e-9)
    assert all(loss < most for loss, most in zip(losses[2:], bound[2:], strict=True))
    assert math.isclose(colluding_epsilon(1.5, 5, shape), bound[5], rel_tol=1e-9)


# --- budgets ---


@given(st.floats(1e-6, 50), st.lists(st.floats(1e-9, 60), max_size=12))
def test_budget_spends_exactly(total: float, wishes: list[float]) -> None:
    budget = Budget(total)
    for wish in wishes:
        charge = budget.affordable(wish)
        assert 0 <= charge <= wish
        if charge > 0:
            budget = budget.charge(charge)
        exact = sum(map(Fraction, budget.charges), Fraction(0))
        assert exact <= Fraction(total)
        assert Fraction(budget.spent) == exact
        assert Fraction(budget.remaining) == Fraction(total) - exact
    if budget.remaining > 0:
        budget = budget.charge(budget.remaining)
    assert math.fsum(budget.charges) == total
    assert budget.spent == total
    assert budget.remaining == 0


@pytest.mark.parametrize("charge", [1.0000000001, 0.0, -0.1, math.nan, 1 / 3 * 2.0**-60])
def test_budget_rejects_a_charge_beyond_it_or_off_its_grid(charge: float) -> None:
    with pytest.raises(ValueError, match="cannot charge"):
        Budget(1.0).charge(charge)


def test_noise_states_colluders_of_less_than_one_client() -> None:
    noise = Noise(required=100, colluding=0.001)
    assert (noise.colluders, noise.honest, noise.shape) == (0, 100, 1.0)
    assert noise.entry() == {"required_survivors": 100, "colluders": 0}
    assert "if none of a shard's 100 required" in noise.assumptions()[0]
    assert Noise(required=100).entry() == {"required_survivors": 100}
    assert Noise(GAUSSIAN, 100).assumptions() == []


@pytest.mark.parametrize("colluding", [0.0, 0.05, 0.29])
def test_noise_has_epsilon_against_its_own_colluders(colluding: float) -> None:
    noise = Noise(required=100, colluding=colluding)
    assert noise.epsilon_against(colluding, cost=0.5, sensitivity=3) == 0.5
    assert noise.epsilon_against(colluding + 0.01, cost=0.5, sensitivity=3) > 0.5
    added = noise.stddev(0.5, 3, sums=4, unit=3)
    assert math.isclose(3 * added, math.sqrt(400 / noise.honest) * LAPLACE.stddev(0.5, 3))
