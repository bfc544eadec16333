"""Options as fields of dataclasses that declare their bounds, and checks of them.

Each check raises RequestError that names the option, its range and the value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from dataclasses import Field, field, fields
from numbers import Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.request_base import number_text

_type_hints = functools.cache(get_type_hints)


def option(default: Any, text: str, *, common: bool = False, among: Collection[str] = (), **bounds: float) -> Any:
    """A field of a frozen dataclass that a request offers as an option.

    Args:
        default: its value where it is not given; None where the job chooses it.
        text: what it is, with its unit.
        common: whether `--help` shows it.
        among: the names that it may have; those of a Literal's are known by its type.
        bounds: `ge`, `gt`, `le` and `lt` of a number.
    """
    return field(default=default, metadata={"help": text, "common": common, "among": tuple(among), "bounds": bounds})


def value_type(owner: type, one: Field[Any]) -> type | None:
    """The type of an option's values, None apart: bool, int, float or str; None for any other."""
    hint = _type_hints(owner)[one.name]
    kinds = (hint, *get_args(hint))
    if any(get_origin(kind) is Literal for kind in kinds):
        return str
    return next((kind for kind in (bool, int, float, str) if kind in kinds), None)


def names_of(owner: type, one: Field[Any]) -> tuple[str, ...]:
    """The names that an option may have; empty where it may have any value of its type."""
    hint = _type_hints(owner)[one.name]
    literal = next((kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal), None)
    return tuple(one.metadata.get("among", ())) if literal is None else get_args(literal)


def check_declared(options: Any) -> None:
    """Raises RequestError, naming it, for the first option of a dataclass that is not what `option` declares."""
    for one in fields(options):
        value, kind = getattr(options, one.name), value_type(type(options), one)
        if not one.metadata or kind is None or (value is None and one.default is None):
            continue
        if names := names_of(type(options), one):
            check_choice(one.name, value, names)
        elif kind in (int, float):
            check_number(one.name, value, kind, **one.metadata["bounds"])
        elif not isinstance(value, kind):
            noun = "true or false" if kind is bool else "text"
            raise RequestError(f"{one.name}: must be {noun}, got {value!r}")


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
