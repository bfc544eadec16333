"""Tables of published histograms."""

from __future__ import annotations

import pyarrow as pa
import shapely

from sfumato.transforms.histogram.counts_release import box_shapes
from tests.seeds import seeded_rng


def test_boxes_are_the_bytes_that_shapely_writes() -> None:
    west, south, wide, tall = seeded_rng(1).random((4, 50))
    bounds = west, south, west + wide, south + tall
    shapes = box_shapes(*bounds)
    shapes.validate(full=True)
    assert shapes.equals(pa.array(shapely.to_wkb(shapely.box(*bounds)), pa.binary()))
    assert box_shapes(*(side[:0] for side in bounds)).to_pylist() == []
