"""The requests of `sfumato audit`: of a published release, of a job on its logs, and of the audit itself."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import LogOptions, RunnerOptions
from sfumato.schemas.requests.request_base import INPUT, OUTPUT, RUN, option


class ReportOptions(LogOptions):
    """Options of the report of an audit."""

    output: str | None = option(
        None, "a new JSON file for the report, local or gs://", OUTPUT, metavar="FILE", common=True
    )
    sign: str | None = option(
        None,
        "the auditor's Ed25519 private key in PEM: writes the report's signature to FILE.sig, with --output",
        OUTPUT,
        metavar="KEY",
    )

    @model_validator(mode="after")
    def _signature(self) -> Self:
        if self.sign is not None and self.output is None:
            raise RequestError("sign: requires --output")
        return self


class AuditRequest(ReportOptions):
    """Checks a published release without its data: files, ledger entry, epsilon and delta, answers against the noise.

    Every check holds, finds a violation, or says why it was not made. Exit status: 0 no violation found; 1 a violation.
    """

    JOB: ClassVar[str] = "audit"
    EXAMPLE: ClassVar[str] = "release --ledger ledger.db"

    folder: str = option(..., "a release's folder, local or gs://", INPUT, metavar="RELEASE", style="positional")
    ledger: str | None = option(
        None,
        "the ledger that it was charged to: an SQLite file, or gs://bucket/folder",
        INPUT,
        metavar="LEDGER",
        common=True,
    )
    verify: str | None = option(
        None, "a signed report on the release; its signature is in REPORT.sig", INPUT, metavar="REPORT"
    )
    auditor: str | None = option(
        None, "the public key in PEM that --verify expects the signature of", INPUT, metavar="KEY"
    )

    @model_validator(mode="after")
    def _verified(self) -> Self:
        for name, other in (("verify", "auditor"), ("auditor", "verify")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise RequestError(f"{name}: requires --{other}")
        return self


class JobAuditRequest(RunnerOptions, ReportOptions):
    """Runs a job on logs, on neighbouring logs and under several keys, and checks everything that leaves a run.

    The options of the job follow. Nothing is published or charged, and the report is for the operator only: it follows
    from the records. Exit status: 0 no violation found; 1 a violation.
    """

    JOB: ClassVar[str] = "audit"
    COMMAND: ClassVar[str] = "audit --job"
    EXAMPLE: ClassVar[str] = "heatmap --input logs --region=-122.51,37.7,-122.35,37.82 --epsilon 1 --trust central"

    job: str = option(..., "a job that publishes a release, such as heatmap", INPUT, metavar="JOB", style="positional")
    users: str = option(
        "20",
        "users whose records are replaced or removed: how many, or their ids, or a file with an id a line",
        RUN,
        metavar="N|ID,ID,...|FILE",
        common=True,
    )
    minutes: float = option(
        1.0, "minutes for runs with fresh keys, which bound epsilon from below; 0 for none", RUN, ge=0, common=True
    )

    @model_validator(mode="after")
    def _some_users(self) -> Self:
        if not self.users.strip(" ,0"):
            raise RequestError("users: must be at least 1, or name a user")
        return self


class SelfTestRequest(LogOptions):
    """Plants faults in the jobs and audits them. Exit status: 0 all are found; 1 one is missed."""

    JOB: ClassVar[str] = "audit"
    COMMAND: ClassVar[str] = "audit --self_test"
    EXAMPLE: ClassVar[str] = ""
