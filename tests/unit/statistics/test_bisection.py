"""Bisection from either side, of numbers, arrays and integers."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.statistics.bisection import bisect, bisect_each, bisect_each_integer, bisect_integers


@pytest.mark.parametrize(("inside", "outside"), [(0.0, 1.0), (1.0, 0.0)])
def test_bracket_holds_the_border(inside: float, outside: float) -> None:
    upwards = inside < outside
    found, beyond = bisect(lambda x: (x < 0.3) if upwards else (x > 0.3), inside, outside, 40)
    assert found == pytest.approx(0.3, abs=1e-11)
    assert beyond == pytest.approx(0.3, abs=1e-11)
    assert (found < 0.3 <= beyond) if upwards else (found > 0.3 >= beyond)


def test_each_bracket_is_its_own() -> None:
    borders = np.array([0.1, 0.5, 0.9])
    inside, outside = bisect_each(lambda x: x < borders, np.zeros(3), np.ones(3), 30)
    np.testing.assert_allclose(inside, borders, atol=1e-8)
    assert (inside < borders).all()
    assert (outside >= borders).all()
    for one, border in zip(inside, borders, strict=True):  # the same steps as of a single bracket
        assert one == bisect(lambda x, border=border: x < border, 0.0, 1.0, 30)[0]


def test_integers_from_either_side() -> None:
    for border in range(1, 20):
        assert bisect_integers(lambda n, border=border: n < border, 0, 20) == border - 1
        assert bisect_integers(lambda n, border=border: n >= border, 20, 0) == border


def test_bisect_each_integer_from_either_side() -> None:
    borders = np.arange(1, 20)
    first, last = np.zeros(19, dtype=np.int64), np.full(19, 20, dtype=np.int64)
    assert (bisect_each_integer(lambda n: n < borders, first, last) == borders - 1).all()
    assert (bisect_each_integer(lambda n: n >= borders, last, first) == borders).all()
