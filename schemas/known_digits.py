"""Numbers rounded to their known digits, and numbers of bytes. Pure.

`web/src/format.ts` has the same rules; `web/test/numbers.json` holds examples for both. Data files keep all digits.
"""

from __future__ import annotations

import math
import re

from sfumato.schemas.errors import RequestError

# Standard errors to each side that a normal 95% interval reaches. There are three, because more or fewer digits would
# change what releases publish: of pages and quantiles, of maps and flows, and of rates, zones and moments.
Z, Z_95, NORMAL_Z = 1.96, 1.959964, 1.959963984540054
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_PLACES = 12
_LARGE, _SMALL = 1e15, 1e-6  # beyond them numbers are written with a power of ten
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def laplace_z(level: float) -> float:
    """Returns the half width of an interval of this level for Laplace noise, in standard deviations.

    A weighted sum of independent Laplace variates of the same standard deviation has lighter tails, so an interval
    of this width holds it with at least this probability at levels from 0.91 on: 95.0% to 96.6% at the level 0.95.
    """
    return -math.log(1 - level) / math.sqrt(2)


# 1.96 deviations hold one draw of Laplace noise with 93.7%. Gaussian noise has lighter tails, as sums of draws have.
NOISE_Z = round(laplace_z(0.95), 2)


def figures(value: float, stddev: float) -> str:
    """Returns a number rounded to what is known: to the place of the first digit of its standard error.

    Numbers without a usable standard error get six digits. What is not finite is written in words or as ∞.

    Example:
        >>> figures(1_000_000.3, 1.4), figures(2.94390, 3.6e-5), figures(319_942, 812)
        ('1,000,000', '2.94390', '319,900')
    """
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    places = _known_places(stddev)
    known = places is not None
    if places is None:
        places = min(5 - math.floor(math.log10(max(abs(value), 1e-300))), _MOST_PLACES)
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


def with_interval(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Returns a value and the ends of its 95% interval, rounded as `figures` does; the ends are rounded outward.

    An end on the same side of 0 as the whole interval stays there: it gets the place of its first digit if the others
    would round it to 0.

    Example:
        >>> with_interval(2_878, 427, 5_330)
        ('3,000', '400', '6,000')
    """
    stddev = (high - low) / (2 * Z)
    places = _known_places(stddev)
    if places is None:
        return figures(value, stddev), figures(low, stddev), figures(high, stddev)
    least = 10.0 ** -(_first_place(low, places) if low > 0 else places)
    most = 10.0 ** -(_first_place(high, places) if high < 0 else places)
    low, high = math.floor(low / least + 1e-6) * least, math.ceil(high / most - 1e-6) * most
    return figures(value, stddev), figures(low, least), figures(high, most)


def between(low: float, high: float) -> str:
    """Returns the ends of a 95% interval with the digits that are known, as in `3.9 to 4.1`."""
    return " to ".join(with_interval(low, low, high)[1:])


def not_negative(value: float, low: float, high: float) -> tuple[float, float, float]:
    """Returns an estimated number of users and its 95% interval as a reader is shown them: 0 or more.

    A negative estimate is noise on few users or none. It becomes 0, and the interval then reaches as far above 0 as it
    reaches above the estimate: noise that hides nobody may hide that many.

    Example:
        >>> not_negative(-196, -474, 82)
        (0, 0, 278)
    """
    return max(value, 0), max(low, 0), high - min(value, 0)


def about(users: float, stddev: float) -> str:
    """Returns a number of users with the digits that are known, in whole users, as in `320,000`; 0 if it is less."""
    return figures(max(users, 0.0), max(stddev, 1.0))


def raised(power: int) -> str:
    """Returns a power of ten, as in `10⁻⁸`."""
    return f"10{str(power).translate(_RAISED)}"


def _known_places(stddev: float) -> int | None:
    """Returns the decimal place of the first digit of a standard error; None without a usable one."""
    if not (math.isfinite(stddev) and stddev > 0):
        return None
    return min(-math.floor(math.log10(stddev) + 1e-9), _MOST_PLACES)


def _first_place(value: float, least: int) -> int:
    """Returns the decimal place of a number's first digit, or `least` if that is further to the right."""
    return min(max(least, -math.floor(math.log10(abs(value)))), _MOST_PLACES)


def parse_memory(text: str | int) -> int:
    """Returns the number of bytes that a text states: a number, and K, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti.

    The latter are powers of 1024; a B may follow. Raises RequestError, below one byte too.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", str(text).strip(), re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise RequestError(f"memory: must be a number of bytes, such as 1.5G or 800M, got {str(text)!r}")
    unit = _UNITS[found[2].upper()]
    if found[3]:
        unit = 1 << (10 * list(_UNITS).index(found[2].upper()))
    number = int(float(found[1]) * unit)
    if number < 1:
        raise RequestError(f"memory: must be above 0, got {str(text)!r}")
    return number


def byte_text(number: int) -> str:
    """Returns a number of bytes for people: three digits, in powers of 1000, such as 1.5G."""
    for unit, size in reversed(_UNITS.items()):
        if number >= 0.9995 * size:  # what rounds to 1000 of the smaller unit
            return f"{number / size:.3g}{unit}"
    return "0"
