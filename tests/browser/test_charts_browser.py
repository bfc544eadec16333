"""Pages of counted items, distributions, moments, hot spots and flows in real browsers: what a reader does."""

from __future__ import annotations

import csv
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.region import Region
from sfumato.schemas.views.chart_views import BarsBody, CurveBody, MomentsBody
from sfumato.schemas.views.map_views import MapBody
from sfumato.transforms.flows.flow_tree import ZonedCells, measure_flows, measure_zone_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.release import FlowMetadata, flow_files
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, join_cells
from sfumato.transforms.histogram.release import trie_files
from sfumato.transforms.histogram.sampling_round import NumberPrefixes
from sfumato.transforms.moments.view import moments_view
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.quantiles.release import hierarchy_files
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.browser.browsers import Tab
from tests.browser.conftest import Open, barriers
from tests.jobs.histogram.test_sampled_view import CELLS, NUMBERS, TEXTS, metadata, page_of, trie_of
from tests.seeds import seeded_rng
from tests.unit.flows.samples import BITS, DEPTH, clustered, key_of
from tests.unit.moments.test_release import BY_PLACE, ages, assembled, by_size, plan, ran
from tests.unit.zones.polygons import voronoi, zones_of

# The pages of counted items, distributions, moments and hot spots in real browsers: what a reader does with them.

ROWS = "[...document.querySelectorAll('.bars tbody tr')].map(one => one.querySelector('bdi').title)"


def _codes() -> dict[str, bytes]:
    """Codes of three digits, by their first one and whole."""
    made = metadata(TEXTS, "hotspots", rounds=2)
    codes = np.minimum(seeded_rng(5).geometric(0.01, 20_000), 999).astype(np.uint64)
    return trie_files(trie_of(codes, NumberPrefixes(10, 3), (1, 3), made), made)


def _distribution() -> dict[str, bytes]:
    made = metadata(NUMBERS, "quantiles", rounds=2, method="hierarchical")
    codes = np.clip((seeded_rng(1).gamma(3, 2, 30_000) + 4) * 8, 0, 255).astype(np.uint64)
    trie = trie_of(codes, NumberPrefixes(2, 8), (4, 8), made)
    return hierarchy_files(trie, made, (0.5, 0.9), ((0.0, 4.0),))


def _groups() -> dict[str, bytes]:
    planned = plan()
    return assembled(ran(ages(), planned, BY_PLACE, by_size()), planned, BY_PLACE)


def _places() -> dict[str, bytes]:
    made = metadata(CELLS, "hotspots", rounds=2, top=20)
    codes = 2048 + np.minimum(seeded_rng(5).geometric(0.02, 20_000), 255).astype(np.uint64)
    return trie_files(trie_of(codes, NumberPrefixes(4, 6), (3, 6), made), made)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, bytes]]]:
    """pages(kind) is the page of a release of that kind, and its files; each is made once."""
    made: dict[str, tuple[Path, dict[str, bytes]]] = {}

    def page(kind: str) -> tuple[Path, dict[str, bytes]]:
        if kind not in made:
            files = {"codes": _codes, "distribution": _distribution, "groups": _groups, "places": _places}[kind]()
            folder = tmp_path_factory.mktemp(kind)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            made[kind] = folder / "index.html", files
        return made[kind]

    return page


Pages = Callable[[str], tuple[Path, dict[str, bytes]]]


def press(tab: Tab, name: str) -> None:
    """Clicks the button of this name in the bar of tools."""
    names = tab.run("[...document.querySelectorAll('#tools button')].map(one => one.textContent.split('\u00a0')[0])")
    tab.click(f"#tools button:nth-of-type({names.index(name) + 1})")


def downloaded(tab: Tab, downloads: Path, name: str) -> Path:
    """The file of this name, once it is there."""
    end = time.monotonic() + 15
    while not (downloads / name).exists() or not (downloads / name).stat().st_size:
        assert time.monotonic() < end, list(downloads.iterdir())
        tab.settle()
    return downloads / name


def test_prefixes_unfold_filter_and_stay_in_the_link(opened: Open, pages: Pages, downloads: Path) -> None:
    page, files = pages("codes")
    view = page_of(files)
    assert isinstance(view.body, BarsBody)
    bars = view.body.bars
    tab = opened(page)
    assert tab.text("h1").startswith("One sampled record per user: ")
    assert "Each user counts once" in tab.text(".explanation")
    ranked = sorted((bar for bar in bars if bar.level == 3), key=lambda bar: -bar.low)
    assert tab.run(ROWS) == [bar.name for bar in ranked[:60]]
    tab.click(".controls .choice label:first-of-type")
    tab.until("location.hash.includes('items.level=1')")
    first = sorted((bar for bar in bars if bar.level == 1), key=lambda bar: -bar.low)
    assert tab.run(ROWS) == [bar.name for bar in first]
    assert f"{100 * (first[0].share or 0):.1f}%" in tab.text(".bars tbody tr:first-child")
    tab.click(".fold")
    inside = [bar.name for bar in ranked if bar.name.startswith(first[0].name)]
    assert tab.run(ROWS) == [first[0].name, *inside, *(bar.name for bar in first[1:])][:60]
    tab.click("input[type=search]")
    wanted = ranked[-1].name
    for digit in wanted:
        tab.key(digit)
    tab.until(f"{ROWS}.length === 2")
    assert tab.run(ROWS) == [wanted[0], wanted]
    assert "match" in tab.text("[role=status]")
    again = opened(page, f"#items.level=1&items.filter={wanted}")
    assert again.run(ROWS) == tab.run(ROWS)
    name = f"{view.file_name}.csv"
    (downloads / name).unlink(missing_ok=True)
    press(again, "Table")
    with downloaded(again, downloads, name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["item"] for row in rows} == set(again.run(ROWS))
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)


