"""Groups of clients: public values of a column, the cells of a map, or public zones. Pure.

The group of a client is private: tallies of groups have central noise, and a group with too few clients by the noisy
count is merged into `other`. So the list of groups must be public.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

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
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.inputs.text_values import without_views

MAX_GROUPS = 1 << 14
_MAX_CHARACTERS = 500_000  # the job's graph has them several times, and services bound its size


class Groups(ABC):
    """Assigns a group to each row. Its length is the number of groups. Implementations are dataclasses."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Returns the public groups, without `other`."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> NDArray[np.uint16]:
        """Returns the index of each row's group among the names, uint16[n]; `len` for a row in none of them."""

    def stated(self) -> dict[str, Any]:
        """Returns what tells these groups from others: the run's key is bound to it."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def place(self) -> dict[str, Any]:
        """Returns where the groups are, for the manifest; empty for groups that are no places."""
        return {}


@dataclass(frozen=True)
class ColumnGroups(Groups):
    """Values of a column, as text. Raises RequestError unless there are 1 to 16,384 different ones."""

    column: str
    listed: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.listed) <= MAX_GROUPS:
            raise RequestError(f"groups: list 1 to {MAX_GROUPS:,} groups, got {len(self.listed):,}")
        for name in (EVERYBODY, OTHER, ""):
            if name in self.listed:
                raise RequestError(f"groups: {name!r} cannot be the name of a group; rename it in the logs")
        if sum(map(len, self.listed)) > _MAX_CHARACTERS:
            raise RequestError(f"groups: their names have over {_MAX_CHARACTERS:,} characters together; shorten them")
        if len(set(self.listed)) < len(self.listed):
            twice = next(name for name in self.listed if self.listed.count(name) > 1)
            raise RequestError(f"groups: {twice!r} is listed twice")

    def names(self) -> Sequence[str]:
        return self.listed

    def __len__(self) -> int:
        return len(self.listed)

    def encode(self, batch: pa.RecordBatch) -> NDArray[np.uint16]:
        values, indices = batch.column(self.column), None
        if pt.is_dictionary(values.type):
            indices, values = values.indices, values.dictionary
        values = without_views(values)
        listed = pa.array([name.encode() for name in self.listed], pa.large_binary())
        texts = values if holds_text(values.type) else values.cast(pa.string())
        groups = pc.index_in(texts.cast(pa.large_binary()), value_set=listed)
        if indices is not None:
            groups = groups.take(indices)
        return np.asarray(groups.fill_null(len(self.listed)).to_numpy(zero_copy_only=False)).astype(np.uint16)


@dataclass(frozen=True)
class CellGroups(Groups):
    """The cells of a grid, at a depth of 7 at most."""

    grid: Grid
    latitude: str = "latitude"
    longitude: str = "longitude"

    def names(self) -> Sequence[str]:
        cells = np.arange(len(self), dtype=np.uint64)
        return node_names(cells | np.uint64(len(self)))

    def __len__(self) -> int:
        return 1 << (2 * self.grid.depth)

    def encode(self, batch: pa.RecordBatch) -> NDArray[np.uint16]:
        """See Groups.encode. Locations outside the region are in no group."""
        east, north = (_degrees(batch, name) for name in (self.longitude, self.latitude))
        inside = self.grid.region.holds(east, north)  # nulls are NaN, which is outside
        groups = np.full(batch.num_rows, len(self), np.uint16)
        groups[inside] = self.grid.codes(east[inside], north[inside])
        return groups

    def place(self) -> dict[str, Any]:
        return {"region": asdict(self.grid.region), "grid": {"depth": self.grid.depth, "side": self.grid.side}}


@dataclass(frozen=True)
class ZoneGroups(Groups):
    """Public zones, one level of them. Raises RequestError unless there are 1 to 16,384 with usable names."""

    zones: Zones
    latitude: str = "latitude"
    longitude: str = "longitude"

    def __post_init__(self) -> None:
        if len(self) > MAX_GROUPS:
            raise RequestError(
                f"zones: must be at most {MAX_GROUPS:,} groups, got {len(self):,}; use larger zones, such as those of "
                "a coarser level"
            )
        for name in (EVERYBODY, OTHER):
            if name in self.zones.ids:
                raise RequestError(f"zones: {name!r} cannot be the id of a zone here; rename it in the file")
        if sum(map(len, self.zones.ids)) > _MAX_CHARACTERS:
            raise RequestError(f"zones: their ids have over {_MAX_CHARACTERS:,} characters together; shorten them")

    def names(self) -> Sequence[str]:
        return self.zones.ids

    def __len__(self) -> int:
        return len(self.zones)

    def encode(self, batch: pa.RecordBatch) -> NDArray[np.uint16]:
        """See Groups.encode. Locations outside of all zones are in no group."""
        found = self._locator.zone_of(_degrees(batch, self.longitude), _degrees(batch, self.latitude))
        return np.where(found < 0, len(self), found).astype(np.uint16)

    def stated(self) -> dict[str, Any]:
        return {"zones": self.zones.digest, "latitude": self.latitude, "longitude": self.longitude}

    def place(self) -> dict[str, Any]:
        return self.zones.place()

    def __getstate__(self) -> dict[str, Any]:  # the locator's raster does not travel
        return {"zones": self.zones, "latitude": self.latitude, "longitude": self.longitude}

    @cached_property
    def _locator(self) -> ZoneLocator:
        return ZoneLocator(self.zones)


def _degrees(batch: pa.RecordBatch, name: str) -> NDArray[np.float64]:
    """Returns a column of coordinates, float64[n]; nulls are NaN."""
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False), dtype=np.float64)


@dataclass(frozen=True)
class Grouping:
    """Groups and their smallest published size.

    Tallies have `len(groups) + 1` rows, the last for clients in none of the groups. Raises RequestError if min_group is
    out of range.
    """

    groups: Groups
    min_group: int = 100  # the fewest clients of a published group, by the noisy count, >= 1

    def __post_init__(self) -> None:
        if isinstance(self.min_group, bool) or self.min_group < 1:
            raise RequestError(f"min_group: must be a number of clients >= 1, got {self.min_group}")

    @property
    def tally_rows(self) -> int:
        """Returns the number of rows of a tally."""
        return len(self.groups) + 1

    def stated(self) -> dict[str, Any]:
        """Returns what tells this grouping from others: the run's key is bound to it."""
        return {"groups": self.groups.stated(), "min_group": self.min_group}

    @property
    def text(self) -> str:
        """Returns the number of groups, and which are shown, for a terminal."""
        return (
            f"{len(self.groups):,} groups, and `other`; a group is shown if it has {self.min_group:,} users by "
            "noisy counts, and clearly more than none"
        )

    def published_groups(self, clients: NDArray[np.float64], margin: float) -> tuple[list[str], NDArray[np.int64]]:
        """Decides which groups are published separately; all others are merged into `other`.

        A published group has at least min_group clients by the noisy count, and clearly more than none: the probability
        that any group without clients is published is 5%.

        Args:
            clients: float64[G + 1], by the rows of the noisy tallies.
            margin: a number that the noise of any of them exceeds with probability 5% in all.

        Returns:
            The names of the published groups with `other` as the last; and int64[G + 1], the published group of each
            row of the tallies.
        """
        names = self.groups.names()
        min_clients = max(self.min_group, margin)
        large = np.flatnonzero(clients[:-1] >= min_clients)
        published = np.full(len(clients), len(large))
        published[large] = np.arange(len(large))
        return [*(names[row] for row in large.tolist()), OTHER], published
