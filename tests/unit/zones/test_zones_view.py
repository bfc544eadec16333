"""The page of zones: its layers, what it leaves out, and names that could be markup."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.places import Places
from sfumato.schemas.views import MapBody
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.report.report import render_page
from sfumato.transforms.zones import zones_view
from sfumato.transforms.zones.zone_file import ZoneLevel, Zones
from sfumato.transforms.zones.zone_levels import ZoneLevels
from sfumato.transforms.zones.zone_raster import ZoneLocator
from sfumato.transforms.zones.zones_release import zones_files
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import voronoi, zones_of
from tests.unit.zones.test_zones_release import METADATA

pytestmark = pytest.mark.usefixtures("blank_pictures")
EVIL = "<script>alert(1)</script>"


def files_of(zones: Zones) -> dict[str, bytes]:
    shares = (0.8, *[0.0] * (len(zones.levels) - 1), 0.2) if zones.levels else (1.0,)
    method = ZoneLevels(zones, shares)
    own = HeatmapParameters(depth=ZoneLocator(zones).depth, method=method, trust="central")
    places = Places(own.depth)
    users = np.sort(keyed_hash(bytes(16), np.arange(900)) & ~places.mask)
    codes = seeded_rng(1).integers(0, len(zones), 900).astype(np.uint64)
    state = run_in_memory(Rows(places, users, codes), 900, own, RunKey.derive(FixedSecret(b"view" * 8), {}))
    return zones_files(state, own, method, METADATA)


def with_rows(zones: Zones) -> Zones:
    parents = np.arange(len(zones)) % 4
    return Zones(zones.ids, zones.geometries, "tract", (ZoneLevel("county", ("a", "b", "c", EVIL), parents),))


def test_every_level_is_a_layer_of_polygons_the_finest_last() -> None:
    zones = with_rows(zones_of(voronoi(40, seed=1)))
    view = zones_view.zones_view(files_of(zones))
    body = view.body
    assert isinstance(body, MapBody)
    assert [(layer.title, len(layer.level)) for layer in body.layers] == [("county", 4), ("tract", 40)]
    coarse = body.layers[0].shapes
    assert coarse is not None
    rings = [shapely.Polygon(ring) for one in coarse for ring in one]  # counties of many parts, without holes
    assert abs(shapely.union_all(rings).area - 0.04) < 1e-4
    fine = body.layers[-1]
    assert fine.shapes is not None
    total = shapely.union_all([shapely.Polygon(rings[0]) for rings in fine.shapes])
    assert abs(total.area - 0.04) < 1e-4
    assert abs(sum(fine.area) - 1) < 1e-3  # shares of the region
    assert fine.cell_id == [str(i) for i in range(40)]
    assert EVIL not in render_page(view)


def test_a_level_with_too_many_zones_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones_view, "MAX_SHOWN", 10)
    view = zones_view.zones_view(files_of(with_rows(zones_of(voronoi(40, seed=1)))))
    assert isinstance(view.body, MapBody)
    assert [layer.title for layer in view.body.layers] == ["county"]
    assert "not on this page" in render_page(view)
