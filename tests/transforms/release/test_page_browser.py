"""The release's page in a real browser (Debian's chromium, or skipped)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.release.page import Layer, render_page
from tests.transforms.release.browsing import Browser, Visit
from tests.transforms.release.city import (
    DEEPER,
    REGION,
    city_density,
    city_manifest,
    city_release,
    deepened,
    embedded,
    margin,
    node_at,
)


@pytest.fixture(scope="module")
def release(layers: list[Layer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("release") / "index.html"
    file.write_text(render_page(city_manifest(layers), layers, city_density(256)), encoding="utf-8")
    return file


@pytest.fixture
def visit(browser: Browser, release: Path) -> Iterator[Visit]:
    visit = Visit(browser, release)
    yield visit
    visit.close()


def middle(layer: Layer, i: int) -> tuple[float, float]:
    """Longitude and latitude of a node's centre."""
    side = 2.0 ** layer.level[i]
    return (
        REGION["west"] + (layer.x[i] + 0.5) / side * (REGION["east"] - REGION["west"]),
        REGION["north"] - (layer.y[i] + 0.5) / side * (REGION["north"] - REGION["south"]),
    )


def test_opens_offline_and_draws(visit: Visit) -> None:
    visit.settle()
    colours = visit.run(
        """() => { const c = document.getElementById('canvas');
        const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
        return [new Set(d).size, c.width * c.height]; }"""
    )
    assert colours[0] > 60
    assert colours[1] > 400_000
    text = visit.page.inner_text("body")
    assert "no conclusion's odds can change by more than a factor of 2.72" in text
    assert "secure aggregation" in text
    assert "About 200,000 users" in text
    assert visit.page.locator("tbody tr").count() >= 5


def test_map_keeps_the_ground_in_proportion(visit: Visit) -> None:
    west, north = visit.place(REGION["west"], REGION["north"])
    east, south = visit.place(REGION["east"], REGION["south"])
    cosine = math.cos(math.radians((REGION["north"] + REGION["south"]) / 2))
    expected = (REGION["east"] - REGION["west"]) * cosine / (REGION["north"] - REGION["south"])
    assert (east - west) / (south - north) == pytest.approx(expected, rel=1e-6)


def test_slider_changes_the_layer(visit: Visit, layers: list[Layer]) -> None:
    final = visit.picture()
    visit.page.locator("#slider").focus()
    visit.page.keyboard.press("Home")
    assert visit.run("sfumato.layer") == 0
    assert visit.picture() != final
    assert "Sub-query 1 of 5" in visit.page.inner_text("#step")
    assert f"{layers[0].vector_length} cells" in visit.page.inner_text("#step")
    assert visit.page.get_attribute("#slider", "aria-valuetext") == "Sub-query 1 of 5"
    visit.page.keyboard.press("End")
    assert visit.picture() == final
    visit.page.locator("#rows button").nth(2).click()
    assert visit.run("sfumato.layer") == 2


def test_play_steps_through_the_layers(visit: Visit) -> None:
    visit.page.click("#play")
    assert visit.run("sfumato.layer") == 0
    visit.until("sfumato.layer === 1")
    assert visit.page.get_attribute("#play", "aria-label") == "Pause"
    visit.page.click("#play")
    assert visit.page.get_attribute("#play", "aria-label") == "Play the sub-queries"


def test_grid_and_fading_switch(visit: Visit) -> None:
    plain = visit.picture()
    visit.page.check("#grid")
    gridded = visit.picture()
    assert gridded != plain
    visit.run("sfumato.setGrid(false)")
    assert not visit.page.is_checked("#grid")
    assert visit.picture() == plain
    visit.page.uncheck("#fade")
    assert visit.picture() != plain


