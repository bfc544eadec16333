"""The files of a release, their columns, and the formats of manifests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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
FLOWS_FILE = "flows.parquet"
FLOWS_CSV = "flows.csv"
FLOW_ZONES_FILE = "flow_zones.parquet"
FLOWS_PICTURE = "flows.png"
ZONES_FILE = "zones.parquet"
ZONES_PICTURE = "zones.png"
NIGHTS_FILE = "nights.parquet"
SLOTS_FILE = "slots.parquet"
SLOT_MAPS_FILE = "slots.npy"
RELEASE_FILES = frozenset({
    MANIFEST_FILE, PAGE_FILE, BASEMAP_FILE, CELLS_FILE, DENSITY_FILE, PICTURE_FILE, RATES_PICTURE, TOTALS_FILE,
    ANSWERS_FILE, SLOTS_FILE, SLOT_MAPS_FILE, NIGHTS_FILE, ZONES_FILE, ZONES_PICTURE, FLOWS_FILE, FLOWS_CSV,
    FLOW_ZONES_FILE, FLOWS_PICTURE, ITEMS_FILE, HISTOGRAM_PICTURE, HOTSPOTS_PICTURE, QUANTILES_FILE, RANGES_FILE,
    CURVE_FILE, BINS_FILE, QUANTILES_PICTURE, MOMENTS_FILE, BITS_FILE, MOMENTS_PICTURE, MODEL_FILE, RANGES_PICTURE,
})  # fmt: skip
MANIFEST_FORMAT = "sfumato-release/2"
REFUSAL_FORMAT = "sfumato-refusal/2"  # of the notice that replaces a release that was refused after its charge
REMOVAL_FORMAT = "sfumato-removal/1"  # of the notice that replaces a release that was taken down

# What `sfumato changes` writes: post-processing of two releases.
CHANGES_FILE = "changes.parquet"
CHANGES_PICTURE = "changes.png"
CHANGES_FILES = frozenset({CHANGES_FILE, CHANGES_PICTURE, BASEMAP_FILE, PAGE_FILE, MANIFEST_FILE})
CHANGES_FORMAT = "sfumato-changes/1"

_NUMBER = pa.float64()
_ENDS = (("low", "lower"), ("high", "upper"))  # of an interval: in a column's name, and in words


def _geo(*kinds: str) -> dict[str, Any]:
    """Returns GeoParquet's metadata of a table whose column `geometry` holds these kinds."""
    columns = {"geometry": {"encoding": "WKB", "geometry_types": kinds}}
    return {"version": "1.1.0", "primary_column": "geometry", "columns": columns}


def described(name: str, text: str, kind: pa.DataType = _NUMBER, *, null: bool = False) -> pa.Field:
    """Returns a column of a published table with the text that its schema states; of numbers, and without nulls, by
    default.
    """
    return pa.field(name, kind, null, {"description": text})


_STDDEV = (
    "standard deviation of count. With the estimator bayes it is that of the posterior, given all noisy counts: right "
    "on average over cells, but a lower bound for cells that are chosen by their counts and for sums of cells. "
    "With the estimator last it is that of the noise. With the method emd it is a lower bound everywhere"
)
NEGATIVE = (
    "may be negative, because noise can exceed the count of few users; negative values keep sums right on average; "
    "read them as 0"
)
_COUNT = f"estimated users, or user-slots with --records_per_user; {NEGATIVE}"
# Of the cells of public indexes. Their resolution has the mean area that is nearest, in ratio, to the region's area
# divided by 4^depth.
_OF_INDEX = "{} that holds the centre, at the resolution whose cells are about as large as those of this depth"
INDEX_FIELDS = tuple(
    described(name, _OF_INDEX.format(text), pa.string()) for name, text in (("h3", "H3 cell"), ("quadkey", "Bing tile"))
)
_CELL_ID = described("cell_id", "r and one digit 0..3 for each level of the quadtree", pa.string())
_SIDES = tuple(pa.field(side, _NUMBER, False, {"unit": "degrees"}) for side in ("west", "south", "east", "north"))
CELL_FIELDS = (_CELL_ID, described("depth", "level of the node, 0 for the region", pa.int8()), *_SIDES)
CELLS_SCHEMA = pa.schema(
    [
        *CELL_FIELDS,
        described("count", _COUNT),
        described("stddev", _STDDEV),
        pa.field("density", pa.float64(), True, {"unit": "users per square kilometre, null if the area is 0"}),
        *INDEX_FIELDS,
        described("geometry", "WKB, the node without its descendants", pa.binary()),
    ],
    metadata={"geo": json.dumps(_geo("Polygon", "MultiPolygon"))},
)


