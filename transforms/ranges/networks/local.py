"""One network for all sizes, which answers a square from the noisy counts around it; learned from simulated worlds.

It sees no place but only what was counted nearby, so what it learns in one street serves in all others: a few thousand
weights and seconds of training do what the paper's form needs 20 layers and hours for.

The answer is gate * own + deviation * correction: own is the noisy count of the square itself, deviation that of its
noise; gate, in [0, 1], and correction are the network's. A third output is the logarithm of the error to expect, in
deviations. Several networks, each trained on worlds of its own, are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.counts import NoisyGrid
from sfumato.transforms.ranges.counts_model import GridModel, grid_arrays, grid_of
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.networks.features import INPUTS, Surroundings
from sfumato.transforms.ranges.networks.training import fit
from sfumato.transforms.ranges.networks.worlds import Examples, Squares, examples

WIDTH = 64
WORLDS = 6
SQUARES_A_WORLD = 60_000
EPOCHS = 20
BATCH = 2048
LEARNING_RATE = 3e-3
PATIENCE = 6  # epochs
_BATCH_ANSWERED = 1 << 15
_AROUND = 16.0  # cells
_NAMES = ("w1", "b1", "w2", "b2", "w3", "b3", "w4", "b4")

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class LocalTraining:
    """What one network is learned from. smoothing: psi, users below which errors do not matter more (paper, 2.2)."""

    grid: NoisyGrid
    users: float
    smoothing: float
    squares: Squares
    seed: int


def train_local(training: LocalTraining, checkpoint: str | None = None) -> Weights:
    """The weights of one network. checkpoint: see `fit`. Raises RequestError without JAX and optax."""
    rng = Generator(Philox(key=training.seed))

    def of(worlds: int) -> Examples:
        return examples(
            training.grid, training.users, training.smoothing, training.squares, worlds, SQUARES_A_WORLD, rng
        )

    def spread(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return np.asarray(scale * np.sqrt(2 / rows) * rng.normal(size=(rows, columns)), dtype=np.float32)

    first = {
        "w1": spread(INPUTS, WIDTH),
        "w2": spread(WIDTH, WIDTH),
        "w3": spread(WIDTH, 2, 0.01),
        "w4": spread(WIDTH, 1, 0.01),
        **{name: np.zeros(size, np.float32) for name, size in (("b1", WIDTH), ("b2", WIDTH), ("b3", 2), ("b4", 1))},
    }
    found: Weights = fit(
        first,
        _loss(training.smoothing),
        of(WORLDS).columns,
        epochs=EPOCHS,
        batch=BATCH,
        learning_rate=LEARNING_RATE,
        cosine=True,
        patience=PATIENCE,
        validation=of(1).columns,
        seed=training.seed,
        checkpoint=checkpoint,
        title=f"local network {training.seed}",
    )
    return found


def _loss(smoothing: float) -> Callable[..., Any]:
    """The paper's error (Section 2.2), relative to users or psi, whichever is more; and how well it is foreseen."""

    def loss(weights: Any, inputs: Any, own: Any, deviation: Any, users: Any) -> Any:
        import jax
        import jax.numpy as jnp

        hidden = jax.nn.swish(inputs @ weights["w1"] + weights["b1"])
        hidden = jax.nn.swish(hidden @ weights["w2"] + weights["b2"])
        gate, correction = jnp.split(hidden @ weights["w3"] + weights["b3"], 2, axis=1)
        answer = jax.nn.sigmoid(gate[:, 0]) * own + correction[:, 0] * deviation
        relative = jnp.abs(answer - users) / jnp.maximum(users, smoothing)
        # The error is learned beside the answer, and does not disturb it.
        log_error = (jax.lax.stop_gradient(hidden) @ weights["w4"] + weights["b4"])[:, 0]
        off = jax.lax.stop_gradient((answer - users) / deviation)
        return relative.mean() + 0.1 * (off**2 * jnp.exp(-2 * log_error) / 2 + log_error).mean()

    return loss


