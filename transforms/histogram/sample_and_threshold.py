"""Counts of items on Beam: by sample and threshold (paper 004), or of all users with a trusted curator's noise.

`SampleAndThreshold` is a CombineFn over Arrow batches. `CountSamples` counts by groups of users for large logs;
`TrieHeavyHitters` and `InteractiveQuantiles` publish from its counts. `CountItems` counts all users in the same way,
and `NoisyItems` publishes from its counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypedDict, Unpack

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import typehints

from sfumato.transforms.histogram.admission_sample import (
    AdmissionSampler,
    RoundDraw,
    UserDraw,
    count_marked_users,
    merge_marked_users,
    split_marked_users,
)
from sfumato.transforms.histogram.bounded_items import Everybody, ItemBound, count_items
from sfumato.transforms.histogram.central_plan import CentralCountPlan
from sfumato.transforms.histogram.item_encoding import Items, NumberItems
from sfumato.transforms.histogram.noisy_histogram import NoisyLevels, noisy_levels
from sfumato.transforms.histogram.quantile_search import Search, search_quantiles
from sfumato.transforms.histogram.sampling_round import Histogram, Sampling
from sfumato.transforms.histogram.trie import WHOLE, Prefixes, Trie, grow_trie
from sfumato.transforms.histogram.user_sample import (
    ItemCounts,
    Sample,
    Sampler,
    add_counts,
    count_rounds,
    merge,
    threshold_rounds,
)
from sfumato.transforms.inputs.log_file import FileSlice
from sfumato.transforms.inputs.log_reader import read_bundle, slice_bundle
from sfumato.transforms.locations.encode import NULL_USER
from sfumato.transforms.locations.read import ROW_COUNTS, RowCounts, count_other_days, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import by_user_group
from sfumato.transforms.logs import SAMPLED_USERS
from sfumato.transforms.metrics import COUNT_TIME, Stopwatch
from sfumato.transforms.privacy.admission import Admit, NoisyUserCounts, UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey

_COMPACT_ROWS = 1 << 20  # the fewest new records that make an accumulator merge its samples
_SUMMED_AT_ONCE = 64
_PART_BITS = 4
_ADMISSION_USERS = "admission_users"
_PartCounts = tuple[tuple[int, int], ItemCounts]  # ((round, part of the items), counts)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: neighbouring codes go to different parts


def bind_key(
    key: RunKey, items: Items, sampling: Sampling | ItemBound, prefixes: Prefixes | None, levels: tuple[int, ...]
) -> RunKey:
    """The key for one use: the same draws at another rate, or for other items, would reveal what a threshold hid."""
    metadata = {"items": items, "sampling": sampling, "prefixes": prefixes}
    return key.narrowed({"levels": levels, **{name: _to_json_types(value) for name, value in metadata.items()}})


def _to_json_types(value: Any) -> Any:
    """A dataclass as a list of JSON types."""
    return [type(value).__name__, asdict(value)] if value is not None else None


class MergeSamples(beam.CombineFn):
    """Samples -> one Sample. An accumulator is a list of Samples; those that travelled are packed bytes.

    spill: where samples wait between stages; see Spill.
    """

    def __init__(self, spill: Spill | None = None):
        self._spill = spill or Spill()

    def create_accumulator(self) -> list[Sample | bytes]:
        return []

    def add_input(self, accumulator: list[Sample | bytes], element: Any) -> list[Sample | bytes]:
        accumulator.append(element)
        # Checked whenever the list has doubled: many small samples cost no more than few large ones.
        if len(accumulator).bit_count() == 1 and sum(map(_unmerged_rows, accumulator[1:])) > _COMPACT_ROWS:
            return [self._merged(accumulator)]
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Sample | bytes]]) -> list[Sample | bytes]:
        return [sample for accumulator in accumulators for sample in accumulator]

    def compact(self, accumulator: list[Sample | bytes]) -> list[Sample | bytes]:
        return [self._merged(accumulator).pack(self._spill)]

    def extract_output(self, accumulator: list[Sample | bytes]) -> Any:
        return self._merged(accumulator)

    def _merged(self, accumulator: list[Sample | bytes]) -> Sample:
        return merge([Sample.unpack(sample) if isinstance(sample, bytes) else sample for sample in accumulator])


def _unmerged_rows(sample: Sample | bytes) -> int:
    return 0 if isinstance(sample, bytes) else len(sample)


class SampleAndThreshold(MergeSamples):
    """Arrow batches or tables -> the published Histograms, one a level (paper 004, Section 3); for `CombineGlobally`.

    Each round draws its own Poisson sample of the users by a keyed hash. One record of each drawn user counts. Items
    with fewer than tau drawn users are dropped, and so are rows without a usable user or item.

    All of a user's records must meet in one combine that fires once. So no key and no window may split them, and the
    same users may not come again in another window. Use each key for one input, once. `CountSamples` does the same for
    logs whose samples one worker cannot hold.

    Args:
        items: encodes batches.
        sampling: rate and threshold of every round.
        key: of the run.
        prefixes: the prefix code; None if all levels are whole items.
        levels: the prefix length of each round; 0 (`WHOLE`) for whole items.
    """

    def __init__(
        self,
        items: Items,
        sampling: Sampling,
        key: RunKey,
        prefixes: Prefixes | None = None,
        levels: tuple[int, ...] = (WHOLE,),
    ):
        super().__init__()
        self._items = items
        levels = tuple(map(int, levels))
        self._sampler = Sampler(bind_key(key, items, sampling, prefixes, levels), sampling, len(levels))
        self._prefixes = prefixes
        self._levels = levels

    def add_input(self, accumulator: list[Sample | bytes], element: pa.RecordBatch | pa.Table) -> list[Sample | bytes]:
        for batch in element.to_batches() if isinstance(element, pa.Table) else [element]:
            encoded = self._items.encode(batch, self._sampler.key, self._sampler.drawn_in_any_round)
            accumulator = super().add_input(accumulator, encoded.sample)
        return accumulator

    def extract_output(self, accumulator: list[Sample | bytes]) -> list[Histogram]:
        counts = count_rounds(self._merged(accumulator), self._sampler, self._prefixes, self._levels)
        return threshold_rounds(counts, self._sampler.sampling, self._levels)


@typehints.with_input_types(tuple[FileSlice, ...])
class _SampleSliceFn(beam.DoFn):
    def __init__(self, items: Items, draw: RoundDraw, admission: AdmissionSampler | None, group_bits: int):
        self._items = items
        self._draw = draw
        self._admission = admission
        self._group_bits = group_bits

    def process(self, parts: tuple[FileSlice, ...]) -> Iterator[Any]:
        counts, stopwatch = RowCounts(), Stopwatch()
        for batch in stopwatch.over(read_bundle(parts, self._items.columns, count_other_days)):
            with stopwatch:
                draw = UserDraw(self._draw, self._admission)
                encoded = self._items.encode(batch, self._draw.key, draw)
                dropped = sum(encoded.dropped) - encoded.dropped[NULL_USER]
                ids = batch.column(self._items.columns.user_id)
                encoded = replace(encoded, sample=draw.with_unusable(encoded.sample, ids, dropped))
                marked = draw.admission_users(batch.column(self._items.columns.user_id), dropped)
            counts += RowCounts(encoded.rows, encoded.dropped, encoded.clamped)
            yield from split_sample(encoded.sample, self._group_bits)
            for group in split_marked_users(marked, self._group_bits):
                yield beam.pvalue.TaggedOutput(_ADMISSION_USERS, group)
        counts.report(parts, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


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

    def __init__(self, min_users: int = 1):
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
        return add_counts(accumulator).at_least(self._min_users)


def split_by_item(counts: ItemCounts) -> Iterator[tuple[int, ItemCounts]]:
    """Splits counts by item into parts that different workers can add up: (part, counts)."""
    part = ((counts.items * _SPREAD) >> np.uint64(64 - _PART_BITS)).astype(np.uint8)  # multiplication wraps around
    ordered = counts.only(np.argsort(part, kind="stable"))  # a radix sort, for bytes
    ends = np.cumsum(np.bincount(part, minlength=1 << _PART_BITS)).tolist()
    for number, rows in enumerate(map(slice, [0, *ends], ends)):
        if rows.stop > rows.start:
            yield number, ordered.only(rows)


class CountOptions(TypedDict, total=False):
    """Options of CountSamples and the transforms on top of it.

    admit: decides from noisy counts of users whether the run may go on. None admits every run.
    spill: a folder for bulky intermediate data (see Spill), for workers that share a disk. None leaves them to the
        runner.
    """

    admit: Admit | None
    spill: Spill | str | None


@dataclass(frozen=True, eq=False)
class CountedRounds:
    """Raw counts of every round, for a step that thresholds them, and the run's admission, None without one."""

    counts: list[ItemCounts]
    admission: NoisyUserCounts | None


