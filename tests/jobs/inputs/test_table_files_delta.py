"""Delta tables: the version that is read, partitions, and tables whose files alone do not show what they hold."""

from __future__ import annotations

import base64
import json
import string
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.inputs import match_files
from sfumato.schemas.errors import RequestError
from sfumato.transforms.inputs.log_reader import count_rows
from sfumato.transforms.inputs.table_files import delta_files, pinned
from tests.log_forms import delta, records
from tests.rejections import rejects


def test_the_latest_version_or_the_one_that_is_named(tmp_path: Path) -> None:
    """The folder holds the files of both versions, and a reader of the folder would count both."""
    where = delta(records(60), tmp_path / "table")
    assert sum(count_rows(file.log) for file in match_files(where)) == 120
    assert sum(count_rows(file.log) for file in match_files(f"{where}@0")) == 100
    assert pinned("a@b@12") == ("a@b", 12)
    assert pinned("a@b") == ("a@b", None)


def test_partitions_are_columns_and_can_be_filtered(tmp_path: Path) -> None:
    where = delta(records(60), tmp_path / "table")
    files = match_files(where, where=["day=2026-11-21:2026-11-30"])
    assert {dict(file.log.partition)["day"] for file in files} == {"2026-11-21", "2026-11-22"}


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
    with pytest.raises(RequestError, match="has deletion vectors"):
        delta_files(str(tmp_path / "table"))
    for action in actions:
        action.get("add", {}).pop("deletionVector", None)
    first = tmp_path / "table" / "_delta_log" / "00000000000000000000.json"
    changed = first.read_text().replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}')
    assert changed != first.read_text()
    first.write_text(changed)
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(RequestError, match=r"maps columns to other names|cannot be opened"):
        delta_files(str(tmp_path / "table"))


def test_what_is_no_table_or_has_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rejects("input"):
        match_files(f"delta:{tmp_path / 'none'}")
    where = delta(records(60), tmp_path / "table")
    with pytest.raises(RequestError, match="cannot be opened"):
        match_files(f"{where}@7")
    with pytest.raises(RequestError, match="is a Delta table, whose files are not all of its latest version"):
        match_files(str(tmp_path / "table"))
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(RequestError, match=r"pip install 'sfumato\[delta\]'"):
        match_files(where)
