"""Moments: one user more or less is in as many counts as the noise is for, and nothing exact is published.

Finding 2 of guarantee.md's table, for this job: before, `sfumato moments` published the exact number of users and of
reports by bit, and quotas moved other users' bits when somebody joined. Every sensitivity is found by brute force,
under the same key, in whole runs of the protocol. The second round's questions are held, as they are where the noisy
tallies of the first are equal.
"""

from __future__ import annotations

import functools
import io
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.moments import FixedPoint, Method, Statistic, ValueColumns
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_unusable
from sfumato.transforms.moments.client_values import Block, Values, split_by_user, user_blocks
from sfumato.transforms.moments.groups import ColumnGroups, Grouping
from sfumato.transforms.moments.local.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.local.tally import Query, Tally, count_reports, sum_tallies
from sfumato.transforms.moments.release import MomentsMetadata, moments_files
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.seeds import seeded_rng

FORM = FixedPoint(bits=5)
CITIES = ColumnGroups("city", ("Bath", "Cork"))
ALL = (Statistic("mean"), Statistic("variance"), Statistic("moment:3"), Statistic("geometric_mean"))


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"attacks on moments" * 2), {"number": number})


def log(users: int, seed: int) -> pa.RecordBatch:
    """One to three records a user, some of them unusable."""
    rng = seeded_rng(seed)
    ids = np.repeat(np.arange(users), rng.integers(1, 4, users))
    numbers = pa.array(rng.integers(0, 32, len(ids)).astype(float), mask=rng.random(len(ids)) < 0.1)
    cities = pa.array(rng.choice(["Bath", "Cork", "Rome"], len(ids)).tolist())
    return pa.RecordBatch.from_pydict({"user_id": pa.array(ids), "x": numbers, "city": cities})


def blocks(batch: pa.RecordBatch, values: Values, run_key: RunKey) -> list[Block]:
    """As the job makes them."""
    parts: dict[int, list[bytes]] = {}
    for group, stored in split_by_user(values.encode(batch, run_key), Spill(None)):
        parts.setdefault(group, []).append(stored)
    records = (split_unusable(chunks)[0] for chunks in parts.values())
    return [block for chunks in records if chunks for block in user_blocks(chunks, values, run_key)]


def counted(made: list[Block], query: Query, plan: MomentsPlan, groups: int, run_key: RunKey) -> Tally:
    none = Tally(*np.zeros((2, groups, len(query.quantity.slots)), np.int64))
    return sum_tallies([none, *(count_reports(block, query, groups, plan.response, run_key) for block in made)])


def values_of(grouping: Grouping | None) -> Values:
    return Values(ValueColumns("x", group=None if grouping is None else "city"), FORM, grouping and grouping.groups)


def ran(
    batch: pa.RecordBatch, plan: MomentsPlan, grouping: Grouping | None, run_key: RunKey
) -> tuple[MomentsState, list[Tally]]:
    """The whole run, and its exact tallies."""
    values = values_of(grouping)
    made, groups = blocks(batch, values, run_key), 1 if grouping is None else len(grouping.groups) + 1
    state, exact = MomentsState(plan), []
    for _ in plan.stages:
        queries = plan.next_queries(state)
        tallies = [counted(made, query, plan, groups, run_key) for query in queries]
        exact += tallies
        state = state.advance(queries, plan.protect(queries, tallies, run_key))
    return state, exact


@functools.cache
def blocks_without(gone: int | None, grouping: Grouping | None, seed: int) -> list[Block]:
    """The blocks of twelve users but one."""
    batch = log(12, seed)
    kept = batch if gone is None else batch.filter(pa.array(np.array(batch.column("user_id")) != gone))
    return blocks(kept, values_of(grouping), key(seed))


@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize("grouping", [None, Grouping(CITIES)], ids=["all", "groups"])
@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("method", ["adaptive", "threshold"])
def test_one_user_adds_one_to_as_many_counts_of_one_tally_as_they_report_bits(
    reports: int, grouping: Grouping | None, epsilon: float | None, method: Method
) -> None:
    plan = MomentsPlan(form=FORM, statistics=ALL, method=method, epsilon=epsilon, bits_per_client=reports)
    groups = 1 if grouping is None else len(grouping.groups) + 1
    for seed in range(2):
        state, _ = ran(log(12, seed), plan, grouping, key(seed))
        everybody = blocks_without(None, grouping, seed)
        before = [counted(everybody, query, plan, groups, key(seed)) for query, _ in state.tallies]
        for gone in range(12):
            kept = blocks_without(gone, grouping, seed)
            usable = len(np.concatenate([one.codes for one in everybody])) - sum(map(len, kept))
            assert usable in (0, 1)
            tallies, moved = 0, 0
            for (query, _), full in zip(state.tallies, before, strict=True):
                less = counted(kept, query, plan, groups, key(seed))
                changes = np.stack([full.ones - less.ones, full.zeros - less.zeros])
                assert set(changes.ravel().tolist()) <= {0, 1}  # nobody else's report moved
                tallies += bool(changes.any())
                moved += int(changes.sum())
            assert (tallies, moved) == (usable, usable * reports)


