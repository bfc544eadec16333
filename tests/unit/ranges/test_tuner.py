import functools
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges.field_counts import CollectionSpec
from sfumato.transforms.ranges.methods import PlainGrid
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
from sfumato.transforms.ranges.width_search import QuerySample, find_label, search_grid
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import town

ExtraTreesRegressor = pytest.importorskip("sklearn.ensemble").ExtraTreesRegressor

REGION, FAR = Region(0, -0.05, 0.1, 0.05), Region(40, -0.05, 40.1, 0.05)
SIZES = Sizes(50.0, 200.0)


def spec_of(users: float = 5000.0, epsilon: float = 0.5, region: Region = REGION, depth: int = 12) -> CollectionSpec:
    return CollectionSpec(Field(Grid(region, depth)), users, epsilon, SIZES)


def label(times: float, gain: float | None, held: float, one: CollectionSpec) -> Label:
    """A best width of so many times the rule's, and a gain of networks."""
    width = times * one.default_width
    if gain is None:
        return Label(one, held, {"grid": width}, {"grid": 0.1})
    return Label(one, held, {"grid": width, "snh": 2 * width}, {"grid": 0.1, "snh": 0.1 * gain})


def learned() -> Tuner:
    """Cells twice as wide at high entropy and half as wide at low; networks are better at little n epsilon."""
    labels = []
    for users in (1e4, 1e5, 1e6):
        for epsilon in (0.1, 0.4):
            gain = 0.8 if users * epsilon < 1e5 else 1.1
            labels.append(label(2.0, gain, 10.0, spec_of(users, epsilon)))
            labels.append(label(0.5, gain, 6.0, spec_of(users, epsilon, FAR)))
    return train(labels, 1)


@functools.cache
def tuner() -> Tuner:
    """The tuner of most tests: it is learned once, and not while tests are collected."""
    return learned()


def test_features_are_the_papers_and_the_sizes() -> None:
    found = features(spec_of(200.0, 0.5), 7.5)
    np.testing.assert_allclose(found[:7], [200, 0.5, 1 / 100, 1 / 10, 7.5, 50, 200])
    assert found[7] == pytest.approx(math.sqrt(math.prod(spec_of().field.metres)))
    assert np.isfinite(features(spec_of(-3.0), 7.5)).all()


def test_forests_are_the_papers() -> None:
    """150 trees of at most 7 levels (Section 6.1.2)."""
    forest = learned().widths["grid"]
    assert len(forest.roots) == 150
    levels, reached = 0, forest.roots
    while (forest.children[reached] != reached[:, None]).any():
        reached = np.unique(forest.children[reached])
        levels += 1
    assert levels <= 7


def test_what_was_learned_is_told_again_by_entropy() -> None:
    one = spec_of(1e5, 0.1)
    assert tuner().width(one, 10.0) == pytest.approx(2 * one.default_width)
    assert tuner().width(one, 6.0) == pytest.approx(one.default_width / 2)
    assert tuner().width(one, 10.0, "snh") == pytest.approx(4 * one.default_width)


def test_entropy_is_that_of_the_place_or_the_mean() -> None:
    assert tuner().entropy(spec_of().field) == 10.0
    assert tuner().entropy(spec_of(region=FAR).field) == 6.0
    moved = Region(0.02, -0.05, 0.12, 0.05)  # 0.08 of 0.12 are the same place
    assert tuner().entropy(spec_of(region=moved).field) == 10.0
    moved = Region(0.05, -0.05, 0.15, 0.05)  # 0.05 of 0.15 are not
    assert tuner().entropy(spec_of(region=moved).field) == 8.0
    assert tuner().width(spec_of(1e5, 0.1, FAR)) == pytest.approx(spec_of(1e5, 0.1, FAR).default_width / 2)


