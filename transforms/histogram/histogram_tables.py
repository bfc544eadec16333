"""Published histograms as Arrow tables. Pure."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, area_km2, deinterleave
from sfumato.schemas.release import BINS_SCHEMA, hot_cells_schema, items_schema
from sfumato.schemas.tree import node_names
from sfumato.transforms.cell_indexes import index_columns
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.noisy_histogram import NoisyHistogram
from sfumato.transforms.histogram.sampling_round import Histogram
from sfumato.transforms.histogram.trie import WHOLE

# Well-known binary of a box: little-endian, a polygon of one ring of five points.
_BOX = np.dtype([("head", "V13"), ("corners", "<f8", 10)])
_BOX_HEAD = np.void(struct.pack("<bIII", 1, 3, 1, 5))


def _measured(histogram: Histogram | NoisyHistogram) -> dict[str, NDArray[Any]]:
    """The columns of the counts."""
    columns = {"count": histogram.counts, "stddev": histogram.stddev}
    if isinstance(histogram, Histogram):
        return {**columns, "sampled": histogram.sampled}
    low, high = histogram.intervals
    return {**columns, "low": low, "high": high}


def cells_table(histogram: Histogram | NoisyHistogram, grid: Grid) -> pa.Table:
    """Published cells of one level by hot_cells_schema."""
    level = histogram.level or grid.depth
    x, y = deinterleave(histogram.items)
    levels = np.full(len(x), level)
    west, south, east, north = grid.bounds(x, y, levels)
    table = {
        "cell_id": node_names(histogram.items | np.uint64(1 << (2 * level))),
        "depth": levels.astype(np.int8),
        "west": west,
        "south": south,
        "east": east,
        "north": north,
        **_measured(histogram),
        "density": histogram.counts / area_km2(west, south, east, north),
        **index_columns(grid, levels, west, south, east, north),
        "geometry": box_shapes(west, south, east, north),
    }
    return pa.table(table, schema=hot_cells_schema(isinstance(histogram, NoisyHistogram)))


def box_shapes(
    west: NDArray[np.float64], south: NDArray[np.float64], east: NDArray[np.float64], north: NDArray[np.float64]
) -> pa.Array:
    """Boxes as binary[n] of well-known binary: the bytes of `shapely.to_wkb(shapely.box(...))`, several times faster.

    west, south, east, north: float64[n], degrees.
    """
    shapes = np.empty(len(west), dtype=_BOX)
    shapes["head"] = _BOX_HEAD
    shapes["corners"] = np.stack([east, south, east, north, west, north, west, south, east, south], axis=1)
    ends = np.arange(len(west) + 1, dtype=np.int32) * _BOX.itemsize
    return pa.Array.from_buffers(pa.binary(), len(west), [None, pa.py_buffer(ends), pa.py_buffer(shapes)])


def item_names(histogram: Histogram | NoisyHistogram) -> list[str]:
    """Names of published items or prefixes: texts, integers, or the first digits of integers."""
    if histogram.texts is not None:
        return list(histogram.texts)
    if histogram.level == WHOLE:
        return [str(number) for number in histogram.items.view(np.int64).tolist()]
    return [f"{number:0{histogram.level}d}" for number in histogram.items.tolist()]


def items_table(histogram: Histogram | NoisyHistogram) -> pa.Table:
    """Published items of one level, most frequent first. Whole items that are integers stay integers."""
    histogram = histogram.only(np.argsort(-histogram.counts, kind="stable"))
    integers = len(histogram) and histogram.texts is None and histogram.level == WHOLE
    names = pa.array(histogram.items.view(np.int64)) if integers else pa.array(item_names(histogram), pa.string())
    table = {
        "item": names,
        "level": np.full(len(histogram), histogram.level),
        **_measured(histogram),
    }
    return pa.table(table, schema=items_schema(names.type, isinstance(histogram, NoisyHistogram)))


def bins_table(histogram: Histogram, items: NumberItems) -> pa.Table:
    """Published bins of one level by BINS_SCHEMA."""
    width = 1 << (items.bits - histogram.level)
    first = histogram.items.astype(np.float64) * width
    table = {
        "level": np.full(len(histogram), histogram.level),
        "low": items.scale.at(first),
        "high": items.scale.at(first + width),
        "count": histogram.counts,
        "stddev": histogram.stddev,
        "sampled": histogram.sampled,
    }
    return pa.table(table, schema=BINS_SCHEMA)
