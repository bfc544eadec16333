"""The files and the page of changes between two published heatmaps: a table, a manifest and a view. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.known_digits import Z, about, between
from sfumato.schemas.rectangle import region_from
from sfumato.schemas.region import EARTH_RADIUS_KM, ground_metres
from sfumato.schemas.release import BASEMAP_FILE, CHANGES_FILE, CHANGES_FORMAT, CHANGES_PICTURE, MANIFEST_FILE
from sfumato.schemas.tree import node_levels, node_positions, nodes_from_names
from sfumato.schemas.views import PageView
from sfumato.schemas.views.map_views import Layer, MapBody, Measure
from sfumato.schemas.views.view_parts import Scale, Section
from sfumato.transforms.changes.map_changes import Changes
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import UNSAFE, package_versions
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.layers import cell_layer
from sfumato.transforms.report.numbers import coordinates, length, plural
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.sections import Manifest, facts, get, is_safe, period

_NOTE = (
    "Computed only from two published heatmaps, so it costs no privacy budget beyond theirs. For a person in the data "
    "of both, the two epsilons add up."
)
_RATE = (
    "At most this share of the rows that are `changed`, and of those that are `shown`, is expected to be wrong: the "
    "expected number of users there is the same in both maps."
)
_MAX_CELLS = 1 << 16
_LISTED = 48
_END = 8.0  # standard deviations at the ends of the colours
_COLUMNS = ("difference", "stddev", "low", "high", "shown", "changed_low", "changed_high")
_FILES = {
    CHANGES_FILE: "one row for each place: users before and after, difference, intervals, q-value",
    MANIFEST_FILE: "both releases, the false discovery rate, every version",
}


def changes_files(changes: Changes, before: Release, after: Release, rate: float, *, shares: bool) -> dict[str, bytes]:
    """Returns the files by name, the geography of the later map among them. Equal releases give equal bytes.

    changes: what `compare_releases` found of the other arguments.
    """
    grid = changes.grid
    sides = {"before": before, "after": after}
    warnings = [UNSAFE] if any(_randomness(one.manifest).get("safe") is not True for one in sides.values()) else []
    identity = "".join(one.digest for one in sides.values()) + repr((rate, shares))
    manifest = {
        "format": CHANGES_FORMAT,
        "release_id": hashlib.sha256(identity.encode()).hexdigest()[:32],
        "job": "changes",
        "created": after.manifest.get("created"),
        "region": asdict(grid.region),
        "grid": {"depth": grid.depth, "side": grid.side},
        **{name: _identity(one) for name, one in sides.items()},
        "privacy": {"note": _NOTE, "randomness": _randomness(before.manifest if warnings else after.manifest)},
        "results": {
            "false_discovery_rate": rate,
            "meaning": _RATE,
            "compared": "shares of all users" if shares else "users",
            "before_scaled_by": changes.scale,
            "tested": int(changes.tested.sum()),
            "changed": int(changes.changed.sum()),
            "shown": int(changes.shown.sum()),
        },
        "versions": package_versions(),
        "warnings": warnings,
    }
    geography = {BASEMAP_FILE: after.read(BASEMAP_FILE)} if BASEMAP_FILE in (after.listed or {}) else {}
    return build_release({CHANGES_FILE: changes.table(), **geography}, manifest, changes_view)


def report(changes: Changes, rate: float, top: int = 10) -> str:
    """Returns a summary for a terminal: the number of changes, and the most significant ones."""
    order = np.flatnonzero(changes.shown)
    order = order[np.argsort(-np.abs(changes.difference[order]) / changes.stddev[order], kind="stable")]
    tested = f"{changes.tested.sum():,}"
    total = ""
    if changes.changed[0]:
        total = f"All users: {changes.low[0]:+,.0f} to {changes.high[0]:+,.0f} (95%)."
        total += " Use --shares to compare shares of all users.\n" if changes.scale == 1.0 else "\n"
    if not len(order):
        none = f"No significant change in {tested} tested places (false discovery rate {rate:.0%})."
        return f"{none}\n{total}"
    level, x, y = node_positions(changes.node[order[:top]])
    west, south, east, north = changes.grid.bounds(x, y, level)
    metres = np.radians(north - south) * EARTH_RADIUS_KM * 1000
    lines = []
    for row, number in enumerate(order[:top].tolist()):
        middle = (west[row] + east[row]) / 2, (south[row] + north[row]) / 2
        finest = min(east[row] - west[row], north[row] - south[row])
        size = f"{metres[row] / 1000:.1f} km" if metres[row] >= 1000 else f"{metres[row]:.0f} m"
        where = f"latitude, longitude {coordinates(middle[1], middle[0], finest)} ({size})"
        low, high = changes.changed_low[number], changes.changed_high[number]
        lines.append(f"  {where:<46} {low:+,.0f} to {high:+,.0f} users\n")
    more = [f"  and {len(order) - top:,} more\n"] if len(order) > top else []
    places = "1 place" if len(order) == 1 else f"{len(order):,} places"
    return (
        f"{places} changed, of {tested} tested; at most {rate:.0%} of the changes are expected to be wrong.\n"
        "95% intervals, adjusted for the selection:\n" + "".join(lines + more) + total
    )


def _randomness(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found = manifest.get("privacy", {}).get("randomness")
    return dict(found) if isinstance(found, dict) else {"source": "unknown", "safe": None}


def _identity(release: Release) -> dict[str, Any]:
    """Returns the entry of a release in the manifest of the changes."""
    privacy = release.manifest.get("privacy", {})
    return {
        **{name: release.manifest.get(name) for name in ("release_id", "created")},
        "period": period(release.manifest),
        "manifest_sha256": release.digest,
        **{name: privacy.get(name) for name in ("epsilon", "delta")},
        "users": release.manifest.get("results", {}).get("users"),
    }


def changes_view(files: Files) -> PageView:
    """Returns the page of what `sfumato changes` wrote. files: by name."""
    release = Released(files)
    manifest, table = release.manifest, release.table(CHANGES_FILE)
    region, depth = region_from(manifest["region"]), int(manifest["grid"]["depth"])
    layer, finest = _layer(table, depth)
    wide, tall = ground_metres(region)
    ground = f"{length(wide)} × {length(tall)}"
    rate, shown = float(get(manifest, "results.false_discovery_rate")), int(get(manifest, "results.shown"))
    found = f"At most {rate:.0%} of these changes are expected to be wrong." if shown else "No change is shown."
    promise = f"{found} This page uses only two published maps."
    before, after = (_release_name(manifest, side) for side in ("before", "after"))
    chips = facts(
        ("Before", before),
        ("After", after),
        ("False discovery rate", f"{rate:.0%}"),
        ("Places tested", f"{get(manifest, 'results.tested'):,}"),
    )
    rows = []
    for side in ("before", "after"):
        epsilon, identity = get(manifest, f"{side}.epsilon"), get(manifest, f"{side}.release_id")
        rows.append((f"The map {side}", f"release {identity}, ε = {epsilon:g}" if epsilon else f"release {identity}"))
    costs = Section(title="What it costs", paragraphs=[str(get(manifest, "privacy.note"))], facts=facts(*rows))
    metres = (wide / 2**finest, tall / 2**finest)
    return release.page(
        MapBody(region=release.bounds, depth=depth, layers=[layer], finest_metres=metres),
        [_reading(manifest, table), costs],
        [],
        _FILES,
        [CHANGES_PICTURE],
        title="Changes between two maps",
        headline=_headline(manifest, table),
        period=f"{before}, then {after}",
        description=f"Where the number of users changed on {ground}, without exposing anyone.",
        chips=chips,
        guarantee=promise if is_safe(manifest) else "A demonstration seed made these maps. They protect nobody.",
    )


def _headline(manifest: Manifest, table: pa.Table) -> str:
    """Returns what was found, with the total before and after."""
    shown = table["shown"].to_numpy()
    more = table["difference"].to_numpy()[shown] > 0
    up, down = int(more.sum()), int((~more).sum())
    shares = get(manifest, "results.compared") != "users"
    gain, loss = ("A larger share of users", "a smaller share") if shares else ("More users", "fewer users")
    where = "the whole region" if shown[0] else plural(up or down, "place")
    if not len(more):
        found = "No significant change"
    elif up and down:
        found = f"{gain} in {where}, {loss} in {down:,}"
    else:
        found = f"{gain if up else loss.capitalize()} in {where}"
    stddev = float(table["stddev"][0].as_py())
    users = [get(manifest, f"{side}.users") or table[side][0].as_py() for side in ("before", "after")]
    before, after = (about(float(one), stddev) for one in users)
    return f"{found}; in all about {before} users before, {after} after"


def _release_name(manifest: Manifest, side: str) -> str:
    """Returns the days of a map; without stated days its name, or when it was made."""
    if days := get(manifest, f"{side}.period"):
        return str(days)
    name = str(get(manifest, f"{side}.release_id", ""))
    is_random = len(name) == 32 and all(one in "0123456789abcdef" for one in name)
    return str(get(manifest, f"{side}.created", "unknown"))[:16].replace("T", " ") if is_random or not name else name


def _layer(table: pa.Table, depth: int) -> tuple[Layer, int]:
    """Returns the layer and its finest level: whole changed places, elsewhere the finest known cells."""
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in _COLUMNS}
    nodes = nodes_from_names(table["cell_id"].to_pylist(), depth)
    level = node_levels(nodes)
    finest = int(level.max())
    while (level <= finest).sum() > _MAX_CELLS:
        finest -= 1
    inside = _within(nodes, level, columns["shown"])
    kept = (level <= finest) & ~inside
    share = _own_share(nodes, level, kept | inside, columns["shown"])
    drawn = kept & (share > 0)
    z = columns["difference"] / columns["stddev"]
    z, difference = z[drawn], columns["difference"][drawn]
    changed = columns["shown"][drawn]
    # A node that some of its known children fill in part: the rest of it is not known.
    unknown = (share[drawn] < 1) & ~changed
    rows = np.flatnonzero(changed)
    rows = rows[np.argsort(-np.abs(z[rows]), kind="stable")][:_LISTED]
    ends = [columns[name][drawn] for name in ("changed_low", "changed_high")]
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
            (row, *(float(f"{one[row]:.4g}") for one in (difference, *ends)))  # type: ignore[misc]
            for row in rows.tolist()
        ],
        listed_note="Users gained or lost, with 95% intervals adjusted for the selection. Most significant first."
        if len(rows)
        else "No difference is significant.",
    )
    most = max(float(np.abs(difference[changed]).max()) if changed.any() else float(np.abs(difference).max()), 1.0)
    users = Measure(
        name="Difference",
        kind="change",
        unit="users",
        value=_rounded(difference, 1, unknown),
        low=_rounded(columns["low"][drawn], 1, unknown),
        high=_rounded(columns["high"][drawn], 1, unknown),
        uncertain=(~changed).tolist(),
        scale=_scale(float(f"{most:.1g}"), "users", []),
    )
    note, own = "Hatched: the difference is within noise and sampling error.", np.round(share[drawn], 6).tolist()
    return cell_layer("What changed", note, nodes[drawn], [significance, users], own), finest


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
    rate, shares = float(get(manifest, "results.false_discovery_rate")), get(manifest, "results.compared") != "users"
    total = {name: table[name][0].as_py() for name in ("before", "after", "low", "high")}
    scaled = " The first map is scaled to the total of the second, so shares are compared." if shares else ""
    return Section(
        title="How to read it",
        paragraphs=[
            f"A place is marked if its number of users differs by more than noise and sampling error explain.{scaled} "
            f"At most {rate:.0%} of the marked places are expected to be wrong: the expected number of users there is "
            "the same in both maps.",
            "The intervals of marked places are adjusted for their selection. The interval of any other place is "
            "pointwise: it holds for a place chosen before looking at the numbers.",
            "Unmarked places may have changed by less than these maps can show.",
        ],
        facts=facts(
            ("All users before", f"about {about(total['before'], 100)}"),
            ("All users after", f"about {about(total['after'], 100)}"),
            ("Their difference", None if shares else f"{between(total['low'], total['high'])} at 95%"),
            (
                "Places tested",
                f"{get(manifest, 'results.tested'):,} of {table.num_rows:,}; the others are almost empty",
            ),
        ),
    )
