"""Estimated distribution functions with 95% bands, and quantiles read from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile
from sfumato.schemas.errors import RequestError

DEVIATIONS = 1.96  # standard deviations on each side of a 95% interval


def quantile(curve: Curve, share: float) -> Quantile:
    """The value at which the curve reaches a share, and the first and last values at which its band contains it."""
    last = len(curve.value) - 1
    earliest = curve.value[min(int(np.searchsorted(curve.high, share, side="left")), last)]
    latest = curve.value[min(int(np.searchsorted(curve.low, share, side="right")), last)]
    middle = float(np.interp(share, curve.share, curve.value))
    return Quantile(share, middle, min(float(earliest), middle), max(float(latest), middle))


def banded(
    value: NDArray[np.float64], share: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> Curve:
    """The curve through known points, and its band.

    Between two points the curve is only known to rise. So the band there reaches from the lower bound on the left to
    the upper bound on the right, and the curve has every point but its ends twice.

    Args:
        value: float64[n], ascending.
        share: float64[n], ascending, in 0..1.
        low: float64[n], lower bounds of the shares.
        high: float64[n], upper bounds of the shares.
    """
    low, high = np.clip(np.maximum.accumulate(low), 0, 1), np.clip(np.maximum.accumulate(high), 0, 1)
    twice = np.repeat(np.arange(len(value)), 2)[1:-1]
    return Curve(value[twice], share[twice], np.repeat(low[:-1], 2), np.repeat(high[1:], 2))


def unknown_curve(low: float, high: float) -> Curve:
    """The curve over a range without any published count: its band is everything."""
    ends = np.array([0.0, 1.0])
    return banded(np.array([low, high]), ends, ends, ends)


def bounds(
    below: NDArray[np.float64],
    users: NDArray[np.float64] | float,
    spread: tuple[NDArray[np.float64], NDArray[np.float64]],
    absent: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bounds of the share of users below some values, float64[n] each.

    Args:
        below: float64[n], estimated published users below each value.
        users: estimated published users in all.
        spread: by how many users `below` may be too high and too low, float64[n] each.
        absent: how many unpublished users there may be below and above each value, float64[n] each.
    """
    (fewer, more), (unseen_below, unseen_above) = spread, absent
    return (below - fewer) / (users + unseen_above), (below + more + unseen_below) / (users + unseen_below)


def check_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """Returns the shares. Raises RequestError unless there is one and all lie strictly between 0 and 1."""
    if not shares or not all(math.isfinite(share) and 0 < share < 1 for share in shares):
        raise RequestError(f"quantiles: must be numbers between 0 and 1, got {','.join(f'{s:g}' for s in shares)}")
    return tuple(shares)
