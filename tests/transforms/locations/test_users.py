import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato.schemas.places import Places
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.spill import Spill, load
from sfumato.transforms.locations.users import bound_users, split_by_user_group
from sfumato.transforms.privacy.keys import keyed_hash
from tests.statistics import FLAKE_RATE


def pack(users: np.ndarray, codes: np.ndarray, depth: int) -> bytes:
    return Spill().store(users.astype(np.uint64).data, codes.astype(Places(depth).dtype).data)


def oracle(users: list[int], codes: list[int], depth: int) -> list[int]:
    """One word a user, with dictionaries and sorting, in Python's integers."""
    records: dict[int, list[int]] = {}
    for user, code in zip(users, codes, strict=True):
        records.setdefault(user, []).append(code)
    words = []
    for user, mine in records.items():
        chosen = sorted(mine)[(user % 2**32) * len(mine) // 2**32]
        words.append((user >> (2 * depth) << (2 * depth)) | chosen)
    return sorted(words)


@pytest.mark.parametrize("depth", [1, 10, 16, 17, 20])
@given(data=st.data())
def test_one_location_a_user_against_an_oracle_in_any_order(depth: int, data: st.DataObject) -> None:
    pool = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
    records = data.draw(
        st.lists(st.tuples(st.sampled_from(pool), st.integers(0, 4**depth - 1)), min_size=1, max_size=30)
    )
    users, codes = map(list, zip(*records, strict=True))
    cut = data.draw(st.integers(0, len(users)))
    u, c = np.array(users, dtype=np.uint64), np.array(codes, dtype=np.uint64)
    parts = [pack(u[:cut], c[:cut], depth), pack(u[cut:], c[cut:], depth)]
    forward, backward = bound_users(parts, Places(depth)), bound_users(parts[::-1], Places(depth))
    assert sorted(forward.tolist()) == sorted(backward.tolist()) == oracle(users, codes, depth)


def test_every_record_of_a_user_is_chosen_equally_often() -> None:
    """20,000 users with four records, three of them in one cell: chosen by record, not by cell."""
    hashes = keyed_hash(b"u" * 32, np.arange(20_000))
    users = np.repeat(hashes, 4)
    codes = np.tile(np.array([9, 9, 5, 9]), 20_000)
    chosen = bound_users([pack(users, codes, 4)], Places(4)) & np.uint64(255)
    assert len(chosen) == 20_000
    assert stats.binomtest(int((chosen == 5).sum()), 20_000, 0.25).pvalue > FLAKE_RATE


def test_a_user_with_a_thousand_rows_counts_once() -> None:
    hashes = keyed_hash(b"u" * 32, np.arange(500))
    users = np.concatenate([hashes, np.repeat(hashes[:1], 999)])
    codes = np.concatenate([np.zeros(500), np.full(999, 3)])
    words = bound_users([pack(users, codes, 1)], Places(1))
    assert len(words) == 500
    assert ((words & np.uint64(3)) == 3).sum() <= 1


def test_splitting_keeps_every_record_in_its_group() -> None:
    rng = np.random.default_rng(0)
    users = rng.integers(0, 2**64, 5000, dtype=np.uint64)
    codes = rng.integers(0, 4**10, 5000).astype(np.uint32)
    seen = []
    for group, chunk in split_by_user_group(EncodedLocations(users, codes, 5000, (0,) * 5, False), Spill()):
        hashes, cells = load(chunk)
        mine = np.frombuffer(hashes, np.uint64)
        assert (mine >> np.uint64(58) == group).all()
        seen += list(zip(mine.tolist(), np.frombuffer(cells, np.uint32).tolist(), strict=True))
    assert sorted(seen) == sorted(zip(users.tolist(), codes.tolist(), strict=True))
