"""The cases of a comparison: every method with every combination of its options. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.evaluation.outcomes import Setting
from sfumato.schemas.requests.checks import declared_of, is_optional
from sfumato.schemas.requests.request_base import option_type
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.sub_queries import check_first_query
from sfumato.transforms.heatmap.request import find_method, heatmap_parameters, option_grid, parameter_owners

MARGIN = "dropout_margin"
EARLIER = "earlier_releases"
_OWN = {MARGIN: float, EARLIER: int}
_TOLERANCE_DEVIATIONS = 5.0  # shard sizes are Poisson; tolerated deviations of them, besides the dropout


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        setting: its name, by the options that vary.
        parameters: of its runs.
        earlier: number of earlier releases, each of its own cohort. The run starts from the last of them.
    """

    setting: Setting
    parameters: CountParameters
    earlier: int = 0


def parse_cases(text: str) -> tuple[list[Case], tuple[str, ...]]:
    """Returns the cases and the names of the metrics that options state.

    Args:
        text: `--methods flat,emd --users 1000,2000 --allow_overflow --metrics mse,l1`: parameters of a
            heatmap, and options of `make_cases`, with one or more values each.

    Raises:
        RequestError: as `make_cases`, or a case cannot be run.
    """
    words = dict(one.partition(" ")[::2] for one in text.strip().removeprefix("--").split(" --"))
    methods, metrics = (tuple(words.pop(name).strip().split(",")) for name in ("methods", "metrics"))
    declared = declared_of(CountParameters)
    for method in methods:
        declared = declared | declared_of(find_method(method))
    options = {name: declared[name] for name in parameter_owners() if name in declared}
    kinds = {name: _kind(option_type(one.annotation)) for name, one in options.items()} | _OWN
    if unknown := words.keys() - kinds.keys():
        raise ValueError(f"unknown options: {', '.join(sorted(unknown))}")

    def value(name: str, part: str) -> Any:
        chosen_by_the_job = part == "auto" and name in options and is_optional(options[name])
        return None if chosen_by_the_job else kinds[name](part)

    values = {
        name: [value(name, part) for part in words[name].strip().split(",")] if words[name].strip() else [True]
        for name in kinds
        if name in words
    }
    cases = make_cases(methods, values)
    for case in cases:
        check_first_query(case.parameters)
    return cases, metrics


def _kind(declared: Any) -> type:
    return declared if declared in (bool, int, float) else str


def make_cases(methods: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Makes a case for every point of `option_grid`, named by the options that have several values.

    Args:
        methods: names.
        values: one or more values of each option. `dropout` is the share of clients that vanish, `dropout_margin` the
            share that a shard can lack besides them, `earlier_releases` 0 or 1.

    Raises:
        RequestError: as `option_grid`, or a value is out of range.
    """
    own = {name: values[name] for name in _OWN if name in values}
    grid = option_grid(methods, {name: given for name, given in values.items() if name not in own})
    cases = []
    for (method, shared), chosen in itertools.product(grid, itertools.product(*own.values())):
        options = {**shared, **dict(zip(own, chosen, strict=True))}
        varied = tuple((n, "auto" if v is None else v) for n, v in options.items() if len(values[n]) > 1)
        earlier = options.pop(EARLIER, 0)
        cases.append(Case(Setting(method, varied), case_parameters(method, options), earlier))
    return cases


def case_parameters(method: str, values: Mapping[str, Any]) -> CountParameters:
    """The parameters of a run in which the share `dropout` of the clients vanish. Shards tolerate that."""
    chosen = dict(values)
    margin, dropout = chosen.pop(MARGIN, None), chosen.pop("dropout", 0.0)
    parameters = heatmap_parameters(method, {**chosen, "simulated_dropout": dropout})
    if margin is None:
        margin = _TOLERANCE_DEVIATIONS / math.sqrt(min(parameters.shard_size, parameters.users or math.inf))
    return replace(parameters, dropout=dropout + margin)
