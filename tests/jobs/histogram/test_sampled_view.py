"""The pages of sampled counts show what was published: against the tries and searches that they were made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.locations import ItemColumns, LocationColumns
from sfumato.schemas.region import Grid, deinterleave
from sfumato.schemas.release import CURVE_FILE
from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import BarsBody, CurveBody
from sfumato.schemas.views.map_views import Layer, MapBody
from sfumato.transforms.histogram.central_counts_view import counts_view
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, Items, NumberBins, NumberItems
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.release import CountMetadata, item_names, trie_files
from sfumato.transforms.histogram.sampling_round import (
    Histogram,
    NumberPrefixes,
    Prefixes,
    Sampling,
    TextPrefixes,
    Trie,
    grow_trie,
)
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import keyed_hash
from sfumato.transforms.quantiles.curve import build_hierarchy, search_quantiles
from sfumato.transforms.quantiles.release import hierarchy_files, search_files
from sfumato.transforms.quantiles.view import quantiles_view
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.release_folder import with_digests
from sfumato.transforms.report.report import render_page
from tests.conftest import REGION
from tests.seeds import seeded_rng

pytestmark = pytest.mark.usefixtures("blank_pictures")  # nothing here looks at them
SAFE = ReleaseMetadata("histogram", "monday", "2026-11-21T00:00:00+00:00", "key file", True, {})
CELLS = CellItems(LocationColumns("user_id", "latitude", "longitude"), Grid(REGION, 6))
TEXTS = ColumnItems(ItemColumns("code"))
NUMBERS = NumberItems(ItemColumns("km"), -4.0, 28.0, 8)
ADMITTED = NoisyUserCounts(users=20_000.0, unusable=3.0, cost=0.01, noise_stddev=50.0)


def metadata(counted: Items, job: str = "histogram", rounds: int = 1, **parameters: Any) -> CountMetadata[SamplePlan]:
    plan = SamplePlan(epsilon=1.0, delta=1e-6, rounds=rounds)
    bounds = {"counted": {"low": -4.0, "high": 28.0}} if isinstance(counted, NumberItems) else {}
    column = {} if isinstance(counted, CellItems) else {"column": counted.columns.column}
    return CountMetadata(replace(SAFE, job=job, parameters={**column, **bounds, **parameters}), plan, counted)


def drawn(
    codes: NDArray[np.uint64], level: int, made: CountMetadata[SamplePlan], texts: Sequence[str] | None = None
) -> Histogram:
    """A round over users with these codes: a Poisson sample, and what passes the threshold."""
    sampling = made.plan.sampling
    taken = codes[seeded_rng(100 + level).random(len(codes)) < sampling.rate]
    items, sampled = np.unique(taken, return_counts=True)
    shown = sampled >= sampling.threshold
    names = None
    if texts is not None:
        by_code = dict(zip(codes.tolist(), texts, strict=True))
        names = tuple(by_code[code] for code in items[shown].tolist())
    return Histogram(level, sampling, items[shown], sampled[shown].astype(np.int64), names)


def trie_of(
    codes: NDArray[np.uint64], prefixes: Prefixes, levels: Sequence[int], made: CountMetadata[SamplePlan]
) -> Trie:
    histograms = [drawn(prefixes.cut(codes, None, level, b"")[0], level, made) for level in levels]
    return replace(grow_trie(histograms, prefixes), admission=ADMITTED)


def numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values])


def page_of(files: dict[str, bytes]) -> PageView:
    """The page of a release: of its job."""
    return quantiles_view(files) if CURVE_FILE in files else counts_view(files)


def check_made_again(files: dict[str, bytes]) -> None:
    """The page is made of the published folder, to the byte."""
    published = with_digests(files)
    assert render_page(page_of(published)).encode() == published["index.html"]


# --- cells ---


@pytest.fixture(scope="module")
def places() -> tuple[Trie, dict[str, bytes]]:
    made = metadata(CELLS, "hotspots", rounds=2)
    codes = np.minimum(seeded_rng(5).geometric(0.02, 20_000), 4**6 - 1).astype(np.uint64)
    trie = trie_of(codes, NumberPrefixes(4, 6), (3, 6), made)
    return trie, trie_files(trie, made)


def test_cells_are_those_of_the_trie(places: tuple[Trie, dict[str, bytes]]) -> None:
    trie, files = places
    view = page_of(files)
    assert isinstance(view.body, MapBody)
    assert [layer.title for layer in view.body.layers] == ["Level 3", "Level 6"]
    for layer, level in zip(view.body.layers, trie.levels, strict=True):
        x, y = deinterleave(level.items)
        assert (layer.x, layer.y, layer.level) == (x.tolist(), y.tolist(), [level.level] * len(level))
        (measure,) = layer.measures
        assert numbers(measure.value) == pytest.approx(level.counts, rel=1e-6)
        margin = 1.96 * level.stddev
        assert numbers(measure.low) == pytest.approx(np.maximum(level.counts - margin, level.sampled), rel=1e-6)
        assert numbers(measure.high) == pytest.approx(level.counts + margin, rel=1e-6)
    assert set(view.body.layers[0].measures[0].scale.ticks) != set()
    check_made_again(files)


@pytest.mark.false_alarm(1e-9)
@pytest.mark.slow
def test_intervals_of_listed_cells_hold_for_all_at_once() -> None:
    """Over many draws of one map, some listed interval misses in at most 5% of them, within binomial tails."""
    made = metadata(CELLS)
    truth = seeded_rng(0).integers(300, 3000, 64)
    rng, misses, runs = seeded_rng(1), 0, 60
    sampling = made.plan.sampling
    for _ in range(runs):
        sampled = rng.binomial(truth, sampling.rate)
        shown = np.flatnonzero(sampled >= sampling.threshold)
        level = Histogram(0, sampling, shown.astype(np.uint64), sampled[shown])
        view = page_of(trie_files(Trie((level,), (), float(level.counts.sum())), made))
        assert isinstance(view.body, MapBody)
        listed = view.body.layers[0].measures[0].listed
        misses += any(not low <= truth[shown[row]] <= high for row, _, low, high in listed)
    assert misses <= stats.binom.isf(1e-9, runs, 0.05)


# --- items ---


def test_prefixes_are_a_tree_with_shares_of_all_users() -> None:
    made = metadata(TEXTS, "hotspots", rounds=2)
    rng = seeded_rng(3)
    names = np.array(["J09", "J10", "K35", "J", "\u202eevil"])[rng.choice(5, 20_000, p=[0.4, 0.3, 0.2, 0.05, 0.05])]
    prefixes = TextPrefixes(3)
    levels = []
    for level in (1, 3):
        codes, cut = prefixes.cut(keyed_hash(b"k" * 32, names.astype(object)), names.astype(object), level, b"k" * 32)
        assert cut is not None
        levels.append(drawn(codes, level, made, cut.tolist()))
    trie = replace(grow_trie(levels, prefixes), admission=ADMITTED)
    files = trie_files(trie, made)
    body = page_of(files).body
    assert isinstance(body, BarsBody)
    rows = {(bar.level, bar.name): bar for bar in body.bars}
    parents = {bar.name: body.bars[bar.parent].name for bar in body.bars if bar.parent >= 0}
    assert parents == {"J09": "J", "J10": "J", "K35": "K", "J": "J", "⟨U+202E⟩ev": "⟨U+202E⟩"}
    for level in trie.levels:
        for name, count, stddev in zip(item_names(level), level.counts, level.stddev, strict=True):
            bar = rows[level.level, name.replace("\u202e", "⟨U+202E⟩")]
            assert bar.value == count
            assert bar.share == count / 20_000
            assert bar.high == count + 1.96 * stddev
    assert {name for (_, name), bar in rows.items() if not bar.cut} == {"J"}  # shorter than its level: complete
    assert rows[1, "J"].cut
    check_made_again(files)


def test_integers_and_their_prefixes_keep_leading_zeros() -> None:
    made = metadata(TEXTS, "hotspots", rounds=2)
    codes = seeded_rng(2).choice([7, 120, 121, 805], 20_000).astype(np.uint64)
    trie = trie_of(codes, NumberPrefixes(10, 3), (1, 3), made)
    body = page_of(trie_files(trie, made)).body
    assert isinstance(body, BarsBody)
    assert {(bar.name, body.bars[bar.parent].name) for bar in body.bars if bar.parent >= 0} == {
        ("007", "0"), ("120", "1"), ("121", "1"), ("805", "8"),
    }  # fmt: skip
    assert not any(bar.cut for bar in body.bars if bar.level == 3)


@pytest.mark.parametrize(
    ("population", "users", "known"), [(12_345, 20_000.0, 12_345), (None, 20_000.0, 20_000), (None, 10.0, None)]
)
def test_all_users_are_the_public_number_or_the_counted_one(
    population: int | None, users: float, known: float | None
) -> None:
    made = metadata(TEXTS)
    made = replace(made, plan=replace(made.plan, population=population))
    level = drawn(np.zeros(15_000, np.uint64), 0, made, [""] * 15_000)
    trie = Trie((level,), (), float(level.counts.sum()), admission=replace(ADMITTED, users=users))
    body = page_of(trie_files(trie, made)).body
    assert isinstance(body, BarsBody)
    (bar,) = body.bars
    assert bar.share == bar.value / (known or bar.value)  # a count that noise may explain says nothing


# --- distributions ---


def test_a_distribution_is_that_of_its_hierarchy() -> None:
    made = metadata(NUMBERS, "quantiles", rounds=2, method="hierarchical")
    values = seeded_rng(1).gamma(3, 2, 30_000)
    codes = np.clip((values + 4) * 8, 0, 255).astype(np.uint64)
    trie = trie_of(codes, NumberPrefixes(2, 8), (4, 8), made)
    files = hierarchy_files(trie, made, (0.5, 0.9), ((0.0, 4.0),))
    view = page_of(files)
    body, hierarchy = view.body, build_hierarchy(trie, NumberBins(-4.0, 28.0, 8))
    assert isinstance(body, CurveBody)
    curve = hierarchy.curve()
    for name in ("value", "share", "low", "high"):
        assert getattr(body, name) == pytest.approx(getattr(curve, name), rel=1e-11)
    assert [one.share for one in body.quantiles] == [0.5, 0.9]
    answer = hierarchy.answer(0.0, 4.0)
    (shown,) = body.ranges
    assert (shown.low, shown.high, shown.users) == (0.0, 4.0, answer.users)
    assert shown.users_high - shown.users == pytest.approx(1.96 * answer.stddev)
    # The histogram is the level of 16 bins of width 2; the one of 256 has too many.
    assert [(one.low + 4) / 2 for one in body.histogram] == trie.levels[0].items.tolist()
    assert [one.users for one in body.histogram] == trie.levels[0].counts.tolist()
    assert body.points == []
    margin = max((curve.high - curve.share).max(), (curve.share - curve.low).max())
    said = float(body.note.split("± ")[1].split(" ")[0]) / 100
    assert 0 < said <= 1.05 * margin
    assert view.headline.startswith("One sampled record per user: half of about 20,000 users have km below")
    check_made_again(files)


def test_a_search_is_known_at_its_points_alone() -> None:
    made = metadata(NUMBERS, "quantiles", rounds=8, method="interactive")
    sampling: Sampling = made.plan.sampling
    codes = np.clip((seeded_rng(1).gamma(3, 2, 30_000) + 4) * 8, 0, 255).astype(np.uint64)
    rng = seeded_rng(2)
    rounds = []
    for _ in range(8):
        items, counts = np.unique(codes[rng.random(len(codes)) < sampling.rate], return_counts=True)
        rounds.append(ItemCounts(items, counts.astype(np.int64)))
    search = replace(search_quantiles(rounds, sampling, (0.25, 0.5), -4.0, 28.0), admission=ADMITTED)
    files = search_files(search, made)
    body = page_of(files).body
    assert isinstance(body, CurveBody)
    assert body.points == sorted(set(search.curve.value.tolist()))[1:-1]
    assert [one.value for one in body.quantiles] == [one.value for one in search.quantiles]
    assert body.histogram == []
    assert body.hidden is None
    assert "Between two dots" in body.note
    check_made_again(files)


# --- nothing published, and what a reader must be warned of ---


@pytest.mark.parametrize("counted", [CELLS, TEXTS, NUMBERS], ids=["cells", "items", "numbers"])
def test_a_release_without_anything_has_a_page(counted: Items) -> None:
    made = metadata(counted, "quantiles" if counted is NUMBERS else "histogram", method="hierarchical")
    empty = Histogram(4 if counted is NUMBERS else 0, made.plan.sampling, np.zeros(0, np.uint64), np.zeros(0, np.int64))
    trie = Trie((empty,), (), 0.0)
    files = hierarchy_files(trie, made, (0.5,), ()) if counted is NUMBERS else trie_files(trie, made)
    view = page_of(files)
    assert "no " in view.headline
    if isinstance(view.body, MapBody):
        (layer,) = view.body.layers
        assert isinstance(layer, Layer)
        assert layer.level == []
    check_made_again(files)
