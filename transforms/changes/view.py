"""The page of changes between two published releases, made of its files only. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.known_digits import Z, about, between
from sfumato.schemas.region import Region, ground_metres
from sfumato.schemas.release import CHANGES_FILE, CHANGES_PICTURE, MANIFEST_FILE
from sfumato.schemas.tree import node_levels, nodes_from_names
from sfumato.schemas.views import PageView
from sfumato.schemas.views.map_views import Layer, MapBody, Measure
from sfumato.schemas.views.view_parts import Scale, Section
from sfumato.transforms.geo.zone_file import INDEXES, MAX_SHOWN, level_title
from sfumato.transforms.report.count_measures import called
from sfumato.transforms.report.layers import cell_layer, finest_metres, zone_layer, zone_names
from sfumato.transforms.report.numbers import length, plural
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.sections import Manifest, facts, get, is_safe

_SIDES = ("before", "after")
_MAX_CELLS = 1 << 16
_LISTED = 48
_UNSURE = 12  # places listed where no change is significant
_FEW = 3  # significant changes that a headline names
_END = 8.0  # standard deviations at the ends of the colours
_COLUMNS = ("difference", "stddev", "low", "high", "p_value", "shown", "changed_low", "changed_high")
_NOTE = "Hatched: the difference is within noise and sampling error."
_FILES = {
    CHANGES_FILE: "one row for each place: users before and after, difference, intervals, q-value",
    MANIFEST_FILE: "both releases, the false discovery rate, every version",
}


def changes_view(files: Files) -> PageView:
    """Returns the page of what `sfumato changes` wrote. files: by name."""
    release = Released(files)
    manifest, table = release.manifest, release.table(CHANGES_FILE)
    wide, tall = ground_metres(release.region)
    if "cell_id" in table.column_names:
        depth = int(manifest["grid"]["depth"])
        layer, finest = _cells(table, depth)
        metres = (wide / 2**finest, tall / 2**finest)
        body = MapBody(region=release.bounds, depth=depth, layers=[layer], finest_metres=metres)
    else:
        layers = _zones(table, get(manifest, "zones.levels"), release.region, _unit(manifest))
        metres = finest_metres(np.asarray(table["area"]), release.region)
        body = MapBody(
            region=release.bounds, depth=0, layers=layers, finest_metres=metres, missing="Nothing to compare here."
        )
    ground = f"{length(wide)} × {length(tall)}"
    rate, shown = float(get(manifest, "results.false_discovery_rate")), int(get(manifest, "results.shown"))
    found = f"On average over such comparisons, at most {rate:.0%} of the changes found are wrong. " if shown else ""
    promise = f"{found}This page uses only two published maps."
    before, after = (_release_name(manifest, side) for side in _SIDES)
    chips = facts(
        ("Before", before),
        ("After", after),
        ("False discovery rate", f"{rate:.0%}"),
        ("Places tested", f"{get(manifest, 'results.tested'):,}"),
    )
    rows = []
    for side in _SIDES:
        epsilon, identity = get(manifest, f"{side}.epsilon"), get(manifest, f"{side}.release_id")
        rows.append((f"The map {side}", f"release {identity}, ε = {epsilon:g}" if epsilon else f"release {identity}"))
    costs = Section(title="What it costs", paragraphs=[str(get(manifest, "privacy.note"))], facts=facts(*rows))
    return release.page(
        body,
        [_reading(manifest, table), costs],
        [],
        _FILES,
        [CHANGES_PICTURE],
        title="Changes between two maps",
        headline=_headline(release, table),
        period=f"{before}, then {after}",
        description=f"Where the number of users changed on {ground}, without exposing anyone.",
        chips=chips,
        guarantee=promise if is_safe(manifest) else "A demonstration seed made these maps. They protect nobody.",
    )


def _headline(release: Released, table: pa.Table) -> str:
    """Returns what was found, with the totals before and after if they differ by more than their errors."""
    manifest, shown = release.manifest, table["shown"].to_numpy()
    more = table["difference"].to_numpy()[shown] > 0
    up, down = int(more.sum()), int((~more).sum())
    shares = _compared(manifest).startswith("shares")
    gain, loss = ("A larger share of users", "a smaller share") if shares else ("More users", "fewer users")
    whole = len(shown) > 0 and "cell_id" in table.column_names and shown[0]
    where = "the whole region" if whole else plural(up or down, "place")
    few = [] if whole or len(more) > _FEW else _named(release, table.filter(table["shown"]), shares)
    if not len(more):
        found = "No significant change in any place"
    elif few:
        found = "; ".join(few)
    elif up and down:
        found = f"{gain} in {where}, {loss} in {down:,}"
    else:
        found = f"{gain if up else loss.capitalize()} in {where}"
    totals = _users(manifest, table)
    if not totals or abs(totals[1][0] - totals[0][0]) <= Z * math.hypot(totals[0][1], totals[1][1]):
        return found
    before, after = (about(*one) for one in totals)
    return f"{found}; in all about {before} {_unit(manifest)} before, {after} after"


def _named(release: Released, rows: pa.Table, shares: bool) -> list[str]:
    """Returns the name of each changed place with its change, the most significant first; none without names."""
    if "cell_id" in rows.column_names:
        ends = zip(*(np.asarray(rows[end]) for end in ("south", "north", "west", "east")), strict=True)
        near = [release.place_names.near((south + north) / 2, (west + east) / 2) for south, north, west, east in ends]
        names = [name[:1].upper() + name[1:] for name in near]
    else:
        indexed = set(rows["level"].to_pylist()) & INDEXES.keys()
        names = [] if indexed else [called(readable(name), "place") for name in zone_names(rows)]
    if not all(names) or len(set(names)) < len(rows):
        names = ["One place"] if len(rows) == 1 else []
    difference, low, high = (np.asarray(rows[name]) for name in ("difference", "changed_low", "changed_high"))
    texts = list[str]()
    for row in np.argsort(-np.abs(difference / np.asarray(rows["stddev"])), kind="stable")[: len(names)].tolist():
        is_more = difference[row] > 0
        size = between(low[row], high[row]) if is_more else between(-high[row], -low[row])
        unit = "" if texts else f" {_unit(release.manifest)}"
        change = f"{size} {'more' if is_more else 'fewer'}{unit}"
        if shares:
            change = f"a {'larger' if is_more else 'smaller'} share{unit and ' of'}{unit}"
        texts.append(f"{names[row]}: {change}")
    return texts


def _compared(manifest: Manifest) -> str:
    return str(get(manifest, "results.compared"))


def _unit(manifest: Manifest) -> str:
    return "users a day" if _compared(manifest).endswith("a day") else "users"


def _add_up(manifest: Manifest) -> bool:
    """Returns whether each user counts in one place of a level, so that the differences of places add up."""
    return bool(get(manifest, "zones.zones_per_user", 1) == 1)


def _users(manifest: Manifest, table: pa.Table) -> list[tuple[float, float]]:
    """Returns all users before and after, each with a standard deviation.

    They are the sums of places, with that of their difference, or the runs' own counts where places do not add up.
    Of means by day that do not add up there are none: the runs counted the users of all days.
    """
    total, found = _total(table), []
    if not _add_up(manifest) and _unit(manifest) != "users":
        return []
    for side in _SIDES:
        users, stddev = total[side], total["stddev"]
        if not _add_up(manifest) or "cell_id" in table.column_names:
            users = float(get(manifest, f"{side}.users") or users)
            stddev = float(get(manifest, f"{side}.users_stddev") or stddev)
        found.append((users, stddev))
    return found


def _total(table: pa.Table) -> dict[str, float]:
    """Returns the users of all places before and after, their difference's interval and standard deviation."""
    if "cell_id" in table.column_names:
        rows = table.slice(0, 1)  # the region
    else:
        rows = table.filter(pc.equal(table["level"], table["level"][-1]))  # the zones of the coarsest level
    if len(rows) == 1:
        return {name: float(rows[name][0].as_py()) for name in ("before", "after", "low", "high", "stddev")}
    before, after, difference = (float(pc.sum(rows[name]).as_py()) for name in ("before", "after", "difference"))
    stddev = float(np.linalg.norm(rows["stddev"].to_numpy()))  # errors of zones of one level add up as independent ones
    low, high = difference - Z * stddev, difference + Z * stddev
    return {"before": before, "after": after, "low": low, "high": high, "stddev": stddev}


