"""Query files: what they may hold, and what is said of those that hold something else."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.ranges import ANSWERS_SCHEMA, Boxes
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.model_file import model_bytes
from sfumato.transforms.ranges.query_files import (
    BATCH_ROWS,
    LARGEST,
    QUERIES_SCHEMA,
    AnswerFiles,
    QueryCounts,
    answer_batch,
    count_answers,
    count_queries,
    read_queries,
    sum_query_counts,
)
from tests.seeds import seeded_rng
from tests.unit.ranges.models import FIELD, grid_model, some_squares
from tests.unit.ranges.samples import slope_model


def written(folder: Path, **columns: Any) -> str:
    """A query file; columns that are not given hold squares of 100 m at (2, 3)."""
    n = max((len(values) for values in columns.values() if values is not None), default=5)
    whole = {"x": np.full(n, 2.0), "y": np.full(n, 3.0), "size": np.full(n, 100.0)} | columns
    path = folder / "q.parquet"
    pq.write_table(pa.table({name: values for name, values in whole.items() if values is not None}), path)
    return str(path)


def test_queries_come_in_batches_in_their_order(tmp_path: Path) -> None:
    rng = seeded_rng(1)
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


def batch_of(x: np.ndarray, y: np.ndarray, size: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(one) for one in (x, y, size)], schema=QUERIES_SCHEMA)


def brute_grid(model: RangeModel, boxes: Boxes) -> np.ndarray:
    """Users of each box, cell by cell: the users of a grid's cell times the share of it that the box covers."""
    grid = model.model.grid  # type: ignore[attr-defined]
    found = np.zeros(len(boxes))
    for row, (y0, y1) in enumerate(zip(grid.y_edges[:-1], grid.y_edges[1:], strict=True)):
        for column, (x0, x1) in enumerate(zip(grid.x_edges[:-1], grid.x_edges[1:], strict=True)):
            across = np.clip(np.minimum(boxes.x1, x1) - np.maximum(boxes.x0, x0), 0, None) / (x1 - x0)
            down = np.clip(np.minimum(boxes.y1, y1) - np.maximum(boxes.y0, y0), 0, None) / (y1 - y0)
            found += grid.users[row, column] * across * down
    return np.maximum(found, 0.0)


def test_a_batch_is_answered_row_by_row() -> None:
    x, y, size = some_squares(400)
    for model in (grid_model(400), slope_model()):
        answers = answer_batch(model, batch_of(x, y, size))
        assert answers.schema == ANSWERS_SCHEMA
        assert answers.schema.field("stddev").metadata == {b"error": model.model.ERROR.encode()}
        alone = [answer_batch(model, batch_of(x[i : i + 1], y[i : i + 1], size[i : i + 1])) for i in range(400)]
        np.testing.assert_allclose(
            np.array([answers[name] for name in ANSWERS_SCHEMA.names]),
            np.array([[one[name][0].as_py() for one in alone] for name in ANSWERS_SCHEMA.names]),
            rtol=1e-12,
        )
        np.testing.assert_array_equal(answers["x"], x)
        np.testing.assert_array_equal(answers["size"], size)
    brute = brute_grid(grid_model(400), FIELD.squares(x, y, size).clipped(FIELD.side))
    np.testing.assert_allclose(answer_batch(grid_model(400), batch_of(x, y, size))["users"], brute, atol=1e-6)


def test_squares_beyond_the_region_are_flagged_and_counted() -> None:
    region, (wide, tall) = FIELD.grid.region, FIELD.metres
    middle = (region.west + region.east) / 2, (region.south + region.north) / 2
    # Within; over the eastern border, a quarter out; over a corner; round everything; outside; touching from outside.
    x = np.array([middle[0], region.east, region.west, middle[0], region.east + 1, region.west])
    y = np.array([middle[1], middle[1], region.south, middle[1], middle[1], region.north + 1])
    size = np.array([500.0, 800.0, 300.0, 4 * max(wide, tall), 100.0, 100.0])
    x[1] -= 200 / wide * (region.east - region.west)
    answers = answer_batch(grid_model(), batch_of(x, y, size))
    everything = wide * tall / size[3] ** 2
    np.testing.assert_allclose(answers["inside"], [1, 0.75, 0.25, everything, 0, 0], rtol=1e-9)
    total = grid_model().answer(*(np.array([one]) for one in (*middle, 2 * max(wide, tall))))[0].users[0]
    assert answers["users"][3].as_py() == pytest.approx(total)
    assert answers["users"].to_pylist()[4:] == answers["stddev"].to_pylist()[4:] == [0.0, 0.0]
    assert count_answers(answers) == QueryCounts(6, 5, 2)
    assert sum_query_counts([count_answers(answers), QueryCounts(), QueryCounts(1, 1, 0)]) == QueryCounts(7, 6, 2)


def test_a_pipeline_answers_files_as_in_memory(tmp_path: Path) -> None:
    model = grid_model()
    (tmp_path / "model.npz").write_bytes(model_bytes(model))
    sizes = (2 * BATCH_ROWS + 17, 0, 300)  # several batches, none, one
    pairs, whole = [], []
    for number, n in enumerate(sizes):
        batch = batch_of(*some_squares(n, seed=number))
        pairs.append((str(tmp_path / f"q{number}.parquet"), str(tmp_path / f"a{number}.parquet")))
        pq.write_table(pa.Table.from_batches([batch]), pairs[-1][0], row_group_size=50_000)
        whole.append(answer_batch(model, batch))
    told = tmp_path / "told"
    with beam.Pipeline(runner=FnApiRunner()) as root:
        tallies = root | beam.Create(pairs) | AnswerFiles(str(tmp_path))
        _ = tallies | beam.Map(lambda one: told.write_text(json.dumps([one.queries, one.beyond, one.outside])))
    for (_, path), expected in zip(pairs, whole, strict=True):
        table = pq.read_table(path)
        assert table.schema == ANSWERS_SCHEMA
        assert table.combine_chunks().equals(pa.Table.from_batches([expected]).combine_chunks())
    tally = sum_query_counts(map(count_answers, whole))
    assert tally.queries == sum(sizes)
    assert 0 < tally.outside < tally.beyond < tally.queries
    assert json.loads(told.read_text()) == [tally.queries, tally.beyond, tally.outside]
