"""Options that name the columns of location logs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.log_layout import E7, CellColumn
from sfumato.schemas.requests.request_base import COLUMNS, Request, Several, option
from sfumato.schemas.slots import Slots

DEFAULT_MAX_DWELL = 3600.0


# Where a job's manifest states the columns, unless it states each by its own name.
IN_COLUMNS = dict.fromkeys((
    "user_id_column", "latitude_column", "longitude_column", "weight_column", "time_column", "max_dwell", "auxiliary",
    "categories", "slots", "records_per_user",
), "columns")  # fmt: skip


class UserColumn(Request):
    """The column of user ids."""

    user_id_column: str = option("user_id", "column of the user ids", COLUMNS, common=True)


class PlaceColumns(Request):
    """The columns of a record's place."""

    latitude_column: str = option("latitude", "column of the latitude, in degrees", COLUMNS, common=True)
    longitude_column: str = option("longitude", "column of the longitude, in degrees", COLUMNS, common=True)
    coordinates: Literal["degrees", "e7"] | None = option(
        None, "e7: latitude and longitude are integers, degrees times 10^7 (default: degrees)", COLUMNS
    )
    geometry_column: str | None = option(
        None, "column of points, instead of latitude and longitude: WKB, WKT, or GeoParquet's own type; WGS 84", COLUMNS
    )
    cell_column: str | None = option(
        None,
        "column of map cells, instead of latitude and longitude. A record is placed at its cell's centre, so the map "
        "should be no finer than these cells",
        COLUMNS,
    )
    cell_index: str | None = option(
        None, "index of the cells of --cell_column: h3:RESOLUTION, or quadkey:LENGTH", COLUMNS, metavar="INDEX:N"
    )

    @property
    def cells_of_records(self) -> CellColumn | None:
        """Returns the column of map cells; None if records have coordinates. Raises RequestError."""
        if self.cell_column is None or self.cell_index is None:
            return None
        return CellColumn.parse(self.cell_column, self.cell_index)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        forms = self.changed(("geometry_column", "cell_column"))
        given = [*forms, *(["coordinates"] if self.coordinates == E7 else [])]
        if len(given) > 1:
            raise RequestError(f"{', '.join(given)}: cannot be combined; give one of them")
        if (self.cell_column is None) != (self.cell_index is None):
            raise RequestError("cell_column, cell_index: both required, as in --cell_column cell --cell_index h3:9")
        _ = self.cells_of_records
        if forms:
            for axis in ("latitude_column", "longitude_column"):
                if axis in self.model_fields_set:
                    raise RequestError(f"{axis}: cannot be combined with --{forms[0]}")
        return self


class LogColumns(PlaceColumns, UserColumn):
    """The columns of a record's user, place and weight."""

    weight_column: str | None = option(
        None, "column of the records' weights, numbers >= 0; default: equal weights", COLUMNS
    )
    time_column: str | None = option(
        None,
        "column of timestamps, or of seconds since 1970: the weight of a record is the time until the user's next "
        "record",
        COLUMNS,
    )
    max_dwell: float | None = option(
        None,
        "largest weight of a record, and the weight of a user's last record, with --time_column "
        f"(default: {DEFAULT_MAX_DWELL:g})",
        COLUMNS,
        metavar="SECONDS",
    )

    @model_validator(mode="after")
    def _dwell(self) -> Self:
        if self.time_column is None:
            self.refuse(("max_dwell",), "requires --time_column NAME")
        return self

    @property
    def columns(self) -> LocationColumns:
        """Returns the columns to read. Raises RequestError if they contradict each other."""
        return self.location_columns()

    def location_columns(
        self, auxiliary: Auxiliary | None = None, slots: Slots | None = None, records_per_user: int = 1
    ) -> LocationColumns:
        """Returns the columns to read, with those of a job's own options. Raises RequestError."""
        return LocationColumns(
            user_id=self.user_id_column,
            latitude=self.latitude_column,
            longitude=self.longitude_column,
            weight=self.weight_column,
            time=self.time_column if slots is None else None,
            max_dwell=DEFAULT_MAX_DWELL if self.max_dwell is None else self.max_dwell,
            auxiliary=auxiliary,
            slots=slots,
            records_per_user=records_per_user,
        )


class SlotColumns(LogColumns):
    """The columns of a record, for maps by slot of time."""

    time_column: str | None = option(
        None,
        "column of timestamps, or of seconds since 1970: the weight of a record is the time until the user's next "
        "record; with --slots, the column only selects the slot",
        COLUMNS,
    )
    slots: str | None = option(
        None,
        "one map for each slot of local time, by --time_column: hour, weekday, hour_of_week, or hours between edges "
        "such as 0,7,10,16,19,24",
        COLUMNS,
        metavar="SLOTS",
        common=True,
    )
    records_per_user: int | None = option(
        None,
        "largest number of slots in which a user counts, with --slots; one record is sampled from each slot. Noise "
        "grows with this number (default: 1, one record in total)",
        COLUMNS,
        ge=1,
        le=168,
    )

    @model_validator(mode="after")
    def _of_slots(self) -> Self:
        if self.slots is None:
            self.refuse(("records_per_user",), "requires --slots, such as --slots hour")
            return self
        if self.time_column is None:
            raise RequestError("slots: requires --time_column NAME")
        self.refuse(("max_dwell",), "cannot be combined with --slots: records in slots have equal weights")
        return self


class RateColumn(Request):
    """The column of a category that is counted at each place."""

    auxiliary: str | None = option(
        None,
        "column of booleans or of a few categories: the map shows the share of each category at each place",
        COLUMNS,
        common=True,
    )
    categories: Several[str] | None = option(
        None,
        "values of the --auxiliary column, separated by commas. They are published, so you must know them without the "
        "logs (default: false,true, or 0 and 1)",
        COLUMNS,
        metavar="NAMES",
    )

    @model_validator(mode="after")
    def _of_a_column(self) -> Self:
        if self.auxiliary is None:
            self.refuse(("categories",), "requires --auxiliary NAME")
        return self

    @property
    def rates(self) -> Auxiliary | None:
        """The column of a category with its values; None without. Raises RequestError."""
        if self.auxiliary is None:
            return None
        if self.categories is None:
            return Auxiliary(self.auxiliary, assumed=True)
        return Auxiliary(self.auxiliary, self.categories)
