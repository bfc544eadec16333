"""Groups of clients: public values of a column, or the cells of a map. Pure.

Which group a client is in is private: the tallies of groups carry central noise, and a group whose noisy number of
clients is too small is merged into `other`. That needs a list of groups that is known from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import holds_text
from sfumato.schemas.moments import EVERYBODY, OTHER
from sfumato.schemas.region import Grid
from sfumato.schemas.tree import node_names
from sfumato.transforms.locations.record_values import without_views
from sfumato.transforms.shrinkage import simultaneous_z

MAX_GROUPS = 1 << 14
_MOST_CHARACTERS = 500_000  # the job's graph carries them several times, and services bound its size


class Groups(Protocol):
    """Which group each row is in."""

    def names(self) -> Sequence[str]:
        """The public groups, without `other`."""

    def __len__(self) -> int: ...

    def encode(self, batch: pa.RecordBatch) -> NDArray[np.uint16]:
        """The place of each row's group among the names, uint16[n]; their number for a row in none of them."""


@dataclass(frozen=True)
class ColumnGroups:
    """Values of a column, as text. Raises RequestError unless there are 1 to 16,384 different ones."""

    column: str
    listed: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.listed) <= MAX_GROUPS:
            raise RequestError(f"groups: list 1 to {MAX_GROUPS:,} groups, got {len(self.listed):,}")
        for name in (EVERYBODY, OTHER, ""):
            if name in self.listed:
                raise RequestError(f"groups: {name!r} cannot be the name of a group; rename it in the logs")
        if sum(map(len, self.listed)) > _MOST_CHARACTERS:
            raise RequestError(f"groups: their names have over {_MOST_CHARACTERS:,} characters together; shorten them")
        if len(set(self.listed)) < len(self.listed):
            twice = next(name for name in self.listed if self.listed.count(name) > 1)
            raise RequestError(f"groups: {twice!r} is there twice")

    def names(self) -> Sequence[str]:
        return self.listed

    def __len__(self) -> int:
        return len(self.listed)

    def encode(self, batch: pa.RecordBatch) -> NDArray[np.uint16]:
        """See Groups.encode."""
        values, indices = batch.column(self.column), None
        if pt.is_dictionary(values.type):
            indices, values = values.indices, values.dictionary
        values = without_views(values)
        wanted = pa.array([name.encode() for name in self.listed], pa.large_binary())
        texts = values if holds_text(values.type) else values.cast(pa.string())
        found = pc.index_in(texts.cast(pa.large_binary()), value_set=wanted)
        if indices is not None:
            found = found.take(indices)
        return np.asarray(found.fill_null(len(self.listed)).to_numpy(zero_copy_only=False)).astype(np.uint16)


@dataclass(frozen=True)
class CellGroups:
    """The cells of a grid. Raises RequestError where there are more than 16,384, at depth 8 and below."""

    grid: Grid
    latitude: str = "latitude"
    longitude: str = "longitude"

    def __post_init__(self) -> None:
        if len(self) > MAX_GROUPS:
            raise RequestError(f"cells: depth {self.grid.depth} has more than {MAX_GROUPS:,} cells; give 1 to 7")

    def names(self) -> Sequence[str]:
        cells = np.arange(len(self), dtype=np.uint64)
        return node_names(cells | np.uint64(len(self)))

    def __len__(self) -> int:
        return 1 << (2 * self.grid.depth)

    def encode(self, batch: pa.RecordBatch) -> NDArray[np.uint16]:
        """See Groups.encode. Places outside the region are in no group."""
        north, east = (
            np.asarray(batch.column(name).to_numpy(zero_copy_only=False), dtype=np.float64)
            for name in (self.latitude, self.longitude)
        )
        inside = self.grid.region.holds(east, north)  # nulls are NaN, which lie nowhere
        groups = np.full(batch.num_rows, len(self), np.uint16)
        groups[inside] = self.grid.codes(east[inside], north[inside])
        return groups


@dataclass(frozen=True)
class Grouping:
    """Groups as they are published. min_group: clients that a group must have by the noisy count to be shown apart.
    Raises RequestError for values out of range.
    """

    groups: Groups
    min_group: int = 100

    def __post_init__(self) -> None:
        if isinstance(self.min_group, bool) or self.min_group < 1:
            raise RequestError(f"min_group: must be a number of clients >= 1, got {self.min_group}")

    def settle(self, clients: NDArray[np.float64], stddev: float) -> tuple[list[str], NDArray[np.int64]]:
        """The groups that are shown apart, `other` the last of them, and which of them every tallied group is in.

        A group is shown apart if it has min_group clients by the noisy count, and clearly more than none: the
        probability that any group without a client has so many is 5%.

        Args:
            clients: float64[G + 1], by the noisy tallies, those in no group the last.
            stddev: of the noise on each of these.
        """
        names = self.groups.names()
        least = max(self.min_group, simultaneous_z(len(names)) * stddev)
        large = np.flatnonzero(clients[:-1] >= least)
        places = np.full(len(clients), len(large))
        places[large] = np.arange(len(large))
        return [*(names[place] for place in large.tolist()), OTHER], places
