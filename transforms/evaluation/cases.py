"""The cases of a comparison: every method with every combination of its options. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.schemas.comparison import Setting
from sfumato.schemas.errors import RequestError
from sfumato.transforms.checks import check_integer, check_number
from sfumato.transforms.heatmap.heatmap_options import heatmap_parameters, option_grid
from sfumato.transforms.heatmap.parameters import HeatmapParameters

MARGIN = "dropout_margin"
EARLIER = "earlier_releases"
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
    parameters: HeatmapParameters
    earlier: int = 0


def make_cases(methods: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Makes a case for every point of `option_grid`, named by the options that have several values.

    Args:
        methods: names.
        values: one or more values of each option. `dropout` is the share of clients that vanish, `dropout_margin` the
            share that a shard can lack besides them, `earlier_releases` 0 or 1.

    Raises:
        RequestError: as `option_grid`, or a value is out of range.
    """
    cases = []
    for method, chosen in option_grid(methods, values, others=(MARGIN, EARLIER)):
        varied = tuple((n, "auto" if v is None else v) for n, v in chosen.items() if len(values[n]) > 1)
        earlier = chosen.get(EARLIER) or 0
        parameters = case_parameters(method, {name: value for name, value in chosen.items() if name != EARLIER})
        check_integer(EARLIER, earlier, 0, 1)
        if earlier and not parameters.method.STARTS_WARM:
            raise RequestError(f"{EARLIER}: method {method} cannot start from an earlier release; use adaptive")
        if earlier:
            parameters.method.check_warm_start()
        if earlier and parameters.users is None:
            raise RequestError(
                f"{EARLIER}: an earlier release needs other users; give the size of the cohorts, --users N"
            )
        cases.append(Case(Setting(method, varied), parameters, earlier))
    return cases


def case_parameters(method: str, values: Mapping[str, Any]) -> HeatmapParameters:
    """The parameters of a run in which the share `dropout` of the clients vanish. Shards tolerate that."""
    chosen = dict(values)
    margin, dropout = chosen.pop(MARGIN, None), chosen.pop("dropout", 0.0)
    parameters = heatmap_parameters(method, {**chosen, "simulated_dropout": dropout})
    size = min(parameters.shard_size, parameters.users or math.inf)
    if margin is None:
        margin = _TOLERANCE_DEVIATIONS / math.sqrt(size)
    check_number(MARGIN, margin, ge=0, le=10)
    if dropout + margin > 0.9:
        raise RequestError(
            f"dropout: shards of {size:,.0f} would need to tolerate {dropout + margin:.0%} missing clients, and the "
            f"limit is 90%; give larger shards, less dropout, or another {MARGIN}"
        )
    return replace(parameters, dropout=dropout + margin)
