"""Requests for a model: which are possible, and which are refused before any budget is spent."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Sizes
from sfumato.transforms.heatmap.methods.base import Flat
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import CollectionSpec
from sfumato.transforms.ranges.methods import PlainGrid, UniformGrid
from sfumato.transforms.ranges.ranges_plan import METHODS, RangesPlan, make_method
from tests.conftest import REGION

SIZES = Sizes(500, 2000)
SIDES = (141_458, 111_195)  # of the region, in metres


def plan(method: str = "grid", *, sizes: Sizes = SIZES, trust: Any = "central", **given: Any) -> RangesPlan:
    """given: fields of HeatmapParameters; all else are options of the method."""
    counting = {name: given.pop(name) for name in list(given) if name in HeatmapParameters.__dataclass_fields__}
    return RangesPlan(REGION, sizes, method, given, HeatmapParameters(**counting, trust=trust))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "magic"}, "method: must be one of .*grid.*adaptive"),
        ({"trust": "nobody"}, "trust: must be one of central, secagg"),
        ({"sizes": Sizes(500, 120_000)}, "sizes: a square of 120000 m does not fit into the region"),
        ({"sizes": Sizes(25, 100)}, "sizes: 25 m is less than a base cell of so large a region, 35 m"),
        ({"epsilon": math.nan}, r"epsilon: must be a number in \[0.0001, 30\], got nan"),
        ({"epsilon": 0.0}, r"epsilon: must be a number in \[0.0001, 30\], got 0"),
        ({"epsilon": -1.0}, r"epsilon: must be a number in \[0.0001, 30\], got -1"),
        ({"cell_width": math.nan}, "cell_width: must be auto or a number of metres > 0, got nan"),
        ({"cell_width": 0.0}, "cell_width: must be auto or a number of metres > 0, got 0"),
        ({"cell_width": -5.0}, "cell_width: must be auto or a number of metres > 0, got -5"),
        ({"cell_width": math.inf}, "cell_width: must be auto or a number of metres > 0, got inf"),
        ({"cell_width": 112_000.0}, "cell_width: 112000 m is more than the region.s shorter side, 111,195 m"),
        ({"cell_width": 34.0}, "cell_width: 34 m is less than a base cell of so large a region, 35 m"),
        ({"method": "ug", "cell_width": 800.0}, "cell_width: applies only with --method .*grid"),
        ({"method": "adaptive", "cell_width": 800.0}, "cell_width: applies only with"),
        ({"ug_constant": 5.0}, "ug_constant: applies only with --method ug"),
        ({"method": "ug", "ug_constant": math.nan}, "ug_constant: must be a number in"),
        ({"noise": "gaussian"}, "delta: gaussian noise needs one above 0"),
        ({"trust": "secagg"}, "population: with trust secagg .* or --cell_width METRES"),
        ({"method": "ug", "trust": "secagg"}, "population: with trust secagg .* the public number of users$"),
    ],
    ids=str,
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        plan(**given)


@pytest.mark.parametrize(
    ("width", "level"), [(70_000.0, 1), (20_000.0, 3), (18_000.0, 3), (900.0, 7), (62.0, 11), (35.0, 12)]
)
def test_shards_count_cells_that_are_nearest_to_the_wanted_width(width: float, level: int) -> None:
    heatmap = plan(trust="secagg", cell_width=width, epsilon=0.5).heatmap
    assert heatmap is not None
    side = math.sqrt(SIDES[0] * SIDES[1])
    by_ratio = {at: abs(math.log(side / 2**at / width)) for at in range(1, 13)}
    assert heatmap.depth == level == min(by_ratio, key=by_ratio.__getitem__)
    assert (heatmap.method, heatmap.trust, heatmap.epsilon) == (Flat(), "secagg", 0.5)


def test_what_shards_count_follows_from_their_noise_together() -> None:
    """100 shards have ten times the noise of one trusted curator: as many cells as it would have for a tenth."""
    for users, epsilon in ((10_000, 0.5), (1_000_000, 0.5), (1_000_000, 4.0)):
        heatmap = plan("ug", trust="secagg", population=users, epsilon=epsilon).heatmap
        assert heatmap is not None
        # Of so little epsilon that the discrete noise is the continuous one, as it nearly is here.
        alike = math.sqrt(2) / (math.sqrt(users / 10_000) * discrete_laplace_stddev(epsilon))
        assert heatmap.depth == round(math.log2(UniformGrid().cells_per_side(users, alike)))


def test_a_trusted_server_counts_without_a_heatmap() -> None:
    assert plan(cell_width=800.0).heatmap is None
    adaptive = plan("adaptive", depth=8, epsilon=0.3).heatmap
    assert adaptive is not None
    assert (adaptive.depth, adaptive.trust, adaptive.method.NAME) == (8, "central", "adaptive")


LARGE = {"population": 300_000, "epsilon": 0.5, "sizes": Sizes(5_000, 20_000)}


def test_auto_uses_a_tree_by_public_figures_alone() -> None:
    chosen = plan("auto", **LARGE)
    assert chosen.uses_tree
    assert not chosen.trains
    assert chosen.heatmap == chosen.counting
    assert chosen.metadata()["heatmap"] == plan("adaptive", **LARGE).metadata()["heatmap"]
    for other in (
        {"population": None},
        {"population": 300},
        {"epsilon": 3.0},
        {"sizes": Sizes(300, 1000)},
        {"models": 2},
    ):
        grid = plan("auto", **{**LARGE, **other})
        assert not grid.uses_tree
        assert grid.heatmap is None
    assert not plan("snh", **LARGE).uses_tree
    assert not plan("auto", **LARGE, cell_width=900.0, trust="secagg").uses_tree


def test_auto_knows_the_noise_of_all_shards() -> None:
    """100 shards have ten times the noise of a trusted curator, so wider cells, of which a square has fewer."""
    given = {**LARGE, "population": 1_000_000}
    assert plan("auto", **given).uses_tree
    for epsilon, expected in ((0.03, False), (3.0, True)):
        assert plan("auto", **{**given, "epsilon": epsilon}, trust="secagg").uses_tree == expected


def test_a_width_is_chosen_where_a_method_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CollectionSpec, "default_width", property(lambda spec: spec.users * spec.epsilon))
    spec = plan().collection_spec(5000.0, 0.25)
    assert make_method("grid", {}, spec) == PlainGrid(1250.0)
    assert make_method("grid", {"cell_width": 900.0}, spec) == PlainGrid(900.0)
    assert make_method("ug", {"ug_constant": 4.0}, spec) == METHODS["ug"](ug_constant=4.0)  # type: ignore[call-arg]


def test_its_facts_tell_requests_apart() -> None:
    asked = [
        plan(cell_width=800.0),
        plan(cell_width=900.0),
        plan("ug"),
        plan("ug", epsilon=0.5),
        plan("ug", population=3000),
        plan("ug", population=3000, trust="secagg"),
        plan("ug", population=3000, trust="secagg", shard_size=500),
        plan("ug", sizes=Sizes(600, 2000)),
        plan("ug", max_bad_fraction=0.2),
        plan("adaptive", depth=8),
        plan("adaptive", depth=9),
    ]
    metadata = [json.dumps(one.metadata(), sort_keys=True, allow_nan=False) for one in asked]
    assert len(set(metadata)) == len(metadata)
