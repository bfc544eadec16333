"""`sfumato ledger restore --releases`: charges again what published releases state and a restored ledger lacks."""

from __future__ import annotations

import sys

from sfumato.pipelines.ledger import approver_key, restore_copy
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import format_amount
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import stated_charges


def run(request: LedgerRequest) -> int:
    """Restores the copy, if any, and charges what it lacks. Raises RequestError, NotReadyError or LedgerError."""
    if request.file is not None:
        restore_copy(request)
    found = [charge for folder in request.releases for charge in stated_charges(folder)]
    if not found:
        raise RequestError(f"releases: nothing in {', '.join(request.releases)} was charged to a ledger")
    ledger, approver = open_ledger(request.ledger), approver_key("approver_key", request.approver_key)
    recovered = 0
    for one in sorted(found, key=lambda one: one.entry):
        if ledger.recover(one.charge, one.hash, one.manifest, one.refusal, approver):
            charge = one.charge
            what = "refused" if one.manifest is None else "published"
            sys.stdout.write(
                f"{charge.release_id}: epsilon {format_amount(charge.epsilon)} for {charge.dataset}, {charge.period}, "
                f"charged again ({what}; {one.path})\n"
            )
            recovered += 1
    sys.stdout.write(f"{request.ledger}: {recovered} of {len(found)} charges were lost, and are charged again\n")
    return 0
