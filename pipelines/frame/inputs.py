"""A job's input before any record is read: files, folders and tables, their sizes, footers and digests."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from glob import glob
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import unquote

from sfumato.schemas.errors import RequestError, reason_of
from sfumato.schemas.ledger import Reservation
from sfumato.schemas.locations import Columns
from sfumato.schemas.log_layout import E7, LogLayout, PartitionFilter
from sfumato.schemas.requests.commands import InspectRequest
from sfumato.schemas.requests.log_columns import PlaceColumns
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.schemas.requests.request_base import Request
from sfumato.schemas.slots import UTC, times_text
from sfumato.transforms.inputs.bigquery_table import BIGQUERY, table_digest, table_state
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import LogMetadata, count_rows, format_by_name, inspect_log, kinds_of
from sfumato.transforms.inputs.table_files import delta_files, iceberg_files
from sfumato.transforms.io.files import content_digest, file_version, is_remote, join, near_file
from sfumato.transforms.io.storage import CONNECTIONS, StoredFile, listed, walk
from sfumato.transforms.observability.logs import LATE_ROWS, log_event
from sfumato.transforms.privacy.keys import Secret
from sfumato.transforms.privacy.ledger.charge_rules import file_digest, select_files

ICEBERG = "iceberg:"
# What a table of files's name begins with, and the function that lists its data files.
TABLES: Mapping[str, Callable[[str], list[LogFile]]] = MappingProxyType({
    "delta:": delta_files,
    ICEBERG: iceberg_files,
})  # fmt: skip
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_PACKED = re.compile(r"\.(parquet|geoparquet|pq|csv|tsv|ndjson|jsonl|json)\.(gz|bz2|xz|zst|lz4|zip)$")
_SHOWN = 3  # files that a message names
_OF_ZONES = (".shp", ".gpkg", ".geojson", ".dbf")
_LOCAL_THREADS = 8  # a disk's files keep the processor busy
_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class InputFile:
    """A file as it was found."""

    path: str  # local or in a bucket
    size: int  # in bytes
    changed: float  # time of the last change, in seconds since 1970; 0 if unknown
    version: str  # see `file_version`
    log: LogFile  # the file as a pipeline reads it: the pipeline refuses another version
    listed_digest: str | None = None  # what a listing of the storage showed as the digest; None where it shows none

    @property
    def digest(self) -> str:
        """See `content_digest`, and for tables of BigQuery `table_digest`."""
        return self.listed_digest or _digest(self.log)

    @property
    def rows(self) -> int:
        """Number of rows, by its footer; an estimate for formats without a footer, and 0 only if there are no rows."""
        return _rows(self.log)


@cache
def _inspected(log: LogFile, columns: Columns) -> LogMetadata:
    return inspect_log(log, columns)


# Functions, because a `cached_property` of Python 3.11 holds a lock: threads would open one file after the other.
@cache
def _rows(log: LogFile) -> int:
    return count_rows(log)


@cache
def _digest(log: LogFile) -> str:
    return table_digest(log.path) if log.path.startswith(BIGQUERY) else content_digest(log.path)


def layout_of(request: Request, columns: Columns | None = None) -> LogLayout:
    """Returns the layout of a request's logs.

    columns: the columns that the job reads; None for all.
    """
    layout = LogLayout()
    if isinstance(request, ReleaseRequest | InspectRequest):
        layout = LogLayout(request.input_format, decimal=request.decimal or ".", dates=request.dates)
    if isinstance(request, PlaceColumns):
        layout = replace(
            layout,
            latitude=request.latitude_column,
            longitude=request.longitude_column,
            e7=request.coordinates == E7,
            geometry=request.geometry_column,
            cells=request.cells_of_records,
        )
    if columns is not None:
        names = columns.names()
        if layout.place_column is not None and {layout.latitude, layout.longitude} & set(names):
            names = [*(name for name in names if name not in (layout.latitude, layout.longitude)), layout.place_column]
        layout = replace(layout, columns=tuple(names))
    if isinstance(request, ReleaseRequest) and (days := request.day_rows) is not None:
        layout = replace(layout, days=days)
        if layout.columns and days.column not in layout.columns:
            layout = replace(layout, columns=(*layout.columns, days.column))
    return layout


def match_files(
    patterns: str | Sequence[str], layout: LogLayout | None = None, where: Sequence[str] | None = None
) -> list[InputFile]:
    """Returns every file that one of the patterns, folders or tables names, once, sorted by path.

    Args:
        patterns: one or several. In a folder and its subfolders all files of known formats count, except those whose
            name or whose folder's name begins with `_` or `.`.
        layout: what the run states about its logs.
        where: filters of the partitions to read.

    Raises RequestError: a pattern names no file, or the filters leave none.
    """
    for of_an_earlier_run in (_inspected, _rows, _digest):  # a file may have changed within one tick of its clock
        of_an_earlier_run.cache_clear()
    found: dict[str, InputFile] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        for file in _matches(pattern, layout or LogLayout()):
            found.setdefault(file.path, file)
    filters = [PartitionFilter.parse(text) for text in where or ()]
    files = [file for file in found.values() if _is_kept(file.log, filters)]
    if not files:
        raise RequestError(f"where: no file is in a folder {' and '.join(map(str, filters))}")
    return sorted(files, key=lambda file: file.path)


def _is_kept(log: LogFile, where: Sequence[PartitionFilter]) -> bool:
    values = dict(log.partition)
    for one in where:
        if one.name not in values:
            why = f"{log.path} is in no folder {one.name}=...; to select rows by a column, filter the logs first"
            raise RequestError(f"where: {why}")
    return all((value := values[one.name]) is not None and one.keeps(value) for one in where)


def _matches(pattern: str, layout: LogLayout) -> list[InputFile]:
    if pattern.startswith(BIGQUERY):
        try:
            state = table_state(pattern)
        except RequestError as error:
            raise RequestError(f"input: {error}") from None
        log = LogFile(pattern, state.version, layout=replace(layout, format="bigquery"))
        return [InputFile(pattern, state.size, state.changed, state.version, log)]
    table = next((prefix for prefix in TABLES if pattern.startswith(prefix)), None)
    try:
        if table is not None:
            logs = TABLES[table](pattern.removeprefix(table))
            found = [one for some in _each(lambda log: listed(log.path), logs, logs) for one in some]
            if len(found) < len(logs) or not logs:
                raise RequestError(f"{pattern} has no data, or its files are gone")
            logs = [replace(log, layout=replace(layout, format="parquet")) for log in logs]
        else:
            found = _files(pattern, layout.format)
            logs = [LogFile(match.path, layout=layout, partition=partition_of(match.path)) for match in found]
        versions = _each(lambda file: file.version or file_version(file.path), found, logs)
    except (OSError, RequestError) as error:
        raise RequestError(f"input: {error}") from None
    return [
        InputFile(
            log.path, file.size, file.changed, version, replace(log, version=version, size=file.size), file.digest
        )
        for log, file, version in zip(logs, found, versions, strict=True)
    ]


def _each(function: Callable[[_In], _Out], items: Sequence[_In], logs: Sequence[LogFile]) -> list[_Out]:
    """Returns the function's results for some items, by threads: many where the logs are remote and each request waits.

    A thread takes every n-th item, because to hand over one at a time takes longer than to open a local file.
    """
    remote = any(is_remote(log.path) for log in logs)
    threads = min(CONNECTIONS if remote else _LOCAL_THREADS, len(items))
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        shares = pool.map(lambda share: [function(item) for item in share], (items[i::threads] for i in range(threads)))
        found = dict[int, _Out]()
        for first, results in enumerate(shares):
            found.update(zip(range(first, len(items), threads), results, strict=True))
    return [found[place] for place in range(len(items))]


def _files(pattern: str, form: str | None) -> list[StoredFile]:
    """Returns the files of a pattern or a folder. Raises RequestError if there is none."""
    found = listed(pattern)
    is_folder = os.path.isdir(pattern)
    if not found and is_remote(pattern) and not (set(pattern) & set("*?[") or format_by_name(pattern)):
        is_folder = True  # a bucket has no folders, only names that begin alike
    if is_folder:
        return _files_below(pattern, form)
    for match in found:
        if os.path.isdir(match.path):
            raise RequestError(f"{match.path} is a folder; give '{match.path}/*.parquet', or only the folder")
    if form is None and (zones := [file.path for file in found if file.path.lower().endswith(_OF_ZONES)]):
        raise RequestError(f"{zones[0]} holds zones or stops: give it to --zones; logs are CSV, Parquet or NDJSON")
    if not is_remote(pattern):
        _check_found([file.path for file in found], glob(pattern))
    if not found:
        raise RequestError(f"no file matches {pattern!r}{near_file(pattern)}")
    return found


def _check_found(logs: Sequence[str], named: Iterable[str]) -> None:
    """Checks files on a disk before one is opened. What is named like a log is assumed to be meant as one.

    logs: paths of files to read. named: paths of files and folders that are named like logs.

    Raises RequestError: a log is a pipe, a socket or a device, which could be read for ever; or a link or a folder that
    is named like a log would be left out.
    """
    for path in logs:
        if not os.path.isfile(path):
            raise RequestError(f"{path} is a pipe, a socket or a device, and no file; take it out of the folder")
    nearest = {os.path.dirname(path) for path in logs}
    folders = nearest | {folder for path in nearest for folder in _parents(path)}
    for path in sorted(set(named).difference(logs)):
        if not os.path.exists(path):
            raise RequestError(f"{path} is nothing that can be read, such as a link to a file that is gone; remove it")
        if os.path.isdir(path) and format_by_name(path) and path not in folders:
            raise RequestError(f"{path} is a folder that holds no log to read; name its files, or remove it")


def _parents(path: str) -> Iterator[str]:
    while (folder := os.path.dirname(path)) not in ("", path):
        yield folder
        path = folder


def _files_below(folder: str, form: str | None) -> list[StoredFile]:
    """Returns the files in a folder and its folders that are logs by their names."""
    found = _below(folder)
    if any(path.startswith("_delta_log/") for path in found):
        raise RequestError(
            f"{folder} is a Delta table, whose files are not all of its latest version; give delta:{folder}"
        )
    if any(path.startswith("metadata/") and path.endswith(".metadata.json") for path in found):
        raise RequestError(
            f"{folder} is an Iceberg table, whose files are not all of its latest version; give iceberg:CATALOG.TABLE"
        )
    logs = _logs(folder, form, found)
    if not logs:
        raise RequestError(f"the folder {folder!r} holds no file of a known format; name the files, or give a pattern")
    others = [path for path in found if not _is_hidden(path) and not _is_log(path, form)]
    if others:
        text = f"{folder}: left out, because their names state no known format: {', '.join(sorted(others)[:_SHOWN])}"
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        log_event("left_out", text + more, logging.WARNING, files=len(others))
    return logs


def _logs(folder: str, form: str | None, found: Mapping[str, StoredFile]) -> list[StoredFile]:
    """Returns the logs among the files below a folder. Raises RequestError: see `_check_found`. found: by path."""
    logs = {path: match for path, match in found.items() if _is_log(path, form)}
    packed = [path for path in found if not _is_hidden(path) and path not in logs and _PACKED.search(path.lower())]
    if packed:
        raise RequestError(
            f"{join(folder, packed[0])} is packed in a way that is not read (.csv.gz and .ndjson.gz are); unpack it; "
            f"to leave it out, name the logs, such as '{join(folder, '*.csv')}', or begin its name with _"
        )
    if not is_remote(folder):
        paths = (os.path.join(place, name) for place, *names in walk(folder) for name in itertools.chain(*names))
        named = [path for path in paths if _is_log(_name_below(folder, path), form)]
        _check_found([match.path for match in logs.values()], named)
    return list(logs.values())


def _is_hidden(path: str) -> bool:
    """Returns whether a name below a folder, or a folder's, begins with `_` or `.`."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def _is_log(path: str, form: str | None) -> bool:
    """Returns whether a file in a folder is a log by its name. path: below the folder."""
    return not _is_hidden(path) and (form or format_by_name(path)) is not None


