"""Exact counts of users by base cell: private until a method has added noise. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave

_AT_ONCE = 1 << 16  # cells
_SPARSE_BITS = 4  # users for a sixteenth of the cells: from here on the array takes less time than sorting


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
    def from_codes(cls, depth: int, codes: NDArray[np.unsignedinteger]) -> ExactCounts:
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

    def __reduce__(self) -> tuple[Any, ...]:
        narrow = (column.astype(np.min_scalar_type(column.max(initial=0))) for column in (self.codes, self.users))
        return _widened, (self.depth, *narrow)  # a third of the bytes between workers

    @property
    def side(self) -> int:
        """Base cells along one side of the field."""
        return 1 << self.depth

    @cached_property
    def xy(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Column from the west and row from the north of each cell, int64[c] each."""
        return deinterleave(self.codes)

    def blocks(self) -> Iterator[ExactCounts]:
        """Parts of the cells, in order, whose arrays stay in the processor's cache."""
        for start in range(0, len(self.codes), _AT_ONCE):
            yield ExactCounts(self.depth, self.codes[start : start + _AT_ONCE], self.users[start : start + _AT_ONCE])

    def on_grid(self, x_edges: NDArray[np.int64], y_edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums the users between edges that span the field: int64[rows, columns], row 0 in the north."""
        columns, rows = (np.repeat(np.arange(len(edges) - 1), np.diff(edges)) for edges in (x_edges, y_edges))
        counts = np.zeros((len(y_edges) - 1) * (len(x_edges) - 1), dtype=np.int64)
        for block in self.blocks():
            x, y = block.xy
            np.add.at(counts, rows[y] * (len(x_edges) - 1) + columns[x], block.users)
        return counts.reshape(len(y_edges) - 1, -1)


def _widened(depth: int, codes: NDArray[np.unsignedinteger], users: NDArray[np.unsignedinteger]) -> ExactCounts:
    return ExactCounts(depth, codes.astype(np.uint64), users.astype(np.int64))


class CellTally:
    """Adds up users by base cell: few as sorted codes, from a share of the cells on in one array of all cells."""

    def __init__(self, depth: int):
        self._depth = depth
        self._field: NDArray[Any] | None = None  # [4^depth], users of every cell
        self._in_field = 0  # users
        self._codes: list[NDArray[np.int64]] = []  # of users that are not in the field yet
        self._counts: list[ExactCounts] = []  # likewise

    def add(self, part: NDArray[np.int64] | ExactCounts) -> None:
        """Adds users. part: the cell of each, int64[n], or counts."""
        if isinstance(part, ExactCounts):
            self._counts.append(part)
        else:
            self._codes.append(part)
        cells = 4**self._depth
        if sum(map(len, self._codes)) + sum(len(counts.codes) for counts in self._counts) > cells >> _SPARSE_BITS:
            self._in_field += sum(map(len, self._codes)) + sum(int(counts.users.sum()) for counts in self._counts)
            # No count can overflow.
            width: type[Any] = np.uint32 if self._in_field <= np.iinfo(np.uint32).max else np.int64
            field: NDArray[Any] = (
                np.zeros(cells, width) if self._field is None else self._field.astype(width, copy=False)
            )
            for codes in self._codes:
                np.add.at(field, codes, width(1))
            for counts in self._counts:
                field[counts.codes.view(np.int64)] += counts.users.astype(width)  # each cell once
            self._field, self._codes, self._counts = field, [], []

    def parts(self) -> list[ExactCounts]:
        """Counts that add up to all that was added; at least one."""
        few = ExactCounts.from_codes(self._depth, np.concatenate([np.empty(0, np.int64), *self._codes]).view(np.uint64))
        if self._field is None:
            return [*self._counts, few]
        occupied = np.flatnonzero(self._field)
        users = self._field[occupied].astype(np.int64)
        return [ExactCounts(self._depth, occupied.view(np.uint64), users), *self._counts, few]

    def compact(self) -> CellTally:
        """A tally of the same users, without the array of all cells. It is pickled in far less time."""
        return _tally_of(self._depth, self.total())

    def __reduce__(self) -> tuple[Any, ...]:
        return _tally_of, (self._depth, self.total())

    def total(self) -> ExactCounts:
        """The sum of all that was added."""
        parts = [part for part in self.parts() if len(part.codes)]
        return parts[0] if len(parts) == 1 else ExactCounts.sum(self.parts())


def _tally_of(depth: int, counts: ExactCounts) -> CellTally:
    tally = CellTally(depth)
    tally._counts = [counts]
    return tally
