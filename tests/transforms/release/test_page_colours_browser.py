"""What the heatmap's colours show, in a real browser: users, rates with intervals, and how sure the counts are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.transforms.release.page import Layer, Rates, render_page
from tests.transforms.release.browsing import Visit
from tests.transforms.release.city import REGION, city_manifest, embedded, posterior_layer
from tests.transforms.release.test_page_browser import middle, table_of

Open = Callable[..., Visit]
NAMES = ("flu", "cold", "none")


def manifest_of(layers: list[Layer], **parameters: Any) -> dict[str, Any]:
    """The city's manifest, of an estimator that combines the sub-queries, with the last layer the map."""
    manifest = city_manifest(layers[:-1])
    manifest["parameters"] |= {"method": "adaptive", "estimator": "bayes"} | parameters
    return manifest


@pytest.fixture(scope="module")
def combined() -> Layer:
    return posterior_layer(most=300, names=NAMES)


@pytest.fixture(scope="module")
def stack(layers: list[Layer], combined: Layer) -> list[Layer]:
    """Two sub-queries without rates, and the map made of them, with rates."""
    return [layers[2], layers[4], combined]


@pytest.fixture(scope="module")
def text(stack: list[Layer]) -> str:
    return render_page(manifest_of(stack, auxiliary="symptom"), stack, None)


def colours_shown(visit: Visit) -> list[str]:
    radios = "[...document.querySelectorAll('[name=colours]')]"
    return list(visit.run(f"{radios}.filter(radio => radio.closest('label').offsetParent).map(radio => radio.value)"))


def choose(visit: Visit, name: str) -> None:
    visit.page.locator(f".choice label:has([value={name}])").click()
    visit.settle()


def known_well(layer: Layer, category: int, wide: float) -> int:
    """A large cell with a narrow interval for the category's rate."""
    assert layer.rates
    width = layer.rates.high[category] - layer.rates.low[category]
    return int(np.flatnonzero((width < wide) & (layer.level < 7))[0])


def test_the_choice_offers_what_the_layers_have(opened: Open, stack: list[Layer], text: str) -> None:
    assert colours_shown(opened(text)) == ["users", "rate", "uncertainty"]
    bare = [*stack[:2], replace(stack[2], rates=None)]
    visit = opened(render_page(manifest_of(bare), bare, None))
    assert colours_shown(visit) == ["users", "uncertainty"]
    assert not visit.page.is_visible("#category")
    before = visit.picture()
    visit.run("sfumato.setColours('rate')")  # there is none: nothing happens
    visit.run("sfumato.setColours('nonsense')")
    assert visit.picture() == before
    assert visit.page.is_checked("[value=users]")


def test_rates_are_told_with_their_interval(opened: Open, combined: Layer, text: str) -> None:
    visit = opened(text)
    assert combined.rates
    packed = embedded(text)
    scale = packed["rate_scales"][0]
    i = known_well(combined, 0, scale["wide"])
    visit.page.mouse.move(*visit.place(*middle(combined, i)))
    visit.settle()
    words = re.compile(r"(\d+(?:\.\d+)?)% \((\d+(?:\.\d+)?)% to (\d+(?:\.\d+)?)%\)")
    assert re.search(rf"Rate\nflu: {words.pattern}\n", visit.page.inner_text("#tip"))
    choose(visit, "rate")
    visit.page.mouse.move(*visit.place(*middle(combined, i)))
    visit.settle()
    value, level = visit.page.inner_text("#tip").split("\n\n")[0], visit.page.inner_text("#tip .margin")
    found = words.fullmatch(value)
    assert found
    rate, low, high = (float(part) / 100 for part in found.groups())
    width = combined.rates.high[0, i] - combined.rates.low[0, i]
    assert rate == pytest.approx(combined.rates.rate[0, i], abs=width / 4)
    assert low <= combined.rates.low[0, i] + 1e-9
    assert high >= combined.rates.high[0, i] - 1e-9
    assert high - low < 2 * width
    assert level == "95% interval of this cell alone, includes sampling and noise"
    assert "Share of users, symptom = flu" in visit.page.inner_text("#tip")
    assert visit.page.inner_text("#scale-title") == "Share of users, symptom = flu"
    assert visit.page.get_attribute("#canvas", "aria-label") == "Map of rates"
    ticks = visit.page.locator("#ticks span").all_inner_texts()
    assert ticks[0] == "0%"
    assert ticks[-1] == f"≥ {100 * scale['high']:.0f}%"

    # A cell without a rate says so.
    visit.page.mouse.move(*visit.place(*middle(combined, int(np.flatnonzero(np.isnan(combined.rates.rate[0]))[0]))))
    visit.settle()
    assert visit.page.inner_text("#tip").startswith("rate unknown\n\ntoo few users to tell")
    assert visit.page.inner_text("#absent").strip() == "too few users to tell"


