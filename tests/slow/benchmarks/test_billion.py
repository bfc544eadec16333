"""The simulation of users above the grouping: the users drawn, and what is published of them."""

from __future__ import annotations

import re

import numpy as np

from benchmarks.billion import Simulation, Times, run, simulate
from benchmarks.evaluation.in_memory import planned_state
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.privacy.keys import FixedSecret, RunKey

USERS, DEPTH = 300_000, 6


def test_a_group_has_the_same_users_whenever_it_is_drawn() -> None:
    simulation, cohort = Simulation.of_city(DEPTH, 3), Cohort.plan(USERS, None, 1000, 0.2)
    first = simulation.keys(1, cohort)
    assert np.array_equal(first, simulation.keys(1, cohort))
    assert not np.array_equal(first[:1000], simulation.keys(2, cohort)[:1000])
    # 64 shards of 1,000 expected users: a Poisson number of 64,000, in all and in six of its deviations in each.
    assert abs(len(first) - 64_000) < 6 * 64_000**0.5
    sizes = np.bincount(first >> np.uint32(2 * DEPTH), minlength=64)
    assert np.abs(sizes - 1000).max() < 7 * 1000**0.5


def test_the_published_map_is_that_of_the_users_drawn() -> None:
    parameters = HeatmapParameters(depth=DEPTH, epsilon=8.0)
    key = RunKey.derive(FixedSecret(b"a test"), {})
    simulation = Simulation.of_city(DEPTH, 3)
    ended = run(simulation, planned_state(USERS, parameters, key), parameters, key, Times())
    assert abs(ended.exact.sum() - USERS) < 6 * USERS**0.5
    assert ended.state.query is None
    assert ended.draws >= ended.entries[0]
    # Every entry of the last sub-query that all shards answered, against the users drawn: 7 stated deviations.
    result = ended.state.results[-1]
    before = np.concatenate([[0], np.cumsum(ended.exact)])
    exact = result.tree.index.sum_intervals(np.diff(before[result.tree.index.boundaries.astype(int)])[None, :])[0]
    first, end = result.shard_range or (0, ended.state.cohort.shards)
    share = (end - first) / ended.state.cohort.shards
    deviation = np.sqrt(result.spent.noise_stddev**2 + exact / share)
    assert (np.abs(result.counts - exact) < 7 * deviation + 7).all()


def test_the_table_has_errors_times_and_memory() -> None:
    table = simulate(USERS, DEPTH)
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, flags=re.MULTILINE))
    assert float(rows["moved"].rstrip("%")) < 20
    assert int(rows["shards"].replace(",", "")) == 30
    for name in ("processor without the draw, s", "peak memory, GB", "typical error of a cell of 64 x 64, users"):
        assert float(rows[name].replace(",", "")) > 0
