"""The tuner: predicts the best cell width from public data (paper 003, Section 5: ParamSelect). Pure.

`width_search.find_label` makes a Label for each number of users, size and epsilon. `train` fits a Tuner to the labels.
`save_tuner` and `open_tuner` write and read its file.

The tuner predicts the ratio of the best width to the default rule (`CollectionSpec.default_width`). Where the labels
hold no information, it predicts the default rule.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import FormatError, RequestError, check_format
from sfumato.schemas.ranges import Field
from sfumato.schemas.region import Region
from sfumato.transforms.ranges.field_counts import CollectionSpec, clamp_width
from sfumato.transforms.ranges.model_file import DAMAGED, archive_bytes, read_archive

TREES, TREE_DEPTH = 150, 7  # paper 003, Section 6.1
FEATURES = 8
FORMAT = "sfumato-tuner/3"
_MIN_OVERLAP = 0.5  # two regions are one place if they share this part of their joint area
_MAX_BYTES = 1 << 26  # of a tuner's file, unpacked; a tuner takes about 1 MB
_MAX_VALUE = 50.0  # of a logarithm of a ratio; exp of more is useless


@dataclass(frozen=True)
class Label:
    """The result of one search on public data, whose setting is `spec`.

    Attributes:
        entropy: of the public data of the place, in nats.
        width: the best cell width of the plain grid, in metres.
    """

    spec: CollectionSpec
    entropy: float
    width: float


def features(spec: CollectionSpec, entropy: float) -> NDArray[np.float64]:
    """Returns the inputs of the trees, float64[FEATURES]; entropy: in nats.

    They are those of paper 003, Section 5.1, (n, epsilon, 1 / (n epsilon), 1 / sqrt(n epsilon), entropy), then LOW,
    HIGH and the region's length in metres.
    """
    users = max(spec.users, 1.0)
    scale = users * spec.epsilon
    length = math.sqrt(math.prod(spec.field.metres))
    sizes = spec.sizes
    return np.array([users, spec.epsilon, 1 / scale, 1 / math.sqrt(scale), entropy, sizes.low, sizes.high, length])


@dataclass(frozen=True)
class Forest:
    """Regression trees as plain arrays. A prediction is the mean of the trees' leaves.

    Raises ValueError if the arrays are no trees of at most TREE_DEPTH levels.

    Attributes:
        roots: int64[t], the first node of each tree.
        feature: int64[n], the feature that a node compares.
        threshold: float64[n]. Inputs up to it go to the first child, larger ones to the second.
        children: int64[n, 2]. The children of a leaf are the leaf itself.
        value: float64[n], the prediction of a leaf.
    """

    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    children: NDArray[np.int64]
    value: NDArray[np.float64]

    def __post_init__(self) -> None:
        nodes = len(self.value)
        shapes = {"feature": (nodes,), "threshold": (nodes,), "children": (nodes, 2), "value": (nodes,)}
        integers = all(getattr(self, name).dtype.kind in "iu" for name in ("roots", "feature", "children"))
        if not integers or any(getattr(self, name).shape != shape for name, shape in shapes.items()):
            raise ValueError("arrays that do not fit together")
        inside = all(((numbers >= 0) & (numbers < nodes)).all() for numbers in (self.roots, self.children))
        if not (inside and self.roots.ndim == 1 and 0 < len(self.roots) <= nodes):
            raise ValueError("nodes out of range")
        if not (((self.feature >= 0) & (self.feature < FEATURES)).all() and (np.abs(self.value) <= _MAX_VALUE).all()):
            raise ValueError("features or values out of range")
        reached = self.roots
        for _ in range(TREE_DEPTH):
            reached = np.unique(self.children[reached])
        if (self.children[reached] != reached[:, None]).any():
            raise ValueError("trees that are too deep, or cyclic")

    @classmethod
    def from_sklearn(cls, trees: Sequence[Any]) -> Forest:
        fitted = [tree.tree_ for tree in trees]
        counts = np.array([tree.node_count for tree in fitted])
        roots = np.cumsum(counts) - counts
        left, right = (
            np.concatenate(
                [getattr(tree, f"children_{side}") + first for tree, first in zip(fitted, roots, strict=True)]
            )
            for side in ("left", "right")
        )
        feature = np.concatenate([tree.feature for tree in fitted]).astype(np.int64)
        leaf = feature < 0
        children = np.where(leaf[:, None], np.arange(len(leaf))[:, None], np.stack([left, right], axis=1))
        return cls(
            roots,
            np.where(leaf, 0, feature),
            np.concatenate([tree.threshold for tree in fitted]),
            children,
            np.concatenate([tree.value[:, 0, 0] for tree in fitted]),
        )

    def predict(self, inputs: NDArray[np.float64]) -> float:
        """Predicts one row of features, exactly as scikit-learn: float32 features, sums in the order of the trees."""
        rounded, at = inputs.astype(np.float32), self.roots
        for _ in range(TREE_DEPTH):
            beyond = rounded[self.feature[at]] > self.threshold[at]
            at = self.children[at, beyond.astype(np.int64)]
        return float(np.cumsum(self.value[at])[-1] / len(self.roots))


@dataclass(frozen=True)
class Tuner:
    """Predicts cell widths.

    Attributes:
        forest: a regression of log(best width / default width).
        places: the regions of the training data, with the entropy of each in nats.
        digest: SHA-256 of the labels; of a tuner that was opened, of its file.
    """

    forest: Forest
    places: tuple[tuple[Region, float], ...]
    digest: str

    def width(self, spec: CollectionSpec, entropy: float | None = None) -> float:
        """Predicts the best cell width in metres. entropy: in nats, if it is known; otherwise `self.entropy` is."""
        inputs = features(spec, self.entropy(spec.field) if entropy is None else entropy)
        return clamp_width(spec.default_width * math.exp(self.forest.predict(inputs)), spec.field)

    def entropy(self, field: Field) -> float:
        """Returns the entropy of the public data of the same place, otherwise the mean of all places; in nats."""
        overlaps = [_overlap(field.grid.region, region) for region, _ in self.places]
        best = max(overlaps)
        entropies = np.array([entropy for _, entropy in self.places])
        same_place = entropies[np.array(overlaps) == best] if best >= _MIN_OVERLAP else entropies
        return float(np.mean(same_place))

    def metadata(self) -> dict[str, Any]:
        return {"format": FORMAT, "digest": self.digest}


def train(labels: Sequence[Label], seed: int) -> Tuner:
    """Fits a tuner. The same labels and seed give the same tuner. Raises RequestError without scikit-learn."""
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError:
        raise RequestError("tuner: needs scikit-learn, which is not installed; pip install '.[neural]'") from None

    inputs = np.stack([features(label.spec, label.entropy) for label in labels])
    ratios = np.log([label.width / label.spec.default_width for label in labels])
    trees = ExtraTreesRegressor(TREES, max_depth=TREE_DEPTH, random_state=seed).fit(inputs, ratios)
    return Tuner(
        Forest.from_sklearn(trees.estimators_),
        tuple(dict.fromkeys((label.spec.field.grid.region, label.entropy) for label in labels)),
        _digest(labels, seed),
    )


def save_tuner(tuner: Tuner, path: str) -> None:
    """Writes a tuner's file atomically. Raises RequestError if it cannot be written."""
    places = [[asdict(region), entropy] for region, entropy in tuner.places]
    target = Path(path)
    staged = target.with_name(f".{target.name}.staging")
    try:
        staged.write_bytes(archive_bytes({"format": FORMAT, "places": places}, vars(tuner.forest)))
        staged.replace(target)
    except OSError as error:
        raise RequestError(f"output: {path} cannot be written ({error.strerror or error})") from None
    finally:
        staged.unlink(missing_ok=True)


