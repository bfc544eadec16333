"""Numbers as pages and pictures write them: with the digits that are known. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from sfumato.schemas.rectangle import Plane, Region

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_PLACES = 12
_LARGE, _SMALL = 1e15, 1e-6  # beyond them numbers are written with a power of ten


def figures(value: float, spread: float) -> str:
    """A number with as many digits as its spread, say its standard deviation, lets matter: two of the spread's.

    Numbers without a usable spread get six digits. What is not finite is written in words or as ∞.
    """
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    known = math.isfinite(spread) and spread > 0
    step = spread if known else max(abs(value), 1e-300) * 1e-4
    places = min(1 - math.floor(math.log10(step)), _MOST_PLACES)
    size = abs(value)
    if size >= _LARGE or 0 < size < _SMALL:
        digits = min(max(places + math.floor(math.log10(size)), 0), 5)
        mantissa, power = f"{value:.{digits}e}".split("e")
        text = f"{mantissa} × {raised(int(power))}"
    else:
        text = f"{round(value, places):,.{max(places, 0)}f}"
        if not known and "." in text:
            text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−") if text.strip("-0.") else text.lstrip("-")


def about(users: float, stddev: float) -> str:
    """A number of users rounded to the power of ten below its interval's width, as in `320,000`; 0 if it is less."""
    step = 10.0 ** math.floor(math.log10(max(3.92 * stddev, 1.0)))
    return f"{max(round(users / step), 0) * step:,.0f}"


def between(low: float, high: float) -> str:
    """The ends of a 95% interval with the digits that are known, as in `3.95 to 4.09`."""
    spread = (high - low) / 3.92
    return f"{figures(low, spread)} to {figures(high, spread)}"


def with_interval(value: float, low: float, high: float) -> tuple[str, str, str]:
    """A value and the ends of its interval, rounded outward, all with the first digit that is not known for sure."""
    width = high - low
    places = min(-math.floor(math.log10(width / 4)), _MOST_PLACES) if width > 0 and math.isfinite(width) else 6
    unit = 10.0**-places
    rounded = value / unit, math.floor(low / unit + 1e-6), math.ceil(high / unit - 1e-6)
    texts = (f"{round(one) * unit:,.{max(places, 0)}f}" for one in rounded)
    first, least, most = (text.replace("-", "−") if text.strip("-0.") else text.lstrip("-") for text in texts)
    return first, least, most


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


def raised(power: int) -> str:
    """A power of ten, as in `10⁻⁸`."""
    return f"10{str(power).translate(_RAISED)}"


def length(metres: float) -> str:
    """A length on the ground, as in `120 m` or `1.5 km`, of three digits."""
    size, unit = (1000.0, "km") if metres >= 995 else (1.0, "m") if metres >= 1 else (0.01, "cm")
    return f"{float(f'{metres / size:.3g}'):,g} {unit}"


def length_in(region: Region, size: float) -> str:
    """A length of a region: in metres as `length` has it; of a plane, whose unit has no name, as a number."""
    return f"{float(f'{size:.4g}'):,.15g}" if isinstance(region, Plane) else length(size)


def plural(number: int, one: str, many: str | None = None) -> str:
    """A number of things, as in `1 cell` or `12 cells`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
