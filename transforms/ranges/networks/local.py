"""The local network: one network for all sizes, from the noisy counts around a square to an answer.

It is trained on simulated worlds. Its inputs are the counts around a square and not the place, so it learns the same
rule for all places: a few thousand weights and seconds of training replace the 20 layers and hours of the paper's form.

The answer is gate * own + deviation * correction, where own is the noisy count of the square and deviation the standard
deviation of its noise. The network outputs the gate in [0, 1], the correction, and the logarithm of the expected error
in deviations. A model averages several networks, each trained on its own worlds.
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

from sfumato.schemas.ranges import PSI, Boxes
from sfumato.transforms.ranges.consistent_cells import MAX_SIDE, Shape, consistent_table
from sfumato.transforms.ranges.field_counts import NoisyGrid, SummedAreaTable
from sfumato.transforms.ranges.model import Answers, GridModel, Model, checked_weights, grid_arrays, grid_from_arrays
from sfumato.transforms.ranges.networks.examples import INPUTS, Examples, QueryDistribution, Surroundings, make_examples
from sfumato.transforms.ranges.networks.training import fit

WIDTH = 64
WORLDS = 6
SQUARES_PER_WORLD = 60_000
EPOCHS = 20
BATCH = 2048
LEARNING_RATE = 3e-3
PATIENCE = 6  # epochs
_ANSWER_BATCH = 1 << 15  # boxes
_NAMES = ("w1", "b1", "w2", "b2", "w3", "b3", "w4", "b4")

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class LocalTraining:
    """The inputs of the training of one network; another seed gives another network.

    Attributes:
        grid: the noisy grid.
        users: number of users, public or noisy.
        smoothing: psi in users, the least denominator of relative errors (paper 003, Section 2.2).
        queries: the distribution of the squares.
    """

    grid: NoisyGrid
    users: float
    smoothing: float
    queries: QueryDistribution
    seed: int


def train_local(training: LocalTraining) -> Weights:
    """Trains one network. Raises RequestError without JAX and optax."""
    rng = Generator(Philox(key=training.seed))

    def examples(worlds: int) -> Examples:
        return make_examples(
            training.grid, training.users, training.smoothing, training.queries, worlds, SQUARES_PER_WORLD, rng
        )

    def random(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return np.asarray(scale * np.sqrt(2 / rows) * rng.normal(size=(rows, columns)), dtype=np.float32)

    first = {
        "w1": random(INPUTS, WIDTH),
        "w2": random(WIDTH, WIDTH),
        "w3": random(WIDTH, 2, 0.01),
        "w4": random(WIDTH, 1, 0.01),
        **{name: np.zeros(size, np.float32) for name, size in (("b1", WIDTH), ("b2", WIDTH), ("b3", 2), ("b4", 1))},
    }
    found: Weights = fit(
        first,
        _loss(training.smoothing),
        examples(WORLDS),
        epochs=EPOCHS,
        batch=BATCH,
        learning_rate=LEARNING_RATE,
        cosine=True,
        patience=PATIENCE,
        validation=examples(1),
        seed=training.seed,
        title=f"local network {training.seed}",
    )
    return found


def _loss(smoothing: float) -> Callable[..., Any]:
    """Returns the mean relative error (paper 003, Section 2.2), plus a term that trains the expected error."""

    def loss(weights: Any, inputs: Any, own: Any, deviation: Any, users: Any) -> Any:
        import jax
        import jax.numpy as jnp

        hidden = jax.nn.swish(inputs @ weights["w1"] + weights["b1"])
        hidden = jax.nn.swish(hidden @ weights["w2"] + weights["b2"])
        gate, correction = jnp.split(hidden @ weights["w3"] + weights["b3"], 2, axis=1)
        answer = jax.nn.sigmoid(gate[:, 0]) * own + correction[:, 0] * deviation
        relative = jnp.abs(answer - users) / jnp.maximum(users, smoothing)
        # No gradient of the expected error reaches the answer.
        log_error = (jax.lax.stop_gradient(hidden) @ weights["w4"] + weights["b4"])[:, 0]
        off = jax.lax.stop_gradient((answer - users) / deviation)
        return relative.mean() + 0.1 * (off**2 * jnp.exp(-2 * log_error) / 2 + log_error).mean()

    return loss


class LocalNetwork(Model):
    """Local networks on a noisy grid, trained for squares of `queries`.

    Larger squares are answered by the counts only, which have no bias. A smaller square gets its share, by area, of
    the smallest trained square around the same centre. smoothing: psi in users. networks: the weights of each.
    """

    KIND: ClassVar[str] = "network"

    def __init__(self, grid: NoisyGrid, smoothing: float, queries: QueryDistribution, networks: Sequence[Weights]):
        self.grid = grid
        self.smoothing = smoothing
        self.queries = queries
        self.networks = list(networks)
        self._surroundings = Surroundings(grid, smoothing)
        self._counts = GridModel(grid)

    def answer(self, boxes: Boxes) -> Answers:
        users, stddev = np.empty(len(boxes)), np.empty(len(boxes))
        for first in range(0, len(boxes), _ANSWER_BATCH):
            batch = slice(first, first + _ANSWER_BATCH)
            answers = self._answer(boxes.part(batch))
            users[batch], stddev[batch] = answers.users, answers.stddev
        return Answers(users, stddev)

    def _answer(self, boxes: Boxes) -> Answers:
        scale = np.sqrt(boxes.areas / (self.queries.low[0] * self.queries.low[1]))
        small = np.clip(scale, 1e-9, 1.0)
        x, y = (boxes.x0 + boxes.x1) / 2, (boxes.y0 + boxes.y1) / 2
        trained = Boxes.around(x, y, (boxes.x1 - boxes.x0) / small, (boxes.y1 - boxes.y0) / small)
        inputs, own, deviation = self._surroundings.features(trained)
        answers, squares = np.zeros(len(boxes)), np.zeros(len(boxes))
        for weights in self.networks:
            answer, error = _forward(weights, inputs, own, deviation)
            answers += np.maximum(answer, 0.0) / len(self.networks)
            squares += error**2 / len(self.networks)
        # Queries are about places where a person is; worlds of expected users do not model that user: 1 squared.
        users, stddev = answers * small**2, np.sqrt(squares * small**2 + 1)
        highest = self.queries.high[0] * self.queries.high[1] * 1.05
        large = boxes.areas > highest
        if large.any():
            at = np.nonzero(large)[0]
            counted = self._counts.answer(boxes.part(at))
            users[at], stddev[at] = counted.users, counted.stddev
        return Answers(users, stddev)

    @cached_property
    def additive_table(self) -> SummedAreaTable:
        """See Model.additive_table. The networks' answers to cells are the first guess (`consistent_table`).

        Cells wider than the squares of the training are cut into parts. A part is doubted by (e^2 / (a^2 + e^2))^2,
        where a is its answer and e the expected error: answers that are sure keep their users.
        """
        (rows, columns), (low, high) = self.grid.users.shape, (self.queries.low, self.queries.high)
        wide, typical = self.grid.side / columns, math.sqrt(low[0] * high[0])
        most = min(MAX_SIDE // max(rows, columns), int(np.diff(self.grid.x_edges).min()))
        times = max(min(math.ceil(wide / typical), most, int(np.diff(self.grid.y_edges).min())), 1)
        x_edges, y_edges = (_cut(edges, times) for edges in (self.grid.x_edges, self.grid.y_edges))
        parts = Boxes.between(x_edges, y_edges)
        answers = self.answer(parts)
        form = len(y_edges) - 1, len(x_edges) - 1
        variance, squares = np.maximum(answers.stddev**2 - 1, 0.0), answers.users**2
        # A part smaller than the smallest trained square is as sure as that square, of which it has a share by area.
        squares /= np.clip(parts.areas / (low[0] * low[1]), 1e-18, 1.0)
        doubt = (variance / np.maximum(variance + squares, 1e-300)) ** 2
        users = self.smoothing / PSI if self.smoothing > 1 else None
        shape = Shape(answers.users.reshape(form), doubt.reshape(form), x_edges, y_edges)
        return consistent_table(self.grid, users, shape)

    def arrays(self) -> dict[str, NDArray[Any]]:
        stacked = {name: np.stack([weights[name] for weights in self.networks]) for name in _NAMES}
        return {**grid_arrays(self.grid), **stacked}

    def metadata(self) -> dict[str, Any]:
        sizes = {"low": list(self.queries.low), "high": list(self.queries.high)}
        return {"noise_stddev": self.grid.noise_stddev, "smoothing": self.smoothing, **sizes}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> LocalNetwork:
        count = len(arrays["w1"])
        shapes = {"w1": (count, INPUTS, WIDTH), "w2": (count, WIDTH, WIDTH), "w3": (count, WIDTH, 2)}
        shapes |= {"w4": (count, WIDTH, 1)}
        biases = {"b1": (count, WIDTH), "b2": (count, WIDTH), "b3": (count, 2), "b4": (count, 1)}
        weights = checked_weights(arrays, {**shapes, **biases})
        networks = [{name: weights[name][number] for name in _NAMES} for number in range(count)]
        low, high = ((float(pair[0]), float(pair[1])) for pair in (metadata["low"], metadata["high"]))
        grid, smoothing = grid_from_arrays(arrays, metadata), float(metadata["smoothing"])
        if not (count and 0 < low[0] < high[0] < math.inf and 0 < low[1] < high[1] < math.inf):
            raise ValueError("no networks, or sizes out of range")
        if not (0 < smoothing < math.inf and 0 < grid.noise_stddev < math.inf):
            raise ValueError("psi or noise out of range")
        return cls(grid, smoothing, QueryDistribution(low, high), networks)


def _cut(edges: NDArray[np.int64], times: int) -> NDArray[np.int64]:
    """Edges with each strip cut into this many, rounded to whole base cells."""
    at = np.arange(times * (len(edges) - 1) + 1) / times
    return np.asarray(np.rint(np.interp(at, np.arange(len(edges)), edges)).astype(np.int64))


def _forward(
    weights: Weights, inputs: NDArray[np.float32], own: NDArray[np.float32], deviation: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns users and the expected error, float32[q] each."""
    hidden = _swish(inputs @ weights["w1"] + weights["b1"])
    hidden = _swish(hidden @ weights["w2"] + weights["b2"])
    out = hidden @ weights["w3"] + weights["b3"]
    log_error = (hidden @ weights["w4"] + weights["b4"])[:, 0]
    gate = 1 / (1 + np.exp(-np.clip(out[:, 0], -30, 30)))
    return gate * own + out[:, 1] * deviation, np.exp(np.clip(log_error, -10, 10)) * deviation


def _swish(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(values / (1 + np.exp(-np.clip(values, -30, 30))))
