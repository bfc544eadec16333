"""Means from bits and from thresholds, against theory over many keys, exact integrals and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from benchmarks.evaluation.moments_in_memory import run_in_memory
from sfumato.schemas.moments import FixedPoint, Signed
from sfumato.transforms.moments.client_values import encode
from sfumato.transforms.moments.local.allocation import by_weight
from sfumato.transforms.moments.local.bit_means import (
    BitEstimates,
    UsedBits,
    above_threshold,
    bit_means,
    evidence,
    posterior,
)
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.quantities import Quantity, Slots, Thresholds
from sfumato.transforms.moments.local.tally import Query, RandomisedResponse, Tally, count_reports
from sfumato.transforms.moments.local.threshold_means import LEVELS, Survival, ThresholdEstimates
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.moments.blocks import block_of

VALUE = Quantity(FixedPoint(6), "value")
PLAIN = RandomisedResponse(None)
ALL_USED = UsedBits([np.eye(7)[6]])
RARE = float(stats.norm.isf(FLAKE_RATE / 2))
KEYS = 2000


def slots(bits: int, signed: Signed = "no") -> Slots:
    return Quantity(FixedPoint(bits, 0, signed), "value").slots


def key(number: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"estimate tests" * 2), {"number": number})


def population(kind: str) -> np.ndarray:
    """256 values of 6 bits."""
    if kind == "all":  # every value as often: no two bits have anything to do with each other
        return np.tile(np.arange(64, dtype=np.uint8), 4)
    return np.minimum(seeded_rng(0).exponential(12, 256), 63).astype(np.uint8)


@pytest.mark.false_alarm(4 * FLAKE_RATE)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "epsilon", "reports"),
    [("exponential", 1.0, 1), ("all", None, 2), ("exponential", 2.0, 2)],
)
def test_one_round_is_unbiased_and_spreads_by_the_formula(kind: str, epsilon: float | None, reports: int) -> None:
    """Of these clients, each queried once in a random order, the variance is the sum of
    4^j (S_jj + c) / n_j, less S_xx / N where all of them are queried, S with N - 1 and c that of the coins."""
    codes, response = population(kind), RandomisedResponse(epsilon, reports)
    bit_query = Query(VALUE, 1, 0.0, 1.0, by_weight(VALUE.slots, 0.25, reports))  # enough reports on every bit
    found, stated, inverse = np.empty(KEYS), np.empty(KEYS), np.zeros(6)
    for number in range(KEYS):
        counted = count_reports(block_of(codes, None, key(number)), bit_query, 1, response, key(number))
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


@pytest.mark.false_alarm(2 * FLAKE_RATE)
def test_the_noise_of_groups_is_in_the_variance() -> None:
    """Normal noise on both counts of 50,000 groups, small beside the counts: the delta method gives what it adds."""
    rng, response, groups, stddev = seeded_rng(4), RandomisedResponse(1.0), 50_000, 12.0
    ones, zeros = np.full((groups, 1), 700), np.full((groups, 1), 1300)
    noisy = Tally(*(np.rint(one + rng.normal(0, stddev, one.shape)).astype(np.int64) for one in (ones, zeros)))
    rounded = stddev**2 + 1 / 12
    mean, variance = bit_means(noisy, response, rounded)
    sure = bit_means(Tally(ones, zeros), response)
    added = variance.mean() - sure[1][0, 0]
    # Two reports of everybody's mean are added, a factor 2000 / 2002 in the error.
    assert mean.var() / added == pytest.approx(1, abs=RARE * math.sqrt(2.1 / groups) + 0.01)
    assert mean.mean() == pytest.approx(sure[0][0, 0], abs=RARE * math.sqrt(added / groups) + 1e-4)


def value_of(bits: BitEstimates, slots: Slots) -> float:
    """The mean over the weighed probabilities of the highest bit."""
    total = 0.0
    for side, probabilities in zip(slots.sides(), bits.used_bits.highest, strict=True):
        means = (bits.mean[0, side] * slots.weight[side]).tolist()
        weighed = [probability * 4.0**-upto for upto, probability in enumerate(probabilities.tolist())]
        total += sum(one * sum(means[:upto]) for upto, one in enumerate(weighed)) / sum(weighed)
    return total


@pytest.mark.parametrize("signed", ["no", "split"])
@pytest.mark.parametrize("seed", range(2))
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


# --- which bits are in use ---


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


@pytest.mark.parametrize(("epsilon", "signed"), [(None, "no"), (0.5, "split"), (3.0, "no")])
def test_probabilities_are_posterior_ones(epsilon: float | None, signed: Signed) -> None:
    """For so few reports the mean over 128 angles is exact."""
    rng, response, some = seeded_rng(0), RandomisedResponse(epsilon), slots(5, signed)
    reports = rng.integers(0, 60, len(some))
    reports[0] = 0  # where nothing is reported nothing is learnt
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
@pytest.mark.parametrize("multiple", [0.0, 2.0])
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


# --- thresholds ---


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
@pytest.mark.parametrize("bits", [1, 6])
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


@pytest.mark.parametrize("epsilon", [None, 0.5])
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


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "users"), [(2.0, 4000)])
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


@pytest.mark.false_alarm(FLAKE_RATE)
def test_intervals_of_a_logarithm_allow_for_a_heap_at_zero() -> None:
    """One user in fifty has 0, so all thresholds below the others' logarithms have the share 0.98."""
    slots, response = Quantity(FixedPoint(14), "log2", by_thresholds=True).slots, RandomisedResponse(1.0)
    assert isinstance(slots, Thresholds)
    rng, share = seeded_rng(3), np.where(slots.below * slots.weight.min() < 12.4, 0.98, 0.0)
    held, runs = 0, 20
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


