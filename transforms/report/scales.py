"""Scales of colours, for pages and pictures alike: how far they reach and where their ticks are. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.known_digits import Z, figures
from sfumato.schemas.views.view_parts import Scale

KNEE = 1 / 150  # of the brightest density: linear below it, logarithmic above it
FADE = 0.1  # of the scale of counts: below it colours become transparent, towards 0
WIDE = 0.5  # of a scale: an interval that covers more leaves the colour open
_CROWDED = 0.998  # of the published cells have distinguishable colours
_CLIPPED = 0.01  # of the users may live where it is denser than the brightest colour
_REACH = 30.0  # times the density where the median user lives: then their colour is above a third of the scale
_FINEST = 1e-6  # the shortest scale of rates
_OUTSIDE = 0.02  # of the cells may lie beyond either end of a scale
_LOW = 0.2  # of a scale of counts may lie below the lowest certain one, if it is far enough below the highest
_LEAST_COUNT = 10.0  # users: where a scale of counts that noise explains ends, at least
_ROOM = 0.1  # of the scale's length between two ticks


def colour_weight(users: NDArray[np.float64], stddev: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the users that count for the scale of colours: fewer where noise could explain them."""
    return np.asarray(users * np.minimum(users / np.maximum(Z * stddev, 1e-12), 1) ** 2)


def density_scale(density: NDArray[np.float64], users: NDArray[np.float64], unit: str = "users per km²") -> Scale:
    """Returns a logarithmic scale from 0 on which at most 1% of the users are denser than the brightest colour.

    Cells count by the users they certainly hold, so neither a few tiny cells nor noise darken all others. The scale
    ends at 30 times the density where the median user lives, at most.

    density: float64[n]. users: float64[n], >= 0, who certainly live there, in any unit; cells without any do not count.
    """
    seen, top = (users > 0) & (density > 0), 1.0
    if seen.any():
        order = np.argsort(density[seen], kind="stable")
        below, ordered = np.cumsum(users[seen][order]), density[seen][order]
        middle, top = (float(ordered[np.searchsorted(below, share * below[-1])]) for share in (0.5, 1 - _CLIPPED))
        top = max(min(top, _REACH * middle), 1e-300)
    digit = 10.0 ** (math.floor(math.log10(top)) - 1)
    top = min(float(f"{math.ceil(top / digit - 1e-9) * digit:.2g}"), max(float(density.max(initial=0.0)), top))
    top = float(f"{top:.6g}")
    return _from_zero(top, top * KNEE, bool((density > 1.001 * top).any()), unit)


def count_scale(
    counts: NDArray[np.float64], users: NDArray[np.float64], certain: NDArray[np.bool_], unit: str
) -> Scale:
    """Returns a logarithmic scale from 0 for counts of zones, with few of its colours below the lowest certain count.

    Where noise explains all counts, it covers them.

    counts: float64[n], >= 0. users: see `density_scale`. certain: bool[n], which counts noise does not explain; the
        others have no colour.
    """
    if not certain.any():
        top = nice(max(float(counts.max(initial=0.0)), _LEAST_COUNT))
        return _from_zero(top, top, False, unit, least=1.0)
    scale, lowest = density_scale(counts[certain], users[certain], unit), float(counts[certain].min())
    top = scale.high
    knees = (top * KNEE * 2.0**power for power in range(8))
    knee = next((one for one in knees if math.log1p(lowest / one) / math.log1p(top / one) <= _LOW), top)
    return _from_zero(top, knee, bool((counts[certain] > 1.001 * top).any()), unit, least=1.0)


def _from_zero(top: float, knee: float, clipped: bool, unit: str, least: float = 0.0) -> Scale:
    """Returns a logarithmic scale from 0. clipped: whether values lie beyond it. least: the first tick after 0."""
    ticks, last = [(0.0, "0")], 0.0
    for power in range(math.floor(math.log10(top * KNEE)), math.floor(math.log10(top)) + 1):
        for value in (float(f"1e{power}"), float(f"3e{power}")):
            place = math.log1p(value / knee) / math.log1p(top / knee)
            if least <= value < top and place - last > _ROOM and place < 1 - 1.5 * _ROOM:
                ticks.append((value, number(value)))
                last = place
    ticks.append((top, f"≥ {number(top)}" if clipped else number(float(f"{top:.2g}"))))
    return Scale(kind="log", low=0.0, high=top, knee=knee, unit=unit, ticks=ticks)


def rate_scale(rate: NDArray[np.float64], width: NDArray[np.float64]) -> Scale:
    """Returns a linear scale of rates that were shrunk towards their average, between round numbers in 0..1.

    Its ends are the quantiles at 2% and 98%, so that few cells, however extreme, do not set the scale. It begins at 0
    unless the rates differ by less than they are far from 0. Where almost equal, it ends at twice their middle.

    rate: float64 of any shape, NaN where unknown. width: the widths of the rates' intervals, of the same shape.
    """
    known = np.isfinite(rate) & np.isfinite(width)
    low, high = 0.0, 1.0
    if known.any():
        rate, width = rate[known], width[known]
        narrowest, order = float(width.min()), np.sort(rate, axis=None)
        last = rate.size - 1
        low, high = float(order[math.floor(_OUTSIDE * last)]), float(order[math.ceil((1 - _OUTSIDE) * last)])
        if high - low < max(narrowest, _FINEST):
            middle = min(max((low + high) / 2, 0.0), 1.0)
            low, high = 0.0, max(2 * middle, narrowest, 0.01)
        elif low < high - low:
            low = 0.0
        low, high, _ = _rounded(low, high)
        low, high = max(round(low, 9), 0.0), min(round(high, 9), 1.0)
    scale = linear_scale(low, high, "")
    texts = [(value, f"{100 * value:.3g}%") for value, _ in scale.ticks]
    if known.any() and rate.min() < low:
        texts[0] = (texts[0][0], f"≤ {texts[0][1]}")
    if known.any() and rate.max() > high:
        texts[-1] = (texts[-1][0], f"≥ {texts[-1][1]}")
    return scale.model_copy(update={"ticks": texts})


