"""Tables 1 and 3 and Figures 6 to 8 of paper 000: every method on four maps, by `sfumato compare` itself.

    SFUMATO_DATA=... python -m benchmarks.comparison [--maps sf_cabs,...] [--keys 10] [--in_memory | --folder FOLDER]

Grids become user logs (one user a unit of a cell, at the cell's centre); each table is what the command above it
prints. Maps and evaluations are kept in the folder: open their index.html. With --in_memory the command's cases run on
cohorts drawn from the grids, without logs: the same figures but for the draw of the keys, in less time.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.baselines.heatmap_methods import BASELINES
from benchmarks.baselines.level_errors import best_uniform_level
from benchmarks.speed import command
from sfumato.pipelines.command_line import parse_command
from sfumato.pipelines.compare import CompareJob
from sfumato.pipelines.job import run_release
from sfumato.pipelines.runner_settings import settings_of
from sfumato.schemas.comparison import Outcome
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region, by_row, interleave
from sfumato.transforms.evaluation.cases import make_cases
from sfumato.transforms.evaluation.compare_request import SWEPT, CompareRequest
from sfumato.transforms.evaluation.comparison_table import Row, summarise, text_table
from sfumato.transforms.evaluation.evaluate_case import YARDSTICK_OPTIONS, evaluate_case, evaluate_yardstick
from sfumato.transforms.evaluation.in_memory import Rows
from sfumato.transforms.heatmap.heatmap_options import heatmap_options
from sfumato.transforms.heatmap.heatmap_request import lists_of
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret

_PART_USERS = 5_000_000


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
        "Figure 8, centre: the size of the shard that noise is for, with 10,000 clients who all answer",
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
        "Figure 8, centre: the complete algorithm, by the size of the shard that noise is for, if all clients answer",
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


def logs_of(one: Map, data: Path, folder: Path) -> str:
    """A pattern of Parquet logs of the map: the file itself, or a grid's users, written once."""
    source = data / one.file
    if source.suffix == ".parquet":
        return str(source)
    target = folder / source.stem
    if not target.exists():
        partial = target.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        counts = np.load(source).astype(np.int64)
        region, side = Region.parse(one.region), len(counts)
        ends = np.cumsum(counts.ravel())
        for number, first in enumerate(range(0, int(ends[-1]), _PART_USERS)):
            users = np.arange(first, min(first + _PART_USERS, int(ends[-1])))
            row, column = np.divmod(np.searchsorted(ends, users, side="right"), side)
            latitude = region.north - (row + 0.5) * (region.north - region.south) / side
            longitude = region.west + (column + 0.5) * (region.east - region.west) / side
            table = pa.table({"user_id": users, "latitude": latitude, "longitude": longitude})
            pq.write_table(table, partial / f"part-{number}.parquet")
        partial.rename(target)
    return str(target / "*.parquet")


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


_TWO_THREADS = ("--direct_num_workers", "2")


def run(command: list[str]) -> None:
    """Runs a command. Ends the program with its errors where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


def run_compare(
    name: str, given: list[str], pattern: str, folder: Path, runner: tuple[str, ...] = ()
) -> tuple[str, Path]:
    """Runs `sfumato compare` on logs: the command as it is shown, and the folder, named so, with what it wrote."""
    output = folder / "".join(c if c.isalnum() else "_" for c in name)
    run(command("compare", "--input", pattern, "--output", str(output), *given, "--overwrite", *runner))
    return _shown(given), output


def compare_map(title: str, name: str, options: str, pattern: str, folder: Path, keys: int) -> tuple[str, Path]:
    """Runs a comparison on logs of one of MAPS: its command, and the folder with what it wrote."""
    given = _given(name, options, keys)
    output = folder / "".join(c if c.isalnum() else "_" for c in title.split(":")[0] + "_" + name)
    job, left = job_of(["--input", pattern, "--output", str(output), *given, "--overwrite", *_TWO_THREADS])
    run_release(job, settings_of(job.request, left))
    return _shown(given), output


def job_of(arguments: Sequence[str]) -> tuple[CompareJob, list[str]]:
    """The job of a comparison, and the remaining arguments for Apache Beam.

    Parameters of registered methods, which the command does not have, are given like its options.
    """
    own, given = {}, list(arguments)
    for name, one in heatmap_options().items():
        if f"--{name}" in given and not one.help:
            at = given.index(f"--{name}")
            own[name] = [one.kind(value) for value in given[at + 1].split(",")]
            del given[at : at + 2]
    request, left = parse_command(CompareRequest, given)
    job = CompareJob.of(request)
    return replace(job, cases=make_cases(request.methods, {**lists_of(request, SWEPT), **own})), left


def _given(name: str, options: str, keys: int) -> list[str]:
    """The options of a comparison on one of MAPS."""
    one, depth = MAPS[name], [] if "--depth" in options else ["--depth", str(MAPS[name].depth)]
    return [f"--region={one.region}", *depth, *options.split(), "--keys", str(keys), "--seed", "1"]


def _shown(given: list[str]) -> str:
    """The command of a comparison with these options."""
    return f"sfumato compare --input MAP --output OUT {' '.join(given)}"


def compare_in_memory(name: str, options: str, truth: NDArray[np.int64], keys: int) -> tuple[str, str]:
    """The command of `compare_map` as it is shown, and the table of its cases on cohorts drawn from a map's counts."""
    shown, rows, metrics = rows_in_memory(name, options, truth, keys)
    return shown, text_table(rows, metrics)


