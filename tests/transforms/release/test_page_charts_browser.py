"""The pages of items, cells and quantiles in a real browser (Debian's chromium, or skipped)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.charts import CellLayer, Curve, ItemBars, Quantile, RangeAnswer
from sfumato.transforms.release.page_charts import render_cells_page, render_items_page, render_quantiles_page
from tests.transforms.release.browsing import Visit
from tests.transforms.release.city import REGION
from tests.transforms.release.samples import (
    HIDDEN,
    city_cells,
    prefix_items,
    sample_manifest,
    trip_lengths,
    zipf_items,
)

LEVELS = (3, 5, 7)
LENGTHS = (2, 4, 8, 0)
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def items() -> ItemBars:
    return zipf_items(700)


@pytest.fixture(scope="module")
def prefixes() -> ItemBars:
    return prefix_items(n=700)


@pytest.fixture(scope="module")
def cells() -> list[CellLayer]:
    return city_cells(LEVELS)


@pytest.fixture(scope="module")
def texts(items: ItemBars, prefixes: ItemBars, cells: list[CellLayer]) -> dict[str, str]:
    return {
        "list": render_items_page(sample_manifest("histogram"), items),
        "tree": render_items_page(sample_manifest("hotspots", LENGTHS), prefixes),
        "map": render_cells_page(sample_manifest("hotspots", LEVELS), cells),
        "curve": render_quantiles_page(sample_manifest("quantiles", (0, 0)), *trip_lengths()),
    }


@pytest.fixture
def list_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["list"])


@pytest.fixture
def tree_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["tree"])


@pytest.fixture
def map_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["map"])


@pytest.fixture
def curve_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["curve"])


def names(visit: Visit) -> list[str]:
    return [text.removesuffix("…") for text in visit.page.locator("#list .name bdi").all_inner_texts()]


# ---------------------------------------------------------------- items


def test_items_are_ranked_with_whiskers_and_shares(list_page: Visit, items: ItemBars) -> None:
    page = list_page.page
    order = np.argsort(-items.count, kind="stable")
    assert names(list_page) == [items.name[i] for i in order[:100]]
    first = page.locator("#list tr").first
    assert f"{items.count[order[0]]:,.0f} ± {1.96 * items.stddev[order[0]]:,.0f}" in first.inner_text()
    assert f"{100 * items.count[order[0]] / items.count.sum():.1f}%" in first.inner_text()
    # The fill ends at the estimate, the whisker spans 1.96 deviations each way, both on the axis's own scale.
    boxes = {part: first.locator(f".{part}").bounding_box() for part in ("plot", "fill", "whisker")}
    unit = boxes["plot"]["width"] / (items.count[order[0]] + 1.96 * items.stddev[order[0]])
    assert boxes["fill"]["width"] == pytest.approx(items.count[order[0]] * unit, abs=1)
    assert boxes["whisker"]["width"] == pytest.approx(2 * 1.96 * items.stddev[order[0]] * unit, abs=1)


def test_report_says_what_was_done_and_what_may_hide(list_page: Visit) -> None:
    text = list_page.page.inner_text("body")
    assert "Each user was drawn with probability 25%; what fewer than 20 of the drawn users share was dropped" in text
    assert "nothing was added" in text
    assert f"An item that is not shown has at most {HIDDEN} users, with 99% confidence, or nobody at all." in text
    assert "by more than a factor of 2.72, but for a chance of 1 in 100 million" in text
    assert "δ = 10⁻⁸" in text
    assert "times 4, that is, 1 / 0.25" in text
    assert "secret and is never used for another release" in text


def test_items_sort_by_name_and_back(list_page: Visit, items: ItemBars) -> None:
    page = list_page.page
    page.click("#by-name button")
    assert page.get_attribute("#by-name", "aria-sort") == "ascending"
    assert names(list_page) == sorted(items.name)[:100]
    page.click("#by-name button")
    assert page.get_attribute("#by-name", "aria-sort") == "descending"
    assert names(list_page) == sorted(items.name)[::-1][:100]
    page.click("#by-count button")
    assert page.get_attribute("#by-name", "aria-sort") == "none"
    assert names(list_page)[0] == items.name[int(np.argmax(items.count))]


def test_filter_finds_names_and_says_how_many(list_page: Visit, items: ItemBars) -> None:
    wanted = [name for name in items.name if "zaz" in name]
    assert 3 < len(wanted) < 100
    list_page.page.fill("#filter", "ZAZ")
    list_page.until(f"document.getElementById('status').textContent.startsWith('{len(wanted)} of')")
    assert sorted(names(list_page)) == sorted(wanted)
    list_page.page.fill("#filter", "no such name")
    list_page.until("!document.getElementById('nothing').hidden")
    assert "may still exist" in list_page.page.inner_text("#nothing")


def test_show_more_doubles_the_window_and_keeps_the_place(list_page: Visit) -> None:
    page = list_page.page
    page.focus("#next")
    page.keyboard.press("Enter")
    assert page.locator("#list tr").count() == 200
    assert list_page.run("document.activeElement.closest('tr').rowIndex") == 101  # the first new row
    page.click("#next")
    page.click("#next")
    assert page.locator("#list tr").count() == 700
    assert not page.is_visible("#next")


def test_logarithmic_scale_shows_what_may_be_missing(list_page: Visit) -> None:
    page = list_page.page
    page.check("#logarithmic")
    ticks = page.locator("#axis span").all_inner_texts()
    assert {"100", "1,000", "10k"} <= set(ticks)
    row = page.locator("#list tr").nth(50)
    zone, plot = (row.locator(part).bounding_box() for part in (".zone", ".plot"))
    assert 0.005 < zone["width"] / plot["width"] < 0.2
    assert row.locator(".dot").count() == 1


def test_a_hundred_thousand_rows_stay_quick(opened: Callable[..., Visit]) -> None:
    n = 100_000
    count = 1e9 / (1 + np.arange(n))
    zeros = np.zeros(n, np.int64)
    many = ItemBars([f"item number {i}" for i in range(n)], zeros, zeros - 1, count, np.sqrt(3 * count))
    visit = opened(render_items_page(sample_manifest("histogram"), many))
    assert visit.page.locator("#list tr").count() == 100
    took = visit.run(
        """() => { const start = performance.now(); sfumato.setFilter('99'); sfumato.setFilter('');
        sfumato.sortBy('count'); return performance.now() - start; }"""
    )
    assert took < 5000  # about 0.2 s alone; a test machine may be busy


# ---------------------------------------------------------------- prefixes


def test_tree_opens_and_closes(tree_page: Visit, prefixes: ItemBars) -> None:
    page = tree_page.page
    assert page.get_attribute("#levels button:last-child", "aria-pressed") == "true"  # whole items first
    page.click("#levels button:text-is('2')")
    roots = [i for i in range(len(prefixes.name)) if prefixes.level[i] == 2]
    assert len(names(tree_page)) == len(roots)
    root = max(roots, key=lambda i: prefixes.count[i])
    fold = page.locator("#list .fold").first
    fold.focus()
    page.keyboard.press("Enter")
    inside = [i for i in range(len(prefixes.name)) if prefixes.parent[i] == root]
    inside.sort(key=lambda i: -prefixes.count[i])
    assert names(tree_page)[1 : 1 + len(inside)] == [prefixes.name[i] for i in inside]
    assert page.locator("#list .fold").first.get_attribute("aria-expanded") == "true"
    assert tree_page.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("Enter")
    assert len(names(tree_page)) == len(roots)
    assert "16 prefixes" in page.inner_text("#step")


def test_filter_opens_the_way_to_what_it_finds(tree_page: Visit, prefixes: ItemBars) -> None:
    tree_page.run("sfumato.setLevel(2)")
    leaf = next(i for i in range(len(prefixes.name)) if prefixes.level[i] == 0 and len(prefixes.name[i]) > 9)
    way = []
    while leaf >= 0:
        way.insert(0, prefixes.name[leaf])
        leaf = int(prefixes.parent[leaf])
    tree_page.run("name => sfumato.setFilter(name)", way[-1])
    assert names(tree_page) == way


# ---------------------------------------------------------------- cells


def middle(layer: CellLayer, i: int) -> tuple[float, float]:
    side = 2.0**layer.level
    return (
        REGION["west"] + (layer.x[i] + 0.5) / side * (REGION["east"] - REGION["west"]),
        REGION["north"] - (layer.y[i] + 0.5) / side * (REGION["north"] - REGION["south"]),
    )


def test_lookup_agrees_with_the_cells(map_page: Visit, cells: list[CellLayer]) -> None:
    rng = np.random.default_rng(4)
    for number, layer in enumerate(cells):
        map_page.run("n => sfumato.setLayer(n)", number)
        published = {(int(x), int(y)): i for i, (x, y) in enumerate(zip(layer.x, layer.y, strict=True))}
        points = rng.random((200, 2))
        lon = REGION["west"] + points[:, 0] * (REGION["east"] - REGION["west"])
        lat = REGION["north"] - points[:, 1] * (REGION["north"] - REGION["south"])
        found = map_page.run("p => p.map(([a, b]) => sfumato.lookup(a, b))", np.column_stack([lon, lat]).tolist())
        seen = 0
        for (u, v), cell in zip((points * 2**layer.level).astype(int), found, strict=True):
            assert (cell["x"], cell["y"], cell["level"]) == (u, v, layer.level)
            i = published.get((u, v))
            assert cell["hidden"] == (i is None)
            if i is not None:
                seen += 1
                assert cell["cell_id"] == layer.cell_id[i]
                assert cell["count"] == pytest.approx(layer.count[i], rel=1e-6)
        assert seen > 20
    assert map_page.run("sfumato.lookup(0, 0)") is None


def test_hidden_cells_are_ground_and_published_ones_are_not(map_page: Visit, cells: list[CellLayer]) -> None:
    last = cells[-1]
    map_page.page.uncheck("#fade")  # nothing beneath
    grid = np.zeros((2**last.level,) * 2, bool)
    grid[last.y, last.x] = True
    rng = np.random.default_rng(2)
    places = rng.integers(0, 2**last.level, (500, 2))
    colours = map_page.colours((places + 0.5) / 2**last.level)
    published = grid[places[:, 1], places[:, 0]]
    ground = np.abs(colours - np.array([0x19, 0x17, 0x20])).max(axis=1) <= 2
    assert 50 < published.sum() < 450
    assert not ground[published].any()
    assert ground[~published].mean() > 0.85  # letters, meridians, and edges of cells take some
    map_page.page.check("#fade")
    assert (map_page.colours((places + 0.5) / 2**last.level)[~published].mean(axis=1) > 30).any()  # terraces


def test_words_under_the_pointer(map_page: Visit, cells: list[CellLayer]) -> None:
    last = cells[-1]
    i = int(np.argmax(last.count))
    map_page.page.mouse.move(*map_page.place(*middle(last, i)))
    map_page.settle()
    text = map_page.page.inner_text("#tip")
    assert f"about {last.count[i]:,.0f} users" in text
    assert f"± {1.96 * last.stddev[i]:,.0f} at 95%, from the draw" in text
    assert f"{last.cell_id[i]}, level 7" in text
    taken = set(zip(last.x.tolist(), last.y.tolist(), strict=True))
    x, y = next((x, y) for x in range(30, 128) for y in range(30, 128) if (x, y) not in taken)
    empty = replace(last, x=np.array([x]), y=np.array([y]), count=np.ones(1), stddev=np.ones(1), cell_id=["r"])
    map_page.page.mouse.move(*map_page.place(*middle(empty, 0)))
    map_page.settle()
    text = map_page.page.inner_text("#tip")
    assert f"at most about {HIDDEN} users" in text
    assert "or nobody: not published" in text


def test_a_place_in_the_list_is_flown_to(map_page: Visit, cells: list[CellLayer]) -> None:
    last = cells[-1]
    order = np.argsort(-last.count, kind="stable")
    page = map_page.page
    assert page.locator("#top b").all_inner_texts() == [f"{last.count[i]:,.0f}" for i in order[:10]]
    page.locator("#top button").nth(1).focus()
    page.keyboard.press("Enter")
    view = map_page.view()
    assert (view["cx"] * 2**last.level, view["cy"] * 2**last.level) == pytest.approx(
        (last.x[order[1]] + 0.5, last.y[order[1]] + 0.5)
    )
    assert view["scale"] > 1
    assert last.cell_id[order[1]] in page.inner_text("#tip")
    map_page.until("document.getElementById('spoken').textContent.includes('users')")
    page.click("#next")
    assert page.locator("#top button").count() == 20


def test_levels_step_and_the_legend_follows(map_page: Visit, cells: list[CellLayer]) -> None:
    page = map_page.page
    final, ticks = map_page.picture(), page.inner_text("#ticks")
    page.focus("#slider")
    page.keyboard.press("Home")
    assert page.inner_text("#step").startswith(f"Level 3 of 7: {len(cells[0].x)} cells of ")
    assert page.get_attribute("#slider", "aria-valuetext") == "Level 3 of 7"
    assert map_page.picture() != final
    assert page.inner_text("#ticks") != ticks
    page.click("#play")
    map_page.until("sfumato.layer === 1")
    assert f"at most about {HIDDEN} users, or nobody" in page.inner_text(".legend")


def test_one_level_has_no_slider(opened: Callable[..., Visit]) -> None:
    visit = opened(render_cells_page(sample_manifest("histogram", (6,)), city_cells((6,))))
    visit.settle()
    assert not visit.page.is_visible("#slider")
    assert not visit.page.is_visible("#fade")
    assert visit.page.locator("#top li").count() == 10


def test_cells_too_small_for_a_pixel_are_seen_and_found(opened: Callable[..., Visit]) -> None:
    one = CellLayer(14, np.array([5000]), np.array([7000]), np.array([900.0]), np.array([9.0]), ["r-dot"], 0.5, 20)
    visit = opened(render_cells_page(sample_manifest("hotspots", (14,)), [one]))
    visit.settle()
    colours = visit.colours(np.array([[5000.5, 7000.5], [5200.5, 7000.5]]) / 2**14)
    assert colours[0].max() > 100
    assert colours[1].max() < 60
    x, y = visit.place(*middle(one, 0))
    visit.page.mouse.move(x + 3, y - 2)
    visit.settle()
    assert "r-dot" in visit.page.inner_text("#tip")


# ---------------------------------------------------------------- quantiles


def test_curve_passes_through_its_points_and_marks(curve_page: Visit) -> None:
    curve, quantiles, ranges = trip_lengths()
    for value in (0.0, 3.3, 17.9, 50.0):
        read = curve_page.run("v => sfumato.lookup(v)", value)
        for name in ("share", "low", "high"):
            assert read[name] == pytest.approx(float(np.interp(value, curve.value, getattr(curve, name))), abs=1e-9)
    assert curve_page.run("sfumato.lookup(-1)") is None
    page = curve_page.page
    assert page.locator("#plot .mark").count() == len(quantiles)
    script = "[...document.querySelectorAll('#plot .dot')].map(d => [+d.getAttribute('cx'), +d.getAttribute('cy')])"
    dots = np.array(curve_page.run(script))
    for pixels, name, sign in ((dots[:, 0], "value", 1), (dots[:, 1], "share", -1)):
        wanted = np.array([getattr(one, name) for one in quantiles])
        slope, start = np.polyfit(wanted, pixels, 1)
        assert slope * sign > 10  # right is more, and up is more
        assert np.abs(slope * wanted + start - pixels).max() < 0.02  # coordinates have two decimals
    text = page.inner_text("#report")
    for one in quantiles:
        row = f"{one.value:.2f}\n{one.low:.2f} to {one.high:.2f}"
        assert row in page.inner_text("#quantile-list")
        assert f"{one.value:.2f}" in text
    assert "2 to 10" in page.inner_text("#range-list")
    assert "LOW ≤ value < HIGH" in text
    assert f"{ranges[0].users:,.0f}" in page.inner_text("#range-list")
    assert "trip_km" in page.inner_text("#chips")


def test_arrow_keys_read_the_curve_out(curve_page: Visit) -> None:
    page = curve_page.page
    page.focus("#chart")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#chart", "aria-valuenow") == "25.25"
    spoken = page.get_attribute("#chart", "aria-valuetext")
    assert re.match(r"25\.25: about 9\d\.\d\d% of users below, between 9\d\.\d\d% and 9\d\.\d\d% at 95%", spoken)
    assert "about 9" in page.inner_text("#tip")
    page.keyboard.press("End")
    assert page.get_attribute("#chart", "aria-valuenow") == "50"
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")


def test_answers_mark_the_chart(curve_page: Visit) -> None:
    page = curve_page.page
    page.locator("#range-list button").nth(1).click()
    assert page.locator(".chosen-range").count() == 1
    assert page.locator("#range-list button").nth(1).get_attribute("aria-pressed") == "true"
    page.locator("#range-list button").nth(1).click()
    assert page.locator(".chosen-range").count() == 0
    page.locator("#quantile-list button").nth(2).click()
    assert page.locator(".mark.chosen").count() == 1


def test_each_method_is_described_on_its_own(opened: Callable[..., Visit]) -> None:
    curve, quantiles, ranges = trip_lengths()
    search = opened(render_quantiles_page(made_by("interactive", (0, 0)), curve, quantiles, []))
    text = search.page.inner_text("main")
    assert "that earlier answers had left open" in text
    assert "between them it may run anywhere between its neighbours" in text
    assert "spread over" not in text
    assert search.page.locator("#plot .point").count() == len(curve.value)  # its dots, however many
    steps = Curve(
        np.array([0, 4, 4, 9.0]), np.array([0, 0.5, 0.5, 1]), np.array([0, 0, 0.47, 0.47]), np.array([0.52, 0.52, 1, 1])
    )
    steep = opened(render_quantiles_page(made_by("interactive", (0, 0)), steps, [], []))
    assert "At the dots the curve is known to ± 3 percentage points" in steep.page.inner_text("#step")
    bins = opened(render_quantiles_page(made_by("hierarchical", (3, 6, 9)), curve, quantiles, ranges))
    text = bins.page.inner_text("main")
    assert "held back is spread over the stretches that are missing" in text
    assert "left open" not in text
    assert "dots" not in text
    rows = bins.page.locator("[aria-label='Table of rounds'] tbody tr").all()
    assert [row.locator("td").nth(1).inner_text() for row in rows] == ["8", "64", "512"]
    for visit in (search, bins):
        visit.settle()
        assert "or better" not in visit.page.inner_text("main")
        assert not re.search(r"\bitems?\b", visit.page.inner_text(".panel"))
        widest = 100 * max((curve.high - curve.share).max(), (curve.share - curve.low).max())
        said = re.search(r"known to ± ([\d.]+) percentage points", visit.page.inner_text("#step"))
        assert said
        assert widest <= float(said[1]) < widest + 0.011


def made_by(method: str, levels: tuple[int, ...]) -> dict[str, Any]:
    return sample_manifest("quantiles", levels, parameters={"column": "trip_km", "method": method})


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (0.001, ("a factor of 1.002", "more than 50.1% sure", "49.9%")),
        (1.0, ("a factor of 2.72", "more than 73.2% sure", "26.8%")),
        (8.0, ("a factor of 2,990", "more than 99.97% sure", "0.03%")),
        (50.0, ("promises next to nothing",)),
    ],
)
def test_bounds_round_outwards(opened: Callable[..., Visit], epsilon: float, said: tuple[str, ...]) -> None:
    manifest = sample_manifest("histogram")
    manifest["privacy"] |= {"epsilon": epsilon, "delta": 3e-9}
    visit = opened(render_items_page(manifest, zipf_items(60)), **PHONE)
    text = visit.page.inner_text("#report")
    for words in said:
        assert words in text
    assert "more than 100%" not in text
    assert ("sure that you are in it" in text) == (epsilon <= 10)
    assert "1 in 333 million" in text
    assert ("a factor of" in text) == (epsilon <= 10)
    assert visit.run("document.documentElement.scrollWidth") == 390


def test_only_beginnings_of_names_are_marked_so(opened: Callable[..., Visit]) -> None:
    name = ["Trai", "Cafe", "Train Station", "Cafe Nero 12", "2026", "Train Statio"]
    level, parent = np.array([4, 4, 16, 12, 4, 12]), np.array([-1, -1, 5, 1, -1, 0])
    visit = opened(
        render_items_page(
            sample_manifest("hotspots", (4, 12, 16)), ItemBars(name, level, parent, np.ones(6) * 90, np.ones(6))
        )
    )
    assert visit.page.locator("#list bdi").all_inner_texts() == ["Train Station"]
    assert visit.page.inner_text("#step").startswith("1 item that stands for about 90 users.")
    visit.run("sfumato.setLevel(4)")
    assert visit.page.locator("#list bdi").all_inner_texts() == ["Trai…", "Cafe…", "2026…"]
    assert visit.page.inner_text("#step").startswith("3 prefixes that stand for about 270 users.")


def test_top_is_not_blamed_on_the_threshold(opened: Callable[..., Visit]) -> None:
    manifest = sample_manifest("hotspots", LEVELS, parameters={"top": 25})
    for text in (render_cells_page(manifest, city_cells(LEVELS)), render_items_page(manifest, prefix_items(n=300))):
        visit = opened(text)
        assert "Only the 25 with the most users are shown." in visit.page.inner_text("#report")
        assert "or have fewer users than those shown" in visit.page.inner_text("#report")
        assert "Only the 25 with the most users are shown." in visit.page.inner_text("#step")
        visit.close()


def test_an_empty_finest_level_is_not_opened(opened: Callable[..., Visit]) -> None:
    coarse = city_cells((3, 5))
    none, zeros = np.zeros(0), np.zeros(0, int)
    visit = opened(
        render_cells_page(
            sample_manifest("hotspots", LEVELS), [*coarse, CellLayer(7, zeros, zeros, none, none, [], 0.5, 20)]
        )
    )
    visit.settle()
    assert visit.page.inner_text("#step").startswith("Level 5 of 7")
    assert visit.page.is_visible("#ramp")
    visit.run("sfumato.setLayer(2)")
    assert "none was published" in visit.page.inner_text("#step")
    assert not visit.page.is_visible("#ramp")
    assert visit.page.inner_text("#ticks") == ""
    assert "0 users" not in re.sub(r"\d0 users", "", visit.page.inner_text(".panel"))


def test_the_report_names_key_rounds_and_contact(opened: Callable[..., Visit]) -> None:
    manifest = sample_manifest("hotspots", LENGTHS)
    manifest["privacy"]["contact"] = {"kind": "limited", "asked": 4321, "asking_rate": 0.01}
    visit = opened(render_items_page(manifest, prefix_items(n=300)))
    text = visit.page.inner_text("body")
    assert "Randomness\na secret key from the operating system" in text
    assert "all rounds together: ε = 1, δ = 10⁻⁸" in text
    assert "Each round asked about 4,321 users" in text
    assert visit.page.inner_text("h1") == "About 3.91 million users who hold what the first level shows"


ATTACK = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>\u202e"


@functools.cache
def hostile(safe: bool = True) -> list[str]:
    manifest = sample_manifest(
        "histogram", safe=safe, warnings=[ATTACK], release_id=ATTACK, parameters={"column": ATTACK, ATTACK: ATTACK}
    )
    manifest["privacy"] |= {"assumptions": [ATTACK], "mechanism": ATTACK, "unit": ATTACK}
    items = zipf_items(60)
    tree = ItemBars([ATTACK, ATTACK * 9, ""], np.array([1, 2, 0]), np.array([-1, 0, 1]), np.ones(3), np.ones(3))
    cells = city_cells((4,))[0]
    return [
        render_items_page(manifest, replace(items, name=[ATTACK + str(i) for i in range(len(items.name))])),
        render_items_page(manifest, tree),
        render_cells_page(manifest, [replace(cells, cell_id=[ATTACK] * len(cells.x))]),
        render_quantiles_page(manifest, *trip_lengths()),
    ]


def test_hostile_texts_are_inert(opened: Callable[..., Visit]) -> None:
    for text in hostile(safe=False):
        visit = opened(text)
        visit.settle()
        if visit.page.locator("#levels button").count():
            visit.page.locator("#levels button").first.click()
            visit.page.locator("#list .fold").first.click()
            assert "⟨U+202E⟩" in visit.page.inner_text("#list")
        assert visit.run("window.hurt") is None
        assert visit.page.locator("img").count() == 0
        assert visit.run("document.documentElement.scrollWidth <= innerWidth")
        assert ATTACK[:40] in visit.page.inner_text(".warnings")
        assert "NOT private" in visit.page.inner_text("#banner")
        assert "no one in particular" not in visit.page.inner_text("h1")
        assert "protects no one" in visit.page.inner_text("#pledge")
        visit.close()


def test_phones_have_no_sideways_scroll(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    for text in (*texts.values(), *hostile()[:2]):
        visit = opened(text, **PHONE)
        visit.settle()
        assert visit.run("document.documentElement.scrollWidth") == 390
        visit.close()


def test_pages_without_scripts_show_numbers_and_alarm(opened: Callable[..., Visit]) -> None:
    for text in hostile(safe=False):
        visit = opened(text, java_script_enabled=False)
        assert visit.page.is_visible("#banner")
        assert visit.page.is_visible(".still")
        assert not visit.page.is_visible("main")
        visit.close()


def test_empty_releases_open(opened: Callable[..., Visit]) -> None:
    none, zeros = np.zeros(0), np.zeros(0, int)
    odd = {"region": "nowhere", "privacy": {"rounds": 7, "randomness": 3}, "grid": [], "results": [], "warnings": None}
    point = Curve(*np.ones((4, 1)))
    nothing = ItemBars([], zeros, zeros, none, none)
    bare = CellLayer(4, zeros, zeros, none, none, [], 0.5, 20)
    for text in (
        render_items_page({}, nothing),
        render_items_page(odd, nothing),
        render_cells_page({}, [bare]),
        render_cells_page(odd, [bare]),
        render_quantiles_page({}, Curve(none, none, none, none), [], []),
        render_quantiles_page(odd, point, [Quantile(0.5, 1, 1, 1)], [RangeAnswer(0, 2, 0, 0)]),
    ):
        visit = opened(text)
        visit.settle()
        assert "What this " in visit.page.inner_text("#report")
        assert not re.search("NaN|undefined|null", visit.page.inner_text("body"))
        visit.close()


def test_every_control_has_a_name(list_page: Visit, tree_page: Visit, map_page: Visit, curve_page: Visit) -> None:
    tree_page.run("sfumato.setLevel(2)")
    for visit in (list_page, tree_page, map_page, curve_page):
        for control in visit.page.locator("button, input, canvas, [tabindex='0']").all():
            name = control.get_attribute("aria-label") or control.evaluate(
                "e => e.labels?.[0]?.innerText || e.innerText"
            )
            assert name, control.evaluate("e => e.outerHTML")
