"""The page of nightly releases in a real browser (Debian's chromium, or skipped), from disk and from a web server."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.region import Grid, Region
from sfumato.schemas.timeline import DatedRelease
from sfumato.schemas.tree import Tree, node_paths, node_positions
from sfumato.transforms.heatmap.raster import density as density_of
from sfumato.transforms.release.page_index import index_page, map_file
from tests.statistics import FLAKE_RATE
from tests.transforms.release.browsing import Browser, Visit
from tests.transforms.release.test_page_index import A_YEAR, REGION, a_limit, a_night, cells_of, day, rasters_of

PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
DEPTH, LEVEL = 7, 5
USERS, SIGMA = 100_000.0, 10.0
STADIUM = (0.80, 0.20)  # from the north-west, in shares of the region: far east, far north
BEACH = (0.11, 0.67)


class Site(Visit):
    """A page that may also load its maps."""

    loaded: str | None = None  # pattern of what else may be asked for

    def wait(self) -> None:
        self.until("window.sfumato?.settled === true")
        self.settle()

    def pixels(self, name: str, points: list[tuple[float, float]]) -> NDArray[np.float64]:
        """Red, green, blue of a map's canvas at places from the north-west of the region, float64[n, 3]."""
        self.settle()
        places = [
            (REGION.west + u * (REGION.east - REGION.west), REGION.north - v * (REGION.north - REGION.south))
            for u, v in points
        ]
        script = """([name, places]) => {
          const { canvas, ctx, size } = sfumato.panels[name];
          return places.map(([lon, lat]) => {
            const [x, y] = sfumato.project(lon, lat, name).map(one => Math.floor(one * size.dpr));
            return [...ctx.getImageData(x, y, 1, 1).data].slice(0, 3);
          });
        }"""
        return np.array(self.run(script, [name, places]), dtype=np.float64)

    def close(self) -> None:
        self.leave()
        missing = [error for error in self.errors if "ERR_FILE_NOT_FOUND" not in error]
        assert missing == []
        start = re.escape(self.address.rsplit("/", 1)[0])
        for request in self.requests:
            assert re.fullmatch(start + r"/(page.html(#.*)?|maps/[\w-]+\.js)", request)


def a_map(
    seed: int, spots: dict[tuple[float, float], float] | None = None, level: int = LEVEL, noise: float = SIGMA
) -> tuple[Tree, NDArray[np.float64]]:
    """A uniform tree with 100,000 users spread evenly, with noise, and more or fewer in the cells at some places."""
    tree = Tree.uniform(DEPTH, level)
    counts = np.full(len(tree.entries), USERS / 4**level) + default_rng(seed).normal(0, noise, len(tree.entries))
    _, x, y = node_positions(tree.entries)
    for (u, v), more in (spots or {}).items():
        counts[(x == int(u * 2**level)) & (y == int(v * 2**level))] += more
    return tree, counts


def written(number: int, tree: Tree, counts: NDArray[np.float64], region: Region = REGION) -> bytes:
    cells = cells_of(tree, counts, np.full(len(counts), SIGMA))
    return map_file(day(number), density_of(tree, counts), cells, Grid(region, DEPTH))


