"""What a request of a model of ranges asks for. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

import importlib.util

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Sizes
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.ranges.ranges_plan import RangesPlan, method_options
from sfumato.transforms.ranges.ranges_request import COUNTING, SHARDS, RangesOptions
from sfumato.transforms.ranges.tuner import open_tuner

_LEARNING = ("auto", "snh")


def requested_ranges(request: RangesOptions) -> RangesPlan | None:
    """The plan of a request, with the path of its workload; None for a model of a published heatmap.

    Raises RequestError.
    """
    if request.release is not None:
        return None
    assert request.region is not None
    given = request.given(method_options())
    if "tuner" in given:
        given["tuner"] = open_tuner(given["tuner"])
    counting = HeatmapParameters(**request.given((*COUNTING, "depth", *SHARDS)), trust=request.trust)
    plan = RangesPlan(request.region, Sizes(*request.sizes), request.method, given, counting)
    if plan.method in _LEARNING and plan.trains and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
        raise RequestError(
            f"method: {plan.method} trains networks, which need JAX and optax: "
            "pip install 'sfumato[neural]', or use --method grid"
        )
    return plan
