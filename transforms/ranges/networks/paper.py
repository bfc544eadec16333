"""Spatial neural histograms as in paper 003: one network for each of k sizes, from a place to a count.

The form is that of the paper and, where the paper is silent, of its authors' published code. It is the reference for
comparisons: thousands of epochs of 21 layers over every cell take hours without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.field_counts import CollectionSpec, NoisyGrid, SummedAreaTable, check_edges
from sfumato.transforms.ranges.model import Answers, Model, checked_weights
from sfumato.transforms.ranges.networks.training import fit

LAYERS, WIDTH, EPOCHS, PATIENCE = 20, 80, 5000, 500  # the layers with swish; one with a sine is before them
LEARNING_RATE = 1e-3
_INPUT_SIDE = 10.0  # of the field in the networks' inputs; it suits first weights of variance 1
_CHUNK = 4096  # queries at a time, so that their layers fit into a core's cache

Parameters = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class PaperTraining:
    """The training data of the network of one size, in metres: a query at every cell of the grid that has a weight.

    Attributes:
        number: of the size among all sizes.
        places: the network's inputs, float32[q, 2].
        labels: users, float32[q].
        weights: of the squared errors, float32[q].
    """

    size: float
    number: int
    places: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class PaperTrained:
    """The network of one size, in metres.

    residual: root mean square of label minus prediction over the training queries, in users.
    """

    size: float
    residual: float
    parameters: Parameters


def paper_training(grid: NoisyGrid, spec: CollectionSpec, models: int, workload: Boxes | None) -> list[PaperTraining]:
    """Makes the training data of each network (paper 003, Algorithm 1 and Eq. 12).

    workload: a sample of the queries; the weight of a training query is the number of them that it overlaps, and
    those that overlap none are left out. All weigh the same if none overlaps any: between squares that are smaller
    than a cell there are gaps.
    """
    table, smoothing = grid.table(), spec.smoothing
    trainings = []
    for number, size in enumerate(spec.sizes.spread(models).tolist()):
        queries = corner_squares(grid, size, spec.field.cell_metres)
        if workload is None:
            overlapped = np.ones(len(queries))
        else:
            overlapped = overlaps(grid, size, spec.field.cell_metres, workload)
            if not overlapped.any():  # the budget is spent, so there is no failure
                overlapped = np.ones(len(queries))
            queries, overlapped = queries.part(np.nonzero(overlapped)[0]), overlapped[overlapped > 0]
        labels = np.maximum(table.sum(queries), 0.0)
        columns = (_inputs(queries, grid.side), labels, overlapped / np.maximum(labels, smoothing))
        trainings.append(PaperTraining(size, number, *(column.astype(np.float32) for column in columns)))
    return trainings


def corner_squares(grid: NoisyGrid, size: float, cell_metres: tuple[float, float]) -> Boxes:
    """Squares of a size in metres whose lower left corner is that of a cell, for each cell of the field and around it.

    They begin one size or more to the left of the field and below it, and can reach beyond it.
    """
    left, bottom = _corners(grid, size, cell_metres)
    x, y = (axis.ravel() for axis in np.meshgrid(left, bottom))
    return Boxes(x, y - size / cell_metres[1], x + size / cell_metres[0], y)


def _corners(
    grid: NoisyGrid, size: float, cell_metres: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the left and lower edges of `corner_squares`.

    y counts from the north, so a cell's lower edge is its larger y.
    """
    width, height = (grid.side / (len(edges) - 1) for edges in (grid.x_edges, grid.y_edges))
    columns, rows = math.ceil(size / cell_metres[0] / width), math.ceil(size / cell_metres[1] / height)
    left = np.concatenate([-width * np.arange(columns, 0, -1), grid.x_edges[:-1]])
    return left, np.concatenate([grid.y_edges[1:], grid.side + height * np.arange(1, rows + 1)])


def overlaps(grid: NoisyGrid, size: float, cell_metres: tuple[float, float], workload: Boxes) -> NDArray[np.float64]:
    """Counts the workload's queries that overlap each of `corner_squares`: w of Eq. 12, float64[q]."""
    width, height = size / cell_metres[0], size / cell_metres[1]
    left, bottom = _corners(grid, size, cell_metres)
    # The squares that a query overlaps form a rectangle of corners: mark its ends, then take cumulative sums.
    first, last = np.searchsorted(left + width, workload.x0, "right"), np.searchsorted(left, workload.x1, "left")
    top, low = np.searchsorted(bottom, workload.y0, "right"), np.searchsorted(bottom - height, workload.y1, "left")
    inside = (workload.areas > 0) & (first < last) & (top < low)
    marks = np.zeros((len(bottom) + 1, len(left) + 1))
    for row, column, sign in ((top, first, 1), (top, last, -1), (low, first, -1), (low, last, 1)):
        np.add.at(marks, (row[inside], column[inside]), sign)
    return np.asarray(marks.cumsum(axis=0).cumsum(axis=1)[:-1, :-1].ravel())


