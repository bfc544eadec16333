"""ParamSelect: the best width of cells, learned from searches on public data (paper 003, Section 5). Pure.

public people -> label_of -> Label, one a number of users, size and epsilon -> train -> Tuner, which a file holds

What is learned is how much wider or narrower than the rule of `widths.py` the best width is, and by how much networks
are better than the grid: where there was nothing to learn from, a tuner says what the rule says.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Field
from sfumato.schemas.region import Region
from sfumato.transforms.ranges.archive import DAMAGED, archive_bytes, read_archive
from sfumato.transforms.ranges.people import ExactCounts
from sfumato.transforms.ranges.search import QUERIES, Found, Questions, measure, search
from sfumato.transforms.ranges.widths import default_width, fitting

if TYPE_CHECKING:  # one of the methods uses this module
    from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod

TREES, TREE_DEPTH = 150, 7  # paper 003, Section 6.1
FEATURES = 8
GRID = "grid"
FORMAT = "sfumato-tuner/2"
Maker = Callable[[float], "RangeMethod"]  # of a width in metres
_STEP, _REACH = 2.0**0.35, 3  # widths are tried by steps of a quarter, from a third to three times the rule's
_NEAR = (0.8, 1.0, 1.25)  # what networks are tried at, times the grid's best width
_SAME_PLACE = 0.5  # regions that share half of their joint area are one place
_MAX_BYTES = 1 << 26  # of a tuner's file, unpacked; one of four methods takes about 3 MB
_MAX_VALUE = 50.0  # of a logarithm of a ratio, beyond which exp is of no use


@dataclass(frozen=True)
class Label:
    """What a search found: the best width in metres of each method by name, and its mean relative error there.

    entropy: of the public data of the place.
    """

    wanted: CollectionSpec
    entropy: float
    widths: Mapping[str, float]
    errors: Mapping[str, float]


def grid_of(width: float) -> RangeMethod:
    """The plain grid."""
    from sfumato.transforms.ranges.methods.grid import PlainGrid  # here, as the methods use this module

    return PlainGrid(width)


def search_grid(people: ExactCounts, wanted: CollectionSpec, questions: Questions, seeds: Sequence[int]) -> Found:
    """The best width of the plain grid, by trial."""

    def error_of(width: float) -> float:
        return measure(grid_of(width), people, wanted, questions, seeds)

    low, high = max(wanted.field.cell_metres), min(wanted.field.metres)
    return search(error_of, default_width(wanted), low, high, _STEP, _REACH)


def label_of(
    people: ExactCounts, wanted: CollectionSpec, held: float, others: Mapping[str, Maker], generator: Generator
) -> Label:
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


def features(wanted: CollectionSpec, held: float) -> NDArray[np.float64]:
    """Of paper 003, Section 5.1: (n, epsilon, 1 / (n epsilon), 1 / sqrt(n epsilon), entropy); and sizes and lengths.

    held: the entropy, in nats. float64[FEATURES], the last three LOW, HIGH and the region's length in metres.
    """
    users = max(wanted.users, 1.0)
    scale = users * wanted.epsilon
    length = math.sqrt(math.prod(wanted.field.metres))
    sizes = wanted.sizes
    return np.array([users, wanted.epsilon, 1 / scale, 1 / math.sqrt(scale), held, sizes.low, sizes.high, length])


@dataclass(frozen=True)
class Forest:
    """Regression trees as plain arrays; a prediction is the mean of what the leaves say.

    roots: int64[t], each tree's first node. feature int64[n], threshold float64[n] and children int64[n, 2]: a node
    with a feature up to the threshold leads to the first child, or else to the second; a leaf leads to itself. value:
    float64[n]. Raises ValueError where the arrays are no trees of at most TREE_DEPTH levels.
    """

    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    children: NDArray[np.int64]
    value: NDArray[np.float64]

    def __post_init__(self) -> None:
        nodes = len(self.value)
        shapes = {"feature": (nodes,), "threshold": (nodes,), "children": (nodes, 2), "value": (nodes,)}
        whole = all(getattr(self, name).dtype.kind in "iu" for name in ("roots", "feature", "children"))
        if not whole or any(getattr(self, name).shape != shape for name, shape in shapes.items()):
            raise ValueError("arrays that do not fit together")
        inside = all(((one >= 0) & (one < nodes)).all() for one in (self.roots, self.children))
        if not (inside and self.roots.ndim == 1 and 0 < len(self.roots) <= nodes):
            raise ValueError("nodes that are not there")
        if not (((self.feature >= 0) & (self.feature < FEATURES)).all() and (np.abs(self.value) <= _MAX_VALUE).all()):
            raise ValueError("features or values of no tuner")
        reached = self.roots
        for _ in range(TREE_DEPTH):
            reached = np.unique(self.children[reached])
        if (self.children[reached] != reached[:, None]).any():
            raise ValueError("trees that are too deep, or run in a circle")

    @classmethod
    def from_sklearn(cls, trees: Sequence[Any]) -> Forest:
        """The trees of a fitted ensemble (its `estimators_`)."""
        held = [one.tree_ for one in trees]
        counts = np.array([one.node_count for one in held])
        roots = np.cumsum(counts) - counts
        left, right = (
            np.concatenate([getattr(one, f"children_{side}") + first for one, first in zip(held, roots, strict=True)])
            for side in ("left", "right")
        )
        feature = np.concatenate([one.feature for one in held]).astype(np.int64)
        leaf = feature < 0
        children = np.where(leaf[:, None], np.arange(len(leaf))[:, None], np.stack([left, right], axis=1))
        return cls(
            roots,
            np.where(leaf, 0, feature),
            np.concatenate([one.threshold for one in held]),
            children,
            np.concatenate([one.value[:, 0, 0] for one in held]),
        )

    def predict(self, inputs: NDArray[np.float64]) -> float:
        """For one row of features, exactly what scikit-learn predicts: float32 features, sums in the trees' order."""
        seen, at = inputs.astype(np.float32), self.roots
        for _ in range(TREE_DEPTH):
            beyond = seen[self.feature[at]] > self.threshold[at]
            at = self.children[at, beyond.astype(np.int64)]
        return float(np.cumsum(self.value[at])[-1] / len(self.roots))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class Tuner:
    """widths: by method, a regression of log(best width / the rule's). gains: of log(error / the grid's error).

    places: the regions it was trained on, with the entropy of the public data of each. digest: of what it was trained
    on, and once it is opened that of its file.
    """

    widths: Mapping[str, Forest]
    gains: Mapping[str, Forest]
    places: tuple[tuple[Region, float], ...]
    digest: str

    def width(self, wanted: CollectionSpec, held: float | None = None, method: str = GRID) -> float:
        """The best width in metres, as far as it knows. held: the entropy, where another than `entropy` is known."""
        learned = self.widths.get(method, self.widths[GRID])
        return fitting(default_width(wanted) * math.exp(self._told(learned, wanted, held)), wanted.field)

    def choose(self, wanted: CollectionSpec, held: float | None = None) -> str:
        """The method of least error, by name."""
        ratios = {GRID: 0.0, **{name: self._told(gain, wanted, held) for name, gain in self.gains.items()}}
        return min(ratios, key=lambda name: ratios[name])

    def entropy(self, field: Field) -> float:
        """That of the public data of the same place, or else the mean of all places."""
        overlaps = [_overlap(field.grid.region, region) for region, _ in self.places]
        best = max(overlaps)
        near = [held for (_, held), share in zip(self.places, overlaps, strict=True) if share == best >= _SAME_PLACE]
        return float(np.mean(near or [held for _, held in self.places]))

    def metadata(self) -> dict[str, Any]:
        """What of it stands in a manifest."""
        return {"format": FORMAT, "digest": self.digest}

    def _told(self, learned: Forest, wanted: CollectionSpec, held: float | None) -> float:
        return learned.predict(features(wanted, self.entropy(wanted.field) if held is None else held))


