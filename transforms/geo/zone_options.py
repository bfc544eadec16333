"""The options of jobs that take public zones: polygons or points of a file, or the cells of an index."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import Region
from sfumato.schemas.requests.request_base import INPUT, MAP, Request, option
from sfumato.transforms.geo.zone_file import Zones, index_zones, no_id_column, read_zones


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
        "file of the zones: polygons, or points with --radius, as GeoJSON, GeoParquet, GeoPackage or shapefile, or "
        "points as CSV, such as stops.txt of GTFS; local or gs://. Zones are published, so they must not depend on the "
        "logs",
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
        ge=1,
        common=True,
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
            raise no_id_column(self.zones)
        return read_zones(self.zones, self.id_column or levels[0], levels, self.label_column, self.radius)

    def one_zone_source(self) -> str:
        """Returns the only option that names zones. Raises RequestError if there is none, or several."""
        sources = self.zone_sources
        if not sources:
            raise RequestError("zones: required; give --zones FILE, --h3 RESOLUTION or --quadkey LEVEL")
        if len(sources) > 1:
            raise RequestError(f"{' and '.join(sources)}: cannot be combined; give one of them")
        return sources[0]

    def check_zone_file(self) -> None:
        """Raises RequestError for options of a file of zones without one, and for a file without --id_column."""
        if self.zones is None:
            self.refuse(("id_column", "label_column", "radius"), "requires --zones FILE")
        elif not self.id_column:
            raise no_id_column(self.zones)

    def refuse_with_index(self, names: Sequence[str]) -> None:
        """Raises RequestError for options of a file of zones, if the zones are cells of an index."""
        if self.index is not None:
            self.refuse(
                (*names, "label_column", "radius"),
                f"applies only with --zones; cells of --{self.index[0]} have their own ids",
            )
