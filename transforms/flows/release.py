"""The files and the manifest of a release of flows: post-processing of noisy counts. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.guarantee import ADD_OR_REMOVE, ADJACENCY_TEXTS, CURATOR, PRIVACY_UNIT, SHARED_ASSUMPTIONS, Trust
from sfumato.schemas.region import Grid, Region, deinterleave
from sfumato.schemas.release import (
    FLOW_ZONES_FILE,
    FLOWS_CSV,
    FLOWS_FILE,
    flow_zones_schema,
    flows_schema,
)
from sfumato.schemas.tree import node_names
from sfumato.transforms.flows.flow_estimate import Flows, MeasuredLevel, estimate_flows, estimate_zone_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.user_trips import TripRule, split_pairs
from sfumato.transforms.flows.view import flows_view
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata, csv_bytes, release_manifest

_NOTHING = "No pair has trips with enough certainty: all trips are in the rests."


@dataclass(frozen=True)
class FlowMetadata:
    """The metadata of a release of flows: all but its noisy counts."""

    release: ReleaseMetadata  # identity and origin
    plan: FlowPlan  # the budget
    region: Region  # of the map
    rule: TripRule | None  # what makes a trip of two records; None where rows are trips
    admission: NoisyUserCounts  # the noisy counts of users that admitted the run
    zones: Zones | None = None  # the ends of flows; None for cells


def flow_files(levels: Sequence[MeasuredLevel], metadata: FlowMetadata) -> dict[str, bytes]:
    """Returns the files of a release by name; the manifest is the last."""
    zones = metadata.zones
    parts: dict[str, pa.Table | bytes] = {**metadata.release.geography_files}
    if zones is None:
        flows = estimate_flows(levels)
        table = flows_table(flows, metadata.region)
    else:
        flows = estimate_zone_flows(levels)
        table = zone_flows_table(flows, zones)
        columns = {
            "zone": pa.array(zones.ids, pa.string()),
            **({} if zones.labels is None else {"name": pa.array(zones.labels, pa.string())}),
            "longitude": zones.points[:, 0],
            "latitude": zones.points[:, 1],
            "area": zones.areas_km2,
            "geometry": shapely.to_wkb(zones.geometries),
        }
        parts[FLOW_ZONES_FILE] = pa.table(columns, schema=flow_zones_schema(zones.labels is not None))
    parts |= {FLOWS_FILE: table, FLOWS_CSV: csv_bytes(table.drop_columns(["geometry"]))}
    return build_release(parts, _manifest(flows, levels, metadata), flows_view)


def flows_table(flows: Flows, region: Region) -> pa.Table:
    """Returns the flows by `flows_schema`, largest first among the listed pairs, then the rests."""
    order = np.lexsort((flows.pair, flows.level, -flows.trips, flows.is_rest))
    pairs, level = flows.pair[order], flows.level[order]
    origins, destinations = np.zeros_like(pairs), np.zeros_like(pairs)
    for one in np.unique(level).tolist():
        at = level == one
        origins[at], destinations[at] = split_pairs(pairs[at], one)
    names = [node_names(cells | np.uint64(1) << (2 * level).astype(np.uint64)) for cells in (origins, destinations)]
    centres = []
    for cells in (origins, destinations):
        west, south, east, north = Grid(region, 1).bounds(*deinterleave(cells), level)
        centres.append(np.stack([(west + east) / 2, (south + north) / 2], axis=1))
    table = {
        "origin_cell": names[0],
        "destination_cell": names[1],
        "depth": level.astype(np.int8),
        **_counts(flows, order, *centres),
    }
    return pa.table(table, schema=flows_schema())


def zone_flows_table(flows: Flows, zones: Zones) -> pa.Table:
    """Returns the flows between zones by `flows_schema`, in the order of `flows_table`."""
    order = np.lexsort((flows.pair, -flows.trips, flows.is_rest))
    pair, is_rest = flows.pair[order].astype(np.int64), flows.is_rest[order]
    # The rest of an origin has no destination: in the table null, for its geometry the origin itself.
    origins = np.where(is_rest, pair, pair // len(zones))
    destinations = np.where(is_rest, pair, pair % len(zones))
    ids, points = pa.array(zones.ids, pa.string()), zones.points
    names = {}
    if zones.labels is not None:
        labels = pa.array(zones.labels, pa.string())
        names["origin_name"] = labels.take(pa.array(origins))
        names["destination_name"] = labels.take(pa.array(destinations, mask=is_rest))
    table = {
        "origin_zone": ids.take(pa.array(origins)),
        "destination_zone": ids.take(pa.array(destinations, mask=is_rest)),
        **names,
        **_counts(flows, order, points[origins], points[destinations]),
    }
    for name in ("destination_longitude", "destination_latitude"):
        table[name] = pa.array(table[name], mask=is_rest)
    return pa.table(table, schema=flows_schema(zones=True, named=bool(names)))


def _counts(
    flows: Flows, order: NDArray[np.int64], begin: NDArray[np.float64], end: NDArray[np.float64]
) -> dict[str, Any]:
    """Returns the columns that both tables have.

    begin, end: longitude and latitude of the two places, float64[n, 2].
    """
    lines = np.asarray(shapely.linestrings(np.stack([begin, end], axis=1)), dtype=object)
    same = (begin == end).all(axis=1)
    lines[same] = shapely.points(begin[same])  # a line of no length is invalid
    return {
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
        "geometry": shapely.to_wkb(lines),
    }


def _manifest(flows: Flows, levels: Sequence[MeasuredLevel], metadata: FlowMetadata) -> dict[str, Any]:
    plan, admission = metadata.plan, metadata.admission
    depth, zones, rule = levels[-1].level, metadata.zones, metadata.rule
    many = "one trip" if plan.max_trips == 1 else f"at most {plan.max_trips} trips"
    made = "a row is a trip"
    if rule is not None:
        made = f"a trip is two consecutive records within {rule.max_gap:g} s, at least {rule.min_distance:g} m apart"
    listed = ~flows.is_rest
    if zones is None:
        places: dict[str, Any] = {"grid": {"depth": depth, "side": 1 << depth}}
        counted = "trips of pairs of cells in an adaptive tree"
        once = "one pair of each level down to the pair that it ends in"
    else:
        places = {"zones": {"sha256": zones.digest, "zones": len(zones), "column": zones.name}}
        counted = "trips of all pairs of public zones"
        once = "one pair of zones"
    rounds, noise = [], 0.0  # the variance of the noise of all counts together
    for index, one in enumerate(levels):
        stddev = discrete_laplace_stddev(one.rate)
        noise += float((~one.is_split).sum()) * stddev**2
        rounds.append(
            {
                "index": index,
                "level": one.level,
                "noise": "laplace",
                "epsilon": one.rate * plan.max_trips,
                "noise_stddev": stddev,
                "pairs": len(one.nodes),
                "split": int(one.is_split.sum()),
                "published": int((listed & (flows.level == one.level)).sum()),
            }
        )
    content = {
        "region": asdict(metadata.region),
        **places,
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": f"{many} of each user, chosen at random from all of the user's trips; {made}",
            "adjacency": ADJACENCY_TEXTS[ADD_OR_REMOVE],
            "trust": Trust.CENTRAL,
            "epsilon": plan.epsilon,
            "epsilon_spent": plan.epsilon,
            "delta": 0.0,
            "delta_spent": 0.0,
            "mechanism": f"discrete Laplace noise on the {counted}, also where nobody travelled, and on two counts of "
            "users, which admit the run",
            "randomness": metadata.release.source,
            "rounds": rounds,
            "rounds_guarantee": {"epsilon": plan.tree_epsilon, "delta": 0.0},
            "admission": admission.entry(),
            "composition": f"a trip is counted in {once}; the epsilons of these and of the admission are added up",
            "assumptions": [CURATOR, *SHARED_ASSUMPTIONS],
        },
        "results": {
            "published": int(listed.sum()),
            "trips": round(float(flows.trips.sum()), 3),
            "trips_stddev": round(math.sqrt(noise), 3),
            "trips_listed": round(float(flows.trips[listed].sum()), 3),
            "users": admission.users,
            "users_stddev": admission.noise_stddev,
        },
    }
    return release_manifest(metadata.release, content, [] if listed.any() else [_NOTHING])
