"""The files and the manifest of means and moments: post-processing of public tallies or of noisy sums. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RefusedError
from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    ASSUMPTIONS,
    CURATOR,
    EXACT_NOISE,
    LOCAL_ASSUMPTIONS,
    NO_LOCAL_PRIVACY,
    ONE_ID,
    PRIOR_BITS,
    PRIVACY_UNIT,
    PRIVATE_GROUPS,
    REPLACE_VALUE,
    ROWS_ARE_USERS,
    ROWS_SPEND_APART,
    VALUE_BOUND,
)
from sfumato.schemas.known_digits import laplace_z
from sfumato.schemas.moments import (
    BITS_SCHEMA,
    EVERYBODY,
    MOMENTS_SCHEMA,
    OTHER,
    SUMS,
    BitMeans,
    FixedPoint,
    MomentEstimate,
    Statistic,
    moment_cells_schema,
    moment_zones_schema,
)
from sfumato.schemas.region import deinterleave
from sfumato.schemas.release import BITS_FILE, CELLS_FILE, MOMENTS_FILE, ZONES_FILE
from sfumato.schemas.tree import node_names
from sfumato.schemas.trust import Trust
from sfumato.transforms.geo.cell_indexes import index_columns
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.groups import CellGroups, Grouping, ZoneGroups
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.quantities import SECOND
from sfumato.transforms.moments.local.tally import meter_entry
from sfumato.transforms.moments.statistic_kinds import Forms, shrunk, value_range
from sfumato.transforms.moments.view import moments_view
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata, release_manifest
from sfumato.transforms.statistics.shrinkage import simultaneous_z

Array = NDArray[np.float64]

_RANDOMISED_RESPONSE = "randomised response on single bits (integers against thresholds of 64 bits)"
_NOISE = "discrete Laplace noise on every count of reports (integers against thresholds of 64 bits)"
_CLIPPED_SHARE = 0.01  # of the users; clearly more of them outside the range bring a warning
_EVERYBODY_ERROR = 0.01  # the probability that the interval of all users misses, of the 5% that a listed cell is wrong


class Estimates(Protocol):
    """Every statistic of all users or by group, from published numbers."""

    def __call__(
        self, names: Sequence[str] = ..., groups: NDArray[np.int64] | None = ..., level: float = ...
    ) -> Iterator[MomentEstimate]:
        """The estimates. groups: int64[rows], the published group of each row. level: of the intervals."""


@dataclass(frozen=True)
class MomentsMetadata:
    """The release's identity and what is known before the run, next to the plan.

    Attributes:
        release: the release's identity.
        grouping: the groups; None for all users together.
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

    estimates: of all users, then by group. groups: names of the published groups. tables: by file name.
    """

    estimates: list[MomentEstimate]
    groups: list[str]
    tables: dict[str, pa.Table]


def moments_files(state: MomentsState, metadata: MomentsMetadata) -> dict[str, bytes]:
    """The files of users' reports by name; the manifest is the last. Raises RefusedError for an infinite estimate."""
    plan, grouping, bits = state.plan, metadata.grouping, state.bit_charts()
    clients, stddev = state.clients(), float(np.sqrt(state.clients_variance().item()))
    margin = 0.0 if grouping is None else simultaneous_z(len(grouping.groups)) * stddev / math.sqrt(len(clients))
    found = _moment_tables(state.estimates, plan.forms, grouping, clients, margin)
    found.tables[BITS_FILE] = pa.concat_tables([_bits_table(bit_means) for bit_means in bits])
    local = plan.epsilon is not None
    mechanism = [_RANDOMISED_RESPONSE] if local else ["every bit is reported as it is"]
    assumptions = [*LOCAL_ASSUMPTIONS] if local else [NO_LOCAL_PRIVACY, *LOCAL_ASSUMPTIONS[2:]]
    if plan.released_epsilon is not None:
        mechanism.append(_NOISE)
    if grouping is not None:
        assumptions.append(PRIVATE_GROUPS)
    if plan.prior:
        assumptions.append(PRIOR_BITS)
    if not metadata.bounded:
        assumptions = [ROWS_ARE_USERS if assumption == ONE_ID else assumption for assumption in assumptions]
    forms: dict[str, Any] = {"fixed_point": _form(plan.form)}
    if plan.second is not None:
        forms["second"] = {"column": metadata.second_column, "fixed_point": _form(plan.second)}
    privacy = {
        "trust": Trust.LOCAL if local else Trust.SECAGG,
        "epsilon": plan.released_epsilon if local else None,
        "delta": 0.0,
        "collector": {"epsilon": plan.epsilon, "adjacency": REPLACE_VALUE} if local else None,
        "shares": {"admission": plan.admission().epsilon, "tallies": plan.tally_epsilon} if local else None,
        "noise_stddev": plan.noise_stddev,
        "mechanism": "; ".join(mechanism),
        "randomness": metadata.release.source,
        "groups": None
        if grouping is None
        else {"epsilon": plan.released_epsilon, "min_group": grouping.min_group, "noise_stddev": plan.noise_stddev},
        "meter": meter_entry(plan.response, bits),
        "assumptions": assumptions,
    }
    rounds = [
        {
            "quantity": query.quantity.kind,
            "round": query.round,
            "clients": max(float(tally.reports.sum()), 0.0) / plan.bits_per_client,
            "reports": max(float(tally.reports.sum()), 0.0),
        }
        for query, tally in state.tallies
    ]
    warnings = [
        *_bit_warnings(bits, local),
        *_vague_warnings(found, plan.forms, "more users, a larger epsilon, or fewer --bits"),
    ]
    users = float(clients.sum()), stddev
    entries = {**forms, "method": plan.method_of(state)}
    return _files(metadata, found, entries, privacy, users, {"rounds": rounds}, warnings)


