"""Requests of the commands that read published releases alone: `page`, `export`, `changes` and `zones --release`."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import LogOptions
from sfumato.schemas.requests.request_base import INPUT, METHOD, OUTPUT, option
from sfumato.schemas.requests.zones_request import ZoneOptions


class PageRequest(LogOptions):
    """The page of a release, made again."""

    JOB: ClassVar[str] = "page"
    COMMAND: ClassVar[str] = "page"
    ABOUT: ClassVar[str] = "Makes a release's page and pictures again from its files, and compares or writes them."
    EXAMPLE: ClassVar[str] = "release"

    folder: str = option(
        ..., "a release's folder, local or gs://", INPUT, common=True, metavar="FOLDER", style="positional"
    )
    output: str | None = option(
        None,
        "a local folder for the page and pictures; without it they are compared with those that were published",
        OUTPUT,
        common=True,
        metavar="FOLDER",
    )


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


class ReleaseZonesRequest(LogOptions, ZoneOptions):
    """Users of zones from a published heatmap."""

    JOB: ClassVar[str] = "zones"
    COMMAND: ClassVar[str] = "zones --release"
    ABOUT: ClassVar[str] = (
        "Estimates from a published heatmap how many users are in each of a list of zones, with errors of the noise "
        "and of cells that a border cuts. It reads the release alone and costs no privacy budget."
    )
    EXAMPLE: ClassVar[str] = "map --zones tracts.geojson --id_column tract --output tracts.csv"

    release: str = option(
        ..., "a release of `sfumato heatmap`, local or gs://", INPUT, common=True, metavar="FOLDER", style="positional"
    )
    output: str = option(
        ..., "table: .parquet (GeoParquet), .geojson, or .csv without polygons", OUTPUT, common=True, metavar="FILE"
    )
    overwrite: bool = option(False, "replace a file that is there", OUTPUT, common=True)

    @model_validator(mode="after")
    def _of_one_source(self) -> Self:
        source = self.one_zone_source()
        if self.zones is not None and self.id_column is None:
            raise RequestError("id_column: name the property or column of the zones' ids, such as --id_column tract")
        if self.zones is None and self.id_column is not None:
            raise RequestError(f"id_column: is of a file of --zones; cells of --{source} have their own names")
        return self