_WITHOUT_SHRINKAGE = (
    "users by the last sub-query, without shrinkage; biased in cells that are finer than the last sub-query measured, "
    f"whose counts come from an earlier one; {NEGATIVE}"
)
_UNBIASED = (
    described("users_unbiased", _WITHOUT_SHRINKAGE),
    *(described(f"users_{end}", f"{side} end of a 95% interval of the cell's users") for end, side in _ENDS),
)
_MEASURED = (
    "variance of the measurements of the node and of its descendants, before they are reconciled with its parent; for "
    "the root (node 1), variance of the error of `users`"
)
# For `Release.total`: one row a node of the full quadtree over the cells, level by level.
TOTALS_SCHEMA = pa.schema(
    [
        described("node", "a leading 1 bit, then two bits a level", pa.uint64()),
        described("cell", "the leaf's row in cells.parquet; -1 for inner nodes", pa.int64()),
        described("users", f"users without shrinkage, see users_unbiased; {NEGATIVE}"),
        described("variance", _MEASURED),
    ]
)


ANSWERS_SCHEMA = pa.schema(
    [
        described("sub_query", "its index in the manifest's sub_queries", pa.int16()),
        _CELL_ID,
        described("users", f"noisy users by only this sub-query; {NEGATIVE}"),
        described("stddev", "standard deviation of the noise, in users"),
    ]
)

_SLOT_STDDEV = (
    "standard deviation of the error of users: noise and the uncertainty of the profiles; an average over "
    "cells and slots"
)
# One row for each slot and each cell that the sub-query by slot counted, slot after slot.
SLOTS_SCHEMA = pa.schema(
    [
        *CELL_FIELDS,
        described("slot", "number of the slot: its place in the manifest's slots.names, from 0", pa.int16()),
        described("slot_name", "name of the slot, such as 08-09 h", pa.dictionary(pa.int16(), pa.string())),
        described("users", "estimated users with a counted record in the cell and slot; add up to the map's count"),
        described("stddev", _SLOT_STDDEV),
        described("expected", "expected users in such a slot, from the profiles of all cells; has no sampling error"),
        described("users_unbiased", f"users with only the noise; {NEGATIVE}"),
        *(described(f"users_{end}", f"{side} end of a 95% interval of the users") for end, side in _ENDS),
    ]
)


_CHANGE = (
    described("before", f"unbiased users of the first release, scaled if shares are compared; {NEGATIVE}"),
    described("after", f"unbiased users of the second release; {NEGATIVE}"),
    described("difference", "after - before, in users"),
    described("stddev", "standard deviation of the difference if nothing changed: noise and sampling"),
    *(described(end, f"{side} end of the difference's 95% interval, for each row separately") for end, side in _ENDS),
    described("changed", "q_value is at most the stated false discovery rate", pa.bool_()),
    described("shown", "of changed rows that lie within each other the most significant", pa.bool_()),
    described("p_value", "two-sided; null where nearly nobody is in either release: not tested", null=True),
    described("q_value", "least false discovery rate at which it is changed; null if not tested", null=True),
    *(
        described(f"changed_{end}", f"{side} end, allowing for the selection; or null", null=True)
        for end, side in _ENDS
    ),
)


