"""Estimated distribution functions, quantiles and range counts, whichever method they come from. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile
from sfumato.schemas.errors import RequestError

DEVIATIONS = 1.96  # of a 95% interval


def quantile(curve: Curve, share: float) -> Quantile:
    """The value at which the curve reaches a share, and the first and last values at which its band holds it."""
    last = len(curve.value) - 1
    earliest = curve.value[min(int(np.searchsorted(curve.high, share, side="left")), last)]
    latest = curve.value[min(int(np.searchsorted(curve.low, share, side="right")), last)]
    middle = float(np.interp(share, curve.share, curve.value))
    return Quantile(share, middle, min(float(earliest), middle), max(float(latest), middle))


def banded(
    value: NDArray[np.float64], share: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> Curve:
    """The curve through known points (values and shares ascending), and its band.

    low, high: float64[n], bounds at the points. Between two points nothing is known but that the curve rises, so the
    band runs from the lower bound on the left to the upper bound on the right: every point but the ends is there twice.
    """
    low, high = np.clip(np.maximum.accumulate(low), 0, 1), np.clip(np.maximum.accumulate(high), 0, 1)
    twice = np.repeat(np.arange(len(value)), 2)[1:-1]
    return Curve(value[twice], share[twice], np.repeat(low[:-1], 2), np.repeat(high[1:], 2))


def unknown_curve(low: float, high: float) -> Curve:
    """The curve over a range of which nothing was published: its band is everything."""
    ends = np.array([0.0, 1.0])
    return banded(np.array([low, high]), ends, ends, ends)


def bounds(
    below: NDArray[np.float64],
    users: NDArray[np.float64] | float,
    spread: tuple[NDArray[np.float64], NDArray[np.float64]],
    absent: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bounds of the share of users below some values, float64[n] each.

    below: estimated users seen below each value, of `users` seen in all. spread: how many fewer and more of them there
    may be below it. absent: how many there may be below and above it that nothing was seen of.
    """
    (fewer, more), (left, right) = spread, absent
    return (below - fewer) / (users + right), (below + more + left) / (users + left)


def check_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """Returns the shares. Raises RequestError unless they are some numbers strictly between 0 and 1."""
    if not shares or not all(math.isfinite(share) and 0 < share < 1 for share in shares):
        raise RequestError(f"quantiles: must be numbers between 0 and 1, got {','.join(f'{s:g}' for s in shares)}")
    return tuple(shares)
