"""Options that name the columns of location logs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.log_layout import E7, CellColumn
from sfumato.schemas.requests.request_base import COLUMNS, Request, Several, common_option, option

DEFAULT_MAX_DWELL = 3600.0


# Where a job's manifest states the columns, unless it states each by its own name.
IN_COLUMNS = dict.fromkeys(
    (
        "user_id_column",
        "latitude_column",
        "longitude_column",
        "weight_column",
        "time_column",
        "max_dwell",
        "auxiliary",
        "categories",
        "slots",
        "records_per_user",
    ),
    "columns",
)


class UserColumn(Request):
    """Whose a record is."""

    user_id_column: str = option("user_id", "column of the user ids", COLUMNS)


class PlaceColumns(Request):
    """Where a record is."""

    latitude_column: str = option("latitude", "column of the latitude, in degrees", COLUMNS)
    longitude_column: str = option("longitude", "column of the longitude, in degrees", COLUMNS)
    coordinates: Literal["degrees", "e7"] | None = option(
        None, "e7: latitude and longitude are integers, degrees times 10^7 (default: degrees)", COLUMNS
    )
    geometry_column: str | None = option(
        None, "column of points in place of latitude and longitude: WKB, WKT, or GeoParquet's own; WGS 84", COLUMNS
    )
    cell_column: str | None = option(
        None,
        "column of map cells in place of latitude and longitude: a record is at its cell's centre, so a map should "
        "not be finer than they are",
        COLUMNS,
    )
    cell_index: str | None = option(
        None, "what the cells are, with --cell_column: h3:RESOLUTION, or quadkey:LENGTH", COLUMNS, metavar="INDEX:N"
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        forms = [name for name in ("geometry_column", "cell_column") if getattr(self, name) is not None]
        if len(forms) + (self.coordinates == E7) > 1:
            given = ", ".join([*forms, *(["coordinates"] if self.coordinates == E7 else [])])
            raise RequestError(f"{given}: each says where a record is; give one of them")
        if (self.cell_column is None) != (self.cell_index is None):
            raise RequestError("cell_column, cell_index: give both, as --cell_column cell --cell_index h3:9")
        if self.cell_column is not None:
            CellColumn.parse(self.cell_column, str(self.cell_index))
        if forms:
            for axis in ("latitude_column", "longitude_column"):
                if axis in self.model_fields_set:
                    raise RequestError(f"{axis}: --{forms[0]} takes its place; give one of them")
        return self


class LogColumns(PlaceColumns, UserColumn):
    """Whose and where a record is, and what it weighs."""

    weight_column: str | None = option(
        None, "column of the records' weights, numbers >= 0; default: all weigh the same", COLUMNS
    )
    time_column: str | None = option(
        None, "column of timestamps, or of seconds: a record weighs the time until the same user's next record", COLUMNS
    )
    max_dwell: float | None = option(
        None,
        "longest time that a record weighs, and the time of a user's last record, with --time_column "
        f"(default: {DEFAULT_MAX_DWELL:g})",
        COLUMNS,
        metavar="SECONDS",
    )

    @model_validator(mode="after")
    def _dwell(self) -> Self:
        if self.max_dwell is not None and self.time_column is None:
            raise RequestError("max_dwell: is of dwell times, which need --time_column NAME")
        return self


class SlotColumns(LogColumns):
    """When a record was, for maps of every slot of time."""

    time_column: str | None = option(
        None,
        "column of timestamps, or of seconds since 1970: a record weighs the time until the same user's next record; "
        "with --slots it is the time of the record alone, and weighs nothing",
        COLUMNS,
    )
    slots: str | None = common_option(
        None,
        "maps by local time of the --time_column: hour, weekday, hour_of_week, or hours between edges such as "
        "0,7,10,16,19,24",
        COLUMNS,
        metavar="SLOTS",
    )
    records_per_user: int | None = option(
        None,
        "with --slots, the most slots in which a user counts, each by one record drawn from it; noise grows with it "
        "(default: 1, one record in all)",
        COLUMNS,
        ge=1,
        le=168,
    )

    @model_validator(mode="after")
    def _of_slots(self) -> Self:
        if self.slots is None:
            if self.records_per_user is not None:
                raise RequestError("records_per_user: is of slots; give --slots hour or the like, or leave it out")
            return self
        if self.time_column is None:
            raise RequestError("slots: are of times, which need --time_column NAME")
        if self.max_dwell is not None:
            raise RequestError("max_dwell: with --slots a record does not weigh its time; leave it out")
        return self


class RateColumn(Request):
    """What is counted by category at each place."""

    auxiliary: str | None = common_option(
        None, "column of a boolean or of a few categories: the map shows their shares at each place", COLUMNS
    )
    categories: Several[str] | None = option(
        None,
        "values of the --auxiliary column, separated by commas; they are published, so they must be known from "
        "elsewhere (default: false,true, or 0 and 1)",
        COLUMNS,
        metavar="NAMES",
    )

    @model_validator(mode="after")
    def _of_a_column(self) -> Self:
        if self.categories is not None and self.auxiliary is None:
            raise RequestError("categories: are of a column, which needs --auxiliary NAME")
        return self
