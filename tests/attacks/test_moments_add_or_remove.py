"""Moments: one user more or less is in as many counts as the noise is for, and nothing exact is published.

Finding 2 of guarantee.md's table, for this job: before, `sfumato moments` published the exact number of users and of
reports by bit, and quotas moved other users' bits when somebody joined. Every sensitivity is found by brute force,
under the same key, in whole runs of the protocol. The second round's questions are held, as they are where the noisy
tallies of the first are equal.
"""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from sfumato.schemas.moments import FixedPoint, Method, Statistic, ValueColumns, ValueRange
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_unusable
from sfumato.transforms.moments import transform
from sfumato.transforms.moments.central.bernstein_sums import ExactSums
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.client_values import Block, Values, encode_columns, split_by_user, user_blocks
from sfumato.transforms.moments.groups import ColumnGroups, Grouping
from sfumato.transforms.moments.local.allocation import chosen_method
from sfumato.transforms.moments.local.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.local.quantities import Quantity
from sfumato.transforms.moments.local.tally import Query, Tally, count_reports, sum_tallies
from sfumato.transforms.moments.release import MomentsMetadata, moments_files
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, random_bits
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

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
def test_one_user_adds_one_to_a_count_for_each_reported_bit(
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


# Covariances: one user with both numbers is in as many counts as the noise is for, in every trust model.
#
# With a second column a user has two values. They must not have two reports, nor add twice to a trusted curator's
# sums. Every sensitivity is found by brute force, under the same key, in whole runs.


PAIR_FORM, SECOND = FixedPoint(5), FixedPoint(4, 0, "split")
SPANS = (ValueRange(0.0, 20.0), ValueRange(-5.0, 5.0))
PAIR_CITIES = Grouping(ColumnGroups("city", ("Bath", "Cork")))
OF_PAIRS = tuple(map(Statistic, ("covariance", "correlation", "mean")))


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"attacks on pairs" * 2), {"number": number})


def log_of_pairs(users: int, seed: int) -> pa.RecordBatch:
    """One to three records a user; many values beyond their ranges, some missing in either column."""
    rng = seeded_rng(seed)
    ids = np.repeat(np.arange(users), rng.integers(1, 4, users))
    x = pa.array(rng.integers(0, 40, len(ids)).astype(float), mask=rng.random(len(ids)) < 0.1)
    y = pa.array(rng.integers(-30, 30, len(ids)).astype(float), mask=rng.random(len(ids)) < 0.1)
    cities = pa.array(rng.choice(["Bath", "Cork", "Rome"], len(ids)).tolist())
    return pa.RecordBatch.from_pydict({"user_id": pa.array(ids), "x": x, "y": y, "city": cities})


def pair_blocks(batch: pa.RecordBatch, is_central: bool, grouping: Grouping | None) -> list[Block]:
    """As the job makes them."""
    columns = ValueColumns("x", group=None if grouping is None else "city", second="y")
    groups = None if grouping is None else grouping.groups
    values = Values(columns, None if is_central else PAIR_FORM, groups, None if is_central else SECOND)
    parts: dict[int, list[bytes]] = {}
    for group, stored in split_by_user(values.encode(batch, key()), Spill(None)):
        parts.setdefault(group, []).append(stored)
    records = (split_unusable(chunks)[0] for chunks in parts.values())
    return [block for chunks in records if chunks for block in user_blocks(chunks, values, key())]


def is_usable(batch: pa.RecordBatch, user: int) -> bool:
    frame = batch.to_pandas()
    return bool((frame["user_id"] == user).to_numpy() @ frame[["x", "y"]].notna().all(axis=1).to_numpy())


def counted(made: list[Block], query: Query, plan: MomentsPlan, rows: int) -> Tally:
    none = Tally(*np.zeros((2, rows, len(query.quantity.slots)), np.int64))
    return sum_tallies([none, *(count_reports(block, query, rows, plan.response, key()) for block in made)])


@pytest.mark.parametrize("reports", [1, 3])
@pytest.mark.parametrize("grouping", [None, PAIR_CITIES], ids=["all", "groups"])
@pytest.mark.parametrize(("method", "epsilon"), [("adaptive", 1.0), ("weighted", None), ("threshold", 1.0)])
def test_both_numbers_of_a_user_are_in_the_counts_of_one_query(
    reports: int, grouping: Grouping | None, method: Method, epsilon: float | None
) -> None:
    plan = MomentsPlan(
        form=PAIR_FORM, second=SECOND, statistics=OF_PAIRS, method=method, epsilon=epsilon, bits_per_client=reports
    )
    rows = 1 if grouping is None else grouping.tally_rows
    batch, state = log_of_pairs(12, 1), MomentsState(plan)
    everybody = pair_blocks(batch, False, grouping)
    for _ in plan.stages:
        queries = plan.next_queries(state)
        tallies = [counted(everybody, query, plan, rows) for query in queries]
        state = state.advance(queries, plan.protect(queries, tallies, key()))
    queries = [query for query, _ in state.tallies]
    assert {query.quantity.kind for query in queries} == set(plan.quantities)
    before = [counted(everybody, query, plan, rows) for query in queries]
    users = np.array(batch.column("user_id"))
    for gone in range(12):
        kept = pair_blocks(batch.filter(pa.array(users != gone)), False, grouping)
        moved = []
        for query, full in zip(queries, before, strict=True):
            less = counted(kept, query, plan, rows)
            changes = np.stack([full.ones - less.ones, full.zeros - less.zeros])
            assert set(changes.ravel().tolist()) <= {0, 1}  # nobody else's report moved
            moved.append(int(changes.sum()))
        assert sorted(moved)[:-1] == [0] * (len(moved) - 1)
        assert max(moved) == reports * is_usable(batch, gone)


