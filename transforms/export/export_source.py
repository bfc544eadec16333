"""What an exported file is made of: a release, its statement, and its map or table; and what a format is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import PRIVACY_UNIT, days_averaged, entry_of
from sfumato.schemas.release import CELLS_FILE, CHANGES_FILE, MODEL_FILE, NEGATIVE
from sfumato.transforms.export.map_raster import (
    GEOMETRY,
    MapLayer,
    MapRaster,
    layer_of_model,
    layer_of_table,
    raster_of_cells,
    raster_of_squares,
)
from sfumato.transforms.ranges.model_file import read_model
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.sections import days_of, get

NOT_STATED = "not stated"
CRS = "OGC:CRS84 (WGS 84, longitude before latitude, degrees)"
_POINTWISE = "columns and bands named low and high: ends of a pointwise 95% interval, for each place separately"
_USERS = "counts are users; densities are users per square kilometre"
_USERS_A_DAY = "counts are users a day, the mean of several days; densities are the same per square kilometre"
_TRIPS = "counts are trips of users"
_BELOW_ZERO = f"a number of users or trips, and its density, {NEGATIVE}"
TABLE, MAP, RASTER = "table", "map", "raster"
PARTS = {
    TABLE: "a table",
    MAP: "a table with shapes",
    RASTER: "a map of cells",
}
"""What a format can be made of, in words."""
_PARQUET = ".parquet"


def release_statement(release: Release, licence: str | None = None) -> dict[str, str]:
    """Returns texts by name: guarantee, privacy unit, epsilon, id and date of the release, meaning of intervals.

    Every exported file holds them, in the form that its format has for metadata. All of them are public. licence: under
    which the operator publishes it; None states that none is stated.
    """
    manifest = release.manifest
    job = str(manifest.get("job", NOT_STATED))
    privacy = _changes_privacy(manifest) if job == "changes" else _release_privacy(release)
    first, last = days_of(manifest)
    named = "no differential privacy" if privacy["epsilon"] == "none" else f"ε = {privacy['epsilon']}"
    return {
        "title": str(manifest.get("title") or f"sfumato {job}, {named}"),
        **privacy,
        "release_id": str(manifest.get("release_id", NOT_STATED)),
        "job": job,
        "published": str(manifest.get("created", NOT_STATED)),
        "period": f"{first}/{last}" if first else NOT_STATED,
        "hours": str(get(manifest, "parameters.hours", NOT_STATED)),
        "manifest_sha256": release.digest,
        "licence": licence or NOT_STATED,
        "crs": CRS,
        "units": _TRIPS if job == "flows" else _USERS_A_DAY if days_averaged(manifest) > 1 else _USERS,
        "below_zero": _BELOW_ZERO,
        "intervals": str(entry_of(manifest, "errors").get("intervals", _POINTWISE)),
        "errors_of_sums": str(entry_of(manifest, "errors").get("sums", "the errors of places are not independent")),
        "warnings": " ".join(map(str, manifest.get("warnings") or ())) or "none",
        "made_by": f"sfumato {version('sfumato')} export: post-processing of a release, which costs no privacy budget",
    }


def _release_privacy(release: Release) -> dict[str, str]:
    privacy = entry_of(release.manifest, "privacy")
    return {
        "guarantee": release.guarantee,
        "privacy_unit": str(privacy.get("unit", PRIVACY_UNIT)),
        "contribution_bound": str(privacy.get("contribution_bound", NOT_STATED)),
        "adjacency": str(privacy.get("adjacency", NOT_STATED)),
        "epsilon": _number(privacy.get("epsilon")),
        "delta": _number(privacy.get("delta", 0.0)),
        "trust": str(privacy.get("trust", NOT_STATED)),
    }


def _changes_privacy(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts for changes between two releases. Their costs add up for a user in the data of both."""
    sides = [entry_of(manifest, side) for side in ("before", "after")]
    named = " and ".join(f"{side.get('release_id')} (ε = {_number(side.get('epsilon'))})" for side in sides)
    note = str(entry_of(manifest, "privacy").get("note", ""))
    total = {}
    for name in ("epsilon", "delta"):
        costs = [side.get(name) for side in sides]
        total[name] = _number(sum(costs) if all(isinstance(one, int | float) for one in costs) else None)
    same = "as stated by each of the two releases"
    return {
        "guarantee": f"Computed from the releases {named}. {note}",
        "privacy_unit": PRIVACY_UNIT,
        "contribution_bound": same,
        "adjacency": same,
        **total,
        "trust": same,
    }


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "none"


