"""A heatmap of a billion users after the grouping: error, time and memory. Users are drawn, shards and noise are real.

    python -m benchmarks.billion [--users 1000000000] [--depth 10] [--epsilon 1] [--seed 0]

A shard has a Poisson number of users, and their cells are drawn from the synthetic city, independently. A group of
shards is drawn when a sub-query needs it, from its own seed, and is forgotten afterwards: at no time are there more
groups than threads. So nothing depends on the number of users but the time. What is measured is the job's own code: the
index of a group, the sums of its shards (counts, noise, modulo, decoding), the state machine, the estimator, and the
files of the release. What a job has before it, reading and grouping, is not. `draw` is the time of the simulation.

Errors are of the estimated users by cell, against the users drawn: `typical` is the root of the mean square over the
cells of a grid of 128 x 128, in users. `moved` is the share of users who are in another cell of that grid. Processor
times are of all threads. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import functools
import operator
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from benchmarks.city_people import density_raster
from benchmarks.evaluation.density_metrics import coarsen
from benchmarks.evaluation.in_memory import planned_state
from sfumato.pipelines.runners.runner_settings import processors
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Places, deinterleave
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.counting.sub_queries import advance_run
from sfumato.transforms.heatmap.release import release_files
from sfumato.transforms.locations.shards import ShardGroup, ShardPlan, build_shard_group, key_dtype, shards_in
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.secagg.shard_sums import NOTHING, ShardTotals, sum_shards
from sfumato.transforms.synth.landscape import city_rasters

SIDE = 128  # of the grid on which errors are measured
_QUANTILES = 1 << 22  # of the density: a user's cell is a uniform choice among so many


@dataclass
class Times:
    """Processor seconds by stage, added up by several threads."""

    seconds: dict[str, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, stage: str, began: float) -> float:
        """Adds the thread's time since `began`. Returns the time now."""
        now = time.thread_time()
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - began
        return now


@dataclass(frozen=True)
class Simulation:
    """Users by shard group.

    Attributes:
        places: the grid.
        cells: uint64[_QUANTILES], ascending: a user's cell is one of these, each with the same probability.
        seed: of the draws.
    """

    places: Places
    cells: NDArray[np.uint64]
    seed: int

    @classmethod
    def of_city(cls, depth: int, seed: int) -> Simulation:
        """Users of the synthetic city."""
        side = 1 << depth
        density = np.asarray(city_rasters(side)[0], dtype=np.float64)
        x, y = (one.astype(np.int64) for one in deinterleave(np.arange(side * side, dtype=np.uint64)))
        upto = np.cumsum(density[y, x])
        quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES * upto[-1]
        return cls(Places(depth), np.searchsorted(upto, quantiles).astype(np.uint64), seed)

    def keys(self, number: int, shard_plan: ShardPlan) -> NDArray[np.unsignedinteger]:
        """The keys of a group's users, in any order; the same at every call."""
        rng = np.random.default_rng([self.seed, number])
        _, shards = shards_in(number, shard_plan, shard_plan.group_shift)
        sizes = rng.poisson(shard_plan.users / shard_plan.shards, shards)
        kind = key_dtype(self.places)
        cells = self.cells[rng.integers(0, _QUANTILES, sizes.sum(), np.uint32)].astype(kind)
        return np.repeat(np.arange(shards, dtype=kind) << kind.type(self.places.bits), sizes) | cells


