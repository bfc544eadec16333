"""Methods that the package does not know: what it asks of one that a program registers, and of releases of others."""

from __future__ import annotations

import html
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import shapely

import sfumato
from benchmarks.baselines.heatmap_methods import BASELINES, CountMin
from sfumato.pipelines.cli import main
from sfumato.schemas.errors import RequestError
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.request import HeatmapRequest, heatmap_parameters, parameter_owners
from sfumato.transforms.release.release_folder import publish
from sfumato.transforms.secagg.encodings import TreeEncoding
from tests.rejections import rejects
from tests.unit.release.city import city_release


def test_heatmap_options_registered_method(baselines: None) -> None:
    """Its parameters have values by name as all others have, but no request offers them."""
    own = {one.name for method in BASELINES.values() for one in fields(method)}
    assert own <= set(parameter_owners())
    assert not own & set(HeatmapRequest.model_fields)
    assert heatmap_parameters("count_min", {"sketch_rows": 3}).method == CountMin(sketch_rows=3)
    with rejects("sketch_rows"):
        heatmap_parameters("flat", {"sketch_rows": 3})
    for refused in ({"categories": 2}, {"slots": 2}):
        with pytest.raises(RequestError):
            heatmap_parameters("count_min", {}, **refused)


def test_heatmap_parameters_unregistered_method() -> None:
    with rejects("method"):
        heatmap_parameters("hierarchical", {})


@pytest.mark.parametrize("method", BASELINES)
def test_release_files_registered_method(baselines: None, method: str) -> None:
    """Answers of trees are published, and deviations are stated as what they are."""
    release = city_release(method, depth=4)
    is_tree = all(isinstance(result.encoding, TreeEncoding) for result in release.state.results)
    assert is_tree == (method in ("hierarchical", "spatial_decomposition"))
    assert ("answers.parquet" in release.files) == is_tree
    assert release.manifest["errors"]["sums"].startswith("lower bound")
    assert METHODS[method].SENTENCE in html.unescape(release.page)


@pytest.fixture
def earlier(method: str, tmp_path: Path) -> Path:
    """A release by a method that is not registered any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, method, BASELINES[method])
        files = city_release(method, depth=4).files
    publish(str(tmp_path / "release"), files, "made-up", overwrite=False)
    return tmp_path / "release"


@pytest.mark.parametrize("method", BASELINES)
def test_open_release_unregistered_method(method: str, earlier: Path, tmp_path: Path) -> None:
    """A release that an earlier version made is read, exported and has a page, which says whose its method is."""
    assert method not in METHODS
    release = sfumato.open_release(earlier)
    assert len(release.cells) == pq.read_metadata(earlier / "cells.parquet").num_rows > 1
    assert main(["export", str(earlier), "--output", str(tmp_path / "map.gpkg")]) == 0
    assert main(["export", str(earlier), "--output", str(tmp_path / "map.tif")]) == 0
    assert main(["page", str(earlier), "--output", str(tmp_path / "page")]) in (0, 1)
    page = (tmp_path / "page" / "index.html").read_text()
    assert f"does not have the method {method}: sfumato 0.1 of November 2026 or earlier" in page
    assert BASELINES[method].SENTENCE not in html.unescape(page)
    with pytest.raises(RequestError, match="does not state errors of sums of cells"):
        release.zones([shapely.box(-74.0, 40.7, -73.9, 40.75)])