def linear_scale(low: float, high: float, unit: str) -> Scale:
    """Returns a linear scale between two values, with ticks at round steps and at its ends."""
    step = nice(max(high - low, 1e-300) / 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    inner = [float(f"{place * step:.12g}") for place in range(first, last + 1)]
    room = _ROOM * (high - low)
    ticks = [low, *(one for one in inner if low + room < one < high - room), high]
    return Scale(kind="linear", low=low, high=high, unit=unit, ticks=[(one, number(one)) for one in ticks])


def _rounded(low: float, high: float) -> tuple[float, float, float]:
    """Returns the ends moved outwards to multiples of a round step, and the step, about a fifth of the scale."""
    step = nice((high - low) / 5)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def number(value: float) -> str:
    """Returns a tick's value: `30,000`, `0.05`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def published_scale(density: NDArray[np.float64]) -> Scale:
    """Returns a logarithmic scale for published cells: the ground is 0, and the sparsest cell differs visibly from it.

    density: float64[n], > 0, users per km² of the published cells. The densest 0.2% share the brightest colour.
    """
    unit = "users per km²"
    if not density.size:
        return Scale(kind="log", low=0.0, high=1.0, knee=0.25, unit=unit, ticks=[])
    low = float(density.min())
    high = max(float(f"{np.quantile(density, _CROWDED, method='higher'):.2g}"), low * 1.01)
    # The colours below the sparsest cell are at most a third of all, or as few as the densities allow.
    knees = (low * 4.0**power for power in range(-1, 6))
    knee = next((one for one in knees if math.log1p(low / one) / math.log1p(high / one) <= 1 / 3), low * 1024)
    scale = Scale(kind="log", low=0.0, high=high, knee=knee, unit=unit, ticks=[])
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[tuple[float, str]] = []
    for steps in ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)):
        if len(ticks) < 3:
            ticks = _apart(scale, [step * 10.0**power for power in powers for step in steps], low)
    if len(ticks) < 2:
        ticks = [(end, number(float(f"{end:.2g}"))) for end in (low, high)]
    above = bool((density > high * (1 + 1e-6)).any())
    return scale.model_copy(update={"ticks": _ended(ticks, scale, above, below=False)})


def value_scale(values: NDArray[np.float64], unit: str) -> Scale:
    """Returns a linear scale for values: all but the lowest and the highest fiftieth of them. NaN is not known."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Scale(kind="linear", low=0.0, high=1.0, unit=unit, ticks=[])
    low, high = (float(end) for end in np.quantile(known, [_OUTSIDE, 1 - _OUTSIDE]))
    if not high > low:
        room = abs(low) * 0.05 or 1.0
        low, high = low - room, high + room
    low, high, step = _rounded(low, high)
    scale = Scale(kind="linear", low=low, high=high, unit=unit, ticks=[])
    number = round((high - low) / step)
    ticks = [(low + place * step, figures(low + place * step, 10 * step)) for place in range(number + 1)]
    return scale.model_copy(
        update={"ticks": _ended(ticks, scale, bool((known > high).any()), bool((known < low).any()))}
    )


def position(scale: Scale, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the place of values on a scale, in 0..1; NaN stays."""
    if scale.kind == "log":
        knee = scale.knee or scale.high / 150
        return np.asarray(np.clip(np.log1p(np.maximum(values, 0) / knee) / math.log1p(scale.high / knee), 0, 1))
    return np.asarray(np.clip((values - scale.low) / ((scale.high - scale.low) or 1.0), 0, 1))


def uncertain(scale: Scale, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns the cells whose interval covers more than half of the scale, or is not known: bool[n]."""
    return ~(position(scale, high) - position(scale, low) <= WIDE)


def nice(least: float) -> float:
    """Returns the smallest of 1, 2, 5 times a power of ten that is not below `least` (> 0)."""
    ten = 10.0 ** math.floor(math.log10(least))
    return next(step * ten for step in (1, 2, 5, 10) if step * ten >= least * 0.999)


def _apart(scale: Scale, rounds: list[float], low: float) -> list[tuple[float, str]]:
    """Returns those of some round numbers that lie on the scale, from `low`, and not too near to each other."""
    ticks: list[tuple[float, str]] = []
    for tick in (tick for tick in rounds if low <= tick <= scale.high * (1 + 1e-9)):
        place, before = position(scale, np.array([tick, ticks[-1][0] if ticks else -1.0]))
        if not ticks or place - before > 1.5 * _ROOM:
            ticks.append((tick, number(tick)))
    return ticks


def _ended(ticks: list[tuple[float, str]], scale: Scale, above: bool, below: bool) -> list[tuple[float, str]]:
    """Marks the ends beyond which values lie; puts a tick there where none is near."""
    if above:
        near = [tick for tick in ticks if position(scale, np.array([tick[0]]))[0] > 1 - _ROOM]
        ticks = [tick for tick in ticks if tick not in near] + [(scale.high, f"≥ {number(scale.high)}")]
    if below and ticks:
        ticks = [(scale.low, f"≤ {ticks[0][1].lstrip('≤ ')}"), *ticks[1:]]
    return ticks
