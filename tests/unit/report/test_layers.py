"""Layers of a map: cells by their nodes, and polygons whose borders are simplified."""

from __future__ import annotations

import numpy as np
import shapely
from shapely.geometry import box

from sfumato.schemas.region import Region
from sfumato.schemas.tree import nodes_from_names
from sfumato.transforms.report.layers import cell_layer, simple_paths
from tests.unit.report.samples import layer_of


def test_cell_layer_places_cells_by_their_nodes() -> None:
    measures = layer_of({(1, 0, 1): 0.5, (2, 3, 0): 0.7}).measures
    layer = cell_layer("Map", "", nodes_from_names(["r1", "r22"], 2), measures)
    assert (layer.level, layer.x, layer.y) == ([1, 2], [0, 3], [1, 0])
    assert (layer.cell_id, layer.area) == (["r1", "r22"], [1.0, 1.0])


def test_simple_paths_leaves_no_gaps_and_keeps_holes() -> None:
    angle = np.linspace(0, 2 * np.pi, 4000, endpoint=False)
    disc = shapely.Polygon(np.stack([3.1 + 0.05 * np.cos(angle), 1.1 + 0.05 * np.sin(angle)], axis=1))
    frame = shapely.difference(box(3.0, 1.0, 3.2, 1.2), disc)
    shapes = np.array([frame, disc], dtype=object)
    made = simple_paths(shapes, Region(3.0, 1.0, 3.2, 1.2))
    assert [len(rings) for rings in made] == [2, 1]
    assert sum(len(ring) for rings in made for ring in rings) < 1000
    again = [shapely.Polygon(rings[0], rings[1:]) for rings in made]
    assert shapely.coverage_is_valid(np.array(again, dtype=object))
