"""A release's page and pictures as files, made of its view. Pure."""

from __future__ import annotations

from sfumato.schemas.release import PAGE_FILE, RATES_PICTURE
from sfumato.schemas.views import FlowsBody, MapBody, MomentsBody, PageView, RangesBody, TimelineBody
from sfumato.transforms.report.canvas import Canvas
from sfumato.transforms.report.chart_figure import chart_canvas
from sfumato.transforms.report.map_figure import map_canvas
from sfumato.transforms.report.report import render_page


def page_files(view: PageView) -> dict[str, bytes]:
    """Returns the page and its pictures by name. A map with one rate has a picture of the rate too."""
    made = {PAGE_FILE: render_page(view).encode()}
    if view.picture is not None:
        made[view.picture] = picture(view).png()
    if isinstance(view.body, MapBody):
        rates = [place for place, one in enumerate(view.body.layers[-1].measures) if one.kind == "rate"]
        if len(rates) == 1:
            made[RATES_PICTURE] = map_canvas(view, view.body, rates[0]).png()
    return made


def picture(view: PageView) -> Canvas:
    """Draws the picture that stands for a release: its map, or else its charts; equal views give equal pictures.

    Raises:
        TypeError: the view is a timeline, which has no picture.
    """
    body = view.body
    if isinstance(body, FlowsBody):
        return map_canvas(view, body.map, flows=body.flows)
    if isinstance(body, RangesBody):
        return map_canvas(view, body.background)
    if isinstance(body, MomentsBody) and body.map is not None:
        return map_canvas(view, body.map)
    if isinstance(body, MapBody):
        return map_canvas(view, body)
    if isinstance(body, TimelineBody):
        raise TypeError("a timeline has no picture")
    return chart_canvas(view, body)