def test_rates_are_painted_by_their_scale(opened: Open, combined: Layer, text: str) -> None:
    visit = opened(text)
    choose(visit, "rate")
    assert combined.rates
    data = embedded(text)
    scale = data["rate_scales"][0]
    stops = np.array([list(bytes.fromhex(part)) for part in re.findall("......", data["rate_palette"])], float)
    rate = np.array(data["layers"][-1]["rates"]["rate"][0], float)  # rounded to a 20th of its interval
    width = combined.rates.high[0] - combined.rates.low[0]
    shade = np.clip((rate - scale["low"]) / (scale["high"] - scale["low"]), 0, 1) * (len(stops) - 1)
    large = combined.level <= 6  # their middles are clear of edges
    points = np.column_stack([combined.x + 0.37, combined.y + 0.43]) / 2.0 ** combined.level[:, None]
    seen = visit.colours(points)
    wanted = np.column_stack([np.interp(shade, np.arange(len(stops)), stops[:, c]) for c in range(3)])
    sure = large & (width <= scale["wide"])
    assert sure.sum() > 100
    assert (np.abs(seen - wanted)[sure].max(axis=1) <= 4).mean() > 0.9  # letters and meridians take some
    unknown = large & np.isnan(rate)
    assert unknown.any()
    assert (np.abs(seen - [27, 25, 34])[unknown].max(axis=1) <= 3).all()
    wide = large & (width > 1.2 * scale["wide"]) & (rate > 0.15)
    assert wide.sum() > 3
    assert (seen[wide].sum(axis=1) < wanted[wide].sum(axis=1)).mean() > 0.9
    visit.page.uncheck("#fade")
    visit.settle()
    plain = visit.colours(points)
    assert (np.abs(plain - wanted)[wide].max(axis=1) <= 4).mean() > 0.8
    assert (np.abs(plain - [27, 25, 34])[unknown].max(axis=1) <= 3).all()  # not a rate of 0


def test_each_category_has_a_map_of_its_own(opened: Open, text: str) -> None:
    visit = opened(text)
    assert not visit.page.is_visible("#category")
    choose(visit, "rate")
    assert visit.page.locator("#category option").all_inner_texts() == list(NAMES)
    first = visit.picture()
    visit.page.select_option("#category", label="none")
    assert visit.picture() != first
    assert visit.page.inner_text("#scale-title") == "Share of users, symptom = none"
    visit.page.select_option("#category", label="flu")
    assert visit.picture() == first


def test_a_flag_begins_with_those_who_have_it(opened: Open, stack: list[Layer]) -> None:
    rates = stack[2].rates
    assert rates
    flag = Rates(["false", "true"], rates.rate[:2], rates.low[:2], rates.high[:2])
    layers = [*stack[:2], replace(stack[2], rates=flag)]
    visit = opened(render_page(manifest_of(layers, auxiliary="infected"), layers, None))
    choose(visit, "rate")
    assert visit.page.inner_text("#scale-title") == "Share of users, infected"
    assert visit.page.locator("#category option").all_inner_texts() == ["not infected", "infected"]
    one = [*stack[:2], replace(stack[2], rates=Rates(["ill"], rates.rate[:1], rates.low[:1], rates.high[:1]))]
    visit = opened(render_page(manifest_of(one), one, None))
    choose(visit, "rate")
    assert visit.page.inner_text("#scale-title") == "Share of users, ill"
    assert not visit.page.is_visible("#category")


