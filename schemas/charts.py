"""The data of pages and pictures of counted items, cells and quantiles: checked arrays, nothing raw. Pure.

The source are published sample-and-threshold rounds (paper 004): estimates X / p of the users who hold an item, with
standard deviations. X is the sampled count, at least the threshold.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_LEVEL = 20
_LONGEST_NAME = 200  # characters of a name that the page shows
# Control characters, marks that turn the direction of writing, and halves of pairs: none may act, all are shown.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True, eq=False)
class ItemBars:
    """Published items, or published prefixes that form a tree.

    Raises ValueError where the columns disagree in length or a value makes no sense.

    Attributes:
        name: n items or prefixes, as the logs wrote them.
        level: int64[n], the prefix's length, >= 1; 0 for a whole item.
        parent: int64[n], the row of the prefix it extends, or -1.
        count: float64[n], estimated users, >= 0.
        stddev: float64[n], standard deviation of `count`, in users.
    """

    name: list[str]
    level: NDArray[np.int64]
    parent: NDArray[np.int64]
    count: NDArray[np.float64]
    stddev: NDArray[np.float64]

    def __post_init__(self) -> None:
        n = len(self.name)
        _same_length(self, n, ("level", "parent", "count", "stddev"))
        _check_counts(self.count, self.stddev)
        level, parent = np.asarray(self.level), np.asarray(self.parent)
        if not (level >= 0).all():
            raise ValueError("level: must be a prefix length >= 0")
        if not ((parent >= -1) & (parent < n)).all():
            raise ValueError(f"parent: must be a row in 0..{n - 1}, or -1")
        child = np.flatnonzero(parent >= 0)
        length = np.where(level == 0, np.iinfo(np.int64).max, level)  # a whole item is longer than any prefix
        if not (length[parent[child]] < length[child]).all():
            raise ValueError("parent: must be a row of a shorter prefix")


@dataclass(frozen=True, eq=False)
class CellLayer:
    """The published cells of one level: one sample-and-threshold round over the map.

    Raises ValueError where the columns disagree in length or a value makes no sense.

    Attributes:
        level: depth of the cells; the level's grid has 2^level cells a side.
        x: int64[n], the cell's column at that level, counted from the west.
        y: int64[n], the cell's row at that level, counted from the north.
        count: float64[n], estimated users, >= 0.
        stddev: float64[n], standard deviation of `count`, in users.
        cell_id: n names, such as r213.
        sampling_rate: the probability with which each user was drawn.
        threshold: the smallest published number of drawn users.
    """

    level: int
    x: NDArray[np.int64]
    y: NDArray[np.int64]
    count: NDArray[np.float64]
    stddev: NDArray[np.float64]
    cell_id: list[str]
    sampling_rate: float
    threshold: int

    def __post_init__(self) -> None:
        _same_length(self, len(self.cell_id), ("x", "y", "count", "stddev"))
        check_cells(self.level, self.x, self.y, self.count)
        _check_counts(self.count, self.stddev)
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate: must lie in (0, 1], got {self.sampling_rate}")
        if not self.threshold >= 1:
            raise ValueError(f"threshold: must be a number of users >= 1, got {self.threshold}")


@dataclass(frozen=True, eq=False)
class Curve:
    """The estimated distribution function, with its 95% band.

    Raises ValueError where the columns disagree in length or a value makes no sense.

    Attributes:
        value: float64[n], ascending.
        share: float64[n], share of the users below the value, in 0..1.
        low: float64[n], lower end of the share's band.
        high: float64[n], upper end of the share's band.
    """

    value: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def __post_init__(self) -> None:
        _same_length(self, len(self.value), ("value", "share", "low", "high"))
        for name in ("value", "share", "low", "high"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name}: must be finite numbers")
        if not (np.diff(self.value) >= 0).all():
            raise ValueError("value: must ascend")
        if not ((np.asarray(self.share) >= 0) & (np.asarray(self.share) <= 1)).all():
            raise ValueError("share: must lie in 0..1")
        if not ((self.low <= self.share) & (self.share <= self.high)).all():
            raise ValueError("low, high: must enclose the share")


@dataclass(frozen=True)
class Quantile:
    """A queried quantile: `share` of the users are below `value`, which has the 95% interval low..high.

    Raises ValueError for a share outside 0..1, or a value outside its own range.
    """

    share: float
    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share: must lie in 0..1, got {self.share}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.value <= self.high):
            raise ValueError(f"value: must be finite and lie in low..high, got {self.value} in {self.low}..{self.high}")


@dataclass(frozen=True)
class RangeAnswer:
    """A queried range of values and the estimated users in it, with their standard deviation.

    Raises ValueError for an empty range, or for users or a deviation that are not finite numbers >= 0.
    """

    low: float
    high: float
    users: float
    stddev: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low: must be finite and below high, got {self.low}..{self.high}")
        for name in ("users", "stddev"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: must be a finite number >= 0, got {value}")


def readable(name: str) -> str:
    """A name from the logs as safe text: shortened, with invisible characters spelled out."""
    text = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    text = _UNSEEN.sub(lambda match: _spelled(match[0]), text)
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    return "␣" * lead + inner + "␣" * (len(text) - lead - len(inner))


def _spelled(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 32 else f"⟨U+{code:04X}⟩"


def check_cells(level: int, x: NDArray[np.int64], y: NDArray[np.int64], count: NDArray[np.float64]) -> None:
    """Raises ValueError unless the cells (x, y) lie in the level's grid and the counts are finite and >= 0."""
    if not 0 <= level <= MAX_LEVEL:
        raise ValueError(f"level: must lie in 0..{MAX_LEVEL}, got {level}")
    for name, place in (("x", np.asarray(x)), ("y", np.asarray(y))):
        if place.shape != np.shape(count):
            raise ValueError(f"{name}: must hold one value for each count, got shape {place.shape}")
        if not ((place >= 0) & (place < 1 << level)).all():
            raise ValueError(f"{name}: must lie in 0..2^level - 1")
    check_amounts("count", count)


def check_amounts(name: str, values: NDArray[np.float64]) -> None:
    """Raises ValueError unless all values are finite and >= 0."""
    if not (np.isfinite(values) & (np.asarray(values) >= 0)).all():
        raise ValueError(f"{name}: must be finite numbers >= 0")


def _check_counts(count: NDArray[np.float64], stddev: NDArray[np.float64]) -> None:
    check_amounts("count", count)
    check_amounts("stddev", stddev)


def _same_length(columns: Any, n: int, names: tuple[str, ...]) -> None:
    for name in names:
        shape = np.shape(getattr(columns, name))
        if shape != (n,):
            raise ValueError(f"{name}: must hold one value for each of the {n} rows, got shape {shape}")
