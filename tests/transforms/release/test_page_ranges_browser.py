"""The page of a model of range queries in a real browser (Debian's chromium, or skipped): it answers as the library."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.release.page_ranges import ranges_page
from tests.transforms.ranges.models import REGION, grid_model, partition_model, some_squares
from tests.transforms.ranges.samples import network_model, ranges_manifest, slope_model
from tests.transforms.release.browsing import Visit

PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
ATTACK = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>\u202e"
MIDDLE = (-122.43, 37.77)


@pytest.fixture(scope="module")
def models() -> dict[str, RangeModel]:
    return {"grid": grid_model(), "partition": partition_model(), "raster": slope_model(), "network": network_model()}


@pytest.fixture(scope="module")
def texts(models: dict[str, RangeModel]) -> dict[str, str]:
    return {name: ranges_page(model, ranges_manifest(model)) for name, model in models.items()}


@pytest.fixture
def grid_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["grid"])


def asked(visit: Visit, squares: tuple[NDArray[np.float64], ...]) -> NDArray[np.float64]:
    """What the page answers: users, stddev and inside, float64[3, n]."""
    script = "(all) => all.map((one) => { const a = sfumato.ask(...one); return [a.users, a.stddev, a.inside]; })"
    return np.array(visit.run(script, np.array(squares).T.tolist())).T


def answered(model: RangeModel, squares: tuple[NDArray[np.float64], ...]) -> NDArray[np.float64]:
    """What the library answers, in the same form."""
    answers, inside = model.answer(*squares)
    return np.array([answers.users, answers.stddev, inside])


def shown(visit: Visit) -> tuple[float, float]:
    """The number and the margin that the panel shows."""
    users = re.sub(r"[^\d.]", "", visit.page.inner_text("#users"))
    margin = re.search(r"give or take ([\d,.]+) \(68%\)", visit.page.inner_text("#margin"))
    return float(users), float(margin[1].replace(",", "")) if margin else 0.0


@pytest.mark.parametrize("name", ["grid", "partition"])
def test_the_page_answers_as_the_library_does(
    opened: Callable[..., Visit], texts: dict[str, str], models: dict[str, RangeModel], name: str
) -> None:
    squares = some_squares(500)
    expected = answered(models[name], squares)
    assert 20 < np.count_nonzero(expected[2] == 0) < 250  # wholly outside
    assert np.count_nonzero((expected[2] > 0) & (expected[2] < 1)) > 100  # at the border
    found = asked(opened(texts[name]), squares)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-9)


def test_networks_answer_on_the_page_as_in_the_library(
    opened: Callable[..., Visit], texts: dict[str, str], models: dict[str, RangeModel]
) -> None:
    """The library computes with 7 digits, the page with 16; sizes are below, in and above those of the networks."""
    rng = np.random.default_rng(8)
    x, y, _ = some_squares(600)
    squares = (x, y, 10 ** rng.uniform(1.5, 3.6, len(x)))
    expected, found = answered(models["network"], squares), asked(visit := opened(texts["network"]), squares)
    assert np.count_nonzero(expected[0] > 0) > 150
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-3, atol=0.01)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3, atol=0.01)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-9)
    assert "what 2 neural networks make of the noisy counts" in visit.page.inner_text("#report")


def test_squares_on_edges_of_cells_are_answered_alike(
    opened: Callable[..., Visit], texts: dict[str, str], models: dict[str, RangeModel]
) -> None:
    """Squares whose sides lie on the edges of cells and of the region, and the whole region and more."""
    grid, field = models["grid"].model.grid, models["grid"].field  # type: ignore[attr-defined]
    wide, tall = REGION.east - REGION.west, REGION.north - REGION.south
    size = grid.x_edges[4] * field.cell_metres[0] * np.ones(3)
    x = REGION.west + np.array([grid.x_edges[2], 4096 - grid.x_edges[2], 0]) / 4096 * wide
    y = REGION.north - size / 2 / field.metres[1] * tall
    squares = (
        np.append(x, (REGION.west + REGION.east) / 2),
        np.append(y, (REGION.south + REGION.north) / 2),
        np.append(size, 3e5),
    )
    for name in ("grid", "partition"):
        expected = answered(models[name], squares)
        found = asked(opened(texts[name]), squares)
        np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-9)


def test_a_raster_answers_nearly_as_its_model_and_says_so(
    opened: Callable[..., Visit], texts: dict[str, str], models: dict[str, RangeModel]
) -> None:
    visit = opened(texts["raster"])
    rng = np.random.default_rng(6)
    squares = (rng.uniform(-122.46, -122.41, 200), rng.uniform(37.75, 37.78, 200), 10 ** rng.uniform(2, 3.6, 200))
    expected, found = answered(models["raster"], squares), asked(visit, squares)
    np.testing.assert_allclose(found[0], expected[0], rtol=0.01)  # cells of 29 m of a density that hardly changes
    # Between sizes that are more than twice each other, the straight line lies above a power law by a tenth at most.
    np.testing.assert_allclose(found[1], expected[1], rtol=0.12)
    visit.run("sfumato.setSquare(-122.43, 37.77, 500)")
    assert "answers add up a raster of 262,144 cells" in visit.page.inner_text("#note")
    assert "Here it was asked about a raster of 262,144 cells" in visit.page.inner_text("#report")
    assert not visit.page.is_visible("#fades")


def test_a_square_is_drawn_from_its_centre(grid_page: Visit, models: dict[str, RangeModel]) -> None:
    page = grid_page.page
    x, y = grid_page.place(*MIDDLE)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 20, y - 10)
    page.mouse.move(x + 60, y - 25)
    page.mouse.up()
    square = grid_page.run("sfumato.square()")
    pixel_east = grid_page.place(MIDDLE[0] + 0.01, MIDDLE[1])[0] - x
    metres = 60 / pixel_east * 0.01 * 111_195.08 * np.cos(np.radians(37.765))
    assert square["size"] == pytest.approx(2 * metres, rel=0.01)
    np.testing.assert_allclose([square["x"], square["y"]], MIDDLE, atol=2e-4)  # the pointer has whole pixels
    expected = answered(models["grid"], tuple(np.array([square[one]]) for one in ("x", "y", "size")))[:, 0]
    users, margin = shown(grid_page)
    assert margin == pytest.approx(expected[1], rel=0.17)  # one or two digits
    assert abs(users - expected[0]) <= margin / 2
    for name, field in (("x", "#x"), ("y", "#y"), ("size", "#side")):
        assert float(page.input_value(field)) == square[name]
    assert page.inner_text("#note") == ""


def test_a_click_puts_one_of_the_same_size_and_a_key_does_too(grid_page: Visit) -> None:
    page = grid_page.page
    before = grid_page.run("sfumato.square()")
    page.mouse.click(*grid_page.place(*MIDDLE))
    after = grid_page.run("sfumato.square()")
    assert after["size"] == before["size"]
    np.testing.assert_allclose([after["x"], after["y"]], MIDDLE, atol=2e-4)
    assert grid_page.view()["scale"] == 1
    page.focus("#canvas")
    for key in ("+", "+", "ArrowRight", "]", "Enter"):
        page.keyboard.press(key)
    grid_page.settle()
    square = grid_page.run("sfumato.square()")
    assert square["size"] == pytest.approx(1.25 * before["size"], rel=0.01)
    assert square["x"] > (REGION.west + REGION.east) / 2
    page.wait_for_timeout(450)
    assert re.match(r"about [\d,]+ users, give or take", page.inner_text("#spoken").lower())


def test_numbers_are_typed_and_refused(grid_page: Visit, models: dict[str, RangeModel]) -> None:
    page = grid_page.page
    for field, value in (("#x", "-122.43"), ("#y", "37.77"), ("#side", "750")):
        page.fill(field, value)
    assert grid_page.run("sfumato.square()") == {"x": -122.43, "y": 37.77, "size": 750}
    expected = answered(models["grid"], tuple(np.array([one]) for one in (*MIDDLE, 750.0)))[:, 0]
    users, margin = shown(grid_page)
    assert abs(users - expected[0]) <= margin / 2
    for field, value, says in (
        ("#side", "0", "A side is a number of metres above 0."),
        ("#side", "", "A side is"),
        ("#y", "137", "A latitude lies in"),
        ("#x", "-181", "A longitude lies in"),
    ):
        was = page.input_value(field)
        page.fill(field, value)
        assert says in page.inner_text("#wrong")
        assert page.get_attribute(field, "aria-invalid") == "true"
        assert grid_page.run("sfumato.square()") == {"x": -122.43, "y": 37.77, "size": 750}
        page.fill(field, was)
        assert not page.is_visible("#wrong")
        assert page.get_attribute(field, "aria-invalid") is None


def test_squares_beyond_the_region_say_so(grid_page: Visit) -> None:
    grid_page.run("([x, y]) => sfumato.setSquare(x, y, 800)", [REGION.east, 37.77])
    assert "Of this square, 50% lies in the region; the answer is of that part." in grid_page.page.inner_text("#note")
    grid_page.run("sfumato.setSquare(-121, 37.77, 800)")
    assert "lies outside the region" in grid_page.page.inner_text("#note")
    assert grid_page.page.inner_text("#users").split() == ["about", "0", "users"]
    assert "give or take" not in grid_page.page.inner_text("#margin")


def test_the_map_moves_when_it_is_to(grid_page: Visit) -> None:
    page = grid_page.page
    grid_page.run("sfumato.zoomTo(3, 0.5, 0.5)")
    square, view = grid_page.run("sfumato.square()"), grid_page.view()

    def drag() -> None:
        page.mouse.move(400, 400)
        page.mouse.down()
        page.mouse.move(450, 430)
        page.mouse.up()

    page.click("label:has-text('move the map')")
    drag()
    assert grid_page.run("sfumato.square()") == square
    moved = grid_page.view()
    assert moved["cx"] < view["cx"]
    page.keyboard.down("Shift")
    drag()
    page.keyboard.up("Shift")
    assert grid_page.run("sfumato.square()") != square
    assert grid_page.view() == moved
    square = grid_page.run("sfumato.square()")
    page.click("label:has-text('draw a square')")
    page.keyboard.down("Shift")
    drag()
    page.keyboard.up("Shift")
    assert grid_page.run("sfumato.square()") == square
    assert grid_page.view()["cx"] < moved["cx"]


def test_fingers_draw_and_two_of_them_zoom(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    visit = opened(texts["grid"], **PHONE)
    before = visit.run("sfumato.square()")
    session = visit.page.context.new_cdp_session(visit.page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        given = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": given})

    x, y = visit.place(*MIDDLE)
    touch("touchStart", (x, y))
    touch("touchMove", (x + 30, y))
    touch("touchMove", (x + 50, y))
    visit.settle()
    drawn = visit.run("sfumato.square()")
    assert drawn["size"] > 1000
    assert drawn != before
    touch("touchStart", (x + 50, y), (x - 50, y))  # a second finger: the square was not meant
    assert visit.run("sfumato.square()") == before
    touch("touchMove", (x + 120, y), (x - 120, y))
    touch("touchEnd")
    assert visit.view()["scale"] > 1.5
    assert visit.run("sfumato.square()") == before
    touch("touchStart", (x, y))
    touch("touchMove", (x + 30, y))
    touch("touchEnd")
    assert visit.run("sfumato.square()")["size"] < drawn["size"]


def lights(visit: Visit, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Red, green and blue together, float64[n], of the canvas at places in 0..1 from the north-west."""
    script = """([points, [w, n, e, s]]) => {
      const c = document.getElementById('canvas');
      const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      const [x0, y0] = sfumato.project(w, n), [x1, y1] = sfumato.project(e, s);
      return points.map(([u, v]) => {
        const at = 4 * (Math.floor(y0 + v * (y1 - y0)) * c.width + Math.floor(x0 + u * (x1 - x0)));
        return all[at] + all[at + 1] + all[at + 2];
      });
    }"""
    corners = (REGION.west, REGION.north, REGION.east, REGION.south)
    return np.array(visit.run(script, [points.tolist(), corners]), dtype=np.float64)


