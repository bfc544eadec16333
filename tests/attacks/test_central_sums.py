"""A trusted curator's sums: one user changes them by what the noise is for, and the noise is no smaller.

Sensitivities are found by brute force, from Arrow batches on: every user of small logs is removed in turn, with values
far outside the range, several records and several groups. These tests fail if clipping is forgotten, if a square is
taken for a value in its sensitivity, if a user counts in two groups, or if the noise is 10% too small.
"""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.moments import Statistic, ValueColumns, ValueRange
from sfumato.transforms.moments.central.bernstein_sums import ExactSums
from sfumato.transforms.moments.central.central_moments import CentralSums, choose_range
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.central.release import central_files
from sfumato.transforms.moments.client_values import Block, Values, row_blocks
from sfumato.transforms.moments.groups import Grouping
from tests.attacks.moments import CITIES, blocks, is_usable, log, release_of, run_key, values_of, without
from tests.statistics import FLAKE_RATE

SPANS = (ValueRange(-1.0, 9.0), ValueRange(-5.0, 5.0))
EXTREMES = [-1e300, -50.0, -1.0, 0.0, 3.7, 9.0, 1e6, 1.7e308, math.nan, math.inf]
SECOND = [-30.0, -5.0, 0.1, 5.0, 29.0]


def plan(*names: str, epsilon: float = 1.0, span: ValueRange | None = SPANS[0]) -> CentralMomentsPlan:
    second = {"second_span": SPANS[1], "has_second": True} if {"covariance", "correlation"} & set(names) else {}
    return CentralMomentsPlan(statistics=tuple(map(Statistic, names)), epsilon=epsilon, span=span, **second)


def summed(
    batch: pa.RecordBatch, planned: CentralMomentsPlan, grouping: Grouping | None
) -> tuple[ExactSums, NDArray[np.int64]]:
    """The exact sums, and the exact counts by magnitude of each column: int64[columns, bins]."""
    made, rows = blocks(batch, values_of(grouping, None, planned.has_second), run_key()), rows_of(grouping)
    sums = ExactSums.zeros(rows, planned.degrees)
    sums = sums.total([planned.exact_sums(block, SPANS[: 1 + planned.has_second], rows) for block in made])
    return sums, np.atleast_2d(planned.sum_magnitudes([planned.count_magnitudes(block.codes) for block in made]))


def rows_of(grouping: Grouping | None) -> int:
    return 1 if grouping is None else grouping.tally_rows


@pytest.mark.parametrize("grouping", [None, Grouping(CITIES)], ids=["all", "groups"])
@pytest.mark.parametrize(
    "names",
    [
        ("count",), ("sum",), ("mean", "variance"), ("moment:8",),
        ("covariance",), ("correlation", "count"), ("covariance", "moment:3"),
    ],
)  # fmt: skip
def test_one_user_changes_the_sums_by_the_scale(names: tuple[str, ...], grouping: Grouping | None) -> None:
    """And each count of users outside, and each column's counts by magnitude, by one; with two numbers too."""
    planned = plan(*names, span=None if names == ("count",) else SPANS[0])
    columns = 1 + planned.has_second
    for seed in range(3):
        batch = log(15, seed, EXTREMES, SECOND if planned.has_second else None)
        full, magnitudes = summed(batch, planned, grouping)
        for gone in range(15):
            less, fewer = summed(without(batch, gone), planned, grouping)
            moved, usable = full.slots - less.slots, is_usable(batch, gone)
            assert (moved >= 0).all()  # nobody else's part moved
            assert moved.sum() == usable * planned.scale  # the L1 sensitivity, and not more in several groups
            assert np.count_nonzero(moved.any(axis=1)) == usable
            assert np.abs(full.outside - less.outside).sum() <= usable * columns
            assert np.abs(magnitudes - fewer).sum(axis=1).tolist() == [usable] * columns
    farthest = Block(np.array([1e300 + 29j if planned.has_second else 1e300]), np.zeros(1, np.uint64))
    found = planned.exact_sums(farthest, SPANS[:columns], 1)
    assert np.abs(found.outside).sum() == columns  # as much as the noise is for


def test_rows_as_users_have_the_sensitivity_of_one_row() -> None:
    """Other rows' roundings may move with their places, by less than one unit each: their mean does not."""
    values = Values(ValueColumns("x", user_id=None), None)
    batch = pa.RecordBatch.from_pydict({"x": pa.array(EXTREMES)})
    encoded = values.encode(batch, run_key())
    planned = plan("mean", "variance")
    (block,) = row_blocks(encoded, "file:0", run_key())
    for row in range(len(block)):
        alone = Block(block.codes[row : row + 1], block.random_bits[row : row + 1])
        assert planned.exact_sums(alone, SPANS[:1], 1).slots.sum() == planned.scale


def released(planned: CentralMomentsPlan, rows: int, number: int) -> CentralSums:
    """A release of nobody: the noise alone."""
    spans = SPANS[: 1 + planned.has_second]
    return CentralSums(planned, spans).release(ExactSums.zeros(rows, planned.degrees), run_key(number))


