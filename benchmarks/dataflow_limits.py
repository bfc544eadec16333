"""What a heatmap sends through Dataflow, against Dataflow's limits, at 54.6 million, 1 billion and 5 billion users.

    python -m benchmarks.dataflow_limits [--rows_per_user 20] [--depth 10] [--rows_per_file 4000000]

Measured here, on a million rows of the synthetic city: the graph that a job submits (Beam's own dry run, with logs in
an emulator of Google's storage), the encoded elements of each stage, and the processor time of a row, a user and a
draw of noise. Everything else is extrapolated, by the formulas of `sizes_at`. Assumed, and so options, are the rows of
a user and of a file, how much longer workers take than this machine (`--overhead`), and Google's list prices in dollars
(`--vcpu_hour`, `--gb_hour`, `--shuffle_gb`), which were not checked here. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.coders import registry
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

from benchmarks.billion import Simulation, Times, run
from benchmarks.evaluation.in_memory import planned_state
from sfumato.pipelines.command_line import cli
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.heatmap.release import release_files
from sfumato.transforms.inputs.parquet_log import BATCH_ROWS, SLICE_ROWS
from sfumato.transforms.locations import read, users
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.shards import ShardGroup, ShardPlan, build_shard_group, split_by_shard_group
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.secagg.shard_sums import ShardTotals
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.synth.people import make_records

USERS = (54_600_000, 1_000_000_000, 5_000_000_000)
GOAL_ELEMENT, GOAL_GROUP = 32e6, 2e9  # bytes: of an element, and of a group of users in memory
LIMIT_ELEMENT, LIMIT_REQUEST = 2e9, 20e6  # bytes: of an element in batch (beam #21180, #31607), of a job's request
_SAMPLE = 1_000_000  # users of the city
_STATE_USERS = 10_000_000  # of the simulation whose state is measured
_KEY = RunKey.derive(FixedSecret(b"of a benchmark"), {})


@dataclass(frozen=True)
class Graph:
    """A submitted graph: bytes, primitive steps, GroupByKeys and side inputs."""

    size: int
    steps: int
    group_by_keys: int
    side_inputs: int


@dataclass(frozen=True)
class Measured:
    """What was measured on this machine. Sizes in bytes, times in processor seconds.

    Attributes:
        row, user, key: of a record in a chunk, of a bounded user, of a user in an index.
        state, totals, release: of the largest side input, of a group's sums, and of the files of a release.
        row_s, user_s, draw_s: of a row (hashed, located, split), of a user (bounded, split, indexed), of a draw.
        draws: of noise, by a shard.
        graph: of a job of two files.
        file: of a further file in the graph.
    """

    row: float
    user: float
    key: float
    state: int
    totals: int
    release: int
    row_s: float
    user_s: float
    draw_s: float
    draws: float
    graph: Graph
    file: float


def user_groups(rows: int) -> int:
    """How many groups the users of so many rows are in."""
    return 1 << users.group_bits(rows)


def measure_graphs(depth: int) -> tuple[Graph, float]:
    """The graph of a job, and how many bytes a further file adds to it."""
    few, many = (_graph(depth, files) for files in (2, 402))
    return few, (many.size - few.size) / 400


def _graph(depth: int, files: int) -> Graph:
    from tests.storage import BUCKET, put, storage_emulator

    jobs, submit = [], DataflowRunner.run_pipeline

    def watch(self: Any, pipeline: Any, options: Any) -> Any:
        result = submit(self, pipeline, options)
        jobs.append(result.job.proto_pipeline)
        return result

    content = io.BytesIO()
    pq.write_table(make_records(0, 100, 0, city=build_city()), content)
    with tempfile.TemporaryDirectory() as folder, storage_emulator():
        put(f"{BUCKET}/key", os.urandom(32))
        for number in range(files):
            put(f"{BUCKET}/logs/part-{number:05d}-of-{files:05d}.parquet", content.getvalue())
        config = Path(folder) / "dry.yaml"
        shipped = (resources.files("sfumato.runner_configs") / "dataflow.yaml").read_text()
        config.write_text(f'{shipped}\nregion: us-central1\ndry_run: "True"\n')
        DataflowRunner.run_pipeline = watch
        try:
            job = ["heatmap", "--input", f"{BUCKET}/logs", "--output", f"{BUCKET}/out", "--depth", str(depth)]
            job += ["--region", str(PENUMBRA), "--runner_config", str(config), "--project", "a-project"]
            job += ["--temp_location", f"{BUCKET}/temp", "--key_file", f"{BUCKET}/key"]
            if cli.main(job):
                raise SystemExit("the job was refused")
        finally:
            DataflowRunner.run_pipeline = submit
    (graph,) = jobs
    steps = [one for one in graph.components.transforms.values() if one.spec.urn and not one.subtransforms]
    sides = sum(
        len(beam_runner_api_pb2.ParDoPayload.FromString(one.spec.payload).side_inputs)
        for one in steps
        if one.spec.urn == common_urns.primitives.PAR_DO.urn
    )
    grouping = sum(one.spec.urn == common_urns.primitives.GROUP_BY_KEY.urn for one in steps)
    return Graph(len(graph.SerializeToString()), len(steps), grouping, sides)


def measure(depth: int) -> Measured:
    """All of it."""
    places, parameters = Places(depth), CountParameters(depth=depth)
    records = make_records(0, _SAMPLE, 0, city=build_city())
    batch = records.select(LocationColumns().names()).combine_chunks().to_batches()[0]
    began = time.process_time()
    encoded = encode_locations(batch, LocationColumns(), Grid(PENUMBRA, depth), _KEY.subkey("users"))
    groups = users.UserGroups(Spill())
    groups.add(encoded)
    chunks = list(groups.chunks())
    row_s = (time.process_time() - began) / len(batch)
    shard_plan = ShardPlan.for_users(_SAMPLE, None, parameters.shard_size, parameters.dropout)
    bounded_bytes, parts, began = 0, dict[int, list[bytes]](), time.process_time()
    for number in {number for number, _ in chunks}:
        bounded = users.bound_users([chunk for key, chunk in chunks if key == number], places)
        bounded_bytes += len(Spill().store(bounded.data))
        for shard_group, keys in split_by_shard_group(bounded, shard_plan, places, Spill()):
            parts.setdefault(shard_group, []).append(keys)
    indexes = [build_shard_group(number, found, shard_plan, places, Spill()) for number, found in parts.items()]
    user_s = (time.process_time() - began) / _SAMPLE
    coder = registry.get_coder(ShardGroup)
    index_bytes = sum(len(coder.encode(index)) for index in indexes)
    times = Times()
    ended = run(Simulation.of_city(depth, 0), planned_state(_STATE_USERS, parameters, _KEY), parameters, _KEY, times)
    sums = sum(seconds for stage, seconds in times.seconds.items() if stage.startswith("sub-query"))
    files = release_files(
        ended.state,
        parameters,
        ReleaseMetadata("heatmap", "measured", "", "seed", False, {}),
        Grid(PENUMBRA, depth),
    )
    totals = ShardTotals(ended.state.results[-1].counts.astype("int64"), 64)
    graph, file = measure_graphs(depth)
    return Measured(
        row=sum(len(chunk) for _, chunk in chunks) / len(batch),
        user=bounded_bytes / _SAMPLE,
        key=index_bytes / _SAMPLE,
        state=len(registry.get_coder(CountState).encode(ended.state)),
        totals=len(registry.get_coder(ShardTotals).encode(totals)),
        release=sum(map(len, files.values())),
        row_s=row_s,
        user_s=user_s,
        draw_s=sums / ended.draws,
        draws=ended.draws / ended.state.shard_plan.shards,
        graph=graph,
        file=file,
    )


def sizes_at(population: int, found: Measured, options: argparse.Namespace) -> dict[str, str]:
    """The figures for so many users, each with its formula in the code."""
    rows = population * options.rows_per_user
    groups, files = user_groups(rows), -(-rows // options.rows_per_file)
    shard_plan = ShardPlan.for_users(population, None, CountParameters().shard_size, CountParameters().dropout)
    shard_groups = -(-shard_plan.shards >> shard_plan.group_shift)
    slices = max(files, -(-rows // SLICE_ROWS))
    bounded = groups * (1 + population // groups // read._USERS_PER_ELEMENT)
    in_group = population / shard_plan.shards * (1 << shard_plan.group_shift)
    # Numbers in a group or a shard vary by about their square root: six of these are exceeded once in 10^9.
    largest = {
        "chunk of records": found.row * _above(min(SLICE_ROWS + BATCH_ROWS, rows) / groups),
        "bounded users": found.user * _above(population / bounded),
        "keys of a shard group": found.key * _above(min(in_group, population / bounded)),
        "shard group": found.key * _above(in_group),
        "side input, the state": float(found.state),
        "sums of a shard group": float(found.totals),
    }
    shuffled = found.row * rows + found.key * population + found.totals * shard_groups
    stored = found.user * population + found.key * population
    group_memory = rows / groups * users.ROW_BYTES
    graph = found.graph.size + found.file * files
    processor = rows * found.row_s + population * found.user_s + shard_plan.shards * found.draws * found.draw_s
    hours = processor * options.overhead / 3600
    cost = hours * (options.vcpu_hour + 8 * options.gb_hour) + shuffled / 1e9 * options.shuffle_gb
    name = max(largest, key=lambda one: largest[one])
    return {
        "rows": f"{rows:,}",
        "files": f"{files:,}",
        "slices of files, the most workers that read": f"{slices:,}",
        "groups of users, the most workers that bound": f"{groups:,}",
        "shard groups, the most workers that sum": f"{shard_groups:,}",
        "elements": f"{files + slices + slices * groups + bounded + 2 * shard_groups:,}",
        **{f"largest {one}": _size(size) for one, size in largest.items()},
        "largest element of all (goal 32 MB, limit 2 GB)": f"{_size(largest[name])}, {name}: "
        f"{'met' if largest[name] <= GOAL_ELEMENT else 'missed'}",
        "bytes shuffled": _size(shuffled),
        "bytes that stages store without a shuffle": _size(stored),
        "side inputs, read by each worker": _size(found.graph.side_inputs * found.state),
        "memory of a group of users (goal 2 GB)": f"{_size(group_memory)}: "
        f"{'met' if group_memory <= GOAL_GROUP else 'missed'}",
        "graph (limit 20 MB)": f"{_size(graph)}: {'met' if graph <= LIMIT_REQUEST else 'missed'}",
        "processor time, s": f"{processor:,.0f}",
        "cost, dollars": f"{cost:,.2f}",
    }


def _above(mean: float) -> float:
    return mean + 6 * mean**0.5


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows_per_user", type=int, default=20)
    parser.add_argument("--rows_per_file", type=int, default=SLICE_ROWS)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--overhead", type=float, default=5, help="times the processor time of this machine")
    parser.add_argument("--vcpu_hour", type=float, default=0.056)
    parser.add_argument("--gb_hour", type=float, default=0.003557)
    parser.add_argument("--shuffle_gb", type=float, default=0.011)
    options = parser.parse_args()
    found = measure(options.depth)
    graph = found.graph
    print(f"Beam {beam.__version__}, pyarrow {pa.__version__}, depth {options.depth}\n")
    measured = [
        ("steps of the graph, GroupByKeys, side inputs", f"{graph.steps}, {graph.group_by_keys}, {graph.side_inputs}"),
        ("graph of 2 files, a further file", f"{_size(graph.size)}, {_size(found.file)}"),
        (
            "a record in a chunk, a bounded user, a user in an index",
            f"{found.row:.1f}, {found.user:.1f}, {found.key:.1f} B",
        ),
        ("state after the last sub-query, sums of a group", f"{_size(found.state)}, {_size(found.totals)}"),
        ("files of the release, between steps that are fused", _size(found.release)),
        (
            "processor time of a row, a user, a draw",
            f"{1e9 * found.row_s:.0f}, {1e9 * found.user_s:.0f}, {1e9 * found.draw_s:.1f} ns",
        ),
        ("draws of noise, by a shard", f"{found.draws:,.0f}"),
    ]
    print("| measured | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in measured), sep="\n")
    columns = [sizes_at(population, found, options) for population in USERS]
    print(
        "\n| "
        + " | ".join([f"{options.rows_per_user} rows a user", *(f"{one / 1e6:,g} M users" for one in USERS)])
        + " |"
    )
    print("|---" * (1 + len(USERS)) + "|")
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main()
