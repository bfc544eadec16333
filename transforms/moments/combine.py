"""Bit pushing on Beam: every round is a stage over blocks of clients, steered by what the earlier rounds told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam import typehints

from sfumato.schemas.errors import DataError
from sfumato.transforms.locations.read import ROW_COUNTS, FileSlice, RowCounts, read_batches, slice_file, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.logs import ASKED
from sfumato.transforms.metrics import REPORTED_BITS, TALLY_TIME, Stopwatch
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.meter import PrivacyMeter
from sfumato.transforms.moments.protocol import MomentsPlan, Progress
from sfumato.transforms.moments.tally import Ask, Tally, tally, whom
from sfumato.transforms.moments.values import Values, pack, row_blocks, split_by_user, unpack, user_blocks
from sfumato.transforms.privacy.admission import Admit
from sfumato.transforms.privacy.keys import RunKey


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
                name = f"{part.path}:{part.row_groups[0]}:{counts.rows}"
                for block in row_blocks(encoded, name, self._values.exact, self._key):
                    yield 0, pack(block, self._spill)
            else:
                yield from split_by_user(encoded, self._spill)
            counts += RowCounts.of(encoded.rows, encoded.text_ids, encoded.dropped, encoded.clamped)
        counts.report(part, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


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

    One record of each user counts, or each row is a user's. cap: bits that a client may tell. max_bad_fraction: the
    largest share of rows that may be unusable. spill: a place for blocks between stages, see Spill.
    Raises DataError for damaged files, too many unusable rows, and fewer clients than bits.
    """

    def __init__(
        self,
        values: Values,
        plan: MomentsPlan,
        key: RunKey,
        grouping: Grouping | None = None,
        *,
        cap: int | None = None,
        max_bad_fraction: float = 0.1,
        spill: str | None = None,
        admit: Admit | None = None,
    ):
        super().__init__()
        prior = {
            kind: [one.weight.tolist(), one.mean.tolist(), one.stddev.tolist()] for kind, one in plan.prior.items()
        }
        asked = {name: value for name, value in vars(plan).items() if name in plan.__dataclass_fields__}
        facts = {**asked, "prior": prior, "form": asdict(plan.form), "tuning": asdict(plan.tuning)}
        facts["statistics"] = [one.name for one in plan.statistics]
        facts["columns"] = asdict(values.columns)
        facts["groups"] = None if grouping is None else [asdict(grouping), list(grouping.groups.names())]
        # The same clients asked for other bits under the same coins would tell more than one bit each.
        self._key = key.narrowed(facts)
        self._values = values
        self._plan = plan
        self._grouping = grouping
        self._meter = PrivacyMeter(plan.told, plan.bits_per_client if cap is None else cap)
        self._max_bad_fraction = max_bad_fraction
        self._spill = Spill(spill)
        self._admit = admit

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        blocks, rows = self._blocks(paths)
        clients = blocks | "Clients" >> beam.Map(lambda stored: len(unpack(stored))) | beam.CombineGlobally(sum)
        progress = (
            paths.pipeline
            | "Begin" >> beam.Create([None])
            | "Check" >> beam.Map(self._begin, beam.pvalue.AsSingleton(rows), beam.pvalue.AsSingleton(clients))
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
        return progress | "Meter" >> beam.Map(self._metered, _side(clients))

    def _blocks(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        values, key, spill = self._values, self._key, self._spill
        encoded = (
            paths
            | "Slice" >> beam.FlatMap(slice_file)  # FileSlice
            | "SpreadSlices" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(_EncodeSliceFn(values, key, spill)).with_outputs(ROW_COUNTS, main="records")
        )

        def build(group: tuple[int, Iterable[bytes]]) -> Iterator[bytes]:
            for block in user_blocks(group[0], group[1], values, key):
                yield pack(block, spill)

        if values.columns.user_id is None:
            # So that no later stage reads the files again.
            blocks = encoded.records | "Blocks" >> beam.Values() | "KeepBlocks" >> beam.Reshuffle()
        else:
            blocks = (
                encoded.records
                | "MeetUsers" >> beam.GroupByKey()  # (user group, records)
                | "OneEach" >> beam.FlatMap(build)
            )
        return blocks, encoded[ROW_COUNTS] | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)

    def _begin(self, _: None, rows: RowCounts, clients: int) -> Progress:
        rows.tell()
        rows.check(self._max_bad_fraction)
        if self._admit is not None and self._admit.gate is not None:
            self._admit.gate.charge()
        if self._grouping is None:
            self._check_clients(clients)
            return Progress()
        return Progress(noise=self._grouping.noise_stddev(self._plan.bits_per_client) ** 2)

    def _check_clients(self, clients: float) -> None:
        bits = len(self._plan.kinds) * self._plan.form.bits
        if clients < bits:
            raise DataError(
                f"fewer clients than the {bits} bits that they are asked for; lower --bits, or ask for fewer statistics"
            )

    def _settle(self, progress: Progress, asks: list[Ask], told: list[Tally]) -> Progress:
        """Adds a stage, with the noise that protects groups: from here on all is public."""
        self._meter.check_asks([*(ask for ask, _ in progress.rounds), *asks])
        if self._grouping is not None:
            if not told:  # nobody has a usable value, which only noisy counts may tell
                shapes = [(len(self._grouping.groups) + 1, len(ask.quantity.slots)) for ask in asks]
                told = [Tally(np.zeros(shape, np.int64), np.zeros(shape, np.int64)) for shape in shapes]
            reports = self._plan.bits_per_client
            told = [
                self._grouping.protected(one, ask.name, reports, self._key) for one, ask in zip(told, asks, strict=True)
            ]
        for ask, one in zip(asks, told, strict=True):
            reported = int(one.reports.sum())
            clients = reported / self._plan.bits_per_client
            ASKED.tell(quantity=ask.quantity.kind, round=ask.round, clients=clients, reports=reported)
        return progress.after(asks, told)

    def _metered(self, progress: Progress, clients: int) -> Progress:
        """The progress, if everybody told what the release says, as far as exact counts show it."""
        if self._grouping is None:
            self._meter.check(clients, sum(int(told.reports.sum()) for _, told in progress.rounds))
        else:
            self._check_clients(float(progress.clients(self._plan).sum()))
        return progress


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
            begin, end = whom(block, ask, self._key)
            self._meter.check(end - begin, int(one.reports.sum()))
        REPORTED_BITS.add(sum(int(one.reports.sum()) for one in told))
        yield told
