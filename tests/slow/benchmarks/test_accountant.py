"""The table of a fixed number of contacts is that of an independent enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accountant import distance, published
from tests.unit.histogram.oracle import hockey_stick
from tests.unit.histogram.test_sampling_plan import contacted


@pytest.mark.parametrize(("users", "holders", "contacts"), [(40, 40, 12), (40, 17, 30), (40, 3, 12)])
def test_published_is_the_enumerated_distribution(users: int, holders: int, contacts: int) -> None:
    shares = published(users, holders, contacts, 0.4, 4)
    expected = contacted(users, holders, contacts, 0.4, 4)
    assert shares == pytest.approx(expected[: len(shares)], abs=1e-15)
    assert not expected[len(shares) :].any()
    assert shares.sum() == pytest.approx(1)


def test_distance_is_the_larger_direction() -> None:
    first, second = np.array([0.7, 0.3]), np.array([0.2, 0.8])
    assert distance(first, second, 0.1) == max(hockey_stick(first, second, 0.1), hockey_stick(second, first, 0.1))