def test_wheel_zooms_about_the_pointer(visit: Visit) -> None:
    lon, lat = -73.99, 40.72
    x, y = visit.place(lon, lat)
    visit.page.mouse.move(x, y)
    visit.page.mouse.wheel(0, -400)
    visit.until("sfumato.view.scale > 1.5")
    assert visit.place(lon, lat) == pytest.approx((x, y), abs=1.5)  # the browser rounds to pixels
    assert visit.run("scrollY") == 0
    visit.page.mouse.wheel(0, 5000)
    visit.until("sfumato.view.scale === 1")
    visit.page.mouse.wheel(0, 300)  # nothing left to zoom out of: the page scrolls
    visit.until("scrollY > 0")


def test_drag_pans_and_reset_returns(visit: Visit) -> None:
    visit.run("sfumato.zoomTo(4, 0.5, 0.5)")
    before = visit.view()
    lon, lat = -73.96, 40.74
    x, y = visit.place(lon, lat)
    visit.page.mouse.move(x, y)
    visit.page.mouse.down()
    visit.page.mouse.move(x + 60, y + 20)
    visit.page.mouse.move(x + 120, y - 70)
    visit.page.mouse.up()
    after = visit.view()
    assert after["scale"] == before["scale"]
    assert after["cx"] < before["cx"]
    assert after["cy"] > before["cy"]
    assert visit.place(lon, lat) == pytest.approx((x + 120, y - 70), abs=0.01)
    visit.page.click("#reset")
    assert visit.view() == {"scale": 1, "cx": 0.5, "cy": 0.5}


def test_keyboard_moves_zooms_and_speaks(visit: Visit) -> None:
    visit.page.keyboard.press("Tab")  # the link past the map
    visit.page.keyboard.press("Tab")
    assert visit.run("document.activeElement.id") == "canvas"
    visit.page.keyboard.press("+")
    assert visit.view()["scale"] == pytest.approx(1.5)
    visit.page.keyboard.press("ArrowRight")
    visit.page.keyboard.press("ArrowDown")
    view = visit.view()
    assert view["cx"] > 0.5
    assert view["cy"] > 0.5
    visit.until("document.getElementById('spoken').textContent.includes('users')")
    assert visit.page.is_visible("#tip")  # under the crosshair
    visit.page.keyboard.press("g")
    assert visit.page.is_checked("#grid")
    visit.page.keyboard.press("-")
    visit.page.keyboard.press("0")
    assert visit.view() == {"scale": 1, "cx": 0.5, "cy": 0.5}


def test_buttons_zoom_with_a_smooth_motion(browser: Browser, release: Path) -> None:
    visit = Visit(browser, release, reduced_motion="no-preference")
    visit.page.click("#zoom-in")
    visit.until("sfumato.view.scale === 1.8")
    visit.page.click("#zoom-out")
    visit.until("Math.abs(sfumato.view.scale - 1) < 1e-9")
    visit.run("sfumato.setLayer(1)")  # with a dissolve
    visit.settle()
    visit.leave()
    assert visit.errors == []


def test_value_and_uncertainty_under_the_pointer(visit: Visit, layers: list[Layer]) -> None:
    layer = layers[3]
    visit.run("sfumato.setLayer(3)")
    whole = layer.area == 4 ** (10 - layer.level)
    i = int(np.argmax(np.where(whole, layer.count, -np.inf)))
    visit.page.mouse.move(*visit.place(*middle(layer, i)))
    visit.settle()
    text = visit.page.inner_text("#tip")
    assert f"about {round(layer.count[i], 1):,.0f} users" in text
    assert f"± {margin(layer):,.0f} at 95%" in text
    assert f"{layer.cell_id[i]}, depth {layer.level[i]} of 10" in text
    assert "per km²" in text
    assert re.search(r"\d m × \d+ m", text)
    assert "° N" in text
    assert "° W" in text
    visit.page.mouse.move(5, 5)
    visit.settle()
    assert not visit.page.is_visible("#tip")


