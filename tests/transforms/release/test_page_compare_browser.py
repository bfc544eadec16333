"""The page of a comparison in a real browser (Debian's chromium, or skipped)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.comparison import EVALUATION, Outcome, Setting
from sfumato.transforms.evaluation.comparison_table import Row, summarise
from sfumato.transforms.release.page_compare import render_comparison
from tests.transforms.evaluation.samples import EPSILONS, FACTS, QUALITY, USERS, sample_outcomes, sample_truth
from tests.transforms.release.browsing import Browser, Visit

METRICS = ("mse", "emd", "similarity")
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
METHODS = [*list(QUALITY)[:5], "best_level", "emd (level by truth)"]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return sample_outcomes(METRICS, side=32)


@pytest.fixture(scope="module")
def rows(outcomes: list[Outcome]) -> list[Row]:
    return summarise(outcomes, METRICS)


@pytest.fixture(scope="module")
def text(outcomes: list[Outcome], rows: list[Row]) -> str:
    return render_comparison(FACTS, rows, outcomes, sample_truth(), METRICS)


@pytest.fixture
def visit(opened: Callable[..., Visit], text: str) -> Visit:
    return opened(text)


def find(rows: list[Row], method: str, **options: Any) -> Row:
    return next(row for row in rows if row.setting == Setting(method, tuple(options.items())))


def sources(visit: Visit) -> dict[str, str]:
    script = "[...document.querySelectorAll('.shot')].map(s => [s.dataset.method, s.querySelector('img').src])"
    return dict(visit.run(script))


def values(visit: Visit, method: str) -> list[str]:
    return visit.page.locator(f".shot[data-method='{method}'] dd").all_inner_texts()


def centre(visit: Visit, method: str) -> tuple[float, float]:
    frame = visit.page.locator(f".shot[data-method='{method}'] .frame")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def points(visit: Visit, method: str) -> list[list[float]]:
    """Where a line's points lie, [x, y] in pixels."""
    script = """m => [...document.querySelectorAll(`#plot g[data-method="${m}"] .point`)].map(
      p => p.getAttribute('transform').match(/[-\\d.]+/g).map(Number))"""
    return list(visit.run(script, method))


def test_notice_stands_above_everything(visit: Visit) -> None:
    assert EVALUATION in visit.page.inner_text("#banner")
    box = visit.page.locator("#banner").bounding_box()
    assert (box["x"], box["y"], box["width"]) == (0, 0, 1200)
    assert visit.run("getComputedStyle(document.getElementById('banner')).backgroundColor") == "rgb(179, 18, 29)"
    assert "5 methods on the same cohorts, beside 2 that are not private" in visit.page.inner_text("h1")
    assert visit.page.locator("#chips dd").first.inner_text() == "50"


def test_truth_and_every_method_stand_side_by_side(visit: Visit, rows: list[Row]) -> None:
    assert list(sources(visit)) == ["truth", *METHODS]
    assert visit.run("sfumato.chosen") == {"users": 10_000, "epsilon": 1, "calibration": 0.1}
    for method in METHODS:
        options: dict[str, Any] = {"users": 10_000} if method == "best_level" else {"users": 10_000, "epsilon": 1.0}
        row = find(rows, method, **options, **({"calibration": 0.1} if method == "adaptive" else {}))
        assert values(visit, method) == [row.metrics[name].text for name in METRICS]
    assert visit.page.locator(".shot .best").count() == len(METRICS)
    assert visit.page.locator(".shot[data-method=adaptive] .best").count() == len(METRICS)
    assert visit.page.locator(".shot h3 small").all_inner_texts() == ["exact", "not private", "not private"]
    tops = {round(shot.bounding_box()["y"]) for shot in visit.page.locator(".shot").all()[:4]}
    assert len(tops) == 1


def test_choosing_a_setting_swaps_pictures_and_values(visit: Visit, rows: list[Row]) -> None:
    before, rowed = sources(visit), values(visit, "emd")
    visit.page.select_option("[data-option=epsilon]", label="2")
    after = sources(visit)
    assert after["truth"] == before["truth"]
    assert after["best_level"] == before["best_level"]  # it knows no epsilon
    assert all(after[method] != before[method] for method in QUALITY)
    assert values(visit, "emd") == [find(rows, "emd", users=10_000, epsilon=2.0).metrics[m].text for m in METRICS]
    assert values(visit, "emd") != rowed
    visit.page.select_option("[data-option=calibration]", label="0.2")
    last = sources(visit)
    assert {method for method in last if last[method] != after[method]} == {"adaptive"}
    assert visit.page.inner_text("#spoken") == "Shown: users 10,000, epsilon 2, calibration 0.2"