def test_the_choice_is_kept_from_layer_to_layer(opened: Open, text: str) -> None:
    visit = opened(text)
    choose(visit, "rate")
    visit.page.select_option("#category", label="cold")
    rates = visit.picture()
    visit.page.locator("#slider").focus()
    visit.page.keyboard.press("Home")
    visit.settle()
    assert visit.page.inner_text("#scale-title") == "Users per km²; no rates here"
    assert visit.page.is_disabled("[value=rate]")
    assert visit.page.is_checked("[value=rate]")
    assert "no rates" in visit.page.inner_text("#no-rates")
    assert "0" in visit.page.locator("#ticks span").first.inner_text()
    assert visit.page.inner_text("#fade-words") == "Fade cells lost in noise"
    without = visit.picture()
    visit.page.keyboard.press("End")
    assert visit.picture() == rates
    assert visit.page.inner_text("#scale-title") == "Share of users, symptom = cold"
    choose(visit, "users")
    visit.run("sfumato.setLayer(0)")
    assert visit.picture() == without
    choose(visit, "uncertainty")
    visit.run("sfumato.setLayer(1)")
    assert visit.page.is_checked("[value=uncertainty]")
    assert visit.page.inner_text("#scale-title") == "Off by at most, at 95%"


def test_keyboard_and_speech_follow_the_colours(opened: Open, text: str) -> None:
    visit = opened(text)
    visit.page.locator("[value=users]").focus()
    visit.page.keyboard.press("ArrowRight")
    assert visit.page.is_checked("[value=rate]")
    visit.page.locator("#canvas").focus()
    visit.page.keyboard.press("c")
    assert visit.page.is_checked("[value=uncertainty]")
    visit.page.keyboard.press("c")
    assert visit.page.is_checked("[value=users]")
    visit.page.keyboard.press("c")
    visit.page.keyboard.press("+")
    visit.until("document.getElementById('spoken').textContent.includes('95% interval')")
    assert visit.page.get_attribute("fieldset.choice legend", "class") is None
    for control in visit.page.locator("button, input, select, canvas").all():
        name = control.get_attribute("aria-label") or control.evaluate("e => e.labels?.[0]?.innerText || e.innerText")
        assert name, control.evaluate("e => e.outerHTML")


def test_the_highest_rates_are_listed_and_lead_to_the_map(opened: Open, combined: Layer, text: str) -> None:
    visit = opened(text)
    assert not visit.page.is_visible("#cells")
    choose(visit, "rate")
    assert combined.rates
    assert combined.rates.listed is not None
    shown, low, high = combined.rates.listed[0]
    order = np.argsort(-np.nan_to_num(low, nan=-1.0), kind="stable")
    rows = visit.page.locator("#cells li button")
    assert rows.count() == min(6, np.isfinite(low).sum()) > 2
    best = order[0]
    words = f"{100 * shown[best]:.0f}% ({math.floor(100 * low[best])}% to {math.ceil(100 * high[best])}%)"
    assert rows.first.inner_text().split("\n")[0] == words
    assert "95% for all cells at once" in visit.page.inner_text("#cells h2")
    rows.first.click()
    visit.settle()
    side = 2.0 ** combined.level[order[0]]
    view = visit.view()
    assert view["cx"] == pytest.approx((combined.x[order[0]] + 0.5) / side)
    assert view["cy"] == pytest.approx((combined.y[order[0]] + 0.5) / side)
    assert view["scale"] > 1.4
    assert visit.page.inner_text("#tip").startswith(f"{100 * combined.rates.rate[0, best]:.0f}% (")


def test_a_list_without_a_place_says_so(opened: Open, stack: list[Layer]) -> None:
    rates = stack[2].rates
    assert rates
    layers = [*stack[:2], replace(stack[2], rates=replace(rates, listed=None))]
    visit = opened(render_page(manifest_of(layers, auxiliary="symptom"), layers, None))
    choose(visit, "rate")
    assert visit.page.locator("#cells li button").count() == 0
    assert "No cell's rate is above the average beyond doubt" in visit.page.inner_text("#cells")


