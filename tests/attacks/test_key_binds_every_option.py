"""Two runs under one key whose numbers differ must not share their noise: their difference would have none.

So the key is bound to every option that shapes the numbers. An option that nobody thought of is bound as it is; here
each is changed alone. A new option needs a row below.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import shapely
from pydantic.fields import FieldInfo

from sfumato.pipelines.command_line.run import JOBS, request_class, request_of
from sfumato.pipelines.counts import HistogramJob, HotspotsJob, QuantilesJob
from sfumato.pipelines.flows import FlowsJob
from sfumato.pipelines.frame.inputs import layout_of, match_files
from sfumato.pipelines.frame.job import ReleaseJob
from sfumato.pipelines.frame.run_key import key_and_metadata
from sfumato.pipelines.heatmap import HeatmapJob
from sfumato.pipelines.moments import MomentsJob
from sfumato.pipelines.ranges_build import RangesJob
from sfumato.pipelines.zones import ZonesJob
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.schemas.requests.request_base import METHOD, option
from sfumato.transforms.counting.methods import METHODS
from sfumato.transforms.heatmap.request import HeatmapRequest, heatmap_parameters, parameter_owners
from sfumato.transforms.histogram.request import HistogramRequest
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.unit.zones.polygons import write_geojson

CLASSES: dict[str, Any] = {
    "heatmap": HeatmapJob,
    "histogram": HistogramJob,
    "hotspots": HotspotsJob,
    "quantiles": QuantilesJob,
    "moments": MomentsJob,
    "flows": FlowsJob,
    "ranges build": RangesJob,
    "zones": ZonesJob,
}
HERE, THERE = "3,1,3.1,1.1", "3,1,3.2,1.1"
ON_MAP: dict[str, Any] = {"column": None, "region": HERE}
BASES: dict[str, dict[str, Any]] = {
    "heatmap": {"region": HERE, "depth": 7},
    "histogram": {"column": "kind"},
    "hotspots": {"column": "kind"},
    "quantiles": {"column": "km", "range": (0, 5)},
    "moments": {"column": "km", "epsilon": 2},
    "flows": {"region": HERE, "origin": "a,b", "destination": "c,d"},
    "ranges build": {"region": HERE, "method": "grid"},
    "zones": {"zones": "tracts", "id_column": "tract"},
}
Change = tuple[str, dict[str, Any], Any, Any]


def of(beside: dict[str, Any], /, was: Any = None, **values: Any) -> list[Change]:
    """Options and other values than their own; what they need beside them; and their value before, if they need one."""
    return [(name, beside, value, was) for name, value in values.items()]


# Which records are read, and how: of every job.
CHARGED = {"ledger": "l.db", "dataset": "city", "period": "2026-11-20", "key_file": "key"}
LIMITS = [
    *of({}, min_users=9, max_bad_fraction=0.3, input_format="csv", where="day=2026-11-20", decimal=",", dates="dmy"),
    *of(CHARGED, day_column="t"),
    *of({**CHARGED, "day_column": "t"}, time_zone="Asia/Tokyo", period="2026-11-21", hours="8-9"),
]


def places(beside: dict[str, Any]) -> list[Change]:
    """Where coordinates are read from."""
    return [
        *of(beside, coordinates="e7", geometry_column="g", latitude_column="y", longitude_column="x"),
        *of({**beside, "cell_index": "h3:9"}, "c", cell_column="h"),
        *of({**beside, "cell_column": "c"}, "h3:9", cell_index="h3:8"),
    ]


LOG_COLUMNS = [
    *places({}),
    *of({}, user_id_column="u", weight_column="w", time_column="t"),
    *of({"time_column": "t"}, max_dwell=9),
]
SAMPLED = [
    *LIMITS,
    *of({}, user_id_column="u", epsilon=2, delta=1e-6, population=100_000),
    *of({}, items=50, parameters="paper", trust="central"),
    *of({"population": 100_000}, contact="limited"),
]
CENTRAL = {"trust": "central"}
COUNTED = [
    *SAMPLED,
    *of({}, column="sort"),
    *of(CENTRAL, noise="gaussian", max_items_per_user=3, max_records_per_item=3),
]
OF_ZONES: dict[str, Any] = {"region": None, "zones": "tracts", "id_column": "tract"}
OF_INDEX: dict[str, Any] = {"zones": None, "id_column": None, "region": HERE}
CELLS = {**ON_MAP, "cells": 3}
VISITS = {"column": None, "zones": "tracts", "id_column": "tract"}
MEANS_OF_CELLS = {"cells": 2, "region": HERE}
MEANS_OF_ZONES = {"zones": "tracts", "id_column": "tract"}
GROUPS = {"group_by": "kind", "groups": "a,b"}
PAIR = {"second_column": "speed", "statistics": "covariance"}
SHARDS = {"method": "adaptive", "trust": "secagg"}
GRID = {"method": "snh", "cell_width": 500}
OF_RECORDS = {"origin": None, "destination": None, "time_column": "t"}
SLOTS = {"time_column": "t", "slots": "hour"}
# Of each job: the changes that must show.
CHANGES: dict[str, list[Change]] = {
    "heatmap": [
        *LIMITS,
        *LOG_COLUMNS,
        *of({}, region=THERE, auxiliary="infected", method="flat", trust="central", epsilon=2, delta=1e-6),
        *of({}, population=900),
        *of({}, depth=8, contribution="top", schedule="lean", shard_size=500, dropout=0.1, participation="paper"),
        *of({}, schedule="paper", noise_source="client", colluding=0.1, simulated_dropout=0.5, night="2026-11-20"),
        *of({"auxiliary": "flu"}, categories="a,b", refine="interval"),
        *of({"time_column": "t"}, slots="hour"),
        *of({"time_column": "t"}, "0,7,24", slots="0,8,24"),
        *of(SLOTS, time_zone="Asia/Tokyo", records_per_user=2),
        *of({}, 1e-6, delta=1e-5),
        *of({}, "2026-11-19", night="2026-11-20"),
        *of(CHARGED, rotation="7/30"),
        *of(CHARGED, "7/30", rotation="8/30"),
        *of(CHARGED, "7/30", rotation="7/31"),
    ],
    "histogram": [
        *COUNTED,
        *of(CENTRAL, "one", items_file="two"),
        *of(CELLS, region=THERE, cells=4),
        *places(CELLS),
        *of(VISITS, zones="moved", id_column="county", label_column="county"),
        *of({**VISITS, "zones": "stops"}, 300, radius=400),
        *of({**VISITS, **CENTRAL, "day_column": "t", "period": "2026-11-20:2026-11-22"}, average_day=True),
        *of({**ON_MAP, "cells": None}, 7, h3=6),
        *of({**ON_MAP, "cells": None}, 12, quadkey=11),
    ],
    "hotspots": [
        *COUNTED,
        *of(ON_MAP, region=THERE),
        *places(ON_MAP),
        *of({}, depth=8, levels=2, top=3),
    ],
    "quantiles": [
        *SAMPLED,
        *of({}, column="age", range=(0, 6), quantiles="0.5", ranges="1:2", bits=10, levels=2),
        *of({"bits": 6}, method="interactive"),
        *of(CENTRAL, epsilon=2, column="age", range=(0, 6), quantiles="0.5", bits=10, population=100_000),
        *of(CENTRAL, method="hierarchical"),
        *of({**CENTRAL, "method": "hierarchical"}, ranges="1:2", levels=2),
    ],
    "moments": [
        *LIMITS,
        *of({}, user_id_column="u", column="age", bits=12, fraction_bits=2, signed="split", statistics="variance"),
        *of({}, variance="raw", method="weighted", epsilon=3, bits_per_client=2, rows_are_users=True, trust="central"),
        *places(MEANS_OF_CELLS),
        *of(PAIR, second_column="age", second_bits=12, second_fraction_bits=2, second_signed="split"),
        *of({**PAIR, **CENTRAL}, second_range=(0, 6), second_bits=12),
        *of({"method": "adaptive"}, tuning="paper"),
        *of({"trust": "secagg", "epsilon": None}, no_dp=True),
        *of({"no_dp": True, "epsilon": None}, trust="secagg"),
        *of(CENTRAL, range=(0, 6), bits=12),
        *of({"groups": "a,b"}, "kind", group_by="sort"),
        *of({"group_by": "kind"}, "a,b", groups="a,c"),
        *of({"group_by": "kind"}, "one", groups_file="two"),
        *of({"region": HERE}, 2, cells=3),
        *of({"cells": 2}, HERE, region=THERE),
        *of({"id_column": "tract"}, "tracts", zones="moved"),
        *of({"zones": "tracts"}, "tract", id_column="county"),
        *of(MEANS_OF_ZONES, latitude_column="y", longitude_column="x"),
        *of(GROUPS, group_epsilon=1, min_group=50),
    ],
    "flows": [
        *LIMITS,
        *of({}, user_id_column="u", region=THERE, epsilon=2, max_trips_per_user=3, depth=7),
        *of({}, origin="a,e", destination="c,e"),
        *of(OF_ZONES, zones="moved", id_column="county", max_trips_per_user=3, label_column="county"),
        *of({**OF_ZONES, "zones": "stops"}, 300, radius=400),
        *of({}, 7, h3=6),
        *of({}, 12, quadkey=11),
        *of({"h3": 7}, region=THERE),
        *places(OF_RECORDS),
        *of(OF_RECORDS, time_column="u", max_gap=60, min_distance=5),
    ],
    "ranges build": [
        *LIMITS,
        *LOG_COLUMNS,
        *of({}, region=THERE, method="snh", sizes=(200, 300), epsilon=2, population=5_000),
        *of({"method": "grid", "population": 5_000}, trust="secagg"),
        *of({"method": "grid"}, 1e-6, delta=1e-5),
        *of(SHARDS, shard_size=500, dropout=0.1),
        *of({"method": "adaptive"}, depth=7),
        *of({"method": "grid"}, 500, cell_width=700),
        *of(GRID, models=2, network="paper"),
    ],
    "zones": [
        *LIMITS,
        *LOG_COLUMNS,
        *of({}, auxiliary="infected", zones="moved", id_column="county", levels="tract,county", label_column="county"),
        *of({"zones": "stops"}, 300, radius=400),
        *of({}, trust="secagg", epsilon=2),
        *of({}, population=5_000, contribution="top"),
        *of({"auxiliary": "flu"}, categories="a,b"),
        *of(OF_INDEX, 7, h3=6),
        *of(OF_INDEX, 12, quadkey=11),
        *of({**OF_INDEX, "h3": 7}, region=THERE),
        *of({}, 1e-6, delta=1e-5),
        *of({"trust": "secagg"}, shard_size=500, dropout=0.1),
    ],
}
# Of these the manifest states a digest of the content; without a file there is nothing to change.
OF_FILES = {"warm_start", "tuner", "workload", "release"}
# No number depends on what is drawn around the cells: test_job_geography.py of the pipelines compares published tables.
DRAWN = {"basemap", "tiles"}
CASES = [(job, *change) for job, changes in CHANGES.items() for change in changes]


def job_of(name: str, folder: Path, **values: Any) -> ReleaseJob:
    for name_of_file in ("groups_file", "items_file"):
        if (lists := values.get(name_of_file)) is not None:
            (folder / lists).write_text(f"a\n{lists}\n")
            values[name_of_file] = str(folder / lists)
    values = {**BASES[name], **values}
    if (zones := values.get("zones")) is not None:
        west = 3.1 if zones == "moved" else 3.0
        boxes = [shapely.box(west + i, 1, west + 1 + i, 2) for i in range(2)]
        shapes = [one.centroid for one in boxes] if zones == "stops" else boxes
        rows = [(shape, {"tract": i, "county": 9 - i}) for i, shape in enumerate(shapes)]
        values["zones"] = write_geojson(folder / f"{zones}.geojson", rows)
    made: ReleaseJob = CLASSES[name].of(request_of(name, {"input": "in", "output": "out", **values}))
    return made


@pytest.mark.parametrize(
    ("name", "option", "beside", "value", "was"), CASES, ids=[f"{one[0]}-{one[1]}" for one in CASES]
)
def test_another_value_is_another_binding(
    name: str, option: str, beside: dict[str, Any], value: Any, was: Any, tmp_path: Path
) -> None:
    if beside.get("method") == "snh" and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
        pytest.skip("networks need JAX")
    before = {**beside, option: was} if was is not None else beside
    if name == "moments" and option in ("no_dp", "trust"):
        before = {"epsilon": 2}
    after = job_of(name, tmp_path, **{**beside, option: value}).parameters()
    assert job_of(name, tmp_path, **before).parameters() != after


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_values_are_the_same_binding(name: str, tmp_path: Path) -> None:
    """A crashed run is resumed with the same noise."""
    files = ("zones", "groups_file", "items_file")
    for number, (changed, beside, value, _) in enumerate(CHANGES[name]):
        if changed in files or number % 5 == 0:
            first, again = (job_of(name, tmp_path, **{**beside, changed: value}).parameters() for _ in range(2))
            assert first == again


def is_fixed(field: FieldInfo) -> bool:
    """Whether an option has one value alone."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_option_is_tried_and_stated(name: str, tmp_path: Path) -> None:
    assert set(CLASSES) == {job for job, one in JOBS.items() if one.publishes}
    kind = request_class(name)
    own = {one: field for one, field in kind.model_fields.items() if one not in ReleaseRequest.model_fields}
    shaping = {one for one, field in own.items() if not is_fixed(field)}
    tried = {one[0] for one in CHANGES[name]} | OF_FILES | DRAWN
    assert tried >= shaping | {"min_users", "max_bad_fraction", "input_format", "where"}
    stated = job_of(name, tmp_path).parameters()
    elsewhere = CLASSES[name].STATED_AS
    assert set(elsewhere.values()) <= set(stated)
    assert not DRAWN & set(stated)


