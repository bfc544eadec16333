"""The plan of a heatmap as text, from public figures only: of a run, of several, and of each trust model. Pure.

`transforms/counting/plan.py` computes plans, for all jobs that count places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import SEES, CentralSplitOrSecagg, Trust
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import Plan, count_plan_text, make_plan, percent
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.observability.text_tables import markdown_table, significant

_ALWAYS = ("users", "epsilon")  # columns of every summary


def heatmap_plan_text(parameters: CountParameters, prior: Estimate | None) -> str:
    """Returns the text of a heatmap's plan, which says what a rotation makes of it. Raises RequestError."""
    text = count_plan_text(parameters, prior)
    if parameters.rotation == 1:
        return text
    return (
        f"for the users of the active cohort; scaled to all users, counts and noise are "
        f"{parameters.rotation} times as many:\n\n{text}"
    )


def trust_table(parameters: CountParameters) -> str:
    """Returns what each trust model costs a heatmap with a number of users in noise and communication, as a table of
    text.
    """
    rows = [["trust", "noise, users", "smallest visible count, users", "KB a client", "who sees what"]]
    for trust in Trust:
        try:
            plan = make_plan(parameters.with_trust(trust))
        except RequestError:  # a model that the heatmap does not offer, or not with these options
            offered = trust in get_args(CentralSplitOrSecagg)
            rows.append([trust, *["-"] * 3, "not with these options" if offered else "not offered for a heatmap"])
            continue
        seen = plan.min_visible_users
        kilobytes = "-" if trust == Trust.CENTRAL else significant(plan.bits / 8000)
        figures = [significant(plan.noise_stddev), "-" if seen is None else significant(seen), kilobytes]
        rows.append([trust, *figures, SEES[trust]])
    return markdown_table(rows, left=(0, 4))


def summary(plans: Sequence[Plan], options: Mapping[str, Sequence[Any]]) -> str:
    """Returns a table of several plans, one in each row, with the options that vary.

    options: the values of each option, by name.
    """
    varied = [name for name, given in options.items() if name in _ALWAYS or len(given) > 1]
    header = ["method", *varied, "sub-queries", "entries", "KB a client", "modulus bits"]
    header += ["noise, users", "smallest visible count, users", "visible level", "shards lost"]
    rows = []
    for plan in plans:
        parameters, last = plan.parameters, plan.sub_queries[-1]
        metadata, has_shards = parameters.metadata(), not parameters.is_one_batch
        row = [parameters.method.NAME, *(_value(metadata.get(name, "")) for name in varied)]
        row += [f"{len(plan.sub_queries)}", f"{plan.entries:,}"]
        row.append("-" if parameters.trust == Trust.CENTRAL else significant(plan.bits / 8000))
        row.append(f"{last.query.window.bits}" if has_shards else "-")
        seen = [None if plan.min_visible_users is None else significant(plan.min_visible_users), plan.visible_level]
        row += [significant(plan.noise_stddev), *("-" if value is None else f"{value}" for value in seen)]
        lost = percent(plan.shards_lost(0)) if parameters.participation == "paper" else "none"
        rows.append([*row, lost if has_shards else "-"])
    return markdown_table([header, *rows])


def _value(value: object) -> str:
    if value is None:
        return "auto"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"