def changes_schema() -> pa.Schema:
    """Returns the table of changes between two heatmaps: one row for each node of the quadtree that both know."""
    return pa.schema(
        [
            *CELL_FIELDS,
            described("leaf", "the finest cell that both maps know; otherwise a merged region", pa.bool_()),
            *_CHANGE,
            *INDEX_FIELDS,
            described("geometry", "WKB, the node's rectangle", pa.binary()),
        ],
        metadata=CELLS_SCHEMA.metadata,
    )


def cells_schema(categories: Sequence[str] = (), rates: Sequence[str] = (), unbiased: bool = False) -> pa.Schema:
    """Returns the columns of `cells.parquet` of a heatmap: by names of categories, and of those with published rates.

    unbiased: whether there are unbiased users and their intervals.
    """
    fields = [*(_UNBIASED if unbiased else ()), *_auxiliary_fields(categories, rates, "cell")]
    *before, geometry = CELLS_SCHEMA
    return pa.schema([*before, *fields, geometry], metadata=CELLS_SCHEMA.metadata)


def _auxiliary_fields(categories: Sequence[str], rates: Sequence[str], place: str) -> list[pa.Field]:
    """Returns the columns of rates and of counts by category, of cells or of zones."""
    fields = []
    for name in rates:
        pointwise = f"end of the rate's 95% interval, of sampling and noise; pointwise: not for a {place} chosen by it"
        simultaneous = f"end of an interval that holds for all {place}s at once (95%); null unless above the average"
        texts = (
            f"share of the {place}'s users in category {name}; null if the interval is 0..1, "
            "which means that nothing is known",
            f"lower {pointwise}",
            f"upper {pointwise}",
            f"rate of {name} after shrinkage towards the average; null where users are not clearly above zero",
            f"lower {simultaneous}",
            f"upper {simultaneous}",
        )
        for column, text in zip(rate_columns(name, rates), texts, strict=True):
            nullable = not column.startswith(("rate_low", "rate_high"))
            fields.append(described(column, text, null=nullable))
    for name in categories:
        text = f"users in category {name} with the noise of the sub-query that counted them; {NEGATIVE}"
        fields.append(described(f"count_{name}", text))
    return fields


_AREA_AND_DENSITY = (
    pa.field("area", _NUMBER, False, {"unit": "square kilometres"}),
    pa.field("density", _NUMBER, False, {"unit": "users per square kilometre"}),
)
_ZONE_POINT = tuple(
    pa.field(axis, _NUMBER, False, {"unit": "degrees", "description": "of the zone's point, or of one in its polygon"})
    for axis in ("longitude", "latitude")
)


def _zone_schema(named: bool, *columns: pa.Field) -> pa.Schema:
    """Returns the columns of a table of zones. named: whether zones have names for people."""
    name = described("name", "readable name of the zone; null if it has none", pa.string(), null=True)
    own = [described("zone", "id of the zone", pa.string()), *([name] if named else [])]
    geometry = described("geometry", "WKB, the zone's polygon", pa.binary())
    return pa.schema([*own, *columns, geometry], metadata=CELLS_SCHEMA.metadata)


_LEVEL = (
    described("level", "name of its level: the column that names the level's zones", pa.string()),
    described("parent", "id of the next coarser level's zone that holds it; null for none", pa.string(), null=True),
)


def changed_zones_schema(named: bool) -> pa.Schema:
    """Returns the table of changes between two releases of zones: one row for each zone that both have."""
    return _zone_schema(named, *_LEVEL, *_CHANGE, _AREA_AND_DENSITY[0])


def zones_schema(categories: Sequence[str] = (), rates: Sequence[str] = (), named: bool = False) -> pa.Schema:
    """Returns the columns of `zones.parquet`: a row for each zone of each level, the finest level first.

    named: whether zones have names for people. See `cells_schema`.
    """
    return _zone_schema(
        named,
        *_LEVEL,
        described("users", f"estimated users, unbiased; {NEGATIVE}"),
        described("stddev", "standard deviation of the noise in users, after the levels were made consistent"),
        described("low", "lower end of a 95% interval of the zone's users, for each zone separately"),
        described("high", "upper end of the interval"),
        *_AREA_AND_DENSITY,
        *_auxiliary_fields(categories, rates, "zone"),
        *_ZONE_POINT,
    )