def test_the_order_of_rows_chooses_no_pair() -> None:
    """The first number of one record never goes with the second number of another."""
    batch = log_of_pairs(30, 2)
    order = seeded_rng(3).permutation(batch.num_rows)
    for is_central in (False, True):
        one, other = (pair_blocks(rows, is_central, None) for rows in (batch, batch.take(pa.array(order))))
        found = [sorted(np.concatenate([block.codes for block in made]).tolist(), key=str) for made in (one, other)]
        assert found[0] == found[1]
    frame = batch.to_pandas().dropna()
    values = frame["x"].to_numpy() + 1j * frame["y"].to_numpy()
    assert set(np.concatenate([block.codes for block in pair_blocks(batch, True, None)]).tolist()) <= set(
        values.tolist()
    )


def test_no_pair_changes_a_report_by_more_than_epsilon() -> None:
    """Every bit of the product of every two pairs: a report is its bit or the complement, with odds of e^epsilon."""
    epsilon = 0.7
    plan = MomentsPlan(form=PAIR_FORM, second=SECOND, statistics=OF_PAIRS, epsilon=epsilon)
    grid = np.array([x + 1j * y for x, y in itertools.product(range(32), range(-15, 16))])
    codes, _ = encode_columns(grid, PAIR_FORM, SECOND)
    product = Quantity(PAIR_FORM, "product", 11.3, second=SECOND, second_centre=-0.4)
    units = product.codes(codes, np.full(len(codes), 0.5))
    truth = plan.response.truth_probability
    for slot in range(len(product.slots)):
        bits = product.slots.bits(units, np.full(len(units), slot))
        ones = np.where(bits, truth, 1 - truth)
        for report in (ones, 1 - ones):
            assert math.log(report.max() / report.min()) <= epsilon


@pytest.mark.parametrize("grouping", [None, PAIR_CITIES], ids=["all", "groups"])
@pytest.mark.parametrize("names", [("covariance",), ("correlation", "count"), ("covariance", "moment:3")])
def test_one_user_changes_a_curators_sums_by_the_scale(names: tuple[str, ...], grouping: Grouping | None) -> None:
    """And two of the counts of users outside, and one of the counts by magnitude of each column."""
    plan = CentralMomentsPlan(
        statistics=tuple(map(Statistic, names)), epsilon=1.0, span=SPANS[0], second_span=SPANS[1], has_second=True
    )
    rows = 1 if grouping is None else grouping.tally_rows
    assert plan.slots == {"covariance": 4, "correlation": 9}[names[0]] * (2 if "moment:3" in names else 1)

    def summed(batch: pa.RecordBatch) -> tuple[ExactSums, np.ndarray]:
        made = pair_blocks(batch, True, grouping)
        sums = ExactSums.zeros(rows, plan.degrees).total([plan.exact_sums(block, SPANS, rows) for block in made])
        return sums, plan.sum_magnitudes([plan.count_magnitudes(block.codes) for block in made])

    for seed in range(3):
        batch = log_of_pairs(15, seed)
        users = np.array(batch.column("user_id"))
        full, magnitudes = summed(batch)
        outside = 0
        for gone in range(15):
            less, fewer = summed(batch.filter(pa.array(users != gone)))
            moved, usable = full.slots - less.slots, is_usable(batch, gone)
            assert (moved >= 0).all()  # nobody else's part moved
            assert moved.sum() == usable * plan.scale
            assert np.count_nonzero(moved.any(axis=1)) == usable
            outside = max(outside, int(np.abs(full.outside - less.outside).sum()))
            assert np.abs(magnitudes - fewer).sum(axis=1).tolist() == [usable, usable]
        assert outside == 2  # as much as the noise is for, below


