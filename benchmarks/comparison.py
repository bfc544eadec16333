"""Tables 1 and 3 and Figures 7 and 8 of paper 000: every method on four maps, by `sfumato compare` itself.

    SFUMATO_DATA=... python -m benchmarks.comparison [--maps sf_cabs,...] [--keys 10] [--folder compare_data]

Grids become user logs (one user a unit of a cell, at the cell's centre); each table is what the command above it
prints. Maps and evaluations are kept in the folder: open their index.html.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.schemas.region import Region

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
}
# Its own algorithm as it stands; the defaults are better, see benchmarks/accuracy.py.
_ADAPTIVE = "--methods adaptive --schedule paper --estimator last"
_METHODS = "adaptive,flat,hierarchical,count_min,adaptive_grid,spatial_decomposition --schedule paper --estimator last"
_ALL = "mse,l1,l1_matrix_norm,mape,smape,maape"
# What is varied, map by map: (title, options).
_TABLES = {
    name: (f"Tables 1 and 3: {name}", f"--methods {_METHODS} --users 10000,100000 --dropout 0,0.1 --metrics {_ALL}")
    for name in MAPS
}
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
        f"{_ADAPTIVE} --users 10000 --calibration 0.01,0.03,0.1,0.3,1 --metrics mse",
    ),
    (
        "Figure 8, left: shard size",
        f"{_ADAPTIVE} --users 10000,100000 --shard_size 1000,2000,5000,10000,20000 --metrics mse",
    ),
    (
        "Figure 8, centre: dropout",
        f"{_ADAPTIVE} --users 10000,100000 --dropout 0,0.05,0.1,0.15,0.2 --metrics mse",
    ),
    (
        "Figure 8, right: the modulus (the first and noisiest sub-queries wrap around first)",
        f"{_ADAPTIVE} --users 10000,100000 --modulus 1024,4096,8192,16384,32768,65536 --allow_overflow --metrics mse",
    ),
]


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
    command = [sys.executable, "-m", "sfumato.pipelines.compare", "--input", pattern, "--output", str(output), *given]
    run([*command, "--overwrite", *runner])
    return f"sfumato compare --input MAP --output OUT {' '.join(given)}", output


def compare_map(title: str, name: str, options: str, pattern: str, folder: Path, keys: int) -> tuple[str, Path]:
    """Runs `sfumato compare` on one of MAPS."""
    one = MAPS[name]
    given = [f"--region={one.region}", "--depth", str(one.depth), *options.split(), "--keys", str(keys), "--seed", "1"]
    return run_compare(title.split(":")[0] + "_" + name, given, pattern, folder, _TWO_THREADS)


def print_run(title: str, made: Callable[[], tuple[str, Path]]) -> None:
    """Prints the table of what `made` returns under its command, and on the other stream how long it took."""
    begun = time.perf_counter()
    shown, output = made()
    print(f"### {title}\n\n    {shown}\n\n{(output / 'table.md').read_text()}")
    print(f"{time.perf_counter() - begun:.0f} s\n", file=sys.stderr)


def compare(title: str, name: str, options: str, pattern: str, folder: Path, keys: int) -> None:
    """Runs the command and prints its table under it."""
    print_run(f"{title}, map `{name}`", lambda: compare_map(title, name, options, pattern, folder, keys))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", default=",".join(MAPS))
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("compare_data"))
    parser.add_argument("--no_figures", action="store_true", help="the tables of all methods alone")
    options = parser.parse_args()
    data = Path(os.environ["SFUMATO_DATA"])
    patterns = {name: logs_of(MAPS[name], data, options.folder) for name in options.maps.split(",")}
    for name, pattern in patterns.items():
        compare(*(_TABLES[name][0], name, _TABLES[name][1]), pattern, options.folder, options.keys)
    first = next(iter(patterns))
    for title, varied in [] if options.no_figures else _FIGURES:
        compare(title, first, varied, patterns[first], options.folder, options.keys)


if __name__ == "__main__":
    main()
