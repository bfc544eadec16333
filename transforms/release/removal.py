"""The page and manifest that stand in place of a release that was taken down. Pure.

The notice holds no result: it names the release, its charge and what it cost, the digest of its manifest, and the
reason. So a charge that its ledger lost can be made again from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.schemas import guarantee
from sfumato.schemas.ledger import ADD_OR_REMOVE, Charge, Reservation, format_amount
from sfumato.schemas.release import MANIFEST_FILE, PAGE_FILE, REMOVAL_FORMAT
from sfumato.transforms.release.metadata import manifest_bytes
from sfumato.transforms.release.refusal import notice_page

_REMOVED = """<p>Release {release_id} was taken down on {removed}. Reason: {reason}.</p>
<p>Its cost stays charged, because whoever has seen it knows what it said.</p>
<p><small>{job}, dataset {dataset}, data of {period}. The notice is
<a href="manifest.json">manifest.json</a>.</small></p>
"""


@dataclass(frozen=True)
class Notice:
    """What the notice in a folder says. release_id: of the release that was taken down."""

    release_id: str

    @classmethod
    def parse(cls, manifest: bytes | None) -> Notice | None:
        """The notice that a manifest holds; None for any other manifest, or without one."""
        try:
            content = json.loads(manifest or b"null")
            return cls(str(content["release_id"])) if content["format"] == REMOVAL_FORMAT else None
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
    return {MANIFEST_FILE: manifest_bytes(manifest), PAGE_FILE: notice_page(_REMOVED, fields)}


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
