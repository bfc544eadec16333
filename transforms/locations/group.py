"""From encoded chunks to shards, as pipeline stages: users meet, one location of each is kept, indexes are built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam import typehints

from sfumato.transforms.locations.shards import (
    Cohort,
    ShardGroup,
    build_shard_group,
    key_dtype,
    split_by_shard_group,
)
from sfumato.transforms.locations.spill import Spill, load
from sfumato.transforms.locations.users import bound_users

_WORDS_PER_ELEMENT = 2_000_000


@typehints.with_input_types(tuple[int, Iterable[bytes]])
@typehints.with_output_types(bytes)
class _BoundUsersFn(beam.DoFn):
    USERS = "users"

    def __init__(self, depth: int, spill: Spill):
        self._depth = depth
        self._spill = spill

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[bytes | beam.pvalue.TaggedOutput]:
        words = bound_users(element[1], self._depth)
        for part in np.array_split(words, 1 + len(words) // _WORDS_PER_ELEMENT):
            yield self._spill.store(part.data)
        yield beam.pvalue.TaggedOutput(self.USERS, len(words))


class BoundUsers(beam.PTransform):
    """(user group, chunk) pairs -> a pair of PCollections: words of bounded users (bytes), and numbers of users.

    Each element of the first is uint64[users], as `bound_users` returns it, stored.
    """

    def __init__(self, depth: int, spill: Spill):
        super().__init__()
        self._bound = _BoundUsersFn(depth, spill)

    def expand(self, chunks: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        bounded = (
            chunks
            | "GroupByUser" >> beam.GroupByKey()  # (user group, [chunk])
            | "OneLocation" >> beam.ParDo(self._bound).with_outputs(_BoundUsersFn.USERS, main="words")
        )
        return bounded.words, bounded[_BoundUsersFn.USERS]


class ShardGroupCoder(beam.coders.Coder):
    """Shard groups as a 24-byte header and the keys as they were stored."""

    def encode(self, value: ShardGroup) -> bytes:
        header = np.array([value.first, value.shards, value.depth], dtype="<i8")
        return header.tobytes() + (value.stored or Spill().store(value.keys.data))

    def decode(self, encoded: bytes) -> ShardGroup:
        first, shards, depth = np.frombuffer(encoded, "<i8", 3).tolist()
        stored = encoded[24:]
        return ShardGroup(first, shards, depth, np.frombuffer(load(stored)[0], key_dtype(depth)), stored)

    def is_deterministic(self) -> bool:
        return True


beam.coders.registry.register_coder(ShardGroup, ShardGroupCoder)


@typehints.with_input_types(bytes, Cohort)
@typehints.with_output_types(tuple[int, bytes])
class _SplitByShardGroupFn(beam.DoFn):
    def __init__(self, depth: int, spill: Spill):
        self._depth = depth
        self._spill = spill

    def process(self, words: bytes, cohort: Cohort) -> Iterator[tuple[int, bytes]]:
        yield from split_by_shard_group(np.frombuffer(load(words)[0], np.uint64), cohort, self._depth, self._spill)


@typehints.with_input_types(tuple[int, Iterable[bytes]], Cohort)
@typehints.with_output_types(ShardGroup)
class _BuildShardGroupFn(beam.DoFn):
    def __init__(self, depth: int, spill: Spill):
        self._depth = depth
        self._spill = spill

    def process(self, element: tuple[int, Iterable[bytes]], cohort: Cohort) -> Iterator[ShardGroup]:
        yield build_shard_group(*element, cohort, self._depth, self._spill)


class BuildShards(beam.PTransform):
    """Words of bounded users (bytes) and a singleton Cohort -> ShardGroups; deterministic, given the key."""

    def __init__(self, depth: int, cohort: beam.PCollection, spill: Spill):
        super().__init__()
        self._depth = depth
        self._spill = spill
        self._cohort = beam.pvalue.AsSingleton(cohort)

    def expand(self, words: beam.PCollection) -> beam.PCollection:
        return (
            words
            | "SplitByShard"
            >> beam.ParDo(_SplitByShardGroupFn(self._depth, self._spill), self._cohort)  # (shard group, keys)
            | "GroupByShard" >> beam.GroupByKey()
            | "BuildIndex" >> beam.ParDo(_BuildShardGroupFn(self._depth, self._spill), self._cohort)
        )
