"""Which files an input names: patterns, folders, partitions, and what is left out or refused."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import sfumato
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import request_of
from sfumato.pipelines.frame.inputs import has_logs, match_files
from sfumato.schemas.errors import RequestError
from sfumato.schemas.log_layout import PartitionFilter
from tests.log_forms import hive, records, write_csv
from tests.rejections import rejects
from tests.seeds import seeded_rng

REQUEST = {"input": "a", "output": "out", "region": "-1,50,1,51"}


def names(*patterns: str | Path, where: str | None = None) -> list[str]:
    files = match_files([str(one) for one in patterns], where=None if where is None else [where])
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
    for given in ("a,b", ["a", "b"], ("a", Path("b")), ["a,b"]):
        assert request_of("heatmap", {**REQUEST, "input": given}).input == ("a", "b")


@pytest.mark.parametrize(
    ("where", "days"),
    [("day=2026-11-21", [21]), ("day=2026-11-21:2026-11-22", [21, 22]), ("day=2026-10-01:2026-11-20", [20])],
)
def test_partitions_are_filtered_by_their_folders(where: str, days: list[int], tmp_path: Path) -> None:
    folder = hive(records(30), tmp_path / "logs")
    assert names(folder, where=where) == [f"day=2026-11-{day}/part.parquet" for day in days]


def test_numbers_compare_as_numbers() -> None:
    hours = PartitionFilter.parse("hour=7:10")
    assert [hours.keeps(value) for value in ("6", "7", "08", "10", "11")] == [False, True, True, True, False]
    assert str(hours) == "hour=7:10"
    assert str(PartitionFilter.parse("day=a")) == "day=a"


def test_inputs_that_name_no_log(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no log")
    pq.write_table(records(3), tmp_path / "a.parquet")
    for given in (["empty"], ["*.csv"], ["*.parquet", "*.csv"]):
        with rejects("input"):
            match_files([str(tmp_path / one) for one in given])
    (tmp_path / "stops.shp").touch()
    with pytest.raises(RequestError, match="--zones"):
        match_files([str(tmp_path / "stops.shp")])
    folder = hive(records(30), tmp_path / "logs")
    for where in ("day=2027-01-01", "date=2026-11-20"):  # nothing is left, or no folder is named so
        with rejects("where"):
            names(folder, where=where)


CELLS = {"cell_column": "c", "cell_index": "h3:9"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(({"input": given}, "input") for given in ("", "a,", ["a", ""], [], 7, [7])),
        *(({"where": text}, "where") for text in ("day", "=3", "day=", "day=3:", "day=5:3", "day=b:a")),
        ({"geometry_column": "g", **CELLS}, "geometry_column, cell_column"),
        ({"geometry_column": "g", "coordinates": "e7"}, "geometry_column, coordinates"),
        ({"geometry_column": "g", "latitude_column": "y"}, "latitude_column"),
        ({"cell_column": "c"}, "cell_column, cell_index"),
        ({"cell_index": "h3:9"}, "cell_column, cell_index"),
        ({"cell_column": "c", "cell_index": "h3:99"}, "cell_index"),
        ({"coordinates": "radians"}, "coordinates"),
        ({"input_format": "orc"}, "input_format"),
    ],
)
def test_options_of_inputs_that_cannot_be_are_refused(options: dict[str, Any], named: str) -> None:
    with rejects(named):
        request_of("heatmap", {**REQUEST, **options})


# --- what is named like a log and is none ---


@pytest.fixture
def day(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "dt=2026-11-20"
    folder.mkdir(parents=True)
    pq.write_table(records(3), folder / "a.parquet")
    return folder


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK)


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere.parquet")


def _folder_without_logs(path: Path) -> None:
    path.mkdir()
    (path / "part-0000").touch()


@pytest.mark.parametrize("make", [_pipe, _socket, _dangling, _folder_without_logs])
@pytest.mark.parametrize("pattern", ["", "*.parquet"])
def test_what_is_named_like_a_log_and_is_none_is_refused(day: Path, make: Callable[[Path], None], pattern: str) -> None:
    """A pipe was read for ever; the others were left out in silence."""
    make(day / "b.parquet")
    with rejects("input"):
        match_files(str(day / pattern))
    if not pattern:
        with rejects("input"):
            has_logs(str(day), None)
        (day / "b.parquet").rename(day / "_b.parquet")
        assert names(day) == ["dt=2026-11-20/a.parquet"]


@pytest.mark.parametrize("name", ["b.json.gz", "b.parquet.zst", "B.CSV.ZIP"])
def test_packed_logs_that_are_not_read_are_refused(day: Path, name: str) -> None:
    (day / name).touch()
    with rejects("input"):
        match_files(str(day))
    (day / "a.parquet").unlink()  # a night is not without data then
    with rejects("input"):
        has_logs(str(day), None)


def test_files_of_no_known_format_are_named(day: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("notes.txt", "a.orc", "_SUCCESS", ".a.parquet.crc"):
        (day / name).touch()
    with caplog.at_level("WARNING"):
        assert names(day) == ["dt=2026-11-20/a.parquet"]
    (shown,) = [record.getMessage() for record in caplog.records]
    assert shown.endswith(": a.orc, notes.txt")


def test_a_folder_named_like_a_log_is_read_with_its_files(day: Path) -> None:
    """As Spark writes it."""
    (day / "b.parquet").mkdir()
    shutil.copy(day / "a.parquet", day / "b.parquet" / "part-0000.parquet")
    (day / "b.parquet" / "_SUCCESS").touch()
    assert names(day) == ["dt=2026-11-20/a.parquet", "dt=2026-11-20/b.parquet/part-0000.parquet"]


def test_links_to_folders_are_followed_and_no_file_is_read_twice(day: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(day / "a.parquet", other / "c.parquet")
    (other / "again").symlink_to(other)
    (other / "back").symlink_to(day)
    (day.parent / "dt=2026-11-21").symlink_to(other)
    (day.parent / "latest").symlink_to(day)
    (day / "b.parquet").symlink_to(other / "c.parquet")
    expected = ["dt=2026-11-20/a.parquet", "dt=2026-11-20/b.parquet", "dt=2026-11-21/c.parquet"]
    assert names(day.parent) == expected
    assert names(day.parent / "*" / "*.parquet") == expected


@pytest.mark.false_alarm(1e-9)
def test_inspect_shows_a_command_that_runs_and_no_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = seeded_rng(3)
    log = pd.DataFrame({"rider": [f"secret-{number}" for number in rng.integers(0, 3000, 9000)]})
    log["lat"], log["lon"] = 52.5 + 0.05 * rng.standard_normal(9000), 13.4 + 0.05 * rng.standard_normal(9000)
    log.to_csv(tmp_path / "rides.csv", index=False)
    assert cli.main(["inspect", "--input", str(tmp_path / "rides.csv")]) == 0
    written = capsys.readouterr().out
    assert "secret-" not in written
    assert not [path for path in tmp_path.iterdir() if path.name != "rides.csv"]
    (command,) = [line.strip() for line in written.splitlines() if line.startswith("    sfumato ")]
    words = shlex.split(command)[1:]
    words[words.index("--output") + 1] = str(tmp_path / "map")
    assert cli.main([*words, "--depth", "6", "--seed", "1"]) == 0
    results = sfumato.open_release(tmp_path / "map").manifest["results"]
    # About normal: the noisy count of users, whose tails are longer, has a small part in it.
    assert abs(results["users"] - log.rider.nunique()) < 8 * results["users_stddev"] < 500
