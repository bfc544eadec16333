"""The same records in every form of input: files of each format, points, cells, E7, partitions and tables."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import shapely
from pyiceberg.catalog.sql import SqlCatalog

from tests.conftest import make_logs


def records(users: int = 400, seed: int = 1, kind: str = "string") -> pa.Table:
    """Records of users with two each, whose coordinates are whole in E7, and a column of a day."""
    table = make_logs(users, 2, seed, kind)
    for name in ("latitude", "longitude"):
        column = np.round(table[name].to_numpy() * 1e7) / 1e7
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(column))
    days = [f"2026-11-{20 + number % 3}" for number in range(table.num_rows)]
    return table.append_column("day", pa.array(days))


def write_csv(table: pa.Table, path: Path, delimiter: str = ",") -> Path:
    """Writes CSV, through gzip if the name says so."""
    options = pa_csv.WriteOptions(delimiter=delimiter, quoting_style="needed")
    if path.name.endswith(".gz"):
        with gzip.open(path, "wb") as file:
            pa_csv.write_csv(table, file, options)
    else:
        pa_csv.write_csv(table, str(path), options)
    return path


def write_ndjson(table: pa.Table, path: Path) -> Path:
    """Writes an object a line, through gzip if the name says so."""
    content = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def points(table: pa.Table) -> Any:
    """The places of a table as Shapely's points."""
    return shapely.points(table["longitude"].to_numpy(), table["latitude"].to_numpy())


def with_points(table: pa.Table, values: Any) -> pa.Table:
    """A table without coordinates and with a column `geometry`."""
    return table.drop_columns(["latitude", "longitude"]).append_column("geometry", values)


def geoparquet(table: pa.Table, values: Any, path: Path, **stated: Any) -> Path:
    """Writes GeoParquet 1.1 with the column `geometry`. stated: more that its metadata say of the column."""
    column = {"encoding": "WKB", "geometry_types": ["Point"], **stated}
    geo = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
    table = with_points(table, values).replace_schema_metadata({"geo": json.dumps(geo)})
    pq.write_table(table, path, row_group_size=300)
    return path


def hive(table: pa.Table, folder: Path) -> Path:
    """Writes a folder `day=...` for each day, with files of which the names begin with `_` and `.` beside them."""
    for day in sorted(set(table["day"].to_pylist())):
        (folder / f"day={day}").mkdir(parents=True)
        part = table.filter(pa.compute.equal(table["day"], day)).drop_columns(["day"])
        pq.write_table(part, folder / f"day={day}" / "part.parquet", row_group_size=300)
    for name in ("_SUCCESS", ".part.parquet.crc", "_part.parquet", "notes.txt"):
        (folder / name).write_bytes(b"no log")
    return folder


def delta(table: pa.Table, folder: Path) -> str:
    """Writes a Delta table in two versions, partitioned by day, whose second one replaces the first one's rows."""
    import deltalake

    deltalake.write_deltalake(str(folder), records(50, seed=9), partition_by=["day"])
    deltalake.write_deltalake(str(folder), table, mode="overwrite")
    return f"delta:{folder}"


def iceberg_catalog(folder: Path) -> SqlCatalog:
    """A catalog in an SQLite file."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("city")
    return catalog


def e7(table: pa.Table) -> pa.Table:
    """A table with integers as coordinates."""
    for name in ("latitude", "longitude"):
        column = pa.array(np.round(table[name].to_numpy() * 1e7).astype(np.int64))
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def _parquet(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path, row_group_size=300)
    return path


def _struct(table: pa.Table) -> pa.Array:
    axes = [table[name].combine_chunks() for name in ("longitude", "latitude")]
    return pa.StructArray.from_arrays(axes, ["x", "y"])


GEOMETRY = {"geometry_column": "geometry"}
E7 = {"coordinates": "e7"}
FORMS: dict[str, Callable[[pa.Table, Path], tuple[Any, dict[str, Any]]]] = {
    "parquet": lambda table, folder: (_parquet(table, folder / "log.parquet"), {}),
    "csv": lambda table, folder: (write_csv(table, folder / "log.csv"), {}),
    "csv.gz": lambda table, folder: (write_csv(table, folder / "log.csv.gz"), {}),
    "tsv": lambda table, folder: (write_csv(table, folder / "log.tsv", "\t"), {}),
    "semicolons": lambda table, folder: (write_csv(table, folder / "log.txt", ";"), {"input_format": "csv"}),
    "ndjson": lambda table, folder: (write_ndjson(table, folder / "log.ndjson"), {}),
    "jsonl.gz": lambda table, folder: (write_ndjson(table, folder / "log.jsonl.gz"), {}),
    "geoparquet": lambda table, folder: (
        geoparquet(table, pa.array(shapely.to_wkb(points(table))), folder / "log.parquet"),
        GEOMETRY,
    ),
    "geoarrow": lambda table, folder: (
        geoparquet(table, _struct(table), folder / "log.parquet", encoding="point"),
        GEOMETRY,
    ),
    "hex WKB": lambda table, folder: (
        write_csv(with_points(table, pa.array(shapely.to_wkb(points(table), hex=True))), folder / "log.csv"),
        GEOMETRY,
    ),
    "WKT": lambda table, folder: (
        write_csv(
            with_points(table, pa.array(shapely.to_wkt(points(table), rounding_precision=-1))), folder / "log.csv"
        ),
        GEOMETRY,
    ),
    "E7 Parquet": lambda table, folder: (_parquet(e7(table), folder / "log.parquet"), E7),
    "E7 CSV": lambda table, folder: (write_csv(e7(table), folder / "log.csv"), E7),
    "Hive": lambda table, folder: (hive(table, folder / "logs"), {}),
    "Delta": lambda table, folder: (delta(table, folder / "delta"), {}),
}
