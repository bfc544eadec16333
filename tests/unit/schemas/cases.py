"""Cases of refusals: a value that cannot be, and whose value it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

Owner = TypeVar("Owner")
Value = TypeVar("Value")


def each(values: Mapping[Owner, Iterable[Value]]) -> list[tuple[Owner, Value]]:
    """Returns a case for each value: whose value it is, and the value."""
    return [(owner, value) for owner, several in values.items() for value in several]
