import pickle
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges import methods
from sfumato.transforms.ranges.field_counts import NoisyGrid
from sfumato.transforms.ranges.methods import PlainGrid, SpatialNeural
from sfumato.transforms.ranges.networks.examples import INPUTS
from sfumato.transforms.ranges.networks.local import WIDTH, LocalNetwork, LocalTraining
from sfumato.transforms.ranges.networks.paper import PaperNetworks, PaperTrained, PaperTraining
from tests.unit.ranges.oracle import run_key, spec_of, town

PEOPLE = town(6, 3000)
WANTED = spec_of(6, 3000.0, 0.5)
CELL = 4 * max(WANTED.field.cell_metres)  # metres
WORKLOAD = Boxes(*(np.array([value, value + 1]) for value in (3.0, 5.0, 9.0, 11.0)))


def grid() -> NoisyGrid:
    return SpatialNeural(CELL).collect(PEOPLE, WANTED, run_key(1))


def weights() -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {
        "w1": (INPUTS, WIDTH),
        "w2": (WIDTH, WIDTH),
        "w3": (WIDTH, 2),
        "w4": (WIDTH, 1),
    }
    shapes |= {"b1": (WIDTH,), "b2": (WIDTH,), "b3": (2,), "b4": (1,)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"network": "deep"}, "network"),
        ({"network": ""}, "network"),
        ({"models": 0}, "models"),
        ({"models": 65}, "models"),
        ({"models": 2.5}, "models"),
        ({"training_seed": -1}, "training_seed"),
        ({"training_seed": 2**22}, "training_seed"),
        ({"training_seed": float("nan")}, "training_seed"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        SpatialNeural(CELL, **options)


def test_what_is_collected_is_the_plain_grid() -> None:
    plain = PlainGrid(CELL).collect(PEOPLE, WANTED, run_key(1))
    for network in ("local", "paper"):
        found = SpatialNeural(CELL, network=network).collect(PEOPLE, WANTED, run_key(1))
        for name in ("x_edges", "y_edges", "users"):
            np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
        assert found.noise_stddev == plain.noise_stddev
    assert (SpatialNeural(CELL).collect(PEOPLE, WANTED, run_key(2)).users != plain.users).any()


@pytest.mark.parametrize(("models", "expected"), [(None, {"local": 3, "paper": 8}), (5, {"local": 5, "paper": 5})])
def test_there_is_one_training_a_network_which_can_be_sent_to_a_worker(
    models: int | None, expected: dict[str, int]
) -> None:
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


def test_local_networks_learn_by_seeds_of_their_own_and_by_what_is_public() -> None:
    asked = spec_of(6, 40_000.0, 0.5)
    trainings = [SpatialNeural(CELL, training_seed=seed).trainings(grid(), asked) for seed in (0, 1)]
    seeds = [one.seed for found in trainings for one in found]
    highest = SpatialNeural(CELL, training_seed=2**22 - 1, models=64).trainings(grid(), asked)
    assert max(one.seed for one in highest) < 2**32  # what JAX takes
    assert len(set(seeds)) == 6
    assert seeds == [
        one.seed for seed in (0, 1) for one in SpatialNeural(CELL, training_seed=seed).trainings(grid(), asked)
    ]
    (width, height), first = asked.field.cell_metres, trainings[0][0]
    assert isinstance(first, LocalTraining)
    assert first.users == 40_000.0
    assert first.smoothing == pytest.approx(40.0)  # a thousandth of all
    assert first.queries.low == pytest.approx((1.0 / width, 1.0 / height))
    assert first.queries.high == pytest.approx((2.0 / width, 2.0 / height))
    assert first.queries.workload is None
    few = SpatialNeural(CELL, workload=WORKLOAD).trainings(grid(), spec_of(6, 20.0, 0.5))[0]
    assert isinstance(few, LocalTraining)
    assert few.smoothing == 1.0
    assert few.queries.workload is WORKLOAD


def test_each_training_is_given_to_its_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(methods, "train_local", lambda one, checkpoint: given.append(one) or "local")
    monkeypatch.setattr(methods, "train_paper", lambda one, seed, checkpoint: given.append((one, seed)) or "paper")
    local, paper = (SpatialNeural(CELL, network=network, training_seed=7) for network in ("local", "paper"))
    training = local.trainings(grid(), WANTED)[0]
    assert local.train(training) == "local"
    assert given == [training]
    training = paper.trainings(grid(), WANTED)[1]
    assert paper.train(training) == "paper"
    ((some, seed),) = given[1:]
    assert some is training
    assert seed == 7


def test_models_are_of_the_networks_form() -> None:
    method = SpatialNeural(CELL, models=2)
    found = method.model(grid(), WANTED, [weights(), weights()])
    assert isinstance(found, LocalNetwork)
    assert len(found.networks) == 2
    assert found.queries.low == method.trainings(grid(), WANTED)[0].queries.low
    learned = [PaperTrained(size, 3.0, {}) for size in (1.25, 1.75)]
    paper = SpatialNeural(CELL, network="paper", models=2).model(grid(), WANTED, learned)
    assert isinstance(paper, PaperNetworks)
    assert [one.size for one in paper.networks] == [1.25, 1.75]
