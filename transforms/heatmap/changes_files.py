"""The files of changes between two published heatmaps: a table and a manifest. Pure post-processing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid
from sfumato.schemas.release import BASEMAP_FILE, CHANGES_FILE, CHANGES_FORMAT, TOTALS_FILE
from sfumato.schemas.tree import node_positions
from sfumato.transforms.heatmap.changes_view import changes_view
from sfumato.transforms.heatmap.map_changes import Changes, MapCounts, find_changes
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import UNSAFE, package_versions
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.numbers import coordinates
from sfumato.transforms.report.sections import noisy_sums

_NOTE = (
    "Computed from two published heatmaps alone, so it costs no privacy budget beyond theirs. A person who is in the "
    "data of both is exposed to both: their epsilons add up."
)
_RATE = (
    "Of the rows that are `changed`, and likewise of those that are `shown`, at most this share is expected to be "
    "wrong, that is, equally many users were to be expected there in both maps."
)


def map_counts(release: Release) -> MapCounts:
    """The unbiased users of a published heatmap. Raises RequestError where the release states none."""
    where, manifest = release.path, release.manifest
    if manifest.get("job") != "heatmap" or release.grid is None:
        raise RequestError(f"{where}: changes are of two heatmaps, this release is of `sfumato {manifest.get('job')}`")
    if TOTALS_FILE not in manifest.get("errors", {}).get("sums", ""):
        raise RequestError(
            f"{where}: this heatmap does not state the errors of sums ({TOTALS_FILE}); make both maps with "
            "--method adaptive"
        )
    totals = release.arrow_table(TOTALS_FILE)
    node, users, variance = (totals[name].to_numpy() for name in ("node", "users", "variance"))
    try:
        last = manifest["privacy"]["sub_queries"][-1]
        measured = release.answered_tree(last["index"])
        counts = UnbiasedCounts.from_nodes(node, users, variance, release.grid.depth)
        return MapCounts(release.grid.region, counts, measured, noisy_sums(last))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RequestError(f"{where}: the release is damaged ({error})") from None


def compare_releases(before: Release, after: Release, rate: float, *, shares: bool) -> Changes:
    """The changes between two published heatmaps; see `find_changes`. Raises RequestError."""
    if before.manifest.get("release_id") == after.manifest.get("release_id"):
        raise RequestError(f"{after.path}: this is the same release as {before.path}; name two")
    counts = map_counts(before), map_counts(after)
    if counts[0].region != counts[1].region:
        raise RequestError(
            f"{after.path}: its region is {counts[1].region}, that of {before.path} is {counts[0].region}; changes "
            "need one region"
        )
    return find_changes(*counts, rate, shares=shares)


def finer_grid(before: Release, after: Release) -> Grid:
    """The region of two releases, and the depth of the finer one."""
    grids = [one.grid for one in (before, after) if one.grid is not None]
    return Grid(grids[0].region, max(grid.depth for grid in grids))


def changes_files(changes: Changes, before: Release, after: Release, rate: float, *, shares: bool) -> dict[str, bytes]:
    """The files by name, the geography of the later map among them. Equal releases give equal bytes.

    Args:
        changes: what `compare_releases` found of the other arguments.
        before, after: heatmaps of one region.
        rate: false discovery rate, in 0..1.
        shares: whether shares of all users were compared instead of users.
    """
    grid = finer_grid(before, after)
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
    return build_release({CHANGES_FILE: changes.table(grid), **geography}, manifest, changes_view)


def report(changes: Changes, grid: Grid, rate: float, top: int = 10) -> str:
    """A summary for a terminal: how many places changed, and the most significant ones. grid: of the maps."""
    order = np.flatnonzero(changes.shown)
    order = order[np.argsort(-np.abs(changes.difference[order]) / changes.stddev[order], kind="stable")]
    tested = f"{changes.tested.sum():,}"
    total = ""
    if changes.changed[0]:
        total = f"All users: {changes.low[0]:+,.0f} to {changes.high[0]:+,.0f} (95%)."
        total += " --shares compares shares of them.\n" if changes.scale == 1.0 else "\n"
    if not len(order):
        none = f"No place stands out of the noise, of {tested} tested (false discovery rate {rate:.0%})."
        return f"{none}\n{total}"
    level, x, y = node_positions(changes.node[order[:top]])
    west, south, east, north = grid.bounds(x, y, level)
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
        "The intervals allow for the choice (95%):\n" + "".join(lines + more) + total
    )


def _randomness(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found = manifest.get("privacy", {}).get("randomness")
    return dict(found) if isinstance(found, dict) else {"source": "unknown", "safe": None}


def _identity(release: Release) -> dict[str, Any]:
    """What the manifest of the changes says of a release."""
    privacy = release.manifest.get("privacy", {})
    return {
        **{name: release.manifest.get(name) for name in ("release_id", "created")},
        "manifest_sha256": release.digest,
        **{name: privacy.get(name) for name in ("epsilon", "delta")},
        "users": release.manifest.get("results", {}).get("users"),
    }
