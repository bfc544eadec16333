"""Groups, cells and zones of `sfumato moments`, and the page that shows a release."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sfumato
from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import EVERYBODY, OTHER
from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import MomentsBody
from sfumato.transforms.moments.groups import CellGroups
from sfumato.transforms.moments.statistic_kinds import shrunk
from sfumato.transforms.moments.view import moments_view
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import with_digests
from sfumato.transforms.report.report import render_page
from sfumato.transforms.statistics.shrinkage import simultaneous_z
from tests.conftest import write_files
from tests.digests import page_text
from tests.jobs.moment_logs import KINDS, LENGTH, run, shows, table, usable, users_of
from tests.seeds import seeded_rng
from tests.unit.moments.releases import BY_PLACE, FORM, ages, assembled, by_size, of_everybody, on_a_map, plan, ran
from tests.unit.zones.polygons import brute_force, voronoi, write_geojson, zones_of

BY_KIND = ["--group_by", "kind", "--groups", "bus,tram,walk,helicopter,boat", "--group_epsilon", "2.5"]


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(table(), tmp_path_factory.mktemp("groups") / "logs", 3)


@pytest.fixture(scope="module")
def by_kind(pattern: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("by_kind") / "out"
    assert run(pattern, output, *LENGTH, *BY_KIND, "--statistics", "mean,variance") == 0
    return output


def sizes() -> dict[str, int]:
    """How many users of each kind there are with a length."""
    logs = table()
    kind = np.array(logs["kind"].to_pylist())
    return {name: users_of(logs, usable(logs) & (kind == name)) for name in KINDS}


@pytest.mark.pinned
@pytest.mark.slow
def test_groups_publishes_listed_names_and_noisy_sizes(
    by_kind: Path, pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Noise may be 0, here of sums with a deviation of 36: once in 90 keys, and not under this one, hence pinned."""
    assert run(pattern, tmp_path / "out", *LENGTH, *BY_KIND[:-1], "0.6") == 0
    told = capfd.readouterr().err
    exact = sizes()
    raw = [exact["bus"], sum(exact.values())]
    for release in (by_kind, tmp_path / "out"):
        texts = [told, (release / "manifest.json").read_text(), page_text((release / "index.html").read_text())]
        texts.append(json.dumps(pq.read_table(release / "moments.parquet").to_pylist()))
        for text in texts:
            assert "zeppelin" not in text
            exactly = re.sub(r"[\d,]+ users", "", text)  # noisy and rounded, so it may meet a round size
            assert [number for number in raw if shows(exactly, number)] == []
        assert not any(b"zeppelin" in path.read_bytes() for path in release.iterdir())
        groups = set(pq.read_table(release / "moments.parquet")["group"].to_pylist())
        assert groups <= {"everybody", "other", *BY_KIND[3].split(",")}
        clients = open_release(release).manifest["results"]["clients"]
        assert clients != sum(exact.values())
        assert shows(texts[1], int(clients))  # so the search finds what is there


# --- cells ---


# --- zones ---

SHAPES = voronoi(12, 5, (-1, 50, 1, 51))[:-2]  # two gaps
TRUST = {
    "local": ["--epsilon", "8", "--group_epsilon", "4"],
    "central": ["--trust", "central", "--epsilon", "4"],
}


def zone_file(folder: Path) -> list[str]:
    path = write_geojson(folder / "tracts.geojson", [(shape, {"tract": f"T{i}"}) for i, shape in enumerate(SHAPES)])
    return ["--zones", path, "--id_column", "tract"]


@pytest.fixture(scope="module")
def evenly(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, str]:
    """Logs of 3,000 places spread evenly, one of each user, so that no draw chooses records."""
    east, north = seeded_rng(4).uniform([[-1], [50]], [[1], [51]], (2, 3000))
    logs = table(3000, 1).set_column(1, "latitude", pa.array(north)).set_column(2, "longitude", pa.array(east))
    return logs, write_files(logs, tmp_path_factory.mktemp("evenly") / "logs", 3)


@pytest.mark.false_alarm(1e-9)  # of 10 zones: no error here is above half of its bound with P > 1e-10
@pytest.mark.parametrize("trust", ["local", "central"])
def test_means_by_zone_are_those_of_the_logs(trust: str, evenly: tuple[pa.Table, str], tmp_path: Path) -> None:
    logs, pattern = evenly
    more = [*zone_file(tmp_path), "--min_group", "60", *TRUST[trust]]
    assert run(pattern, tmp_path / "out", *LENGTH, *more) == 0
    kept = usable(logs)
    place = (logs[name].to_numpy()[kept] for name in ("longitude", "latitude"))
    zone, length = brute_force(zones_of(SHAPES), *place), np.clip(logs["length"].to_numpy()[kept], 0, 1023)
    users = np.bincount(zone[zone >= 0], minlength=len(SHAPES))
    release = open_release(tmp_path / "out")
    zones = release.zones_table
    rows = {row["group"]: row for row in pq.read_table(tmp_path / "out" / "moments.parquet").to_pylist()}
    shown = zones["zone"].to_list()
    # A zone's count has noise of a few users.
    assert {f"T{i}" for i in np.flatnonzero(users >= 95)} <= set(shown) <= {f"T{i}" for i in np.flatnonzero(users > 25)}
    assert len(shown) >= 6
    for row in zones.itertuples():
        index = int(row.zone[1:])
        assert row.geometry.equals(SHAPES[index])
        assert abs(row.mean_clients - users[index]) < 35
        # A curator's noise is Laplace's, and few users report a high bit: their errors have heavier tails.
        assert abs(row.mean_value - length[zone == index].mean()) < 17 * row.mean_stddev
        assert row.mean_low <= row.mean_value <= row.mean_high
    assert set(rows) == {"everybody", "other", *shown}
    outside = len(zone) - sum(users[int(name[1:])] for name in shown)
    assert abs(rows["other"]["clients"] - outside) < 35 * math.sqrt(len(SHAPES))
    assert release.manifest["zones"]["levels"] == [{"name": "tract", "zones": len(SHAPES)}]
    assert release.manifest["zones"]["sha256"] in json.dumps(release.manifest["parameters"])
    page = page_text((tmp_path / "out" / "index.html").read_text())
    assert "zones.parquet" in page
    assert all(f'"{name}"' in page for name in shown)
    with pytest.raises(RequestError):  # they have statistics of a number, and no users to add up
        sfumato.open_release(tmp_path / "out").zones_total(np.ones(len(zones), dtype=bool))