def _release_name(manifest: Manifest, side: str) -> str:
    """Returns the days of a map; without stated days its name, or when it was made."""
    if days := get(manifest, f"{side}.period"):
        return str(days)
    name = str(get(manifest, f"{side}.release_id", ""))
    is_random = len(name) == 32 and all(one in "0123456789abcdef" for one in name)
    return str(get(manifest, f"{side}.created", "unknown"))[:16].replace("T", " ") if is_random or not name else name


def _cells(table: pa.Table, depth: int) -> tuple[Layer, int]:
    """Returns the layer and its finest level: whole changed places, elsewhere the finest known cells."""
    nodes = nodes_from_names(table["cell_id"].to_pylist(), depth)
    level, shown = node_levels(nodes), table["shown"].to_numpy()
    finest = int(level.max())
    while (level <= finest).sum() > _MAX_CELLS:
        finest -= 1
    inside = _within(nodes, level, shown)
    kept = (level <= finest) & ~inside
    share = _own_share(nodes, level, kept | inside, shown)
    drawn = kept & (share > 0)
    # A node that some of its known children fill in part: the rest of it is not known.
    unknown = (share[drawn] < 1) & ~shown[drawn]
    own = np.round(share[drawn], 6).tolist()
    return cell_layer(
        "What changed", _NOTE, nodes[drawn], _measures(table.filter(pa.array(drawn)), unknown, _is_any(table)), own
    ), finest