def release_zones_schema(named: bool) -> pa.Schema:
    """Returns the columns of the table of `sfumato zones --release`. named: whether zones have names for people."""
    return _zone_schema(
        named,
        described("users", f"estimated users in the zone; {NEGATIVE}; null off the map", null=True),
        described("stddev", "standard deviation of users: noise, and places inside cells that are cut", null=True),
        described("low", "lower end of a 95% interval, for each zone separately", null=True),
        described("high", "upper end of the interval", null=True),
        described("noise_stddev", "the part of stddev that is the noise's", null=True),
        described("share_in_map", "share of the zone's area inside the map"),
    )


def rate_columns(name: str, rates: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns of one category's rate and its intervals.

    They end in _NAME if several categories have published rates.
    """
    columns = ("rate", "rate_low", "rate_high", "rate_shrunk", "simultaneous_low", "simultaneous_high")
    return columns if len(rates) == 1 else tuple(f"{column}_{name}" for column in columns)


_SAMPLED_COUNT = (
    described("count", "estimated users: sampled / sampling rate"),
    described("stddev", "standard deviation of count, from sampling"),
    described("sampled", "sampled users seen in the cell or with the item", pa.int64()),
)
_NOISY = (
    "users with the item or in the place, or with --max_records_per_item their records, or with --average_day their "
    "mean number a day, with noise. A threshold "
    "selects counts whose noise is high, so counts near it are too high on average. Where every item is published, a "
    f"count {NEGATIVE}"
)
_NOISY_COUNT = (
    described("count", _NOISY),
    described("stddev", "standard deviation of the noise"),
    described("low", "lower end of a 95% interval, given that the row is published", pa.int64()),
    described("high", "upper end of the interval, which holds for each row separately", pa.int64()),
)


def hot_cells_schema(noisy: bool = False) -> pa.Schema:
    """Returns the columns of `cells.parquet` of counted cells.

    noisy: counted with noise, and not by sample and threshold.
    """
    return pa.schema(
        [
            *CELL_FIELDS,
            *(_NOISY_COUNT if noisy else _SAMPLED_COUNT),
            _AREA_AND_DENSITY[1],
            *INDEX_FIELDS,
            described("geometry", "WKB, the cell", pa.binary()),
        ],
        metadata=CELLS_SCHEMA.metadata,
    )


def counted_zones_schema(noisy: bool = False, named: bool = False) -> pa.Schema:
    """Returns the columns of `zones.parquet` of counted zones. named: whether zones have names for people.

    See `hot_cells_schema`.
    """
    return _zone_schema(named, *(_NOISY_COUNT if noisy else _SAMPLED_COUNT), *_AREA_AND_DENSITY, *_ZONE_POINT)


QUANTILES_SCHEMA = pa.schema(
    [
        described("share", "share of the users below value"),
        described("value", "the quantile, in the column's unit"),
        described("low", "lower end of a 95% interval"),
        described("high", "upper end of a 95% interval"),
    ]
)
RANGES_SCHEMA = pa.schema(
    [
        described("low", "lower end of the range, in the column's unit; in the range"),
        described("high", "upper end, not in the range"),
        described("users", f"estimated users with a value in the range; {NEGATIVE}"),
        described("stddev", "standard deviation from noise or sampling, in users"),
        described("users_low", "lower end of a 95% interval of the users; it allows for hidden values"),
        described("users_high", "upper end of the interval"),
    ]
)
CURVE_SCHEMA = pa.schema(
    [
        described("value", "a number of the column, in its unit"),
        described("share", "estimated share of the users below value, 0 to 1"),
        described("low", "lower edge of a 95% band"),
        described("high", "upper edge of a 95% band"),
    ]
)
BINS_SCHEMA = pa.schema(
    [
        described("level", "how many leading bits of a value's position in the range the bin fixes", pa.int64()),
        described("low", "lower end of the bin, in the column's unit; in the bin"),
        described("high", "upper end, not in the bin, except at the end of the range"),
        described("count", "estimated users: sampled / sampling rate"),
        described("stddev", "standard deviation of count, from sampling"),
        described("sampled", "sampled users with a value in the bin", pa.int64()),
    ]
)


def items_schema(item: pa.DataType, noisy: bool = False) -> pa.Schema:
    """Returns the columns of `items.parquet`: one row a published item or prefix, text or integers.

    See `hot_cells_schema`.
    """
    return pa.schema(
        [
            described("item", "a value of the column, or a prefix of values", item),
            described("level", "length of the prefix, 0 for complete items", pa.int64()),
            *(_NOISY_COUNT if noisy else _SAMPLED_COUNT),
        ]
    )


def flow_zones_schema(named: bool = False) -> pa.Schema:
    """Returns the columns of `flow_zones.parquet`. named: whether zones have names for people."""
    return _zone_schema(named, *_ZONE_POINT, _AREA_AND_DENSITY[0])


def flows_schema(zones: bool = False, named: bool = False) -> pa.Schema:
    """Returns the columns of `flows.parquet` and, without the geometry, of `flows.csv`: all trips, each in one row.

    zones: whether flows are of pairs of zones. named: whether these have names for people.
    """
    cell = "r and one digit 0..3 a level of the quadtree; a single r is the region"
    rest = "whether the row is a rest: the trips between a pair of large cells, minus those of the listed pairs"
    places = [
        described("origin_cell", f"where the trips begin: {cell}", pa.string()),
        described("destination_cell", f"where they end: {cell}", pa.string()),
        described("depth", "level of both cells, 0 for the region", pa.int8()),
    ]
    if zones:
        rest = "all trips from a zone without those of the pairs that are listed"
        places = [
            described("origin_zone", "id of the zone where the trips begin", pa.string()),
            described("destination_zone", "id of the zone where they end; null for a rest", pa.string(), null=True),
        ]
        if named:
            label = "name for people of the zone where the trips"
            places += [
                described("origin_name", f"{label} begin; null for none", pa.string(), null=True),
                described("destination_name", f"{label} end; null for none", pa.string(), null=True),
            ]
    shrunk = "expected trips: a posterior mean; for a rest not shrunk, so noise can make it negative"
    noisy = f"noisy count of the same trips, without shrinkage; {NEGATIVE.replace('users', 'trips')}"
    stddev = "standard deviation of trips: the posterior one, which is right on average; for a rest, that of its error"
    points = []
    for end in ("origin", "destination"):
        text = {
            "unit": "degrees",
            "description": f"of a point in the {end} zone" if zones else f"centre of the {end} cell",
        }
        nullable = zones and end == "destination"
        points += [pa.field(f"{end}_{axis}", _NUMBER, nullable, text) for axis in ("longitude", "latitude")]
    return pa.schema(
        [
            *places,
            described("is_rest", rest, pa.bool_()),
            described("trips", shrunk),
            described("stddev", stddev),
            described(
                "low", "lower end of a 95% interval, which holds for each row separately, even for the largest flows"
            ),
            described("high", "upper end of the interval"),
            described("present", "probability that there is a trip; at least 0.5 for a listed pair"),
            described("noisy", noisy, pa.int64()),
            described("noise_stddev", "standard deviation of the noise in `noisy`; variances of rows add up"),
            *points,
            described(
                "geometry",
                "WKB: a line from centre to centre, or a point if both ends are in one cell or zone",
                pa.binary(),
            ),
        ],
        metadata={"geo": json.dumps(_geo("LineString", "Point"))},
    )
