"""GeoTIFFs by rasterio: the structure of a cloud-optimised file, and every pixel in its place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from rasterio.io import MemoryFile

from sfumato.schemas.region import Region
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.geotiff import write_geotiff
from sfumato.transforms.export.map_raster import Band, MapRaster
from tests.seeds import seeded_rng


@dataclass(frozen=True)
class Large:
    """What `write_geotiff` takes of a source, with a raster of several blocks."""

    raster: MapRaster
    statement: dict[str, str]


def large() -> Large:
    values = seeded_rng(4).normal(0, 50, (1024, 1024))
    values[:100, :] = np.nan
    bands = Band("users", "users", "of the pixel", values), Band("density", "users per km2", "of the cell", -values)
    return Large(MapRaster(Region(3.0, 1.0, 3.13, 1.13), bands), {"guarantee": "at ε = 1", "licence": "not stated"})


def test_it_has_the_structure_of_a_cloud_optimised_file() -> None:
    content = write_geotiff(large())[""]  # type: ignore[arg-type]
    with MemoryFile(content) as file, file.open() as dataset:
        assert dataset.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert dataset.profile["tiled"]
        assert dataset.block_shapes == [(256, 256)] * 2
        assert dataset.overviews(1) == dataset.overviews(2) == [2, 4]
        assert dataset.compression.name == "deflate"
    # What a reader of ranges needs comes first: the header and all directories lie before the first block.
    assert content[:4] == b"II*\x00"
    assert b"LAYOUT=IFDS_BEFORE_DATA" in content[:100]


def test_pixels_and_edges_lie_where_the_region_says() -> None:
    source = large()
    with MemoryFile(write_geotiff(source)[""]) as file, file.open() as dataset:  # type: ignore[arg-type]
        assert tuple(dataset.bounds) == pytest.approx((3.0, 1.0, 3.13, 1.13))
        assert dataset.crs.to_epsg() == 4326
        assert np.isnan(dataset.nodata)
        for number, band in enumerate(source.raster.bands, 1):
            assert np.array_equal(dataset.read(number), band.values.astype(np.float32), equal_nan=True)
        assert dataset.descriptions == ("users", "density")
        assert dataset.units == ("users", "users per km2")
        assert dataset.tags(2)["description"] == "of the cell"
        assert dataset.tags()["guarantee"] == "at ε = 1"
        assert dataset.tags()["AREA_OR_POINT"] == "Area"
        longitude, latitude = dataset.xy(700, 300)
        assert longitude == pytest.approx(source.raster.longitudes[300])
        assert latitude == pytest.approx(source.raster.latitudes[700])


@pytest.mark.slow
def test_overviews_show_pixels_and_no_averages() -> None:
    """A mean of interval ends, or of rates, would be a number that nobody published."""
    source = large()
    content = write_geotiff(source)[""]  # type: ignore[arg-type]
    published = set(source.raster.bands[0].values.astype(np.float32)[100:].ravel().tolist())
    with MemoryFile(content) as file, file.open(overview_level=1) as dataset:
        assert dataset.shape == (256, 256)
        shown = dataset.read(1)
    assert set(shown[~np.isnan(shown)].tolist()) <= published


@pytest.mark.slow
def test_a_release_of_each_job_has_its_bands(sources: dict[str, ExportSource]) -> None:
    for kind in ("heatmap", "moments", "changes", "ranges"):
        raster = sources[kind].raster
        with MemoryFile(write_geotiff(sources[kind])[""]) as file, file.open() as dataset:
            assert dataset.descriptions == tuple(band.name for band in raster.bands)
            assert dataset.shape == raster.shape
            for number, band in enumerate(raster.bands, 1):
                assert dataset.read(number) == pytest.approx(band.values, rel=1e-6, nan_ok=True)
