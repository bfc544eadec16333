"""Counts of items on Beam: by sample and threshold (paper 004), or of all users with a trusted curator's noise.

`CountSamples` counts by groups of users; `TrieHeavyHitters` publishes from its counts.
`CountItems` counts all users in the same way, and `NoisyItems` publishes from its counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypedDict, Unpack

import apache_beam as beam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.transforms.histogram.central_counts import CentralCountPlan, NoisyLevels, count_items, noisy_levels
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import Items
from sfumato.transforms.histogram.sampling_round import WHOLE, Prefixes, Sampling, Trie, grow_trie
from sfumato.transforms.histogram.user_sample import (
    AdmissionSampler,
    Everybody,
    ItemCounts,
    RoundDraw,
    Sample,
    Sampler,
    add_counts,
    count_marked_users,
    count_rounds,
    mark_users,
    merge,
    merge_marked_users,
    split_marked_users,
    threshold_rounds,
)
from sfumato.transforms.inputs.log_file import FileSlice
from sfumato.transforms.inputs.log_reader import read_bundle
from sfumato.transforms.inputs.text_values import without_views
from sfumato.transforms.locations.encode import NULL_USER
from sfumato.transforms.locations.read import ChargeAndAdmitUsers, ReadLogs, RowCounts, count_other_days
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import by_user_group
from sfumato.transforms.observability.metrics import COUNT_TIME
from sfumato.transforms.privacy.admission import ChargeAndAdmit, NoisyUserCounts
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.user_hashes import hash_users

_COMPACT_ROWS = 1 << 20  # the fewest new records that make an accumulator merge its samples
_SUMMED_AT_ONCE = 64
_PART_BITS = 4
_ADMISSION_USERS = "admission_users"
_PartCounts = tuple[tuple[int, int], ItemCounts]  # ((round, part of the items), counts)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: neighbouring codes go to different parts


@dataclass(frozen=True)
class Rounds:
    """The counts that a job makes in each of its rounds."""

    items: Items  # encodes batches
    key: RunKey  # of the run; use each key for one input, once
    prefixes: Prefixes | None = None  # the prefix code; None if all levels are whole items
    levels: tuple[int, ...] = (WHOLE,)  # the prefix length of each round; 0 (`WHOLE`) for whole items

    def bound_key(self, use: Sampling | ItemBound) -> RunKey:
        """Returns the key for one use: the same draws at another rate, or for other items, would reveal more."""

        def stated(value: Any) -> Any:
            return [type(value).__name__, asdict(value)] if value is not None else None

        items = [type(self.items).__name__, self.items.stated()]
        bound = {"items": items, "sampling": stated(use), "prefixes": stated(self.prefixes)}
        return self.key.narrowed({"levels": self.levels, **bound})

    def sampler(self, sampling: Sampling) -> Sampler:
        return Sampler(self.bound_key(sampling), sampling, len(self.levels))


class MergeSamples(beam.CombineFn):
    """Samples -> one Sample. An accumulator is a list of Samples; those that travelled are packed bytes (see Spill)."""

    def __init__(self, spill: Spill | None = None):
        self._spill = spill or Spill()

    def create_accumulator(self) -> list[Sample | bytes]:
        return []

    def add_input(self, accumulator: list[Sample | bytes], element: Sample) -> list[Sample | bytes]:
        accumulator.append(element)
        # Checked whenever the list has doubled: many small samples cost no more than few large ones.
        new = (len(sample) for sample in accumulator[1:] if isinstance(sample, Sample))
        if len(accumulator).bit_count() == 1 and sum(new) > _COMPACT_ROWS:
            return [self.extract_output(accumulator)]
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Sample | bytes]]) -> list[Sample | bytes]:
        return [sample for accumulator in accumulators for sample in accumulator]

    def compact(self, accumulator: list[Sample | bytes]) -> list[Sample | bytes]:
        return [self.extract_output(accumulator).pack(self._spill)]

    def extract_output(self, accumulator: list[Sample | bytes]) -> Sample:
        return merge([Sample.unpack(sample) if isinstance(sample, bytes) else sample for sample in accumulator])


@dataclass(frozen=True)
class SampleEncoding:
    """Records of drawn users, as (user group, Sample), and users drawn for the admission, as TaggedOutputs."""

    items: Items
    draw: RoundDraw
    admission: AdmissionSampler | None
    samples_hold_all: bool  # whether the admission counts the users of the samples, instead of a sample of its own
    group_bits: int

    def encode(self, parts: Sequence[FileSlice]) -> Iterator[tuple[RowCounts, Iterable[Any]]]:
        for batch in read_bundle(parts, self.items.columns, count_other_days):
            yield self._encode(batch)

    def _encode(self, batch: pa.RecordBatch) -> tuple[RowCounts, Iterable[Any]]:
        admission = None if self.samples_hold_all else self.admission
        usable: list[NDArray[np.uint64]] = []

        def drawn(users: NDArray[np.uint64]) -> NDArray[np.bool_]:
            if admission is not None:
                usable.append(admission.drawn(users))
            return self.draw.drawn_in_any_round(users)

        encoded = self.items.encode(batch, self.draw.key, drawn)
        sample, unusable = encoded.sample, np.empty(0, np.uint64)
        if self.admission is not None and sum(encoded.dropped) > encoded.dropped[NULL_USER]:
            ids = without_views(batch.column(self.items.columns.user_id))
            unusable = hash_users(ids.filter(ids.is_valid()), self.draw.key.subkey("users"))
            if self.samples_hold_all:
                sample = replace(sample, unusable=np.setdiff1d(unusable, sample.users))
        admitting: Iterable[Any] = ()
        if admission is not None:
            marked = split_marked_users(mark_users(usable, admission.drawn(unusable)), self.group_bits)
            admitting = (beam.pvalue.TaggedOutput(_ADMISSION_USERS, group) for group in marked)
        counts = RowCounts(encoded.rows, encoded.dropped, encoded.clamped)
        return counts, itertools.chain(split_sample(sample, self.group_bits), admitting)


def split_sample(sample: Sample, group_bits: int) -> Iterator[tuple[int, Sample]]:
    """Splits a sample by user group, so that all of a user's records meet: (group, the group's sample)."""
    order, groups = by_user_group(sample.users, group_bits)
    for number, rows in groups:
        at = order[rows]
        items = sample.items.take(at, mode="clip")  # `clip` checks no index, and so needs no copy
        users, records = sample.users.take(at, mode="clip"), sample.records
        records = records[: len(at)] if records.strides == (0,) else records.take(at, mode="clip")  # all are 1
        texts = {code: sample.texts[code] for code in np.unique(items).tolist()} if sample.texts else {}
        yield number, Sample(users, items, records, texts)
    if len(sample.unusable):
        nobody = Sample.from_arrays(np.empty(0, np.uint64), np.empty(0, np.uint8))
        for number, users in split_marked_users(sample.unusable, group_bits):
            yield number, replace(nobody, unusable=users)


class SumCounts(beam.CombineFn):
    """ItemCounts -> their sum, without items of fewer than `min_users` sampled users."""

    def __init__(self, min_users: int):
        self._min_users = min_users

    def create_accumulator(self) -> list[ItemCounts]:
        return []

    def add_input(self, accumulator: list[ItemCounts], element: ItemCounts) -> list[ItemCounts]:
        accumulator.append(element)
        return [add_counts(accumulator)] if len(accumulator) >= _SUMMED_AT_ONCE else accumulator

    def merge_accumulators(self, accumulators: Iterable[list[ItemCounts]]) -> list[ItemCounts]:
        return [counts for accumulator in accumulators for counts in accumulator]

    def compact(self, accumulator: list[ItemCounts]) -> list[ItemCounts]:
        return [add_counts(accumulator)]

    def extract_output(self, accumulator: list[ItemCounts]) -> ItemCounts:
        counts = add_counts(accumulator)
        return counts.only(counts.counts >= self._min_users)


def split_by_item(counts: ItemCounts) -> Iterator[tuple[int, ItemCounts]]:
    """Splits counts by item into parts that different workers can add up: (part, counts)."""
    part = ((counts.items * _SPREAD) >> np.uint64(64 - _PART_BITS)).astype(np.uint8)  # multiplication wraps around
    ordered = counts.only(np.argsort(part, kind="stable"))  # a radix sort, for bytes
    ends = np.cumsum(np.bincount(part, minlength=1 << _PART_BITS)).tolist()
    for number, rows in enumerate(map(slice, [0, *ends], ends)):
        if rows.stop > rows.start:
            yield number, ordered.only(rows)


class CountOptions(TypedDict, total=False):
    """Options of CountRounds.

    admit: charges the ledger and counts the users. None charges nothing and admits every run.
    spill: a folder for bulky intermediate data, for workers that share a disk (see Spill). None: the runner holds them.
    """

    admit: ChargeAndAdmit | None
    spill: Spill | str | None


@dataclass(frozen=True, eq=False)
class CountedRounds:
    """Raw counts of every round, for a step that thresholds them, and the run's admission, None without one."""

    counts: list[ItemCounts]
    admission: NoisyUserCounts | None


