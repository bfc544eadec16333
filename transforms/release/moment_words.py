"""How the page and the picture of moments write numbers, names and the guarantee. Pure."""

from __future__ import annotations

import math

from sfumato.schemas.charts import readable

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_PLACES = 12
_LARGE, _SMALL = 1e15, 1e-6  # beyond them numbers are written with a power of ten
_ORDINALS = {2: "2nd", 3: "3rd"}


def figures(value: float, spread: float) -> str:
    """A number with as many digits as its spread, say its standard deviation, lets matter: two of the spread's.

    Numbers without a usable spread get six digits; what is not finite is written in words or as ∞.
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
        text = f"{mantissa} × 10{str(int(power)).translate(_RAISED)}"
    else:
        text = f"{round(value, places):,.{max(places, 0)}f}"
        if not known and "." in text:
            text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−") if text.strip("-0.") else text.lstrip("-")


def place_value(weight: float) -> str:
    """What a set bit adds, short enough for an axis: 0.25, 32,768 or 2²⁰, with a minus for bits of negative values."""
    if not math.isfinite(weight):
        return "?"
    size, sign = abs(weight), "−" if weight < 0 else ""
    mantissa, power = math.frexp(size)
    if mantissa == 0.5 and not 0.01 < size < 1e5:
        return f"{sign}2{str(power - 1).translate(_RAISED)}"
    return sign + (f"{size:,.4g}" if size < 1e4 else f"{size:,.0f}" if size < 1e5 else figures(size, size / 100))


def statistic_title(name: str) -> str:
    """A statistic as the beginning of a sentence: `Mean`, `Variance`, `3rd moment`."""
    kind, _, power = name.partition(":")
    if kind == "moment" and power.isdecimal():
        return f"{_ORDINALS.get(int(power), f'{power}th')} moment"
    named = {"geometric_mean": "Geometric mean", "log_product": "Logarithm of the product"}
    return named.get(name, readable(name[:1].upper() + name[1:]))


def quantity_title(quantity: str, column: str) -> str:
    """What the bits are of, in words; `column` is readable text."""
    kind, _, power = quantity.partition(":")
    if kind == "power" and power.isdecimal():
        return f"{column} to the power {power}"
    named = {
        "value": column,
        "square": f"the squared distance of {column} from its mean",
        "log2": f"the binary logarithm of {column}",
    }
    return named.get(quantity, readable(quantity))


def quantity_name(quantity: str) -> str:
    """What the bits are of, in a word or two."""
    kind, _, power = quantity.partition(":")
    if kind == "power" and power.isdecimal():
        return f"Power {power}"
    named = {"value": "Value", "square": "Squared distance", "log2": "Logarithm"}
    return named.get(quantity, readable(quantity))


def guarantee(epsilon: float | None, bits_per_client: int) -> str:
    """What each client gave and how it was protected, one sentence."""
    one = bits_per_client == 1
    gave = "one bit" if one else f"{bits_per_client} bits"
    if epsilon is None:
        return f"Each client gave {gave}, as {'it is' if one else 'they are'}: no differential privacy."
    protected = f"randomised with ε = {epsilon:g}{'' if one else ' in all'}"
    return f"Each client gave {gave}, {protected}: local differential privacy."
