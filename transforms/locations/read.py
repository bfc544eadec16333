"""From logs to shards, as pipeline stages: read slices, group records by user, bound contributions, count users.

    logs -> ReadLogs -> BoundGroups -> ChargeAndAdmitUsers: here the ledger is charged
                                    -> BuildShards

A job passes its own encoding of rows and its own bound. `LocationEncoding` and `LocationBound` are those of locations,
of which a user contributes one (`users.py`) or a distribution (`distributions.py`). Jobs that count items combine
records instead of BoundGroups, see `sample_and_threshold`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import apache_beam as beam
import numpy as np
from apache_beam import typehints

import sfumato.transforms.beam_support  # noqa: F401  (installs caches and fixes)
from sfumato.schemas.locations import DROP_REASONS, LocationColumns
from sfumato.schemas.region import Locator, Places
from sfumato.transforms.inputs.log_file import FileSlice
from sfumato.transforms.inputs.log_reader import read_bundle, slice_bundle
from sfumato.transforms.locations.distributions import (
    Distributions,
    bound_distributions,
    build_weighted_shard_group,
    check_gamma,
    split_distributions,
)
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.shards import (
    ShardGroup,
    ShardPlan,
    build_shard_group,
    empty_shard_groups,
    split_by_shard_group,
)
from sfumato.transforms.locations.spill import Spill, lengths_of, take
from sfumato.transforms.locations.users import (
    Contribution,
    UserGroups,
    bound_slots,
    bound_users,
    count_distinct,
    count_unusable,
    split_unusable,
)
from sfumato.transforms.observability.logs import COUNTED_COHORT, COUNTED_USERS, READ_COUNTS, READ_FILE
from sfumato.transforms.observability.metrics import (
    BOUNDED_USERS,
    CLAMPED_ROWS,
    DROPPED_ROWS,
    EARLIER_DAYS_ROWS,
    LATER_DAYS_ROWS,
    READ_FILES,
    READ_ROWS,
    SHARD_GROUP_BYTES,
    SHARD_GROUP_USERS,
    SLICE_READ,
    SLICE_ROWS,
    USER_GROUP_BYTES,
    Stopwatch,
)
from sfumato.transforms.privacy.admission import (
    ChargeAndAdmit,
    ChargeGate,
    NoisyUserCounts,
    UserCounts,
    sampled_stddev,
    sum_user_counts,
)
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.user_hashes import ActiveCohort

ROW_COUNTS = "row_counts"  # tag of the output with row counts
_USERS = "users"
_USERS_PER_ELEMENT = 2_000_000


@dataclass(frozen=True)
class RowCounts:
    """Exact numbers of rows, which are not published: read, dropped by DROP_REASONS, moved to an end of their range."""

    rows: int = 0
    dropped: tuple[int, ...] = (0,) * len(DROP_REASONS)
    clamped: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        dropped = tuple(a + b for a, b in zip(self.dropped, other.dropped, strict=True))
        return RowCounts(self.rows + other.rows, dropped, self.clamped + other.clamped)

    def report(self, parts: Sequence[FileSlice], stopwatch: Stopwatch) -> None:
        """Adds the counts of a bundle of slices to the job's metrics, and logs each file after its last slice."""
        READ_ROWS.add(self.rows)
        SLICE_ROWS.record(self.rows)
        SLICE_READ.record(stopwatch.milliseconds)
        for reason, number in zip(DROP_REASONS, self.dropped, strict=True):
            DROPPED_ROWS[reason].add(number)
        CLAMPED_ROWS.add(self.clamped)
        for part in parts:
            if part.is_last:
                READ_FILES.add()
                READ_FILE.emit(file=part.file.path)

    @property
    def users_without_id(self) -> int:
        """Returns the number of users without an id: 1 if any row has none, otherwise 0.

        All of these rows may be one user's. If each counted as a user, that user would change a count by the number of
        their rows, under noise for one.
        """
        return min(self.dropped[DROP_REASONS.index("null_user_id")], 1)

    def emit(self) -> None:
        """Logs the counts as a raw event, for the operator only."""
        dropped = {reason: number for reason, number in zip(DROP_REASONS, self.dropped, strict=True) if number}
        READ_COUNTS.emit(rows=self.rows, dropped=dropped, clamped=self.clamped)


def count_other_days(earlier: int, later: int) -> None:
    """Adds rows of other days than those that are read to the job's metrics."""
    EARLIER_DAYS_ROWS.add(earlier)
    LATER_DAYS_ROWS.add(later)