def test_the_noise_on_counts_outside_is_for_both_columns() -> None:
    """Laplace of scale 2 / epsilon', as a user may be outside of both ranges; and each range has half of its part."""
    plan = CentralMomentsPlan(
        statistics=OF_PAIRS[:1], epsilon=1.0, span=SPANS[0], second_span=SPANS[1], has_second=True
    )
    nobody = ExactSums.zeros(1, plan.degrees)
    noise = np.concatenate([CentralSums(plan, SPANS).release(nobody, key(number)).outside for number in range(800)])
    # The mean of 3,200 absolute values has a relative deviation of 1 / sqrt(3200).
    assert np.abs(noise).mean() == pytest.approx(2 / plan.shares["outside"], rel=6.5 / math.sqrt(3200))
    found = CentralMomentsPlan(statistics=OF_PAIRS[:1], epsilon=1.0, has_second=True)
    assert sum(found.shares.values()) <= 1.0
    counts = np.zeros((2, 193), np.int64)
    spans = [found.choose_range(counts, key(number)).spans for number in range(40)]
    assert len({first for first, _ in spans} & {second for _, second in spans}) < 20  # own noise for each column


# Thresholds: the question is independent of the value, a report is protected, and nobody reports in two rounds.
#
# Each test fails if its promise is broken: a question that follows the value, a report without randomised response, a
# second round that reaches users of the first, or a method that is chosen by an exact number of users.


USERS = 600
PLAN = {"form": FixedPoint(8), "method": "threshold"}


def key() -> RunKey:
    return RunKey.derive(FixedSecret(b"attacks on thresholds"), {})


def block(codes: np.ndarray) -> Block:
    """Users, each a group of their own, so that tallies show everybody's reports."""
    numbers = np.arange(USERS, dtype=np.uint64)
    bits = random_bits(key().subkey("users"), np.zeros_like(numbers), numbers)[:, 0]
    return Block.from_clients(codes.astype(np.uint8), bits, numbers.astype(np.uint16))


def rounds(plan: MomentsPlan, codes: np.ndarray, queries: list[Query] | None = None) -> list[tuple[Query, Tally]]:
    """The tallies of all rounds; queries: held, or those that follow from the answers."""
    state, found, tallied = MomentsState(plan), block(codes), []
    for number in range(len(plan.stages)):
        asked = plan.next_queries(state) if queries is None else [queries[number]]
        every = [count_reports(found, query, USERS, plan.response, key()) for query in asked]
        state = state.advance(asked, [tally.joined(np.zeros(USERS, np.int64)) for tally in every])
        tallied += zip(asked, every, strict=True)
    return tallied


def test_nobody_reports_in_both_rounds() -> None:
    plan = MomentsPlan(**PLAN, epsilon=1.0)
    (_, first), (_, second) = rounds(plan, seeded_rng(0).integers(0, 256, USERS))
    assert ((first.reports.sum(axis=1) + second.reports.sum(axis=1)) == 1).all()


def test_the_question_does_not_depend_on_the_value() -> None:
    """With the questions held, other values change answers alone; the thresholds are the same, too.

    Without randomised response a user's answer is whether their value reaches a threshold that is theirs: it rises from
    0 to 1 once as the value rises, whatever it was before.
    """
    plan = MomentsPlan(**PLAN)
    asked = [query for query, _ in rounds(plan, seeded_rng(1).integers(0, 256, USERS))]
    slots, answers = [], []
    for value in range(256):
        found = rounds(plan, np.full(USERS, value), asked)
        slots.append(np.hstack([tally.reports for _, tally in found]))
        answers.append(sum(tally.ones.sum(axis=1) for _, tally in found))
    assert all((one == slots[0]).all() for one in slots)
    rises = np.diff(np.array(answers), axis=0)
    assert (rises >= 0).all()
    assert (rises.sum(axis=0) == 1).all()  # no value is below all thresholds or above all: the lowest is 1, the top 255


@pytest.mark.parametrize("value", [0, 255])
def test_every_answer_is_protected(value: int) -> None:
    """All users have one value, so all truths are one answer: the share of lies is that of epsilon."""
    plan = MomentsPlan(**PLAN, epsilon=1.0)
    asked = [query for query, _ in rounds(plan, seeded_rng(2).integers(0, 256, USERS))]
    lies = sum(
        int((tally.zeros if value else tally.ones).sum()) for _, tally in rounds(plan, np.full(USERS, value), asked)
    )
    lie = 1 - plan.response.truth_probability
    assert lie == pytest.approx(1 / (1 + np.e))
    assert stats.binomtest(lies, USERS, lie).pvalue > FLAKE_RATE
    assert stats.binomtest(lies, USERS, lie * 0.5).pvalue < FLAKE_RATE  # half as many lies would be noticed


def test_the_method_is_chosen_by_the_noisy_number_of_users() -> None:
    """A change of one user could change the method; the number is that of the admission, whose epsilon is paid."""
    assert "users=admission.users" in inspect.getsource(transform.PushBits.expand)
    plan = MomentsPlan(form=FixedPoint(8), method="auto", epsilon=1.0, statistics=(Statistic("mean"),))
    for users in (999.0, 1001.0):
        assert plan.method_of(MomentsState(plan, users=users)) == chosen_method(users, 1.0, 8)
    assert plan.admission().epsilon > 0
