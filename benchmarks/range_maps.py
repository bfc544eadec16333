"""Range queries on five maps: which method has the least error, and whether squares that tile a region add up.

    SFUMATO_DATA=... python -m benchmarks.range_maps methods [USERS,EPSILON ...] [--maps city ...]  # errors
    SFUMATO_DATA=... python -m benchmarks.range_maps tiles [USERS,EPSILON ...] [--maps city ...]  # sums of tiles

Each row is one run with one network. The maps and their queries are those of `benchmarks.coverage_ranges`.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage_ranges import Map, maps, model_of
from sfumato.schemas.ranges import Boxes, Sizes
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, SummedAreaTable
from sfumato.transforms.ranges.methods import GRID_FROM_USERS_EPSILON
from sfumato.transforms.ranges.plan import ADAPTIVE
from sfumato.transforms.ranges.width_search import QuerySample

METHODS = ("snh", "grid", ADAPTIVE)
SETTINGS = ((30_000, 0.1), (300_000, 0.1), (300_000, 1.0))  # users, epsilon
SIZES = ((25, 100), (100, 400), (250, 1000))
QUERIES = 10_000


def drawn(place: Map, users: int) -> ExactCounts:
    """Users of a map, the same for every epsilon and size."""
    return place.draw(users, np.random.default_rng([7, users]))


def methods(
    place: Map, settings: Sequence[tuple[int, float]], ranges: Sequence[Sizes], names: Sequence[str]
) -> Iterator[str]:
    """Mean relative errors of squares about users, by setting: lines of a Markdown table."""
    for users, epsilon in settings:
        exact = drawn(place, users)
        people = float(exact.users.sum())
        for sizes in ranges:
            spec = CollectionSpec(place.field, people, epsilon, sizes)
            queries = QuerySample.draw(exact, place.field, sizes, QUERIES, np.random.default_rng(99))
            key = RunKey.derive(FixedSecret(b"range maps"), {"users": users, "epsilon": epsilon})
            errors = {
                name: queries.error(model_of(name, exact, spec, key, 1).answer(queries.boxes).users, people)
                for name in names
                if name != "snh" or people * epsilon < GRID_FROM_USERS_EPSILON
            }
            cells = " | ".join(f"{errors[name]:.4f}" if name in errors else "-" for name in names)
            span = math.sqrt(sizes.low * sizes.high) / spec.default_width
            yield f"| {place.name} | {people * epsilon:,.0f} | {sizes.low:g} to {sizes.high:g} | {span:.1f} | {cells} |"


def tiles(place: Map, settings: Sequence[tuple[int, float]]) -> Iterator[str]:
    """Sums and errors of squares that tile a region, by setting: lines of a Markdown table.

    A bias is that of a tenth of the blocks of about 1 km, by their true users: the worst of ten, as a share of all
    users. `cut` sets the networks' answers below a threshold to 0. The threshold makes the tiles' sum exact, so the
    true number of users chooses it.
    """
    for users, epsilon in settings:
        exact = drawn(place, users)
        people, edges = float(exact.users.sum()), np.arange(exact.side + 1)
        table = SummedAreaTable(edges, edges, exact.on_grid(edges, edges).astype(np.float64))
        spec = CollectionSpec(place.field, people, epsilon, place.sizes)
        key = RunKey.derive(FixedSecret(b"range maps"), {"users": users, "epsilon": epsilon})
        networks, grid = (model_of(name, exact, spec, key, 1) for name in ("snh", "grid"))
        for size in (place.sizes.low, 2 * place.sizes.low, place.sizes.high):
            queries = QuerySample.draw(
                exact, place.field, Sizes(0.999 * size, size), QUERIES, np.random.default_rng(99)
            )
            boxes = tiled(place, size)
            truth, around, added = table.sum(boxes), networks.answer(boxes).users, networks.answer_additive(boxes).users
            of_users = networks.answer(queries.boxes).users
            descending = np.sort(around)[::-1]
            threshold = descending[min(np.searchsorted(np.cumsum(descending), people), len(boxes) - 1)]
            counts = grid.additive_table
            assert counts is not None
            row = [
                f"{place.name}, {people:,.0f}, {epsilon:g}",
                f"{size:g}",
                *(f"{answers.sum() / people:.2f}" for answers in (grid.answer(boxes).users, around, added)),
                f"{worst_bias(place, boxes, added - truth, truth) / people:.1%}",
                *(
                    f"{math.sqrt(float(np.mean((answers - truth) ** 2))):.3g}"
                    for answers in (grid.answer(boxes).users, around, counts.sum(boxes), added)
                ),
                *(
                    f"{queries.error(answers, people):.4f}"
                    for answers in (
                        grid.answer(queries.boxes).users,
                        of_users,
                        networks.answer_additive(queries.boxes).users,
                        np.where(of_users > threshold, of_users, 0.0),
                    )
                ),
            ]
            yield f"| {' | '.join(row)} |"


def tiled(place: Map, size: float) -> Boxes:
    """Squares of a size in metres that tile the field, from an offset of 0.3 squares; the border clips them."""
    starts = [np.arange(-0.3 * size / metres, place.field.side, size / metres) for metres in place.field.cell_metres]
    x, y = (axis.ravel() for axis in np.meshgrid(*starts))
    width, height = (size / metres for metres in place.field.cell_metres)
    return Boxes(x, y, x + width, y + height).clipped(place.field.side)


def worst_bias(place: Map, boxes: Boxes, off: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """The largest absolute bias, in users, of ten groups of blocks of about 1 km with ever more true users."""
    blocks = max(1, round(place.field.metres[0] / 1000))
    column, row = (np.minimum(middle / place.field.side * blocks, blocks - 1).astype(int) for middle in boxes.middles)
    block = row * blocks + column
    order = np.argsort(np.bincount(block, truth, blocks**2), kind="stable")
    bias = np.bincount(block, off, blocks**2)[order]
    return max(abs(float(part.sum())) for part in np.array_split(bias, 10))


def pair(text: str) -> tuple[float, float]:
    """Two numbers with a comma between them."""
    first, second = map(float, text.split(","))
    return first, second


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("methods", "tiles"))
    parser.add_argument("settings", type=pair, nargs="*", metavar="USERS,EPSILON", default=SETTINGS)
    parser.add_argument("--maps", nargs="+")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--sizes", type=pair, nargs="+", metavar="LOW,HIGH", default=SIZES)
    options = parser.parse_args()
    settings = [(int(users), epsilon) for users, epsilon in options.settings]
    ranges = [Sizes(*each) for each in options.sizes]
    heads = {
        "methods": ["map", "n epsilon", "sizes, m", "cells a side", *options.methods],
        "tiles": [
            "map, users, epsilon",
            "m",
            *(f"sum / users: {name}" for name in ("grid", "networks", "additive")),
            "worst tenth",
            *(f"error of a tile: {name}" for name in ("grid", "networks", "grid, additive", "additive")),
            *(f"error about users: {name}" for name in ("grid", "networks", "additive", "cut")),
        ],
    }[options.what]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for place in maps(Path(os.environ["SFUMATO_DATA"]), options.maps):
        of_methods = options.what == "methods"
        for line in methods(place, settings, ranges, options.methods) if of_methods else tiles(place, settings):
            print(line, flush=True)


if __name__ == "__main__":
    main()
