"""Bit pushing on Beam (paper 002): each stage of queries reads all blocks of clients; earlier tallies set the queries.

See protocol.py for queries, rounds and stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam import typehints

from sfumato.transforms.locations.read import ROW_COUNTS, FileSlice, RowCounts, read_batches, slice_file, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import count_unusable, split_unusable
from sfumato.transforms.logs import COUNTED_USERS, ROUND
from sfumato.transforms.metrics import REPORTED_BITS, TALLY_TIME, Stopwatch
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.privacy_meter import PrivacyMeter
from sfumato.transforms.moments.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.tally import Query, Tally, count_reports, queried_clients
from sfumato.transforms.moments.value_encoding import Values, pack, row_blocks, split_by_user, unpack, user_blocks
from sfumato.transforms.privacy.admission import Admit, UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey

_USERS = "users"


@typehints.with_input_types(FileSlice)
@typehints.with_output_types(tuple[int, bytes])
class _EncodeSliceFn(beam.DoFn):
    """A slice -> (user group, its stored records), or where rows are users (0, a stored block of them)."""

    def __init__(self, values: Values, key: RunKey, spill: Spill):
        self._values = values
        self._key = key
        self._spill = spill

    def process(self, part: FileSlice) -> Iterator[Any]:
        counts, stopwatch = RowCounts(), Stopwatch()
        for batch in stopwatch.over(read_batches(part, self._values.columns)):
            with stopwatch:
                encoded = self._values.encode(batch, self._key)
            if encoded.users is None:
                # Identifies the block for the random draws: unique, and the same when Beam retries.
                name = f"{part.file.name or part.path}:{part.row_groups[0]}:{counts.rows}"
                for block in row_blocks(encoded, name, self._key):
                    yield 0, pack(block, self._spill)
            else:
                yield from split_by_user(encoded, self._spill)
            counts += RowCounts.from_batch(encoded.rows, encoded.text_ids, encoded.dropped, encoded.clamped)
        counts.report(part, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


@typehints.with_input_types(tuple[int, Iterable[bytes]])
class _OneRecordPerUserFn(beam.DoFn):
    """(user group, stored records) -> stored blocks with one client a user; as a side output the group's UserCounts."""

    def __init__(self, values: Values, key: RunKey, spill: Spill):
        self._values = values
        self._key = key
        self._spill = spill

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
        records, unusable = split_unusable(element[1])
        users = 0
        if records:
            for block in user_blocks(records, self._values, self._key):
                users += len(block)
                yield pack(block, self._spill)
        yield beam.pvalue.TaggedOutput(_USERS, UserCounts(users, count_unusable(records, unusable)))


def _rows_as_users(rows: RowCounts) -> UserCounts:
    unusable = sum(rows.dropped)
    return UserCounts(rows.rows - unusable, unusable)


class SumTallies(beam.CombineFn):
    """Lists of Tallies, one for each query of a stage -> the list of their sums; an empty list without any input."""

    def create_accumulator(self) -> list[Tally]:
        return []

    def add_input(self, accumulator: list[Tally], element: list[Tally]) -> list[Tally]:
        if not accumulator:
            return [tally.copy() for tally in element]
        for total, tally in zip(accumulator, element, strict=True):
            total.add(tally)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Tally]]) -> list[Tally]:
        total = self.create_accumulator()
        for tallies in accumulators:
            total = self.add_input(total, tallies) if tallies else total
        return total

    def extract_output(self, accumulator: list[Tally]) -> list[Tally]:
        return accumulator


