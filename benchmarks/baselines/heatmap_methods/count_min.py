"""Count-min sketches of every level of the quadtree (paper 000, Sections 5.1 and 6.2)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.heatmap_methods.pyramid import BEST, LEVELS, Pyramid
from sfumato.schemas.requests.checks import check_choice, check_integer
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.methods.base import MAX_UNIFORM_LEVEL
from sfumato.transforms.counting.state import CountState, Estimate, NoisyCounts
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy import keys
from sfumato.transforms.secagg.encodings import Encoding, parts_and_cells

_HASH_KEY = hashlib.sha256(b"sfumato: the hash functions of count-min sketches are public").digest()
_ROWS_PER_BLOCK = 4  # an AES block is four words of 32 bits
_MAX_ROWS, _MAX_ENTRIES = 256, 4**MAX_UNIFORM_LEVEL
_BLOCK_CELLS = 1 << 14  # cells that are looked up at once
# How a cell's entries, one a row, become its count; and the count's standard deviation, by the number of rows, in
# standard deviations of one entry.
_ESTIMATES: dict[str, tuple[Callable[..., NDArray[np.float64]], Callable[[int], float]]] = {
    "mean": (np.mean, lambda rows: rows**-0.5),
    "median": (np.median, lambda rows: min(1.0, (math.pi / 2 / rows) ** 0.5)),  # of many normal values
    "min": (np.min, lambda rows: 1.0),  # at most about that, and far too low
}


@dataclass(frozen=True)
class SketchEncoding(Encoding):
    """A count-min sketch of the cells of one level: in each of `rows` rows a cell adds to one of `width` entries.

    A public hash function of level and row chooses the entry: AES under a constant key. Entries are in order of rows.
    """

    depth: int
    level: int
    width: int
    rows: int

    @property
    def length(self) -> int:  # type: ignore[override]
        """Entries of all rows."""
        return self.width * self.rows

    @property
    def entries_per_location(self) -> int:  # type: ignore[override]
        """A location adds to one entry of each row."""
        return self.rows

    @property
    def shares(self) -> NDArray[np.float64]:
        """See Encoding.shares: the mean over hash functions."""
        return np.full(self.length, 1 / self.width)

    def places(self, cells: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The entries of some cells of the level, given by their codes uint64[n]: int64[rows, n]."""
        first = np.arange(self.rows, dtype=np.int64)[:, None] * self.width
        return first + self.columns(cells)

    def columns(self, cells: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The column of each cell in each row: int64[rows, n]."""
        blocks = -(-self.rows // _ROWS_PER_BLOCK)
        bits = np.empty((blocks, len(cells), _ROWS_PER_BLOCK), dtype=np.uint32)
        for block in range(blocks):
            counter = np.full(len(cells), self.level * _MAX_ROWS + block, dtype=np.uint64)
            bits[block] = keys.random_bits(_HASH_KEY, counter, cells).view(np.uint32)
        by_row = bits.transpose(0, 2, 1).reshape(blocks * _ROWS_PER_BLOCK, len(cells))[: self.rows]
        return ((by_row.astype(np.uint64) * np.uint64(self.width)) >> np.uint64(32)).astype(np.int64)

    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        """See Encoding.count. A cell is hashed once, whatever the number of its users."""
        shard, cells = parts_and_cells(group, block)
        cells = cells >> np.uint64(2 * (self.depth - self.level))
        # Rows are sorted by shard and cell, so those of one cell of a shard are side by side.
        code = (shard << (2 * self.level)) | cells.astype(np.int64)
        first = np.flatnonzero(np.diff(code, prepend=-1))
        weights = group.weights_of(block)
        before = np.arange(len(code) + 1) if weights is None else np.concatenate([[0], np.cumsum(weights)])
        users = np.diff(before[np.append(first, len(code))])
        sums = np.zeros((block.stop - block.start, self.length), dtype=np.int64)
        for places in self.places(cells[first]):
            np.add.at(sums, (shard[first], places), users)
        return sums

    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.int64]]:
        """See Encoding.entries_of: an array for each row of the sketch."""
        _, cells = parts_and_cells(group, block)
        distinct, place = np.unique(cells >> np.uint64(2 * (self.depth - self.level)), return_inverse=True)
        for entries in self.places(distinct.astype(np.uint64)):
            yield entries[place]


@dataclass(frozen=True)
class CountMin(Pyramid):
    """A sketch of each level.

    sketch_width: entries in a row. sketch_rows: each location adds to one entry in each. sketch_estimate: how a cell's
    entries become its count.

    `mean` is the best linear unbiased estimate for any noise, and the best of all for normal noise, such as the sum of
    many shards' noise. `median` is robust to heavy collisions, which are small beside noise of sensitivity 20. `min` is
    the paper's. It suits counts without noise, whose only error is collisions, which are positive. With noise it is the
    smallest of 20 noises.
    """

    NAME: ClassVar[str] = "count_min"
    SENTENCE: ClassVar[str] = f"{LEVELS} Each is a sketch, in which many cells share an entry. {BEST}"

    sketch_width: int = 2000
    sketch_rows: int = 20
    sketch_estimate: str = "mean"

    def __post_init__(self) -> None:
        check_choice("sketch_estimate", self.sketch_estimate, _ESTIMATES)
        check_integer("sketch_rows", self.sketch_rows, 1, _MAX_ROWS)
        check_integer("sketch_width", self.sketch_width, 2, _MAX_ENTRIES // self.sketch_rows)

    def weights(self, depth: int) -> NDArray[np.float64]:
        return np.ones(depth)

    def encoding(self, depth: int, level: int) -> Encoding:
        """See Pyramid.encoding: a level with fewer cells than the sketch has entries is sketched like any other."""
        return SketchEncoding(depth, level, self.sketch_width, self.sketch_rows)

    def candidates(self, state: CountState, depth: int) -> list[Estimate]:
        return [self._estimate(result) for result in state.results]

    def independent(self, state: CountState, levels: list[Estimate]) -> list[Estimate]:
        """See Pyramid.independent: for the biased `min` the counts of `mean`."""
        by_mean = replace(self, sketch_estimate="mean")
        return by_mean.candidates(state, len(levels)) if self.sketch_estimate == "min" else levels

    def _estimate(self, result: NoisyCounts) -> Estimate:
        sketch, entries = result.encoding, result.counts
        if not isinstance(sketch, SketchEncoding):
            raise TypeError(f"the counts are not of a sketch but of {type(sketch).__name__}")
        combine, deviations = _ESTIMATES[self.sketch_estimate]
        cells = 1 << (2 * sketch.level)
        counts = np.empty(cells)
        for first in range(0, cells, _BLOCK_CELLS):
            codes = np.arange(first, min(first + _BLOCK_CELLS, cells), dtype=np.uint64)
            counts[first : first + _BLOCK_CELLS] = combine(entries[sketch.places(codes)], axis=0)
        if self.sketch_estimate != "min":
            # A cell shares each of its entries with 1 / width of the users who are not in it.
            counts = (counts - entries.mean()) / (1 - 1 / sketch.width)
        # Entries differ by their noise and by their collisions. Both are errors of a cell's count.
        one = max(result.noise_stddev, float(entries.std()))
        return Estimate(Tree.uniform(sketch.depth, sketch.level), counts, np.full(cells, one * deviations(sketch.rows)))
