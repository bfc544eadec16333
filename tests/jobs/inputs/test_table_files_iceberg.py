"""Iceberg tables of a catalog in SQLite: snapshots, renamed columns, deleted rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, ServiceUnavailableError
from pyiceberg.table import DataScan

from sfumato.pipelines.inputs import match_files
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.inputs import table_files
from sfumato.transforms.inputs.log_reader import inspect_log
from tests.jobs.inputs.test_log_reader import encoded
from tests.log_forms import iceberg_catalog, records

TABLE = "iceberg:local.city.logs"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlCatalog]:
    """A catalog that pyiceberg finds under the name `local`."""
    made = iceberg_catalog(tmp_path / "warehouse")
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda name: {"local": made}[name])
    yield made
    made.engine.dispose()


def test_a_table_gives_what_its_records_give_as_parquet(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = records(kind="int")
    pq.write_table(table, tmp_path / "expected.parquet")
    logs = catalog.create_table("city.logs", schema=table.schema)
    logs.append(table.slice(0, 500))
    logs.append(table.slice(500))
    assert encoded(TABLE, {}) == encoded(tmp_path / "expected.parquet", {})
    first = logs.refs()["main"].snapshot_id
    logs.append(table)
    assert len(encoded(TABLE, {})) == 2 * table.num_rows
    assert encoded(f"{TABLE}@{first}", {}) == encoded(tmp_path / "expected.parquet", {})


def test_a_column_that_was_replaced_by_another_of_its_name_is_not_read(catalog: SqlCatalog) -> None:
    """The old files hold the old column under this name."""
    table = records(30)
    logs = catalog.create_table("city.logs", schema=table.schema)
    logs.append(table)
    for before, after in (("latitude", "old"), ("longitude", "latitude"), ("old", "longitude")):
        with logs.update_schema() as update:
            update.rename_column(before, after)
    (file,) = match_files(TABLE)
    with pytest.raises(RequestError, match="was renamed or replaced in the table"):
        inspect_log(file.log, LocationColumns())


def test_a_catalog_that_fails_is_asked_again(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "FIRST_PAUSE_S", 0.01)
    catalog.create_table("city.logs", schema=records(30).schema).append(records(30))
    load, failures = catalog.load_table, [ServiceUnavailableError("busy"), requests.ConnectionError("reset")]

    def failing(name: str) -> Any:
        if failures:
            raise failures.pop()
        return load(name)

    monkeypatch.setattr(catalog, "load_table", failing)
    assert len(match_files(TABLE)) == 1
    assert not failures
    asked: list[str] = []

    def missing(name: str) -> Any:
        asked.append(name)
        raise NoSuchTableError(name)

    monkeypatch.setattr(catalog, "load_table", missing)
    with pytest.raises(RequestError, match="cannot be opened"):
        match_files(TABLE)
    assert asked == ["city.logs"]


def test_deleted_rows_and_other_formats_are_refused(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes neither, so its own plan is given a delete file here, and then a file of ORC."""
    logs = catalog.create_table("city.logs", schema=records(3).schema)
    logs.append(records(3))
    plan = DataScan.plan_files

    def changed(**values: object) -> None:
        def planned(self: DataScan) -> list[object]:
            return [SimpleNamespace(**{"file": one.file, "delete_files": set(), **values}) for one in plan(self)]

        monkeypatch.setattr(DataScan, "plan_files", planned)

    changed(delete_files={"a file of deletes"})
    with pytest.raises(RequestError, match="has row-level deletes"):
        match_files(TABLE)
    changed(file=SimpleNamespace(file_format=SimpleNamespace(value="ORC")))
    with pytest.raises(RequestError, match="holds files of ORC; only Parquet can be read"):
        match_files(TABLE)


def test_what_is_no_table_or_has_no_library(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, message in (("local.city.none", "Table does not exist"), ("elsewhere.city.logs", "cannot be opened")):
        with pytest.raises(RequestError, match=message):
            match_files(f"iceberg:{name}")
    with pytest.raises(RequestError, match=r"must be iceberg:CATALOG\.NAMESPACE\.TABLE"):
        match_files("iceberg:logs")
    logs = catalog.create_table("city.logs", schema=records(3).schema)
    with pytest.raises(RequestError, match="has no data"):
        match_files(TABLE)
    logs.append(records(3))
    with pytest.raises(RequestError, match="is an Iceberg table"):
        match_files(str(tmp_path / "warehouse" / "city" / "logs"))
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(RequestError, match=r"pip install 'sfumato\[iceberg\]'"):
        match_files(TABLE)
