"""What releases of means and moments have in common: tables of estimates, and the manifest. Post-processing. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RefusedError
from sfumato.schemas.guarantee import ADD_OR_REMOVE, ADJACENCY_TEXTS, PRIVACY_UNIT, VALUE_BOUND
from sfumato.schemas.moments import (
    EVERYBODY,
    MOMENTS_SCHEMA,
    OTHER,
    SUMS,
    MomentEstimate,
    Statistic,
    moment_cells_schema,
    moment_zones_schema,
)
from sfumato.schemas.region import deinterleave
from sfumato.schemas.release import CELLS_FILE, MOMENTS_FILE, ZONES_FILE
from sfumato.schemas.tree import node_names
from sfumato.transforms.geo.cell_indexes import index_columns
from sfumato.transforms.moments.groups import CellGroups, Grouping, ZoneGroups
from sfumato.transforms.moments.statistic_kinds import Forms, shrunk, value_range
from sfumato.transforms.moments.view import moments_view
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata, release_manifest

Array = NDArray[np.float64]

_EVERYBODY_ERROR = 0.01  # the probability that the interval of all users misses, of the 5% that a listed cell is wrong


Estimates = Callable[..., Iterator[MomentEstimate]]
"""Every statistic, from published numbers. Arguments, all optional: the names of groups; int64[rows], the published
group of each row; `level`, of the intervals."""


@dataclass(frozen=True)
class MomentsMetadata:
    """The release's identity and what is known before the run, next to the plan."""

    release: ReleaseMetadata
    grouping: Grouping | None  # the groups; None for all users together
    column: str  # of the values
    bounded: bool  # whether one record of each user counts; otherwise rows are users
    second_column: str | None = None  # of the second values; None without them


@dataclass(frozen=True)
class MomentTables:
    """The published statistics."""

    estimates: list[MomentEstimate]  # of all users, then by group
    groups: list[str]  # names of the published groups
    tables: dict[str, pa.Table]  # by file name


def release_of(
    metadata: MomentsMetadata,
    found: MomentTables,
    entries: dict[str, Any],
    privacy: dict[str, Any],
    users: tuple[float, float],
    results: dict[str, Any],
    warnings: Sequence[str],
) -> dict[str, bytes]:
    """Returns the files from the tables and what the manifest states. users: estimated, and its standard deviation."""
    grouping = metadata.grouping
    content = {
        "column": metadata.column,
        **({} if grouping is None else grouping.groups.place()),
        **entries,
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": VALUE_BOUND[metadata.bounded],
            "adjacency": ADJACENCY_TEXTS[ADD_OR_REMOVE],
            **privacy,
        },
        "results": {
            "clients": max(users[0], 0.0),
            "clients_stddev": users[1],
            "groups_published": None if grouping is None else len(found.groups),
            **results,
        },
    }
    unknown = []
    if grouping is not None and not set(found.groups) - {OTHER}:
        unknown = [
            f"No group has {grouping.min_group:,} users by the noisy count: are their names written as in the logs?"
        ]
    manifest = release_manifest(metadata.release, content, [*warnings, *unknown])
    return build_release({**found.tables, **metadata.release.geography_files}, manifest, moments_view)


def vague_warnings(found: MomentTables, forms: Forms, advice: str) -> list[str]:
    """Returns a warning for each statistic of all users of which little is known."""
    warnings = []
    for one in found.estimates:
        if one.group == EVERYBODY and one.statistic not in SUMS:
            smallest, largest = value_range(Statistic(one.statistic), forms)
            if one.high - one.low > 0.5 * (largest - smallest):
                warnings.append(
                    f"The {one.statistic} is not known: its interval covers most of the possible range. Use {advice}."
                )
    return warnings


