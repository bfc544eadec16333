"""What a request is: frozen fields with bounds, help and a group, from text or Python values, with readable errors."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from sfumato.schemas.errors import RequestError, did_you_mean, shown
from sfumato.schemas.guarantee import USUAL_EPSILON

# The groups of options in a help text, in their order.
INPUT, PRIVACY, MAP, METHOD, PROTOCOL, COLUMNS, GROUPS, OUTPUT, KEY, LEDGER, RUN = HELP_GROUPS = (
    "input and output",
    "privacy",
    "map and items",
    "method",
    "secure aggregation",
    "columns",
    "groups",
    "published files",
    "key",
    "privacy ledger",
    "run",
)
_UNITS = ("METRES", "SECONDS")  # of values, in help texts
_DECIMAL_COMMA = re.compile(r"-?[0-9]*,[0-9]+")
T = TypeVar("T")


def option(
    default: Any,
    help: str,
    group: str,
    *,
    common: bool = False,
    auto: bool = False,
    metavar: str | None = None,
    style: Literal["option", "positional", "several", "repeated"] = "option",
    **bounds: Any,
) -> Any:
    """Declares an option: a field of a request.

    Args:
        default: the value if the option is not given; `...` if it is required.
        help: a description, with the unit.
        group: the heading in the help text, one of HELP_GROUPS.
        common: whether `--help` shows the option, as it shows required options; `--help-all` shows every option.
        auto: whether the text `auto` lets the job choose the value, as if the option were not given.
        metavar: the name of the value in the help text; None chooses one by type.
        style: on a command line, `positional` has no name, `several` takes several values, and `repeated` may be
            given several times.
        bounds: `ge`, `gt`, `le` and `lt` of Pydantic's Field.
    """
    extra: dict[str, Any] = {"group": group, "common": common, "auto": auto, "metavar": metavar, "style": style}
    return Field(default, description=help, json_schema_extra=extra, **bounds)


def extra_of(field: FieldInfo) -> dict[str, Any]:
    """Returns the arguments of `option` that Pydantic does not know."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    return extra


def parts_of(value: Any) -> Any:
    """Returns the parts of a text with commas; any other value unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return value if isinstance(value, Sequence) else (value,)


# Several values: `a,b,c` in text, a list in YAML or Python.
Several = Annotated[tuple[T, ...], BeforeValidator(parts_of)]


def _pair(value: Any) -> Any:
    """Returns the two parts of `LOW:HIGH` or `LOW,HIGH`."""
    return tuple(value.replace(",", ":").split(":")) if isinstance(value, str) else value


Pair = Annotated[tuple[float, float], BeforeValidator(_pair)]


class Request(BaseModel):
    """The checked options of one run of a job.

    Make a request with `of`, whose errors are RequestErrors. Attributes that a class sets:
        JOB: the job's name in its manifest and its charge.
        COMMAND: the words after `sfumato` that run it; by default JOB.
        EXAMPLE: the options of a complete command.

    The docstring of a class that sets JOB is the help text of the job.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        coerce_numbers_to_str=True,
        arbitrary_types_allowed=True,
        validate_default=False,
        allow_inf_nan=False,
        defer_build=True,  # a command makes a request of one class, and builds only what checks that class
    )

    JOB: ClassVar[str]
    COMMAND: ClassVar[str]
    ABOUT: ClassVar[str]
    EXAMPLE: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "JOB" in own:
            cls.COMMAND = own.get("COMMAND", cls.JOB)
            cls.ABOUT = " ".join((cls.__doc__ or "").split())

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, values: Any) -> Any:
        """Drops None, and `auto` for options that accept it. Converts paths to text."""
        if not isinstance(values, Mapping):
            return values
        chosen = {name for name, field in cls.model_fields.items() if extra_of(field)["auto"]}
        return {
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in values.items()
            if value is not None and not (isinstance(value, str) and value == "auto" and name in chosen)
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Returns the request with these values by option name: text, or Python values.

        Raises:
            RequestError: an option is unknown, missing or out of range.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise RequestError(cls._explained(error)) from None

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns the named options that were set, by name, without None and False."""
        values = {name: getattr(self, name) for name in names if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def changed(self, names: Iterable[str]) -> list[str]:
        """Returns the named options whose value is not the default."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raises RequestError for the first of the named options whose value is not its default."""
        for name in self.changed(names):
            raise RequestError(f"{name}: {why}")

    @classmethod
    def _explained(cls, error: ValidationError) -> str:
        """Returns a message for the first problem. Unknown names come first: they may explain a missing one."""
        problems = error.errors()
        for problem in problems:
            if problem["type"] == "extra_forbidden":
                name = str(problem["loc"][0])
                return f"{name}: not an option of sfumato {cls.COMMAND}{did_you_mean(name, cls.model_fields)}"
        if missing := [str(one["loc"][0]) for one in problems if one["type"] == "missing" and len(one["loc"]) == 1]:
            return cls._missing(missing)
        problem = problems[0]
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, ValueError):  # of a check of this package, which names the option
            return str(cause)
        name = str(problem["loc"][0])
        is_element = len(problem["loc"]) > 1  # of a list
        field, value = cls.model_fields[name], problem["input"]
        is_comma = option_type(field.annotation) is float and isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value)
        remedy = USUAL_EPSILON if name == "epsilon" else ""
        remedy = f"; write {value.replace(',', '.')}" if is_comma else remedy
        if get_origin(kind := option_type(field.annotation)) is Literal and isinstance(value, str):
            remedy = did_you_mean(value, map(str, get_args(kind)))
        return f"{name}: must be {range_text(field, is_element)}, got {shown(value)}{remedy}"

    @classmethod
    def _missing(cls, names: list[str]) -> str:
        return f"{', '.join(names)}: required; for example: sfumato {cls.COMMAND} {cls.EXAMPLE}"


