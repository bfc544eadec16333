"""Bit pushing on Beam: every round is a stage over blocks of clients, steered by what the earlier rounds told."""

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
from sfumato.transforms.moments.protocol import MomentsPlan, Progress
from sfumato.transforms.moments.tally import Ask, Tally, asked_of, tally
from sfumato.transforms.moments.value_encoding import Values, pack, row_blocks, split_by_user, unpack, user_blocks
from sfumato.transforms.privacy.admission import Admit, UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey

_USERS = "users"


@typehints.with_input_types(FileSlice)
@typehints.with_output_types(tuple[int, bytes])
class _EncodeSliceFn(beam.DoFn):
    """A slice -> (user group, its records, stored), or where rows are users (0, a block of them, stored)."""

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
                name = f"{part.file.name or part.path}:{part.row_groups[0]}:{counts.rows}"
                for block in row_blocks(encoded, name, self._key):
                    yield 0, pack(block, self._spill)
            else:
                yield from split_by_user(encoded, self._spill)
            counts += RowCounts.from_batch(encoded.rows, encoded.text_ids, encoded.dropped, encoded.clamped)
        counts.report(part, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


@typehints.with_input_types(tuple[int, Iterable[bytes]])
class _OneEachFn(beam.DoFn):
    """(user group, records) -> blocks of one client a user, stored; apart from them the group's UserCounts."""

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
    """Lists of Tallies, one for each question of a stage -> the list of their sums; nothing of nothing."""

    def create_accumulator(self) -> list[Tally]:
        return []

    def add_input(self, accumulator: list[Tally], element: list[Tally]) -> list[Tally]:
        if not accumulator:
            return [one.copy() for one in element]
        for total, one in zip(accumulator, element, strict=True):
            total.add(one)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Tally]]) -> list[Tally]:
        total = self.create_accumulator()
        for one in accumulators:
            total = self.add_input(total, one) if one else total
        return total

    def extract_output(self, accumulator: list[Tally]) -> list[Tally]:
        return accumulator


class PushBits(beam.PTransform):
    """Paths of Parquet files -> a singleton Progress, all of whose rounds are over: what may be published.

    One record of each user counts, or each row is a user's. cap: bits that a client may tell. spill: a place
    for blocks between stages, see Spill. admit: decides whether the run goes on.
    Raises DataError for damaged files, and NotAdmittedError (see Admit).
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
            kind: [one.weight.tolist(), one.mean.tolist(), one.stddev.tolist()] for kind, one in plan.prior.items()
        }
        asked = {name: value for name, value in vars(plan).items() if name in plan.__dataclass_fields__}
        metadata = {**asked, "prior": prior, "form": asdict(plan.form), "tuning": asdict(plan.tuning)}
        metadata["statistics"] = [one.name for one in plan.statistics]
        metadata["columns"] = asdict(values.columns)
        metadata["groups"] = None if grouping is None else [asdict(grouping), list(grouping.groups.names())]
        # The same clients asked for other bits under the same coins would tell more than one bit each.
        self._key = key.narrowed(metadata)
        self._values = values
        self._plan = plan
        self._grouping = grouping
        self._meter = PrivacyMeter(plan.told, plan.bits_per_client if cap is None else cap)
        self._spill = Spill(spill)
        self._admit = admit or Admit(plan.admission())

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        blocks, rows, users = self._blocks(paths)
        progress = (
            paths.pipeline
            | "Begin" >> beam.Create([None])
            | "Admit" >> beam.Map(self._begin, _side(rows), _side(users))  # Progress
        )
        for number in range(len(self._plan.stages)):
            # Settled once, so that all workers ask the same, and that what each needs of earlier rounds is small.
            asks = progress | f"Plan{number}" >> beam.Map(self._plan.asks)
            told = (
                blocks
                | f"Ask{number}" >> beam.ParDo(_AskFn(self._meter, self._grouping, self._key), _side(asks))
                | f"Tally{number}" >> beam.CombineGlobally(SumTallies())
            )
            progress = progress | f"Settle{number}" >> beam.Map(self._settle, _side(asks), _side(told))
        return progress

    def _blocks(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection, beam.PCollection]:
        """Stored blocks, RowCounts of all files, UserCounts."""
        values, key, spill = self._values, self._key, self._spill
        encoded = (
            paths
            | "Slice" >> beam.FlatMap(slice_file)  # FileSlice
            | "SpreadSlices" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(_EncodeSliceFn(values, key, spill)).with_outputs(ROW_COUNTS, main="records")
        )

        rows = encoded[ROW_COUNTS] | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)
        if values.columns.user_id is None:
            # So that no later stage reads the files again.
            blocks = encoded.records | "Blocks" >> beam.Values() | "KeepBlocks" >> beam.Reshuffle()
            return blocks, rows, rows | "RowsAreUsers" >> beam.Map(_rows_as_users)
        bounded = (
            encoded.records
            | "MeetUsers" >> beam.GroupByKey()  # (user group, records)
            | "OneEach" >> beam.ParDo(_OneEachFn(values, key, spill)).with_outputs(_USERS, main="blocks")
        )
        without_id = rows | "WithoutId" >> beam.Map(lambda counts: UserCounts(unusable=counts.without_id))
        users = (bounded[_USERS], without_id) | beam.Flatten() | "Users" >> beam.CombineGlobally(sum_user_counts)
        return bounded.blocks, rows, users

    def _begin(self, _: None, rows: RowCounts, counts: UserCounts) -> Progress:
        rows.emit()
        admission = self._admit(counts, self._key)
        COUNTED_USERS.emit(users=admission.users, epsilon=admission.epsilon, noise_stddev=admission.noise_stddev)
        return Progress()

    def _settle(self, progress: Progress, asks: list[Ask], told: list[Tally]) -> Progress:
        """Adds a stage, with the noise that protects it: from here on all is public."""
        self._meter.check_asks([*(ask for ask, _ in progress.rounds), *asks])
        if not told:  # nobody has a usable value, which noisy counts alone may tell
            groups = 1 if self._grouping is None else len(self._grouping.groups) + 1
            told = [Tally(*np.zeros((2, groups, len(ask.quantity.slots)), np.int64)) for ask in asks]
        told = self._plan.protected(asks, told, self._key)
        for ask, one in zip(asks, told, strict=True):
            reported = int(one.reports.sum())
            clients = reported / self._plan.bits_per_client
            ROUND.emit(quantity=ask.quantity.kind, round=ask.round, clients=clients, reports=reported)
        return progress.after(asks, told)


def _side(one: beam.PCollection) -> beam.pvalue.AsSingleton:
    return beam.pvalue.AsSingleton(one)


class _AskFn(beam.DoFn):
    """A stored block and the questions of a stage -> what its clients tell, a Tally a question."""

    def __init__(self, meter: PrivacyMeter, grouping: Grouping | None, key: RunKey):
        self._meter = meter
        self._groups = 1 if grouping is None else len(grouping.groups) + 1
        self._key = key

    def process(self, stored: bytes, asks: list[Ask]) -> Iterator[list[Tally]]:
        block = unpack(stored)
        with TALLY_TIME.timed():
            told = [tally(block, ask, self._groups, self._meter.told, self._key) for ask in asks]
        for ask, one in zip(asks, told, strict=True):
            self._meter.check(len(block.codes[asked_of(block, ask)]), int(one.reports.sum()))
        REPORTED_BITS.add(sum(int(one.reports.sum()) for one in told))
        yield told
