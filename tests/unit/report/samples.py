"""Views to draw."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.image import imread
from numpy.typing import NDArray

from sfumato.schemas.views import Body, PageView
from sfumato.schemas.views.map_views import Layer, MapBody, Measure
from sfumato.schemas.views.view_parts import Bounds, Scale

REGION = Bounds(west=0, south=0, east=1, north=1)
LINEAR = Scale(kind="linear", low=0, high=1, unit="share of users", ticks=[(0, "0%"), (0.5, "50%"), (1, "100%")])


def layer_of(
    cells: Mapping[tuple[int, int, int], float | None],
    *,
    kind: Any = "rate",
    scale: Scale = LINEAR,
    uncertain: Sequence[tuple[int, int, int]] = (),
    area: float = 1.0,
) -> Layer:
    """A layer of cells by (level, x, y), coarse cells first."""
    order = sorted(cells)
    value = [cells[one] for one in order]
    measure = Measure(
        name="Rate", kind=kind, unit="", value=value, low=value, high=value, scale=scale,
        uncertain=[one in uncertain for one in order],
    )  # fmt: skip
    level, x, y = (list(one) for one in zip(*order, strict=True)) if order else ([], [], [])
    names = [f"r{place}" for place in range(len(order))]
    return Layer(
        title="Map", note="", level=level, x=x, y=y, area=[area] * len(order), cell_id=names, measures=[measure]
    )


def map_of(layer: Layer, region: Bounds = REGION, missing: str | None = None) -> MapBody:
    """A map of one layer."""
    return MapBody(region=region, depth=10, layers=[layer], missing=missing, finest_metres=(10, 10))


def view_of(body: Body, **changes: Any) -> PageView:
    """A page of a body."""
    view = PageView(
        title="Private map", headline="About 200,000 users", description="", job="heatmap", release_id="r", created="",
        guarantee="Every user is protected by differential privacy with ε = 1.", manifest={}, body=body,
    )  # fmt: skip
    return view.model_copy(update=changes)


def pixels(data: bytes) -> NDArray[np.float64]:
    """The colours of a PNG file, float64[rows, columns, 3]."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    image: Any = imread(io.BytesIO(data), format="png")
    return np.asarray(image[..., :3], dtype=np.float64)
