"""Everything that leaves a run, as numbers: one a cell of a table, a field of a manifest, or a number in a line.

A fact has a file, a row and a column. Equal facts of two runs are equal numbers; what is no number has its hash.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sfumato.schemas.release import MANIFEST_FILE

# By file: float64[rows, columns], NaN where there is none. The index holds hashes of the rows' names, uint64[rows].
Facts = Mapping[str, pd.DataFrame]
SINGLE = np.uint64(0)  # the row of facts that are in no table
_NOT_FACTS = ("created", "files.")  # of a manifest: the time, and digests of files, whose content is facts
_NAMES = (
    "sub_query", "cell_id", "zone", "item", "node", "origin_cell", "destination_cell", "origin_zone",
    "destination_zone", "level", "depth", "is_rest", "slot", "group", "statistic",
)  # fmt: skip
"""Columns that name what a row is about. A row of a table without any is named by its place."""
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)")
_PICTURE = ".png"  # most runs have none
_RENDERED = (".html", _PICTURE)  # compared with what the tables render


def number_of(value: object) -> float:
    """Returns a number for a value: itself, or the first 53 bits of its hash."""
    if isinstance(value, bool | int | float | np.number):
        return float(value)
    content = value if isinstance(value, bytes) else repr(value).encode()
    return float(int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 11)


def single(values: Mapping[str, object]) -> pd.DataFrame:
    """Returns facts that are in no table, a column each."""
    numbers = np.array([[number_of(value) for value in values.values()]], np.float64)
    return pd.DataFrame(numbers.reshape(1, -1), np.array([SINGLE]), list(values))


def of_text(name: str, text: str) -> Iterator[tuple[str, object]]:
    """Yields the numbers in a text, and what is around them."""
    yield f"{name}, its words", _NUMBER.sub("#", text)
    for place, found in enumerate(_NUMBER.findall(text)):
        yield f"{name}, number {place + 1}", float(found.replace(",", ""))


def of_fields(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields the values within nested objects and lists, and the numbers of the texts among them."""
    if isinstance(value, Mapping | list | tuple):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from of_fields(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, str):
        yield from of_text(name, value)
    else:
        yield name, value


def of_records(records: Iterable[tuple[str, str, object]]) -> pd.DataFrame:
    """Returns the facts of a log: of each record its name, message and fields."""
    found: dict[str, object] = {}
    seen: Counter[str] = Counter()
    for name, message, fields in (kept := list(records)):
        seen[name] += 1
        line = f"{name} {seen[name]}"
        found |= dict(of_text(line, message))
        found |= dict(of_fields(line, fields))
    return single({**found, "order of the lines": tuple(name for name, _, _ in kept)})


def of_database(path: Path) -> pd.DataFrame:
    """Returns the facts of an SQLite file: of a ledger, all but the times of its entries."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}
    fields = of_fields("", {name: [[_entry(value) for value in row] for row in each] for name, each in rows.items()})
    return single({name: value for name, value in fields if ".time" not in name})


def _entry(value: object) -> object:
    return json.loads(value) if isinstance(value, bytes) and value.startswith(b"{") else value


def of_table(table: pa.Table) -> pd.DataFrame:
    """Returns the facts of a table, a row for each of its rows."""
    names = [name for name in _NAMES if name in table.column_names]
    rows = pd.Series(np.zeros(table.num_rows, np.uint64))
    for name in names:
        rows = _hashes(rows, table[name].cast(pa.string()).to_pandas().fillna(""))
    rows = _hashes(rows, rows.groupby(rows).cumcount())
    return pd.DataFrame({name: _numbers(table[name]) for name in table.column_names}, rows.to_numpy(), dtype=np.float64)


def _hashes(rows: pd.Series, column: pd.Series) -> pd.Series:
    """Returns hashes of pairs of a row's hash and a value: uint64[n]."""
    return pd.util.hash_pandas_object(pd.DataFrame({"row": rows, "value": column}), index=False)


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)
    values = column.to_pandas().to_numpy(dtype=object)
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        values = np.array([str(value) for value in values], dtype=object)
    return (pd.util.hash_array(values, categorize=False) >> np.uint64(11)).astype(np.float64)


def of_files(paths: Iterable[Path], folder: Path) -> dict[str, pd.DataFrame]:
    """Returns the facts of files and folders, by their names as seen from a folder.

    Each has a name, a size and permissions, and a file the facts of its content: of a table its cells, schema and
    order, of a manifest its fields, of arrays their values. A page or picture has none: see `audit_job`.
    """
    listed: dict[str, object] = {}
    found: dict[str, pd.DataFrame] = {}
    for path in sorted(paths):
        name, state = os.path.relpath(path, folder), path.lstat()
        listed |= {name: True, f"permissions of {name}": state.st_mode}
        if path.is_file():
            if path.suffix != _PICTURE:
                listed[f"size of {name}"] = state.st_size
            found |= _content(name, path)
    return {"": single(listed), **found}


def _content(name: str, path: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    content = path.read_bytes()
    if path.suffix == ".parquet":
        metadata, table = pq.read_metadata(path), pq.read_table(path)
        yield name, (facts := of_table(table))
        shape = {"schema": str(table.schema), "metadata": metadata.metadata, "groups": metadata.num_row_groups}
        yield f"{name}'s form", single({**shape, "order": facts.index.to_numpy().tobytes()})
    elif path.suffix == ".csv":
        yield name, of_table(pa_csv.read_csv(io.BytesIO(content)))
    elif path.name == MANIFEST_FILE:
        fields = of_fields("", json.loads(content))
        yield name, single({field: value for field, value in fields if not field.startswith(_NOT_FACTS)})
    elif path.suffix in (".npy", ".npz"):
        loaded: Any = np.load(io.BytesIO(content), allow_pickle=False)
        for part in loaded.files if path.suffix == ".npz" else [""]:
            array = np.asarray(loaded[part] if part else loaded)
            values = array.astype(np.float64).ravel() if array.dtype.kind in "biuf" else [number_of(array.tobytes())]
            yield (
                f"{name} {part}".strip(),
                pd.DataFrame({"value": values}, np.arange(1, len(values) + 1, dtype=np.uint64)),
            )
            yield f"{name} {part}'s form".strip(), single({"shape": array.shape, "type": str(array.dtype)})
    elif path.suffix not in _RENDERED:
        yield name, single({"content": content})
