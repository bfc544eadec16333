"""The heatmap's page as a view, made of the release's published files only. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.known_digits import Z, about
from sfumato.schemas.rectangle import region_from
from sfumato.schemas.region import Grid, area_km2, ground_metres
from sfumato.schemas.release import (
    ANSWERS_FILE,
    CELLS_FILE,
    DENSITY_FILE,
    MANIFEST_FILE,
    PICTURE_FILE,
    RATES_PICTURE,
    SLOT_MAPS_FILE,
    SLOTS_FILE,
    TOTALS_FILE,
)
from sfumato.schemas.slots import Slots, clocks_text
from sfumato.schemas.timeline import stated_rotation
from sfumato.schemas.tree import Tree, node_levels, node_positions, nodes_from_names
from sfumato.schemas.views import PageView
from sfumato.schemas.views.map_views import Layer, MapBody, Measure, TimeSlots
from sfumato.schemas.views.view_parts import Scale
from sfumato.transforms.heatmap.view_texts import (
    deviations,
    how_it_was_made,
    how_to_read_it,
    is_posterior,
    most_slots,
    nights_section,
    query_cost,
    rests_on_several,
    round_table,
)
from sfumato.transforms.report.count_measures import cell_boxes, count_measure, rate_measures, rate_names
from sfumato.transforms.report.layers import cell_layer
from sfumato.transforms.report.numbers import length, plural
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.scales import colour_weight, density_scale
from sfumato.transforms.report.sections import Manifest, facts, get, number, tail_sums

# The most cells on a page, in the map and in all its layers. A browser cannot show more, so finer cells are added up.
_MAX_MAP_CELLS, _MAX_PAGE_CELLS = 1 << 16, 100_000
USERS, USER_SLOTS = "users", "user-slots"
_MAX_SLOT_VALUES = 48_000  # of all slots on a page
_FILES = {
    CELLS_FILE: "one row for each cell: bounds, estimated users with their intervals, density, shape, rates",
    ANSWERS_FILE: "each sub-query's own noisy answers, which the page's layers show",
    TOTALS_FILE: "errors of sums of cells: Release.total returns their users and standard deviation",
    SLOTS_FILE: "one row for each slot of time and cell: users with their interval, expected users",
    SLOT_MAPS_FILE: "the users of every slot of time on a grid: float32[slots, rows from the north, columns]",
    DENSITY_FILE: "the density on the finest grid, row 0 at the upper edge, adding up to 1",
    PICTURE_FILE: "the map of users as a picture",
    RATES_PICTURE: "the map of the rate as a picture",
    MANIFEST_FILE: "the guarantee, every parameter, every version",
}
Array = NDArray[np.float64]

_AT_ONE_PLACE = "Each user counts at one place only, so more users may have been in a cell."


def heatmap_view(files: Files) -> PageView:
    """Returns the page of a release of `sfumato heatmap`. files: by name."""
    release = Released(files)
    manifest = release.manifest
    region, depth = region_from(manifest["region"]), int(manifest["grid"]["depth"])
    body, size = _map(release, Grid(region, depth))
    users, deviation = (number(manifest, f"results.{name}") or 0.0 for name in ("users", "users_stddev"))
    wide, tall = ground_metres(region)
    margin = Z * deviation
    some = about(users, max(deviation, users / 200))
    ground = f"{length(wide)} × {length(tall)}"
    headline = f"About {some} users {f'in and around {release.place}' if release.place else f'on {ground}'}"
    if users < margin:
        headline = f"Fewer than {about(max(users, 0) + margin, deviation)} users: indistinguishable from none"
    cells = 2 ** max(body.layers[-1].level, default=0)  # along a side
    finest = " × ".join(dict.fromkeys((length(wide / cells), length(tall / cells))))
    rotation = stated_rotation(manifest)
    cohort = None if rotation is None else f"cohort {rotation.cohort} of {rotation.cohorts}"
    made = [how_it_was_made(manifest), round_table(manifest)]
    return release.page(
        body,
        [how_to_read_it(manifest, body, size), *nights_section(manifest), *made],
        facts(("Area", ground), ("Finest cell", finest), ("Queried", cohort)),
        _FILES,
        [PICTURE_FILE, *([RATES_PICTURE] if rate_names(manifest, one=True) else [])],
        title="Private heatmap",
        headline=headline,
        description=f"Where about {some} users are, on {ground}, without exposing anyone.",
    )


@dataclass(frozen=True)
class _Cells:
    """Users of the nodes that own an entry: their estimates and intervals, one a node, coarse to fine."""

    nodes: NDArray[np.uint64]
    area: Array  # finest cells, of 4^depth
    users: Array
    stddev: Array
    low: Array
    high: Array

    def merged(self, room: int, deviations: float) -> _Cells:
        """Merges the deepest cells until at most `room` remain; intervals are +-`deviations` standard deviations."""
        levels, top = node_levels(self.nodes), int(node_levels(self.nodes[-1:])[0])
        nodes = self.nodes
        while len(nodes) > room:
            top -= 1
            nodes, place = np.unique(
                self.nodes >> (2 * np.maximum(levels - top, 0)).astype(np.uint64), return_inverse=True
            )
        if nodes is self.nodes:
            return self
        summed = (self.area, self.users, self.stddev**2)
        area, users, variance = (np.bincount(place, one).astype(np.float64) for one in summed)
        margin = deviations * np.sqrt(variance)
        return _Cells(nodes, area, users, np.sqrt(variance), users - margin, users + margin)


def _map(release: Released, grid: Grid) -> tuple[MapBody, int]:
    """Returns the map with all its layers, and how many cells the release has."""
    manifest, table = release.manifest, release.table(CELLS_FILE)
    published = _cells(table, grid.depth, manifest)
    rounds = _answers(release, grid.depth)
    if rounds and _are_same(rounds[-1][1], published):
        rounds = rounds[:-1]
    map_room = min(len(published.nodes), _MAX_MAP_CELLS)
    shown = published.merged(map_room, deviations(manifest, None))
    noun, users = USERS if most_slots(manifest) == 1 else USER_SLOTS, np.maximum(shown.users, 0)
    weight = np.where(shown.area > 0, colour_weight(users, shown.stddev), 0)
    scale = density_scale(users / _area_of(shown, grid), weight, f"{noun} per km²")
    layers, room = [], _MAX_PAGE_CELLS - len(shown.nodes)
    for done, (query, cells) in enumerate(rounds):
        few = cells.merged(max(room // (len(rounds) - done), 1), deviations(manifest, query))
        room -= len(few.nodes)
        title = f"Sub-query {done + 1} of {len(rounds)}"
        note = f"Answers of this sub-query only: {plural(len(cells.nodes), 'cell')}, {query_cost(query)}."
        layers.append(_layer(title, note, few, grid, [_users(few, grid, scale, tail_sums(manifest, query), noun=noun)]))
    note = "This map combines the answers of all sub-queries." if rounds else "The map as it was published."
    if rests_on_several(manifest):
        note = "This map combines the answers of several nights."
    if len(shown.nodes) < len(published.nodes):
        note += f" This page shows {plural(len(shown.nodes), 'cell')}; {CELLS_FILE} contains {len(published.nodes):,}."
        rates = []
    else:
        rates = rate_measures(table, manifest)
    tails = tail_sums(manifest)
    counted = _users(shown, grid, scale, tails, listed=True, noun=noun, smooth=is_posterior(manifest))
    if counted.listed and noun == USERS and get(manifest, "parameters.contribution") != "all":
        counted = counted.model_copy(update={"listed_note": f"{counted.listed_note} {_AT_ONE_PLACE}"})
    layers.append(_layer("The published map", note, shown, grid, [counted, *rates]))
    wide, tall = ground_metres(grid.region)
    finest, slots = (wide / grid.side, tall / grid.side), _slots(release, grid)
    body = MapBody(region=release.bounds, depth=grid.depth, layers=layers, finest_metres=finest, slots=slots)
    return body, len(published.nodes)


def _slots(release: Released, grid: Grid) -> TimeSlots | None:
    """Returns the maps of every slot of time on one scale; None without slots."""
    if SLOTS_FILE not in release.files:
        return None
    manifest, stated = release.manifest, release.manifest["slots"]
    slots = Slots(stated["column"], stated["kind"], stated["time_zone"], tuple(stated["edges"]))
    table = release.table(SLOTS_FILE)
    shape = (len(slots), -1)
    names = np.asarray(table["cell_id"]).reshape(shape)[0].tolist()
    nodes = nodes_from_names(names, grid.depth)
    columns = (
        np.asarray(table[name]).reshape(shape) for name in ("users", "users_unbiased", "users_low", "users_high")
    )
    by_slot, area, room = [], _areas(nodes, grid.depth), max(_MAX_SLOT_VALUES // len(slots), 1)
    for users, unbiased, low, high in zip(*columns, strict=True):
        error = (high - unbiased) / deviations(manifest, None)  # of the noise only, which adds up where cells merge
        noisy = _Cells(nodes, area, unbiased, error, low, high).merged(room, deviations(manifest, None))
        shown = _Cells(nodes, area, users, error, low, high).merged(room, 0.0).users
        low, high = np.clip(noisy.low, 0, shown), np.maximum(noisy.high, shown)
        by_slot.append(replace(noisy, low=low, high=high, users=shown))
    cells = by_slot[0]
    users = np.stack([one.users for one in by_slot])
    weight = np.where(cells.area > 0, colour_weight(users, np.stack([one.stddev for one in by_slot])), 0)
    scale = density_scale((users / _area_of(cells, grid)).ravel(), weight.ravel(), "users per km²")
    measures = [
        _users(one, grid, scale, tail_sums(manifest), smooth=True).model_copy(update={"name": f"Users, {name}"})
        for one, name in zip(by_slot, slots.names, strict=True)
    ]
    title = {"hour": "By hour", "weekday": "By weekday", "hour_of_week": "By hour of the week", "edges": "By hours"}
    most = most_slots(manifest)
    counted = "once, in the slot of one of their records" if most == 1 else f"in at most {most} slots, once in each"
    clocks = clocks_text(get(manifest, "parameters.time_zone"), get(manifest, "times"))
    note = (
        f"Local time, {clocks}. Each user counts {counted}: the map of a slot shows the users counted "
        "in it, not all users present."
    )
    return TimeSlots(
        title=title[slots.kind],
        note=note,
        names=list(slots.names),
        ticks=list(slots.ticks),
        layer=_layer(title[slots.kind], "", cells, grid, measures),
        region=[(_figure(max(one["users"], 0)), _figure(one["low"]), _figure(one["high"])) for one in stated["region"]],
    )


def _cells(table: pa.Table, depth: int, manifest: Manifest) -> _Cells:
    nodes = nodes_from_names(table["cell_id"].to_pylist(), depth)
    users, stddev = (np.asarray(table[name]) for name in ("count", "stddev"))
    margin = deviations(manifest, None) * stddev
    low, high = users - margin, users + margin
    if "users_low" in table.column_names:
        low, high = (np.asarray(table[name]) for name in ("users_low", "users_high"))
        low, high = np.minimum(low, users), np.maximum(high, users)  # shrinkage may have moved it out of the interval
    return _Cells(nodes, _areas(nodes, depth), users, stddev, low, high)


def _answers(release: Released, depth: int) -> list[tuple[Mapping[str, Any], _Cells]]:
    """Returns the sub-queries whose answers were published, each with its cells."""
    if ANSWERS_FILE not in release.files:
        return []
    manifest, table = release.manifest, release.table(ANSWERS_FILE)
    queries = {one["index"]: one for one in get(manifest, "privacy.sub_queries", [])}
    index = np.asarray(table["sub_query"])
    found = []
    for one in np.unique(index).tolist():
        part = table.filter(pa.array(index == one))
        nodes = nodes_from_names(part["cell_id"].to_pylist(), depth)
        users, stddev = (np.asarray(part[name]) for name in ("users", "stddev"))
        margin = deviations(manifest, queries[one]) * stddev
        found.append((queries[one], _Cells(nodes, _areas(nodes, depth), users, stddev, users - margin, users + margin)))
    return found


def _are_same(answers: _Cells, published: _Cells) -> bool:
    """Returns whether the map is a sub-query's answers as they came, up to the sum of all users."""
    if not np.array_equal(answers.nodes, published.nodes) or not np.allclose(answers.stddev, published.stddev):
        return False
    return not bool(np.any((published.users == 0) & (answers.users != 0)))


