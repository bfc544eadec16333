"""Published releases, read back: from a local folder without Apache Beam, from a bucket by Beam's file systems."""

from __future__ import annotations

import hashlib
import io
import json
import os
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import shapely.geometry
from numpy.typing import NDArray

from sfumato.schemas import guarantee
from sfumato.schemas.errors import MissingTableError, RequestError, check_format, did_you_mean
from sfumato.schemas.parquet_table import parquet_table
from sfumato.schemas.rectangle import region_from
from sfumato.schemas.region import Grid
from sfumato.schemas.release import (
    ANSWERS_FILE,
    CELLS_FILE,
    CHANGES_FILE,
    CHANGES_FORMAT,
    DENSITY_FILE,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    REFUSAL_FORMAT,
    REMOVAL_FORMAT,
    TOTALS_FILE,
)
from sfumato.schemas.tree import Tree, nodes_from_names
from sfumato.transforms.io.files import join, read_file
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
_PARQUET = ".parquet"
_MAIN_TABLES = ("cells", "zones", "flows", "changes", "items", "moments", "quantiles")
_GEOMETRY = "geometry"
_GEOARROW = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": '{"crs": "OGC:CRS84"}'}
_FORMATS = MANIFEST_FORMAT, REFUSAL_FORMAT, REMOVAL_FORMAT, CHANGES_FORMAT


def _table_of(name: str, text: str) -> cached_property[pd.DataFrame]:
    """Returns a property of a release that reads one of its tables. text: its docstring."""
    found: cached_property[pd.DataFrame] = cached_property(lambda release: release.table(name))
    found.__doc__ = text
    return found


