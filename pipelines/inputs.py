"""A job's input files, as far as they are known before any record is read: names, sizes, footers, digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import Columns
from sfumato.transforms.files import content_digest, file_version
from sfumato.transforms.locations.read import LogFile, count_rows, inspect_file
from sfumato.transforms.storage import matching


@dataclass(frozen=True)
class InputFile:
    """A file, its size in bytes, the time of its last change, and its version when it was found."""

    path: str
    size: int
    changed: float
    version: str

    @cached_property
    def digest(self) -> str:
        """What tells its content, wherever it lies."""
        return content_digest(self.path)

    @cached_property
    def rows(self) -> int:
        """How many rows it holds, by its footer."""
        return count_rows(self.path)

    @property
    def log(self) -> LogFile:
        """What a pipeline reads: it refuses another version."""
        return LogFile(self.path, self.version)


def match_files(pattern: str) -> list[InputFile]:
    """Every file that matches, sorted by path. Raises RequestError where none does."""
    try:
        found = matching(pattern)
    except RequestError as error:
        raise RequestError(f"input: {error}") from None
    for one in found:
        if os.path.isdir(one.path):
            raise RequestError(f"input: {one.path} is a folder; give '{one.path}/*.parquet'")
    if not found:
        raise RequestError(f"input: no file matches {pattern!r}")
    with ThreadPoolExecutor(16) as pool:
        try:
            versions = list(pool.map(file_version, [one.path for one in found]))
        except OSError as error:
            raise RequestError(f"input: {error}") from None
    files = [
        InputFile(one.path, one.size_in_bytes, one.last_updated_in_seconds or 0.0, version)
        for one, version in zip(found, versions, strict=True)
    ]
    return sorted(files, key=lambda file: file.path)


def inspect(files: Sequence[InputFile], source: Columns) -> tuple[int, dict[str, str]]:
    """The number of rows in all, and the kinds of values that columns hold, from the files' footers.

    Raises RequestError where a file lacks a column or holds another kind of values than the others.
    """
    with ThreadPoolExecutor(16) as pool:
        metadata = list(pool.map(lambda file: inspect_file(file.path, source), files))
    kinds = metadata[0].kinds
    for file, one in zip(files, metadata, strict=True):
        for column, kind in one.kinds.items():
            if kind != kinds[column]:
                raise RequestError(
                    f"column {column!r} holds {kinds[column]} in {files[0].path} and {kind} in {file.path}; what is in "
                    "both would count twice, so convert one kind to the other"
                )
    return sum(one.rows for one in metadata), kinds


def with_rows(files: Sequence[InputFile]) -> list[InputFile]:
    """The files that are not empty, by their footers, several of which are read at a time. Raises DataError."""
    with ThreadPoolExecutor(16) as pool:
        return [file for file, rows in zip(files, pool.map(lambda file: file.rows, files), strict=True) if rows]


def content_digests(files: Sequence[InputFile]) -> list[str]:
    """The digest of each file, several at a time."""
    with ThreadPoolExecutor(8) as pool:  # hashing does without the interpreter
        return list(pool.map(lambda file: file.digest, files))
