"""Exact counts of users by base cell: private until a method has added noise. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave


@dataclass(frozen=True)
class ExactCounts:
    """How many users each occupied base cell has. A user counts once, in one cell.

    Attributes:
        depth: of the `Grid` that the base cells belong to.
        codes: uint64[c], the occupied cells, sorted and distinct.
        users: int64[c], the users of each, at least 1.
    """

    depth: int
    codes: NDArray[np.uint64]
    users: NDArray[np.int64]

    @classmethod
    def from_codes(cls, depth: int, codes: NDArray[np.uint64]) -> ExactCounts:
        """Counts users, given the cell of each: uint64[n]."""
        return cls(depth, *np.unique(codes.astype(np.uint64), return_counts=True))

    @classmethod
    def sum(cls, parts: Iterable[ExactCounts]) -> ExactCounts:
        """Adds up parts of the same depth; there must be at least one."""
        counts = list(parts)
        codes, place = np.unique(np.concatenate([part.codes for part in counts]), return_inverse=True)
        users = np.zeros(len(codes), dtype=np.int64)
        np.add.at(users, place, np.concatenate([part.users for part in counts]))
        return cls(counts[0].depth, codes, users)

    @property
    def side(self) -> int:
        """Base cells along one side of the field."""
        return 1 << self.depth

    @cached_property
    def xy(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Column from the west and row from the north of each cell, int64[c] each."""
        return deinterleave(self.codes)

    def on_grid(self, x_edges: NDArray[np.int64], y_edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums the users between edges that span the field: int64[rows, columns], row 0 in the north."""
        x, y = self.xy
        columns, rows = len(x_edges) - 1, len(y_edges) - 1
        at = (np.searchsorted(y_edges, y, "right") - 1) * columns + np.searchsorted(x_edges, x, "right") - 1
        counts = np.zeros(rows * columns, dtype=np.int64)
        np.add.at(counts, at, self.users)
        return counts.reshape(rows, columns)
