"""Estimated distribution functions, quantiles and range counts, whichever method they come from. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.release.charts import Curve, Quantile

DEVIATIONS = 1.96  # of a 95% interval


def quantile(curve: Curve, share: float) -> Quantile:
    """The value at which the curve reaches a share, and the values at which the band's two edges do."""
    middle, latest, earliest = (
        float(np.interp(share, shares, curve.value)) for shares in (curve.share, curve.low, curve.high)
    )
    return Quantile(share, middle, min(earliest, middle), max(latest, middle))


def banded(value: NDArray[np.float64], share: NDArray[np.float64], margin: NDArray[np.float64]) -> Curve:
    """The curve with the band share -+ margin, kept in order and within 0..1."""
    low, high = (np.clip(np.maximum.accumulate(share + sign * margin), 0, 1) for sign in (-1, 1))
    return Curve(value, share, low, high)


def check_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """Returns the shares. Raises RequestError unless they are some numbers strictly between 0 and 1."""
    if not shares or not all(math.isfinite(share) and 0 < share < 1 for share in shares):
        raise RequestError(f"quantiles: must be numbers between 0 and 1, got {','.join(f'{s:g}' for s in shares)}")
    return tuple(shares)
