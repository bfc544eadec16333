"""ParamSelect: the best width of cells, learned from searches on public data (paper 003, Section 5). Pure.

public people -> label_of -> Label, one a number of users, size and epsilon -> train -> Tuner, which a file holds

What is learned is how much wider or narrower than the rule of `widths.py` the best width is, and by how much networks
are better than the grid: where there was nothing to learn from, a tuner says what the rule says.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Field
from sfumato.schemas.region import Region
from sfumato.transforms.ranges.people import People
from sfumato.transforms.ranges.search import QUERIES, Found, Questions, measure, search
from sfumato.transforms.ranges.widths import default_width, fitting

if TYPE_CHECKING:  # one of the methods uses this module
    from sfumato.transforms.ranges.methods.base import RangeMethod, Wanted

TREES, TREE_DEPTH = 150, 7  # paper 003, Section 6.1
GRID = "grid"
FORMAT = "sfumato-tuner/1"
Maker = Callable[[float], "RangeMethod"]  # of a width in metres
_STEP, _REACH = 2.0**0.35, 3  # widths are tried by steps of a quarter, from a third to three times the rule's
_NEAR = (0.8, 1.0, 1.25)  # what networks are tried at, times the grid's best width
_SAME_PLACE = 0.5  # regions that share half of their joint area are one place
_BROKEN = (
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    TypeError,
    UnicodeDecodeError,
    ValueError,
    pickle.UnpicklingError,
    zlib.error,
)


@dataclass(frozen=True)
class Label:
    """What a search found: the best width in metres of each method by name, and its mean relative error there.

    entropy: of the public data of the place.
    """

    wanted: Wanted
    entropy: float
    widths: Mapping[str, float]
    errors: Mapping[str, float]


def grid_of(width: float) -> RangeMethod:
    """The plain grid."""
    from sfumato.transforms.ranges.methods.grid import PlainGrid  # here, as the methods use this module

    return PlainGrid(width)


def search_grid(people: People, wanted: Wanted, questions: Questions, seeds: Sequence[int]) -> Found:
    """The best width of the plain grid, by trial."""

    def error_of(width: float) -> float:
        return measure(grid_of(width), people, wanted, questions, seeds)

    low, high = max(wanted.field.cell_metres), min(wanted.field.metres)
    return search(error_of, default_width(wanted), low, high, _STEP, _REACH)


def label_of(people: People, wanted: Wanted, held: float, others: Mapping[str, Maker], generator: Generator) -> Label:
    """Searches the best width of the grid and, near it, of other methods. The people are public.

    wanted.users: how many there are. held: the entropy of the whole data set that they are a sample of; that of a small
    sample would be less, and what a tuner is asked about is a place, not a sample.
    """
    questions = Questions.draw(people, wanted.field, wanted.sizes, QUERIES, generator)
    seeds = [int(seed) for seed in generator.integers(0, 2**31, 2)]
    found = search_grid(people, wanted, questions, seeds)
    widths, errors = {GRID: found.width}, {GRID: found.error}
    for name, make in others.items():
        tried = [fitting(times * found.width, wanted.field) for times in _NEAR]
        reached = [measure(make(width), people, wanted, questions, seeds[:1]) for width in tried]
        best = int(np.argmin(reached))
        # Both with the same noise, or its luck would be taken for a gain.
        grid = measure(grid_of(found.width), people, wanted, questions, seeds[:1])
        widths[name], errors[name] = tried[best], found.error * reached[best] / grid
    return Label(wanted, held, widths, errors)


def features(wanted: Wanted, held: float) -> NDArray[np.float64]:
    """Of paper 003, Section 5.1: (n, epsilon, 1 / (n epsilon), 1 / sqrt(n epsilon), entropy); and sizes and lengths.

    held: the entropy, in nats. float64[8], the last three LOW, HIGH and the region's length in metres.
    """
    users = max(wanted.users, 1.0)
    scale = users * wanted.epsilon
    length = math.sqrt(math.prod(wanted.field.metres))
    sizes = wanted.sizes
    return np.array([users, wanted.epsilon, 1 / scale, 1 / math.sqrt(scale), held, sizes.low, sizes.high, length])


@dataclass(frozen=True)
class Tuner:
    """widths: by method, a regression of log(best width / the rule's). gains: of log(error / the grid's error).

    places: the regions it was trained on, with the entropy of the public data of each. digest: of what it was trained
    on, and once it is opened of its file, to which a run's key is bound.
    """

    widths: Mapping[str, Any]
    gains: Mapping[str, Any]
    places: tuple[tuple[Region, float], ...]
    digest: str

    def width(self, wanted: Wanted, held: float | None = None, method: str = GRID) -> float:
        """The best width in metres, as far as it knows. held: the entropy, where another than `entropy` is known."""
        learned = self.widths.get(method, self.widths[GRID])
        return fitting(default_width(wanted) * math.exp(self._told(learned, wanted, held)), wanted.field)

    def choose(self, wanted: Wanted, held: float | None = None) -> str:
        """The method of least error, by name."""
        ratios = {GRID: 0.0, **{name: self._told(gain, wanted, held) for name, gain in self.gains.items()}}
        return min(ratios, key=lambda name: ratios[name])

    def entropy(self, field: Field) -> float:
        """That of the public data of the same place, or else the mean of all places."""
        overlaps = [_overlap(field.grid.region, region) for region, _ in self.places]
        best = max(overlaps)
        near = [held for (_, held), share in zip(self.places, overlaps, strict=True) if share == best >= _SAME_PLACE]
        return float(np.mean(near or [held for _, held in self.places]))

    def facts(self) -> dict[str, Any]:
        """What of it stands in a manifest."""
        return {"format": FORMAT, "digest": self.digest}

    def _told(self, learned: Any, wanted: Wanted, held: float | None) -> float:
        held = self.entropy(wanted.field) if held is None else held
        return float(learned.predict(features(wanted, held)[None])[0])


def train(labels: Sequence[Label], seed: int) -> Tuner:
    """A tuner; the same for the same labels and seed. Raises RequestError where scikit-learn is missing."""
    trees = _library("sklearn.ensemble").ExtraTreesRegressor

    def learn(name: str, targets: Mapping[str, NDArray[np.float64]]) -> Any:
        inputs = np.stack([features(one.wanted, one.entropy) for one in having[name]])
        return trees(TREES, max_depth=TREE_DEPTH, random_state=seed).fit(inputs, targets[name])

    having: dict[str, list[Label]] = {}
    for one in labels:
        for name in one.widths:
            having.setdefault(name, []).append(one)
    wider = {
        name: np.log([one.widths[name] / default_width(one.wanted) for one in held]) for name, held in having.items()
    }
    worse = {name: np.log([one.errors[name] / one.errors[GRID] for one in held]) for name, held in having.items()}
    return Tuner(
        {name: learn(name, wider) for name in having},
        {name: learn(name, worse) for name in having if name != GRID},
        tuple(dict.fromkeys((one.wanted.field.grid.region, one.entropy) for one in labels)),
        _digest(labels, seed),
    )


def save_tuner(tuner: Tuner, path: str) -> None:
    """Writes a tuner's file, whole or not at all. Raises RequestError where it cannot be written."""
    target = Path(path)
    staged = target.with_name(f".{target.name}.staging")
    try:
        _library("joblib").dump({"format": FORMAT, "tuner": tuner}, staged, compress=3)
        staged.replace(target)
    except OSError as error:
        raise RequestError(f"output: {path} cannot be written ({error.strerror or error})") from None
    finally:
        staged.unlink(missing_ok=True)


