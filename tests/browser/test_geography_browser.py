"""Geography in real browsers: it lies where the cells lie, and tiles are fetched only when the reader asks for them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.views import Basemap, Bounds, Place
from sfumato.transforms.report.report import render_page
from tests.browser.browsers import Tab
from tests.browser.conftest import Open
from tests.unit.report.samples import layer_of, map_of, view_of

NORTH = Bounds(west=10, south=59, east=12, north=61)  # a degree of latitude is twice as long as one of longitude
CELL = (3, 2, 5)
SIDES = [(10.5, 59.75), (10.75, 59.75), (10.75, 59.5), (10.5, 59.5), (10.5, 59.75)]
TILES = "https://tile.example.org/{z}/{x}/{y}.png"


def page(folder: Path, name: str, basemap: Basemap | None, tiles: str | None = None) -> Path:
    body = map_of(layer_of({CELL: 1.0}), NORTH, missing="No cell: too few users.")
    path = folder / f"{name}.html"
    path.write_text(render_page(view_of(body, basemap=basemap, tiles=tiles)))
    return path


def pixels(tab: Tab) -> NDArray[np.int64]:
    """The colours of the map's canvas, int64[rows, columns]."""
    tab.settle()
    width, height, colours = tab.run(
        "(() => { const c = document.querySelector('.map-view canvas');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "return [c.width, c.height, Array.from(new Uint32Array(d.buffer)).join(' ')]; })()"
    )
    return np.array(colours.split(), dtype=np.int64).reshape(int(height), int(width))


def test_geography_and_cells_agree_to_a_pixel(opened: Open, tmp_path: Path) -> None:
    """A line along the sides of a cell changes no pixel that is farther than one from the cell's border."""
    tab = opened(page(tmp_path, "plain", Basemap(source="none")), width=1000, height=700)
    plain = pixels(tab)
    values, counts = np.unique(plain, return_counts=True)
    cell = plain == values[np.argsort(counts)[-2]]  # the commonest is the ground
    rows, columns = np.flatnonzero(cell.any(axis=1)), np.flatnonzero(cell.any(axis=0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    assert cell[top:bottom, left:right].all()
    assert right - left > 20
    drawn = pixels(opened(page(tmp_path, "drawn", Basemap(source="none", lines=[SIDES])), width=1000, height=700))
    y, x = np.nonzero(drawn != plain)
    off = np.minimum(
        np.abs(np.subtract.outer(x + 0.5, [left, right])).min(axis=1),
        np.abs(np.subtract.outer(y + 0.5, [top, bottom])).min(axis=1),
    )
    assert len(x) > 2 * (bottom - top)
    assert off.max() <= 1.5
    assert ((x >= left - 2) & (x <= right + 1) & (y >= top - 2) & (y <= bottom + 1)).all()


def test_the_tip_names_the_nearest_place_and_the_page_its_source(opened: Open, tmp_path: Path) -> None:
    harbour = Place(name="Harbour", longitude=11, latitude=60)
    tab = opened(page(tmp_path, "named", Basemap(source="City survey", places=[harbour])))
    assert "Geography: City survey." in tab.text(".map .source")
    x, y = tab.centre(".map-view")
    tab.move(x + 3, y)
    tab.until("!document.querySelector('.tip').hidden")
    assert "near Harbour" in tab.text(".tip") or "of Harbour" in tab.text(".tip")


def test_tiles_are_fetched_only_when_the_reader_asks(opened: Open, tmp_path: Path) -> None:
    tab = opened(page(tmp_path, "tiles", None, TILES))
    time.sleep(0.3)
    assert [one for one in tab.requests if not one.startswith(("file:", "data:", "blob:"))] == []
    assert "tile.example.org: while it is on, that server sees" in tab.text(".map .source")
    button = "[...document.querySelectorAll('#tools button')].find(one => one.textContent.startsWith('Street'))"
    assert tab.run(f"{button}.getAttribute('aria-pressed')") == "false"
    tab.run(f"{button}.click()")
    assert tab.run(f"{button}.getAttribute('aria-pressed')") == "true"
    tab.until("document.querySelector('.leaflet-tile-pane img') !== null")
    sources = tab.run("[...document.querySelectorAll('.leaflet-tile-pane img')].map(one => one.src).join(' ')").split()
    assert sources
    assert all(one.startswith("https://tile.example.org/") for one in sources)
    tab.run(f"{button}.click()")
    tab.until("document.querySelector('.leaflet-tile-pane img') === null")
    asked = [one for one in tab.requests if not one.startswith(("file:", "data:", "blob:"))]
    assert asked  # the page's policy let them out; there is no network here
    assert all(one.startswith("https://tile.example.org/") for one in asked)
    tab.requests.clear()
    tab.errors.clear()  # the tiles that could not be loaded
