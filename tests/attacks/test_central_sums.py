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
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_unusable
from sfumato.transforms.moments.central.bernstein_sums import BINS, ExactSums, count_magnitudes
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.client_values import Block, Values, row_blocks, split_by_user, user_blocks
from sfumato.transforms.moments.groups import ColumnGroups, Grouping
from sfumato.transforms.moments.release import MomentsMetadata, central_files
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

CITIES = ColumnGroups("city", ("Bath", "Cork"))
SPAN = ValueRange(-1.0, 9.0)
EXTREMES = [-1e300, -50.0, -1.0, 0.0, 3.7, 9.0, 1e6, 1.7e308]


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"attacks on sums" * 3), {"number": number})


def plan(*names: str, epsilon: float = 1.0, span: ValueRange | None = SPAN) -> CentralMomentsPlan:
    return CentralMomentsPlan(statistics=tuple(map(Statistic, names)), epsilon=epsilon, span=span)


def log(users: int, seed: int) -> pa.RecordBatch:
    """One to three records a user, of several cities, many of them beyond the range, some of them unusable."""
    rng = seeded_rng(seed)
    ids = np.repeat(np.arange(users), rng.integers(1, 4, users))
    numbers = rng.choice([*EXTREMES, math.nan, math.inf], len(ids))
    cities = pa.array(rng.choice(["Bath", "Cork", "Rome"], len(ids)).tolist())
    return pa.RecordBatch.from_pydict({"user_id": pa.array(ids), "x": pa.array(numbers), "city": cities})


def blocks(batch: pa.RecordBatch, grouping: Grouping | None) -> list[Block]:
    """As the job makes them."""
    values = Values(ValueColumns("x", group=None if grouping is None else "city"), None, grouping and grouping.groups)
    parts: dict[int, list[bytes]] = {}
    for group, stored in split_by_user(values.encode(batch, key()), Spill(None)):
        parts.setdefault(group, []).append(stored)
    records = (split_unusable(chunks)[0] for chunks in parts.values())
    return [block for chunks in records if chunks for block in user_blocks(chunks, values, key())]


def summed(
    batch: pa.RecordBatch, asked: CentralMomentsPlan, grouping: Grouping | None
) -> tuple[ExactSums, NDArray[np.int64]]:
    """The exact sums, and the exact counts by magnitude."""
    made, rows = blocks(batch, grouping), 1 if grouping is None else grouping.tally_rows
    sums = ExactSums.zeros(rows, asked.degrees).total([asked.exact_sums(block, (SPAN,), rows) for block in made])
    return sums, sum((count_magnitudes(block.codes) for block in made), start=np.zeros(BINS, np.int64))


@pytest.mark.parametrize("grouping", [None, Grouping(CITIES)], ids=["all", "groups"])
@pytest.mark.parametrize("names", [("count",), ("sum",), ("mean", "variance"), ("moment:8",)])
def test_one_user_changes_the_sums_by_the_scale(names: tuple[str, ...], grouping: Grouping | None) -> None:
    asked = plan(*names, span=None if names == ("count",) else SPAN)
    for seed in range(3):
        batch = log(15, seed)
        users = np.array(batch.column("user_id"))
        full, magnitudes = summed(batch, asked, grouping)
        for gone in range(15):
            less, fewer = summed(batch.filter(pa.array(users != gone)), asked, grouping)
            moved = full.slots - less.slots
            usable = int(np.isfinite(np.array(batch.column("x"))[users == gone]).any())
            assert (moved >= 0).all()  # nobody else's part moved
            assert moved.sum() == usable * asked.scale  # the L1 sensitivity, and not more in several groups
            assert np.count_nonzero(moved.any(axis=1)) == usable
            assert np.abs(full.outside - less.outside).sum() <= usable
            assert np.abs(magnitudes - fewer).sum() == usable


def test_rows_as_users_have_the_sensitivity_of_one_row() -> None:
    """Other rows' roundings may move with their places, by less than one unit each: their mean does not."""
    values = Values(ValueColumns("x", user_id=None), None)
    batch = pa.RecordBatch.from_pydict({"x": pa.array(EXTREMES)})
    encoded = values.encode(batch, key())
    asked = plan("mean", "variance")
    (block,) = row_blocks(encoded, "file:0", key())
    for row in range(len(block)):
        alone = Block(block.codes[row : row + 1], block.random_bits[row : row + 1])
        assert asked.exact_sums(alone, (SPAN,), 1).slots.sum() == asked.scale