Publish = Callable[[CountedRounds], Any]


class CountRounds(beam.PTransform):
    """Paths of logs -> one CountedRounds, or what `publish` makes of it.

    Raises DataError for a damaged file, RefusedError if the run is not admitted.

    Args:
        items: encodes batches.
        draw: decides whose records count.
        count: all records of a group of users -> the counts of every round.
        rounds: how many rounds `count` has.
        publish: protects the raw counts; None leaves that to the next step.
        min_users: the smallest count of a counted item; 1 keeps all items.
        options: see CountOptions.
    """

    def __init__(
        self,
        items: Items,
        draw: RoundDraw,
        count: Callable[[Sample], list[ItemCounts]],
        rounds: int,
        publish: Publish | None = None,
        min_users: int = 1,
        **options: Unpack[CountOptions],
    ):
        super().__init__()
        self._items, self._draw, self._count, self._rounds = items, draw, count, rounds
        self._publish, self._min_users = publish, min_users
        self._admit = options.get("admit")
        self._spill = Spill.of(options.get("spill"))

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        key, count_users, rounds, admit = self._draw.key, self._count, self._rounds, self._admit
        publish = self._publish
        sampler = None if admit is None else AdmissionSampler(key, admit.rule.sampling_rate)
        samples_hold_all = sampler is not None and sampler.rate == 1 and isinstance(self._draw, Everybody)

        def count(group: tuple[int, Sample]) -> Iterator[Any]:
            with COUNT_TIME.timed():
                counted = count_users(group[1])
            if samples_hold_all:
                yield beam.pvalue.TaggedOutput(_ADMISSION_USERS, group[1].user_counts())
            for number, counts in enumerate(counted):
                for part, some in split_by_item(counts):
                    yield (number, part), some

        def collect(admission: NoisyUserCounts | None, counts: dict[tuple[int, int], ItemCounts]) -> Any:
            by_round: list[list[ItemCounts]] = [[] for _ in range(rounds)]
            for (number, _part), part_counts in counts.items():
                by_round[number].append(part_counts)
            counted = CountedRounds(list(map(add_counts, by_round)), admission)
            return counted if publish is None else publish(counted)

        encoding = SampleEncoding(self._items, self._draw, sampler, samples_hold_all, self._spill.group_bits)
        # PCollection[tuple[UserGroup, Sample]], PCollection[RowCounts], PCollection[tuple[UserGroup, MarkedHashes]]
        samples, rows, marked = paths | "Read" >> ReadLogs(encoding, _ADMISSION_USERS, kind=Any)
        counted = (
            samples
            # A combiner, because a sample of equal records is far smaller than the records. Its result has all of a
            # user's records, and only then are they bounded.
            | "MergeSamples" >> beam.CombinePerKey(MergeSamples(self._spill))  # PCollection[tuple[UserGroup, Sample]]
            | "CountGroup" >> beam.FlatMap(count).with_outputs(_ADMISSION_USERS, main="counts")
        )
        counts = (
            counted.counts  # PCollection[_PartCounts]
            | "SumCounts" >> beam.CombinePerKey(SumCounts(self._min_users)).with_input_types(_PartCounts)
        )  # PCollection[tuple[tuple[round, part], ItemCounts]]
        marked_users = (
            marked
            # PCollection[tuple[UserGroup, uint64[users]]]
            | "MergeAdmissionUsers" >> beam.CombinePerKey(merge_marked_users)
            | "CountAdmissionUsers" >> beam.MapTuple(lambda _, users: count_marked_users(users))
        )  # PCollection[UserCounts]
        users = (marked_users, counted[_ADMISSION_USERS]) | "AllUserCounts" >> beam.Flatten()  # PCollection[UserCounts]
        without_id = None if sampler is None else sampler.drawn_without_id
        # The ledger is charged here, once all input is read. All noise is drawn after it.
        charge = ChargeAndAdmitUsers(admit, key, without_id)
        admitted = (users, rows) | "ChargeAndAdmitUsers" >> charge  # PCollection[NoisyUserCounts | None]
        # PCollection[CountedRounds], or of what `publish` makes of them
        return admitted | "Collect" >> beam.Map(collect, beam.pvalue.AsDict(counts))


