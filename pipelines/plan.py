"""`sfumato plan`: the cost and the accuracy of a heatmap, from public figures only; no data are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sfumato.transforms.counting.plan import Plan, make_plan, percent, plan_details, trust_table
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.nights.plan import make_rotation_plan, rotation_table
from sfumato.transforms.observability.text_tables import markdown_table, significant

_ALWAYS = ("users", "epsilon")  # columns of every summary


def run(request: PlanRequest) -> None:
    """Prints the plan of a request. Raises RequestError."""
    settings = request.settings()
    if request.nights is not None:
        sys.stdout.write(rotation_table(make_rotation_plan(settings[0], request.nights)))
        return
    plans = list(map(make_plan, settings))
    if len(plans) == 1:
        sys.stdout.write(f"{plan_details(plans[0])}\nEach trust model (--trust):\n\n{trust_table(plans[0].parameters)}")
    else:
        varied = [name for name, given in request.values().items() if name in _ALWAYS or len(given) > 1]
        sys.stdout.write(summary(plans, varied))


def summary(plans: Sequence[Plan], varied: Sequence[str]) -> str:
    """A table of several plans, one a row, with the options that vary."""
    header = ["method", *varied, "sub-queries", "entries", "KB a client", "modulus bits"]
    header += ["noise, users", "seen from, users", "level seen", "shards lost"]
    rows = []
    for plan in plans:
        parameters, last = plan.parameters, plan.sub_queries[-1]
        metadata, central = parameters.metadata(), parameters.is_central
        row = [parameters.method.NAME, *(_value(metadata.get(name, "")) for name in varied)]
        row += [f"{len(plan.sub_queries)}", f"{plan.entries:,}"]
        row += ["-", "-"] if central else [significant(plan.bits / 8000), f"{last.query.window.bits}"]
        seen = [None if plan.min_visible_users is None else significant(plan.min_visible_users), plan.visible_level]
        row += [significant(plan.noise_stddev), *("-" if value is None else f"{value}" for value in seen)]
        lost = "-" if central else percent(plan.shards_lost(0)) if parameters.participation == "paper" else "none"
        rows.append([*row, lost])
    return markdown_table([header, *rows])


def _value(value: object) -> str:
    if value is None:
        return "auto"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"
