"""Values as fixed-point codes, and the quantities about which clients report. Pure.

A quantity is the value itself, a power of its distance from a centre, or its logarithm. Every statistic is a function
of means of quantities (paper 002, Section 3.4). A quantity is an integer number of units, so bit pushing applies to it
as it does to the value. With a second column there are the same quantities of it, and the product of both values'
distances from their centres, whose mean is the covariance (Section 5: a user's contribution to the Hessian).

A question has one bit as its answer: a bit of the quantity, or whether the quantity reaches a threshold. A slot is a
question, or thresholds, one of which a client answers at random. The quantity's mean is the sum over the slots of
weight times the share of 1s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import MAX_BITS, FixedPoint
from sfumato.transforms.moments.client_values import decode, split_pairs

Array = NDArray[np.float64]

SECOND = "second_"  # before the kind of a quantity of the second column
CENTRED = ("square", SECOND + "square", "product")  # quantities about estimated means
_LOG_BITS = 12  # of a logarithm, after the binary point
_STRATA = 8  # of thresholds between two powers of two
_MAX_EXPONENT = 500  # the variance squares the largest quantity, and that must be below 2^1024


@dataclass(frozen=True)
class Slots:
    """The bits that a query can ask for."""

    is_random: ClassVar[bool] = False  # whether `bits` needs uniforms

    shift: NDArray[np.int64]  # int64[S], the bit's position in the code
    negative: NDArray[np.bool_]  # bool[S], whether it is a bit of negative values
    weight: Array  # float64[S], what the bit adds to the quantity, in the quantity's unit
    signed: bool  # whether codes have a sign bit above the magnitude

    def __len__(self) -> int:
        return len(self.shift)

    def sides(self) -> list[slice]:
        """Returns the slots of each sign, from the lowest bit up."""
        if not self.signed:
            return [slice(0, len(self))]
        return [slice(0, len(self) // 2), slice(len(self) // 2, len(self))]

    @property
    def octave_weight(self) -> Array:
        """Returns the place value of each slot's bit, or of all thresholds of its octave: float64[S]."""
        return np.abs(self.weight)

    def bits(self, codes: NDArray[Any], slots: NDArray[np.int64], uniforms: Array | None = None) -> NDArray[np.bool_]:
        """Returns the answer of each code of the quantity, unsigned[n], to its slot's question: bool[n].

        uniforms: float64[n], uniform in [0, 1); they choose the question if `is_random`.
        """
        shifts = self.shift.astype(codes.dtype)
        is_set = (codes >> shifts[slots]) & codes.dtype.type(1)
        return np.asarray(self._of_sign(is_set.astype(bool), codes, slots))

    def _of_sign(self, answers: NDArray[np.bool_], codes: NDArray[Any], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not self.signed:
            return answers
        sign = (codes >> codes.dtype.type(1 + self.shift.max())).astype(bool)
        return np.asarray(answers & (sign == self.negative[slots]))


@dataclass(frozen=True)
class Thresholds(Slots):
    """Strata of thresholds; a client reports whether the magnitude reaches a random threshold of a stratum.

    The mean of a magnitude is the sum of P[X >= t] over t = 1, 2, ... So the strata's expected answers times their
    weights add up to the mean, for every distribution in the range. Strata lie between powers of two, so `shift` is the
    position of the highest bit of their thresholds.

    Attributes:
        below: int64[S], the largest number below the stratum's thresholds, in units.
        width: int64[S], the number of its thresholds; `weight` is this in the quantity's unit, with the sign.
    """

    is_random: ClassVar[bool] = True

    below: NDArray[np.int64]
    width: NDArray[np.int64]

    @classmethod
    def from_bits(cls, bits: Slots) -> Thresholds:
        """Returns the strata of a quantity with these bits: up to _STRATA of equal width from each power of two to the
        next.
        """
        count = np.minimum(_STRATA, 1 << np.minimum(bits.shift, 62))
        rows = np.repeat(np.arange(len(bits)), count)
        width = (1 << bits.shift)[rows] // count[rows]
        place = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        below = (1 << bits.shift)[rows] - 1 + place * width
        weight = bits.weight[rows] / count[rows]
        return cls(bits.shift[rows], bits.negative[rows], weight, bits.signed, below, width)

    @property
    def octave_weight(self) -> Array:
        return np.asarray(np.abs(self.weight) * ((1 << self.shift) // self.width))

    @property
    def octave(self) -> NDArray[np.int64]:
        """Returns the number of the bit from whose place value the stratum goes on towards the next: int64[S]."""
        return np.asarray(self.shift + self.negative * (1 + self.shift.max()))

    def bits(self, codes: NDArray[Any], slots: NDArray[np.int64], uniforms: Array | None = None) -> NDArray[np.bool_]:
        assert uniforms is not None
        magnitudes = codes & codes.dtype.type((1 << int(1 + self.shift.max())) - 1)
        thresholds = self.below[slots] + 1 + (uniforms * self.width[slots]).astype(np.int64)
        return self._of_sign(magnitudes.astype(np.int64) >= thresholds, codes, slots)


@dataclass(frozen=True)
class Quantity:
    """A function of a value, as an integer number of units.

    Attributes:
        form: of the values.
        kind: `value`, `square` (about `centre`), `power:K` or `log2`. Of the second column: `second_value`,
            `second_square`. Of both: `product`, of the distances from the centres.
        centre: what `square` and `product` are about, in the column's unit.
        by_thresholds: whether clients report thresholds instead of bits.
        second: form of the second column, where codes are of pairs; None without one.
        second_centre: what `second_square` and `product` are about, in the second column's unit.

    Raises:
        RequestError: from `slots`, if the largest power is too large for a float64.
    """

    form: FixedPoint
    kind: str
    centre: float = 0.0
    by_thresholds: bool = False
    second: FixedPoint | None = None
    second_centre: float = 0.0

    @property
    def _column(self) -> tuple[str, FixedPoint, float]:
        """Returns the kind, form and centre within the one column that it is of."""
        if not self.kind.startswith(SECOND):
            return self.kind, self.form, self.centre
        assert self.second is not None
        return self.kind.removeprefix(SECOND), self.second, self.second_centre

    @property
    def power(self) -> int:
        """Returns the exponent of a power."""
        kind = self._column[0]
        return 2 if kind == "square" else int(kind.removeprefix("power:"))

    @property
    def _is_power(self) -> bool:
        kind = self._column[0]
        return kind == "square" or kind.startswith("power:")

    @property
    def signed(self) -> bool:
        """Returns whether it can be negative and has a sign bit."""
        kind, form, centre = self._column
        if kind == "value":
            return form.signed == "split"
        return kind == "product" or (self._is_power and self.power % 2 == 1 and form.low < centre)

    @cached_property
    def _scale(self) -> tuple[int, int]:
        """Returns the number of bits of the magnitude, and the binary exponent of the unit."""
        kind, form, centre = self._column
        if kind == "value":
            return form.bits, -form.fraction_bits
        if kind == "log2":
            return form.bits.bit_length() + _LOG_BITS, -_LOG_BITS
        furthest = max(abs(form.low - centre), abs(form.high - centre))
        if kind == "product":
            assert self.second is not None
            away = max(abs(self.second.low - self.second_centre), abs(self.second.high - self.second_centre))
            above = math.frexp(furthest * away)[1]  # below 2^above
            finest = -form.fraction_bits - self.second.fraction_bits
        else:
            if furthest > 2.0 ** (_MAX_EXPONENT / self.power):
                raise RequestError(f"statistics: {self.kind} of {furthest:g} is too large; ask for a lower moment")
            above = math.frexp(furthest**self.power)[1]
            finest = -form.fraction_bits * self.power
        exponent = max(finest, above - MAX_BITS + 1)
        return max(1, above - exponent + 1), exponent  # one more bit: the largest may be rounded up

    @property
    def base(self) -> float:
        """Returns the mean of the units minus the quantity's mean, in its unit."""
        kind, form, _ = self._column
        if kind == "value":
            return form.offset
        return float(form.fraction_bits) if kind == "log2" else 0.0

    @cached_property
    def slots(self) -> Slots:
        """Returns the questions about the quantity, the lowest first.

        With a sign bit, those of negative values come last.
        """
        return Thresholds.from_bits(self._bits) if self.by_thresholds else self._bits

    @property
    def _bits(self) -> Slots:
        bits, exponent = self._scale
        shift = np.arange(bits)
        weight = np.ldexp(np.ones(bits), shift + exponent)
        if not self.signed:
            return Slots(shift, np.zeros(bits, bool), weight, False)
        signs = np.repeat([False, True], bits)
        return Slots(np.tile(shift, 2), signs, np.concatenate([weight, -weight]), True)

    @property
    def is_rounded(self) -> bool:
        """Returns whether its exact value may lie between two units."""
        return self._is_power or self.kind == "product"

    def codes(self, codes: NDArray[Any], uniforms: Array) -> NDArray[Any]:
        """Returns the quantity of each value: unsigned[n].

        Args:
            codes: unsigned[n], values in the form, or pairs with a second column.
            uniforms: float64[n], uniform in [0, 1). A value between two units is rounded up with the probability that
                keeps the mean unbiased. Every client has an own number: a pattern shared by clients would change the
                rounding of others when one is missing.
        """
        kind, form, centre = self._column
        others = codes
        if self.second is not None:
            codes, others = split_pairs(codes, self.form, self.second)
            codes = codes if kind == self.kind else others
        if kind == "value":
            return codes
        if kind == "log2":
            steps = np.maximum(codes, 1).astype(np.float64)  # a zero counts as the smallest step
            return np.asarray(np.rint(np.ldexp(np.log2(steps), _LOG_BITS)), dtype=np.uint32)
        bits, exponent = self._scale
        distance = decode(codes, form) - centre
        if kind == "product":
            assert self.second is not None
            distance *= decode(others, self.second) - self.second_centre
        exact = np.ldexp(np.abs(distance) ** (1 if kind == "product" else self.power), -exponent)
        units = np.asarray(np.floor(exact + uniforms), dtype=np.uint64)
        if self.signed:
            units |= (distance < 0).astype(np.uint64) << np.uint64(bits)
        return units
