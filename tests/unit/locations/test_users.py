"""One place of each user against an oracle, groups of users, memory, and what workers spill."""

from __future__ import annotations

import itertools
import os
import pickle
import stat
import tracemalloc

import numpy as np
import pytest

from sfumato.schemas.region import Places
from sfumato.transforms.locations.distributions import bound_distributions
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.spill import MEMORY, Spill, forget, join, lengths_of, load, take
from sfumato.transforms.locations.users import (
    MAX_GROUP_BYTES,
    ROW_BYTES,
    UserGroups,
    bound_slots,
    bound_users,
    count_unusable,
    group_bits,
    split_unusable,
)
from sfumato.transforms.privacy.keys import keyed_hash
from tests.chunks import split_by_user_group
from tests.seeds import seeded_rng


def pack(users: np.ndarray, codes: np.ndarray, depth: int) -> bytes:
    return Spill().store(users.astype(np.uint64).data, codes.astype(Places(depth).dtype).data)


@pytest.mark.parametrize("repeated", [1, 999])
def test_a_user_with_more_rows_among_thousands_counts_once(repeated: int) -> None:
    hashes = keyed_hash(b"u" * 32, np.arange(8000))
    users = np.concatenate([hashes, np.repeat(hashes[:1], repeated)])
    words = bound_users([pack(users, np.zeros(len(users)), 1)], Places(1))
    assert len(words) == len(np.unique(hashes)) == 8000


def test_splitting_keeps_every_record_in_its_group() -> None:
    rng = seeded_rng(0)
    users = rng.integers(0, 2**64, 5000, dtype=np.uint64)
    codes = rng.integers(0, 4**10, 5000).astype(np.uint32)
    seen = []
    for group, chunk in split_by_user_group(EncodedLocations(users, codes, 5000, (0,) * 5), Spill()):
        hashes, cells = load(chunk)
        mine = np.frombuffer(hashes, np.uint64)
        assert (mine >> np.uint64(58) == group).all()
        seen += list(zip(mine.tolist(), np.frombuffer(cells, np.uint32).tolist(), strict=True))
    assert sorted(seen) == sorted(zip(users.tolist(), codes.tolist(), strict=True))


def batches_of(seed: int, values: bool) -> list[EncodedLocations]:
    """Three batches of users with 1 to 40 records, two users whose hashes differ in the lowest bit, dropped rows."""
    rng = seeded_rng(seed)
    pool = rng.integers(0, 2**64, 400, dtype=np.uint64)
    pool[1] = pool[0] ^ np.uint64(1)
    users = np.repeat(pool, rng.integers(1, 40, 400))
    rng.shuffle(users)
    codes = rng.integers(0, 4**6, len(users)).astype(np.uint32)
    numbers, unusable = rng.random(len(users)), np.concatenate([pool[:20], rng.integers(0, 2**64, 30, dtype=np.uint64)])
    cuts = [0, 1000, 1001, len(users)]
    return [
        EncodedLocations(
            users[first:end], codes[first:end], end - first, (), numbers[first:end] if values else None, part
        )
        for (first, end), part in zip(itertools.pairwise(cuts), np.array_split(unusable, 3), strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "values"),
    [("one", False), ("top", True), ("all", True), ("slots", False), ("dwell", True)],
)
def test_no_result_depends_on_the_number_of_groups(kind: str, values: bool) -> None:
    places = Places(5, 4) if kind == "slots" else Places(6)
    found = []
    for bits in (1, 6, 9):
        groups, chunks = UserGroups(Spill(None, bits)), {}
        for batch in batches_of(3, values):
            groups.add(batch)
        for number, chunk in groups.chunks():
            chunks.setdefault(number, []).append(chunk)
        rows, without_record = [], 0
        for number, mine in chunks.items():
            assert 0 <= number < 1 << bits
            records, unusable = split_unusable(mine)
            without_record += count_unusable(records, unusable)
            if not records:
                continue
            if kind == "slots":
                rows += bound_slots(records, places, 2).tolist()
            elif kind == "all":
                one = bound_distributions(records, places, 100)
                rows += zip(one.users.tolist(), one.codes.tolist(), one.weights.tolist(), strict=True)
            else:
                rows += bound_users(records, places, 0.25 if kind == "dwell" else None, kind == "top").tolist()
        assert without_record == 30
        found.append(sorted(rows))
    assert len(found[0]) >= 400
    assert all(one == found[0] for one in found)