@pytest.fixture
def site(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """site(maps, nights, **context) -> the page, opened from disk, with these map files beside it."""
    visits = []

    def visit(
        maps: dict[int, bytes], nights: list[DatedRelease] | None = None, limits: Any = (), **context: Any
    ) -> Site:
        folder = tmp_path / str(len(visits))
        (folder / "maps").mkdir(parents=True)
        for number, content in maps.items():
            (folder / "maps" / f"{day(number)}.js").write_bytes(content)
        nights = nights or [a_night(number) for number in maps]
        (folder / "page.html").write_text(index_page("bay_area", nights, limits), encoding="utf-8")
        visits.append(Site(browser, folder / "page.html", **context))
        visits[-1].wait()
        return visits[-1]

    yield visit
    for one in visits:
        if one.is_open:
            one.close()


@pytest.fixture(scope="module")
def week() -> dict[int, bytes]:
    """Days 0 to 6 without 3; the stadium fills and the beach empties on the last."""
    spots = {STADIUM: 900.0, BEACH: -80.0}
    return {i: written(i, *a_map(i, spots if i == 6 else None)) for i in (0, 1, 2, 4, 5, 6)}


def hue(pixel: NDArray[np.float64]) -> str:
    red, _, blue = pixel
    return "gained" if red > blue + 30 else "lost" if blue > red + 30 else "same"


def test_a_hot_spot_shows_where_it_is_and_which_way_it_went(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    visit = site(week)
    assert visit.run("sfumato.chosen") == {"a": day(5), "b": day(6), "mode": "before"}
    mirrored = [(u, 1 - v) for u, v in (STADIUM, BEACH)] + [(1 - u, v) for u, v in (STADIUM, BEACH)]
    found = [hue(pixel) for pixel in visit.pixels("change", [STADIUM, BEACH, *mirrored])]
    assert found == ["gained", "lost", "same", "same", "same", "same"]
    night = visit.pixels("night", [STADIUM, BEACH, *mirrored]).sum(axis=1)
    assert night[0] > night[2:].max() + 20
    assert night[1] < night[2:].min() - 20
    # The other way round it is the other way round.
    visit.run(f"location.hash = '{day(6)}..{day(5)}'")
    visit.until(f"sfumato.chosen.a === '{day(6)}'")
    visit.wait()
    assert [hue(pixel) for pixel in visit.pixels("change", [STADIUM, BEACH])] == ["lost", "gained"]


def test_north_is_up(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    visit = site(week)
    places = [(REGION.west + u * 0.2, REGION.north - v * 0.1) for u, v in (STADIUM, BEACH)]
    (x0, y0), (x1, y1) = [visit.run("p => sfumato.project(...p)", list(place)) for place in places]
    assert x0 > x1  # further east is further right
    assert y0 < y1  # further north is further up


def test_the_value_under_the_pointer_is_the_files(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    visit = site(week)
    shares = [rasters_of(week[i])[1] for i in (5, 6)]
    x, y = (4 * int(one * 32) for one in STADIUM)  # a cell has 4 x 4 pixels
    before, after = (share[y : y + 4, x : x + 4].sum() for share in shares)
    canvas = visit.page.locator("#canvas-change")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    place = [REGION.west + STADIUM[0] * 0.2, REGION.north - STADIUM[1] * 0.1]
    x, y = visit.run("p => sfumato.project(...p)", place)
    visit.page.mouse.move(box["x"] + x, box["y"] + y)
    visit.settle()
    tip = visit.page.locator("[data-card=change] .tip")
    assert tip.locator(".value").inner_text() == f"+{100 * (after - before):.2g} points"
    margin = 2 * np.hypot(*(SIGMA / np.maximum(a_map(i)[1], 0).sum() for i in (5, 6)))
    told = re.match(r"± ([\d.]+) points", tip.locator(".margin").inner_text())
    assert told
    assert float(told[1]) == pytest.approx(100 * margin, rel=0.03)  # two digits, and the spots' own users
    rows = dict(zip(tip.locator("dt").all_inner_texts(), tip.locator("dd").all_inner_texts(), strict=True))
    assert rows["A"].startswith(f"{100 * before:.3g}%, about {before * 125_000:,.0f} users")
    assert rows["B over A"] == f"{after / before:.3g}×"
    # The list names the same place, and goes there.
    first = visit.page.locator("#most button").first
    assert first.inner_text().split("\n")[0] == f"+{100 * (after - before):.2g} points"
    first.click()
    visit.settle()
    assert visit.run("sfumato.view.k") > 1
    assert visit.run("[sfumato.view.x, sfumato.view.y]") == pytest.approx(STADIUM, abs=1 / 32)


def test_noise_alone_is_mostly_within_the_noise(site: Callable[..., Site]) -> None:
    visit = site({0: written(0, *a_map(11)), 1: written(1, *a_map(12))})
    beyond = visit.run("sfumato.panels.change.blocks.lost.filter(lost => !lost).length")
    # Two standard deviations of a normal law, in 1024 cells; that the shares add up to 1 is too little to see.
    low, high = stats.binom.ppf([FLAKE_RATE, 1 - FLAKE_RATE], 4**LEVEL, 2 * stats.norm.sf(2))
    assert low <= beyond <= high
    assert visit.page.inner_text("#change-facts").startswith(f"{beyond} of 1,024 cells differ by more than the noise")
    assert visit.page.locator("#most button").count() <= 3
    # Noise that is larger than told would stand out.
    loud = site({0: written(0, *a_map(11, noise=2 * SIGMA)), 1: written(1, *a_map(12, noise=2 * SIGMA))})
    assert loud.run("sfumato.panels.change.blocks.lost.filter(lost => !lost).length") > high


def test_a_finer_grid_is_no_change(site: Callable[..., Site]) -> None:
    """The second night divides the crowded cells only: inside one the first night knows nothing."""
    coarse, counts = a_map(0, {STADIUM: 900.0}, level=3, noise=0)
    fine = Tree.of(DEPTH, np.concatenate([coarse.nodes, Tree.uniform(DEPTH, 6).nodes]))
    owner = node_paths(fine.entries) >> np.uint64(2 * (6 - 3))
    within = default_rng(0).exponential(1, len(fine.entries))  # people are anywhere but evenly spread
    within /= np.bincount(owner.astype(int), within)[owner.astype(int)]
    visit = site({0: written(0, coarse, counts), 1: written(1, fine, counts[owner.astype(int)] * within)})
    assert visit.run("sfumato.panels.change.blocks.n") == 64
    differences = visit.run("sfumato.panels.change.blocks.difference")
    assert np.abs(differences).max() < 2e-5  # of rounding
    visit.run(f"location.hash = '{day(1)}'")
    visit.wait()
    assert visit.run("sfumato.panels.night.blocks.n") == 4**6


def test_the_address_keeps_the_choice(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    visit = site(week)
    page = visit.page
    assert page.url.endswith(f"#{day(5)}..{day(6)}")
    page.select_option("#night", day(2))
    page.select_option("#against", day(0))
    visit.wait()
    assert page.url.endswith(f"#{day(0)}..{day(2)}")
    page.reload()
    visit.wait()
    assert visit.run("sfumato.chosen") == {"a": day(0), "b": day(2), "mode": "fixed"}
    assert page.input_value("#against") == day(0)
    page.select_option("#against", "before")
    page.select_option("#night", day(4))
    visit.wait()
    assert visit.run("sfumato.chosen") == {"a": day(2), "b": day(4), "mode": "before"}  # day 3 is missing
    page.select_option("#against", "week")
    visit.wait()
    assert visit.run("sfumato.chosen.a") is None
    assert "No earlier night" in page.inner_text("[data-card=change] .absent")
    visit.run("location.hash = 'nonsense%3Cb%3E..2026-13-45'")
    visit.wait()
    assert visit.run("sfumato.chosen.b") == day(6)


def test_timeline_shows_gaps_and_is_chosen(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    visit = site(week, limits=[a_limit(7, 365, 10.0)])
    page = visit.page
    assert page.locator("#plot .night").count() == 6
    assert visit.run("[...document.querySelectorAll('#plot .gap')].map(g => g.dataset.gap)") == [day(3)]
    heights = visit.run("[...document.querySelectorAll('#plot .users')].map(r => Number(r.getAttribute('height')))")
    assert np.argsort(heights).tolist() == list(range(6))
    bar = page.locator(f"#plot [data-date='{day(1)}'] .users")
    bar.hover()
    assert "121,000 users, ε 0.5" in page.inner_text("#time-tip")
    assert "ε 1 of 10 spent" in page.inner_text("#time-tip")
    bar.click()
    visit.wait()
    assert visit.run("sfumato.chosen") == {"a": day(0), "b": day(1), "mode": "before"}
    page.locator(f"#plot [data-date='{day(5)}'] .users").click(modifiers=["Shift"])
    visit.wait()
    assert visit.run("sfumato.chosen") == {"a": day(5), "b": day(1), "mode": "fixed"}
    page.locator("#plot .gap").hover()
    assert "no release of this date" in page.inner_text("#time-tip")
    page.focus("#time")
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    visit.wait()
    assert visit.run("sfumato.chosen") == {"a": day(6), "b": day(4), "mode": "fixed"}
    assert "Monday 26 October 2026: 124,000 users" in page.get_attribute("#time", "aria-valuetext").replace(",", "", 1)
    page.keyboard.press("Home")
    visit.wait()
    assert visit.run("sfumato.chosen.b") == day(0)
    assert page.get_attribute("#time", "aria-valuenow") == "1"
    assert page.is_disabled("#earlier")


def test_a_release_without_a_map_is_there_with_its_link(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    nights = [a_night(0), a_night(1, job="histogram", map=None, users=None), a_night(2)]
    visit = site(week, nights)
    assert visit.run("sfumato.chosen.a") == day(0)  # the night before that has a map
    visit.page.click("#earlier")
    visit.wait()
    for card in ("night", "change"):
        absent = visit.page.locator(f"[data-card={card}] .absent")
        assert "is a histogram, without a map" in absent.inner_text()
        assert absent.locator("a").get_attribute("href") == f"releases/{day(1)}/index.html"
    assert visit.page.locator("#plot .mapless").count() == 1
    visit.page.click("#later")
    visit.wait()
    assert not visit.page.locator("[data-card=night] .absent").is_visible()


def test_a_missing_map_says_so_and_is_tried_again(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    nights = [a_night(0), a_night(1)]
    visit = site({1: week[1]}, nights)
    absent = visit.page.locator("[data-card=change] .absent")
    assert f"maps/{day(0)}.js could not be loaded" in absent.inner_text()
    assert visit.page.locator("[data-card=night] canvas").is_visible()
    folder = Path(visit.address.removeprefix("file://")).parent
    (folder / "maps" / f"{day(0)}.js").write_bytes(week[0])
    visit.page.click("#show-a")
    visit.wait()
    assert not absent.is_visible()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda week: week[2], "holds no map of"),  # another night's
        (lambda week: b"", "holds no map of"),
        (lambda week: week[0].replace(b'"format":1', b'"format":999'), "another version of Sfumato"),
        (lambda week: week[0].replace(b'"runs":"', b'"runs":"AAAA'), "damaged"),
    ],
)
def test_a_wrong_map_says_so(
    site: Callable[..., Site], week: dict[int, bytes], content: Callable[[dict[int, bytes]], bytes], words: str
) -> None:
    visit = site({0: content(week), 1: week[1]})
    assert words in visit.page.inner_text("[data-card=change] .absent")


def test_maps_of_other_regions_are_not_compared(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    elsewhere = written(1, *a_map(0), region=Region(0, 0, 1, 1))
    visit = site({0: week[0], 1: elsewhere})
    assert "different regions" in visit.page.inner_text("[data-card=change] .absent")


def test_maps_of_other_sizes_are(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    tree, counts = a_map(6, {STADIUM: 900.0, BEACH: -80.0})
    smaller = Tree.uniform(6, LEVEL)
    cells = cells_of(smaller, counts, np.full(len(counts), SIGMA))
    visit = site({5: week[5], 6: map_file(day(6), density_of(smaller, counts), cells, Grid(REGION, 6))})
    assert tree.depth == DEPTH
    assert visit.run("sfumato.panels.change.blocks.bits") == 6
    assert [hue(pixel) for pixel in visit.pixels("change", [STADIUM, BEACH])] == ["gained", "lost"]


def test_zoom_is_shared_and_the_keyboard_reads_the_map(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    visit = site(week)
    page = visit.page
    page.focus("#canvas-change")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    visit.until("document.getElementById('spoken').textContent !== ''")
    assert "± " in page.inner_text("#spoken")
    assert visit.run("sfumato.view.k") == 1.5
    page.keyboard.press("0")
    assert visit.run("sfumato.view") == {"k": 1, "x": 0.5, "y": 0.5}
    page.keyboard.press("Escape")
    visit.settle()
    assert page.locator(".frame .tip:visible").count() == 0
    page.click("#unit-ratio")
    visit.wait()
    assert [hue(pixel) for pixel in visit.pixels("change", [STADIUM, BEACH])] == ["gained", "lost"]
    assert "over that in A" in page.inner_text("#change-unit")


def test_a_year_opens_quickly(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    last = {number: week[i].replace(day(i).encode(), day(number).encode()) for number, i in ((363, 5), (364, 6))}
    visit = site(last, A_YEAR, [a_limit(365), a_limit(365, 7, 4.0)])
    start = time.monotonic()
    visit.page.reload()
    visit.wait()
    assert time.monotonic() - start < 10  # under a second on an idle core
    assert visit.page.locator("#plot .night").count() == 365
    assert visit.run("sfumato.chosen.b") == day(364)
    assert len([one for one in visit.requests if "/maps/" in one]) == 4  # two each time, of 365


def test_hostile_names_do_nothing(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    attack = "</script><img src=x onerror=alert(1)><b>"
    nights = [a_night(0, release_id=attack, warm_start=attack), a_night(1, job=attack, map=None, release_id=attack)]
    visit = site(week, nights)
    said = []

    def said_aloud(dialog: Any) -> None:
        said.append(dialog.message)

    visit.page.on("dialog", said_aloud)
    visit.page.locator("#plot .night").first.hover()
    assert attack in visit.page.inner_text("#time-tip")
    visit.page.click("#later")
    visit.wait()
    assert attack in visit.page.inner_text("[data-card=night] .absent")
    assert visit.page.locator("img").count() == 0
    assert said == []
    visit.page.remove_listener("dialog", said_aloud)


def test_every_control_has_a_name(site: Callable[..., Site], week: dict[int, bytes]) -> None:
    visit = site(week)
    for control in visit.page.locator("button, select, [tabindex]").all():
        script = "e => e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText"
        assert control.evaluate(script), control.evaluate("e => e.outerHTML")


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_nothing_runs_over_the_side_and_words_stand_out(
    site: Callable[..., Site], week: dict[int, bytes], scheme: str, size: str
) -> None:
    nights = [a_night(i, safe=i != 2) for i in week]
    visit = site(week, nights, [a_limit(7)], color_scheme=scheme, **(PHONE if size == "phone" else {}))
    assert visit.run("document.documentElement.scrollWidth <= innerWidth")
    script = """names => names.map(name => {
      const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(v => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
      const style = getComputedStyle(document.querySelector(name));
      const ink = light(style.fill.startsWith('rgb') && name.includes('text') ? style.fill : style.color);
      const ground = light(getComputedStyle(document.body).backgroundColor);
      return (Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05);
    })"""
    words = [
        *("h1", ".card h2", ".card .quiet", ".axis span", "#plot .months text", "#all td", "#all td a", "#all .unsafe"),
        *(".found .number", ".found .where", ".ticks span", ".noisekey", ".spent p", "#night", ".steps button:enabled"),
    ]
    assert {name: ratio for name, ratio in zip(words, visit.run(script, words), strict=True) if ratio < 4.5} == {}
    if size == "desk":
        boxes = [visit.page.locator(name).bounding_box() for name in ("#canvas", "#canvas-change")]
        assert boxes[0]["y"] == boxes[1]["y"]
        assert boxes[0]["height"] == boxes[1]["height"]


def test_without_scripts_the_releases_are_listed(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(index_page("bay", A_YEAR[:3], [a_limit(3)]), encoding="utf-8")
    context = browser.chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("#all tbody tr:visible").count() == 3
    assert "ε 1.5" in page.inner_text(".spent")
    assert not page.locator("#time").is_visible()
    context.close()


def test_any_web_server_will_do(browser: Browser, tmp_path: Path, week: dict[int, bytes]) -> None:
    (tmp_path / "maps").mkdir()
    for i in (5, 6):
        (tmp_path / "maps" / f"{day(i)}.js").write_bytes(week[i])
    (tmp_path / "index.html").write_text(index_page("bay", [a_night(5), a_night(6)], []), encoding="utf-8")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.chromium.new_context()
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("#most button")
        assert errors == []
        context.close()
        server.shutdown()
