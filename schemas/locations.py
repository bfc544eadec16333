"""Logs: which columns a job reads, and of what types they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.types as pt

from sfumato.schemas.errors import RequestError


class Columns(Protocol):
    """The columns that a job reads."""

    def names(self) -> list[str]: ...

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        """What kind of values columns hold of which all files must hold the same kind: {column: kind}.

        Raises RequestError naming the file, the column and the remedy where a column is missing or mistyped.
        """
        ...


@dataclass(frozen=True)
class LocationColumns:
    """Names of the columns of a location log. Coordinates are degrees, WGS 84."""

    user_id: str = "user_id"
    latitude: str = "latitude"
    longitude: str = "longitude"

    def names(self) -> list[str]:
        return [self.user_id, self.latitude, self.longitude]

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        """See Columns.check."""
        kind = check_user_id(schema, self.user_id, path)
        for role, name in (("latitude", self.latitude), ("longitude", self.longitude)):
            degrees = field_type(schema, name, f"{role}_column", path)
            if not (pt.is_floating(degrees) or pt.is_integer(degrees)):
                raise RequestError(
                    f"{path}: column {name!r} must hold degrees as floating-point numbers, it holds {degrees}"
                )
        return {self.user_id: kind}


def field_type(schema: pa.Schema, name: str, option: str, path: str) -> pa.DataType:
    """The type of a column, of its values where it is dictionary-encoded. Raises RequestError where it is missing."""
    if name not in schema.names:
        raise RequestError(f"{path}: no column {name!r}; set --{option} to one of: {', '.join(schema.names)}")
    kind = schema.field(name).type
    return kind.value_type if pt.is_dictionary(kind) else kind


def check_user_id(schema: pa.Schema, name: str, path: str) -> str:
    """Whether user ids are `integers` or `text` (strings or bytes). Raises RequestError for other types."""
    kind = field_type(schema, name, "user_id_column", path)
    if holds_text(kind):
        return "text"
    if not pt.is_integer(kind):
        raise RequestError(f"{path}: column {name!r} must hold integers, strings or bytes, it holds {kind}")
    return "integers"


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
