"""Which cell width is best, found by trying: on public data, of which the truth may be looked at. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.ranges import PSI, Boxes, Field, Sizes
from sfumato.schemas.region import interleave
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.people import ExactCounts
from sfumato.transforms.ranges.table import Table

if TYPE_CHECKING:  # one of the methods uses this module
    from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod

QUERIES = 4000
ENTROPY_DEPTH = 9  # 512 x 512 cells
_AWAY = 1.9  # a search ends where its best width is nearer than so many steps to neither end


@dataclass(frozen=True)
class Questions:
    """Squares, and how many users are in each, float64[q]: of public data, or for an evaluation."""

    boxes: Boxes
    truth: NDArray[np.float64]

    @classmethod
    def draw(cls, people: ExactCounts, field: Field, sizes: Sizes, count: int, generator: Generator) -> Questions:
        """Around users drawn at random, of sides uniform in the range; cut off at the field's border."""
        cell = generator.choice(len(people.codes), count, p=people.users / people.users.sum())
        x, y = (axis[cell] + generator.random(count) for axis in people.xy)
        side = generator.uniform(sizes.low, sizes.high, count)
        width, height = field.cell_metres
        boxes = Boxes.around(x, y, side / width, side / height).clipped(field.side)
        lines = np.arange(people.side + 1)
        return cls(boxes, Table(lines, lines, people.on_grid(lines, lines).astype(np.float64)).sum(boxes))

    def error(self, users: NDArray[np.float64], population: float) -> float:
        """The mean relative error of answers, |answer - truth| / max(truth, psi n)."""
        return float(np.mean(np.abs(users - self.truth) / np.maximum(self.truth, PSI * population)))


def entropy(people: ExactCounts) -> float:
    """Of the users' cells on a grid of 512 x 512, in nats (paper 003, Section 5.1). The field must be that fine."""
    codes = people.codes >> np.uint64(2 * (people.depth - ENTROPY_DEPTH))
    users = np.bincount(np.unique(codes, return_inverse=True)[1], people.users)
    share = users / users.sum()
    return float(-(share * np.log(share)).sum())


def sample_people(people: ExactCounts, users: int, generator: Generator) -> ExactCounts:
    """Some of the people, drawn without replacement; all of them where there are not more."""
    if users >= people.users.sum():
        return people
    chosen = generator.permutation(np.repeat(people.codes, people.users))[:users]
    return ExactCounts.of(people.depth, chosen)


def people_of_density(density: NDArray[np.floating], depth: int, users: int, generator: Generator) -> ExactCounts:
    """People drawn from a density over a square raster of a power of two of cells, and evenly inside its cells."""
    probabilities = np.cumsum(density.ravel(), dtype=np.float64)
    at = np.searchsorted(probabilities, generator.random(users) * probabilities[-1], side="right")
    y, x = np.divmod(np.minimum(at, len(probabilities) - 1), density.shape[1])
    scale = (1 << depth) / density.shape[1]
    x, y = (((axis + generator.random(users)) * scale).astype(np.uint32) for axis in (x, y))
    return ExactCounts.of(depth, interleave(x, y))


def measure(
    method: RangeMethod, people: ExactCounts, wanted: CollectionSpec, questions: Questions, seeds: Sequence[int]
) -> float:
    """The mean relative error of a method's answers, over runs with noise of these seeds."""
    errors = []
    for seed in seeds:
        key = RunKey.derive(FixedSecret(b"public data"), {"seed": seed})
        counts = method.collect(people, wanted, key)
        trained = [method.train(one) for one in method.trainings(counts, wanted)]
        answers = method.model(counts, wanted, trained).answer(questions.boxes)
        errors.append(questions.error(answers.users, float(people.users.sum())))
    return float(np.mean(errors))


@dataclass(frozen=True)
class Found:
    """The best width in metres, the error there, and all that was tried, widths ascending: float64[t] each."""

    width: float
    error: float
    widths: NDArray[np.float64]
    errors: NDArray[np.float64]

    def at(self, width: float) -> float:
        """The error at another width, between those that were tried (beyond them, that of the last)."""
        return float(np.exp(np.interp(math.log(width), np.log(self.widths), np.log(self.errors))))


def search(error_of: Callable[[float], float], start: float, low: float, high: float, step: float, reach: int) -> Found:
    """Tries widths start x step^k in [low, high]: k in -reach..reach, and on from there while the best is at an end.

    The best one is the lowest point of a parabola through the errors around the least (in logarithms), since noise
    decides between neighbours.
    """
    tried: dict[int, float] = {}
    first, last = (math.log(end / start) / math.log(step) for end in (low, high))
    places = range(max(-reach, math.ceil(first)), min(reach, math.floor(last)) + 1)
    wanted = list(places) or [round(min(max(0.0, first), last))]
    while wanted:
        tried |= {k: error_of(min(max(start * step**k, low), high)) for k in wanted}
        best, ends = min(tried, key=lambda k: tried[k]), (min(tried), max(tried))
        near = [end + way for end, way in zip(ends, (-1, 1), strict=True) if abs(best - end) < _AWAY]
        wanted = [k for k in near if first <= k <= last]
    places_tried = np.array(sorted(tried))
    errors = np.array([tried[k] for k in places_tried])
    widths = np.clip(start * step ** places_tried.astype(np.float64), low, high)
    around = np.abs(places_tried - best) <= 2
    width = widths[places_tried == best][0]
    if around.sum() >= 4:
        curve = np.polyfit(places_tried[around] - best, np.log(errors[around]), 2)
        if curve[0] > 0:
            width = start * step ** (best + min(max(-curve[1] / (2 * curve[0]), -1.0), 1.0))
    width = float(min(max(width, low), high))
    found = Found(width, 0.0, widths, errors)
    return Found(width, found.at(width), widths, errors)