class CountRounds(beam.PTransform):
    """Paths of logs -> one CountedRounds: raw counts, for a step that protects them.

    Args:
        items: encodes batches.
        draw: decides whose records count.
        count: all records of a group of users -> the counts of every round.
        rounds: how many rounds `count` has.
        min_users: the smallest count of a counted item; 1 keeps all items.
        options: see CountOptions.

    Raises:
        DataError: a file is damaged.
        RefusedError: the run is not admitted.
    """

    def __init__(
        self,
        items: Items,
        draw: RoundDraw,
        count: Callable[[Sample], list[ItemCounts]],
        rounds: int,
        min_users: int = 1,
        **options: Unpack[CountOptions],
    ):
        super().__init__()
        self._items, self._draw, self._count, self._rounds = items, draw, count, rounds
        self._min_users = min_users
        self._admit = options.get("admit")
        self._spill = Spill.of(options.get("spill"))

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        key, count_users, rounds, admit = self._draw.key, self._count, self._rounds, self._admit
        admission_sampler = None if admit is None else AdmissionSampler(key, admit.rule.sampling_rate)

        samples_hold_all = admission_sampler is not None and admission_sampler.is_held_by_samples(self._draw)

        def count(group: tuple[int, Sample]) -> Iterator[Any]:
            with COUNT_TIME.timed():
                counted = count_users(group[1])
            if samples_hold_all:
                yield beam.pvalue.TaggedOutput(_ADMISSION_USERS, group[1].user_counts())
            for number, counts in enumerate(counted):
                for part, some in split_by_item(counts):
                    yield (number, part), some

        def collect(
            _: None, counts: dict[tuple[int, int], ItemCounts], rows: RowCounts, users: UserCounts
        ) -> CountedRounds:
            rows.emit()
            admission = None
            if admit is not None and admission_sampler is not None:
                nobody = admission_sampler.drawn_nobody(rows.nobody)
                admission = admit(users + UserCounts(unusable=nobody), key)
            SAMPLED_USERS.emit()
            by_round: list[list[ItemCounts]] = [[] for _ in range(rounds)]
            for (number, _part), part_counts in counts.items():
                by_round[number].append(part_counts)
            return CountedRounds(list(map(add_counts, by_round)), admission)

        sampled = (
            paths
            | "Slice" >> beam.FlatMap(slice_bundle)  # FileSlices
            | "SpreadSlices" >> beam.Reshuffle()
            | "Sample"
            >> beam.ParDo(
                _SampleSliceFn(self._items, self._draw, admission_sampler, self._spill.group_bits)
            ).with_outputs(ROW_COUNTS, _ADMISSION_USERS, main="samples")
        )
        counted = (
            sampled.samples  # (user group, Sample)
            | "MergeSamples" >> beam.CombinePerKey(MergeSamples(self._spill))  # (user group, Sample)
            | "CountGroup" >> beam.FlatMap(count).with_outputs(_ADMISSION_USERS, main="counts")
        )
        counts = (
            counted.counts  # ((round, part of the items), ItemCounts)
            | "SumCounts" >> beam.CombinePerKey(SumCounts(self._min_users)).with_input_types(_PartCounts)
        )
        rows = sampled[ROW_COUNTS] | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)
        marked_users = (
            sampled[_ADMISSION_USERS]  # (user group, marked hashes)
            | "MergeAdmissionUsers" >> beam.CombinePerKey(merge_marked_users)  # (user group, marked hashes)
            | "CountAdmissionUsers" >> beam.MapTuple(lambda _, users: count_marked_users(users))  # UserCounts
        )
        users = (
            (marked_users, counted[_ADMISSION_USERS])
            | beam.Flatten()
            | "SumUserCounts" >> beam.CombineGlobally(sum_user_counts)
        )
        exact = [beam.pvalue.AsDict(counts), beam.pvalue.AsSingleton(rows), beam.pvalue.AsSingleton(users)]
        return paths.pipeline | "Begin" >> beam.Create([None]) | "Collect" >> beam.Map(collect, *exact)


