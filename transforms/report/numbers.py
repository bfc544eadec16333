"""Numbers, shares, lengths and places as pages and pictures write them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from sfumato.schemas.known_digits import raised

_MOST_PLACES = 12


def column_texts(values: Sequence[float]) -> list[str]:
    """Numbers of a column with equally many decimals: as many as one of them needs, of six digits in all."""
    exponents = (int(Decimal(f"{value:.6g}").as_tuple().exponent) for value in values)
    places = min(max((-power for power in exponents if power < 0), default=0), _MOST_PLACES)
    return [f"{value:,.{places}f}".replace("-", "−") for value in values]


def percent(share: float, digits: int = 3) -> str:
    """A share of the whole, as in `2.31%`."""
    return f"{100 * share:.{digits}g}%" if not 0 < abs(share) < 1e-4 else "under 0.01%"


def tiny(value: float) -> str:
    """A small number such as a delta: powers of ten below a thousandth."""
    if not 0 < value < 1e-3:
        return f"{value:g}"
    mantissa, power = f"{value:.2e}".split("e")
    lead = "" if float(mantissa) == 1 else f"{float(mantissa):g} × "
    return lead + raised(int(power))


def length(metres: float) -> str:
    """A length on the ground, as in `120 m` or `1.5 km`, of three digits."""
    size, unit = (1000.0, "km") if metres >= 995 else (1.0, "m") if metres >= 1 else (0.01, "cm")
    return f"{float(f'{metres / size:.3g}'):,g} {unit}"


def coordinates(latitude: float, longitude: float, size: float) -> str:
    """Returns a place in degrees, with the digits that tell cells of a size apart.

    Args:
        latitude: in degrees.
        longitude: in degrees.
        size: of the cell's shorter side, in degrees.

    Example:
        >>> coordinates(37.78395, -122.45979, 0.0002)
        '37.7840, -122.4598'
    """
    digits = max(math.ceil(-math.log10(size)), 0)
    return f"{latitude:.{digits}f}, {longitude:.{digits}f}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """A number of things, as in `1 cell` or `12 cells`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
