"""Sample and threshold by brute force: whole distributions, every item count, sums of positive parts."""

from __future__ import annotations

import math

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy import stats


def published(count: int, rate: float, threshold: int, length: int) -> NDArray[np.float64]:
    """The distribution of the published count of one item: float64[length]. 0 is an absent item."""
    raw = stats.binom.pmf(np.arange(length), count, rate)
    raw[0] = raw[:threshold].sum()
    raw[1:threshold] = 0
    return np.asarray(raw)


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
    """sup over sets of P(S) - e^epsilon Q(S)."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def divergences(epsilon: float, rate: float, threshold: int, counts: range) -> tuple[float, float]:
    """The largest hockey-stick divergences (remove, add) over item counts k against k - 1."""
    laws = [published(k, rate, threshold, counts.stop) for k in range(counts.start - 1, counts.stop)]
    pairs = list(zip(laws[1:], laws[:-1], strict=True))
    return (
        max(hockey_stick(more, less, epsilon) for more, less in pairs),
        max(hockey_stick(less, more, epsilon) for more, less in pairs),
    )


def precise_delta(epsilon: float, rate: float, threshold: int, counts: range) -> mpmath.mpf:
    """The largest of both divergences over these item counts, to 40 digits."""
    with mpmath.workdps(60):
        p, growth = mpmath.mpf(rate), mpmath.e ** mpmath.mpf(epsilon)
        best = mpmath.mpf(0)
        for k in counts:
            more, less = _precise(k, p, threshold), _precise(k - 1, p, threshold)
            pairs = [(a, less.get(v, 0)) for v, a in more.items()]
            best = max(
                best,
                mpmath.fsum(max(a - growth * b, 0) for a, b in pairs),
                mpmath.fsum(max(b - growth * a, 0) for a, b in pairs),
            )
        return best


def _precise(count: int, p: mpmath.mpf, threshold: int) -> dict[int, mpmath.mpf]:
    law = {0: mpmath.mpf(0)}
    term = (1 - p) ** count
    for v in range(count + 1):
        if v < threshold:
            law[0] += term
        else:
            law[v] = term
        term *= mpmath.mpf(count - v) / (v + 1) * p / (1 - p)
    return law