def test_an_option_that_nobody_thought_of_is_bound(tmp_path: Path) -> None:
    class Novel(HistogramRequest):
        novel: int = option(1, "a new one", METHOD)

    values = {"input": "in", "output": "out", "column": "kind"}
    made = [HistogramJob.of(Novel.of({**values, "novel": number})).parameters()["novel"] for number in (1, 2)]
    assert made == [1, 2]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_metadata_states_every_parameter(method: str) -> None:
    """Parameters that are no options are bound as well: `sfumato.beam` takes them."""
    mine = {name for name, owners in parameter_owners().items() if not owners or method in owners}
    assert mine <= set(heatmap_parameters(method, {"colluding": 0.1}).metadata())


# A column that folders state is a part of the data: another value is other data, and draws other noise.
#
# The key of a named release is bound to its files' content, whatever their names. A folder `kind=a` that is renamed
# to `kind=b` has the same files. Were its noise the same too, the difference of both releases would have none.


def subkey(folder: Path, place: Path, column: str) -> bytes:
    own = {"input": str(place), "output": "out", "region": "-1,50,1,51", "release_id": "monday"}
    request = HeatmapRequest.of(
        {**own, "key_file": str(folder / "key"), "auxiliary": column, "categories": "a,b"},
    )
    job = HeatmapJob.of(request)
    files = match_files(request.input, layout_of(request, job.columns()))
    return key_and_metadata(job, files, local=True)[0].subkey("x")


def test_a_renamed_folder_is_other_data_where_its_column_is_read(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    write_files(make_logs(200, 1, seed=1), tmp_path / "logs" / "kind=a", 2)
    first, unread = (subkey(tmp_path, tmp_path / "logs", column) for column in ("kind", "other"))
    shutil.copytree(tmp_path / "logs", tmp_path / "copy")
    assert subkey(tmp_path, tmp_path / "copy", "kind") == first  # a copy resumes a crashed run
    (tmp_path / "logs" / "kind=a").rename(tmp_path / "logs" / "kind=b")
    assert subkey(tmp_path, tmp_path / "logs", "kind") != first
    assert subkey(tmp_path, tmp_path / "logs", "other") == unread