def test_uncertainty_is_told_in_classes(opened: Open, combined: Layer, text: str) -> None:
    visit = opened(text)
    choose(visit, "uncertainty")
    count, deviation = (np.array(embedded(text)["layers"][-1][name]) for name in ("count", "deviations"))
    relative = 1.96 * deviation / np.maximum(count, 1e-300)
    number = np.searchsorted([0.1, 0.25, 0.5, 1.0], relative, side="right")
    cells = [int((number == k).sum()) for k in range(5)]
    users = [100 * count[number == k].sum() / count.sum() for k in range(5)]
    assert min(cells[1:]) > 3
    rows = [row.inner_text().split("\n") for row in visit.page.locator("#cells li").all()]
    assert [row[0] for row in rows] == ["within 10%", "within 25%", "within 50%", "within 100%", "may be nobody"]
    for row, many, share in zip(rows, cells, users, strict=True):
        found = re.fullmatch(r"([\d,]+); ([\d.]+)%", row[1])
        assert found
        assert int(found[1].replace(",", "")) == many
        assert float(found[2]) == pytest.approx(share, abs=0.51)
    large = combined.level <= 6
    points = np.column_stack([combined.x + 0.37, combined.y + 0.43]) / 2.0 ** combined.level[:, None]
    seen = visit.colours(points[large]).sum(axis=1)
    brightness = [np.median(seen[number[large] == k]) for k in range(1, 5)]
    assert (np.diff(brightness) < -60).all()  # the surer, the lighter
    i = int(np.flatnonzero(large & (number == 2))[0])
    visit.page.mouse.move(*visit.place(*middle(combined, i)))
    visit.settle()
    assert visit.page.inner_text("#tip").startswith(f"known to within {100 * relative[i]:.0f}%")
    assert not visit.page.is_visible("#fade-words")
    assert visit.page.locator("#ticks span").all_inner_texts() == ["0", "10%", "25%", "50%", "100%"]


def test_a_posterior_is_not_called_noise(opened: Open, stack: list[Layer], text: str) -> None:
    visit = opened(text)
    combined = stack[2]
    assert visit.page.inner_text("#key") == "may be empty"
    report = visit.page.inner_text("#report")
    assert "never below zero" in report
    assert "lost in noise" not in report
    assert "Counts below zero" not in report
    assert "for a small cell and a large one" not in report
    assert "what the answers leave open" in report or "what they leave open" in report
    i = int(np.argmax(np.where(combined.level < 7, combined.count / combined.deviations, 0)))  # type: ignore[operator]
    visit.page.mouse.move(*visit.place(*middle(combined, i)))
    visit.settle()
    assert "from the noise and from what the answers leave open" in visit.page.inner_text("#tip")
    cell = visit.run("([a, b]) => sfumato.lookup(a, b)", list(middle(combined, i)))
    assert cell["margin"] == pytest.approx(1.96 * cell["stddev"])  # no Laplace variable: a posterior's deviation
    visit.run("sfumato.setLayer(0)")
    assert visit.page.inner_text("#key") == "lost in noise"

    last = manifest_of(stack, estimator="last")
    visit = opened(render_page(last, stack, None))
    assert visit.page.inner_text("#key") == "lost in noise"
    assert "never below zero" not in visit.page.inner_text("#report")


def test_a_clipped_scale_says_so(opened: Open, stack: list[Layer]) -> None:
    visit = opened(render_page(manifest_of(stack), stack, None))
    top = visit.run("sfumato.top")
    assert visit.page.locator("#ticks span").last.inner_text() == f"≥ {top:,.0f}"
    assert f"The scale of colours ends at {top:,.0f} users per km²" in visit.page.inner_text("#report")
    even = replace(
        stack[2],
        level=np.full(4, 1),
        x=np.array([0, 1, 0, 1]),
        y=np.array([0, 0, 1, 1]),
        count=np.array([90.0, 100.0, 95.0, 97.0]),
        area=np.full(4, 4**9),
        cell_id=["r0", "r1", "r2", "r3"],
        deviations=None,
        rates=None,
    )
    visit = opened(render_page(manifest_of([*stack[:2], even]), [*stack[:2], even], None))
    assert "≥" not in visit.page.inner_text("#ticks")
    assert "The scale of colours ends" not in visit.page.inner_text("#report")


