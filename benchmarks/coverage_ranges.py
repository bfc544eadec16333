"""How often the truth lies within the stated errors of range answers, by method and map.

    SFUMATO_DATA=... python -m benchmarks.coverage_ranges [--methods grid ag ...] [--maps city cabs ...] [--networks 1]

Squares are centred at people drawn at random, so they lie where people are. A cell of the table is the share of squares
whose truth lies within 1.96 stated deviations (95% is right), and within one (68% is right). Everything is in memory.
Beside the means over all settings the table has the least and the greatest share of a setting.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.baselines.range_methods import BASELINES
from benchmarks.param_select import san_francisco, square
from benchmarks.range_queries import adaptive_model
from benchmarks.synthetic_maps import draw_users
from sfumato.schemas.ranges import BASE_DEPTH, Field, Sizes
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.methods import METHODS
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.plan import ADAPTIVE, make_method
from sfumato.transforms.ranges.width_search import QuerySample, sample_users
from sfumato.transforms.synth.city import ELSEWHERE
from sfumato.transforms.synth.landscape import city_rasters

_COMPARED = ("grid", *BASELINES, ADAPTIVE)
USERS = (1_000, 30_000, 1_000_000)
EPSILONS = (0.1, 1.0, 3.0)
QUERIES = 2_000
WITHIN = 1.96
_RASTERS = {
    "beijing": "beijing_taxi_starts_256x256.npy",
    "gowalla": "gowalla_world_256x256.npy",
    "manhattan": "manhattan_like_1024x1024.npy",
}


@dataclass(frozen=True)
class Map:
    """A map on which people can be drawn. draw: so many of them, or all where there are not as many."""

    name: str
    field: Field
    sizes: Sizes
    draw: Callable[[int, Generator], ExactCounts]


def maps(data: Path, chosen: list[str] | None = None) -> Iterator[Map]:
    """The synthetic city, out of home; the cabs of San Francisco; three rasters, whose cells are even inside."""

    def of_raster(raster: NDArray[np.floating]) -> Callable[[int, Generator], ExactCounts]:
        return lambda users, rng: draw_users(raster, BASE_DEPTH, users, rng)

    def is_chosen(name: str) -> bool:
        return chosen is None or name in chosen

    if is_chosen("city"):
        yield Map("city", square(14.0), Sizes(25, 100), of_raster(city_rasters(2048)[ELSEWHERE]))
    if is_chosen("cabs"):
        cabs = san_francisco(data)
        yield Map("cabs", cabs.field, Sizes(25, 100), lambda users, rng: sample_users(cabs.exact, users, rng))
    for name, file in _RASTERS.items():
        if is_chosen(name):
            raster = np.load(data / file, allow_pickle=False).astype(np.float64)
            yield Map(name, square(14.0), Sizes(100, 400), of_raster(raster))


def model_of(name: str, exact: ExactCounts, spec: CollectionSpec, key: RunKey, networks: int) -> Model:
    """The model that a method with its defaults makes of people."""
    if name == ADAPTIVE:
        return adaptive_model(exact, spec.epsilon, key)
    method = make_method(name, {"models": networks} if name in ("snh", "auto") else {}, spec)
    counts = method.collect(exact, spec, key)
    return method.model(counts, spec, [method.train(one) for one in method.trainings(counts, spec)])


def coverage(model: Model, queries: QuerySample) -> NDArray[np.float64]:
    """Shares of squares whose truth lies within 1.96 deviations, and within one: float64[2]."""
    answers = model.answer(queries.boxes)
    off = np.abs(answers.users - queries.truth) / np.maximum(answers.stddev, 1e-9)
    return np.array([(off <= WITHIN).mean(), (off <= 1).mean()])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=_COMPARED)
    parser.add_argument("--maps", nargs="+")
    parser.add_argument("--users", type=int, nargs="+", default=USERS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--networks", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="print every setting, too")
    options = parser.parse_args()
    METHODS.update(BASELINES)
    found: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    names = []
    for place in maps(Path(os.environ["SFUMATO_DATA"]), options.maps):
        names.append(place.name)
        for users in options.users:
            rng = np.random.default_rng([7, users])
            exact = place.draw(users, rng)
            queries = QuerySample.draw(exact, place.field, place.sizes, QUERIES, rng)
            for epsilon in options.epsilons:
                spec = CollectionSpec(place.field, float(exact.users.sum()), epsilon, place.sizes)
                key = RunKey.derive(FixedSecret(b"coverage of ranges"), {"users": users, "epsilon": epsilon})
                for name in options.methods:
                    shares = coverage(model_of(name, exact, spec, key, options.networks), queries)
                    found.setdefault((name, place.name), []).append(shares)
                    if options.each:
                        print(f"{name} {place.name} {users} {epsilon:g} {shares[0]:.3f} {shares[1]:.3f}", flush=True)
    rows = [["method", *names, "all", "least", "most", "one deviation"]]
    for name in options.methods:
        of_method = np.concatenate([found[name, place] for place in names])
        means = [f"{np.mean(found[name, place], axis=0)[0]:.1%}" for place in names]
        both, least, most = of_method.mean(axis=0), of_method[:, 0].min(), of_method[:, 0].max()
        rows.append([name, *means, f"{both[0]:.1%}", f"{least:.1%}", f"{most:.1%}", f"{both[1]:.1%}"])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
