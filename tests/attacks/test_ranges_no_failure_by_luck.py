"""Attacks 5 and 18, for `sfumato ranges build`: a run that is charged and then fails by its noise.

Every method with its defaults is run in memory, from the noisy count of users to the files, for few users and many
keys. A training that diverges does not lose the charge: the other networks answer, or the noisy grid does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.schemas.release import MANIFEST_FILE, MODEL_FILE
from sfumato.transforms.counting.sub_queries import population_and_budget
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges import methods
from sfumato.transforms.ranges.field_counts import ExactCounts
from sfumato.transforms.ranges.methods import SpatialNeural
from sfumato.transforms.ranges.model import GridModel
from sfumato.transforms.ranges.model_file import read_model
from sfumato.transforms.ranges.networks.examples import make_examples
from sfumato.transforms.ranges.networks.local import LocalNetwork, LocalTraining
from sfumato.transforms.ranges.networks.training import DivergedError
from sfumato.transforms.ranges.plan import Built, Collected, RangesPlan, build, collect
from sfumato.transforms.ranges.release import ranges_files
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import admission_of
from tests.unit.ranges.test_plan import plan
from tests.unit.ranges.test_release import FACTS

COUNTING = ("grid",)
ALL = Boxes(*(np.array([at]) for at in (0.0, 0.0, 4096.0, 4096.0)))


def run_key(number: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"no failure by luck"), {"number": number})


def few(users: int, seed: int = 0) -> ExactCounts:
    return ExactCounts.from_codes(12, seeded_rng(seed).integers(0, 4**12, users).astype(np.uint64))


def collected(people: ExactCounts, planned: RangesPlan, key: RunKey) -> Collected:
    return collect(people, admission_of(people, planned, key), planned, key)


def files_of(built: Built, planned: RangesPlan) -> dict[str, Any]:
    """The files, as they are published, and a model that can be read and answers."""
    files = ranges_files(built, planned, FACTS)
    answers = read_model(files[MODEL_FILE], "it").model.answer(ALL)
    assert np.isfinite(answers.users).all()
    assert (answers.stddev > 0).all()
    return dict(json.loads(files[MANIFEST_FILE]))


@pytest.mark.parametrize(("users", "epsilon"), [(50, 0.1), (200, 1.0)])
def test_counting_methods_never_fail(users: int, epsilon: float) -> None:
    for method in COUNTING:
        planned = plan(method, epsilon=epsilon)
        for number in range(12):
            built = build(collected(few(users), planned, run_key(number)), planned, ())
            answers = built.model.model.answer(ALL)
            assert np.isfinite(answers.users).all()
            assert (answers.stddev > 0).all()


@pytest.mark.parametrize("method", COUNTING)
def test_their_files_are_made(method: str) -> None:
    planned = plan(method, epsilon=0.1)
    manifest = files_of(build(collected(few(50), planned, run_key(3)), planned, ()), planned)
    assert manifest["warnings"] == []


@pytest.mark.parametrize("noisy_users", [-10_000.0, 0.0, 1.0])
@pytest.mark.parametrize("method", [*COUNTING, "auto"])
def test_a_count_of_users_far_below_nothing_is_no_failure(method: str, noisy_users: float) -> None:
    """The noise of the count has a mean size of 1,000 users at epsilon 0.1, so it may be anything."""
    planned, people = plan(method, epsilon=0.1), few(50)
    admission = admission_of(people, planned, run_key(1))
    low = type(admission)(noisy_users, 0.0, admission.cost, admission.noise_stddev)
    assert population_and_budget(low, planned.count_parameters)[0].users >= 1
    assert collect(people, low, planned, run_key(1)).counts.users.size > 0


@pytest.mark.parametrize("users", [0, 50])
def test_networks_find_what_to_learn_from_in_any_noise(users: int) -> None:
    planned = plan("auto", epsilon=0.1)
    for number in range(3):
        first, *_ = collected(few(users), planned, run_key(number)).trainings()
        assert isinstance(first, LocalTraining)
        found = make_examples(first.grid, first.users, first.smoothing, first.queries, 1, 500, seeded_rng(number))
        assert len(found.users) > 0
        assert all(np.isfinite(column).all() for column in found)


def diverge(spared: set[int]) -> Callable[..., Any]:
    """A training that diverges, but for the networks of some seeds, whose weights are random."""

    def train(training: LocalTraining) -> dict[str, np.ndarray]:
        if training.seed not in spared:
            raise DivergedError("network: diverged")
        rng = seeded_rng(training.seed)
        shapes = {"w1": (24, 64), "w2": (64, 64), "w3": (64, 2), "w4": (64, 1), "b1": 64, "b2": 64, "b3": 2, "b4": 1}
        return {name: rng.normal(0, 0.01, shape).astype(np.float32) for name, shape in shapes.items()}

    return train


@pytest.mark.parametrize("spared", [set(), {1}])
def test_a_training_that_diverges_does_not_lose_the_charge(spared: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "train_local", diverge(spared))
    planned = plan("snh", epsilon=0.5, models=3)
    counted = collected(few(200), planned, run_key(1))
    assert isinstance(counted.method, SpatialNeural)
    built = build(counted, planned, [counted.method.train(one) for one in counted.trainings()])
    assert isinstance(built.model.model, LocalNetwork if spared else GridModel)
    manifest = files_of(built, planned)
    assert manifest["method"] == ("snh" if spared else "grid")
    (warning,) = manifest["warnings"]
    assert warning.startswith(f"The training of {3 - len(spared)} of the networks diverged; ")
