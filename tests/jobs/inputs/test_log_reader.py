"""One reader for all formats: the same records in each give a job the same batches, alone and in bundles."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import request_of
from sfumato.pipelines.frame.inputs import inspect, layout_of, match_files
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import Auxiliary, ItemColumns, LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.inputs import log_reader, parquet_log, text_lines
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import (
    FORMATS,
    SUFFIXES,
    bundled,
    count_rows,
    format_by_name,
    read_batches,
    read_bundle,
    slice_bundle,
    slice_file,
)
from sfumato.transforms.locations.encode import encode_locations
from tests.conftest import REGION, make_logs, write_files
from tests.log_forms import FORMS, records, write_csv, write_ndjson

KEY = b"k" * 32


def matched(where: Any, options: dict[str, Any]) -> list[Any]:
    request = request_of("heatmap", {"input": where, "output": "out", "region": "-1,50,1,51", **options})
    return match_files(request.input, layout_of(request))


def encoded(where: Any, options: dict[str, Any], columns: Any = None) -> list[tuple[Any, ...]]:
    """The users' hashes and cells of an input, sorted, as every job of locations gets them."""
    columns = columns or LocationColumns()
    files = matched(where, options)
    inspect(files, columns)
    found = []
    for file in files:
        for part in slice_file(file.log):
            for batch in read_batches(part, columns):
                one = encode_locations(batch, columns, Grid(REGION, 12), KEY)
                values = one.values if one.values is not None else np.zeros(len(one.users))
                found += list(zip(one.users.tolist(), one.codes.tolist(), values.tolist(), strict=True))
    return sorted(found)


@pytest.mark.parametrize(("form", "kind"), [*((form, "string") for form in FORMS), ("ndjson", "int")])
def test_records_in_every_form_are_the_same_users_and_cells(form: str, kind: str, tmp_path: Path) -> None:
    table = records(kind=kind)
    pq.write_table(table, tmp_path / "expected.parquet")
    expected = encoded(tmp_path / "expected.parquet", {})
    assert len(expected) == table.num_rows
    (tmp_path / "form").mkdir()
    where, options = FORMS[form](table, tmp_path / "form")
    assert encoded(where, options) == expected


