"""The files of a release, made of its tables and its manifest, and its page and pictures, made of its view. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyarrow as pa

from sfumato.schemas.release import MANIFEST_FILE, PAGE_FILE, RATES_PICTURE
from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import BarsBody, CurveBody, MomentsBody
from sfumato.schemas.views.flow_views import FlowsBody
from sfumato.schemas.views.map_views import MapBody
from sfumato.transforms.release.metadata import manifest_bytes, parquet_bytes
from sfumato.transforms.report.canvas import Canvas
from sfumato.transforms.report.chart_figure import chart_canvas
from sfumato.transforms.report.map_figure import map_canvas
from sfumato.transforms.report.report import render_page

_DRAWS = ContextVar("pictures are drawn", default=True)


@contextmanager
def without_pictures() -> Iterator[None]:
    """Leaves the pictures of releases that are built in the block empty: they take half of the time of a small run."""
    token = _DRAWS.set(False)
    try:
        yield
    finally:
        _DRAWS.reset(token)


def build_release(
    parts: Mapping[str, pa.Table | bytes],
    manifest: Mapping[str, Any],
    view: Callable[[Mapping[str, bytes]], PageView],
) -> dict[str, bytes]:
    """Returns a release's files by name, with the page and pictures that follow from the others; the manifest is last.

    parts: the published tables and other files by name, the geography among them. view: makes the page of the other
    files.
    """
    files = {name: parquet_bytes(part) if isinstance(part, pa.Table) else part for name, part in parts.items()}
    files[MANIFEST_FILE] = manifest_bytes(manifest)
    return {**page_files(view(files)), **files}


def page_files(view: PageView) -> dict[str, bytes]:
    """Returns the page and its pictures by name. A map with one rate has a picture of the rate too."""
    made = {PAGE_FILE: render_page(view).encode()}
    if view.picture is not None:
        made[view.picture] = picture(view).png() if _DRAWS.get() else b""
    if isinstance(view.body, MapBody):
        rates = [place for place, one in enumerate(view.body.layers[-1].measures) if one.kind == "rate"]
        if len(rates) == 1:
            made[RATES_PICTURE] = map_canvas(view, view.body, rates[0]).png() if _DRAWS.get() else b""
    return made


def picture(view: PageView) -> Canvas:
    """Draws the picture that represents a release: its map, or else its charts; equal views give equal pictures.

    Raises:
        TypeError: the view is a timeline, which has no picture.
    """
    body = view.body
    if view.map is not None:
        return map_canvas(view, view.map, flows=body.flows if isinstance(body, FlowsBody) else None)
    if isinstance(body, BarsBody | CurveBody | MomentsBody):
        return chart_canvas(view, body)
    raise TypeError("a timeline has no picture")
