"""The tables of statistics of everybody, by group, and by cell or zone: post-processing of published numbers. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RefusedError
from sfumato.schemas.moments import (
    EVERYBODY,
    MOMENTS_SCHEMA,
    OTHER,
    SUMS,
    MomentEstimate,
    moment_cells_schema,
    moment_zones_schema,
)
from sfumato.schemas.region import Grid, deinterleave
from sfumato.schemas.release import CELLS_FILE, MOMENTS_FILE, ZONES_FILE
from sfumato.schemas.tree import node_names
from sfumato.transforms.cell_indexes import index_columns
from sfumato.transforms.moments.derived_statistics import shrunk
from sfumato.transforms.moments.groups import CellGroups, Grouping, ZoneGroups
from sfumato.transforms.moments.statistic_kinds import Forms
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.zones.zone_file import Zones

_EVERYBODY_ERROR = 0.01  # the probability that everybody's interval misses, of the 5% that a listed cell is wrong


class Estimates(Protocol):
    """Every statistic of everybody or by group, from published numbers."""

    def __call__(
        self, names: Sequence[str] = ..., groups: NDArray[np.int64] | None = ..., level: float = ...
    ) -> Iterator[MomentEstimate]:
        """The estimates. groups: int64[rows], the published group of each row. level: of the intervals."""


@dataclass(frozen=True)
class MomentsMetadata:
    """The release's identity and what is known before the run, beside the plan.

    Attributes:
        release: the release's identity.
        grouping: the groups; None for everybody together.
        column: of the values.
        bounded: whether one record of each user counts; otherwise rows are users.
        second_column: of the second values; None without them.
    """

    release: ReleaseMetadata
    grouping: Grouping | None
    column: str
    bounded: bool
    second_column: str | None = None


@dataclass(frozen=True)
class MomentTables:
    """The published statistics.

    Attributes:
        estimates: of everybody, then by group.
        groups: names of the published groups.
        tables: by file name.
    """

    estimates: list[MomentEstimate]
    groups: list[str]
    tables: dict[str, pa.Table]


def moment_tables(
    estimates: Estimates,
    forms: Forms,
    grouping: Grouping | None,
    clients: NDArray[np.float64],
    margin: float,
) -> MomentTables:
    """Chooses the groups that are published, and makes the tables.

    Args:
        estimates: of the release.
        forms: of the values.
        grouping: the groups; None for everybody together.
        clients: float64[rows], estimated users of each row.
        margin: see Grouping.published_groups.

    Raises:
        RefusedError: an estimate is not finite.
    """
    found, names = list(estimates()), list[str]()
    if grouping is not None:
        published, published_group = grouping.published_groups(clients, margin)
        sizes = np.bincount(published_group, clients).tolist()
        # All but `other` are large enough.
        names = [name for name, size in zip(published, sizes, strict=True) if size >= grouping.min_group]
        kept = set(names)
        found += [row for row in estimates(published, published_group) if row.group in kept]
    if not np.isfinite([[estimate.value, estimate.stddev] for estimate in found]).all():
        raise RefusedError(
            "an estimate is beyond what a number can hold; ask for fewer --bits, a smaller --range or a lower moment"
        )
    tables = {MOMENTS_FILE: pa.Table.from_pylist([asdict(estimate) for estimate in found], MOMENTS_SCHEMA)}
    if grouping is not None and isinstance(grouping.groups, CellGroups | ZoneGroups):
        located = {name: code for code, name in enumerate(grouping.groups.names())}
        codes = np.array([located[name] for name in names if name != OTHER], np.uint64)
        compared = simultaneous(estimates, published, published_group, found[0].statistic)
        columns = _columns(found, shrunk(found, forms), compared)
        if isinstance(grouping.groups, CellGroups):
            tables[CELLS_FILE] = _cells_table(columns, codes, grouping.groups.grid)
        else:
            tables[ZONES_FILE] = _zones_table(columns, codes, grouping.groups.zones)
    return MomentTables(found, names, tables)


def simultaneous(
    estimates: Estimates, names: Sequence[str], published_group: NDArray[np.int64], statistic: str
) -> tuple[NDArray[np.int8], NDArray[np.float64], NDArray[np.float64]]:
    """Intervals of the shown cells' first statistic that hold for all of them at once.

    The probability that any cell is wrongly said to differ from everybody is 5%.

    Args:
        estimates: of the release.
        names: of the groups; `other` is the last.
        published_group: int64[tally rows], the published group of each row of the tallies.
        statistic: name of the first statistic.

    Returns:
        1 or -1 if a cell is clearly above or below everybody, else 0, int8[cells]; the ends of the intervals,
        float64[cells] each, NaN for a statistic that is not compared.
    """
    cells = max(len(names) - 1, 0)
    if statistic in SUMS or not cells:
        return np.zeros(cells, np.int8), np.full(cells, np.nan), np.full(cells, np.nan)
    everybody = next(estimates(level=1 - _EVERYBODY_ERROR))
    level = 1 - (0.05 - _EVERYBODY_ERROR) / cells
    rows = list(itertools.islice(estimates(names, published_group, level), cells))
    low, high = (np.array([getattr(row, end) for row in rows], np.float64) for end in ("low", "high"))
    return (low > everybody.high).astype(np.int8) - (high < everybody.low), low, high


@dataclass(frozen=True)
class _Columns:
    """Statistics of the published cells or zones: their names, and float64[rows] or a pa.Array by column."""

    statistics: list[str]
    columns: dict[str, Any]


def _columns(
    estimates: Sequence[MomentEstimate],
    shown: Sequence[MomentEstimate],
    compared: tuple[NDArray[np.int8], NDArray[np.float64], NDArray[np.float64]],
) -> _Columns:
    """All statistics of the published cells or zones. shown: the shrunk estimates. compared: see simultaneous."""
    rows = [estimate for estimate in estimates if estimate.group not in (EVERYBODY, OTHER)]
    statistics = list(dict.fromkeys(estimate.statistic for estimate in estimates))
    columns: dict[str, Any] = {}
    for statistic in statistics:
        of_statistic = [row for row in rows if row.statistic == statistic]
        for name in ("value", "stddev", "low", "high", "clients"):
            columns[f"{statistic}_{name}"] = np.array([getattr(row, name) for row in of_statistic], np.float64)
    drawn = [
        estimate
        for estimate in shown
        if estimate.group not in (EVERYBODY, OTHER) and estimate.statistic == statistics[0]
    ]
    for name, field in (("shrunk", "value"), ("shrunk_stddev", "stddev")):
        columns[f"{statistics[0]}_{name}"] = np.array([getattr(row, field) for row in drawn], np.float64)
    for name, column in zip(("differs", "simultaneous_low", "simultaneous_high"), compared, strict=True):
        columns[f"{statistics[0]}_{name}"] = pa.array(column, from_pandas=True)  # NaN becomes null
    return _Columns(statistics, columns)


def _cells_table(found: _Columns, codes: NDArray[np.uint64], grid: Grid) -> pa.Table:
    """Published cells, one row each, with all statistics. codes: of the cells, uint64[cells]."""
    x, y = deinterleave(codes)
    west, south, east, north = grid.bounds(x, y, np.full(len(x), grid.depth))
    table: dict[str, Any] = {
        "cell_id": node_names(codes | np.uint64(1 << (2 * grid.depth))),
        "depth": np.full(len(x), grid.depth, np.int8),
        "west": west,
        "south": south,
        "east": east,
        "north": north,
        **found.columns,
        **index_columns(grid, np.full(len(x), grid.depth), west, south, east, north),
        "geometry": shapely.to_wkb(shapely.box(west, south, east, north)),
    }
    return pa.table(table, schema=moment_cells_schema(found.statistics))


def _zones_table(found: _Columns, codes: NDArray[np.uint64], zones: Zones) -> pa.Table:
    """Published zones, one row each, with all statistics. codes: indexes of the zones, uint64[rows]."""
    table: dict[str, Any] = {
        "zone": [zones.ids[code] for code in codes.tolist()],
        **found.columns,
        "geometry": shapely.to_wkb(zones.geometries[codes.astype(np.int64)]),
    }
    return pa.table(table, schema=moment_zones_schema(found.statistics))


def vague_warnings(
    estimates: Sequence[MomentEstimate], ranges: Mapping[str, tuple[float, float]], advice: str
) -> list[str]:
    """Returns a warning for each statistic of everybody of which little is known.

    Args:
        estimates: of everybody and of groups.
        ranges: the smallest and the largest value of each statistic that is judged.
        advice: what would make it known better.
    """
    return [
        f"The {one.statistic} is not known: its interval covers most of the possible range. Use {advice}."
        for one in estimates
        if one.group == EVERYBODY and one.statistic in ranges
        for smallest, largest in [ranges[one.statistic]]
        if one.high - one.low > 0.5 * (largest - smallest)
    ]


def group_warnings(grouping: Grouping | None, groups: Sequence[str]) -> list[str]:
    """Returns a warning where none of the named groups is published. groups: names of the published ones."""
    if grouping is None or set(groups) - {OTHER}:
        return []
    return [f"No group has {grouping.min_group:,} users by the noisy count: are their names written as in the logs?"]
