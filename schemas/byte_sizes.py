"""Numbers of bytes as text, such as 1.5G."""

from __future__ import annotations

import re

from sfumato.schemas.errors import RequestError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_bytes(option: str, text: str | int) -> int:
    """Returns the number of bytes that a text states, such as 1.5G.

    Args:
        option: for messages.
        text: a number, and K, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024), with or without B.

    Raises:
        RequestError: another text, or less than one byte.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", str(text).strip(), re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise RequestError(f"{option}: must be a number of bytes, such as 1.5G or 800M, got {str(text)!r}")
    unit = _UNITS[found[2].upper()]
    if found[3]:
        unit = 1 << (10 * list(_UNITS).index(found[2].upper()))
    number = int(float(found[1]) * unit)
    if number < 1:
        raise RequestError(f"{option}: must be above 0, got {str(text)!r}")
    return number


def byte_text(number: int) -> str:
    """Returns a number of bytes for people: three digits, in powers of 1000, such as 1.5G."""
    for unit, size in reversed(_UNITS.items()):
        if number >= 0.9995 * size:  # what rounds to 1000 of the smaller unit
            return f"{number / size:.3g}{unit}"
    return "0"
