"""Options as fields of dataclasses, and checks of them.

Each check raises RequestError that names the option, its range and the value.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import field
from typing import Any

from sfumato.schemas.errors import RequestError


def option(default: Any, text: str, *, common: bool = False) -> Any:
    """A dataclass field that is also an option of a request. text: its help. common: whether `--help` shows it."""
    return field(default=default, metadata={"help": text, "common": common})


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Checks for one of the known names."""
    if value not in known:
        raise RequestError(f"{name}: must be one of {', '.join(known)}, got {value!r}")


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Checks for an integer in low..high."""
    if not (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high):
        raise RequestError(f"{name}: must be a whole number in {low}..{high}, got {value}")


def check_within(name: str, value: float, low: float, high: float) -> None:
    """Checks for a number in [low, high], not NaN."""
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"{name}: must be a number in [{low}, {high}], got {value}")


def check_between(name: str, value: float, low: float, high: float) -> None:
    """Checks for a number in (low, high), not NaN."""
    if not (math.isfinite(value) and low < value < high):
        raise RequestError(f"{name}: must be a number > {low} and < {high}, got {value}")
