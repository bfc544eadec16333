"""The files and the manifest of a release of flows: post-processing of noisy counts. Pure."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import shapely
from numpy.typing import NDArray

from sfumato.schemas.guarantee import ADD_OR_REMOVE, ASSUMPTIONS, CURATOR, PRIVACY_UNIT
from sfumato.schemas.region import Grid, Region, deinterleave
from sfumato.schemas.release import FLOWS_CSV, FLOWS_FILE, MANIFEST_FILE, flows_schema
from sfumato.schemas.tree import node_names
from sfumato.schemas.trust import Trust
from sfumato.transforms.flows.flow_estimate import Flows, estimate_flows
from sfumato.transforms.flows.flow_plan import FlowPlan
from sfumato.transforms.flows.flow_tree import MeasuredLevel
from sfumato.transforms.flows.flow_view import flows_view
from sfumato.transforms.flows.pair_codes import Codes, split_pairs
from sfumato.transforms.flows.user_trips import TripRule
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.release.metadata import ReleaseMetadata, manifest_bytes, parquet_bytes, release_manifest
from sfumato.transforms.report.pages import page_files

_NOTHING = "No pair of cells surely has trips: everything is in the rest of the whole region."


@dataclass(frozen=True)
class FlowMetadata:
    """What a release of flows is, beside its noisy counts.

    Attributes:
        release: identity and origin.
        plan: the budget.
        region: of the map.
        rule: what makes a trip of two records; None where rows are trips.
        admission: the noisy counts of users that admitted the run.
    """

    release: ReleaseMetadata
    plan: FlowPlan
    region: Region
    rule: TripRule | None
    admission: NoisyUserCounts


def flow_files(levels: Sequence[MeasuredLevel], metadata: FlowMetadata) -> dict[str, bytes]:
    """The files of a release by name; the manifest is the last."""
    flows = estimate_flows(levels)
    table = flows_table(flows, metadata.region)
    files = {
        FLOWS_FILE: parquet_bytes(table),
        FLOWS_CSV: csv_bytes(table.drop_columns(["geometry"])),
        **metadata.release.geography_files,
        MANIFEST_FILE: manifest_bytes(_manifest(flows, levels, metadata)),
    }
    return {**page_files(flows_view(files)), **files}


def flows_table(flows: Flows, region: Region) -> pa.Table:
    """The flows by `flows_schema`, largest first among the listed pairs, then the rests."""
    order = np.lexsort((flows.pair, flows.level, -flows.trips, flows.is_rest))
    level = flows.level[order]
    origins, destinations = _cells(flows.pair[order], level)
    begin, end = (_centres(cells, level, region) for cells in (origins, destinations))
    table = {
        "origin_cell": _names(origins, level),
        "destination_cell": _names(destinations, level),
        "depth": level.astype(np.int8),
        "is_rest": flows.is_rest[order],
        "trips": np.round(flows.trips[order], 3),
        "stddev": np.round(flows.stddev[order], 3),
        "low": flows.low[order],
        "high": flows.high[order],
        "present": np.round(flows.present[order], 4),
        "noisy": flows.noisy[order],
        "noise_stddev": np.round(flows.noise_stddev[order], 6),
        "origin_longitude": begin[:, 0],
        "origin_latitude": begin[:, 1],
        "destination_longitude": end[:, 0],
        "destination_latitude": end[:, 1],
        "geometry": shapely.to_wkb(_lines(begin, end)),
    }
    return pa.table(table, schema=flows_schema())


def csv_bytes(table: pa.Table) -> bytes:
    """A table as CSV with a line of names."""
    file = io.BytesIO()
    pyarrow.csv.write_csv(table, file)
    return file.getvalue()


def _cells(pairs: Codes, level: NDArray[np.int64]) -> tuple[Codes, Codes]:
    """Codes of origins and destinations of pairs of several levels."""
    origins, destinations = np.zeros_like(pairs), np.zeros_like(pairs)
    for one in np.unique(level).tolist():
        at = level == one
        origins[at], destinations[at] = split_pairs(pairs[at], one)
    return origins, destinations


def _names(cells: Codes, level: NDArray[np.int64]) -> list[str]:
    return node_names(cells | np.uint64(1) << (2 * level).astype(np.uint64))


def _centres(cells: Codes, level: NDArray[np.int64], region: Region) -> NDArray[np.float64]:
    """Longitude and latitude of the centres of cells: float64[n, 2]."""
    x, y = deinterleave(cells)
    west, south, east, north = Grid(region, 1).bounds(x, y, level)
    return np.stack([(west + east) / 2, (south + north) / 2], axis=1)


def _lines(begin: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.object_]:
    """A line from place to place; a point where both are the same, since a line of no length is invalid."""
    lines = np.asarray(shapely.linestrings(np.stack([begin, end], axis=1)), dtype=object)
    same = (begin == end).all(axis=1)
    lines[same] = shapely.points(begin[same])
    return lines


def _manifest(flows: Flows, levels: Sequence[MeasuredLevel], metadata: FlowMetadata) -> dict[str, Any]:
    plan, admission = metadata.plan, metadata.admission
    depth = levels[-1].level
    listed = ~flows.is_rest
    content = {
        "region": asdict(metadata.region),
        "grid": {"depth": depth, "side": 1 << depth},
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": _bound_text(plan, metadata.rule),
            "adjacency": ADD_OR_REMOVE,
            "trust": Trust.CENTRAL,
            "epsilon": plan.epsilon,
            "epsilon_spent": plan.epsilon,
            "delta": 0.0,
            "delta_spent": 0.0,
            "mechanism": "discrete Laplace noise on the trips of pairs of cells in an adaptive tree, also where nobody "
            "travelled, and on two counts of users, which admit the run",
            "randomness": metadata.release.source,
            "rounds": [_round(one, flows, plan, place) for place, one in enumerate(levels)],
            "rounds_guarantee": {"epsilon": plan.tree_epsilon, "delta": 0.0},
            "admission": asdict(admission),
            "composition": "a trip is counted in one pair of each level down to the pair that it ends in; the epsilons "
            "of these and of the admission are added up",
            "assumptions": [CURATOR, *ASSUMPTIONS[2:]],
        },
        "results": {
            "published": int(listed.sum()),
            "trips": round(float(flows.trips.sum()), 3),
            "trips_stddev": round(_total_stddev(levels), 3),
            "trips_listed": round(float(flows.trips[listed].sum()), 3),
            "users": admission.users,
            "users_stddev": admission.noise_stddev,
        },
    }
    return release_manifest(metadata.release, content, [] if listed.any() else [_NOTHING])


def _total_stddev(levels: Sequence[MeasuredLevel]) -> float:
    """The standard deviation of the noise of all counts together."""
    return math.sqrt(sum(float((~one.is_split).sum()) * discrete_laplace_stddev(one.rate) ** 2 for one in levels))


def _round(measured: MeasuredLevel, flows: Flows, plan: FlowPlan, place: int) -> dict[str, Any]:
    return {
        "index": place,
        "level": measured.level,
        "noise": "laplace",
        "epsilon": measured.rate * plan.max_trips,
        "noise_stddev": discrete_laplace_stddev(measured.rate),
        "pairs": len(measured.nodes),
        "split": int(measured.is_split.sum()),
        "published": int((~flows.is_rest & (flows.level == measured.level)).sum()),
    }


def _bound_text(plan: FlowPlan, rule: TripRule | None) -> str:
    many = "one trip" if plan.max_trips == 1 else f"at most {plan.max_trips} trips"
    made = (
        "a row is a trip"
        if rule is None
        else f"a trip is two consecutive records within {rule.max_gap:g} s, at least {rule.min_distance:g} m apart"
    )
    return f"{many} of each user, drawn by the key from all of the user's trips; {made}"
