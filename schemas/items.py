"""Columns of items: categories that are counted, codes with prefixes, numbers with quantiles."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import check_user_id, field_type

# Kinds of columns that a job accepts, in the order of _KINDS.
CATEGORIES = ("text", "integers", "booleans", "dates")
PREFIXES = ("text", "integers", "dates")
NUMBERS = ("integers", "floating-point numbers")

_KINDS = (
    ("text", lambda kind: pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)),
    ("integers", lambda kind: pt.is_integer(kind) and not pt.is_uint64(kind)),
    ("booleans", pt.is_boolean),
    ("dates", pt.is_date),
    ("floating-point numbers", pt.is_floating),
)
_ADVICE = {
    CATEGORIES: "categories; for the distribution of a number use `sfumato quantiles`, for others convert to text",
    PREFIXES: "text, integers or dates, whose characters or digits are a prefix code; convert it to text",
    NUMBERS: "integers or floating-point numbers; convert it",
}


@dataclass(frozen=True)
class ItemColumns:
    """The column of items of a log, and its column of user ids. kinds: that the column of items may hold."""

    column: str
    user_id: str = "user_id"
    kinds: tuple[str, ...] = CATEGORIES

    def __post_init__(self) -> None:
        if self.column == self.user_id:
            raise RequestError(f"column: {self.column!r} is the column of user ids; publishing it would name users")

    def names(self) -> list[str]:
        return [self.user_id, self.column]

    def text_types(self) -> dict[str, pa.DataType]:
        return {self.column: pa.float64() if self.kinds == NUMBERS else pa.string(), self.user_id: pa.string()}

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        check_user_id(schema, self.user_id, path)
        return {self.column: column_kind(schema, self.column, "column", self.kinds, path)}


def column_kind(schema: pa.Schema, name: str, option: str, kinds: tuple[str, ...], path: str) -> str:
    """The kind of a column, one of `kinds`. Raises RequestError if it is missing or of another kind."""
    held = field_type(schema, name, option, path)
    kind = next((name for name, test in _KINDS if test(held)), None)
    if kind not in kinds:
        raise RequestError(f"{path}: column {name!r} holds {held}, and must hold {_ADVICE[kinds]}")
    return kind
