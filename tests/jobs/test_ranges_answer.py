"""`sfumato ranges answer`: files in, files out, and every refusal before or instead of an answer."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.cli import run_command
from sfumato.pipelines.failures import error_of
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.ranges import ANSWERS_SCHEMA
from sfumato.schemas.release import MODEL_FILE
from sfumato.transforms.ranges.model_file import model_bytes
from tests.rejections import rejects
from tests.unit.ranges.models import REGION, grid_model, some_squares


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
    asked, table = pq.read_table(queries), pq.read_table(answers)
    assert table.schema == ANSWERS_SCHEMA
    columns = [asked[name].to_numpy() for name in ("x", "y", "size")]
    found, inside = grid_model().answer(*columns)
    for name, values in zip(ANSWERS_SCHEMA.names, (*columns, found.users, found.stddev, inside), strict=True):
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


def test_a_model_is_named_by_its_file_too_and_queries_by_a_pattern(place: Path) -> None:
    out = str(place / "new" / "folder" / "a.parquet")
    model, queries = str(place / "release" / MODEL_FILE), str(place / "q*.parquet")
    assert run_command("ranges answer", ["--model", model, "--queries", queries, "--output", out]) == 0
    check(place / "q.parquet", Path(out))


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


def test_additive_answers_add_up(place: Path) -> None:
    """Tiles of about 500 m, from 2 km outside the region to 2 km outside."""
    edges = [np.arange(start, end, 0.0046) for start, end in ((-122.54, -122.32), (37.68, 37.86))]
    x, y = (axis.ravel() for axis in np.meshgrid(*edges))
    metres = 0.0046 * 111_195.0
    queries = pa.table({"x": x, "y": y, "size": np.full(x.size, metres)})
    pq.write_table(queries, place / "tiles.parquet")
    assert answer(place, "tiles.parquet", "additive.parquet", "--additive") == 0
    assert answer(place, "tiles.parquet", "plain.parquet") == 0
    added, plain = (pq.read_table(place / f"{name}.parquet") for name in ("additive", "plain"))
    found, _ = grid_model().answer(x, y, np.full(x.size, metres), additive=True)
    np.testing.assert_allclose(added["users"].to_numpy(), found.users, rtol=1e-12)
    np.testing.assert_allclose(added["stddev"].to_numpy(), found.stddev, rtol=1e-12)
    total = grid_model().model.grid.users.sum()  # type: ignore[attr-defined]
    # A degree of longitude has cos(37.77 degrees) of the metres of one of latitude, so that these tiles overlap.
    times = 1 / np.cos(np.radians(37.765))
    assert added["users"].to_numpy().sum() == pytest.approx(times * total, rel=0.02)
    assert plain["users"].to_numpy().sum() > 1.03 * added["users"].to_numpy().sum()


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


def test_squares_of_another_place_are_warned_of(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y, _ = some_squares(5)
    write_queries(place / "q.parquet", 5, x=np.clip(y, -90, 90), y=np.clip(x, -90, 90))
    with caplog.at_level("WARNING", "sfumato.job"):
        assert answer(place) == 0
    assert f"no square reaches into the region {REGION}; are x and y swapped?" in caplog.text
    assert pq.read_table(place / "a.parquet")["users"].to_pylist() == [0.0] * 5


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"size": ["a"] * 4}, RequestError, "column 'size' must hold numbers, it holds string"),
        ({"x": [None] * 4}, RequestError, "column 'x' must hold numbers, it holds null"),
    ],
)
def test_columns_are_checked_before_any_work(place: Path, changed: Any, error: type[Exception], says: str) -> None:
    write_queries(place / "q.parquet", 4, **changed)
    with pytest.raises(error, match=says):
        answer(place)


def test_other_bad_input_is_refused(place: Path) -> None:
    pq.write_table(pa.table({"lon": [1.0], "lat": [1.0], "size": [1.0]}), place / "r.parquet")
    with pytest.raises(
        RequestError, match=r"r\.parquet: no column 'x'; queries need x, y, size, the file has: lon, lat, size"
    ):
        answer(place, "r.parquet")
    write_queries(place / "none.parquet", 0)
    with rejects("queries"):
        answer(place, "none.parquet")
    (place / "text.parquet").write_text("x,y,size\n1,2,3\n")
    with pytest.raises(DataError, match=r"text\.parquet: cannot be read as Parquet"):
        answer(place, "text.parquet")
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
    with pytest.raises(RequestError, match="Dataflow's workers cannot reach this machine"):
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
        asked = ["--model", f"{BUCKET}/release", "--queries", f"{BUCKET}/q*.parquet"]
        assert run_command("ranges answer", [*asked, "--output", f"{BUCKET}/answers/a.parquet"]) == 0
        assert names(f"{BUCKET}/answers") == ["a.parquet"]
        with FileSystems.open(f"{BUCKET}/answers/a.parquet") as file:
            (place / "a.parquet").write_bytes(file.read())
        with pytest.raises(RequestError, match="exists already"):
            run_command("ranges answer", [*asked, "--output", f"{BUCKET}/answers/a.parquet"])
        with pytest.raises(RequestError, match=f"no file {BUCKET}/other/{MODEL_FILE}"):
            run_command(
                "ranges answer", ["--model", f"{BUCKET}/other", *asked[2:], "--output", f"{BUCKET}/answers/b.parquet"]
            )
    check(place / "q.parquet", place / "a.parquet")
