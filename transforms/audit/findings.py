"""The checks of an audit, in order, and its report. Pure: what they need of a folder and a ledger is in `Evidence`.

A check reads what a stranger published. Where a figure is missing or is none, it says so and never ends the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import has_secret_key
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.audit.answers import FALSE_ALARM, answer_layers, comparisons, contradictions
from sfumato.transforms.audit.claims import claims
from sfumato.transforms.release.metadata import code_digest, package_versions
from sfumato.transforms.release.published_release import Release

FORMAT = "sfumato-audit/1"
JOB_FORMAT = "sfumato-job-audit/1"
LIMITS = (
    "No audit of a release can see whether its noise was drawn with a secret key, whether users' contributions were "
    "bounded as stated, whether a user id is a person, and what the operator did with the logs."
)
JOB_LIMITS = (
    "An audit of a job sees the users, records and keys that it tried, on these logs and this machine. It does not see "
    "how long a run takes, what other programs learn of it, and whether a user id is a person. This report follows "
    "from the records: it is for the operator only."
)
FACTS = "One user changes nothing but what the key changes too"
CHANGES = "One user changes noisy counts by no more than stated"
NOISE = "The noise has the stated size, and is drawn separately for each count"
BINDING = "Runs that differ in a record or an option have other noise"
FRESH = "Runs with fresh keys do not refute the stated epsilon"
KEY = "The key is secret"
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, pa.ArrowException)

Result = Literal["holds", "violation", "not checked"]
Outcomes = Iterator[tuple[Result, str]]


@dataclass(frozen=True)
class SignedReport:
    """An earlier report. content: None unless the signature is the auditor's."""

    path: str
    content: Mapping[str, Any] | None


@dataclass(frozen=True)
class Evidence:
    """What an audit reads.

    Attributes:
        release: the release.
        present: names of the files in its folder.
        ledger: location of the ledger, whose chain is unbroken; None if none was given.
        contradiction: how the release disagrees with the ledger; None if it does not.
        is_committed: whether the ledger has the manifest's digest.
        is_pruned: whether the ledger says that the release's files were removed.
        signed: an earlier report to be verified; None without one.
    """

    release: Release
    present: frozenset[str]
    ledger: str | None = None
    contradiction: str | None = None
    is_committed: bool = False
    is_pruned: bool = False
    signed: SignedReport | None = None


@dataclass(frozen=True)
class Finding:
    """A line of the report: what was checked, the result, and why."""

    check: str
    result: Result
    why: str

    def __str__(self) -> str:
        return f"{self.check}: {self.result} ({self.why})"


def _check_files(evidence: Evidence) -> Outcomes:
    release, listed = evidence.release, evidence.release.listed
    if listed is None:
        yield "not checked", "an earlier version made the release, whose manifest lists no digests"
        return
    damage = release.damage(evidence.present if evidence.is_pruned else None)
    strange = sorted(name for name in evidence.present - {*listed, MANIFEST_FILE} if not name.startswith("."))
    damage += [f"{name} is not listed in the manifest" for name in strange]
    if damage:
        yield "violation", "; ".join(damage)
    elif evidence.is_pruned:
        yield "not checked", "the ledger says that the files were removed; the manifest stayed"
    else:
        yield "holds", f"{len(listed)} files as published, and no other in the folder"


def _check_ledger(evidence: Evidence) -> Outcomes:
    if evidence.ledger is None:
        yield "not checked", "no --ledger was given, so the manifest itself may have been changed"
    elif evidence.contradiction is not None:
        yield "violation", evidence.contradiction
    else:
        yield "holds", f"{evidence.ledger} is unbroken, and charged what the manifest states"
        if not evidence.is_committed:
            yield "not checked", "the ledger records no publication, so the manifest itself may have been changed"


def _check_cost(evidence: Evidence) -> Outcomes:
    found = list(claims(evidence.release.manifest))
    if broken := [f"{one.name} is {one.stated:g}, and at least {one.computed:g}" for one in found if one.is_broken]:
        yield "violation", "; ".join(broken)
    else:
        texts = [f"{one.name}: stated {one.stated:.4g}, computed {one.computed:.4g}" for one in found if one.computed]
        yield "holds", "; ".join(texts)
    for one in found:
        if one.computed is None:
            yield "not checked", f"{one.name}: no noise is stated, taken as {one.stated:.4g}"


def _check_answers(evidence: Evidence) -> Outcomes:
    found = comparisons(answer_layers(evidence.release))
    if not found:
        yield "not checked", "only one noisy count is published"
    for one in found:
        node, probability = one.worst
        if probability < FALSE_ALARM / sum(each.compared for each in found):
            yield "violation", f"{one.names} differ in {node} by more than noise explains (p below {probability:.2g})"
        else:
            places = f"{one.compared} place{'s'[: one.compared != 1]}"
            yield "holds", f"{one.names} in {places}; a false alarm in this audit has p below {FALSE_ALARM:g}"


