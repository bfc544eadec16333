"""The request of `sfumato zones --release`: zones from a published heatmap."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import LogOptions
from sfumato.schemas.requests.request_base import INPUT, MAP, OUTPUT, option
from sfumato.schemas.requests.zones_request import INDEXES


class ReleaseZonesRequest(LogOptions):
    """Users of zones from a published heatmap."""

    JOB: ClassVar[str] = "zones"
    COMMAND: ClassVar[str] = "zones --release"
    ABOUT: ClassVar[str] = (
        "Estimates from a published heatmap how many users are in each of a list of zones, with errors of the noise "
        "and of cells that a border cuts. It reads the release alone and costs no privacy budget."
    )
    EXAMPLE: ClassVar[str] = "map --zones tracts.geojson --id_column tract --output tracts.csv"

    release: str = option(
        ...,
        "a release of `sfumato heatmap`, local or gs://",
        INPUT,
        common=True,
        metavar="FOLDER",
        style="positional",
    )
    zones: str | None = option(
        None,
        "polygons in longitude and latitude: a GeoJSON or GeoParquet file, local or gs:// (or give --h3 or --quadkey)",
        INPUT,
        common=True,
        metavar="FILE",
    )
    id_column: str | None = option(None, "property or column of the zones' ids", INPUT, common=True, metavar="NAME")
    h3: int | None = option(
        None, "zones are the H3 cells of this resolution that meet the map", MAP, common=True, ge=0, le=15, metavar="N"
    )
    quadkey: int | None = option(
        None, "zones are the map tiles of this level that meet the map", MAP, ge=1, le=23, metavar="N"
    )
    output: str = option(
        ..., "table: .parquet (GeoParquet), .geojson, or .csv without polygons", OUTPUT, common=True, metavar="FILE"
    )
    overwrite: bool = option(False, "replace a file that is there", OUTPUT, common=True)

    @property
    def index(self) -> tuple[str, int] | None:
        """The index whose cells are the zones, and the resolution; None for zones of a file."""
        given = ((name, getattr(self, name)) for name in INDEXES)
        return next(((name, level) for name, level in given if level is not None), None)

    @model_validator(mode="after")
    def _of_one_source(self) -> Self:
        sources = [name for name in ("zones", *INDEXES) if getattr(self, name) is not None]
        if len(sources) != 1:
            text = (
                f"{' and '.join(sources)}: give one of them" if sources else "zones: name their file with --zones FILE"
            )
            raise RequestError(f"{text} (a file, or the cells of --h3 or --quadkey)")
        if self.zones is not None and self.id_column is None:
            raise RequestError("id_column: name the property or column of the zones' ids, such as --id_column tract")
        if self.zones is None and self.id_column is not None:
            raise RequestError(f"id_column: is of a file of --zones; cells of --{sources[0]} have their own names")
        return self
