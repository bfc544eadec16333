"""Covariances: one user with both numbers is in as many counts as the noise is for, in every trust model.

With a second column a user has two values. They must not have two reports, nor add twice to a trusted curator's sums.
Every sensitivity is found by brute force, under the same key, in whole runs.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.moments import FixedPoint, Method, Statistic, ValueColumns, ValueRange
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_unusable
from sfumato.transforms.moments.central.bernstein_sums import ExactSums
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.client_values import Block, Values, encode_columns, split_by_user, user_blocks
from sfumato.transforms.moments.groups import ColumnGroups, Grouping
from sfumato.transforms.moments.local.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.local.quantities import Quantity
from sfumato.transforms.moments.local.tally import Query, Tally, count_reports, sum_tallies
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng

FORM, SECOND = FixedPoint(5), FixedPoint(4, 0, "split")
SPANS = (ValueRange(0.0, 20.0), ValueRange(-5.0, 5.0))
CITIES = Grouping(ColumnGroups("city", ("Bath", "Cork")))
OF_PAIRS = tuple(map(Statistic, ("covariance", "correlation", "mean")))


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"attacks on pairs" * 2), {"number": number})


def log(users: int, seed: int) -> pa.RecordBatch:
    """One to three records a user; many values beyond their ranges, some missing in either column."""
    rng = seeded_rng(seed)
    ids = np.repeat(np.arange(users), rng.integers(1, 4, users))
    x = pa.array(rng.integers(0, 40, len(ids)).astype(float), mask=rng.random(len(ids)) < 0.1)
    y = pa.array(rng.integers(-30, 30, len(ids)).astype(float), mask=rng.random(len(ids)) < 0.1)
    cities = pa.array(rng.choice(["Bath", "Cork", "Rome"], len(ids)).tolist())
    return pa.RecordBatch.from_pydict({"user_id": pa.array(ids), "x": x, "y": y, "city": cities})


def blocks(batch: pa.RecordBatch, is_central: bool, grouping: Grouping | None) -> list[Block]:
    """As the job makes them."""
    columns = ValueColumns("x", group=None if grouping is None else "city", second="y")
    groups = None if grouping is None else grouping.groups
    values = Values(columns, None if is_central else FORM, groups, None if is_central else SECOND)
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
@pytest.mark.parametrize("grouping", [None, CITIES], ids=["all", "groups"])
@pytest.mark.parametrize(("method", "epsilon"), [("adaptive", 1.0), ("weighted", None), ("threshold", 1.0)])
def test_both_numbers_of_a_user_are_in_the_counts_of_one_query(
    reports: int, grouping: Grouping | None, method: Method, epsilon: float | None
) -> None:
    plan = MomentsPlan(
        form=FORM, second=SECOND, statistics=OF_PAIRS, method=method, epsilon=epsilon, bits_per_client=reports
    )
    rows = 1 if grouping is None else grouping.tally_rows
    batch, state = log(12, 1), MomentsState(plan)
    everybody = blocks(batch, False, grouping)
    for _ in plan.stages:
        queries = plan.next_queries(state)
        tallies = [counted(everybody, query, plan, rows) for query in queries]
        state = state.advance(queries, plan.protect(queries, tallies, key()))
    queries = [query for query, _ in state.tallies]
    assert {query.quantity.kind for query in queries} == set(plan.quantities)
    before = [counted(everybody, query, plan, rows) for query in queries]
    users = np.array(batch.column("user_id"))
    for gone in range(12):
        kept = blocks(batch.filter(pa.array(users != gone)), False, grouping)
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
    batch = log(30, 2)
    order = seeded_rng(3).permutation(batch.num_rows)
    for is_central in (False, True):
        one, other = (blocks(rows, is_central, None) for rows in (batch, batch.take(pa.array(order))))
        found = [sorted(np.concatenate([block.codes for block in made]).tolist(), key=str) for made in (one, other)]
        assert found[0] == found[1]
    frame = batch.to_pandas().dropna()
    values = frame["x"].to_numpy() + 1j * frame["y"].to_numpy()
    assert set(np.concatenate([block.codes for block in blocks(batch, True, None)]).tolist()) <= set(values.tolist())


def test_no_pair_changes_the_probability_of_a_report_by_more_than_epsilon() -> None:
    """Every bit of the product of every two pairs: a report is its bit or the complement, with odds of e^epsilon."""
    epsilon = 0.7
    plan = MomentsPlan(form=FORM, second=SECOND, statistics=OF_PAIRS, epsilon=epsilon)
    grid = np.array([x + 1j * y for x, y in itertools.product(range(32), range(-15, 16))])
    codes, _ = encode_columns(grid, FORM, SECOND)
    product = Quantity(FORM, "product", 11.3, second=SECOND, second_centre=-0.4)
    units = product.codes(codes, np.full(len(codes), 0.5))
    truth = plan.response.truth_probability
    for slot in range(len(product.slots)):
        bits = product.slots.bits(units, np.full(len(units), slot))
        ones = np.where(bits, truth, 1 - truth)
        for report in (ones, 1 - ones):
            assert math.log(report.max() / report.min()) <= epsilon


@pytest.mark.parametrize("grouping", [None, CITIES], ids=["all", "groups"])
@pytest.mark.parametrize("names", [("covariance",), ("correlation", "count"), ("covariance", "moment:3")])
def test_one_user_changes_a_curators_sums_by_the_scale(names: tuple[str, ...], grouping: Grouping | None) -> None:
    """And two of the counts of users outside, and one of the counts by magnitude of each column."""
    plan = CentralMomentsPlan(
        statistics=tuple(map(Statistic, names)), epsilon=1.0, span=SPANS[0], second_span=SPANS[1], has_second=True
    )
    rows = 1 if grouping is None else grouping.tally_rows
    assert plan.slots == {"covariance": 4, "correlation": 9}[names[0]] * (2 if "moment:3" in names else 1)

    def summed(batch: pa.RecordBatch) -> tuple[ExactSums, np.ndarray]:
        made = blocks(batch, True, grouping)
        sums = ExactSums.zeros(rows, plan.degrees).total([plan.exact_sums(block, SPANS, rows) for block in made])
        return sums, plan.sum_magnitudes([plan.count_magnitudes(block.codes) for block in made])

    for seed in range(3):
        batch = log(15, seed)
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
