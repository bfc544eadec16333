"""Checks of values, and of dataclasses whose annotations declare their fields' ranges.

Each check raises RequestError with the option's name, its range and the value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from numbers import Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from sfumato.schemas.errors import RequestError, did_you_mean, shown
from sfumato.schemas.requests.request_base import field_bounds, number_text, option_type, range_text


@functools.cache
def declared_of(owner: type[Any]) -> dict[str, FieldInfo]:
    """Returns the declared type and bounds of each field of a dataclass, by name."""
    hints = get_type_hints(owner, include_extras=True)
    return {one.name: FieldInfo.from_annotation(hints[one.name]) for one in fields(owner)}


def is_optional(field: FieldInfo) -> bool:
    """Returns whether a field may be None."""
    return NoneType in get_args(field.annotation)


def check_declared(options: Any) -> None:
    """Raises RequestError for the first field of a dataclass whose value is not what its annotation declares.

    Numbers are checked only if the annotation declares their bounds.
    """
    for name, field in declared_of(options.__class__).items():
        value, kind = getattr(options, name), option_type(field.annotation)
        if value is None and is_optional(field):
            continue
        if get_origin(kind) is Literal:
            check_choice(name, value, get_args(kind))
        elif kind in (int, float):
            if bounds := field_bounds(field):
                check_number(name, value, kind, **bounds)
        elif kind in (bool, str) and not isinstance(value, kind):
            raise RequestError(f"{name}: must be {range_text(field)}, got {shown(value)}")


def owners_of(classes: Mapping[str, type]) -> dict[str, tuple[str, ...]]:
    """Returns the names of the dataclasses that have a field, by the field's name, in a fixed order."""
    owners: dict[str, tuple[str, ...]] = {}
    for name, kind in classes.items():
        for one in fields(kind):
            owners[one.name] = (*owners.get(one.name, ()), name)
    return owners


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Raises RequestError unless the value is one of the known names."""
    if not isinstance(value, str) or value not in known:
        near = did_you_mean(str(value), map(str, known))
        raise RequestError(f"{name}: must be one of {', '.join(map(str, known))}, got {value!r}{near}")


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
    """Raises RequestError unless the value is a finite number within the bounds, of type int for an integer."""
    right = isinstance(value, int if kind is int else Real) and not isinstance(value, bool)
    if not (right and math.isfinite(value) and ge <= value <= le and gt < value < lt):  # type: ignore[arg-type, operator]
        bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
        given = {sign: limit for sign, limit in bounds.items() if math.isfinite(limit)}
        raise RequestError(f"{name}: must be {number_text(kind, **given)}, got {value}")


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raises RequestError unless the value is an integer in low..high."""
    check_number(name, value, int, ge=low, le=high)
