"""Published histograms as the tables of a release. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, area_km2, deinterleave
from sfumato.schemas.release import BINS_SCHEMA, HOT_CELLS_SCHEMA, items_schema
from sfumato.schemas.tree import node_names
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.prefixes import WHOLE
from sfumato.transforms.histogram.published import Histogram


def cell_places(histogram: Histogram, depth: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Level, columns x, rows y (int64[m] each) and names of published cells."""
    level = histogram.level or depth
    x, y = deinterleave(histogram.items)
    return level, x, y, node_names(histogram.items | np.uint64(1 << (2 * level)))


def cells_table(histogram: Histogram, grid: Grid) -> pa.Table:
    """Published cells of one level by HOT_CELLS_SCHEMA."""
    level, x, y, names = cell_places(histogram, grid.depth)
    levels = np.full(len(x), level)
    west, south, east, north = grid.bounds(x, y, levels)
    table = {
        "cell_id": names,
        "depth": levels.astype(np.int8),
        "west": west,
        "south": south,
        "east": east,
        "north": north,
        "count": histogram.counts,
        "stddev": histogram.stddev,
        "sampled": histogram.sampled,
        "density": histogram.counts / area_km2(west, south, east, north),
        "geometry": shapely.to_wkb(shapely.box(west, south, east, north)),
    }
    return pa.table(table, schema=HOT_CELLS_SCHEMA)


def item_names(histogram: Histogram) -> list[str]:
    """What published items or prefixes are called: texts, whole numbers, or the first digits of whole numbers."""
    if histogram.texts is not None:
        return list(histogram.texts)
    if histogram.level == WHOLE:
        return [str(number) for number in histogram.items.view(np.int64).tolist()]
    return [f"{number:0{histogram.level}d}" for number in histogram.items.tolist()]


def items_table(histogram: Histogram) -> pa.Table:
    """Published items of one level, most frequent first. Whole items that are integers stay integers."""
    histogram = histogram.only(np.argsort(-histogram.sampled, kind="stable"))
    integers = len(histogram) and histogram.texts is None and histogram.level == WHOLE
    names = pa.array(histogram.items.view(np.int64)) if integers else pa.array(item_names(histogram), pa.string())
    table = {
        "item": names,
        "level": np.full(len(histogram), histogram.level),
        "count": histogram.counts,
        "stddev": histogram.stddev,
        "sampled": histogram.sampled,
    }
    return pa.table(table, schema=items_schema(names.type))


def bins_table(histogram: Histogram, items: NumberItems) -> pa.Table:
    """Published bins of one level by BINS_SCHEMA."""
    width = (items.high - items.low) / (1 << histogram.level)
    low = items.low + histogram.items.astype(np.float64) * width
    table = {
        "level": np.full(len(histogram), histogram.level),
        "low": low,
        "high": low + width,
        "count": histogram.counts,
        "stddev": histogram.stddev,
        "sampled": histogram.sampled,
    }
    return pa.table(table, schema=BINS_SCHEMA)