def test_a_cell_lost_in_noise_says_so(visit: Visit, layers: list[Layer]) -> None:
    layer = layers[2]
    visit.run("sfumato.setLayer(2)")
    whole = layer.area == 4 ** (10 - layer.level)
    i = int(np.argmin(np.where(whole, layer.count, np.inf)))
    assert layer.count[i] < 0
    visit.page.mouse.move(*visit.place(*middle(layer, i)))
    visit.settle()
    text = visit.page.inner_text("#tip")
    assert text.startswith("no more than about ")
    assert f"−{-layer.count[i]:.0f} ± {margin(layer):.0f} at 95%" in text


def test_published_intervals_are_shown_under_the_pointer(browser: Any, layers: list[Layer], tmp_path: Path) -> None:
    """A cell with an interval shows it; a cell without one, merged for the page, shows its deviation."""
    layer = layers[-1]
    uncut = layer.area == 4 ** (10 - layer.level)
    most, second = np.argsort(np.where(uncut, layer.count, -np.inf))[-2:][::-1].tolist()
    low, high = np.floor(layer.count) - 7.0, np.ceil(layer.count) + 11.0
    low[second] = high[second] = np.nan
    file = tmp_path / "index.html"
    with_intervals = replace(layer, users_low=low, users_high=high)
    file.write_text(render_page(city_manifest(layers), [*layers[:-1], with_intervals], None), encoding="utf-8")
    visit = Visit(browser, file)
    texts = []
    for i in (most, second):
        visit.page.mouse.move(*visit.place(*middle(layer, i)))
        visit.settle()
        texts.append(visit.page.inner_text("#tip"))
    visit.close()
    assert visit.errors == []
    assert f"{low[most]:,.0f} to {high[most]:,.0f} users at 95%" in texts[0]
    assert "±" not in texts[0]
    assert f"± {margin(layer):,.0f} at 95%" in texts[1]


def test_lookup_agrees_with_brute_force(visit: Visit, layers: list[Layer]) -> None:
    rng = np.random.default_rng(7)
    for number, layer in enumerate(layers):
        points = rng.random((300, 2))
        lon = REGION["west"] + points[:, 0] * (REGION["east"] - REGION["west"])
        lat = REGION["north"] - points[:, 1] * (REGION["north"] - REGION["south"])
        visit.run("n => sfumato.setLayer(n)", number)
        found = visit.run("p => p.map(([a, b]) => sfumato.lookup(a, b))", np.column_stack([lon, lat]).tolist())
        for (u, v), cell in zip(points, found, strict=True):
            i = node_at(layer, u, v)
            assert cell["cell_id"] == layer.cell_id[i]
            assert cell["count"] == pytest.approx(layer.count[i], abs=0.0501)
            assert cell["stddev"] == pytest.approx(layer.stddev, rel=1e-5)
            assert cell["margin"] == pytest.approx(margin(layer), rel=1e-5)
    assert visit.run("sfumato.lookup(0, 0)") is None
    assert visit.run("([w, n]) => sfumato.lookup(w, n).cell_id", [REGION["west"], REGION["north"]])
    assert visit.run("([e, s]) => sfumato.lookup(e, s).cell_id", [REGION["east"], REGION["south"]])


