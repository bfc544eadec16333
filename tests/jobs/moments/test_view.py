"""The page of moments shows what was published: against the estimates and bits of protocols that ran in memory."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.moments import EVERYBODY, OTHER, FixedPoint, Statistic
from sfumato.schemas.views import MomentsBody, PageView
from sfumato.transforms.moments.groups import CellGroups, Grouping
from sfumato.transforms.moments.local.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.statistic_kinds import shrunk
from sfumato.transforms.moments.view import moments_view, place_value, quantity_title, statistic_title
from sfumato.transforms.release.release_folder import with_digests
from sfumato.transforms.report.report import render_page
from sfumato.transforms.statistics.shrinkage import simultaneous_z
from tests.unit.moments.test_release import (
    BY_PLACE,
    FACTS,
    FORM,
    SPREAD,
    ages,
    assembled,
    by_size,
    placed,
    plan,
    ran,
)


def shown(view: PageView) -> MomentsBody:
    assert isinstance(view.body, MomentsBody)
    return view.body


def check_made_again(files: dict[str, bytes]) -> None:
    """The page is made of the published folder, to the byte."""
    published = with_digests(files)
    assert render_page(moments_view(published)).encode() == published["index.html"]


def test_everybodys_statistics_and_bits_are_the_protocols() -> None:
    asked = plan()
    state = ran(ages(), asked)
    files = assembled(state, asked)
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
    assert [one.quantity for one in body.bits] == ["age"] * 8 + ["the squared distance of age from its mean"] * len(
        square.weight
    )
    assert [one.place for one in body.bits[:8]] == ["1", "2", "4", "8", "16", "32", "64", "128"]
    for i, bit in enumerate(body.bits[:8]):
        assert bit.share == value.mean[i]
        assert bit.high == pytest.approx(value.mean[i] + 1.96 * value.stddev[i])
        assert bit.dropped == value.squashed[i]
    assert view.headline.startswith("Mean of age: ")
    assert view.guarantee.startswith("Each user sent one bit of their value")
    check_made_again(files)


def test_bits_that_nobody_was_asked_about_are_unknown() -> None:
    asked = plan(epsilon=0.05, statistics=SPREAD[:1])
    bits = shown(moments_view(assembled(ran(ages(60), asked), asked))).bits
    assert any(one.share is None and one.low is None for one in bits)


def test_groups_are_shrunk_and_ranked_by_what_is_surely_high() -> None:
    asked = plan()
    state = ran(ages() + 20.0 * (by_size() == 2), asked, BY_PLACE, by_size())
    files = assembled(state, asked, BY_PLACE)
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
    oracle = {
        one.group: one
        for one in shrunk([*state.estimates(), *state.estimates(names, places)], [FORM])
        if one.statistic == "mean"
    }
    for bar in bars:
        one = oracle[bar.name]
        assert (bar.value, bar.low, bar.high, bar.users) == (one.value, one.low, one.high, one.clients)
        before = raw[bar.name]["value"] - raw[EVERYBODY]["value"]
        assert abs(bar.value - raw[EVERYBODY]["value"]) < abs(before)
    check_made_again(files)


def on_a_map() -> tuple[MomentsState, MomentsPlan, Grouping, dict[str, bytes]]:
    asked = plan()
    groups, grouping = placed(6000, 2)
    state = ran(ages(6000) + 30.0 * (groups == 7), asked, grouping, groups)
    return state, asked, grouping, assembled(state, asked, grouping)


def test_cells_lie_on_the_map_with_all_statistics() -> None:
    _, _, grouping, files = on_a_map()
    body = shown(moments_view(files))
    assert body.map is not None
    (layer,) = body.map.layers
    assert layer.cell_id == ["r00", "r13", "r33"]
    assert [measure.name for measure in layer.measures] == ["Mean", "Variance"]
    assert isinstance(grouping.groups, CellGroups)
    rows = pq.read_table(io.BytesIO(files["cells.parquet"])).to_pylist()
    for i, row in enumerate(rows):
        west, south, east, north = grouping.groups.grid.bounds(
            np.array([layer.x[i]]), np.array([layer.y[i]]), np.array([layer.level[i]])
        )
        assert (west[0], south[0], east[0], north[0]) == (row["west"], row["south"], row["east"], row["north"])
        assert layer.measures[0].value[i] == pytest.approx(row["mean_shrunk"], rel=1e-6)
    assert body.groups == []
    check_made_again(files)


def test_listed_cells_are_those_that_surely_differ_with_intervals_for_all_at_once() -> None:
    _, _, _, files = on_a_map()
    rows = pq.read_table(io.BytesIO(files["cells.parquet"])).to_pylist()
    body = shown(moments_view(files))
    assert body.map is not None
    listed = body.map.layers[0].measures[0].listed
    assert [rows[one[0]]["cell_id"] for one in listed] == ["r13"]
    (everybody, *_) = body.statistics
    for row, _, low, high in listed:
        assert rows[row]["mean_differs"] == 1
        assert low == rows[row]["mean_simultaneous_low"] > everybody.high
        assert low <= rows[row]["mean_low"] < rows[row]["mean_high"] <= high
    assert body.map.layers[0].measures[1].listed == []


def test_without_privacy_the_page_promises_none() -> None:
    asked = plan(epsilon=None)
    view = moments_view(assembled(ran(ages(), asked), asked))
    assert view.guarantee.endswith("no differential privacy.")
    assert [fact.text for fact in view.chips if fact.term == "Each report"] == ["sent as they are"]


def test_a_seed_is_alarming() -> None:
    asked = plan(statistics=SPREAD[:1])
    files = assembled(ran(ages(), asked), asked, release=replace(FACTS, safe=False, randomness="seed"))
    assert moments_view(files).alarm is not None


def test_the_deviation_is_known_where_the_variance_is() -> None:
    asked = plan(FixedPoint(bits=8), statistics=(Statistic("mean"),))
    assert shown(moments_view(assembled(ran(ages(), asked), asked))).deviation is None


@pytest.mark.parametrize(
    ("weight", "text"),
    [(0.25, "0.25"), (2.0**-8, "2⁻⁸"), (32_768.0, "32,768"), (2.0**20, "2²⁰"), (-4.0, "−4"), (3.0, "3")],
)
def test_place_values(weight: float, text: str) -> None:
    assert place_value(weight) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mean", "Mean"),
        ("moment:2", "2nd moment"),
        ("moment:7", "7th moment"),
        ("geometric_mean", "Geometric mean"),
        ("log_product", "Logarithm of the product"),
    ],
)
def test_statistics_have_titles(name: str, text: str) -> None:
    assert statistic_title(name) == text


def test_quantities_have_titles() -> None:
    assert [quantity_title(one, "age") for one in ("value", "power:3", "log2", "\u202e")] == [
        "age",
        "age to the power 3",
        "the binary logarithm of age",
        "⟨U+202E⟩",
    ]
