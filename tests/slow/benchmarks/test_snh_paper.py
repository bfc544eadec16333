"""The benchmark of the paper's networks: widths by their ways, and networks that also see the size (SNH+QS)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import snh_paper
from benchmarks.range_queries import SCALED, UNIT
from sfumato.schemas.ranges import Sizes
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.methods import PlainGrid
from sfumato.transforms.ranges.networks.paper import paper_training
from tests.seeds import seeded_rng

pytest.importorskip("optax")


def spec_of(epsilon: float = 0.05, users: float = 200_000.0) -> CollectionSpec:
    return CollectionSpec(SCALED, users, epsilon, Sizes(0.02 * UNIT, 0.0275 * UNIT))


def test_widths_are_those_of_the_rule_and_of_the_uniform_grid() -> None:
    spec = spec_of()
    assert snh_paper.cell_width(replace(snh_paper.BASE, cells=0.5), spec) == pytest.approx(spec.default_width / 2)
    found = snh_paper.cell_width(replace(snh_paper.BASE, width_by="ug"), spec)
    assert found / UNIT == pytest.approx(10 / np.sqrt(200_000 * 0.05 / 10))


def test_networks_that_see_the_size_learn_two_sizes_at_each_place() -> None:
    """Section 6.3.2: the sizes of a network's range, here its quarters, with the labels of squares of that size."""
    generator = seeded_rng(0)
    exact = ExactCounts.from_codes(12, generator.integers(0, 4**12, 5000).astype(np.uint64))
    spec = spec_of(users=5000.0)
    grid = PlainGrid(0.5 * UNIT).collect(exact, spec, snh_paper.KEY)
    [one] = paper_training(grid, spec, 1, snh_paper.workload("starts", exact))
    found = snh_paper.sized(one, grid, spec, 1, exact)
    assert np.unique(found.places[:, 2]).tolist() == [-0.5, 0.5]
    for own, size in ((-0.5, 0.021875), (0.5, 0.025625)):
        narrow = replace(spec, sizes=Sizes(size * UNIT * (1 - 1e-9), size * UNIT * (1 + 1e-9)))
        [single] = paper_training(grid, narrow, 1, snh_paper.workload("starts", exact))
        chosen = found.places[:, 2] == own
        np.testing.assert_allclose(found.labels[chosen], single.labels, rtol=1e-5)
        np.testing.assert_allclose(found.places[chosen, :2], single.places, rtol=1e-5)
