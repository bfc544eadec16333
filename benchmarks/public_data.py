"""Public data that a reader downloads, as the files that the benchmarks read.

    python -m benchmarks.public_data NAME DOWNLOADED_FILE --output FOLDER

The benchmarks use such a file where it lies in SFUMATO_DATA, so FOLDER is that folder. SOURCES has the names, the pages
to download from and the files that are written; docs/results/public_data.md says which tables become those of the
papers. Check-ins become Parquet logs with `user_id`, `longitude`, `latitude` and `timestamp`. Records without a place
are left out. Populations become a grid of people, row 0 in the north, of the map of that name in `comparison`.
"""

from __future__ import annotations

import argparse
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.comparison import MAPS
from sfumato.schemas.region import Grid, Region, by_row

Inhabitants = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]  # longitude, latitude, people

_SNAP = ("user_id", "timestamp", "latitude", "longitude", "location_id")
_TSMC = ("user_id", "venue_id", "category_id", "venue_category", "latitude", "longitude", "offset", "timestamp")
_TYPES = {"user_id": pa.int64(), "latitude": pa.float64(), "longitude": pa.float64(), "timestamp": pa.timestamp("s")}
_KEPT = ("user_id", "longitude", "latitude", "timestamp", "venue_category")


@dataclass(frozen=True)
class Source:
    """A public data set.

    Attributes:
        page: where to download it.
        download: the name of the file there.
        file: the name of the file that the benchmarks read.
        convert: writes that file from the downloaded one: (downloaded, target).
    """

    page: str
    download: str
    file: str
    convert: Callable[[Path, Path], None]


def read_check_ins(path: Path, columns: tuple[str, ...], time_format: str) -> pa.Table:
    """Reads tab-separated check-ins without a header, .gz or not; leaves out those without a place on earth."""
    convert = pa.csv.ConvertOptions(
        column_types=_TYPES,
        include_columns=[name for name in _KEPT if name in columns],
        timestamp_parsers=[time_format],
        null_values=[""],
    )
    table = pa.csv.read_csv(
        path,
        pa.csv.ReadOptions(column_names=list(columns), encoding="latin-1"),
        pa.csv.ParseOptions(delimiter="\t", quote_char=False, invalid_row_handler=lambda row: "skip"),
        convert,
    )
    x, y = table["longitude"], table["latitude"]
    on_earth = pc.and_(pc.less_equal(pc.abs(x), 180), pc.less_equal(pc.abs(y), 90))
    # Brightkite writes 0, 0 where it knows no place.
    placed = pc.and_(on_earth, pc.or_(pc.not_equal(x, 0), pc.not_equal(y, 0)))
    table = table.filter(pc.and_(placed, pc.is_valid(table["user_id"])))
    times = pc.assume_timezone(table["timestamp"], "UTC")
    return table.set_column(table.column_names.index("timestamp"), "timestamp", times)


def check_ins(columns: tuple[str, ...], time_format: str) -> Callable[[Path, Path], None]:
    """Writes such check-ins as Parquet."""
    return lambda path, target: pq.write_table(read_check_ins(path, columns, time_format), target)


def people(name: str) -> Callable[[Path, Path], None]:
    """Writes the people of the cells of one of `comparison.MAPS`, int64[side, side], rounded."""

    def convert(path: Path, target: Path) -> None:
        one = MAPS[name]
        grid = Grid(Region.parse(one.region), one.depth)
        counts = np.zeros(4**one.depth)
        for x, y, inhabitants in _inhabitants(path, grid.region):
            region = grid.region
            inside = (x >= region.west) & (x < region.east) & (y > region.south) & (y <= region.north)
            codes = grid.codes(x[inside], y[inside]).astype(np.int64)
            counts += np.bincount(codes, inhabitants[inside], minlength=len(counts))
        if not counts.any():
            raise SystemExit(f"{path}: has no people in {one.region} (west,south,east,north), the region of {name}")
        np.save(target, np.rint(by_row(counts)).astype(np.int64))

    return convert


def _inhabitants(path: Path, region: Region) -> Iterator[Inhabitants]:
    """People of Meta's cells of one second of arc, from its GeoTIFF or its CSV (.gz, .zip or neither) in parts."""
    if path.suffix in (".tif", ".tiff"):
        yield _raster(path, region)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".csv")]
            if len(members) != 1:
                raise SystemExit(f"{path}: must hold one CSV; unzip a GeoTIFF and give the .tif")
            with archive.open(members[0]) as first, archive.open(members[0]) as again:
                yield from _table(first, again)
    else:
        with pa.input_stream(path) as first, pa.input_stream(path) as again:
            yield from _table(first, again)