def _check_tables(evidence: Evidence) -> Outcomes:
    broken = contradictions(evidence.release)
    yield ("violation", "; ".join(broken[:3])) if broken else ("holds", "stated noise, and sums of nested zones")


def _check_key(evidence: Evidence) -> Outcomes:
    if has_secret_key(evidence.release.manifest["privacy"]):
        yield "holds", "the manifest names no seed that anyone can guess"
    else:
        yield "violation", "the manifest states no secret key, so anyone can subtract the noise"


def _check_code(evidence: Evidence) -> Outcomes:
    stated = evidence.release.manifest["versions"]
    pairs = [(name, str(stated.get(name)), version) for name, version in package_versions().items()]
    found = [f"{name} {theirs} (here {ours})" for name, theirs, ours in pairs if theirs != ours]
    code, own = evidence.release.manifest.get("code"), code_digest()
    if code is not None and code != own:
        found.append(f"other code, SHA-256 {code} (here {own})")
    other = [f"the release was made with {', '.join(found)}"] if found else []
    if code is None:
        other.append("the manifest states no digest of the code, which may have been changed")
    if other:
        yield "not checked", "; ".join(other)
    else:
        yield "holds", f"{', '.join(f'{name} {ours}' for name, _, ours in pairs)}, code with SHA-256 {code}"


def _check_report(evidence: Evidence) -> Outcomes:
    signed = evidence.signed
    if signed is None:
        return
    if signed.content is None:
        yield "violation", f"{signed.path} is not signed with the auditor's key, or was changed"
    elif signed.content.get("format") != FORMAT or signed.content.get("manifest_sha256") != evidence.release.digest:
        yield "violation", f"{signed.path} is signed, and is no report on this manifest"
    elif any(one["result"] == "violation" for one in signed.content["checks"]):
        yield "violation", f"{signed.path} is signed, and states violations"
    else:
        yield "holds", f"{signed.path} is signed, on this manifest, and states no violation"


CHECKS: Mapping[str, Callable[[Evidence], Outcomes]] = {
    "Every file is the published one": _check_files,
    "The ledger charged the release as stated": _check_ledger,
    "Epsilon and delta follow from the stated noise": _check_cost,
    "Noisy counts of the same users agree": _check_answers,
    "Tables agree with the manifest and in themselves": _check_tables,
    KEY: _check_key,
    "Code and packages are those of this audit": _check_code,
    "The auditor signed a report on this manifest": _check_report,
}
"""A new check is a function and its line here, with the sentence that states it in the report."""


def audit(evidence: Evidence) -> list[Finding]:
    """Returns the findings of all checks, in the order of CHECKS."""
    findings = []
    for sentence, check in CHECKS.items():
        try:
            findings += [Finding(sentence, result, why) for result, why in check(evidence)]
        except RequestError as error:  # a file is damaged or gone, which the check of files reports
            findings.append(Finding(sentence, "not checked", str(error)))
        except _UNREADABLE as error:
            why = f"the manifest or a table lacks {error}" if isinstance(error, KeyError) else str(error)
            findings.append(Finding(sentence, "not checked", why))
    return findings


def verdict(findings: Sequence[Finding], limits: str = LIMITS) -> str:
    """Returns what the audit found, in sentences: never more than that no violation was found. limits: of the audit."""
    broken = sum(one.result == "violation" for one in findings)
    found = f"{broken} violation{'s'[: broken != 1]} found" if broken else "No violation found"
    missing = [f"{one.check} ({one.why})" for one in findings if one.result == "not checked"]
    left = f" Not checked: {'; '.join(missing)}." if missing else ""
    return f"{found}.{left} {limits}"


def report(evidence: Evidence, findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the report in JSON's types."""
    return {
        "format": FORMAT,
        "release_id": evidence.release.manifest.get("release_id"),
        "manifest_sha256": evidence.release.digest,
        "ledger": evidence.ledger,
        "checks": [asdict(one) for one in findings],
        "verdict": verdict(findings),
    }


def report_of_job(job: str, options: Mapping[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the report of a job's audit in JSON's types."""
    return {
        "format": JOB_FORMAT,
        "job": job,
        "options": {name: str(value) for name, value in options.items()},
        "code": code_digest(),
        "versions": package_versions(),
        "checks": [asdict(one) for one in findings],
        "verdict": verdict(findings, JOB_LIMITS),
    }
