"""The requests of the jobs that count users in public zones: from logs, and from a published heatmap."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.counting_options import CountingOptions
from sfumato.schemas.requests.log_columns import LogColumns, RateColumn
from sfumato.schemas.requests.publish_request import REGION_HELP, REGION_METAVAR, LogOptions, MapGeography, RegionOption
from sfumato.schemas.requests.request_base import (
    INPUT,
    MAP,
    METHOD,
    OUTPUT,
    Request,
    Several,
    common_option,
    option,
)
from sfumato.schemas.trust import Trust

INDEXES = ("h3", "quadkey")


class ZoneOptions(Request):
    """Public zones: those of a file, or the cells of an index."""

    h3: int | None = common_option(
        None, "zones are the H3 cells of this resolution that meet the region", MAP, ge=0, le=15
    )
    quadkey: int | None = option(
        None, "zones are the map tiles of this level that meet the region, named by quadkeys", MAP, ge=1, le=23
    )
    zones: str | None = common_option(
        None,
        "zones are polygons in longitude and latitude: a GeoJSON or GeoParquet file, local or gs://; they are "
        "published, so they must be known from elsewhere (or give --h3 or --quadkey)",
        INPUT,
        metavar="FILE",
    )
    id_column: str | None = common_option(None, "property or column of the zones' ids, with --zones", INPUT)

    @property
    def index(self) -> tuple[str, int] | None:
        """The option that names an index of cells, and its resolution; None for zones of a file."""
        given = [(name, getattr(self, name)) for name in INDEXES if getattr(self, name) is not None]
        return given[0] if given else None

    @property
    def zone_sources(self) -> list[str]:
        """The options that name zones."""
        return [name for name in ("zones", *INDEXES) if getattr(self, name) is not None]

    def one_zone_source(self) -> str:
        """The only option that names zones. Raises RequestError where there is none, or another one."""
        sources = self.zone_sources
        if len(sources) != 1:
            text = (
                f"{' and '.join(sources)}: give one of them" if sources else "zones: name their file with --zones FILE"
            )
            raise RequestError(f"{text} (a file, or the cells of --h3 or --quadkey)")
        return sources[0]


class ZonesRequest(ZoneOptions, RateColumn, LogColumns, MapGeography, CountingOptions):
    """Publishes how many users are in each of a list of public zones, such as tracts.

    Zones may be nested; then a tract is exactly the sum of its blocks.
    """

    JOB: ClassVar[str] = "zones"
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --zones tracts.geojson --id_column tract --epsilon 1 --output zones"
    )

    levels: Several[str] | None = common_option(
        None,
        "columns of nested levels, from the finest, whose ids --id_column names too, to the coarsest, such as "
        "block,tract,county: every level is published, under the same epsilon",
        MAP,
        metavar="NAMES",
    )
    region: RegionOption | None = option(None, f"{REGION_HELP}, with --h3 or --quadkey", MAP, metavar=REGION_METAVAR)
    contribution: Literal["one", "top", "all"] = option(
        "one",
        "what a user adds: one, to the zone of a random one of their records; top, to the zone with most of their "
        "records; all, a share to each zone of their records",
        METHOD,
    )

    @property
    def level_columns(self) -> tuple[str, ...]:
        """The columns of all levels, from the finest; one without --levels. Raises RequestError."""
        named = self.levels or (() if self.id_column is None else (self.id_column,))
        if not all(named) or not named:
            raise RequestError("id_column: name the property or column of the zones' ids, such as --id_column tract")
        if self.id_column not in (None, named[0]):
            raise RequestError(
                f"levels: names the columns of all levels from the finest, which is the id_column {self.id_column}, to "
                f"the coarsest, and starts with {named[0]}"
            )
        return tuple(named)

    @model_validator(mode="after")
    def _of_zones(self) -> Self:
        source = self.one_zone_source()
        if self.index is None:
            _ = self.level_columns
            if self.region is not None:
                raise RequestError("region: is of --h3 or --quadkey; zones of a file have their own")
        else:
            for name in ("id_column", "levels"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name}: is of a file of --zones; cells of --{source} have their own names")
            if self.region is None:
                raise RequestError(f"region: --{source} needs --region W,S,E,N")
        if self.trust == Trust.CENTRAL and (given := self.given(("shard_size", "dropout"))):
            raise RequestError(f"{min(given)}: applies only with --trust secagg")
        return self


class ReleaseZonesRequest(LogOptions, ZoneOptions):
    """Estimates from a published heatmap how many users are in each of a list of zones, with errors of the noise
    and of cells that a border cuts. It reads the release only and costs no privacy budget.
    """

    JOB: ClassVar[str] = "zones"
    COMMAND: ClassVar[str] = "zones --release"
    EXAMPLE: ClassVar[str] = "map --zones tracts.geojson --id_column tract --output tracts.csv"

    release: str = common_option(
        ..., "a release of `sfumato heatmap`, local or gs://", INPUT, metavar="FOLDER", style="positional"
    )
    output: str = common_option(
        ..., "table: .parquet (GeoParquet), .geojson, or .csv without polygons", OUTPUT, metavar="FILE"
    )
    overwrite: bool = common_option(False, "replace a file that is there", OUTPUT)

    @model_validator(mode="after")
    def _of_one_source(self) -> Self:
        source = self.one_zone_source()
        if self.zones is not None and self.id_column is None:
            raise RequestError("id_column: name the property or column of the zones' ids, such as --id_column tract")
        if self.zones is None and self.id_column is not None:
            raise RequestError(f"id_column: is of a file of --zones; cells of --{source} have their own names")
        return self
