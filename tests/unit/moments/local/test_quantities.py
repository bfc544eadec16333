"""BitEstimates of quantities against exact fractions: what the set bits weigh together is the quantity."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import FixedPoint
from sfumato.transforms.moments.client_values import code_type, decode, encode, encode_columns, split_pairs
from sfumato.transforms.moments.local.quantities import Quantity
from tests.seeds import seeded_rng

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
KINDS = ["value", "square", *(f"power:{power}" for power in range(2, 9))]
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


@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_small_forms(form: FixedPoint, kind: str) -> None:
    centres = [0.0]
    if kind == "square":
        centres = [form.low, form.high, (form.low + form.high) / 2, form.low + 0.3 * (form.high - form.low)]
    for centre in centres:
        check(Quantity(form, kind, centre), all_codes(form))


@pytest.mark.parametrize("bits", [10, 32, 45])
def test_the_mean_is_right_however_large_a_unit_is(bits: int) -> None:
    """One value again and again, whose square of 400 is far below a unit of wide forms: rounding to 0 would lose it."""
    quantity, count = Quantity(FixedPoint(bits), "square", 120.3), 1 << 16
    codes = np.full(count, 140).astype(code_type(quantity.form))
    unit = quantity.slots.weight.min()
    found = quantity.codes(codes, uniforms(codes)).astype(np.float64).mean() * unit
    assert abs(found - 19.7**2) < 5 * unit / 2 / math.sqrt(count)


@given(FORMS, st.sampled_from(KINDS), st.floats(0, 1), st.lists(st.floats(0, 1), max_size=5))
@example(FixedPoint(52, -9, "split"), "power:7", 0.5, [0.3])
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


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 8, 10, 15, 16, 31, 32, 52])
@pytest.mark.parametrize("fraction_bits", [0, 5, -3])
def test_logarithms_to_half_a_unit_and_zeros_as_the_smallest_step(bits: int, fraction_bits: int) -> None:
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
def test_slots_double_from_the_least_bit_and_negative_ones_mirror_them(form: FixedPoint, kind: str) -> None:
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


@pytest.mark.parametrize(
    ("form", "kind", "signed"),
    [
        (FixedPoint(4, signed="split"), "value", True),
        (FixedPoint(4, signed="split"), "power:3", True),
        (FixedPoint(4, signed="split"), "power:4", False),
        (FixedPoint(4, signed="split"), "square", False),
        (FixedPoint(4, 0, "shift", 3.0), "value", False),  # the offset makes it positive
        (FixedPoint(4, 0, "shift", 3.0), "power:3", True),
        (FixedPoint(4, 0, "shift", -3.0), "power:3", False),  # no value is below 3
        (FixedPoint(4), "power:3", False),
    ],
)
def test_only_what_can_be_negative_has_bits_for_it(form: FixedPoint, kind: str, signed: bool) -> None:
    assert Quantity(form, kind).signed == signed


def test_the_mean_of_the_bits_is_the_quantitys_mean_but_for_the_base() -> None:
    form = FixedPoint(6, 2, "shift", 5.0)
    codes = np.array([0, 1, 20, 63], np.uint8)
    value = Quantity(form, "value")
    assert float(sum(weighted(value, codes)) / 4) - value.base == decode(codes, form).mean()
    assert Quantity(form, "square", 1.0).base == 0
    assert Quantity(FixedPoint(6, 2), "log2").base == 2


@pytest.mark.parametrize("kind", ["square", "power:3"])
def test_powers_beyond_numbers_are_refused(kind: str) -> None:
    with pytest.raises(RequestError, match=f"statistics: {kind} of 1e\\+150 is too large; ask for a lower moment"):
        _ = Quantity(FixedPoint(4, 0, "shift", 1e150), kind).slots
    slots = Quantity(FixedPoint(52, -52, "split"), "power:4").slots  # 2^416: its square is still a number
    assert np.isfinite(slots.weight**2).all()


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


@pytest.mark.parametrize(
    ("bits", "split", "size"),
    [(1, False, 1), (8, False, 1), (8, True, 2), (16, False, 2), (16, True, 4), (32, True, 8), (52, True, 8)],
)
def test_codes_have_the_narrowest_type(bits: int, split: bool, size: int) -> None:
    form = FixedPoint(bits, signed="split" if split else "no")
    codes, _ = encode(np.array([form.high, form.low]), form)
    assert codes.dtype == np.dtype(f"u{size}")
    assert decode(codes, form).tolist() == [form.high, form.low]


def test_numbers_beyond_all_measure_are_at_the_ends() -> None:
    """Sums and scalings that overflow are clamped, without a warning."""
    top = sys.float_info.max
    form = FixedPoint(16, 52, "shift", top)
    assert encode(np.array([top, -top]), form)[0].tolist() == [65535, 0]
    codes, clamped = encode(np.array([np.inf, -np.inf, top]), FixedPoint(4, 3, "split"))
    assert decode(codes, FixedPoint(4, 3, "split")).tolist() == [15 / 8, -15 / 8, 15 / 8]
    assert clamped == 3


def test_a_negative_zero_has_no_sign() -> None:
    codes, clamped = encode(np.array([-0.0, -0.4]), FixedPoint(4, 0, "split"))
    assert codes.tolist() == [0, 0]
    assert clamped == 0


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


def test_values_of_pairs_outside_the_range_are_clamped_and_counted() -> None:
    form, second = FixedPoint(3), FixedPoint(4, 0, "split")
    codes, clamped = encode_columns(np.array([9 + 1j, 2 - 40j, 3 + 3j, 99 + 99j]), form, second)
    assert clamped == 4
    first, last = split_pairs(codes, form, second)
    assert decode(first, form).tolist() == [7, 2, 3, 7]
    assert decode(last, second).tolist() == [1, -15, 3, 15]
