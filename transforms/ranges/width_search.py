"""Searches for the best cell width of a grid by trial, on public data whose exact counts may be used. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.ranges import PSI, Boxes, Field, Sizes
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, SummedAreaTable
from sfumato.transforms.ranges.methods import PlainGrid, RangeMethod

QUERIES = 4000
ENTROPY_DEPTH = 9  # 512 x 512 cells
_STEP, _REACH = 2.0**0.35, 3  # ratio of neighbouring widths; steps below and above the default width
_MIN_STEPS_TO_END = 1.9  # a search goes on while its best width is nearer to an end of the tried widths


@dataclass(frozen=True)
class QuerySample:
    """Random queries on public data. boxes: q squares. truth: the users in each, float64[q]."""

    boxes: Boxes
    truth: NDArray[np.float64]

    @classmethod
    def draw(cls, exact: ExactCounts, field: Field, sizes: Sizes, count: int, generator: Generator) -> QuerySample:
        """Draws `count` squares around random users. Sides are uniform in the range; the field's border clips them."""
        cell = generator.choice(len(exact.codes), count, p=exact.users / exact.users.sum())
        x, y = (axis[cell] + generator.random(count) for axis in exact.xy)
        side = generator.uniform(sizes.low, sizes.high, count)
        width, height = field.cell_metres
        boxes = Boxes.around(x, y, side / width, side / height).clipped(field.side)
        edges = np.arange(exact.side + 1)
        return cls(boxes, SummedAreaTable(edges, edges, exact.on_grid(edges, edges).astype(np.float64)).sum(boxes))

    def error(self, users: NDArray[np.float64], population: float) -> float:
        """Returns the mean relative error of answers: |answer - truth| / max(truth, psi n)."""
        return float(np.mean(np.abs(users - self.truth) / np.maximum(self.truth, PSI * population)))


def entropy(exact: ExactCounts) -> float:
    """Returns the entropy of the users' cells on a grid of 512 x 512, in nats (paper 003, Section 5.1).

    The counts must be on a grid at least as fine.
    """
    codes = exact.codes >> np.uint64(2 * (exact.depth - ENTROPY_DEPTH))
    users = np.bincount(np.unique(codes, return_inverse=True)[1], exact.users)
    share = users / users.sum()
    return float(-(share * np.log(share)).sum())


def sample_users(exact: ExactCounts, users: int, generator: Generator) -> ExactCounts:
    """Draws users without replacement; returns all if there are not more."""
    if users >= exact.users.sum():
        return exact
    chosen = generator.permutation(np.repeat(exact.codes, exact.users))[:users]
    return ExactCounts.from_codes(exact.depth, chosen)


def mean_relative_error(
    method: RangeMethod, exact: ExactCounts, spec: CollectionSpec, queries: QuerySample, seeds: Sequence[int]
) -> float:
    """Returns the mean relative error of a method's answers, averaged over runs with noise of these seeds."""
    errors = []
    for seed in seeds:
        key = RunKey.derive(FixedSecret(b"public data"), {"seed": seed})
        counts = method.collect(exact, spec, key)
        trained = [method.train(training) for training in method.trainings(counts, spec)]
        answers = method.model(counts, spec, trained).answer(queries.boxes)
        errors.append(queries.error(answers.users, float(exact.users.sum())))
    return float(np.mean(errors))


@dataclass(frozen=True)
class SearchResult:
    """The best width, in metres; all tried widths, ascending, float64[t], and the error at each."""

    width: float
    widths: NDArray[np.float64]
    errors: NDArray[np.float64]

    def at(self, width: float) -> float:
        """Returns the error at another width, interpolated between tried widths; beyond them, that of the nearest."""
        return float(np.exp(np.interp(math.log(width), np.log(self.widths), np.log(self.errors))))


def search_width(
    error_of: Callable[[float], float], start: float, low: float, high: float, step: float, reach: int
) -> SearchResult:
    """Searches the width of least error among start * step^k, in low..high; widths are in metres.

    It tries k in -reach..reach, then goes on while the best width is at an end of those tried. Noise decides between
    neighbours, so the best width is the minimum of a parabola fitted to logarithms of the errors around the least.
    """
    tried: dict[int, float] = {}
    first, last = (math.log(end / start) / math.log(step) for end in (low, high))
    allowed = range(max(-reach, math.ceil(first)), min(reach, math.floor(last)) + 1)
    pending = list(allowed) or [round(min(max(0.0, first), last))]
    while pending:
        tried |= {k: error_of(min(max(start * step**k, low), high)) for k in pending}
        best, ends = min(tried, key=lambda k: tried[k]), (min(tried), max(tried))
        beyond = [end + way for end, way in zip(ends, (-1, 1), strict=True) if abs(best - end) < _MIN_STEPS_TO_END]
        pending = [k for k in beyond if first <= k <= last]
    steps = np.array(sorted(tried))
    errors = np.array([tried[k] for k in steps])
    widths = np.clip(start * step ** steps.astype(np.float64), low, high)
    around = np.abs(steps - best) <= 2
    width = widths[steps == best][0]
    if around.sum() >= 4:
        curve = np.polyfit(steps[around] - best, np.log(errors[around]), 2)
        if curve[0] > 0:
            width = start * step ** (best + min(max(-curve[1] / (2 * curve[0]), -1.0), 1.0))
    return SearchResult(float(min(max(width, low), high)), widths, errors)


def search_grid(exact: ExactCounts, spec: CollectionSpec, queries: QuerySample, seeds: Sequence[int]) -> SearchResult:
    """Searches the best width of the plain grid."""

    def error_of(width: float) -> float:
        return mean_relative_error(PlainGrid(width), exact, spec, queries, seeds)

    low, high = max(spec.field.cell_metres), min(spec.field.metres)
    return search_width(error_of, spec.default_width, low, high, _STEP, _REACH)
