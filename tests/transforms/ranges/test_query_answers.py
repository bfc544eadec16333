"""Files answered by a pipeline are answered as in memory, in their order."""

from __future__ import annotations

import json
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.schemas.ranges import ANSWERS_SCHEMA, Boxes
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.model_file import model_bytes
from sfumato.transforms.ranges.query_files import (
    BATCH_ROWS,
    QUERIES_SCHEMA,
    AnswerFiles,
    QueryCounts,
    answer_batch,
    count_answers,
    sum_query_counts,
)
from tests.transforms.ranges.models import FIELD, grid_model, partition_model, some_squares


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
    for model in (grid_model(400), partition_model()):
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
