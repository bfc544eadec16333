"""Spatial neural histograms as paper 003 has them: a network for each of k sizes, from a place to a count.

It is the form to compare with. Thousands of epochs of 20 layers over every cell are for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.counts import NoisyGrid
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.networks.training import fit
from sfumato.transforms.ranges.table import Table

if TYPE_CHECKING:
    from sfumato.transforms.ranges.methods.base import CollectionSpec  # whose package imports this module

LAYERS, WIDTH, EPOCHS, PATIENCE = 20, 80, 5000, 500
LEARNING_RATE = 1e-3
_SPACE = 10.0  # a side of the field, as networks see it: first weights of variance 1 fit to that
_CHUNK = 4096  # queries whose layers stay in a core's cache

Parameters = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class PaperTraining:
    """What the network of one size is learned from: a query at every cell of the grid.

    size: in metres. number: of the size among all. places: float32[q, 2], as networks see them. labels: users,
    float32[q]. weights: float32[q], of the squared errors.
    """

    size: float
    number: int
    places: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class PaperTrained:
    """The network of one size. scale: users that an output of 1 stands for. residual: root mean square of label less
    prediction over the training queries, in users."""

    size: float
    scale: float
    residual: float
    parameters: Parameters


def paper_training(grid: NoisyGrid, wanted: CollectionSpec, models: int, workload: Boxes | None) -> list[PaperTraining]:
    """What each of `models` networks is learned from (Algorithm 1 and Eq. 12).

    workload: queries like those to come; where it is given, a training query weighs as many of them as it overlaps.
    Raises RequestError where none of it lies in the region.
    """
    table, smoothing = grid.table(), wanted.smoothing
    trainings = []
    for number, size in enumerate(wanted.sizes.spread(models).tolist()):
        queries = corner_squares(grid, size, wanted.field.cell_metres)
        labels = np.maximum(table.sum(queries), 0.0)
        weights = 1 / np.maximum(labels, smoothing)
        if workload is not None:
            weights = weights * overlaps(grid, size, wanted.field.cell_metres, workload)
        if not weights.any():
            raise RequestError("workload: none of its queries lies in the region")
        columns = (_seen(queries, grid.side), labels, weights)
        trainings.append(PaperTraining(size, number, *(one.astype(np.float32) for one in columns)))
    return trainings


def corner_squares(grid: NoisyGrid, size: float, cell_metres: tuple[float, float]) -> Boxes:
    """Squares of a size in metres whose lower left corner is a cell's, cell by cell; they may reach beyond the field.

    y counts from the north: a cell's lower edge is the one at which the row below begins.
    """
    corners = np.meshgrid(grid.x_edges[:-1].astype(np.float64), grid.y_edges[1:].astype(np.float64))
    left, bottom = (one.ravel() for one in corners)
    return Boxes(left, bottom - size / cell_metres[1], left + size / cell_metres[0], bottom)


def overlaps(grid: NoisyGrid, size: float, cell_metres: tuple[float, float], workload: Boxes) -> NDArray[np.float64]:
    """How many of the workload's queries share an area with each of `corner_squares`: w of Eq. 12, float64[q]."""
    width, height = size / cell_metres[0], size / cell_metres[1]
    left, bottom = grid.x_edges[:-1], grid.y_edges[1:]
    # The corners whose squares a query overlaps are a rectangle of them: marked at its ends, and summed up.
    first, last = np.searchsorted(left + width, workload.x0, "right"), np.searchsorted(left, workload.x1, "left")
    top, low = np.searchsorted(bottom, workload.y0, "right"), np.searchsorted(bottom - height, workload.y1, "left")
    there = (workload.areas > 0) & (first < last) & (top < low)
    marks = np.zeros((len(bottom) + 1, len(left) + 1))
    for row, column, sign in ((top, first, 1), (top, last, -1), (low, first, -1), (low, last, 1)):
        np.add.at(marks, (row[there], column[there]), sign)
    return np.asarray(marks.cumsum(axis=0).cumsum(axis=1)[:-1, :-1].ravel())


