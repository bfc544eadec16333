"""Methods of range queries, what they learn, and the widths of their cells."""

from __future__ import annotations

import functools
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes, Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges import methods
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, NoisyGrid
from sfumato.transforms.ranges.methods import (
    GRID_FROM_USERS_EPSILON,
    TREE_FROM_CELLS,
    Automatic,
    PlainGrid,
    SpatialNeural,
)
from sfumato.transforms.ranges.networks.local import LocalTraining
from sfumato.transforms.ranges.networks.paper import PaperTraining
from sfumato.transforms.ranges.tuner import (
    FEATURES,
    TREE_DEPTH,
    TREES,
    Forest,
    Label,
    Tuner,
    features,
    open_tuner,
    save_tuner,
    train,
)
from sfumato.transforms.ranges.width_search import (
    QuerySample,
    entropy,
    mean_relative_error,
    search_width,
)
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import image, overlap, people_at, run_key, spec_of, town

MANY = CollectionSpec(
    Field(Grid(Region(0, -0.02, 0.04, 0.02), 10)), 2 * GRID_FROM_USERS_EPSILON, 1.0, Sizes(100.0, 400.0)
)
FEW = replace(MANY, users=3000.0)


def test_the_border_is_at_users_times_epsilon() -> None:
    assert Automatic().chosen(MANY) == PlainGrid(MANY.default_width)
    assert Automatic().chosen(FEW) == SpatialNeural(FEW.default_width)
    assert isinstance(Automatic().chosen(replace(MANY, users=GRID_FROM_USERS_EPSILON)), PlainGrid)
    assert isinstance(Automatic().chosen(replace(MANY, users=GRID_FROM_USERS_EPSILON * 0.999)), SpatialNeural)
    assert isinstance(Automatic().chosen(replace(MANY, cost=0.01)), SpatialNeural)


def test_a_tuner_chooses_the_width() -> None:
    tuned, width = tuner(), tuner_spec().default_width
    assert Automatic(tuner=tuned).chosen(tuner_spec()) == SpatialNeural(tuned.width(tuner_spec()))
    assert Automatic(3 * width, tuner=tuned).chosen(tuner_spec()) == SpatialNeural(3 * width)


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


FEW_PEOPLE = town(6, 3000)
WANTED = spec_of(6, 3000.0, 0.5)
CELL = 4 * max(WANTED.field.cell_metres)  # metres
WORKLOAD = Boxes(*(np.array([value, value + 1]) for value in (3.0, 5.0, 9.0, 11.0)))


def grid() -> NoisyGrid:
    return SpatialNeural(CELL).collect(FEW_PEOPLE, WANTED, run_key(1))


def test_what_is_collected_is_the_plain_grid() -> None:
    plain = PlainGrid(CELL).collect(FEW_PEOPLE, WANTED, run_key(1))
    for network in ("local", "paper"):
        found = SpatialNeural(CELL, network=network).collect(FEW_PEOPLE, WANTED, run_key(1))
        for name in ("x_edges", "y_edges", "users"):
            np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
        assert found.noise_stddev == plain.noise_stddev
    assert (SpatialNeural(CELL).collect(FEW_PEOPLE, WANTED, run_key(2)).users != plain.users).any()


@pytest.mark.parametrize(("models", "expected"), [(None, {"local": 1, "paper": 8}), (5, {"local": 5, "paper": 5})])
def test_each_network_has_one_training_that_pickles(models: int | None, expected: dict[str, int]) -> None:
    for network, kind in (("local", LocalTraining), ("paper", PaperTraining)):
        method = SpatialNeural(CELL, network=network, models=models, workload=WORKLOAD)
        trainings = method.trainings(grid(), WANTED)
        assert len(trainings) == expected[network]
        for one in trainings:
            assert isinstance(one, kind)
            assert type(pickle.loads(pickle.dumps(one))) is kind
        assert pickle.loads(pickle.dumps(method)).network == network
    sizes = [one.size for one in SpatialNeural(CELL, network="paper", models=4).trainings(grid(), WANTED)]
    np.testing.assert_allclose(sizes, WANTED.sizes.spread(4))


def test_each_training_is_given_to_its_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(methods, "train_local", lambda one: given.append(one) or "local")
    monkeypatch.setattr(methods, "train_paper", lambda one, seed: given.append((one, seed)) or "paper")
    local, paper = (SpatialNeural(CELL, network=network, training_seed=7) for network in ("local", "paper"))
    training = local.trainings(grid(), WANTED)[0]
    assert local.train(training) == "local"
    assert given == [training]
    training = paper.trainings(grid(), WANTED)[1]
    assert paper.train(training) == "paper"
    ((some, seed),) = given[1:]
    assert some is training
    assert seed == 7


