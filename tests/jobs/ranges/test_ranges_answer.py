"""Query files, and answers to them."""

from __future__ import annotations

import json
import math
import shlex
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.pipelines.command_line.cli import run_command
from sfumato.pipelines.runners.failures import error_of
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import RANGE_ANSWERS_SCHEMA, Boxes
from sfumato.schemas.release import MODEL_FILE
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
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.ranges.models import FIELD, grid_model, some_squares
from tests.unit.ranges.samples import slope_model

# Query files: what they may hold, and what is said of those that hold something else.


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


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("size", math.nan, "has nan for size; a square has three finite numbers"),
        ("y", -math.inf, "has -inf for y"),
        ("x", None, "has nothing for x"),
        ("size", 0.0, "has 0 for size"),
        ("size", 2 * LARGEST, "the Earth's circumference"),
        ("size", 1e-300, "a side is 0.001 m or more"),
        ("y", 90.5, "has 90.5 for y; a latitude is in -90..90 degrees; are x and y swapped?"),
        ("x", 181.0, "has 181 for x"),
    ],
)
def test_what_is_no_square_is_refused_with_its_row(tmp_path: Path, column: str, value: float | None, says: str) -> None:
    values: list[float | None] = [1.0] * 11
    values[6] = value
    path = written(tmp_path, **{column: pa.array(values, pa.float64())})
    with pytest.raises(RequestError) as refused:
        list(read_queries(path, 4))
    assert str(refused.value).startswith(f"{path}: row 7 ")
    assert says in str(refused.value)


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
        assert answers.schema == RANGE_ANSWERS_SCHEMA
        assert answers.schema.field("stddev").metadata == {b"error": model.model.ERROR.encode()}
        alone = [answer_batch(model, batch_of(x[i : i + 1], y[i : i + 1], size[i : i + 1])) for i in range(400)]
        np.testing.assert_allclose(
            np.array([answers[name] for name in RANGE_ANSWERS_SCHEMA.names]),
            np.array([[one[name][0].as_py() for one in alone] for name in RANGE_ANSWERS_SCHEMA.names]),
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
        assert table.schema == RANGE_ANSWERS_SCHEMA
        assert table.combine_chunks().equals(pa.Table.from_batches([expected]).combine_chunks())
    tally = sum_query_counts(map(count_answers, whole))
    assert tally.queries == sum(sizes)
    assert 0 < tally.outside < tally.beyond < tally.queries
    assert json.loads(told.read_text()) == [tally.queries, tally.beyond, tally.outside]


# `sfumato ranges answer`: files in, files out, and every refusal before or instead of an answer.


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a release of a model and 300 queries."""
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / MODEL_FILE).write_bytes(model_bytes(grid_model()))
    write_queries(tmp_path / "q.parquet", 300)
    return tmp_path


def write_queries(path: Path, n: int, seed: int = 0, **changed: Any) -> None:
    x, y, size = some_squares(n, seed)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"place": [f"p{i}" for i in range(n)], "x": x, "y": y, "size": size} | changed), path)


def answer(place: Path, queries: str = "q.parquet", output: str = "a.parquet", *more: str) -> int:
    given = [str(place / one) for one in shlex.split(queries)]
    return run_command(
        "ranges answer",
        ["--model", str(place / "release"), "--queries", *given, "--output", str(place / output), *more],
    )


def check(queries: Path, answers: Path) -> pa.Table:
    """The answers, which must be the model's own, row by row."""
    queried, table = pq.read_table(queries), pq.read_table(answers)
    assert table.schema == RANGE_ANSWERS_SCHEMA
    columns = [queried[name].to_numpy() for name in ("x", "y", "size")]
    found, inside = grid_model().answer(*columns)
    for name, values in zip(RANGE_ANSWERS_SCHEMA.names, (*columns, found.users, found.stddev, inside), strict=True):
        np.testing.assert_allclose(table[name].to_numpy(), values, rtol=1e-12)
    return table


def test_one_file_is_answered_in_its_order(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(place) == 0
    table = check(place / "q.parquet", place / "a.parquet")
    inside = table["inside"].to_numpy()
    told = capsys.readouterr().out
    beyond, outside = np.count_nonzero(inside < 1), np.count_nonzero(inside == 0)
    assert 0 < outside < beyond < 300
    assert told.startswith(
        f"300 squares answered, of which {beyond} reach beyond the region, {outside} wholly outside: "
    )
    assert sorted(one.name for one in place.iterdir()) == ["a.parquet", "q.parquet", "release"]


def test_several_files_have_an_answer_each(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_queries(place / "more" / "r.parquet", 70, 1)
    write_queries(place / "more" / "s.parquet", 0, 2)
    assert answer(place, "q.parquet more/*.parquet q.parquet", "answers") == 0
    assert sorted(one.name for one in (place / "answers").iterdir()) == ["q.parquet", "r.parquet", "s.parquet"]
    assert capsys.readouterr().out.startswith("370 squares answered")
    for path in (place / "q.parquet", place / "more" / "r.parquet"):
        check(path, place / "answers" / path.name)
    assert pq.read_table(place / "answers" / "s.parquet").num_rows == 0
    with pytest.raises(RequestError, match="2 files of queries match; name a folder"):
        answer(place, "more/*.parquet", "b.parquet")
    write_queries(place / "third" / "r.parquet", 3, 1)
    with pytest.raises(RequestError, match=r"2 files are called r\.parquet"):
        answer(place, "more/r.parquet third/r.parquet", "others")
    assert not (place / "others").exists()


def test_answers_are_replaced_only_when_asked(place: Path) -> None:
    (place / "a.parquet").write_text("something")
    with rejects("output"):
        answer(place)
    assert (place / "a.parquet").read_text() == "something"
    assert answer(place, "q.parquet", "a.parquet", "--overwrite") == 0
    first = (place / "a.parquet").read_bytes()
    assert answer(place, "q.parquet", "a.parquet", "--overwrite") == 0
    assert (place / "a.parquet").read_bytes() == first  # the same again
    with pytest.raises(RequestError, match="holds queries"):
        answer(place, "q.parquet", "q.parquet", "--overwrite")
    with pytest.raises(RequestError, match="holds queries"):
        answer(place, "q.parquet", ".", "--overwrite")
    check(place / "q.parquet", place / "a.parquet")


def test_a_bad_row_leaves_nothing_behind(place: Path) -> None:
    x, y, size = some_squares(70_000, 7)
    size[69_999] = np.nan
    pq.write_table(pa.table({"x": x, "y": y, "size": size}), place / "bad.parquet")
    before = sorted(place.rglob("*"))
    with pytest.raises(Exception, match=r"bad\.parquet: row 70,000 has nan for size") as raised:
        answer(place, "bad.parquet q.parquet", "new/answers")
    # The error crosses a runner, whose wrapping the command takes off again.
    found = error_of(raised.value)
    assert isinstance(found, RequestError)
    assert str(found).startswith(f"{place}/bad.parquet: row 70,000")
    assert sorted(place.rglob("*")) == before


def test_other_bad_input_is_refused(place: Path) -> None:
    write_queries(place / "none.parquet", 0)
    with rejects("queries"):
        answer(place, "none.parquet")
    with rejects("queries"):
        answer(place, "q.parquet nowhere*.parquet")
    with rejects("queries"):
        answer(place, "release")
    with pytest.raises(RequestError, match=r"is a file; name a folder, or a file that ends in \.parquet"):
        answer(place, "q.parquet", f"release/{MODEL_FILE}")
    (place / "folder.parquet").mkdir()
    with pytest.raises(RequestError, match="is a folder; name a file in it"):
        answer(place, "q.parquet", "folder.parquet")
    with rejects("output"):
        answer(place, "q.parquet", f"release/{MODEL_FILE}/a.parquet")
    with rejects("model"):
        run_command(
            "ranges answer",
            ["--model", str(place / "no"), "--queries", str(place / "q.parquet"), "--output", str(place / "a.parquet")],
        )
    with pytest.raises(RequestError, match="Dataflow workers cannot reach this machine"):
        answer(place, "q.parquet", "a.parquet", "--runner", "DataflowRunner")
    assert not (place / "a.parquet").exists()


@pytest.mark.slow
def test_everything_may_be_in_a_bucket(place: Path) -> None:
    pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")
    from apache_beam.io.filesystems import FileSystems

    from tests.storage import BUCKET, names, put, storage_emulator

    with storage_emulator():
        put(f"{BUCKET}/release/{MODEL_FILE}", (place / "release" / MODEL_FILE).read_bytes())
        put(f"{BUCKET}/q.parquet", (place / "q.parquet").read_bytes())
        arguments = ["--model", f"{BUCKET}/release", "--queries", f"{BUCKET}/q*.parquet"]
        assert run_command("ranges answer", [*arguments, "--output", f"{BUCKET}/answers/a.parquet"]) == 0
        assert names(f"{BUCKET}/answers") == ["a.parquet"]
        with FileSystems.open(f"{BUCKET}/answers/a.parquet") as file:
            (place / "a.parquet").write_bytes(file.read())
        with pytest.raises(RequestError, match="already exists"):
            run_command("ranges answer", [*arguments, "--output", f"{BUCKET}/answers/a.parquet"])
        with pytest.raises(RequestError, match=f"no file {BUCKET}/other/{MODEL_FILE}"):
            run_command(
                "ranges answer",
                ["--model", f"{BUCKET}/other", *arguments[2:], "--output", f"{BUCKET}/answers/b.parquet"],
            )
    check(place / "q.parquet", place / "a.parquet")
