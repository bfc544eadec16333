"""Sampling probabilities against water-filling by bisection, and against every perturbation (Lemma 3.3)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import FixedPoint
from sfumato.transforms.moments.local.allocation import Tuning, by_variance, by_weight, capped, with_uniform_share
from sfumato.transforms.moments.local.quantities import Quantity, Slots
from sfumato.transforms.moments.local.tally import RandomisedResponse
from tests.rejections import rejects
from tests.seeds import seeded_rng

PLAIN = RandomisedResponse(None)
WANTED = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1.0)), min_size=1, max_size=20)
SLACK = 1e-8  # caps are 1e-9 below 1 / reports


def slots(bits: int = 8, signed: str = "no") -> Slots:
    return Quantity(FixedPoint(bits, 3, signed), "value").slots  # type: ignore[arg-type]


def water_filled(wanted: list[float], reports: int) -> np.ndarray:
    """min(level x wanted, 1 / reports), the level by bisection; where that cannot give 1, the rest have equal parts."""
    most, some = 1 / reports, np.array(wanted)
    if np.count_nonzero(some) <= reports:
        probabilities = np.where(some > 0, most, 0.0)
        empty = some == 0
        probabilities[empty] = (1 - probabilities.sum()) / max(1, empty.sum())
        return probabilities
    low, high = 0.0, 1e12
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.minimum(level * some, most).sum() < 1 else (low, level)
    return np.minimum(high * some, most)


@given(WANTED, st.integers(1, 20))
@example([1.0, 1.0, 1.0], 3)
@example([1.0, 0.0, 0.0], 2)
@example([0.0, 0.0], 1)
@example([1.0, 1e-9, 1e-9, 1e-9], 3)
def test_probabilities_are_water_filled(wanted: list[float], reports: int) -> None:
    reports = min(reports, len(wanted))
    probabilities = capped(np.array(wanted), reports)
    assert probabilities.sum() == pytest.approx(1, abs=SLACK)
    assert (probabilities >= 0).all()
    assert (probabilities <= 1 / reports + 1e-15).all()
    if reports > 1 or any(wanted):
        assert probabilities == pytest.approx(water_filled(wanted, reports), abs=len(wanted) * SLACK)
    else:
        assert probabilities.tolist() == pytest.approx([1 / len(wanted)] * len(wanted))


def test_what_is_not_capped_stays_in_proportion() -> None:
    probabilities = capped(np.array([8.0, 4.0, 2.0, 1.0]), 3)
    assert probabilities[:2] == pytest.approx([1 / 3, 1 / 3])
    assert probabilities[2] / probabilities[3] == pytest.approx(2)
    assert capped(np.array([8.0, 4.0, 2.0, 1.0]), 1) == pytest.approx(np.array([8, 4, 2, 1]) / 15)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("signed", ["no", "split"])
def test_probabilities_by_weight_are_powers_of_it(power: float, signed: str) -> None:
    one = 2.0 ** (power * np.arange(8))
    expected = np.tile(one, 1 + (signed == "split"))
    assert by_weight(slots(8, signed), power, 1) == pytest.approx(expected / expected.sum())
    assert by_weight(slots(8, signed), 1e6, 1).max() == pytest.approx(1 / (1 + (signed == "split")))


def variance(probabilities: np.ndarray, weights: np.ndarray, each: np.ndarray) -> float:
    """Of the estimate from one report: the sum of 4^j v_j / p_j (Section 3.1)."""
    return float((weights**2 * each / probabilities).sum())


@pytest.mark.parametrize("epsilon", [None, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_power_one_half_has_the_least_variance(epsilon: float | None, seed: int) -> None:
    """Lemma 3.3: (sum of 2^j sqrt(v_j))^2, and no other probabilities do better, nearby or far."""
    rng, response, bits = seeded_rng(seed), RandomisedResponse(epsilon), slots(7)
    means = rng.uniform(0.02, 0.98, 7)
    each = means * (1 - means)
    if epsilon is not None:
        each += math.exp(epsilon) / math.expm1(epsilon) ** 2
    probabilities = by_variance(bits, means, np.ones(7), response, 0.5, 1)
    least = variance(probabilities, bits.weight, each)
    assert least == pytest.approx((bits.weight * np.sqrt(each)).sum() ** 2)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(100):
            other = probabilities * np.exp(size * rng.normal(size=7))
            assert variance(other / other.sum(), bits.weight, each) >= least * (1 - 1e-12)
    for power in (0.0, 0.25, 1.0):  # and the test would see another power
        assert variance(by_variance(bits, means, np.ones(7), response, power, 1), bits.weight, each) > least


@pytest.mark.parametrize("seed", range(3))
def test_with_a_cap_the_least_variance_among_probabilities_below_it(seed: int) -> None:
    rng, bits = seeded_rng(seed), slots(6)
    means = rng.uniform(0.1, 0.9, 6)
    each = means * (1 - means)
    probabilities = by_variance(bits, means, np.ones(6), RandomisedResponse(None, 3), 0.5, 3)
    least = variance(probabilities, bits.weight, each)
    for _ in range(2000):
        other = rng.dirichlet(np.ones(6))
        if other.max() <= probabilities.max():
            assert variance(other, bits.weight, each) >= least * (1 - 1e-12)
    for _ in range(300):  # move a little from one bit to another
        give, take = rng.choice(6, 2, replace=False)
        other = probabilities.copy()
        moved = 0.05 * rng.uniform() * other[give]
        other[give] -= moved
        other[take] += moved
        if other.max() <= probabilities.max() * (1 + 1e-12):
            assert variance(other, bits.weight, each) >= least * (1 - 1e-12)


def test_under_much_noise_bits_are_asked_for_by_weight() -> None:
    """The coins' variance is the same for every bit, so the probabilities are in proportion to 2^j."""
    bits = slots(8)
    probabilities = by_variance(bits, np.linspace(0.1, 0.9, 8), np.ones(8), RandomisedResponse(0.01), 0.5, 1)
    assert probabilities == pytest.approx(by_weight(bits, 1.0, 1), rel=1e-4)


