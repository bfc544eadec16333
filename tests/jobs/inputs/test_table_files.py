"""Delta and Iceberg tables: the version that is read, partitions, and what files alone do not show."""

from __future__ import annotations

import base64
import json
import string
import struct
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

from sfumato.pipelines.frame.inputs import match_files
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.inputs import table_files
from sfumato.transforms.inputs.log_reader import count_rows, inspect_log
from sfumato.transforms.inputs.table_files import delta_files, pinned
from tests.jobs.inputs.test_log_reader import encoded
from tests.log_forms import delta, iceberg_catalog, records
from tests.rejections import rejects


def test_the_latest_version_or_the_one_that_is_named(tmp_path: Path) -> None:
    """The folder holds the files of both versions, and a reader of the folder would count both."""
    where = delta(records(60), tmp_path / "table")
    assert sum(count_rows(file.log) for file in match_files(where)) == 120
    assert sum(count_rows(file.log) for file in match_files(f"{where}@0")) == 100
    assert pinned("a@b@12") == ("a@b", 12)
    assert pinned("a@b") == ("a@b", None)


def bitmap_of_row_0() -> bytes:
    """A deletion vector of the first row, as the Delta protocol serialises it: a 64-bit Roaring bitmap of one array."""
    array = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
    return struct.pack("<IQI", 1_681_511_377, 1, 0) + array + bytes(2)


def z85(data: bytes) -> str:
    """ZeroMQ's base 85, which differs from Python's in its alphabet alone."""
    digits = string.digits + string.ascii_letters
    python = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
    return base64.b85encode(data).decode().translate(str.maketrans(python, digits + ".-:+=^!/*?&<>()[]{}@%$#"))


def test_deletion_vectors_and_mapped_columns_are_refused(tmp_path: Path) -> None:
    """The log of a table as Spark writes it: an added file with a deletion vector, and then with mapped columns."""
    delta(records(60), tmp_path / "table")
    log = tmp_path / "table" / "_delta_log" / "00000000000000000001.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol = {"protocol": {**features, "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}}
    vector: dict[str, Any] = {
        "storageType": "i", "pathOrInlineDv": z85(bitmap_of_row_0()), "sizeInBytes": 34, "cardinality": 1,
    }  # fmt: skip
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = vector
    log.write_text("\n".join(map(json.dumps, [protocol, *actions])))
    with pytest.raises(RequestError, match="deletion vectors"):
        delta_files(str(tmp_path / "table"))
    for action in actions:
        action.get("add", {}).pop("deletionVector", None)
    first = tmp_path / "table" / "_delta_log" / "00000000000000000000.json"
    changed = first.read_text().replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}')
    assert changed != first.read_text()
    first.write_text(changed)
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(RequestError, match=r"column mapping is not supported|cannot be opened"):
        delta_files(str(tmp_path / "table"))


def test_what_is_no_delta_table_or_has_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = delta(records(60), tmp_path / "table")
    # Of a folder, the files are not all of the table's latest version.
    for name in (f"delta:{tmp_path / 'none'}", f"{where}@7", str(tmp_path / "table")):
        with rejects("input"):
            match_files(name)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(RequestError, match=r"pip install '\.\[delta\]'"):
        match_files(where)


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


def test_a_column_replaced_by_another_of_its_name_is_not_read(catalog: SqlCatalog) -> None:
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
    loaded_names: list[str] = []

    def missing(name: str) -> Any:
        loaded_names.append(name)
        raise NoSuchTableError(name)

    monkeypatch.setattr(catalog, "load_table", missing)
    with pytest.raises(RequestError, match="cannot be opened"):
        match_files(TABLE)
    assert loaded_names == ["city.logs"]


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
    with pytest.raises(RequestError, match="row-level deletes"):
        match_files(TABLE)
    changed(file=SimpleNamespace(file_format=SimpleNamespace(value="ORC")))
    with pytest.raises(RequestError, match="data files must be Parquet, got ORC"):
        match_files(TABLE)


def test_what_is_no_iceberg_table_or_has_no_library(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = catalog.create_table("city.logs", schema=records(3).schema)
    for name in ("iceberg:local.city.none", "iceberg:elsewhere.city.logs", "iceberg:logs", TABLE):  # it has no data
        with rejects("input"):
            match_files(name)
    logs.append(records(3))
    with rejects("input"):
        match_files(str(tmp_path / "warehouse" / "city" / "logs"))
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(RequestError, match=r"pip install '\.\[iceberg\]'"):
        match_files(TABLE)
