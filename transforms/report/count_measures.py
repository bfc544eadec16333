"""Counts and rates of cells and of zones as a map shows them: values, intervals, and what is certainly high. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.known_digits import Z, with_interval
from sfumato.schemas.rectangle import Region
from sfumato.schemas.region import ground_metres
from sfumato.schemas.release import rate_columns
from sfumato.schemas.tree import node_positions
from sfumato.schemas.views.map_views import Measure
from sfumato.schemas.views.view_parts import Scale
from sfumato.transforms.report.numbers import length, plural
from sfumato.transforms.report.scales import WIDE, rate_scale
from sfumato.transforms.report.sections import Manifest, get

LISTED = 50
_NAMED = 3  # busiest zones in a headline
_APART = 1 / 40  # of the longer side of all cells together: cells nearer to a listed one are the same place
_FINEST = 0.01  # users: no count is written finer than a hundredth of it
_TAIL = 0.025  # of each end of the intervals
Array = NDArray[np.float64]


def count_measure(
    users: Array,
    stddev: Array,
    low: Array,
    high: Array,
    scale: Scale,
    tail_sums: int,
    areas: Array | None = None,
    boxes: Array | None = None,
    place: str = "cell",
    noun: str = "users",
    smooth: bool = False,
) -> Measure:
    """Returns the users of each cell or zone.

    Args:
        users, stddev, low, high: float64[n], estimates with the ends of their intervals.
        scale: of users per square kilometre.
        tail_sums: see `sections.tail_sums`.
        areas: for the list of what is certainly crowded: float64[n] in the scale's unit, 0 for what is not listed; None
            makes no list.
        boxes: see `distinct_places`; None lists neighbours too.
        place: what a row is, in one word.
        noun: what is counted.
        smooth: whether counts that noise could explain follow their surroundings. If not, all counts are judged at
            once, so that noise seldom gives one of many empty cells a colour.
    """
    listed, left_out = list[tuple[int, float, float, float]](), ""
    at_once = simultaneous_deviations(len(users), tail_sums) if len(users) else 0.0
    if areas is not None:
        least, most = ends_at_once(low, high, tail_sums)
        density = np.where(areas > 0, least / np.where(areas > 0, areas, 1), 0)
        order = np.argsort(-density, kind="stable")
        rows, left_out = distinct_places(order[density[order] > 0], boxes)
        listed = _listed(rows, users, least, most)
    return Measure(
        name=noun.capitalize(),
        kind="count",
        unit=noun,
        value=_rounded(users, np.maximum(stddev, _FINEST)),
        low=_rounded(low, np.maximum((high - low) / 4, _FINEST)),
        high=_rounded(high, np.maximum((high - low) / 4, _FINEST)),
        uncertain=(users <= (Z if smooth else at_once) * stddev).tolist(),
        smooth=smooth,
        scale=scale,
        listed=listed,
        listed_note="" if areas is None else listed_note(bool(listed), place) + left_out,
    )


def distinct_places(rows: NDArray[np.int64], boxes: Array | None) -> tuple[NDArray[np.int64], str]:
    """Returns the rows of a list, at most `LISTED`, and a sentence on what it leaves out, with a space before it.

    Without this, all rows could be cells of one place.

    Args:
        rows: in the order of the list.
        boxes: float64[n, 4], the west, south, east and north ends of all cells in metres; None leaves out nothing.
    """
    if boxes is None or not len(rows):
        return rows[:LISTED], ""
    apart = float((boxes[:, 2:].max(axis=0) - boxes[:, :2].min(axis=0)).max()) * _APART
    kept, left, are_close = list[int](), rows, False
    while len(left) and len(kept) < LISTED:
        kept.append(int(left[0]))
        here, others = boxes[left[0]], boxes[left[1:]]
        gaps = np.maximum(others[:, :2] - here[2:], here[:2] - others[:, 2:]).max(axis=1)
        are_close |= bool(np.any(gaps < apart))
        left = left[1:][gaps >= apart]
    if not are_close:
        return np.array(kept, np.int64), ""
    distance = length(float(f"{apart:.2g}"))
    return np.array(kept, np.int64), f" Cells within {distance} of a busier cell in this list are left out."


def cell_boxes(nodes: NDArray[np.uint64], region: Region) -> Array:
    """Returns the ends of a quadtree's cells, as `distinct_places` takes them, from the region's south-west corner."""
    level, x, y = node_positions(nodes)
    wide, tall = ground_metres(region)
    cells = np.exp2(level)
    return np.stack([x * wide, (cells - 1 - y) * tall, (x + 1) * wide, (cells - y) * tall], axis=1) / cells[:, None]


def listed_note(found: bool, place: str, where: str = "") -> str:
    """Returns the sentence under a list of counts, or instead of one without rows.

    place: what a row is, in one word. where: what its intervals hold for, in words after that one's plural.
    """
    if found:
        return (
            f"The intervals hold for all {place}s{where} at once (95%), so they are wider than in tables, and contain "
            "the noise, not records that the data lack. Their lower ends decide the order."
        )
    return (
        f"No {place} has a lower bound above zero, by bounds that hold for all {place}s{where} at once (95%): noise "
        "could explain each count separately. Sums of several are known better."
    )


def rate_names(manifest: Manifest, one: bool = False) -> list[str]:
    """Returns the categories with published rates; with `one`, none where there are several."""
    names = list(get(manifest, "auxiliary.rates.categories", []))
    return names if not one or len(names) == 1 else []


def rate_measures(table: pa.Table, manifest: Manifest, place: str = "cell") -> list[Measure]:
    """Returns a measure for each category: the shrunk rate within its interval. place: what a row is, in one word."""
    names, column = rate_names(manifest), get(manifest, "auxiliary.column", "category")
    measures = []
    for name in names:
        raw, low, high, shrunk, least, most = (
            table[one].to_numpy(zero_copy_only=False).astype(np.float64) for one in rate_columns(name, names)
        )
        unknown = np.isnan(raw) | np.isnan(shrunk)
        low, high = np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)
        rate = np.clip(shrunk, low, high)
        scale = rate_scale(rate, high - low)
        rows = np.flatnonzero(np.isfinite(least))
        rows = rows[np.argsort(-least[rows], kind="stable")][:LISTED]
        title = column if name == "true" else f"not {column}" if name == "false" else f"{column} = {name}"
        measures.append(
            Measure(
                name=f"Rate: {readable(title)}",
                kind="rate",
                unit="",
                value=_rounded(rate, high - low),
                low=_rounded(low, high - low),
                high=_rounded(high, high - low),
                uncertain=(high - low > WIDE * (scale.high - scale.low)).tolist(),
                scale=scale,
                listed=_listed(rows, shrunk, least, most),
                listed_note=f"Rates whose intervals, which hold for all {place}s at once (95%), lie above the average."
                if len(rows)
                else f"No {place}'s rate is significantly above the average: noise and sampling error could explain "
                "all.",
            )
        )
    return measures


def simultaneous_deviations(cells: int, tail_sums: int) -> float:
    """Returns deviations to each side within which all of these counts lie with a probability of 95%.

    Chernoff's bound for sums of independent Laplace variables, with the deviation 1 for the sum.
    """
    steps = np.sqrt(2 * tail_sums) * np.linspace(1e-3, 0.999, 999)
    exponent = -tail_sums * np.log1p(-(steps**2) / (2 * tail_sums)) + math.log(cells / _TAIL)
    return float((exponent / steps).min())


def ends_at_once(low: Array, high: Array, tail_sums: int) -> tuple[Array, Array]:
    """Returns intervals that hold for all counts at once, by the pointwise ones. tail_sums: see `sections`."""
    wider = simultaneous_deviations(len(low), tail_sums) / Z
    # Around the interval's middle, not the count, which shrinkage may have moved to one of its ends.
    middle, margin = (low + high) / 2, (high - low) / 2 * wider
    return middle - margin, middle + margin


def busiest_text(
    names: Sequence[str], count: Array, least: Array, most: Array, unit: str, hidden: float, noun: str = "zone"
) -> str | None:
    """Returns which zones have the highest counts, if up to three certainly have; None otherwise.

    names: of the zones. least, most: ends of intervals that hold for all counts at once. hidden: what a zone that is
    not published may have. noun: what readers call a zone.
    """
    order = np.argsort(-least, kind="stable")
    for number in range(1, min(_NAMED, len(order) - 1) + 1):
        if least[order[number - 1]] > most[order[number:]].max(initial=hidden):
            foremost = [called(names[row], noun) for row in order[:number]]
            zones = plural(len(order), noun)
            if number > 1:
                return f"{', '.join(foremost[:-1])} and {foremost[-1]} have the highest counts of {zones}"
            value, low, high = with_interval(*(float(one[order[0]]) for one in (count, least, most)))
            return f"{foremost[0]} has the highest count of {zones}: about {value} {unit} ({low} to {high}, 95%)"
    return None


def called(name: str, noun: str) -> str:
    """Returns a zone's name for a sentence: a name without letters follows what readers call a zone."""
    return name if re.search(r"[^\W\d_]", name) else f"{noun.capitalize()} {name}"


def _listed(rows: NDArray[np.int64], *values: Array) -> list[tuple[int, float, float, float]]:
    """Returns rows of a list with their value and the ends of its interval."""
    return [(row, *(float(f"{one[row]:.5g}") for one in values)) for row in rows.tolist()]


def _rounded(values: Array, spread: Array) -> list[float | None]:
    """Returns values to a 20th of their spread or finer; None for NaN."""
    digits = np.clip(2 - np.floor(np.log10(np.where(spread > 0, spread, 1.0))), -9, 9)
    unit = 10.0**digits
    rounded = np.round(np.round(values * unit) / unit, 9) + 0.0
    found: list[float | None] = rounded.tolist()
    for row in np.flatnonzero(np.isnan(rounded)).tolist():
        found[row] = None
    return found