def test_the_noise_is_for_that_many_counts() -> None:
    """Its scale is what a user's reports and the tallies' part of epsilon need, with groups and without."""
    for epsilon, reports in itertools.product((0.1, 1.0, 3.0), (1, 2, 5)):
        plan = MomentsPlan(form=FORM, epsilon=epsilon, bits_per_client=reports)
        assert plan.noise_stddev >= discrete_laplace_stddev(epsilon, reports)
        assert plan.tally_epsilon is not None
        assert plan.tally_epsilon + plan.admission().epsilon <= epsilon * (1 + 1e-12)
        apart = MomentsPlan(form=FORM, epsilon=epsilon, release_epsilon=0.5, bits_per_client=reports)
        assert apart.noise_stddev >= discrete_laplace_stddev(0.5, reports)


@pytest.mark.parametrize(
    ("grouping", "method"),
    [(None, "adaptive"), (Grouping(CITIES, 1), "adaptive"), (None, "threshold")],
    ids=["all", "groups", "thresholds"],
)
def test_the_release_is_a_function_of_the_noisy_tallies_alone(grouping: Grouping | None, method: Method) -> None:
    """Two logs whose noisy tallies are the same have the same files: one user more, and noise that takes them away."""
    plan = MomentsPlan(form=FORM, statistics=ALL[:2], method=method, epsilon=1.0)
    metadata = release(grouping)
    batch, users = log(60, 1), np.array(log(60, 1).column("user_id"))
    state, _ = ran(batch, plan, grouping, key())
    without = batch.filter(pa.array(users != 7))
    assert without.num_rows < batch.num_rows
    replayed = MomentsState(plan)
    values = values_of(grouping)
    made, groups = blocks(without, values, key()), 1 if grouping is None else len(grouping.groups) + 1
    for queries, noisy in stages(plan, state):
        found = plan.next_queries(replayed)  # what is asked next follows from the noisy tallies
        for one, query in zip(found, queries, strict=True):
            assert one.probabilities.tolist() == query.probabilities.tolist()
            assert one.quantity.centre == query.quantity.centre
        exact = [counted(made, query, plan, groups, key()) for query in found]
        noise = [Tally(one.ones - few.ones, one.zeros - few.zeros) for one, few in zip(noisy, exact, strict=True)]
        replayed = replayed.advance(found, [few + one for few, one in zip(exact, noise, strict=True)])
    assert moments_files(state, metadata) == moments_files(replayed, metadata)


def stages(plan: MomentsPlan, state: MomentsState) -> list[tuple[list[Query], list[Tally]]]:
    rounds = iter(state.tallies)
    pairs = [[next(rounds) for _ in stage] for stage in plan.stages]
    return [([query for query, _ in stage], [counted for _, counted in stage]) for stage in pairs]


def release(grouping: Grouping | None) -> MomentsMetadata:
    metadata = ReleaseMetadata("moments", "a", "2026-11-21T00:00:00+00:00", "key file", True, {"column": "x"})
    return MomentsMetadata(metadata, grouping, "x", True)


@pytest.mark.parametrize("grouping", [None, Grouping(CITIES, 1)], ids=["all", "groups"])
def test_no_count_is_published_as_it_is(grouping: Grouping | None) -> None:
    """Over three keys: a published number equals the exact one no more often than its noise is 0."""
    plan = MomentsPlan(form=FORM, statistics=ALL[:1], epsilon=0.5)
    equal, looked = 0, 0
    for number in range(3):
        batch = log(400, 3)
        state, exact = ran(batch, plan, grouping, key(number))
        files = moments_files(state, release(grouping))
        results = json.loads(files["manifest.json"])["results"]
        reports = np.array(pq.read_table(io.BytesIO(files["bits.parquet"]))["reports"])
        true = sum(one.reports.sum(axis=0) for one in exact)
        found = [*reports.tolist(), *(one["reports"] for one in results["rounds"]), results["clients"]]
        wanted = [*true.tolist(), *(int(one.reports.sum()) for one in exact), int(true.sum())]
        equal += sum(one == other for one, other in zip(found, wanted, strict=True))
        looked += len(found)
    # Four discrete Laplace variates of epsilon 0.5 and more: together they are 0 with a probability below 8%.
    assert equal < 0.08 * looked + 5 * np.sqrt(0.08 * looked)
