"""What a release is made of: its files, the table of cells, and the manifest's form."""

from __future__ import annotations

import json

import pyarrow as pa

MANIFEST_FILE = "manifest.json"
CELLS_FILE = "cells.parquet"
DENSITY_FILE = "density.npy"
PICTURE_FILE = "heatmap.png"
PAGE_FILE = "index.html"
RELEASE_FILES = frozenset({MANIFEST_FILE, CELLS_FILE, DENSITY_FILE, PICTURE_FILE, PAGE_FILE})
MANIFEST_FORMAT = "sfumato-release/1"

_GEO = {
    "version": "1.1.0",
    "primary_column": "geometry",
    "columns": {"geometry": {"encoding": "WKB", "geometry_types": ["Polygon", "MultiPolygon"]}},
}

CELLS_SCHEMA = pa.schema(
    [
        pa.field("cell_id", pa.string(), False, {"description": "r and one digit 0..3 a level of the quadtree"}),
        pa.field("depth", pa.int8(), False, {"description": "level of the node, 0 for the whole region"}),
        pa.field("west", pa.float64(), False, {"unit": "degrees"}),
        pa.field("south", pa.float64(), False, {"unit": "degrees"}),
        pa.field("east", pa.float64(), False, {"unit": "degrees"}),
        pa.field("north", pa.float64(), False, {"unit": "degrees"}),
        pa.field("count", pa.float64(), False, {"description": "estimated users of the cohort; may be negative"}),
        pa.field("stddev", pa.float64(), False, {"description": "standard deviation of the noise in count"}),
        pa.field("density", pa.float64(), True, {"unit": "users per square kilometre, null where nothing is left"}),
        pa.field("geometry", pa.binary(), False, {"description": "WKB, what the node's descendants leave over"}),
    ],
    metadata={"geo": json.dumps(_GEO)},
)
