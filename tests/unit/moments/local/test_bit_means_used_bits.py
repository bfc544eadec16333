"""Chances to be in use against exact integrals, and squashing against all patterns of bits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special

from sfumato.schemas.moments import FixedPoint, Signed
from sfumato.transforms.moments.local.bit_means import UsedBits, above_threshold, evidence, posterior
from sfumato.transforms.moments.local.quantities import Quantity, Slots
from sfumato.transforms.moments.local.tally import RandomisedResponse, Tally
from tests.seeds import seeded_rng


def slots(bits: int, signed: Signed = "no") -> Slots:
    return Quantity(FixedPoint(bits, 0, signed), "value").slots


def told_share(mean: np.ndarray, response: RandomisedResponse) -> np.ndarray:
    """The share of reported 1s."""
    return np.clip(mean * response.gain + 1 - response.truth_probability, 0, 1)


def likelihood_ratio(one: int, zero: int, response: RandomisedResponse) -> float:
    """Of a bit in use, whose mean is of Beta(1/2, 1/2), over an empty one."""
    if response.epsilon is None:
        if one:
            return math.exp(100.0)  # an empty bit is never response
        return math.exp(special.betaln(0.5, zero + 0.5) - special.betaln(0.5, 0.5))
    gain, lie = response.gain, 1 - response.truth_probability

    def likelihood(angle: float) -> float:
        share = math.sin(angle) ** 2 * gain + lie  # under Beta(1/2, 1/2) all angles are alike
        return float(share**one * (1 - share) ** zero)

    used = integrate.quad(likelihood, 0, math.pi / 2, epsabs=0, epsrel=1e-10)[0] / (math.pi / 2)
    return float(used / (lie**one * (1 - lie) ** zero))


def probabilities(ratios: list[float]) -> np.ndarray:
    """Of the highest bit in use, none first: by exact integrals over the share of lower bits that are in use."""
    odds = [1.0]
    for bit, ratio in enumerate(ratios):
        below = np.polynomial.Polynomial([1.0])
        for one in ratios[:bit]:
            below *= np.polynomial.Polynomial([1.0, one - 1.0])  # 1 - share + share * ratio
        whole = below.integ()
        odds.append(ratio * float(whole(1.0) - whole(0.0)))
    return np.array(odds) / sum(odds)


@pytest.mark.parametrize("epsilon", [None, 0.5, 3.0])
@pytest.mark.parametrize("signed", ["no", "split"])
@pytest.mark.parametrize("seed", range(3))
def test_probabilities_are_posterior_ones(epsilon: float | None, signed: Signed, seed: int) -> None:
    """For so few reports the mean over 128 angles is exact."""
    rng, response, some = seeded_rng(seed), RandomisedResponse(epsilon), slots(5, signed)
    reports = rng.integers(1, 60, len(some))
    share = np.tile([0.5, 0.3, 0.05, 0.0, 0.0], len(some.sides()))
    ones = rng.binomial(reports, share * response.gain + 1 - response.truth_probability)
    seen = evidence(Tally(ones[None], (reports - ones)[None]), response)
    assert seen[1] == pytest.approx(reports)
    found = posterior(*seen, some, response)
    for side, highest in zip(some.sides(), found.highest, strict=True):
        counts = zip(ones[side].tolist(), (reports - ones)[side].tolist(), strict=True)
        ratios = [likelihood_ratio(one, zero, response) for one, zero in counts]
        assert highest == pytest.approx(probabilities(ratios), abs=2e-3)  # the share is summed over 64 values


def test_noisy_counts_are_worth_fewer_reports() -> None:
    """As many as have the same variance by their coins alone; counts without reports are worth nothing."""
    response = RandomisedResponse(1.0)
    counted, noise = Tally(np.array([[400, 5, -3]]), np.array([[600, 4, -2]])), 50.0
    share, worth = evidence(counted, response, noise)
    assert share.tolist() == pytest.approx([0.4, 5 / 9, 0.0])
    one = 401 / 1002
    assert worth[0] == pytest.approx(
        1000 * (coins := 1000 * one * (1 - one)) / (coins + noise * (one**2 + (1 - one) ** 2))
    )
    assert 0 < worth[1] < 1
    assert worth[2] == 0
    assert evidence(counted, response, 1e9)[1] == pytest.approx([0, 0, 0], abs=1e-3)


@pytest.mark.parametrize("signed", ["no", "split"])
def test_what_is_empty_below_a_sure_bit_is_not_touched(signed: Signed) -> None:
    response, some = RandomisedResponse(2.0), slots(12, signed)
    mean = np.tile(np.array([0.0, 0.0, 0.5, 0.4, 0.0, 0.3, 0.6, 0.3, 0.0, 0.0, 0.01, -0.01]), len(some.sides()))
    found = posterior(told_share(mean, response), np.full(len(some), 10_000.0), some, response)
    for one in (found, found.weighted()):
        used = one.bit_probabilities()
        for side in some.sides():
            assert (np.diff(used[side]) <= 0).all()
            assert used[side][:8] == pytest.approx(1, abs=1e-9)  # bit 7 is sure
            assert (used[side][9:] < 0.2).all()


def test_where_nothing_is_reported_nothing_is_learnt() -> None:
    found = posterior(np.full(6, 0.5), np.zeros(6), slots(6), RandomisedResponse(None))
    assert found.highest[0] == pytest.approx(np.full(7, 1 / 7))
    assert found.bit_probabilities() == pytest.approx(np.arange(6, 0, -1) / 7)


def test_values_of_which_most_are_0_do_not_speak_against_a_high_bit() -> None:
    """2% have 512 + 64: the empty bits below the highest count little against it."""
    response, some, each = RandomisedResponse(None), slots(10), np.full(10, 500.0)
    mean = np.where(np.isin(np.arange(10), (6, 9)), 0.02, 0.0)
    assert posterior(mean, each, some, response).bit_probabilities()[9] == pytest.approx(1)
    noisy, many = RandomisedResponse(3.0), np.full(10, 5000.0)
    assert posterior(told_share(mean, noisy), many, some, noisy).bit_probabilities()[9] > 0.9


def test_cases_are_weighed_by_their_squared_size() -> None:
    weighed = UsedBits([np.array([0.1, 0.2, 0.7]), np.array([0.0, 0.0, 1.0])]).weighted()
    odds = np.array([0.1, 0.2 / 4, 0.7 / 16])
    assert weighed.highest[0] == pytest.approx(odds / odds.sum())
    assert weighed.highest[1].tolist() == [0, 0, 1]
    assert weighed.bit_probabilities()[2:].tolist() == [1, 1]
    deep = np.zeros(61)
    deep[-1] = 1
    assert UsedBits([deep]).weighted().bit_probabilities().tolist() == [1.0] * 60  # also where all weights are tiny


@pytest.mark.parametrize("signed", ["no", "split"])
@pytest.mark.parametrize("multiple", [0.0, 0.5, 2.0])
def test_squashing_touches_bits_above_the_top_one_alone(signed: Signed, multiple: float) -> None:
    """Against a loop over all patterns of bits that stand out of the noise."""
    some = slots(3, signed)
    for sure in itertools.product([False, True], repeat=len(some)):
        means = np.where(sure, 0.4, 0.01)
        used = above_threshold(means, np.full(len(some), 0.1**2), some, multiple).bit_probabilities()
        for side in some.sides():
            expected = [any(sure[place] for place in range(bit, side.stop)) for bit in range(side.start, side.stop)]
            if multiple == 0 or not any(sure):
                expected = [True] * 3
            assert used[side].tolist() == [float(one) for one in expected]
