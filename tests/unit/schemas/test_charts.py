"""What pages and pictures of samples accept, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer, readable

CURVE = Curve(np.array([0.0, 1.0]), np.array([0.2, 1.0]), np.array([0.1, 0.9]), np.array([0.3, 1.1]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("value", np.array([1.0, 0.0])),
        ("value", np.array([0.0, math.inf])),
        ("share", np.array([0.2, 1.2])),
        ("share", np.array([0.2])),
        ("low", np.array([0.25, 0.9])),
        ("high", np.array([0.3, 0.95])),
        ("high", np.array([0.3, math.nan])),
    ],
)
def test_curves_without_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"^(value|share|low|high|low, high): must"):
        replace(CURVE, **{name: value})


@pytest.mark.parametrize("values", [(1.1, 1, 0, 2), (math.nan, 1, 0, 2), (0.5, 3, 0, 2), (0.5, math.nan, 0, 2)])
def test_quantiles_without_sense_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"^(share|value): must"):
        Quantile(*values)


@pytest.mark.parametrize(
    "values",
    [
        (1, 1, 5, 1, 3, 7), (2, 1, 5, 1, 3, 7), (0, math.inf, 5, 1, 3, 7), (0, 1, -5, 1, 0, 7),
        (0, 1, 5, math.nan, 3, 7),
        (0, 1, 5, 1, 6, 7), (0, 1, 5, 1, 3, 4), (0, 1, 5, 1, -1, 7), (0, 1, 5, 1, 3, math.inf),
    ],
)  # fmt: skip
def test_ranges_without_sense_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"^(low|users|stddev|users_low|users_high): must"):
        RangeAnswer(*values)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain café 東京", "plain café 東京"),
        ("a\tb\nc\x00", "a␉b␊c␀"),
        ("\u202egnp.exe", "⟨U+202E⟩gnp.exe"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("half\ud800", "half⟨U+D800⟩"),
        (" both  ", "␣both␣␣"),
        ("  ", "␣␣"),
        ("", ""),
        ("<b>&amp;", "<b>&amp;"),  # markup is no matter here: names are only ever text
        ("x" * 500, "x" * 199 + "…"),
    ],
)
def test_names_do_nothing_but_be_read(name: str, shown: str) -> None:
    assert readable(name) == shown
    readable(name).encode()
