"""The release's page: its text, and its behaviour in a real browser (Debian's chromium, or skipped)."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.release.page import Layer, render_page

REGION = {"west": -74.04, "south": 40.68, "east": -73.88, "north": 40.80}
USERS = 200_000
EPSILONS = (0.012, 0.03, 0.08, 0.2, 0.678)
SHARDS = 20


# ------------------------------------------------------------------------------- a city that never was


def city_density(side: int = 1024) -> NDArray[np.float64]:
    """A made-up city, float64[side, side], sum 1: centres, suburbs, streets, a river, a bay and a park."""
    y, x = np.mgrid[0:side, 0:side] / side
    density = np.full((side, side), 0.02)
    for cx, cy, spread, weight in (
        (0.47, 0.46, 0.055, 60.0),
        (0.55, 0.56, 0.03, 75.0),
        (0.40, 0.32, 0.035, 30.0),
        (0.71, 0.40, 0.05, 14.0),
        (0.78, 0.72, 0.07, 8.0),
        (0.30, 0.78, 0.06, 10.0),
        (0.18, 0.50, 0.05, 6.0),
        (0.50, 0.50, 0.24, 5.0),
    ):
        density += weight * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * spread**2))
    along, across = (x * 0.92 + y * 0.39) * 26, (y * 0.92 - x * 0.39) * 26
    streets = np.minimum(np.abs(along - np.rint(along)), np.abs(across - np.rint(across))) < 0.07
    density *= np.where(streets, 3.0, 0.75)
    river = np.abs(x - 0.62 - 0.07 * np.sin(5 * y + 0.7) - 0.08 * y) < 0.022 + 0.012 * y
    bay = (x + 0.8 * y) > 1.52
    park = (np.abs(along - 15.6) < 1.1) & (np.abs(across - 7.0) < 2.6)
    density[river | bay] *= 0.002
    density[park] *= 0.03
    return density / density.sum()


def city_layers(depth: int = 10, start: int = 2) -> list[Layer]:
    """Five sub-queries over the made-up city by a small adaptive quadtree; nodes may be divided in part."""
    rng = np.random.default_rng(20)
    pyramid = {depth: rng.poisson(city_density(1 << depth) * USERS).astype(np.float64)}
    for level in range(depth - 1, -1, -1):
        below = pyramid[level + 1]
        pyramid[level] = below[::2, ::2] + below[1::2, ::2] + below[::2, 1::2] + below[1::2, 1::2]

    tree = {(start, x, y) for x in range(1 << start) for y in range(1 << start)} | {(0, 0, 0)}
    layers, remaining = [], sum(EPSILONS)
    for index, epsilon in enumerate(EPSILONS):
        remaining = max(remaining - epsilon, 0.0)
        stddev = math.sqrt(2 * SHARDS) / epsilon
        count = {node: float(pyramid[node[0]][node[2], node[1]]) for node in tree}
        area = {node: 4 ** (depth - node[0]) for node in tree}
        # Deepest first: each takes what it covers from its nearest ancestor.
        for node in sorted(tree, reverse=True):
            whole, cells = pyramid[node[0]][node[2], node[1]], 4 ** (depth - node[0])
            above = node
            while above[0]:
                above = (above[0] - 1, above[1] >> 1, above[2] >> 1)
                if above in tree:
                    count[above] -= whole
                    area[above] -= cells
                    break
        owners = sorted(node for node in tree if len(_children(node) & tree) < 4)
        noisy = {node: count[node] + rng.laplace(0, epsilon**-1, SHARDS).sum() for node in owners}
        layers.append(
            Layer(
                index=index,
                epsilon=epsilon,
                remaining=remaining,
                stddev=stddev,
                vector_length=len(owners),
                shards=SHARDS,
                shards_lost=1 if index == 2 else 0,
                level=np.array([node[0] for node in owners]),
                x=np.array([node[1] for node in owners]),
                y=np.array([node[2] for node in owners]),
                count=np.array([noisy[node] for node in owners]),
                area=np.array([area[node] for node in owners]),
                cell_id=["r" + _path(*node) for node in owners],
            )
        )
        noise = 2 * math.sqrt(2 * SHARDS) / max(remaining, 1e-9)
        for node in owners:
            if noisy[node] > 14 * noise and node[0] < depth:
                tree |= _children(node)
                if noisy[node] > 300 * noise and node[0] + 2 <= depth:
                    tree |= set().union(*(_children(child) for child in _children(node)))
            elif noisy[node] < 2 * noise and node[0] > start:
                tree.discard(node)
    return layers


def _children(node: tuple[int, int, int]) -> set[tuple[int, int, int]]:
    level, x, y = node
    return {(level + 1, 2 * x + dx, 2 * y + dy) for dx in (0, 1) for dy in (0, 1)}


def _path(level: int, x: int, y: int) -> str:
    return "".join(str(2 * (x >> bit & 1) + (y >> bit & 1)) for bit in reversed(range(level)))


def city_manifest(layers: list[Layer], depth: int = 10, safe: bool = True) -> dict[str, Any]:
    bits = [layer.vector_length * 15 for layer in layers]
    return {
        "release_id": "2026-11-21-made-up-city",
        "job": "heatmap",
        "created": "2026-11-21T00:50:00Z",
        "region": REGION,
        "grid": {"depth": depth, "side": 2**depth},
        "privacy": {
            "unit": "user",
            "adjacency": "two datasets are neighbours when one holds all the records of one more user",
            "epsilon": 1.0,
            "epsilon_spent": 1.0,
            "delta": 0.0,
            "randomness": {"source": "operating system" if safe else "seed", "safe": safe},
            "population": {"source": "public", "users": float(USERS), "epsilon": 0.0, "stddev": 0.0},
            "cohort": {"users": float(USERS), "sampling_rate": 1.0},
            "sub_queries": [
                {
                    "index": layer.index,
                    "epsilon": layer.epsilon,
                    "vector_length": layer.vector_length,
                    "noise_stddev": layer.stddev,
                    "shards": layer.shards,
                    "shards_lost": layer.shards_lost,
                    "modulus": 1 << 15,
                    "bits_per_client": size,
                }
                for layer, size in zip(layers, bits, strict=True)
            ],
            "assumptions": [
                "The server adds up each group's answers without seeing any single one (secure aggregation).",
                "At most 5% of a group's phones drop out or withhold their noise.",
                "The noise key is secret and is never used for another release.",
            ],
        },
        "communication": {
            "vector_entries": sum(layer.vector_length for layer in layers),
            "bits_per_client": sum(bits),
        },
        "parameters": {
            "depth": depth,
            "shard_size": 10000,
            "dropout": 0.05,
            "calibration": 0.1,
            "modulus": "auto",
        },
        "versions": {"sfumato": "0.1.0", "numpy": np.__version__},
        "warnings": [],
    }


DEEPER = 4


def deepened(layer: Layer) -> Layer:
    """The city as one cell of a region 2^4 times wider: a grid of depth 14, finer than the page's bitmaps."""
    extra = 4 ** (10 + DEEPER) - 4**10
    side = np.int64(1) << layer.level
    x, y = layer.x + 7 * side, layer.y + 8 * side
    level = layer.level + DEEPER
    names = ["r" + _path(*node) for node in zip(level.tolist(), x.tolist(), y.tolist(), strict=True)]
    return replace(
        layer,
        level=np.concatenate([[0], level]),
        x=np.concatenate([[0], x]),
        y=np.concatenate([[0], y]),
        count=np.concatenate([[900.0], layer.count]),
        area=np.concatenate([[extra], layer.area]),
        cell_id=["r", *names],
    )


