"""What clients are asked: codes and quantities against exact fractions, probabilities, methods, earlier releases."""

from __future__ import annotations

import copy
import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sfumato.schemas.moments import BITS_SCHEMA, FixedPoint
from sfumato.transforms.moments.client_values import code_type, decode, encode, encode_columns, split_pairs
from sfumato.transforms.moments.local.allocation import (
    Prior,
    PriorRelease,
    Tuning,
    by_variance,
    by_weight,
    capped,
    chosen_method,
)
from sfumato.transforms.moments.local.quantities import Quantity, Slots
from sfumato.transforms.moments.local.tally import RandomisedResponse
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

SMALL = [
    FixedPoint(5),
    FixedPoint(4, 2),
    FixedPoint(4, -3),
    FixedPoint(4, 1, "shift", 3.5),
    FixedPoint(5, 0, "shift", -7.0),
    FixedPoint(3, 1, "shift", 2.3),
    FixedPoint(4, 1, "split"),
    FixedPoint(1, 0, "split"),
    FixedPoint(1),
]
KINDS = ["value", "square", "power:2", "power:3", "power:8"]
FORMS = st.builds(
    lambda bits, fraction, signed, offset: FixedPoint(bits, fraction, signed, offset if signed == "shift" else 0.0),
    st.integers(1, 52),
    st.integers(-9, 52),  # 2^61 to the eighth is the largest that goes
    st.sampled_from(["no", "shift", "split"]),
    st.floats(-1000, 1000),
)


def all_codes(form: FixedPoint) -> np.ndarray:
    bits = form.bits + (form.signed == "split")
    return np.arange(1 << bits).astype(code_type(form))


def uniforms(codes: np.ndarray) -> np.ndarray:
    return seeded_rng(len(codes)).random(len(codes))


def weighted(quantity: Quantity, codes: np.ndarray) -> list[Fraction]:
    """The sum of the weights of every code's set bits, by exact arithmetic."""
    slots, held = quantity.slots, quantity.codes(codes, uniforms(codes))
    total = [Fraction(0)] * len(codes)
    for slot, weight in enumerate(slots.weight.tolist()):
        found = slots.bits(held, np.full(len(codes), slot))
        total = [one + Fraction(weight) * bool(bit) for one, bit in zip(total, found, strict=True)]
    return total


def check(quantity: Quantity, codes: np.ndarray) -> None:
    """Less than a unit, but for floating-point arithmetic: one rounding for the distance and one for each factor."""
    form, slots = quantity.form, quantity.slots
    unit = Fraction(float(np.abs(slots.weight).min()))
    values = [Fraction(value) for value in decode(codes, form).tolist()]
    for code, value, found in zip(codes.tolist(), values, weighted(quantity, codes), strict=True):
        if quantity.kind == "value":
            # Exactly the steps; the offset is taken away from the mean.
            steps = value if form.signed == "split" else Fraction(code) * Fraction(form.step)
            assert found == steps
            continue
        distance = value - Fraction(quantity.centre)
        exact = distance**quantity.power
        slack = Fraction((quantity.power + 2) * 2.0**-52) * abs(exact)
        assert abs(found - exact) <= unit + slack
    bits = len(slots) // (1 + quantity.signed)
    held = quantity.codes(codes, uniforms(codes)).astype(object)
    assert max(held) < 1 << (bits + quantity.signed)  # nothing above the bits that are asked for


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize("bits", [10, 32, 45])
def test_the_mean_is_right_however_large_a_unit_is(bits: int) -> None:
    """One value again and again, whose square of 400 is far below a unit of wide forms: rounding to 0 would lose it."""
    quantity, count = Quantity(FixedPoint(bits), "square", 120.3), 1 << 16
    codes = np.full(count, 140).astype(code_type(quantity.form))
    unit = quantity.slots.weight.min()
    found = quantity.codes(codes, uniforms(codes)).astype(np.float64).mean() * unit
    assert abs(found - 19.7**2) < 6.2 * unit / 2 / math.sqrt(count)  # rounding to a unit has a deviation of half of it


