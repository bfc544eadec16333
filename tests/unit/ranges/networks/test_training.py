from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.errors import DataError, RequestError
from sfumato.transforms.ranges.networks import training
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


def assert_same(one: dict, other: dict) -> None:
    for name in START:
        np.testing.assert_array_equal(one[name], other[name])


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


def test_fit_returns_the_best_and_ends_after_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps of 0.1 towards 0 and past it, the loss |w - target| is lowest after a known number of epochs."""

    def distance(weights, x, target):
        return abs(weights["w"] - target).mean() + 0 * x.mean()

    run = []
    monkeypatch.setattr(training, "_save", lambda *state: run.append(state[2]))
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
        checkpoint="not written",
    )
    np.testing.assert_allclose(found["w"], 2.0, atol=1e-3)  # Adam's steps on a constant slope are of the rate
    assert run == [13]  # ten steps from 1 to 2, and three more


@pytest.mark.slow
def test_an_interrupted_training_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**SETTINGS, "cosine": True, "patience": 30, "validation": (X[:30], Y[:30]), "seed": 3}
    whole = fit(START, squared, (X, Y), **options)
    path = tmp_path / "state.npz"
    save, saves = training._save, []

    def save_and_die(*state) -> None:
        save(*state)
        saves.append(state[2])
        if len(saves) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(training, "_save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        fit(START, squared, (X, Y), **options, checkpoint=str(path))
    resumed = fit(START, squared, (X, Y), **options, checkpoint=str(path))
    assert saves[7] == 8  # not from the start again
    assert_same(whole, resumed)
    assert_same(whole, fit(START, squared, (X, Y), **options, checkpoint=str(path)))  # a finished one
    assert [one.name for one in tmp_path.iterdir()] == ["state.npz"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("finished") / "state.npz")
    fit(START, squared, (X, Y), **SETTINGS, checkpoint=path)
    return path


@pytest.mark.parametrize(
    "other",
    [{"seed": 7}, {"batch": 30}, {"learning_rate": 0.04}, {"epochs": 61}, {"patience": 9}, {"title": "another"}],
)
def test_a_checkpoint_of_other_settings_is_refused(finished: str, other: dict) -> None:
    with pytest.raises(RequestError, match="other data or settings"):
        fit(START, squared, (X, Y), **{**SETTINGS, **other}, checkpoint=finished)


def test_checkpoint_of_other_data_or_damaged_is_rejected(finished: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="other data"):
        fit(START, squared, (X, Y + 1e-3), **SETTINGS, checkpoint=finished)
    with pytest.raises(RequestError, match="other data"):
        fit({**START, "offset": np.float32(1)}, squared, (X, Y), **SETTINGS, checkpoint=finished)
    path = tmp_path / "state.npz"
    for broken in (Path(finished).read_bytes()[:-40], b"", b"no archive"):
        path.write_bytes(broken)
        with pytest.raises(RequestError, match="damaged"):
            fit(START, squared, (X, Y), **SETTINGS, checkpoint=str(path))


@pytest.mark.slow
@pytest.mark.parametrize("patience", [None, 5])
def test_a_training_that_diverges_is_refused(patience: int | None) -> None:
    with pytest.raises(DataError, match="lower the learning rate"):
        fit(START, squared, (X, Y), **{**SETTINGS, "learning_rate": 1e38}, patience=patience)