def open_tuner(path: str) -> Tuner:
    """Opens a local file of `save_tuner`. It holds plain arrays, so reading it runs no code.

    The tuner's digest is the file's SHA-256. A run's key is bound to the digest: two tuners under one key could show
    different counts under the same noise. Raises RequestError if the file cannot be read, is damaged, or is no tuner.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"tuner: {path} cannot be read ({error.strerror or error})") from None
    try:
        metadata, arrays = read_archive(content, _MAX_BYTES)
        check_format(f"tuner: {path}", metadata["format"], FORMAT)
        forest = Forest(*(arrays[field.name] for field in fields(Forest)))
        places = tuple((Region(**region), float(entropy)) for region, entropy in metadata["places"])
        if not (places and all(0 <= entropy < _MAX_VALUE for _, entropy in places)):
            raise ValueError("no place, or entropies out of range")
        return Tuner(forest, places, hashlib.sha256(content).hexdigest())
    except FormatError:
        raise
    except (*DAMAGED, RequestError) as error:
        raise RequestError(
            f"tuner: {path} is not a tuner of this version, or is damaged ({type(error).__name__}); make it again: "
            "sfumato ranges tune"
        ) from None


def _overlap(a: Region, b: Region) -> float:
    """Returns the shared area of two regions over their joint area.

    It is in degrees: near regions have equal degrees.
    """
    across = max(0.0, min(a.east, b.east) - max(a.west, b.west))
    down = max(0.0, min(a.north, b.north) - max(a.south, b.south))
    areas = [(region.east - region.west) * (region.north - region.south) for region in (a, b)]
    return across * down / (sum(areas) - across * down)


def _digest(labels: Sequence[Label], seed: int) -> str:
    metadata = [
        [
            asdict(label.spec.field.grid.region),
            features(label.spec, label.entropy).tolist(),
            label.width,
        ]
        for label in labels
    ]
    return hashlib.sha256(json.dumps([metadata, seed], sort_keys=True).encode()).hexdigest()
