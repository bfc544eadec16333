"""CSV in the form that kepler.gl reads, and a JSON file with the release's statement."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pyarrow as pa
import shapely

from sfumato.schemas.region import inner_points
from sfumato.transforms.export.export_source import TABLE, ExportFormat, ExportSource
from sfumato.transforms.export.map_raster import GEOMETRY, column_text

STATEMENT_SUFFIX = ".statement.json"
_POINT = "of a point inside the shape, for tools that draw points; degrees"
_SHAPE = "the shape as well-known text: longitude, then latitude, degrees"


def write_csv(source: ExportSource) -> dict[str, bytes]:
    """Returns the table, and its statement. A row's shape is a column of well-known text, next to a point inside it."""
    table = _with_shapes(source) if source.has_shapes else source.table
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(zip(*(_texts(table[name]) for name in table.column_names), strict=True))
    statement = {**source.statement, "columns": {field.name: column_text(field) for field in table.schema}}
    return {
        "": file.getvalue().encode(),
        STATEMENT_SUFFIX: (json.dumps(statement, indent=2, ensure_ascii=False) + "\n").encode(),
    }


def _texts(values: pa.ChunkedArray) -> list[str]:
    """Returns the values of a column as text; empty for what is missing or not finite.

    A number with a fraction always has a point and never an exponent: kepler.gl takes columns with exponents for text.
    """
    found = values.to_pylist()
    if pa.types.is_floating(values.type):
        return [
            "" if one is None or not math.isfinite(one) else np.format_float_positional(one, trim="0") for one in found
        ]
    if pa.types.is_boolean(values.type):
        return ["" if one is None else str(one).lower() for one in found]
    return ["" if one is None else str(one) for one in found]


def _with_shapes(source: ExportSource) -> pa.Table:
    layer = source.layer
    point = inner_points(layer.shapes)
    table = layer.table
    for name, text, values in (
        ("latitude", _POINT, pa.array(shapely.get_y(point))),
        ("longitude", _POINT, pa.array(shapely.get_x(point))),
        (GEOMETRY, _SHAPE, pa.array(shapely.to_wkt(layer.shapes, rounding_precision=-1), pa.string())),
    ):
        if name not in table.column_names:
            table = table.append_column(pa.field(name, values.type, metadata={"description": text}), values)
    return table


FORMAT = ExportFormat("csv", (".csv",), TABLE, write_csv)
