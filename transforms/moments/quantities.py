"""What clients report bits of: the value itself, a power of its distance from somewhere, or its logarithm. Pure.

Every statistic is a function of means of such quantities (paper 002, Section 3.4). A quantity is a whole number of
units, so that bit pushing applies to it as it does to the value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import MAX_BITS, FixedPoint
from sfumato.transforms.moments.fixed_point import decode

_LOG_BITS = 12  # of a logarithm, below the point
_MOST_EXPONENT = 500  # the variance has the square of the largest, which must be below 2^1024


@dataclass(frozen=True)
class Slots:
    """The bits that a client can be asked for.

    Attributes:
        shift: int64[S], the bit's place in the code.
        negative: bool[S], whether it is a bit of negative values.
        weight: float64[S], what it adds to the quantity, in the quantity's unit.
        signed: whether codes have a sign, at the place above the magnitude.
    """

    shift: NDArray[np.int64]
    negative: NDArray[np.bool_]
    weight: NDArray[np.float64]
    signed: bool

    def __len__(self) -> int:
        return len(self.shift)

    def sides(self) -> list[slice]:
        """The slots of each sign, from the least bit up."""
        if not self.signed:
            return [slice(0, len(self))]
        return [slice(0, len(self) // 2), slice(len(self) // 2, len(self))]

    def bits(self, codes: NDArray[Any], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the slot of each code is set: bool[n]. codes: unsigned[n]; slots: int64[n]."""
        shifts = self.shift.astype(codes.dtype)
        found = (codes >> shifts[slots]) & codes.dtype.type(1)
        if self.signed:
            sign = codes >> codes.dtype.type(1 + self.shift.max())
            found &= sign == self.negative.astype(codes.dtype)[slots]
        return np.asarray(found, dtype=bool)


@dataclass(frozen=True)
class Quantity:
    """A whole number of units that every value has.

    form: of the values. kind: `value`, `square` (about `centre`), `power:K` or `log2`. Slots raise RequestError for
    powers beyond what a number can hold.
    """

    form: FixedPoint
    kind: str
    centre: float = 0.0

    @property
    def power(self) -> int:
        """The exponent, where it is a power."""
        return 2 if self.kind == "square" else int(self.kind.removeprefix("power:"))

    @property
    def _is_power(self) -> bool:
        return self.kind == "square" or self.kind.startswith("power:")

    @property
    def signed(self) -> bool:
        """Whether it can be negative, and then keeps its sign apart."""
        if self.kind == "value":
            return self.form.signed == "split"
        return self._is_power and self.power % 2 == 1 and self.form.low < self.centre

    @cached_property
    def _scale(self) -> tuple[int, int]:
        """The number of bits of the magnitude, and the binary exponent of the unit."""
        form = self.form
        if self.kind == "value":
            return form.bits, -form.fraction_bits
        if self.kind == "log2":
            return form.bits.bit_length() + _LOG_BITS, -_LOG_BITS
        furthest = max(abs(form.low - self.centre), abs(form.high - self.centre))
        if furthest > 2.0 ** (_MOST_EXPONENT / self.power):
            raise RequestError(f"statistics: {self.kind} of {furthest:g} is too large; ask for a lower moment")
        above = math.frexp(furthest**self.power)[1]  # below 2^above
        exponent = max(-form.fraction_bits * self.power, above - MAX_BITS + 1)
        return max(1, above - exponent + 1), exponent  # one bit more: the largest may be rounded up

    @property
    def base(self) -> float:
        """What the mean of the units is above the quantity's mean, in its unit."""
        if self.kind == "value":
            return self.form.offset
        return float(self.form.fraction_bits) if self.kind == "log2" else 0.0

    @cached_property
    def slots(self) -> Slots:
        """The bits of the quantity, the least first; of one that keeps its sign apart those of negative values last."""
        bits, exponent = self._scale
        shift = np.arange(bits)
        weight = np.ldexp(np.ones(bits), shift + exponent)
        if not self.signed:
            return Slots(shift, np.zeros(bits, bool), weight, False)
        signs = np.repeat([False, True], bits)
        return Slots(np.tile(shift, 2), signs, np.concatenate([weight, -weight]), True)

    @property
    def rounded(self) -> bool:
        """Whether it need be no whole number of units."""
        return self._is_power

    def codes(self, codes: NDArray[Any], turns: NDArray[np.float64]) -> NDArray[Any]:
        """The quantity of each value: unsigned[n]. codes: unsigned[n], of the form.

        turns: float64[n], uniform in [0, 1): what is no whole number of units is rounded up with the right chance, so
        that the mean is right however large a unit is. Each client's is her own: a common pattern over clients would
        round others anew where one is missing.
        """
        if self.kind == "value":
            return codes
        if self.kind == "log2":
            steps = np.maximum(codes, 1).astype(np.float64)  # a zero counts as the smallest step
            return np.asarray(np.rint(np.ldexp(np.log2(steps), _LOG_BITS)), dtype=np.uint32)
        bits, exponent = self._scale
        distance = decode(codes, self.form) - self.centre
        exact = np.ldexp(np.abs(distance) ** self.power, -exponent)
        units = np.asarray(np.floor(exact + turns), dtype=np.uint64)
        if self.signed:
            units |= (distance < 0).astype(np.uint64) << np.uint64(bits)
        return units
