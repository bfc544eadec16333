"""What the heatmap's page shows: a layer's cells and rates, checked, and in JSON's types. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.transforms.release.picture import METRES_PER_DEGREE
from sfumato.transforms.release.picture_scale import WIDE, rate_ends, written_top

MAX_LEVEL = 20
_ROUNDING = 1e-9  # how far below 0 a sum of epsilons may leave the remaining budget
_MOST_DIGITS = 9  # behind the point
_Z = 1.96  # standard deviations on each side that hold 95% of a normal law
_TINY = 1e-12  # users
_LONGEST_LIST = 6


@dataclass(frozen=True, eq=False)
class Rates:
    """By category, the share of each node's users that belongs to it, with 95% intervals of sampling and noise.

    Raises ValueError where the arrays' shapes differ or a value makes no sense.

    Attributes:
        names: the c categories, each once.
        rate: float64[c, n], in 0..1; NaN where the data cannot tell, then in low and high too.
        low: float64[c, n], the lower ends, at most `rate`.
        high: float64[c, n], the upper ends, at least `rate`.
        listed: float64[c, 3, n], for the list of the highest rates: the rate and the ends of an interval that holds for
            all nodes at once, NaN ends where a node is not to be listed; None where no node is.
    """

    names: list[str]
    rate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    listed: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        c = len(self.names)
        if c == 0 or len(set(self.names)) < c or not all(isinstance(name, str) for name in self.names):
            raise ValueError(f"names: must be different texts, one a category, got {self.names}")
        if np.ndim(self.rate) != 2 or len(self.rate) != c:
            raise ValueError(f"rate: must hold a row for each of the {c} names, got shape {np.shape(self.rate)}")
        for name in ("rate", "low", "high"):
            values = np.asarray(getattr(self, name))
            if values.shape != np.shape(self.rate):
                raise ValueError(f"{name}: must have the rates' shape {np.shape(self.rate)}, got {values.shape}")
            if not (np.isnan(values) == np.isnan(self.rate)).all():
                raise ValueError(f"{name}: must be NaN where the rate is, and only there")
            if not ((values >= 0) & (values <= 1) | np.isnan(values)).all():
                raise ValueError(f"{name}: must lie in 0..1, or be NaN")
        if self.listed is not None and self.listed.shape != (c, 3, np.shape(self.rate)[1]):
            raise ValueError(f"listed: must hold three rows for each of the {c} names, got shape {self.listed.shape}")
        if ((self.low > self.rate) | (self.rate > self.high)).any():
            raise ValueError("rate: must lie in its interval, low..high")


@dataclass(frozen=True, eq=False)
class Layer:
    """One sub-query's map, or the one made of them all: the nodes that own an entry, by level, coarse to fine.

    Raises ValueError where the arrays disagree in length or a value makes no sense.

    Attributes:
        index: the sub-query's number, from 0 or 1 as the manifest counts.
        epsilon: what the sub-query spent.
        remaining: what was left of the budget after it.
        stddev: standard deviation of the noise in one entry, in users; a typical one where they differ.
        vector_length: entries of the vector that each client sent.
        shards: groups that were asked; `shards_lost` of them gave no answer.
        level: int[n], depth of the node; the root is 0.
        x: int[n], the node's column at its level, counted from the west.
        y: int[n], the node's row at its level, counted from the north.
        count: float64[n], noisy estimated users; may be negative.
        area: int64[n], cells of the finest grid that the node covers, its descendants' left out; may be 0.
        cell_id: n names, such as r213.
        deviations: float64[n], every count's own standard deviation, in users; None where all are `stddev`.
        entries: cells before finer ones were added up for the page; None where none were.
        combined: the map is no sub-query's answer as it came. Then it is the release, and its figures are those of
            all sub-queries together.
        rates: the shares of categories at the same nodes; None without auxiliary data.
        users_low: float64[n], lower ends of 95% intervals of the nodes' users; NaN, as in users_high, where unknown;
            None where all are.
        users_high: float64[n], upper ends.
    """

    index: int
    epsilon: float
    remaining: float
    stddev: float
    vector_length: int
    shards: int
    shards_lost: int
    level: NDArray[np.integer[Any]]
    x: NDArray[np.integer[Any]]
    y: NDArray[np.integer[Any]]
    count: NDArray[np.float64]
    area: NDArray[np.int64]
    cell_id: list[str]
    deviations: NDArray[np.float64] | None = None
    entries: int | None = None
    combined: bool = False
    rates: Rates | None = None
    users_low: NDArray[np.float64] | None = None
    users_high: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        n = len(self.level)
        if (self.users_low is None) != (self.users_high is None):
            raise ValueError("users_low, users_high: give both or none")
        if self.users_low is not None and self.users_high is not None:
            low, high = np.asarray(self.users_low), np.asarray(self.users_high)
            if low.shape != (n,) or high.shape != (n,):
                raise ValueError(f"users_low, users_high: must hold one value for each of the {n} nodes")
            known = np.isfinite(low) & np.isfinite(high)
            if not (known | (np.isnan(low) & np.isnan(high))).all() or not (low <= high)[known].all():
                raise ValueError("users_low, users_high: must be finite with low <= high, or both NaN")
        for name in ("level", "x", "y", "count", "area"):
            shape = np.shape(getattr(self, name))
            if shape != (n,):
                raise ValueError(f"{name}: must hold one value for each of the {n} nodes, got shape {shape}")
        if len(self.cell_id) != n:
            raise ValueError(f"cell_id: must hold one name for each of {n} nodes, got {len(self.cell_id)}")
        for name, least in (("epsilon", 0.0), ("remaining", -_ROUNDING), ("stddev", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"{name}: must be a finite number >= 0, got {value}")
        if not 0 <= self.shards_lost <= self.shards:
            raise ValueError(f"shards_lost: must lie in 0..{self.shards}, got {self.shards_lost}")
        if not np.isfinite(self.count).all():
            raise ValueError("count: must be finite numbers")
        if self.deviations is not None:
            deviations = np.asarray(self.deviations)
            if deviations.shape != (n,):
                raise ValueError(f"deviations: must hold one value for each of the {n} nodes, got {deviations.shape}")
            if not (np.isfinite(deviations) & (deviations >= 0)).all():
                raise ValueError("deviations: must be finite numbers >= 0")
        if self.entries is not None and self.entries < n:
            raise ValueError(f"entries: must be at least the {n} nodes that are shown, got {self.entries}")
        if not isinstance(self.combined, bool):
            raise ValueError(f"combined: must be True or False, got {self.combined!r}")
        if self.rates is not None and self.rates.rate.shape[1] != n:
            raise ValueError(f"rates: must hold one rate for each of the {n} nodes, got {self.rates.rate.shape[1]}")
        level = np.asarray(self.level, dtype=np.int64)
        if n and not (level.min() >= 0 and level.max() <= MAX_LEVEL and (np.diff(level) >= 0).all()):
            raise ValueError(f"level: must lie in 0..{MAX_LEVEL} and ascend: the map is painted in that order")
        side = np.int64(1) << level
        for name in ("x", "y"):
            place = np.asarray(getattr(self, name), dtype=np.int64)
            if not ((place >= 0) & (place < side)).all():
                raise ValueError(f"{name}: must lie in 0..2^level - 1")
        if not (np.asarray(self.area) >= 0).all():
            raise ValueError("area: must be a number of cells >= 0")


def map_top(layer: Layer, region: Mapping[str, float], depth: int, users: float | None = None) -> float:
    """The density, in users per km^2, of the brightest colour: `written_top` of the layer's cells.

    A cell counts by its users, and the less the less sure they are: by the square of their number over its 95% margin.
    So neither noise nor what was fitted to it sets the scale, as long as anything stands out.

    Args:
        layer: the map.
        region: west, south, east and north, in degrees, with west < east and south < north.
        depth: level of the finest cells.
        users: how many users all counts above 0 stand for, as in the release's picture; by default their sum.
    """
    tall = region["north"] - region["south"]
    latitude = region["north"] - (np.asarray(layer.y) + 0.5) / 2.0 ** np.asarray(layer.level) * tall
    degrees = (region["east"] - region["west"]) * tall / 4.0**depth
    cell = degrees * (METRES_PER_DEGREE / 1000) ** 2 * np.maximum(np.cos(np.radians(latitude)), 1e-6)
    count = np.where(np.asarray(layer.area) > 0, np.maximum(layer.count, 0.0), 0.0)
    margin = _Z * np.asarray(layer.stddev if layer.deviations is None else layer.deviations)
    weight = count * np.minimum(count / np.maximum(margin, _TINY), 1.0) ** 2
    total = float(count.sum())
    scale = 1.0 if users is None or total == 0 else users / total
    return written_top(scale * count / (np.maximum(layer.area, 1) * cell), weight)


def rate_scales(layers: list[Layer]) -> list[dict[str, float]] | None:
    """For each category its scale's ends, and how wide an interval leaves the colour open; None without rates.

    All layers share the scale of the last that has rates. Raises ValueError where the layers' categories differ.
    """
    told = [layer.rates for layer in layers if layer.rates is not None]
    if not told:
        return None
    if any(rates.names != told[-1].names for rates in told):
        raise ValueError("rates: all layers must have the same names, in the same order")
    scales = []
    for rate, width in zip(told[-1].rate, told[-1].high - told[-1].low, strict=True):
        low, high = rate_ends(rate, width)
        scales.append({"low": low, "high": high, "wide": WIDE * (high - low)})
    return scales


def finest_depth(layer: Layer) -> int:
    """Depth of the finest grid: a deepest node has no descendants, so it covers 4^(depth - level) cells."""
    if not len(layer.level):
        return 0
    return int(layer.level[-1]) + max(int(layer.area[-1]).bit_length() - 1, 0) // 2


def packed(layer: Layer) -> dict[str, Any]:
    """The layer in JSON's types, rounded far below the noise: to a tenth of a user, or finer where cells share one."""
    deviations = None
    if layer.deviations is not None:
        deviations = [float(f"{one:.4g}") for one in layer.deviations.tolist()]
    digits = np.ones(len(layer.level), np.int64)
    if layer.deviations is not None:
        digits = np.maximum(_digits(layer.deviations), 1)
    return {
        "index": int(layer.index),
        "epsilon": float(f"{layer.epsilon:.9g}"),
        "remaining": float(f"{max(layer.remaining, 0.0):.9g}"),
        "stddev": float(f"{layer.stddev:.6g}"),
        "vector_length": int(layer.vector_length),
        "shards": int(layer.shards),
        "shards_lost": int(layer.shards_lost),
        "level": np.asarray(layer.level).tolist(),
        "x": np.asarray(layer.x).tolist(),
        "y": np.asarray(layer.y).tolist(),
        "count": _rounded(layer.count, digits),
        "area": np.asarray(layer.area).tolist(),
        "cell_id": [str(name) for name in layer.cell_id],
        "deviations": deviations,
        "entries": len(layer.level) if layer.entries is None else int(layer.entries),
        "combined": layer.combined,
        "rates": None if layer.rates is None else _packed_rates(layer.rates),
        "users_low": _packed_ends(layer.users_low, np.floor, 1e-6),
        "users_high": _packed_ends(layer.users_high, np.ceil, -1e-6),
    }


