"""What one user can do to a release of flows: K trips, measured with the whole budget at most, after the charge.

An attacker adds a user with ten thousand trips, looks for a pair that is measured more often than the budget allows, or
for a row whose existence follows from the data without noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.locations import TripColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.flows import flow_tree
from sfumato.transforms.flows.flow_estimate import estimate_flows, estimate_zone_flows
from sfumato.transforms.flows.flow_tree import ZonedCells, measure_flows, measure_zone_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, PAIR_BITS, TripItems, count_prefixes, count_trips
from sfumato.transforms.histogram.user_sample import ItemCounts
from tests.attacks.jobs import charged_run, city, spent
from tests.conftest import write_files
from tests.keys import write_key
from tests.seeds import seeded_rng
from tests.unit.flows.samples import BITS, DEPTH, clustered, key_of
from tests.unit.zones.polygons import voronoi, zones_of

REGION = Region(-1.0, 50.0, 1.0, 51.0)
CELLS = Grid(REGION, MAX_PAIR_DEPTH)
KEY = key_of(0)


def trips(users: np.ndarray, seed: int = 0) -> pa.Table:
    rng = seeded_rng(seed)
    hubs = rng.uniform([-0.9, 50.05, -0.9, 50.05], [0.9, 50.95, 0.9, 50.95], (20, 4))
    place = hubs[rng.integers(0, 20, len(users))]
    return pa.table({"user_id": users, **dict(zip("abcd", place.T, strict=True))})


def counted(table: pa.Table, bound: int) -> ItemCounts:
    items = TripItems(TripColumns(("a", "b"), ("c", "d")), CELLS)
    (batch,) = table.combine_chunks().to_batches()
    sample = items.encode(batch, KEY, lambda users: np.ones(len(users), dtype=bool)).sample
    return count_trips(sample, bound, None, KEY)[0]


@pytest.mark.parametrize("bound", [1, 4])
def test_a_user_with_10000_trips_adds_as_many_as_one_with_k(bound: int) -> None:
    """At every level of the tree the counts move by K in all."""
    base = trips(np.repeat(np.arange(500), 3))
    before = counted(base, bound)
    for more in (bound, 10_000):
        after = counted(pa.concat_tables([base, trips(np.full(more, 999), seed=7)]), bound)
        for level in (1, 2, 3):
            nodes = np.arange(16**level, dtype=np.uint64)
            change = count_prefixes(after.items, after.counts, nodes, PAIR_BITS - 4 * level) - count_prefixes(
                before.items, before.counts, nodes, PAIR_BITS - 4 * level
            )
            assert change.min() >= 0  # no other user's draw moved
            assert change.sum() == bound


@pytest.mark.parametrize(("epsilon", "bound"), [(0.2, 1), (1.0, 1), (2.0, 5), (1e5, 2)])
def test_no_trip_is_measured_with_more_than_the_budget(
    epsilon: float, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draw of noise is watched: what each possible trip costs, over all pairs that hold it, times K."""
    draws: list[tuple[str, np.ndarray, float, int]] = []
    original = flow_tree.discrete_laplace

    def watched(key: Any, label: str, nodes: np.ndarray, count: int, rate: float, sensitivity: int) -> Any:
        draws.append((label, nodes, rate, sensitivity))
        return original(key, label, nodes, count, rate, sensitivity)

    monkeypatch.setattr(flow_tree, "discrete_laplace", watched)
    users = 20_000 if epsilon < 10 else 2_000  # so that some levels are measured, and not all pairs
    codes, counts = clustered(users)
    plan = FlowPlan(epsilon, max_trips=bound, depth=DEPTH)
    levels = measure_flows(codes, counts, BITS, plan, users, KEY)
    assert len(levels) > 1
    probes = np.concatenate([codes, seeded_rng(1).integers(0, 16**DEPTH, 20_000, dtype=np.uint64)])
    spent = np.zeros(len(probes))
    for label, nodes, rate, sensitivity in draws:
        assert sensitivity == bound
        assert len(np.unique(nodes)) == len(nodes)  # no pair twice: its noise would not be independent
        level = int(label.split()[-1])
        spent += np.isin(probes >> np.uint64(BITS - 4 * level), nodes) * rate / sensitivity
    assert (spent * bound <= plan.tree_epsilon * (1 + 1e-9)).all()
    assert (spent * bound >= plan.tree_epsilon * (1 - 1e-9)).all()  # and nothing is left over
    assert plan.tree_epsilon + plan.admission_rule.cost <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize("bound", [1, 4])
