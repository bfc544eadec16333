"""A release's files, opened for its page."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.transforms.report.released import Released
from tests.unit.report.samples import layer_of, map_of


def released() -> Released:
    file = io.BytesIO()
    pq.write_table(pa.table({"count": [1.0], "geometry": [b""]}), file)
    manifest = {"job": "heatmap", "release_id": "r", "created": "2026-11-20T00:00:00+00:00", "files": {"a": {}}}
    return Released({"cells.parquet": file.getvalue(), "manifest.json": json.dumps(manifest).encode()})


def test_table_leaves_out_columns() -> None:
    assert released().table("cells.parquet", without={"geometry"}).column_names == ["count"]


def test_page_names_only_files_that_are_there() -> None:
    described = {"cells.parquet": "cells", "zones.parquet": "zones", "map.png": "a picture"}
    texts = {"title": "Map", "headline": "Users", "description": ""}
    view = released().page(map_of(layer_of({})), [], [], described, ["map.png"], **texts)
    assert [file.name for file in view.files] == ["cells.parquet", "map.png"]
    assert (view.job, view.release_id, view.picture) == ("heatmap", "r", "map.png")
    assert "files" not in view.manifest


def test_page_takes_fields_that_replace_the_manifest_s() -> None:
    texts = {"title": "Map", "headline": "Users", "description": "", "job": "ranges build"}
    assert released().page(map_of(layer_of({})), [], [], {}, ["map.png"], **texts).job == "ranges build"
