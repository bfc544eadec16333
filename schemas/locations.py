"""Location logs: which columns a job reads, and of what types they may be."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from sfumato.schemas.errors import RequestError


@dataclass(frozen=True)
class LocationColumns:
    """Names of the columns of a location log. Coordinates are degrees, WGS 84."""

    user_id: str = "user_id"
    latitude: str = "latitude"
    longitude: str = "longitude"

    def names(self) -> list[str]:
        return [self.user_id, self.latitude, self.longitude]

    def check(self, schema: pa.Schema, path: str) -> bool:
        """Whether user ids are strings or bytes (and not integers).

        Raises RequestError naming the file, the column and the remedy where a column is missing or mistyped.
        """
        for role, name in (("user_id", self.user_id), ("latitude", self.latitude), ("longitude", self.longitude)):
            if name not in schema.names:
                raise RequestError(
                    f"{path}: no column {name!r}; set --{role}_column to one of: {', '.join(schema.names)}"
                )
        kind = schema.field(self.user_id).type
        if pt.is_dictionary(kind):
            kind = kind.value_type
        if not (holds_text(kind) or pt.is_integer(kind)):
            raise RequestError(f"{path}: column {self.user_id!r} must hold integers, strings or bytes, it holds {kind}")
        for name in (self.latitude, self.longitude):
            kind = schema.field(name).type
            if not (pt.is_floating(kind) or pt.is_integer(kind)):
                raise RequestError(
                    f"{path}: column {name!r} must hold degrees as floating-point numbers, it holds {kind}"
                )
        return holds_text(schema.field(self.user_id).type)


def holds_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds strings or bytes, dictionary-encoded or not."""
    if pt.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_string_view(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_binary_view(kind)
        or pt.is_fixed_size_binary(kind)
    )