@pytest.fixture(scope="session")
def layers() -> list[Layer]:
    return city_layers()


def embedded(text: str) -> Any:
    """What the page's own JSON says."""
    match = re.search(r'<script type="application/json" id="sfumato-data">(.*?)</script>', text, re.DOTALL)
    assert match
    return json.loads(match[1])


def margin(layer: Layer) -> float:
    """95% of the noise: the normal law's 1.96 deviations, and a little more where few shards make it up."""
    return layer.stddev * (1.96 + 0.206 / (layer.shards - layer.shards_lost))


def node_at(layer: Layer, u: float, v: float) -> int:
    """The deepest node that holds (u, v), by looking at every node."""
    side = 2.0**layer.level
    inside = (layer.x <= u * side) & (u * side < layer.x + 1) & (layer.y <= v * side) & (v * side < layer.y + 1)
    return int(np.flatnonzero(inside)[-1])  # levels ascend


# ------------------------------------------------------------------------------- the text


def test_the_made_up_city_is_what_the_tests_need(layers: list[Layer]) -> None:
    last = layers[-1]
    assert 1000 < len(last.level) < 3000
    assert any((layer.count < 0).any() for layer in layers)
    partial = (last.area > 0) & (last.area < 4 ** (10 - last.level))
    assert partial.any()
    for layer in layers:
        assert layer.area.sum() == 4**10  # every place belongs to exactly one node


