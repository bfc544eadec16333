"""`sfumato flows` from the command line: exact without noise, over several files; bad options; what is published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from sfumato.pipelines import cli
from sfumato.schemas.region import Grid, deinterleave
from sfumato.schemas.release import FLOW_ZONES_SCHEMA, flows_schema
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION, write_files
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import write_geojson

pytestmark = pytest.mark.usefixtures("blank_pictures")

PLACE = ["--region", "-1,50,1,51"]
ENDS = ["--origin", "a,b", "--destination", "c,d"]
NOISELESS = ["--epsilon", "100000", "--seed", "1"]


def trip_table(users: int = 3_000, trips: int = 2, seed: int = 0) -> pa.Table:
    """Trips between a few hubs, shuffled."""
    rng = seeded_rng(seed)
    hubs = rng.uniform([-0.9, 50.05], [0.9, 50.95], (6, 2))
    ids = rng.permutation(np.repeat(np.arange(users), trips))
    ends = [hubs[rng.choice(6, len(ids), p=[0.4, 0.2, 0.15, 0.1, 0.1, 0.05])] for _ in range(2)]
    ends = [one + rng.normal(0, 0.01, one.shape) for one in ends]
    names = {"a": ends[0][:, 0], "b": ends[0][:, 1], "c": ends[1][:, 0], "d": ends[1][:, 1]}
    return pa.table({"user_id": ids, **names})


def run(pattern: str, output: Path, *options: str) -> int:
    return cli.main(["flows", "--input", pattern, "--output", str(output), *PLACE, *options])


def cell_names(x: np.ndarray, y: np.ndarray, level: int) -> list[str]:
    """By the definition of names: one digit a level, 2 for the east and 1 for the south."""
    codes = Grid(REGION, level).codes(x, y)
    columns, rows = deinterleave(codes)
    return [
        "r" + "".join(str(2 * (c >> i & 1) + (r >> i & 1)) for i in reversed(range(level)))
        for c, r in zip(columns.tolist(), rows.tolist(), strict=True)
    ]


@pytest.mark.parametrize("files", [1, 4])
def test_without_noise_every_trip_is_in_its_row(files: int, tmp_path: Path) -> None:
    """Against pandas: rows of each pair of cells, at the depth where the row is."""
    table = trip_table()
    pattern = write_files(table, tmp_path / "logs", files, row_group_size=500)
    assert run(pattern, tmp_path / "out", *ENDS, *NOISELESS, "--max_trips_per_user", "2", "--depth", "5") == 0
    release = open_release(tmp_path / "out")
    found = release.arrow_table("flows.parquet").to_pandas()
    logs = table.to_pandas()
    assert found[found.is_rest].trips.abs().sum() == 0
    assert found[~found.is_rest].trips.sum() == len(logs) == release.manifest["results"]["trips"]
    for depth, rows in found[~found.is_rest].groupby("depth"):
        pairs = pd.Series(list(zip(cell_names(logs.a, logs.b, depth), cell_names(logs.c, logs.d, depth), strict=True)))
        exact = pairs.value_counts()
        for row in rows.itertuples():
            assert exact[(row.origin_cell, row.destination_cell)] == row.trips == row.low == row.high == row.noisy
    assert sorted(found.depth.unique())[-1] == 5


@pytest.mark.slow
def test_the_files_of_a_release(tmp_path: Path) -> None:
    pattern = write_files(trip_table(), tmp_path / "logs", 2)
    assert run(pattern, tmp_path / "out", *ENDS, "--epsilon", "1", "--seed", "2") == 0
    release = open_release(tmp_path / "out")
    table = release.arrow_table("flows.parquet")
    assert table.schema.equals(flows_schema(), check_metadata=False)
    geo = json.loads(pq.read_schema(tmp_path / "out" / "flows.parquet").metadata[b"geo"])
    assert geo["primary_column"] == "geometry"
    written = pd.read_csv(tmp_path / "out" / "flows.csv")
    pd.testing.assert_frame_equal(written, table.drop_columns(["geometry"]).to_pandas(), check_dtype=False)
    flows = release.table("flows")
    assert flows.geometry.is_valid.all()
    assert set(flows.geometry.geom_type) <= {"LineString", "Point"}
    line = flows[flows.geometry.geom_type == "LineString"].iloc[0]
    ends = [(line.origin_longitude, line.origin_latitude), (line.destination_longitude, line.destination_latitude)]
    assert list(line.geometry.coords) == ends
    privacy = release.manifest["privacy"]
    assert (privacy["trust"], privacy["epsilon"], privacy["delta"]) == ("central", 1.0, 0.0)
    assert "one trip of each user" in privacy["contribution_bound"]


@pytest.mark.slow
def test_consecutive_records_are_trips(tmp_path: Path) -> None:
    """Each user goes from west to east within an hour, and comes back after a day: one trip each."""
    users = np.arange(2_000)
    rng = seeded_rng(4)
    hours = np.stack([np.zeros(2_000), np.full(2_000, 0.9), np.full(2_000, 30.0)])
    west, east = np.full(2_000, -0.5), np.full(2_000, 0.5)
    table = pa.table({
        "user_id": np.tile(users, 3),
        "latitude": rng.uniform(50.2, 50.22, 6_000),
        "longitude": np.concatenate([west, east, west]),
        "t": pa.array((hours * 3600e6).astype(np.int64).ravel()).cast(pa.timestamp("us")),
    })  # fmt: skip
    pattern = write_files(table.take(rng.permutation(6_000)), tmp_path / "logs", 3)
    options = ["--time_column", "t", *NOISELESS, "--depth", "2"]
    assert run(pattern, tmp_path / "out", *options) == 0
    found = open_release(tmp_path / "out").arrow_table("flows.parquet").to_pandas()
    listed = found[~found.is_rest]
    assert listed.trips.tolist() == [2_000]
    assert listed.origin_longitude.iloc[0] < 0 < listed.destination_longitude.iloc[0]
    assert run(pattern, tmp_path / "none", *options, "--max_gap", "1800") == 0
    assert open_release(tmp_path / "none").manifest["results"]["published"] == 0


@pytest.mark.slow
def test_equal_keys_give_equal_files_whatever_the_order_of_rows(tmp_path: Path) -> None:
    table = trip_table(500)
    made = []
    for name, one in (("a", table), ("b", table.take(seeded_rng(1).permutation(len(table))))):
        pattern = write_files(one, tmp_path / name, 3 if name == "a" else 1)
        key = [*ENDS, "--seed", "5", "--release_id", "x"]
        assert run(pattern, tmp_path / f"out-{name}", *key) == 0
        made.append(open_release(tmp_path / f"out-{name}").arrow_table("flows.parquet"))
    # The key is bound to the files too, so the noise differs; what is drawn of one user does not fail either run.
    assert made[0].num_rows > 0 < made[1].num_rows
    again = tmp_path / "again"
    assert run(str(tmp_path / "a" / "*.parquet"), again, *ENDS, "--seed", "5", "--release_id", "x") == 0
    assert (again / "flows.parquet").read_bytes() == (tmp_path / "out-a" / "flows.parquet").read_bytes()


BAD = [
    ([], "origin: required"),
    (["--origin", "a,b"], "destination: required"),
    (["--origin", "a", "--destination", "c,d"], "origin: must be two columns, LON,LAT, got 'a'"),
    (["--origin", "a,b,c", "--destination", "c,d"], "origin: must be two columns"),
    (["--origin", "a,b", "--destination", "c,b"], "'b' has two roles"),
    (["--origin", "a,b", "--destination", "c,user_id"], "'user_id' has two roles"),
    (["--origin", "a,x", "--destination", "c,d"], "no column 'x'"),
    (["--origin", "a,kind", "--destination", "c,d"], "column 'kind' must hold degrees"),
    ([*ENDS, "--time_column", "t"], "origin, time_column: rows are trips, or records"),
    ([*ENDS, "--max_gap", "5"], "max_gap: is of records with a time"),
    ([*ENDS, "--latitude_column", "b"], "latitude_column: is of records"),
    (["--latitude_column", "b", "--longitude_column", "a", "--time_column", "kind"], "must hold timestamps"),
    (["--time_column", "t", "--max_gap", "0"], "max_gap: must be a number > 0"),
    (["--time_column", "t", "--min_distance", "-1"], "min_distance: must be a number >= 0"),
    (["--time_column", "t", "--min_distance", "nan"], "min_distance"),
    ([*ENDS, "--epsilon", "0"], "epsilon"),
    ([*ENDS, "--epsilon", "inf"], "epsilon"),
    ([*ENDS, "--epsilon", "1e-9"], "epsilon: 1e-09 is too small"),
    ([*ENDS, "--max_trips_per_user", "0"], "max_trips_per_user: must be a whole number in 1..1000"),
    ([*ENDS, "--depth", "16"], "depth: must be a whole number in 1..15"),
    ([*ENDS, "--trust", "local"], "trust: must be one of central"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_option_is_named(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = trip_table(20).append_column("kind", pa.array(["x"] * 40))
    pattern = write_files(table.append_column("t", pa.array(range(40))), tmp_path / "logs", 1)
    assert run(pattern, tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def zone_file(path: Path) -> str:
    """Four zones of different widths that leave the north-east corner open."""
    boxes = [(-1, 50, -0.2, 50.4), (-0.2, 50, 1, 50.4), (-1, 50.4, 0.3, 51), (0.3, 50.4, 1, 50.8)]
    rows = [(shapely.box(*box), {"tract": f"t{i}", "county": i // 2}) for i, box in enumerate(boxes)]
    return write_geojson(path, rows)


def zone_names(x: pd.Series, y: pd.Series) -> pd.Series:
    south = np.where(x < -0.2, "t0", "t1")
    north = np.where(x < 0.3, "t2", np.where(y < 50.8, "t3", ""))
    return pd.Series(np.where(y < 50.4, south, north))


def run_zones(pattern: str, output: Path, *options: str) -> int:
    return cli.main(["flows", "--input", pattern, "--output", str(output), *options])


@pytest.mark.parametrize("files", [1, 3])
def test_without_noise_every_trip_is_in_its_pair_of_zones(files: int, tmp_path: Path) -> None:
    """Against pandas: rows of each pair, and nothing in the rests."""
    table = trip_table()
    pattern = write_files(table, tmp_path / "logs", files, row_group_size=500)
    zones = ["--zones", zone_file(tmp_path / "zones.geojson"), "--id_column", "tract"]
    bounds = ["--max_trips_per_user", "2", "--max_bad_fraction", "1"]
    assert run_zones(pattern, tmp_path / "out", *zones, *ENDS, *NOISELESS, *bounds) == 0
    logs = table.to_pandas()
    pairs = pd.DataFrame({"a": zone_names(logs.a, logs.b), "b": zone_names(logs.c, logs.d)})
    exact = pairs[(pairs.a != "") & (pairs.b != "")].value_counts()
    release = open_release(tmp_path / "out")
    found = release.arrow_table("flows.parquet").to_pandas()
    listed, rests = found[~found.is_rest], found[found.is_rest]
    assert {(row.origin_zone, row.destination_zone): row.trips for row in listed.itertuples()} == exact.to_dict()
    assert (listed.low == listed.trips).all()
    assert (listed.high == listed.trips).all()
    assert rests.origin_zone.sort_values().tolist() == ["t0", "t1", "t2", "t3"]
    assert rests.destination_zone.isna().all()
    assert rests.trips.abs().sum() == 0
    assert release.manifest["zones"]["zones"] == 4
    assert "depth" not in release.manifest["parameters"]


def test_the_files_of_a_release_of_zones(tmp_path: Path) -> None:
    """All rows of an origin add up to the noisy count of its trips; the zones are published; the page can be remade."""
    pattern = write_files(trip_table(), tmp_path / "logs", 2)
    zones = ["--zones", zone_file(tmp_path / "zones.geojson"), "--id_column", "tract", "--max_bad_fraction", "1"]
    assert run_zones(pattern, tmp_path / "out", *zones, *ENDS, "--epsilon", "0.05", "--seed", "2") == 0
    release = open_release(tmp_path / "out")
    table = release.arrow_table("flows.parquet")
    assert table.schema.equals(flows_schema(zones=True), check_metadata=False)
    written = pd.read_csv(tmp_path / "out" / "flows.csv")
    found = table.drop_columns(["geometry"]).to_pandas()
    pd.testing.assert_frame_equal(written, found, check_dtype=False)
    sums = found.groupby("origin_zone")[["trips", "noisy"]].sum()
    assert np.allclose(sums.trips, sums.noisy, atol=0.01)
    published = release.arrow_table("flow_zones.parquet")
    assert published.schema.equals(FLOW_ZONES_SCHEMA, check_metadata=False)
    shapes = shapely.from_wkb(published["geometry"].to_pylist())
    assert shapely.contains_xy(shapes, published["longitude"], published["latitude"]).all()
    before = (tmp_path / "out" / "index.html").read_bytes()
    assert cli.main(["page", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "index.html").read_bytes() == before


@pytest.mark.slow
def test_consecutive_records_are_trips_between_zones(tmp_path: Path) -> None:
    """Each user goes from zone t0 to t1; the cells of an index show the same trip."""
    users = np.repeat(np.arange(2_000), 2)
    table = pa.table({
        "user_id": users, "latitude": np.full(4_000, 50.2), "longitude": np.tile([-0.5, 0.5], 2_000),
        "t": np.tile([0, 600], 2_000),
    })  # fmt: skip
    pattern = write_files(table.take(seeded_rng(1).permutation(4_000)), tmp_path / "logs", 3)
    options = ["--time_column", "t", *NOISELESS]
    zones = ["--zones", zone_file(tmp_path / "zones.geojson"), "--id_column", "tract"]
    assert run_zones(pattern, tmp_path / "out", *zones, *options) == 0
    found = open_release(tmp_path / "out").arrow_table("flows.parquet").to_pandas()
    row = found[~found.is_rest].iloc[0]
    assert [row.origin_zone, row.destination_zone, row.trips] == ["t0", "t1", 2_000]
    assert len(found) == 5
    assert run(pattern, tmp_path / "tiles", "--quadkey", "8", *options) == 0
    tiles = open_release(tmp_path / "tiles").arrow_table("flows.parquet").to_pandas()
    listed = tiles[~tiles.is_rest]
    assert listed.trips.tolist() == [2_000]
    assert listed.origin_zone.str.len().tolist() == [8]


ZONES = ["--zones", "ZONES", "--id_column", "tract"]
BAD_ZONES = [
    ([*ZONES, "--region", "-1,50,1,51"], "region: is of cells; zones of a file have their own"),
    ([*ZONES, "--depth", "7"], "depth: is of a quadtree"),
    (["--h3", "5", "--region", "-1,50,1,51", "--depth", "7"], "depth: is of a quadtree; with --h3"),
    ([*ZONES, "--h3", "7"], "zones and h3: give one of them"),
    (["--zones", "ZONES"], "id_column: name the property"),
    (["--id_column", "tract", "--region", "-1,50,1,51"], "id_column: is of the zones of a file"),
    (["--zones", "ZONES", "--id_column", "block"], "has no property or column 'block'"),
    (["--zones", "missing.geojson", "--id_column", "tract"], "zones: missing.geojson cannot be read"),
    (["--h3", "5"], "region: required"),
    ([], "region: required"),
    (["--quadkey", "16", "--region", "-1,50,1,51"], "and 4,000,000 are the most"),
]


@pytest.mark.parametrize(("options", "message"), BAD_ZONES, ids=[message for _, message in BAD_ZONES])
def test_a_contradiction_with_zones_is_named(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = write_files(trip_table(20), tmp_path / "logs", 1)
    path = zone_file(tmp_path / "zones.geojson")
    given = [path if one == "ZONES" else one for one in options]
    assert run_zones(pattern, tmp_path / "out", *given, *ENDS) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_few_trips_make_a_release_that_says_so(tmp_path: Path) -> None:
    pattern = write_files(trip_table(5, 1), tmp_path / "logs", 1)
    assert run(pattern, tmp_path / "out", *ENDS, "--epsilon", "0.01", "--seed", "3") == 0
    manifest = open_release(tmp_path / "out").manifest
    listed = manifest["results"]["published"]
    assert listed > 0 or any("No pair" in one for one in manifest["warnings"])


def test_trips_out_of_the_region_are_refused_by_noisy_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = trip_table(20_000, 1)
    pattern = write_files(table, tmp_path / "logs", 1)
    command = ["flows", "--input", pattern, "--output", str(tmp_path / "out"), "--region", "-1,50,-0.9,50.1", *ENDS]
    assert cli.main([*command, "--seed", "1"]) == 1
    assert "have no usable record" in capsys.readouterr().err
