"""A privacy budget with exact arithmetic: spent <= total always, and spent == total when nothing remains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import USUAL_EPSILON


def check_epsilon(value: float) -> float:
    """Returns the value. Raises RequestError unless it is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"epsilon: must be a finite number > 0, got {value:g}{USUAL_EPSILON}")
    return value


@dataclass(frozen=True)
class Budget:
    """A total cost above 0 (see `additive_noise`: an epsilon or a rho), and the charges of it, in order.

    Every charge is a multiple of the total's last binary place. So sums and differences of charges are not rounded,
    and remaining + spent == total holds exactly.

    >>> budget = Budget(1.0).charge(0.25)
    >>> budget.spent, budget.remaining
    (0.25, 0.75)
    >>> budget.charge(0.8)
    Traceback (most recent call last):
        ...
    ValueError: cannot charge 0.8 of 0.75 remaining
    """

    total: float
    charges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_epsilon(self.total)

    @property
    def spent(self) -> float:
        return math.fsum(self.charges)

    @property
    def remaining(self) -> float:
        return self.total - self.spent

    def first(self, charges: int) -> Budget:
        """Returns the budget after its first `charges` charges."""
        return Budget(self.total, self.charges[:charges])

    def affordable(self, cost: float) -> float:
        """Returns the largest possible charge of at most `cost` and at most what remains."""
        unit = math.ulp(self.total)
        return min(math.floor(cost / unit) * unit, self.remaining)

    def charge(self, cost: float) -> Budget:
        """Returns the budget after a charge. Raises ValueError unless it is `affordable`, to the last binary place."""
        if not cost > 0 or cost != self.affordable(cost):
            raise ValueError(f"cannot charge {cost} of {self.remaining} remaining")
        return Budget(self.total, (*self.charges, cost))
