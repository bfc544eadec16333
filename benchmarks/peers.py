"""Peers at the same task: users per cell of a 64 x 64 grid at epsilon 1, one record a user enforced, from Parquet.

    python -m benchmarks.peers [--data bench_data] [--millions 1] [--only sfumato,duckdb]

Each peer runs in a process of its own, start-up included. duckdb has no noise of its own; its column is group-by-user,
count by cell, and NumPy's Laplace noise. PipelineDP runs on Beam's in-memory runner with public partitions.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.speed import REGION, command, data_set, resident

_DUCKDB = """
import sys, duckdb, numpy as np
west, south, east, north = map(float, sys.argv[2].split(","))
cells = duckdb.sql(f'''
  with one as (
    select user_id, min_by((longitude, latitude), hash(longitude, latitude)) as place
    from read_parquet('{sys.argv[1]}/*.parquet') group by user_id)
  select least(63, floor((north - place[2]) / (north - south) * 64))::int as y,
         least(63, floor((place[1] - west) / (east - west) * 64))::int as x, count(*) as users
  from one, (select {west} as west, {south} as south, {east} as east, {north} as north) group by all
''').fetchnumpy()
image = np.zeros((64, 64))
image[cells['y'], cells['x']] = cells['users']
image += np.random.default_rng().laplace(0, 1, image.shape)
assert image.sum() > 0
"""
_PIPELINE_DP = """
import glob, logging, sys
import apache_beam as beam, pipeline_dp, pyarrow.parquet as pq
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
logging.disable(logging.WARNING)
west, south, east, north = map(float, sys.argv[2].split(","))
def rows(path):
    for batch in pq.ParquetFile(path).iter_batches(65536, columns=['user_id', 'longitude', 'latitude']):
        yield from zip(*(column.to_pylist() for column in batch.columns))
def cell(row):
    x = min(63, int((row[1] - west) / (east - west) * 64)); y = min(63, int((north - row[2]) / (north - south) * 64))
    return y * 64 + x
with beam.Pipeline(runner=FnApiRunner()) as root:
    data = root | beam.Create(glob.glob(sys.argv[1] + '/*.parquet')) | beam.FlatMap(rows)
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-9)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.BeamBackend())
    parameters = pipeline_dp.AggregateParams(
        metrics=[pipeline_dp.Metrics.COUNT], noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        max_partitions_contributed=1, max_contributions_per_partition=1)
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0], partition_extractor=cell, value_extractor=lambda row: 0)
    result = engine.aggregate(data, parameters, extractors, public_partitions=list(range(4096)))
    accountant.compute_budgets()
    _ = result | beam.combiners.Count.Globally() | beam.Map(lambda n: n == 4096 or sys.exit('partitions missing'))
"""


def run(arguments: list[str]) -> tuple[float, float]:
    """Wall seconds and peak resident MB of a command and its children."""
    began, peak = time.perf_counter(), 0
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(0.25)
        if process.returncode:
            raise SystemExit(process.stderr.read().decode() if process.stderr else "failed")
    return time.perf_counter() - began, peak / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--millions", type=float, default=1)
    parser.add_argument("--only", default="sfumato,duckdb,PipelineDP", help="peers to run, comma-separated")
    options = parser.parse_args()
    folder, region = str(data_set(options.data, options.millions)), ",".join(map(str, REGION))
    with tempfile.TemporaryDirectory() as out:
        peers = {
            "sfumato heatmap, depth 6, all sub-queries": command(
                "heatmap", "--input", f"{folder}/*.parquet", "--output", f"{out}/release", "--region", region,
                "--depth", "6", "--epsilon", "1",
            ),
            "duckdb, grouped by user first": [sys.executable, "-c", _DUCKDB, folder, region],
            "PipelineDP on Beam": [sys.executable, "-c", _PIPELINE_DP, folder, region],
        }  # fmt: skip
        print(f"{psutil.cpu_count()} cores, {options.millions:g} million users\n")
        print("| peer | seconds | million users/s | peak MB |")
        print("|---|---|---|---|")
        for name, arguments in peers.items():
            if name.split()[0].strip(",") not in options.only.split(","):
                continue
            seconds, peak = run(arguments)
            print(f"| {name} | {seconds:.1f} | {options.millions / seconds:.3f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
