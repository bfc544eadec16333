"""Arrow batches to items: every type a column may have, and every way a row can be bad."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import CATEGORIES, DROP_REASONS, NUMBERS, PREFIXES, ItemColumns, LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, NumberItems
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.privacy.user_hashes import hash_users
from tests.rejections import rejects

KEY = RunKey.derive(FixedSecret(b"item tests" * 3), {"job": "items"})


def everybody(users: np.ndarray) -> np.ndarray:
    return np.ones(len(users), bool)


def batch(values: pa.Array | list, users: pa.Array | list | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": values, "user_id": users or list(range(len(values)))})


def dropped(encoded) -> dict[str, int]:
    return {reason: number for reason, number in zip(DROP_REASONS, encoded.dropped, strict=True) if number}


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array(["b", "a", None, "b", "é"]), ["b", "a", "b", "é"]),
        (pa.array(["b", "a", None, "b", "é"], pa.large_string()), ["b", "a", "b", "é"]),
        (pa.array(["b", "a", None, "b", "é"]).dictionary_encode(), ["b", "a", "b", "é"]),
        (pa.array([True, False, None, True, True]), ["true", "false", "true", "true"]),
        (pa.array([datetime.date(2026, 1, 2)] * 2 + [None]), ["2026-01-02"] * 2),
    ],
)
def test_texts_booleans_and_dates(values: pa.Array, names: list[str]) -> None:
    encoded = ColumnItems(ItemColumns("x")).encode(batch(values), KEY, everybody)
    assert [encoded.sample.texts[code] for code in encoded.sample.items.tolist()] == names
    codes = keyed_hash(KEY.subkey("items"), np.array([*names, ""], dtype=object)[:-1])
    assert np.array_equal(encoded.sample.items, codes)
    assert encoded.rows == len(values)
    assert dropped(encoded) == {"null_value": 1}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint32()])
def test_integers_stay_as_they_are(kind: pa.DataType) -> None:
    values = pa.array([5, 0, None, 7], kind)
    encoded = ColumnItems(ItemColumns("x")).encode(batch(values), KEY, everybody)
    assert encoded.sample.items.tolist() == [5, 0, 7]
    assert encoded.sample.texts == {}
    negative = ColumnItems(ItemColumns("x")).encode(batch(pa.array([-3])), KEY, everybody)
    assert negative.sample.items.astype(np.uint64).view(np.int64).tolist() == [-3]
    coded = ColumnItems(ItemColumns("x"), digits=1).encode(batch(pa.array([-3, 9, 10, None])), KEY, everybody)
    assert coded.sample.items.tolist() == [9]
    assert dropped(coded) == {"null_value": 1, "no_prefix_code": 2}
    dictionary = pa.array([4, 4, 2], kind).dictionary_encode()
    assert ColumnItems(ItemColumns("x")).encode(batch(dictionary), KEY, everybody).sample.items.tolist() == [4, 4, 2]


def test_only_drawn_users_leave_anything_behind() -> None:
    users = pa.array([10, 11, 12, 10], pa.int64())
    hashes = hash_users(users, KEY.subkey("users"))
    encoded = ColumnItems(ItemColumns("x")).encode(
        batch(pa.array(["a", "rare", "b", "c"]), users), KEY, lambda found: np.isin(found, hashes[[0, 2]])
    )
    assert np.array_equal(encoded.sample.users, hashes[[0, 2, 3]])
    assert sorted(encoded.sample.texts.values()) == ["a", "b", "c"]  # 'rare' is not even in the vocabulary


def test_null_users_are_dropped() -> None:
    encoded = ColumnItems(ItemColumns("x")).encode(
        batch(pa.array([1, None, 3]), pa.array(["u", None, None])), KEY, everybody
    )
    assert encoded.sample.items.tolist() == [1]
    assert dropped(encoded) == {"null_user_id": 2}


def test_numbers_fall_into_bins_and_what_is_outside_is_clamped() -> None:
    items = NumberItems(ItemColumns("x", kinds=NUMBERS), -1.0, 1.0, 2)
    values = pa.array([-1.0, -0.51, -0.5, 0.999, 1.0, 7.0, -9.0, float("inf"), float("nan"), None])
    encoded = items.encode(batch(values), KEY, everybody)
    assert encoded.sample.items.tolist() == [0, 0, 1, 3, 3, 3, 0, 3]
    assert encoded.clamped == 3
    assert dropped(encoded) == {"not_finite": 1, "null_value": 1}
    assert items.encode(batch(pa.array([0, 1, -5])), KEY, everybody).sample.items.tolist() == [2, 3, 0]


def test_cells_are_those_of_the_heatmap() -> None:
    grid = Grid(Region(-1, 50, 1, 51), 3)
    rows = pa.RecordBatch.from_pydict(
        {"user_id": [1, 2, 3, 4], "latitude": [50.9, 50.1, 80.0, None], "longitude": [-0.9, 0.9, 0.0, 0.0]}
    )
    encoded = CellItems(LocationColumns(), grid).encode(rows, KEY, everybody)
    assert encoded.sample.items.tolist() == grid.codes(np.array([-0.9, 0.9]), np.array([50.9, 50.1])).tolist()
    assert dropped(encoded) == {"out_of_region": 1, "null_coordinate": 1}


@pytest.mark.parametrize("encode", [lambda array: array, lambda array: array.dictionary_encode()])
def test_text_that_is_not_utf8_is_dropped_whoever_is_drawn(encode) -> None:
    """A run that failed for it would show whether its user was drawn."""
    offsets = pa.py_buffer(np.array([0, 1, 3, 5], np.int32))
    broken = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xff\xfe\xc3\xa9"))
    for drawn in (everybody, lambda users: np.zeros(len(users), bool)):
        encoded = ColumnItems(ItemColumns("x")).encode(batch(encode(broken)), KEY, drawn)
        assert dropped(encoded) == {"not_utf8": 1}
        assert list(encoded.sample.texts.values()) == (["a", "é"] if drawn is everybody else [])


def test_user_ids_that_are_not_utf8_are_users_like_others() -> None:
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32))
    broken = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff\xfe"))
    for ids in (broken, broken.dictionary_encode(), broken.cast(pa.binary())):
        hashes = hash_users(ids, b"k" * 32)
        assert np.array_equal(hashes, hash_users(pa.array([b"a", b"\xff\xfe"]), b"k" * 32))
    assert (
        hash_users(pa.array(["a", "é"]), b"k" * 32).tolist()
        == hash_users(pa.array([b"a", "é".encode()]), b"k" * 32).tolist()
    )


@pytest.mark.parametrize(
    ("kinds", "kind", "message"),
    [
        (CATEGORIES, pa.float64(), "holds double, and must hold categories; for the distribution of a number use"),
        (CATEGORIES, pa.list_(pa.int64()), "and must hold categories"),
        (CATEGORIES, pa.uint64(), "and must hold categories"),
        (PREFIXES, pa.bool_(), "holds bool, and must hold text, integers or dates, whose characters or digits"),
        (PREFIXES, pa.float32(), "are a prefix code; convert it to text"),
        (NUMBERS, pa.string(), "holds string, and must hold integers or floating-point numbers; convert it"),
    ],
)
def test_columns_of_other_types_are_refused(kinds: tuple[str, ...], kind: pa.DataType, message: str) -> None:
    schema = pa.schema({"user_id": pa.int64(), "x": kind})
    with pytest.raises(RequestError, match=f"f: column 'x' .*{message}"):
        ItemColumns("x", kinds=kinds).check(schema, "f")


def test_columns_that_are_not_there_are_refused() -> None:
    schema = pa.schema({"user_id": pa.int64(), "x": pa.string()})
    with rejects("f"):
        ItemColumns("y").check(schema, "f")
    with rejects("f"):
        ItemColumns("x", "id").check(schema, "f")
    with pytest.raises(RequestError, match="would name users"):
        ItemColumns("id", "id")
    assert ItemColumns("x").check(schema, "f") == {"x": "text"}


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf")), (-1e308, 1e308)])
def test_ranges_that_are_none_are_refused(low: float, high: float) -> None:
    with rejects("range"):
        NumberItems(ItemColumns("x", kinds=NUMBERS), low, high, 8)


@pytest.mark.parametrize("bits", [0, 31])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(RequestError, match=f"bits: must lie in 1..30, got {bits}"):
        NumberItems(ItemColumns("x", kinds=NUMBERS), 0, 1, bits)
