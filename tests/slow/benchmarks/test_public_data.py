"""Public data in the forms in which they are distributed, and the benchmarks that use them where they are."""

from __future__ import annotations

import gzip
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import comparison, few_users, public_data, range_queries, several_locations, snh_paper
from sfumato.schemas.region import Region
from tests.seeds import seeded_rng

# As in the files of snap.stanford.edu: user, time, latitude, longitude, place; here with a row without a place, one
# beyond the pole, one that is torn, and one where the network knew no place.
_SNAP = (
    "0\t2010-01-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
    "7\t2008-12-03T21:09:14Z\t39.633321\t-105.317215\tee8b88dea22411\n"
    "7\t2008-12-04T21:09:14Z\t\t\t\n"
    "8\t2008-12-04T21:09:14Z\t405.2\t-97.7\t1\n"
    "8\t2008-12-04\n"
    "9\t2008-12-04T21:09:14Z\t0.0\t0.0\t00000000000000000000000000000000\n"
)
# As in dataset_TSMC2014_TKY.txt, which is in Latin-1 and has quotes that quote nothing.
_TSMC = (
    "1541\t4f0fd5a8e4b03856eeb6c8cb\t4bf58dd8d48988d10c951735\tCosmetics Shop\t35.705101088587135\t"
    "139.61959010362625\t540\tTue Apr 03 18:17:18 +0000 2012\n"
    '868\t4b7b884ff964a5207d662fe3\t4bf58dd8d48988d1d1941735\tCaf\xe9 "Noodle House\t35.715581\t'
    "139.800317\t540\tSat Feb 16 02:34:35 +0000 2013\n"
)


def convert(monkeypatch: pytest.MonkeyPatch, name: str, downloaded: Path, folder: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["public_data", name, str(downloaded), "--output", str(folder)])
    public_data.main()


@pytest.mark.parametrize("name", ["gowalla", "brightkite"])
def test_check_ins_of_snap_keep_what_has_a_place(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    downloaded = tmp_path / public_data.SOURCES[name].download
    downloaded.write_bytes(gzip.compress(_SNAP.encode()))
    convert(monkeypatch, name, downloaded, tmp_path / "data")
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "data"))
    path = public_data.dataset(name)
    assert path is not None
    table = pq.read_table(path).to_pandas()
    assert table["user_id"].tolist() == [0, 7]
    assert table["latitude"].tolist() == [30.2359091167, 39.633321]
    assert table["longitude"].tolist() == [-97.7951395833, -105.317215]
    assert table["timestamp"].tolist() == [
        pd.Timestamp("2010-01-19T23:55:27Z"),
        pd.Timestamp("2008-12-03T21:09:14Z"),
    ]


def test_check_ins_of_tokyo_are_latin_and_in_utc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    downloaded = tmp_path / "dataset_TSMC2014_TKY.txt"
    downloaded.write_bytes(_TSMC.encode("latin-1"))
    convert(monkeypatch, "tokyo", downloaded, tmp_path)
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    table = pq.read_table(public_data.dataset("tokyo")).to_pandas()
    assert table["venue_category"].tolist() == ["Cosmetics Shop", 'Caf\xe9 "Noodle House']
    assert table["timestamp"][1] == pd.Timestamp("2013-02-16T02:34:35Z")
    assert several_locations.logs_of("tokyo_paper", tmp_path) == str(public_data.dataset("tokyo"))


def _population(path: Path, rows: list[tuple[float, float, float]]) -> Path:
    """A CSV or GeoTIFF of Meta's, by the file's name. rows: longitude, latitude, people."""
    if path.suffix == ".tif":
        import rasterio

        second = 1 / 3600
        values = np.full((2160, 2160), np.nan, np.float32)  # 0.6 degrees wide and tall
        for x, y, people in rows:
            values[int((6.9 - y) * 3600), int((x - 3) * 3600)] = people
        profile = {"driver": "GTiff", "dtype": "float32", "nodata": np.nan, "count": 1, "compress": "lzw"}
        north_up = rasterio.Affine(second, 0, 3, 0, -second, 6.9)
        place = {"width": 2160, "height": 2160, "crs": "EPSG:4326", "transform": north_up}
        with rasterio.open(path, "w", **profile, **place) as raster:
            raster.write(values, 1)
    elif path.suffix == ".gz":  # as on AWS
        lines = ["latitude\tlongitude\tpopulation_2015\tpopulation_2020", *(f"{y}\t{x}\t1\t{p}" for x, y, p in rows)]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    else:  # as on HDX
        text = "\n".join(["longitude,latitude,nga_general_2020", *(f"{x},{y},{p}" for x, y, p in rows)])
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("nga_general_2020.csv", text)
    return path


