"""Tables 1 and 3 and Figures 6 to 8 of paper 000: every method on four maps.

    SFUMATO_DATA=... python -m benchmarks.comparison [--maps sf_cabs,...] [--keys 10] [--only "Figure 8"]

Each table is printed under its options. Its cases run in memory, on cohorts drawn from the maps' counts (one user a
unit of a cell). It reads exact data: an evaluation, and no release.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.baselines.heatmap_methods import BASELINES
from benchmarks.baselines.level_errors import best_uniform_level
from benchmarks.evaluation.cases import parse_cases
from benchmarks.evaluation.comparison_table import Row, text_table
from benchmarks.evaluation.evaluate_case import compare_cases
from benchmarks.evaluation.in_memory import Rows
from sfumato.schemas.region import Grid, Places, Region, by_row, interleave
from sfumato.transforms.counting.methods import METHODS
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret


@dataclass(frozen=True)
class Map:
    """A map of the data's folder: a grid of counts, or logs as they are."""

    file: str
    region: str
    depth: int


MAPS = {
    "manhattan_like": Map("manhattan_like_1024x1024.npy", "-74.03,40.69,-73.90,40.88", 10),
    "sf_cabs": Map("sf_cabs_starts.parquet", "-122.51,37.70,-122.35,37.82", 10),
    "gowalla_world": Map("gowalla_world_256x256.npy", "-180,-90,180,90", 8),
    "beijing_taxi": Map("beijing_taxi_starts_256x256.npy", "116.2,39.8,116.6,40.1", 8),
    # Two maps that a reader downloads (benchmarks/public_data.py). The paper does not state their regions.
    "mayotte": Map("mayotte_1024x1024.npy", "44.95,-13.05,45.40,-12.60", 10),
    "lagos": Map("lagos_1024x1024.npy", "3.10,6.35,3.60,6.85", 10),
}
# The paper's algorithm as it stands; the defaults are better, see benchmarks/accuracy.py.
_ADAPTIVE = "--methods adaptive --schedule paper --estimator last"
# The paper's parameters: the least of a sketch's rows, and a budget that halves every three levels towards the leaves.
_METHODS = (
    "adaptive,flat,hierarchical,count_min,adaptive_grid,spatial_decomposition --schedule paper --estimator last "
    "--sketch_estimate min --budget_doubling -3"
)
_ALL = "mse,l1,l1_matrix_norm,mape,smape,maape"
# What is varied on every map: (title, options).
_TABLES = [
    ("Table 1", f"--methods {_METHODS} --users 10000,100000 --dropout 0,0.1 --metrics {_ALL}"),
    (
        "Table 1, other parameters: estimates from a sketch, and directions of the geometric budget",
        "--methods count_min,spatial_decomposition --sketch_estimate min,mean --budget_doubling -3,3 "
        "--users 10000,100000 --metrics mse",
    ),
]
_FIGURE_6 = (
    "Figure 6: Algorithm 2, and with a threshold of 10 users or a tenth of epsilon for each sub-query",
    f"{_ADAPTIVE} --users 100000 --split_count auto,10 --sub_query_share auto,0.1 --metrics mse,l1",
)
# Figure 8's own design: a complete tree of three levels at an epsilon of 0.1 each. 0.3030 leaves 0.3 after the user
# count. Its densities are of the 8 x 8 cells.
_THREE_LEVELS = "--methods hierarchical --depth 3 --epsilon 0.30303030303 --metrics mse"
_FIGURES = [
    (
        "Table 3, ablations (10,000 users): a threshold of 10 users, a tenth of epsilon for each sub-query",
        f"{_ADAPTIVE} --users 10000 --split_count auto,10 --sub_query_share auto,0.1 --metrics {_ALL}",
    ),
    (
        "Equation 7 as corrected, with the printed factor, and as printed altogether",
        f"{_ADAPTIVE} --users 10000,100000,1000000 --target corrected,literal_factor,printed --metrics mse",
    ),
    (
        "Figure 7, left: sample size",
        f"{_ADAPTIVE} --users 1000,3000,10000,30000,100000,300000,1000000 --epsilon 0.1,1 --metrics mse",
    ),
    (
        "Figure 7, right: the calibration parameter c",
        f"{_ADAPTIVE} --users 10000,100000 --calibration 0.01,0.03,0.1,0.3,1 --metrics mse",
    ),
    (
        "Figure 8, left: shard size, three levels at 0.1 each",
        f"{_THREE_LEVELS} --users 10000,100000 --shard_size 1000,2000,5000,10000,20000",
    ),
    (
        "Figure 8, centre: the shard size for which noise is planned, if all 10,000 clients answer",
        f"{_THREE_LEVELS} --users 10000,100000 --participation paper --dropout_margin 0.05,0.1,0.15,0.2",
    ),
    (
        "Figure 8, centre: clients who drop out, of shards that tolerate them",
        f"{_THREE_LEVELS} --users 10000,100000 --dropout 0,0.05,0.1,0.15,0.2",
    ),
    (
        "Figure 8, right: the modulus, three levels at 0.1 each",
        f"{_THREE_LEVELS} --users 10000,100000 --modulus 1024,2048,4096,8192,16384,65536 --allow_overflow",
    ),
    (
        "The complete algorithm by shard size",
        f"{_ADAPTIVE} --users 10000,100000 --shard_size 1000,2000,5000,10000,20000 --metrics mse",
    ),
    (
        "Figure 8, centre: the complete algorithm, by the shard size for which noise is planned, if all clients answer",
        f"{_ADAPTIVE} --users 10000,100000 --participation paper --dropout_margin 0.05,0.1,0.15,0.2 --metrics mse",
    ),
    (
        "Figure 8, centre: the complete algorithm, by clients who drop out",
        f"{_ADAPTIVE} --users 10000,100000 --participation planned,paper --dropout 0,0.05,0.1,0.15,0.2 --metrics mse",
    ),
    (
        "The complete algorithm by modulus (the first and noisiest sub-queries wrap around first)",
        f"{_ADAPTIVE} --users 10000,100000 --modulus 1024,4096,8192,16384,32768,65536 --allow_overflow --metrics mse",
    ),
]


