"""Requests of `sfumato export`: a published release as a file of another tool."""

from __future__ import annotations

from typing import ClassVar

from sfumato.schemas.requests.publish_request import LogOptions
from sfumato.schemas.requests.request_base import INPUT, METHOD, OUTPUT, option


class ExportRequest(LogOptions):
    """A file of a release."""

    JOB: ClassVar[str] = "export"
    COMMAND: ClassVar[str] = "export"
    ABOUT: ClassVar[str] = (
        "Writes a published release as a file of another tool, with its guarantee in the file's metadata. It reads the "
        "release alone and costs no privacy budget."
    )
    EXAMPLE: ClassVar[str] = "release --output map.tif --licence CC-BY-4.0"

    folder: str = option(
        ..., "a release's folder, or that of changes, local or gs://", INPUT, common=True, metavar="FOLDER",
        style="positional",
    )  # fmt: skip
    output: str = option(..., "the file, local or gs://", OUTPUT, common=True, metavar="FILE")
    format: str | None = option(
        None, "geotiff, geojson, csv, gpkg, pmtiles or h3; default: by the suffix of the output", OUTPUT,
        common=True,
    )  # fmt: skip
    licence: str | None = option(
        None, "licence of the file, as an SPDX identifier such as CC-BY-4.0; without it the file says `not stated`",
        OUTPUT, common=True, metavar="TEXT",
    )  # fmt: skip
    table: str | None = option(
        None, "table of the release, where it has several; default: the one with the map", METHOD, common=True
    )
    resolution: int | None = option(
        None, "resolution of H3's cells, for the format h3", METHOD, common=True, ge=0, le=15
    )
    overwrite: bool = option(False, "replace a file that is there", OUTPUT, common=True)
