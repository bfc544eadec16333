"""The charge that the manifest of a release, of a refusal or of a removal states. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sfumato.schemas import guarantee
from sfumato.schemas.errors import FormatError, LedgerError, check_format
from sfumato.schemas.ledger import ADD_OR_REMOVE, ZERO_OUT, Charge, Period, parse_amount, parse_day
from sfumato.schemas.release import MANIFEST_FILE, MANIFEST_FORMAT, REFUSAL_FORMAT, REMOVAL_FORMAT
from sfumato.schemas.requests.commands import removal_reason
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.trust import Trust

NO_COST = KeyError, TypeError, AttributeError, ValueError
"""Errors for a manifest that does not state its cost. RequestError is a ValueError."""


@dataclass(frozen=True)
class StatedCharge:
    """The charge that a manifest states.

    Attributes:
        path: the release's folder.
        entry: number of the ledger's entry.
        hash: of the entry.
        charge: as far as the manifest states it: without digests of request, input files and key. Where the manifest
            names no partition of the users, it counts for all of them.
        manifest: SHA-256 of the manifest of a published release; None for a refusal.
        refusal: the reason of a refusal; None for a published release.
        removal: why the release was taken down; None if it was not.
    """

    path: str
    entry: int
    hash: str
    charge: Charge
    manifest: str | None
    refusal: str | None
    removal: str | None = None

    @property
    def is_notice(self) -> bool:
        """Whether the manifest stands in place of a release."""
        return self.manifest is None or self.removal is not None


def stated_cost(manifest: Mapping[str, Any]) -> tuple[Decimal, Decimal, Decimal | None, str]:
    """Returns the epsilon, delta, rho and adjacency of a release's manifest. Raises one of NO_COST."""
    privacy = manifest["privacy"]
    # With local privacy the collector of the reports may learn more than readers of the release. The larger counts.
    collector = privacy.get("collector") or {"epsilon": 0}
    epsilon = max(parse_amount("epsilon", privacy["epsilon"]), parse_amount("epsilon", collector["epsilon"]))
    rho = privacy.get("rho")
    participation = privacy.get("participation") or {"protected": True}
    adjacency = ADD_OR_REMOVE if participation["protected"] else ZERO_OUT
    return epsilon, parse_amount("delta", privacy.get("delta", 0)), rho and parse_amount("rho", rho), adjacency


def stated_charge(path: str, content: bytes) -> StatedCharge:
    """Returns the charge of a manifest of a release, a refusal or a removal that a ledger charged.

    Args:
        path: the release's folder.
        content: the manifest's bytes.

    Raises:
        FormatError: another version of sfumato wrote the manifest.
        LedgerError: the manifest does not state what was charged.
    """
    try:
        manifest = json.loads(content)
        stated = manifest["ledger"]
        kind = str(manifest["format"]).rpartition("/")[0]
        known = {one.rpartition("/")[0]: one for one in (REFUSAL_FORMAT, REMOVAL_FORMAT)}.get(kind, MANIFEST_FORMAT)
        check_format(f"{path}: {MANIFEST_FILE}", manifest["format"], known)
        cost = _refusal_cost(manifest) if known == REFUSAL_FORMAT else stated_cost(manifest)
        epsilon, delta, rho, adjacency = cost
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
            rotation=_rotation(manifest["privacy"].get("rotation"), stated.get("partition")),
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
        raise LedgerError(f"ledger: {path} was charged, and its manifest does not say for what ({error})") from None


def _refusal_cost(manifest: Mapping[str, Any]) -> tuple[Decimal, Decimal, None, str]:
    """Like `stated_cost`, of a refusal. It has no rho, so epsilon and delta count as the worst mechanism of them."""
    privacy = manifest["privacy"]
    adjacency = ADD_OR_REMOVE if privacy["adjacency"] == guarantee.ADD_OR_REMOVE else ZERO_OUT
    return parse_amount("epsilon", privacy["epsilon_spent"]), parse_amount("delta", privacy["delta"]), None, adjacency


def _rotation(asked: Mapping[str, Any] | None, partition: object) -> Rotation | None:
    if asked is None or not isinstance(partition, str) or not partition:
        return None
    return Rotation(int(asked["cohort"]), int(asked["cohorts"]), partition)
