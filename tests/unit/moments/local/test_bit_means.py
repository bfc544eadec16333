"""Bit means and their sums, against theory over many keys and enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.moments import FixedPoint, Signed
from sfumato.transforms.moments.local.allocation import by_weight
from sfumato.transforms.moments.local.bit_means import BitEstimates, UsedBits, bit_means
from sfumato.transforms.moments.local.quantities import Quantity, Slots
from sfumato.transforms.moments.local.tally import Query, RandomisedResponse, Tally, count_reports
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.moments.blocks import block_of

VALUE = Quantity(FixedPoint(6), "value")
PLAIN = RandomisedResponse(None)
ALL_USED = UsedBits([np.eye(7)[6]])
RARE = float(stats.norm.isf(FLAKE_RATE / 2))
KEYS = 2500


def slots(bits: int, signed: Signed = "no") -> Slots:
    return Quantity(FixedPoint(bits, 0, signed), "value").slots


def key(number: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"estimate tests" * 2), {"number": number})


def population(kind: str) -> np.ndarray:
    """256 values of 6 bits."""
    if kind == "all":  # every value as often: no two bits have anything to do with each other
        return np.tile(np.arange(64, dtype=np.uint8), 4)
    return np.minimum(seeded_rng(0).exponential(12, 256), 63).astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "epsilon", "reports"),
    [("exponential", None, 1), ("exponential", 1.0, 1), ("all", None, 2), ("all", 2.0, 2), ("exponential", 2.0, 2)],
)
def test_one_round_is_unbiased_and_spreads_by_the_formula(kind: str, epsilon: float | None, reports: int) -> None:
    """Of these clients, each queried once in a random order, the variance is the sum of
    4^j (S_jj + c) / n_j, less S_xx / N where all of them are queried, S with N - 1 and c that of the coins."""
    codes, response = population(kind), RandomisedResponse(epsilon, reports)
    asked = Query(VALUE, 1, 0.0, 1.0, by_weight(VALUE.slots, 0.25, reports))  # enough reports on every bit
    found, stated, inverse = np.empty(KEYS), np.empty(KEYS), np.zeros(6)
    for number in range(KEYS):
        counted = count_reports(block_of(codes, None, key(number)), asked, 1, response, key(number))
        mean, variance = bit_means(counted, response)
        bits = BitEstimates(mean, variance, counted.reports.astype(float), ALL_USED)
        total = bits.quantity_mean(VALUE.slots)
        (found[number],), (stated[number],) = total.value, total.variance
        inverse += 1 / counted.reports[0] / KEYS
    weights, n = VALUE.slots.weight, len(codes)
    means = (codes[:, None] >> np.arange(6) & 1).mean(axis=0)
    coins = 0.0 if epsilon is None else math.exp(epsilon / reports) / math.expm1(epsilon / reports) ** 2
    spread = means * (1 - means) * n / (n - 1) + coins
    truth, theory = float(codes.mean()), float((weights**2 * spread * inverse).sum() - codes.var(ddof=1) / n)
    assert abs(found.mean() - truth) < RARE * math.sqrt(theory / KEYS)
    if reports == 1 or kind == "all":
        # A sum of many reports' errors is nearly normal: the variance of a variance has a kurtosis of at most 3.1.
        slack = RARE * math.sqrt(2.1 / KEYS)
        assert abs(found.var(ddof=1) / theory - 1) < slack < 0.2
    # What is stated is for clients drawn from elsewhere, so without the last term; and of q (1 - q) in it the estimate
    # with a report more of each kind is off by less than 1 / (n_j + 2) upwards, and 1 / (4 n_j) downwards.
    fresh = float((weights**2 * (means * (1 - means) + coins) * inverse).sum())
    more = float((weights**2 * inverse**2).sum()) / response.gain**2
    noise = RARE * stated.std() / math.sqrt(KEYS)
    assert fresh - more / 4 - noise < stated.mean() < fresh + more + noise
    assert more < 0.2 * fresh


def test_bit_means_are_those_of_the_counts() -> None:
    ones = np.array([[30, 0, 500, 0]])
    zeros = np.array([[70, 200, 0, 0]])
    mean, variance = bit_means(Tally(ones, zeros), PLAIN)
    assert mean[0].tolist() == [0.3, 0.0, 1.0, 0.5]  # of the last nothing is known
    assert variance[0, 0] == pytest.approx(31 / 102 * 71 / 102 / 100)
    assert variance[0, 1] == pytest.approx(1 / 202 * 201 / 202 / 200)  # not 0, though nobody's bit was set
    assert variance[0, 2] == pytest.approx(1 / 502 * 501 / 502 / 500)
    assert variance[0, 3] == 0.25
    response = RandomisedResponse(math.log(3))  # p = 3/4
    mean, variance = bit_means(Tally(ones, zeros), response)
    assert mean[0] == pytest.approx([(0.3 - 0.25) / 0.5, -0.5, 1.5, 0.5])
    assert variance[0, 0] == pytest.approx(31 / 102 * 71 / 102 / 0.25 / 100)
    # A share of 0 or 1 cannot be expected: not less than the coins' variance.
    assert variance[0, 1] == pytest.approx(0.75 * 0.25 / 0.25 / 200, rel=1e-9)


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_the_noise_of_groups_is_in_the_variance(epsilon: float | None) -> None:
    """Normal noise on both counts of 50,000 groups, small beside the counts: the delta method gives what it adds."""
    rng, response, groups, stddev = seeded_rng(4), RandomisedResponse(epsilon), 50_000, 12.0
    ones, zeros = np.full((groups, 1), 700), np.full((groups, 1), 1300)
    noisy = Tally(*(np.rint(one + rng.normal(0, stddev, one.shape)).astype(np.int64) for one in (ones, zeros)))
    rounded = stddev**2 + 1 / 12
    mean, variance = bit_means(noisy, response, rounded)
    sure = bit_means(Tally(ones, zeros), response)
    added = variance.mean() - sure[1][0, 0]
    # Two reports of everybody's mean are added, a factor 2000 / 2002 in the error.
    assert mean.var() / added == pytest.approx(1, abs=RARE * math.sqrt(2.1 / groups) + 0.01)
    assert mean.mean() == pytest.approx(sure[0][0, 0], abs=RARE * math.sqrt(added / groups) + 1e-4)


def test_groups_with_little_but_noise_are_near_everybody() -> None:
    response = RandomisedResponse(None)
    counted = Tally(np.array([[8000], [3], [-5], [0]]), np.array([[2000], [1], [3], [0]]))
    mean, variance = bit_means(counted, response, np.array([[0.01], [0.01], [100.0], [0.0]]))
    assert mean[0, 0] == pytest.approx(0.8, abs=1e-3)
    assert 0.75 < mean[1, 0] < 0.8  # three ones of four, and two reports of everybody's
    assert mean[2, 0] == 0.5  # the noise says less than nothing
    assert variance[2, 0] == 0.25
    assert np.isfinite(mean).all()
    assert (variance > 0).all()


def value_of(bits: BitEstimates, slots: Slots) -> float:
    """The mean over the weighed probabilities of the highest bit."""
    total = 0.0
    for side, probabilities in zip(slots.sides(), bits.used_bits.highest, strict=True):
        means = (bits.mean[0, side] * slots.weight[side]).tolist()
        weighed = [probability * 4.0**-upto for upto, probability in enumerate(probabilities.tolist())]
        total += sum(one * sum(means[:upto]) for upto, one in enumerate(weighed)) / sum(weighed)
    return total


@pytest.mark.parametrize("signed", ["no", "split"])
@pytest.mark.parametrize("seed", range(5))
def test_totals_are_averages_over_the_highest_bit(signed: Signed, seed: int) -> None:
    rng, some = seeded_rng(seed), slots(5, signed)
    n, sides = len(some), len(some.sides())
    for probabilities in (
        [rng.dirichlet(np.ones(6)) for _ in range(sides)],
        [np.eye(6)[0]] * sides,
        [np.eye(6)[5]] * sides,
    ):
        bits = BitEstimates(
            rng.uniform(-0.2, 1.2, (1, n)), rng.uniform(0, 0.1, (1, n)), np.ones((1, n)), UsedBits(probabilities)
        )
        total = bits.quantity_mean(some)
        assert total.value[0] == pytest.approx(value_of(bits, some), abs=1e-9)
        assert total.low[0] <= total.value[0] <= total.high[0]
    # The last: every bit is in use, which is Equation 2, and the interval that of a normal law.
    assert total.value[0] == pytest.approx(float(bits.mean[0] @ some.weight))
    assert total.variance[0] == pytest.approx(float(bits.variance[0] @ some.weight**2))
    wide = bits.quantity_mean(some, 1 - 1e-4)
    for one, z in ((total, 1.959964), (wide, 3.890592)):
        assert one.high - one.value == pytest.approx(z * np.sqrt(one.variance), rel=1e-6)
        assert one.value - one.low == pytest.approx(z * np.sqrt(one.variance), rel=1e-6)


def test_the_interval_holds_what_unseen_bits_may_add() -> None:
    """BitEstimates 0 to 2 stand out; 3 to 5 do not, and are as likely empty as not."""
    some, stddev, half = slots(6), 0.02, stats.norm.isf(0.0125)
    mean = np.array([[0.5, 0.5, 0.4, 0.01, -0.01, 0.03]])
    bits = BitEstimates(
        mean, np.full((1, 6), stddev**2), np.full((1, 6), 1e4), UsedBits([np.array([0, 0, 0, 0.5, 0.3, 0.1, 0.1])])
    )
    total = bits.quantity_mean(some)
    most = np.maximum(mean[0, 3:], 0) + half * stddev
    # The first step down is at most most[0] / least, and no later one is smaller.
    least = 0.4 - half * stddev
    most = np.minimum(most, most[0] * (most[0] / least) ** np.arange(3))
    seen, error = float(mean[0, :3] @ some.weight[:3]), stddev * math.sqrt(float((some.weight[:3] ** 2).sum()))
    whole, full = float(mean[0] @ some.weight), stddev * math.sqrt(float((some.weight**2).sum()))
    upper = min(seen + half * error + float(most @ some.weight[3:]), whole + half * full)
    assert total.high[0] == pytest.approx(upper)
    assert total.low[0] == pytest.approx(seen - 1.959964 * error, rel=1e-6)  # unseen bits add nothing at least
    sure = BitEstimates(
        mean, bits.variance, bits.reports, UsedBits([np.array([0, 0, 0, 0.999, 0.001, 0, 0])])
    ).quantity_mean(some)
    assert sure.high[0] == pytest.approx(seen + 1.959964 * error, rel=1e-6)  # they are empty
