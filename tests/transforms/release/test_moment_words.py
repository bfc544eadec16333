"""How moments are written: digits by the spread, place values, the guarantee."""

from __future__ import annotations

import math

import pytest

from sfumato.transforms.release.moment_words import (
    figures,
    guarantee,
    place_value,
    quantity_name,
    quantity_title,
    statistic_title,
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
    ("weight", "text"),
    [
        (0.25, "0.25"), (1.0, "1"), (32768.0, "32,768"), (-2048.0, "−2,048"), (2.0**17, "2¹⁷"), (-(2.0**51), "−2⁵¹"),
        (2.0**-10, "2⁻¹⁰"), (3.0, "3"), (1.5e6, "1,500,000"), (math.nan, "?"), (0.0, "0"),
    ],
)  # fmt: skip
def test_place_values_are_short(weight: float, text: str) -> None:
    assert place_value(weight) == text


def test_names_are_read_and_nothing_else() -> None:
    assert [statistic_title(name) for name in ("mean", "moment:2", "moment:5", "log_product")] == [
        "Mean",
        "2nd moment",
        "5th moment",
        "Logarithm of the product",
    ]
    assert statistic_title("") == ""
    assert quantity_title("square", "age") == "the squared distance of age from its mean"
    assert quantity_title("power:3", "age") == "age to the power 3"
    assert (quantity_name("power:3"), quantity_name("value")) == ("Power 3", "Value")
    assert "\u202e" not in statistic_title("\u202e") + quantity_title("\u202e", "") + quantity_name("\u202e")


def test_the_guarantee_never_promises_what_was_not_given() -> None:
    assert guarantee(2.0, 1) == "Each client gave one bit, randomised with ε = 2: local differential privacy."
    assert guarantee(2.0, 3) == "Each client gave 3 bits, randomised with ε = 2 in all: local differential privacy."
    assert guarantee(None, 1) == "Each client gave one bit, as it is: no differential privacy."
    assert guarantee(None, 2) == "Each client gave 2 bits, as they are: no differential privacy."
