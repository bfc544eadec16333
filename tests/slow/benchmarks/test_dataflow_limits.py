"""The formulas of the page of Dataflow's limits, from given measurements."""

from __future__ import annotations

from argparse import Namespace

import pytest

pytest.importorskip("apache_beam.runners.dataflow.dataflow_runner", reason="needs apache-beam[gcp]")

from benchmarks.dataflow_limits import USERS, Graph, Measured, sizes_at, user_groups

FOUND = Measured(12, 8, 4, 600_000, 200_000, 13_000_000, 5e-8, 2e-8, 2e-8, 25_000, Graph(134_000, 59, 8, 12), 46)
OPTIONS = Namespace(
    rows_per_user=20, rows_per_file=4_000_000, overhead=5,
    vcpu_hour=0.056, gb_hour=0.003557, shuffle_gb=0.011,
)  # fmt: skip


def test_the_figures_follow_from_what_was_measured() -> None:
    found = sizes_at(1_000_000_000, FOUND, OPTIONS)
    assert found["rows"] == "20,000,000,000"
    assert found["files"] == "5,000"
    assert found["shard groups, the most workers that sum"] == "1,563"  # 100,000 shards of 10,000 users, 64 a group
    assert found["bytes shuffled"] == "244 GB"  # 12 B a row, 4 B a user, 200 kB a shard group
    assert found["graph (limit 20 MB)"] == "364 kB: met"
    assert found["groups of users, the most workers that bound"] == f"{user_groups(20 * 10**9):,}"
    assert found["processor time, s"] == f"{20e9 * 5e-8 + 1e9 * 2e-8 + 100_000 * 25_000 * 2e-8:,.0f}"


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("rows", [1, 20])
def test_no_element_is_larger_than_the_goal(users: int, rows: int) -> None:
    found = sizes_at(users, FOUND, Namespace(**{**vars(OPTIONS), "rows_per_user": rows}))
    assert found["largest element of all (goal 32 MB, limit 2 GB)"].endswith("met")