def train(labels: Sequence[Label], seed: int) -> Tuner:
    """A tuner; the same for the same labels and seed. Raises RequestError where scikit-learn is missing."""
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError:
        raise RequestError("tuner: needs scikit-learn, which is not installed; pip install 'sfumato[neural]'") from None

    def learn(name: str, targets: Mapping[str, NDArray[np.float64]]) -> Forest:
        inputs = np.stack([features(one.wanted, one.entropy) for one in having[name]])
        trees = ExtraTreesRegressor(TREES, max_depth=TREE_DEPTH, random_state=seed).fit(inputs, targets[name])
        return Forest.from_sklearn(trees.estimators_)

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
    metadata = {
        "format": FORMAT,
        "widths": list(tuner.widths),
        "gains": list(tuner.gains),
        "places": [[asdict(region), held] for region, held in tuner.places],
    }
    forests = {f"{kind}/{name}": one for kind in ("widths", "gains") for name, one in getattr(tuner, kind).items()}
    arrays = {f"{name}/{part}": values for name, one in forests.items() for part, values in one.arrays().items()}
    target = Path(path)
    staged = target.with_name(f".{target.name}.staging")
    try:
        staged.write_bytes(archive_bytes(metadata, arrays))
        staged.replace(target)
    except OSError as error:
        raise RequestError(f"output: {path} cannot be written ({error.strerror or error})") from None
    finally:
        staged.unlink(missing_ok=True)


