"""Numbers as fixed-point codes: whole steps, clamped to the form's range. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import FixedPoint


def encode(values: NDArray[np.float64], form: FixedPoint) -> tuple[NDArray[Any], int]:
    """Codes, unsigned[n] of the narrowest type that holds them, and how many values were moved to an end of the range.

    values: float64[n], finite, and at least 0 where the form is unsigned. A code is the nearest whole number of steps;
    of a form with the sign kept apart it is the magnitude, and the bit above it is set for negative values.
    """
    with np.errstate(over="ignore"):  # infinity is beyond the end, as what overflows is
        steps = np.rint(np.ldexp(values + form.offset if form.offset else values, form.fraction_bits))
    low = -form.most if form.signed == "split" else 0
    clamped = int(np.count_nonzero((steps < low) | (steps > form.most)))
    inside = np.clip(steps, low, form.most, out=steps) if clamped else steps
    dtype = code_type(form)
    if form.signed != "split":
        return inside.astype(dtype), clamped
    codes = np.abs(inside).astype(dtype)
    codes |= (inside < 0).astype(dtype) << dtype.type(form.bits)
    return codes, clamped


def code_type(form: FixedPoint) -> np.dtype[Any]:
    """The narrowest unsigned type that holds a form's codes."""
    bits = form.bits + (form.signed == "split")
    return np.dtype(next(f"u{size}" for size in (1, 2, 4, 8) if bits <= 8 * size))


def decode(codes: NDArray[Any], form: FixedPoint) -> NDArray[np.float64]:
    """The numbers that codes stand for, in the column's unit: float64[n]."""
    if form.signed != "split":
        return np.asarray(np.ldexp(codes.astype(np.float64), -form.fraction_bits) - form.offset)
    magnitude = np.ldexp((codes & codes.dtype.type(form.most)).astype(np.float64), -form.fraction_bits)
    return np.asarray(np.where(codes >> codes.dtype.type(form.bits), -magnitude, magnitude))