def test_networks_are_chosen_where_they_were_better() -> None:
    assert tuner().choose(spec_of(1e4, 0.1)) == "snh"
    assert tuner().choose(spec_of(1e6, 0.4)) == "grid"
    assert train([label(1.0, None, 5.0, spec_of())], 1).choose(spec_of(1e4, 0.1)) == "grid"


def test_widths_fit_the_region() -> None:
    assert tuner().width(spec_of(1.0, 1e-9), 10.0) == min(spec_of().field.metres)
    assert tuner().width(spec_of(1e12, 1.0), 6.0) == max(spec_of().field.cell_metres)


def test_the_same_labels_and_seed_make_the_same_tuner() -> None:
    again = learned()
    assert again.digest == tuner().digest
    assert pickle.dumps(again) == pickle.dumps(tuner())
    other = train([label(1.0, None, 5.0, spec_of())], 1)
    assert other.digest != train([label(1.0, None, 5.0, spec_of())], 2).digest != tuner().digest
    assert tuner().metadata() == {"format": "sfumato-tuner/2", "digest": tuner().digest}


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "tuner.npz"
    save_tuner(tuner(), str(path))
    opened = open_tuner(str(path))
    assert [one.name for one in tmp_path.iterdir()] == ["tuner.npz"]
    assert opened.width(spec_of(3e4, 0.3)) == tuner().width(spec_of(3e4, 0.3))
    assert opened.choose(spec_of(1e6, 0.4)) == "grid"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04nothing", b"\x80\x04.", b"x\x9c damaged"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tuner.npz"
    path.write_bytes(content)
    with rejects("tuner"):
        open_tuner(str(path))


def test_places_that_cannot_be_read_or_written_are_told(tmp_path: Path) -> None:
    with rejects("tuner"):
        open_tuner(str(tmp_path / "none"))
    with rejects("output"):
        save_tuner(tuner(), str(tmp_path / "no folder" / "tuner.npz"))


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
from tests.rejections import rejects
tuner = open_tuner({str(tmp_path / "tuner.npz")!r})
print(tuner.width(CollectionSpec(Field(Grid(Region(0, -0.05, 0.1, 0.05), 12)), 30000.0, 0.3, Sizes(50.0, 200.0))))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == tuner().width(spec_of(3e4, 0.3))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(RequestError, match=r"needs scikit-learn, .*sfumato\[neural\]"):
        train([label(1.0, None, 5.0, spec_of())], 1)


@pytest.mark.slow
def test_labels_are_the_best_widths_and_gains() -> None:
    people = town(12, 5000)
    one = spec_of()
    made: list[float] = []

    def make(width: float) -> PlainGrid:
        made.append(width)
        return PlainGrid(width)

    found = find_label(people, one, 7.0, {"snh": make}, seeded_rng(1))
    queries = QuerySample.draw(people, one.field, SIZES, 4000, seeded_rng(2))
    tried = search_grid(people, one, queries, [3, 4])
    # Other questions and noise find about the same, as the search's steps are of a quarter.
    assert found.widths["grid"] == pytest.approx(tried.width, rel=0.4)
    assert tried.at(one.default_width) >= tried.errors.min()
    np.testing.assert_allclose(made, np.array([0.8, 1.0, 1.25]) * found.widths["grid"])
    assert found.widths["snh"] in made
    assert found.entropy == 7.0
    # The stand-in at the grid's own width has the grid's error, and so no loss.
    assert found.errors["snh"] <= found.errors["grid"]
    assert found == find_label(people, one, 7.0, {"snh": make}, seeded_rng(1))
    assert found != find_label(people, replace(one, epsilon=0.4), 7.0, {"snh": make}, seeded_rng(1))


@pytest.mark.slow
@pytest.mark.parametrize("first", ["field_counts", "width_search", "tuner", "methods"])
def test_it_does_not_matter_which_module_is_imported_first(first: str) -> None:
    code = f"import sfumato.transforms.ranges.{first}, sfumato.transforms.ranges.ranges_plan"
    subprocess.run([sys.executable, "-c", code], check=True)