def central_files(state: CentralSums, metadata: MomentsMetadata) -> dict[str, bytes]:
    """The files of a curator's sums by name; the manifest is the last. Raises RefusedError for an infinite estimate."""
    plan, grouping = state.plan, metadata.grouping
    found = central_tables(state, grouping)
    entries: dict[str, Any] = {}
    if plan.degree:
        sources = ["noisy counts" if span is None else "given" for span in (plan.span, plan.second_span)]
        ranges = [{**asdict(span), "source": source} for span, source in zip(state.spans, sources, strict=False)]
        entries["range"] = ranges[0]
        if plan.has_second:
            entries["second"] = {"column": metadata.second_column, "range": ranges[1]}
    assumptions = [CURATOR, *ASSUMPTIONS[2:], EXACT_NOISE]
    if not metadata.bounded:
        assumptions = [ROWS_SPEND_APART if one == ONE_ID else one for one in assumptions]
    privacy = {
        "trust": Trust.CENTRAL,
        "epsilon": plan.epsilon,
        "delta": 0.0,
        "shares": plan.shares,
        "noise_stddev": plan.count_stddev,
        "mechanism": f"discrete Laplace noise on {plan.slots} sum{'s'[: plan.degree]} of Bernstein polynomials "
        f"over the range{'s' * plan.has_second}, in every group, which one user changes by 1 in all (integers "
        "against thresholds of 64 bits)",
        "randomness": metadata.release.source,
        "groups": None if grouping is None else {"min_group": grouping.min_group},
        "assumptions": assumptions,
    }
    users = float(state.clients.sum())
    users_stddev = plan.count_stddev * math.sqrt(len(state.clients))
    results, warnings = dict[str, Any](), list[str]()
    if plan.degree:
        shares = [min(max(float(count) / max(users, 1.0), 0.0), 1.0) for count in state.outside]
        clipped = [
            {"below": below, "above": above, "stddev": plan.outside_stddev / max(users, 1.0)}
            for below, above in zip(shares[::2], shares[1::2], strict=True)
        ]
        results = dict(zip(("clipped", "second_clipped"), clipped, strict=False))
        margin = laplace_z(0.99) * plan.outside_stddev / max(users - laplace_z(0.99) * users_stddev, 1.0)
        warnings += [
            f"About {part[side]:.1%} of the users have values {side} the {name.replace('_', ' ')} and count as its end"
            f"{'' if source == 'noisy counts' else f'; give a wider --{name}'}."
            for part, source, name in zip(clipped, sources, ("range", "second_range"), strict=False)
            for side in ("below", "above")
            if part[side] - margin > _CLIPPED_SHARE
        ]
    if not state.span_is_sure:
        warnings.append(
            "No power of two has clearly more users than the noise, so the range is a guess: give --range, use more "
            "users or a larger epsilon."
        )
    warnings += _vague_warnings(found, state.spans, "more users, or a larger epsilon")
    return _files(metadata, found, entries, privacy, (users, users_stddev), results, warnings)


