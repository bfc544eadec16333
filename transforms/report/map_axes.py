"""The picture's map on axes of a caller. Pure."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import make_axes
from matplotlib.ticker import MaxNLocator

from sfumato.schemas.views import PageView
from sfumato.schemas.views.map_views import MapBody
from sfumato.schemas.views.view_parts import Bounds
from sfumato.transforms.report.canvas import DPI, label
from sfumato.transforms.report.map_figure import draw_colours, draw_map, listed_zones, margin_of
from sfumato.transforms.report.map_frame import DegreeFrame


def draw_map_on(axes: Axes, view: PageView, body: MapBody) -> None:
    """Draws the picture's map on axes in degrees, to which a caller can add more. Names fit the axes' present size."""
    layer, region = body.layers[-1], body.start or body.region
    stretch = 1 / math.cos(math.radians((region.south + region.north) / 2))  # of a degree of latitude
    spare = margin_of(view, body) * max((region.east - region.west) / stretch, region.north - region.south)
    bounds = Bounds(
        west=max(region.west - spare * stretch, -180),
        south=max(region.south - spare, -90),
        east=min(region.east + spare * stretch, 180),
        north=min(region.north + spare, 90),
    )
    axes.set(xlim=(bounds.west, bounds.east), ylim=(bounds.south, bounds.north), aspect=stretch)
    listed = listed_zones(layer, layer.measures[0])
    texts = (f"{place} {label(layer.cell_id[row])}" for place, (row, *_) in enumerate(listed, 1))
    names = "   ".join(text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts)
    lines = textwrap.wrap(names, max(int(axes.get_window_extent().width / axes.figure.dpi * 12), 20))
    axes.set(xlabel="\n".join(["longitude, degrees", *lines]), ylabel="latitude, degrees")
    axes.ticklabel_format(useOffset=False)
    draw_colours(make_axes(axes)[0], layer.measures[0], body, 1.0)
    figure: Any = axes.figure
    if (layout := figure.figure.get_layout_engine()) is not None:
        layout.execute(figure.figure)
    axes.apply_aspect()  # after the layout, as a drawing does: names have the room that both leave
    inches = axes.get_window_extent().size / figure.dpi
    for axis, room in zip((axes.xaxis, axes.yaxis), inches / (0.9, 0.5), strict=True):
        axis.set_major_locator(MaxNLocator(nbins=max(int(room), 1), steps=[1, 2, 5, 10]))
    frame = DegreeFrame(bounds, *(max(round(side * DPI), 1) for side in inches.tolist()))
    # In pixels as the picture, and below all that a caller adds.
    sheet = axes.inset_axes((0, 0, 1, 1), zorder=0.5, xticks=[], yticks=[])
    sheet.set_in_layout(False)
    draw_map(sheet, body, layer.measures[0], view.basemap, frame, numbered=[row for row, *_ in listed])
    for text in sheet.texts:
        text.set_clip_on(True)  # where a caller narrows the limits

    def follow(_: Axes) -> None:
        sheet.set_xlim(*frame.columns(np.array(axes.get_xlim())).tolist())
        sheet.set_ylim(*frame.rows(np.array(axes.get_ylim())).tolist())

    for change in ("xlim_changed", "ylim_changed"):
        axes.callbacks.connect(change, follow)
