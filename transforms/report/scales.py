"""How values become colours: scales for maps, and which cells a scale leaves open. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.views import Scale
from sfumato.transforms.report.numbers import figures

WIDE = 0.5  # of the scale: an interval that covers more leaves the colour open
_CROWDED = 0.998  # of the published cells are told apart by their colours
_OUTSIDE = 0.02  # of the cells may lie beyond either end of a scale of values
_APART = 0.12  # of the scale between two ticks, at least


def published_scale(density: NDArray[np.float64]) -> Scale:
    """A logarithmic scale for published cells: the ground is 0, and the sparsest cell stands out from it.

    density: float64[n], > 0, users per km² of the published cells. The densest 0.2% share the brightest colour.
    """
    unit = "users per km²"
    if not density.size:
        return Scale(kind="log", low=0.0, high=1.0, knee=0.25, unit=unit, ticks=[])
    low = float(density.min())
    high = max(float(np.quantile(density, _CROWDED, method="higher")), low * 1.01)
    scale = Scale(kind="log", low=0.0, high=high, knee=low / 4, unit=unit, ticks=[])
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[tuple[float, str]] = []
    for steps in ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)):
        if len(ticks) < 3:
            ticks = _apart(scale, [step * 10.0**power for power in powers for step in steps], low)
    above = bool((density > high * (1 + 1e-6)).any())
    return scale.model_copy(update={"ticks": _ended(ticks, scale, above, below=False)})


def value_scale(values: NDArray[np.float64], unit: str) -> Scale:
    """A linear scale for values: all but the lowest and the highest fiftieth of them. NaN is not known."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Scale(kind="linear", low=0.0, high=1.0, unit=unit, ticks=[])
    low, high = (float(end) for end in np.quantile(known, [_OUTSIDE, 1 - _OUTSIDE]))
    if not high > low:
        room = abs(low) * 0.05 or 1.0
        low, high = low - room, high + room
    step = nice((high - low) / 5)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    scale = Scale(kind="linear", low=low, high=high, unit=unit, ticks=[])
    number = round((high - low) / step)
    ticks = [(low + place * step, figures(low + place * step, 10 * step)) for place in range(number + 1)]
    return scale.model_copy(
        update={"ticks": _ended(ticks, scale, bool((known > high).any()), bool((known < low).any()))}
    )


def position(scale: Scale, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The place of values on a scale, in 0..1; NaN stays."""
    if scale.kind == "log":
        knee = scale.knee or scale.high / 150
        return np.asarray(np.clip(np.log1p(np.maximum(values, 0) / knee) / math.log1p(scale.high / knee), 0, 1))
    return np.asarray(np.clip((values - scale.low) / ((scale.high - scale.low) or 1.0), 0, 1))


def uncertain(scale: Scale, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The cells whose interval covers more than half of the scale, or is not known: bool[n]."""
    return ~(position(scale, high) - position(scale, low) <= WIDE)


def nice(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least` (> 0)."""
    ten = 10.0 ** math.floor(math.log10(least))
    return next(step * ten for step in (1, 2, 5, 10) if step * ten >= least * 0.999)


def _apart(scale: Scale, rounds: list[float], low: float) -> list[tuple[float, str]]:
    """Those of some round numbers that lie on the scale, from `low`, and not too near to each other."""
    ticks: list[tuple[float, str]] = []
    for tick in (tick for tick in rounds if low <= tick <= scale.high * (1 + 1e-9)):
        place, before = position(scale, np.array([tick, ticks[-1][0] if ticks else -1.0]))
        if not ticks or place - before > _APART:
            ticks.append((tick, _short(tick)))
    return ticks


def _ended(ticks: list[tuple[float, str]], scale: Scale, above: bool, below: bool) -> list[tuple[float, str]]:
    """Marks the ends beyond which values lie; puts a tick there where none is near."""
    if above:
        near = [tick for tick in ticks if position(scale, np.array([tick[0]]))[0] > 1 - _APART]
        ticks = [tick for tick in ticks if tick not in near] + [(scale.high, f"≥ {_short(scale.high)}")]
    if below and ticks:
        ticks = [(scale.low, f"≤ {ticks[0][1].lstrip('≤ ')}"), *ticks[1:]]
    return ticks


def _short(value: float) -> str:
    """Three digits at most, thousands as k, millions as M."""
    size, unit = next(
        ((size, unit) for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if value >= 10 * size), (1, "")
    )
    return f"{float(f'{value / size:.3g}'):,g}{unit}"
