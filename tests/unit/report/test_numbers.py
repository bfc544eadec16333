"""Numbers are written with the digits that are known, on pages, of nights and in the terminal."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from datetime import date, timedelta

import numpy as np
import pytest

from sfumato.schemas.known_digits import NOISE_Z, about, between, figures, not_negative, with_interval
from sfumato.schemas.rectangle import Region
from sfumato.schemas.region import Grid, ground_metres
from sfumato.schemas.timeline import PlaceChange
from sfumato.schemas.tree import node_positions
from sfumato.schemas.views.map_views import Basemap, Place, Zone
from sfumato.transforms.observability.logs import COUNTED_USERS, FEW_USERS, SUB_QUERY
from sfumato.transforms.observability.text_tables import counted
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.report.count_measures import LISTED, busiest_text, cell_boxes, distinct_places
from sfumato.transforms.report.numbers import changes_table, column_texts, length, percent, plural, rests_sentence, tiny
from sfumato.transforms.report.place_names import PlaceNames
from tests import ROOT
from tests.seeds import seeded_rng

# The pages' script has the same rules, and tests them against the same file.
EXAMPLES = json.loads((ROOT / "web/test/numbers.json").read_text())


@pytest.mark.parametrize(("value", "stddev", "text"), EXAMPLES["values"])
def test_digits_follow_the_standard_error(value: float, stddev: float, text: str) -> None:
    assert figures(value, stddev) == text


@pytest.mark.parametrize(
    ("value", "stddev", "text"),
    [
        (38.58321, 0.0, "38.5832"),
        (5.0, math.nan, "5"),
        (5.0, math.inf, "5"),
        (0.0, 0.0, "0"),
        (6.123e18, 4.4e16, "6.12 × 10¹⁸"),
        (3.41e-9, 1e-10, "3.4 × 10⁻⁹"),
        (1e300, 0.0, "1.00000 × 10³⁰⁰"),
        (math.nan, 1.0, "unknown"),
        (math.inf, 1.0, "∞"),
        (-math.inf, math.nan, "−∞"),
    ],
)
def test_numbers_of_any_size_are_written(value: float, stddev: float, text: str) -> None:
    assert figures(value, stddev) == text


@pytest.mark.parametrize(("value", "low", "high", "text", "least", "most"), EXAMPLES["intervals"])
def test_intervals_are_rounded_outward(value: float, low: float, high: float, text: str, least: str, most: str) -> None:
    assert with_interval(value, low, high) == (text, least, most)
    assert between(low, high) == f"{least} to {most}"


@pytest.mark.parametrize(("users", "stddev", "text"), EXAMPLES["counted"])
def test_numbers_of_users_state_their_margin(users: float, stddev: float, text: str) -> None:
    assert counted(users, stddev) == text


@pytest.mark.parametrize("row", EXAMPLES["not_negative"])
def test_negative_numbers_of_users_become_zero(row: list[float]) -> None:
    assert not_negative(*row[:3]) == tuple(row[3:])


@pytest.mark.parametrize(
    ("users", "stddev", "text"),
    [(319_942, 812, "319,900"), (9_512, 170, "9,500"), (-20, 30, "0"), (12, 0, "12"), (1_000_412, 2_600, "1,000,000")],
)
def test_users_are_rounded_within_their_interval(users: float, stddev: float, text: str) -> None:
    assert about(users, stddev) == text
    assert abs(float(text.replace(",", "")) - max(users, 0)) <= max(1.96 * stddev, 0.5)


def test_other_numbers() -> None:
    assert column_texts([0.5, -3.0, 2.25]) == ["0.50", "−3.00", "2.25"]
    assert [percent(one) for one in (0.5, 0.0231, 5e-5, 0.0)] == ["50%", "2.31%", "under 0.01%", "0%"]
    assert [tiny(one) for one in (1e-8, 2.5e-6, 0.01)] == ["10⁻⁸", "2.5 × 10⁻⁶", "0.01"]
    assert [length(one) for one in (0.4, 28.24, 999, 14_460)] == ["40 cm", "28.2 m", "0.999 km", "14.5 km"]
    assert [plural(1, "cell"), plural(2000, "cell"), plural(2, "prefix", "prefixes")] == [
        "1 cell",
        "2,000 cells",
        "2 prefixes",
    ]


@pytest.mark.parametrize("seed", range(4))
def test_nights_and_missing_nights_add_up_to_the_span(seed: int) -> None:
    rng = seeded_rng(seed)
    first = date(2026, 1, 1)
    is_there = rng.random(60) < 0.9
    is_there[[0, -1]] = True
    rests_on, start = [], None
    for number in range(61):
        if number < 60 and is_there[number]:
            start = number if start is None else start
        elif start is not None:
            rests_on.append(f"{first + timedelta(start)}:{first + timedelta(number - 1)}")
            start = None
    text = rests_sentence(rests_on)
    missing = [first + timedelta(number) for number in range(60) if not is_there[number]]
    assert f"{60 - len(missing)} days" in text
    if len(missing) > 4:
        assert f"without {len(missing)} days between them." in text
    else:
        assert all(f"{day.day} {day:%B}" in text.partition("without")[2] for day in missing)


def test_places_that_differ_most_come_first_with_known_digits() -> None:
    changes = [PlaceChange(("r1",), 310.0, 120.0, 500.0, 640.0), PlaceChange(("r0213",), 2100.0, 1500.0, 2700.0, 150.0)]
    assert changes_table(changes).rows == [
        ["r0213", "2,100", "1,500", "2,700", "150"],
        ["r1", "310", "120", "500", "640"],
    ]


def test_users_have_a_margin_and_are_never_negative(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sfumato.progress"):
        COUNTED_USERS.emit(users=1_000_130.0, noise_stddev=141.4)
        SUB_QUERY.emit(sub_query=1, entries=16, cost="epsilon 1", remaining=0.0, noise_stddev=10.0)
        FEW_USERS.emit(users=-196.0, noise_stddev=141.4, rows="logs", check="the columns", advice="")
    many, noise, few = caplog.messages
    assert "1,000,100 users (± 300, 95%)" in many
    assert "0 users (at most 300, 95%)" in few
    assert "-196" not in few
    assert noise.endswith("noise ± 21 users (95%)")
    assert [vars(record)["fields"].get("users") for record in caplog.records] == [1_000_130.0, None, -196.0]


@pytest.mark.parametrize("epsilon", [0.001, 0.01, 0.03, 0.1])
def test_noise_z_holds_laplace_noise_with_95_percent(epsilon: float) -> None:
    """Exactly, by the distribution: 1.96 deviations would hold 93.7%. Integers lose up to half a step at each end."""
    decay = math.exp(-epsilon)
    held = 1 - 2 * decay ** (math.floor(NOISE_Z * LAPLACE.stddev(epsilon)) + 1) / (1 + decay)
    assert 0.947 < held < 0.952


def test_places_have_the_names_of_the_geography() -> None:
    ring = [(3.0, 1.0), (3.1, 1.0), (3.1, 1.1), (3.0, 1.1), (3.0, 1.0)]
    hole = [(3.04, 1.04), (3.06, 1.04), (3.06, 1.06), (3.04, 1.06), (3.04, 1.04)]
    places = [Place(name="Harbour", longitude=3.02, latitude=1.02), Place(name="Mill", longitude=3.09, latitude=1.09)]
    names = PlaceNames(Basemap(source="", zones=[Zone(name="Old Town", rings=[ring, hole])], places=places))
    assert names.of(1.0201, 3.0201, 0.01) == "Old Town, near Harbour (1.02, 3.02)"
    assert names.of(1.0201, 3.0291, 0.01) == "Old Town, 1 km east of Harbour (1.02, 3.03)"
    assert names.of(1.0501, 3.0501, 0.01).startswith("4.7 km north-east of Harbour")  # in the hole
    assert names.of(1.0801, 3.2, 0.01).startswith("12 km east of Mill")
    assert PlaceNames(None).of(1.0201, 3.0201, 0.01) == "1.02, 3.02"


def test_distinct_places_keeps_the_busiest_cell_of_each() -> None:
    """Cell by cell: kept is what no kept cell before it in the list is closer to than a fortieth of the longer side."""
    rng = seeded_rng(31)
    for sides in ((8.0, 5.0), (1.0, 3.0)):
        west, south = rng.uniform(0, sides, (300, 2)).T
        boxes = np.stack([west, south, west + rng.uniform(0, 0.2, 300), south + rng.uniform(0, 0.2, 300)], axis=1)
        rows = rng.permutation(300)[:250]
        apart = (boxes[:, 2:].max(axis=0) - boxes[:, :2].min(axis=0)).max() / 40
        kept: list[int] = []
        for row in rows.tolist():
            w, s, e, n = boxes[row]
            others = [boxes[one] for one in kept]
            kept += [row] * all(max(o[0] - e, w - o[2], o[1] - n, s - o[3]) >= apart for o in others)
        found, note = distinct_places(rows, boxes)
        assert found.tolist() == kept[:LISTED]
        assert "left out" in note
    assert distinct_places(rows, None)[0].tolist() == rows[:LISTED].tolist()
    assert distinct_places(rows[:0], boxes) == (pytest.approx([]), "")
    assert distinct_places(np.arange(2), np.array([[0.0, 0, 1, 1], [9, 9, 10, 10]]))[1] == ""


def test_cell_boxes_are_those_of_the_grid_in_metres() -> None:
    grid = Grid(Region(3.0, 1.0, 3.2, 1.1), 3)
    nodes = np.array([1, 7, 70, 127], np.uint64)
    level, x, y = node_positions(nodes)
    wide, tall = ground_metres(grid.region)
    west, south, east, north = grid.bounds(x, y, level)
    expected = [(west - 3) / 0.2 * wide, (south - 1) / 0.1 * tall, (east - 3) / 0.2 * wide, (north - 1) / 0.1 * tall]
    np.testing.assert_allclose(cell_boxes(nodes, grid.region), np.stack(expected, axis=1), atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_headline_names_zones_that_are_busiest_for_sure(seed: int) -> None:
    """Every number within the intervals has the named zones first, and no fewer zones could have been named."""
    rng = seeded_rng(seed)
    number = int(rng.integers(1, 7))
    count = rng.integers(0, 60, number).astype(float)
    least, most, hidden = (
        count - rng.integers(0, 9, number),
        count + rng.integers(0, 9, number),
        float(rng.integers(30)),
    )
    text = busiest_text([f"z{i}z" for i in range(number)], count, least, most, "users", hidden)
    sure = [
        {*chosen}
        for size in range(1, min(4, number))
        for chosen in itertools.combinations(range(number), size)
        if least[[*chosen]].min() > max(hidden, *np.delete(most, chosen))
    ]
    named = set() if text is None else {int(i) for i in re.findall(r"z(\d)z", text)}
    assert named == (min(sure, key=len) if sure else set())


def test_zones_with_numbers_for_names_are_called_zones() -> None:
    users = np.array([900.0, 20.0])
    text = busiest_text(["17", "18"], users, users - 10, users + 10, "users", 0)
    assert text == "Zone 17 has the highest count of 2 zones: about 900 users (890 to 910, 95%)"