def _zones(table: pa.Table, levels: Sequence[Mapping[str, Any]], region: Region, unit: str) -> list[Layer]:
    """Returns a layer for each level, the coarsest first."""
    layers, found = [], _is_any(table)
    for level in reversed([one for one in levels if one["zones"] <= MAX_SHOWN]):
        rows = table.filter(pc.equal(table["level"], level["name"]))
        shapes = shapely.from_wkb(rows["geometry"].to_numpy(zero_copy_only=False))
        measures = _measures(rows, np.zeros(len(rows), dtype=bool), found, unit)
        named = level["name"] not in INDEXES
        title = level_title(level["name"], len(levels), "place")
        layers.append(zone_layer(title, _NOTE, rows, shapes, np.asarray(rows["area"]), region, measures, named))
    return layers


def _is_any(table: pa.Table) -> bool:
    """Returns whether any place changed significantly."""
    return bool(pc.any(table["changed"]).as_py())


def _measures(table: pa.Table, unknown: NDArray[np.bool_], found: bool, unit: str = "users") -> list[Measure]:
    """Returns the differences of places in their standard deviations, and in users, or users a day.

    table: of the places. unknown: bool[n], places without a value. found: whether any place of the release changed
    significantly; otherwise the largest differences are listed.
    """
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in _COLUMNS}
    difference, changed = columns["difference"], columns["shown"]
    z = difference / columns["stddev"]
    rows = np.flatnonzero(changed if found else ~unknown & ~np.isnan(columns["p_value"].astype(float)))
    note = f"{unit.capitalize()} gained or lost, with 95% intervals adjusted for the selection. Most significant first."
    if not found:
        note = (
            f"None is significant. {unit.capitalize()} gained or lost, the largest compared with their error first. "
            "The intervals hold for all places at once (95%)."
        )
    rows = rows[np.argsort(-np.abs(z[rows]), kind="stable")][: _LISTED if found else _UNSURE]
    significance = Measure(
        name="Fewer or more users",
        kind="change",
        unit="in standard deviations of noise and sampling error",
        value=_rounded(np.clip(z, -99, 99), 2, unknown),
        low=_rounded(np.clip(z - Z, -99, 99), 2, unknown),
        high=_rounded(np.clip(z + Z, -99, 99), 2, unknown),
        uncertain=(~changed).tolist(),
        scale=_scale(_END, "", [4.0]),
        listed=[
            (row, *(float(f"{one[row]:.4g}") for one in (difference, columns["changed_low"], columns["changed_high"])))  # type: ignore[misc]
            for row in rows.tolist()
        ],
        listed_note=note if len(rows) else "",
    )
    most = max(float(np.abs(difference[changed] if changed.any() else difference).max()), 1.0)
    users = Measure(
        name="Difference",
        kind="change",
        unit=unit,
        value=_rounded(difference, 1, unknown),
        low=_rounded(columns["low"], 1, unknown),
        high=_rounded(columns["high"], 1, unknown),
        uncertain=(~changed).tolist(),
        scale=_scale(float(f"{most:.1g}"), unit, []),
        listed=significance.listed,
        listed_note=significance.listed_note,
    )
    return [significance, users]


