"""Requests of `sfumato changes`: what differs between two published heatmaps."""

from __future__ import annotations

from typing import ClassVar

from sfumato.schemas.requests.publish_request import LogOptions
from sfumato.schemas.requests.request_base import INPUT, METHOD, OUTPUT, option


class ChangesRequest(LogOptions):
    """Two heatmaps of one region."""

    JOB: ClassVar[str] = "changes"
    COMMAND: ClassVar[str] = "changes"
    ABOUT: ClassVar[str] = (
        "Finds where two published heatmaps differ by more than noise and chance explain, with a stated false "
        "discovery rate. It reads releases alone and costs no privacy budget."
    )
    EXAMPLE: ClassVar[str] = "monday tuesday --output changes"

    before: str = option(
        ..., "a release of `sfumato heatmap`, local or gs://", INPUT, common=True, metavar="BEFORE", style="positional"
    )
    after: str = option(..., "another of the same region", INPUT, common=True, metavar="AFTER", style="positional")
    output: str | None = option(
        None, "folder for changes.parquet, manifest and page; default: print a summary only", OUTPUT, common=True,
        metavar="FOLDER",
    )  # fmt: skip
    overwrite: bool = option(False, "replace changes that are there", OUTPUT, common=True)
    rate: float = option(
        0.05, "false discovery rate: expected share of wrong ones among the changes found, at most", METHOD,
        common=True, gt=0.0, lt=1.0,
    )  # fmt: skip
    shares: bool = option(
        False, "compare shares of all users, for maps of different numbers of users", METHOD, common=True
    )