@pytest.mark.parametrize(("deep", "scale"), [(False, 1.0), (False, 3.0), (True, 1.0), (True, 40.0)])
def test_pixels_show_the_deepest_node(
    browser: Browser, layers: list[Layer], tmp_path: Path, deep: bool, scale: float
) -> None:
    """Every pixel has its node's colour, whether it comes from the bitmaps or is painted cell by cell."""
    last = deepened(layers[-1]) if deep else layers[-1]
    depth = 10 + DEEPER if deep else 10
    file = tmp_path / "index.html"
    file.write_text(render_page(city_manifest([last], depth), [last], None), encoding="utf-8")
    visit = Visit(browser, file)
    visit.run("sfumato.setFade(false)")
    cx, cy = (7.5 / 16, 8.5 / 16) if deep else (0.5, 0.5)
    visit.run("([s, x, y]) => sfumato.zoomTo(s, x, y)", [scale, cx, cy])
    visit.settle()

    # Density by the page's own definition, at the row's own latitude; then the documented colour scale.
    latitude = np.radians(REGION["north"] - (last.y + 0.5) / 2.0**last.level * (REGION["north"] - REGION["south"]))
    degree_km = 6371.0088 * math.pi / 180
    cell = (REGION["east"] - REGION["west"]) * (REGION["north"] - REGION["south"]) / 4**depth * degree_km**2
    count = np.round(last.count, 1)
    density = np.where(last.area > 0, count / np.maximum(last.area, 1) / cell / np.cos(latitude), 0)
    top = embedded(file.read_text())["top"]
    shade = np.rint(255 * np.clip(np.log1p(np.maximum(density, 0) * 150 / top) / math.log(151), 0, 1))

    rng = np.random.default_rng(3)
    span = 0.48 / scale
    points = np.column_stack([rng.uniform(max(c - span, 0), min(c + span, 1), 400) for c in (cx, cy)])
    plain = visit.colours(points)
    visit.run("sfumato.setFade(true)")
    visit.settle()
    faded = visit.colours(points)
    stops = np.array(
        [list(bytes.fromhex(part)) for part in re.findall("......", embedded(file.read_text())["palette"])]
    )
    at = shade / 255 * (len(stops) - 1)
    wanted = np.column_stack([np.interp(at, np.arange(len(stops)), stops[:, c]) for c in range(3)])
    wanted += np.array([9, 8, 13])  # the page lifts zero off its background
    nodes = [node_at(last, u, v) for u, v in points]
    lost = (count <= margin(last))[nodes]
    wanted = np.minimum(wanted[nodes], 255)
    visit.leave()
    # Letters, meridians and cells' edges (a pixel that lies in two cells) take some of the points.
    most = 0.9 if scale > 1 else 0.75
    assert (np.abs(plain - wanted).max(axis=1) <= 3).mean() > most
    assert (np.abs(faded - wanted).max(axis=1) <= 3)[~lost].mean() > most
    if scale > 1:
        assert lost.sum() > 5
        assert (np.ptp(faded, axis=1) < 40)[lost].mean() > 0.75  # grey, whatever the density
    assert visit.errors == []


def test_unsafe_seed_shows_a_banner(browser: Browser, layers: list[Layer], tmp_path: Path) -> None:
    manifest = city_manifest(layers, safe=False)
    attack = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>"
    manifest |= {"warnings": [attack], "release_id": attack, "parameters": {attack: attack}}
    manifest["privacy"]["assumptions"] = [attack]
    file = tmp_path / "index.html"
    file.write_text(render_page(manifest, layers, None), encoding="utf-8")
    visit = Visit(browser, file)
    assert visit.page.is_visible("#banner")
    assert "NOT private" in visit.page.inner_text("#banner")
    red, green, blue = map(int, re.findall(r"\d+", visit.run("getComputedStyle(banner).backgroundColor"))[:3])
    assert red > 150 > 60 > max(green, blue)
    assert "no one in particular" not in visit.page.inner_text("h1")
    assert attack in visit.page.inner_text(".warnings")
    assert visit.run("window.hurt") is None
    assert visit.page.locator("#report img").count() == 0
    assert visit.run("document.documentElement.scrollWidth <= innerWidth")
    visit.close()


def _layer_of_zeros(names: list[str]) -> Layer:
    n, zeros = len(names), np.zeros(len(names), np.int64)
    return Layer(0, 0.5, 0.0, 3.0, n, n, n, zeros, zeros, zeros, np.zeros(n), np.ones(n, np.int64), names)