@pytest.mark.parametrize("name", ["grid", "partition", "raster"])
def test_the_map_is_bright_where_users_are(
    opened: Callable[..., Visit], texts: dict[str, str], models: dict[str, RangeModel], name: str
) -> None:
    visit = opened(texts[name])
    visit.run("sfumato.setSquare(-121, 37.77, 10)")  # out of the way
    visit.page.evaluate("document.getElementById('fade').click()")
    visit.settle()
    rng = np.random.default_rng(7)
    points = rng.uniform(0.12, 0.88, (300, 2))
    points = points[(points[:, 0] > 0.45) | (points[:, 1] < 0.8)]  # not under the legend
    light = lights(visit, points)
    lon = REGION.west + points[:, 0] * (REGION.east - REGION.west)
    lat = REGION.north - points[:, 1] * (REGION.north - REGION.south)
    density = models[name].answer(lon, lat, np.full(len(points), 1.0))[0].users
    ranks = [np.argsort(np.argsort(one)) for one in (light, density)]
    assert np.corrcoef(*ranks)[0, 1] > 0.9
    # Near by, the map is painted part by part, and from further off as a bitmap: both alike.
    near, steps = [], np.linspace(-0.004, 0.004, 9)
    points = np.stack([one.ravel() for one in np.meshgrid(0.47 + steps, 0.53 + steps)], axis=1)
    for scale in (5, 60):
        visit.run("(scale) => sfumato.zoomTo(scale, 0.47, 0.53)", scale)
        visit.settle()
        near.append(lights(visit, points))
    assert np.mean(np.abs(near[0] - near[1]) < 2) > 0.9  # but for edges of parts, and lines of the graticule