def test_a_setting_without_an_estimate_shows_no_picture(visit: Visit) -> None:
    visit.page.select_option("[data-option=epsilon]", label="0.5")
    shot = visit.page.locator(".shot[data-method=flat]")
    assert not shot.locator("img").is_visible()
    assert "No picture" in shot.locator(".absent").inner_text()
    assert values(visit, "flat") == ["-"] * len(METRICS)
    visit.page.select_option("[data-option=epsilon]", label="1")
    assert shot.locator("img").is_visible()


def test_pictures_zoom_and_move_in_step(visit: Visit) -> None:
    page = visit.page
    transforms = "[...new Set([...document.querySelectorAll('.shot img')].map(i => i.style.transform))]"
    assert page.is_disabled("#zoom-out")
    page.mouse.dblclick(*centre(visit, "emd"))
    view = visit.run("sfumato.view")
    assert view == pytest.approx({"k": 2, "x": 0.5, "y": 0.5}, abs=0.01)  # to a pixel
    (transform,) = visit.run(transforms)
    shift = [50 - 200 * view[axis] for axis in "xy"]  # percent of the picture
    assert list(map(float, re.findall(r"-?[\d.]+", transform))) == pytest.approx([*shift, 2], abs=1e-3)
    x, y = centre(visit, "flat")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 20, y - 10)
    page.mouse.up()
    width = page.locator(".shot[data-method=flat] .frame").bounding_box()["width"]
    moved = visit.run("sfumato.view")
    shift = (moved["x"] - view["x"], moved["y"] - view["y"])
    assert shift == pytest.approx((-20 / width / 2, 10 / width / 2), abs=0.005)
    assert len(visit.run(transforms)) == 1
    page.focus("#shots")
    for key in ("+", "+", "+", "+", "ArrowLeft"):
        page.keyboard.press(key)
    assert visit.run("sfumato.view.k") == 16
    assert page.is_disabled("#zoom-in")
    for _ in range(200):
        page.keyboard.press("ArrowRight")
    assert visit.run("sfumato.view.x") == 1 - 1 / 32  # no further than the edge
    page.keyboard.press("0")
    assert visit.run("sfumato.view") == {"k": 1, "x": 0.5, "y": 0.5}
    page.click("#zoom-in")
    assert page.inner_text("#zoom-whole") == "2×"


def test_pointer_marks_the_same_place_in_all(visit: Visit) -> None:
    visit.page.mouse.move(*centre(visit, "count_min"))
    visit.settle()
    marks = visit.page.locator(".shot i.cross:visible")
    assert marks.count() == 1 + len(METHODS)
    assert visit.run("new Set([...document.querySelectorAll('i.cross')].map(c => c.style.left)).size") == 1


def test_chart_has_a_line_a_method_through_its_means(visit: Visit, rows: list[Row]) -> None:
    page = visit.page
    assert page.locator("#plot g").count() == len(METHODS)
    assert page.locator("#plot g.outside").count() == 2
    assert (
        visit.run("getComputedStyle(document.querySelector('[data-method=best_level] .curve')).strokeDasharray")
        != "none"
    )
    assert page.input_value("#along") == "epsilon"
    # Both axes are logarithmic or linear as told; equal ratios or differences are equal steps.
    title = page.locator("#plot .title").first.inner_html()
    assert title == "mse, lower is better, logarithmic"
    means, pixels = [], []
    for method in ("hierarchical", "count_min", "emd"):
        found = points(visit, method)
        assert len(found) == len(EPSILONS)
        assert found[0][0] < found[1][0] < found[2][0]
        means += [find(rows, method, users=10_000, epsilon=e).metrics["mse"].value for e in EPSILONS]
        pixels += [y for _, y in found]
    slope, start = np.polyfit(np.log(means), pixels, 1)
    assert slope < -10  # up is more
    assert np.abs(slope * np.log(means) + start - pixels).max() < 0.02  # coordinates have two decimals
    assert len(points(visit, "flat")) == 2  # its shards were lost at epsilon 0.5
    assert points(visit, "best_level") == []  # a level line, without points
    assert page.locator("[data-method=emd] .whisker").count() >= 3