def _areas(nodes: NDArray[np.uint64], depth: int) -> Array:
    """Returns the finest cells that each node covers, less what its descendants among the nodes cover."""
    full: Array = 4.0 ** (depth - node_levels(nodes)).astype(np.float64)
    area = full.copy()
    tree = Tree.of(depth, nodes)  # with the root, which may own no entry
    parents = tree.parents()[len(tree.nodes) - len(nodes) :] - (len(tree.nodes) - len(nodes))
    np.subtract.at(area, parents[parents >= 0], full[parents >= 0])
    return area


def _area_of(cells: _Cells, grid: Grid) -> Array:
    """Returns square kilometres that each cell owns; at least a tiny one."""
    level, x, y = node_positions(cells.nodes)
    share = cells.area / 4.0 ** (grid.depth - level)
    return np.maximum(area_km2(*grid.bounds(x, y, level)) * share, 1e-12)


def _layer(title: str, note: str, cells: _Cells, grid: Grid, measures: list[Measure]) -> Layer:
    share = np.round(cells.area / 4.0 ** (grid.depth - node_levels(cells.nodes)), 6)
    return cell_layer(title, note, cells.nodes, measures, share.tolist())


def _users(
    cells: _Cells,
    grid: Grid,
    scale: Scale,
    tails: int,
    listed: bool = False,
    noun: str = USERS,
    smooth: bool = False,
) -> Measure:
    """Returns the users of each cell.

    tails: see `count_measure`. listed: whether to list the most crowded. smooth: see `count_measure`.
    """
    areas = np.where(cells.area > 0, _area_of(cells, grid), 0) if listed else None
    boxes = cell_boxes(cells.nodes, grid.region) if listed else None
    values = cells.users, cells.stddev, cells.low, cells.high
    return count_measure(*values, scale, tails, areas, boxes, noun=noun, smooth=smooth)


def _figure(value: float) -> float:
    """Returns five digits of a number."""
    return float(f"{value:.5g}")
