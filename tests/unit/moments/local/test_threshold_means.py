"""Means from thresholds: exact for every distribution, without bias from tails, and intervals that hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks.evaluation.moments_in_memory import run_in_memory
from sfumato.schemas.moments import FixedPoint, Signed
from sfumato.transforms.moments.client_values import encode
from sfumato.transforms.moments.local.protocol import MomentsPlan
from sfumato.transforms.moments.local.quantities import Quantity, Thresholds
from sfumato.transforms.moments.local.tally import RandomisedResponse, Tally
from sfumato.transforms.moments.local.threshold_means import ThresholdEstimates
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE


def strata(bits: int, signed: Signed = "no") -> Thresholds:
    slots = Quantity(FixedPoint(bits, 0, signed), "value", by_thresholds=True).slots
    assert isinstance(slots, Thresholds)
    return slots


def reached(values: np.ndarray, form: FixedPoint, slots: Thresholds) -> np.ndarray:
    """The probability of a 1 for each value and stratum, over all thresholds of the stratum: float64[n, S]."""
    codes, _ = encode(values, form)
    shares = np.empty((len(values), len(slots)))
    for slot, width in enumerate(slots.width.tolist()):
        uniforms = (np.arange(width) + 0.5) / width
        answers = [slots.bits(codes, np.full(len(codes), slot), np.full(len(codes), one)) for one in uniforms]
        shares[:, slot] = np.mean(answers, axis=0)
    return shares


@pytest.mark.parametrize("signed", ["no", "split"])
@pytest.mark.parametrize("bits", [1, 2, 5, 9])
def test_expected_answers_add_up_to_every_value(bits: int, signed: Signed) -> None:
    form, slots = FixedPoint(bits, 0, signed), strata(bits, signed)
    values = np.arange(form.low, form.high + 1)
    np.testing.assert_allclose(reached(values, form, slots) @ slots.weight, values, atol=1e-9)
    one_sign = slots.width[slots.sides()[0]]
    assert one_sign.sum() == form.max_magnitude  # every threshold is in one stratum


DISTRIBUTIONS = {
    "point": np.eye(1, 512, 300)[0],
    "one in a thousand": np.bincount([0, 511], [0.999, 0.001], 512),
    "uniform": np.full(512, 1 / 512),
    "exponential": np.exp(-np.arange(512) / 40) / np.exp(-np.arange(512) / 40).sum(),
    "heavy tail": (1 + np.arange(512.0)) ** -1.8 / ((1 + np.arange(512.0)) ** -1.8).sum(),
}


@pytest.mark.parametrize("epsilon", [None, 0.5, 2.0])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_with_infinitely_many_users_the_estimate_is_the_mean(name: str, epsilon: float | None) -> None:
    """Also where the tail is thin: nothing is cut."""
    chances, slots, response = DISTRIBUTIONS[name], strata(9), RandomisedResponse(epsilon)
    values = np.arange(512.0)
    share = chances @ reached(values, FixedPoint(9), slots)
    expected = share * response.gain + 1 - response.truth_probability
    reports = 1e14
    counted = Tally(*(np.rint(reports * part).astype(np.int64)[None] for part in (expected, 1 - expected)))
    mean = ThresholdEstimates(counted, slots, response, 2.0).quantity_mean()
    assert mean.value[0] == pytest.approx(chances @ values, rel=1e-4)
    assert mean.low[0] - 1e-3 <= chances @ values <= mean.high[0] + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "users"), [(None, 1500), (2.0, 4000)])
def test_intervals_hold_the_mean(epsilon: float | None, users: int) -> None:
    """Ninety runs each of concentrated and of exponential values: 95% intervals hold at least 93%, beyond doubt."""
    plan, held, errors = MomentsPlan(form=FixedPoint(10), method="threshold", epsilon=epsilon), 0, []
    for run in range(90):
        rng = seeded_rng([run, users])
        values = np.clip(np.rint((rng.normal(600, 100, users), rng.exponential(100, users))[run % 2]), 0, 1023)
        key = RunKey.derive(FixedSecret(b"coverage of thresholds"), {"run": run})
        (mean,) = run_in_memory(values, plan, key).estimates
        held += mean.low <= values.mean() <= mean.high
        errors.append(mean.value / values.mean() - 1)
    assert stats.binomtest(held, 90, 0.93, "less").pvalue > FLAKE_RATE
    assert np.sqrt(np.mean(np.square(errors))) < 0.1  # wide intervals alone would hold it too


def test_intervals_of_a_logarithm_allow_for_a_heap_at_zero() -> None:
    """One user in fifty has 0, so all thresholds below the others' logarithms have the share 0.98."""
    slots, response = Quantity(FixedPoint(14), "log2", by_thresholds=True).slots, RandomisedResponse(1.0)
    assert isinstance(slots, Thresholds)
    rng, share = seeded_rng(3), np.where(slots.below * slots.weight.min() < 12.4, 0.98, 0.0)
    held, runs = 0, 40
    for _ in range(runs):
        ones = rng.binomial(500, share * response.gain + 1 - response.truth_probability)
        estimates = ThresholdEstimates(Tally(ones[None], 500 - ones[None]), slots, response, 0.0)
        mean = estimates.quantity_mean(evenly=True)
        held += mean.low[0] <= share @ slots.weight <= mean.high[0]
    assert stats.binomtest(held, runs, 0.93, "less").pvalue > FLAKE_RATE


def test_the_second_round_asks_where_answers_differ() -> None:
    slots, response = strata(10), RandomisedResponse(None)
    values = seeded_rng(0).normal(600, 20, 2000).clip(0, 1023)
    share = (values[:, None] > slots.below + slots.width / 2).mean(axis=0)
    counted = Tally(*(np.rint(200 * part).astype(np.int64)[None] for part in (share, 1 - share)))
    probabilities = ThresholdEstimates(counted, slots, response, 0.0).probabilities(1)
    assert probabilities.sum() == pytest.approx(1)
    between = (slots.below + slots.width > 540) & (slots.below < 660)
    assert probabilities[between].sum() > 0.8
    assert (probabilities >= 0).all()


def test_octaves_add_up_to_the_mean() -> None:
    values = seeded_rng(1).normal(-30, 60, 5000)
    plan = MomentsPlan(form=FixedPoint(9, 0, "split"), method="threshold", epsilon=3.0)
    found = run_in_memory(values, plan, RunKey.derive(FixedSecret(b"octaves of thresholds"), {}))
    (bits,) = found.bits
    assert bits.weight.tolist() == [*np.exp2(range(9)), *-np.exp2(range(9))]
    assert bits.weight @ bits.mean == pytest.approx(found.estimates[0].value, abs=1e-6)
    assert bits.read_probability.sum() == pytest.approx(1)