def sum_row_counts(counts: Iterable[RowCounts]) -> RowCounts:
    """Adds up row counts; a function for `beam.CombineGlobally`."""
    return sum(counts, start=RowCounts())


class SliceEncoding(Protocol):
    """The encoding of the rows of a job's logs. It travels to workers: it holds a RunKey, and never a derived key."""

    def encode(self, parts: Sequence[FileSlice]) -> Iterator[tuple[RowCounts, Iterable[Any]]]:
        """Yields, after each batch of some slices, the counts of its rows, and elements: (user group, records).

        A user's records have one user group in all files, so that they meet at one worker, which bounds what the user
        contributes. Elements may also be TaggedOutputs, which are grouped in other ways.
        """


# What the users of a group contribute. It travels to workers, as a SliceEncoding does. Of all records of the group's
# users, as chunks that the SliceEncoding stored, one or more, it yields stored contributions, each with the number of
# users that none before it had.
UserBound = Callable[[list[bytes]], Iterator[tuple[int, bytes]]]


@typehints.with_input_types(tuple[FileSlice, ...])
class _EncodeSliceFn(beam.DoFn):
    def __init__(self, encoding: SliceEncoding):
        self._encoding = encoding

    def process(self, parts: tuple[FileSlice, ...]) -> Iterator[Any]:
        counts, stopwatch = RowCounts(), Stopwatch()
        for read, elements in stopwatch.over(self._encoding.encode(parts)):
            counts += read
            yield from elements
        counts.report(parts, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


class ReadLogs(beam.PTransform):
    """Paths of logs, LogFiles or bundles of them -> encoded records, a singleton RowCounts, and tagged outputs.

    Args:
        encoding: of the job.
        tags: of the TaggedOutputs among its elements, each of which gets a PCollection.
        kind: the type of all other elements.

    Raises DataError when the pipeline runs: a file is damaged, has changed or lacks a column; the message has its path.
    """

    def __init__(self, encoding: SliceEncoding, *tags: str, kind: Any = tuple[int, bytes]):
        super().__init__()
        self._encoding = encoding
        self._tags = tags
        self._kind = kind

    def expand(self, paths: beam.PCollection) -> tuple[beam.PCollection, ...]:
        encode = beam.ParDo(_EncodeSliceFn(self._encoding)).with_output_types(self._kind)
        encoded = (
            paths
            | "Slice" >> beam.FlatMap(slice_bundle)  # PCollection[tuple[FileSlice, ...]]
            # Without a shuffle, Beam fuses slicing and reading, and one worker reads all slices of a file.
            | "SpreadSlices" >> beam.Reshuffle()  # PCollection[tuple[FileSlice, ...]]
            | "Encode" >> encode.with_outputs(ROW_COUNTS, *self._tags, main="records")  # [tuple[UserGroup, Records]]
        )
        rows = encoded[ROW_COUNTS] | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)  # PCollection[RowCounts]
        return encoded.records, rows, *(encoded[tag] for tag in self._tags)


@typehints.with_input_types(tuple[int, Iterable[bytes]])
@typehints.with_output_types(bytes)
class _BoundGroupFn(beam.DoFn):
    def __init__(self, bound: UserBound):
        self._bound = bound

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[bytes | beam.pvalue.TaggedOutput]:
        records, unusable = split_unusable(element[1])
        without_record, users = count_unusable(records, unusable), 0
        USER_GROUP_BYTES.record(sum(sum(lengths_of(chunk)) for chunk in records))
        if records:
            for number, contributions in self._bound(records):
                users += number
                yield contributions
        BOUNDED_USERS.add(users)
        yield beam.pvalue.TaggedOutput(_USERS, UserCounts(users, without_record))


