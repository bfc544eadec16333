"""Spatial neural histograms as in paper 003: one network for each of k sizes, from a place to a count.

It is the reference for comparisons. Thousands of epochs of 20 layers over every cell need a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.collection_spec import CollectionSpec
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.networks.training import fit
from sfumato.transforms.ranges.noisy_counts import NoisyGrid
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable

LAYERS, WIDTH, EPOCHS, PATIENCE = 20, 80, 5000, 500
LEARNING_RATE = 1e-3
_INPUT_SIDE = 10.0  # of the field in the networks' inputs; it suits first weights of variance 1
_CHUNK = 4096  # queries at a time, so that their layers fit into a core's cache

Parameters = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class PaperTraining:
    """The training data of the network of one size: a query at every cell of the grid.

    Attributes:
        size: in metres.
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
    """The network of one size.

    Attributes:
        size: in metres.
        scale: users for an output of 1.
        residual: root mean square of label minus prediction over the training queries, in users.
        parameters: of the network.
    """

    size: float
    scale: float
    residual: float
    parameters: Parameters


def paper_training(grid: NoisyGrid, spec: CollectionSpec, models: int, workload: Boxes | None) -> list[PaperTraining]:
    """Makes the training data of each network (paper 003, Algorithm 1 and Eq. 12).

    Args:
        grid: the noisy grid.
        spec: of the collection.
        models: number of networks.
        workload: a sample of the queries; the weight of a training query is the number of them that it overlaps.

    Raises:
        RequestError: no query of the workload is in the region.
    """
    table, smoothing = grid.table(), spec.smoothing
    trainings = []
    for number, size in enumerate(spec.sizes.spread(models).tolist()):
        queries = corner_squares(grid, size, spec.field.cell_metres)
        labels = np.maximum(table.sum(queries), 0.0)
        weights = 1 / np.maximum(labels, smoothing)
        if workload is not None:
            weights = weights * overlaps(grid, size, spec.field.cell_metres, workload)
        if not weights.any():
            raise RequestError("workload: none of its queries is in the region")
        columns = (_inputs(queries, grid.side), labels, weights)
        trainings.append(PaperTraining(size, number, *(column.astype(np.float32) for column in columns)))
    return trainings


def corner_squares(grid: NoisyGrid, size: float, cell_metres: tuple[float, float]) -> Boxes:
    """Squares whose lower left corner is that of a cell, for each cell. They can reach beyond the field.

    size: in metres. y counts from the north, so the lower edge of a cell is its larger y.
    """
    corners = np.meshgrid(grid.x_edges[:-1].astype(np.float64), grid.y_edges[1:].astype(np.float64))
    left, bottom = (axis.ravel() for axis in corners)
    return Boxes(left, bottom - size / cell_metres[1], left + size / cell_metres[0], bottom)


def overlaps(grid: NoisyGrid, size: float, cell_metres: tuple[float, float], workload: Boxes) -> NDArray[np.float64]:
    """Counts the workload's queries that overlap each of `corner_squares`: w of Eq. 12, float64[q]."""
    width, height = size / cell_metres[0], size / cell_metres[1]
    left, bottom = grid.x_edges[:-1], grid.y_edges[1:]
    # The squares that a query overlaps form a rectangle of corners: mark its ends, then take cumulative sums.
    first, last = np.searchsorted(left + width, workload.x0, "right"), np.searchsorted(left, workload.x1, "left")
    top, low = np.searchsorted(bottom, workload.y0, "right"), np.searchsorted(bottom - height, workload.y1, "left")
    inside = (workload.areas > 0) & (first < last) & (top < low)
    marks = np.zeros((len(bottom) + 1, len(left) + 1))
    for row, column, sign in ((top, first, 1), (top, last, -1), (low, first, -1), (low, last, 1)):
        np.add.at(marks, (row[inside], column[inside]), sign)
    return np.asarray(marks.cumsum(axis=0).cumsum(axis=1)[:-1, :-1].ravel())


