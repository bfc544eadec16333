"""`sfumato statement`: what a published release guarantees, for the registry of deployments."""

from __future__ import annotations

import hashlib
import json
import sys

from sfumato.pipelines.command_line.run import JOBS
from sfumato.pipelines.operations.ledger_account import limit_accounts, read_history
from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import entry_of
from sfumato.transforms.audit.findings import FORMAT
from sfumato.transforms.io.files import check_new_file, read_file, write_output
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.statement.record import LedgerAccount, registry_record, yaml_text
from sfumato.transforms.statement.request import StatementRequest


def run(request: StatementRequest) -> None:
    """Runs the command. Raises RequestError, or LedgerError if the ledger is damaged."""
    if request.output is not None:
        check_new_file(request.output, request.overwrite)
    release = open_release(request.release)
    audited = "" if request.audit is None else cited(request.audit, release)
    account = None if request.ledger is None else ledger_account(request.ledger, release)
    job = str(release.manifest.get("job"))
    known = JOBS.get(job) or JOBS.get(f"{job} build")
    summary = f"a release of `sfumato {job}`" if known is None else known.summary.removeprefix("publish ")
    text = yaml_text(registry_record(release, request, summary, account, audited))
    if request.output is None:
        sys.stdout.write(text)
        return
    write_output(request.output, text.encode())
    sys.stdout.write(f"{request.output}\n")


def cited(path: str, release: Release) -> str:
    """Returns a sentence that cites the report of an audit. Raises RequestError if it is no report on the release."""
    try:
        content = read_file(path)
        report = json.loads(content)
    except OSError as error:
        raise RequestError(f"audit: {path} cannot be read ({error.strerror or error})") from None
    except ValueError:
        report = None
    if not isinstance(report, dict) or report.get("format") != FORMAT or not isinstance(report.get("verdict"), str):
        raise RequestError(f"audit: {path} is no report of `sfumato audit --output`")
    if report.get("manifest_sha256") != release.digest:
        raise RequestError(f"audit: {path} reports on another manifest; run `sfumato audit` on this release")
    digest = hashlib.sha256(content).hexdigest()
    return f"Report of `sfumato audit`, SHA-256 {digest}: {' '.join(report['verdict'].split())}"


def ledger_account(location: str, release: Release) -> LedgerAccount:
    """Returns what a ledger holds about the data set of a release. Raises RequestError if it did not charge it."""
    history, release_id = read_history(location, with_limits=False), str(release.manifest.get("release_id"))
    charged = history.reservations.get(release_id)
    if charged is None or entry_of(release.manifest, "ledger").get("hash") not in charged.hashes:
        raise RequestError(f"ledger: {location} has no charge of {release_id} with the hash that its manifest states")
    dataset = charged.charge.dataset
    periods = [charge.period for charge in history.charges if charge.dataset == dataset]
    first, last = min(one.first for one in periods), max(one.last for one in periods)
    limits = [
        f"Limit of the data set: {limit.describe()}. Spent in the window that ends on {account['last_day']}: epsilon "
        f"{account['epsilon_spent']}, for the user who has spent the most."
        for limit, account in limit_accounts(history, dataset)
    ]
    charges = f"Charges of the data set `{dataset}`: {len(periods)}, for days from {first} to {last}."
    return LedgerAccount(len(periods), [charges, *limits])