def released(asked: CentralMomentsPlan, rows: int, number: int) -> CentralSums:
    """A release of nobody: the noise alone."""
    return CentralSums(asked, (SPAN,)).release(ExactSums.zeros(rows, asked.degrees), key(number))


@pytest.mark.parametrize("names", [("mean",), ("mean", "variance"), ("moment:8",)])
@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_the_noise_has_the_law_that_the_sensitivity_needs(names: tuple[str, ...], epsilon: float) -> None:
    """Laplace of scale 1 / (its part of epsilon), in users: Kolmogorov-Smirnov. 10% less or more noise is seen."""
    asked = plan(*names, epsilon=epsilon)
    noise = np.concatenate([released(asked, 4096, number).slots.ravel() for number in range(4)])
    scale = 1 / asked.shares["sums"]
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > FLAKE_RATE
    for wrong in (0.9, 1.1):
        assert stats.kstest(wrong * noise, stats.laplace(scale=scale).cdf).pvalue < FLAKE_RATE
    outside = np.concatenate([released(asked, 1, number).outside for number in range(1500)])
    assert np.abs(outside).mean() == pytest.approx(1 / asked.shares["outside"], rel=6.5 / math.sqrt(3000))


def test_an_attacker_tells_one_user_no_better_than_epsilon() -> None:
    """Audit: the best test of one extreme user, over 20,000 releases each of two logs, by bounds that 1e-6 miss.

    The attacker reads the slot that the user is in. Its noise spends all of epsilon, so the estimate comes near it.
    """
    asked = plan("mean", epsilon=1.0)
    runs = 20_000
    with_user = np.zeros((runs, 2), np.int64)
    with_user[:, 1] = asked.exact_sums(Block(np.array([1e300]), np.zeros(1, np.uint64)), (SPAN,), 1).slots[0, 1]
    noise = released(asked, 2 * runs, 7).slots
    there, gone = with_user / asked.scale + noise[:runs], noise[runs:]
    line = 1.0  # the value of the slot, where the likelihoods differ most
    hits, false = int((there[:, 1] > line).sum()), int((gone[:, 1] > line).sum())
    least = stats.binomtest(hits, runs).proportion_ci(1 - 1e-6, "exact").low
    most = stats.binomtest(false, runs).proportion_ci(1 - 1e-6, "exact").high
    assert math.log(least / most) <= asked.shares["sums"]
    assert math.log(hits / false) > 0.85 * asked.shares["sums"]  # half the sensitivity would leave half of it


def test_a_release_follows_from_the_noisy_sums_alone() -> None:
    """One user more, and noise that takes them away: the same files."""
    grouping = Grouping(CITIES, 1)
    asked = plan("mean", "count")
    batch = log(60, 1)
    users = np.array(batch.column("user_id"))
    full, _ = summed(batch, asked, grouping)
    less, _ = summed(batch.filter(pa.array(users != 7)), asked, grouping)
    state = CentralSums(asked, (SPAN,)).release(full, key())
    noise = state.slots * asked.scale - full.slots, state.outside - full.outside
    replayed = CentralSums(
        asked, (SPAN,), True, (less.slots + (full.slots - less.slots) + noise[0]) / asked.scale, full.outside + noise[1]
    )
    release = ReleaseMetadata("moments", "a", "2026-11-22T00:00:00+00:00", "key file", True, {"column": "x"})
    metadata = MomentsMetadata(release, grouping, "x", True)
    assert central_files(state, metadata) == central_files(replayed, metadata)


@pytest.mark.slow
def test_no_exact_number_is_published() -> None:
    """Over 40 keys no published number of users equals the exact one more often than its noise is 0."""
    equal = 0
    asked = plan("count", epsilon=0.2, span=None)
    release = ReleaseMetadata("moments", "a", "2026-11-22T00:00:00+00:00", "key file", True, {"column": "x"})
    for number in range(40):
        exact, _ = summed(log(200, 3), asked, None)
        state = CentralSums(asked, (SPAN,)).release(exact, key(number))
        files = central_files(state, MomentsMetadata(release, None, "x", True))
        count = pq.read_table(io.BytesIO(files["moments.parquet"]))["value"][0].as_py()
        assert json.loads(files["manifest.json"])["results"]["clients"] == count
        equal += count == exact.slots.sum()
    assert stats.binomtest(equal, 40, 0.1, "greater").pvalue > FLAKE_RATE  # P[noise is 0] = tanh(0.099) < 0.1
