"""Sample and threshold on Beam: a CombineFn over Arrow batches, and the same over groups of users for large logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict, Unpack

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import typehints

from sfumato.schemas.errors import DataError
from sfumato.transforms.histogram.admission_sample import (
    AdmissionSampler,
    UserDraw,
    count_admitted,
    merge_admitted,
    split_admitted,
)
from sfumato.transforms.histogram.item_encoding import Items, NumberItems
from sfumato.transforms.histogram.prefixes import WHOLE, Prefixes
from sfumato.transforms.histogram.published import Histogram
from sfumato.transforms.histogram.quantile_search import Search, search_quantiles
from sfumato.transforms.histogram.sampling_round import Sampling
from sfumato.transforms.histogram.trie import Trie, grow_trie
from sfumato.transforms.histogram.user_sample import (
    Sample,
    SampledCounts,
    Sampler,
    add_counts,
    count_rounds,
    merge,
    threshold,
)
from sfumato.transforms.locations.encode import NULL_USER
from sfumato.transforms.locations.read import ROW_COUNTS, FileSlice, RowCounts, read_batches, slice_file, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import by_user_group
from sfumato.transforms.logs import SAMPLED_USERS
from sfumato.transforms.metrics import COUNT_TIME, Stopwatch
from sfumato.transforms.privacy.admission import Admission, Admit, UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey

_COMPACT_ROWS = 1 << 20  # an accumulator grows by so many records at least before they are merged
_SUMMED_AT_ONCE = 64
_PART_BITS = 4
_ADMITTED = "admitted"
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbouring codes go to different parts


def bind_key(
    key: RunKey, items: Items, sampling: Sampling, prefixes: Prefixes | None, levels: tuple[int, ...]
) -> RunKey:
    """The key for one use: the same draws at another rate, or for other items, would tell what a threshold hid."""
    metadata = {"items": items, "sampling": sampling, "prefixes": prefixes}
    return key.narrowed({"levels": levels, **{name: _described(value) for name, value in metadata.items()}})


def _described(value: Any) -> Any:
    """A dataclass in JSON's types."""
    return [type(value).__name__, asdict(value)] if value is not None else None


class MergeSamples(beam.CombineFn):
    """Samples of users -> one Sample. An accumulator is a list of Samples, or of what stands for them while it travels.

    spill: where samples wait between stages; see Spill.
    """

    def __init__(self, spill: Spill | None = None):
        self._spill = spill or Spill()

    def create_accumulator(self) -> list[Sample | bytes]:
        return []

    def add_input(self, accumulator: list[Sample | bytes], element: Any) -> list[Sample | bytes]:
        accumulator.append(element)
        # Looked at whenever the list has doubled: many small samples cost no more than few large ones.
        if len(accumulator).bit_count() == 1 and sum(map(_waiting, accumulator[1:])) > _COMPACT_ROWS:
            return [self._merged(accumulator)]
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Sample | bytes]]) -> list[Sample | bytes]:
        return [sample for accumulator in accumulators for sample in accumulator]

    def compact(self, accumulator: list[Sample | bytes]) -> list[Sample | bytes]:
        return [self._merged(accumulator).pack(self._spill)]

    def extract_output(self, accumulator: list[Sample | bytes]) -> Any:
        return self._merged(accumulator)

    def _merged(self, accumulator: list[Sample | bytes]) -> Sample:
        return merge([Sample.unpack(one) if isinstance(one, bytes) else one for one in accumulator])


def _waiting(one: Sample | bytes) -> int:
    """Records that a merge would have to look at."""
    return 0 if isinstance(one, bytes) else len(one)


