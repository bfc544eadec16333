"""Codes against exact fractions: the nearest step, the ends of the range, both signs, every size of number."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sfumato.schemas.moments import FixedPoint
from sfumato.transforms.moments.quantities import code_type, decode, encode

FORMS = st.builds(
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


@given(FORMS, NUMBERS)
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


@given(FORMS, st.lists(st.integers(0, 2**52 - 1), min_size=1), st.booleans())
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