def _seen(boxes: Boxes, side: int) -> NDArray[np.float64]:
    """Lower left corners as networks see them: float64[q, 2], each from -5 to 5."""
    return np.column_stack([boxes.x0, boxes.y1]) * (_SPACE / side) - _SPACE / 2


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
    """The networks of some sizes of one grid, trained together; each is what it would be alone, up to rounding.

    layers: of `width` units, the first with a sine, the others with swish, then a linear one. checkpoint: see `fit`.
    Raises RequestError without JAX and optax.
    """
    scales = [_scale(one) for one in trainings]
    sources = [Generator(Philox(key=[seed, one.number])) for one in trainings]
    first = [_first(layers, width, one) for one in sources]
    columns = [
        (one.places, one.labels / np.float32(scale), one.weights / one.weights.mean())
        for one, scale in zip(trainings, scales, strict=True)
    ]
    found = fit(
        {name: np.stack([one[name] for one in first]) for name in first[0]},
        _loss,
        tuple(np.stack(column) for column in zip(*columns, strict=True)),
        epochs=epochs,
        batch=batch,
        learning_rate=LEARNING_RATE,
        patience=patience,
        seed=[int(one.integers(1 << 32)) for one in sources],
        own_data=True,
        checkpoint=checkpoint,
        title="training of the networks",
    )
    trained = []
    for number, (one, scale) in enumerate(zip(trainings, scales, strict=True)):
        parameters = {name: values[number] for name, values in found.items()}
        off = scale * forward(parameters, one.places) - one.labels
        residual = math.sqrt(float(np.mean(np.square(off[one.weights > 0], dtype=np.float64))))
        trained.append(PaperTrained(one.size, scale, residual, parameters))
    return trained


def _scale(training: PaperTraining) -> float:
    """The root mean square of the labels as the loss weighs them; 1 where all are 0."""
    weights, labels = training.weights.astype(np.float64), training.labels.astype(np.float64)
    return math.sqrt(float((weights * labels**2).sum() / weights.sum())) or 1.0


def _first(layers: int, width: int, rng: Generator) -> Parameters:
    """Random weights, uniform and of a variance of 2 over a layer's inputs, as in the authors' code."""

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
    found = hidden @ parameters["last"] + parameters["last_bias"]
    return (weights * (found - labels) ** 2).mean()


def forward(parameters: Parameters, places: NDArray[np.float32]) -> NDArray[np.float32]:
    """A network's outputs, float32[q], by NumPy. places: float32[q, 2]."""
    found = np.empty(len(places), np.float32)
    for begin in range(0, len(places), _CHUNK):
        some = slice(begin, begin + _CHUNK)
        hidden = np.sin(places[some] @ parameters["first"] + parameters["first_bias"])
        for weights, bias in zip(parameters["hidden"], parameters["hidden_bias"], strict=True):
            hidden = hidden @ weights
            hidden += bias
            slope = np.exp(-np.clip(hidden, -80, 80))  # within what float32 holds
            slope += 1
            hidden /= slope
        found[some] = hidden @ parameters["last"] + parameters["last_bias"]
    return found


