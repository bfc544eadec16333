"""Which questions `--method auto` asks: by the local epsilon and a number of users that is public or noisy. Pure."""

from __future__ import annotations

from sfumato.schemas.moments import Method

_MIN_SIGNAL = 1000.0  # n epsilon^2 from which thresholds are better; docs/explanation/moments.md has the measurements


def chosen_method(users: float, epsilon: float | None) -> Method:
    """The method with the least expected error.

    Under randomised response the error of a share is about 1 / (epsilon sqrt(n)). Where that is large, two rounds learn
    little, and estimates of two rounds shrink towards 0. Then one round without a prior is better.

    Args:
        users: n, of whom each reports.
        epsilon: local; None: no randomised response.
    """
    if epsilon is None or users * min(epsilon, 1e3) ** 2 >= _MIN_SIGNAL:
        return "threshold"
    return "weighted"
