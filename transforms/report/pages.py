"""A release's page and pictures as files. Pure."""

from __future__ import annotations

from sfumato.schemas.release import PAGE_FILE, RATES_PICTURE
from sfumato.schemas.views import MapBody, PageView
from sfumato.transforms.report.map_figure import map_picture
from sfumato.transforms.report.pictures import picture
from sfumato.transforms.report.report import render_page


def page_files(view: PageView) -> dict[str, bytes]:
    """The page and its pictures by name. A map with one rate has a picture of the rate too."""
    made = {PAGE_FILE: render_page(view).encode()}
    if view.picture is not None:
        made[view.picture] = picture(view)
    if isinstance(view.body, MapBody):
        rates = [place for place, one in enumerate(view.body.layers[-1].measures) if one.kind == "rate"]
        if len(rates) == 1:
            made[RATES_PICTURE] = map_picture(view, view.body, measure=rates[0])
    return made