def test_a_user_moves_pairs_of_zones_by_k_measured_once(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal noise a user with 10,000 trips moves the counts by K; one draw has all pairs at the whole budget."""
    cells = ZonedCells(zones_of(voronoi(40, 2, (-1.0, 50.0, 1.0, 51.0))))
    plan, draws = FlowPlan(1.0, max_trips=bound), []
    original = flow_tree.discrete_laplace

    def watched(key: Any, label: str, nodes: np.ndarray, *rest: Any) -> Any:
        draws.append((nodes, *rest))
        return original(key, label, nodes, *rest)

    monkeypatch.setattr(flow_tree, "discrete_laplace", watched)
    base = trips(np.repeat(np.arange(500), 3))
    tables = [base, pa.concat_tables([base, trips(np.full(10_000, 999), seed=7)])]
    found = [counted(one, bound) for one in tables]
    before, after = (measure_zone_flows(one.items, one.counts, cells, plan, KEY).noisy for one in found)
    assert (after - before).min() >= 0
    assert (after - before).sum() == bound
    assert len(draws) == 2
    for nodes, count, epsilon, sensitivity in draws:
        assert np.array_equal(nodes, np.arange(40**2))
        assert (count, epsilon, sensitivity) == (1, plan.tree_epsilon, bound)


def test_pairs_of_zones_and_rests_do_not_depend_on_data() -> None:
    cells = ZonedCells(zones_of(voronoi(40, 2, (-1.0, 50.0, 1.0, 51.0))))
    nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    some = counted(trips(np.arange(500)), 1)
    for data in (nothing, (some.items, some.counts)):
        measured = measure_zone_flows(*data, cells, FlowPlan(1.0), KEY)
        assert np.array_equal(measured.nodes, np.arange(40**2))
        flows = estimate_zone_flows([measured])
        assert np.array_equal(flows.pair[flows.is_rest], np.arange(40))


def test_rows_of_rests_do_not_depend_on_the_data() -> None:
    nothing = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    plan = FlowPlan(1.0, depth=DEPTH)
    found = [estimate_flows(measure_flows(*data, BITS, plan, 20_000, KEY)) for data in (clustered(20_000), nothing)]
    assert found[0].is_rest.sum() == found[1].is_rest.sum() > 0
    for name in ("level", "pair"):
        first, second = (getattr(one, name)[one.is_rest] for one in found)
        assert np.array_equal(first, second)


def test_flows_are_a_function_of_the_noisy_counts_alone() -> None:
    """The estimator gets noisy counts and no exact one: two runs with equal noisy counts publish the same rows."""
    levels = measure_flows(*clustered(20_000), BITS, FlowPlan(1.0, depth=DEPTH), 20_000, KEY)
    assert {name for one in levels for name in vars(one)} == {"level", "nodes", "is_split", "noisy", "rate"}
    one, other = estimate_flows(levels), estimate_flows(levels)
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


def test_noise_is_drawn_after_the_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every draw the ledger holds the whole cost; a run whose charge is refused draws nothing."""
    pattern = write_files(city(2_000), tmp_path / "logs", 2)
    write_key(tmp_path / "key")
    charged = []
    original = flow_tree.discrete_laplace

    def watched(*arguments: Any) -> Any:
        charged.append(spent(tmp_path))
        return original(*arguments)

    monkeypatch.setattr(flow_tree, "discrete_laplace", watched)
    assert charged_run("flows", pattern, tmp_path, "--budget=2/1d") == 0
    assert charged
    assert set(charged) == {2}
    charged.clear()
    assert charged_run("flows", pattern, tmp_path, "--budget=2/1d", release_id="two") != 0
    assert not charged
