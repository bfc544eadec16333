"""What `auto` takes, by numbers that are public or noisy alone."""

from __future__ import annotations

import pytest

from sfumato.transforms.moments.local.allocation import chosen_method


@pytest.mark.parametrize(
    ("users", "epsilon", "bits", "method"),
    [
        (10_000, 0.1, 10, "weighted"),  # n epsilon^2 = 100
        (10_000, 0.1, 20, "threshold"),  # a range that few values fill
        (100_000, 0.1, 10, "threshold"),
        (999, 1.0, 12, "weighted"),
        (1000, 1.0, 12, "threshold"),
        (-50, 1.0, 10, "weighted"),  # a noisy number
        (10, None, 10, "threshold"),
        (1000, 1e300, 10, "threshold"),
    ],
)
def test_thresholds_need_enough_signal(users: float, epsilon: float | None, bits: int, method: str) -> None:
    assert chosen_method(users, epsilon, bits) == method
