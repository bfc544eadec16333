"""The options of a heatmap and of its methods, as requests offer them, and parameters made from their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic import Field as Bounds

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.request_base import did_you_mean, option, parts_of
from sfumato.transforms.checks import names_of, value_type
from sfumato.transforms.heatmap.methods import METHODS, Method
from sfumato.transforms.heatmap.parameters import HeatmapParameters

MAX_COMBINATIONS = 10_000


@dataclass(frozen=True)
class Option:
    """An option of a heatmap.

    Attributes:
        name: of the field.
        kind: type of its values: int, float, str or bool.
        default: None where the job chooses the value, or where methods have different defaults.
        help: for the help text; empty for a parameter of a method that no request offers.
        methods: names of the methods that have it; empty for an option of every method.
        common: whether `--help` shows it.
        among: the names that it may have; empty for any value of its type.
        bounds: of a number, as `request_base.option` takes them.
    """

    name: str
    kind: type
    default: Any
    help: str
    methods: tuple[str, ...] = ()
    common: bool = False
    among: tuple[str, ...] = ()
    bounds: Mapping[str, float] = field(default_factory=dict)

    def field(self, group: str, many: bool = False) -> tuple[Any, Any]:
        """Type and field of a request, for `pydantic.create_model`.

        Args:
            group: of the help text.
            many: whether the option takes several values; flags never do.
        """
        text = f"{self.help} (method {', '.join(self.methods)})" if self.methods else self.help
        metavar = {int: "N", float: "X"}.get(self.kind, "NAME")
        if self.kind is bool:
            return bool, option(False, text, group, common=self.common)
        may_be_chosen = self.default is None
        kind: Any = Literal[self.among] if self.among else self.kind
        bounds: dict[str, Any] = {**self.bounds, **({"allow_inf_nan": False} if self.bounds and kind is float else {})}
        if many:
            kind = Annotated[kind, Bounds(**bounds)]
            kind = kind | None if may_be_chosen else kind
            several = Annotated[tuple[kind, ...], BeforeValidator(_parts_or_auto if may_be_chosen else parts_of)]
            return several | None, option(None, text, group, common=self.common, metavar=f"{metavar},...")
        extra: dict[str, Any] = {"common": self.common, "auto": may_be_chosen, "metavar": metavar}
        return kind | None if may_be_chosen else kind, option(self.default, text, group, **extra, **bounds)


def _parts_or_auto(value: Any) -> Any:
    """Several values; None for `auto`."""
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
                raise TypeError(f"methods have different help texts for {one.name}")
            if known and (known.among, known.bounds) != (mine.among, mine.bounds):
                raise TypeError(f"methods have different bounds of {one.name}")
            default = mine.default if not known or known.default == mine.default else None  # the help names them
            options[one.name] = replace(mine, default=default, methods=methods)
    return options


def heatmap_parameters(
    method: str,
    values: Mapping[str, Any],
    categories: int = 1,
    slots: int = 1,
    records_per_user: int = 1,
    rotation: int = 1,
) -> HeatmapParameters:
    """Makes parameters of options.

    Args:
        method: its name.
        values: by option name. A missing option, None and False give the default; every flag's is False.
        categories: how many the auxiliary data have; 1 without such data.
        slots: of time, how many; 1 without.
        records_per_user: the most slots in which a user counts.
        rotation: the number of rotating cohorts, one of which is asked.

    Raises:
        RequestError: the method or an option is unknown, an option is of another method, or a value is out of range.
    """
    options, kind = heatmap_options(), find_method(method)
    for name in values:
        if name not in options:
            raise RequestError(f"{name}: a heatmap has no such option{did_you_mean(name, options)}")
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    for name in given:
        if options[name].methods and method not in options[name].methods:
            raise RequestError(f"{name}: is an option of {', '.join(options[name].methods)}, not of method {method}")
    own = {name: value for name, value in given.items() if options[name].methods}
    common = {name: value for name, value in given.items() if not options[name].methods}
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
    known = heatmap_options()
    owners = {name: known[name].methods for name in values}
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


def _option(owner: type, one: Field[Any]) -> Option:
    kind = value_type(owner, one) or str
    if one.default is MISSING:
        raise TypeError(f"the option {one.name} of {owner.__name__} has no default")
    told = {key: one.metadata[key] for key in ("help", "common", "bounds") if one.metadata}
    return Option(one.name, kind, one.default, **{"help": "", **told}, among=names_of(owner, one))
