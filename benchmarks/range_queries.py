"""Range queries by all methods: mean relative error, time, size.

    SFUMATO_DATA=... python -m benchmarks.range_queries cabs [--seeds 3] [--models 3]    # space scaled to a side of 10
    SFUMATO_DATA=... python -m benchmarks.range_queries metres [--seeds 3] [--models 3]  # 25 to 100 m, two cities
    SFUMATO_DATA=... python -m benchmarks.range_queries gowalla [--seeds 3] [--models 3] # the paper's cities, Figure 7
    SFUMATO_DATA=... python -m benchmarks.range_queries speed                            # time of a model, of answers

Queries are squares centred at data points drawn at random, which are in nobody's training data; psi is 0.1% of n.
Weights are uniform, without the workload that weighs the paper's training. `best grid` is the plain noisy grid at
the width that is best for these very queries, which nobody could know, its cells cut off at 0, which helps in so small
squares (and adds up in large ones); beside it networks on a grid of that width. All other methods know public figures
alone, and the rule for the width. `gowalla` needs the check-ins of Gowalla (benchmarks/public_data.py); as in the
paper, each check-in counts as a user.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.baselines.range_methods import BASELINES
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.public_data import SOURCES, dataset
from benchmarks.synthetic_maps import draw_users
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.ranges import BASE_DEPTH, Boxes, Field, Sizes
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, Places, Region, interleave
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.methods import METHODS, PlainGrid, RangeMethod, SpatialNeural
from sfumato.transforms.ranges.model import Model, RangeModel, TreeModel
from sfumato.transforms.ranges.model_file import model_bytes
from sfumato.transforms.ranges.networks.paper import PaperNetworks, paper_training, train_paper
from sfumato.transforms.ranges.width_search import QuerySample, mean_relative_error
from sfumato.transforms.synth.city import ELSEWHERE
from sfumato.transforms.synth.landscape import city_rasters

EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)
QUERIES = 10_000
SCALED = Field(Grid(Region(-0.05, -0.05, 0.05, 0.05), BASE_DEPTH))  # at the equator: as wide as tall
UNIT = SCALED.metres[0] / 10
TREE_DEPTH = 11
LOCAL = "local networks"  # --method snh


def cabs(scaled: bool) -> tuple[ExactCounts, Field]:
    """The SF cabs on the square of the data's borders, or on their region."""
    table = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "sf_cabs_starts.parquet")
    place = [table[name].to_numpy() for name in ("longitude", "latitude")]
    west, south, east, north = (end(one) for end in (np.min, np.max) for one in place)
    side = 1 << BASE_DEPTH
    x = np.minimum((place[0] - west) / (east - west) * side, side - 1).astype(np.uint32)
    y = np.minimum((north - place[1]) / (north - south) * side, side - 1).astype(np.uint32)
    field = SCALED if scaled else Field(Grid(Region(west, south, east, north), BASE_DEPTH))
    return ExactCounts.from_codes(BASE_DEPTH, interleave(x, y)), field


# Of Table 2 in paper 003: latitude and longitude of the cities whose Gowalla check-ins it protects in Figure 7.
CITIES = {"Miami": (25.801, -80.256), "Milwaukee": (43.038, -87.910), "Kansas City": (39.09, -94.59)}
CITY_KM = 20.0


def gowalla(region: Region) -> ExactCounts:
    """Gowalla's check-ins in a region."""
    path = dataset("gowalla")
    if path is None:
        source = SOURCES["gowalla"]
        raise SystemExit(
            f"SFUMATO_DATA: has no {source.file}; download {source.download} from {source.page} and run "
            f"python -m benchmarks.public_data gowalla {source.download} --output $SFUMATO_DATA"
        )
    table = pq.read_table(path, columns=["longitude", "latitude"])
    x, y = (table[name].to_numpy() for name in table.column_names)
    inside = (x >= region.west) & (x < region.east) & (y > region.south) & (y <= region.north)
    return ExactCounts.from_codes(BASE_DEPTH, Grid(region, BASE_DEPTH).codes(x[inside], y[inside]))