def test_switches_change_the_map_and_back(grid_page: Visit) -> None:
    plain = grid_page.picture()
    for switch in ("grid", "fade"):
        grid_page.page.evaluate(f"document.getElementById('{switch}').click()")
        assert grid_page.picture() != plain
        grid_page.page.evaluate(f"document.getElementById('{switch}').click()")
        assert grid_page.picture() == plain


def test_what_is_under_the_pointer_is_previewed(grid_page: Visit) -> None:
    grid_page.run("sfumato.setSquare(-122.5, 37.72, 900)")
    grid_page.page.mouse.move(*grid_page.place(*MIDDLE))
    grid_page.settle()
    text = grid_page.page.inner_text("#tip")
    x, y = (round(one, 3) for one in MIDDLE)
    expected = grid_page.run("([x, y]) => sfumato.ask(x, y, 900).users", [x, y])
    assert float(re.search(r"about ([\d,]+) users", text)[1].replace(",", "")) == pytest.approx(expected, rel=0.05)  # type: ignore[index]
    assert "900 m wide" in text
    assert grid_page.run("sfumato.square().x") == -122.5


def test_the_report_promises_what_was_given(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    text = opened(texts["grid"]).page.inner_text("body")
    assert "About 12,345 users, in any square you draw" in text
    assert "no conclusion's odds can change by more than a factor of 1.65" in text  # e^0.5 = 1.6487, rounded up
    assert "However many squares are asked about, the promise stays the same" in text
    assert "by whoever runs the job, who sees the exact counts" in text
    assert "12,345, ± 276 at 95%" in text
    assert "The region was cut into 820 cells of 365 m × 688 m" in text.replace("364 m", "365 m")
    assert "lost in noise" in text


@functools.cache
def hostile() -> list[str]:
    found = []
    for model in (grid_model(), partition_model()):
        manifest = ranges_manifest(model, safe=False, method=ATTACK, warnings=[ATTACK], release_id=ATTACK)
        manifest["privacy"] |= {"assumptions": [ATTACK], "mechanism": ATTACK, "unit": ATTACK, "trust": ATTACK}
        found.append(ranges_page(replace(model, method=ATTACK), manifest))
    return found


def test_hostile_texts_are_inert(opened: Callable[..., Visit]) -> None:
    for text in hostile():
        visit = opened(text)
        visit.settle()
        assert visit.run("window.hurt") is None
        assert visit.page.locator("img").count() == 0
        assert ATTACK[:40] in visit.page.inner_text(".warnings")
        assert "NOT private" in visit.page.inner_text("#banner")
        assert "protects no one" in visit.page.inner_text("#pledge")
        assert visit.run("document.documentElement.scrollWidth <= innerWidth")
        visit.close()


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"region": "nowhere", "privacy": {"randomness": 3, "epsilon": "much"}, "grid": [], "results": [], "method": 7},
        {"privacy": {"population": 3}},
        {"privacy": 5, "sizes_metres": [1], "cell_metres": "x", "method": "constructor"},
    ],
)
def test_odd_manifests_cost_a_line_and_not_the_page(opened: Callable[..., Visit], manifest: dict[str, Any]) -> None:
    visit = opened(ranges_page(grid_model(), manifest))
    visit.settle()
    assert "What this map promises" in visit.page.inner_text("#report")
    assert "nothing can be promised" in visit.page.inner_text("#pledge")
    assert shown(visit)[0] > 0
    assert not re.search("NaN|undefined|null|Infinity|function", visit.page.inner_text("body"))


def test_phones_have_no_sideways_scroll_and_see_the_answer(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    for text in (*texts.values(), *hostile()):
        visit = opened(text, **PHONE)
        visit.settle()
        assert visit.run("document.documentElement.scrollWidth") == 390
        assert visit.page.locator("#canvas").bounding_box()["height"] >= 380
        assert visit.page.locator("#side").bounding_box()["height"] >= 40
        visit.close()


def test_pages_without_scripts_show_the_density(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    visit = opened(texts["grid"], java_script_enabled=False)
    assert visit.page.locator("img").first.is_visible()
    assert not visit.page.is_visible("main")


def test_every_control_has_a_name(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    visit = opened(texts["grid"])
    for control in visit.page.locator("button, input, canvas, [tabindex='0']").all():
        name = control.get_attribute("aria-label") or control.evaluate(
            "e => e.labels?.[0]?.innerText || e.innerText || e.textContent"
        )
        assert name, control.evaluate("e => e.outerHTML")
