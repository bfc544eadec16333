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

import sfumato
from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, deinterleave
from sfumato.schemas.release import flow_zones_schema, flows_schema
from sfumato.schemas.views.flow_views import FlowsBody
from sfumato.transforms.flows.view import flows_view
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION, write_files
from tests.releases import assert_page_follows
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import write_geojson

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
    return cli.main(["flows", "--input", pattern, "--output", str(output), *options])


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
    assert run(pattern, tmp_path / "out", *PLACE, *ENDS, *NOISELESS, "--max_trips_per_user", "2", "--depth", "5") == 0
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
def test_consecutive_records_are_trips(tmp_path: Path) -> None:
    """Each user goes east within an hour, and comes back after a day: one trip each, in cells and in zones."""
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
    zones = ["--zones", zone_file(tmp_path / "zones.geojson"), "--id_column", "tract"]
    maps = {"cells": [*PLACE, "--depth", "2"], "tiles": [*PLACE, "--quadkey", "8"], "zones": zones}
    found = {}
    for name, place in maps.items():
        assert run(pattern, tmp_path / name, *place, "--time_column", "t", *NOISELESS) == 0
        rows = open_release(tmp_path / name).arrow_table("flows.parquet").to_pandas()
        found[name] = rows[~rows.is_rest]
        assert found[name].trips.tolist() == [2_000]
    assert found["cells"].origin_longitude.iloc[0] < 0 < found["cells"].destination_longitude.iloc[0]
    assert found["tiles"].origin_zone.str.len().tolist() == [8]
    assert [*found["zones"].origin_zone, *found["zones"].destination_zone] == ["t0", "t1"]
    apart = ["--max_gap", "1800"]
    assert run(pattern, tmp_path / "none", *maps["cells"], "--time_column", "t", *NOISELESS, *apart) == 0
    assert open_release(tmp_path / "none").manifest["results"]["published"] == 0