class CountSamples(CountRounds):
    """Paths of logs -> one CountedRounds of sampled users, or what `publish` makes of it after a threshold.

    sampling: rate and threshold of every round. For the other arguments see CountRounds.
    """

    def __init__(
        self,
        rounds: Rounds,
        sampling: Sampling,
        publish: Publish | None = None,
        min_users: int = 1,
        **options: Unpack[CountOptions],
    ):
        sampler, levels = rounds.sampler(sampling), rounds.levels
        count = partial(count_rounds, sampler=sampler, prefixes=rounds.prefixes, levels=levels)
        super().__init__(rounds.items, sampler, count, len(levels), publish, min_users, **options)


class CountItems(CountRounds):
    """Paths of logs -> one CountedRounds of all users' bounded contributions, or what `publish` makes of it with noise.

    The counts are exact: they may be used only with noise added. bound: of each user's contributions to every round.
    """

    def __init__(
        self, rounds: Rounds, bound: ItemBound, publish: Publish | None = None, **options: Unpack[CountOptions]
    ):
        self.key, levels = rounds.bound_key(bound), rounds.levels
        bounded = partial(count_items, bound=bound, key=self.key, prefixes=rounds.prefixes, levels=levels)

        def count(sample: Sample) -> list[ItemCounts]:
            return bounded(rounds.items.counted_once_a_day(sample))

        super().__init__(rounds.items, Everybody(self.key), count, len(levels), publish, **options)