def option_type(annotation: Any) -> Any:
    """Returns the type of one value of an option: int, float, bool, str, or a Literal."""
    if get_origin(annotation) is Annotated:
        return option_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return option_type(next(one for one in get_args(annotation) if one is not type(None)))
    if get_origin(annotation) is tuple:
        return option_type(get_args(annotation)[0])
    return annotation


def has_several(annotation: Any) -> bool:
    """Returns whether an option of this type has several values."""
    if get_origin(annotation) is Annotated:
        return has_several(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return any(map(has_several, get_args(annotation)))
    return get_origin(annotation) is tuple


def metavar_of(field: FieldInfo) -> str:
    """Returns the name of an option's value in help texts."""
    by_type = {int: "N", float: "X"}.get(option_type(field.annotation), "NAME")
    return str(extra_of(field)["metavar"] or by_type)


def range_text(field: FieldInfo, one: bool = False) -> str:
    """Returns what an option may be, such as `a whole number between 1 and 20`.

    one: describes each value of an option with several.
    """
    kind = option_type(field.annotation)
    bounds = field_bounds(field)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if has_several(field.annotation) and not (one and bounds):
        return f"{ {int: 'whole numbers', float: 'numbers'}.get(kind, 'values') } {extra_of(field)['metavar']}"
    if kind is bool:
        return "true or false"
    if kind not in (int, float):
        return "a map" if get_origin(kind) is dict else "text"
    text, unit = number_text(kind, **bounds), metavar_of(field)
    return text.replace("number", f"number of {unit.lower()}") if unit in _UNITS else text


def field_bounds(field: FieldInfo) -> dict[str, float]:
    """Returns the bounds `ge`, `gt`, `le` and `lt` of a field, or of each of its values."""
    names = ("ge", "gt", "le", "lt")
    declared = (*field.metadata, *_metadata_of_one(field.annotation))
    return {name: limit for part in declared for name in names if (limit := getattr(part, name, None)) is not None}


def _metadata_of_one(annotation: Any) -> list[Any]:
    """Returns the metadata of the type of one of several values."""
    if get_origin(annotation) is Annotated:
        kind, *metadata = get_args(annotation)
        return [*metadata, *_metadata_of_one(kind)]
    return [part for inner in get_args(annotation) for part in _metadata_of_one(inner)]


def number_text(
    kind: type, ge: float | None = None, gt: float | None = None, le: float | None = None, lt: float | None = None
) -> str:
    """Returns the range of a number in words."""
    noun = "a whole number" if kind is int else "a number"
    if ge is not None and le is not None:
        return f"{noun} between {ge} and {le}" if kind is int else f"{noun} between {ge:g} and {le:g}"
    limits = ((">=", ge), (">", gt), ("<=", le), ("<", lt))
    return " ".join([noun, " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)]).strip()
