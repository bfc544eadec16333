"""How far the scales of colours reach, for the page and the pictures alike. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Blue over green to white, every eighth colour: evenly lighter (in OKLab), so that it can be read without telling hues
# apart, and nowhere like inferno, the palette of users.
RATE_PALETTE = (
    "1a2f6b1b35731b3c7a1c42821c498a1b4f921b569a1a5e9d1866a0166ea41576a7127eaa1487ab198faa1f97a9249fa8"
    "2aa8a635afa549b6a459bca368c2a277c9a084cf9f94d4a3a4d9a8b2ddacc1e2b1cfe7b5dbecbfe6f1ccf0f6d9fbfbe6"
)
KNEE = 1 / 150  # of the brightest density: linear below it, logarithmic above it
WIDE = 0.5  # of a rate's scale: an interval that covers more leaves the colour open
_CLIPPED = 0.01  # of the users may live where it is denser than the brightest colour tells
_REACH = 30.0  # times the density where the median user lives: then her colour is above a third of the scale
_FINEST = 1e-6  # the shortest scale of rates
_OUTSIDE = 0.02  # of the cells may lie beyond either end of a scale of rates


def density_top(density: NDArray[np.float64], users: NDArray[np.float64]) -> float:
    """The density of the brightest colour; what is denser is drawn in it too.

    Cells count by the users they hold, so a few tiny ones, however dense, do not darken all others: at most 1% of the
    users live where it is denser, unless that is more than 30 times the density where the median user lives.

    Args:
        density: float[n], in any unit.
        users: float[n], >= 0, who live there, in any unit; cells without any do not count.
    """
    seen = (users > 0) & (density > 0)
    if not seen.any():
        return 1.0
    density, users = density[seen], users[seen]
    order = np.argsort(density, kind="stable")
    below = np.cumsum(users[order])
    middle, top = (float(density[order[np.searchsorted(below, share * below[-1])]]) for share in (0.5, 1 - _CLIPPED))
    return min(top, _REACH * middle)


def written_top(density: NDArray[np.float64], users: NDArray[np.float64]) -> float:
    """The `density_top` as a scale's end says it: rounded up to two digits, but no greater than every density."""
    top = max(density_top(density, users), 1e-300)
    digit = 10.0 ** (math.floor(math.log10(top)) - 1)
    return min(float(f"{math.ceil(top / digit - 1e-9) * digit:.2g}"), max(float(density.max(initial=0.0)), top))


def rate_ends(rate: NDArray[np.float64], width: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of a scale of rates that were shrunk towards their average: round numbers in 0..1.

    They are the quantiles at 2% and 98%, so that few cells, however extreme, do not set the scale. It begins at 0
    unless the rates differ by less than they are far from 0; where they hardly differ it goes from 0 to twice their
    middle.

    Args:
        rate: float64 of any shape, NaN where unknown.
        width: the widths of the rates' intervals, of the same shape.
    """
    known = np.isfinite(rate) & np.isfinite(width)
    if not known.any():
        return 0.0, 1.0
    rate, width = rate[known], width[known]
    last = len(rate) - 1
    order, narrowest = np.sort(rate), float(width.min())
    low, high = float(order[math.floor(_OUTSIDE * last)]), float(order[math.ceil((1 - _OUTSIDE) * last)])
    if high - low < max(narrowest, _FINEST):
        middle = min(max((low + high) / 2, 0.0), 1.0)
        low, high = 0.0, max(2 * middle, narrowest, 0.01)
    elif low < high - low:
        low = 0.0
    step = nice((high - low) / 5)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return max(round(low, 9), 0.0), min(round(high, 9), 1.0)


def nice(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least` (> 0)."""
    ten = 10.0 ** math.floor(math.log10(least))
    return next(step * ten for step in (1, 2, 5, 10) if step * ten >= least * 0.999)
