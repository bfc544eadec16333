"""Pages and manifests instead of a release that was refused or taken down, and the charge that a manifest states.

Pure. The notice of a removal holds no result: it names the release, its charge and what it cost, the digest of its
manifest, and the reason. So a charge that its ledger lost can be made again from it.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sfumato.schemas.errors import FormatError, LedgerError, check_format
from sfumato.schemas.guarantee import ADD_OR_REMOVE, ADJACENCY_TEXTS, PRIVACY_UNIT, ZERO_OUT, Trust
from sfumato.schemas.ledger import (
    Charge,
    Period,
    Reservation,
    format_amount,
    parse_amount,
    parse_day,
)
from sfumato.schemas.release import MANIFEST_FILE, MANIFEST_FORMAT, PAGE_FILE, REFUSAL_FORMAT, REMOVAL_FORMAT
from sfumato.schemas.requests.commands import removal_reason
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.release.metadata import ReleaseMetadata, manifest_bytes

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
<p>This decision uses only noisy counts and public figures. It cost epsilon {spent} of the {total} that the release
would have cost. Adjacency: {adjacency}.</p>
<p><small>Release {release_id}, {job}, {created}. Details are in <a href="manifest.json">manifest.json</a>.</small></p>
"""
_REMOVED = """<p>Release {release_id} was taken down on {removed}. Reason: {reason}.</p>
<p>Its cost stays charged, because readers may have kept a copy.</p>
<p><small>{job}, dataset {dataset}, data of {period}. The notice is
<a href="manifest.json">manifest.json</a>.</small></p>
"""
NO_COST = KeyError, TypeError, AttributeError, ValueError
"""Errors for a manifest that does not state its cost. RequestError is a ValueError."""


def _notice_page(text: str, fields: Mapping[str, str]) -> bytes:
    """Returns a page without a result. text: HTML of the body; fields: plain text for the names in braces."""
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
        reason: the refusal's message, made of noisy and public values only.
        epsilon: what the whole release would have cost.
        spent, delta_spent: epsilon and delta that the refusal cost.
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
            "unit": PRIVACY_UNIT,
            "adjacency": adjacency,
            "epsilon": float(epsilon),
            "epsilon_spent": float(spent),
            "delta": float(delta_spent),
            **({} if bits is None else {"meter": {"bits_per_client": bits}}),
            "randomness": metadata.source,
        },
        **({} if metadata.ledger is None else {"ledger": dict(metadata.ledger)}),
        "parameters": dict(metadata.parameters),
        **metadata.provenance,
    }
    fields = {
        "title": "No result was published",
        "spent": format_amount(spent),
        "total": format_amount(epsilon),
        **{name: str(manifest[name]) for name in ("reason", "release_id", "job", "created")},
        "adjacency": adjacency,
    }
    return {PAGE_FILE: _notice_page(_REFUSED, fields), MANIFEST_FILE: manifest_bytes(manifest)}