@dataclass(frozen=True, repr=False)
class Release:
    """A published release. Each file is read, and checked against the manifest, when it is used.

    Attributes:
        path: its folder.
        manifest: the content of manifest.json.
        digest: the SHA-256 of the manifest's bytes.
    """

    path: str
    manifest: dict[str, Any]
    digest: str

    cells = _table_of("cells", "One row a cell, by CELLS_SCHEMA or hot_cells_schema; see `table`.")
    zones_table = _table_of(
        "zones", "One row a zone of each level, the finest level first, by `zones_schema`; see `table`."
    )
    items = _table_of("items", "Counted items or prefixes, most frequent first within a level, by `items_schema`.")
    quantiles = _table_of("quantiles", "One row a quantile, by QUANTILES_SCHEMA.")
    ranges = _table_of("ranges", "One row a range, by RANGES_SCHEMA.")
    curve = _table_of("curve", "The estimated distribution function, by CURVE_SCHEMA.")
    moments = _table_of("moments", "Means and moments, a row a group and statistic, by MOMENTS_SCHEMA.")
    bits = _table_of("bits", "Bit means of all users, by BITS_SCHEMA.")
    bins = _table_of("bins", "Counted bins of a number's range, by BINS_SCHEMA.")

    def __repr__(self) -> str:
        created = str(self.manifest.get("created", "unknown time")).replace("T", " ").replace("+00:00", " UTC")
        rows = ", ".join(f"{name} ({rows})" for name, rows in self._rows.items())
        lines = [
            f"<{type(self).__name__} of `sfumato {self.manifest.get('job')}` in {self.path}",
            f"  published  {created} as {self.manifest.get('release_id')}",
            textwrap.fill(f"  guarantee  {self.guarantee}", 110, subsequent_indent=" " * 13),
            f"  tables     {rows or 'none'}>",
        ]
        return "\n".join(lines)

    @property
    def guarantee(self) -> str:
        """Returns two sentences: the promise of the release to each user, and its condition."""
        return guarantee.two_sentences(self.manifest)

    @property
    def tables(self) -> tuple[str, ...]:
        """Returns names of the release's tables, such as `cells`."""
        names = sorted(self.listed or ())
        return tuple(name.removesuffix(_PARQUET) for name in names if name.endswith(_PARQUET))

    @cached_property
    def _rows(self) -> dict[str, str]:
        """Returns the number of rows of each table by name; `damaged` where it cannot be read."""
        rows = {}
        for name in self.tables:
            try:
                rows[name] = f"{pq.read_metadata(io.BytesIO(self.read(name + _PARQUET))).num_rows:,} rows"
            except (RequestError, OSError, pa.ArrowException):
                rows[name] = "damaged"
        return rows

    @property
    def grid(self) -> Grid | None:
        """Returns the map's region and depth; None if the manifest states none."""
        try:
            return Grid(region_from(self.manifest["region"]), self.manifest["grid"]["depth"])
        except (KeyError, TypeError, ValueError):  # ValueError: or they are none
            return None

    def table(self, name: str | None = None) -> pd.DataFrame:
        """Returns a table of the release, one of `tables`, such as `cells` or `moments`; without a name the main one.

        A table with geometries is a geopandas.GeoDataFrame where geopandas is installed; else its column `geometry`
        holds WKB. Raises RequestError if the release has no such table, or it is damaged.
        """
        name = self.main_table if name is None else name.removesuffix(_PARQUET)
        if self.listed is not None and name not in self.tables:
            raise MissingTableError(self.missing_table(name))
        return data_frame(self.arrow_table(name + _PARQUET))

    def missing_table(self, name: str) -> str:
        """Returns a message for a table that the release does not have, with the names of those that it has."""
        has = f"it has {', '.join(self.tables)}" if self.tables else "it has no tables"
        return f"{self.path} has no table {name!r}; {has}{did_you_mean(name, self.tables)}"

    @property
    def main_table(self) -> str:
        """Returns the name of the table that the job is about, such as `cells`, or of the only one.

        Raises RequestError if there is neither.
        """
        if len(self.tables) == 1:
            return self.tables[0]
        for name in _MAIN_TABLES:
            if name in self.tables:
                return name
        raise RequestError(f"{self.path}: name a table; it has {', '.join(self.tables) or 'no tables'}")

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Returns the main table for DuckDB, Polars, GeoPandas or Lonboard, which read it without a copy.

        A column `geometry` holds WKB with GeoArrow's name of it, in degrees.
        """
        table = self.arrow_table(self.main_table + _PARQUET)
        if _GEOMETRY in table.column_names:
            index = table.schema.get_field_index(_GEOMETRY)
            field = table.schema.field(index).with_metadata(_GEOARROW)
            table = table.set_column(index, field, table.column(index))
        return table.__arrow_c_stream__(requested_schema)

    @property
    def __geo_interface__(self) -> dict[str, Any]:
        """Returns the main table as a GeoJSON FeatureCollection. Raises RequestError without geometries."""
        table = self.arrow_table(self.main_table + _PARQUET)
        if _GEOMETRY not in table.column_names:
            raise RequestError(f"{self.path}: its table {self.main_table} has no geometry")
        shapes = shapely.from_wkb(table.column(_GEOMETRY).to_pylist())
        rows = table.drop_columns([_GEOMETRY]).to_pylist()
        features = [
            {"type": "Feature", "properties": row, "geometry": shapely.geometry.mapping(shape)}
            for row, shape in zip(rows, shapes, strict=True)
        ]
        return {"type": "FeatureCollection", "features": features}

    def total(self, cells: NDArray[Any]) -> tuple[float, float]:
        """Returns users of several cells together, and the standard deviation of that sum's error.

        The errors of cells go together, so that their deviations cannot be added up separately. Unlike the sum of
        `count`, the sum is not shrunk. It is unbiased for cells that the last sub-query measured. A cell that an area
        cuts can only be counted by a guess, such as its share of the area; then the deviation is a lower bound, as it
        is where the manifest's `errors` say so.

        Args:
            cells: bool[n] or float64[n], one for each row of `cells`: whether it counts, or which share of it.

        Returns:
            Users, which may be negative, and their standard deviation; 1.96 of them on each side are a 95% interval.

        Raises:
            RequestError: cells has another length, or the release has no cells.
        """
        if "zones" in self.tables and "cells" not in self.tables:
            raise MissingTableError(
                f"{self.path}: total is for cells; call zones_total for a release of `sfumato zones`; the counts of "
                "other jobs do not add up, because a user may count in several zones"
            )
        table, weights = self.arrow_table(CELLS_FILE), np.asarray(cells, dtype=np.float64)
        if weights.shape != (table.num_rows,):
            raise RequestError(f"cells: must have one value for each of {table.num_rows} cells, got {weights.shape}")
        if TOTALS_FILE not in self.manifest.get("errors", {}).get("sums", ""):
            count, stddev = (table[name].to_numpy() for name in ("count", "stddev"))
            return float(count @ weights), float(np.sqrt((stddev * weights) @ (stddev * weights)))
        unbiased, cell = self._unbiased_leaves()
        return unbiased.total(weights[cell])

    def unbiased_cells(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns each cell's users without shrinkage and the standard deviation of their error, float64[cells] each.

        The errors of two cells go together negatively if at all, so the variance of a sum is at most the sum of
        variances. A release without totals has counts without shrinkage: its `count` and `stddev`.
        """
        cells = self.arrow_table(CELLS_FILE)
        if TOTALS_FILE not in self.manifest.get("errors", {}).get("sums", ""):
            return cells["count"].to_numpy(), cells["stddev"].to_numpy()
        unbiased, cell = self._unbiased_leaves()
        users, variance = (
            np.bincount(cell, one, cells.num_rows).astype(np.float64)
            for one in (unbiased.leaf_users, unbiased.leaf_variances())
        )
        return users, np.sqrt(variance)

    def _unbiased_leaves(self) -> tuple[UnbiasedCounts, NDArray[np.int64]]:
        """Returns the counts of `totals.parquet`, and the row of each leaf in `cells`."""
        totals = self.arrow_table(TOTALS_FILE)
        node, cell, users, variance = (totals[name].to_numpy() for name in ("node", "cell", "users", "variance"))
        return UnbiasedCounts.from_nodes(node, users, variance), cell[cell >= 0]

    def answered_tree(self, sub_query: int | None = None) -> Tree:
        """Returns the tree that a sub-query of a heatmap queried, from `answers.parquet`; by default the last one
        published.

        Raises RequestError if no answers are published, they are damaged, or the manifest lacks the map's region or
        depth.
        """
        if self.grid is None:
            raise RequestError(f"{self.path}: the manifest lacks the map's region or depth")
        answers = self.arrow_table(ANSWERS_FILE)
        index = pc.max(answers["sub_query"]) if sub_query is None else sub_query
        names = answers.filter(pc.equal(answers["sub_query"], index))["cell_id"].to_pylist()
        try:
            return Tree.of(self.grid.depth, nodes_from_names(names, self.grid.depth))
        except ValueError as error:
            raise RequestError(f"{self.path}: {ANSWERS_FILE} is damaged ({error})") from None

    def arrow_table(self, name: str, max_rows: int | None = None) -> pa.Table:
        """Returns a Parquet file of the release. Raises RequestError if it is missing, damaged or has too many rows.

        max_rows: the most rows; None for any number. A small file may hold billions of equal ones.
        """
        content = self.read(name)
        try:
            rows = pq.read_metadata(io.BytesIO(content)).num_rows
            if max_rows is not None and rows > max_rows:
                raise RequestError(f"{self.path}: {name} must have at most {max_rows:,} rows, got {rows:,}")
            return parquet_table(content)
        except (pa.ArrowException, OSError) as error:  # OSError: damage inside, with the footer intact
            raise RequestError(f"{self.path}: {name} is damaged ({error})") from None

    def read(self, name: str) -> bytes:
        """Returns the content of a file of the release, checked against the manifest's digest of it.

        Raises RequestError if there is none, or it is not what was published. Releases of earlier versions list no
        digests, and are read unchecked.
        """
        listed = self.listed
        try:
            if listed is not None and name not in listed:
                raise FileNotFoundError
            content = read_part(self.path, name)
        except FileNotFoundError:
            if listed is not None and name in listed:
                raise RequestError(f"{self.path}: {name} is missing; it was published") from None
            others = f"it has {', '.join(sorted(listed))}" if listed else "name another file"
            raise MissingTableError(
                f"{self.path}: this release of `sfumato {self.manifest.get('job')}` does not contain {name}; {others}"
            ) from None
        if listed is not None and listed[name] != hashlib.sha256(content).hexdigest():
            raise RequestError(f"{self.path}: {name} is damaged: it differs from the published file")
        return content

    @property
    def listed(self) -> dict[str, str] | None:
        """Returns the SHA-256 of every other file by name; None if the manifest lists none. Raises RequestError."""
        files = self.manifest.get("files")
        if files is None:
            return None
        try:
            return {str(name): str(metadata["sha256"]) for name, metadata in files.items() if _is_file_name(name)}
        except (AttributeError, KeyError, TypeError):
            raise RequestError(f"{self.path}: the list of files in the manifest is damaged") from None

    def damage(self, names: Collection[str] | None = None) -> list[str]:
        """Returns a message for each file that is missing or changed since publication. Reads every listed file.

        names: check only these of them; None for all.
        """
        try:
            names = [name for name in self.listed or () if names is None or name in names]
        except RequestError as error:
            return [str(error)]
        found = []
        for name in names:
            try:
                self.read(name)
            except (RequestError, OSError) as error:
                found.append(str(error))
        return found

    @cached_property
    def density(self) -> NDArray[np.float64]:
        """Returns float64[2^d, 2^d], row 0 in the north; sums to 1."""
        return np.asarray(np.load(io.BytesIO(self.read(DENSITY_FILE)), allow_pickle=False))


