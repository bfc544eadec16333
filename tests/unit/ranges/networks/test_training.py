from typing import Any

import numpy as np
import pytest

from sfumato.schemas.errors import DataError
from sfumato.transforms.ranges.networks.training import fit
from tests.seeds import seeded_rng

pytest.importorskip("optax")
RNG = seeded_rng(4)
X = RNG.normal(size=(90, 3)).astype(np.float32)
SLOPES = np.array([1.0, -2.0, 0.5], dtype=np.float32)
Y = X @ SLOPES + 0.25
START = {"slopes": np.zeros(3, np.float32), "offset": np.float32(0)}
SETTINGS = {"epochs": 60, "batch": 20, "learning_rate": 0.05}


def squared(weights, x, y):
    return ((x @ weights["slopes"] + weights["offset"] - y) ** 2).mean()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 20])
@pytest.mark.parametrize("patience", [None, 50])
def test_a_line_is_found(batch: int | None, patience: int | None) -> None:
    found = fit(START, squared, (X, Y), epochs=600, batch=batch, learning_rate=0.05, cosine=True, patience=patience)
    assert isinstance(found["slopes"], np.ndarray)
    np.testing.assert_allclose(found["slopes"], SLOPES, atol=1e-3)
    np.testing.assert_allclose(found["offset"], 0.25, atol=1e-3)


def test_a_full_batch_takes_the_steps_of_adam() -> None:
    """Against Adam as Kingma and Ba have it (Algorithm 1), in double precision."""
    weights, first, second = np.zeros(4), np.zeros(4), np.zeros(4)
    inputs = np.column_stack([X, np.ones(len(X))]).astype(np.float64)
    for step in range(1, 31):
        slope = 2 * inputs.T @ (inputs @ weights - Y) / len(X)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        weights -= 0.05 * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    found = fit(START, squared, (X, Y), epochs=30, batch=None, learning_rate=0.05)
    np.testing.assert_allclose([*found["slopes"], found["offset"]], weights, rtol=1e-4)


def test_observer_sees_last_and_best_parameters() -> None:
    seen = []

    def observe(epoch: int, last: Any, best: Any) -> None:
        seen.append((epoch, float(last["w"][0]), float(best["w"][0])))

    def distance(weights, x):
        return abs(weights["w"] - 2).mean() + 0 * x.mean()

    start, once = {"w": np.array(1.85, np.float32)}, np.zeros(1, np.float32)
    options = {"epochs": 4, "batch": None, "learning_rate": 0.1, "patience": 4}
    best = fit(start, distance, (once,), **options, observe=observe)
    # A step of Adam on a constant slope is of the rate: 1.85, 1.95, 2.05. The loss of an epoch is that before its step.
    assert [epoch for epoch, _, _ in seen] == [1, 2, 3, 4]
    np.testing.assert_allclose([last for _, last, _ in seen[:2]], [1.95, 2.05], atol=1e-3)
    np.testing.assert_allclose([one for _, _, one in seen[:2]], [1.85, 1.95], atol=1e-3)
    assert float(best["w"]) == seen[-1][2] != seen[-1][1]


def test_fit_returns_the_best_and_ends_after_patience() -> None:
    """With steps of 0.1 towards 0 and past it, the loss |w - target| is lowest after a known number of epochs."""

    def distance(weights, x, target):
        return abs(weights["w"] - target).mean() + 0 * x.mean()

    run: list[int] = []
    start = {"w": np.array(1.0, np.float32)}
    target = np.array([0.0], np.float32)
    drift = np.array([9.0], np.float32)  # what is trained for lies beyond what is judged by
    found = fit(
        start,
        distance,
        (target, drift),
        epochs=1000,
        batch=None,
        learning_rate=0.1,
        patience=3,
        validation=(target, np.array([2.0], np.float32)),
        observe=lambda epoch, *_: run.append(epoch),
    )
    np.testing.assert_allclose(found["w"], 2.0, atol=1e-3)  # Adam's steps on a constant slope are of the rate
    assert run[-1] == 13  # ten steps from 1 to 2, and three more


@pytest.mark.slow
@pytest.mark.parametrize("patience", [None, 5])
def test_a_training_that_diverges_is_refused(patience: int | None) -> None:
    with pytest.raises(DataError, match="lower the learning rate"):
        fit(START, squared, (X, Y), **{**SETTINGS, "learning_rate": 1e38}, patience=patience)