FIELD = Field(Grid(Region(0, -0.03, 0.06, 0.03), 10))  # base cells of 6.5 m
LARGE_TOWN = town(10, 5000)


def test_questions_are_around_users_and_their_truth_is_exact() -> None:
    sample = QuerySample.draw(LARGE_TOWN, FIELD, Sizes(100.0, 300.0), 200, seeded_rng(1))
    base, (width, height) = image(LARGE_TOWN), FIELD.cell_metres
    rows, columns = np.nonzero(base)
    edges = (getattr(sample.boxes, one) for one in ("x0", "y0", "x1", "y1"))
    for x0, y0, x1, y1, truth in zip(*edges, sample.truth, strict=True):
        brute = sum(
            base[y, x] * overlap(x0, x1, x, x + 1) * overlap(y0, y1, y, y + 1)
            for y, x in zip(rows, columns, strict=True)
            if x0 - 1 < x < x1 and y0 - 1 < y < y1
        )
        assert truth == pytest.approx(brute, abs=1e-6)
        assert 0 <= x0 < x1 <= 1024
        if x0 > 0 and x1 < 1024 and y0 > 0 and y1 < 1024:
            assert 100 <= (x1 - x0) * width <= 300
            assert (x1 - x0) * width == pytest.approx((y1 - y0) * height)
            assert base[int((y0 + y1) / 2), int((x0 + x1) / 2)] > 0


def test_small_truths_count_as_psi() -> None:
    none = Boxes(*(np.zeros(2) for _ in range(4)))
    sample = QuerySample(none, np.array([0.0, 50.0]))
    assert sample.error(np.array([3.0, 40.0]), 10_000) == pytest.approx((3 / 10 + 10 / 50) / 2)


def test_entropy_is_of_512_by_512_cells() -> None:
    at = np.arange(0, 4096, 8)
    assert entropy(people_at(12, at, at)) == pytest.approx(np.log(512))
    assert entropy(people_at(12, at % 8, at % 8)) == 0.0
    users = np.array([3, 1])
    assert entropy(ExactCounts(9, np.array([0, 9], np.uint64), users)) == pytest.approx(
        -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    )


def test_the_search_finds_the_bottom_wherever_it_starts() -> None:
    """Of a parabola in logarithms it is found exactly, also far from the start."""
    for best in (3.0, 40.0, 700.0):
        found = search_width(
            lambda width, best=best: float(np.exp((np.log(width / best)) ** 2)), 50.0, 1.0, 1e4, 1.3, 3
        )
        assert found.width == pytest.approx(best, rel=1e-6)
        assert found.at(best * 1000) == found.errors[-1]
        assert (np.diff(found.widths) > 0).all()


def test_errors_are_of_the_method_and_its_seeds() -> None:
    spec = CollectionSpec(FIELD, 5000.0, 1.0, Sizes(100.0, 300.0))
    sample = QuerySample.draw(LARGE_TOWN, FIELD, spec.sizes, 500, seeded_rng(1))
    one, again, other = (mean_relative_error(PlainGrid(100.0), LARGE_TOWN, spec, sample, [seed]) for seed in (1, 1, 2))
    assert one == again != other
    assert mean_relative_error(PlainGrid(100.0), LARGE_TOWN, spec, sample, [1, 2]) == pytest.approx((one + other) / 2)
    assert mean_relative_error(PlainGrid(10.0), LARGE_TOWN, spec, sample, [1]) > one  # noise
    assert mean_relative_error(PlainGrid(3000.0), LARGE_TOWN, spec, sample, [1]) > one  # users unevenly spread


ExtraTreesRegressor = pytest.importorskip("sklearn.ensemble").ExtraTreesRegressor

REGION, FAR = Region(0, -0.05, 0.1, 0.05), Region(40, -0.05, 40.1, 0.05)
SIZES = Sizes(50.0, 200.0)


def tuner_spec(users: float = 5000.0, epsilon: float = 0.5, region: Region = REGION, depth: int = 12) -> CollectionSpec:
    return CollectionSpec(Field(Grid(region, depth)), users, epsilon, SIZES)