def open_tuner(path: str) -> Tuner:
    """Opens a tuner's file. It is a pickle, and opening one runs code from it: open only those that you made.

    Raises RequestError where it cannot be read, is no tuner's, or was made by another version of scikit-learn.
    """
    joblib = _library("joblib")
    _library("sklearn")
    try:
        content = Path(path).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of trees that another version of scikit-learn has made
            held = joblib.load(io.BytesIO(content))
        if isinstance(held, dict) and held["format"] == FORMAT and isinstance(held["tuner"], Tuner):
            # Of its trees too: under one key, other widths would show other counts under the same noise.
            return replace(held["tuner"], digest=hashlib.sha256(content).hexdigest())
    except OSError as error:
        raise RequestError(f"tuner: {path} cannot be read ({error.strerror or error})") from None
    except (*_BROKEN, Warning) as error:
        raise RequestError(f"tuner: {path} cannot be opened ({error}); make it again: sfumato ranges tune") from None
    raise RequestError(f"tuner: {path} holds none of this version; make it again: sfumato ranges tune")


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise RequestError(
            f"tuner: needs {name.split('.')[0]}, which is not installed; pip install 'sfumato[neural]'"
        ) from None


def _overlap(one: Region, other: Region) -> float:
    """The area that two regions share, as a share of that which either has; in degrees, which are alike so near."""
    across = max(0.0, min(one.east, other.east) - max(one.west, other.west))
    down = max(0.0, min(one.north, other.north) - max(one.south, other.south))
    areas = [(each.east - each.west) * (each.north - each.south) for each in (one, other)]
    return across * down / (sum(areas) - across * down)


def _digest(labels: Sequence[Label], seed: int) -> str:
    facts = [
        [
            asdict(one.wanted.field.grid.region),
            features(one.wanted, one.entropy).tolist(),
            dict(one.widths),
            dict(one.errors),
        ]
        for one in labels
    ]
    return hashlib.sha256(json.dumps([facts, seed], sort_keys=True).encode()).hexdigest()