def maps_at_hand() -> list[str]:
    """The maps whose file is in the data's folder."""
    return [name for name, one in MAPS.items() if (Path(os.environ.get("SFUMATO_DATA", "")) / one.file).exists()]


def counts_of(one: Map, data: Path) -> NDArray[np.int64]:
    """The users of a map's cells, int64[side, side], row 0 in the north."""
    if (data / one.file).suffix == ".npy":
        return np.asarray(np.load(data / one.file), dtype=np.int64)
    logs = pq.read_table(data / one.file, columns=["longitude", "latitude"])
    grid = Grid(Region.parse(one.region), one.depth)
    inside = grid.codes(logs["longitude"].to_numpy(), logs["latitude"].to_numpy())
    return by_row(np.bincount(inside.astype(np.int64), minlength=4**one.depth))


def draw_cohort(truth: NDArray[np.int64], users: int, key: int) -> tuple[Rows, float]:
    """Some users of a map in the order of their hashes, and their best level's error."""
    rng = np.random.default_rng([key, users])
    drawn = rng.multivariate_hypergeometric(truth.ravel(), users, method="marginals").reshape(truth.shape)
    codes = rng.permutation(np.repeat(_codes_by_row(len(truth)), drawn.ravel()))
    places = Places(len(truth).bit_length() - 1)
    hashes = np.sort((rng.random(users) * (users / truth.sum()) * 2.0**64).astype(np.uint64)) & ~places.mask
    return Rows(places, hashes, codes), best_uniform_level(drawn, truth / truth.sum())[1]


def _codes_by_row(side: int) -> NDArray[np.uint64]:
    """The code of each cell of a grid, row by row: uint64[side^2]."""
    row, column = np.divmod(np.arange(side * side, dtype=np.uint32), side)
    return interleave(column, row).astype(np.uint64)


def compare_on_map(name: str, options: str, truth: NDArray[np.int64], keys: int) -> tuple[list[Row], Sequence[str]]:
    """Compares methods on cohorts drawn from a map's counts.

    Args:
        name: of the map.
        options: see `parse_cases`. Without a depth, the map's.
        truth: the users of its cells, int64[side, side].
        keys: runs of each case, each with its own cohort and noise.

    Returns:
        The rows of the table, and the names of its metrics.
    """
    cases, metrics = parse_cases(options if "--depth" in options else f"--depth {MAPS[name].depth} {options}")
    sums = np.empty(truth.size)
    sums[_codes_by_row(len(truth)).astype(np.int64)] = truth.ravel()
    population = int(truth.sum())
    drawn = functools.lru_cache(8)(lambda users, number: draw_cohort(truth, users, number)[0])
    key = RunKey.derive(seed_secret(1), {"benchmark": "comparison"})
    rows = compare_cases(
        cases, metrics, keys, sums, population, lambda case, n: drawn(case.parameters.users or population, n), key
    )
    return rows, metrics


def print_table(title: str, options: str, keys: int, compared: Callable[[], tuple[list[Row], Sequence[str]]]) -> None:
    """Prints the table of a comparison under its options; to the other stream how long it took."""
    begun = time.perf_counter()
    rows, metrics = compared()
    print(f"### {title}\n\n    {options} --keys {keys}\n\n{text_table(rows, metrics)}", flush=True)
    print(f"{title}: {time.perf_counter() - begun:.0f} s, {time.process_time():.0f} s of CPU\n", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", default=",".join(maps_at_hand()))
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--only", default="", help="tables and figures with this in their title, such as 'Figure 8'")
    parser.add_argument("--options", help="another comparison, as --options='--methods flat,emd --metrics mse'")
    options = parser.parse_args()
    METHODS.update(BASELINES)
    data, maps = Path(os.environ["SFUMATO_DATA"]), options.maps.split(",")
    tables = [(*table, name) for name in maps for table in _TABLES]
    tables += [(*_FIGURE_6, name) for name in maps if name != "manhattan_like"]
    tables += [(*figure, maps[0]) for figure in _FIGURES]
    if options.options:
        tables = [("Comparison", options.options, name) for name in maps]
    counts = functools.cache(lambda name: counts_of(MAPS[name], data))
    for title, varied, name in [one for one in tables if options.only in one[0]]:
        run = functools.partial(compare_on_map, name, varied, counts(name), options.keys)
        print_table(f"{title}, map `{name}`", varied, options.keys, run)


if __name__ == "__main__":
    main()