def zone_file(path: Path) -> str:
    """Four zones of different widths that leave the north-east corner open."""
    boxes = [(-1, 50, -0.2, 50.4), (-0.2, 50, 1, 50.4), (-1, 50.4, 0.3, 51), (0.3, 50.4, 1, 50.8)]
    rows = [(shapely.box(*box), {"tract": f"t{i}", "county": i // 2}) for i, box in enumerate(boxes)]
    return write_geojson(path, rows)


def away_from_borders(table: pa.Table) -> pa.Table:
    """The trips whose ends are further than 0.0001 degrees from the zones' borders: cells are 0.00006 degrees wide."""
    borders = {"a": (-0.2, 0.3), "b": (50.4, 50.8), "c": (-0.2, 0.3), "d": (50.4, 50.8)}
    near = [np.abs(table[name].to_numpy() - border) < 1e-4 for name, both in borders.items() for border in both]
    return table.filter(pa.array(~np.any(near, axis=0)))


def zone_names(x: pd.Series, y: pd.Series) -> pd.Series:
    south = np.where(x < -0.2, "t0", "t1")
    north = np.where(x < 0.3, "t2", np.where(y < 50.8, "t3", ""))
    return pd.Series(np.where(y < 50.4, south, north))


@pytest.mark.parametrize("files", [1, 3])
def test_without_noise_every_trip_is_in_its_pair_of_zones(files: int, tmp_path: Path) -> None:
    """Against pandas: rows of each pair, and nothing in the rests. Places are not within a cell of a border."""
    table = away_from_borders(trip_table())
    pattern = write_files(table, tmp_path / "logs", files, row_group_size=500)
    zones = ["--zones", zone_file(tmp_path / "zones.geojson"), "--id_column", "tract"]
    bounds = ["--max_trips_per_user", "2", "--max_bad_fraction", "1"]
    assert run(pattern, tmp_path / "out", *zones, *ENDS, *NOISELESS, *bounds) == 0
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


@pytest.mark.parametrize("zones", [False, True])
def test_the_files_of_a_release(zones: bool, tmp_path: Path) -> None:
    """CSV and Parquet agree, lines lead from origin to destination, and the page can be made again of the files."""
    published = tmp_path / "out"
    pattern = write_files(trip_table(), tmp_path / "logs", 2)
    of_file = ["--zones", zone_file(tmp_path / "zones.geojson"), "--id_column", "tract", "--max_bad_fraction", "1"]
    of_file += ["--label_column", "county"]
    assert run(pattern, published, *(of_file if zones else PLACE), *ENDS, "--epsilon", "0.2", "--seed", "2") == 0
    release = open_release(published)
    table = release.arrow_table("flows.parquet")
    assert table.schema.equals(flows_schema(zones=zones, named=zones), check_metadata=False)
    assert json.loads(pq.read_schema(published / "flows.parquet").metadata[b"geo"])["primary_column"] == "geometry"
    found = table.drop_columns(["geometry"]).to_pandas()
    names = {name: str for name in ("origin_name", "destination_name") if zones}
    written = pd.read_csv(published / "flows.csv", dtype=names)
    pd.testing.assert_frame_equal(written, found, check_dtype=False)
    flows = release.table("flows")
    assert flows.geometry.is_valid.all()
    assert set(flows.geometry.geom_type) <= {"LineString", "Point"}
    line = flows[flows.geometry.geom_type == "LineString"].iloc[0]
    ends = [(line.origin_longitude, line.origin_latitude), (line.destination_longitude, line.destination_latitude)]
    assert list(line.geometry.coords) == ends
    privacy = release.manifest["privacy"]
    assert (privacy["trust"], privacy["epsilon"], privacy["delta"]) == ("central", 0.2, 0.0)
    assert "one trip of each user" in privacy["contribution_bound"]
    assert_page_follows(published)
    if zones:
        sums = found.groupby("origin_zone")[["trips", "noisy"]].sum()
        assert np.allclose(sums.trips, sums.noisy, atol=0.01)
        places = release.arrow_table("flow_zones.parquet")
        assert places.schema.equals(flow_zones_schema(named=True), check_metadata=False)
        county = dict(zip(places["zone"].to_pylist(), places["name"].to_pylist(), strict=True))
        assert county == {"t0": "0", "t1": "0", "t2": "1", "t3": "1"}
        assert (found.origin_zone.map(county) == found.origin_name).all()
        assert (found.destination_zone.map(county).dropna() == found.destination_name.dropna()).all()
        shapes = shapely.from_wkb(places["geometry"].to_pylist())
        assert shapely.contains_xy(shapes, places["longitude"], places["latitude"]).all()
        files = {path.name: path.read_bytes() for path in published.iterdir()}
        for radius, unit in ((None, "trips per km²"), (300.0, "trips")):  # around points areas say nothing
            manifest = json.loads(files["manifest.json"])
            manifest["parameters"]["radius"] = radius
            body = flows_view({**files, "manifest.json": json.dumps(manifest).encode()}).body
            assert isinstance(body, FlowsBody)
            assert {one.scale.unit for one in body.map.layers[0].measures} == {unit}


def test_few_trips_make_a_release_that_says_so(tmp_path: Path) -> None:
    pattern = write_files(trip_table(5, 1), tmp_path / "logs", 1)
    assert run(pattern, tmp_path / "out", *PLACE, *ENDS, "--epsilon", "0.01", "--seed", "3") == 0
    manifest = open_release(tmp_path / "out").manifest
    listed = manifest["results"]["published"]
    assert listed > 0 or any("No pair" in one for one in manifest["warnings"])


def test_trips_out_of_the_region_are_refused_by_noisy_counts(tmp_path: Path) -> None:
    pattern = write_files(trip_table(20_000, 1), tmp_path / "logs", 1)
    assert run(pattern, tmp_path / "out", "--region", "-1,50,-0.9,50.1", *ENDS, "--seed", "1") == 1
    assert "have no usable record" in json.loads((tmp_path / "out" / "manifest.json").read_text())["reason"]


@pytest.mark.parametrize(("option", "ends"), [("x", ["--origin", "a,x"]), ("kind", ["--origin", "a,kind"])])
def test_a_column_that_is_missing_or_of_another_type_is_named(option: str, ends: list[str], tmp_path: Path) -> None:
    pattern = write_files(trip_table(20).append_column("kind", pa.array(["x"] * 40)), tmp_path / "logs", 1)
    with pytest.raises(RequestError, match=f"column '{option}'"):
        sfumato.flows(pattern, output=tmp_path / "out", region=(-1, 50, 1, 51), origin=ends[1], destination="c,d")
    assert not (tmp_path / "out").exists()
