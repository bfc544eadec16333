"""What a release is made of: its files, the table of cells, and the manifest's form."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

MANIFEST_FILE = "manifest.json"
CELLS_FILE = "cells.parquet"
DENSITY_FILE = "density.npy"
PICTURE_FILE = "heatmap.png"
RATES_PICTURE = "rates.png"
PAGE_FILE = "index.html"
ITEMS_FILE = "items.parquet"
QUANTILES_FILE = "quantiles.parquet"
RANGES_FILE = "ranges.parquet"
CURVE_FILE = "curve.parquet"
BINS_FILE = "bins.parquet"
MOMENTS_FILE = "moments.parquet"
BITS_FILE = "bits.parquet"
HISTOGRAM_PICTURE = "histogram.png"
HOTSPOTS_PICTURE = "hotspots.png"
QUANTILES_PICTURE = "quantiles.png"
MOMENTS_PICTURE = "moments.png"
MODEL_FILE = "model.npz"
RANGES_PICTURE = "ranges.png"
TOTALS_FILE = "totals.parquet"
ANSWERS_FILE = "answers.parquet"
BASEMAP_FILE = "basemap.json"
RELEASE_FILES = frozenset(
    {
        MANIFEST_FILE,
        CELLS_FILE,
        DENSITY_FILE,
        PICTURE_FILE,
        RATES_PICTURE,
        PAGE_FILE,
        ITEMS_FILE,
        QUANTILES_FILE,
        RANGES_FILE,
        CURVE_FILE,
        BINS_FILE,
        HISTOGRAM_PICTURE,
        HOTSPOTS_PICTURE,
        QUANTILES_PICTURE,
        MOMENTS_FILE,
        BITS_FILE,
        MOMENTS_PICTURE,
        MODEL_FILE,
        RANGES_PICTURE,
        TOTALS_FILE,
        ANSWERS_FILE,
        BASEMAP_FILE,
    }
)
MANIFEST_FORMAT = "sfumato-release/2"
REFUSAL_FORMAT = "sfumato-refusal/2"  # of what stands in the place of a release that was refused after its charge

# What `sfumato compare` writes has the same page and manifest files, and a format that no reader of releases opens.
RUNS_FILE = "runs.csv"
TABLE_FILE = "table.csv"
TABLE_TEXT_FILE = "table.md"
DENSITIES_FILE = "densities.parquet"
EVALUATION_FILES = frozenset({RUNS_FILE, TABLE_FILE, TABLE_TEXT_FILE, DENSITIES_FILE, PAGE_FILE, MANIFEST_FILE})
EVALUATION_FORMAT = "sfumato-evaluation/2"
DENSITIES_SCHEMA = pa.schema(
    [
        pa.field(
            "settings", pa.list_(pa.int32()), False, {"description": "rows of table.csv, from 0; none: the truth"}
        ),
        pa.field(
            "density", pa.list_(pa.float32()), False, {"description": "shares of the users by row from the north"}
        ),
    ]
)

_GEO = {
    "version": "1.1.0",
    "primary_column": "geometry",
    "columns": {"geometry": {"encoding": "WKB", "geometry_types": ["Polygon", "MultiPolygon"]}},
}

_STDDEV = (
    "standard deviation of count: of its noise, or, where the method's estimator is bayes, the posterior one, of what "
    "noise, users who were not asked, and the map around leave open. The posterior one holds on average over cells; it "
    "is a lower bound for cells that are chosen because people are in them and for sums of cells; with the methods "
    "count_min, emd, hierarchical, adaptive_grid and spatial_decomposition it is a lower bound everywhere"
)
CELLS_SCHEMA = pa.schema(
    [
        pa.field("cell_id", pa.string(), False, {"description": "r and one digit 0..3 a level of the quadtree"}),
        pa.field("depth", pa.int8(), False, {"description": "level of the node, 0 for the whole region"}),
        pa.field("west", pa.float64(), False, {"unit": "degrees"}),
        pa.field("south", pa.float64(), False, {"unit": "degrees"}),
        pa.field("east", pa.float64(), False, {"unit": "degrees"}),
        pa.field("north", pa.float64(), False, {"unit": "degrees"}),
        pa.field("count", pa.float64(), False, {"description": "estimated users of the cohort; may be negative"}),
        pa.field("stddev", pa.float64(), False, {"description": _STDDEV}),
        pa.field("density", pa.float64(), True, {"unit": "users per square kilometre, null where nothing is left"}),
        pa.field("geometry", pa.binary(), False, {"description": "WKB, what the node's descendants leave over"}),
    ],
    metadata={"geo": json.dumps(_GEO)},
)


_UNBIASED = (
    pa.field("users_unbiased", pa.float64(), False, {"description": "users by the last sub-query, without shrinkage"}),
    pa.field("users_low", pa.float64(), False, {"description": "lower end of a 95% interval of the cell's users"}),
    pa.field("users_high", pa.float64(), False, {"description": "upper end of a 95% interval of the cell's users"}),
)
_MEASURED = (
    "of what was measured of the node and of its descendants, before it is reconciled with its parent; of the root, of "
    "its users"
)
# What `Release.total` needs: one row a node of the full quadtree over the cells, level by level.
TOTALS_SCHEMA = pa.schema(
    [
        pa.field("node", pa.uint64(), False, {"description": "a 1 and then the node's path, two bits a level"}),
        pa.field("cell", pa.int64(), False, {"description": "row of cells.parquet the leaf is of; -1 for inner nodes"}),
        pa.field("users", pa.float64(), False, {"description": "unbiased users"}),
        pa.field("variance", pa.float64(), False, {"description": _MEASURED}),
    ]
)


ANSWERS_SCHEMA = pa.schema(
    [
        pa.field("sub_query", pa.int16(), False, {"description": "its index in the manifest's sub_queries"}),
        pa.field("cell_id", pa.string(), False, {"description": "r and one digit 0..3 a level of the quadtree"}),
        pa.field("users", pa.float64(), False, {"description": "noisy users by this sub-query alone; may be negative"}),
        pa.field("stddev", pa.float64(), False, {"description": "standard deviation of the noise, in users"}),
    ]
)


def cells_schema(categories: Sequence[str] = (), rates: Sequence[str] = (), unbiased: bool = False) -> pa.Schema:
    """The table of a heatmap's cells; with auxiliary data, rates and counts by category stand before the geometry.

    categories: names, none without auxiliary data. rates: those whose rates are told: of one the columns are as
    `rate_columns` has them, of several each with _NAME behind it. unbiased: whether intervals of users are known.
    """
    fields = list(_UNBIASED) if unbiased else []
    for name in rates:
        *column, shrunk, low, high = rate_columns(name, rates)
        listed = low, high
        says = f"share of the cell's users in category {name}, null where the interval is 0..1 and so nothing is known"
        fields.append(pa.field(column[0], pa.float64(), True, {"description": says}))
        for end, which in zip(column[1:], ("lower", "upper"), strict=True):
            says = (
                f"{which} end of the 95% interval of the share in category {name}; includes sampling and noise; holds "
                "for each cell by itself, so not for one that was chosen by its rate"
            )
            fields.append(pa.field(end, pa.float64(), False, {"description": says}))
        says = f"share in category {name}, shrunk towards the average; null where users are not clearly above zero"
        fields.append(pa.field(shrunk, pa.float64(), True, {"description": says}))
        for end, which in zip(listed, ("lower", "upper"), strict=True):
            says = (
                f"{which} end of an interval of the share in category {name} that holds for all cells at once, at 95%; "
                "null unless it lies above the average: those cells are the list of the highest rates"
            )
            fields.append(pa.field(end, pa.float64(), True, {"description": says}))
    for name in categories:
        says = f"users in category {name} with the noise of the sub-query that counted them; may be negative"
        fields.append(pa.field(f"count_{name}", pa.float64(), False, {"description": says}))
    last = len(CELLS_SCHEMA) - 1
    every = [CELLS_SCHEMA.field(place) for place in range(len(CELLS_SCHEMA))]
    return pa.schema([*every[:last], *fields, every[last]], metadata=CELLS_SCHEMA.metadata)


def rate_columns(name: str, rates: Sequence[str]) -> tuple[str, ...]:
    """The columns of one category's rate, of those whose rates are told.

    They are the rate, the ends of its interval, the shrunk rate, and the ends of its interval for all cells at once.
    """
    end = "" if len(rates) == 1 else f"_{name}"
    return tuple(
        f"{one}{end}"
        for one in ("rate", "rate_low", "rate_high", "rate_shrunk", "simultaneous_low", "simultaneous_high")
    )


HOT_CELLS_SCHEMA = pa.schema(
    [
        *(CELLS_SCHEMA.field(name) for name in ("cell_id", "depth", "west", "south", "east", "north")),
        pa.field("count", pa.float64(), False, {"description": "estimated users: sampled / sampling rate"}),
        pa.field("stddev", pa.float64(), False, {"description": "standard deviation of count, from sampling"}),
        pa.field("sampled", pa.int64(), False, {"description": "sampled users seen in the cell"}),
        pa.field("density", pa.float64(), False, {"unit": "users per square kilometre"}),
        pa.field("geometry", pa.binary(), False, {"description": "WKB, the cell"}),
    ],
    metadata=CELLS_SCHEMA.metadata,
)

QUANTILES_SCHEMA = pa.schema(
    [
        pa.field("share", pa.float64(), False, {"description": "share of the users below value"}),
        pa.field("value", pa.float64(), False),
        pa.field("low", pa.float64(), False, {"description": "lower end of a 95% interval"}),
        pa.field("high", pa.float64(), False, {"description": "upper end of a 95% interval"}),
    ]
)
RANGES_SCHEMA = pa.schema(
    [
        pa.field("low", pa.float64(), False),
        pa.field("high", pa.float64(), False, {"description": "not in the range"}),
        pa.field("users", pa.float64(), False, {"description": "estimated users with a value in the range"}),
        pa.field("stddev", pa.float64(), False),
    ]
)
CURVE_SCHEMA = pa.schema(
    [
        pa.field("value", pa.float64(), False),
        pa.field("share", pa.float64(), False, {"description": "estimated share of the users below value"}),
        pa.field("low", pa.float64(), False, {"description": "lower edge of a 95% band"}),
        pa.field("high", pa.float64(), False, {"description": "upper edge of a 95% band"}),
    ]
)
BINS_SCHEMA = pa.schema(
    [
        pa.field("level", pa.int64(), False, {"description": "bits of the range that the bin fixes"}),
        pa.field("low", pa.float64(), False),
        pa.field("high", pa.float64(), False, {"description": "not in the bin, unless it is the range's end"}),
        pa.field("count", pa.float64(), False, {"description": "estimated users: sampled / sampling rate"}),
        pa.field("stddev", pa.float64(), False, {"description": "standard deviation of count, from sampling"}),
        pa.field("sampled", pa.int64(), False),
    ]
)


def items_schema(item: pa.DataType) -> pa.Schema:
    """The table of items: one row a published item or prefix. item: text, or integers where items are whole numbers."""
    return pa.schema(
        [
            pa.field("item", item, False),
            pa.field("level", pa.int64(), False, {"description": "length of the prefix, 0 for whole items"}),
            pa.field("count", pa.float64(), False, {"description": "estimated users: sampled / sampling rate"}),
            pa.field("stddev", pa.float64(), False, {"description": "standard deviation of count, from sampling"}),
            pa.field("sampled", pa.int64(), False, {"description": "sampled users seen with the item"}),
        ]
    )
