"""What a request of a model of ranges asks for. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

import importlib.util

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Sizes
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.ranges.ranges_plan import RangesPlan
from sfumato.transforms.ranges.ranges_request import RangesRequest
from sfumato.transforms.ranges.tuner import open_tuner

_LEARNING = ("auto", "snh")


def requested_ranges(request: RangesRequest) -> RangesPlan | None:
    """The plan of a request, with the path of its workload; None for a model of a published heatmap.

    Raises RequestError.
    """
    if request.release is not None:
        return None
    assert request.region is not None
    given = request.method_options()
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