def test_page_is_self_contained(layers: list[Layer]) -> None:
    text = render_page(city_manifest(layers), layers, city_density(64))
    markup = re.sub(r"(?s)(?<=<script).*?(?=</script>)", "", text)
    for address in re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", markup):
        assert address.startswith(("data:", "#")) or address in {
            "manifest.json",
            "cells.parquet",
            "density.npy",
        }
    assert not re.search(r"@import|url\s*\(|@font-face", markup)
    script = text[text.rindex("<script>") :]
    assert not re.search(r"https?://|fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon|innerHTML|eval\(", script)
    assert "default-src &#x27;none&#x27;" in text


def test_page_links_its_sibling_files(layers: list[Layer]) -> None:
    text = render_page(city_manifest(layers), layers, None)
    for name in ("cells.parquet", "density.npy", "manifest.json"):
        assert f'"{name}"' in text


def test_nothing_in_the_manifest_can_leave_its_script(layers: list[Layer]) -> None:
    attack = '</script><script>alert(1)</script><!-- <img src=x> & \u2028 {{style}} {{data}}"'
    manifest = city_manifest(layers) | {"release_id": attack, "warnings": [attack], attack: attack}
    text = render_page(manifest, layers, None)
    assert text.count("</script>") == 2
    assert text.count("<script") == 2
    assert "<!--" not in text
    assert "\u2028" not in text[text.index("<script") :]
    assert "<img" not in text
    assert embedded(text)["manifest"]["warnings"] == [attack]
    title = re.search(r"<title>(.*?)</title>", text)
    assert title
    assert "<" not in title[1]


def test_hostile_source_of_noise_is_escaped_in_the_banner(layers: list[Layer]) -> None:
    manifest = city_manifest(layers, safe=False)
    manifest["privacy"]["randomness"]["source"] = "<b onclick=x>"
    text = render_page(manifest, layers, None)
    assert "&lt;b onclick=x&gt;" in text
    assert "<b onclick" not in text


def test_counts_are_rounded_to_a_tenth_and_survive(layers: list[Layer]) -> None:
    packed = embedded(render_page(city_manifest(layers), layers, None))["layers"]
    for layer, twin in zip(layers, packed, strict=True):
        np.testing.assert_allclose(twin["count"], layer.count, atol=0.0501)
        assert twin["cell_id"] == layer.cell_id
        assert twin["area"] == layer.area.tolist()
        assert twin["stddev"] == pytest.approx(layer.stddev, rel=1e-5)


def test_nan_numpy_values_and_odd_types_become_plain_json(layers: list[Layer]) -> None:
    manifest = city_manifest(layers)
    manifest["parameters"] = {
        "a": float("nan"),
        "b": np.float64(2.5),
        "c": (1, np.int64(2)),
        "d": Path("x"),
        5: None,
    }
    read = embedded(render_page(manifest, layers, None))["manifest"]["parameters"]
    assert read == {"a": None, "b": 2.5, "c": [1, 2], "d": "x", "5": None}


def test_missing_region_and_grid_are_filled_in_and_told(layers: list[Layer]) -> None:
    read = embedded(render_page({}, layers, None))
    assert read["manifest"]["grid"]["depth"] == 10
    assert read["manifest"]["region"] == {"west": 0, "south": 0, "east": 1, "north": 1}
    assert any("region" in problem for problem in read["problems"])
    assert any("noise" in problem for problem in read["problems"])
    for region in (
        {"west": 0, "south": 0, "east": 1},
        REGION | {"east": -75.0},
        REGION | {"north": math.nan},
    ):
        assert embedded(render_page({"region": region}, layers, None))["manifest"]["region"]["north"] == 1


