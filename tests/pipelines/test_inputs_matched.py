"""Which files an input names: patterns, folders, partitions, and what is left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.inputs import layout_of, match_files, partition_of
from sfumato.pipelines.run import request_of
from sfumato.schemas.errors import RequestError
from sfumato.schemas.log_layout import PartitionFilter
from tests.log_forms import hive, records, write_csv


def names(*patterns: str | Path, where: str | None = None) -> list[str]:
    filters = [] if where is None else [PartitionFilter.parse(where)]
    files = match_files([str(one) for one in patterns], where=filters)
    return [file.path.removeprefix(str(files[0].path.partition("/logs/")[0]) + "/logs/") for file in files]


def test_a_folder_is_its_logs_and_those_of_its_folders(tmp_path: Path) -> None:
    folder = hive(records(30), tmp_path / "logs")
    write_csv(records(3), folder / "more.csv.gz")
    (folder / ".staging").mkdir()
    shutil.copy(folder / "day=2026-11-20" / "part.parquet", folder / ".staging" / "part.parquet")
    days = [f"day=2026-11-{day}/part.parquet" for day in (20, 21, 22)]
    assert names(folder) == [*days, "more.csv.gz"]
    assert names(f"{folder}/") == [*days, "more.csv.gz"]


def test_several_patterns_name_each_file_once(tmp_path: Path) -> None:
    folder = hive(records(30), tmp_path / "logs")
    days = [f"day=2026-11-{day}/part.parquet" for day in (20, 21, 22)]
    assert names(f"{folder}/*/part.parquet", folder, f"{folder}/day=2026-11-21/*") == days
    values = {"output": "out", "region": "-1,50,1,51"}
    for given in ("a,b", ["a", "b"], ("a", Path("b")), ["a,b"]):
        assert request_of("heatmap", {**values, "input": given}).input == ("a", "b")
    for given in ("", "a,", ["a", ""], [], 7, [7]):
        with pytest.raises(RequestError, match="input: "):
            request_of("heatmap", {**values, "input": given})


@pytest.mark.parametrize(
    ("where", "days"),
    [("day=2026-11-21", [21]), ("day=2026-11-21:2026-11-22", [21, 22]), ("day=2026-10-01:2026-11-20", [20])],
)
def test_partitions_are_filtered_by_their_folders(where: str, days: list[int], tmp_path: Path) -> None:
    folder = hive(records(30), tmp_path / "logs")
    assert names(folder, where=where) == [f"day=2026-11-{day}/part.parquet" for day in days]


def test_filters_that_leave_nothing_or_name_no_folder(tmp_path: Path) -> None:
    folder = hive(records(30), tmp_path / "logs")
    with pytest.raises(RequestError, match="where: no file is in a folder day=2027-01-01"):
        names(folder, where="day=2027-01-01")
    with pytest.raises(RequestError, match=r"where: .*part\.parquet is in no folder date="):
        names(folder, where="date=2026-11-20")


@pytest.mark.parametrize("text", ["day", "=3", "day=", "day=3:", "day=5:3", "day=b:a"])
def test_wrong_filters_name_the_option(text: str) -> None:
    with pytest.raises(RequestError, match=r"where: "):
        request_of("heatmap", {"input": "a", "output": "out", "region": "-1,50,1,51", "where": text})


def test_numbers_compare_as_numbers() -> None:
    hours = PartitionFilter.parse("hour=7:10")
    assert [hours.keeps(value) for value in ("6", "7", "08", "10", "11")] == [False, True, True, True, False]
    assert str(hours) == "hour=7:10"
    assert str(PartitionFilter.parse("day=a")) == "day=a"


def test_partitions_are_decoded_as_spark_writes_them() -> None:
    assert partition_of("a/b=c%3Ad/e=__HIVE_DEFAULT_PARTITION__/f=g.parquet") == (("b", "c:d"), ("e", None))


def test_inputs_that_name_no_log(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no log")
    with pytest.raises(RequestError, match=r"input: the folder .* holds no file of a known format"):
        match_files(str(tmp_path / "empty"))
    with pytest.raises(RequestError, match="input: no file matches"):
        match_files(str(tmp_path / "*.csv"))
    pq.write_table(records(3), tmp_path / "a.parquet")
    with pytest.raises(RequestError, match="input: no file matches"):
        match_files([str(tmp_path / "*.parquet"), str(tmp_path / "*.csv")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"geometry_column": "g", "cell_column": "c", "cell_index": "h3:9"}, "geometry_column, cell_column: each says"),
        ({"geometry_column": "g", "coordinates": "e7"}, "geometry_column, coordinates: each says where a record is"),
        ({"geometry_column": "g", "latitude_column": "y"}, "latitude_column: --geometry_column takes its place"),
        ({"cell_column": "c"}, "cell_column, cell_index: give both"),
        ({"cell_index": "h3:9"}, "cell_column, cell_index: give both"),
        ({"cell_column": "c", "cell_index": "h3:99"}, "cell_index: must be h3:RESOLUTION"),
        ({"coordinates": "radians"}, "coordinates: must be one of degrees, e7"),
        ({"input_format": "orc"}, "input_format: must be one of parquet, csv, ndjson"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        request_of("heatmap", {"input": "a", "output": "out", "region": "-1,50,1,51", **options})


def test_the_layout_of_a_request() -> None:
    values = {"input": "a", "output": "out", "region": "-1,50,1,51", "longitude_column": "x", "coordinates": "e7"}
    layout = layout_of(request_of("heatmap", values))
    assert (layout.latitude, layout.longitude, layout.e7) == ("latitude", "x", True)
    assert (
        layout_of(request_of("quantiles", {"input": "a", "output": "o", "column": "km", "range": "0,5"})).format is None
    )
