"""The request of `sfumato audit`."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import LogOptions
from sfumato.schemas.requests.request_base import INPUT, OUTPUT, option


class AuditRequest(LogOptions):
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
    output: str | None = option(
        None, "a new JSON file for the report, local or gs://", OUTPUT, metavar="FILE", common=True
    )
    sign: str | None = option(
        None,
        "the auditor's Ed25519 private key in PEM: writes the report's signature to FILE.sig, with --output",
        OUTPUT,
        metavar="KEY",
    )
    verify: str | None = option(
        None, "a signed report on the release; its signature is in REPORT.sig", INPUT, metavar="REPORT"
    )
    auditor: str | None = option(
        None, "the public key in PEM that --verify expects the signature of", INPUT, metavar="KEY"
    )

    @model_validator(mode="after")
    def _signature(self) -> Self:
        for name, other in (("sign", "output"), ("verify", "auditor"), ("auditor", "verify")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise RequestError(f"{name}: requires --{other}")
        return self
