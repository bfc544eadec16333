"""Numbers are written with the digits that are known."""

from __future__ import annotations

import json
import math

import pytest

from sfumato.schemas.known_digits import about, between, figures, not_negative, with_interval
from sfumato.transforms.report.numbers import column_texts, coordinates, length, percent, plural, tiny
from sfumato.transforms.text_tables import counted
from tests import ROOT

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
        (6.123e18, 4.4e16, "6.1 × 10¹⁸"),
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
    [(319_942, 812, "320,000"), (9_512, 170, "9,500"), (-20, 30, "0"), (12, 0, "12"), (1_000_412, 2_600, "1,000,000")],
)
def test_users_are_rounded_within_their_interval(users: float, stddev: float, text: str) -> None:
    assert about(users, stddev) == text
    assert abs(float(text.replace(",", "")) - max(users, 0)) <= max(1.96 * stddev, 0.5)


@pytest.mark.parametrize("size", [2.0, 0.13 / 64, 1e-5, 0.1 / 1024])
def test_coordinates_tell_cells_apart(size: float) -> None:
    assert coordinates(0.5 * size, 3.0, size) != coordinates(1.5 * size, 3.0, size)
    assert coordinates(1.0, -3.0 + 0.5 * size, size) != coordinates(1.0, -3.0 + 1.5 * size, size)


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
