"""Sample and threshold, and noisy counts, by brute force: whole distributions, item counts, sums of positive parts."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sfumato.transforms.histogram.count_noise import CountNoise, ItemBound


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


def count_law(noise: CountNoise, count: int, length: int) -> NDArray[np.float64]:
    """The distribution of the published noisy count of an item: float64[2 length + 1], and first of an absent item.

    The noise is that of the definition, summed over -length..length; items of a count of 0 are absent.
    """
    if count == 0 and noise.threshold is not None:
        return np.eye(1, 2 * length + 2)[0]
    k = np.arange(-length, length + 1) - count
    if noise.sigma is not None:
        raw = np.exp(-((k / noise.sigma) ** 2) / 2)
    else:
        per_unit = noise.epsilon / (noise.bound.max_items * noise.bound.max_records)
        raw = np.exp(-per_unit * np.abs(k)) * (np.abs(k) <= (noise.limit or length * 2))
    raw /= raw.sum()
    shown = raw if noise.threshold is None else np.where(k + count >= noise.threshold, raw, 0.0)
    return np.append(raw.sum() - shown.sum(), shown)


def counts_delta(noise: CountNoise, bound: ItemBound, epsilon: float, length: int) -> float:
    """The largest divergence, both directions, of the counts of all of a user's items.

    Others hold an item 0, 1, 2, threshold - 1, threshold times, or so often that no threshold matters; the user adds
    1..max_records to each of max_items items.
    """
    threshold = noise.threshold or 1
    others = {0, 1, 2, threshold - 1, threshold, length // 2}
    pairs = [
        (count_law(noise, held + added, length), count_law(noise, held, length))
        for held in sorted(others)
        for added in {1, bound.max_records}
    ]
    worst = 0.0
    for chosen in itertools.combinations_with_replacement(pairs, bound.max_items):
        more, less = np.ones(1), np.ones(1)
        for one, other in chosen:
            more, less = np.multiply.outer(more, one).ravel(), np.multiply.outer(less, other).ravel()
            present = (more > 1e-18) | (less > 1e-18)  # what is left out is below 1e-12 in all
            more, less = more[present], less[present]
        worst = max(worst, hockey_stick(more, less, epsilon), hockey_stick(less, more, epsilon))
    return worst
