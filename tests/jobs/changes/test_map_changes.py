"""Changes between two maps: what is tested, what is found, and how often it is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

import sfumato
from sfumato.pipelines.command_line.cli import main
from sfumato.schemas.region import Region
from sfumato.schemas.tree import Tree, node_levels
from sfumato.schemas.views import PageView
from sfumato.schemas.views.map_views import Basemap, Geography, MapBody, Place
from sfumato.transforms.changes.differences import _Tails
from sfumato.transforms.changes.map_changes import MapChanges, MapCounts, find_changes
from sfumato.transforms.changes.view import changes_view
from sfumato.transforms.release.metadata import parquet_bytes
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.statistics.posterior.full_tree import FullTree, TreeMeasurement, measure
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts
from tests.releases import Releases
from tests.seeds import seeded_rng

REGION = Region(3.0, 1.0, 3.13, 1.13)
LEVEL, DEPTH = 4, 6


def noisy_map(expected: np.ndarray, rng: np.random.Generator, noise: float = 5.0, sums: int = 1) -> MapCounts:
    """A map of 4^LEVEL cells: users are Poisson numbers, noise is a sum of so many Laplace variables."""
    tree = Tree.uniform(DEPTH, LEVEL)
    scale = noise / np.sqrt(2 * sums)
    counts = rng.poisson(expected) + rng.laplace(0, scale, (sums, len(expected))).sum(axis=0)
    full = FullTree.from_trees(tree)
    own = measure(full, [TreeMeasurement(tree, counts, np.full(len(counts), noise**2))])
    users = float(expected.sum() + rng.normal(0, 10.0))
    unbiased = UnbiasedCounts.from_measurements(full, own, users, 100.0)
    return MapCounts(REGION, unbiased, tree, sums)


def two_maps(trial: int, move: np.ndarray | None = None, sums: int = 1, most: float = 60.0) -> MapChanges:
    """Changes between two maps with 0 users in the first cell and `most` in the last."""
    rng = seeded_rng(trial)
    expected = np.linspace(0, most, 4**LEVEL)
    after = expected if move is None else expected + move
    return find_changes(noisy_map(expected, rng, sums=sums), noisy_map(after, rng, sums=sums))


@pytest.mark.slow
@pytest.mark.false_alarm(2e-8)
@pytest.mark.parametrize("sums", [1, 10])
def test_find_changes_of_equal_maps_finds_few(sums: int) -> None:
    found = [two_maps(trial, sums=sums) for trial in range(100)]
    for name in ("changed", "shown"):
        wrong = sum(bool(getattr(one, name).any()) for one in found)
        # More than 22 of 100 at a true rate of 5% have a probability of 3e-9.
        assert wrong <= 22
    quiet = [one for one in found if not one.changed.any()]
    tested = np.concatenate([~np.isnan(one.p_value) for one in quiet])
    assert np.concatenate([(one.changed_low <= 0) & (one.changed_high >= 0) for one in quiet])[tested].all()
    covered = np.concatenate([(one.low <= 0) & (one.high >= 0) for one in found[:40]])
    # 40 x 341 nodes, correlated within a map: 6 standard errors of 40 independent maps' means are below 0.03.
    assert covered.mean() == pytest.approx(0.95, abs=0.03)


@pytest.mark.slow
@pytest.mark.false_alarm(1e-8)
def test_find_changes_finds_moves_of_four_deviations() -> None:
    hits, wrong, covered = [], [], []
    base = np.linspace(0, 60, 4**LEVEL)
    for trial in range(40):
        rng = seeded_rng(10_000 + trial)
        places = rng.choice(np.arange(200, 256), 24, replace=False)
        # Four deviations of a difference: of two noises of 5 and of two Poisson counts.
        size = 4 * np.sqrt(2 * 25 + 2 * base[places])
        sign = np.where(np.arange(24) % 2, 1.0, -1.0)
        move = np.zeros(4**LEVEL)
        move[places] = np.maximum(sign * size, -base[places])
        changes = two_maps(trial, move, sums=10)
        truth = expected_by_node(changes.node, move)
        cells = np.flatnonzero(node_levels(changes.node) == LEVEL)[places]
        hits.append(changes.changed[cells[np.abs(move[places]) >= 0.99 * size]].mean())
        wrong.append((changes.changed & (np.abs(truth) < 1e-9)).sum() / max(changes.changed.sum(), 1))
        inside = (changes.changed_low <= truth) & (truth <= changes.changed_high)
        covered.append(inside[changes.changed].mean() if changes.changed.any() else 1.0)
    # Means over 40 pairs. Hits are 0.86, with a deviation of 0.074 a pair: 0.79 is six standard errors below.
    assert np.mean(hits) >= 0.79
    # The deviation of the other shares is below 0.05: 6 standard errors are below 0.05.
    assert np.mean(wrong) <= 0.05 + 0.05
    assert np.mean(covered) >= 0.95 - 0.05


def expected_by_node(node: np.ndarray, move: np.ndarray) -> np.ndarray:
    """The sum of the move over the cells of each node."""
    total = np.concatenate(([0.0], np.cumsum(move)))
    level = node_levels(node)
    path = (node - (np.uint64(1) << (2 * level).astype(np.uint64))).astype(np.int64)
    width = 4 ** (LEVEL - level)
    return np.asarray(total[(path + 1) * width] - total[path * width])


@pytest.mark.false_alarm(1e-10)
def test_find_changes_finds_a_move_within_a_node() -> None:
    """Of 17 deviations: of two noises of 5, and of Poisson numbers of 188 and 716. One of 4 is found."""
    move = np.zeros(4**LEVEL)
    move[200], move[[201, 202, 203]] = 528.0, -176.0
    changes = two_maps(3, move, most=240.0)
    cells = changes.node[changes.shown] - np.uint64(4**LEVEL)
    assert 200 in cells.tolist()


def test_shown_places_are_disjoint_and_changed() -> None:
    move = np.where(np.arange(4**LEVEL) >= 192, 30.0, 0.0)
    changes = two_maps(5, move)
    assert changes.shown.any()
    assert (changes.shown <= changes.changed).all()
    nodes = changes.node[changes.shown].tolist()
    for one in nodes:
        above = {one >> shift for shift in range(2, one.bit_length(), 2)}
        assert not above & set(nodes)


def test_q_values_are_those_of_scipy() -> None:
    changes = two_maps(1, np.where(np.arange(256) % 7 == 0, 25.0, 0.0))
    tested = changes.tested
    assert 0 < tested.sum() < len(tested)
    np.testing.assert_allclose(
        changes.q_value[tested], stats.false_discovery_control(changes.p_value[tested]), rtol=1e-9
    )
    assert np.isnan(changes.q_value[~tested]).all()


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(("sums", "share"), [(1, 1.0), (3, 1.0), (1, 0.4)])
def test_tails_are_those_of_sums_of_laplace_variables(sums: int, share: float) -> None:
    tails = _Tails(np.array([share]), float(sums))
    rng = seeded_rng(0)
    draws = 400_000
    noise = rng.laplace(0, np.sqrt(share / (2 * sums)), (sums, draws)).sum(axis=0)
    values = np.abs(noise + rng.normal(0, np.sqrt(1 - share), draws))
    for z in (0.5, 2.0, 4.0):
        exact = float(tails.probability(np.array([z]))[0])
        # 6.5 standard errors: wrong with a probability below 1e-10, where some 400 values are beyond 4.
        assert (values >= z).mean() == pytest.approx(exact, abs=6.5 * np.sqrt(exact / draws))
    z = float(tails.quantile(0.05)[0])
    assert float(tails.probability(np.array([z]))[0]) == pytest.approx(0.05, rel=1e-3)


def test_find_changes_does_not_test_nodes_within_a_cell() -> None:
    """A cell that is a node less one child has leaves whose users are only spread by area."""
    child = np.uint64(4 * 5 + 1)  # of node 5, level 2
    tree = Tree.of(3, np.array([4, 5, 6, 7, child], dtype=np.uint64))
    full = FullTree.from_trees(tree)
    entries = tree.entries
    assert 5 in entries.tolist()
    rng = seeded_rng(0)
    # All users of node 5 live in one of its three other children: spread by area, two leaves are off by hundreds.
    counts = np.where(entries == 5, 900.0, 100.0)
    maps = []
    for _ in range(2):
        noisy = counts + rng.normal(0, 5, len(counts))
        own = measure(full, [TreeMeasurement(tree, noisy, np.full(len(counts), 25.0))])
        unbiased = UnbiasedCounts.from_measurements(full, own, float(counts.sum()), 25.0)
        maps.append(MapCounts(REGION, unbiased, tree, 1))
    changes = find_changes(*maps)
    nodes = changes.node.tolist()
    assert {1, 4, 5, 6, 7, int(child)} == set(nodes)
    assert changes.leaf[nodes.index(int(child))]
    assert not changes.leaf[nodes.index(5)]


@pytest.mark.false_alarm(1e-8)
def test_shares_forgive_a_change_of_the_number_of_users() -> None:
    rng = seeded_rng(11)
    expected = np.linspace(5, 60, 4**LEVEL)
    before, after = noisy_map(expected, rng), noisy_map(1.4 * expected, rng)
    found = find_changes(before, after)
    assert found.changed[0]  # the whole region
    assert not found.shown[0]
    changes = find_changes(before, after, 1e-8, shares=True)
    assert changes.scale == pytest.approx(1.4, abs=0.03)
    assert not changes.changed.any()


def test_command_writes_the_table_and_reports_what_it_found(
    published: Releases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = str(published["monday"]), str(published["tuesday"])
    for name in ("one", "two"):
        assert main(["changes", *pair, "--output", str(tmp_path / name)]) == 0
    assert main(["changes", *pair, "--output", str(tmp_path / "two"), "--overwrite"]) == 0
    assert capsys.readouterr().out
    for name in ("changes.parquet", "manifest.json", "changes.png", "index.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["format"] == "sfumato-changes/1"
    assert manifest["before"]["release_id"] == open_release(pair[0]).manifest["release_id"]
    table = pq.read_table(tmp_path / "one" / "changes.parquet")
    assert table.num_rows >= manifest["results"]["tested"] > 0
    assert b"geo" in table.schema.metadata
    assert sfumato.changes(*pair)["difference"].to_list() == table["difference"].to_pylist()


@pytest.mark.parametrize(
    "arguments",
    [
        ["{monday}", "{monday}"],
        ["{monday}", "{nowhere}"],
        ["{monday}", "{tuesday}", "--rate", "0"],
        ["{monday}", "{tuesday}", "--output", "{monday}"],
        ["{monday}", "{tuesday}", "--output", "{monday}", "--overwrite"],
        ["{monday}", "{flat}"],  # which does not state the errors of sums
        ["{words}", "{monday}"],
        ["{heatmap}", "{monday}"],  # of another region
    ],
)
def test_changes_command_rejects_bad_arguments(published: Releases, tmp_path: Path, arguments: list[str]) -> None:
    names = {kind: published[kind] for kind in ("monday", "tuesday", "flat", "words", "heatmap")}
    names["nowhere"] = tmp_path / "nowhere"
    assert main(["changes", *(one.format(**names) for one in arguments)]) == 2


def page_of(changes: MapChanges, geography: Geography | None = None, **more: Any) -> PageView:
    manifest = {
        "release_id": "test", "region": asdict(REGION), "grid": {"depth": DEPTH}, "created": "2026-11-22T00:00:00",
        "privacy": {"randomness": {"safe": True}, "note": ""},
        "results": {"false_discovery_rate": 0.05, "shown": int(changes.shown.sum()), "tested": 9, "compared": "users"},
        **more,
    }  # fmt: skip
    table = parquet_bytes(changes.table())
    files = {"changes.parquet": table, "manifest.json": json.dumps(manifest).encode()}
    return changes_view(files | ({} if geography is None else {"basemap.json": geography.model_dump_json().encode()}))


def test_headline_names_few_cells_by_the_nearest_place() -> None:
    """As many as it names: with one more it counts them."""
    changes = find_changes(*(noisy_map(np.full(4**LEVEL, 20.0), seeded_rng(seed)) for seed in (1, 2)))
    basemap = Basemap(source="", places=[Place(name="Harbour", longitude=REGION.west, latitude=REGION.south, rank=0)])
    for number in (3, 4):
        rows = 1 + np.arange(number)
        changes.shown[:] = np.isin(np.arange(len(changes.shown)), rows)
        changes.difference[rows], changes.stddev[rows] = -50.0 * rows, 10.0
        changes.changed_low[rows], changes.changed_high[rows] = -50.0 * rows - 20, -50.0 * rows + 20
        headline = page_of(changes, geography=Geography(basemap=basemap)).headline
        if number == 3:
            first, *others = headline.split("; ")[:3]
            assert re.fullmatch(r"\d+ km [a-z-]+ of Harbour: 130 to 170 fewer users", first)
            assert [one.split(": ")[1] for one in others] == ["80 to 120 fewer", "30 to 70 fewer"]
        else:
            assert headline.startswith("Fewer users in 4 places")


def test_page_names_maps_by_days_or_release() -> None:
    level = np.full(4**LEVEL, 20.0)
    changes = find_changes(noisy_map(level, seeded_rng(1)), noisy_map(level, seeded_rng(2)))
    sides = {
        "before": {"period": "23 Nov 2026, 8-9 h", "release_id": "x"},
        "after": {"period": None, "release_id": "y"},
    }
    assert [chip.text for chip in page_of(changes, **sides).chips[:2]] == ["23 Nov 2026, 8-9 h", "y"]


@pytest.mark.false_alarm(1e-9)
def test_page_without_changes_lists_largest_differences() -> None:
    level = np.full(4**LEVEL, 200.0)  # all places are tested
    changes = find_changes(noisy_map(level, seeded_rng(1)), noisy_map(level, seeded_rng(2)), 1e-9)
    body = page_of(changes).body
    assert isinstance(body, MapBody)
    measure = body.layers[0].measures[0]
    listed = [abs(measure.value[row] or 0.0) for row, *_ in measure.listed]
    assert listed == sorted((abs(one) for one in measure.value if one is not None), reverse=True)[:12]
    assert all(measure.uncertain[row] and low < value < high for row, value, low, high in measure.listed)
    assert measure.listed_note.startswith("None is significant.")


@pytest.mark.false_alarm(1e-8)
def test_page_lists_a_planted_crowd() -> None:
    """800 users more in a node of four cells; the 95% interval has an end at about two deviations, seven are 1e-11."""
    rng = seeded_rng(0)
    expected = np.full(4**LEVEL, 20.0)
    crowd = np.where(np.arange(4**LEVEL) // 4 == 9, 200.0, 0.0)
    body = page_of(find_changes(noisy_map(expected, rng), noisy_map(expected + crowd, rng))).body
    assert isinstance(body, MapBody)
    layer = body.layers[0]
    row, value, low, high = layer.measures[0].listed[0]
    name = layer.cell_id[row]
    assert name.startswith("r021")  # 9 is 0, 2, 1 in base 4
    assert abs(value - (800 if name == "r021" else 200)) < 3.5 * (high - low) / 2
    # The cells tile the region once.
    assert sum(area / 4**level for area, level in zip(layer.area, layer.level, strict=True)) == pytest.approx(1.0)
    assert not layer.measures[0].uncertain[row]
    assert np.mean(layer.measures[0].uncertain) > 0.9


@pytest.mark.parametrize(
    ("shown", "difference", "compared", "text"),
    [
        ([], [], "users", "No significant change in any place; in all about 1,000 users before, 1,600 after"),
        (
            [2, 3],
            [50.0, -9.0],
            "users",
            "More users in 1 place, fewer users in 1; in all about 1,000 users before, 1,600 after",
        ),
        (
            [2, 3],
            [-50.0, -9.0],
            "users",
            "Fewer users in 2 places; in all about 1,000 users before, 1,600 after",
        ),
        ([0], [100.0], "users", "More users in the whole region; in all about 1,000 users before, 1,600 after"),
        (
            [4],
            [9.0],
            "shares",
            "One place: a larger share of users; in all about 1,000 users before, 1,600 after",
        ),
    ],
)
def test_headline_states_changes_and_totals(
    shown: list[int], difference: list[float], compared: str, text: str
) -> None:
    level = np.full(4**LEVEL, 20.0)
    changes = find_changes(noisy_map(level, seeded_rng(1)), noisy_map(level, seeded_rng(2)))
    changes.shown[:] = False
    changes.shown[shown] = True
    changes.difference[shown] = difference
    changes.stddev[0] = 100.0
    changes.changed_low[shown] = changes.changed_high[shown] = difference
    results = {"false_discovery_rate": 0.05, "shown": len(shown), "tested": 9, "compared": compared}
    sides = {"before": {"users": 1_030.0}, "after": {"users": 1_562.0}}
    assert page_of(changes, results=results, **sides).headline == text
    alike = {"before": {"users": 1_030.0}, "after": {"users": 1_062.0}}
    assert page_of(changes, results=results, **alike).headline == text.split(";")[0]
