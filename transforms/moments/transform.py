"""Moments on Beam: files are read once, then users report bits in stages, or a trusted curator adds up their values."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

import apache_beam as beam
import numpy as np
import pyarrow as pa

from sfumato.transforms.inputs.log_file import FileSlice
from sfumato.transforms.inputs.log_reader import read_batches, read_bundle
from sfumato.transforms.locations.read import AdmitUsers, BoundGroups, ReadLogs, RowCounts, count_other_days
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.moments.central.bernstein_sums import ExactSums
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.client_values import (
    EncodedValues,
    Values,
    pack,
    row_blocks,
    split_by_user,
    unpack,
    user_blocks,
)
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.local.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.local.tally import (
    Query,
    RandomisedResponse,
    Tally,
    check_queries,
    check_reports,
    count_reports,
    queried_clients,
)
from sfumato.transforms.observability.logs import ROUND
from sfumato.transforms.observability.metrics import REPORTED_BITS, TALLY_TIME
from sfumato.transforms.privacy.admission import Admit, UserCounts
from sfumato.transforms.privacy.keys import RunKey

Plan = TypeVar("Plan", MomentsPlan, CentralMomentsPlan)


@dataclass(frozen=True)
class _UserValues:
    """Values of users, as (user group, stored records); where rows are users, as (0, a stored block of them)."""

    values: Values
    key: RunKey
    spill: Spill

    def encode(self, parts: Sequence[FileSlice]) -> Iterator[tuple[RowCounts, Iterable[tuple[int, bytes]]]]:
        for name, batch in self._batches(parts):
            encoded = self.values.encode(batch, self.key)
            yield RowCounts(encoded.rows, encoded.dropped, encoded.clamped), self._elements(name, encoded)

    def _batches(self, parts: Sequence[FileSlice]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields batches. Where a row is a user, each has a name that is unique and the same when Beam retries.

        The name keys the random draws of the rows. So the batches of small files are not joined there.
        """
        columns = self.values.columns
        if columns.user_id is not None:
            yield from (("", batch) for batch in read_bundle(parts, columns, count_other_days))
            return
        for part in parts:
            rows = 0
            for batch in read_batches(part, columns, count_other_days):
                yield f"{part.file.name or part.file.path}:{part.stream}{part.first}:{rows}", batch
                rows += batch.num_rows

    def _elements(self, name: str, encoded: EncodedValues) -> Iterator[tuple[int, bytes]]:
        if encoded.users is not None:
            yield from split_by_user(encoded, self.spill)
            return
        for block in row_blocks(encoded, name, self.key):
            yield 0, pack(block, self.spill)

    def bound(self, records: list[bytes]) -> Iterator[tuple[int, bytes]]:
        """The records of a user group -> stored blocks with one client a user, each with its number of clients."""
        for block in user_blocks(records, self.values, self.key):
            yield len(block), pack(block, self.spill)


