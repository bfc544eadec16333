"""The request of the job that counts users in public zones."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.log_columns import LogColumns, RateColumn
from sfumato.schemas.requests.publish_request import (
    REGION_HELP,
    REGION_METAVAR,
    MapGeography,
    RegionOption,
    ReleaseRequest,
)  # fmt: skip
from sfumato.schemas.requests.request_base import INPUT, MAP, METHOD, PRIVACY, PROTOCOL, Request, Several, option
from sfumato.schemas.trust import CentralOrSecagg, Trust

_OF_SHARDS = ("shard_size", "dropout")
INDEXES = ("h3", "quadkey")


class IndexOptions(Request):
    """Zones that are the cells of an index."""

    h3: int | None = option(
        None, "zones are the H3 cells of this resolution that meet --region", MAP, common=True, ge=0, le=15, metavar="N"
    )
    quadkey: int | None = option(
        None,
        "zones are the map tiles of this level that meet --region, named by quadkeys",
        MAP,
        ge=1,
        le=23,
        metavar="N",
    )

    @property
    def index(self) -> tuple[str, int] | None:
        """The option that names an index of cells, and its resolution; None for zones of a file."""
        given = [(name, getattr(self, name)) for name in INDEXES if getattr(self, name) is not None]
        return given[0] if given else None


class ZonesRequest(IndexOptions, RateColumn, LogColumns, MapGeography, ReleaseRequest):
    """Users of every zone of a public file."""

    JOB: ClassVar[str] = "zones"
    COMMAND: ClassVar[str] = "zones"
    ABOUT: ClassVar[str] = (
        "Publishes how many users are in each of a list of public zones, such as tracts. Zones may be nested; then a "
        "tract is exactly the sum of its blocks."
    )
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --zones tracts.geojson --id_column tract --epsilon 1 --output zones"
    )

    zones: str | None = option(
        None,
        "polygons in longitude and latitude: a GeoJSON or GeoParquet file, local or gs://; they are published, so they "
        "must be known from elsewhere (or give --h3 or --quadkey)",
        INPUT,
        common=True,
        metavar="FILE",
    )
    id_column: str | None = option(
        None,
        "property or column of the zones' ids (default: the first of --levels)",
        INPUT,
        common=True,
        metavar="NAME",
    )
    levels: Several[str] | None = option(
        None,
        "columns of nested levels, from the finest to the coarsest, such as block,tract,county: every level is "
        "published, under the same epsilon",
        MAP,
        common=True,
        metavar="NAMES",
    )
    region: RegionOption | None = option(None, f"{REGION_HELP}, with --h3 or --quadkey", MAP, metavar=REGION_METAVAR)
    trust: CentralOrSecagg = option(
        Trust.CENTRAL,
        "central: the operator, who has the logs, adds noise once; secagg: noise in the sum of each shard, more in all",
        PRIVACY,
        common=True,
        metavar="HOW",
    )
    epsilon: float = option(
        1.0, "privacy budget of the complete release", PRIVACY, common=True, ge=1e-4, le=30, allow_inf_nan=False
    )
    delta: float = option(
        0.0,
        "delta of the complete release, which Gaussian noise needs; 0 for pure epsilon",
        PRIVACY,
        ge=0,
        le=1e-2,
        allow_inf_nan=False,
    )
    noise: Literal["auto", "laplace", "gaussian"] = option(
        "auto",
        "distribution of the noise: laplace, with delta 0; gaussian; auto: of these the one with less noise in a count "
        "at the whole budget",
        PRIVACY,
        metavar="NAME",
    )
    population: int | None = option(
        None,
        "public number of users in the logs; a run is refused if its noisy count differs by more than a tenth",
        PRIVACY,
        ge=1,
        le=1 << 40,
        metavar="N",
    )
    population_share: float = option(
        0.002,
        "share of epsilon for the noisy counts of users with and without a usable record. A larger share refuses bad "
        "logs of fewer users, and leaves less for the zones",
        PRIVACY,
        ge=0.001,
        le=0.5,
        metavar="X",
    )
    contribution: Literal["one", "top", "all"] = option(
        "one",
        "what a user adds: one, to the zone of a random one of their records; top, to the zone with most of their "
        "records; all, a share to each zone of their records",
        METHOD,
        metavar="NAME",
    )
    shard_size: int | None = option(
        None,
        "expected users of a secure-aggregation shard (default with --trust secagg: 10000)",
        PROTOCOL,
        ge=2,
        le=1 << 24,
        metavar="N",
    )
    dropout: float | None = option(
        None,
        "largest share of a shard's clients that may fail to answer (default with --trust secagg: 0.05)",
        PROTOCOL,
        ge=0,
        le=0.9,
        metavar="X",
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

    def of_protocol(self) -> dict[str, Any]:
        """The options of secure aggregation that were given, by name."""
        return {name: getattr(self, name) for name in _OF_SHARDS if getattr(self, name) is not None}

    @model_validator(mode="after")
    def _of_zones(self) -> Self:
        sources = [name for name in ("zones", *INDEXES) if getattr(self, name) is not None]
        if len(sources) != 1:
            text = (
                f"{' and '.join(sources)}: give one of them" if sources else "zones: name their file with --zones FILE"
            )
            raise RequestError(f"{text} (a file, or the cells of --h3 or --quadkey)")
        if self.index is None:
            _ = self.level_columns
            if self.region is not None:
                raise RequestError("region: is of --h3 or --quadkey; zones of a file have their own")
        else:
            for name in ("id_column", "levels"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name}: is of a file of --zones; cells of --{sources[0]} have their own names")
            if self.region is None:
                raise RequestError(f"region: --{sources[0]} needs --region W,S,E,N")
        if self.trust == Trust.CENTRAL and (given := self.of_protocol()):
            raise RequestError(f"{min(given)}: with trust central there are no shards; leave it out")
        return self