def removed_release(manifest: bytes | None) -> str | None:
    """Returns the id of the release that a notice replaces; None for any other manifest, or without one."""
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
    is_protected, rotation = charge.adjacency == ADD_OR_REMOVE, charge.rotation
    privacy = {  # as in a release's manifest, with amounts as text, as in the ledger
        "adjacency": ADJACENCY_TEXTS[charge.adjacency],
        "trust": charge.trust,
        "epsilon": format_amount(charge.epsilon),
        "delta": format_amount(charge.delta),
        **({} if charge.rho is None else {"rho": format_amount(charge.rho)}),
        **({} if rotation is None else {"rotation": {"cohort": rotation.cohort, "cohorts": rotation.cohorts}}),
        **({} if charge.bits is None else {"meter": {"bits_per_client": charge.bits}}),
        "participation": {"protected": is_protected},
    }
    manifest = {
        "format": REMOVAL_FORMAT,
        "status": "removed",
        "release_id": charge.release_id,
        "job": charge.job,
        "created": reservation.time,
        "removed": reservation.pruned,
        "reason": reservation.removal,
        "removed_manifest": {"sha256": reservation.manifest},
        "privacy": privacy,
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


@dataclass(frozen=True)
class StatedCharge:
    """The charge that the manifest in a release's folder, `path`, states, and the ledger's entry of it.

    The charge is without digests of request, input files and key. Where the manifest names no partition of the users,
    it counts for all of them.
    """

    path: str
    entry: int
    hash: str
    charge: Charge
    manifest: str | None  # SHA-256 of the manifest of a published release; None for a refusal
    refusal: str | None  # the reason of a refusal; None for a published release
    removal: str | None = None  # why the release was taken down; None if it was not

    @property
    def is_notice(self) -> bool:
        """Returns whether the manifest replaces a release."""
        return self.manifest is None or self.removal is not None


def _format_of(manifest: Mapping[str, Any]) -> str:
    """Returns the newest format of the manifest's kind: a refusal, a removal, or else a release."""
    kind = str(manifest.get("format")).rpartition("/")[0]
    return {one.rpartition("/")[0]: one for one in (REFUSAL_FORMAT, REMOVAL_FORMAT)}.get(kind, MANIFEST_FORMAT)


def stated_cost(manifest: Mapping[str, Any]) -> tuple[Decimal, Decimal, Decimal | None, str]:
    """Returns the epsilon, delta, rho and adjacency of a manifest. Raises one of NO_COST.

    A refusal has no rho, so epsilon and delta count as the worst mechanism of them.
    """
    privacy = manifest["privacy"]
    if _format_of(manifest) == REFUSAL_FORMAT:
        spent, delta = parse_amount("epsilon", privacy["epsilon_spent"]), parse_amount("delta", privacy["delta"])
        named = {text: name for name, text in ADJACENCY_TEXTS.items()}
        return spent, delta, None, named.get(privacy["adjacency"], ZERO_OUT)
    # With local privacy the collector of the reports may learn more than readers of the release. The larger counts.
    collector = privacy.get("collector") or {"epsilon": 0}
    epsilon = max(parse_amount("epsilon", privacy["epsilon"]), parse_amount("epsilon", collector["epsilon"]))
    rho = privacy.get("rho")
    participation = privacy.get("participation") or {"protected": True}
    adjacency = ADD_OR_REMOVE if participation["protected"] else ZERO_OUT
    return epsilon, parse_amount("delta", privacy.get("delta", 0)), rho and parse_amount("rho", rho), adjacency


def stated_charge(path: str, content: bytes) -> StatedCharge:
    """Returns the charge of a manifest of a release, a refusal or a removal that a ledger charged.

    path: the release's folder. content: the manifest's bytes.

    Raises:
        FormatError: another version of sfumato wrote the manifest.
        LedgerError: the manifest does not state what was charged.
    """
    try:
        manifest = json.loads(content)
        stated = manifest["ledger"]
        known = _format_of(manifest)
        check_format(f"{path}: {MANIFEST_FILE}", manifest["format"], known)
        epsilon, delta, rho, adjacency = stated_cost(manifest)
        cohort, partition, rotation = manifest["privacy"].get("rotation"), stated.get("partition"), None
        if cohort is not None and isinstance(partition, str) and partition:
            rotation = Rotation(int(cohort["cohort"]), int(cohort["cohorts"]), partition)
        charge = Charge(
            release_id=manifest["release_id"],
            job=str(manifest["job"]),
            dataset=stated["dataset"],
            period=Period(parse_day("first_day", stated["first_day"]), parse_day("last_day", stated["last_day"])),
            epsilon=epsilon,
            delta=delta,
            request="",
            binding="",
            adjacency=adjacency,
            trust=Trust(manifest["privacy"].get("trust", Trust.CENTRAL)),
            rho=rho,
            also_charged=tuple((str(name), Period.parse(days)) for name, days in stated.get("also_charged", ())),
            rotation=rotation,
            bits=(manifest["privacy"].get("meter") or {}).get("bits_per_client"),
        )
        entry = path, int(stated["entry"]), str(stated["hash"]), charge
        if known == REFUSAL_FORMAT:
            return StatedCharge(*entry, None, str(manifest.get("reason")))
        if known == REMOVAL_FORMAT:
            digest = str(manifest["removed_manifest"]["sha256"])
            return StatedCharge(*entry, digest, None, removal_reason(manifest["reason"] or ""))
        return StatedCharge(*entry, hashlib.sha256(content).hexdigest(), None)
    except FormatError:
        raise
    except (*NO_COST, ArithmeticError, RecursionError) as error:
        raise LedgerError(f"ledger: {path} was charged, but its manifest does not state its charge ({error})") from None
