"""Query files: what they may hold, and what is said of those that hold something else."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.errors import DataError, RequestError
from sfumato.transforms.ranges.query_files import LARGEST, QUERIES_SCHEMA, count_queries, read_queries


def written(folder: Path, **columns: Any) -> str:
    """A query file; columns that are not given hold squares of 100 m at (2, 3)."""
    n = max((len(values) for values in columns.values() if values is not None), default=5)
    whole = {"x": np.full(n, 2.0), "y": np.full(n, 3.0), "size": np.full(n, 100.0)} | columns
    path = folder / "q.parquet"
    pq.write_table(pa.table({name: values for name, values in whole.items() if values is not None}), path)
    return str(path)


def test_queries_come_in_batches_in_their_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, y, size = rng.uniform(-180, 180, 1000), rng.uniform(-90, 90, 1000), rng.uniform(1, 1e6, 1000)
    path = tmp_path / "q.parquet"
    # Other columns, another order, and row groups that do not fit the batches.
    pq.write_table(pa.table({"name": ["a"] * 1000, "size": size, "y": y, "x": x}), path, row_group_size=300)
    batches = list(read_queries(str(path), rows=128))
    assert max(batch.num_rows for batch in batches) == 128
    assert {batch.schema for batch in batches} == {QUERIES_SCHEMA}
    table = pa.Table.from_batches(batches)
    assert count_queries(str(path)) == table.num_rows == 1000
    for name, values in (("x", x), ("y", y), ("size", size)):
        np.testing.assert_array_equal(table[name].to_numpy(), values)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(9, 2)]
)
def test_all_kinds_of_numbers_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    values: list[Any] = [Decimal(5), Decimal(7)] if pa.types.is_decimal(kind) else [5, 7]
    if kind == pa.float16():
        values = list(np.array(values, dtype=np.float16))
    path = written(tmp_path, x=pa.array(values, kind), y=pa.array(values, kind), size=pa.array(values, kind))
    (batch,) = read_queries(path)
    assert batch.to_pydict() == {"x": [5.0, 7.0], "y": [5.0, 7.0], "size": [5.0, 7.0]}


@pytest.mark.parametrize("rows", [1, 4, 1000])
@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("size", math.nan, "has nan for size; a square has three finite numbers"),
        ("x", math.inf, "has inf for x; a square"),
        ("y", -math.inf, "has -inf for y"),
        ("x", None, "has nothing for x"),
        ("size", 0.0, "has 0 for size"),
        ("size", -3.0, "has -3 for size"),
        ("size", 2 * LARGEST, "the Earth's circumference"),
        ("size", 1e-300, "a side is 0.001 m or more"),
        ("y", 90.5, "has 90.5 for y; a latitude is in -90..90 degrees; are x and y swapped?"),
        ("x", 181.0, "has 181 for x"),
    ],
)
def test_what_is_no_square_is_refused_with_its_row(
    tmp_path: Path, rows: int, column: str, value: float | None, says: str
) -> None:
    values: list[float | None] = [1.0] * 11
    values[6] = value
    path = written(tmp_path, **{column: pa.array(values, pa.float64())})
    with pytest.raises(RequestError) as refused:
        list(read_queries(path, rows))
    assert str(refused.value).startswith(f"{path}: row 7 ")
    assert says in str(refused.value)


def test_the_first_bad_row_is_named_whatever_its_column(tmp_path: Path) -> None:
    path = written(tmp_path, x=[1.0, 1.0, math.nan], size=[1.0, -1.0, 1.0])
    with pytest.raises(RequestError, match="row 2 has -1 for size"):
        list(read_queries(path))


def test_columns_that_do_not_serve_are_named(tmp_path: Path) -> None:
    for columns, says in (
        ({"x": None, "lon": [1.0]}, "no column 'x'; queries need x, y, size, the file has: y, size, lon"),
        ({"size": ["100 m"]}, "column 'size' must hold numbers, it holds string"),
        ({"y": [True]}, "column 'y' must hold numbers, it holds bool"),
        ({"x": [[1.0]]}, "column 'x' must hold numbers, it holds list"),
    ):
        path = written(tmp_path, **columns)
        for read in (count_queries, lambda path: list(read_queries(path))):
            with pytest.raises(RequestError) as refused:
                read(path)
            assert str(refused.value).startswith(f"{path}: {says}")
    twice = pa.Table.from_arrays([pa.array([1.0])] * 4, names=["x", "y", "size", "x"])
    pq.write_table(twice, tmp_path / "q.parquet")
    with pytest.raises(RequestError, match="2 columns are named 'x'"):
        count_queries(str(tmp_path / "q.parquet"))


def test_what_is_no_parquet_file_is_told_so(tmp_path: Path) -> None:
    whole = Path(written(tmp_path)).read_bytes()
    for content in (b"", b"x,y,size\n1,2,3\n", whole[:-30], whole[:40]):
        (tmp_path / "q.parquet").write_bytes(content)
        with pytest.raises(DataError, match=r"q\.parquet: cannot be read as Parquet"):
            list(read_queries(str(tmp_path / "q.parquet")))
    with pytest.raises(DataError, match="cannot be opened"):
        list(read_queries(str(tmp_path / "nowhere.parquet")))


def test_a_file_without_rows_has_no_batches(tmp_path: Path) -> None:
    path = written(
        tmp_path, x=pa.array([], pa.float64()), y=pa.array([], pa.float64()), size=pa.array([], pa.float64())
    )
    assert [batch for batch in read_queries(path) if batch.num_rows] == []
    assert count_queries(path) == 0