def test_whiskers_are_one_standard_error_each_way(visit: Visit, rows: list[Row]) -> None:
    visit.page.select_option("#figure", label="similarity")
    assert visit.page.locator("#plot .title").first.inner_html() == "similarity, higher is better"
    script = """m => [...document.querySelectorAll(`#plot g[data-method="${m}"] .whisker`)].map(
      p => p.getAttribute('d').match(/[-\\d.]+/g).slice(1, 3).map(Number))"""
    ends = visit.run(script, "count_min")
    means = [find(rows, "count_min", users=10_000, epsilon=e).metrics["similarity"] for e in EPSILONS]
    spots = points(visit, "count_min")
    unit = (spots[0][1] - spots[2][1]) / (means[2].value - means[0].value)
    for (low, high), mean in zip(ends, means, strict=True):
        assert abs(low - high) == pytest.approx(2 * mean.error * unit, abs=0.05)


def test_chart_changes_its_axis_and_hides_lines(visit: Visit) -> None:
    page = visit.page
    page.select_option("#along", label="users")
    assert len(points(visit, "emd")) == len(USERS)
    assert len(points(visit, "best_level")) == 0 or page.locator("#plot g").count() == len(METHODS)
    assert "epsilon 1, calibration 0.1" in page.inner_text("#at")
    page.select_option("#along", label="calibration")
    assert len(points(visit, "adaptive")) == 3
    assert points(visit, "emd") == []  # it has no such option: a level line
    page.click("#series button[data-method=emd]")
    assert page.get_attribute("#series button[data-method=emd]", "aria-pressed") == "false"
    assert page.locator("#plot g").count() == len(METHODS) - 1
    page.click("#series button[data-method=emd]")
    assert page.locator("#plot g").count() == len(METHODS)


def test_chart_is_read_and_moved_by_keys(visit: Visit, rows: list[Row]) -> None:
    page = visit.page
    before = sources(visit)
    page.focus("#chart")
    page.keyboard.press("ArrowRight")
    assert visit.run("sfumato.chosen.epsilon") == 2
    assert sources(visit)["emd"] != before["emd"]
    assert page.input_value("[data-option=epsilon]") == "2"
    assert page.get_attribute("#chart", "aria-valuenow") == "2"
    spoken = page.get_attribute("#chart", "aria-valuetext")
    yardstick = find(rows, "best_level", users=10_000).metrics["mse"].text
    assert spoken.startswith(f"epsilon 2: best_level {yardstick}; adaptive ")  # the best first
    assert "emd" in page.inner_text("#tip")
    page.keyboard.press("Home")
    assert visit.run("sfumato.chosen.epsilon") == 0.5
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")


def test_a_click_on_the_chart_chooses(visit: Visit) -> None:
    page = visit.page
    page.locator("#chart").scroll_into_view_if_needed()
    box = page.locator("#chart").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 60, box["y"] + box["height"] / 2)
    assert visit.run("sfumato.chosen.epsilon") == 2
    assert page.is_visible("#tip")
    tip = page.locator("#tip").bounding_box()
    assert tip["x"] + tip["width"] <= box["x"] + box["width"]


def column(visit: Visit, name: str) -> list[str]:
    heads = visit.page.locator("#table thead th").all_inner_texts()
    return visit.page.locator(f"#table tbody tr > :nth-child({heads.index(name) + 1})").all_inner_texts()


def test_table_sorts_by_any_column(visit: Visit, rows: list[Row]) -> None:
    page = visit.page
    assert len(column(visit, "mse")) == len(rows)
    button = page.locator("#table thead button", has_text="similarity")
    button.click()
    found = column(visit, "similarity")
    means = sorted((row.metrics["similarity"] for row in rows if row.entries > 0), key=lambda one: one.value)
    assert found == [one.text for one in means] + ["-"]
    assert page.get_attribute("#table th:has(button:text-is('similarity'))", "aria-sort") == "ascending"
    button.focus()
    page.keyboard.press("Enter")
    assert column(visit, "similarity") == [one.text for one in means[::-1]] + ["-"]
    page.locator("#table thead button", has_text="method").click()
    assert column(visit, "method") == sorted(column(visit, "method"))
    assert page.locator("#table [aria-sort]").count() == 1
    page.locator("#table thead button", has_text="users").click()
    assert column(visit, "users") == [
        f"{row.options['users']:,}" for row in sorted(rows, key=lambda r: r.options["users"])
    ]