def _inputs(boxes: Boxes, side: int) -> NDArray[np.float64]:
    """Returns the networks' inputs: centres, float64[q, 2]; the field is -5..5."""
    return np.column_stack(boxes.middles) * (_INPUT_SIDE / side) - _INPUT_SIDE / 2


def train_paper(
    training: PaperTraining,
    *,
    layers: int = LAYERS,
    width: int = WIDTH,
    epochs: int = EPOCHS,
    patience: int | None = PATIENCE,
    batch: int | None = None,
    seed: int = 0,
    observe: Callable[[int, Any, Any], None] | None = None,
) -> PaperTrained:
    """Trains the network of one size. Raises RequestError without JAX and optax.

    layers: hidden layers of `width` units with swish. A layer with a sine is before them, a linear one after them. For
    epochs, patience, batch, seed and observe see `fit`.
    """
    generator = Generator(Philox(key=[seed, training.number]))
    parameters = fit(
        _first(training.places.shape[1], layers, width, generator),
        _loss,
        (training.places, training.labels, training.weights / training.weights.mean()),
        epochs=epochs,
        batch=batch,
        learning_rate=LEARNING_RATE,
        patience=patience,
        seed=int(generator.integers(1 << 32)),
        observe=observe,
        title="training of a network",
    )
    off = forward(parameters, training.places) - training.labels
    return PaperTrained(training.size, math.sqrt(float(np.mean(np.square(off, dtype=np.float64)))), parameters)


def _first(inputs: int, layers: int, width: int, rng: Generator) -> Parameters:
    """Returns uniform random weights of variance 2 / (inputs of the layer), as in the authors' code."""

    def uniform(fan_in: int, *shape: int) -> NDArray[np.float32]:
        reach = math.sqrt(6 / fan_in)
        return rng.uniform(-reach, reach, shape).astype(np.float32)

    return {
        "first": uniform(inputs, inputs, width),
        "first_bias": np.zeros(width, np.float32),
        "hidden": uniform(width, layers, width, width),
        "hidden_bias": np.zeros((layers, width), np.float32),
        "last": uniform(width, width),
        "last_bias": np.zeros((), np.float32),
    }


def _loss(parameters: Any, places: Any, labels: Any, weights: Any) -> Any:
    """Returns the mean of Eq. 12."""
    import jax
    import jax.numpy as jnp

    hidden = jnp.sin(places @ parameters["first"] + parameters["first_bias"])
    for layer in range(len(parameters["hidden"])):
        hidden = jax.nn.swish(hidden @ parameters["hidden"][layer] + parameters["hidden_bias"][layer])
    output = hidden @ parameters["last"] + parameters["last_bias"]
    return (weights * (output - labels) ** 2).mean()


