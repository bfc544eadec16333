"""Places: what one record says, a cell and, with auxiliary data, a category, in one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Places:
    """The places of a grid of 2^depth x 2^depth cells with a number of categories, 1 without auxiliary data.

    A place is category << (2 depth) | code, so that a category's places are a grid of their own, in the codes' order.
    """

    depth: int
    categories: int = 1

    @property
    def category_bits(self) -> int:
        """Bits that tell categories apart: 0 where there is one."""
        return (self.categories - 1).bit_length()

    @property
    def bits(self) -> int:
        """Bits of a place."""
        return 2 * self.depth + self.category_bits

    @property
    def mask(self) -> np.uint64:
        """The bits of a place, all set."""
        return np.uint64((1 << self.bits) - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrower unsigned type, uint32 or uint64, that holds a place."""
        return np.dtype(np.uint32 if self.bits <= 32 else np.uint64)
