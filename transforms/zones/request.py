"""The requests of the jobs that count users in public zones: from logs, and from a published heatmap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.rectangle import Region
from sfumato.schemas.requests.counting_options import CountingOptions
from sfumato.schemas.requests.log_columns import LogColumns, RateColumn
from sfumato.schemas.requests.publish_request import REGION_HELP, REGION_METAVAR, LogOptions, MapGeography, RegionOption
from sfumato.schemas.requests.request_base import INPUT, MAP, METHOD, OUTPUT, Request, Several, option
from sfumato.transforms.zones.zone_file import MAX_SHOWN, Zones, index_zones, read_zones

NO_ID_COLUMN = "id_column: required with --zones, such as --id_column tract"


class ZoneOptions(Request):
    """Options that name public zones: the polygons of a file, or the cells of an index."""

    h3: int | None = option(
        None, "zones are the H3 cells of this resolution that intersect the region", MAP, ge=0, le=15, common=True
    )
    quadkey: int | None = option(
        None, "zones are the map tiles of this level that meet the region; their ids are quadkeys", MAP, ge=1, le=23
    )
    zones: str | None = option(
        None,
        "file of the zones: polygons, or points with --radius, as GeoJSON, GeoParquet, GeoPackage or shapefile, local "
        "or gs://. Zones are published, so they must not depend on the logs",
        INPUT,
        metavar="FILE",
        common=True,
    )
    id_column: str | None = option(None, "property or column of the zones' ids, with --zones", INPUT, common=True)
    label_column: str | None = option(
        None,
        "property or column of the zones' names, for tables and pages; names need not be unique",
        INPUT,
        common=True,
    )
    radius: float | None = option(
        None,
        "with --zones of points, such as stops: a record counts at the nearest point, up to this distance",
        INPUT,
        metavar="METRES",
        gt=0,
    )

    @property
    def index(self) -> tuple[str, int] | None:
        """The index of cells and its resolution; None for zones of a file."""
        if self.h3 is not None:
            return "h3", self.h3
        return None if self.quadkey is None else ("quadkey", self.quadkey)

    @property
    def zone_sources(self) -> list[str]:
        """The given options that name zones."""
        return self.changed(("zones", "h3", "quadkey"))

    def public_zones(self, region: Region | None, levels: Sequence[str] = ()) -> Zones:
        """Returns the zones of the file, or the cells of the index that meet the region.

        levels: see `read_zones`. Raises RequestError.
        """
        if self.index is not None:
            assert region is not None
            return index_zones(*self.index, region)
        assert self.zones is not None
        if self.id_column is None and not levels:
            raise RequestError(NO_ID_COLUMN)
        return read_zones(self.zones, self.id_column or levels[0], levels, self.label_column, self.radius)

    def one_zone_source(self) -> str:
        """Returns the only option that names zones. Raises RequestError if there is none, or several."""
        sources = self.zone_sources
        if not sources:
            raise RequestError("zones: required; give --zones FILE, --h3 RESOLUTION or --quadkey LEVEL")
        if len(sources) > 1:
            raise RequestError(f"{' and '.join(sources)}: cannot be combined; give one of them")
        return sources[0]

    def refuse_with_index(self, names: Sequence[str]) -> None:
        """Raises RequestError for options of a file of zones, if the zones are cells of an index."""
        if self.index is not None:
            self.refuse(
                (*names, "label_column", "radius"),
                f"applies only with --zones; cells of --{self.index[0]} have their own ids",
            )


class ZonesRequest(ZoneOptions, RateColumn, LogColumns, MapGeography, CountingOptions):
    """Publishes how many users are in each of a list of public zones, such as census tracts.

    Zones may be nested; then a tract is exactly the sum of its blocks.
    """

    JOB: ClassVar[str] = "zones"
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --zones tracts.geojson --id_column tract --epsilon 1 --output zones"
    )

    levels: Several[str] | None = option(
        None,
        "columns of nested levels, from the finest, which is --id_column, to the coarsest, such as block,tract,county. "
        "Every level is published, under the same epsilon",
        MAP,
        metavar="NAMES",
        common=True,
    )
    region: RegionOption | None = option(
        None, f"{REGION_HELP}, with --h3 or --quadkey", MAP, common=True, metavar=REGION_METAVAR
    )
    contribution: Literal["one", "top", "all"] = option(
        "one",
        "contribution of a user: one, to the zone of a random record; top, to the zone with most of their records; "
        "all, a share to each zone of their records",
        METHOD,
    )

    @property
    def columns(self) -> LocationColumns:
        return self.location_columns(self.rates)

    @property
    def level_columns(self) -> tuple[str, ...]:
        """The columns of all levels, from the finest; one without --levels. Raises RequestError."""
        named = self.levels or (() if self.id_column is None else (self.id_column,))
        if not all(named) or not named:
            raise RequestError(NO_ID_COLUMN)
        if self.id_column not in (None, named[0]):
            raise RequestError(f"levels: must begin with {self.id_column}, the --id_column, got {named[0]}")
        return tuple(named)

    def resolve(self) -> Zones:
        """Returns the zones. Raises RequestError if they cannot be used."""
        levels = self.level_columns if self.index is None else ()
        zones = self.public_zones(self.region, levels)
        if min(map(len, zones.ids_of_levels)) > MAX_SHOWN:
            raise RequestError(
                f"zones: must have a level of at most {MAX_SHOWN:,} zones for the page, got {len(zones):,}; give "
                "--levels with a coarser level, or larger zones"
            )
        return zones

    @model_validator(mode="after")
    def _of_zones(self) -> Self:
        source = self.one_zone_source()
        self.refuse_with_index(("id_column", "levels"))
        if self.index is None:
            _ = self.level_columns
            self.refuse(("region",), "applies only with --h3 or --quadkey; zones of a file have their own region")
        elif self.region is None:
            raise RequestError(f"region: required with --{source}, as W,S,E,N")
        if self.trust != Trust.SECAGG:
            self.refuse(("dropout", "shard_size"), "applies only with --trust secagg")
        return self


class ReleaseZonesRequest(LogOptions, ZoneOptions):
    """Estimates from a published heatmap how many users are in each of a list of zones, with errors of the noise
    and of cells that a border cuts. It reads only the release, and spends no privacy budget.
    """

    JOB: ClassVar[str] = "zones"
    COMMAND: ClassVar[str] = "zones --release"
    EXAMPLE: ClassVar[str] = "map --zones tracts.geojson --id_column tract --output tracts.csv"

    release: str = option(
        ..., "a release of `sfumato heatmap`, local or gs://", INPUT, metavar="FOLDER", style="positional"
    )
    output: str = option(
        ..., "table: .parquet (GeoParquet), .geojson, or .csv without polygons", OUTPUT, metavar="FILE"
    )
    overwrite: bool = option(False, "replace an existing file", OUTPUT, common=True)

    @model_validator(mode="after")
    def _of_one_source(self) -> Self:
        self.one_zone_source()
        self.refuse_with_index(("id_column",))
        if self.zones is not None and self.id_column is None:
            raise RequestError(NO_ID_COLUMN)
        return self
