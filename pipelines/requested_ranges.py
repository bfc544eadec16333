"""What a request of a model of ranges asks for. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

import importlib.util

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes, Sizes
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.ranges.ranges_plan import RangesPlan
from sfumato.transforms.ranges.ranges_request import RangesRequest
from sfumato.transforms.ranges.tuner import open_tuner

_LEARNING = ("auto", "snh")


def check_ranges(request: RangesRequest) -> None:
    """Raises RequestError where options contradict each other, but for what only the squares of a workload show."""
    if request.release is None:
        requested_ranges(request)


def requested_ranges(request: RangesRequest, workload: Boxes | None = None) -> RangesPlan:
    """The plan of a request, with the squares of its workload. Raises RequestError."""
    assert request.region is not None
    given = request.method_options()
    if workload is not None:
        given["workload"] = workload
    if "tuner" in given:
        given["tuner"] = open_tuner(given["tuner"])
    counting = HeatmapParameters(**request.counting(), **request.given(("depth",)))
    plan = RangesPlan(request.region, Sizes(*request.sizes), request.method, given, counting)
    if plan.method in _LEARNING and plan.trains and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
        raise RequestError(
            f"method: {plan.method} trains networks, which need JAX and optax: "
            "pip install 'sfumato[neural]', or use --method grid"
        )
    return plan