def open_tuner(path: str) -> Tuner:
    """Opens a tuner's file, which holds plain arrays: nothing in it is run.

    Args:
        path: of a local file of `save_tuner`.

    Returns:
        The tuner. Its digest is the file's SHA-256: a run's key is bound to it, since other trees under the same key
        would show other counts under the same noise.

    Raises:
        RequestError: the file cannot be read, is damaged, or holds no tuner of this format.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"tuner: {path} cannot be read ({error.strerror or error})") from None
    try:
        metadata, arrays = read_archive(content, _MAX_BYTES)
        if metadata["format"] != FORMAT:
            raise ValueError("another format")
        names = [one.name for one in fields(Forest)]
        widths, gains = (
            {name: Forest(*(arrays[f"{kind}/{name}/{part}"] for part in names)) for name in metadata[kind]}
            for kind in ("widths", "gains")
        )
        places = tuple((Region(**region), float(held)) for region, held in metadata["places"])
        known = {GRID} <= widths.keys() and gains.keys() <= widths.keys()
        if not (known and places and all(0 <= held < _MAX_VALUE for _, held in places)):
            raise ValueError("no trees of the grid, or no place")
        return Tuner(widths, gains, places, hashlib.sha256(content).hexdigest())
    except (*DAMAGED, RequestError) as error:
        raise RequestError(
            f"tuner: {path} is no tuner of this version, or damaged ({type(error).__name__}); make it again: "
            "sfumato ranges tune"
        ) from None


def _overlap(one: Region, other: Region) -> float:
    """The area that two regions share, as a share of that which either has; in degrees, which are alike so near."""
    across = max(0.0, min(one.east, other.east) - max(one.west, other.west))
    down = max(0.0, min(one.north, other.north) - max(one.south, other.south))
    areas = [(each.east - each.west) * (each.north - each.south) for each in (one, other)]
    return across * down / (sum(areas) - across * down)


def _digest(labels: Sequence[Label], seed: int) -> str:
    metadata = [
        [
            asdict(one.wanted.field.grid.region),
            features(one.wanted, one.entropy).tolist(),
            dict(one.widths),
            dict(one.errors),
        ]
        for one in labels
    ]
    return hashlib.sha256(json.dumps([metadata, seed], sort_keys=True).encode()).hexdigest()
