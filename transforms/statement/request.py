"""Request of `sfumato statement`: the release, and what only a person can say about it."""

from __future__ import annotations

import functools
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import LogOptions
from sfumato.schemas.requests.request_base import INPUT, LEDGER, OUTPUT, option

_text = functools.partial(option, None, common=True, group=INPUT, metavar="TEXT")
_texts = functools.partial(option, (), common=True, group=INPUT, metavar="TEXT", style="repeated")


class StatementRequest(LogOptions):
    """Writes what a published release guarantees, as a record of the Differential Privacy Deployments Registry.

    It reads the manifest only and costs no privacy budget. Comments in the YAML say what only a person can write.
    """

    JOB: ClassVar[str] = "statement"
    EXAMPLE: ClassVar[str] = "release --curator 'City of Penumbra' --title 'Where people are' --sector Government"

    release: str = option(..., "a release, local or gs://", INPUT, metavar="RELEASE", style="positional")
    curator: tuple[str, ...] = _texts("publisher of the release; may be repeated")
    title: str | None = _text("the name of the data product (default: the title of the release)")
    purpose: str | None = _text("the intended use of the data product")
    place: str | None = _text("the region that the data describe, or whose laws apply (default: the map's borders)")
    sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None = option(
        None,
        "the industry or domain of the data: Technology, Healthcare, Education, Government, Energy or Finance",
        INPUT,
        common=True,
    )
    author: tuple[str, ...] = _texts("author of the record; may be repeated")
    source: tuple[str, ...] = _texts("the address of the release, or of a paper about it; may be repeated")
    ledger: str | None = option(
        None, "the ledger that charged the release, to state the spent budget", LEDGER, metavar="LOCATION", common=True
    )
    audit: str | None = option(
        None, "the JSON report of `sfumato audit` on this release, which the record cites", INPUT, metavar="REPORT"
    )
    format: Literal["yaml", "json-ld", "text"] = option(
        "yaml", "yaml: the registry's; json-ld: for a web page; text: a data sheet", OUTPUT, common=True
    )
    output: str | None = option(
        None, "the file, local or gs:// (default: print it)", OUTPUT, metavar="FILE", common=True
    )
    overwrite: bool = option(False, "replace an existing file", OUTPUT, common=True)

    @model_validator(mode="after")
    def _text_and_output(self) -> Self:
        for name, given in self.given(("curator", "title", "purpose", "place", "author", "source")).items():
            for text in given if isinstance(given, tuple) else (given,):
                if not text.strip() or not text.isprintable():
                    raise RequestError(f"{name}: must be one line of text, got {text[:60]!r}")
        if self.overwrite and self.output is None:
            raise RequestError("overwrite: applies only with --output")
        return self
