"""Which method `--method auto` takes: by epsilon, the range, and a number of users that is noisy. Pure."""

from __future__ import annotations

import math

from sfumato.schemas.moments import Method

_MIN_SIGNAL = 1000.0  # n epsilon^2 from which thresholds are better; docs/explanation/moments.md has the measurements
_FEW_BITS = 12  # more bits are mostly more than the values need


def chosen_method(users: float, epsilon: float | None, bits: int) -> Method:
    """The method with the least expected error: `threshold`, of two rounds, or `weighted`, of one without a prior.

    Under randomised response the error of a share is about 1 / (epsilon sqrt(n)). Where that is large, a first round
    learns little, and posterior estimates shrink towards 0. Then one round without a prior is better, if the range fits
    the values: its error is a share of the range.

    Args:
        users: n, of whom each reports.
        epsilon: local; None: no randomised response.
        bits: of the values.
    """
    return "threshold" if users >= min_threshold_users(epsilon, bits) else "weighted"


def min_threshold_users(epsilon: float | None, bits: int) -> float:
    """The number of users from which thresholds are chosen; see `chosen_method`."""
    return -math.inf if epsilon is None or bits > _FEW_BITS else _MIN_SIGNAL / min(epsilon, 1e3) ** 2