def moment_tables(
    estimates: Estimates, forms: Forms, grouping: Grouping | None, clients: Array, margin: float
) -> MomentTables:
    """Chooses the groups that are published, and makes the tables. Raises RefusedError for an infinite estimate.

    clients: float64[tallies], estimated users of each row of the tallies: of a group, or of a part of one.
    margin: see Grouping.published_groups.
    """
    rows, names = list(estimates()), list[str]()
    if grouping is not None:
        published, published_group = grouping.published_groups(clients, margin)
        sizes = np.bincount(published_group, clients).tolist()
        # All but `other` are large enough.
        names = [name for name, size in zip(published, sizes, strict=True) if size >= grouping.min_group]
        kept = set(names)
        rows += [row for row in estimates(published, published_group) if row.group in kept]
    if not np.isfinite([[estimate.value, estimate.stddev] for estimate in rows]).all():
        raise RefusedError(
            "an estimate is beyond what a number can hold; ask for fewer --bits, a smaller --range or a lower moment"
        )
    tables = {MOMENTS_FILE: pa.Table.from_pylist([asdict(estimate) for estimate in rows], MOMENTS_SCHEMA)}
    if grouping is not None and isinstance(grouping.groups, CellGroups | ZoneGroups):
        located = {name: code for code, name in enumerate(grouping.groups.names())}
        codes = np.array([located[name] for name in names if name != OTHER], np.uint64)
        compared = simultaneous(estimates, published, published_group, rows[0].statistic)
        tables |= _places_table(grouping.groups, codes, rows, shrunk(rows, forms), compared)
    return MomentTables(rows, names, tables)


def simultaneous(
    estimates: Estimates, names: Sequence[str], published_group: NDArray[np.int64], statistic: str
) -> tuple[NDArray[np.int8], Array, Array]:
    """Intervals of the shown cells' first statistic that hold for all of them at once.

    The probability that any cell is wrongly reported to differ from all users is 5%. names: of the groups; `other` is
    the last. published_group: int64[tally rows], of each row of the tallies.

    Returns:
        1 or -1 if a cell is clearly above or below all users, else 0, int8[cells]; the ends of the intervals,
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


def _places_table(
    groups: CellGroups | ZoneGroups,
    codes: NDArray[np.uint64],
    estimates: Sequence[MomentEstimate],
    shown: Sequence[MomentEstimate],
    compared: tuple[NDArray[np.int8], Array, Array],
) -> dict[str, pa.Table]:
    """Returns the file of published cells or zones, one row each, with all statistics.

    codes: uint64[rows], of the cells, or indexes of the zones. shown: the shrunk estimates. compared: see simultaneous.
    """

    def column(rows: Sequence[MomentEstimate], statistic: str, field: str) -> Array:
        chosen = [row for row in rows if row.statistic == statistic and row.group not in (EVERYBODY, OTHER)]
        return np.array([getattr(row, field) for row in chosen], np.float64)

    statistics = list(dict.fromkeys(estimate.statistic for estimate in estimates))
    columns: dict[str, Any] = {
        f"{statistic}_{field}": column(estimates, statistic, field)
        for statistic in statistics
        for field in ("value", "stddev", "low", "high", "clients")
    }
    columns[f"{statistics[0]}_shrunk"] = column(shown, statistics[0], "value")
    columns[f"{statistics[0]}_shrunk_stddev"] = column(shown, statistics[0], "stddev")
    for name, values in zip(("differs", "simultaneous_low", "simultaneous_high"), compared, strict=True):
        columns[f"{statistics[0]}_{name}"] = pa.array(values, from_pandas=True)  # NaN becomes null
    if isinstance(groups, ZoneGroups):
        columns["zone"] = [groups.zones.ids[code] for code in codes.tolist()]
        columns["geometry"] = shapely.to_wkb(groups.zones.geometries[codes.astype(np.int64)])
        return {ZONES_FILE: pa.table(columns, schema=moment_zones_schema(statistics))}
    grid, depth = groups.grid, np.full(len(codes), groups.grid.depth)
    bounds = grid.bounds(*deinterleave(codes), depth)
    columns |= {
        "cell_id": node_names(codes | np.uint64(1 << (2 * grid.depth))),
        "depth": depth.astype(np.int8),
        **dict(zip(("west", "south", "east", "north"), bounds, strict=True)),
        **index_columns(grid, depth, *bounds),
        "geometry": shapely.to_wkb(shapely.box(*bounds)),
    }
    return {CELLS_FILE: pa.table(columns, schema=moment_cells_schema(statistics))}
