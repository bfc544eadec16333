"""The page of moments in a real browser (Debian's chromium, or skipped)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sfumato.schemas.moments import BitMeans
from sfumato.transforms.release.page_moments import CellMeans, render_moments_page
from tests.transforms.release.browsing import Visit
from tests.transforms.release.city import REGION
from tests.transforms.release.moment_samples import (
    estimate,
    estimates,
    groups,
    mean_cells,
    moments_manifest,
    split_bits,
    unsigned_bits,
)

PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
ATTACK = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>\u202e"


@pytest.fixture(scope="module")
def bits() -> list[BitMeans]:
    return unsigned_bits()


@pytest.fixture(scope="module")
def cells() -> CellMeans:
    return CellMeans(**mean_cells())


@pytest.fixture(scope="module")
def texts(bits: list[BitMeans], cells: CellMeans) -> dict[str, str]:
    both, raw = split_bits(), unsigned_bits(None)
    given = estimates(bits, ("mean", "variance")) + groups(40, ("mean", "variance"))
    return {
        "groups": render_moments_page(moments_manifest(grouped=True), given, bits),
        "split": render_moments_page(moments_manifest(bits=12, signed="split"), estimates(both), both),
        "raw": render_moments_page(moments_manifest(None), estimates(raw), raw),
        "cells": render_moments_page(moments_manifest(grouped=True), estimates(bits), bits, cells),
    }


@pytest.fixture
def group_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["groups"])


@pytest.fixture
def split_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["split"])


@pytest.fixture
def map_page(opened: Callable[..., Visit], texts: dict[str, str]) -> Visit:
    return opened(texts["cells"])


def bars(visit: Visit) -> np.ndarray:
    """x, y, width, height, and whether squashed, float64[n, 5], of the chart's bars, in pixels."""
    script = """[...document.querySelectorAll('#bits-plot .bit')].map((b) => [...['x', 'y', 'width', 'height']
      .map((name) => +b.getAttribute(name)), b.classList.contains('squashed') ? 1 : 0])"""
    return np.array(visit.run(script))


