"""A night in a series of heatmaps: the state that earlier releases leave, and what a release of the night states.

All of it is public: it is computed from published files and from noisy counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import parse_day
from sfumato.schemas.release import ANSWERS_FILE, NIGHTS_FILE
from sfumato.schemas.timeline import stated_rotation
from sfumato.schemas.tree import Tree, nodes_from_names
from sfumato.transforms.counting.estimator import measurement_of
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.nights.nights_state import MAX_NODES, NightsState
from sfumato.transforms.nights.nights_update import NightMap, update
from sfumato.transforms.nights.warm_start import MAX_CELLS, MAX_COUNT, with_complete_parents
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.statistics.posterior.full_tree import TreeMeasurement

_DESCRIPTION = (
    "cells.parquet: users of each cell tonight, estimated from the noisy answers of all these nights, with 95% "
    "intervals (users_low, users_high) of the number of users who were there; users_unbiased, totals.parquet and "
    "answers.parquet are only of tonight's answers. changes: places where tonight differs from what the nights "
    "before lead to expect, tested for all places of the night together at the 5% level"
)
_MAX_QUERIES = 64  # of a release, above what any method asks
NO_EARLIER = "There is no earlier release of the same region and depth."
NO_STATE = "The release before it does not hold a state of nights."


@dataclass(frozen=True)
class Night:
    """A night whose map is made, and the nights that it continues.

    A heatmap's release asks it for what differs from a map without nights, so that the heatmap knows no nights.
    """

    night: date  # its date
    state: NightsState | None  # after the last of the nights before; None where the nights restart
    restart: str | None  # why they restart, as a sentence; None where they continue

    ERRORS: ClassVar[Mapping[str, str]] = {  # of the manifest's entry on errors, instead of those of a single map
        "stddev": (
            "standard deviation of the posterior given the noisy answers of all nights of `nights.rests_on`, which "
            "holds the noise and the sampling of the cohorts; errors of cells depend on each other: for a sum use "
            "Release.total"
        ),
        "intervals": (
            "users_low to users_high: pointwise 95% intervals of cells, of the number of users who were there, given "
            "the noisy answers of all nights of `nights.rests_on`"
        ),
    }

    def map_of(self, state: CountState) -> tuple[NightsState, NightMap]:
        """Returns what the night leaves to the next one, and its map.

        state: after the last sub-query, with the night's answers.
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
        return update(self.state, self.night, all_users, *state.all_users_estimate())

    def content(self, after: NightsState, tonight: NightMap) -> dict[str, Any]:
        """Returns the manifest's entry on the nights that a map is based on. Arguments: from `map_of`."""
        return {
            "night": str(self.night),
            "rests_on": [str(period) for period in after.rests_on],
            "started_anew": self.restart,
            "changes": [asdict(one) for one in tonight.changes],
            "parameters": tonight.parameters,
            "description": _DESCRIPTION,
        }


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
        raise RequestError(f"warm_start: {first.path} has night {state.night}, which is not before {night}")
    for release in others:
        state = _with_release(state, release)
    return Night(night, state, None)


def _with_release(state: NightsState, release: Release) -> NightsState:
    """Adds the answers of a release. Raises RequestError unless it is of a later night than the state's."""
    stated = release.manifest.get("nights")
    if not isinstance(stated, dict):
        raise RequestError(f"warm_start: {release.path} was made without --night")
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
        raise RequestError(f"warm_start: {release.path} has night {night}, which is not after {state.night}")
    return update(state, night, measured, users, stddev)[0]


def _published_measurements(release: Release) -> list[TreeMeasurement]:
    """Returns the answers of a release's sub-queries, of all users."""
    if release.grid is None:
        raise ValueError("the manifest has no grid")
    privacy, depth = release.manifest["privacy"], release.grid.depth
    rotation = stated_rotation(release.manifest)
    cohorts = 1 if rotation is None else rotation.cohorts
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
