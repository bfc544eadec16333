"""The heatmap's page as a view: what its layers, intervals, scale, list and words say."""

from __future__ import annotations

import functools
import io
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.region import Grid, Region
from sfumato.schemas.tree import Tree, node_levels, nodes_from_names
from sfumato.schemas.views import Layer, PageView
from sfumato.transforms.heatmap import view as module
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.view import heatmap_view
from tests.unit.release.city import REGION, CityRelease, city_release

NEEDED = ("manifest.json", "cells.parquet", "answers.parquet")


@functools.cache
def made(method: str, **options: Any) -> CityRelease:
    return city_release(method, **options)


def view_of(method: str, change: dict[str, Any] | None = None, **options: Any) -> PageView:
    files = made(method, **options).files
    manifest = json.loads(files["manifest.json"])
    for path, value in (change or {}).items():
        part = manifest
        *above, name = path.split(".")
        for key in above:
            part = part[key]
        part[name] = value
    return heatmap_view({**files, "manifest.json": json.dumps(manifest).encode()})


def words(view: PageView) -> str:
    return " ".join(text for section in view.sections for text in section.paragraphs)


def numbers(values: list[float | None]) -> np.ndarray:
    return np.array(values, dtype=float)


@pytest.mark.parametrize("method", METHODS)
def test_a_layer_for_each_sub_query_and_the_published_map_last(method: str) -> None:
    release = made(method)
    layers, cells = release.layers, pq.read_table(io.BytesIO(release.files["cells.parquet"])).to_pandas()
    answers = release.files.get("answers.parquet")
    rounds = 0 if answers is None else len(np.unique(pq.read_table(io.BytesIO(answers))["sub_query"]))
    assert len(layers) == (1 if method == "flat" else rounds + 1)
    last = layers[-1]
    assert last.cell_id == cells["cell_id"].tolist()
    shown = numbers(last.measures[0].value)
    spread = np.maximum(cells["stddev"].to_numpy(), 1e-2)
    expected = cells["count"].to_numpy()
    if "users_low" in cells:
        expected = np.clip(expected, cells["users_low"], cells["users_high"])
    assert (np.abs(shown - expected) <= 0.1 * spread).all()
    full = 4.0 ** (6 - np.array(last.level))
    assert (np.array(last.area) * full).sum() == pytest.approx(4**6, rel=1e-4)
    tree = Tree.of(6, nodes_from_names(last.cell_id, 6))
    areas = tree.areas[np.searchsorted(tree.entries, nodes_from_names(last.cell_id, 6))]
    np.testing.assert_allclose(np.array(last.area) * full, areas, atol=1e-2)


def test_cells_that_were_left_out_are_told_where_there_are_some() -> None:
    assert "are kept" not in words(view_of("flat"))
    assert "Only the 30% of cells" in words(view_of("flat", {"parameters.keep_top": 30.0}))  # an earlier release


def test_the_view_needs_nothing_but_the_published_tables() -> None:
    files = made("adaptive").files
    few = heatmap_view({name: files[name] for name in NEEDED})
    assert few.body == heatmap_view(files).body
    manifest = json.loads(files["manifest.json"])
    listed = {**files, "manifest.json": json.dumps({**manifest, "files": {"cells.parquet": {}}}).encode()}
    assert heatmap_view(listed) == heatmap_view(files)  # digests are not known when the page is made


def test_intervals_are_those_of_the_published_cells() -> None:
    release = made("adaptive")
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"])).to_pandas()
    users = release.layers[-1].measures[0]
    spread = np.maximum(0.025 * (cells["users_high"] - cells["users_low"]), 1e-3)
    assert (np.abs(numbers(users.low) - cells["users_low"]) <= spread).all()
    assert (np.abs(numbers(users.high) - cells["users_high"]) <= spread).all()
    shown = np.clip(cells["count"], cells["users_low"], cells["users_high"])
    assert users.uncertain == (shown <= 1.96 * cells["stddev"]).tolist()
    manifest = release.manifest
    spent = manifest["privacy"]["sub_queries"][0]
    first = release.layers[0].measures[0]
    half = (1.96 + 0.206 / (spent["shards"] - spent["shards_lost"])) * spent["noise_stddev"]
    np.testing.assert_allclose(numbers(first.high) - numbers(first.low), 2 * half, rtol=0.05)


