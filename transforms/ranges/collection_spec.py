"""The public inputs of a method, and the rule for the width of a grid's cells. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.schemas.ranges import PSI, Field, Sizes
from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE, AdditiveNoise

_WIDTH_CONSTANT = 46.0  # metres^(1/4)


@dataclass(frozen=True)
class CollectionSpec:
    """All that a method knows besides the exact counts. Everything here is public.

    Attributes:
        field: the base cells.
        users: the number of users, public or noisy; noise can take it below 0.
        epsilon: of as much Laplace noise as the whole budget buys. Adding or removing one user changes the count of one
            base cell by 1.
        sizes: sides of the squares to be queried, in metres.
        rho: the whole budget with Gaussian noise; None with Laplace noise, where epsilon is.
    """

    field: Field
    users: float
    epsilon: float
    sizes: Sizes
    rho: float | None = None

    @property
    def noise(self) -> AdditiveNoise:
        """The noise of the counts of a grid."""
        return LAPLACE if self.rho is None else GAUSSIAN

    @property
    def cost(self) -> float:
        """The whole budget, in the unit of the noise."""
        return self.epsilon if self.rho is None else self.rho

    @property
    def smoothing(self) -> float:
        """psi in users, at least 1: the denominator of relative errors is never smaller (paper 003, Section 2.2)."""
        return max(PSI * self.users, 1.0)

    @property
    def default_width(self) -> float:
        """The default width of a cell in metres: 46 sqrt(s) L^(1/4) / (n epsilon)^0.45.

        s = sqrt(LOW HIGH) of the squares' sides and L = sqrt(area) of the region, both in metres. The result is
        clamped to what the field allows (`clamp_width`).

        Two errors compete. The noise of a square is that of its cells, s / (width epsilon) up to a constant. The
        other error comes from the cells that the square's border cuts: users can be anywhere in them. It grows with
        the width and with the density n / L^2. So fewer users or more noise call for wider cells, but by less than
        evenly spread users would need: real users cluster, and dense places are as dense on a map of a larger region.
        The powers and the constant are fitted to searches for the best width on synthetic maps and public data
        (`python -m benchmarks.param_select`), and rounded. Networks that learn from a grid are best at the same width.
        """
        users = max(self.users, 1.0)
        size = math.sqrt(self.sizes.low * self.sizes.high)
        length = math.sqrt(math.prod(self.field.metres))
        width = _WIDTH_CONSTANT * math.sqrt(size) * length**0.25 / (users * self.epsilon) ** 0.45
        return clamp_width(width, self.field)


def clamp_width(width: float, field: Field) -> float:
    """The nearest width in metres that cells of a field can have: from a base cell to the field's shorter side."""
    return min(max(width, max(field.cell_metres)), min(field.metres))
