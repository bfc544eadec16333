"""Checks of values, and of dataclasses whose annotations declare their fields' ranges.

Each check raises RequestError that names the option, its range and the value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from numbers import Real
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.request_base import bounds_of, number_text


class Declared(NamedTuple):
    """What a field's annotation declares."""

    kind: type | None  # int, float, bool or str; None for any other type, which is not checked
    names: tuple[str, ...]  # the values of a Literal; empty without one
    bounds: dict[str, float]  # `ge`, `gt`, `le` and `lt` of a number, those that are declared
    optional: bool


@functools.cache
def declared_of(owner: type[Any]) -> dict[str, Declared]:
    """Returns what a dataclass declares of its fields, by name."""
    hints = get_type_hints(owner, include_extras=True)
    return {one.name: _parsed(hints[one.name]) for one in fields(owner)}


def _parsed(hint: Any) -> Declared:
    """Returns what an annotation such as `Annotated[int, Interval(ge=1, le=9)] | None` declares."""
    if get_origin(hint) is Annotated:
        return _parsed(get_args(hint)[0])._replace(bounds=bounds_of(hint.__metadata__))
    if get_origin(hint) is Literal:
        return Declared(str, get_args(hint), {}, False)
    if isinstance(hint, type):
        return Declared(hint if hint in (bool, int, float, str) else None, (), {}, False)
    parts = get_args(hint)
    inner = [part for part in parts if part is not NoneType]
    if len(inner) != 1:
        return Declared(None, (), {}, True)
    return _parsed(inner[0])._replace(optional=NoneType in parts)


def check_declared(options: Any) -> None:
    """Raises RequestError for the first field of a dataclass whose value is not what its annotation declares.

    Numbers are checked where the annotation declares their bounds.
    """
    for name, declared in declared_of(options.__class__).items():
        value = getattr(options, name)
        if declared.kind is None or (value is None and declared.optional):
            continue
        if declared.names:
            check_choice(name, value, declared.names)
        elif declared.kind in (int, float):
            if declared.bounds:
                check_number(name, value, declared.kind, **declared.bounds)
        elif not isinstance(value, declared.kind):
            noun = "true or false" if declared.kind is bool else "text"
            raise RequestError(f"{name}: must be {noun}, got {value!r}")


def owners_of(classes: Mapping[str, type]) -> dict[str, tuple[str, ...]]:
    """Returns the names of the dataclasses that have a field, by the field's name, in a fixed order."""
    owners: dict[str, tuple[str, ...]] = {}
    for name, kind in classes.items():
        for one in fields(kind):
            owners[one.name] = (*owners.get(one.name, ()), name)
    return owners


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Checks for one of the known names."""
    if not isinstance(value, str) or value not in known:
        raise RequestError(f"{name}: must be one of {', '.join(known)}, got {value!r}")


def check_number(
    name: str,
    value: object,
    kind: type = float,
    *,
    ge: float = -math.inf,
    gt: float = -math.inf,
    le: float = math.inf,
    lt: float = math.inf,
) -> None:
    """Checks for a finite number within the bounds, of type int for an integer."""
    right = isinstance(value, int if kind is int else Real) and not isinstance(value, bool)
    if not (right and math.isfinite(value) and ge <= value <= le and gt < value < lt):  # type: ignore[arg-type, operator]
        bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
        given = {sign: limit for sign, limit in bounds.items() if math.isfinite(limit)}
        raise RequestError(f"{name}: must be {number_text(kind, **given)}, got {value}")


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Checks for an integer in low..high."""
    check_number(name, value, int, ge=low, le=high)
