"""Numbers are written with the digits that are known."""

from __future__ import annotations

import math

import pytest

from sfumato.transforms.report.numbers import (
    about,
    between,
    column_texts,
    figures,
    length,
    percent,
    plural,
    tiny,
    with_interval,
)


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (38.58321, 0.19, "38.58"),
        (38.58321, 0.0019, "38.5832"),
        (38.58321, 0.0, "38.5832"),
        (-12.0, 1.5, "−12.0"),
        (1234567.0, 4500.0, "1,234,600"),
        (5.0, math.nan, "5"),
        (5.0, math.inf, "5"),
        (-0.001, 0.5, "0.00"),
        (0.0, 0.0, "0"),
        (6.1e18, 4.4e16, "6.100 × 10¹⁸"),
        (3.4e-9, 1e-10, "3.40 × 10⁻⁹"),
        (1e300, 0.0, "1.00000 × 10³⁰⁰"),
        (math.nan, 1.0, "unknown"),
        (math.inf, 1.0, "∞"),
        (-math.inf, math.nan, "−∞"),
    ],
)
def test_digits_follow_the_spread(value: float, spread: float, text: str) -> None:
    assert figures(value, spread) == text


@pytest.mark.parametrize(
    ("users", "stddev", "text"),
    [(319_942, 812, "320,000"), (9_512, 170, "9,500"), (-20, 30, "0"), (12, 0, "12"), (1_000_412, 2_600, "1,000,000")],
)
def test_users_are_rounded_within_their_interval(users: float, stddev: float, text: str) -> None:
    assert about(users, stddev) == text
    assert abs(float(text.replace(",", "")) - max(users, 0)) <= max(1.96 * stddev, 0.5)


@pytest.mark.parametrize(
    ("value", "low", "high", "texts"),
    [
        (1.8276, 1.7972, 1.8552, ("1.83", "1.79", "1.86")),
        (41.82, 41.43, 42.69, ("41.8", "41.4", "42.7")),
        (119_950.0, 118_900.0, 121_020.0, ("120,000", "118,900", "121,100")),
        (-0.01, -3.0, 3.0, ("0", "−3", "3")),
        (5.0, 5.0, 5.0, ("5.000000", "5.000000", "5.000000")),
    ],
)
def test_intervals_are_rounded_outward(value: float, low: float, high: float, texts: tuple[str, str, str]) -> None:
    assert with_interval(value, low, high) == texts


def test_other_numbers() -> None:
    assert between(3.9512, 4.0931) == "3.951 to 4.093"
    assert column_texts([0.5, -3.0, 2.25]) == ["0.50", "−3.00", "2.25"]
    assert [percent(one) for one in (0.5, 0.0231, 5e-5, 0.0)] == ["50%", "2.31%", "under 0.01%", "0%"]
    assert [tiny(one) for one in (1e-8, 2.5e-6, 0.01)] == ["10⁻⁸", "2.5 × 10⁻⁶", "0.01"]
    assert [length(one) for one in (0.4, 28.24, 999, 14_460)] == ["40 cm", "28.2 m", "0.999 km", "14.5 km"]
    assert [plural(1, "cell"), plural(2000, "cell"), plural(2, "prefix", "prefixes")] == [
        "1 cell",
        "2,000 cells",
        "2 prefixes",
    ]