def test_distribution_answers_mouse_and_keys_and_downloads(opened: Open, pages: Pages, downloads: Path) -> None:
    page, files = pages("distribution")
    view = page_of(files)
    assert isinstance(view.body, CurveBody)
    tab = opened(page)
    assert tab.run("document.querySelectorAll('.chart .bar').length") == len(view.body.histogram) + 2  # two keys
    box = tab.run(
        "(({left, top, width, height}) => [left, top, width, height])("
        "document.querySelectorAll('.marks .bar')[1].getBoundingClientRect())"
    )
    tab.move(box[0] + box[2] / 2, box[1] + box[3] / 2)
    tab.until("!document.querySelector('.tip').hidden")
    second = view.body.histogram[1]
    assert f"{second.low:g} to below {second.high:g}" in tab.text(".tip").replace("−", "-")
    (shown,) = re.findall(r"about ([\d,]+) users", tab.text(".tip"))  # with the digits that are known
    assert abs(float(shown.replace(",", "")) - second.users) < (second.users_high - second.users_low) / 2
    tab.click(".board .choice label:last-of-type")
    tab.until("location.hash === '#chart=1'")
    assert tab.run("document.querySelector('.marks .line') !== null")
    tab.run("document.querySelector('.chart-frame').focus()")
    tab.key("End")
    tab.until("document.getElementById('spoken').textContent.includes('km: below 28')")
    tab.click(".answers button")
    assert tab.run("document.querySelectorAll('.marks .chosen').length") > 0
    for end in ("png", "svg", "csv"):
        (downloads / f"{view.file_name}.{end}").unlink(missing_ok=True)
    for name in ("Picture", "SVG", "Table"):
        press(tab, name)
    assert downloaded(tab, downloads, f"{view.file_name}.png").read_bytes().startswith(b"\x89PNG")
    drawing = downloaded(tab, downloads, f"{view.file_name}.svg").read_text()
    assert "Share of users below" in drawing
    assert "class=" not in drawing
    with downloaded(tab, downloads, f"{view.file_name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["share"]) for row in rows] == view.body.share


def test_groups_are_sorted_by_each_column_and_bits_come_last(opened: Open, pages: Pages) -> None:
    page, files = pages("groups")
    view = moments_view(files)
    assert isinstance(view.body, MomentsBody)
    tab = opened(page)
    assert view.body.statistics[0].text in tab.text(".answer")
    by_low = sorted(view.body.groups[0].bars, key=lambda bar: -bar.low)
    assert tab.run(ROWS) == [bar.name for bar in by_low]
    tab.click("th[data-by=name] button")
    assert tab.run(ROWS) == sorted(bar.name for bar in by_low)
    assert tab.run("document.querySelector('th[data-by=name]').getAttribute('aria-sort')") == "ascending"
    tab.click("th[data-by=users] button")
    assert tab.run(ROWS) == [bar.name for bar in sorted(by_low, key=lambda bar: -(bar.users or 0))]
    assert not tab.run("document.querySelector('.bits').open")
    tab.click(".bits summary")
    bits = [bit for bit in view.body.bits if bit.quantity == "age"]
    tab.until(f"document.querySelectorAll('.bits .marks .bar').length === {sum(one.share is not None for one in bits)}")
    tab.click(".board > .choice label:last-of-type")
    tab.until("location.hash.includes('statistic=1')")


def test_hot_spots_open_on_their_places_with_numbers(opened: Open, pages: Pages) -> None:
    page, files = pages("places")
    view = page_of(files)
    assert isinstance(view.body, MapBody)
    assert view.body.start is not None
    tab = opened(page)
    numbers = tab.run("[...document.querySelectorAll('.key-number')].map(one => one.innerText)")
    assert 1 < len(numbers) <= 12
    assert numbers == [str(number + 1) for number in range(len(numbers))]
    places = tab.run("[...document.querySelectorAll('.places li span:first-child')].map(one => one.innerText)")
    digits = math.ceil(math.log10(111_195 / min(view.body.finest_metres)))
    assert {len(one) for text in places for one in re.findall(r"\.(\d+)°", text)} == {digits}  # neighbours differ
    tab.click(".places li:nth-child(2) button")
    tab.until("location.hash.includes('map=')")
    zoom, latitude, longitude = map(float, tab.run("new URLSearchParams(location.hash.slice(1)).get('map')").split("/"))
    start = view.body.start
    assert start.south < latitude < start.north
    assert start.west < longitude < start.east
    whole = opened(page)
    whole.click(".zoom button:last-child")
    whole.settle()
    assert zoom > 0


@pytest.mark.parametrize("kind", ["codes", "distribution", "groups", "flows"])
def test_pages_are_accessible_and_fit_phones(
    opened: Open, pages: Pages, flow_page: Path, kind: str, browser: str
) -> None:
    if browser == "firefox":
        pytest.skip("the rules look at the same document; once is enough")
    page = flow_page if kind == "flows" else pages(kind)[0]
    tab = opened(page, scheme="light")
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert barriers(tab) == []
    phone = opened(page, width=390, height=844, touch=True)
    assert phone.run("document.documentElement.scrollWidth") <= 390


# The page of flows in real browsers: arcs of all flows and of a cell, the matrix, the table.

NOTE = "document.querySelector('.panel .note').textContent"


@pytest.fixture(scope="module")
def flow_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = FlowPlan(1.0, depth=DEPTH)
    levels = measure_flows(*clustered(20_000), BITS, plan, 20_000, key_of(1))
    release = ReleaseMetadata("flows", "a-release", "2026-11-20T00:00:00+00:00", "operating system", True, {})
    described = FlowMetadata(release, plan, Region(3.0, 1.0, 3.13, 1.13), None, NoisyUserCounts(20_000, 0, 0.01, 141))
    folder = tmp_path_factory.mktemp("flows")
    for name, content in flow_files(levels, described).items():
        (folder / name).write_bytes(content)
    return folder / "index.html"


@pytest.fixture(scope="module")
def zone_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = voronoi(30, 4)
    zones, plan, rng = zones_of(shapes), FlowPlan(1.0), seeded_rng(0)
    cells = ZonedCells(zones)
    ends = [cells.locate(*rng.uniform([3.0, 1.0], [3.1, 1.2], (20_000, 2)).T)[1] for _ in range(2)]
    codes, counts = np.unique(join_cells(*ends, MAX_PAIR_DEPTH), return_counts=True)
    levels = [measure_zone_flows(codes, counts, cells, plan, key_of(1))]
    release = ReleaseMetadata("flows", "a-release", "2026-11-20T00:00:00+00:00", "operating system", True, {})
    users = NoisyUserCounts(20_000, 0, 0.01, 141)
    folder = tmp_path_factory.mktemp("zones")
    for name, content in flow_files(levels, FlowMetadata(release, plan, zones.region, None, users, zones)).items():
        (folder / name).write_bytes(content)
    return folder / "index.html"


def test_flows_of_a_zone(opened: Open, zone_page: Path) -> None:
    tab = opened(zone_page, width=390, scheme="light")
    assert " flows in all; 30 arcs shown." in tab.run(NOTE)
    assert tab.run("document.querySelectorAll('.matrix').length") == 0
    assert tab.run("document.documentElement.scrollWidth") <= 390
    rows = pq.read_table(zone_page.parent / "flows.parquet").to_pandas()
    listed = rows[~rows.is_rest]
    origin = listed.origin_zone.iloc[0]
    chosen = opened(zone_page, f"#way=1&cell={origin}", width=390, scheme="light")  # ids are rows here
    note, first = chosen.run(NOTE), chosen.run("document.querySelector('.places li button span').textContent")
    assert note.startswith(f"{(listed.origin_zone == origin).sum()} flows from the selected zone")
    destination = listed[listed.origin_zone == origin].destination_zone.iloc[0]
    assert first == (f"within {origin}" if destination == origin else f"{origin} → {destination}")


@pytest.mark.parametrize(("width", "listed"), [(1200, 12), (390, 8)])
def test_a_cell_that_is_clicked_shows_its_flows(opened: Open, flow_page: Path, width: int, listed: int) -> None:
    tab = opened(flow_page, width=width)
    assert " flows in all; 30 arcs shown." in tab.run(NOTE)
    assert tab.run("document.querySelectorAll('.places li').length") == listed
    assert tab.run("document.documentElement.scrollWidth") <= width
    tab.run("(() => { document.querySelectorAll('.panel input[type=radio]')[2].click(); return true; })()")
    assert "Click a cell on the map" in tab.run(NOTE)
    chosen = opened(flow_page, "#way=1&cell=3", width=width)
    assert "from the selected cell" in chosen.run(NOTE)


def test_the_matrix_says_what_it_points_at(opened: Open, flow_page: Path) -> None:
    tab = opened(flow_page)
    side = tab.run("document.querySelectorAll('.matrix thead th').length") - 1
    assert tab.run("document.querySelectorAll('.matrix td').length") == side**2
    tab.run("(() => { document.querySelector('.matrix td').focus(); return true; })()")
    words = "document.querySelector('.matrix-part > p').textContent"
    assert tab.run(words).startswith("A1 to A1: ")
    tab.key("ArrowRight")
    assert tab.run(words).startswith("A1 to B1: ")
    # The Tab key passes the matrix in one step.
    assert tab.run("document.querySelectorAll('.matrix td[tabindex=\"0\"]').length") == 1
    assert tab.run("document.activeElement.getAttribute('aria-label')") == tab.run(words)
