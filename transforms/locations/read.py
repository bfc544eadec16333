"""Counts the rows of logs as they are read, slice by slice. `ReadLocations` reads and encodes locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam import typehints

from sfumato.schemas.locations import DROP_REASONS, LocationColumns
from sfumato.schemas.region import Locator
from sfumato.transforms import beam_caches, beam_patch  # noqa: F401
from sfumato.transforms.inputs.log_file import FileSlice
from sfumato.transforms.inputs.log_reader import read_bundle, slice_bundle
from sfumato.transforms.locations.asked_users import AskedUsers
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import UserGroups
from sfumato.transforms.logs import READ_COUNTS, READ_FILE
from sfumato.transforms.metrics import (
    CLAMPED_ROWS,
    DROPPED_ROWS,
    EARLIER_DAYS_ROWS,
    LATER_DAYS_ROWS,
    READ_FILES,
    READ_ROWS,
    SLICE_READ,
    SLICE_ROWS,
    Stopwatch,
)
from sfumato.transforms.privacy.keys import RunKey

ROW_COUNTS = "row_counts"  # tag of the output with row counts


@dataclass(frozen=True)
class RowCounts:
    """Exact numbers of rows. They are not published.

    Attributes:
        rows: rows read.
        dropped: rows dropped, one number for each reason of DROP_REASONS.
        clamped: rows whose value was moved to an end of its range.
    """

    rows: int = 0
    dropped: tuple[int, ...] = (0,) * len(DROP_REASONS)
    clamped: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        dropped = tuple(a + b for a, b in zip(self.dropped, other.dropped, strict=True))
        clamped = self.clamped + other.clamped
        return RowCounts(self.rows + other.rows, dropped, clamped)

    def report(self, parts: Sequence[FileSlice], stopwatch: Stopwatch) -> None:
        """Adds the counts of a bundle of slices to the job's metrics, and logs each file after its last slice.

        Args:
            parts: the slices.
            stopwatch: the time of reading and encoding them.
        """
        READ_ROWS.add(self.rows)
        SLICE_ROWS.record(self.rows)
        SLICE_READ.record(stopwatch.milliseconds)
        for reason, number in zip(DROP_REASONS, self.dropped, strict=True):
            DROPPED_ROWS[reason].add(number)
        CLAMPED_ROWS.add(self.clamped)
        for part in parts:
            if part.is_last:
                READ_FILES.add()
                READ_FILE.emit(file=part.path)

    @property
    def nobody(self) -> int:
        """Users without an id: 1 if any row has none, else 0.

        All of these rows may be one user's. If each counted as a user, that user would change a
        count by the number of their rows, under noise for one.
        """
        return min(self.dropped[DROP_REASONS.index("null_user_id")], 1)

    def emit(self) -> None:
        """Logs the counts as a raw event, for the operator alone."""
        dropped = {reason: number for reason, number in zip(DROP_REASONS, self.dropped, strict=True) if number}
        READ_COUNTS.emit(rows=self.rows, dropped=dropped, clamped=self.clamped)


def count_other_days(earlier: int, later: int) -> None:
    """Adds rows of other days than those that are read to the job's metrics."""
    EARLIER_DAYS_ROWS.add(earlier)
    LATER_DAYS_ROWS.add(later)


def sum_row_counts(counts: Iterable[RowCounts]) -> RowCounts:
    """Adds up row counts; a function for `beam.CombineGlobally`."""
    return sum(counts, start=RowCounts())


@typehints.with_input_types(tuple[FileSlice, ...])
@typehints.with_output_types(tuple[int, bytes])
class _EncodeSliceFn(beam.DoFn):
    def __init__(
        self, columns: LocationColumns, locator: Locator, run_key: RunKey, spill: Spill, asked: AskedUsers | None
    ):
        self._columns = columns
        self._locator = locator
        self._run_key = run_key
        self._spill = spill
        self._asked = asked

    def process(self, parts: tuple[FileSlice, ...]) -> Iterator[Any]:
        user_key = self._run_key.subkey("users")
        counts, stopwatch, groups = RowCounts(), Stopwatch(), UserGroups(self._spill)
        for batch in stopwatch.over(read_bundle(parts, self._columns, count_other_days)):
            with stopwatch:
                if self._asked is not None:
                    batch = self._asked.only(batch, self._columns)
                encoded = encode_locations(batch, self._columns, self._locator, user_key)
                groups.add(encoded)
            counts += RowCounts(encoded.rows, encoded.dropped)
            if groups.is_full:
                yield from groups.chunks()
        yield from groups.chunks()
        counts.report(parts, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


class ReadLocations(beam.PTransform):
    """Paths of logs, LogFiles or bundles of them -> (user group, chunk) of `UserGroups`, and RowCounts.

    When the pipeline runs it raises DataError with the path of a file that is damaged, has changed or lacks a column.
    asked: the users whose rows are read; None reads all.
    """

    def __init__(
        self,
        columns: LocationColumns,
        locator: Locator,
        run_key: RunKey,
        spill: Spill,
        asked: AskedUsers | None = None,
    ):
        super().__init__()
        self._encode = _EncodeSliceFn(columns, locator, run_key, spill, asked)

    def expand(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        encoded = (
            paths
            | "Slice" >> beam.FlatMap(slice_bundle)  # FileSlices
            | "SpreadSlices" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(self._encode).with_outputs(ROW_COUNTS, main="chunks")
        )
        return encoded.chunks, encoded[ROW_COUNTS]
