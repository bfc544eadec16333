from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges import methods
from sfumato.transforms.ranges.field_counts import CollectionSpec
from sfumato.transforms.ranges.methods import (
    GRID_FROM_USERS_EPSILON,
    TREE_FROM_CELLS,
    Automatic,
    PlainGrid,
    SpatialNeural,
)
from sfumato.transforms.ranges.model import GridModel
from sfumato.transforms.ranges.tuner import Tuner
from tests.unit.ranges.oracle import run_key, town

PEOPLE = town(10, 3000)
MANY = CollectionSpec(
    Field(Grid(Region(0, -0.02, 0.04, 0.02), 10)), 2 * GRID_FROM_USERS_EPSILON, 1.0, Sizes(100.0, 400.0)
)
FEW = replace(MANY, users=3000.0)


@dataclass
class Told:
    """What a tuner says."""

    method: str

    def choose(self, spec: CollectionSpec) -> str:
        return self.method

    def width(self, spec: CollectionSpec, method: str) -> float:
        return {"snh": 70.0, "grid": 50.0}[method]


def told(method: str) -> Tuner:
    return cast(Tuner, Told(method))


def test_the_border_is_at_users_times_epsilon() -> None:
    assert Automatic().chosen(MANY) == PlainGrid(MANY.default_width)
    assert Automatic().chosen(FEW) == SpatialNeural(FEW.default_width)
    assert isinstance(Automatic().chosen(replace(MANY, users=GRID_FROM_USERS_EPSILON)), PlainGrid)
    assert isinstance(Automatic().chosen(replace(MANY, users=GRID_FROM_USERS_EPSILON * 0.999)), SpatialNeural)
    assert isinstance(Automatic().chosen(replace(MANY, epsilon=0.01)), SpatialNeural)


def test_a_tuner_decides_where_it_is_given() -> None:
    assert Automatic(tuner=told("snh")).chosen(MANY) == SpatialNeural(70.0)
    assert Automatic(tuner=told("grid")).chosen(FEW) == PlainGrid(50.0)


def test_a_width_that_is_given_is_used() -> None:
    assert Automatic(cell_width=120.0).chosen(MANY) == PlainGrid(120.0)
    assert Automatic(cell_width=120.0, tuner=told("snh")).chosen(MANY) == SpatialNeural(120.0)


def test_a_tree_is_preferred_for_squares_of_many_cells() -> None:
    """A square of so many cells of the rule's width, or more, as long as there is too much noise for the grid."""
    spec = replace(FEW, users=100_000.0)
    width = spec.default_width  # which grows with the root of the sizes
    large = Sizes(*(TREE_FROM_CELLS**2 * width**2 / 200.0 * factor for factor in (0.51, 2.0)))
    span = np.sqrt(large.low * large.high) / replace(spec, sizes=large).default_width
    assert span == pytest.approx(TREE_FROM_CELLS, rel=0.01)
    assert span >= TREE_FROM_CELLS
    assert Automatic.prefers_tree(replace(spec, sizes=large))
    assert not Automatic.prefers_tree(replace(spec, sizes=Sizes(0.95 * large.low, large.high)))
    assert not Automatic.prefers_tree(replace(spec, sizes=large, users=GRID_FROM_USERS_EPSILON))
    # Squares of many cells, but of less or more than a hundredth of the region, which is 4,448 m wide.
    small = replace(spec, sizes=Sizes(43.0, 45.0), users=0.99 * GRID_FROM_USERS_EPSILON)
    assert TREE_FROM_CELLS * small.default_width < 44
    assert not Automatic.prefers_tree(small)
    assert Automatic.prefers_tree(replace(small, sizes=Sizes(45.0, 47.0)))


def test_options_reach_the_networks() -> None:
    assert Automatic(models=2).chosen(FEW) == SpatialNeural(FEW.default_width, models=2)
    with pytest.raises(RequestError, match="models"):
        Automatic(models=0)


def test_the_grid_needs_no_training() -> None:
    auto = Automatic().chosen(MANY)
    counts = auto.collect(PEOPLE, MANY, run_key(1))
    same = PlainGrid(MANY.default_width).collect(PEOPLE, MANY, run_key(1))
    np.testing.assert_array_equal(counts.users, same.users)
    assert auto.trainings(counts, MANY) == ()
    assert isinstance(auto.model(counts, MANY, ()), GridModel)


def test_networks_are_trained_and_put_together_as_those_of_snh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(methods, "train_local", lambda training, checkpoint: ("trained", training.seed, checkpoint))
    monkeypatch.setattr(SpatialNeural, "model", lambda self, counts, spec, trained: (self, list(trained)))
    auto = Automatic(models=2, checkpoints=str(tmp_path / "saved")).chosen(FEW)
    counts = auto.collect(PEOPLE, FEW, run_key(1))
    trainings = auto.trainings(counts, FEW)
    assert len(trainings) == 2
    trained = [auto.train(one) for one in trainings]
    saved = [str(tmp_path / "saved" / f"local-{number}.npz") for number in range(2)]
    assert auto.model(counts, FEW, trained) == (auto, [("trained", 0, saved[0]), ("trained", 1, saved[1])])