def rows_in_memory(
    name: str, options: str, truth: NDArray[np.int64], keys: int
) -> tuple[str, list[Row], Sequence[str]]:
    """That command, the rows of that table, and the names of its metrics."""
    given = _given(name, options, keys)
    job, _ = job_of(["--input", "MAP", "--output", "OUT", *given])
    run_key = RunKey.derive(seed_secret(1), {"benchmark": "comparison"})
    sums = np.empty(truth.size)
    sums[_codes_by_row(len(truth)).astype(np.int64)] = truth.ravel()
    outcomes: list[Outcome] = []
    for number in range(keys):
        cohort = functools.cache(lambda users, key: draw_cohort(truth, users, key)[0])
        measured = set()
        for case in job.cases:
            users = case.parameters.users or int(truth.sum())
            rows, earlier = cohort(users, number), cohort(users, keys + number) if case.earlier else None
            shared = tuple(pair for pair in case.setting.options if pair[0] in YARDSTICK_OPTIONS)
            if shared not in measured:
                measured.add(shared)
                outcomes.append(evaluate_yardstick(case, rows, number, job.evaluation, sums, run_key))
            outcomes += evaluate_case(case, rows, int(truth.sum()), number, job.evaluation, sums, run_key, earlier)
    metrics = job.evaluation.metrics
    return _shown(given), summarise(outcomes, metrics), metrics


def print_run(title: str, made: Callable[[], tuple[str, Path | str]]) -> None:
    """Prints the table that `made` returns, or its folder, under its command; to the other stream how long it took."""
    begun = time.perf_counter()
    shown, output = made()
    text = output if isinstance(output, str) else (output / "table.md").read_text()
    print(f"### {title}\n\n    {shown}\n\n{text}", flush=True)
    print(f"{title}: {time.perf_counter() - begun:.0f} s, {time.process_time():.0f} s of CPU\n", file=sys.stderr)


def compare(title: str, name: str, options: str, source: str | NDArray[np.int64], folder: Path, keys: int) -> None:
    """Runs the command on logs, or its cases on a map's counts, and prints the table under it."""
    print_run(
        f"{title}, map `{name}`",
        lambda: (
            compare_map(title, name, options, source, folder, keys)
            if isinstance(source, str)
            else compare_in_memory(name, options, source, keys)
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", default=",".join(maps_at_hand()))
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("compare_data"))
    parser.add_argument("--in_memory", action="store_true", help="on cohorts drawn from the maps, without logs")
    parser.add_argument("--only", default="", help="tables and figures with this in their title, such as 'Figure 8'")
    options = parser.parse_args()
    METHODS.update(BASELINES)
    data = Path(os.environ["SFUMATO_DATA"])
    sources = {
        name: counts_of(MAPS[name], data) if options.in_memory else logs_of(MAPS[name], data, options.folder)
        for name in options.maps.split(",")
    }
    tables = [(*table, name) for name in sources for table in _TABLES]
    tables += [(*_FIGURE_6, name) for name in sources if name != "manhattan_like"]
    figures = [(*figure, next(iter(sources))) for figure in _FIGURES]
    for title, varied, name in [one for one in tables + figures if options.only in one[0]]:
        compare(title, name, varied, sources[name], options.folder, options.keys)


if __name__ == "__main__":
    main()
