"""Tables by H3 cell against H3's own library and `Release.zones`."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import h3
import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely

import sfumato
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.formats import FORMATS, exported_files
from sfumato.transforms.export.h3_file import write_h3
from tests.rejections import rejects


@pytest.mark.parametrize("kind", ["heatmap", "flat"])
def test_each_cell_has_the_users_of_its_shape(kind: str, sources: dict[str, ExportSource]) -> None:
    source = replace(sources[kind], resolution=7)
    content = write_h3(source)[""]
    table = pq.read_table(io.BytesIO(content))
    assert json.loads(table.schema.metadata[b"sfumato"]) == source.statement
    assert b"geo" in table.schema.metadata  # GeoParquet
    frame = table.to_pandas()
    assert frame["h3"].map(h3.is_valid_cell).all()
    assert set(frame["h3"].map(h3.get_resolution)) == {7}
    region = source.release.manifest["region"]
    corners = [(region["south"], region["west"]), (region["north"], region["east"])]
    assert {h3.latlng_to_cell(*corner, 7) for corner in corners} <= set(frame["h3"])
    shapes = [shapely.Polygon([(x, y) for y, x in h3.cell_to_boundary(name)]) for name in frame["h3"]]
    own = sfumato.open_release(source.release.path).zones(shapes)
    for name in ("users", "stddev", "low", "high"):
        assert frame[name].to_numpy() == pytest.approx(own[name].to_numpy(), rel=1e-4, abs=1e-2)
    # The cells tile the map, so together they have its users.
    everybody, _ = source.release.total(np.ones(len(source.release.cells)))
    assert frame["users"].sum() == pytest.approx(everybody, rel=1e-3)


def test_it_needs_a_resolution_and_a_heatmap(sources: dict[str, ExportSource]) -> None:
    with rejects("resolution"):
        exported_files(sources["heatmap"], FORMATS["h3"])
    with rejects("format"):
        exported_files(replace(sources["hotspots"], resolution=7), FORMATS["h3"])
    with rejects("h3"):
        exported_files(replace(sources["heatmap"], resolution=15), FORMATS["h3"])