def test_banner_only_for_an_unsafe_source(layers: list[Layer]) -> None:
    assert "NOT private" not in render_page(city_manifest(layers), layers, None).split("<script")[0]
    assert "NOT private" in render_page(city_manifest(layers, safe=False), layers, None).split("<script")[0]


def test_density_shows_where_scripts_do_not_run(layers: list[Layer]) -> None:
    manifest = city_manifest(layers)
    assert "data:image/png;base64," in render_page(manifest, layers, city_density(1024))
    assert "data:image/png;base64," in render_page(manifest, layers, np.zeros((3, 3)))
    assert "data:image/png;base64," not in render_page(manifest, layers, None)


@pytest.mark.parametrize("density", [np.zeros((2, 3)), np.zeros(4), np.zeros((0, 0)), np.full((2, 2), np.nan)])
def test_density_that_is_not_a_finite_square_is_refused(layers: list[Layer], density: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match=r"^density: must be"):
        render_page(city_manifest(layers), layers, density)


def test_a_budget_spent_to_the_last_digit_may_round_below_zero(layers: list[Layer]) -> None:
    packed = embedded(render_page({}, [replace(layers[-1], remaining=-1e-16)], None))["layers"]
    assert packed[0]["remaining"] == 0


def test_no_layer_is_refused(layers: list[Layer]) -> None:
    with pytest.raises(ValueError, match=r"^layers: a page needs"):
        render_page(city_manifest(layers), [], None)