@pytest.mark.false_alarm(8e-9)
@pytest.mark.parametrize("names", [("mean",), ("mean", "variance"), ("moment:8",)])
@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_the_noise_has_the_law_that_the_sensitivity_needs(names: tuple[str, ...], epsilon: float) -> None:
    """Laplace of scale 1 / (its part of epsilon), in users: its shape, and its mean size to 5%.

    The mean of n absolute values is that of n exponential variates: 6.5 / sqrt(n) off with a probability below 3e-9.
    """
    planned = plan(*names, epsilon=epsilon)
    noise = released(planned, 20_000 // planned.slots, 1).slots.ravel()
    scale = 1 / planned.shares["sums"]
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > FLAKE_RATE
    outside = np.concatenate([released(planned, 1, number).outside for number in range(1500)])
    for found, wanted in ((noise, scale), (outside, 1 / planned.shares["outside"])):
        assert np.abs(found).mean() == pytest.approx(wanted, rel=6.5 / math.sqrt(len(found)))
    assert 6.5 / math.sqrt(len(noise)) < 0.05


@pytest.mark.false_alarm(2e-9)
def test_an_attacker_tells_one_user_no_better_than_epsilon() -> None:
    """Audit: the best test of one extreme user, over 20,000 releases each of two logs, by bounds that 1e-9 miss.

    The attacker reads the slot that the user is in. Its noise spends all of epsilon, so the estimate comes near it.
    """
    planned = plan("mean", epsilon=1.0)
    runs = 20_000
    with_user = np.zeros((runs, 2), np.int64)
    with_user[:, 1] = planned.exact_sums(Block(np.array([1e300]), np.zeros(1, np.uint64)), SPANS[:1], 1).slots[0, 1]
    noise = released(planned, 2 * runs, 7).slots
    there, gone = with_user / planned.scale + noise[:runs], noise[runs:]
    line = 1.0  # the value of the slot, where the likelihoods differ most
    hits, false = int((there[:, 1] > line).sum()), int((gone[:, 1] > line).sum())
    least = stats.binomtest(hits, runs).proportion_ci(1 - FLAKE_RATE, "exact").low
    most = stats.binomtest(false, runs).proportion_ci(1 - FLAKE_RATE, "exact").high
    assert math.log(least / most) <= planned.shares["sums"]
    assert math.log(hits / false) > 0.85 * planned.shares["sums"]  # half the sensitivity would leave half of it


def test_a_release_follows_from_the_noisy_sums_alone() -> None:
    """One user more, and noise that takes them away: the same files."""
    grouping, planned = Grouping(CITIES, 1), plan("mean", "count")
    batch = log(60, 1, EXTREMES)
    gone = next(user for user in range(60) if is_usable(batch, user))
    full, _ = summed(batch, planned, grouping)
    less, _ = summed(without(batch, gone), planned, grouping)
    state = CentralSums(planned, SPANS[:1]).release(full, run_key())
    noise = state.slots * planned.scale - full.slots, state.outside - full.outside
    slots = (less.slots + (full.slots - less.slots) + noise[0]) / planned.scale
    replayed = CentralSums(planned, SPANS[:1], True, slots, full.outside + noise[1])
    assert central_files(state, release_of(grouping)) == central_files(replayed, release_of(grouping))


@pytest.mark.false_alarm(1e-9)
def test_no_exact_number_is_published() -> None:
    """Over 40 keys no published number of users equals the exact one more often than its noise is 0."""
    equal = 0
    planned = plan("count", epsilon=0.2, span=None)
    exact, _ = summed(log(50, 3, EXTREMES), planned, None)
    for number in range(40):
        state = CentralSums(planned, SPANS[:1]).release(exact, run_key(number))
        files = central_files(state, release_of(None))
        count = pq.read_table(io.BytesIO(files["moments.parquet"]))["value"][0].as_py()
        assert json.loads(files["manifest.json"])["results"]["clients"] == count
        equal += count == exact.slots.sum()
    assert stats.binomtest(equal, 40, 0.1, "greater").pvalue > FLAKE_RATE  # P[noise is 0] = tanh(0.099) < 0.1


@pytest.mark.false_alarm(4e-9)
def test_the_noise_on_counts_outside_is_for_both_columns() -> None:
    """Laplace of scale 2 / epsilon', as a user may be outside of both ranges; and each range has half of its part."""
    planned = plan("covariance")
    noise = np.concatenate([released(planned, 1, number).outside for number in range(800)])
    assert np.abs(noise).mean() == pytest.approx(2 / planned.shares["outside"], rel=6.5 / math.sqrt(len(noise)))
    found = CentralMomentsPlan(statistics=planned.statistics, epsilon=1.0, has_second=True)
    assert sum(found.shares.values()) <= 1.0
    counts = np.zeros((2, 193), np.int64)
    spans = [choose_range(found, counts, run_key(number)).spans for number in range(40)]
    # Own noise for each column: equal spans have a probability below a half, and 40 times that of 1e-12.
    assert any(first != second for first, second in spans)