@pytest.mark.parametrize("suffix", ["csv", "ndjson", "csv.gz"])
def test_slices_and_chunks_leave_out_no_line_and_repeat_none(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 700 bytes in slices of 3,000: lines are cut at every place of theirs."""
    table = records(300)
    where, options = FORMS[suffix](table, tmp_path)
    expected = encoded(where, options)
    assert len(expected) == table.num_rows
    for name, value in (("CHUNK_BYTES", 700), ("SLICE_BYTES", 3_000)):
        monkeypatch.setattr(text_lines, name, value)
    (file,) = matched(where, options)
    assert (len(list(slice_file(file.log))) > 5) == (suffix != "csv.gz")
    assert encoded(where, options) == expected


def test_slices_leave_out_no_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six groups of 300 rows in slices of two."""
    table = records(900)
    where, options = FORMS["parquet"](table, tmp_path)
    monkeypatch.setattr(parquet_log, "SLICE_ROWS", 500)
    (file,) = matched(where, options)
    assert len(list(slice_file(file.log))) == 3
    assert len(encoded(where, options)) == table.num_rows


def test_rows_are_counted_or_estimated_and_none_is_none(tmp_path: Path) -> None:
    table = records(300)
    for name, write in (("log.csv", write_csv), ("log.ndjson", write_ndjson)):
        assert count_rows(LogFile(str(write(table, tmp_path / name)))) == table.num_rows
    (tmp_path / "empty.csv").write_text("user_id,latitude,longitude\n\n")
    assert count_rows(LogFile(str(tmp_path / "empty.csv"))) == 0
    assert encoded(tmp_path / "empty.csv", {}) == []


def test_the_format_follows_from_the_name() -> None:
    assert set(SUFFIXES.values()) == set(FORMATS) - {"bigquery", "rows"}
    names = {"a.parquet": "parquet", "a.CSV": "csv", "a.tsv.gz": "csv", "a.jsonl": "ndjson", "a.gz": None, "a": None}
    assert {name: format_by_name(name) for name in names} == names


# --- columns ---


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_times_weights_and_flags_are_read_as_in_parquet(form: str, tmp_path: Path) -> None:
    """Times in both forms of ISO 8601, as a job reads them: seconds since 1970."""
    table = records(100)
    seconds = 1_795_000_000 + np.arange(table.num_rows) * 7
    flags = np.arange(table.num_rows) % 3 == 0
    typed = table.append_column("time", pa.array(seconds * 10**6, pa.timestamp("us", "UTC")))
    typed = typed.append_column("infected", pa.array(flags))
    pq.write_table(typed, tmp_path / "expected.parquet")
    columns = LocationColumns(time="time", auxiliary=Auxiliary("infected", assumed=True))
    expected = encoded(tmp_path / "expected.parquet", {}, columns)
    texts = np.datetime_as_string(seconds.astype("datetime64[s]"))
    zoned = [f"{text}Z" if number % 2 else text.replace("T", " ") for number, text in enumerate(texts.tolist())]
    as_text = table.append_column("time", pa.array(zoned)).append_column("infected", pa.array(flags))
    write = {"csv": write_csv, "ndjson": write_ndjson}[form]
    assert encoded(write(as_text, tmp_path / f"log.{form}"), {}, columns) == expected
    numbers = table.append_column("time", pa.array(seconds)).append_column("infected", pa.array(flags))
    assert encoded(write(numbers, tmp_path / f"numbers.{form}"), {}, columns) == expected


def test_a_column_may_be_that_of_a_partition(tmp_path: Path) -> None:
    where, _ = FORMS["Hive"](records(), tmp_path)
    columns = ItemColumns("day")
    days = [
        day
        for file in matched(where, {})
        for part in slice_file(file.log)
        for batch in read_batches(part, columns)
        for day in batch.column("day").to_pylist()
    ]
    assert sorted(days) == sorted(records()["day"].to_pylist())


@pytest.mark.parametrize(
    ("form", "names", "options", "words"),
    [
        (
            "csv",
            ["user_id", "lattitude", "longitude", "day"],
            {},
            "no column 'latitude' .*did you mean lattitude",
        ),
        (
            "parquet",
            ["user_id", "lattitude", "longitude", "day"],
            {},
            "no column 'latitude' .*did you mean lattitude",
        ),
        # By the declared type, and not by a value.
        ("E7 Parquet", None, {}, "column 'latitude' holds int64; set --coordinates e7"),
        # Degrees that are read as E7 would all lie in the Gulf of Guinea.
        ("parquet", None, {"coordinates": "e7"}, "must contain integers"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    form: str, names: list[str] | None, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    table = records() if names is None else records().rename_columns(names)
    where, _ = FORMS[form](table, tmp_path)
    with pytest.raises((RequestError, DataError), match=words):
        encoded(where, options)


@pytest.mark.parametrize("write", [write_csv, write_ndjson])
def test_ids_of_two_types_in_two_files_are_the_same_users(write: Any, tmp_path: Path) -> None:
    """CSV and NDJSON have no types, so their ids are text; `7` there and 7 in Parquet are one user."""
    form = write(records(kind="int"), tmp_path / ("a.csv" if write is write_csv else "a.ndjson"))
    pq.write_table(records(kind="int"), tmp_path / "b.parquet")
    both = encoded([form, tmp_path / "b.parquet"], {})
    assert sorted(both) == sorted(2 * encoded(tmp_path / "b.parquet", {}))


# --- E7 ---


@pytest.mark.parametrize(
    ("form", "options"), [("csv", {"coordinates": "e7"}), ("ndjson", {"coordinates": "e7"}), ("E7 CSV", {})]
)
def test_text_of_another_unit_has_no_place(form: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Text has no type, so the noisy count of users without a place ends the run."""
    where, _ = FORMS[form](records(), tmp_path)
    assert encoded(where, options) == []


# --- changes ---


@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz", "ndjson"])
def test_a_change_while_a_job_runs_is_found(form: str, tmp_path: Path) -> None:
    where, options = FORMS[form](records(), tmp_path)
    (file,) = matched(where, options)
    parts = list(slice_file(file.log))
    FORMS[form](records(seed=2), tmp_path)
    with pytest.raises(DataError, match="changed while the job was running"):
        list(read_batches(parts[0], LocationColumns()))
    with pytest.raises(DataError, match="changed while the job was running"):
        list(slice_file(file.log))


PLAIN_COLUMNS = LocationColumns()


def rows_of(logs: list[LogFile]) -> list[list[dict[str, object]]]:
    """The rows of each batch that a pipeline reads."""
    parts = [parts for bundle in bundled(logs) for parts in slice_bundle(bundle)]
    return [batch.to_pylist() for one in parts for batch in read_bundle(one, PLAIN_COLUMNS)]


def logs_of(pattern: str | Path) -> list[LogFile]:
    return [file.log for file in match_files(str(pattern))]


def test_small_neighbours_share_an_element_up_to_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "BUNDLE_BYTES", 100)
    monkeypatch.setattr(log_reader, "BUNDLE_FILES", 3)
    sizes = [40, 60, 1, 100, 250, 10, 10, 10, 10, None, 10]
    logs = [LogFile(f"{number}.parquet", size=size) for number, size in enumerate(sizes)]
    found = bundled(logs)
    assert [[one.size for one in bundle] for bundle in found] == [
        [40, 60], [1], [100], [250], [10, 10, 10], [10], [None], [10]
    ]  # fmt: skip
    assert [log for bundle in found for log in bundle] == logs
    assert bundled([]) == []


def test_a_bundle_has_the_rows_of_its_files_in_few_batches(tmp_path: Path) -> None:
    """Of every format, in the files' order, an empty file among them."""
    table = records(300, kind="string")
    pq.write_table(table.slice(0, 100), tmp_path / "a.parquet", row_group_size=30)
    write_csv(table.slice(100, 50), tmp_path / "b.csv")
    pq.write_table(table.slice(0, 0), tmp_path / "c.parquet")
    write_ndjson(table.slice(150, 50), tmp_path / "d.ndjson")
    write_csv(table.slice(200), tmp_path / "e.csv.gz")
    batches = rows_of(logs_of(tmp_path))
    wanted = table.select(PLAIN_COLUMNS.names()).to_pylist()
    assert [row for batch in batches for row in batch] == wanted
    assert len(batches) <= 2  # columns of Parquet may be of another type than those of text
    assert len(bundled(logs_of(tmp_path))) == 1


def test_a_bundle_refuses_a_file_that_changed_or_is_damaged(tmp_path: Path) -> None:
    pattern = write_files(make_logs(300, 1, seed=0), tmp_path, 3)
    logs = logs_of(pattern)
    content = (tmp_path / "log-1.parquet").read_bytes()
    (tmp_path / "log-1.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"log-1\.parquet: changed while the job was running"):
        rows_of(logs)
    (tmp_path / "log-1.parquet").write_bytes(content[:-50])
    with pytest.raises(DataError, match=r"log-1\.parquet: cannot be read as Parquet"):
        rows_of(logs_of(pattern))


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        ["heatmap", "--region", "-1,50,1,51", "--depth", "6"],
        ["histogram", "--region", "-1,50,1,51", "--cells", "3"],
        ["moments", "--column", "latitude", "--bits", "8"],
        ["moments", "--column", "latitude", "--bits", "8", "--rows_are_users"],
    ],
    ids=["heatmap", "histogram", "moments", "moments of rows"],
)
def test_bundles_change_no_byte_of_a_release(job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = write_files(make_logs(2000, 2, seed=4), tmp_path / "logs", 9)
    found = []
    for files in (1, 4):
        monkeypatch.setattr(log_reader, "BUNDLE_FILES", files)
        place = tmp_path / "release"
        assert cli.main([*job, "--input", pattern, "--output", str(place), "--epsilon", "2", "--seed", "1"]) == 0
        tables = {path.name: path.read_bytes() for path in place.iterdir() if path.suffix in (".parquet", ".npy")}
        shutil.rmtree(place)
        assert tables
        found.append(tables)
    assert found[0] == found[1]