class PaperNetworks(Model):
    """Networks of k sizes. A box is answered by the one of the nearest size, from its lower left corner.

    The answer is scaled by the ratio of areas, box to the network's square (Section 4.3 prints r / r*; for counts it is
    the square of that, as in the authors' code), both as far as they lie in the field. So sizes far from those that
    were trained for are answered as if users were spread evenly.

    The stated error is the noise of all grid cells under the network's square, together with the network's training
    residual at its size, scaled like the answer. Networks smooth noise, so that part of it is counted twice; left out
    are users who are not spread evenly within a cell, or between the network's square and the box, and what lies
    between the corners that the network has seen.
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
        self.networks = sorted(networks, key=lambda one: one.size)
        self._side = int(x_edges[-1])
        self._noise = Table(x_edges, y_edges, np.full((len(y_edges) - 1, len(x_edges) - 1), noise_stddev**2))

    @classmethod
    def of(cls, grid: NoisyGrid, wanted: CollectionSpec, trained: Sequence[PaperTrained]) -> PaperNetworks:
        """Of the networks that were trained on a grid, in any order."""
        return cls(grid.x_edges, grid.y_edges, grid.noise_stddev, wanted.field.cell_metres, trained)

    def answer(self, boxes: Boxes) -> Answers:
        """See Model.answer."""
        across, down = self.cell_metres
        # What the field's border has cut is still as long as it was along one side, unless it lies in a corner.
        asked = np.maximum((boxes.x1 - boxes.x0) * across, (boxes.y1 - boxes.y0) * down)
        sizes = np.array([one.size for one in self.networks])
        nearest = np.searchsorted((sizes[1:] + sizes[:-1]) / 2, asked)
        width, height = sizes[nearest] / across, sizes[nearest] / down
        squares = Boxes(boxes.x0, boxes.y1 - height, boxes.x0 + width, boxes.y1).clipped(self._side)
        places = _seen(boxes, self._side).astype(np.float32)
        users, residuals = np.zeros(len(boxes)), np.zeros(len(boxes))
        for number, one in enumerate(self.networks):
            mine = np.nonzero(nearest == number)[0]
            users[mine] = one.scale * forward(one.parameters, places[mine])
            residuals[mine] = one.residual
        areas = squares.areas
        ratio = np.divide(boxes.areas, areas, out=np.zeros(len(boxes)), where=areas > 0)
        variance = np.maximum(self._noise.sum_of_squares(squares), 0.0) + residuals**2
        return Answers(np.maximum(users, 0.0) * ratio, np.sqrt(variance) * ratio)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See Model.arrays."""
        names = self.networks[0].parameters
        stacked = {name: np.stack([one.parameters[name] for one in self.networks]) for name in names}
        return {"x_edges": self.x_edges, "y_edges": self.y_edges, **stacked}

    def metadata(self) -> dict[str, Any]:
        """See Model.facts."""
        own = {name: [getattr(one, name) for one in self.networks] for name in ("size", "scale", "residual")}
        return {"noise_stddev": self.noise_stddev, "cell_metres": list(self.cell_metres), **own}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> PaperNetworks:
        """See Model.load."""
        x_edges, y_edges = arrays["x_edges"], arrays["y_edges"]
        for edges in (x_edges, y_edges):
            if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or not (np.diff(edges) > 0).all():
                raise ValueError("edges do not rise from 0")
        if x_edges[-1] != y_edges[-1]:
            raise ValueError("the field is no square")
        numbers = {name: np.array(metadata[name], dtype=np.float64) for name in ("size", "scale", "residual")}
        noise, (across, down) = float(metadata["noise_stddev"]), (float(one) for one in metadata["cell_metres"])
        sound = all(one.ndim == 1 and np.isfinite(one).all() for one in numbers.values())
        sizes, scales, residuals = numbers.values()
        sound = sound and len(sizes) > 0 and bool((np.diff(sizes, prepend=0.0) > 0).all() and (scales > 0).all())
        sound = sound and bool((residuals >= 0).all())
        if not (sound and 0 <= noise < math.inf and 0 < across < math.inf and 0 < down < math.inf):
            raise ValueError("sizes, scales, residuals or lengths are none")
        parameters = _checked(arrays, len(sizes))
        own = [{name: values[number] for name, values in parameters.items()} for number in range(len(sizes))]
        columns = (sizes.tolist(), scales.tolist(), residuals.tolist(), own)
        networks = [PaperTrained(*one) for one in zip(*columns, strict=True)]
        return cls(x_edges.astype(np.int64), y_edges.astype(np.int64), noise, (across, down), networks)


def _checked(arrays: Mapping[str, NDArray[Any]], models: int) -> Parameters:
    """The parameters of `models` networks. Raises ValueError where they are of no network, KeyError without them."""
    depth, width = arrays["hidden_bias"].shape[1:]
    shapes: dict[str, tuple[int, ...]] = {
        "first": (models, 2, width),
        "first_bias": (models, width),
        "hidden": (models, depth, width, width),
        "hidden_bias": (models, depth, width),
        "last": (models, width),
        "last_bias": (models,),
    }
    found = {}
    for name, shape in shapes.items():
        values = arrays[name]
        if values.shape != shape or values.dtype != np.float32 or not np.isfinite(values).all():
            raise ValueError("weights of another form")
        found[name] = values
    return found
