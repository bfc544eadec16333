"""The map's page in real browsers, by mouse, keyboard and fingers: cells, slots and geography."""

from __future__ import annotations

import csv
import json
import math
import re
import struct
import time
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from shapely.geometry import Polygon, box

from sfumato.schemas.rectangle import Region
from sfumato.schemas.slots import Slots
from sfumato.schemas.views.map_views import Basemap, MapBody, Place, TimeSlots, Zone
from sfumato.schemas.views.view_parts import Bounds, Section, Table
from sfumato.transforms.heatmap.view import heatmap_view
from sfumato.transforms.report.count_measures import count_measure
from sfumato.transforms.report.layers import cell_layer, zone_layer
from sfumato.transforms.report.report import render_page
from sfumato.transforms.report.scales import density_scale
from tests.browser.browsers import ChromiumTab, Tab
from tests.browser.conftest import Open, barriers
from tests.unit.release.city import REGION, CityRelease, city_release
from tests.unit.report.samples import layer_of, map_of, view_of

# The map's page in real browsers: what a reader does with it, by mouse, keyboard and fingers.

MAP = ".map-view"


@pytest.fixture(scope="module")
def release() -> CityRelease:
    return city_release("adaptive", users=40_000)


@pytest.fixture(scope="module")
def page(release: CityRelease, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    for name, content in release.files.items():
        (folder / name).write_bytes(content)
    return folder / "index.html"


def place(tab: Tab) -> tuple[float, float, float]:
    """Zoom, latitude and longitude of the hash, which follows a moment later."""
    time.sleep(0.25)
    found = tab.run("new URLSearchParams(location.hash.slice(1)).get('map')")
    zoom, latitude, longitude = map(float, str(found).split("/"))
    return zoom, latitude, longitude


def moved(tab: Tab) -> bool:
    time.sleep(0.25)
    return bool(tab.run("new URLSearchParams(location.hash.slice(1)).has('map')"))


def test_it_opens_offline_draws_and_says_what_it_is(opened: Open, page: Path, release: CityRelease) -> None:
    tab = opened(page)
    tab.settle()
    colours = tab.run(
        f"(() => {{ const c = document.querySelector('{MAP} canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(d.buffer)).size; })()"
    )
    assert colours > 60
    assert tab.text("h1") == heatmap_view(release.files).headline
    body = tab.text("body")
    for words in (
        "No conclusion's odds change by more than a factor of 2.72",
        "Users per km²",
        "may be empty",
        "answers.parquet",
    ):
        assert words in body
    assert tab.run("document.querySelectorAll('.places li').length") == 6


def test_the_mouse_pans_zooms_with_ctrl_and_scrolls_without(opened: Open, page: Path) -> None:
    tab = opened(page)
    x, y = tab.centre(MAP)
    tab.wheel(x, y, 300)
    tab.until("scrollY > 100")
    assert "scroll zooms the map" in tab.text(".hint")
    assert not moved(tab)
    x, y = tab.centre(MAP)
    tab.wheel(x, y, -300, control=True)
    tab.until("location.hash.includes('map=')")
    zoom, latitude, longitude = place(tab)
    assert (latitude, longitude) == pytest.approx((40.74, -73.96), abs=0.003)  # the pointer was in the middle
    tab.drag([(x, y), (x + 60, y), (x + 120, y - 70)])
    panned = place(tab)
    assert panned[0] == zoom
    assert panned[1] < latitude - 0.002
    assert panned[2] < longitude - 0.002
    degrees = 360 / (256 * 2**zoom)  # of a pixel
    assert longitude - panned[2] == pytest.approx(120 * degrees, rel=0.15)
    assert latitude - panned[1] == pytest.approx(70 * degrees * math.cos(math.radians(latitude)), rel=0.25)
    tab.click(".zoom button:last-child")
    tab.until("!location.hash.includes('map=')")


def test_the_value_under_the_pointer_is_the_cells(opened: Open, page: Path, release: CityRelease) -> None:
    layer = release.layers[-1]
    users = layer.measures[0]
    undivided = [i for i, area in enumerate(layer.area) if area == 1]
    row = max(undivided, key=lambda i: (users.low[i] or 0) * 4.0 ** layer.level[i])
    side = 2.0 ** layer.level[row]
    longitude = REGION["west"] + (layer.x[row] + 0.5) / side * (REGION["east"] - REGION["west"])
    latitude = REGION["north"] - (layer.y[row] + 0.5) / side * (REGION["north"] - REGION["south"])
    tab = opened(page, f"#map=14/{latitude}/{longitude}")
    x, y = tab.centre(MAP)
    tab.move(x, y)
    tab.until("!document.querySelector('.tip').hidden")
    text = tab.text(".tip")
    (shown,) = re.findall(r"About ([\d,]+) users", text)
    assert (users.low[row] or 0) <= int(shown.replace(",", "")) <= (users.high[row] or 0)
    [(_, _, low, high)] = [one for one in users.listed if one[0] == row]  # all places at once, as in the list
    stated = [int(end.replace(",", "")) for end in re.findall(r"([\d,]+) to ([\d,]+), 95%", text)[0]]
    assert stated == pytest.approx([low, high], abs=(high - low) / 4)
    assert "per km²" in text
    assert "° N" in text
    assert "° W" in text
    tab.move(5, 5)
    tab.until("document.querySelector('.tip').hidden")


def test_the_keyboard_moves_zooms_and_speaks(opened: Open, page: Path) -> None:
    tab = opened(page)
    for _ in range(12):
        tab.key("Tab")
        if tab.run(f"document.activeElement.matches('{MAP}')"):
            break
    else:
        raise AssertionError("the map cannot be reached by the keyboard")
    tab.key("+")
    for key in ("ArrowRight", "ArrowDown"):
        tab.until("location.hash.includes('map=')")
        time.sleep(0.4)  # Leaflet drops a key while the map still moves
        tab.key(key)
    tab.until("document.getElementById('spoken').textContent.includes('users')")
    time.sleep(0.4)
    _, latitude, longitude = place(tab)
    assert latitude < 40.74
    assert longitude > -73.96
    assert not tab.run("document.querySelector('.tip').hidden")  # of the cell at the centre
    tab.key("0")
    tab.until("!location.hash.includes('map=')")


def test_a_link_shows_the_same_again(opened: Open, page: Path, release: CityRelease) -> None:
    tab = opened(page, "#map=13.00/40.7400/-73.9700&layer=0")
    assert place(tab) == pytest.approx((13.0, 40.74, -73.97), abs=2e-4)
    first = release.layers[0]
    assert tab.text(".panel .note") == first.note
    tab.run("(() => { location.hash = '#map=12.50/40.7300/-73.9500'; return true; })()")
    tab.until(f"document.querySelector('.panel .note').innerText === {json.dumps(release.layers[-1].note)}")
    assert place(tab) == pytest.approx((12.5, 40.73, -73.95), abs=2.5e-4)  # a pixel
    tab.click("#tools button")
    tab.until("document.querySelector('#tools button').innerText === 'Copied'")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1440, 900)])