class TrieHeavyHitters(CountSamples):
    """Paths of logs -> one Trie of published prefixes with counts (TrieHH++, paper 004, Section 4.1).

    One level is a plain histogram. top: how many items of the last level to keep; None keeps all.
    """

    def __init__(self, rounds: Rounds, sampling: Sampling, top: int | None = None, **options: Unpack[CountOptions]):
        prefixes, levels = rounds.prefixes, rounds.levels

        def publish(counted: CountedRounds) -> Trie:
            shown = threshold_rounds(counted.counts, sampling, levels)
            return replace(grow_trie(shown, prefixes, top), admission=counted.admission)

        super().__init__(rounds, sampling, publish, sampling.threshold, **options)


class NoisyItems(CountItems):
    """Paths of logs -> one NoisyLevels: counts of items with a trusted curator's noise.

    plan: budget, bound and noise of every round. top: see `noisy_levels`.
    """

    def __init__(self, rounds: Rounds, plan: CentralCountPlan, top: int | None = None, **options: Unpack[CountOptions]):
        key, levels = rounds.bound_key(plan.bound), rounds.levels

        def publish(counted: CountedRounds) -> NoisyLevels:
            return replace(noisy_levels(counted.counts, plan, key, levels, top), admission=counted.admission)

        super().__init__(rounds, plan.bound, publish, **options)