@pytest.mark.parametrize("population", [0.0, 0.1])
def test_disjoint_cohorts_spend_beside_each_other(opened: Open, stack: list[Layer], population: float) -> None:
    manifest = manifest_of(stack)
    privacy = manifest["privacy"]
    each = 1.0 - population
    privacy |= {"composition": "parallel", "epsilon_spent": 1.0}
    if population:
        privacy["population"] |= {"source": "noisy", "epsilon": population, "noise_stddev": 10.0}
    for one in privacy["sub_queries"]:
        one["epsilon"] = each
    layers = [replace(layer, epsilon=each, remaining=0.0) for layer in stack]
    layers[-1] = replace(layers[-1], epsilon=2 * each)  # as the sub-queries' sum
    visit = opened(render_page(manifest, layers, None))
    text = visit.page.inner_text("body").split("Parameters")[0]
    assert "each user answers one of 2 sub-queries: at most 1 of 1 spent, 0 left" in visit.page.inner_text(
        "#budget-text"
    )
    assert f"Each user answered one of the 2 sub-queries, for at most ε = {each:g}" in visit.page.inner_text("#step")
    assert not re.search(rf"(?<![\d.]){2 * each:g}(?![\d.,%])(?= spent)|ε = {2 * each:g}\b", text)
    assert "asked every user taking part" not in text
    lanes = [lane.bounding_box() for lane in visit.page.locator("#budget .lane").all()]
    whole = visit.page.locator("#budget").bounding_box()
    assert len(lanes) == 2
    assert lanes[0]["y"] == lanes[1]["y"]
    assert lanes[0]["width"] == pytest.approx(lanes[1]["width"], abs=1)
    assert lanes[0]["x"] + lanes[0]["width"] < lanes[1]["x"]
    for lane, part in zip(lanes, visit.page.locator("#budget i[data-round]").all(), strict=True):
        assert part.bounding_box()["width"] == pytest.approx(each * lane["width"], abs=2)
    assert lanes[1]["x"] + lanes[1]["width"] <= whole["x"] + whole["width"] + 1
    assert table_of(visit)[-1][:3] == ["A user, at most", f"{each:g}", f"{max(map(len, _entries(stack))):,}"]
    visit.run("sfumato.setLayer(0)")
    assert visit.page.locator("#budget i.off").count() == 1


def _entries(stack: list[Layer]) -> list[range]:
    return [range(layer.vector_length) for layer in stack[:-1]]


@pytest.mark.parametrize(
    ("where", "told", "words"),
    [
        ("privacy", {"release_id": "yesterday", "epsilon": 0.5}, "an earlier release, yesterday, which"),
        ("parameters", {"release_id": "yesterday"}, "an earlier release, yesterday, which"),
        ("parameters", "gs://bucket/secret/path", "an earlier release which"),
        ("parameters", None, None),
        ("parameters", "", None),
        ("privacy", {"release_id": 7}, "an earlier release which"),
    ],
)
def test_a_warm_start_is_told(opened: Open, stack: list[Layer], where: str, told: object, words: str | None) -> None:
    layers = stack[1:]  # one sub-query
    manifest = manifest_of(layers)
    manifest[where]["warm_start"] = told
    visit = opened(render_page(manifest, layers, None))
    report = visit.page.inner_text("#report").split("Parameters")[0]
    assert "The map was found in 1 round. It asked every user" in report
    assert "choose where to look more closely" not in report
    assert ("earlier release" in report) == (words is not None)
    if words:
        assert words in report
        assert "the two add up" in report
        assert ("ε = 0.5" in report) == (isinstance(told, dict) and "epsilon" in told)


def test_phone_shows_the_choice_below_the_map(opened: Open, text: str) -> None:
    context = {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
    }
    visit = opened(text, **context)
    box = visit.page.locator(".choice").bounding_box()
    assert box["y"] + box["height"] < 844  # in sight together with the map
    for name in ("rate", "uncertainty"):
        choose(visit, name)
        assert visit.run("document.documentElement.scrollWidth") == 390
        legend = visit.page.locator(".legend").bounding_box()
        south = visit.place(REGION["west"], REGION["south"])[1]
        assert legend["y"] >= south - 2  # clear of the map


def test_many_cells_of_very_different_deviation_are_quick(opened: Open, stack: list[Layer]) -> None:
    big = posterior_layer(users=1.1e6, most=40, names=("ill",))
    assert 50_000 < len(big.level) < 70_000
    layers = [*stack[:2], big]
    text = render_page(manifest_of(layers), layers, None)
    assert len(text) < 4e6
    visit = opened(text)
    script = """async name => {
      const start = performance.now();
      sfumato.setColours(name);
      await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
      return performance.now() - start;
    }"""
    for name in ("rate", "uncertainty", "users"):
        assert visit.run(script, name) < 2000  # 60 to 100 ms on two slow cores
    assert visit.page.inner_text("#step").startswith("All answers together")


def test_names_of_categories_can_do_nothing(opened: Open, stack: list[Layer]) -> None:
    attack = "</script><img src=x onerror='window.hurt = 1'>\u202e"
    rates = stack[2].rates
    assert rates
    layers = [*stack[:2], replace(stack[2], rates=Rates([attack, "b", "c"], rates.rate, rates.low, rates.high))]
    visit = opened(render_page(manifest_of(layers, auxiliary=attack), layers, None))
    choose(visit, "rate")
    assert visit.run("window.hurt") is None
    assert "⟨U+202E⟩" in visit.page.locator("#category option").first.inner_text()
