"""Parameters of a heatmap from values by name, and every combination of several values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sfumato.schemas.errors import RequestError, did_you_mean
from sfumato.transforms.checks import owners_of
from sfumato.transforms.heatmap.methods import METHODS, Method
from sfumato.transforms.heatmap.parameters import HeatmapParameters

MAX_COMBINATIONS = 10_000
_OF_REQUEST = ("categories", "slots", "records_per_user", "rotation", "method")  # not values by name


def parameter_owners() -> dict[str, tuple[str, ...]]:
    """Returns the methods that have a parameter, by its name; no methods for a parameter of every heatmap."""
    return {**{one.name: () for one in fields(HeatmapParameters) if one.name not in _OF_REQUEST}, **owners_of(METHODS)}


def heatmap_parameters(
    method: str,
    values: Mapping[str, Any],
    categories: int = 1,
    slots: int = 1,
    records_per_user: int = 1,
    rotation: int = 1,
) -> HeatmapParameters:
    """Makes parameters of values by name.

    Args:
        method: its name.
        values: by parameter name. A missing one, None and False give the default.
        categories: how many the auxiliary data have; 1 without such data.
        slots: of time, how many; 1 without.
        records_per_user: the most slots in which a user counts.
        rotation: the number of rotating cohorts, one of which is asked.

    Raises:
        RequestError: the method or a parameter is unknown, or not the method's, or a value is out of range.
    """
    owners, kind = parameter_owners(), find_method(method)
    for name in values:
        if name not in owners:
            raise RequestError(f"{name}: a heatmap has no such option{did_you_mean(name, owners)}")
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    for name in given:
        if owners[name] and method not in owners[name]:
            raise RequestError(f"{name}: applies only with --method {' or '.join(owners[name])}, got {method}")
    own = {name: value for name, value in given.items() if owners[name]}
    common = {name: value for name, value in given.items() if not owners[name]}
    kind.check_given(own)
    bins: dict[str, Any] = {"categories": categories, "slots": slots, "records_per_user": records_per_user}
    return HeatmapParameters(**common, **bins, rotation=rotation, method=kind(**own))


def option_grid(methods: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Every method with every combination of its options' values. Options of other methods are left out.

    Args:
        methods: names.
        values: several values of each option, by name.

    Returns:
        (method, values by option name) for each combination.

    Raises:
        RequestError: a method is unknown, no method has an option, or a method has more than MAX_COMBINATIONS.
    """
    known = parameter_owners()
    owners = {name: known[name] for name in values}
    if not [name for name in methods if name]:
        raise RequestError(f"methods: name at least one of {', '.join(METHODS)}")
    for method in methods:
        find_method(method)
    for name, of in owners.items():
        if of and not set(of) & set(methods):
            raise RequestError(f"{name}: is an option of {', '.join(of)}, which is not among the methods")
    grid = []
    for method in dict.fromkeys(methods):
        mine = {
            name: list(dict.fromkeys(given)) for name, given in values.items() if method in (owners[name] or methods)
        }
        if math.prod(map(len, mine.values())) > MAX_COMBINATIONS:
            raise RequestError(f"{method}: more than {MAX_COMBINATIONS:,} combinations of options; give fewer values")
        grid += [(method, dict(zip(mine, chosen, strict=True))) for chosen in itertools.product(*mine.values())]
    return grid


def find_method(name: str) -> type[Method]:
    """The method of a name. Raises RequestError for an unknown name."""
    if name not in METHODS:
        known = ", ".join(METHODS)
        raise RequestError(f"method: there is no {name!r}, there are {known}{did_you_mean(name, METHODS)}")
    return METHODS[name]