def test_a_row_shows_its_pictures(visit: Visit) -> None:
    page = visit.page
    assert page.locator("#table tr.chosen").count() == len(METHODS)
    page.locator("#table tbody button").last.click()
    assert visit.run("sfumato.chosen") == {"users": 100_000, "epsilon": 2, "calibration": 0.1}
    assert "100,000" in page.locator("#table tr.chosen").first.inner_text()
    visit.until("document.getElementById('pictures-title').getBoundingClientRect().top < innerHeight / 2")


def test_every_control_has_a_name(visit: Visit) -> None:
    for control in visit.page.locator("button, select, [tabindex]").all():
        script = "e => e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText"
        assert control.evaluate(script), control.evaluate("e => e.outerHTML")
    assert visit.page.locator("img:not([alt])").count() == 0


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_nothing_runs_over_the_side_and_words_stand_out(
    opened: Callable[..., Visit], text: str, scheme: str, size: str
) -> None:
    visit = opened(text, color_scheme=scheme, **(PHONE if size == "phone" else {}))
    assert visit.run("document.documentElement.scrollWidth <= innerWidth")
    script = """names => names.map(name => {
      const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(v => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
      const ink = light(getComputedStyle(document.querySelector(name)).color);
      const ground = light(getComputedStyle(document.body).backgroundColor);
      return (Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05);
    })"""
    words = [
        ".shot h3",
        ".shot dt",
        ".shot dd",
        ".shot .best",
        ".shot small",
        "#at",
        "#table td",
        "#table small",
        "#table tbody th",
        ".quiet",
        ".series button",
    ]
    contrasts = visit.run(script, words)
    assert min(contrasts) >= 4.5, dict(zip(words, contrasts, strict=True))
    lines = [f".series button[data-method='{method}'] svg" for method in METHODS]
    assert min(visit.run(script, lines)) >= 3
    light_ground = visit.run("getComputedStyle(document.body).backgroundColor") != "rgb(11, 10, 15)"
    assert light_ground == (scheme == "light")


def test_without_scripts_table_and_pictures_stand(browser: Browser, tmp_path: Path, text: str, rows: list[Row]) -> None:
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    visit = Visit(browser, file, java_script_enabled=False)
    page = visit.page
    assert EVALUATION in page.inner_text("#banner")
    assert page.locator("#banner").bounding_box()["y"] == 0
    assert page.locator("#album img").count() > 40
    assert page.locator("#album img").last.bounding_box()["width"] > 150
    assert page.locator("#table tbody tr").count() == len(rows)
    for hidden in ("#choices", "#curves", "#report", "#shots"):
        assert not page.is_visible(hidden)
    visit.close()


def test_one_setting_has_no_curves(opened: Callable[..., Visit], outcomes: list[Outcome]) -> None:
    only = [
        Outcome(Setting(one.setting.method, ()), one.key, one.metrics, one.entries, one.bits, 0.0, one.picture)
        for one in outcomes
        if dict(one.setting.options).get("epsilon") == 1.0 and one.setting.method in {"emd", "flat"}
        and dict(one.setting.options)["users"] == USERS[0]
    ]  # fmt: skip
    visit = opened(render_comparison(FACTS, summarise(only, METRICS), only, sample_truth(), METRICS))
    visit.settle()
    assert not visit.page.is_visible("#curves")
    assert visit.page.locator("#choices select").count() == 0
    assert list(sources(visit)) == ["truth", "flat", "emd"]
    nothing = opened(render_comparison(FACTS, [], [], sample_truth(), METRICS))
    nothing.settle()
    assert "No run has come to an end." in nothing.page.inner_text("main")


def test_words_as_values_make_an_axis_of_their_own(opened: Callable[..., Visit]) -> None:
    outcomes = [
        Outcome(Setting(method, (("split", split),)), key, {"mse": mse + key}, 5, 50)
        for method, factor in (("flat", 1), ("emd", 2))
        for split, mse in (("even", 3.0 * factor), ("geometric", 2.0 * factor))
        for key in range(3)
    ]
    visit = opened(render_comparison(FACTS, summarise(outcomes, ["mse"]), outcomes, sample_truth(), ["mse"]))
    visit.settle()
    assert visit.page.input_value("#along") == "split"
    assert len(points(visit, "flat")) == 2
    assert {"even", "geometric"} <= set(
        visit.run("[...document.querySelectorAll('#plot text')].map(t => t.textContent)")
    )
