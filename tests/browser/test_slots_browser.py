"""The page of a heatmap with slots in real browsers: slider, play button, the curve of a place, its link."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfumato.schemas.slots import Slots
from sfumato.schemas.views import MapBody, TimeSlots
from sfumato.transforms.heatmap.view import heatmap_view
from tests.browser.browsers import Tab
from tests.browser.conftest import Open
from tests.unit.release.city import CityRelease, city_release

SLOTS = Slots.parse("t", "hour", "Asia/Tokyo")
SLIDER, NAME, HEADING, PLAY = ".slots input[type=range]", ".slots .slot-name", ".slots h3", ".slots button"


@pytest.fixture(scope="module")
def release() -> CityRelease:
    return city_release("adaptive", users=60_000, slots=SLOTS, trust="central")


@pytest.fixture(scope="module")
def slots(release: CityRelease) -> TimeSlots:
    body = heatmap_view(release.files).body
    assert isinstance(body, MapBody)
    assert body.slots is not None
    return body.slots


@pytest.fixture(scope="module")
def page(release: CityRelease, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slots")
    for name, content in release.files.items():
        (folder / name).write_bytes(content)
    return folder / "index.html"


def chosen(tab: Tab) -> str:
    return str(tab.run(f"document.querySelector({json.dumps(SLIDER)}).getAttribute('aria-valuetext')"))


def legend(tab: Tab) -> str:
    return tab.text(".legend-title")


def test_arrow_keys_go_through_the_slots_and_the_map_follows(opened: Open, page: Path) -> None:
    tab = opened(page)
    assert (chosen(tab), legend(tab)) == ("All slots together", "Users per km²")
    tab.run(f"document.querySelector({json.dumps(SLIDER)}).focus()")
    for hour in range(3):
        tab.key("ArrowRight")
        assert chosen(tab) == tab.text(NAME) == SLOTS.names[hour]
        assert legend(tab) == f"Users per km², {SLOTS.names[hour]}"
    tab.key("End")
    assert chosen(tab) == SLOTS.names[-1]
    tab.until("new URLSearchParams(location.hash.slice(1)).get('slot') === '23'")
    tab.key("Home")
    assert legend(tab) == "Users per km²"
    assert not tab.errors


def test_a_link_opens_a_slot_and_play_goes_on_from_it(opened: Open, page: Path) -> None:
    tab = opened(page, "#slot=22")
    assert chosen(tab) == SLOTS.names[22]
    tab.click(PLAY)
    assert chosen(tab) == SLOTS.names[23]
    tab.until(f"document.querySelector({json.dumps(SLIDER)}).getAttribute('aria-valuetext') === '{SLOTS.names[0]}'")
    tab.click(PLAY)
    stopped = chosen(tab)
    tab.run("new Promise(done => setTimeout(() => done(true), 1200))")
    assert chosen(tab) == stopped
    assert not tab.errors


def test_the_curve_is_of_the_region_or_of_the_place_under_the_pointer(
    opened: Open, page: Path, slots: TimeSlots
) -> None:
    tab = opened(page)
    described = "document.querySelector('.slots svg.chart desc').textContent"
    assert tab.text(HEADING) == "The whole region"
    assert tab.run("document.querySelectorAll('.slots svg.chart rect.bar').length") == 24
    of_region = tab.run(described)
    assert of_region.startswith(SLOTS.names[0])
    x, y = tab.centre(".map-view")
    tab.move(x, y)
    tab.until(f"document.querySelector('{HEADING}').textContent === 'The place under the pointer'")
    assert tab.run(described) != of_region
    assert tab.run("document.querySelectorAll('.slots svg.chart .whisker').length") == 24
    assert slots.region[0][1] <= slots.region[0][0] <= slots.region[0][2]
    assert not tab.errors


def test_a_click_keeps_a_place_and_a_second_one_lets_it_go(opened: Open, page: Path) -> None:
    tab = opened(page)
    x, y = tab.centre(".map-view")
    tab.move(x, y)
    tab.drag([(x, y)])
    tab.until(f"document.querySelector('{HEADING}').textContent === 'The chosen place'")
    tab.move(*tab.centre("h1"))
    assert tab.text(HEADING) == "The chosen place"
    x, y = tab.centre(".map-view")
    tab.move(x, y)
    tab.drag([(x, y)])
    tab.move(*tab.centre("h1"))
    tab.until(f"document.querySelector('{HEADING}').textContent === 'The whole region'")
    assert not tab.errors