def test_bits_that_are_not_in_use_are_not_asked_for() -> None:
    bits, used = slots(8), np.array([1.0] * 5 + [0.0] * 3)
    probabilities = by_variance(bits, np.full(8, 0.5), used, PLAIN, 0.5, 1)
    assert (probabilities[5:] == 0).all()
    assert probabilities[:5] == pytest.approx(2.0 ** np.arange(5) / 31)
    doubtful = by_variance(bits, np.full(8, 0.5), np.array([1.0] * 7 + [0.1]), PLAIN, 0.5, 1)
    assert doubtful[7] / doubtful[6] == pytest.approx(2 * 0.1**0.5)  # as the least of what is expected has it
    nothing = by_variance(bits, np.zeros(8), np.ones(8), PLAIN, 0.5, 1)
    assert nothing == pytest.approx(by_weight(bits, 0.5, 1))  # no bit has a variance: by weight


def test_a_large_power_is_no_overflow() -> None:
    probabilities = by_variance(slots(8), np.full(8, 0.5), np.ones(8), RandomisedResponse(1e-5), 1000.0, 1)
    assert probabilities[7] == pytest.approx(1)


@pytest.mark.parametrize("reports", [1, 2])
def test_a_watched_bit_has_a_share(reports: int) -> None:
    probabilities = capped(np.array([1.0, 1.0, 1.0] + [0.0] * 5), reports)
    watched = with_uniform_share(probabilities, reports)
    assert watched.sum() == pytest.approx(1, abs=SLACK)
    assert (watched <= 1 / reports).all()
    assert watched == pytest.approx(0.8 * probabilities + 0.2 / 8)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.1, math.nan, math.inf])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with rejects("first_share"):
        Tuning(first_share=share)


@pytest.mark.parametrize("name", ["first_power", "second_power", "weighted_power", "squash"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_powers_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{name}: must be a finite number >= 0, got {value}"):
        Tuning(**{name: value})


@pytest.mark.parametrize(("local", "squash"), [(True, 2.5), (False, 0.5)])
def test_the_papers_tuning_is_that_of_section_4_2(local: bool, squash: float) -> None:
    """A third of the clients first, by 2^(j / 2); then by the root of 4^j m (1 - m); reports of both rounds."""
    tuning = Tuning.from_paper(local)
    assert (tuning.first_share, tuning.first_power, tuning.second_power, tuning.caching) == (1 / 3, 0.5, 0.5, True)
    assert tuning.squash == squash
    assert tuning.resolved("adaptive") == Tuning(1 / 3, 0.5, 0.5, 1.0, True, squash)


@pytest.mark.parametrize("method", ["adaptive", "weighted"])
def test_only_what_is_left_open_is_chosen(method: str) -> None:
    given = Tuning(0.4, 0.3, 0.7, 0.9, False, 1.5)
    assert given.resolved(method) == given  # type: ignore[arg-type]
    chosen = Tuning().resolved(method)  # type: ignore[arg-type]
    assert None not in (chosen.first_share, chosen.first_power, chosen.weighted_power)
    assert 0 < (chosen.first_share or 0) < 1
    assert (chosen.squash == 0) == (method == "weighted")  # an unbiased estimate, by the paper's one round