def forward(parameters: Parameters, places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Computes a network's outputs with NumPy: float32[q]. places: float32[q, 2]."""
    outputs = np.empty(len(places), np.float32)
    for begin in range(0, len(places), _CHUNK):
        batch = slice(begin, begin + _CHUNK)
        hidden = np.sin(places[batch] @ parameters["first"] + parameters["first_bias"])
        for weights, bias in zip(parameters["hidden"], parameters["hidden_bias"], strict=True):
            hidden = hidden @ weights
            hidden += bias
            slope = np.exp(-np.clip(hidden, -80, 80))  # the range of float32
            slope += 1
            hidden /= slope
        outputs[batch] = hidden @ parameters["last"] + parameters["last_bias"]
    return outputs


class PaperNetworks(Model):
    """Networks of k sizes. The network of the nearest size answers a box, from the box's centre.

    The answer is scaled by the ratio of areas, box to the network's square, both clipped to the field. (Section 4.3
    prints r / r*; for counts it is the square of that, as in the authors' code.) So a size far from the trained ones is
    answered as if users were spread evenly.

    The stated error combines the noise of all grid cells under the network's square with the network's training
    residual, and is scaled like the answer. Networks smooth noise, so part of the noise is counted twice. The error
    leaves out users who are unevenly spread within a cell or between the network's square and the box, and places
    between the training queries.

    x_edges, y_edges, noise_stddev: of the grid. cell_metres: width and height of a base cell. networks: in any order.
    """

    KIND: ClassVar[str] = "paper_networks"
    ERROR: ClassVar[str] = "lower bound"

    def __init__(
        self,
        x_edges: NDArray[np.int64],
        y_edges: NDArray[np.int64],
        noise_stddev: float,
        cell_metres: tuple[float, float],
        networks: Sequence[PaperTrained],
    ):
        self.x_edges, self.y_edges = x_edges, y_edges
        self.noise_stddev = noise_stddev
        self.cell_metres = cell_metres
        self.networks = sorted(networks, key=lambda network: network.size)
        self._side = int(x_edges[-1])
        self._noise = SummedAreaTable(x_edges, y_edges, np.full((len(y_edges) - 1, len(x_edges) - 1), noise_stddev**2))

    @classmethod
    def from_grid(cls, grid: NoisyGrid, spec: CollectionSpec, trained: Sequence[PaperTrained]) -> PaperNetworks:
        return cls(grid.x_edges, grid.y_edges, grid.noise_stddev, spec.field.cell_metres, trained)

    def answer(self, boxes: Boxes) -> Answers:
        across, down = self.cell_metres
        # A square clipped at the field's border keeps its length along one side, except in a corner.
        queried = np.maximum((boxes.x1 - boxes.x0) * across, (boxes.y1 - boxes.y0) * down)
        sizes = np.array([network.size for network in self.networks])
        nearest = np.searchsorted((sizes[1:] + sizes[:-1]) / 2, queried)
        width, height = sizes[nearest] / across, sizes[nearest] / down
        squares = Boxes.around(*boxes.middles, width, height).clipped(self._side)
        places = _inputs(boxes, self._side).astype(np.float32)
        users, residuals = np.zeros(len(boxes)), np.zeros(len(boxes))
        for number, network in enumerate(self.networks):
            chosen = np.nonzero(nearest == number)[0]
            users[chosen] = forward(network.parameters, places[chosen])
            residuals[chosen] = network.residual
        areas = squares.areas
        ratio = np.divide(boxes.areas, areas, out=np.zeros(len(boxes)), where=areas > 0)
        variance = np.maximum(self._noise.sum_of_squares(squares), 0.0) + residuals**2
        return Answers(np.maximum(users, 0.0) * ratio, np.sqrt(variance) * ratio)

    def arrays(self) -> dict[str, NDArray[Any]]:
        names = self.networks[0].parameters
        stacked = {name: np.stack([network.parameters[name] for network in self.networks]) for name in names}
        return {"x_edges": self.x_edges, "y_edges": self.y_edges, **stacked}

    def metadata(self) -> dict[str, Any]:
        by_size = {name: [getattr(network, name) for network in self.networks] for name in ("size", "residual")}
        return {"noise_stddev": self.noise_stddev, "cell_metres": list(self.cell_metres), **by_size}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> PaperNetworks:
        x_edges, y_edges = arrays["x_edges"], arrays["y_edges"]
        check_edges(x_edges, y_edges)
        numbers = {name: np.array(metadata[name], dtype=np.float64) for name in ("size", "residual")}
        noise, (across, down) = float(metadata["noise_stddev"]), (float(metres) for metres in metadata["cell_metres"])
        valid = all(values.ndim == 1 and np.isfinite(values).all() for values in numbers.values())
        sizes, residuals = numbers.values()
        valid = valid and len(sizes) > 0 and bool((np.diff(sizes, prepend=0.0) > 0).all() and (residuals >= 0).all())
        if not (valid and 0 <= noise < math.inf and 0 < across < math.inf and 0 < down < math.inf):
            raise ValueError("sizes, residuals or lengths out of range")
        models, (depth, width) = len(sizes), arrays["hidden_bias"].shape[1:]
        shapes: dict[str, tuple[int, ...]] = {
            "first": (models, 2, width),
            "first_bias": (models, width),
            "hidden": (models, depth, width, width),
            "hidden_bias": (models, depth, width),
            "last": (models, width),
            "last_bias": (models,),
        }
        parameters = checked_weights(arrays, shapes)
        by_network = [{name: values[number] for name, values in parameters.items()} for number in range(len(sizes))]
        columns = (sizes.tolist(), residuals.tolist(), by_network)
        networks = [PaperTrained(*row) for row in zip(*columns, strict=True)]
        return cls(x_edges.astype(np.int64), y_edges.astype(np.int64), noise, (across, down), networks)
