"""`sfumato ledger restore --releases`: makes charges and removals again that manifests state and a ledger lacks."""

from __future__ import annotations

import sys

from sfumato.pipelines.ledger import restore_copy
from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.ledger import format_amount
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import lost_charges
from sfumato.transforms.release.stated_charge import StatedCharge


def run(request: LedgerRequest) -> int:
    """Restores the copy, if any, and charges what it lacks. Raises RequestError, NotReadyError or LedgerError."""
    if request.file is not None:
        restore_copy(request)
    ledger = open_ledger(request.ledger)
    history, number = ledger.history(), 0
    lost: list[StatedCharge] = []
    problems: list[str] = []
    for folder in request.releases:
        charges, unreadable, charged = lost_charges(folder, history)
        lost += charges
        problems += unreadable
        number += charged
    if not number:
        raise RequestError(f"releases: nothing in {', '.join(request.releases)} was charged to a ledger")
    recovered = 0
    for one in sorted(lost, key=lambda one: one.entry):
        if ledger.recover(one.charge, one.hash, one.manifest, one.refusal):  # otherwise found twice
            charge = one.charge
            what = "refused" if one.manifest is None else "published"
            sys.stdout.write(
                f"{charge.release_id}: epsilon {format_amount(charge.epsilon)} for {charge.dataset}, {charge.period}, "
                f"charged again ({what}; {one.path})\n"
            )
            recovered += 1
        if one.removal is not None:  # a run that died above is completed by the next
            ledger.commit(one.charge.release_id, str(one.manifest))  # raises if another manifest was published
            ledger.remove(one.charge.release_id, one.removal)
            sys.stdout.write(f"{one.charge.release_id}: taken down, as {one.path} says\n")
    sys.stdout.write(f"{request.ledger}: {recovered} of {number} charges were lost, and are charged again\n")
    if problems:
        raise LedgerError("\n  ".join(["ledger: some charges are lost, and cannot be made again:", *problems]))
    return 0
