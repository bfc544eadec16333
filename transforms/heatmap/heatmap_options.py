"""The options of a heatmap: which there are, and parameters from them, for every command that takes them."""

from __future__ import annotations

import difflib
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.request_base import option, parts_of
from sfumato.transforms.heatmap.methods import METHODS, Method
from sfumato.transforms.heatmap.parameters import HeatmapParameters

MAX_COMBINATIONS = 10_000
_type_hints = functools.cache(get_type_hints)


@dataclass(frozen=True)
class Option:
    """An option: of which type its values are (int, float, str or bool), and of which methods it is one.

    methods: names, empty for an option of every method. common: `--help` shows it.
    """

    name: str
    kind: type
    default: Any
    help: str
    methods: tuple[str, ...] = ()
    common: bool = False

    def field(self, group: str, many: bool = False) -> tuple[Any, Any]:
        """Type and field of a request. group: of the help text. many: the option takes several values."""
        text = f"{self.help} (method {', '.join(self.methods)})" if self.methods else self.help
        metavar = {int: "N", float: "X"}.get(self.kind, "NAME")
        if self.kind is bool:
            return bool, option(False, text, group, common=self.common)
        kind: Any = self.kind if self.default is not None else self.kind | None
        if many:
            parts = Annotated[
                tuple[kind, ...], BeforeValidator(parts_of if self.default is not None else _parts_or_auto)
            ]
            return parts | None, option(None, text, group, common=self.common, metavar=f"{metavar},...")
        may_be_chosen = self.default is None
        return kind, option(self.default, text, group, common=self.common, auto=may_be_chosen, metavar=metavar)


def _parts_or_auto(value: Any) -> Any:
    """Several values, of which `auto` is one that is chosen."""
    return tuple(None if part == "auto" else part for part in parts_of(value))


def heatmap_options() -> dict[str, Option]:
    """Every option of HeatmapParameters and of every method, by name, in a fixed order."""
    options = {one.name: _option(HeatmapParameters, one) for one in fields(HeatmapParameters) if one.metadata}
    for name, method in METHODS.items():
        for one in fields(method):
            mine = _option(method, one)
            known = options.get(one.name)
            methods = (*known.methods, name) if known else (name,)
            if known and (not known.methods or known.kind is not mine.kind):
                raise TypeError(f"two options are named {one.name}")
            if known and known.help != mine.help:
                raise TypeError(f"methods say different things of {one.name}")
            default = mine.default if not known or known.default == mine.default else None  # the help tells them
            options[one.name] = Option(mine.name, mine.kind, default, mine.help, methods, mine.common)
    return options


def heatmap_parameters(method: str, values: Mapping[str, Any], categories: int = 1) -> HeatmapParameters:
    """Parameters from options by name; one that is None or False, or not there, has its default.

    Raises RequestError for an unknown method, an option of another method, and values out of range.
    """
    options, kind = heatmap_options(), find_method(method)
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    for name in given:
        if options[name].methods and method not in options[name].methods:
            raise RequestError(f"{name}: is an option of {', '.join(options[name].methods)}, not of method {method}")
    own = {name: value for name, value in given.items() if options[name].methods}
    common = {name: value for name, value in given.items() if not options[name].methods}
    kind.check_given(own)
    return HeatmapParameters(**common, categories=categories, method=kind(**own))


def option_grid(
    methods: Sequence[str], values: Mapping[str, Sequence[Any]], others: Sequence[str] = ()
) -> list[tuple[str, dict[str, Any]]]:
    """Every method with every combination of values; a method goes without the options of other methods alone.

    others: names in `values` that are no options of a heatmap, and go to every method. Raises RequestError for unknown
    methods, for an option that none of the methods has, and for more than MAX_COMBINATIONS.
    """
    known = heatmap_options()
    owners = {name: () if name in others else known[name].methods for name in values}
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
    """The method of a name. Raises RequestError, with the known names and the nearest, where there is none."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise RequestError(f"method: there is no {name!r}, there are {', '.join(METHODS)}{hint}")
    return METHODS[name]


def _option(owner: type, one: Field[Any]) -> Option:
    hint = _type_hints(owner)[one.name]
    kind = next((kind for kind in (bool, int, float) if kind is hint or kind in getattr(hint, "__args__", ())), str)
    if one.default is MISSING:
        raise TypeError(f"the option {one.name} of {owner.__name__} has no default")
    return Option(one.name, kind, one.default, one.metadata["help"], common=one.metadata.get("common", False))