def city(name: str) -> tuple[ExactCounts, Field]:
    """The check-ins of one of CITIES, on 20 x 20 km."""
    latitude, longitude = CITIES[name]
    half = CITY_KM / 2 / (EARTH_RADIUS_KM * math.pi / 180)
    wide = half / math.cos(math.radians(latitude))
    region = Region(longitude - wide, latitude - half, longitude + wide, latitude + half)
    return gowalla(region), Field(Grid(region, BASE_DEPTH))


def synthetic(users: int) -> tuple[ExactCounts, Field]:
    """People of the synthetic city, out of their homes."""
    raster = city_rasters(2048)[ELSEWHERE]
    generator = np.random.default_rng(7)
    side = 14_000 / 111_195
    region = Region(-side / 2, -side / 2, side / 2, side / 2)
    return draw_users(raster, BASE_DEPTH, users, generator), Field(Grid(region, BASE_DEPTH))


def best_grid(
    exact: ExactCounts, spec: CollectionSpec, queries: QuerySample, seeds: Sequence[int]
) -> tuple[float, float]:
    """The least error of plain grids whose cells are cut off at 0, and its width in metres."""
    start = spec.default_width
    tried = []
    for width in start * 1.12 ** np.arange(-7, 8):
        errors = []
        for seed in seeds:
            counts = PlainGrid(float(width)).collect(exact, spec, _key(seed))
            answers = counts.table(np.maximum(counts.users, 0)).sum(queries.boxes)
            errors.append(queries.error(answers, spec.users))
        tried.append((float(np.mean(errors)), float(width)))
    return min(tried)


def adaptive_model(exact: ExactCounts, epsilon: float, key: RunKey) -> TreeModel:
    """The heatmap's adaptive method, counted by a trusted curator."""
    shift = np.uint64(2 * (BASE_DEPTH - TREE_DEPTH))
    places, generator = Places(TREE_DEPTH), np.random.default_rng(1)
    codes = generator.permutation(np.repeat(exact.codes, exact.users) >> shift)
    hashes = np.sort(generator.integers((1 << 64) - 1, size=len(codes), dtype=np.uint64))
    rows = Rows(places, hashes & ~places.mask, codes)
    parameters = CountParameters(epsilon=epsilon, depth=TREE_DEPTH, trust=Trust.CENTRAL, population=len(codes))
    state = run_in_memory(rows, len(codes), parameters, key)
    return TreeModel(parameters.method.decode(state, TREE_DEPTH))


def adaptive(exact: ExactCounts, spec: CollectionSpec, queries: QuerySample, seeds: Sequence[int]) -> float:
    """The error of the adaptive tree."""
    models = [adaptive_model(exact, spec.epsilon, _key(seed)) for seed in seeds]
    return float(np.mean([queries.error(one.answer(queries.boxes).users, spec.users) for one in models]))


def _key(seed: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"range queries benchmark"), {"seed": seed})


def table(
    exact: ExactCounts, field: Field, sizes: Sizes, epsilons: Sequence[float], seeds: Sequence[int], models: int
) -> Iterator[str]:
    """Lines of a Markdown table: an epsilon a row."""
    users = float(exact.users.sum())
    queries = QuerySample.draw(exact, field, sizes, QUERIES, np.random.default_rng(99))

    def neural(spec: CollectionSpec) -> RangeMethod:
        return SpatialNeural(spec.default_width, models=models)

    methods: dict[str, Callable[[CollectionSpec], RangeMethod]] = {
        "auto": lambda spec: METHODS["auto"](models=models),  # type: ignore[call-arg]
        LOCAL: neural,
        "grid": lambda spec: PlainGrid(spec.default_width),
        **{name: lambda _, name=name: BASELINES[name]() for name in ("dawa", "privtree", "ag", "ug")},
    }
    yield f"| epsilon | best grid (width) | local networks, that width | ratio | {' | '.join(methods)} | adaptive |"
    yield f"|---|---|---|---|{'---|' * len(methods)}---|"
    for epsilon in epsilons:
        spec = CollectionSpec(field, users, epsilon, sizes)
        yardstick, width = best_grid(exact, spec, queries, seeds)
        best = mean_relative_error(SpatialNeural(width, models=models), exact, spec, queries, seeds)
        errors: dict[str, float] = {}
        for name, make in methods.items():
            method = make(spec)
            if name == "auto":  # is one of the two that follow
                continue
            errors[name] = mean_relative_error(method, exact, spec, queries, seeds)
        chosen = METHODS["auto"](models=models).chosen(spec).NAME  # type: ignore[call-arg, attr-defined]
        errors = {"auto": errors[LOCAL if chosen == SpatialNeural.NAME else chosen], **errors}
        tree = adaptive(exact, spec, queries, seeds)
        cells = " | ".join(f"{errors[name]:.4f}" for name in methods)
        known = f"{yardstick:.4f} ({width:.0f} m) | {best:.4f} | {best / yardstick:.2f}"
        yield f"| {epsilon:g} | {known} | {cells} | {tree:.4f} |"


