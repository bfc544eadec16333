"""The integers that hold noise are wide enough: noise that wrapped around would not have the law of its epsilon."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.privacy.keys import FixedSecret, RunKey, random_bits, random_bits_16
from sfumato.transforms.privacy.noise import discrete_laplace, geometric_table

KEY = RunKey.derive(FixedSecret(b"noise in small integers" * 2), {"test": "wrap"})
STREAMS = np.arange(64, dtype=np.uint64)
COUNT = 500


def drawn_one_by_one(epsilon: float) -> np.ndarray:
    """The same noise in Python's integers, which have no width, by the definition of the draws: [streams, COUNT]."""
    table, size = geometric_table(epsilon), len(geometric_table(epsilon).thresholds)
    upper = random_bits_16(KEY.subkey("wrap", "upper"), STREAMS, 2 * COUNT)
    columns = np.arange(2 * COUNT, dtype=np.uint64)
    values = np.zeros(upper.shape, dtype=object)
    for row, stream in enumerate(STREAMS):
        here = np.full_like(columns, stream)
        lower = random_bits(KEY.subkey("wrap", "lower"), here, columns)[:, 0]
        bits = upper[row].astype(np.uint64) << np.uint64(48) | lower >> np.uint64(16)
        for attempt in range(1, 100):
            drawn = table.lookup(bits)
            values[row, columns.astype(int)] += drawn.astype(object)
            columns = columns[drawn == size]
            if not len(columns):
                break
            place = np.full_like(columns, stream), columns
            bits = random_bits(KEY.subkey("wrap", "beyond", attempt), *place)[:, 0]
        columns = np.arange(2 * COUNT, dtype=np.uint64)
    return values[:, :COUNT] - values[:, COUNT:]


# Means of 1, 100, 4,000 and 16,000: an int16 holds all values of the first two, and not those of the last two.
@pytest.mark.parametrize(("epsilon", "least"), [(0.7, 5), (1e-2, 500), (2.5e-4, 1 << 15), (6.2e-5, 1 << 16)])
def test_noise_is_what_unbounded_integers_give(epsilon: float, least: int) -> None:
    noise = discrete_laplace(KEY, "wrap", STREAMS, COUNT, epsilon)
    assert np.abs(noise).max() > least
    assert (noise == drawn_one_by_one(epsilon)).all()
