"""Small files share an element of a pipeline: the rows, the checks and the release are those of single files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines import cli
from sfumato.pipelines.inputs import match_files
from sfumato.schemas.errors import DataError
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.inputs import log_reader
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import bundled, read_bundle, slice_bundle
from tests.conftest import make_logs, write_files
from tests.log_forms import records, write_csv, write_ndjson

COLUMNS = LocationColumns()


def rows_of(logs: list[LogFile]) -> list[list[dict[str, object]]]:
    """The rows of each batch that a pipeline reads."""
    parts = [parts for bundle in bundled(logs) for parts in slice_bundle(bundle)]
    return [batch.to_pylist() for one in parts for batch in read_bundle(one, COLUMNS)]


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
    wanted = table.select(COLUMNS.names()).to_pylist()
    assert [row for batch in batches for row in batch] == wanted
    assert len(batches) <= 2  # columns of Parquet may be of another type than those of text
    assert len(bundled(logs_of(tmp_path))) == 1


def test_batches_are_joined_up_to_a_size_and_only_with_their_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "BATCH_ROWS", 100)
    table = records(180)
    for number in range(6):
        part = table.slice(30 * number, 30)
        if number == 4:
            part = part.set_column(0, "user_id", part["user_id"].cast(pa.large_string()))
        pq.write_table(part, tmp_path / f"{number}.parquet")
    assert [len(batch) for batch in rows_of(logs_of(tmp_path))] == [90, 30, 30, 30]


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
    for files in (1, 4, 128):
        monkeypatch.setattr(log_reader, "BUNDLE_FILES", files)
        place = tmp_path / "release"
        assert cli.main([*job, "--input", pattern, "--output", str(place), "--epsilon", "2", "--seed", "1"]) == 0
        tables = {path.name: path.read_bytes() for path in place.iterdir() if path.suffix in (".parquet", ".npy")}
        shutil.rmtree(place)
        assert tables
        found.append(tables)
    assert found[0] == found[1] == found[2]