class PushBits(beam.PTransform):
    """Paths of Parquet files -> one MomentsState after all stages, which may be published.

    One record of each user counts; without a column of user ids, each row is a user.

    Args:
        values: encodes batches.
        plan: the queries and their privacy.
        key: of the run; use each key for one input, once.
        grouping: the groups; None for everybody together.
        cap: the largest number of bits that a client may report; None for the plan's number.
        spill: a folder for blocks between stages (see Spill).
        admit: decides from noisy counts of users whether the run goes on.

    Raises:
        DataError: a file is damaged.
        NotAdmittedError: see Admit.
    """

    def __init__(
        self,
        values: Values,
        plan: MomentsPlan,
        key: RunKey,
        grouping: Grouping | None = None,
        *,
        cap: int | None = None,
        spill: str | None = None,
        admit: Admit | None = None,
    ):
        super().__init__()
        prior = {
            kind: [bits.weight.tolist(), bits.mean.tolist(), bits.stddev.tolist()] for kind, bits in plan.prior.items()
        }
        fields = {name: value for name, value in vars(plan).items() if name in plan.__dataclass_fields__}
        metadata = {**fields, "prior": prior, "form": asdict(plan.form), "tuning": asdict(plan.tuning)}
        metadata["statistics"] = [statistic.name for statistic in plan.statistics]
        metadata["columns"] = asdict(values.columns)
        metadata["groups"] = None if grouping is None else [asdict(grouping), list(grouping.groups.names())]
        # Queries for other bits with the same randomised response would reveal more than one bit of a client.
        self._key = key.narrowed(metadata)
        self._values = values
        self._plan = plan
        self._grouping = grouping
        self._meter = PrivacyMeter(plan.response, plan.bits_per_client if cap is None else cap)
        self._spill = Spill(spill)
        self._admit = admit or Admit(plan.admission())

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        blocks, rows, users = self._blocks(paths)
        state = (
            paths.pipeline
            | "Begin" >> beam.Create([None])
            | "Admit" >> beam.Map(self._begin, _side(rows), _side(users))  # MomentsState
        )
        for number in range(len(self._plan.stages)):
            # One worker plans for all: floating-point results may differ between machines.
            queries = state | f"Plan{number}" >> beam.Map(self._plan.next_queries)
            tallies = (
                blocks
                | f"TallyBlocks{number}" >> beam.ParDo(_TallyFn(self._meter, self._grouping, self._key), _side(queries))
                | f"SumTallies{number}" >> beam.CombineGlobally(SumTallies())
            )
            state = state | f"AddNoise{number}" >> beam.Map(self._add_noise, _side(queries), _side(tallies))
        return state

    def _blocks(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection, beam.PCollection]:
        """(stored blocks, RowCounts of all files, UserCounts)."""
        values, key, spill = self._values, self._key, self._spill
        encoded = (
            paths
            | "Slice" >> beam.FlatMap(slice_file)  # FileSlice
            | "SpreadSlices" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(_EncodeSliceFn(values, key, spill)).with_outputs(ROW_COUNTS, main="records")
        )

        rows = encoded[ROW_COUNTS] | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)
        if values.columns.user_id is None:
            # The reshuffle keeps the blocks, so that no later stage reads the files again.
            blocks = encoded.records | "Blocks" >> beam.Values() | "KeepBlocks" >> beam.Reshuffle()
            return blocks, rows, rows | "RowsAreUsers" >> beam.Map(_rows_as_users)
        bounded = (
            encoded.records
            | "GroupUsers" >> beam.GroupByKey()  # (user group, records)
            | "OneRecordPerUser"
            >> beam.ParDo(_OneRecordPerUserFn(values, key, spill)).with_outputs(_USERS, main="blocks")
        )
        without_id = rows | "WithoutId" >> beam.Map(lambda counts: UserCounts(unusable=counts.without_id))
        users = (bounded[_USERS], without_id) | beam.Flatten() | "Users" >> beam.CombineGlobally(sum_user_counts)
        return bounded.blocks, rows, users

    def _begin(self, _: None, rows: RowCounts, counts: UserCounts) -> MomentsState:
        rows.emit()
        admission = self._admit(counts, self._key)
        COUNTED_USERS.emit(users=admission.users, epsilon=admission.epsilon, noise_stddev=admission.noise_stddev)
        return MomentsState(users=admission.users)

    def _add_noise(self, state: MomentsState, queries: list[Query], exact: list[Tally]) -> MomentsState:
        """Adds a stage with noise on its tallies: from here on they are public."""
        self._meter.check_queries([*(query for query, _ in state.tallies), *queries])
        if not exact:
            # There are no blocks, because no user has a usable value. Only noisy counts may show that: noise on zeros.
            rows = _tally_rows(self._grouping)
            exact = [Tally(*np.zeros((2, rows, len(query.quantity.slots)), np.int64)) for query in queries]
        tallies = self._plan.protect(queries, exact, self._key)
        for query, tally in zip(queries, tallies, strict=True):
            reported = int(tally.reports.sum())
            clients = reported / self._plan.bits_per_client
            ROUND.emit(quantity=query.quantity.kind, round=query.round, clients=clients, reports=reported)
        return state.advance(queries, tallies)


def _side(singleton: beam.PCollection) -> beam.pvalue.AsSingleton:
    return beam.pvalue.AsSingleton(singleton)


def _tally_rows(grouping: Grouping | None) -> int:
    return 1 if grouping is None else grouping.tally_rows


class _TallyFn(beam.DoFn):
    """A stored block and the queries of a stage -> its clients' reports, one Tally a query."""

    def __init__(self, meter: PrivacyMeter, grouping: Grouping | None, key: RunKey):
        self._meter = meter
        self._rows = _tally_rows(grouping)
        self._key = key

    def process(self, stored: bytes, queries: list[Query]) -> Iterator[list[Tally]]:
        block = unpack(stored)
        with TALLY_TIME.timed():
            tallies = [count_reports(block, query, self._rows, self._meter.response, self._key) for query in queries]
        for query, tally in zip(queries, tallies, strict=True):
            self._meter.check(len(block.codes[queried_clients(block, query)]), int(tally.reports.sum()))
        REPORTED_BITS.add(sum(int(tally.reports.sum()) for tally in tallies))
        yield tallies
