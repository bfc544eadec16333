"""The page of flows in real browsers: arcs of all flows and of a cell, the matrix, the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.region import Region
from sfumato.transforms.flows.flow_files import FlowMetadata, flow_files
from sfumato.transforms.flows.flow_tree import FlowPlan, ZonedCells, measure_flows, measure_zone_flows
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, join_cells
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.browser.conftest import Open
from tests.browser.test_map_browser import AXE
from tests.seeds import seeded_rng
from tests.unit.flows.samples import BITS, DEPTH, clustered, key_of
from tests.unit.zones.polygons import voronoi, zones_of

NOTE = "document.querySelector('.panel .note').textContent"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (390, "light")])
def test_flows_of_a_zone(opened: Open, zone_page: Path, width: int, scheme: str) -> None:
    tab = opened(zone_page, width=width, scheme=scheme)
    assert " flows in all; 120 arcs shown." in tab.run(NOTE)
    assert tab.run("document.querySelectorAll('.matrix').length") == 0
    assert tab.run("document.documentElement.scrollWidth") <= width
    rows = pq.read_table(zone_page.parent / "flows.parquet").to_pandas()
    listed = rows[~rows.is_rest]
    origin = listed.origin_zone.iloc[0]
    chosen = opened(zone_page, f"#way=1&cell={origin}", width=width, scheme=scheme)  # ids are rows here
    note, first = chosen.run(NOTE), chosen.run("document.querySelector('.places li button span').textContent")
    assert note.startswith(f"{(listed.origin_zone == origin).sum()} flows from the chosen zone")
    destination = listed[listed.origin_zone == origin].destination_zone.iloc[0]
    assert first == (f"within {origin}" if destination == origin else f"{origin} → {destination}")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (390, "light")])
def test_a_cell_that_is_clicked_shows_its_flows(opened: Open, page: Path, width: int, scheme: str) -> None:
    tab = opened(page, width=width, scheme=scheme)
    assert " flows in all; 120 arcs shown." in tab.run(NOTE)
    assert tab.run("document.querySelectorAll('.places li').length") == 8
    assert tab.run("document.documentElement.scrollWidth") <= width
    tab.run("(() => { document.querySelectorAll('.panel input[type=radio]')[2].click(); return true; })()")
    assert "Click a cell of the map" in tab.run(NOTE)
    chosen = opened(page, "#way=1&cell=3", width=width, scheme=scheme)
    assert "from the chosen cell" in chosen.run(NOTE)


def test_the_matrix_says_what_it_points_at(opened: Open, page: Path) -> None:
    tab = opened(page)
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


def test_enter_chooses_the_cell_at_the_centre_of_the_map(opened: Open, page: Path) -> None:
    tab = opened(page)
    tab.run("(() => { document.querySelector('.map-view').focus(); return true; })()")
    tab.key("Enter")
    assert "from the chosen cell" in tab.run(NOTE)
    assert not tab.errors


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_page_is_accessible(opened: Open, page: Path, scheme: str) -> None:
    tab = opened(page, scheme=scheme)
    tab.settle()
    tab.run(f"(() => {{ {AXE.read_text(encoding='utf-8')}; return true; }})()")
    found = tab.run("axe.run().then(found => found.violations.map(one => [one.impact, one.id, one.nodes[0].html]))")
    assert [one for one in found if one[0] in {"serious", "critical"}] == []
