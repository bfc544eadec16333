"""A job's input files before any record is read: names, sizes, footers, digests."""

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
    """A file as it was found.

    Attributes:
        path: local or in a bucket.
        size: in bytes.
        changed: time of the last change, in seconds since 1970; 0 if unknown.
        version: see `file_version`.
    """

    path: str
    size: int
    changed: float
    version: str

    @cached_property
    def digest(self) -> str:
        """See `content_digest`."""
        return content_digest(self.path)

    @cached_property
    def rows(self) -> int:
        """Number of rows, by its footer."""
        return count_rows(self.path)

    @property
    def log(self) -> LogFile:
        """The file as a pipeline reads it: the pipeline refuses another version."""
        return LogFile(self.path, self.version)


def match_files(pattern: str) -> list[InputFile]:
    """Every file that matches, sorted by path. Raises RequestError if there is none."""
    try:
        matches = matching(pattern)
    except RequestError as error:
        raise RequestError(f"input: {error}") from None
    for match in matches:
        if os.path.isdir(match.path):
            raise RequestError(f"input: {match.path} is a folder; give '{match.path}/*.parquet'")
    if not matches:
        raise RequestError(f"input: no file matches {pattern!r}")
    with ThreadPoolExecutor(16) as pool:
        try:
            versions = list(pool.map(file_version, [match.path for match in matches]))
        except OSError as error:
            raise RequestError(f"input: {error}") from None
    files = [
        InputFile(match.path, match.size_in_bytes, match.last_updated_in_seconds or 0.0, version)
        for match, version in zip(matches, versions, strict=True)
    ]
    return sorted(files, key=lambda file: file.path)


def inspect(files: Sequence[InputFile], source: Columns) -> tuple[int, dict[str, str]]:
    """The total number of rows, and the type of each column's values, from the files' footers.

    Raises RequestError if a file lacks a column, or has a column of another type than the first file.
    """
    with ThreadPoolExecutor(16) as pool:
        footers = list(pool.map(lambda file: inspect_file(file.path, source), files))
    column_types = footers[0].column_types
    for file, footer in zip(files, footers, strict=True):
        for column, column_type in footer.column_types.items():
            if column_type != column_types[column]:
                raise RequestError(
                    f"column {column!r} holds {column_types[column]} in {files[0].path} and {column_type} in "
                    f"{file.path}; what is in both would count twice, so convert one type to the other"
                )
    return sum(footer.rows for footer in footers), column_types


def with_rows(files: Sequence[InputFile]) -> list[InputFile]:
    """The files that are not empty, by their footers. Raises DataError if a footer cannot be read."""
    with ThreadPoolExecutor(16) as pool:
        return [file for file, rows in zip(files, pool.map(lambda file: file.rows, files), strict=True) if rows]


def content_digests(files: Sequence[InputFile]) -> list[str]:
    """The digest of each file."""
    with ThreadPoolExecutor(8) as pool:  # hashing releases the interpreter's lock
        return list(pool.map(lambda file: file.digest, files))
