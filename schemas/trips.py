"""The columns of trips: a user and two places a row."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns, check_user_id, field_type


@dataclass(frozen=True)
class TripColumns:
    """Names of the columns of a log of trips.

    Attributes:
        origin, destination: columns of longitude and latitude in degrees, WGS 84.
        user_id: integers, strings or bytes.

    Raises:
        RequestError: a column has two roles.
    """

    origin: tuple[str, str]
    destination: tuple[str, str]
    user_id: str = "user_id"

    def __post_init__(self) -> None:
        names = self.names()
        if twice := [name for name in names if names.count(name) > 1]:
            raise RequestError(
                f"origin, destination: {twice[0]!r} has two roles; name four columns and that of user ids"
            )

    def names(self) -> list[str]:
        """The columns to read."""
        return [self.user_id, *self.origin, *self.destination]

    @property
    def ends(self) -> tuple[LocationColumns, LocationColumns]:
        """The two places of a row as columns of locations."""
        begin, end = self.origin, self.destination
        return LocationColumns(self.user_id, begin[1], begin[0]), LocationColumns(self.user_id, end[1], end[0])

    def text_types(self) -> dict[str, pa.DataType]:
        """See Columns.text_types."""
        return {**dict.fromkeys((*self.origin, *self.destination), pa.float64()), self.user_id: pa.string()}

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        """See Columns.check."""
        check_user_id(schema, self.user_id, path)
        for option in ("origin", "destination"):
            for name in getattr(self, option):
                held = field_type(schema, name, option, path)
                if not (pt.is_floating(held) or pt.is_integer(held)):
                    raise RequestError(
                        f"{path}: column {name!r} must hold degrees as floating-point numbers, it holds {held}; set "
                        f"--{option} LON,LAT"
                    )
        return {}
