"""A budget in two parts, for methods that look at the people twice."""

from __future__ import annotations

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.budget import Budget


def split(epsilon: float, share: float) -> tuple[float, float]:
    """About share * epsilon, and the rest: together exactly epsilon, in floating point as on paper.

    Raises RequestError where a part would be nothing: epsilon is not finite and > 0, or share not in (0, 1).
    """
    budget = Budget(epsilon)
    first = budget.affordable(share * epsilon) if 0 < share < 1 else 0.0
    if not 0 < first < epsilon:
        raise RequestError(f"the share of epsilon for the first look must leave some for both, got {share}")
    return first, budget.charge(first).remaining
