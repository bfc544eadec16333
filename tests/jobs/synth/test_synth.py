"""`sfumato synth`: files, days, trips, geography, options and failures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from benchmarks.city_people import make_people
from sfumato.pipelines.command_line.cli import main, parse_command, run_command
from sfumato.schemas.region import Region
from sfumato.transforms.synth import transform as generate
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.synth.city_map import city_geojson
from sfumato.transforms.synth.people import TRIP_SCHEMA
from sfumato.transforms.synth.request import ROW_GROUP_ROWS, SynthRequest
from tests.rejections import rejects


def read_sorted(folder: Path) -> pa.Table:
    table = ds.dataset(folder, format="parquet").to_table()
    return table.sort_by([("user_id", "ascending"), ("timestamp", "ascending")])


@pytest.mark.slow
def test_files_equal_the_people_computed_in_memory(tmp_path: Path) -> None:
    expected = make_people(0, 2000, city=build_city(), seed=4, records_per_user=3)
    expected = expected.sort_by([("user_id", "ascending"), ("timestamp", "ascending")])
    for users_per_file, files in ((2000, 1), (600, 4)):
        folder = tmp_path / str(users_per_file)
        status = run_command(
            "synth",
            f"--output={folder} --users=2000 --records_per_user=3 --seed=4 --users_per_file={users_per_file}".split(),
        )
        assert status == 0
        names = [f"part-{index:05d}-of-{files:05d}.parquet" for index in range(files)]
        assert sorted(path.name for path in folder.iterdir()) == names
        assert read_sorted(folder).equals(expected)


@pytest.mark.slow
def test_the_citys_geography_is_written_beside_the_logs(tmp_path: Path) -> None:
    geography = tmp_path / "penumbra.geojson"
    arguments = ["--users=20", "--region=10,20,11,21", f"--basemap={geography}"]
    run_command("synth", [f"--output={tmp_path / 'logs'}", *arguments])
    assert geography.read_bytes() == city_geojson(Region(10, 20, 11, 21))
    with rejects("basemap"):
        run_command("synth", [f"--output={tmp_path / 'other'}", *arguments])
    assert not (tmp_path / "other").exists()
    geography.write_text("old")
    run_command("synth", [f"--output={tmp_path / 'days'}", "--days=2026-11-06:2026-11-07", "--overwrite", *arguments])
    assert geography.read_bytes() == city_geojson(Region(10, 20, 11, 21))
    (tmp_path / "folder.geojson").mkdir()
    with rejects("basemap"):
        run_command(
            "synth", [f"--output={tmp_path / 'other'}", "--users=20", f"--basemap={tmp_path / 'folder.geojson'}"]
        )
    blocked = geography / "inside.geojson"  # a file stands where its folder would
    with rejects("basemap"):
        run_command("synth", [f"--output={tmp_path / 'other'}", "--users=20", f"--basemap={blocked}"])


REFUSED = {
    "users": ("many", "0", "-3", "nan", str(2**41)),
    "records_per_user": ("1.5", "0"),
    "seed": ("-1", str(2**64)),
    "users_per_file": ("0", str(10**9)),
    "region": ("1,2,3", "-122,37,-123,38", "nan,0,1,1"),
    "days": (
        *("yesterday", "2026-11-31", "2026-11-20:", "2026-11-20:2026-11-19"),
        *("1969-12-31", "2199-12-31:2200-01-01", "2000-01-01:2010-01-09"),
    ),
}


@pytest.mark.parametrize(("option", "value"), [(name, one) for name, several in REFUSED.items() for one in several])
def test_request_refuses(option: str, value: str) -> None:
    given = {"output": "logs", "users": "10", option: value}
    with rejects(option):
        parse_command(SynthRequest, [f"--{name}={one}" for name, one in given.items()])


@pytest.mark.parametrize("option", ["users_per_file=0", "basemap=map.shp", "output=", "userz=1"])
def test_bad_option_ends_the_command_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["synth", f"--output={tmp_path / 'logs'}", "--users=10", f"--{option}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sfumato synth: ")
    assert option.split("=")[0] in error
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    arguments = [f"--output={folder}", "--users_per_file=10"]
    run_command("synth", [*arguments, "--users=30"])
    with rejects("output"):
        run_command("synth", [*arguments, "--users=20"])
    (folder / "notes.txt").write_text("not ours")
    with rejects("output"):
        run_command("synth", [f"--output={folder / 'notes.txt'}", "--users=20"])
    run_command("synth", [*arguments, "--users=20", "--overwrite"])
    names = ["notes.txt", "part-00000-of-00002.parquet", "part-00001-of-00002.parquet"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert read_sorted_ids(folder) == sorted(make_people(0, 20, city=build_city())["user_id"].to_pylist())


def read_sorted_ids(folder: Path) -> list[int]:
    return sorted(i for path in folder.glob("*.parquet") for i in pq.read_table(path)["user_id"].to_pylist())


def test_a_failure_leaves_nothing_and_spares_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run_command("synth", [f"--output={old}", "--users=40", "--users_per_file=10"])
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    make = generate.make_file_tables

    def fail_late(request: SynthRequest, day: None, index: int, city: object) -> object:
        if index == 2:
            raise OSError("disk full")
        return make(request, day, index, build_city())

    monkeypatch.setattr(generate, "make_file_tables", fail_late)
    arguments = ["--users=50", "--users_per_file=10"]
    for folder in (new, old):
        with pytest.raises(Exception, match="disk full"):
            run_command("synth", [f"--output={folder}", *arguments, "--overwrite"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_trips_are_written_in_place_of_records(tmp_path: Path) -> None:
    arguments = ["--trips", "--users", "900", "--users_per_file", "400", "--records_per_user", "2"]
    run_command("synth", [f"--output={tmp_path / 'trips'}", *arguments])
    table = ds.dataset(tmp_path / "trips", format="parquet").to_table()
    assert table.column_names == TRIP_SCHEMA.names
    _, counts = np.unique(table["user_id"].to_numpy(), return_counts=True)
    assert counts.tolist() == [2] * 900
    with rejects("days"):
        run_command("synth", [f"--output={tmp_path / 'other'}", "--days=2026-11-06", *arguments])


def test_too_many_files_are_refused_with_the_least_that_would_do() -> None:
    with rejects("users_per_file"):
        SynthRequest.of({"output": "x", "users": 1_000_001, "users_per_file": 1})
    assert SynthRequest.of({"output": "x", "users": 1_000_001, "users_per_file": 11}).files == 90_910


@pytest.mark.parametrize(
    ("users", "records", "users_per_file"), [(1, 1, 1), (10, 3, 4), (9, 5, 3), (7, 2, 100), (2_300_000, 2, 1_100_000)]
)
def test_files_hold_every_record_once_and_spread_a_users_records(users: int, records: int, users_per_file: int) -> None:
    given = {"output": "x", "users": users, "records_per_user": records, "users_per_file": users_per_file}
    request = SynthRequest.of(given)
    seen: dict[tuple[int, int], int] = {}
    total = 0
    for index in range(request.files):
        for first, last, record in request.pieces(index):
            assert 0 <= first < last <= users
            assert last - first <= ROW_GROUP_ROWS
            total += last - first
            for user in {first, last - 1}:
                assert seen.setdefault((user, record), index) == index
    assert total == users * records
    for user in (0, users - 1):
        files = {seen[user, record] for record in range(records)}
        assert len(files) == min(records, request.files)
