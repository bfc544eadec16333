"""How wide the cells of a grid should be where nobody says: a rule of what is public. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sfumato.schemas.ranges import Field

if TYPE_CHECKING:  # the methods themselves use this module
    from sfumato.transforms.ranges.methods.base import CollectionSpec

_CONSTANT = 46.0  # metres^(1/4)


def default_width(wanted: CollectionSpec) -> float:
    """Metres: 46 sqrt(s) L^(1/4) / (n epsilon)^0.45, and no less than a base cell, no more than the region.

    s = sqrt(LOW HIGH) of the squares' sides, L = sqrt(area) of the region, both in metres.

    The noise of a square is that of the cells in it, s / (width epsilon) up to a constant. Its other error is of the
    cells that its border cuts, whose users lie anywhere in them, and grows with the width and with how many users they
    have, n / L^2. Wider cells are right where there are fewer users or more noise, but not by as much as one would
    think: users flock together, and a map is as dense where they are as one of a smaller region. The powers, and the
    constant, are those of searches for the best width on synthetic maps and public data
    (`python -m benchmarks.param_select`), rounded. Networks that learn from the grid are best at the same width.
    """
    users = max(wanted.users, 1.0)  # noisy, so perhaps below
    size = math.sqrt(wanted.sizes.low * wanted.sizes.high)
    length = math.sqrt(math.prod(wanted.field.metres))
    return fitting(_CONSTANT * math.sqrt(size) * length**0.25 / (users * wanted.epsilon) ** 0.45, wanted.field)


def fitting(width: float, field: Field) -> float:
    """The width, in metres, or the nearest one that cells of a field can have."""
    return min(max(width, max(field.cell_metres)), min(field.metres))