# --- the page ---


def shown(view: PageView) -> MomentsBody:
    assert isinstance(view.body, MomentsBody)
    return view.body


def check_made_again(files: dict[str, bytes]) -> None:
    """The page is made of the published folder, to the byte."""
    published = with_digests(files)
    assert render_page(moments_view(published)).encode() == published["index.html"]


def test_view_shows_the_statistics_and_bits_of_the_protocol() -> None:
    state, files = of_everybody()
    view = moments_view(files)
    body = shown(view)
    mean, variance = state.estimates()
    assert [(one.value, one.low, one.high) for one in body.statistics] == [
        (one.value, one.low, one.high) for one in (mean, variance)
    ]
    assert body.deviation == math.sqrt(variance.value)
    assert body.limits == (0.0, 255.0)
    assert (body.groups, body.map) == ([], None)
    value, square = state.bit_charts()
    squares = ["the squared distance of age from its mean"] * len(square.weight)
    assert [one.quantity for one in body.bits] == ["age"] * 8 + squares
    assert [one.place for one in body.bits[:8]] == ["1", "2", "4", "8", "16", "32", "64", "128"]
    for i, bit in enumerate(body.bits[:8]):
        assert bit.share == value.mean[i]
        assert bit.high == pytest.approx(value.mean[i] + 1.96 * value.stddev[i])
        assert bit.dropped == value.squashed[i]
    assert view.headline.startswith("Mean of age: ")
    assert view.guarantee.startswith("Each user sent one bit of their value")
    assert view.alarm is None
    check_made_again(files)


def test_view_ranks_groups_by_shrunk_estimates() -> None:
    planned = plan()
    state = ran(ages() + 20.0 * (by_size() == 2), planned, BY_PLACE, by_size())
    files = assembled(state, planned, BY_PLACE)
    body = shown(moments_view(files))
    published = pq.read_table(io.BytesIO(files["moments.parquet"])).to_pylist()
    assert [statistic.name for statistic in body.statistics] == ["Mean", "Variance"]
    assert len(body.groups) == 2
    bars = body.groups[0].bars
    assert [bar.name for bar in bars] == ["south", "north", OTHER]
    raw = {one["group"]: one for one in published if one["statistic"] == "mean"}
    assert body.groups[0].reference == raw[EVERYBODY]["value"]
    names, places = BY_PLACE.published_groups(
        state.clients(), simultaneous_z(4) * float(np.sqrt(state.clients_variance().item() / 5))
    )
    both = shrunk([*state.estimates(), *state.estimates(names, places)], [FORM])
    oracle = {one.group: one for one in both if one.statistic == "mean"}
    for bar in bars:
        one = oracle[bar.name]
        assert (bar.value, bar.low, bar.high, bar.users) == (one.value, one.low, one.high, one.clients)
        before = raw[bar.name]["value"] - raw[EVERYBODY]["value"]
        assert abs(bar.value - raw[EVERYBODY]["value"]) < abs(before)
    check_made_again(files)


def test_view_shows_cells_on_a_map_and_lists_those_that_differ() -> None:
    """Listed are cells that surely differ, with intervals that hold for all cells at once."""
    grouping, _, files = on_a_map()
    body = shown(moments_view(files))
    assert body.map is not None
    (layer,) = body.map.layers
    assert layer.cell_id == ["r00", "r13", "r33"]
    assert [measure.name for measure in layer.measures] == ["Mean", "Variance"]
    assert isinstance(grouping.groups, CellGroups)
    rows = pq.read_table(io.BytesIO(files["cells.parquet"])).to_pylist()
    for i, row in enumerate(rows):
        place = (np.array([axis[i]]) for axis in (layer.x, layer.y, layer.level))
        west, south, east, north = grouping.groups.grid.bounds(*place)
        assert (west[0], south[0], east[0], north[0]) == (row["west"], row["south"], row["east"], row["north"])
        assert layer.measures[0].value[i] == pytest.approx(row["mean_shrunk"], rel=1e-6)
    assert body.groups == []
    listed = layer.measures[0].listed
    assert [rows[one[0]]["cell_id"] for one in listed] == ["r13"]
    (everybody, *_) = body.statistics
    for place, _, low, high in listed:
        assert rows[place]["mean_differs"] == 1
        assert low == rows[place]["mean_simultaneous_low"] > everybody.high
        assert low <= rows[place]["mean_low"] < rows[place]["mean_high"] <= high
    assert layer.measures[1].listed == []
    check_made_again(files)
