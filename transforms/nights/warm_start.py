"""What a heatmap takes from releases before it: a map to start from, and a night's state. All of it is public.

A start costs nothing beyond the epsilon of the earlier release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import parse_day
from sfumato.schemas.rectangle import region_from
from sfumato.schemas.region import Grid
from sfumato.schemas.release import ANSWERS_FILE, NIGHTS_FILE
from sfumato.schemas.timeline import stated_rotation
from sfumato.schemas.tree import Tree, nodes_from_names
from sfumato.transforms.counting.estimator import measurement_of
from sfumato.transforms.counting.parameters import digest
from sfumato.transforms.counting.state import Estimate, HeatmapState
from sfumato.transforms.nights.nights_state import MAX_NODES, NightsState
from sfumato.transforms.nights.nights_update import NightMap, update
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.statistics.posterior.full_tree import TreeMeasurement

MAX_COUNT = 2.0**62  # users; sums of larger counts would overflow
MAX_CELLS = 300_000  # the job's graph holds the cells, and services limit its size
_DESCRIPTION = (
    "cells.parquet: users of each cell tonight, estimated from the noisy answers of all these nights, with 95% "
    "intervals (users_low, users_high) of the number of users who were there; users_unbiased, totals.parquet and "
    "answers.parquet follow only from tonight's answers. changes: places where tonight differs from what the nights "
    "before lead to expect, tested for all places of the night together at the 5% level"
)
NIGHT_STDDEV = (
    "standard deviation of the posterior given the noisy answers of all nights of `nights.rests_on`, which holds the "
    "noise and the sampling of the cohorts; errors of cells depend on each other: for a sum use Release.total"
)
NIGHT_INTERVALS = (
    "users_low to users_high: pointwise 95% intervals of cells, of the number of users who were there, given the noisy "
    "answers of all nights of `nights.rests_on`"
)
_MAX_QUERIES = 64  # of a release, above what any method asks
NO_EARLIER = "There is no earlier release of the same region and depth."
NO_STATE = "The release before it does not hold a state of nights."


@dataclass(frozen=True)
class WarmStart:
    """The state that a new heatmap takes from an earlier release."""

    release_id: str  # of the earlier release
    estimate: Estimate  # its map
    epsilon: float  # its cost
    safe: bool  # whether the key of its noise is secret
    added: tuple[str, ...] = ()  # ids of later releases, whose answers a night's map adds

    @classmethod
    def from_release(cls, manifest: Mapping[str, Any], cells: pa.Table, grid: Grid) -> WarmStart:
        """Reads the manifest and the `cells.parquet` of a release for a new heatmap's grid.

        Raises RequestError if the release is not of a heatmap, is damaged, or has another region or depth.
        """
        if manifest.get("job") != "heatmap":
            raise RequestError(f"warm_start: a heatmap's release is needed, this one is of {manifest.get('job')!r}")
        try:
            region = region_from(manifest["region"])
            depth, release_id = int(manifest["grid"]["depth"]), str(manifest["release_id"])
            epsilon = check_epsilon("epsilon", float(manifest["privacy"]["epsilon"]))
            safe = manifest["privacy"]["randomness"]["safe"] is True
        except (KeyError, TypeError, ValueError, RequestError) as error:
            problem = f"the release's manifest lacks its region, grid or guarantee ({error!r})"
            raise RequestError(f"warm_start: {problem}") from None
        if region != grid.region:
            here = grid.region
            raise RequestError(f"warm_start: the release is of region {region}, this heatmap of {here}; give the same")
        if depth != grid.depth:
            raise RequestError(f"warm_start: the release has depth {depth}, this heatmap {grid.depth}; give the same")
        return cls(release_id, _read_estimate(cells, depth), epsilon, safe)

    def metadata(self) -> dict[str, Any]:
        """Returns the entry in the new release's manifest: the earlier releases' ids, the first's epsilon, the map's
        digest.
        """
        added = {"added": list(self.added)} if self.added else {}
        return {"release_id": self.release_id, "epsilon": self.epsilon, "digest": digest(self.estimate), **added}


def _read_estimate(cells: pa.Table, depth: int) -> Estimate:
    """Returns the map of a table of cells, in any order.

    Raises RequestError if the cells are not a map of this depth.
    """
    try:
        entries = nodes_from_names(cells.column("cell_id").to_pylist(), depth)
        counts, stddev = (np.asarray(cells.column(name).to_numpy(), dtype=np.float64) for name in ("count", "stddev"))
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"warm_start: the release's cells are damaged ({error})") from None
    if len(entries) > MAX_CELLS:
        raise RequestError(f"warm_start: the release has {len(entries):,} cells, and {MAX_CELLS:,} are the most")
    # Comparisons with NaN are false.
    if not (len(entries) and (abs(counts) < MAX_COUNT).all() and ((stddev >= 0) & (stddev < MAX_COUNT)).all()):
        raise RequestError("warm_start: the release's cells are damaged (counts or deviations that are no numbers)")
    order = np.argsort(entries)
    tree = Tree.of(depth, with_complete_parents(entries[order]))
    if not np.array_equal(tree.entries, entries[order]):
        raise RequestError("warm_start: the release's cells are damaged (they do not cover the region, or repeat)")
    return Estimate(tree, counts[order], stddev[order])


def with_complete_parents(entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Adds the nodes that own no entry because all four of their children exist."""
    nodes = entries
    while True:
        parents, children = np.unique(nodes[nodes > 1] >> np.uint64(2), return_counts=True)
        complete = np.setdiff1d(parents[children == 4], nodes)
        if not len(complete):
            return nodes
        nodes = np.union1d(nodes, complete)