def learned() -> Tuner:
    """Cells twice as wide at high entropy and half as wide at low."""
    labels = []
    for users in (1e4, 1e5, 1e6):
        for epsilon in (0.1, 0.4):
            for times, held, region in ((2.0, 10.0, REGION), (0.5, 6.0, FAR)):
                spec = tuner_spec(users, epsilon, region)
                labels.append(Label(spec, held, times * spec.default_width))
    return train(labels, 1)


@functools.cache
def tuner() -> Tuner:
    """The tuner of most tests: it is learned once, and not while tests are collected."""
    return learned()


def test_features_are_the_papers_and_the_sizes() -> None:
    found = features(tuner_spec(200.0, 0.5), 7.5)
    np.testing.assert_allclose(found[:7], [200, 0.5, 1 / 100, 1 / 10, 7.5, 50, 200])
    assert found[7] == pytest.approx(math.sqrt(math.prod(tuner_spec().field.metres)))
    assert np.isfinite(features(tuner_spec(-3.0), 7.5)).all()


def test_forests_are_the_papers() -> None:
    """150 trees of at most 7 levels (Section 6.1.2)."""
    forest = learned().forest
    assert len(forest.roots) == 150
    levels, reached = 0, forest.roots
    while (forest.children[reached] != reached[:, None]).any():
        reached = np.unique(forest.children[reached])
        levels += 1
    assert levels <= 7


def test_entropy_is_that_of_the_place_or_the_mean() -> None:
    assert tuner().entropy(tuner_spec().field) == 10.0
    assert tuner().entropy(tuner_spec(region=FAR).field) == 6.0
    moved = Region(0.02, -0.05, 0.12, 0.05)  # 0.08 of 0.12 are the same place
    assert tuner().entropy(tuner_spec(region=moved).field) == 10.0
    moved = Region(0.05, -0.05, 0.15, 0.05)  # 0.05 of 0.15 are not
    assert tuner().entropy(tuner_spec(region=moved).field) == 8.0
    assert tuner().width(tuner_spec(1e5, 0.1, FAR)) == pytest.approx(tuner_spec(1e5, 0.1, FAR).default_width / 2)


def test_the_same_labels_and_seed_make_the_same_tuner() -> None:
    again = learned()
    assert again.digest == tuner().digest
    assert pickle.dumps(again) == pickle.dumps(tuner())
    one = [Label(tuner_spec(), 5.0, 40.0)]
    assert train(one, 1).digest != train(one, 2).digest != tuner().digest
    assert tuner().metadata() == {"format": "sfumato-tuner/3", "digest": tuner().digest}


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "tuner.npz"
    save_tuner(tuner(), str(path))
    opened = open_tuner(str(path))
    assert [one.name for one in tmp_path.iterdir()] == ["tuner.npz"]
    assert opened.width(tuner_spec(3e4, 0.3)) == tuner().width(tuner_spec(3e4, 0.3))


def test_trees_predict_exactly_what_scikit_learn_does() -> None:
    """On 500 points, some of them on the borders that the trees have: equal, not only near."""
    rng = seeded_rng(5)
    inputs = rng.lognormal(0, 3, (120, FEATURES)).astype(np.float32).astype(np.float64)
    trees = ExtraTreesRegressor(TREES, max_depth=TREE_DEPTH, random_state=1).fit(inputs, rng.normal(size=120))
    forest = Forest.from_sklearn(trees.estimators_)
    points = rng.lognormal(0, 3, (500, FEATURES))
    inner = np.nonzero(forest.children[:, 0] != np.arange(len(forest.value)))[0][: len(points) // 2]
    points[np.arange(len(inner)), forest.feature[inner]] = forest.threshold[inner]
    assert [forest.predict(one) for one in points] == trees.predict(points).tolist()


@pytest.mark.slow
def test_a_tuner_is_opened_and_used_without_scikit_learn(tmp_path: Path) -> None:
    save_tuner(tuner(), str(tmp_path / "tuner.npz"))
    code = f"""import sys
for name in ('sklearn', 'joblib', 'jax'): sys.modules[name] = None
from sfumato.transforms.ranges.tuner import open_tuner
from sfumato.transforms.ranges.field_counts import CollectionSpec
from sfumato.schemas.ranges import Field, Sizes
from sfumato.schemas.region import Grid, Region
tuner = open_tuner({str(tmp_path / "tuner.npz")!r})
print(tuner.width(CollectionSpec(Field(Grid(Region(0, -0.05, 0.1, 0.05), 12)), 30000.0, 0.3, Sizes(50.0, 200.0))))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == tuner().width(tuner_spec(3e4, 0.3))
