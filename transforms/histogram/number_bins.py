"""The bins of a range of numbers, with borders at the values that a request names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError

MAX_BITS = 30


@dataclass(frozen=True)
class NumberBins:
    """2^bits bins of [low, high], of one width between two neighbouring edges.

    Without edges all bins have one width. An edge is a border of two bins, so that no bin holds users on
    both of its sides: how the users of a bin lie in it is not known, and many may have one value.

    Attributes:
        low, high: ends of the range.
        bits: log2 of the number of bins, 1..30.
        edges: values strictly inside the range, ascending.

    Raises:
        RequestError: the range is empty or not finite, bits is out of range, or there are too many edges.

    Example:
        >>> bins = NumberBins(0, 100, 3, edges=(10,))
        >>> bins.of(np.array([9.99, 10, 100])).tolist()
        [0, 1, 7]
        >>> bins.at(np.array([0, 1, 8])).tolist()
        [0.0, 10.0, 100.0]
    """

    low: float
    high: float
    bits: int
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise RequestError(
                f"range: LOW,HIGH must be finite numbers with LOW < HIGH, got {self.low:g},{self.high:g}"
            )
        if not np.isfinite(self.high - self.low):
            raise RequestError(f"range: {self.low:g},{self.high:g} is too wide for a floating-point number")
        if not 1 <= self.bits <= MAX_BITS:
            raise RequestError(f"bits: must lie in 1..{MAX_BITS}, got {self.bits}")
        if len(self.edges) >= 1 << self.bits:
            raise RequestError(f"ranges: {len(self.edges)} ends need more than {1 << self.bits} bins; raise --bits")

    @classmethod
    def of_ranges(cls, low: float, high: float, bits: int, ranges: Sequence[tuple[float, float]]) -> NumberBins:
        """Returns bins with borders at the ends of some ranges. Raises RequestError."""
        ends = {end for pair in ranges for end in pair}
        return cls(low, high, bits, tuple(sorted(end for end in ends if low < end < high)))

    @cached_property
    def _knots(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The ends of the range and its edges, and the number of bins below each."""
        values = np.array([self.low, *self.edges, self.high])
        last, count = 1 << self.bits, len(self.edges)
        wanted = np.round((values - self.low) / (self.high - self.low) * last).astype(np.int64)
        rank = np.arange(count + 2)
        below = np.maximum.accumulate(wanted - rank) + rank  # each edge has a bin of its own below it
        return values, np.minimum(below, last - rank[::-1])

    def of(self, values: NDArray[np.float64]) -> NDArray[np.int32]:
        """Returns the bin of each value, int32[n]; `high` is in the last one. values: float64[n] in low..high."""
        knots, below = self._knots
        if not self.edges:
            places = (values - self.low) / (self.high - self.low) * (1 << self.bits)
            return np.minimum(places.astype(np.int32), (1 << self.bits) - 1)
        part = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(self.edges))
        share = (values - knots[part]) / (knots[part + 1] - knots[part])
        inside = (share * (below[part + 1] - below[part])).astype(np.int64)
        return np.asarray(np.minimum(below[part] + inside, below[part + 1] - 1), dtype=np.int32)

    def at(self, places: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the value at each place, float64[n]. places: in bins from the low end, 0..2^bits."""
        if not self.edges:
            return np.asarray(self.low + (self.high - self.low) * places / (1 << self.bits), dtype=np.float64)
        knots, below = self._knots
        return np.interp(places, below, knots)

    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the place of each value in bins from the low end, float64[n], 0..2^bits; see `at`."""
        knots, below = self._knots
        return np.interp(values, knots, below)