def _table(first: Any, again: Any) -> Iterator[Inhabitants]:
    """The rows of a CSV with a header, opened twice. On AWS it is separated by tabs, on HDX by commas.

    Places have the columns `longitude` and `latitude` or `Lon` and `Lat`, in any order. The last of the other columns
    has the people: one column in most files, in some `population_2015` and `population_2020`.
    """
    header = first.read(1000).decode().splitlines()[0]
    separator = "\t" if "\t" in header else ","
    names = header.replace('"', "").split(separator)
    x, y = (next(name for name in names if name.lower().startswith(start)) for start in ("lon", "lat"))
    columns = [x, y, [name for name in names if name not in (x, y)][-1]]
    convert = pa.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.float64()))
    for batch in pa.csv.open_csv(
        again, parse_options=pa.csv.ParseOptions(delimiter=separator), convert_options=convert
    ):
        longitude, latitude, inhabitants = (batch.column(name).to_numpy(zero_copy_only=False) for name in columns)
        yield longitude, latitude, np.nan_to_num(inhabitants)


def _raster(path: Path, region: Region) -> Inhabitants:
    """The cells of a GeoTIFF in degrees whose centres are near a region."""
    import rasterio
    from rasterio.windows import Window

    with rasterio.open(path) as source:
        west, wide, north, tall = source.transform.c, source.transform.a, source.transform.f, source.transform.e
        left, top = math.floor((region.west - west) / wide), math.floor((region.north - north) / tall)
        right, bottom = math.ceil((region.east - west) / wide), math.ceil((region.south - north) / tall)
        left, right = (min(max(edge, 0), source.width) for edge in (left, right))
        top, bottom = (min(max(edge, 0), source.height) for edge in (top, bottom))
        window = Window(left, top, right - left, bottom - top)
        inside = right > left and bottom > top
        values = source.read(1, window=window, masked=True).filled(0) if inside else np.zeros(0)
    y, x = np.mgrid[top:bottom, left:right] + 0.5
    return west + wide * x.ravel(), north + tall * y.ravel(), np.nan_to_num(values.ravel().astype(np.float64))


_HDX = "https://data.humdata.org/organization/meta"
SOURCES = {
    "gowalla": Source(
        "https://snap.stanford.edu/data/loc-gowalla.html",
        "loc-gowalla_totalCheckins.txt.gz",
        "gowalla_checkins.parquet",
        check_ins(_SNAP, "%Y-%m-%dT%H:%M:%SZ"),
    ),
    "brightkite": Source(
        "https://snap.stanford.edu/data/loc-brightkite.html",
        "loc-brightkite_totalCheckins.txt.gz",
        "brightkite_checkins.parquet",
        check_ins(_SNAP, "%Y-%m-%dT%H:%M:%SZ"),
    ),
    "tokyo": Source(
        "https://sites.google.com/site/yangdingqi/home/foursquare-dataset",
        "dataset_TSMC2014_TKY.txt",
        "tsmc2014_tokyo_checkins.parquet",
        check_ins(_TSMC, "%a %b %d %H:%M:%S +0000 %Y"),
    ),
    "mayotte": Source(_HDX, "population_myt_2019-07-01.csv.zip", MAPS["mayotte"].file, people("mayotte")),
    "lagos": Source(_HDX, "nga_general_2020_csv.zip", MAPS["lagos"].file, people("lagos")),
}


def dataset(name: str) -> Path | None:
    """The file of a data set in SFUMATO_DATA; None where it is not there."""
    path = Path(os.environ.get("SFUMATO_DATA", "")) / SOURCES[name].file
    return path if path.is_file() else None


def main() -> None:
    """Converts a downloaded file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument("downloaded", type=Path, help="; ".join(f"{n}: {s.download}" for n, s in SOURCES.items()))
    parser.add_argument("--output", type=Path, required=True, help="the folder that SFUMATO_DATA names")
    options = parser.parse_args()
    source = SOURCES[options.name]
    if not options.downloaded.is_file():
        raise SystemExit(f"{options.downloaded}: file not found; download {source.download} from {source.page}")
    options.output.mkdir(parents=True, exist_ok=True)
    target = options.output / source.file
    source.convert(options.downloaded, target)
    print(f"{target}: {_content(target)}")


def _content(path: Path) -> str:
    """The numbers by which a reader recognises the data set."""
    if path.suffix == ".npy":
        return f"{int(np.load(path).sum()):,} people"
    table = pq.read_table(path, columns=["user_id"])
    return f"{len(table):,} check-ins of {len(pc.unique(table['user_id'])):,} users"


if __name__ == "__main__":
    main()