class LocalNetwork(Model):
    """Networks on a noisy grid. low, high: sides of the squares that they were trained for, (columns, rows) each.

    Larger squares are answered by the counts as they are, without bias; of smaller ones each has its share, by area, of
    what the smallest square about the same place has.
    """

    KIND: ClassVar[str] = "network"

    def __init__(self, grid: NoisyGrid, smoothing: float, squares: Squares, networks: Sequence[Weights]):
        self.grid = grid
        self.smoothing = smoothing
        self.squares = squares
        self.networks = list(networks)
        self._around = Surroundings(grid, smoothing)
        self._counts = GridModel(grid)

    def answer(self, boxes: Boxes) -> Answers:
        """See Model.answer."""
        users, stddev = np.empty(len(boxes)), np.empty(len(boxes))
        for first in range(0, len(boxes), _BATCH_ANSWERED):
            some = slice(first, first + _BATCH_ANSWERED)
            found = self._answer(boxes.part(some))
            users[some], stddev[some] = found.users, found.stddev
        return Answers(users, stddev)

    def _answer(self, boxes: Boxes) -> Answers:
        scale = np.sqrt(boxes.areas / (self.squares.low[0] * self.squares.low[1]))
        small = np.clip(scale, 1e-9, 1.0)
        x, y = (boxes.x0 + boxes.x1) / 2, (boxes.y0 + boxes.y1) / 2
        asked = Boxes.around(x, y, (boxes.x1 - boxes.x0) / small, (boxes.y1 - boxes.y0) / small)
        inputs, own, deviation = self._around.of(asked)
        answers, squares = np.zeros(len(boxes)), np.zeros(len(boxes))
        for one in self.networks:
            answer, error = _forward(one, inputs, own, deviation)
            answers += np.maximum(answer, 0.0) / len(self.networks)
            squares += error**2 / len(self.networks)
        # Squares are asked for where somebody is, which a world of expected users does not hold: 1 squared.
        users, stddev = answers * small**2, np.sqrt(squares * small**2 + 1)
        highest = self.squares.high[0] * self.squares.high[1] * 1.05
        large = boxes.areas > highest
        if large.any():
            at = np.nonzero(large)[0]
            counted = self._counts.answer(Boxes(boxes.x0[at], boxes.y0[at], boxes.x1[at], boxes.y1[at]))
            users[at], stddev[at] = counted.users, counted.stddev
        return Answers(users, stddev)

    @cached_property
    def cells(self) -> NDArray[np.float64]:
        """What the networks make of each cell, to be looked at: float64[rows, columns].

        Answers are of squares about people, so those to all cells add up to too much; they are scaled down to what was
        counted around each, within some dozens of cells.
        """
        cells = Boxes.between(self.grid.x_edges, self.grid.y_edges)
        answered = self.answer(cells).users.reshape(self.grid.users.shape)
        around, counted = (gaussian_filter(one, _AROUND, mode="nearest") for one in (answered, self.grid.users))
        return np.asarray(answered * np.clip(counted, 0, around) / np.maximum(around, 1e-9))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See Model.arrays."""
        stacked = {name: np.stack([one[name] for one in self.networks]) for name in _NAMES}
        return {**grid_arrays(self.grid), **stacked}

    def metadata(self) -> dict[str, Any]:
        """See Model.facts."""
        sizes = {"low": list(self.squares.low), "high": list(self.squares.high)}
        return {"noise_stddev": self.grid.noise_stddev, "smoothing": self.smoothing, **sizes}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> LocalNetwork:
        """See Model.load."""
        count = len(arrays["w1"])
        shapes: dict[str, tuple[int, ...]]
        shapes = {"w1": (INPUTS, WIDTH), "w2": (WIDTH, WIDTH), "w3": (WIDTH, 2), "w4": (WIDTH, 1)}
        shapes |= {"b1": (WIDTH,), "b2": (WIDTH,), "b3": (2,), "b4": (1,)}
        for name, shape in shapes.items():
            one = arrays[name]
            if one.shape != (count, *shape) or one.dtype != np.float32 or not np.isfinite(one).all():
                raise ValueError("weights of another form")
        networks = [{name: arrays[name][number] for name in _NAMES} for number in range(count)]
        low, high = ((float(one[0]), float(one[1])) for one in (metadata["low"], metadata["high"]))
        grid, smoothing = grid_of(arrays, metadata), float(metadata["smoothing"])
        if not (count and 0 < low[0] < high[0] < math.inf and 0 < low[1] < high[1] < math.inf):
            raise ValueError("no networks, or sizes of none")
        if not (0 < smoothing < math.inf and 0 < grid.noise_stddev < math.inf):
            raise ValueError("no scale of errors")
        return cls(grid, smoothing, Squares(low, high), networks)


def _forward(
    weights: Weights, inputs: NDArray[np.float32], own: NDArray[np.float32], deviation: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Users, and the error to expect: float32[q] each."""
    hidden = _swish(inputs @ weights["w1"] + weights["b1"])
    hidden = _swish(hidden @ weights["w2"] + weights["b2"])
    out = hidden @ weights["w3"] + weights["b3"]
    log_error = (hidden @ weights["w4"] + weights["b4"])[:, 0]
    gate = 1 / (1 + np.exp(-np.clip(out[:, 0], -30, 30)))
    return gate * own + out[:, 1] * deviation, np.exp(np.clip(log_error, -10, 10)) * deviation


def _swish(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(values / (1 + np.exp(-np.clip(values, -30, 30))))
