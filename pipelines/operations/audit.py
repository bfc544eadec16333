"""`sfumato audit`: the checks of a published release that need no data, and a verdict."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sfumato.pipelines.operations.ledger_account import read_history
from sfumato.schemas.errors import CheckFailedError, RequestError
from sfumato.transforms.audit.findings import Evidence, SignedReport, audit, report, verdict
from sfumato.transforms.audit.request import AuditRequest
from sfumato.transforms.audit.signature import SUFFIX, sign, verified
from sfumato.transforms.io.files import check_new_file, is_remote, join, read_option, write_output
from sfumato.transforms.io.storage import matching
from sfumato.transforms.release.catalog import disagreement, is_disclosed, is_pruned
from sfumato.transforms.release.published_release import open_release


def run(request: AuditRequest) -> None:
    """Runs the command. Raises RequestError, LedgerError if the ledger is damaged, or CheckFailedError."""
    check_report(request.output, request.sign)
    evidence = replace(gather(request.folder, request.ledger), signed=_signed(request))
    findings = audit(evidence)
    head = f"{request.folder}: release {evidence.release.manifest.get('release_id')}"
    sys.stdout.write("\n".join([head, "", *map(str, findings), ""]) + "\n")
    if request.output is not None:
        write_report(report(evidence, findings), request.output, request.sign)
    if any(one.result == "violation" for one in findings):
        raise CheckFailedError(verdict(findings))
    sys.stdout.write(f"{verdict(findings)}\n")


def check_report(output: str | None, key: str | None) -> None:
    """Raises RequestError if a report cannot be written or signed. key: path of the private key."""
    if output is not None:
        check_new_file(output, overwrite=False)
    if key is not None:
        check_new_file(f"{output}{SUFFIX}", overwrite=False)
        sign(b"", read_option("sign", key))
        if not is_remote(key) and (mode := stat.S_IMODE(os.stat(key).st_mode)) & (stat.S_IRWXG | stat.S_IRWXO):
            raise RequestError(
                f"sign: other users can read {key} (mode {mode:04o}) and sign in your name; run: chmod 600 "
                f"{shlex.quote(key)}"
            )


def write_report(content: Mapping[str, Any], output: str, key: str | None) -> None:
    """Writes a report as JSON and, with a private key, its signature."""
    text = (json.dumps(content, indent=2) + "\n").encode()
    write_output(output, text)
    if key is not None:
        write_output(f"{output}{SUFFIX}", sign(text, read_option("sign", key)))


def _signed(request: AuditRequest) -> SignedReport | None:
    if request.verify is None or request.auditor is None:
        return None
    content, signature = read_option("verify", request.verify), read_option("verify", f"{request.verify}{SUFFIX}")
    return SignedReport(request.verify, verified(content, signature, read_option("auditor", request.auditor)))


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
