"""Range queries and timelines in real browsers."""

from __future__ import annotations

import csv
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shapely import box

from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import DatedRelease, PlaceChange, Spending
from sfumato.schemas.views.map_views import Basemap
from sfumato.transforms.ranges.model_file import model_bytes
from sfumato.transforms.ranges.view import ranges_view
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.release.timeline_view import TIMELINE_FILE, night_map, timeline_bytes, timeline_view
from sfumato.transforms.report.report import render_page
from tests.browser.browsers import Tab
from tests.browser.conftest import Open, barriers
from tests.browser.test_map_browser import MAP, zones_page
from tests.jobs.release.nights import MOVED, a_night
from tests.unit.ranges.models import REGION, grid_model
from tests.unit.ranges.samples import ranges_manifest
from tests.unit.release.city import REGION as CITY

DAYS = ["2026-11-18", "2026-11-19", "2026-11-21"]
MODEL = grid_model(60)
ZONES_MANIFEST = {
    "job": "zones",
    "created": "2026-11-22T00:00:00+00:00",
    "results": {"users": 1300.0, "users_stddev": 10.0},
    "privacy": {"epsilon": 1.0, "delta": 0.0, "randomness": {"safe": True}},
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind by name; the timeline's folder holds nights, and on the last of them people moved."""
    root = tmp_path_factory.mktemp("pages")
    files = {"manifest.json": json.dumps(ranges_manifest(MODEL)).encode(), "model.npz": model_bytes(MODEL)}
    (root / "ranges.html").write_text(render_page(ranges_view(files)), encoding="utf-8")
    (root / "maps").mkdir()
    nights = []
    for number, day in enumerate(DAYS):
        release = a_night(root / day, number, moved=0.1 if number == 2 else 0.0)
        (root / "maps" / f"{day}.js").write_bytes(night_map(day, release))
        nights.append(DatedRelease.from_manifest(day, day, release.manifest, f"maps/{day}.js"))
    nights.append(DatedRelease.from_manifest("2026-11-22", "2026-11-22", {**release.manifest, "job": "histogram"}))
    spent = [(day, 0.5 * (i + 1)) for i, day in enumerate([*DAYS, "2026-11-22"])]
    told = {TIMELINE_FILE: timeline_bytes("the city", nights, [Spending(4.0, 0.0, 7, spent)])}
    (root / "index.html").write_text(render_page(timeline_view(told)), encoding="utf-8")
    event = PlaceChange(("r0213",), 2100.0, 1500.0, 2700.0, 150.0)
    rotated = [
        replace(
            night,
            rotation=Rotation(number + 1, 3, "0" * 32),
            rests_on=("2026-11-18:2026-11-19", "2026-11-21") if number == 2 else (f"2026-11-18:{night.date}",),
            changes=(event,) if number == 2 else (),
        )
        for number, night in enumerate(nights[:3])
    ]
    told = {TIMELINE_FILE: timeline_bytes("the city", rotated, [Spending(0.5, 0.0, 3, spent[:1])])}
    (root / "rotated.html").write_text(render_page(timeline_view(told)), encoding="utf-8")
    return {"rotated": root / "rotated.html", "ranges": root / "ranges.html", "timeline": root / "index.html"}


def square(tab: Tab) -> list[float]:
    """Longitude, latitude and metres of the square."""
    return [float(one) for one in tab.run("[...document.querySelectorAll('.square input')].map(one => one.value)")]


def users(tab: Tab) -> str:
    return tab.text(".asked .users")


def expected(x: float, y: float, size: float) -> tuple[float, float]:
    """Users of a square and the deviation, by the package."""
    answers, _ = MODEL.answer(*(np.array([one]) for one in (x, y, size)))
    return float(answers.users[0]), float(answers.stddev[0])


def check(tab: Tab) -> None:
    """The answer on the page is the package's, with the digits that are known."""
    many, stddev = expected(*square(tab))
    text = users(tab)
    if found := re.fullmatch(r"about ([\d,.]+) users", text):
        assert float(found[1].replace(",", "")) == pytest.approx(many, abs=max(1.96 * stddev, 0.1))
    else:
        assert "at most about" in text
        assert many < 1.97 * stddev


def test_a_square_is_drawn_clicked_typed_and_linked(opened: Open, pages: dict[str, Path]) -> None:
    tab = opened(pages["ranges"])
    start = square(tab)
    assert 50 <= start[2] <= 1000
    check(tab)
    x, y = tab.centre(MAP)
    tab.drag([(x - 60, y), (x - 30, y + 20), (x - 10, y + 40)])
    drawn = square(tab)
    assert drawn != start
    assert drawn[1] == pytest.approx((REGION.south + REGION.north) / 2, abs=1e-3)
    check(tab)
    assert "map=" not in tab.run("location.hash")  # the map itself stayed
    tab.drag([(x + 40, y + 30)])  # a click: as large as before, elsewhere
    moved = square(tab)
    assert moved[2] == drawn[2]
    assert moved[0] > drawn[0]
    check(tab)
    tab.until(f"location.hash.includes('square={moved[0]}')")
    link = tab.run("location.hash")
    tab.run(
        "(() => { const side = document.querySelector('.square [name=size]'); side.value = '-3';"
        " side.dispatchEvent(new Event('input', {bubbles: true})); return true; })()"
    )
    assert "Side must be a number of metres above 0" in tab.text(".square .wrong")
    again = opened(pages["ranges"], link)
    assert square(again) == moved
    assert users(again) == users(tab)


def test_the_keyboard_puts_a_square_and_hears_the_answer(opened: Open, pages: dict[str, Path]) -> None:
    tab = opened(pages["ranges"])
    tab.run(f"(() => {{ document.querySelector('{MAP}').focus(); return true; }})()")
    size = square(tab)[2]
    tab.key("Enter")
    middle = (REGION.west + REGION.east) / 2, (REGION.south + REGION.north) / 2
    assert square(tab)[:2] == pytest.approx(middle, abs=2e-3)
    tab.key("]")
    assert square(tab)[2] == pytest.approx(1.25 * size, rel=0.01)
    check(tab)
    tab.until("document.getElementById('spoken').textContent.includes('users')")


def test_a_tap_puts_a_square_and_one_finger_scrolls(opened: Open, pages: dict[str, Path], browser: str) -> None:
    tab = opened(pages["ranges"], width=390, height=844, touch=True)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    if browser == "firefox":
        return  # its driver makes no clicks of taps
    before = square(tab)
    x, y = tab.centre(MAP)
    tab.fingers([[(x + 40, y + 40)]])
    tab.until(f"document.querySelector('.square [name=x]').value !== '{before[0]}'")
    assert square(tab)[2] == before[2]
    check(tab)
    x, y = tab.centre(MAP)
    after = square(tab)
    tab.fingers([[(x, y + 100 - 20 * step) for step in range(11)]])
    tab.until("scrollY > 60")
    assert square(tab) == after


def test_two_nights_are_chosen_and_their_change_is_shown(opened: Open, pages: dict[str, Path], browser: str) -> None:
    tab = opened(pages["timeline"])
    tab.until("document.querySelector('.night-words h2') !== null")
    assert tab.text(".night-words h2") == "Saturday, 21 November 2026"  # the last with a map
    labels = tab.run("[...document.querySelectorAll('.when .choice span')].map(one => one.innerText)")
    assert labels == ["19 Nov 2026", "21 Nov 2026", "Change"]
    assert tab.run("document.querySelector('.night-words a').getAttribute('href')") == "2026-11-21/index.html"
    tab.run("(() => { document.querySelectorAll('.when .choice input')[2].click(); return true; })()")
    tab.until("document.querySelector('.night-words h2').innerText.startsWith('Change from 19 Nov 2026')")
    found = re.search(r"(\d+) of [\d,]+ cells", tab.text(".night-words p"))
    assert found
    assert int(found[1]) >= 3
    assert "At most 5% of these are expected to be false positives" in tab.text(".night-words .quiet")
    first = tab.text(".listed .places li")
    latitude, longitude = (float(one) for one in re.findall(r"(\d+\.\d+)°", first))
    assert -longitude == pytest.approx(CITY["west"] + MOVED[0] * (CITY["east"] - CITY["west"]), abs=0.012)
    assert latitude == pytest.approx(CITY["north"] - MOVED[1] * (CITY["north"] - CITY["south"]), abs=0.012)
    assert "+" in first
    tab.until("location.hash.includes('show=change')")
    tab.run(
        "(() => { const one = document.querySelectorAll('.when select'); one[0].value = '2026-11-19';"
        " one[0].dispatchEvent(new Event('change')); return true; })()"
    )
    tab.until("document.querySelector('.night-words h2').innerText.startsWith('Change from 18 Nov 2026')")
    link = tab.run("location.hash") if tab.until("location.hash.includes('night=2026-11-19')") else ""
    again = opened(pages["timeline"], str(link))
    again.until("document.querySelector('.night-words h2') !== null")
    assert again.text(".night-words") == tab.text(".night-words")
    maps = [one.rsplit("/", 1)[-1] for one in again.requests if "/maps/" in one]
    # Firefox does not report files that it opens.
    assert sorted(maps) == (["2026-11-18.js", "2026-11-19.js"] if browser == "chromium" else [])


def test_night_without_a_map_here_leads_to_its_page(opened: Open, pages: dict[str, Path]) -> None:
    tab = opened(pages["timeline"], "#night=2026-11-22")
    tab.until("document.querySelector('.absent a') !== null")
    assert tab.run("document.querySelector('.absent a').getAttribute('href')") == "2026-11-22/index.html"
    assert "from sfumato histogram, is shown on its own page" in tab.text(".absent")


def test_night_names_its_sources_and_shows_changes_on_the_map(opened: Open, pages: dict[str, Path]) -> None:
    tab = opened(pages["rotated"])
    tab.until("document.querySelector('.listed .places') !== null")
    words = tab.text(".night-words")
    assert "Cohort 3 of 3 was queried." in words
    assert "is based on the answers of 3 days, 18 November to 21 November 2026, without 20 November." in words
    styles = "[...document.querySelectorAll('.nights .marks .bar')].map(one => one.getAttribute('class'))"
    assert [style.split()[-1] for style in tab.run(styles)] == ["s2", "s1", "s0"]
    item = tab.text(".listed .places li")
    assert "+2,000 users" in item
    assert "1,500 to 2,700 users; 150 expected" in item
    before = tab.run("location.hash")
    tab.click(".listed .places button")
    tab.until(f"location.hash !== '{before}' && location.hash.includes('map=')")
    tab.run(
        "(() => { document.querySelectorAll('.when .choice input')[0].click(); return true; })()"
    )  # the earlier night
    tab.until("document.querySelector('.night-words').innerText.includes('Cohort 2 of 3')")
    assert not tab.run("document.querySelector('.listed').innerText")


def test_zone_is_followed_over_nights(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    nights = []
    for number, day in enumerate(DAYS):
        zones_page(
            tmp_path, {"Mill": box(0, 0, 0.5, 1), "Quay": box(0.5, 0, 1, 1)}, [900, 400 + number], Basemap(source="")
        )
        manifest = {**ZONES_MANIFEST, "release_id": day}
        (tmp_path / "maps" / f"{day}.js").write_bytes(night_map(day, Release(str(tmp_path), manifest, "")))
        nights.append(DatedRelease.from_manifest(day, day, manifest, f"maps/{day}.js"))
    files = {TIMELINE_FILE: timeline_bytes("the city", nights, [])}
    page = tmp_path / "nights.html"
    page.write_text(render_page(timeline_view(files)), encoding="utf-8")
    tab = opened(page)
    tab.until("document.querySelectorAll('.listed .places li').length === 2")
    labels = tab.run("[...document.querySelectorAll('.when .choice span')].map(one => one.innerText)")
    assert labels == ["19 Nov 2026", "21 Nov 2026"]  # changes of zones are not tested on the page
    chart = "document.querySelector('.nights svg[role=img]').textContent"
    tab.until(f"{chart}.includes('Users in Mill')")  # the busiest zone
    tab.click(".listed .places li:nth-child(2) button")
    tab.until(f"{chart}.includes('Users in Quay')")
    tab.until("location.hash.includes('zone=z1')")
    again = opened(page, tab.run("location.hash"))
    again.until(f"{chart}.includes('Users in Quay')")
    again.click(".when .quiet .link")
    again.until(f"!{chart}.includes('Users in')")
    x, y = again.centre(MAP)
    again.drag([(x - 220, y)])  # a click in the west
    again.until(f"{chart}.includes('Users in Mill')")
    again.run(
        "(() => { const input = document.querySelector('.find input'); input.value = 'quay';"
        " input.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); })()"
    )
    again.until(f"{chart}.includes('Users in Quay')")


def test_changes_are_downloaded(opened: Open, pages: dict[str, Path], downloads: Path) -> None:
    tab = opened(pages["timeline"], "#show=change")
    tab.until("document.querySelector('.listed .places') !== null")
    for old in downloads.iterdir():
        old.unlink()
    labels = tab.run("[...document.querySelectorAll('#tools button')].map(one => one.textContent.split('\u00a0')[0])")
    tab.click(f"#tools button:nth-of-type({labels.index('Table') + 1})")
    file, end = downloads / "daily-the-city-2026-11-19-to-2026-11-21.csv", time.monotonic() + 15
    while not (file.exists() and file.stat().st_size):
        assert time.monotonic() < end, list(downloads.iterdir())
        tab.settle()
    time.sleep(0.2)
    with file.open(newline="") as content:
        rows: list[dict[str, Any]] = list(csv.DictReader(content))
    assert sum(float(row["share_after"]) for row in rows) == pytest.approx(1, abs=1e-6)
    found = re.search(r"(\d+) of ([\d,]+) cells", tab.text(".night-words p"))
    assert found
    assert sum(row["changed"] == "true" for row in rows) == int(found[1])
    assert len(rows) == int(found[2].replace(",", ""))


@pytest.mark.parametrize("page", ["ranges", "timeline"])
def test_nothing_serious_for_those_who_see_or_hear_otherwise(
    opened: Open, pages: dict[str, Path], page: str, browser: str
) -> None:
    if browser == "firefox":
        pytest.skip("the rules look at the same document; once is enough")
    tab = opened(
        pages[page], "#show=change" if page == "timeline" else "", scheme="light" if page == "ranges" else "dark"
    )
    tab.settle()
    assert barriers(tab) == []