class CountSamples(CountRounds):
    """Paths of logs -> one CountedRounds of sampled users, for a step that thresholds them.

    Args:
        items: encodes batches.
        sampling: rate and threshold of every round.
        key: of the run; use each key for one input, once.
        prefixes: the prefix code; None if all levels are whole items.
        levels: the prefix length of each round; 0 (`WHOLE`) for whole items.
        min_users: the fewest sampled users of a counted item; 1 keeps all items.
        options: see CountOptions.

    Raises: see CountRounds.
    """

    def __init__(
        self,
        items: Items,
        sampling: Sampling,
        key: RunKey,
        prefixes: Prefixes | None = None,
        levels: tuple[int, ...] = (WHOLE,),
        min_users: int = 1,
        **options: Unpack[CountOptions],
    ):
        levels = tuple(map(int, levels))
        sampler = Sampler(bind_key(key, items, sampling, prefixes, levels), sampling, len(levels))
        count = partial(count_rounds, sampler=sampler, prefixes=prefixes, levels=levels)
        super().__init__(items, sampler, count, len(levels), min_users, **options)
        self.sampling, self.prefixes, self.levels = sampling, prefixes, levels


class CountItems(CountRounds):
    """Paths of logs -> one CountedRounds of all users' bounded contributions, for a step that adds noise.

    The counts are exact: they may be used only with noise added.

    Args:
        items: encodes batches.
        bound: of each user's contributions to every round.
        key: of the run; use each key for one input, once.
        prefixes: the prefix code; None if all levels are whole items.
        levels: the prefix length of each round; 0 (`WHOLE`) for whole items.
        options: see CountOptions.

    Raises: see CountRounds.
    """

    def __init__(
        self,
        items: Items,
        bound: ItemBound,
        key: RunKey,
        prefixes: Prefixes | None = None,
        levels: tuple[int, ...] = (WHOLE,),
        **options: Unpack[CountOptions],
    ):
        levels = tuple(map(int, levels))
        everybody = Everybody(bind_key(key, items, bound, prefixes, levels))
        count = partial(count_items, bound=bound, key=everybody.key, prefixes=prefixes, levels=levels)
        super().__init__(items, everybody, count, len(levels), **options)
        self.key, self.prefixes, self.levels = everybody.key, prefixes, levels


