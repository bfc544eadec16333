"""What a file that travels alone states: its guarantee, its units and its origin, from a manifest alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from sfumato.schemas.guarantee import PRIVACY_UNIT, entry_of
from sfumato.schemas.release import NEGATIVE
from sfumato.transforms.release.published_release import Release

NOT_STATED = "not stated"
CRS = "OGC:CRS84 (WGS 84, longitude before latitude, degrees)"
_POINTWISE = "columns and bands named low and high: ends of a 95% interval, for each place by itself"
_USERS = "counts are users; densities are users per square kilometre"
_TRIPS = "counts are trips of users"
_BELOW_ZERO = f"a number of users or trips, and its density, {NEGATIVE}"
_SIDES = ("before", "after")  # of changes: the two releases that were compared


def release_statement(release: Release, licence: str | None = None) -> dict[str, str]:
    """Texts by name: the guarantee, the privacy unit, epsilon, the release's id and date, the meaning of intervals.

    Every exported file holds them, in the form that its format has for metadata. All of them are public.

    Args:
        release: a release, or changes between two releases.
        licence: under which the operator publishes it; None states that none is stated.
    """
    manifest = release.manifest
    job = str(manifest.get("job", NOT_STATED))
    privacy = _changes_privacy(manifest) if job == "changes" else _release_privacy(release)
    first, last = period_of(manifest)
    named = "no differential privacy" if privacy["epsilon"] == "none" else f"ε = {privacy['epsilon']}"
    warnings = " ".join(map(str, manifest.get("warnings") or ()))
    return {
        "title": f"sfumato {job}, {named}",
        **privacy,
        "release_id": str(manifest.get("release_id", NOT_STATED)),
        "job": job,
        "published": str(manifest.get("created", NOT_STATED)),
        "period": NOT_STATED if first is None else f"{first}/{last}",
        "manifest_sha256": release.digest,
        "licence": licence or NOT_STATED,
        "crs": CRS,
        "units": _TRIPS if job == "flows" else _USERS,
        "below_zero": _BELOW_ZERO,
        "intervals": str(entry_of(manifest, "errors").get("intervals", _POINTWISE)),
        "errors_of_sums": str(entry_of(manifest, "errors").get("sums", "the errors of places are not independent")),
        "warnings": warnings or "none",
        "made_by": f"sfumato {version('sfumato')} export: post-processing of a release, which costs no privacy budget",
    }


def period_of(manifest: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """First and last day, YYYY-MM-DD, of the logs that a release was charged for; None without a ledger."""
    ledger = entry_of(manifest, "ledger")
    return ledger.get("first_day"), ledger.get("last_day")


def _release_privacy(release: Release) -> dict[str, str]:
    privacy = entry_of(release.manifest, "privacy")
    return {
        "guarantee": release.guarantee,
        "privacy_unit": str(privacy.get("unit", PRIVACY_UNIT)),
        "contribution_bound": str(privacy.get("contribution_bound", NOT_STATED)),
        "adjacency": str(privacy.get("adjacency", NOT_STATED)),
        "epsilon": _number(privacy.get("epsilon")),
        "delta": _number(privacy.get("delta", 0.0)),
        "trust": str(privacy.get("trust", NOT_STATED)),
    }


def _changes_privacy(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Of changes between two releases: a user in the data of both is exposed to both, so the costs add up."""
    sides = [entry_of(manifest, side) for side in _SIDES]
    costs = {name: [side.get(name) for side in sides] for name in ("epsilon", "delta")}
    known = {name: all(isinstance(one, int | float) for one in values) for name, values in costs.items()}
    total = {name: _number(sum(costs[name]) if known[name] else None) for name in costs}
    named = " and ".join(f"{side.get('release_id')} (ε = {_number(side.get('epsilon'))})" for side in sides)
    note = str(entry_of(manifest, "privacy").get("note", ""))
    return {
        "guarantee": f"Computed from the releases {named}. {note}",
        "privacy_unit": PRIVACY_UNIT,
        "contribution_bound": "that of each of the two releases",
        "adjacency": "that of each of the two releases",
        "epsilon": total["epsilon"],
        "delta": total["delta"],
        "trust": "that of each of the two releases",
    }


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "none"
