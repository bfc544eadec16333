"""Accuracy of the adaptive heatmap on the SF cabs, beside the paper's non-private yardstick on the same users.

    SFUMATO_DATA=... python -m benchmarks.accuracy [--keys 10] [--depth 10] [--epsilon 1]

The yardstick is the uniform quadtree level of best MSE, built from the exact locations of the users who took part
(paper 000, Section 6.2). With everybody in the cohort it knows the truth and its error is 0.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.heatmap.metrics import best_uniform_level, mean_squared_error
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.raster import density, histogram
from sfumato.transforms.heatmap.schedule import advance, start
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.shards import build_shard_group, split_by_shard_group
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import bound_users, split_by_user_group
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.secagg.shards import sum_shards

# Every trip of the set starts in here.
REGION = Region(-122.51, 37.70, -122.35, 37.82)


def run(path: Path, parameters: HeatmapParameters, number: int) -> dict[str, float]:
    """One key: the job's own stages called one after the other, without a runner."""
    key = RunKey.derive(FixedSecret(b"accuracy benchmark"), {"number": number, "users": parameters.users})
    grid, spill = Grid(REGION, parameters.depth), Spill()
    batch = pq.read_table(path).combine_chunks().to_batches()[0]
    encoded = encode_locations(batch, LocationColumns(), grid, key.subkey("users"))
    words = np.concatenate([bound_users([chunk], grid.depth) for _, chunk in split_by_user_group(encoded, spill)])
    state = start(len(words), parameters, key)
    chunks: dict[int, list[bytes]] = {}
    for group, chunk in split_by_shard_group(words, state.cohort, grid.depth, spill):
        chunks.setdefault(group, []).append(chunk)
    groups = [build_shard_group(group, mine, state.cohort, grid.depth, spill) for group, mine in chunks.items()]
    while state.query is not None:
        totals = [sum_shards(group, state.query, key) for group in groups]
        state = advance(state, sum(totals[1:], start=totals[0]), parameters)
    mask = np.uint64(4**grid.depth - 1)
    everybody = histogram(words & mask, grid.depth, grid.depth)
    truth = everybody / everybody.sum()
    cohort = np.concatenate([group.keys.astype(np.uint64) & mask for group in groups])
    level, yardstick = best_uniform_level(histogram(cohort, grid.depth, grid.depth), truth)
    final = state.answers[-1]
    return {
        "mse": mean_squared_error(density(final.tree, final.counts), truth),
        "yardstick": yardstick,
        "level": level,
        "entries": sum(answer.spent.vector_length for answer in state.answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    path = Path(os.environ["SFUMATO_DATA"]) / "sf_cabs_starts.parquet"
    population = pq.ParquetFile(path).metadata.num_rows
    print(f"SF cabs, {population:,} users, depth {options.depth}, epsilon {options.epsilon:g}, {options.keys} keys\n")
    print("| users asked | MSE | non-private best level | ratio | entries a client |")
    print("|---|---|---|---|---|")
    for users in (10_000, 100_000, None):
        parameters = HeatmapParameters(depth=options.depth, epsilon=options.epsilon, users=users, population=population)
        runs = [run(path, parameters, number) for number in range(options.keys)]
        mse, yardstick, level, entries = (
            np.mean([one[name] for one in runs]) for name in ("mse", "yardstick", "level", "entries")
        )
        ratio = f"{mse / yardstick:.2f}" if yardstick > 0 else "-"
        name = f"{users:,}" if users else "all"
        print(f"| {name} | {mse:.3g} | {yardstick:.3g} (level {level:.1f}) | {ratio} | {entries:.0f} |")


if __name__ == "__main__":
    main()