def test_the_number_of_groups_follows_the_rows() -> None:
    assert [1 << group_bits(rows) for rows in (0, 1, 1_000_000, 10_000_000, 54_600_000)] == [4, 4, 4, 16, 64]
    assert 1 << group_bits(20 * 10**9) >= 1000  # a billion users of 20 rows
    assert 1 << group_bits(10_000_000, max_bytes=50_000_000) == 32
    for rows in (10**9, 20 * 10**9, 100 * 10**9):
        assert rows / (1 << group_bits(rows)) * ROW_BYTES <= MAX_GROUP_BYTES


@pytest.mark.parametrize(("users", "depth"), [(200_000, 18), (1, 10)])
@pytest.mark.parametrize("kind", ["one", "top", "weights", "dwell", "slots", "all"])
def test_bounding_needs_no_more_memory_a_record_than_is_planned(kind: str, users: int, depth: int) -> None:
    """From `--memory` follow the groups by this number. What the records themselves need is in it."""
    rng, rows, spill, chunks = seeded_rng(0), 200_000, Spill(f"{MEMORY}peak"), []
    places = Places(depth - 1, 4) if kind == "slots" else Places(depth)
    pool = rng.integers(0, 2**64, users, dtype=np.uint64)
    hashes = pool if users == rows else pool[rng.integers(0, users, rows)]
    codes, values = rng.integers(0, 4**depth, rows).astype(places.dtype), rng.random(rows)
    tracemalloc.start()
    try:
        for part in np.array_split(np.arange(rows), 10):
            columns = [hashes[part], *([values[part]] if kind in ("weights", "dwell") else []), codes[part]]
            chunks.append(spill.store(*(column.data for column in columns)))
            del columns
        if kind == "all":
            _ = bound_distributions(chunks, places, 1000)
        elif kind == "slots":
            _ = bound_slots(chunks, places, 2)
        else:
            _ = bound_users(chunks, places, 1.0 if kind == "dwell" else None, kind == "top")
        assert tracemalloc.get_traced_memory()[1] <= ROW_BYTES * rows
    finally:
        tracemalloc.stop()
        forget(f"{MEMORY}peak")


PIECES = [b"", b"a", b"bc" * 5000, np.arange(3000, dtype=np.uint64).tobytes(), b"", b"end"]


@pytest.mark.parametrize("kind", ["inline", "held", "files"])
def test_spill_loads_what_is_stored_and_releases_what_is_taken(tmp_path, kind: str) -> None:
    spill = Spill({"inline": None, "held": f"{MEMORY}test", "files": str(tmp_path)}[kind])
    stored = [spill.store(piece, piece[:3]) for piece in PIECES]
    assert [[bytes(part) for part in load(one)] for one in stored] == [[piece, piece[:3]] for piece in PIECES]
    if kind != "inline":
        assert max(map(len, stored)) < 200
    if kind == "files":
        (file,) = tmp_path.iterdir()
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600  # nobody else reads users' places
    columns = [spill.store(np.arange(n, dtype=np.int64).data, bytes(n)) for n in (3, 0, 5)]
    assert [lengths_of(one) for one in columns] == [(24, 3), (0, 0), (40, 5)]
    numbers, rest = join(columns[:2], [np.dtype(np.int64), np.dtype(np.uint8)], last=True)
    assert (numbers.tolist(), rest.tolist()) == ([0, 1, 2], [0, 0, 0])
    assert np.frombuffer(take(columns[2])[0], np.int64).tolist() == [0, 1, 2, 3, 4]
    if kind == "held":
        with pytest.raises(KeyError):
            load(columns[2])
    forget(f"{MEMORY}test")


def test_workers_write_to_files_of_their_own(tmp_path) -> None:
    spill = Spill(str(tmp_path))
    first = spill.store(b"one")
    second = pickle.loads(pickle.dumps(spill)).store(b"two")
    assert (bytes(load(first)[0]), bytes(load(second)[0])) == (b"one", b"two")
    assert len(list(tmp_path.iterdir())) == 2
