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

from sfumato.pipelines.counts import HistogramJob, HotspotsJob, QuantilesJob
from sfumato.pipelines.flows import FlowsJob
from sfumato.pipelines.heatmap import HeatmapJob
from sfumato.pipelines.inputs import layout_of, match_files
from sfumato.pipelines.job import ReleaseJob
from sfumato.pipelines.moments import MomentsJob
from sfumato.pipelines.ranges_build import RangesJob
from sfumato.pipelines.release_run import key_and_metadata
from sfumato.pipelines.run import JOBS, request_class, request_of
from sfumato.pipelines.runner_settings import runner_settings
from sfumato.pipelines.zones import ZonesJob
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.schemas.requests.request_base import METHOD, option
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.request import HeatmapRequest, heatmap_parameters, parameter_owners
from sfumato.transforms.histogram.counts_request import HistogramRequest
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
# Which records are read, and how: of every job.
CHARGED = {"ledger": "l.db", "dataset": "city", "period": "2026-11-20", "key_file": "key"}
OF_A_DAY = {**CHARGED, "day_column": "t"}
READING: list[tuple[str, dict[str, Any], Any]] = [
    ("input_format", {}, "csv"),
    ("where", {}, "day=2026-11-20"),
    ("day_column", CHARGED, "t"),
    ("time_zone", OF_A_DAY, "Asia/Tokyo"),
    ("period", OF_A_DAY, "2026-11-21"),
]
LIMITS = [("min_users", {}, 9), ("max_bad_fraction", {}, 0.3), *READING]
PLACES = [
    ("coordinates", {}, "e7"),
    ("geometry_column", {}, "g"),
    ("cell_column", {"cell_index": "h3:9"}, "h"),
    ("cell_index", {"cell_column": "c"}, "h3:8"),
]
COLUMNS = [
    ("user_id_column", {}, "u"),
    ("latitude_column", {}, "y"),
    ("longitude_column", {}, "x"),
    *PLACES,
]
LOG_COLUMNS = [
    *COLUMNS,
    ("weight_column", {}, "w"),
    ("time_column", {}, "t"),
    ("max_dwell", {"time_column": "t"}, 9),
]
SAMPLED = [
    *LIMITS,
    ("epsilon", {}, 2),
    ("delta", {}, 1e-6),
    ("population", {}, 100_000),
    ("items", {}, 50),
    ("contact", {"population": 100_000}, "limited"),
    ("parameters", {}, "paper"),
]
CENTRAL = {"trust": "central"}
COUNTED_BY_CURATOR = [
    ("trust", {}, "central"),
    ("noise", CENTRAL, "gaussian"),
    ("max_items_per_user", CENTRAL, 3),
    ("max_records_per_item", CENTRAL, 3),
]
OF_ZONES: dict[str, Any] = {"region": None, "zones": "tracts", "id_column": "tract"}
OF_INDEX: dict[str, Any] = {"zones": None, "id_column": None, "region": HERE}
SHARDS = {"trust": "secagg"}
IN_ZONES = {"zones": "tracts", "id_column": "tract"}
CELLS = {**ON_MAP, "cells": 3}
GRID = {"method": "snh", "cell_width": 500}
OF_RECORDS = {"origin": None, "destination": None, "time_column": "t"}
# Of each job: an option, what it needs beside it, another value than its own.
PAIR = {"second_column": "speed", "statistics": "covariance"}
CHANGES: dict[str, list[tuple[str, dict[str, Any], Any]]] = {
    "heatmap": [
        *LIMITS,
        *LOG_COLUMNS,
        ("region", {}, THERE),
        ("auxiliary", {}, "infected"),
        ("categories", {"auxiliary": "flu"}, "a,b"),
        ("slots", {"time_column": "t"}, "hour"),
        ("slots", {"time_column": "t", "slots": "0,7,24"}, "0,8,24"),
        ("time_zone", {"time_column": "t", "slots": "hour"}, "Asia/Tokyo"),
        ("records_per_user", {"time_column": "t", "slots": "hour"}, 2),
        ("method", {}, "flat"),
        ("trust", {}, "central"),
        ("epsilon", {}, 2),
        ("delta", {}, 1e-6),
        ("delta", {"delta": 1e-6}, 1e-5),
        ("population", {}, 900),
        ("depth", {}, 8),
        ("contribution", {}, "top"),
        ("schedule", {}, "lean"),
        ("schedule", {}, "paper"),
        ("refine", {"auxiliary": "flu"}, "interval"),
        ("shard_size", {}, 500),
        ("dropout", {}, 0.1),
        ("participation", {}, "paper"),
        ("noise_source", {}, "client"),
        ("colluding", {}, 0.1),
        ("simulated_dropout", {}, 0.5),
        ("night", {}, "2026-11-20"),
        ("night", {"night": "2026-11-19"}, "2026-11-20"),
        ("rotation", CHARGED, "7/30"),
        ("rotation", {**CHARGED, "rotation": "7/30"}, "8/30"),
        ("rotation", {**CHARGED, "rotation": "7/30"}, "7/31"),
    ],
    "histogram": [
        *SAMPLED,
        ("items_file", {"trust": "central"}, "two"),
        *COUNTED_BY_CURATOR,
        ("user_id_column", {}, "u"),
        ("column", {}, "sort"),
        ("region", CELLS, THERE),
        ("cells", CELLS, 4),
        ("latitude_column", CELLS, "y"),
        ("longitude_column", CELLS, "x"),
        *[(name, {**CELLS, **beside}, value) for name, beside, value in PLACES],
    ],
    "hotspots": [
        *SAMPLED,
        *COUNTED_BY_CURATOR,
        ("user_id_column", {}, "u"),
        ("column", {}, "sort"),
        ("region", ON_MAP, THERE),
        ("latitude_column", ON_MAP, "y"),
        ("longitude_column", ON_MAP, "x"),
        *[(name, {**ON_MAP, **beside}, value) for name, beside, value in PLACES],
        ("depth", {}, 8),
        ("levels", {}, 2),
        ("top", {}, 3),
    ],
    "quantiles": [
        *SAMPLED,
        ("user_id_column", {}, "u"),
        ("column", {}, "age"),
        ("range", {}, (0, 6)),
        ("quantiles", {}, "0.5"),
        ("ranges", {}, "1:2"),
        ("method", {"bits": 6}, "interactive"),
        ("bits", {}, 10),
        ("levels", {}, 2),
        ("trust", {}, "central"),
        *[
            (name, {"trust": "central", **beside}, value)
            for name, beside, value in (
                ("epsilon", {}, 2),
                ("column", {}, "age"),
                ("range", {}, (0, 6)),
                ("quantiles", {}, "0.5"),
                ("ranges", {"method": "hierarchical"}, "1:2"),
                ("method", {}, "hierarchical"),
                ("bits", {}, 10),
                ("levels", {"method": "hierarchical"}, 2),
                ("population", {}, 100_000),
            )
        ],
    ],
    "moments": [
        *LIMITS,
        ("user_id_column", {}, "u"),
        ("latitude_column", {"cells": 2, "region": HERE}, "y"),
        ("longitude_column", {"cells": 2, "region": HERE}, "x"),
        *[(name, {"cells": 2, "region": HERE, **beside}, value) for name, beside, value in PLACES],
        ("column", {}, "age"),
        ("bits", {}, 12),
        ("fraction_bits", {}, 2),
        ("signed", {}, "split"),
        ("second_column", PAIR, "age"),
        ("second_bits", PAIR, 12),
        ("second_fraction_bits", PAIR, 2),
        ("second_signed", PAIR, "split"),
        ("second_range", {**PAIR, "trust": "central"}, (0, 6)),
        ("second_bits", {**PAIR, "trust": "central"}, 12),
        ("statistics", {}, "variance"),
        ("variance", {}, "raw"),
        ("method", {}, "weighted"),
        ("tuning", {"method": "adaptive"}, "paper"),
        ("epsilon", {}, 3),
        ("no_dp", {"epsilon": None, "trust": "secagg"}, True),
        ("trust", {"epsilon": None, "no_dp": True}, "secagg"),
        ("trust", {}, "central"),
        ("range", {"trust": "central"}, (0, 6)),
        ("bits", {"trust": "central"}, 12),
        ("bits_per_client", {}, 2),
        ("group_by", {"groups": "a,b"}, "sort"),
        ("groups", {"group_by": "kind"}, "a,c"),
        ("groups_file", {"group_by": "kind"}, "two"),
        ("cells", {"region": HERE}, 3),
        ("region", {"cells": 2}, THERE),
        ("zones", {"id_column": "tract"}, "moved"),
        ("id_column", {"zones": "tracts"}, "county"),
        *[(name, IN_ZONES, value) for name, value in (("latitude_column", "y"), ("longitude_column", "x"))],
        ("group_epsilon", {"group_by": "kind", "groups": "a,b"}, 1),
        ("min_group", {"group_by": "kind", "groups": "a,b"}, 50),
        ("rows_are_users", {}, True),
    ],
    "flows": [
        *LIMITS,
        ("user_id_column", {}, "u"),
        ("region", {}, THERE),
        ("epsilon", {}, 2),
        ("max_trips_per_user", {}, 3),
        ("depth", {}, 7),
        ("zones", OF_ZONES, "moved"),
        ("id_column", OF_ZONES, "county"),
        ("h3", {"h3": 7}, 6),
        ("quadkey", {"quadkey": 12}, 11),
        ("region", {"h3": 7}, THERE),
        ("max_trips_per_user", OF_ZONES, 3),
        ("origin", {}, "a,e"),
        ("destination", {}, "c,e"),
        *[
            (name, OF_RECORDS | base, value)
            for name, base, value in (
                ("latitude_column", {}, "y"),
                ("longitude_column", {}, "x"),
                *PLACES,
                ("time_column", {}, "u"),
                ("max_gap", {}, 60),
                ("min_distance", {}, 5),
            )
        ],
    ],
    "ranges build": [
        *LIMITS,
        *LOG_COLUMNS,
        ("region", {}, THERE),
        ("method", {}, "ug"),
        ("sizes", {}, (200, 300)),
        ("trust", {"method": "ug", "population": 5_000}, "secagg"),
        ("epsilon", {}, 2),
        ("delta", {"method": "ug", "delta": 1e-6}, 1e-5),
        ("population", {}, 5_000),
        ("shard_size", {"method": "adaptive", "trust": "secagg"}, 500),
        ("dropout", {"method": "adaptive", "trust": "secagg"}, 0.1),
        ("depth", {"method": "adaptive"}, 7),
        ("cell_width", {"method": "grid"}, 700),
        ("models", GRID, 2),
        ("network", GRID, "paper"),
        ("checkpoints", GRID, "folder"),
    ],
    "zones": [
        *LIMITS,
        *LOG_COLUMNS,
        ("auxiliary", {}, "infected"),
        ("categories", {"auxiliary": "flu"}, "a,b"),
        ("zones", {}, "moved"),
        ("id_column", {}, "county"),
        ("levels", {}, "tract,county"),
        ("h3", {**OF_INDEX, "h3": 7}, 6),
        ("quadkey", {**OF_INDEX, "quadkey": 12}, 11),
        ("region", {**OF_INDEX, "h3": 7}, THERE),
        ("trust", {}, "secagg"),
        ("epsilon", {}, 2),
        ("delta", {"delta": 1e-6}, 1e-5),
        ("population", {}, 5_000),
        ("contribution", {}, "top"),
        ("shard_size", SHARDS, 500),
        ("dropout", SHARDS, 0.1),
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
        rows = [(shapely.box(west + i, 1, west + 1 + i, 2), {"tract": i, "county": 9 - i}) for i in range(2)]
        values["zones"] = write_geojson(folder / f"{zones}.geojson", rows)
    made: ReleaseJob = CLASSES[name].of(request_of(name, {"input": "in", "output": "out", **values}))
    return made


@pytest.mark.parametrize(
    ("name", "option", "beside", "value"), CASES, ids=[f"{name}-{option}" for name, option, _, _ in CASES]
)
def test_another_value_is_another_binding(
    name: str, option: str, beside: dict[str, Any], value: Any, tmp_path: Path
) -> None:
    if beside.get("method") == "snh" and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
        pytest.skip("networks need JAX")
    before = dict(beside)
    if option in ("cell_column", "cell_index"):
        before = {**beside, "cell_column": "c", "cell_index": "h3:9"}
    elif option in ("groups_file", "items_file"):
        before[option] = "one"
    elif option in ("group_by", "cells", "region", "zones", "id_column") and name == "moments":
        others = {"group_by": "kind", "cells": 2, "region": HERE, "zones": "tracts", "id_column": "tract"}
        before[option] = others[option]
    elif option == "groups":
        before["groups"] = "a,b"
    elif option == "cell_width":
        before["cell_width"] = 500
    elif name == "moments" and option in ("no_dp", "trust"):
        before = {"epsilon": 2}
    after = {**beside, option: value}
    assert job_of(name, tmp_path, **before).parameters() != job_of(name, tmp_path, **after).parameters()
    assert job_of(name, tmp_path, **after).parameters() == job_of(name, tmp_path, **after).parameters()


def is_fixed(field: FieldInfo) -> bool:
    """Whether an option has one value alone."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_option_is_tried_and_stated(name: str, tmp_path: Path) -> None:
    assert set(CLASSES) == {job for job, one in JOBS.items() if one.publishes}
    kind = request_class(name)
    own = {one: field for one, field in kind.model_fields.items() if one not in ReleaseRequest.model_fields}
    shaping = {one for one, field in own.items() if not is_fixed(field)}
    tried = {one for one, _, _ in CHANGES[name]} | OF_FILES | DRAWN
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
    return key_and_metadata(job, files, runner_settings(None, []))[0].subkey("x")


def test_a_renamed_folder_is_other_data_where_its_column_is_read(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    write_files(make_logs(200, 1, seed=1), tmp_path / "logs" / "kind=a", 2)
    first, unread = (subkey(tmp_path, tmp_path / "logs", column) for column in ("kind", "other"))
    shutil.copytree(tmp_path / "logs", tmp_path / "copy")
    assert subkey(tmp_path, tmp_path / "copy", "kind") == first  # a copy resumes a crashed run
    (tmp_path / "logs" / "kind=a").rename(tmp_path / "logs" / "kind=b")
    assert subkey(tmp_path, tmp_path / "logs", "kind") != first
    assert subkey(tmp_path, tmp_path / "logs", "other") == unread
