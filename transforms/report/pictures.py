"""The picture of a whole view: its map, or its chart. Pure."""

from __future__ import annotations

from sfumato.schemas.views import FlowsBody, MapBody, MomentsBody, PageView, RangesBody
from sfumato.transforms.report.canvas import PictureFormat
from sfumato.transforms.report.chart_figure import chart_picture
from sfumato.transforms.report.map_figure import map_picture


def picture(view: PageView, format: PictureFormat = "png") -> bytes:
    """The picture that stands for a release: a map if it has one, else a chart; equal views give equal bytes."""
    body = view.body
    if isinstance(body, RangesBody):
        return map_picture(view, body.background, format)
    if isinstance(body, FlowsBody):
        return map_picture(view, body.map, format, flows=body.flows)
    if isinstance(body, MomentsBody) and body.map is not None:
        return map_picture(view, body.map, format)
    if isinstance(body, MapBody):
        return map_picture(view, body, format)
    return chart_picture(view, body, format)
