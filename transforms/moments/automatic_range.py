"""The range of a number whose range nobody gave, from a noisy histogram over powers of two. Pure.

As ApproxBounds of Google's differential-privacy library: each user adds 1 to one bin, so one budget serves all bins. A
bin with far more users than noise explains is surely not empty. From such bins the range grows outwards, while the next
bin is above the noise as one bin by itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import ValueRange
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import noise_quantile
from sfumato.transforms.privacy.noise import discrete_laplace

_SMALLEST, _LARGEST = -32, 64  # magnitudes below 2^_SMALLEST count as 0, those from 2^_LARGEST as the largest bin
_MAGNITUDES = _LARGEST - _SMALLEST
BINS = 2 * _MAGNITUDES + 1  # negative values from the largest magnitude on, zero, positive values
_HIGH = np.concatenate(
    [-(2.0 ** np.arange(_LARGEST - 1, _SMALLEST - 1, -1)), [0.0], 2.0 ** np.arange(_SMALLEST + 1, _LARGEST + 1)]
)
_LOW = 0.0 - _HIGH[::-1]
FALSE_SEED_PROBABILITY = 1e-6  # that any empty bin looks surely filled
_FALSE_STEP_PROBABILITY = 0.05  # that the range grows by an empty bin
_WINDOW = 4  # adjacent bins, for few users
_NEAR_ZERO = 1 / 16  # an end so near 0, as a share of the other, is moved to 0: a few small values cost little


def count_magnitudes(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of values in each bin: int64[BINS]. values: float64[n], finite."""
    magnitude = np.clip(np.frexp(values)[1] - _SMALLEST, 0, _MAGNITUDES)
    magnitude[values == 0] = 0
    return np.bincount(np.where(values < 0, -magnitude, magnitude) + _MAGNITUDES, minlength=BINS)


def find_range(counts: NDArray[np.int64], epsilon: float, key: RunKey) -> tuple[ValueRange, bool]:
    """The range that noisy counts choose.

    Args:
        counts: int64[BINS], exact, one bin a user.
        epsilon: of the noisy counts.
        key: of the run.

    Returns:
        The range; and whether some bin is surely not empty. If none is, the range is a guess: the four adjacent bins
        with the most users by the noisy counts.
    """
    noisy = counts + discrete_laplace(key, "range", np.zeros(1, np.uint64), BINS, epsilon)[0]
    seeds = np.flatnonzero(noisy > noise_quantile(epsilon, FALSE_SEED_PROBABILITY / BINS))
    if len(seeds):
        first, last = int(seeds[0]), int(seeds[-1])
    else:
        first = int(np.argmax(np.convolve(noisy, np.ones(_WINDOW, np.int64), "valid")))
        last = first + _WINDOW - 1
    filled = np.concatenate([[False], noisy > noise_quantile(epsilon, _FALSE_STEP_PROBABILITY), [False]])
    while filled[last + 2]:
        last += 1
    while filled[first]:
        first -= 1
    low, high = float(_LOW[first]), float(_HIGH[last])
    if 0 < low <= _NEAR_ZERO * high:
        low = 0.0
    if _NEAR_ZERO * low <= high < 0:
        high = 0.0
    return ValueRange(low, max(high, low + 2.0**_SMALLEST)), bool(len(seeds))
