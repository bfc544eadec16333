"""One place, the top place and distributions of users, by records, by weights and by dwell times, against an oracle."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato.schemas.region import Places
from sfumato.transforms.locations.distributions import MAX_GAMMA, bound_distributions
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import bound_users, dwell_weights
from sfumato.transforms.privacy.keys import keyed_hash
from tests.statistics import FLAKE_RATE
from tests.unit.locations import oracle

Records = list[tuple[int, int, float]]  # (hash, place, weight or time)
ODD = (0.0, 5e-324, 1e-300, 1e-9, 0.1, 1.0, 3.0, 1e9, 1.7e308)


def pack(records: Records, places: Places, weighted: bool = True) -> bytes:
    users, codes, values = zip(*records, strict=True)
    columns = [np.array(users, np.uint64).data, np.array(values, np.float64).data, np.array(codes, places.dtype).data]
    return Spill().store(*(columns if weighted else columns[::2]))


def by_user(
    records: Records, max_dwell: float | None, weighted: bool
) -> dict[int, tuple[list[int], list[float] | None]]:
    """Places and weights of each user."""
    found: dict[int, tuple[list[int], list[float]]] = {}
    for user, place, value in records:
        codes, values = found.setdefault(user, ([], []))
        codes.append(place)
        values.append(value)
    if max_dwell is not None:
        found = {user: (codes, oracle.dwell_times(times, max_dwell)) for user, (codes, times) in found.items()}
    return {user: (codes, values if weighted else None) for user, (codes, values) in sorted(found.items())}


def words_by_oracle(records: Records, places: Places, max_dwell: float | None, weighted: bool, top: bool) -> list[int]:
    words = []
    for user, mine in by_user(records, max_dwell, weighted).items():
        held = oracle.amounts(*mine)
        place = oracle.top(user, held) if top else oracle.drawn(user, held)
        words.append((user >> places.bits << places.bits) | place)
    return words


def rows_of(chunks: list[bytes], places: Places, gamma: int, max_dwell: float | None) -> dict[int, dict[int, int]]:
    found = bound_distributions(chunks, places, gamma, max_dwell)
    assert (found.users.dtype, found.codes.dtype, found.weights.dtype) == (np.uint64, places.dtype, np.int64)
    rows: dict[int, dict[int, int]] = {}
    for user, code, weight in zip(found.users.tolist(), found.codes.tolist(), found.weights.tolist(), strict=True):
        assert code not in rows.setdefault(user, {})
        rows[user][code] = weight
    return rows


@pytest.mark.parametrize("places", [Places(1), Places(10, 3), Places(20, 16)])
@pytest.mark.parametrize("kind", ["records", "weights", "dwell"])
@settings(max_examples=20)
@given(data=st.data())
def test_weighted_users_against_an_oracle_in_any_order(places: Places, kind: str, data) -> None:
    max_dwell, weighted = 60.0 if kind == "dwell" else None, kind != "records"
    edges = st.builds(lambda upper, lower: upper << 32 | lower, st.integers(0, 9), st.sampled_from([0, 2**32 - 1]))
    pool = data.draw(st.lists(st.integers(0, 2**64 - 1) | edges, min_size=1, max_size=4))
    category = st.integers(0, places.bins - 1)
    cells = st.integers(0, 4**places.depth - 1) | st.integers(0, 3)
    place = st.tuples(category, cells).map(lambda pair: (pair[0] << 2 * places.depth) | pair[1])
    values = st.sampled_from(ODD) | st.floats(0, 1e6) | st.integers(0, 200).map(float)
    if max_dwell is not None:
        values = values | st.floats(-1e300, 1e300)
    records = data.draw(st.lists(st.tuples(st.sampled_from(pool), place, values), min_size=1, max_size=25))
    gamma = data.draw(st.integers(1, 30) | st.integers(1, MAX_GAMMA))
    cut = data.draw(st.integers(1, len(records)))
    shuffled = data.draw(st.permutations(records))
    chunks = [pack(part, places, weighted) for part in (records[:cut], records[cut:]) if part]
    other = [pack(part, places, weighted) for part in (shuffled[cut:], shuffled[:cut]) if part]

    for top in (False, True):
        found = sorted(bound_users(chunks, places, max_dwell, top).tolist())
        assert found == sorted(words_by_oracle(records, places, max_dwell, weighted, top))
        assert found == sorted(bound_users(other, places, max_dwell, top).tolist())

    rows = rows_of(chunks, places, gamma, max_dwell)
    assert rows == rows_of(other, places, gamma, max_dwell)
    users = by_user(records, max_dwell, weighted)
    assert rows == {user: oracle.rounded(user, oracle.amounts(*mine), gamma) for user, mine in users.items()}
    for user, mine in users.items():  # each by their own records, whoever else is there
        assert sum(rows[user].values()) == gamma
        assert min(rows[user].values()) >= 1
        for where, share in oracle.exact_shares(*mine).items():  # nearly what the exact arithmetic gives
            assert abs(rows[user].get(where, 0) - gamma * share) <= 1 + gamma * len(mine[0]) * Fraction(1, 2**29)


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize(("weights", "share"), [(None, 1 / 4), ([1.0, 0.0, 5.0, 2.0], 5 / 8)])
def test_a_record_is_drawn_in_proportion_to_its_weight(weights: list[float] | None, share: float) -> None:
    """20,000 users with four records in three cells: by record or its weight, not by cell."""
    places, users = Places(4), keyed_hash(b"w" * 32, np.arange(20_000))
    codes = [9, 4, 5, 9]
    records = [(u, c, w) for u in users.tolist() for c, w in zip(codes, weights or [1.0] * 4, strict=True)]
    chosen = Counter((bound_users([pack(records, places, weights is not None)], places) & places.mask).tolist())
    assert set(chosen) == ({9, 4, 5} if weights is None else {9, 5})
    assert stats.binomtest(chosen[5], 20_000, share).pvalue > FLAKE_RATE


@pytest.mark.false_alarm(4 * FLAKE_RATE)
@pytest.mark.parametrize("weights", [None, [0.7, 0.25, 1.05, 0.1]])
@pytest.mark.parametrize("gamma", [1, 10])
def test_rounding_is_right_on_average(gamma: int, weights: list[float] | None) -> None:
    """Each of 20,000 users rounds up as often as the fraction of their share says, in each of three places."""
    places, users = Places(2), keyed_hash(b"g" * 32, np.arange(20_000))
    codes = [9, 3, 0, 3]
    records = [(u, c, w) for u in users.tolist() for c, w in zip(codes, weights or [1.0] * 4, strict=True)]
    found = bound_distributions([pack(records, places, weights is not None)], places, gamma)
    for code, share in oracle.exact_shares(codes, weights).items():
        floor = math.floor(gamma * share)
        mine = np.zeros(20_000, np.int64)
        held = found.weights[found.codes == code]
        mine[: len(held)] = held
        assert set(mine.tolist()) <= {floor, floor + 1}
        assert stats.binomtest(int((mine > floor).sum()), 20_000, float(gamma * share - floor)).pvalue > FLAKE_RATE


@pytest.mark.false_alarm(3 * FLAKE_RATE)
def test_ties_for_the_top_are_broken_evenly_by_the_hash() -> None:
    places, users = Places(4), keyed_hash(b"t" * 32, np.arange(20_000))
    whole = np.repeat(users, 7)
    codes = np.tile(np.array([1, 1, 6, 2, 6, 8, 8], dtype=places.dtype), 20_000)  # 1, 6 and 8 twice, 2 once
    chosen = np.bincount(bound_users([Spill().store(whole.data, codes.data)], places, top=True) & places.mask)
    assert set(np.flatnonzero(chosen).tolist()) == {1, 6, 8}
    for code in (1, 6, 8):
        assert stats.binomtest(int(chosen[code]), 20_000, 1 / 3).pvalue > FLAKE_RATE
    weighted = pack(
        [(u, c, 1.5 if c == 2 else 0.5) for u, c in zip(whole.tolist(), codes.tolist(), strict=True)], places
    )
    assert set((bound_users([weighted], places, top=True) & places.mask).tolist()) == {2}


@given(data=st.data())
def test_dwell_times_against_an_oracle(data) -> None:
    moments = st.integers(0, 40).map(float) | st.floats(allow_nan=False, allow_infinity=False)
    records = data.draw(st.lists(st.tuples(st.integers(0, 3), moments), min_size=1, max_size=30))
    max_dwell = data.draw(st.floats(1e-3, 1e6))
    users, seconds = (np.array(column) for column in zip(*records, strict=True))
    found = dwell_weights(users.astype(np.uint64), seconds.astype(np.float64), max_dwell)
    for user in set(users.tolist()):
        mine = seconds[users == user].tolist()
        expected = oracle.dwell_times(mine, max_dwell)
        assert found[users == user].tolist() == expected
        assert max(expected) > 0
        assert sum(expected) <= (max(mine) - min(mine) + max_dwell) * (1 + 1e-9)
