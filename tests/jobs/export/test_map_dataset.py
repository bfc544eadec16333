"""Rasters in xarray and rows in geopandas, as a notebook has them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sfumato
from sfumato.transforms.release.metadata import parquet_bytes
from sfumato.transforms.release.release_folder import publish
from tests.jobs.export.conftest import RASTERS


@pytest.mark.parametrize("kind", RASTERS)
def test_a_dataset_has_its_place_its_units_and_its_guarantee(kind: str, folders: dict[str, Path]) -> None:
    if kind == "changes":
        with pytest.raises(sfumato.RequestError, match="changes between two releases"):
            sfumato.open_release(folders[kind])
        return
    release = sfumato.open_release(folders[kind])
    dataset = release.to_xarray()
    assert dataset.attrs["guarantee"] == release.guarantee
    assert dataset["y"].attrs["units"] == "degrees_north"
    assert (np.diff(dataset["y"]) < 0).all()
    assert (np.diff(dataset["x"]) > 0).all()
    region = release.manifest["region"]
    half = float(dataset["x"][1] - dataset["x"][0]) / 2
    assert [float(dataset["x"][0]) - half, float(dataset["x"][-1]) + half] == pytest.approx(
        [region["west"], region["east"]]
    )
    for name, band in dataset.data_vars.items():
        if name != "crs":
            assert band.dims == ("y", "x")
            assert band.attrs["units"]
            assert band.attrs["long_name"]
            assert band.attrs["grid_mapping"] == "crs"


def test_a_place_is_found_by_its_coordinates(folders: dict[str, Path]) -> None:
    release = sfumato.open_release(folders["heatmap"])
    dataset, cells = release.to_xarray(), release.cells
    cell = cells.loc[cells["count"].idxmax()]
    inside = dataset.sel(y=slice(cell["north"], cell["south"]), x=slice(cell["west"], cell["east"]))
    assert float(inside["users"].sum()) == pytest.approx(cell["count"])
    assert float(dataset["users"].sum()) == pytest.approx(cells["count"].sum())
    at = dataset.sel(y=(cell["north"] + cell["south"]) / 2, x=(cell["west"] + cell["east"]) / 2, method="nearest")
    assert float(at["density"]) == pytest.approx(cell["density"])


def test_slots_of_time_are_a_dimension(folders: dict[str, Path], tmp_path: Path) -> None:
    """A table with a row for each slot and cell, as maps by hour have it."""
    release = sfumato.open_release(folders["flat"])
    cells = release.arrow_table("cells.parquet").select(["cell_id", "depth", "west", "south", "east", "north"])
    count = release.cells["count"].to_numpy()
    parts = []
    for slot, share in enumerate((0.2, 0.3, 0.5)):
        name = pa.array([f"{slot}-{slot + 1} h"] * len(count))
        parts.append(
            cells.append_column("slot", pa.array(np.full(len(count), slot)))
            .append_column("slot_name", name)
            .append_column("users", pa.array(count * share))
        )
    files = {path.name: path.read_bytes() for path in folders["flat"].iterdir()}
    files["slots.parquet"] = parquet_bytes(pa.concat_tables(parts[::-1]))
    publish(str(tmp_path / "release"), files, "made-up", overwrite=False)
    dataset = sfumato.open_release(tmp_path / "release").to_xarray("slots")
    assert dataset["users"].dims == ("slot", "y", "x")
    assert dataset["slot"].values.tolist() == ["0-1 h", "1-2 h", "2-3 h"]
    whole = release.to_xarray()
    assert dataset["users"].sum("slot").values == pytest.approx(whole["users"].values)
    assert float(dataset["users"].sel(slot="1-2 h").sum()) == pytest.approx(0.3 * count.sum())
    with pytest.raises(sfumato.RequestError, match=r"^table: cells has no slots"):
        release.to_xarray("cells")
    with pytest.raises(sfumato.RequestError, match=r"^table: .* has no table 'slots'"):
        release.to_xarray("slots")


def test_a_frame_has_shapes_and_the_guarantee(folders: dict[str, Path]) -> None:
    release = sfumato.open_release(folders["moments"])
    frame = release.to_geodataframe()
    assert frame.crs.to_string() == "OGC:CRS84"
    assert frame.attrs["epsilon"] == f"{release.manifest['privacy']['epsilon']:g}"
    assert frame.geometry.is_valid.all()
    with pytest.raises(sfumato.RequestError, match=r"^table: bits .* has no shapes"):
        release.to_geodataframe("bits")
    with pytest.raises(sfumato.RequestError, match=r"^to_geodataframe: needs a table with shapes"):
        sfumato.open_release(folders["words"]).to_geodataframe()
    with pytest.raises(sfumato.RequestError, match=r"^to_xarray: needs a map of cells"):
        sfumato.open_release(folders["words"]).to_xarray()


def test_a_missing_library_is_named(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(sfumato.RequestError, match=r"^to_xarray: needs xarray.*sfumato\[export\]"):
        sfumato.open_release(folders["heatmap"]).to_xarray()


def test_a_release_exports_itself(folders: dict[str, Path], tmp_path: Path) -> None:
    release = sfumato.open_release(folders["heatmap"])
    assert release.export(tmp_path / "map.csv") == [
        str(tmp_path / "map.csv"), str(tmp_path / "map.csv.statement.json")
    ]  # fmt: skip
    with pytest.raises(sfumato.RequestError, match=r"^output: .*exists already"):
        release.export(tmp_path / "map.csv")
    assert release.export(tmp_path / "map.csv", overwrite=True)