class BoundGroups(beam.PTransform):
    """(user group, chunk) pairs -> a pair of PCollections: stored contributions (bytes), and UserCounts.

    bound: what the users of a group contribute.
    """

    def __init__(self, bound: UserBound):
        super().__init__()
        self._bound = bound

    def expand(self, records: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        bounded = (
            records
            # One element has all records of a user, from all files. A combiner would see parts of them, and a user
            # would contribute once for each part.
            | "GroupByUser" >> beam.GroupByKey()  # PCollection[tuple[UserGroup, Iterable[Chunk]]]
            | "Bound" >> beam.ParDo(_BoundGroupFn(self._bound)).with_outputs(_USERS, main="bounded")
        )  # PCollection[stored contributions], PCollection[UserCounts]
        return bounded.bounded, bounded[_USERS]


class ChargeAndAdmitUsers(beam.PTransform):
    """The step that charges the ledger: exact UserCounts and a singleton RowCounts -> a singleton NoisyUserCounts.

    No noise may be drawn and nothing decided on counts before this step. So all later steps depend on its result.

    Args:
        admit: charges the ledger and counts the users; None charges nothing and gives None.
        without_id: returns how many users without an id count, from `RowCounts.users_without_id`; for counts of a
            sample.

    Raises NotAdmittedError when the pipeline runs, see `ChargeAndAdmit`.
    """

    def __init__(
        self,
        admit: ChargeAndAdmit | None,
        key: RunKey,
        without_id: Callable[[int], int] | None = None,
    ):
        super().__init__()
        self._admit = None if admit is None else replace(admit, gate=None, row_counts=None)
        self._gate = None if admit is None else admit.gate
        self._row_counts = None if admit is None else admit.row_counts
        self._key = key
        self._without_id = without_id

    def expand(self, counts: tuple[beam.PCollection, beam.PCollection]) -> beam.PCollection:
        users, rows = counts
        total = users | "SumUserCounts" >> beam.CombineGlobally(sum_user_counts)  # PCollection[UserCounts]
        sides = beam.pvalue.AsSingleton(total), beam.pvalue.AsSingleton(rows), self._gate
        if self._row_counts is not None:
            self._row_counts(rows)
        return (
            users.pipeline
            | "Once" >> beam.Create([None])
            # Side inputs are complete before this step starts, so all input was read, decoded and bounded before the
            # charge. Otherwise a damaged file would cost the epsilon of a release that never appears.
            | "ChargeAndAdmit" >> beam.Map(_charge_and_admit, self._admit, self._key, self._without_id, *sides)
        )  # PCollection[NoisyUserCounts | None]


def _charge_and_admit(
    _: None,
    admit: ChargeAndAdmit | None,
    key: RunKey,
    without_id_of: Callable[[int], int] | None,
    users: UserCounts,
    rows: RowCounts,
    gate: ChargeGate | None,
) -> NoisyUserCounts | None:
    """See `ChargeAndAdmitUsers`. It takes no transform, which would hold PCollections of the graph."""
    rows.emit()
    if admit is None:
        return None
    rule = admit.rule
    without_id = rows.users_without_id if without_id_of is None else without_id_of(rows.users_without_id)
    admission = replace(admit, gate=gate)(users + UserCounts(unusable=without_id), key)
    kind, fields = (COUNTED_USERS, {}) if rule.cohorts == 1 else (COUNTED_COHORT, {"cohorts": rule.cohorts})
    stddev = sampled_stddev(admission.users, admission.noise_stddev, rule.sampling_rate)
    kind.emit(users=admission.users, noise_stddev=stddev, **fields, **{rule.noise_kind.UNIT: admission.cost})
    return admission


@dataclass(frozen=True)
class LocationEncoding:
    """Locations of users, as chunks of `UserGroups`. active_cohort: the users whose rows are read; None reads all."""

    columns: LocationColumns
    locator: Locator
    run_key: RunKey
    spill: Spill
    active_cohort: ActiveCohort | None = None

    def encode(self, parts: Sequence[FileSlice]) -> Iterator[tuple[RowCounts, Iterable[tuple[int, bytes]]]]:
        user_key, groups = self.run_key.subkey("users"), UserGroups(self.spill)
        for batch in read_bundle(parts, self.columns, count_other_days):
            if self.active_cohort is not None:
                batch = self.active_cohort.only(batch, self.columns)
            encoded = encode_locations(batch, self.columns, self.locator, user_key)
            groups.add(encoded)
            yield RowCounts(encoded.rows, encoded.dropped), groups.chunks() if groups.is_full else ()
        yield RowCounts(), groups.chunks()


@dataclass(frozen=True)
class LocationBound:
    """The bound on the locations that a user contributes; see `BoundGroups`.

    A contribution is a stored result of `bound_users`, uint64[users]; with contribution `all` it is stored rows of
    `bound_distributions`. No other transform may read the chunks: the memory that holds them is released.

    Raises RequestError if gamma is out of range.
    """

    places: Places
    spill: Spill
    contribution: Contribution = "one"  # what a user adds
    gamma: int | None = None  # with contribution `all`, the sum of a user's weights, see `encodings.stored_total`
    max_dwell: float | None = None  # see `sorted_records`
    records_per_user: int = 1  # above 1, a user adds one record in each of this many slots at most, see `bound_slots`

    def __post_init__(self) -> None:
        if (self.gamma is not None) != (self.contribution == "all"):
            raise ValueError(f"gamma belongs to contribution all, got {self.gamma} and {self.contribution!r}")
        if self.gamma is not None:
            check_gamma(self.gamma)

    def __call__(self, records: list[bytes]) -> Iterator[tuple[int, bytes]]:
        if self.gamma is not None:
            rows = bound_distributions(records, self.places, self.gamma, self.max_dwell)
            users, stored = rows.population(), rows.store(self.spill)
        else:
            if self.records_per_user > 1:
                users = count_distinct(records)  # a row's bits of the hash are too few to tell users apart
                bounded = bound_slots(records, self.places, self.records_per_user)
            else:
                bounded = bound_users(records, self.places, self.max_dwell, self.contribution == "top")
                users = len(bounded)
            parts = np.array_split(bounded, 1 + len(bounded) // _USERS_PER_ELEMENT)
            stored = (self.spill.store(part.data) for part in parts)
        yield from zip(itertools.chain([users], itertools.repeat(0)), stored, strict=False)


class ShardGroupCoder(beam.coders.Coder):
    """A shard group as a 32-byte header and its stored columns."""

    def encode(self, value: ShardGroup) -> bytes:
        header = np.array([value.first, value.shards, value.places.depth, value.places.bins], dtype="<i8")
        return header.tobytes() + (value.stored or Spill().store(*value.columns()))

    def decode(self, encoded: bytes) -> ShardGroup:
        first, shards, depth, bins = np.frombuffer(encoded, "<i8", 4).tolist()
        return ShardGroup.from_columns(first, shards, Places(depth, bins), encoded[32:])

    def is_deterministic(self) -> bool:
        return True


beam.coders.registry.register_coder(ShardGroup, ShardGroupCoder)


class _OfShards(beam.DoFn):
    def __init__(self, places: Places, spill: Spill):
        self._places = places
        self._spill = spill


@typehints.with_input_types(bytes, ShardPlan)
@typehints.with_output_types(tuple[int, bytes])
class _SplitByShardGroupFn(_OfShards):
    def process(self, bounded: bytes, shard_plan: ShardPlan) -> Iterator[tuple[int, bytes]]:
        columns, places, spill = take(bounded), self._places, self._spill
        if len(columns) == 1:
            yield from split_by_shard_group(np.frombuffer(columns[0], np.uint64), shard_plan, places, spill)
        else:
            yield from split_distributions(Distributions.from_columns(columns, places), shard_plan, places, spill)


@typehints.with_input_types(tuple[int, Iterable[bytes]], ShardPlan)
@typehints.with_output_types(ShardGroup)
class _BuildShardGroupFn(_OfShards):
    def process(self, element: tuple[int, Iterable[bytes]], shard_plan: ShardPlan) -> Iterator[ShardGroup]:
        group, chunks = element[0], list(element[1])  # references, or data that the runner has read already
        build = build_shard_group if len(lengths_of(chunks[0])) == 1 else build_weighted_shard_group
        index = build(group, chunks, shard_plan, self._places, self._spill)
        SHARD_GROUP_USERS.record(index.user_starts[-1])
        SHARD_GROUP_BYTES.record(sum(column.nbytes for column in index.columns()))
        yield index


class BuildShards(beam.PTransform):
    """Bounded users (bytes, from `LocationBound`) and a singleton ShardPlan -> every ShardGroup of the plan.

    No other transform may read the bounded users: the memory that holds them is released. Deterministic, given the key.
    weighted: whether users have distributions.
    """

    def __init__(self, places: Places, shard_plan: beam.PCollection, spill: Spill, weighted: bool = False):
        super().__init__()
        self._places = places
        self._spill = spill
        self._weighted = weighted
        self._shard_plan = shard_plan

    def expand(self, bounded: beam.PCollection) -> beam.PCollection:
        places, spill, shard_plan = self._places, self._spill, beam.pvalue.AsSingleton(self._shard_plan)
        # PCollection[tuple[int, bytes]], both: number of a shard group, stored rows
        filled = bounded | "SplitByShard" >> beam.ParDo(_SplitByShardGroupFn(places, spill), shard_plan)
        empty = self._shard_plan | "EmptyGroups" >> beam.FlatMap(empty_shard_groups, self._weighted)
        return (
            (filled, empty)
            | "AllGroups" >> beam.Flatten().with_output_types(tuple[int, bytes])
            | "GroupByShard" >> beam.GroupByKey()  # PCollection[tuple[int, Iterable[bytes]]]
            | "BuildIndex" >> beam.ParDo(_BuildShardGroupFn(places, spill), shard_plan)  # PCollection[ShardGroup]
        )