def test_layers_that_are_too_large_are_added_up(baselines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_MAP_CELLS", 64)
    monkeypatch.setattr(module, "_MAX_PAGE_CELLS", 100)
    release = city_release("hierarchical", depth=4)
    layers = release.layers
    assert sum(len(layer.level) for layer in layers) <= 100
    assert 16 < len(layers[-1].level) <= 64
    answers = pq.read_table(io.BytesIO(release.files["answers.parquet"])).to_pandas()
    for index, layer in enumerate(layers[:-1]):
        mine = answers[answers["sub_query"] == index + 1]
        shown = numbers(layer.measures[0].value)
        up = 2 * (node_levels(nodes_from_names(mine["cell_id"].tolist(), 6))[0] - layer.level[0])
        place = np.searchsorted(
            nodes_from_names(layer.cell_id, 6), nodes_from_names(mine["cell_id"].tolist(), 6) >> np.uint64(up)
        )
        np.testing.assert_allclose(shown, np.bincount(place, mine["users"]), atol=0.06 * mine["stddev"].iloc[0] * 2**up)
    assert f"added up to {len(layers[-1].level)} on this page" in words(heatmap_view(release.files))


def test_cells_are_listed_by_what_is_surely_there() -> None:
    layer = city_release("adaptive", users=40_000).layers[-1]
    users = layer.measures[0]
    grid = Grid(Region(**REGION), 6)
    area = np.array([module._area_of(cells_of(layer), grid)[row] for row, *_ in users.listed])
    lows = np.array([low for _, _, low, _ in users.listed])
    assert len(lows) > 3
    assert (np.diff(lows / area) <= 1e-9 * (lows / area)[:-1]).all()
    for row, value, low, high in users.listed:
        assert 0 < low < (users.low[row] or 0) <= value <= (users.high[row] or 0) < high


def cells_of(layer: Layer) -> module._Cells:
    nodes = nodes_from_names(layer.cell_id, 6)
    zero = np.zeros(len(nodes))
    return module._Cells(nodes, np.array(layer.area) * 4.0 ** (6 - np.array(layer.level)), zero, zero, zero, zero)


def test_a_map_of_noise_alone_lists_nothing_and_says_fewer_than() -> None:
    view = view_of("flat", {"results.users": 3.0, "results.users_stddev": 40.0}, users=8, depth=3, shard_size=2)
    (bound,) = re.findall(r"^Fewer than ([\d,]+) users, too few to tell from none$", view.headline)
    assert 3 + 1.9 * 40 <= float(bound.replace(",", "")) <= 200
    (layer,) = view.body.layers  # type: ignore[union-attr]
    assert layer.measures[0].listed == []
    assert "noise could explain" in layer.measures[0].listed_note


def test_a_known_seed_raises_the_alarm() -> None:
    view = view_of("flat", {"privacy.randomness": {"source": "seed", "safe": False}}, depth=3)
    assert view.alarm is not None
    assert "NOT private" in view.alarm
    assert "no one in particular" not in view.headline
    assert "protects no one" in view.guarantee
    assert view_of("flat", depth=3).alarm is None


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_words_of_its_own(method: str) -> None:
    view = view_of(method)
    text = words(view)
    assert ("average over all maps" in text) == (method == "adaptive")
    assert METHODS[method].SENTENCE in text
    (table,) = (section.table for section in view.sections if section.title == "Round by round")
    assert table is not None
    assert len(table.rows) == len(view.manifest["privacy"]["sub_queries"])


@pytest.mark.slow
def test_what_the_report_says_of_noise_warm_starts_and_cohorts() -> None:
    assert "trusted curator" in words(view_of("flat", depth=4, trust="central", allow_overflow=True))
    central = view_of("flat", depth=4, trust="central", allow_overflow=True)
    assert not any("Groups" in section.table.heads for section in central.sections if section.table)
    assert "one sub-query alone" in words(view_of("adaptive", cohorts="disjoint"))
    assert "one sub-query alone" not in words(view_of("adaptive", cohorts="shared"))
    earlier = words(view_of("adaptive", {"parameters.warm_start": {"release_id": "monday", "epsilon": 1.0}}))
    assert "earlier release, monday, which said" in earlier
    assert "Only the 5% of cells" in words(view_of("flat", keep_top=5))


def test_the_page_says_which_cohort_was_asked_on_which_nights_it_rests_and_what_changed() -> None:
    event = {"cell_ids": ["r0213"], "users": 2100.0, "low": 1500.0, "high": 2700.0, "expected": 150.0}
    nights = {"rests_on": ["2026-10-01:2026-11-03", "2026-11-05:2026-11-20"], "started_anew": None, "changes": [event]}
    rotation = {"cohort": 7, "cohorts": 30}
    view = view_of("adaptive", {"privacy.rotation": rotation, "nights": nights})
    assert ("Asked", "cohort 7 of 30") in [(chip.term, chip.text) for chip in view.chips]
    (section,) = [one for one in view.sections if one.title == "This night among others"]
    text = " ".join(section.paragraphs)
    assert "Cohort 7 of 30 was asked. The counts are scaled to all users" in text
    assert "50 nights, 1 October to 20 November 2026, without 4 November." in text
    assert "One place differs from what the nights before lead to expect." in text
    assert section.table is not None
    assert section.table.rows == [["r0213", "2,100", "1,500", "2,700", "150"]]
    quiet = words(view_of("adaptive", {"nights": nights | {"changes": [], "started_anew": "The region changed."}}))
    assert "It was started anew. The region changed." in quiet
    assert "No place surely differs" in quiet


def test_the_page_of_a_rotated_night_says_of_no_other_cohort_that_it_reports() -> None:
    start = {"parameters.warm_start": {"release_id": "monday", "epsilon": 1.0}}
    nights = {"rests_on": ["2026-11-19:2026-11-20"], "started_anew": None, "changes": []}
    text = words(view_of("adaptive", {"privacy.rotation": {"cohort": 7, "cohorts": 30}, "nights": nights, **start}))
    assert "Every user of cohort 7 of 30 reports a cell" in text
    assert "The other users report nothing." in text
    assert "for a user who was asked for both, the two add up" in text
    assert "estimated from the noisy answers of that night and of those before it as well" in text
    assert "from the answers of all nights on which the map rests" in text
    alone = words(view_of("adaptive", start))
    assert "Every user reports a cell" in alone
    assert "whose records are in both" in alone
    assert "that night" not in alone


def test_the_first_night_says_nothing_of_nights_before_it() -> None:
    nights = {"rests_on": ["2026-11-20"], "started_anew": "The region changed.", "changes": []}
    text = words(view_of("adaptive", {"nights": nights}))
    assert "of this night alone" in text
    assert "nights before lead" not in text


def test_the_page_of_a_map_by_itself_says_nothing_of_other_nights() -> None:
    view = view_of("adaptive")
    assert "This night among others" not in [section.title for section in view.sections]
    assert "Asked" not in [chip.term for chip in view.chips]


def test_a_table_of_another_order_is_an_error() -> None:
    """Layers are painted by level; a table that was sorted otherwise must not be painted wrongly."""
    files = dict(made("adaptive").files)
    table = pq.read_table(io.BytesIO(files["cells.parquet"]))
    backwards = table.take(pa.array(range(len(table) - 1, -1, -1)))
    out = io.BytesIO()
    pq.write_table(backwards, out)
    with pytest.raises(ValueError, match="level"):
        heatmap_view({**files, "cells.parquet": out.getvalue()})