@pytest.mark.parametrize("file", ["nga_general_2020_csv.zip", "NGA_general.csv.gz", "population_nga_2018-10-01.tif"])
def test_people_are_counted_in_cells_of_the_region(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    second = 1 / 3600
    x, y = 3.10 + 100.5 * second, 6.85 - 0.5 * second
    rows = [(x, y, 2.25), (3.59, 6.36, 7.5), (3.05, 6.5, 100.0)]  # the last is in the west of the region
    convert(monkeypatch, "lagos", _population(tmp_path / file, rows), tmp_path)
    counts = comparison.counts_of(comparison.MAPS["lagos"], tmp_path)
    assert counts.shape == (1024, 1024)
    assert counts.sum() == 2 + 8
    cell = 0.5 / 1024
    assert counts[0, int(100.5 * second / cell)] == 2
    assert counts[int(0.49 / cell), int(0.49 / cell)] == 8
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    assert comparison.maps_at_hand() == ["lagos"]


@pytest.mark.parametrize("file", ["nga_general_2020_csv.zip", "population_nga_2018-10-01.tif"])
def test_a_file_of_another_country_is_refused(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = _population(tmp_path / file, [(3.4, 6.5, 1.0)])
    with pytest.raises(SystemExit, match="mayotte"):
        convert(monkeypatch, "mayotte", path, tmp_path / "data")
    assert not [*(tmp_path / "data").iterdir()]


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Check-ins of both networks: 31 crowded cells of 300 users each, Gowalla's and Brightkite's in turn."""
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    generator = seeded_rng(0)
    for at, (name, month) in enumerate((("gowalla", "2010-01"), ("brightkite", "2008-12"))):
        frames = []
        for cell in range(at, 31, 2):
            users = np.repeat(np.arange(300) + 1000 * cell, 1 + (cell > 1))  # the first two cells have half as many
            x = -135 + few_users.WIDTH * (40 + 5 * cell + generator.uniform(0, 1, len(users)))
            y = few_users.HEIGHT * (150 + generator.uniform(0, 1, len(users)))
            frames.append(pd.DataFrame({"user_id": users, "longitude": x, "latitude": y}))
        table = pd.concat(frames)
        table["timestamp"] = pd.Timestamp(f"{month}-15", tz="UTC")
        later = table.assign(timestamp=pd.Timestamp("2010-02-01", tz="UTC"), user_id=table["user_id"] + 10**6)
        pd.concat([table, later]).to_parquet(tmp_path / public_data.SOURCES[name].file)
    return tmp_path


def test_cells_of_few_users_are_the_papers_where_its_check_ins_are(networks: Path) -> None:
    """The most visited cells of both networks together, in their months: all but one of the two least."""
    cells = few_users.city_cells()
    assert len(cells) == 30
    assert all(cell.name.startswith("US") for cell in cells)
    assert [cell.population for cell in cells] == [300] * 30
    assert [len(cell.users) for cell in cells] == [600] * 29 + [300]
    assert cells[0].rows(200, 8, few_users.KEY).users.size >= 200


def test_cells_of_few_users_need_both_networks(networks: Path) -> None:
    (networks / "brightkite_checkins.parquet").unlink()
    assert few_users.paper_cells() == []


def test_a_city_of_gowalla_is_20_km_wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="loc-gowalla_totalCheckins"):
        range_queries.city("Miami")
    latitude, longitude = range_queries.CITIES["Miami"]
    wide = 10 / 111.195 / np.cos(np.radians(latitude))
    x = longitude + wide * np.array([-1.01, -0.99, 0.0, 0.99, 1.01])
    check_ins = {"user_id": range(5), "longitude": x, "latitude": latitude}
    pd.DataFrame(check_ins).to_parquet(tmp_path / public_data.SOURCES["gowalla"].file)
    exact, field = range_queries.city("Miami")
    assert exact.users.sum() == 3
    assert field.metres == pytest.approx((20_000, 20_000), rel=1e-3)


def test_the_papers_workload_is_gowallas_in_the_cabs_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    cabs = {"user_id": range(2), "longitude": [-122.5, -122.4], "latitude": [37.7, 37.8]}
    pd.DataFrame(cabs).to_parquet(tmp_path / "sf_cabs_starts.parquet")
    check_ins = {"user_id": range(3), "longitude": [-122.45, -122.45, -121], "latitude": [37.775, 37.775, 37.75]}
    pd.DataFrame(check_ins).to_parquet(tmp_path / public_data.SOURCES["gowalla"].file)
    exact, _ = range_queries.cabs(True)
    boxes = snh_paper.workload("gowalla", exact)
    assert boxes is not None
    assert len(boxes) == 2
    assert boxes.x0[0] == pytest.approx(exact.side / 2, abs=1)
    assert boxes.y0[0] == pytest.approx(exact.side / 4, abs=1)
    assert Region(-122.5, 37.7, -122.4, 37.8) == range_queries.cabs(False)[1].grid.region