def _packed_ends(ends: NDArray[np.float64] | None, outward: np.ufunc, tolerance: float) -> list[float | None] | None:
    """Ends of intervals, rounded outward to a tenth of a user. Rounding errors below the tolerance do not count."""
    if ends is None:
        return None
    return [None if math.isnan(one) else one for one in (outward(ends * 10 + tolerance) / 10).tolist()]


def _packed_rates(rates: Rates) -> dict[str, Any]:
    """Rates in JSON's types, null for NaN, rounded to a 20th of their interval, whose ends are rounded outward."""
    digits = np.maximum(_digits(rates.high - rates.low), 2)
    scale = 10.0**digits
    # Ends that have so many digits already stay: a product such as 0.29 * 100 may lie a little off its whole number.
    low, high = np.floor(rates.low * scale + 1e-6) / scale, np.ceil(rates.high * scale - 1e-6) / scale
    ends = {"rate": rates.rate, "low": np.maximum(low, 0.0), "high": np.minimum(high, 1.0)}
    values = {name: [_rounded(*one) for one in zip(rows, digits, strict=True)] for name, rows in ends.items()}
    highest = [_packed_highest(one) for one in rates.listed] if rates.listed is not None else [[] for _ in rates.names]
    return {"names": [readable(name) for name in rates.names], **values, "highest": highest}