def _inputs(boxes: Boxes, side: int) -> NDArray[np.float64]:
    """The networks' inputs: lower left corners, float64[q, 2], each in -5..5."""
    return np.column_stack([boxes.x0, boxes.y1]) * (_INPUT_SIDE / side) - _INPUT_SIDE / 2


def train_paper(
    trainings: Sequence[PaperTraining],
    *,
    layers: int = LAYERS,
    width: int = WIDTH,
    epochs: int = EPOCHS,
    patience: int | None = PATIENCE,
    batch: int | None = None,
    seed: int = 0,
    checkpoint: str | None = None,
) -> list[PaperTrained]:
    """Trains the networks of several sizes of one grid together.

    Each network is the same as if it were trained alone, up to rounding. Raises RequestError without JAX and optax.

    Args:
        trainings: the data of each network.
        layers: hidden layers, the first with a sine, the others with swish; a linear layer follows.
        width: units of a hidden layer.
        epochs: see `fit`, like patience, batch, seed and checkpoint.
    """
    scales = [_scale(training) for training in trainings]
    generators = [Generator(Philox(key=[seed, training.number])) for training in trainings]
    first = [_first(layers, width, generator) for generator in generators]
    columns = [
        (training.places, training.labels / np.float32(scale), training.weights / training.weights.mean())
        for training, scale in zip(trainings, scales, strict=True)
    ]
    fitted = fit(
        {name: np.stack([weights[name] for weights in first]) for name in first[0]},
        _loss,
        tuple(np.stack(column) for column in zip(*columns, strict=True)),
        epochs=epochs,
        batch=batch,
        learning_rate=LEARNING_RATE,
        patience=patience,
        seed=[int(generator.integers(1 << 32)) for generator in generators],
        own_data=True,
        checkpoint=checkpoint,
        title="training of the networks",
    )
    trained = []
    for number, (training, scale) in enumerate(zip(trainings, scales, strict=True)):
        parameters = {name: values[number] for name, values in fitted.items()}
        off = scale * forward(parameters, training.places) - training.labels
        residual = math.sqrt(float(np.mean(np.square(off[training.weights > 0], dtype=np.float64))))
        trained.append(PaperTrained(training.size, scale, residual, parameters))
    return trained


def _scale(training: PaperTraining) -> float:
    """The root mean square of the labels with the weights of the loss; 1 if all labels are 0."""
    weights, labels = training.weights.astype(np.float64), training.labels.astype(np.float64)
    return math.sqrt(float((weights * labels**2).sum() / weights.sum())) or 1.0


def _first(layers: int, width: int, rng: Generator) -> Parameters:
    """Uniform random weights of variance 2 / (inputs of the layer), as in the authors' code."""

    def uniform(inputs: int, *shape: int) -> NDArray[np.float32]:
        reach = math.sqrt(6 / inputs)
        return rng.uniform(-reach, reach, shape).astype(np.float32)

    return {
        "first": uniform(2, 2, width),
        "first_bias": np.zeros(width, np.float32),
        "hidden": uniform(width, layers - 1, width, width),
        "hidden_bias": np.zeros((layers - 1, width), np.float32),
        "last": uniform(width, width),
        "last_bias": np.zeros((), np.float32),
    }