def test_the_answer_stands_first_in_large_type(group_page: Visit, bits: list[BitMeans]) -> None:
    page = group_page.page
    given = estimates(bits)[0]
    shown = page.inner_text("#answer b")
    assert float(shown.replace(",", "")) == pytest.approx(given.value, abs=0.6)
    low, high = re.findall(r"[\d,]+", page.inner_text("#answer .margin").split("\n")[0])
    assert float(low.replace(",", "")) == pytest.approx(given.low, abs=0.6)
    assert float(high.replace(",", "")) == pytest.approx(given.high, abs=0.6)
    assert group_page.run("parseFloat(getComputedStyle(document.querySelector('#answer b')).fontSize)") >= 40
    assert "Variance" in page.inner_text("#others")
    assert page.inner_text("h1") == "Mean of trip_seconds, from one bit of each of 10,000 clients"
    rows = page.locator("[aria-label='Table of statistics'] tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == ["Mean", "Variance"]


def test_bars_are_as_high_as_their_shares(group_page: Visit, bits: list[BitMeans]) -> None:
    drawn = bars(group_page)
    mean = bits[0].mean
    assert len(drawn) == 16
    top = np.where(mean > 0, drawn[:, 1], drawn[:, 1] + drawn[:, 3])
    slope, start = np.polyfit(mean, top, 1)
    assert slope < -100
    assert np.abs(slope * mean + start - top).max() < 0.8  # no bar is flatter than 0.75 pixels
    assert drawn[:, 4].astype(bool).tolist() == bits[0].squashed.tolist()
    assert drawn[12:, 4].all()
    assert (np.diff(drawn[:, 0]) > 0).all()
    ticks = group_page.page.locator("#bits-plot .tick").all_text_contents()
    assert {"1", "1,024", "32,768", "0%", "100%"} <= set(ticks)


def test_a_bit_under_the_pointer_says_what_it_is(group_page: Visit, bits: list[BitMeans]) -> None:
    page, first = group_page.page, bits[0]
    box = page.locator("#bits").bounding_box()
    drawn = bars(group_page)
    for i in (9, 13):
        page.mouse.move(box["x"] + drawn[i, 0] + drawn[i, 2] / 2, box["y"] + 150)
        text = page.inner_text("#bits-tip")
        assert f"Place value\n{2**i:,}" in text
        assert f"{100 * first.mean[i]:.1f}% set".replace("-0.0", "0.0").replace("-", "−") in text
        assert f"Reports\nabout {first.reports[i]:,.0f}" in text
        assert ("probably empty" in text) == (i == 13)
    page.mouse.move(2, 2)
    assert not page.is_visible("#bits-tip")


def test_a_bit_that_nobody_knows_is_hollow_and_says_so(opened: Callable[..., Visit], bits: list[BitMeans]) -> None:
    stddev = bits[0].stddev.copy()
    stddev[0] = 0.5
    reports = np.concatenate([[-7.0], bits[0].reports[1:]])  # of groups, noise may lead it below 0
    visit = opened(render_moments_page(moments_manifest(), [], [replace(bits[0], stddev=stddev, reports=reports)]))
    assert visit.page.locator("#bits-plot .bit.unclear").count() == 1
    assert visit.page.is_visible("#unclear-key")
    visit.run("sfumato.bits.setBit(0)")
    assert "asked about too rarely to tell" in visit.page.inner_text("#bits-tip")
    assert "Reports\n0" in visit.page.inner_text("#bits-tip")


def test_arrow_keys_read_the_bits_out(group_page: Visit) -> None:
    page = group_page.page
    page.focus("#bits")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#bits", "aria-valuenow") == "1"
    assert re.match(r"[\d.]+% set\. from [−\d.]+% to [\d.]+% at 95%\. Place value: 2\.", spoken(page))
    page.keyboard.press("End")
    assert page.get_attribute("#bits", "aria-valuenow") == page.get_attribute("#bits", "aria-valuemax") == "15"
    assert "Squashed: probably empty" in spoken(page)
    page.keyboard.press("Escape")
    assert not page.is_visible("#bits-tip")


def spoken(page: object) -> str:
    return str(page.get_attribute("#bits", "aria-valuetext"))  # type: ignore[attr-defined]


def test_bits_of_negative_values_stand_on_the_left(split_page: Visit) -> None:
    drawn = bars(split_page)
    assert len(drawn) == 24
    apart = np.diff(drawn[:, 0])
    assert int(np.argmax(apart)) == 11  # a gap between the signs
    split_page.run("sfumato.bits.setBit(0)")
    assert "−512, of negative values" in split_page.page.inner_text("#bits-tip")
    split_page.page.click("#quantities button:text-is('Squared distance')")
    assert len(bars(split_page)) == 20
    assert "squared distance" in split_page.page.inner_text("#step")
    assert not split_page.page.is_visible("#bits-tip")


def test_the_meter_says_what_was_disclosed(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    visit = opened(texts["groups"])
    text = visit.page.inner_text("#meter")
    for words in ("One bit", "16 bits", "one bit, never more than 1", "at most 29.4%", "88.1%", "2 a client, 2 a bit"):
        assert words in text
    assert visit.page.locator("#strip i").count() == 16
    shades = visit.run("[...document.querySelectorAll('#strip i')].map((one) => +one.style.opacity)")
    assert shades == sorted(shades)  # here the upper bits are read more
    raw = opened(texts["raw"]).page.inner_text("#meter")
    assert "no differential privacy" in raw
    assert "It arrives true\nalways" in raw
    assert "ε" not in raw


def test_the_report_promises_what_was_given(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    text = opened(texts["groups"]).page.inner_text("body")
    assert "can change no guess's odds by more than a factor of 7.39" in text  # e^2 = 7.389..., rounded up
    assert "cannot end up more than 88.1% sure" in text
    assert "protected by the noise on every count: ε = 1; whoever collects the reports knows it" in text
    assert "From whoever reads this page\nε = 2: add or remove one user" in text
    assert "From whoever collects the reports\nε = 2: one client's value is replaced" in text
    assert "fewer than 100 clients" in text
    assert "Each report was then turned round with a known chance" in text
    raw = opened(texts["raw"]).page.inner_text("body")
    assert "knows that bit, and what follows from it" in raw
    assert not re.search(r"a factor of|turned round|were squashed|squashed:|below 0%", raw)
    manifest = moments_manifest(20.0)
    vague = opened(render_moments_page(manifest, [], [])).page.inner_text("body")
    assert "promises next to nothing" in vague
    assert "a factor of" not in vague


def test_groups_are_sorted_and_found(group_page: Visit) -> None:
    page = group_page.page
    made = [one for one in groups(40, ("mean", "variance")) if one.statistic == "mean"]
    names = [one.group for one in made]
    assert page.locator("#list bdi").all_inner_texts() == names
    page.click("#by-value button")
    assert page.get_attribute("#by-value", "aria-sort") == "descending"
    by_value = [one.group for one in sorted(made, key=lambda one: -one.value)]
    assert page.locator("#list bdi").all_inner_texts() == by_value
    page.click("#by-value button")
    assert page.get_attribute("#by-value", "aria-sort") == "ascending"
    assert page.locator("#list bdi").all_inner_texts() == by_value[::-1]
    page.click("#by-name button")
    assert page.get_attribute("#by-name", "aria-sort") == "ascending"
    assert page.locator("#list bdi").all_inner_texts() == names
    page.click("#by-clients button")
    assert page.locator("#list .share").first.inner_text() == "40,000"
    page.fill("#filter", "TRICT 3")
    assert page.inner_text("#status") == "11 of 41 groups match"
    page.fill("#filter", "nobody")
    assert page.is_visible("#nothing")
    page.fill("#filter", "")
    page.click("#group-statistics button:text-is('Variance')")
    assert page.inner_text("#groups-title") == "Variance by group"


def test_intervals_are_as_long_as_they_say(group_page: Visit) -> None:
    made = [one for one in groups(40, ("mean", "variance")) if one.statistic == "mean"]
    script = """[...document.querySelectorAll('#list tr')].map((row) => {
      const box = (part) => row.querySelector(part).getBoundingClientRect();
      const [plot, range, dot] = ['.plot', '.range', '.dot'].map(box);
      return [range.left - plot.left, range.right - plot.left, (dot.left + dot.right) / 2 - plot.left];
    })"""
    drawn = np.array(group_page.run(script))
    wanted = np.array([[one.low, one.high, one.value] for one in made])
    slope, start = np.polyfit(wanted.ravel(), drawn.ravel(), 1)
    assert slope > 0
    assert np.abs(slope * wanted + start - drawn).max() < 1


def test_a_thousand_groups_are_shown_in_parts(opened: Callable[..., Visit]) -> None:
    visit = opened(render_moments_page(moments_manifest(), groups(999), []))
    assert visit.page.locator("#list tr").count() == 60
    visit.page.focus("#next")
    visit.page.keyboard.press("Enter")
    assert visit.page.locator("#list tr").count() == 120
    assert visit.run("document.activeElement.closest('tr').rowIndex") == 61  # the first new row


def test_the_map_colours_cells_by_value(map_page: Visit, cells: CellMeans) -> None:
    map_page.settle()
    order = np.argsort(cells.value)
    side = 2**cells.level
    points = np.stack([(cells.x + 0.5) / side, (cells.y + 0.5) / side], axis=1)
    light = map_page.colours(points[order]).sum(axis=1)
    assert light[-1] > light[len(light) // 2] > light[0] > 100
    assert (np.diff(light) >= -1.5).mean() > 0.99  # the palette is monotone, but for rounding
    taken = set(zip(cells.x.tolist(), cells.y.tolist(), strict=True))
    empty = next((x, y) for x in range(side) for y in range(side) if (x, y) not in taken)
    dark = map_page.colours(np.array([[(empty[0] + 0.5) / side, (empty[1] + 0.5) / side]]))
    assert dark.max() < 60
    ticks = map_page.page.locator("#ticks span").all_inner_texts()
    low, high = np.quantile(cells.value, [0.02, 0.98])  # so that no extreme sets the colours of all others
    assert ticks[0] == f"≤ {low:,.0f}".replace("-", "−")
    assert ticks[-1] == f"≥ {high:,.0f}"
    assert map_page.page.inner_text("#scale-title") == "Mean of trip_seconds"


def test_the_map_reads_a_cell_out(map_page: Visit, cells: CellMeans) -> None:
    page = map_page.page
    i = int(np.argmax(cells.value))
    wide, tall = REGION["east"] - REGION["west"], REGION["north"] - REGION["south"]
    lon = REGION["west"] + (cells.x[i] + 0.5) / 2**cells.level * wide
    lat = REGION["north"] - (cells.y[i] + 0.5) / 2**cells.level * tall
    page.mouse.move(*map_page.place(lon, lat))
    map_page.settle()
    text = page.inner_text("#tip")
    assert text.startswith(f"{cells.value[i]:,.0f}\n")
    assert cells.cell_id[i] in text
    assert "at 95%" in text
    assert map_page.run("([lon, lat]) => sfumato.lookup(lon, lat).cell_id", [lon, lat]) == cells.cell_id[i]
    for listed, sign in (("highest", 1), ("lowest", -1)):  # those that differ for certain, and no others
        sure = np.flatnonzero(cells.differs == sign)
        best = sure[np.argsort(-sign * cells.value[sure], kind="stable")][:5]
        names = page.locator(f"#{listed} button span:first-of-type").all_inner_texts()
        assert names == [cells.cell_id[i] for i in best]
    page.locator("#lowest button").first.click()
    map_page.settle()
    assert cells.cell_id[int(np.argmin(cells.value))] in page.inner_text("#tip")
    assert map_page.view()["scale"] > 1


@functools.cache
def hostile() -> list[str]:
    manifest = moments_manifest(safe=False, column=ATTACK, warnings=[ATTACK], release_id=ATTACK, method=ATTACK)
    manifest["privacy"] |= {"assumptions": [ATTACK], "mechanism": ATTACK, "unit": ATTACK}
    given = [replace(one, quantity=ATTACK) for one in split_bits()]
    numbers = [replace(one, statistic=ATTACK) for one in estimates(given)]
    named = [replace(one, group=ATTACK + one.group, statistic=ATTACK) for one in groups(14)]
    columns = mean_cells(3)
    cells = CellMeans(**columns | {"cell_id": [ATTACK] * len(columns["x"])})
    return [render_moments_page(manifest, numbers + named, given), render_moments_page(manifest, numbers, given, cells)]


def test_hostile_texts_are_inert(opened: Callable[..., Visit]) -> None:
    for text in hostile():
        visit = opened(text)
        visit.settle()
        visit.run("sfumato.bits.setBit(3)")
        assert visit.run("window.hurt") is None
        assert visit.page.locator("img").count() == 0
        assert "⟨U+202E⟩" in visit.page.inner_text("#list")
        assert ATTACK[:40] in visit.page.inner_text(".warnings")
        assert "NOT private" in visit.page.inner_text("#banner")
        assert "protects no one" in visit.page.inner_text("#pledge")
        assert visit.run("document.documentElement.scrollWidth <= innerWidth")
        visit.close()


def test_phones_have_no_sideways_scroll_and_see_all(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    for text in (*texts.values(), *hostile()):
        visit = opened(text, **PHONE)
        visit.settle()
        assert visit.run("document.documentElement.scrollWidth") == 390
        box = visit.page.locator("#bits").bounding_box()
        assert box["height"] >= 300
        assert (bars(visit)[:, 2] > 4).all()
        visit.close()


def test_pages_without_scripts_show_numbers_and_alarm(opened: Callable[..., Visit]) -> None:
    for text in hostile():
        visit = opened(text, java_script_enabled=False)
        assert visit.page.is_visible("#banner")
        assert visit.page.locator(".still").first.is_visible()
        assert not visit.page.is_visible("main")
        visit.close()


def test_empty_and_odd_releases_open(opened: Callable[..., Visit]) -> None:
    odd = {"region": "nowhere", "privacy": {"meter": 7, "randomness": 3}, "grid": [], "results": [], "fixed_point": 3}
    none = CellMeans(4, *[np.zeros(0, int)] * 2, [], *[np.zeros(0)] * 4, np.zeros(0, np.int8))
    one = CellMeans(
        4, np.array([3]), np.array([2]), ["r"], np.array([7.0]), *[np.full(1, np.nan)] * 3, np.zeros(1, np.int8)
    )
    broken = np.array([np.nan, np.inf, 0.5])
    unread = BitMeans("value", 2.0 ** np.arange(3), broken, broken, broken, np.zeros(3, bool), broken)
    numbers = [estimate(group, "mean", np.nan, np.nan, np.nan) for group in ("everybody", "a")]
    for given in ({}, odd):
        for text in (
            render_moments_page(given, [], []),
            render_moments_page(given, numbers, [unread]),
            render_moments_page(given, [], [], none),
            render_moments_page(given, numbers, [unread], one),
        ):
            visit = opened(text)
            visit.settle()
            visit.run("sfumato.bits.setBit(0)")
            assert "What this " in visit.page.inner_text("#report")
            assert "nothing can be promised" in visit.page.inner_text("#pledge")
            assert not re.search("NaN|undefined|null|Infinity", visit.page.inner_text("body"))
            visit.close()


def test_every_control_has_a_name(opened: Callable[..., Visit], texts: dict[str, str]) -> None:
    for text in texts.values():
        visit = opened(text)
        for control in visit.page.locator("button, input, canvas, [tabindex='0']").all():
            name = control.get_attribute("aria-label") or control.evaluate(
                "e => e.labels?.[0]?.innerText || e.innerText || e.textContent"
            )
            assert name, control.evaluate("e => e.outerHTML")
        visit.close()