def _packed_highest(listed: NDArray[np.float64]) -> list[list[float | int]]:
    """Up to so many places of a category's list, of float64[3, n]: [node, rate, low, high], highest lower end first."""
    nodes = np.flatnonzero(np.isfinite(listed[1]))
    nodes = nodes[np.argsort(-listed[1][nodes], kind="stable")][:_LONGEST_LIST]
    return [[int(node), *(float(f"{one:.5g}") for one in listed[:, node])] for node in nodes]


def _digits(spread: NDArray[np.float64]) -> NDArray[np.int64]:
    """Digits behind the point, below 0 as well, that leave out at most a 20th of a number's spread; the most for 0."""
    known = np.where(spread > 0, spread, 10.0 ** (1 - _MOST_DIGITS))
    digits: NDArray[np.int64] = np.minimum(1 - np.floor(np.log10(known)), _MOST_DIGITS).astype(np.int64)
    return digits


def _rounded(values: NDArray[np.float64], digits: NDArray[np.int64]) -> list[float | None]:
    """Each value to its own number of digits, in the shortest text that says so; None for NaN."""
    rounded = np.empty(len(values))
    for many in np.unique(digits).tolist():
        place = digits == many
        rounded[place] = np.round(values[place], many) + 0.0
    return [None if math.isnan(one) else one for one in rounded.tolist()]