def test_empty_manifest_and_empty_layer_still_open(browser: Browser, layers: list[Layer], tmp_path: Path) -> None:
    empty, root = _layer_of_zeros([]), _layer_of_zeros(["r"])
    odd = {
        "region": "nowhere",
        "privacy": None,
        "grid": [],
        "warnings": None,
        "created": 5,
        "sub_queries": 7,
        "versions": "x",
    }
    for manifest, which in (({}, layers), ({}, [empty]), (odd, [root])):
        file = tmp_path / "index.html"
        file.write_text(render_page(manifest, which, None), encoding="utf-8")
        visit = Visit(browser, file)
        visit.settle()
        assert "What this map promises" in visit.page.inner_text("#report")
        assert "region" in visit.page.inner_text(".warnings")
        visit.run("sfumato.zoomTo(NaN, 0.5, 0.5); sfumato.setLayer('x')")
        visit.settle()
        visit.leave()
        assert visit.errors == []


def test_phone_has_no_sideways_scroll(browser: Browser, release: Path, layers: list[Layer]) -> None:
    visit = Visit(
        browser,
        release,
        viewport={"width": 390, "height": 844},
        device_scale_factor=2,
        is_mobile=True,
        has_touch=True,
    )
    visit.page.locator("details").last.locator("summary").click()
    assert visit.run("document.documentElement.scrollWidth") == 390
    visit.run("scrollTo(0, 0)")
    last = layers[-1]
    i = int(np.argmax(last.count))
    visit.page.touchscreen.tap(*visit.place(*middle(last, i)))
    visit.settle()
    tip = visit.page.locator("#tip").bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= 390
    assert last.cell_id[i] in visit.page.inner_text("#tip")
    visit.leave()
    assert visit.errors == []


def test_without_scripts_the_density_and_the_alarm_remain(
    browser: Browser, layers: list[Layer], tmp_path: Path
) -> None:
    file = tmp_path / "index.html"
    file.write_text(render_page(city_manifest(layers, safe=False), layers, city_density(64)), encoding="utf-8")
    visit = Visit(browser, file, java_script_enabled=False)
    assert visit.page.is_visible("#banner")
    assert visit.page.is_visible("img")
    assert visit.page.locator("img").bounding_box()["width"] > 300
    assert not visit.page.is_visible("#canvas")
    visit.leave()


def test_every_control_has_a_name(visit: Visit) -> None:
    for control in visit.page.locator("button, input, canvas").all():
        name = control.get_attribute("aria-label") or control.evaluate("e => e.labels?.[0]?.innerText")
        assert name, control.evaluate("e => e.outerHTML")


def opened(browser: Browser, folder: Path, text: str, **context: Any) -> Visit:
    file = folder / "index.html"
    file.write_text(text, encoding="utf-8")
    return Visit(browser, file, **context)