def data_frame(table: pa.Table) -> pd.DataFrame:
    """Returns a DataFrame; for geometries a GeoDataFrame if geopandas is installed, else a column of WKB."""
    frame: pd.DataFrame = table.to_pandas()
    if "geometry" not in frame:
        return frame
    try:
        import geopandas
    except ImportError:
        return frame
    import shapely

    shapes = shapely.from_wkb(frame["geometry"].to_numpy())
    located: pd.DataFrame = geopandas.GeoDataFrame(frame.drop(columns="geometry"), geometry=shapes, crs="OGC:CRS84")
    return located


def open_release(path: str | os.PathLike[str], *, changes: bool = False) -> Release:
    """Opens the release in a folder, local or gs://.

    Args:
        path: the folder.
        changes: whether changes between two releases count as one.

    Raises:
        FormatError: another version of sfumato wrote it.
        RequestError: there is none.
    """
    text = os.fspath(path)
    try:
        content = read_part(text, MANIFEST_FILE)
        manifest = json.loads(content)
        if not isinstance(manifest, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError):
        raise RequestError(
            f"{text}: no release found (no readable {MANIFEST_FILE}); where `sfumato refresh` publishes, name a day: "
            f"{text.rstrip('/')}/releases/DATE"
        ) from None
    stated = manifest.get("format")
    known = [one for one in _FORMATS if str(stated).startswith(one.rpartition("/")[0] + "/")]
    check_format(f"{text}: {MANIFEST_FILE}", stated, known[0] if known else MANIFEST_FORMAT)
    if stated == CHANGES_FORMAT and not changes:
        raise RequestError(
            f"{text}: not a release but changes between two; call sfumato.changes(before, after), or read them with "
            f"pandas.read_parquet({join(text, CHANGES_FILE)!r})"
        )
    if stated == REFUSAL_FORMAT:
        raise RequestError(f"{text}: this release was refused and contains no result: {manifest.get('reason')}")
    if stated == REMOVAL_FORMAT:
        raise RequestError(f"{text}: this release was taken down: {manifest.get('reason')}")
    return Release(text, manifest, hashlib.sha256(content).hexdigest())


def open_start(path: str, read: Callable[[Release], T]) -> T:
    """Returns what `read` finds in the release that --warm_start names. Raises RequestError, which names the option."""
    try:
        return read(open_release(path))
    except RequestError as error:
        raise RequestError(str(error) if str(error).startswith("warm_start") else f"warm_start: {error}") from None


def read_part(folder: str, name: str) -> bytes:
    """Returns the bytes of a file in a release's folder, local or in a bucket. Raises OSError."""
    return read_file(join(folder, name))


def _is_file_name(name: str) -> bool:
    return "/" not in name and name not in ("", ".", "..", MANIFEST_FILE)