class TrieHeavyHitters(beam.PTransform):
    """Paths of logs -> one Trie of published prefixes with counts (TrieHH++, paper 004, Section 4.1).

    One level is a plain histogram. top: how many items of the last level to keep; None keeps all. For the other
    arguments see CountSamples.
    """

    def __init__(
        self,
        items: Items,
        sampling: Sampling,
        key: RunKey,
        prefixes: Prefixes | None = None,
        levels: tuple[int, ...] = (WHOLE,),
        top: int | None = None,
        **options: Unpack[CountOptions],
    ):
        super().__init__()
        self._counts = CountSamples(items, sampling, key, prefixes, levels, sampling.threshold, **options)
        self._top = top

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        sampling, prefixes, levels, top = self._counts.sampling, self._counts.prefixes, self._counts.levels, self._top

        def publish(rounds: CountedRounds) -> Trie:
            shown = threshold_rounds(rounds.counts, sampling, levels)
            return replace(grow_trie(shown, prefixes, top), admission=rounds.admission)

        return paths | "Count" >> self._counts | "Threshold" >> beam.Map(publish)


class NoisyItems(beam.PTransform):
    """Paths of logs -> one NoisyLevels: counts of items with a trusted curator's noise.

    plan: budget, bound and noise of every round. top: see `noisy_levels`. For the other arguments see CountItems.
    """

    def __init__(
        self,
        items: Items,
        plan: CentralCountPlan,
        key: RunKey,
        prefixes: Prefixes | None = None,
        levels: tuple[int, ...] = (WHOLE,),
        top: int | None = None,
        **options: Unpack[CountOptions],
    ):
        super().__init__()
        self._counts = CountItems(items, plan.bound, key, prefixes, levels, **options)
        self._plan, self._top = plan, top

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        plan, key, levels, top = self._plan, self._counts.key, self._counts.levels, self._top

        def publish(rounds: CountedRounds) -> NoisyLevels:
            return replace(noisy_levels(rounds.counts, plan, key, levels, top), admission=rounds.admission)

        return paths | "Count" >> self._counts | "AddNoise" >> beam.Map(publish)


class InteractiveQuantiles(beam.PTransform):
    """Paths of logs -> one Search: quantiles by binary search with one round a bit (paper 004, Section 4.2).

    items: the numbers and their range; its bits are the rounds. shares: of users below each quantile, in 0..1. For the
    other arguments see CountSamples.
    """

    def __init__(
        self,
        items: NumberItems,
        sampling: Sampling,
        key: RunKey,
        shares: tuple[float, ...],
        **options: Unpack[CountOptions],
    ):
        super().__init__()
        levels = (WHOLE,) * items.bits
        key = key.narrowed({"quantiles": shares})  # two searches would split one sample twice and reveal more
        self._counts = CountSamples(items, sampling, key, None, levels, **options)
        self._items = items
        self._shares = shares

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        sampling, shares, items = self._counts.sampling, self._shares, self._items

        def search(rounds: CountedRounds) -> Search:
            quantiles = search_quantiles(rounds.counts, sampling, shares, items.low, items.high)
            return replace(quantiles, admission=rounds.admission)

        return paths | "Count" >> self._counts | "Search" >> beam.Map(search)