@dataclass(frozen=True)
class ExportSource:
    """A release to export, or changes between two. Its parts are read when they are used.

    `licence` is what files state; None for none. `table_name` is the table to export; None for the one with the map, or
    the only one.
    """

    release: Release
    licence: str | None = None
    table_name: str | None = None

    @cached_property
    def statement(self) -> dict[str, str]:
        """Returns the texts of `release_statement`."""
        return release_statement(self.release, self.licence)

    @property
    def parts(self) -> tuple[str, ...]:
        """Returns those of PARTS that this release has."""
        has = {
            TABLE: self._is_model or bool(self.release.tables),
            MAP: self._is_model or self._map_table is not None,
            RASTER: self._is_model or self._raster_file is not None,
        }
        return tuple(part for part in PARTS if has[part])

    @property
    def has_shapes(self) -> bool:
        """Returns whether the rows of the table to export have shapes."""
        if self.table_name is None:
            return MAP in self.parts
        return GEOMETRY in self._table(self.table_name).column_names

    @cached_property
    def layer(self) -> MapLayer:
        """Returns the table with shapes. Raises RequestError if the release has none."""
        if self._is_model and self.table_name is None:
            model = read_model(self.release.read(MODEL_FILE), f"{self.release.path}/{MODEL_FILE}")
            return layer_of_model(model, max(self.release.manifest["sizes_metres"]))
        name = self.table_name or self._map_table
        if name is None:
            raise RequestError(f"{self.release.path}: no table of this release has shapes")
        table = self._table(name)
        if GEOMETRY not in table.column_names:
            raise RequestError(f"table: {name} of {self.release.path} has no shapes; use --format csv")
        return layer_of_table(name, table)

    @cached_property
    def raster(self) -> MapRaster:
        """Returns the bands of a map of cells. Raises RequestError if the release has none."""
        release = self.release
        grid = release.grid
        if grid is None:
            raise RequestError(f"{release.path}: the manifest lacks the map's region or depth")
        if self._is_model:
            return raster_of_squares(self.layer, grid.region)
        if self._raster_file is None:
            raise RequestError(f"{release.path}: this release has no map of cells")
        name = self._raster_file.removesuffix(_PARQUET)
        nested = release.manifest.get("job") in ("histogram", "hotspots")  # each row has all users of its node
        return raster_of_cells(name, self._table(name), grid, nested=nested)

    @cached_property
    def slots(self) -> dict[str, MapRaster]:
        """Returns the map of each slot of time by the slot's name, for a table with a row for each slot and cell.

        Empty where the table to export has no slots. Raises RequestError if the release has no such table.
        """
        grid = self.release.grid
        if self.table_name is None or grid is None:
            return {}
        table = self._table(self.table_name)
        if not {"slot", "slot_name", "cell_id"} <= set(table.column_names):
            return {}
        parts = [table.filter(pc.equal(table["slot"], slot)) for slot in sorted(pc.unique(table["slot"]).to_pylist())]
        return {str(part["slot_name"][0]): raster_of_cells(self.table_name, part, grid, nested=False) for part in parts}

    @cached_property
    def table(self) -> pa.Table:
        """Returns a table without shapes; for a release with a map use `layer`. Raises RequestError."""
        tables = self.release.tables
        if self.table_name is None and len(tables) != 1:
            raise RequestError(f"table: must be one of {', '.join(tables)} for {self.release.path}")
        return self._table(self.table_name or tables[0])

    @property
    def _is_model(self) -> bool:
        return MODEL_FILE in (self.release.listed or {})

    @cached_property
    def _map_table(self) -> str | None:
        """Returns the first table with shapes."""
        release = self.release
        first = ("cells", "zones", "flows", "changes")
        names = sorted(release.tables, key=lambda name: (first.index(name) if name in first else len(first), name))
        return next((name for name in names if GEOMETRY in self._table(name).column_names), None)

    @property
    def _raster_file(self) -> str | None:
        files = (CELLS_FILE, CHANGES_FILE) if self.release.grid else ()  # changes between zones have no cells
        return next((name for name in files if name in (self.release.listed or {})), None)

    def _table(self, name: str) -> pa.Table:
        if name not in self.release.tables:
            raise RequestError(f"table: {self.release.missing_table(name)}")
        return self.release.arrow_table(name + _PARQUET)


@dataclass(frozen=True)
class ExportFormat:
    """A format.

    Attributes:
        name: as `--format` has it.
        suffixes: of file names, the usual one first.
        needs: the part of a release that it is made of, one of PARTS.
        write: makes the content of the file, by what is added to the file's name: "" for the file itself.
    """

    name: str
    suffixes: tuple[str, ...]
    needs: str
    write: Callable[[ExportSource], dict[str, bytes]]


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Turns a missing library into a RequestError that names the extra to install. what: begins the message."""
    try:
        yield
    except ImportError as error:
        raise RequestError(f"{what}: requires {error.name}; run: pip install '.[export]'") from None
