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
from sfumato.schemas.region import Grid, Region, deinterleave
from sfumato.transforms.synth import transform as generate
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.synth.city_map import city_geojson
from sfumato.transforms.synth.people import trip_schema
from sfumato.transforms.synth.request import SynthRequest
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


def test_the_density_is_the_histogram_of_what_was_written(tmp_path: Path) -> None:
    region = "-58.5,-34.7,-58.3,-34.5"
    density = tmp_path / "density.npy"
    run_command(
        "synth",
        f"--output {tmp_path}/logs --users 5000 --users_per_file 1200 --region {region} --records_per_user 2 "
        f"--density {density} --density_depth 7 --user_id string".split(),
    )
    table = read_sorted(tmp_path / "logs")
    assert table.schema.field("user_id").type == pa.string()
    west, south, east, north = map(float, region.split(","))
    expected, _, _ = np.histogram2d(
        -table["latitude"].to_numpy(),
        table["longitude"].to_numpy(),
        bins=(np.linspace(-north, -south, 129), np.linspace(west, east, 129)),
    )
    found = np.load(density)
    assert found.shape == (128, 128)
    assert found.dtype == np.float64
    assert found.sum() == pytest.approx(1, abs=1e-12)
    # A coordinate within a rounding error of a border may be counted on either side of it.
    assert np.abs(found * table.num_rows - expected).sum() <= 2
    # By the project's own grid it is exact.
    grid = Grid(Region.parse(region), 7)
    x, y = deinterleave(grid.codes(table["longitude"].to_numpy(), table["latitude"].to_numpy()))
    counts = np.bincount(y * 128 + x, minlength=1 << 14).reshape(128, 128)
    assert np.array_equal(found, counts / table.num_rows)


REFUSED = {
    "users": ("many", "0", "-3", "nan", str(2**41)),
    "records_per_user": ("1.5", "0"),
    "seed": ("-1", str(2**64)),
    "users_per_file": ("0", str(10**9)),
    "user_id": ("uuid",),
    "density_depth": ("0", "21"),
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
        _ = parse_command(SynthRequest, [f"--{name}={one}" for name, one in given.items()])[0].spec


@pytest.mark.parametrize("option", ["users_per_file=0", "basemap=map.shp", "density=raster.tif", "output=", "userz=1"])
def test_bad_option_ends_the_command_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["synth", f"--output={tmp_path / 'logs'}", "--users=10", f"--{option}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sfumato synth: ")
    assert option.split("=")[0] in error
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder, density = tmp_path / "logs", tmp_path / "density.npy"
    arguments = [f"--output={folder}", f"--density={density}", "--density_depth=3", "--users_per_file=10"]
    run_command("synth", [*arguments, "--users=30"])
    (tmp_path / "folder.npy").mkdir()
    with rejects("output"):
        run_command("synth", [*arguments, "--users=20"])
    with rejects("density"):
        run_command("synth", [f"--output={tmp_path / 'other'}", f"--density={density}", "--users=20"])
    with rejects("output"):
        run_command("synth", [f"--output={density}", "--users=20"])
    with rejects("density"):
        run_command("synth", [f"--output={tmp_path / 'other'}", f"--density={tmp_path / 'folder.npy'}", "--users=20"])
    assert len(list(folder.iterdir())) == 3
    (folder / "notes.txt").write_text("not ours")
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

    def fail_late(request: generate.SynthSpec, index: int, city: object) -> object:
        if index == 2:
            raise OSError("disk full")
        return make(request, index, build_city())

    monkeypatch.setattr(generate, "make_file_tables", fail_late)
    arguments = ["--users=50", "--users_per_file=10", f"--density={tmp_path / 'density.npy'}"]
    for folder in (new, old):
        with pytest.raises(Exception, match="disk full"):
            run_command("synth", [f"--output={folder}", *arguments, "--overwrite"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_trips_are_written_in_place_of_records(tmp_path: Path) -> None:
    arguments = ["--trips", "--users", "900", "--users_per_file", "400", "--records_per_user", "2"]
    run_command("synth", [f"--output={tmp_path / 'trips'}", *arguments])
    table = ds.dataset(tmp_path / "trips", format="parquet").to_table()
    assert table.column_names == trip_schema().names
    _, counts = np.unique(table["user_id"].to_numpy(), return_counts=True)
    assert counts.tolist() == [2] * 900
    for name, value in (("days", "2026-11-06"), ("density", str(tmp_path / "d.npy"))):
        with rejects(name):
            run_command("synth", [f"--output={tmp_path / 'other'}", f"--{name}={value}", *arguments])