class _UserMoments(beam.PTransform, Generic[Plan]):
    """Base of transforms from paths of logs to moments. One record of each user counts, or each row is a user.

    Args:
        values: encodes batches. Without a column of user ids, each row is a user.
        plan: the statistics and their privacy. It binds the key, with the columns and the groups: queries for other
            bits with the same randomised response would reveal more than one bit of a client.
        key: of the run; use each key for one input, once.
        grouping: the groups; None for all users together.
        spill: a folder for blocks between stages (see Spill).
        admit: decides from noisy counts of users whether the run goes on.

    Raises:
        DataError: when the pipeline runs. A file is damaged.
        NotAdmittedError: see Admit.
    """

    def __init__(
        self,
        values: Values,
        plan: Plan,
        key: RunKey,
        grouping: Grouping | None = None,
        *,
        spill: Spill | str | None = None,
        admit: Admit | None = None,
    ):
        super().__init__()
        groups = None if grouping is None else [grouping.stated(), list(grouping.groups.names())]
        self._key = key.narrowed({**plan.stated(), "columns": asdict(values.columns), "groups": groups})
        self._values, self._grouping = values, grouping
        self._plan: Plan = plan
        self._rows = 1 if grouping is None else grouping.tally_rows
        self._spill = Spill.of(spill)
        self._admit = admit or Admit(plan.admission())

    def read(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        """Returns stored blocks with one client a user, and the NoisyUserCounts once the run is admitted."""
        users_of = _UserValues(self._values, self._key, self._spill)
        # PCollection[tuple[UserGroup, Chunk]], PCollection[RowCounts]
        records, rows = paths | "Read" >> ReadLogs(users_of)
        if self._values.columns.user_id is None:
            # The reshuffle keeps the blocks, so that no later stage reads the files again.
            blocks = records | "Blocks" >> beam.Values() | "KeepBlocks" >> beam.Reshuffle()  # PCollection[bytes]
            users = rows | "RowsAreUsers" >> beam.Map(_rows_as_users)  # PCollection[UserCounts]
        else:
            # PCollection[bytes], PCollection[UserCounts]
            blocks, users = records | "BoundUsers" >> BoundGroups(users_of.bound)
        # PCollection[NoisyUserCounts]
        return blocks, (users, rows) | "AdmitUsers" >> AdmitUsers(self._admit, self._key)


def _rows_as_users(rows: RowCounts) -> UserCounts:
    unusable = sum(rows.dropped)
    return UserCounts(rows.rows - unusable, unusable)


def _side(singleton: beam.PCollection) -> beam.pvalue.AsSingleton:
    return beam.pvalue.AsSingleton(singleton)


class PushBits(_UserMoments[MomentsPlan]):
    """Paths of logs -> one MomentsState after all stages, which may be published.

    Each stage of queries reads all blocks of clients, and earlier tallies set the queries (paper 002); see protocol.py.
    """

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        reporting = self._plan.response, self._rows, self._key
        blocks, admitted = self.read(paths)  # PCollection[stored Block], PCollection[NoisyUserCounts]
        plan = self._plan
        state = admitted | "Start" >> beam.Map(lambda admission: MomentsState(plan, users=admission.users))
        for number in range(len(self._plan.stages)):
            # One worker plans for all: floating-point results may differ between machines.
            queries = state | f"Plan{number}" >> beam.Map(self._plan.next_queries)  # PCollection[list[Query]]
            tallies = (
                blocks
                # PCollection[list[Tally]], of the clients of a block, a tally for each query
                | f"TallyBlocks{number}" >> beam.Map(_tally_block, _side(queries), *reporting)
                | f"SumTallies{number}" >> beam.CombineGlobally(SumTallies())
            )  # PCollection[list[Tally]]
            # PCollection[MomentsState]
            state = state | f"AddNoise{number}" >> beam.Map(self._add_noise, _side(queries), _side(tallies))
        return state

    def _add_noise(self, state: MomentsState, queries: list[Query], exact: list[Tally]) -> MomentsState:
        """Adds a stage with noise on its tallies: from here on they are public."""
        check_queries([*(query for query, _ in state.tallies), *queries])
        if not exact:
            # There are no blocks, because no user has a usable value. Only noisy counts may show that: noise on zeros.
            exact = [Tally(*np.zeros((2, self._rows, len(query.quantity.slots)), np.int64)) for query in queries]
        tallies = self._plan.protect(queries, exact, self._key)
        for query, tally in zip(queries, tallies, strict=True):
            reported = int(tally.reports.sum())
            clients = reported / self._plan.bits_per_client
            ROUND.emit(quantity=query.quantity.kind, round=query.round, clients=clients, reports=reported)
        return state.advance(queries, tallies)


def _tally_block(
    stored: bytes, queries: list[Query], response: RandomisedResponse, rows: int, key: RunKey
) -> list[Tally]:
    """The reports of a stored block's clients, one Tally a query."""
    block = unpack(stored)
    with TALLY_TIME.timed():
        tallies = [count_reports(block, query, rows, response, key) for query in queries]
    for query, tally in zip(queries, tallies, strict=True):
        check_reports(response, len(block.codes[queried_clients(block, query)]), int(tally.reports.sum()))
    REPORTED_BITS.add(sum(int(tally.reports.sum()) for tally in tallies))
    return tallies


class SumTallies(beam.CombineFn):
    """Lists of Tallies, one for each query of a stage -> the list of their sums; an empty list without any input."""

    def create_accumulator(self) -> list[Tally]:
        return []

    def add_input(self, accumulator: list[Tally], element: list[Tally]) -> list[Tally]:
        if not accumulator:
            return [Tally(tally.ones.copy(), tally.zeros.copy()) for tally in element]
        for total, tally in zip(accumulator, element, strict=True):
            total.add(tally)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Tally]]) -> list[Tally]:
        return functools.reduce(self.add_input, filter(None, accumulators), self.create_accumulator())

    def extract_output(self, accumulator: list[Tally]) -> list[Tally]:
        return accumulator


class SumMoments(_UserMoments[CentralMomentsPlan]):
    """Paths of logs -> one CentralSums, which may be published: the range, if it is to be found, then the sums over it.

    values: without a form. Each result gets its noise once.
    """

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        plan, key = self._plan, self._key
        blocks, admitted = self.read(paths)
        if plan.finds_range:
            magnitudes = (
                blocks
                | "Magnitudes" >> beam.Map(lambda stored: plan.count_magnitudes(unpack(stored).codes))
                | "SumMagnitudes" >> beam.CombineGlobally(plan.sum_magnitudes)
            )  # PCollection[int64[columns, BINS]]
            ranged = admitted | "Range" >> beam.Map(
                lambda _, counts: plan.choose_range(counts, key), _side(magnitudes)
            )  # PCollection[CentralSums]
        else:
            ranged = admitted | "Range" >> beam.Map(lambda _: plan.choose_range(None, key))
        exact = (
            blocks
            | "Sum" >> beam.Map(_sum_block, _side(ranged), self._rows)  # PCollection[ExactSums]
            | "SumBlocks" >> beam.CombineGlobally(ExactSums.zeros(self._rows, plan.degrees).total)
        )  # PCollection[ExactSums]
        # PCollection[CentralSums], with noise: published from here on
        return ranged | "AddNoise" >> beam.Map(lambda state, sums: state.release(sums, key), _side(exact))


def _sum_block(stored: bytes, ranged: CentralSums, rows: int) -> ExactSums:
    with TALLY_TIME.timed():
        return ranged.plan.exact_sums(unpack(stored), ranged.spans, rows)