def speed() -> Iterator[str]:
    """Training of three networks, time of answers (best of 300 and of 3), sizes of the files: a Markdown table.

    The paper's form has its 8 networks, untrained: the time of an answer does not depend on the weights.
    """
    exact, field = cabs(True)
    users = float(exact.users.sum())
    sizes = Sizes(0.02 * UNIT, 0.08 * UNIT)
    spec = CollectionSpec(field, users, 0.1, sizes)
    queries = QuerySample.draw(exact, field, sizes, 200_000, np.random.default_rng(3)).boxes
    grid = PlainGrid(30.0)
    counts = grid.collect(exact, spec, _key(0))
    neural = SpatialNeural(spec.default_width)
    began = time.process_time()
    trained = [neural.train(one) for one in neural.trainings(counts, spec)]
    training = time.process_time() - began
    first = [train_paper(one, epochs=0, patience=None) for one in paper_training(counts, spec, 8, None)]
    models = {
        "3 local networks": (neural.model(counts, spec, trained), f"{training:.0f}"),
        "1 local network": (neural.model(counts, spec, trained[:1]), f"{training / 3:.0f}"),
        "the paper's form, k = 8": (PaperNetworks.from_grid(counts, spec, first), "-"),
        "grid": (grid.model(counts, spec, []), "0"),
    }
    yield "| model | training, processor s | one query a call, µs | 200,000 queries a call, µs each | file, kB |"
    yield "|---|---|---|---|---|"
    for name, (model, seconds) in models.items():
        single = [_seconds(model, queries.part(np.array([number]))) for number in range(300)]
        batch = [_seconds(model, queries) / len(queries) for _ in range(3)]
        size = len(model_bytes(RangeModel(field, model, name, 0.1)))
        each = f"{1e6 * min(single):,.0f} | {1e6 * min(batch):.1f}"
        yield f"| {name} | {seconds} | {each} | {size / 1000:,.0f} |"


def _seconds(model: Model, queries: Boxes) -> float:
    began = time.perf_counter()
    model.answer(queries)
    return time.perf_counter() - began


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cabs", "metres", "gowalla", "speed"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    options = parser.parse_args()
    seeds = range(options.seeds)
    if options.what == "speed":
        print("\n".join(speed()))
        return
    cases: list[tuple[str, ExactCounts, Field, Sizes]] = []
    if options.what == "cabs":
        exact, field = cabs(True)
        for low, high in ((0.02, 0.0275), (0.02, 0.08)):
            cases.append((f"SF cabs, sizes {low:g} to {high:g}", exact, field, Sizes(low * UNIT, high * UNIT)))
    elif options.what == "gowalla":
        cases += [(f"Gowalla, {name}, 25 to 100 m", *city(name), Sizes(25, 100)) for name in CITIES]
    else:
        cases.append(("SF cabs, 25 to 100 m", *cabs(False), Sizes(25, 100)))
        cases.append(("Synthetic city, 100,000 users, 25 to 100 m", *synthetic(100_000), Sizes(25, 100)))
    for title, exact, field, sizes in cases:
        print(f"\n{title}\n")
        for line in table(exact, field, sizes, options.epsilons, seeds, options.models):
            print(line, flush=True)


if __name__ == "__main__":
    main()