def _loss(parameters: Any, places: Any, labels: Any, weights: Any) -> Any:
    """The mean of Eq. 12."""
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
    """Networks of k sizes. The network of the nearest size answers a box, from the box's lower left corner.

    The answer is scaled by the ratio of areas, box to the network's square, both clipped to the field. (Section 4.3
    prints r / r*; for counts it is the square of that, as in the authors' code.) So a size far from the trained ones is
    answered as if users were spread evenly.

    The stated error combines the noise of all grid cells under the network's square with the network's training
    residual, and is scaled like the answer. Networks smooth noise, so part of the noise is counted twice. The error
    leaves out users who are unevenly spread within a cell or between the network's square and the box, and places
    between the corners of the training queries.

    Args:
        x_edges: of the grid, int64[columns + 1], in base cells.
        y_edges: of the grid, int64[rows + 1], in base cells.
        noise_stddev: of each count.
        cell_metres: width and height of a base cell.
        networks: in any order.
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
        """The model of networks that were trained on a grid."""
        return cls(grid.x_edges, grid.y_edges, grid.noise_stddev, spec.field.cell_metres, trained)

    def answer(self, boxes: Boxes) -> Answers:
        across, down = self.cell_metres
        # A square clipped at the field's border keeps its length along one side, except in a corner.
        queried = np.maximum((boxes.x1 - boxes.x0) * across, (boxes.y1 - boxes.y0) * down)
        sizes = np.array([network.size for network in self.networks])
        nearest = np.searchsorted((sizes[1:] + sizes[:-1]) / 2, queried)
        width, height = sizes[nearest] / across, sizes[nearest] / down
        squares = Boxes(boxes.x0, boxes.y1 - height, boxes.x0 + width, boxes.y1).clipped(self._side)
        places = _inputs(boxes, self._side).astype(np.float32)
        users, residuals = np.zeros(len(boxes)), np.zeros(len(boxes))
        for number, network in enumerate(self.networks):
            chosen = np.nonzero(nearest == number)[0]
            users[chosen] = network.scale * forward(network.parameters, places[chosen])
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
        by_size = {
            name: [getattr(network, name) for network in self.networks] for name in ("size", "scale", "residual")
        }
        return {"noise_stddev": self.noise_stddev, "cell_metres": list(self.cell_metres), **by_size}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> PaperNetworks:
        x_edges, y_edges = arrays["x_edges"], arrays["y_edges"]
        for edges in (x_edges, y_edges):
            if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or not (np.diff(edges) > 0).all():
                raise ValueError("edges must increase from 0")
        if x_edges[-1] != y_edges[-1]:
            raise ValueError("the field is no square")
        numbers = {name: np.array(metadata[name], dtype=np.float64) for name in ("size", "scale", "residual")}
        noise, (across, down) = float(metadata["noise_stddev"]), (float(metres) for metres in metadata["cell_metres"])
        valid = all(values.ndim == 1 and np.isfinite(values).all() for values in numbers.values())
        sizes, scales, residuals = numbers.values()
        valid = valid and len(sizes) > 0 and bool((np.diff(sizes, prepend=0.0) > 0).all() and (scales > 0).all())
        valid = valid and bool((residuals >= 0).all())
        if not (valid and 0 <= noise < math.inf and 0 < across < math.inf and 0 < down < math.inf):
            raise ValueError("sizes, scales, residuals or lengths out of range")
        parameters = _checked(arrays, len(sizes))
        by_network = [{name: values[number] for name, values in parameters.items()} for number in range(len(sizes))]
        columns = (sizes.tolist(), scales.tolist(), residuals.tolist(), by_network)
        networks = [PaperTrained(*row) for row in zip(*columns, strict=True)]
        return cls(x_edges.astype(np.int64), y_edges.astype(np.int64), noise, (across, down), networks)


def _checked(arrays: Mapping[str, NDArray[Any]], models: int) -> Parameters:
    """The parameters of `models` networks. Raises ValueError if their form is wrong, KeyError if some are missing."""
    depth, width = arrays["hidden_bias"].shape[1:]
    shapes: dict[str, tuple[int, ...]] = {
        "first": (models, 2, width),
        "first_bias": (models, width),
        "hidden": (models, depth, width, width),
        "hidden_bias": (models, depth, width),
        "last": (models, width),
        "last_bias": (models,),
    }
    parameters = {}
    for name, shape in shapes.items():
        values = arrays[name]
        if values.shape != shape or values.dtype != np.float32 or not np.isfinite(values).all():
            raise ValueError("weights of another form")
        parameters[name] = values
    return parameters
