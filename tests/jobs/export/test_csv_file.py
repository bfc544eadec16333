"""CSV by kepler.gl's own rules, and the statement that lies beside it."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
import shapely

from sfumato.transforms.export.csv_file import write_csv
from sfumato.transforms.export.export_source import ExportSource
from tests.jobs.export.conftest import MAPS

# How kepler.gl 3 types a column of text, by its library type-analyzer 0.4: the names of points' columns end in one of
# its pairs, shapes begin as WKT does, and columns with an exponent in a number become text, which has no colours.
POINT_PAIRS = [("lat", "lng"), ("lat", "lon"), ("latitude", "longitude")]
SHAPE = re.compile(r"^(POINT|LINESTRING|POLYGON|MULTIPOINT|MULTILINESTRING|MULTIPOLYGON)")
WHOLE, FRACTION = re.compile(r"^[+-]?[\d,]+$"), re.compile(r"^[+-]?[\d,]*\.\d+$")


def read(source: ExportSource) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(write_csv(source)[""].decode(), newline="")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAPS)
def test_kepler_gl_finds_points_shapes_and_numbers(kind: str, sources: dict[str, ExportSource]) -> None:
    rows, source = read(sources[kind]), sources[kind]
    assert any({first, second} <= set(rows[0]) for first, second in POINT_PAIRS)
    assert all(SHAPE.match(row["geometry"]) for row in rows)
    for field in source.layer.table.schema:
        values = [row[field.name] for row in rows if row[field.name]]
        if str(field.type) == "double":
            assert all(FRACTION.match(value) for value in values), field.name
        elif str(field.type).startswith("int"):
            assert all(WHOLE.match(value) for value in values), field.name


@pytest.mark.parametrize("kind", MAPS)
def test_values_are_read_back_to_the_last_digit(kind: str, sources: dict[str, ExportSource]) -> None:
    rows, layer = read(sources[kind]), sources[kind].layer
    for name in layer.table.column_names:
        expected = layer.table[name].to_pylist()
        if str(layer.table.schema.field(name).type) == "double":
            assert [float(row[name]) if row[name] else None for row in rows] == expected
    shapes = shapely.from_wkt([row["geometry"] for row in rows])
    assert shapely.equals_exact(shapes, layer.shapes, 1e-12).all()
    points = shapely.points([[float(row["longitude"]), float(row["latitude"])] for row in rows])
    assert shapely.intersects(layer.shapes, points).all()


def test_the_statement_describes_the_columns_of_the_file(sources: dict[str, ExportSource]) -> None:
    for kind in ("heatmap", "words"):
        files = write_csv(sources[kind])
        stated = json.loads(files[".statement.json"])
        assert list(stated["columns"]) == files[""].decode().splitlines()[0].split(",")
        assert stated["columns"]["count"]
        assert stated["licence"] == "CC-BY-4.0"