@dataclass(frozen=True)
class Night:
    """A night whose map is made, and the nights that it continues."""

    night: date  # its date
    state: NightsState | None  # after the last of the nights before; None where the nights restart
    anew: str | None  # why they restart, as a sentence; None where they continue


def nights_before(folders: Sequence[str], night: date) -> Night:
    """Reads the state of the first release, and adds the answers of the others, night by night.

    folders: of releases of heatmaps of one region and depth, by night. Raises RequestError if one of them cannot be
    read, or is not of an earlier night.
    """
    if not folders:
        return Night(night, None, NO_EARLIER)
    first, *others = (open_release(folder) for folder in folders)
    if first.grid is None or NIGHTS_FILE not in (first.listed or ()):
        return Night(night, None, NO_STATE)
    state = NightsState.from_table(first.arrow_table(NIGHTS_FILE, 2 * MAX_NODES), first.grid.depth)
    if state.night >= night:
        raise RequestError(f"warm_start: {first.path} is of night {state.night}, which is not before {night}")
    for release in others:
        state = _with_release(state, release)
    return Night(night, state, None)


def _with_release(state: NightsState, release: Release) -> NightsState:
    """Adds the answers of a release. Raises RequestError unless it is of a later night than the state's."""
    stated = release.manifest.get("nights")
    if not isinstance(stated, dict):
        raise RequestError(f"warm_start: {release.path} is not of a night (--night)")
    try:
        night = parse_day("night", str(stated["night"]))
        results = release.manifest["results"]
        users, stddev = (float(results[name]) for name in ("users", "users_stddev"))
        if not (0 <= users < MAX_COUNT and 0 <= stddev < MAX_COUNT):  # comparisons with NaN are false
            raise ValueError("its number of users is none")
        measured = _published_measurements(release)
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:  # RequestError is a ValueError
        raise RequestError(f"warm_start: {release.path} cannot be added to the nights ({error})") from None
    if night <= state.night:
        raise RequestError(f"warm_start: {release.path} is of night {night}, which is not after {state.night}")
    return update(state, night, measured, users, stddev)[0]


def _published_measurements(release: Release) -> list[TreeMeasurement]:
    """Returns the answers of a release's sub-queries, of all users."""
    if release.grid is None:
        raise ValueError("the manifest has no grid")
    privacy, depth = release.manifest["privacy"], release.grid.depth
    asked = stated_rotation(release.manifest)
    cohorts = 1 if asked is None else asked.cohorts
    shards, queries = privacy["cohort"]["shards"], privacy["sub_queries"]
    if not (isinstance(queries, list) and 1 <= len(queries) <= _MAX_QUERIES):
        raise ValueError("sub_queries: none, or too many")
    answers, found = release.arrow_table(ANSWERS_FILE, _MAX_QUERIES * MAX_CELLS), []
    for query in queries:
        part = answers.filter(pc.equal(answers["sub_query"], pa.scalar(int(query["index"]), pa.int16())))
        entries = nodes_from_names(part["cell_id"].to_pylist(), depth)
        order = np.argsort(entries)
        tree = Tree.of(depth, with_complete_parents(entries[order]))
        users, stddev = (part[name].to_numpy()[order] for name in ("users", "stddev"))
        are_numbers = (abs(users) < MAX_COUNT).all() and ((stddev > 0) & (stddev < MAX_COUNT)).all()
        if not (np.array_equal(tree.entries, entries[order]) and are_numbers):
            raise ValueError(f"{ANSWERS_FILE} is damaged")
        share = 1.0 if shards is None else (query["shards"] - query["shards_lost"]) / shards
        if not 1 / MAX_COUNT < share <= 1:
            raise ValueError("shards: more were lost than there are")
        found.append(TreeMeasurement(tree, users, stddev**2, cohorts / share - 1))
    return found


def nights_content(after: NightsState, tonight: NightMap, night: Night) -> dict[str, Any]:
    """Returns the manifest's entry on the nights that a map is based on."""
    return {
        "night": str(night.night),
        "rests_on": [str(period) for period in after.rests_on],
        "started_anew": night.anew,
        "changes": [
            {"cell_ids": one.cell_ids, **{name: value for name, value in asdict(one).items() if name != "nodes"}}
            for one in tonight.changes
        ],
        "parameters": tonight.parameters,
        "description": _DESCRIPTION,
    }


def night_map(state: HeatmapState, night: Night) -> tuple[NightsState, NightMap]:
    """Returns the map of a night, from its answers (the state after the last sub-query) and the nights that it
    continues.
    """
    cohorts = state.rotation
    all_users = [
        replace(
            one,
            counts=cohorts * one.counts,
            variance=(cohorts * np.sqrt(one.variance)) ** 2,  # in the order of `_published_measurements`
            sampling=cohorts * (one.sampling + 1) - 1,
        )
        for one in (measurement_of(result, state) for result in state.results)
    ]
    return update(night.state, night.night, all_users, *state.all_users_estimate())