@pytest.mark.parametrize("name", ["x", "y", "count", "area", "cell_id"])
def test_arrays_of_different_lengths_are_refused(layers: list[Layer], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: must hold one"):
        replace(layers[0], **{name: getattr(layers[0], name)[:-1]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", math.nan),
        ("stddev", -1.0),
        ("remaining", math.inf),
        ("remaining", -0.001),
        ("shards_lost", SHARDS + 1),
        ("count", np.array([math.nan, 1.0])),
        ("level", np.array([1, 0])),
        ("level", np.array([0, 21])),
        ("x", np.array([0, 2])),
        ("y", np.array([-1, 0])),
        ("area", np.array([0, -1])),
    ],
)
def test_values_without_sense_are_refused(name: str, value: object) -> None:
    good = Layer(
        0, 0.5, 0.5, 3.0, 2, SHARDS, 0,
        np.array([0, 1]), np.array([0, 1]), np.array([0, 1]),
        np.array([5.0, -1.0]), np.array([3, 1]), ["r", "r3"],
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"^{name}: must"):
        replace(good, **{name: value})


# ------------------------------------------------------------------------------- a real browser

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium): the page was not tried")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: the page was not tried"
    )
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Visit:
    """A page opened from its file, with the network off, whose errors and requests are remembered."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.address = file.as_uri()
        self.context = browser.new_context(
            **({"viewport": {"width": 1200, "height": 800}, "reduced_motion": "reduce"} | context)
        )
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.address)
        self.box = self.page.locator("#canvas").bounding_box()

    def _hear(self, message: Any) -> None:
        # Reading pixels is the tests' own doing; the page itself never does.
        if message.type in {"error", "warning"} and "willReadFrequently" not in message.text:
            self.errors.append(message.text)

    def settle(self) -> None:
        self.page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def until(self, condition: str) -> None:
        """Waits until a condition holds. (Playwright's own wait needs eval, which the page forbids.)"""
        end = time.monotonic() + 20
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, f"never came true: {condition}"
            self.page.wait_for_timeout(20)

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def picture(self) -> str:
        self.settle()
        return str(self.run("document.getElementById('canvas').toDataURL()"))

    def colours(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Red, green and blue, float64[n, 3] in 0..255, of the canvas at places in 0..1 from the north-west."""
        corners = [[REGION["west"], REGION["north"]], [REGION["east"], REGION["south"]]]
        script = """([points, nw, se]) => {
          const c = document.getElementById('canvas');
          const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          const [x0, y0] = sfumato.project(nw[0], nw[1]), [x1, y1] = sfumato.project(se[0], se[1]);
          return points.map(([u, v]) => {
            const at = 4 * (Math.floor(y0 + v * (y1 - y0)) * c.width + Math.floor(x0 + u * (x1 - x0)));
            return [...all.slice(at, at + 3)];
          });
        }"""
        return np.array(self.run(script, [points.tolist(), *corners]), dtype=np.float64)

    def view(self) -> dict[str, float]:
        self.settle()
        return dict(self.run("sfumato.view"))

    def place(self, lon: float, lat: float) -> tuple[float, float]:
        x, y = self.run("([lon, lat]) => sfumato.project(lon, lat)", [lon, lat])
        return self.box["x"] + x, self.box["y"] + y


@pytest.fixture(scope="module")
def release(layers: list[Layer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("release") / "index.html"
    file.write_text(render_page(city_manifest(layers), layers, city_density(256)), encoding="utf-8")
    return file


@pytest.fixture
def visit(browser: Any, release: Path) -> Iterator[Visit]:
    visit = Visit(browser, release)
    yield visit
    visit.context.close()
    assert visit.errors == []
    assert visit.requests == [visit.address]


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


def test_buttons_zoom_with_a_smooth_motion(browser: Any, release: Path) -> None:
    visit = Visit(browser, release, reduced_motion="no-preference")
    visit.page.click("#zoom-in")
    visit.until("sfumato.view.scale === 1.8")
    visit.page.click("#zoom-out")
    visit.until("Math.abs(sfumato.view.scale - 1) < 1e-9")
    visit.run("sfumato.setLayer(1)")  # with a dissolve
    visit.settle()
    visit.context.close()
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
    browser: Any, layers: list[Layer], tmp_path: Path, deep: bool, scale: float
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
    sure = np.sort(density[(density > 0) & (count > margin(last))])
    top = sure[min(int(len(sure) * 0.998), len(sure) - 1)]
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
    visit.context.close()
    # Letters, meridians and cells' edges (a pixel that lies in two cells) take some of the points.
    most = 0.9 if scale > 1 else 0.75
    assert (np.abs(plain - wanted).max(axis=1) <= 3).mean() > most
    assert (np.abs(faded - wanted).max(axis=1) <= 3)[~lost].mean() > most
    if scale > 1:
        assert lost.sum() > 5
        assert (np.ptp(faded, axis=1) < 40)[lost].mean() > 0.75  # grey, whatever the density
    assert visit.errors == []


def test_unsafe_seed_shows_a_banner(browser: Any, layers: list[Layer], tmp_path: Path) -> None:
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
    visit.context.close()
    assert visit.errors == []
    assert visit.requests == [visit.address]


def test_empty_manifest_and_empty_layer_still_open(browser: Any, layers: list[Layer], tmp_path: Path) -> None:
    empty = Layer(
        0,
        0.5,
        0.0,
        3.0,
        0,
        0,
        0,
        *(np.zeros(0, np.int64) for _ in range(3)),
        np.zeros(0),
        np.zeros(0, np.int64),
        [],
    )
    root = Layer(
        0,
        0.5,
        0.0,
        3.0,
        1,
        1,
        1,
        *(np.zeros(1, np.int64) for _ in range(3)),
        np.zeros(1),
        np.ones(1, np.int64),
        ["r"],
    )
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
        visit.context.close()
        assert visit.errors == []


def test_phone_has_no_sideways_scroll(browser: Any, release: Path, layers: list[Layer]) -> None:
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
    visit.context.close()
    assert visit.errors == []


def test_without_scripts_the_density_and_the_alarm_remain(browser: Any, layers: list[Layer], tmp_path: Path) -> None:
    file = tmp_path / "index.html"
    file.write_text(render_page(city_manifest(layers, safe=False), layers, city_density(64)), encoding="utf-8")
    visit = Visit(browser, file, java_script_enabled=False)
    assert visit.page.is_visible("#banner")
    assert visit.page.is_visible("img")
    assert visit.page.locator("img").bounding_box()["width"] > 300
    assert not visit.page.is_visible("#canvas")
    visit.context.close()


def test_every_control_has_a_name(visit: Visit) -> None:
    for control in visit.page.locator("button, input, canvas").all():
        name = control.get_attribute("aria-label") or control.evaluate("e => e.labels?.[0]?.innerText")
        assert name, control.evaluate("e => e.outerHTML")