def _within(nodes: NDArray[np.uint64], level: NDArray[np.int64], shown: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns whether a node lies within a shown one, which is not itself: bool[n]."""
    found = np.zeros(len(nodes), dtype=bool)
    for above in range(int(level.max())):
        chosen = nodes[shown & (level == above)]
        below = level > above
        ancestors = nodes[below] >> (2 * (level[below] - above)).astype(np.uint64)
        found[below] |= np.isin(ancestors, chosen)
    return found


def _own_share(
    nodes: NDArray[np.uint64], level: NDArray[np.int64], present: NDArray[np.bool_], whole: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Returns the share of each node's area that its present children do not fill: float64[n]; 1 for the whole ones."""
    parents = nodes[present & (level > 0)] >> np.uint64(2)
    place = np.searchsorted(nodes, parents)
    filled = np.bincount(place, minlength=len(nodes)) / 4
    return np.where(whole, 1.0, 1.0 - filled)


def _scale(end: float, unit: str, between: list[float]) -> Scale:
    places = sorted([-end, *(-one for one in between), 0.0, *between, end])
    texts = [f"{'≤ ' if one == -end else '≥ ' if one == end else ''}{one:+,.0f}".replace("-", "−") for one in places]
    ticks = [(one, "0" if one == 0 else text) for one, text in zip(places, texts, strict=True)]
    return Scale(kind="diverging", low=-end, high=end, unit=unit, ticks=ticks)


def _rounded(values: NDArray[np.float64], digits: int, unknown: NDArray[np.bool_]) -> list[float | None]:
    return [None if out else one for one, out in zip((np.round(values, digits) + 0.0).tolist(), unknown, strict=True)]


def _reading(manifest: Manifest, table: pa.Table) -> Section:
    rate, shares = float(get(manifest, "results.false_discovery_rate")), _compared(manifest).startswith("shares")
    total, totals = _total(table), [about(*one) for one in _users(manifest, table)]
    tested, is_sum = int(get(manifest, "results.tested")), _add_up(manifest)
    untested = table.num_rows - tested
    empty = f"; {untested:,} {'is' if untested == 1 else 'are'} almost empty" if untested else ""
    is_found = get(manifest, "results.shown")
    chosen = "are adjusted for the selection" if is_found else "hold for all places at once"
    scaled = " The first map is scaled to the total of the second, so shares are compared." if shares else ""
    return Section(
        title="How to read it",
        paragraphs=[
            f"A place is marked if its number of users differs by more than noise and sampling error explain.{scaled} "
            f"On average over such comparisons, at most {rate:.0%} of the marked places are wrong: the expected number "
            "of users there is the same in both maps.",
            f"The intervals in the list {chosen}. The interval of any other place is "
            "pointwise: it holds for a place chosen before looking at the numbers.",
            "Unmarked places may have changed by less than these maps can show.",
        ],
        facts=facts(
            *((f"All {_unit(manifest)} {when}", f"about {one}") for when, one in zip(_SIDES, totals, strict=False)),
            ("Their difference", f"{between(total['low'], total['high'])} at 95%" if is_sum and not shares else None),
            ("Places tested", f"{tested:,} of {table.num_rows:,}{empty}"),
        ),
    )