@given(FORMS, st.sampled_from(KINDS), st.floats(0, 1), st.lists(st.floats(0, 1), max_size=5))
@example(FixedPoint(52, -9, "split"), "power:3", 0.5, [0.3])
@example(FixedPoint(52, 52), "power:8", 0.5, [0.3])
@example(FixedPoint(52, 0, "shift", 1000.0), "square", 1.0, [0.999])
@example(FixedPoint(1, 49, "shift", 17.0), "value", 0.0, [])
def test_quantities_of_any_form(form: FixedPoint, kind: str, centre: float, places: list[float]) -> None:
    steps = np.array([0, form.max_magnitude, *(int(place * form.max_magnitude) for place in places)])
    codes = steps.astype(code_type(form))
    if form.signed == "split":
        codes = np.concatenate([codes, codes[1:] | (codes.dtype.type(1) << codes.dtype.type(form.bits))])
    about = float(np.clip(form.low + centre * (form.high - form.low), form.low, form.high))
    check(Quantity(form, kind, about if kind == "square" else 0.0), codes)


@pytest.mark.parametrize(("bits", "fraction_bits"), [(1, 0), (3, -3), (8, 5), (16, 0), (52, 5)])
def test_logarithms_are_right_to_half_a_unit(bits: int, fraction_bits: int) -> None:
    form = FixedPoint(bits, fraction_bits)
    quantity = Quantity(form, "log2")
    steps = sorted({0, 1, *(form.max_magnitude // part for part in (1, 2, 3, 5, 1000)), form.max_magnitude - 1})
    if bits <= 8:
        steps = list(range(form.max_magnitude + 1))
    codes = np.array(steps).astype(code_type(form))
    for step, found in zip(steps, weighted(quantity, codes), strict=True):
        value = max(step, 1) * form.step
        assert abs(float(found) - quantity.base - math.log2(value)) <= 2.0**-13 + 2.0**-44
    assert max(quantity.codes(codes, uniforms(codes)).astype(object)) < 1 << len(quantity.slots)
    assert quantity.slots.weight.min() == 2.0**-12
    assert not quantity.signed


@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("kind", KINDS)
def test_slots_double_and_negative_ones_mirror_them(form: FixedPoint, kind: str) -> None:
    quantity = Quantity(form, kind)
    slots = quantity.slots
    sides = slots.sides()
    assert len(sides) == 1 + quantity.signed
    for sign, side in zip((1, -1), sides, strict=False):
        weights = sign * slots.weight[side]
        assert np.array_equal(weights, weights[0] * 2.0 ** np.arange(len(weights)))
        assert (weights > 0).all()
        assert slots.shift[side].tolist() == list(range(len(weights)))
        assert (slots.negative[side] == (sign < 0)).all()
    assert sum(side.stop - side.start for side in sides) == len(slots)


FORMS_WITHOUT_OFFSET = st.builds(
    FixedPoint, st.integers(1, 52), st.integers(-52, 52), st.sampled_from(["no", "shift", "split"]), st.just(0.0)
)
NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20)


def exact_codes(values: list[float], form: FixedPoint) -> tuple[list[int], int]:
    """Signed steps by exact arithmetic, and how many had to be moved; halves go to even as everywhere in Python."""
    steps = [round(Fraction(value) * Fraction(2) ** form.fraction_bits) for value in values]
    low = -form.max_magnitude if form.signed == "split" else 0
    inside = [min(max(step, low), form.max_magnitude) for step in steps]
    return inside, sum(a != b for a, b in zip(inside, steps, strict=True))


def signed(codes: np.ndarray, form: FixedPoint) -> list[int]:
    """The steps that codes stand for."""
    if form.signed != "split":
        return [int(code) for code in codes]
    return [(-1) ** (int(code) >> form.bits) * (int(code) & form.max_magnitude) for code in codes]


@given(FORMS_WITHOUT_OFFSET, NUMBERS)
@example(FixedPoint(52, 52), [sys.float_info.max, 5e-324, 0.0, sys.float_info.min, 1 - 2**-53])
@example(FixedPoint(52, -52, "split"), [-sys.float_info.max, sys.float_info.max, -5e-324, -0.0, 2.0**103])
@example(FixedPoint(1, 0, "split"), [-0.5, 0.5, -1.5, 1.5, -0.51])
@example(FixedPoint(8), [0.5, 1.5, 2.5, 254.5, 255.49, 255.5, 256.0])
def test_codes_are_the_nearest_steps_and_the_clamped_are_counted(form: FixedPoint, values: list[float]) -> None:
    if form.signed == "no":
        values = [abs(value) for value in values]
    codes, clamped = encode(np.array(values), form)
    expected, moved = exact_codes(values, form)
    assert signed(codes, form) == expected
    assert clamped == moved
    assert codes.dtype == code_type(form)


@given(st.integers(1, 52), st.integers(-20, 20), st.floats(-1e6, 1e6), st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_an_offset_is_added_before_and_taken_away_after(
    bits: int, fraction_bits: int, offset: float, values: list[float]
) -> None:
    """Half a step from the value, but for the rounding of the sum and of the difference, 2^-53 of each."""
    form = FixedPoint(bits, fraction_bits, "shift", offset)
    codes, clamped = encode(np.array(values), form)
    expected, moved = exact_codes([value + offset for value in values], form)
    assert signed(codes, form) == expected
    assert clamped == moved
    for value, found in zip(values, decode(codes, form), strict=True):
        nearest = min(max(Fraction(value), Fraction(form.low)), Fraction(form.high))
        slack = 2.0**-52 * (abs(value) + abs(offset) + abs(form.high))
        assert abs(Fraction(float(found)) - nearest) <= Fraction(form.step) / 2 + Fraction(slack)


@given(FORMS_WITHOUT_OFFSET, st.lists(st.integers(0, 2**52 - 1), min_size=1), st.booleans())
def test_decoding_is_exact_and_what_encoding_undoes(form: FixedPoint, steps: list[int], negative: bool) -> None:
    steps = [step & form.max_magnitude for step in steps]
    sign = -1 if negative and form.signed == "split" else 1
    values = [float(sign * step * Fraction(2) ** -form.fraction_bits) for step in steps]
    codes, clamped = encode(np.array(values), form)
    assert clamped == 0
    assert decode(codes, form).tolist() == values
    again, _ = encode(decode(codes, form), form)
    assert np.array_equal(again, codes)


def test_numbers_beyond_all_measure_are_at_the_ends() -> None:
    """Sums and scalings that overflow are clamped, without a warning."""
    top = sys.float_info.max
    form = FixedPoint(16, 52, "shift", top)
    assert encode(np.array([top, -top]), form)[0].tolist() == [65535, 0]
    codes, clamped = encode(np.array([np.inf, -np.inf, top]), FixedPoint(4, 3, "split"))
    assert decode(codes, FixedPoint(4, 3, "split")).tolist() == [15 / 8, -15 / 8, 15 / 8]
    assert clamped == 3


@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("second", [FixedPoint(4, 2), FixedPoint(3, 0, "shift", 3.0), FixedPoint(3, 1, "split")])
def test_every_pair_of_small_forms(form: FixedPoint, second: FixedPoint) -> None:
    """Codes of pairs hold both numbers, and the set bits of a product weigh the product of the distances together."""
    own, others = (one.ravel() for one in np.meshgrid(all_codes(form), all_codes(second)))
    x, y = decode(own, form), decode(others, second)
    codes, clamped = encode_columns(np.stack([x, y], axis=1).view(np.complex128)[:, 0], form, second)
    assert clamped == 0
    assert codes.dtype == code_type(form, second)
    first, last = split_pairs(codes, form, second)
    assert decode(first, form).tolist() == x.tolist()
    assert decode(last, second).tolist() == y.tolist()
    centre, second_centre = 0.37 * (form.low + form.high), 0.61 * (second.low + second.high)
    product = Quantity(form, "product", centre, second=second, second_centre=second_centre)
    unit = Fraction(float(np.abs(product.slots.weight).min()))
    exact = (x - centre) * (y - second_centre)
    for one, found in zip(exact.tolist(), weighted(product, codes), strict=True):
        assert abs(found - Fraction(one)) <= unit
    for kind, alone in (("value", form), ("square", form), ("second_value", second), ("second_square", second)):
        middle = second_centre if kind.startswith("second") else centre
        of_pair = Quantity(form, kind, centre, second=second, second_centre=second_centre)
        of_one = Quantity(alone, kind.removeprefix("second_"), middle)
        numbers = last if kind.startswith("second") else first
        assert of_pair.codes(codes, uniforms(codes)).tolist() == of_one.codes(numbers, uniforms(codes)).tolist()
        assert of_pair.slots.weight.tolist() == of_one.slots.weight.tolist()


# --- probabilities ---


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


@pytest.mark.parametrize("power", [0.0, 0.5])
@pytest.mark.parametrize("signed", ["no", "split"])
def test_probabilities_by_weight_are_powers_of_it(power: float, signed: str) -> None:
    one = 2.0 ** (power * np.arange(8))
    expected = np.tile(one, 1 + (signed == "split"))
    assert by_weight(slots(8, signed), power, 1) == pytest.approx(expected / expected.sum())
    assert by_weight(slots(8, signed), 1e6, 1).max() == pytest.approx(1 / (1 + (signed == "split")))


def variance(probabilities: np.ndarray, weights: np.ndarray, each: np.ndarray) -> float:
    """Of the estimate from one report: the sum of 4^j v_j / p_j (Section 3.1)."""
    return float((weights**2 * each / probabilities).sum())


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_power_one_half_has_the_least_variance(epsilon: float | None) -> None:
    """Lemma 3.3: (sum of 2^j sqrt(v_j))^2, and no other probabilities do better, nearby or far."""
    rng, response, bits = seeded_rng(0), RandomisedResponse(epsilon), slots(7)
    means = rng.uniform(0.02, 0.98, 7)
    each = means * (1 - means)
    if epsilon is not None:
        each += math.exp(epsilon) / math.expm1(epsilon) ** 2
    probabilities = by_variance(bits, means, np.ones(7), response, 0.5, 1)
    least = variance(probabilities, bits.weight, each)
    assert least == pytest.approx((bits.weight * np.sqrt(each)).sum() ** 2)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(30):
            other = probabilities * np.exp(size * rng.normal(size=7))
            assert variance(other / other.sum(), bits.weight, each) >= least * (1 - 1e-12)
    for power in (0.0, 0.25, 1.0):  # and the test would see another power
        assert variance(by_variance(bits, means, np.ones(7), response, power, 1), bits.weight, each) > least


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


@pytest.mark.parametrize(("local", "squash"), [(True, 2.5), (False, 0.5)])
def test_the_papers_tuning_is_that_of_section_4_2(local: bool, squash: float) -> None:
    """A third of the clients first, by 2^(j / 2); then by the root of 4^j m (1 - m); reports of both rounds."""
    tuning = Tuning.from_paper(local)
    assert (tuning.first_share, tuning.first_power, tuning.second_power, tuning.caching) == (1 / 3, 0.5, 0.5, True)
    assert tuning.squash == squash
    assert tuning.resolved("adaptive") == Tuning(1 / 3, 0.5, 0.5, 1.0, True, squash)


# --- the method ---


@pytest.mark.parametrize(
    ("users", "epsilon", "bits", "method"),
    [
        (10_000, 0.1, 10, "weighted"),  # n epsilon^2 = 100
        (10_000, 0.1, 20, "threshold"),  # a range that few values fill
        (1000, 1.0, 12, "threshold"),
        (-50, 1.0, 10, "weighted"),  # a noisy number
        (10, None, 10, "threshold"),
    ],
)
def test_thresholds_need_enough_signal(users: float, epsilon: float | None, bits: int, method: str) -> None:
    assert chosen_method(users, epsilon, bits) == method


# --- earlier releases ---


FORM = FixedPoint(4, 1, "shift", 2.5)
MANIFEST: dict[str, Any] = {
    "job": "moments",
    "release_id": "earlier",
    "column": "speed",
    "fixed_point": {"bits": 4, "fraction_bits": 1, "signed": "shift", "offset": 2.5, "step": 0.5, "low": 0, "high": 1},
    "privacy": {"trust": "local", "randomness": {"source": "key file", "safe": True}},
}


def table(kinds: tuple[str, ...] = ("value", "square")) -> pa.Table:
    rng, parts = seeded_rng(7), []
    for kind in kinds:
        weight = Quantity(FORM, kind, 1.0 if kind == "square" else 0.0).slots.weight
        columns = {name: rng.uniform(0.1, 0.9, len(weight)) for name in BITS_SCHEMA.names[1:]}
        columns |= {"weight": weight, "squashed": weight > 4}
        parts.append(pa.table({"quantity": [kind] * len(weight), **columns}, schema=BITS_SCHEMA))
    return pa.concat_tables(parts)


def changed(**changes: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    for path, value in changes.items():
        *folders, name = path.split("__")
        place = manifest
        for folder in folders:
            place = place[folder]
        if value is None:
            del place[name]
        else:
            place[name] = value
    return manifest


def column(name: str, value: float) -> pa.Table:
    bits = table()
    numbers = bits[name].to_numpy().copy()
    numbers[2] = value
    return bits.set_column(bits.schema.get_field_index(name), BITS_SCHEMA.field(name), pa.array(numbers))


def test_every_quantitys_bits_are_taken_over() -> None:
    bits = table()
    prior = PriorRelease.from_release(MANIFEST, bits, "speed", FORM)
    assert prior.release_id == "earlier"
    assert prior.has_secret_key
    assert set(prior.bits) == {"value", "square"}
    for kind, one in prior.bits.items():
        rows = bits.filter(pa.compute.equal(bits["quantity"], kind))
        for name in ("weight", "mean", "stddev"):
            assert getattr(one, name).tolist() == rows[name].to_pylist()
    assert prior.metadata() == {"release_id": "earlier", "digest": prior.digest}


def test_the_digest_is_of_all_that_is_taken_over() -> None:
    digests = [
        PriorRelease.from_release(MANIFEST, bits, "speed", FORM).digest
        for bits in (table(), column("mean", 0.123), column("stddev", 0.123), table(("value",)))
    ]
    assert len(set(digests)) == 4
    assert PriorRelease.from_release(MANIFEST, table(), "speed", FORM).digest == digests[0]


@pytest.mark.parametrize("told", [False, "yes", 1])
def test_only_a_key_that_is_said_to_be_safe_is(told: object) -> None:
    assert not PriorRelease.from_release(changed(privacy__randomness__safe=told), table(), "speed", FORM).has_secret_key


@pytest.mark.parametrize(
    "changes",
    [
        *({"job": "heatmap"}, {"job": None}, {"column": "age"}, {"column": None}, {"privacy": None}),
        *({"fixed_point__bits": "four"}, {"fixed_point__bits": 99}, {"fixed_point__bits": 5}),
        *({"fixed_point__offset": None}, {"fixed_point__offset": 2.0}, {"method": "threshold"}),
        {"fixed_point__signed": "split", "fixed_point__offset": 0.0},
    ],
    ids=str,
)
def test_prior_refuses_releases_of_something_else(changes: dict[str, Any]) -> None:
    with rejects("warm_start"):
        PriorRelease.from_release(changed(**changes), table(), "speed", FORM)


@pytest.mark.parametrize(("name", "value"), [("mean", np.nan), ("mean", np.inf), ("stddev", np.nan), ("stddev", 0.0)])
def test_prior_refuses_damaged_tables(name: str, value: float) -> None:
    for bits in (column(name, value), table().drop_columns(name)):
        with rejects("warm_start"):
            PriorRelease.from_release(MANIFEST, bits, "speed", FORM)


def test_bits_that_the_earlier_release_lacks_may_be_anything() -> None:
    """Squares about another mean have other highest bits, and are finer where that mean is no whole number."""
    earlier = Quantity(FixedPoint(5), "square", 3.0).slots
    prior = Prior(earlier.weight, np.full(len(earlier), 0.2), np.full(len(earlier), 0.1))
    now = Quantity(FixedPoint(5), "square", 16.5).slots
    assert not np.array_equal(now.weight, earlier.weight)
    mean, variance = prior.for_slots(now)
    known = np.isin(now.weight, earlier.weight)
    assert known.any()
    assert np.where(known, 0.2, 0.5).tolist() == mean.tolist()
    assert np.where(known, 0.1**2, 0.25).tolist() == pytest.approx(variance.tolist())
    half = Quantity(FixedPoint(5), "power:2").slots  # without the finer bits
    mean, _ = Prior(half.weight[1:], half.weight[1:] * 0 + 0.3, half.weight[1:] * 0 + 0.1).for_slots(half)
    assert mean.tolist() == [0.5] + [0.3] * (len(half) - 1)
