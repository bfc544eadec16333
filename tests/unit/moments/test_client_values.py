"""Arrow batches to clients: every type of column, every way a row can be bad, and one record a user."""

from __future__ import annotations

import resource
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from sfumato.schemas.locations import DROP_REASONS
from sfumato.schemas.moments import FixedPoint, ValueColumns
from sfumato.transforms.locations.spill import Spill, forget
from sfumato.transforms.moments.client_values import (
    BLOCK_CLIENTS,
    Block,
    EncodedValues,
    Values,
    pack,
    row_blocks,
    split_by_user,
    unpack,
    user_blocks,
)
from sfumato.transforms.moments.groups import ColumnGroups
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

WIDE = FixedPoint(40)
CITIES = ColumnGroups("city", ("Bath", "Cork"))


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"value tests!" * 3), {"number": number})


def batch(values: Any, users: Any = None, **more: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": values, "user_id": users or list(range(len(values))), **more})


def encode(values: Any, form: FixedPoint, users: Any = None) -> EncodedValues:
    return Values(ValueColumns("x"), form).encode(batch(values, users), key())


def dropped(encoded: EncodedValues) -> dict[str, int]:
    return {reason: number for reason, number in zip(DROP_REASONS, encoded.dropped, strict=True) if number}


BAD = [1.0, None, float("nan"), float("inf"), -float("inf"), -2.0, -0.0, 300.0, 2.6]


def test_every_bad_row_is_dropped_for_its_reason() -> None:
    users = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    found = encode(BAD, FixedPoint(8), users)
    assert found.codes.tolist() == [1, 0, 255, 3]
    assert found.clamped == 1
    assert dropped(found) == {"null_value": 1, "not_finite": 3, "negative_value": 1}
    assert found.rows == 9
    assert found.users is not None
    assert len(set(found.users.tolist())) == 4
    # A row has one reason: without a user it is that, whatever its value.
    nobody = encode(BAD, FixedPoint(8), [None if number % 2 else number for number in users])
    assert dropped(nobody) == {"null_user_id": 4, "not_finite": 2}
    assert nobody.codes.tolist() == [1, 0, 3]


@pytest.mark.parametrize(
    ("form", "codes", "clamped"),
    [
        (FixedPoint(8, 0, "shift", 10.0), [11, 8, 10, 255, 13], 1),
        (FixedPoint(8, 0, "shift", 1.0), [2, 0, 1, 255, 4], 2),
        (FixedPoint(8, 0, "split"), [1, 256 + 2, 0, 255, 3], 1),
    ],
)
def test_negative_values_stay_where_the_form_has_them(form: FixedPoint, codes: list[int], clamped: int) -> None:
    found = encode(BAD, form)
    assert found.codes.tolist() == codes
    assert found.clamped == clamped
    assert dropped(found) == {"null_value": 1, "not_finite": 3}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint32(), pa.float16(), pa.float64()])
@pytest.mark.parametrize("dictionary", [False, True])
def test_every_type_of_number(kind: pa.DataType, dictionary: bool) -> None:
    numbers = [5, 0, 7, 5, 100, None]
    values = pa.array(
        [None if one is None else np.float16(one) for one in numbers] if kind == pa.float16() else numbers, kind
    )
    if dictionary:
        if kind == pa.float16():  # which dictionary_encode does not know
            places = pa.array([0, 1, 2, 0, 3, None], pa.int8())
            values = pa.DictionaryArray.from_arrays(places, pa.array(np.array([5, 0, 7, 100], np.float16)))
        else:
            values = values.dictionary_encode()
    found = encode(values, FixedPoint(7, 1))
    assert found.codes.tolist() == [10, 0, 14, 10, 127]
    assert found.clamped == 1
    assert dropped(found) == {"null_value": 1}


def test_groups_are_those_of_the_rows_that_stay() -> None:
    values = Values(ValueColumns("x", group="city"), FixedPoint(8), CITIES)
    cities = pa.array(["Cork", "Bath", "Rome", None, "Bath"])
    found = values.encode(batch([1.0, None, 3.0, 4.0, 5.0], city=cities), key())
    assert found.codes.tolist() == [1, 3, 4, 5]
    assert found.groups is not None
    assert found.groups.tolist() == [1, 2, 2, 0]


def test_rows_that_are_users_make_blocks_of_a_bounded_size() -> None:
    n = BLOCK_CLIENTS + 1000
    groups = (np.arange(n) % 3).astype(np.uint16)
    encoded = EncodedValues(None, np.arange(n, dtype=np.uint32), groups, n, (), 0, False)
    blocks = list(row_blocks(encoded, "file:0", key()))
    assert [len(block) for block in blocks] == [BLOCK_CLIENTS, 1000]
    assert len(np.unique(np.concatenate([block.random_bits for block in blocks]))) == n
    assert np.array_equal(np.sort(np.concatenate([block.codes for block in blocks])), np.arange(n))
    for block in blocks:
        assert block.groups is not None
        assert np.array_equal(block.groups, block.codes % 3)
        assert (np.diff((block.random_bits >> np.uint64(32)).astype(np.int64)) >= 0).all()
        assert not np.array_equal(block.codes, np.sort(block.codes))
    other = next(row_blocks(encoded, "file:1", key()))
    assert not np.array_equal(other.codes, blocks[0].codes)  # an order of its own for every batch


