"""The values of users on Beam: files are read once, one record of each user counts, noisy counts admit the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam import typehints

from sfumato.schemas.locations import Columns
from sfumato.transforms.inputs.log_file import FileSlice
from sfumato.transforms.inputs.log_reader import read_batches, read_bundle, slice_bundle
from sfumato.transforms.locations.read import ROW_COUNTS, RowCounts, count_other_days, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import count_unusable, split_unusable
from sfumato.transforms.logs import COUNTED_USERS
from sfumato.transforms.metrics import Stopwatch
from sfumato.transforms.moments.value_encoding import Values, pack, row_blocks, split_by_user, user_blocks
from sfumato.transforms.privacy.admission import Admit, NoisyUserCounts, UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey

_USERS = "users"


@typehints.with_input_types(tuple[FileSlice, ...])
@typehints.with_output_types(tuple[int, bytes])
class _EncodeSliceFn(beam.DoFn):
    """A bundle of slices -> (user group, its stored records), or where rows are users (0, a stored block of them)."""

    def __init__(self, values: Values, key: RunKey, spill: Spill):
        self._values = values
        self._key = key
        self._spill = spill

    def process(self, parts: tuple[FileSlice, ...]) -> Iterator[Any]:
        counts, stopwatch, columns = RowCounts(), Stopwatch(), self._values.columns
        if columns.user_id is None:  # a user is a row of a file, so each file has batches of its own
            batches = _numbered_batches(parts, columns)
        else:
            batches = (("", batch) for batch in read_bundle(parts, columns, count_other_days))
        for name, batch in stopwatch.over(batches):
            with stopwatch:
                encoded = self._values.encode(batch, self._key)
            if encoded.users is None:
                for block in row_blocks(encoded, name, self._key):
                    yield 0, pack(block, self._spill)
            else:
                yield from split_by_user(encoded, self._spill)
            counts += RowCounts(encoded.rows, encoded.dropped, encoded.clamped)
        counts.report(parts, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


def _numbered_batches(parts: Sequence[FileSlice], columns: Columns) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batches of slices, each with a name for the random draws: unique, and the same when Beam retries."""
    for part in parts:
        rows = 0
        for batch in read_batches(part, columns, count_other_days):
            yield f"{part.file.name or part.path}:{part.stream}{part.first}:{rows}", batch
            rows += batch.num_rows


@typehints.with_input_types(tuple[int, Iterable[bytes]])
class _OneRecordPerUserFn(beam.DoFn):
    """(user group, stored records) -> stored blocks with one client a user; as a side output the group's UserCounts."""

    def __init__(self, values: Values, key: RunKey, spill: Spill):
        self._values = values
        self._key = key
        self._spill = spill

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
        records, unusable = split_unusable(element[1])
        users, without_record = 0, count_unusable(records, unusable)
        if records:
            for block in user_blocks(records, self._values, self._key):
                users += len(block)
                yield pack(block, self._spill)
        yield beam.pvalue.TaggedOutput(_USERS, UserCounts(users, without_record))


def _rows_as_users(rows: RowCounts) -> UserCounts:
    unusable = sum(rows.dropped)
    return UserCounts(rows.rows - unusable, unusable)


def read_user_values(
    paths: beam.PCollection, values: Values, key: RunKey, spill: Spill, admit: Admit
) -> tuple[beam.PCollection, beam.PCollection]:
    """Paths of logs -> (stored blocks with one client a user, NoisyUserCounts once the run is admitted).

    Without a column of user ids, each row is a user.

    Raises:
        DataError: a file is damaged.
        NotAdmittedError: see Admit.
    """
    encoded = (
        paths
        | "Slice" >> beam.FlatMap(slice_bundle)  # FileSlices
        | "SpreadSlices" >> beam.Reshuffle()
        | "Encode" >> beam.ParDo(_EncodeSliceFn(values, key, spill)).with_outputs(ROW_COUNTS, main="records")
    )
    rows = encoded[ROW_COUNTS] | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)
    if values.columns.user_id is None:
        # The reshuffle keeps the blocks, so that no later stage reads the files again.
        blocks = encoded.records | "Blocks" >> beam.Values() | "KeepBlocks" >> beam.Reshuffle()
        users = rows | "RowsAreUsers" >> beam.Map(_rows_as_users)
    else:
        bounded = (
            encoded.records
            | "GroupUsers" >> beam.GroupByKey()  # (user group, records)
            | "OneRecordPerUser"
            >> beam.ParDo(_OneRecordPerUserFn(values, key, spill)).with_outputs(_USERS, main="blocks")
        )
        blocks = bounded.blocks
        nobody = rows | "Nobody" >> beam.Map(lambda counts: UserCounts(unusable=counts.nobody))
        users = (bounded[_USERS], nobody) | beam.Flatten() | "Users" >> beam.CombineGlobally(sum_user_counts)
    admitted = (
        paths.pipeline
        | "Begin" >> beam.Create([None])
        | "Admit" >> beam.Map(_admit, beam.pvalue.AsSingleton(rows), beam.pvalue.AsSingleton(users), admit, key)
    )
    return blocks, admitted


def _admit(_: None, rows: RowCounts, counts: UserCounts, admit: Admit, key: RunKey) -> NoisyUserCounts:
    rows.emit()
    admission = admit(counts, key)
    COUNTED_USERS.emit(users=admission.users, epsilon=admission.epsilon, noise_stddev=admission.noise_stddev)
    return admission
