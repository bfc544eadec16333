"""The budget of a method that accesses the exact counts twice."""

from __future__ import annotations

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.budget import Budget


def split_epsilon(epsilon: float, share: float) -> tuple[float, float]:
    """Splits a budget for a method that accesses the exact counts twice.

    Args:
        epsilon: the whole budget, finite and > 0.
        share: of the first part, in (0, 1).

    Returns:
        About share * epsilon, and the rest. Their sum is exactly epsilon, without rounding.

    Raises:
        RequestError: a part would be 0, or an argument is out of range.
    """
    budget = Budget(epsilon)
    first = budget.affordable(share * epsilon) if 0 < share < 1 else 0.0
    if not 0 < first < epsilon:
        raise RequestError(f"share of epsilon: must leave some for both parts, got {share}")
    return first, budget.charge(first).remaining
