"""Bins of a range: exact at their edges, against a search among all borders."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.item_encoding import NumberBins
from tests.seeds import seeded_rng


@pytest.mark.parametrize("edges", [(), (10.0,), (0.1, 0.2, 0.3), (1e-9, 2e-9, 99.999999), (10 / 3, 20.0, 65.0)])
@pytest.mark.parametrize("bits", [3, 12])
def test_a_value_is_in_the_bin_between_its_borders(bits: int, edges: tuple[float, ...]) -> None:
    bins = NumberBins(0.0, 100.0, bits, edges)
    borders = bins.at(np.arange((1 << bits) + 1))
    assert (np.diff(borders) > 0).all()
    assert set(edges) <= set(borders.tolist())
    rng = seeded_rng(bits)
    ends = np.array([*edges, 0.0, 100.0])
    near = np.concatenate([np.nextafter(ends, -np.inf), ends, np.nextafter(ends, np.inf)])
    values = np.clip(np.concatenate([rng.uniform(0, 100, 5_000), near]), 0, 100)
    found = bins.of(values)
    exact = np.clip(np.searchsorted(borders, values, side="right") - 1, 0, (1 << bits) - 1)
    assert (np.abs(found - exact) <= 1).all()  # a border that is no edge may err by rounding
    for edge in edges:
        assert (found[values < edge] < bins.place(np.array([edge]))[0]).all()
        assert (found[values >= edge] >= bins.place(np.array([edge]))[0]).all()
    assert bins.place(borders) == pytest.approx(np.arange((1 << bits) + 1), abs=1e-6)


def test_each_edge_has_a_bin_on_both_sides() -> None:
    crowded = NumberBins(0.0, 1.0, 3, tuple(0.5 + 1e-9 * number for number in range(7)))
    assert crowded.place(np.array(crowded.edges)).tolist() == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(RequestError, match="raise --bits"):
        NumberBins(0.0, 1.0, 3, tuple(0.5 + 1e-9 * number for number in range(8)))


def test_edges_are_the_inner_ends_of_ranges() -> None:
    ranges = ((0.0, 10.0), (10.0, 20.0), (5.0, 100.0))
    assert NumberBins.of_ranges(0.0, 100.0, 12, ranges).edges == (5.0, 10.0, 20.0)
