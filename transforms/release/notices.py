"""Pages and manifests in place of a release that was refused after its charge, or that was taken down. Pure.

The notice of a removal holds no result: it names the release, its charge and what it cost, the digest of its manifest,
and the reason. So a charge that its ledger lost can be made again from it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sfumato.schemas import guarantee
from sfumato.schemas.ledger import ADD_OR_REMOVE, Charge, Reservation, format_amount
from sfumato.schemas.release import MANIFEST_FILE, PAGE_FILE, REFUSAL_FORMAT, REMOVAL_FORMAT
from sfumato.transforms.release.metadata import ReleaseMetadata, manifest_bytes, package_versions

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>body {{ font: 1.05rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 12vh auto; padding: 0 1.25rem }}
h1 {{ font-size: 1.5rem; line-height: 1.25 }} small {{ opacity: .75 }}</style></head>
<body><h1>{title}</h1>
"""
_PAGE_END = "</body></html>\n"
_REFUSED = """<p>{reason}.</p>
<p>This decision uses noisy counts and public figures only. It cost epsilon {spent} of the {total} that the release
would have cost. Adjacency: {adjacency}.</p>
<p><small>Release {release_id}, {job}, {created}. Details are in <a href="manifest.json">manifest.json</a>.</small></p>
"""
_REMOVED = """<p>Release {release_id} was taken down on {removed}. Reason: {reason}.</p>
<p>Its cost stays charged, because whoever has seen it knows what it said.</p>
<p><small>{job}, dataset {dataset}, data of {period}. The notice is
<a href="manifest.json">manifest.json</a>.</small></p>
"""


def _notice_page(text: str, fields: Mapping[str, str]) -> bytes:
    """Returns a page without a result.

    Args:
        text: HTML of the body below the title, with the fields' names in braces.
        fields: plain text by name, `title` among them.
    """
    return (_PAGE + text + _PAGE_END).format(**{name: html.escape(value) for name, value in fields.items()}).encode()


def refusal_files(
    metadata: ReleaseMetadata,
    reason: str,
    epsilon: Decimal,
    spent: Decimal,
    delta_spent: Decimal,
    adjacency: str,
    bits: int | None = None,
) -> dict[str, bytes]:
    """Returns the files of a refused release by name, the manifest last.

    Args:
        metadata: the release's identity.
        reason: the refusal's message, made of noisy and public values alone.
        epsilon: what the whole release would have cost.
        spent: epsilon that the refusal cost.
        delta_spent: delta that the refusal cost.
        adjacency: of `spent` and `delta_spent`, as text.
        bits: of their value that each user had sent before the refusal; None for none.
    """
    manifest = {
        "format": REFUSAL_FORMAT,
        "status": "refused",
        "release_id": metadata.release_id,
        "job": metadata.job,
        "created": metadata.created,
        "reason": reason,
        "privacy": {
            "unit": guarantee.PRIVACY_UNIT,
            "adjacency": adjacency,
            "epsilon": float(epsilon),
            "epsilon_spent": float(spent),
            "delta": float(delta_spent),
            **({} if bits is None else {"meter": {"bits_per_client": bits}}),
            "randomness": metadata.source,
        },
        **({} if metadata.ledger is None else {"ledger": dict(metadata.ledger)}),
        "parameters": dict(metadata.parameters),
        "versions": package_versions(),
    }
    fields = {
        "title": "No result was published",
        "reason": reason,
        "spent": format_amount(spent),
        "total": format_amount(epsilon),
        "adjacency": adjacency,
        "release_id": metadata.release_id,
        "job": metadata.job,
        "created": metadata.created,
    }
    return {PAGE_FILE: _notice_page(_REFUSED, fields), MANIFEST_FILE: manifest_bytes(manifest)}


def removed_release(manifest: bytes | None) -> str | None:
    """The id of the release in whose place a notice stands; None for any other manifest, or without one."""
    try:
        content = json.loads(manifest or b"null")
        return str(content["release_id"]) if content["format"] == REMOVAL_FORMAT else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def removal_files(reservation: Reservation, ledger: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the files of the notice by name, the manifest first.

    Args:
        reservation: of the release that was taken down. Equal reservations give equal files.
        ledger: the manifest's entry `ledger` of its charge.
    """
    charge = reservation.charge
    manifest = {
        "format": REMOVAL_FORMAT,
        "status": "removed",
        "release_id": charge.release_id,
        "job": charge.job,
        "created": reservation.time,
        "removed": reservation.pruned,
        "reason": reservation.removal,
        "removed_manifest": {"sha256": reservation.manifest},
        "privacy": _privacy(charge),
        "ledger": dict(ledger),
    }
    fields = {
        "title": "This release was taken down",
        "reason": str(reservation.removal).rstrip("."),
        "removed": str(reservation.pruned)[:10],
        "release_id": charge.release_id,
        "job": charge.job,
        "dataset": charge.dataset,
        "period": str(charge.period),
    }
    return {MANIFEST_FILE: manifest_bytes(manifest), PAGE_FILE: _notice_page(_REMOVED, fields)}


def _privacy(charge: Charge) -> dict[str, Any]:
    """What a charge states of privacy, in the form of a release's manifest. Amounts are text, as in the ledger."""
    protected = charge.adjacency == ADD_OR_REMOVE
    rotation = charge.rotation
    return {
        "adjacency": guarantee.ADD_OR_REMOVE if protected else guarantee.ZERO_OUT,
        "trust": charge.trust,
        "epsilon": format_amount(charge.epsilon),
        "delta": format_amount(charge.delta),
        **({} if charge.rho is None else {"rho": format_amount(charge.rho)}),
        **({} if rotation is None else {"rotation": {"cohort": rotation.cohort, "cohorts": rotation.cohorts}}),
        **({} if charge.bits is None else {"meter": {"bits_per_client": charge.bits}}),
        "participation": {"protected": protected},
    }
