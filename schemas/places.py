"""Places: the cell and the category of a record as one integer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Places:
    """The layout of places: category << (2 depth) | code of the cell. So a category's places are contiguous.

    depth: of the grid, which has 2^depth x 2^depth cells. categories: of the auxiliary data; 1 without.

    >>> places = Places(depth=10, categories=3)
    >>> places.bits, places.dtype
    (22, dtype('uint32'))
    """

    depth: int
    categories: int = 1

    @property
    def category_bits(self) -> int:
        """Bits of the category: 0 if there is one category."""
        return (self.categories - 1).bit_length()

    @property
    def bits(self) -> int:
        return 2 * self.depth + self.category_bits

    @property
    def mask(self) -> np.uint64:
        """Returns the bits of a place, all set."""
        return np.uint64((1 << self.bits) - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the smaller of uint32 and uint64 that holds a place."""
        return np.dtype(np.uint32 if self.bits <= 32 else np.uint64)
