"""The one look at the people: what it spends, and where on the map it counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from sfumato.schemas.guarantee import Population
from sfumato.schemas.ranges import Boxes
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, NoisyGrid
from sfumato.transforms.ranges.methods import RangeMethod
from sfumato.transforms.ranges.model import TreeModel
from sfumato.transforms.ranges.ranges_plan import METHODS, Collected, RangesPlan, _grid_from_estimate, build, collect
from tests.conftest import REGION
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import admission_of
from tests.unit.ranges.test_ranges_plan import plan

KEY = RunKey.derive(FixedSecret(b"collect ranges" * 3), {"job": "ranges"})


@dataclass(frozen=True)
class Seen(RangeMethod):
    """Tells what it was given as a grid of one cell, and learns three letters."""

    NAME: ClassVar[str] = "seen"
    TEXT: ClassVar[str] = "for tests"

    def collect(self, people: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        edges = np.array([0, people.side])
        return NoisyGrid(edges, edges, np.array([[spec.users]]), spec.epsilon)

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[Any]:
        return ("a", "b", "c")

    def train(self, training: Any) -> Any:
        return training.upper()


def people(users: int, seed: int = 0) -> ExactCounts:
    return ExactCounts.from_codes(12, seeded_rng(seed).integers(0, 4**12, users).astype(np.uint64))


def counted(crowd: ExactCounts, asked: RangesPlan) -> Collected:
    return collect(crowd, admission_of(crowd, asked, KEY), asked, KEY)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, Seen.NAME, Seen)


def test_a_public_number_of_users_is_planned_with_and_checked_at_a_cost(seen: None) -> None:
    collected = counted(people(100), plan("seen", epsilon=0.7, population=120, population_share=0.2))
    population = collected.population
    assert (collected.spec.users, population.users, population.source) == (120.0, 120.0, "public")
    assert population.epsilon == pytest.approx(0.14)
    assert population.epsilon + collected.spec.epsilon == 0.7  # exactly


def test_the_count_of_users_is_paid_from_epsilon(seen: None) -> None:
    collected = counted(people(100), plan("seen", epsilon=0.7, population_share=0.2))
    population = collected.population
    assert population.source == "noisy"
    assert population.epsilon == pytest.approx(0.14)
    assert population.epsilon + collected.spec.epsilon == 0.7  # exactly
    assert population.noise_stddev == discrete_laplace_stddev(population.epsilon)
    assert isinstance(collected.counts, NoisyGrid)
    assert collected.counts.users[0, 0] == population.users != 100
    again = counted(people(100), plan("seen", epsilon=0.7, population_share=0.2))
    assert again.population == population  # a retry draws nothing anew


@pytest.mark.parametrize("method", ["auto", "grid", "ug"])
def test_a_model_of_nobody_is_one_of_noise(method: str) -> None:
    """The existence of a release may not show whether anybody is in the logs."""
    asked = plan(method, epsilon=0.5, **({"cell_width": 800.0} if method == "grid" else {}))
    assert counted(people(0), asked).counts.users.size > 0


@pytest.mark.parametrize(("method", "own"), [("grid", {"cell_width": 9000.0}), ("ug", {"ug_constant": 12.2})])
def test_methods_count_everybody_where_they_are(method: str, own: dict[str, Any]) -> None:
    """Cells end at the middle lines of the field, so that halves of it have no error but the noise."""
    asked = plan(method, epsilon=10.0, population=5000, **own)
    crowd = ExactCounts.from_codes(
        12, np.append(people(3000).codes, np.full(2000, 5, np.uint64))
    )  # the north-west is crowded
    built = build(counted(crowd, asked), asked, ())
    assert (built.model.method, built.model.epsilon) == (method, 10.0)
    (x, y), zero, half, whole = crowd.xy, np.zeros(1), np.full(1, 2048.0), np.full(1, 4096.0)
    for box, inside in ((Boxes(zero, zero, half, whole), x < 2048), (Boxes(zero, zero, whole, half), y < 2048)):
        answer = built.model.model.answer(box)
        assert answer.stddev[0] < 20
        assert abs(answer.users[0] - crowd.users[inside].sum()) < 6.2 * answer.stddev[0] + 1


def test_a_complete_tree_is_a_grid_in_the_same_places() -> None:
    """Cells by their codes' own order become rows from the north and columns from the west."""
    rng = seeded_rng(4)
    for level in (1, 3, 6):
        codes = rng.integers(0, 4**12, 500).astype(np.uint64)
        counts = np.bincount((codes >> np.uint64(2 * (12 - level))).astype(np.int64), minlength=4**level)
        tree = Tree.uniform(level, level)
        grid = _grid_from_estimate(Estimate(tree, counts.astype(np.float64), np.full(4**level, 7.5)))
        exact = ExactCounts.from_codes(12, codes).on_grid(grid.x_edges, grid.y_edges)
        np.testing.assert_array_equal(grid.users, exact)
        assert (grid.noise_stddev, grid.side) == (7.5, 4096)


def test_north_and_east() -> None:
    grid = plan().field.grid
    corner = ExactCounts.from_codes(12, grid.codes(np.array([REGION.east - 1e-6]), np.array([REGION.north - 1e-6])))
    code = int(corner.codes[0]) >> 20
    counts = np.zeros(16)
    counts[code] = 1
    users = _grid_from_estimate(Estimate(Tree.uniform(2, 2), counts, np.ones(16))).users
    assert np.argwhere(users).tolist() == [[0, 3]]


def test_what_is_trained_reaches_the_model_in_order(seen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Sequence[Any]] = []
    monkeypatch.setattr(
        Seen,
        "model",
        lambda self, counts, spec, trained: given.append(trained) or RangeMethod.model(self, counts, spec, trained),
    )
    collected = counted(people(10), plan("seen", population=10))
    assert list(collected.trainings()) == ["a", "b", "c"]
    built = build(collected, plan("seen", population=10), ["A", "B", "C"])
    assert given == [["A", "B", "C"]]
    assert built.collected is collected


def test_a_tree_answers_as_it_is() -> None:
    tree = Estimate(Tree.uniform(4, 2), np.arange(16.0), np.ones(16))
    collected = Collected(tree, plan("adaptive").collection_spec(120.0, 1.0), None, Population(120.0, "public"))
    assert list(collected.trainings()) == []
    model = build(collected, plan("adaptive", epsilon=0.5), ()).model
    assert isinstance(model.model, TreeModel)
    assert (model.method, model.epsilon) == ("adaptive", 0.5)
