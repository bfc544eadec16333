"""`sfumato audit`: the checks of a published release that need no data, and a verdict."""

from __future__ import annotations

import json
import sys

from sfumato.pipelines.operations.ledger_account import read_history
from sfumato.schemas.errors import CheckFailedError
from sfumato.transforms.audit.findings import Evidence, audit, report, verdict
from sfumato.transforms.audit.request import AuditRequest
from sfumato.transforms.io.files import check_new_file, join, write_output
from sfumato.transforms.io.storage import matching
from sfumato.transforms.release.catalog import disagreement, is_disclosed, is_pruned
from sfumato.transforms.release.published_release import open_release


def run(request: AuditRequest) -> None:
    """Runs the command. Raises RequestError, LedgerError if the ledger is damaged, or CheckFailedError."""
    if request.output is not None:
        check_new_file(request.output, overwrite=False)
    evidence = gather(request.folder, request.ledger)
    findings = audit(evidence)
    head = f"{request.folder}: release {evidence.release.manifest.get('release_id')}"
    sys.stdout.write("\n".join([head, "", *map(str, findings), ""]) + "\n")
    if request.output is not None:
        write_output(request.output, (json.dumps(report(evidence, findings), indent=2) + "\n").encode())
    if any(one.result == "violation" for one in findings):
        raise CheckFailedError(verdict(findings))
    sys.stdout.write(f"{verdict(findings)}\n")


def gather(folder: str, ledger: str | None) -> Evidence:
    """Returns what an audit reads. Raises RequestError, or LedgerError if the ledger is damaged."""
    release = open_release(folder)
    present = frozenset(file.path.rsplit("/", 1)[-1] for file in matching(join(folder, "*")))
    if ledger is None:
        return Evidence(release, present)
    history = read_history(ledger, with_limits=True)  # after the release, so that it has all its entries
    reservation = history.reservations.get(str(release.manifest.get("release_id")))
    is_committed = is_disclosed(release, history) or (reservation is not None and reservation.manifest is not None)
    contradiction = None if is_disclosed(release, history) else disagreement(release, history)
    return Evidence(release, present, ledger, contradiction, is_committed, is_pruned(release, history))