def table_of(visit: Visit) -> list[list[str]]:
    """The table of rounds, its heads first and its sums last."""
    rows = visit.page.locator("[aria-label='Table of sub-queries'] tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"noise": "central", "contribution": "all"}])
def test_every_method_tells_all_its_rounds(
    browser: Browser, tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    release = city_release(method, **options)
    rounds = release.manifest["privacy"]["sub_queries"]
    visit = opened(browser, tmp_path, release.page)
    heads, *rows, total = table_of(visit)
    assert len(rows) == len(rounds)
    assert [row[0] for row in rows] == [str(i + 1) for i in range(len(rounds))]
    assert [row[2] for row in rows] == [f"{one['vector_length']:,}" for one in rounds]
    assert total[2] == f"{sum(one['vector_length'] for one in rounds):,}"
    assert heads[2] == ("Entries asked" if method == "count_min" else "Cells asked")
    assert ("Modulus" in heads) == ("Groups" in heads) == (not options)
    assert visit.page.locator("#budget i[data-round]").count() == len(rounds)
    assert visit.page.locator("#rows .bar").count() == len(rounds)
    assert visit.run("sfumato.layers.length - 1 === sfumato.layer")
    text = visit.page.inner_text("body")
    assert not re.search("undefined|NaN|null|unknown|object", text.split("Parameters")[0])
    assert ("which cell" in text) == (not options and method != "emd")
    assert ("what share of their records" in text) == (bool(options) or method == "emd")
    assert ("trusted server saw the exact sums" in text) == bool(options)
    assert ("A group's sum" in text) == (not options)
    assert ("upload" in text) == (not options)
    assert ("choose where to look more closely next" in text) == (method == "adaptive")
    if method == "adaptive":
        assert ("for a small cell and a large one" in text) == (release.layers[-1]["deviations"] is None)
    visit.close()


def test_a_fitted_map_stands_last_and_its_rounds_before_it(browser: Browser, tmp_path: Path) -> None:
    release = city_release("emd")
    rounds = len(release.state.results)
    assert rounds > 2
    visit = opened(browser, tmp_path, release.page)
    step, rows = visit.page.locator("#step"), visit.page.locator("#rows button")
    assert step.inner_text().startswith("All answers together make this map")
    assert "typically known to ±" in step.inner_text()
    assert rows.count() == rounds + 1
    assert rows.last.inner_text().split("\n") == ["All answers together", f"{len(release.estimate.counts)} cells"]
    assert rows.last.get_attribute("aria-current") == "true"
    assert visit.page.locator("#budget i.off").count() == 0
    assert f"found in {rounds} rounds" in visit.page.inner_text("#report")
    final = visit.picture()
    rows.nth(1).click()
    assert visit.run("sfumato.layer") == 1
    assert visit.picture() != final
    asked = release.state.results[1].spent.vector_length
    assert step.inner_text().startswith(f"Sub-query 2 of {rounds} asked about {asked} cells.")
    assert visit.page.locator("#budget i.off").count() == rounds - 2
    visit.page.locator("#slider").focus()
    visit.page.keyboard.press("End")
    assert visit.page.get_attribute("#slider", "aria-valuetext") == "All answers together"
    assert visit.picture() == final

    # Every cell has its own noise, under the pointer and where it is faded.
    last = release.layers[-1]
    assert np.ptp(last["deviations"]) > 0
    for i in np.flatnonzero(last["area"] == 4 ** (6 - last["level"]))[::7]:
        side = 2.0 ** last["level"][i]
        lon = REGION["west"] + (last["x"][i] + 0.5) / side * (REGION["east"] - REGION["west"])
        lat = REGION["north"] - (last["y"][i] + 0.5) / side * (REGION["north"] - REGION["south"])
        cell = visit.run("([a, b]) => sfumato.lookup(a, b)", [lon, lat])
        assert cell["cell_id"] == last["cell_id"][i]
        assert cell["stddev"] == last["deviations"][i]
        assert cell["margin"] == pytest.approx(last["deviations"][i] * (1.96 + 0.206 / 4))
        assert cell["lost"] == (last["count"][i] <= cell["margin"])
    visit.close()


def test_rounds_without_a_map_are_no_buttons(browser: Browser, tmp_path: Path) -> None:
    release = city_release("count_min", sketch_width=50, sketch_rows=4)
    visit = opened(browser, tmp_path, release.page, viewport={"width": 390, "height": 844})
    assert visit.page.locator("#rows li").count() == 6
    assert visit.page.locator("#rows button").count() == 0
    assert not visit.page.is_visible("#slider")
    assert visit.page.locator("#rows li").first.inner_text().split("\n")[-1] == "200 entries"
    level = int(release.estimate.tree.level)
    assert f"sketch of sub-query {level}," in visit.page.inner_text("#step")
    assert "4 rows with 50 entries each" in visit.page.inner_text("#report")
    assert visit.run("document.documentElement.scrollWidth") == 390
    visit.close()


def test_central_noise_has_neither_groups_nor_a_modulus(browser: Browser, tmp_path: Path) -> None:
    release = city_release("adaptive", noise="central")
    visit = opened(browser, tmp_path, release.page)
    heads, *rows, _ = table_of(visit)
    assert heads == ["Round", "ε spent", "Cells asked", "Noise at 95%", "Noise, std. dev."]
    for row, answer in zip(rows, release.state.results, strict=True):
        margin = answer.spent.noise_stddev * (1.96 + 0.206)  # one draw, not one a shard
        assert row[3] == f"± {round(margin, 1 if margin < 9.95 else 0):g}"
    report = visit.page.inner_text("#report")
    assert "group" not in report
    assert "given which devices take part" not in report
    assert "still reports" not in report
    visit.close()


def test_a_large_level_is_shown_coarser_and_says_so(browser: Browser, tmp_path: Path) -> None:
    release = city_release("flat", depth=9)
    visit = opened(browser, tmp_path, release.page)
    assert "asked about 262,144 cells, shown here as 65,536 larger ones" in visit.page.inner_text("#step")
    (layer,) = release.layers
    noise = release.state.results[0].spent.noise_stddev
    assert layer["stddev"] == pytest.approx(2 * noise, rel=1e-5)  # of four cells' sum
    assert table_of(visit)[1][4] == f"{noise:.3g}"  # as it was asked
    assert "cells.parquet has them all" in visit.page.inner_text("#report")
    visit.close()


def test_a_cell_that_was_not_kept_may_have_more_than_its_noise(browser: Browser, tmp_path: Path) -> None:
    release = city_release("flat", level=4, keep_top=10)
    (_, layer) = release.layers
    kept = layer["count"] != 0
    assert 20 < kept.sum() < 30
    most = layer["count"][kept].min() + layer["stddev"] * (1.96 + 0.206 / 4)
    visit = opened(browser, tmp_path, release.page)
    assert f"at most about {most:.0f} users" in visit.page.inner_text("#report")
    i = int(np.flatnonzero(~kept)[100])
    lon = REGION["west"] + (layer["x"][i] + 0.5) / 16 * (REGION["east"] - REGION["west"])
    lat = REGION["north"] - (layer["y"][i] + 0.5) / 16 * (REGION["north"] - REGION["south"])
    visit.page.mouse.move(*visit.place(lon, lat))
    visit.settle()
    assert visit.page.inner_text("#tip").startswith(f"no more than about {most:.0f} users\n\nnot kept")
    visit.close()


@pytest.mark.parametrize("name", ["a new one", "constructor", "__proto__", 5])
def test_a_method_that_is_not_known_gets_words_that_hold_for_any(
    browser: Browser, layers: list[Layer], tmp_path: Path, name: object
) -> None:
    manifest = city_manifest(layers)
    manifest["parameters"] |= {"method": name, "noise": name, "contribution": name}
    visit = opened(browser, tmp_path, render_page(manifest, layers, None))
    report = visit.page.inner_text("#report")
    assert "The map was made in 5 rounds" in report
    assert "look more closely" not in report
    assert "which cell" not in report
    assert "function" not in report
    visit.close()


def test_a_release_of_before_there_were_methods_reads_as_an_adaptive_one(
    browser: Browser, layers: list[Layer], tmp_path: Path
) -> None:
    texts = []
    for own in ({}, {"method": "adaptive", "noise": "shard", "contribution": None}):
        manifest = city_manifest(layers)
        manifest["parameters"] |= own
        visit = opened(browser, tmp_path, render_page(manifest, layers, None))
        texts.append(visit.page.inner_text("body"))
        visit.close()
    assert texts[0] == texts[1]
    assert "The map was found in 5 rounds. Each round asked every user taking part which cell they were in" in texts[0]


def test_rounds_that_the_manifest_does_not_tell_are_those_of_the_layers(
    browser: Browser, layers: list[Layer], tmp_path: Path
) -> None:
    for given in ([], [{"index": 0}], [None, 3], "x"):
        manifest = city_manifest(layers)
        manifest["privacy"]["sub_queries"] = given
        visit = opened(browser, tmp_path, render_page(manifest, layers, None))
        assert [row[2] for row in table_of(visit)[1:-1]] == [f"{layer.vector_length:,}" for layer in layers]
        visit.close()