def _files(
    metadata: MomentsMetadata,
    found: MomentTables,
    entries: dict[str, Any],
    privacy: dict[str, Any],
    users: tuple[float, float],
    results: dict[str, Any],
    warnings: Sequence[str],
) -> dict[str, bytes]:
    """The files from the tables and what the manifest states. users: estimated, and its standard deviation."""
    grouping = metadata.grouping
    content = {
        "column": metadata.column,
        **({} if grouping is None else grouping.groups.place()),
        **entries,
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": VALUE_BOUND[metadata.bounded],
            "adjacency": ADD_OR_REMOVE,
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


def _form(form: FixedPoint) -> dict[str, Any]:
    return {**asdict(form), "step": form.step, "low": form.low, "high": form.high}


def _bits_table(bits: BitMeans) -> pa.Table:
    columns = {name: getattr(bits, name) for name in BITS_SCHEMA.names if name != "quantity"}
    return pa.table({"quantity": [bits.quantity] * len(bits.weight), **columns}, schema=BITS_SCHEMA)


def _bit_warnings(bits: Sequence[BitMeans], local: bool) -> list[str]:
    warnings = [] if local else ["Bits are reported as they are: this release has no differential privacy (--no_dp)."]
    for bit_means in bits:
        name = {"value": "the values", SECOND + "value": "the second column's values"}.get(bit_means.quantity)
        # For empty bits, the probability that noise lifts any above the line is 5%.
        line = NormalDist().inv_cdf(1 - 0.05 / len(bit_means.mean)) * bit_means.stddev
        if name and local and not (bit_means.mean > line).any():
            warnings.append(
                f"No bit of {name} is above its noise, so the estimates shrink towards 0: use more users, a "
                "larger epsilon, fewer --bits, or --method weighted, which does not shrink."
            )
        if name and (bit_means.mean - 2 * bit_means.stddev > 0.8)[-3:].all():
            warnings.append(
                f"The highest bits of {name} are set for nearly all users: many values may lie beyond the range and "
                "count as its end. Give more --bits or fewer --fraction_bits (--verbose counts such values)."
            )
    return warnings


def _vague_warnings(found: MomentTables, forms: Forms, advice: str) -> list[str]:
    """A warning for each statistic of all users of which little is known. advice: what would make it known better."""
    warnings = []
    for one in found.estimates:
        if one.group == EVERYBODY and one.statistic not in SUMS:
            smallest, largest = value_range(Statistic(one.statistic), forms)
            if one.high - one.low > 0.5 * (largest - smallest):
                warnings.append(
                    f"The {one.statistic} is not known: its interval covers most of the possible range. Use {advice}."
                )
    return warnings


def central_tables(state: CentralSums, grouping: Grouping | None) -> MomentTables:
    """The tables of a curator's release. Raises RefusedError if an estimate is not finite."""
    margin = 0.0 if grouping is None else groups_margin(state.plan, grouping)
    least = 0.0 if grouping is None else max(grouping.min_group, margin)
    half = laplace_z(0.95) * state.plan.count_stddev

    def estimates(*given: Any, **level: Any) -> Iterator[MomentEstimate]:
        for one in state.estimates(*given, **level):
            yield _allow_for_selection(one, least, half, state.value_range(Statistic(one.statistic)))

    return _moment_tables(estimates, state.spans, grouping, state.clients, margin)


def groups_margin(plan: CentralMomentsPlan, grouping: Grouping) -> float:
    """The users that noise adds to any empty group with a probability of 5% in all groups together."""
    return laplace_z(1 - 0.1 / len(grouping.groups)) * plan.count_stddev  # 10% at both sides


def _allow_for_selection(
    estimate: MomentEstimate, least: float, margin: float, ends: tuple[float, float]
) -> MomentEstimate:
    """The estimate with an interval that allows for how published groups are chosen: by their noisy numbers of users.

    A group of fewer users is published only where noise lifts it to `least`. Laplace noise beyond that has the same
    distribution for all of them. So if the noisy number is no further above than an end at 97.5%, any smaller number of
    users explains it as well as the next, and the interval of the count begins at 0. Other statistics of such a group
    get intervals at 99% instead of 95%.

    Args:
        estimate: of a group or of all users.
        least: the smallest noisy number of users of a published group.
        margin: half the width of a count's 95% interval, in users.
        ends: the smallest and the largest value of the statistic.
    """
    near = estimate.clients - least <= math.log(40) / math.log(20) * margin
    if not near or estimate.group in (EVERYBODY, OTHER):
        return estimate
    if estimate.statistic == "count":
        return replace(estimate, low=0.0)
    wider = math.log(100) / math.log(20)
    low, high = (estimate.value + wider * (end - estimate.value) for end in (estimate.low, estimate.high))
    return replace(estimate, low=max(low, ends[0]), high=min(high, ends[1]), stddev=wider * estimate.stddev)


def _moment_tables(
    estimates: Estimates, forms: Forms, grouping: Grouping | None, clients: Array, margin: float
) -> MomentTables:
    """Chooses the groups that are published, and makes the tables. Raises RefusedError for an infinite estimate.

    clients: float64[rows], estimated users of each row. margin: see Grouping.published_groups.
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
        tables |= _places_table(grouping.groups, codes, found, shrunk(found, forms), compared)
    return MomentTables(found, names, tables)


def simultaneous(
    estimates: Estimates, names: Sequence[str], published_group: NDArray[np.int64], statistic: str
) -> tuple[NDArray[np.int8], Array, Array]:
    """Intervals of the shown cells' first statistic that hold for all of them at once.

    The probability that any cell is wrongly said to differ from everybody is 5%.

    Args:
        names: of the groups; `other` is the last.
        published_group: int64[tally rows], the published group of each row of the tallies.
        statistic: name of the first statistic.

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
    """The file of published cells or zones, one row each, with all statistics.

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
