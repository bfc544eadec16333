"""The requests of the jobs that count users in public zones: from logs, and from a published heatmap."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.requests.counting_options import CountingOptions
from sfumato.schemas.requests.log_columns import LogColumns, RateColumn
from sfumato.schemas.requests.publish_request import REGION_HELP, REGION_METAVAR, LogOptions, MapGeography, RegionOption
from sfumato.schemas.requests.request_base import INPUT, MAP, METHOD, OUTPUT, Several, option
from sfumato.transforms.geo.zone_file import MAX_SHOWN, Zones, no_id_column
from sfumato.transforms.geo.zone_options import ZoneOptions


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
            raise no_id_column(str(self.zones))
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
        self.check_zone_file()
        return self