def test_the_map_and_its_legend_are_above_the_fold(opened: Open, page: Path, width: int, height: int) -> None:
    tab = opened(page, width=width, height=height)
    tab.rest()
    assert tab.run("document.querySelector('.legend').getBoundingClientRect().bottom <= innerHeight")


def test_downloads_hold_what_is_shown(opened: Open, page: Path, release: CityRelease, downloads: Path) -> None:
    tab = opened(page)
    buttons = tab.run("[...document.querySelectorAll('#tools button')].map(one => one.textContent.split('\u00a0')[0])")
    for old in downloads.iterdir():
        old.unlink()
    for name in ("Picture", "Table"):
        tab.click(f"#tools button:nth-of-type({buttons.index(name) + 1})")
    end = time.monotonic() + 15
    name = heatmap_view(release.files).file_name
    while {one.name for one in downloads.iterdir()} != {f"{name}.csv", f"{name}.png"}:
        assert time.monotonic() < end, list(downloads.iterdir())
        tab.settle()
    time.sleep(0.2)
    layer = release.layers[-1]
    with (downloads / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["cell_id"] for row in rows] == layer.cell_id
    assert [float(row["Users"]) for row in rows] == layer.measures[0].value
    picture = (downloads / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 1_000_000
    width, height = struct.unpack(">II", picture[16:24])
    canvas = tab.run(f"(({{clientWidth: w, clientHeight: h}}) => [w, h])(document.querySelector('{MAP} canvas'))")
    assert width == 2 * canvas[0]
    assert height > 2 * (canvas[1] + 200)  # with a title, the legend, the list, the guarantee and its epsilon


def printed(pdf: bytes) -> tuple[float, float]:
    """Widths divided by heights of the largest image in a PDF file: in pixels, and as it is drawn."""
    pixels, drawn = [(0, 0)], [(0.0, 0.0)]
    for found in re.finditer(rb"<<(.*?)>>\s*stream\r?\n", pdf, re.DOTALL):
        if sides := re.search(rb"/Width (\d+)\s*/Height (\d+)", found[1]):
            pixels.append((int(sides[1]), int(sides[2])))
        elif b"FlateDecode" in found[1] and b"/Font" not in found[1]:
            with suppress(zlib.error):
                content = zlib.decompressobj().decompress(pdf[found.end() :])
                for one in re.finditer(rb"([\d.]+) 0 0 -?([\d.]+) \S+ \S+ cm\s+/X\d+ Do", content):
                    drawn.append((float(one[1]), float(one[2])))
    (wide, high), (across, down) = max(pixels), max(drawn)
    return wide / high, across / down


@pytest.mark.parametrize("browser", ["chromium"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_printed_map_keeps_its_proportions(opened: Open, page: Path, width: int) -> None:
    tab = opened(page, width=width)
    assert isinstance(tab, ChromiumTab)
    pixels, drawn = printed(tab.page.pdf(format="A4"))
    assert drawn == pytest.approx(pixels, rel=0.01)


def test_a_print_is_light_and_sharp_and_the_map_returns(opened: Open, page: Path) -> None:
    tab = opened(page, "#map=13.00/40.7400/-73.9700")
    canvas = f"document.querySelector('{MAP} canvas')"
    state = f"(() => {{ const c = {canvas}; return [c.width, c.height, c.clientWidth, c.clientHeight]; }})()"
    ground = "getComputedStyle(document.body).backgroundColor"
    before, dark, shown = tab.run(state), tab.run(ground), place(tab)
    tab.run("(() => { dispatchEvent(new Event('beforeprint')); return true; })()")
    width, height, wide, high = tab.run(state)  # a browser prints before the next frame
    assert (width, height) == pytest.approx((3 * wide, 3 * high), abs=1)
    assert wide == pytest.approx(686, abs=1)  # all of the text's width
    assert high == pytest.approx(min(686 * before[3] / before[2], 470), abs=1)
    assert tab.run(ground) != dark
    tab.run("(() => { dispatchEvent(new Event('afterprint')); return true; })()")
    tab.settle()
    assert (tab.run(state), tab.run(ground)) == (before, dark)
    assert place(tab) == pytest.approx(shown)


@pytest.mark.parametrize("browser", ["chromium"])
def test_a_page_has_loaded_when_its_map_is_drawn(opened: Open, page: Path) -> None:
    """A program that prints or photographs pages does it as soon as they have loaded."""
    tab = opened(page)
    assert isinstance(tab, ChromiumTab)
    count = "document.querySelectorAll('.places li').length"
    tab.page.add_init_script(f"addEventListener('load', () => window.items = {count})")
    for _ in range(5):
        tab.page.reload()
        assert tab.until("window.items ?? null") == 6


def test_the_policy_lets_nothing_else_run_or_be_fetched(opened: Open, page: Path) -> None:
    tab = opened(page)
    ran = tab.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.intruder = 1';"
        " document.body.append(s); const p = document.createElement('p'); p.setAttribute('style', 'color: red');"
        " document.body.append(p); return [window.intruder ?? null, getComputedStyle(p).color]; })()"
    )
    assert ran[0] is None
    assert ran[1] != "rgb(255, 0, 0)"
    assert tab.run("fetch('https://example.org/').then(() => true, () => false)") is False
    tab.run("new Promise(done => setTimeout(() => done(true), 100))")
    assert tab.errors
    tab.errors.clear()  # those were ours
    tab.requests.clear()


def test_fingers_one_scrolls_the_page_and_two_move_the_map(opened: Open, page: Path, browser: str) -> None:
    tab = opened(page, width=390, height=844, touch=True)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    if browser == "chromium":  # Firefox's driver makes pointer events of fingers, but scrolls nothing
        x, y = tab.centre(MAP)
        tab.rest()
        tab.fingers([[(x, y + 100 - 20 * step) for step in range(11)]])
        tab.until("scrollY > 60")
        assert not moved(tab)
        assert "two fingers" in tab.text(".hint")
    x, y = tab.centre(MAP)
    tab.rest()
    paths = [[(x + sign * (30 + 8 * step), y) for step in range(8)] for sign in (-1, 1)]
    tab.fingers(paths)
    tab.until("location.hash.includes('map=')")
    assert place(tab)[0] > 12


@pytest.mark.parametrize("browser", ["chromium"])  # the rules look at the document, which is the same
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_nothing_serious_for_those_who_see_or_hear_otherwise(opened: Open, page: Path, scheme: str) -> None:
    tab = opened(page, scheme=scheme)
    assert barriers(tab) == []


def test_the_button_changes_the_mode_and_paper_is_light(opened: Open, page: Path) -> None:
    tab = opened(page)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = tab.run(ground)
    labels = tab.run("[...document.querySelectorAll('#tools button')].map(one => one.innerText)")
    tab.click(f"#tools button:nth-of-type({labels.index('Light') + 1})")
    tab.until(f"{ground} !== {json.dumps(dark)}")
    assert "Dark" in tab.run("[...document.querySelectorAll('#tools button')].map(one => one.innerText)")


# The page of a heatmap with slots in real browsers: slider, play button, the curve of a place, its link.

SLOTS = Slots.parse("t", "hour", "Asia/Tokyo")
SLIDER, NAME, HEADING, PLAY = ".slots input[type=range]", ".slots .slot-name", ".slots h3", ".slots button"


@pytest.fixture(scope="module")
def slots_release() -> CityRelease:
    return city_release("adaptive", users=60_000, slots=SLOTS, trust="central")


@pytest.fixture(scope="module")
def slots(slots_release: CityRelease) -> TimeSlots:
    body = heatmap_view(slots_release.files).body
    assert isinstance(body, MapBody)
    assert body.slots is not None
    return body.slots


@pytest.fixture(scope="module")
def slots_page(slots_release: CityRelease, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slots")
    for name, content in slots_release.files.items():
        (folder / name).write_bytes(content)
    return folder / "index.html"


def chosen(tab: Tab) -> str:
    return str(tab.run(f"document.querySelector({json.dumps(SLIDER)}).getAttribute('aria-valuetext')"))


def legend(tab: Tab) -> str:
    return tab.text(".legend-title")


def test_arrow_keys_go_through_the_slots_and_the_map_follows(opened: Open, slots_page: Path) -> None:
    tab = opened(slots_page, "#slot=all")
    assert (chosen(tab), legend(tab)) == ("All slots together", "Users per km²")
    tab.run(f"document.querySelector({json.dumps(SLIDER)}).focus()")
    for hour in range(3):
        tab.key("ArrowRight")
        assert chosen(tab) == tab.text(NAME) == SLOTS.names[hour]
        assert legend(tab) == f"Users per km², {SLOTS.names[hour]}"
    tab.key("End")
    assert chosen(tab) == SLOTS.names[-1]
    # The slot with which a page opens, the one with the most users, is not in its link.
    tab.until("['23', null].includes(new URLSearchParams(location.hash.slice(1)).get('slot'))")
    tab.key("Home")
    assert legend(tab) == "Users per km²"
    assert not tab.errors


def test_a_link_opens_a_slot_and_play_goes_on_from_it(opened: Open, slots_page: Path) -> None:
    tab = opened(slots_page, "#slot=22")
    assert chosen(tab) == SLOTS.names[22]
    tab.click(PLAY)
    assert chosen(tab) == SLOTS.names[23]
    tab.until(f"document.querySelector({json.dumps(SLIDER)}).getAttribute('aria-valuetext') === '{SLOTS.names[0]}'")
    tab.click(PLAY)
    stopped = chosen(tab)
    tab.run("new Promise(done => setTimeout(() => done(true), 1200))")
    assert chosen(tab) == stopped
    assert not tab.errors


@pytest.mark.parametrize("browser", ["chromium"])
@pytest.mark.parametrize("paper", ["Letter", "A4"])
def test_first_sheet_holds_map_and_twelve_places(opened: Open, page: Path, paper: str) -> None:
    tab = opened(page)
    assert isinstance(tab, ChromiumTab)
    room = {"Letter": 11 * 96, "A4": 297 / 25.4 * 96}[paper] - 2 * 0.4 * 96  # CSS pixels, with Chromium's margins
    tab.page.set_viewport_size({"width": 717, "height": int(room)})
    tab.run("(() => { dispatchEvent(new Event('beforeprint')); return true; })()")
    tab.page.emulate_media(media="print")
    ends = tab.run("[...document.querySelectorAll('.places li')].map(one => one.getBoundingClientRect().bottom)")
    assert len(ends) == 12
    assert max(ends) < room
    width = "document.querySelector('.map-frame').getBoundingClientRect().width"
    assert tab.run(width) == pytest.approx(717 - 32, abs=2)  # of the text
    controls = "document.querySelectorAll('.choice, .zoom, .find, .bar-of-tools, input')"
    assert tab.run(f"[...{controls}].every(one => one.getClientRects().length === 0)")


@pytest.mark.parametrize("browser", ["chromium"])
def test_map_of_a_slot_prints(opened: Open, slots_page: Path) -> None:
    tab = opened(slots_page)
    assert isinstance(tab, ChromiumTab)
    pixels, drawn = printed(tab.page.pdf(format="A4"))
    assert drawn == pytest.approx(pixels, rel=0.01)


# Geography in real browsers: it lies where the cells lie, and tiles are fetched only when the reader asks for them.

NORTH = Bounds(west=10, south=59, east=12, north=61)  # a degree of latitude is twice as long as one of longitude
CELL = (3, 2, 5)
SIDES = [(10.5, 59.75), (10.75, 59.75), (10.75, 59.5), (10.5, 59.5), (10.5, 59.75)]
TILES = "https://tile.example.org/{z}/{x}/{y}.png"


def geography_page(folder: Path, name: str, basemap: Basemap | None, tiles: str | None = None) -> Path:
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
    tab = opened(geography_page(tmp_path, "plain", Basemap(source="none")), width=1000, height=700)
    plain = pixels(tab)
    values, counts = np.unique(plain, return_counts=True)
    cell = plain == values[np.argsort(counts)[-2]]  # the commonest is the ground
    rows, columns = np.flatnonzero(cell.any(axis=1)), np.flatnonzero(cell.any(axis=0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    assert cell[top:bottom, left:right].all()
    assert right - left > 20
    drawn = pixels(
        opened(geography_page(tmp_path, "drawn", Basemap(source="none", lines=[SIDES])), width=1000, height=700)
    )
    y, x = np.nonzero(drawn != plain)
    off = np.minimum(
        np.abs(np.subtract.outer(x + 0.5, [left, right])).min(axis=1),
        np.abs(np.subtract.outer(y + 0.5, [top, bottom])).min(axis=1),
    )
    assert len(x) > 2 * (bottom - top)
    assert off.max() <= 1.5
    assert ((x >= left - 2) & (x <= right + 1) & (y >= top - 2) & (y <= bottom + 1)).all()


def test_tiles_are_fetched_only_when_the_reader_asks(opened: Open, tmp_path: Path) -> None:
    tab = opened(geography_page(tmp_path, "tiles", None, TILES))
    time.sleep(0.3)
    assert [one for one in tab.requests if not one.startswith(("file:", "data:", "blob:"))] == []
    assert "tile.example.org. While it is on, that server sees" in tab.text(".map .source")
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
    remote_requests = [one for one in tab.requests if not one.startswith(("file:", "data:", "blob:"))]
    assert remote_requests  # the page's policy let them out; there is no network here
    assert all(one.startswith("https://tile.example.org/") for one in remote_requests)
    tab.requests.clear()
    tab.errors.clear()  # the tiles that could not be loaded


def test_a_tap_opens_a_sheet_that_leaves_the_cell_in_sight(opened: Open, page: Path, browser: str) -> None:
    if browser == "firefox":
        pytest.skip("its driver makes no clicks of taps")
    tab = opened(page, width=390, height=844, touch=True)
    x, y = tab.centre(MAP)
    tab.run("(() => { scrollTo({top: 0, behavior: 'instant'}); return true; })()")
    tab.rest()
    left, top, width, height = tab.run(
        f"(({{left, top, width, height}}) => [left, top, width, height])("
        f"document.querySelector('{MAP}').getBoundingClientRect())"
    )
    x, y = left + width / 2, top + height / 4
    tab.fingers([[(x, y)]])
    tab.until("!document.querySelector('.tip').hidden")
    sheet = tab.run(
        "(({left, right, top, bottom}) => [left, right, top, bottom])("
        "document.querySelector('.tip').getBoundingClientRect())"
    )
    assert sheet[0] == pytest.approx(0, abs=1)
    assert sheet[1] == pytest.approx(390, abs=1)
    assert sheet[3] == pytest.approx(844, abs=1)
    assert sheet[2] > y
    tab.run("(() => { document.querySelector('.tip .close').click(); return true; })()")
    tab.until("document.querySelector('.tip').hidden")


def zones_page(
    folder: Path, boxes: dict[str, Polygon], counts: list[float], basemap: Basemap, ids: list[str] | None = None
) -> Path:
    """A page of zones of a region of one degree."""
    users = np.array(counts)
    ones = np.ones(len(users))
    measure = count_measure(users, ones, users - 2, users + 2, density_scale(users, users), 1, ones, place="zone")
    rows = pa.table({"zone": ids or [f"z{i}" for i in range(len(boxes))], "name": list(boxes)})
    layer = zone_layer("Zones", "", rows, np.array(list(boxes.values())), ones, Region(0, 0, 1, 1), [measure])
    body = MapBody(
        region=Bounds(west=0, south=0, east=1, north=1), depth=0, layers=[layer], finest_metres=(99, 99),
        missing="No zone here",
    )  # fmt: skip
    heads = ["Level", "Zones", "Share of the budget", "Own noise, users (95%)", "Error of a zone, users (95%)"]
    levels = [["Neighbourhoods", "1,234", "87.5%", "± 1,234", "± 1,234"]]
    table = Table(title="Levels", heads=heads, rows=levels, numeric=[False, True, True, True, True])
    view = view_of(body, basemap=basemap, sections=[Section(title="Level by level", table=table)])
    (folder / "index.html").write_text(render_page(view))
    return folder / "index.html"


def test_cells_of_several_sizes_are_listed_with_their_users(opened: Open, tmp_path: Path) -> None:
    """Their density decides the order: of 400 users in a cell, and of 900 in the rest of the cell around it."""
    users, ones, areas = np.array([900.0, 400.0]), np.ones(2), np.array([0.03, 0.01])
    scale = density_scale(users / areas, ones, "users per km²")
    measure = count_measure(users, ones, users - 2, users + 2, scale, 1, areas)
    layer = cell_layer("Cells", "", np.array([4, 16], np.uint64), [measure], [0.75, 1.0])
    bounds = Bounds(west=0, south=0, east=0.004, north=0.004)
    view = view_of(MapBody(region=bounds, depth=2, layers=[layer], finest_metres=(111, 111)))
    (tmp_path / "index.html").write_text(render_page(view))
    tab = opened(tmp_path / "index.html")
    assert tab.text(".listed h2") == "Busiest places, by users per km²"
    lines = tab.run("[...document.querySelectorAll('.places .wide-line')].map(one => one.textContent)")
    assert lines == [
        "about 400 (395 to 405) users in 111 m × 111 m",
        "about 900 (895 to 905) users in part of 222 m × 222 m",
    ]


def test_names_of_zones_are_offered_and_listed_once(opened: Open, tmp_path: Path) -> None:
    """The same names are in the geography and in the layer."""
    boxes = {"Westend": box(0, 0, 0.5, 1), "Ostend": box(0.5, 0, 1, 1)}
    places = [Zone(name=name, rings=[list(shape.exterior.coords)]) for name, shape in boxes.items()]
    tab = opened(zones_page(tmp_path, boxes, [900, 400], Basemap(source="", zones=places)))
    assert tab.run("[...document.querySelectorAll('#names option')].map(one => one.value)") == list(boxes)
    assert tab.run("document.querySelectorAll('.places .wide-line').length") == 0
    users = tab.run("[...document.querySelectorAll('.places b')].map(one => one.innerText)")
    assert users == ["900 (895 to 905)", "400 (395 to 405)"]  # for both zones at once
    first = "document.querySelector('.places .bar i').style.background"
    colours = [tab.run(first)]
    for _ in range(2):
        tab.run("(() => { document.querySelectorAll('#tools button')[1].click(); return true; })()")
        tab.until(f"{first} !== {json.dumps(colours[-1])}")
        colours.append(tab.run(first))
    assert colours[0] == colours[2]  # dark and light


def test_a_link_keeps_the_zone_that_a_list_or_a_click_selects(opened: Open, tmp_path: Path) -> None:
    """The page opens with its tip, with whatever characters an id has. A click elsewhere selects nothing."""
    boxes = {"Mill": box(0.4, 0.4, 0.6, 0.6), "Port": box(0.1, 0.1, 0.12, 0.12)}
    tip = "document.querySelector('.tip:not([hidden]) .value')?.textContent"
    page = zones_page(tmp_path, boxes, [900, 400], Basemap(source=""), ids=["PT:1/á&b=#%", "2"])
    tab = opened(page)
    tab.run("(() => { document.querySelectorAll('.places button')[0].click(); return true; })()")
    tab.until("new URLSearchParams(location.hash.slice(1)).get('at') === 'PT:1/á&b=#%'")
    tab.until("location.hash.includes('map=')")
    link = tab.run("location.hash")
    again = opened(page, link)
    again.until(f"{tip}?.startsWith('Mill: about 900')")
    x, y, wide = again.run("(() => { const box = document.querySelector('.map-view').getBoundingClientRect();"
                           "return [box.left, box.top + box.height / 2, box.width]; })()")  # fmt: skip
    again.drag([(x + wide - 20, y)])
    again.until("!location.hash.includes('at=')")
    again.drag([(x + wide / 2, y)])
    again.until("location.hash.includes('at=')")
    again.move(x + wide + 100, y)
    again.until(f"{tip}?.startsWith('Mill: about 900')")


@pytest.mark.parametrize("browser", ["chromium"])  # Firefox's driver makes no clicks of taps
def test_a_tap_next_to_a_small_zone_means_the_zone(opened: Open, tmp_path: Path) -> None:
    stops = {"Mill": box(0.49, 0.49, 0.51, 0.51), "Port": box(0.1, 0.1, 0.12, 0.12)}
    city = Place(name="City", longitude=0.4, latitude=0.4, rank=0)
    tab = opened(zones_page(tmp_path, stops, [900, 400], Basemap(source="", places=[city])), width=390, touch=True)
    tab.centre(MAP)
    tab.rest()
    x, y, side, high = tab.run(
        f"(({{x, y, width, height}}) => [x, y, width, height])(document.querySelector('{MAP}').getBoundingClientRect())"
    )
    edge = x + side / 2 + 0.01 * min(side, high)  # roughly: the whole region fills the map but for a margin
    tab.fingers([[(edge + 10, y + high / 2)]])
    tab.until("!document.querySelector('.tip').hidden")
    assert "900 users" in tab.text(".tip")
    assert "Mill" in tab.text(".tip")
    assert "City" not in tab.text(".tip")  # which the name says better
    tab.fingers([[(edge + 40, y + high / 2)]])
    tab.until("document.querySelector('.tip').innerText.includes('No value here')")
    assert tab.run("document.querySelectorAll('.places .wide-line').length") == 0


@pytest.mark.parametrize(("margin", "wide"), [(1.0, 1.6), (0.1, 1.2 / 1.14), (0.02, 1.0)])
def test_a_map_is_wide_where_its_geography_goes_on(margin: float, wide: float, opened: Open, tmp_path: Path) -> None:
    """The frame next to the panel ends where land ends, so that it is not empty at its sides."""
    land = [list(box(-margin, -margin, 1 + margin, 1 + margin).exterior.coords)]
    tab = opened(zones_page(tmp_path, {"Mill": box(0, 0, 1, 1)}, [9], Basemap(source="", land=[land])), width=1600)
    shape = tab.run(
        "(({width, height}) => width / height)(document.querySelector('.map-frame').getBoundingClientRect())"
    )
    assert shape == pytest.approx(wide, rel=0.01)


def test_the_tables_of_a_page_fit_a_phone(opened: Open, tmp_path: Path) -> None:
    tab = opened(zones_page(tmp_path, {"Mill": box(0, 0, 1, 1)}, [9], Basemap(source="")), width=390, touch=True)
    tab.run("void document.documentElement.style.setProperty('--sans', 'DejaVu Sans')")  # a wide one, for all machines
    assert tab.run("(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(document.querySelector('.wide'))") <= 0
