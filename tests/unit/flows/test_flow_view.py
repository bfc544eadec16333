"""The page of flows: what its map says of a cell, against the exact trips."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.schemas.region import Region
from sfumato.schemas.tree import node_positions
from sfumato.schemas.views import FlowsBody, PageView
from sfumato.transforms.flows.flow_estimate import estimate_flows
from sfumato.transforms.flows.flow_files import FlowMetadata, flow_files
from sfumato.transforms.flows.flow_tree import FlowPlan, measure_flows
from sfumato.transforms.flows.flow_view import flows_view
from sfumato.transforms.flows.user_trips import split_pairs
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.unit.flows.samples import BITS, DEPTH, clustered, key_of, truth

TRIPS = 20_000


def _page(number: int) -> tuple[PageView, NDArray[np.float64]]:
    """A page, and the exact trips of its listed flows by the large cell where they begin."""
    plan, exact = FlowPlan(1.0, depth=DEPTH), clustered(TRIPS, number)
    levels = measure_flows(*exact, BITS, plan, TRIPS, key_of(number))
    release = ReleaseMetadata("flows", "a-release", "2026-11-20T00:00:00+00:00", "operating system", True, {})
    described = FlowMetadata(release, plan, Region(3.0, 1.0, 3.13, 1.13), None, NoisyUserCounts(TRIPS, 0, 0.01, 141))
    view = flows_view(flow_files(levels, described))
    flows = estimate_flows(levels)
    top, trips = int(view.manifest["privacy"]["rounds"][0]["level"]), truth(flows, *exact)
    sums = np.zeros((2**top, 2**top))
    for row in np.flatnonzero(~flows.is_rest).tolist():
        level = int(flows.level[row])
        origin = split_pairs(flows.pair[row : row + 1], level)[0] | np.uint64(4**level)
        _, x, y = node_positions(origin >> np.uint64(2 * (level - top)))
        sums[y[0], x[0]] += trips[row]
    return view, sums


@pytest.mark.slow
def test_the_map_s_intervals_hold_the_trips_of_the_listed_flows() -> None:
    held, places = 0, 0
    for number in range(4):
        view, sums = _page(number)
        assert isinstance(view.body, FlowsBody)
        layer = view.body.map.layers[0]
        measure = layer.measures[0]
        for x, y, value, low, high in zip(layer.x, layer.y, measure.value, measure.low, measure.high, strict=True):
            assert value is not None
            assert low is not None
            assert high is not None
            assert low <= value <= high
            held += low <= sums[y, x] <= high
            places += 1
    assert held >= 0.95 * places


def test_the_report_writes_no_more_digits_than_are_known() -> None:
    view, _ = _page(0)
    (table,) = (part.table for part in view.sections if part.table and part.title == "The largest flows")
    for *_, trips, ends in table.rows:
        low, high = (float(one.replace(",", "")) for one in ends.split(" to "))
        assert low <= float(trips.replace(",", "")) <= high
        assert "." not in trips or high - low < 4
    assert "`" not in json.dumps(view.model_dump(mode="json")["sections"])
