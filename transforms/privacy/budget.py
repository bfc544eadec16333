"""A privacy budget whose arithmetic is exact: spent <= total always, and == total when all of it is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError


def check_epsilon(name: str, value: float) -> float:
    """Returns the value. Raises RequestError unless it is a finite number > 0 (NaN is not)."""
    if not (math.isfinite(value) and value > 0):
        raise RequestError(f"{name}: must be a finite number > 0, got {value}")
    return value


@dataclass(frozen=True)
class Budget:
    """Pure epsilon under basic composition.

    Every charge is a multiple of the total's last binary place, so sums and differences of charges have no rounding:
    remaining + spent == total holds in floating point as it does on paper.
    """

    total: float
    charges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.total)

    @property
    def spent(self) -> float:
        return math.fsum(self.charges)

    @property
    def remaining(self) -> float:
        return self.total - self.spent

    def first(self, charges: int) -> Budget:
        """The budget as it was after so many charges."""
        return Budget(self.total, self.charges[:charges])

    def affordable(self, epsilon: float) -> float:
        """The largest charge that is at most epsilon, at most what remains, and on the budget's grid."""
        unit = math.ulp(self.total)
        return min(math.floor(epsilon / unit) * unit, self.remaining)

    def charge(self, epsilon: float) -> Budget:
        """The budget after spending epsilon. Raises ValueError for a charge off the grid or above what remains."""
        if not (0 < epsilon <= self.remaining) or epsilon != self.affordable(epsilon):
            raise ValueError(f"cannot charge {epsilon} of {self.remaining} remaining")
        return Budget(self.total, (*self.charges, epsilon))