def run(simulation: Simulation, state: CountState, parameters: CountParameters, key: RunKey, times: Times) -> Run:
    """All sub-queries, over groups that are drawn as they are needed."""
    shard_plan, places = state.shard_plan, simulation.places
    exact, lock = np.zeros(4**places.depth, dtype=np.int64), Lock()
    groups = range(-(-shard_plan.shards >> shard_plan.group_shift))

    def group_of(number: int, is_first: bool) -> ShardGroup:
        began = time.thread_time()
        keys = simulation.keys(number, shard_plan)
        if is_first:
            counts = np.bincount((keys & keys.dtype.type(places.mask)).astype(np.int64), minlength=len(exact))
            with lock:
                exact[:] += counts
        began = times.add("draw", began)
        group = build_shard_group(number, [Spill().store(keys.data)], shard_plan, places, Spill())
        times.add("index" if is_first else "draw", began)  # a job builds the index once
        return group

    def totals_of(number: int) -> ShardTotals:
        assert state.query is not None
        first, end = state.query.shard_range or (0, shard_plan.shards)
        begin, shards = shards_in(number, shard_plan, shard_plan.group_shift)
        if state.query.index > 1 and (begin >= end or begin + shards <= first):
            return NOTHING
        group = group_of(number, state.query.index == 1)
        began = time.thread_time()
        found = sum_shards(group, state.query, key, parameters.shard_noise_source)
        times.add(f"sub-query {state.query.index}", began)
        return found

    draws, entries = 0, list[int]()
    with ThreadPoolExecutor(processors()) as pool:
        while state.query is not None:
            first, end = state.query.shard_range or (0, shard_plan.shards)
            draws += (end - first) * state.query.encoding.length
            entries.append(state.query.encoding.length)
            totals = functools.reduce(operator.add, pool.map(totals_of, groups), NOTHING)
            began = time.thread_time()
            state = advance_run(state, totals, parameters, key)
            times.add("next query", began)
    return Run(state, exact, draws, entries)


@dataclass(frozen=True)
class Run:
    """The end of a run: its state, the exact users by cell, the noise draws, and the entries of each sub-query."""

    state: CountState
    exact: NDArray[np.int64]
    draws: int
    entries: list[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000_000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(simulate(options.users, options.depth, options.epsilon, options.seed))


def simulate(users: int, depth: int = 10, epsilon: float = 1.0, seed: int = 0) -> str:
    """Runs a simulation. Returns its table."""
    began, times = time.perf_counter(), Times()
    parameters = CountParameters(depth=depth, epsilon=epsilon)
    key = RunKey.derive(FixedSecret(f"a simulation {seed}".encode()), {"users": users})
    ended = run(Simulation.of_city(depth, seed), planned_state(users, parameters, key), parameters, key, times)
    state, shard_plan = ended.state, ended.state.shard_plan
    start = time.thread_time()
    estimate = parameters.method.decode(state, depth)
    start = times.add("estimator", start)
    metadata = ReleaseMetadata("heatmap", "simulation", "", "seed", False, {})
    files = release_files(state, parameters, metadata, Grid(PENUMBRA, depth))
    times.add("release", start)
    wall = time.perf_counter() - began
    side = min(SIDE, 1 << depth)
    shown = coarsen(estimate_density(estimate), side) * estimate.counts.sum()
    truth = coarsen(density_raster(ended.exact), side) * ended.exact.sum()
    typical = float(np.sqrt(np.mean((shown - truth) ** 2)))
    moved = float(np.abs(shown / shown.sum() - truth / truth.sum()).sum()) / 2
    peak = max(int(found) for found in re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())) / 1e6
    groups = -(-shard_plan.shards >> shard_plan.group_shift)
    rows = [
        ("users", f"{ended.exact.sum():,}"),
        ("shards", f"{shard_plan.shards:,}"),
        ("groups of shards", f"{groups:,}"),
        ("entries of the sub-queries", ", ".join(f"{one:,}" for one in ended.entries)),
        ("noise draws, one an entry of a shard", f"{ended.draws:.3g}"),
        *((f"processor, {stage}, s", f"{seconds:.1f}") for stage, seconds in times.seconds.items()),
        ("processor without the draw, s", f"{sum(times.seconds.values()) - times.seconds['draw']:.1f}"),
        (f"whole simulation on {processors()} cores, s", f"{wall:.1f}"),
        ("peak memory, GB", f"{peak:.2f}"),
        ("files of the release, MB", f"{sum(map(len, files.values())) / 1e6:.2f}"),
        ("stated noise of a count, users", f"{state.results[-1].noise_stddev:,.0f}"),
        (f"typical error of a cell of {side} x {side}, users", f"{typical:,.0f}"),
        (f"mean users of a cell of {side} x {side}", f"{ended.exact.sum() / side**2:,.0f}"),
        ("moved", f"{100 * moved:.2f}%"),
    ]
    head = f"{os.cpu_count()} cores, depth {depth}, epsilon {epsilon:g}, seed {seed}\n\n| figure | value |\n|---|---|\n"
    return head + "\n".join(f"| {name} | {value} |" for name, value in rows)


if __name__ == "__main__":
    main()
