"""Copies of logs in which one user's records are others: the neighbours on which an audit runs a job.

A changed user keeps the id, and so the shard and the place among the others. Where the number of users stays equal,
so do all plans that follow from it, and under one key the releases differ by what the user changes.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from sfumato.schemas.errors import RequestError
from sfumato.transforms.inputs.csv_log import DELIMITERS
from sfumato.transforms.privacy.keys import keyed_hash

_MANY = 200  # records of a user with many, which are more than a signed byte counts
_WRAPPED = 65_536  # records of many users, or of one record: a type of one or two bytes counts them as 0
_CANDIDATES = 200  # records of which one is swapped
_LINE = "line"  # the column of a table of NDJSON
Row = dict[str, Any]


@dataclass(frozen=True)
class Logs:
    """The logs of an audit, in memory.

    Attributes:
        user_id: name of the column of user ids.
        files: the rows of each file by the name of its copy: of CSV as text, of NDJSON one column of lines.
        users: ids of each file's rows, as text.
    """

    user_id: str
    files: Mapping[str, pa.Table]
    users: Mapping[str, pa.Array]

    @classmethod
    def read(cls, paths: Sequence[str], kind: str, user_id: str) -> Logs:
        """Reads local files. kind: parquet, csv or ndjson. Raises RequestError for others."""
        files, users = {}, {}
        for number, path in enumerate(paths):
            if not Path(path).is_file():
                raise RequestError(f"input: an audit reads local files, not {path}; copy some of the logs first")
            packed = ".gz" * (path.endswith(".gz") and kind != "parquet")
            folders = "".join(f"{part}/" for part in Path(path).parts[:-1] if "=" in part)  # of a partitioned table
            name = f"{folders}{number:05}.{kind}{packed}"
            files[name], ids = _READERS[kind](path, user_id)
            users[name] = pc.fill_null(pa.array(ids).cast(pa.string()), "")
        return cls(user_id, files, users)

    def drawn(self, number: int, subkey: bytes) -> list[str]:
        """Returns different users, drawn by a key. Raises RequestError if the logs have fewer than two."""
        if len(self._ids) < 2:
            raise RequestError("input: an audit needs the logs of two users or more")
        drawn: list[str] = self._ids.take(_drawn(len(self._ids), number, subkey)).to_pylist()
        return drawn

    @cached_property
    def _ids(self) -> pa.Array:
        ids = pc.unique(pa.concat_arrays(list(self.users.values())))
        ids = ids.filter(pc.not_equal(ids, ""))
        return ids.take(pc.sort_indices(ids))

    def at_extremes(self) -> list[str]:
        """Returns the users who hold the smallest or the largest value of a column of numbers."""
        found: dict[str, tuple[float, str]] = {}
        for file, table in self.files.items():
            for name, kind in zip(table.column_names, table.schema.types, strict=True):
                if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or name == self.user_id:
                    continue
                values = table[name].cast(pa.float64(), safe=False).to_numpy()
                for sign in (1, -1):
                    at = int(np.argmax(np.where(np.isfinite(values), sign * values, -np.inf))) if len(values) else 0
                    if len(values) and (user := self.users[file][at].as_py()):
                        found[f"{name} {sign}"] = max(
                            found.get(f"{name} {sign}", (-np.inf, "")), (sign * values[at], user)
                        )
        return list(dict.fromkeys(user for _, user in found.values()))

    def with_swapped_rows(self, share: float, columns: Sequence[str]) -> Logs | None:
        """Returns the logs with the values of two records swapped, which no count of records can show.

        share: of all records, after which the first one comes, in 0..1. columns: in which they differ as much as
        possible, by default all. None where there are no two that differ.
        """
        sizes = np.cumsum([table.num_rows for table in self.files.values()])
        place = min(int(share * sizes[-1]), int(sizes[-1]) - 1)
        number = int(np.searchsorted(sizes, place, side="right"))
        name, table = list(self.files.items())[number]
        at = place - (int(sizes[number - 1]) if number else 0)
        others = np.unique(np.linspace(0, table.num_rows - 1, _CANDIDATES).astype(int))
        own, *rows = self._rows(name, pa.array([at, *others]))

        def differing(row: Row) -> int:
            return sum(own.get(name) != row.get(name) for name in columns or row if name != self.user_id)

        best = max(range(len(rows)), key=lambda candidate: differing(rows[candidate]))
        if not differing(rows[best]):
            return None
        new = {at: {**rows[best], self.user_id: own[self.user_id]}}
        new[int(others[best])] = {**own, self.user_id: rows[best][self.user_id]}
        parts, end = [], 0
        for start, row in sorted(new.items()):
            parts += [table.slice(end, start - end), _table_of([row], table)]
            end = start + 1
        return Logs(self.user_id, {**self.files, name: pa.concat_tables([*parts, table.slice(end)])}, self.users)

    def with_one_row(self) -> Logs:
        """Returns the logs with one record of each user, so that no record is left to be chosen by a key."""
        seen = pd.Series(pa.concat_arrays(list(self.users.values())).to_pandas()).duplicated().to_numpy()
        ends = np.cumsum([len(ids) for ids in self.users.values()])[:-1]
        return self._only(pa.array(~part) for part in np.split(seen, ends))

    def sampled(self, number: int, users: Collection[str], subkey: bytes) -> Logs | None:
        """Returns the logs of some users and of others, drawn by a key; None where there are no more."""
        if len(self._ids) <= number:
            return None
        names = pa.array([*users, *self.drawn(number, subkey)])
        return self._only(pc.is_in(ids, names) for ids in self.users.values())

    def _only(self, rows: Iterable[pa.Array]) -> Logs:
        kept = dict(zip(self.files, rows, strict=True))
        files = {name: table.filter(kept[name]) for name, table in self.files.items()}
        return Logs(self.user_id, files, {name: ids.filter(kept[name]) for name, ids in self.users.items()})

    def rows_of(self, user: str) -> list[Row]:
        """Returns the records of a user."""
        return [row for name in self.files for row in self._rows(name, pc.equal(self.users[name], user))]

    def some_rows(self, number: int, subkey: bytes) -> list[Row]:
        """Returns records of many users, some of them several times if there are fewer."""
        name = max(self.files, key=lambda name: self.files[name].num_rows)
        drawn = _drawn(self.files[name].num_rows, number, subkey)
        return self._rows(name, pa.array(np.resize(drawn, number)))

    def _rows(self, name: str, which: pa.Array) -> list[Row]:
        table = self.files[name].filter(which) if pa.types.is_boolean(which.type) else self.files[name].take(which)
        if table.column_names == [_LINE]:
            return [orjson.loads(line) for line in table[_LINE].to_pylist()]
        return list(table.to_pylist())

    def write(self, folder: Path, user: str, rows: Sequence[Mapping[str, Any]], unchanged: Path | None = None) -> None:
        """Writes all files into a folder. The user has other records; an empty name changes nobody's.

        unchanged: a folder that holds these files as they are: those without the user are linked, and not written.
        """
        places = [name for name, users in self.users.items() if user and pc.any(pc.equal(users, user)).as_py()]
        places = places or list(self.files)[: bool(user)]
        for name, table in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in places and unchanged is not None:
                os.link(unchanged / name, folder / name)
                continue
            if name in places:
                table = table.filter(pc.not_equal(self.users[name], user))
            if name in places[:1]:
                own = _id_of(self, user)
                table = pa.concat_tables([table, _table_of([{**row, self.user_id: own} for row in rows], table)])
            _write(table, folder / name)


def _drawn(places: int, number: int, subkey: bytes) -> list[int]:
    """Returns some of the places 0..places - 1, in the order of their keyed hashes."""
    order = np.argsort(keyed_hash(subkey, np.arange(places)))[:number]
    return [int(place) for place in order]


def _id_of(logs: Logs, user: str) -> Any:
    """Returns the id in the type of its column."""
    rows = logs.rows_of(user)
    return rows[0][logs.user_id] if rows else user


def variants(
    logs: Logs, user: str, donor: str, corners: Sequence[Row], subkey: bytes, wrapped: bool
) -> dict[str, list[Row]]:
    """Returns other records of a user, by name; no records where the user is removed.

    donor: another user. corners: values of columns at the borders of the map. wrapped: whether to try numbers of
    records that small types do not count.
    """
    own = logs.rows_of(user)
    some = own[:1] or logs.rows_of(donor)[:1]
    hostile = [{name: _hostile(value, number) for name, value in row.items()} for row in some for number in range(3)]
    found = {
        "another user's records": logs.rows_of(donor),
        "no record": [],
        "unusable records": hostile,
        "their records and unusable ones": own + hostile,
        f"{_MANY} records": logs.some_rows(_MANY, subkey),
    }
    if wrapped:
        found[f"{_WRAPPED:,} records"] = logs.some_rows(_WRAPPED, subkey)
        found[f"{_WRAPPED:,} times one record"] = some * _WRAPPED
    if corners:
        found["records at borders"] = [{**row, **corner} for row in some for corner in corners]
    return found


def _hostile(value: Any, number: int) -> Any:
    """Returns a missing value, one that is not a number, or the largest one."""
    if number == 0:
        return None
    if isinstance(value, float):
        return (float("nan"), 1.7e308)[number - 1]
    if isinstance(value, str):
        return ("nan", "1.7e308")[number - 1]
    return value


def _read_parquet(path: str, user_id: str) -> tuple[pa.Table, pa.Array]:
    table = pq.read_table(path, partitioning=None)
    # A changed user may lack a value in a column of which the file states that none is missing.
    fields = [field.with_nullable(True) for field in table.schema]
    table = table.cast(pa.schema(fields, table.schema.metadata))
    return table, table[user_id].combine_chunks()


def _read_csv(path: str, user_id: str) -> tuple[pa.Table, pa.Array]:
    """Reads all values as text. A line with more or fewer values than the header is left out."""
    with _open(path) as file:
        header = file.readline().decode("utf-8-sig").rstrip("\r\n")
    delimiter = max(DELIMITERS, key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
    table = pa_csv.read_csv(
        path,
        pa_csv.ReadOptions(column_names=names, skip_rows=1),
        pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=lambda _: "skip"),
        pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    ).replace_schema_metadata({"delimiter": delimiter})
    return table, table[user_id].combine_chunks()


def _read_ndjson(path: str, user_id: str) -> tuple[pa.Table, pa.Array]:
    """Reads lines that hold an object. The others are left out."""
    with _open(path) as file:
        lines = [line.decode() for line in file if line.lstrip().startswith(b"{")]
    ids = [orjson.loads(line).get(user_id) for line in lines]
    return pa.table({_LINE: lines}), pa.array([None if one is None else str(one) for one in ids], pa.string())


_READERS = {"parquet": _read_parquet, "csv": _read_csv, "ndjson": _read_ndjson}


def _open(path: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path) if path.endswith(".gz") else open(path, "rb"))


def _table_of(rows: Sequence[Row], like: pa.Table) -> pa.Table:
    if like.column_names == [_LINE]:
        return pa.table({_LINE: [orjson.dumps(row).decode() for row in rows]}, schema=like.schema)
    return pa.table(
        [_array([row.get(field.name) for row in rows], field.type) for field in like.schema], schema=like.schema
    )


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        values = [None if value is None else str(value) for value in values]
    return pa.array(values, kind)


def _write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    if table.column_names == [_LINE]:
        content = "".join(f"{line.rstrip()}\n" for line in table[_LINE].to_pylist()).encode()
    else:
        buffer = io.BytesIO()
        delimiter = table.schema.metadata[b"delimiter"].decode()
        pa_csv.write_csv(table, buffer, pa_csv.WriteOptions(delimiter=delimiter, quoting_style="needed"))
        content = buffer.getvalue()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
