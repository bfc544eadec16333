"""An Excel workbook: the table without shapes, what its columns mean, and the release's statement."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from sfumato.schemas.errors import RequestError
from sfumato.transforms.export.export_source import TABLE, ExportFormat, ExportSource, needs_extra
from sfumato.transforms.export.map_raster import column_text

_MAX_ROWS = 1_048_576  # of a sheet, with the header
_DIGITS = 10**15  # Excel rounds longer numbers, so that ids would change
_WIDTHS = (12, 60)  # of columns, in characters
_TO_CSV = "use --format csv"
_CREATED = datetime(1980, 1, 1)  # not the time of the export, so that equal releases give equal bytes


def write_xlsx(source: ExportSource) -> dict[str, bytes]:
    """Returns a workbook with the sheets Table, Columns and Guarantee.

    Raises:
        RequestError: XlsxWriter is missing, or the table has more rows or longer texts than Excel takes.
    """
    with needs_extra("format xlsx"):
        import xlsxwriter
    table = source.layer.table if source.has_shapes else source.table
    if table.num_rows >= _MAX_ROWS:
        limit = f"format: xlsx has at most {_MAX_ROWS - 1:,} rows, but the table has {table.num_rows:,}"
        raise RequestError(f"{limit}; {_TO_CSV}")
    fields, statement = list(table.schema), source.statement
    file = io.BytesIO()
    # Names of zones may begin with = or http: a text is never a formula or a link.
    with xlsxwriter.Workbook(file, {"constant_memory": True}) as book:
        book.set_properties({"title": statement["title"], "created": _CREATED})
        _add_sheet(book, "Table", {field.name: _values(table[field.name]) for field in fields})
        described = {"column": [field.name for field in fields], "meaning": [column_text(field) for field in fields]}
        _add_sheet(book, "Columns", described)
        _add_sheet(book, "Guarantee", {"name": list(statement), "value": list(statement.values())})
    return {"": file.getvalue()}


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Returns a column's numbers, booleans or texts; None for what is missing or not finite."""
    found: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [one if one is not None and math.isfinite(one) else None for one in found]
    short = pa.types.is_integer(column.type) and all(abs(one) < _DIGITS for one in found if one is not None)
    if short or pa.types.is_boolean(column.type):
        return found
    return [None if one is None else str(one) for one in found]


def _add_sheet(book: Any, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Adds a sheet with a header that stays in sight and filters. columns: values by title, all of one length."""
    sheet = book.add_worksheet(name)
    write = {str: sheet.write_string, bool: sheet.write_boolean}
    bold = book.add_format({"bold": True})
    for place, (title, values) in enumerate(columns.items()):
        sheet.write_string(0, place, title, bold)
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        sheet.set_column(place, place, min(max(len(title) + 4, longest + 1, _WIDTHS[0]), _WIDTHS[1]))
    row = 0
    for row, values in enumerate(zip(*columns.values(), strict=True), start=1):  # rows leave the memory in order
        for place, value in enumerate(values):
            if value is not None and write.get(type(value), sheet.write_number)(row, place, value):
                raise RequestError(f"format: a text of row {row} is too long for a cell of Excel; {_TO_CSV}")
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, row, len(columns) - 1)
    sheet.ignore_errors({"number_stored_as_text": f"A1:XFD{_MAX_ROWS}"})  # ids: no green corners


FORMAT = ExportFormat("xlsx", (".xlsx",), TABLE, write_xlsx)
