"""`sfumato plan`: the cost and the accuracy of a heatmap, from public figures only; no data are read."""

from __future__ import annotations

import sys

from sfumato.transforms.counting.plan import make_plan, plan_details
from sfumato.transforms.heatmap.plan import summary, trust_table
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.nights.plan import make_rotation_plan, rotation_table


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
        sys.stdout.write(summary(plans, request.values()))