def chosen(batches: Sequence[pa.RecordBatch], values: Values, number: int = 0, place: str | None = None) -> list[Block]:
    """All blocks of users' batches, as the job makes them."""
    spill, parts = Spill(place), defaultdict(list)
    for one in batches:
        for group, stored in split_by_user(values.encode(one, key(number)), spill):
            parts[group].append(stored)
    return [block for group, chunks in sorted(parts.items()) for block in user_blocks(chunks, values, key(number))]


def records(users: int, each: Sequence[int], seed: int = 0) -> pa.RecordBatch:
    """Shuffled records of users, whose codes hold the user and the number of the record."""
    ids, number = np.repeat(np.arange(users), len(each)), np.tile(each, users)
    order = seeded_rng(seed).permutation(len(ids))
    cities = np.array(["Bath", "Cork", "Rome"])[number % 3]
    return batch((ids * 8 + number)[order].astype(float), pa.array(ids[order]), city=cities[order])


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("each", [[0, 1, 1, 5]])
def test_every_user_counts_once_by_a_record_chosen_uniformly(each: list[int], grouped: bool) -> None:
    values = Values(ValueColumns("x", group="city" if grouped else None), WIDE, CITIES if grouped else None)
    blocks = chosen([records(6000, each)], values)
    codes = np.concatenate([block.codes for block in blocks]).astype(np.int64)
    assert sorted((codes // 8).tolist()) == list(range(6000))  # everybody, once
    seen, share = Counter((codes % 8).tolist()), Counter(each)
    assert set(seen) <= set(share)
    observed = [seen[one] for one in share]
    expected = [6000 * share[one] / len(each) for one in share]
    assert stats.chisquare(observed, expected).pvalue > FLAKE_RATE
    wrong = np.array(expected) * np.linspace(0.7, 1.3, len(expected))  # the test would see a preference
    assert stats.chisquare(observed, wrong * 6000 / wrong.sum()).pvalue < FLAKE_RATE
    for block in blocks:
        assert (block.groups is None) == (not grouped)
        if block.groups is not None:  # the group of the very record
            assert block.groups.tolist() == (block.codes % 8 % 3).tolist()


def content(blocks: Sequence[Block]) -> list[tuple]:
    names = ("codes", "groups", "random_bits")
    return [
        tuple(None if getattr(one, name) is None else getattr(one, name).tolist() for name in names) for one in blocks
    ]


@pytest.mark.parametrize("grouped", [False, True])
def test_no_order_of_files_shows(grouped: bool) -> None:
    values = Values(ValueColumns("x", group="city" if grouped else None), WIDE, CITIES if grouped else None)
    rows = records(500, [0, 1, 2, 2])
    whole = content(chosen([rows], values))
    order = seeded_rng(9).permutation(rows.num_rows)
    parts = [rows.take(pa.array(part)) for part in np.array_split(order, 7)]
    assert content(chosen(parts, values)) == whole
    assert content(chosen(parts[::-1], values)) == whole
    assert content(chosen([rows], values, number=1)) != whole


@pytest.mark.parametrize("place", ["in line", "in memory", "in a folder"])
@pytest.mark.parametrize("grouped", [False, True])
def test_what_travels_in_a_blocks_place_is_the_block(place: str, grouped: bool, tmp_path: Path) -> None:
    spill = {"in line": None, "in memory": "memory:test values", "in a folder": str(tmp_path)}[place]
    values = Values(ValueColumns("x", group="city" if grouped else None), WIDE, CITIES if grouped else None)
    blocks = chosen([records(50, [0, 1])], values, place=spill)
    stored = [pack(block, Spill(spill)) for block in blocks]
    assert content([unpack(one) for one in stored]) == content(blocks)
    for one, block in zip(stored, blocks, strict=True):
        assert unpack(one).codes.dtype == block.codes.dtype
    forget("memory:test values")


def test_more_chunks_than_a_process_may_open_files(tmp_path: Path) -> None:
    limits, spill, values = (
        resource.getrlimit(resource.RLIMIT_NOFILE),
        Spill(str(tmp_path)),
        Values(ValueColumns("x"), WIDE),
    )
    users = np.arange(600, dtype=np.uint64) << np.uint64(32)
    chunks = [spill.store(users[i : i + 1].data, np.full(1, i, np.uint64).data) for i in range(600)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        (block,) = user_blocks(chunks, values, key())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sorted(block.codes.tolist()) == list(range(600))
