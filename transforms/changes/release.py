"""Changes between two published releases: their comparison, their files, a summary."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import days_averaged
from sfumato.schemas.known_digits import between
from sfumato.schemas.log_layout import hours_of
from sfumato.schemas.release import BASEMAP_FILE, CHANGES_FILE, CHANGES_FORMAT
from sfumato.transforms.changes.differences import Changes
from sfumato.transforms.changes.map_changes import compare_maps
from sfumato.transforms.changes.view import changes_view
from sfumato.transforms.changes.zone_changes import compare_zones
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import UNSAFE, package_versions
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.numbers import plural
from sfumato.transforms.report.sections import days_together, get, period, user_id_column

_NOTE = (
    "Computed only from two published releases, so it costs no privacy budget beyond theirs. For a person in the data "
    "of both, the two epsilons add up."
)
_RATE = (
    "At most this share of the rows that are `changed`, and of those that are `shown`, is expected to be wrong: the "
    "expected number of users there is the same in both releases."
)
_COMPARISONS = {"heatmap": compare_maps, "zones": compare_zones, "histogram": compare_zones}  # by the job of both


def compare_releases(before: Release, after: Release, rate: float, *, shares: bool) -> Changes:
    """Returns the changes between two published heatmaps, or counts by zone; see `differences`.

    Logs a warning for each way in which they count differently.

    Raises RequestError if they cannot be compared.
    """
    if before.manifest.get("release_id") == after.manifest.get("release_id"):
        raise RequestError(f"{after.path}: same release as {before.path}; name two different releases")
    jobs = [str(one.manifest.get("job")) for one in (before, after)]
    if jobs[0] != jobs[1] or jobs[0] not in _COMPARISONS:
        raise RequestError(
            f"{after.path}: releases of `sfumato {jobs[0]}` and `sfumato {jobs[1]}` cannot be compared; name two of "
            "`sfumato heatmap`, two of `sfumato zones`, or two of `sfumato histogram --zones`"
        )
    hours = [get(one.manifest, "parameters.hours") for one in (before, after)]
    if len({_hours_a_day(one) for one in hours}) > 1:
        counted = [f"the hours {one}" if one else "whole days" for one in hours]
        raise RequestError(
            f"{after.path}: counts {counted[1]}, and {before.path} {counted[0]}; name two releases with equally many "
            "hours a day"
        )
    for warning in _unlike(before, after):
        log_event("warning", warning, logging.WARNING)
    return _COMPARISONS[jobs[0]](before, after, rate, shares=shares)


def changes_files(changes: Changes, before: Release, after: Release, rate: float, *, shares: bool) -> dict[str, bytes]:
    """Returns the files by name, the geography of the later release among them. Equal releases give equal bytes.

    changes: what `compare_releases` found of the other arguments.
    """
    sides = {"before": before, "after": after}
    unsafe = any(_randomness(one.manifest).get("safe") is not True for one in sides.values())
    warnings = [*([UNSAFE] if unsafe else []), *_unlike(before, after)]
    columns = {user_id_column(one.manifest) for one in sides.values()}
    identity = "".join(one.digest for one in sides.values()) + repr((rate, shares))
    manifest = {
        "format": CHANGES_FORMAT,
        "release_id": hashlib.sha256(identity.encode()).hexdigest()[:32],
        "job": "changes",
        "created": after.manifest.get("created"),
        **changes.content,
        **{name: _identity(one) for name, one in sides.items()},
        **({"parameters": {"columns": {"user_id": columns.pop()}}} if len(columns) == 1 else {}),
        "privacy": {"note": _NOTE, "randomness": _randomness(before.manifest if unsafe else after.manifest)},
        "results": {
            "false_discovery_rate": rate,
            "meaning": _RATE,
            "compared": f"shares of all {changes.unit}" if shares else changes.unit,
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
    tested = plural(int(changes.tested.sum()), "tested place")
    total, whole = "", changes.whole
    if whole is not None and changes.changed[whole]:
        total = f"All users: {_signed(changes.low[whole], changes.high[whole])} (95%)."
        total += " Use --shares to compare shares of all users.\n" if changes.scale == 1.0 else "\n"
    if not len(order):
        return f"No significant change in {tested} (false discovery rate {rate:.0%}).\n{total}"
    texts = changes.texts(order[:top])
    wide = max(map(len, texts))
    lines = [
        f"  {text:<{wide}} {_signed(changes.changed_low[row], changes.changed_high[row])} {changes.unit}\n"
        for text, row in zip(texts, order.tolist(), strict=False)
    ]
    more = [f"  and {len(order) - top:,} more\n"] if len(order) > top else []
    return (
        f"{plural(len(order), 'place')} changed, of {changes.tested.sum():,} tested (false discovery rate "
        f"{rate:.0%}).\n"
        "95% intervals, adjusted for the selection:\n" + "".join(lines + more) + total
    )


def _signed(low: float, high: float) -> str:
    """Returns the ends of an interval with the page's digits, and a sign for a terminal."""
    return re.sub(r"(?<![\d.,-])(?=\d)", "+", between(low, high).replace("−", "-"))


def _hours_a_day(hours: Any) -> int:
    """Returns how many hours of a day count, by a manifest's text; None is the whole day."""
    begin, end = (0, 24) if hours is None else hours_of(str(hours))
    return (end - begin) % 24 or 24


def _unlike(before: Release, after: Release) -> list[str]:
    """Returns a warning for each way in which two releases count differently."""
    ways: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "days together": lambda one: days_together(one) if days_averaged(one) == 1 else 1,
        "days averaged": days_averaged,
        "column of user ids": user_id_column,
        "hours": lambda one: get(one, "parameters.hours", "all"),
        "zones per user": lambda one: get(one, "parameters.bound.max_items", 1),
        "radius of zones": lambda one: get(one, "parameters.radius", "none"),
    }
    stated = {way: (value(before.manifest), value(after.manifest)) for way, value in ways.items()}
    return [
        f"The releases count differently ({way}: {first} before, {second} after), so their numbers differ by that too"
        for way, (first, second) in stated.items()
        if first != second and None not in (first, second)
    ]


def _randomness(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found = manifest.get("privacy", {}).get("randomness")
    return dict(found) if isinstance(found, dict) else {"source": "unknown", "safe": None}


def _identity(release: Release) -> dict[str, Any]:
    """Returns the entry of a release in the manifest of the changes."""
    privacy, results = release.manifest.get("privacy", {}), release.manifest.get("results", {})
    return {
        **{name: release.manifest.get(name) for name in ("release_id", "created")},
        "period": period(release.manifest),
        "manifest_sha256": release.digest,
        **{name: privacy.get(name) for name in ("epsilon", "delta")},
        "users": results.get("users", results.get("estimated_users")),
        "users_stddev": results.get("users_stddev", get(release.manifest, "privacy.admission.noise_stddev")),
    }
