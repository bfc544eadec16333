"""From encoded chunks to shards, as pipeline stages: contribution bounding, and indexes over shards.

A user contributes one location (`users.py`) or a distribution (`distributions.py`). The stored elements between the
stages have one column for the first and three for the second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
from apache_beam import typehints

from sfumato.schemas.places import Places
from sfumato.transforms.locations.distributions import (
    Distributions,
    bound_distributions,
    build_weighted_shard_group,
    check_gamma,
    split_distributions,
)
from sfumato.transforms.locations.shards import (
    Cohort,
    ShardGroup,
    build_shard_group,
    empty_shard_groups,
    split_by_shard_group,
)
from sfumato.transforms.locations.spill import Spill, lengths_of, take
from sfumato.transforms.locations.users import Contribution, bound_slots, bound_users, count_distinct
from sfumato.transforms.metrics import SHARD_GROUP_BYTES, SHARD_GROUP_USERS

_USERS_PER_ELEMENT = 2_000_000


@dataclass(frozen=True)
class LocationBound:
    """What a user contributes of their locations, see `read.BoundGroups`.

    A contribution is a stored result of `bound_users`, uint64[users]; with contribution `all` it is stored rows of
    `bound_distributions`. No other transform may read the chunks: the memory that holds them is released.

    Attributes:
        places: how a location and a category are coded.
        spill: for the contributions.
        contribution: what a user adds.
        gamma: with contribution `all`, the sum of a user's weights, see `rounding.stored_total`.
        max_dwell: see `sorted_records`.
        records_per_user: above 1, a user adds one record in each of so many slots at most, see `bound_slots`.

    Raises:
        RequestError: gamma is out of range.
    """

    places: Places
    spill: Spill
    contribution: Contribution = "one"
    gamma: int | None = None
    max_dwell: float | None = None
    records_per_user: int = 1

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
        header = np.array([value.first, value.shards, value.places.depth, value.places.categories], dtype="<i8")
        return header.tobytes() + (value.stored or Spill().store(*value.columns()))

    def decode(self, encoded: bytes) -> ShardGroup:
        first, shards, depth, categories = np.frombuffer(encoded, "<i8", 4).tolist()
        return ShardGroup.from_columns(first, shards, Places(depth, categories), encoded[32:])

    def is_deterministic(self) -> bool:
        return True


beam.coders.registry.register_coder(ShardGroup, ShardGroupCoder)


@typehints.with_input_types(bytes, Cohort)
@typehints.with_output_types(tuple[int, bytes])
class _SplitByShardGroupFn(beam.DoFn):
    def __init__(self, places: Places, spill: Spill):
        self._places = places
        self._spill = spill

    def process(self, bounded: bytes, cohort: Cohort) -> Iterator[tuple[int, bytes]]:
        columns = take(bounded)
        if len(columns) == 1:
            users = np.frombuffer(columns[0], np.uint64)
            yield from split_by_shard_group(users, cohort, self._places, self._spill)
        else:
            rows = Distributions.from_columns(columns, self._places)
            yield from split_distributions(rows, cohort, self._places, self._spill)


@typehints.with_input_types(tuple[int, Iterable[bytes]], Cohort)
@typehints.with_output_types(ShardGroup)
class _BuildShardGroupFn(beam.DoFn):
    def __init__(self, places: Places, spill: Spill):
        self._places = places
        self._spill = spill

    def process(self, element: tuple[int, Iterable[bytes]], cohort: Cohort) -> Iterator[ShardGroup]:
        group, chunks = element[0], list(element[1])  # references, or data that the runner has read already
        build = build_shard_group if len(lengths_of(chunks[0])) == 1 else build_weighted_shard_group
        index = build(group, chunks, cohort, self._places, self._spill)
        SHARD_GROUP_USERS.record(index.user_starts[-1])
        SHARD_GROUP_BYTES.record(sum(column.nbytes for column in index.columns()))
        yield index


class BuildShards(beam.PTransform):
    """Bounded users (bytes, from `LocationBound`) and a singleton Cohort -> every ShardGroup of the cohort.

    No other transform may read the bounded users: the memory that holds them is released. Deterministic, given the key.
    weighted: whether users have distributions.
    """

    def __init__(self, places: Places, cohort: beam.PCollection, spill: Spill, weighted: bool = False):
        super().__init__()
        self._places = places
        self._spill = spill
        self._weighted = weighted
        self._cohort = cohort

    def expand(self, bounded: beam.PCollection) -> beam.PCollection:
        cohort = beam.pvalue.AsSingleton(self._cohort)
        filled = bounded | "SplitByShard" >> beam.ParDo(_SplitByShardGroupFn(self._places, self._spill), cohort)
        empty = self._cohort | "EmptyGroups" >> beam.FlatMap(empty_shard_groups, self._weighted).with_output_types(
            tuple[int, bytes]
        )
        return (
            (filled, empty)  # (shard group, rows)
            | "AllGroups" >> beam.Flatten()
            | "GroupByShard" >> beam.GroupByKey()
            | "BuildIndex" >> beam.ParDo(_BuildShardGroupFn(self._places, self._spill), cohort)
        )