# --- the posterior of a survival function ---


TOP = np.array([1.0, 3.0, 7.0])
STRATA, INSIDE = 3, len(LEVELS) - 2


def odds_ends() -> np.ndarray:
    return special.expit(np.linspace(-10.5, 10.5, INSIDE + 1))


def fall(before: int, after: int) -> float:
    """From a level between to another: it stays, falls to a uniform level below, or to one of the eleven nearest."""
    ends = odds_ends()
    stay = 0.7 if before == after else 0.0
    if after > before:
        return stay
    width = min(ends[after], LEVELS[before]) - ends[after - 1]
    uniform = width / (LEVELS[before] - ends[0])
    near = 1 / min(before, 11) if before - after <= 10 else 0.0
    return float(stay + 0.3 * (uniform + near) / 2)


def step(before: int, after: int, stratum: int) -> float:
    one, end = INSIDE + 1, 1 / (STRATA - stratum + 1)
    if before == 0:
        return float(after == 0)
    if before == one:
        return {0: 0.1 * end, one: 1 - end}.get(after, 0.9 * end / INSIDE)
    if after == one:
        return 0.0
    return end if after == 0 else (1 - end) * fall(before, after)


def start(state: int) -> float:
    each = 1 / (STRATA + 1)
    return {0: each, INSIDE + 1: 1 - 2 * each}.get(state, each / INSIDE)


@pytest.mark.parametrize(("epsilon", "power"), [(None, 0.0), (1.0, 2.0)])
def test_the_posterior_is_the_sum_over_all_paths(epsilon: float | None, power: float) -> None:
    """Every path of states that the model allows, with its prior, likelihood and weight by its highest stratum."""
    response = RandomisedResponse(epsilon)
    answered, reports = np.array([0.9, 0.4, 0.25]), np.array([10.0, 5.0, 8.0])
    model = Survival.from_answers(answered, reports, TOP, response)
    weight = np.array([1.0, 2.0, 4.0])
    states = np.zeros((STRATA, len(LEVELS)))
    sums = np.zeros(3)
    every = range(len(LEVELS))
    table = [
        np.array([[step(before, after, stratum) for after in every] for before in every])
        for stratum in range(1, STRATA)
    ]
    for first, second in itertools.product(every, every):
        if table[0][first, second] == 0:
            continue
        path = start(first) * table[0][first, second] * table[1][second]  # float64[states of the third]
        for stratum, state in ((0, first), (1, second)):
            path = path * likelihood(state, answered[stratum] * reports[stratum], reports[stratum], response)
        last = np.array([likelihood(state, answered[2] * reports[2], reports[2], response) for state in every])
        path = path * last
        highest = [0 if first == 0 else 0 if second == 0 else 1, 2]
        path = path * np.array([TOP[highest[state > 0]] ** -power for state in every])
        states[0, first] += path.sum()
        states[1, second] += path.sum()
        states[2] += path
        mean = weight[:2] @ [model.share[0, first], model.share[1, second]] + weight[2] * model.share[2]
        variance = weight[:2] ** 2 @ [model.variance[0, first], model.variance[1, second]]
        sums += [path.sum(), path @ mean, path @ (mean**2 + variance + weight[2] ** 2 * model.variance[2])]
    np.testing.assert_allclose(model.probabilities(power), states / sums[0], rtol=1e-9, atol=1e-12)
    found = model.total(weight, power)
    np.testing.assert_allclose(found, [sums[1] / sums[0], sums[2] / sums[0] - (sums[1] / sums[0]) ** 2], rtol=1e-7)


def likelihood(state: int, ones: float, reports: float, response: RandomisedResponse) -> float:
    share = LEVELS[state] * response.gain + 1 - response.truth_probability
    if share in (0, 1):
        return float(ones == share * reports)
    return math.exp(ones * math.log(share) + (reports - ones) * math.log1p(-share))