class SampleAndThreshold(MergeSamples):
    """Arrow batches or tables -> the published Histograms, one a level (paper 004, Section 3); for `CombineGlobally`.

    Each round draws its own Poisson sample of the users by a keyed hash, one record of each drawn user counts, and what
    fewer than tau of them hold is dropped. All of a user's records must meet in one combine that fires once: not by a
    key or windows that split them, and not again for the same users in another window. Rows without a usable user or
    item are dropped. Raises DataError where ids or items are integers in some batches and text in others.
    `CountSamples` does the same for logs whose samples one worker cannot hold.

    One key serves one input, once.
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
            encoded = self._items.encode(batch, self._sampler.key, self._sampler.drawn_at_all)
            accumulator = super().add_input(accumulator, encoded.sample)
        return accumulator

    def extract_output(self, accumulator: list[Sample | bytes]) -> list[Histogram]:
        sample = self._merged(accumulator)
        for mixed in ({"text ids", "integer ids"}, {"text items", "integer items"}):
            if mixed <= sample.kinds:
                raise DataError(f"{' and '.join(sorted(mixed))} in one input: what is in both would count twice")
        counts = count_rounds(sample, self._sampler, self._prefixes, self._levels)
        return [threshold(one, self._sampler.sampling, level) for one, level in zip(counts, self._levels, strict=True)]


@typehints.with_input_types(FileSlice)
class _SampleSliceFn(beam.DoFn):
    def __init__(self, items: Items, sampler: Sampler, admission: AdmissionSampler | None):
        self._items = items
        self._sampler = sampler
        self._admission = admission

    def process(self, part: FileSlice) -> Iterator[Any]:
        counts, stopwatch = RowCounts(), Stopwatch()
        for batch in stopwatch.over(read_batches(part, self._items.columns)):
            with stopwatch:
                draw = UserDraw(self._sampler, self._admission)
                encoded = self._items.encode(batch, self._sampler.key, draw)
                dropped = sum(encoded.dropped) - encoded.dropped[NULL_USER]
                admitted = draw.admitted(batch.column(self._items.columns.user_id), dropped)
            counts += RowCounts.from_batch(encoded.rows, encoded.text_ids, encoded.dropped, encoded.clamped)
            yield from split_sample(encoded.sample)
            for part_of_group in split_admitted(admitted):
                yield beam.pvalue.TaggedOutput(_ADMITTED, part_of_group)
        counts.report(part, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


def split_sample(sample: Sample) -> Iterator[tuple[int, Sample]]:
    """Splits a sample by user group, so that all of a user's records meet: (group, the group's sample)."""
    order, groups = by_user_group(sample.users)
    for number, place in groups:
        at = order[place]
        items = sample.items[at]
        texts = {code: sample.texts[code] for code in np.unique(items).tolist()} if sample.texts else {}
        yield number, Sample(sample.users[at], items, sample.records[at], texts)


class SumCounts(beam.CombineFn):
    """SampledCounts of the same items -> their sum, of which items that fewer than `least` hold are left out."""

    def __init__(self, least: int = 1):
        self._least = least

    def create_accumulator(self) -> list[SampledCounts]:
        return []

    def add_input(self, accumulator: list[SampledCounts], element: SampledCounts) -> list[SampledCounts]:
        accumulator.append(element)
        return [add_counts(accumulator)] if len(accumulator) >= _SUMMED_AT_ONCE else accumulator

    def merge_accumulators(self, accumulators: Iterable[list[SampledCounts]]) -> list[SampledCounts]:
        return [one for accumulator in accumulators for one in accumulator]

    def compact(self, accumulator: list[SampledCounts]) -> list[SampledCounts]:
        return [add_counts(accumulator)]

    def extract_output(self, accumulator: list[SampledCounts]) -> SampledCounts:
        return add_counts(accumulator).at_least(self._least)


def split_by_item(counts: SampledCounts) -> Iterator[tuple[int, SampledCounts]]:
    """Splits counts into parts that different workers can add up: (part, counts)."""
    part = (counts.items * _SPREAD) >> np.uint64(64 - _PART_BITS)  # multiplication wraps around
    for number in np.unique(part).tolist():
        yield number, counts.only(part == number)


class Limits(TypedDict, total=False):
    """How CountSamples and what is made of it run.

    admit: decides, on noisy counts of users, whether the run may go on; None admits every run. spill: a place for bulky
    intermediate data (see Spill) where all workers share a disk or are one process; None keeps these data in the
    runner's hands.
    """

    admit: Admit | None
    spill: str | None


@dataclass(frozen=True, eq=False)
class SampledRounds:
    """Raw counts of every round, for a step that thresholds them, and the admission of the run, if there was one."""

    counts: list[SampledCounts]
    admission: Admission | None


class CountSamples(beam.PTransform):
    """Paths of Parquet files -> one SampledRounds: raw, for a step that thresholds its counts.

    least: counts of items that fewer sampled users hold are left out; 1 keeps all.

    Raises DataError for damaged files, and RefusedError where the run is not admitted.
    """

    def __init__(
        self,
        items: Items,
        sampling: Sampling,
        key: RunKey,
        prefixes: Prefixes | None = None,
        levels: tuple[int, ...] = (WHOLE,),
        least: int = 1,
        **limits: Unpack[Limits],
    ):
        super().__init__()
        self._spill = Spill(limits.get("spill"))
        self._least = least
        levels = tuple(map(int, levels))
        self._sampler = Sampler(bind_key(key, items, sampling, prefixes, levels), sampling, len(levels))
        self._items = items
        self.sampling, self.prefixes, self.levels = sampling, prefixes, levels
        self._admit = limits.get("admit")

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        sampler, prefixes, levels = self._sampler, self.prefixes, self.levels
        admit = self._admit
        admission_sampler = None if admit is None else AdmissionSampler(sampler.key, admit.rule.sampling_rate)

        def count(group: tuple[int, Sample]) -> Iterator[tuple[tuple[int, int], SampledCounts]]:
            with COUNT_TIME.timed():
                rounds = count_rounds(group[1], sampler, prefixes, levels)
            for number, counts in enumerate(rounds):
                for part, some in split_by_item(counts):
                    yield (number, part), some

        def collect(
            _: None, counts: dict[tuple[int, int], SampledCounts], rows: RowCounts, users: UserCounts
        ) -> SampledRounds:
            rows.emit()
            admission = None
            if admit is not None and admission_sampler is not None:
                without_id = admission_sampler.drawn_rows(rows.without_id)
                admission = admit(users + UserCounts(unusable=without_id), sampler.key)
            SAMPLED_USERS.emit()
            found = [
                add_counts(one for (at, _), one in counts.items() if at == number) for number in range(len(levels))
            ]
            return SampledRounds(found, admission)

        sampled = (
            paths
            | "Slice" >> beam.FlatMap(slice_file)  # FileSlice
            | "SpreadSlices" >> beam.Reshuffle()
            | "Sample"
            >> beam.ParDo(_SampleSliceFn(self._items, sampler, admission_sampler)).with_outputs(
                ROW_COUNTS, _ADMITTED, main="samples"
            )
        )
        counts = (
            sampled.samples  # (user group, Sample)
            | "MeetUsers" >> beam.CombinePerKey(MergeSamples(self._spill))  # (user group, Sample)
            | "CountGroup"
            >> beam.FlatMap(count).with_output_types(tuple[tuple[int, int], SampledCounts])  # ((round, part), counts)
            | "SumCounts" >> beam.CombinePerKey(SumCounts(self._least))  # ((round, part of the items), SampledCounts)
        )
        rows = sampled[ROW_COUNTS] | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)
        users = (
            sampled[_ADMITTED]  # (user group, marked users)
            | "MeetAdmitted" >> beam.CombinePerKey(merge_admitted)  # (user group, marked users)
            | "CountAdmitted" >> beam.MapTuple(lambda _, users: count_admitted(users))  # UserCounts
            | "SumUserCounts" >> beam.CombineGlobally(sum_user_counts)
        )
        exact = [beam.pvalue.AsDict(counts), beam.pvalue.AsSingleton(rows), beam.pvalue.AsSingleton(users)]
        return paths.pipeline | "Begin" >> beam.Create([None]) | "Collect" >> beam.Map(collect, *exact)


class TrieHeavyHitters(beam.PTransform):
    """Paths of Parquet files -> a singleton Trie of published prefixes with counts (TrieHH++, paper 004, Section 4.1).

    One level is a plain histogram. top: keep so many items of the last level. For the rest see CountSamples.
    """

    def __init__(
        self,
        items: Items,
        sampling: Sampling,
        key: RunKey,
        prefixes: Prefixes | None = None,
        levels: tuple[int, ...] = (WHOLE,),
        top: int | None = None,
        **limits: Unpack[Limits],
    ):
        super().__init__()
        self._counts = CountSamples(items, sampling, key, prefixes, levels, sampling.threshold, **limits)
        self._top = top

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        sampling, prefixes, levels, top = self._counts.sampling, self._counts.prefixes, self._counts.levels, self._top

        def publish(rounds: SampledRounds) -> Trie:
            shown = [threshold(one, sampling, level) for one, level in zip(rounds.counts, levels, strict=True)]
            return replace(grow_trie(shown, prefixes, top), admission=rounds.admission)

        return paths | "Count" >> self._counts | "Threshold" >> beam.Map(publish)


class InteractiveQuantiles(beam.PTransform):
    """Paths of Parquet files -> a singleton Search: quantiles by binary search, a round a bit (Section 4.2).

    items: NumberItems, whose bits are the rounds. For the rest see CountSamples.
    """

    def __init__(
        self,
        items: NumberItems,
        sampling: Sampling,
        key: RunKey,
        shares: tuple[float, ...],
        **limits: Unpack[Limits],
    ):
        super().__init__()
        levels = (WHOLE,) * items.bits
        key = key.narrowed({"quantiles": shares})  # two searches split one sample in two ways, and would tell the rest
        self._counts = CountSamples(items, sampling, key, None, levels, **limits)
        self._items = items
        self._shares = shares

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        sampling, shares, items = self._counts.sampling, self._shares, self._items

        def search(rounds: SampledRounds) -> Search:
            found = search_quantiles(rounds.counts, sampling, shares, items.low, items.high)
            return replace(found, admission=rounds.admission)

        return paths | "Count" >> self._counts | "Search" >> beam.Map(search)