def check_listable(folder: str) -> None:
    """Raises RequestError if a local folder, or a folder in it, cannot be listed. One that is not there is no error.

    Beam's local file system finds nothing in such a folder, so that its logs look as if they were not there yet.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise RequestError(
                f"input: {error.filename} cannot be listed ({reason_of(error)}); let the user who runs this read it"
            ) from None

    if not is_remote(folder):
        for _, folders, _ in os.walk(folder, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]  # see _is_log


def has_logs(folder: str, form: str | None) -> bool:
    """Returns whether a folder holds a log. form: the format of its files; None for that of their names.

    Raises RequestError if it cannot be listed, or for what is named like a log and cannot be read.
    """
    check_listable(folder)
    try:
        return bool(_logs(folder, form, _below(folder)))
    except RequestError as error:
        raise RequestError(f"input: {error}") from None


def _below(folder: str) -> dict[str, StoredFile]:
    """Returns the files in a folder and its folders, by their paths below it."""
    found = listed(join(folder, "**"))
    return {_name_below(folder, match.path): match for match in found}


def _name_below(folder: str, path: str) -> str:
    return path.removeprefix(folder).replace(os.sep, "/").strip("/")


def partition_of(path: str) -> tuple[tuple[str, str | None], ...]:
    """Returns the columns that folders `name=value` state, as Hive and Spark write them."""
    folders = [part.partition("=") for part in path.replace(os.sep, "/").split("/")[:-1]]
    return tuple(
        (unquote(name), None if value == _NO_VALUE else unquote(value, errors="surrogateescape"))
        for name, equals, value in folders
        if equals
    )


def inspect(files: Sequence[InputFile], source: Columns) -> tuple[int, dict[str, str]]:
    """Returns the total number of rows, and the type of each column's values, from the files' footers or first rows.

    Raises RequestError if a file lacks a column, or has a column of another type than the first file.
    """
    footers = _each(lambda file: _inspected(file.log, source), files, [file.log for file in files])
    kinds = kinds_of((file.path, footer.column_types) for file, footer in zip(files, footers, strict=True))
    return sum(footer.rows for footer in footers), kinds


def times_notice(request: ReleaseRequest, files: Sequence[InputFile], columns: Columns) -> tuple[str, str] | None:
    """Returns how times without a zone are read, and what to do if that is wrong, see `times_text`.

    None if no column's type allows such times, no option needs a time zone, or it is UTC, which is no conversion.
    files: none for the elements of a pipeline, whose types are known only when it runs.
    """
    if not request.reads_local_times() or request.time_zone == UTC:
        return None
    if files and not any(_inspected(file.log, columns).may_lack_zones for file in files):
        return None
    return times_text(request.time_zone)


def with_rows(files: Sequence[InputFile], columns: Columns | None = None) -> list[InputFile]:
    """Returns the files that are not empty. Raises DataError if a file cannot be read.

    columns: that the job reads. Then `inspect` need not open the files again.
    """

    def rows_of(file: InputFile) -> int:
        if columns is not None:
            with suppress(RequestError):  # `inspect` raises it, of the files that the run reads
                if (found := _inspected(file.log, columns)).is_exact:
                    return found.rows
        return file.rows

    rows = _each(rows_of, files, [file.log for file in files])
    return [file for file, number in zip(files, rows, strict=True) if number]


def content_digests(files: Sequence[InputFile]) -> list[str]:
    """Returns the digest of each file."""
    return _each(lambda file: file.digest, files, [file.log for file in files])


def named_by_content(files: Sequence[InputFile]) -> list[LogFile]:
    """Returns the files as a pipeline reads them, named by their content, so that moving files changes no name."""
    copies: Counter[str] = Counter()
    logs = []
    for file, digest in zip(files, content_digests(files), strict=True):
        logs.append(replace(file.log, name=f"{digest} {copies[digest]}"))
        copies[digest] += 1
    return logs


def log_late_files(late: Sequence[InputFile], release_id: str) -> None:
    """Logs a warning about files that came after a release was charged, if there are any."""
    if late:
        files, are = ("1 file", "is") if len(late) == 1 else (f"{len(late)} files", "are")
        text = f"{files} came after {release_id} was charged and {are} not in it"
        log_event("late_files", f"{text} (--verbose shows their rows)", logging.WARNING, files=len(late))
        LATE_ROWS.emit(rows=sum(file.rows for file in late))


def select_input(
    secret: Secret | None, files: Sequence[InputFile], resumed: Reservation | None, columns: Columns | None = None
) -> tuple[list[InputFile], list[InputFile], list[str]]:
    """Returns the files that a run reads, those that came after its charge, and the keyed digests of the former.

    A charge holds digests of its files' content, so a run can be resumed after files were moved.

    Args:
        secret: the stored secret of a run with a ledger. None without a stored secret or without a ledger; then there
            are no digests.
        files: all that match the input now.
        resumed: the reservation of an earlier attempt; None without one.
        columns: that the job reads, see `with_rows`.
    """
    if secret is None:
        return list(files), [], []
    secret_bytes = secret.read()  # raises RequestError for a bad key
    # Empty files of all days are equal. If they were refused as used before, that would reveal that they are empty.
    filled = with_rows(files, columns)
    not_empty = {file.path for file in filled}
    empty = [file for file in files if file.path not in not_empty]
    digests = [file_digest(secret_bytes, digest) for digest in content_digests(filled)]
    if resumed is None or resumed.refusal is not None:  # refused input may have been corrected
        return list(files), [], digests
    selection = select_files(resumed.charge.files, digests)
    chosen = [*(filled[index] for index in selection.charged), *empty]
    if selection.missing or not chosen:
        return list(files), [], digests  # other input, which the ledger refuses
    return chosen, [filled[index] for index in selection.late], [digests[index] for index in selection.charged]


def content_fingerprint(files: Sequence[InputFile], columns: Columns) -> list[Any]:
    """Returns what the files hold, without names and times: their digests, and the columns that their folders state.

    A column of a partition is no part of a file's content. So without its values a renamed folder, or another table of
    the same files, would be other data under the same noise.
    """
    names, found = set(columns.names()), list[Any]()
    for file, digest in zip(files, content_digests(files), strict=True):
        stated = [[name, value] for name, value in file.log.partition if name in names]
        found.append([digest, stated] if stated else digest)
    return sorted(found, key=json.dumps)
