"""Samples of users, and the counts in them: keyed, mergeable, one item a user. Pure.

Whether a user takes part in a round is a function of the run's key and her id, so a retried bundle draws the same
users, and no order of files or bundles shows. All that is here is raw: only `threshold` makes something to publish.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.histogram.prefixes import Prefixes
from sfumato.transforms.histogram.published import Histogram
from sfumato.transforms.histogram.sampling_round import Sampling
from sfumato.transforms.locations.spill import Spill, load
from sfumato.transforms.locations.users import any_repeated
from sfumato.transforms.privacy.keys import RunKey, random_bits_16


@dataclass(frozen=True)
class Sampler:
    """Draws users for some rounds, each user in each round independently with the sampling rate (Poisson sampling).

    Every round needs a sample of its own: counts of parents and children in one sample would differ by exactly what
    the threshold holds back.
    """

    key: RunKey
    sampling: Sampling
    rounds: int = 1

    @cached_property
    def _subkey(self) -> bytes:
        return self.key.subkey("participation")

    def drawn(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each user takes part in each round: bool[n, rounds]. users: uint64[n], their keyed hashes."""
        words = random_bits_16(self._subkey, users, 2 * self.rounds)
        return np.ascontiguousarray(words).view("<u4") < np.uint32(self.sampling.words)

    def drawn_at_all(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each user takes part in any round: bool[n]."""
        return np.asarray(self.drawn(users).any(axis=1))

    def __reduce__(self) -> tuple[type[Sampler], tuple[RunKey, Sampling, int]]:
        return Sampler, (self.key, self.sampling, self.rounds)  # never the derived key


@dataclass(frozen=True, eq=False)
class Sample:
    """Records of sampled users: users uint64[n] (hashes), items uint[n] (codes), records uint[n] of that user and item.

    items and records have the narrowest type that holds them: samples travel between workers. texts: what the codes of
    texts stand for. kinds: what kinds of ids and items were seen, whoever was drawn.
    """

    users: NDArray[np.uint64]
    items: NDArray[np.unsignedinteger]
    records: NDArray[np.unsignedinteger]
    texts: Mapping[int, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def of(
        cls,
        users: NDArray[np.uint64],
        items: NDArray[np.unsignedinteger],
        records: NDArray[np.unsignedinteger] | None = None,
        texts: Mapping[int, str] | None = None,
        kinds: Iterable[str] = (),
    ) -> Sample:
        """A sample with narrow arrays. records: 1 each where they are not given."""
        records = np.ones(len(users), np.uint8) if records is None else _narrow(records)
        return cls(users, _narrow(items), records, texts or {}, frozenset(kinds))

    def pack(self, spill: Spill) -> bytes:
        """The sample, stored: what may travel in its place (see Spill)."""
        types = self.items.dtype.str, self.records.dtype.str
        form = json.dumps([*types, list(self.texts.values()), sorted(self.kinds)], ensure_ascii=False)
        codes = np.fromiter(self.texts, np.uint64, len(self.texts))
        arrays = (np.ascontiguousarray(array).data for array in (self.users, self.items, self.records, codes))
        return spill.store(form.encode(), *arrays)

    @classmethod
    def unpack(cls, stored: bytes) -> Sample:
        """The sample that `pack` stored."""
        form, users, items, records, codes = load(stored)
        item_type, record_type, names, kinds = json.loads(bytes(form))
        texts = dict(zip(np.frombuffer(codes, np.uint64).tolist(), names, strict=True))
        arrays = np.frombuffer(items, item_type), np.frombuffer(records, record_type)
        return cls(np.frombuffer(users, np.uint64), *arrays, texts, frozenset(kinds))


def _narrow(values: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    return values.astype(np.min_scalar_type(int(values.max())) if len(values) else np.uint8, copy=False)


def merge(samples: Sequence[Sample]) -> Sample:
    """One sample of several, equal (user, item) pairs added up; associative and commutative."""
    if len(samples) == 1:
        return samples[0]
    if not samples:
        return Sample.of(np.empty(0, np.uint64), np.empty(0, np.uint8))
    users = np.concatenate([sample.users for sample in samples])
    items = np.concatenate([sample.items for sample in samples])
    records = np.concatenate([sample.records for sample in samples])
    texts = {code: text for sample in samples for code, text in sample.texts.items()}
    kinds = frozenset().union(*(sample.kinds for sample in samples))
    if any_repeated(users):
        order = np.lexsort((items, users))
        users, items, records = users[order], items[order], records[order]
        starts = _starts((users[1:] != users[:-1]) | (items[1:] != items[:-1]))
        users, items, records = users[starts], items[starts], np.add.reduceat(records, starts, dtype=np.uint64)
    return Sample.of(users, items, records, texts, kinds)


def _starts(changes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where runs of equal values begin. changes: whether each value but the first differs from the one before."""
    return np.flatnonzero(np.concatenate(([True], changes)))


def one_item_a_user(sample: Sample) -> tuple[NDArray[np.uint64], NDArray[np.unsignedinteger]]:
    """Distinct users, uint64[n], and the item of one record of each, chosen uniformly among her records by her hash.

    sample: all records of these users. The choice depends on nobody else and on no order.
    """
    if not any_repeated(sample.users):
        return sample.users, sample.items
    order = np.lexsort((sample.items, sample.users))
    users, items = sample.users[order], sample.items[order]
    starts = _starts(users[1:] != users[:-1])
    ends = np.cumsum(sample.records[order], dtype=np.int64)
    before = np.concatenate(([0], ends))[starts]
    total = np.concatenate((ends[starts[1:] - 1], ends[-1:])) - before
    uniform = (users[starts] & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    position = before + (uniform * total).astype(np.int64)
    return users[starts], items[np.searchsorted(ends, position, side="right")]


@dataclass(frozen=True, eq=False)
class SampledCounts:
    """Sampled users of each item: items uint64[m] ascending, counts int64[m], texts object[m] or None. Raw.

    left_out: sampled users of items that are not listed any more.
    """

    items: NDArray[np.uint64]
    counts: NDArray[np.int64]
    texts: NDArray[np.object_] | None = None
    left_out: int = 0

    @property
    def users(self) -> int:
        """Sampled users."""
        return int(self.counts.sum()) + self.left_out

    def only(self, kept: NDArray[np.bool_]) -> SampledCounts:
        """The counts of some items."""
        return SampledCounts(self.items[kept], self.counts[kept], None if self.texts is None else self.texts[kept])

    def at_least(self, least: int) -> SampledCounts:
        """The counts of items that so many sampled users hold; of the others their number of users alone."""
        found = self.only(self.counts >= least)
        return replace(found, left_out=self.users - found.users)


def count_rounds(
    sample: Sample, sampler: Sampler, prefixes: Prefixes | None, levels: Sequence[int]
) -> list[SampledCounts]:
    """The counts of every round, one a level, of users all of whose records the sample holds."""
    users, items = one_item_a_user(sample)
    drawn = sampler.drawn(users)
    item_key = sampler.key.subkey("items")
    found = []
    for number, level in enumerate(levels):
        counted = _sum_by_item(items[drawn[:, number]].astype(np.uint64))
        if sample.texts:
            texts = np.array([sample.texts[code] for code in counted.items.tolist()], dtype=object)
            counted = replace(counted, texts=texts)
        if prefixes is not None:
            codes, shorter = prefixes.cut(counted.items, counted.texts, level, item_key)
            counted = add_counts([SampledCounts(codes, counted.counts, shorter)])
        found.append(counted)
    return found


def add_counts(counts: Iterable[SampledCounts]) -> SampledCounts:
    """The sum, item by item."""
    counts = list(counts)
    left_out = sum(one.left_out for one in counts)
    parts = [one for one in counts if len(one.items)]
    if not parts:
        return SampledCounts(np.empty(0, np.uint64), np.empty(0, np.int64), None, left_out)
    items, numbers = (
        np.concatenate(arrays) for arrays in zip(*((one.items, one.counts) for one in parts), strict=True)
    )
    texts = [one.texts for one in parts if one.texts is not None]
    total = _sum_by_item(items, numbers, np.concatenate(texts) if texts else None)
    return replace(total, left_out=left_out)


def _sum_by_item(
    items: NDArray[np.uint64], counts: NDArray[np.int64] | None = None, texts: NDArray[np.object_] | None = None
) -> SampledCounts:
    """Sums of counts (1 each where they are not given) over equal items, whose texts are equal too."""
    if texts is None and len(items) and int(items.max()) < 2 * len(items):  # few codes: a table is faster than a sort
        dense = np.bincount(items.astype(np.int64), counts).astype(np.int64)  # exact: far below 2^53
        present = np.flatnonzero(dense)
        return SampledCounts(present.astype(np.uint64), dense[present])
    if counts is None:
        items, counts = np.unique(items, return_counts=True)
        return SampledCounts(items, counts.astype(np.int64))
    order = np.argsort(items, kind="stable")
    items = items[order]
    starts = _starts(items[1:] != items[:-1])
    sums = np.add.reduceat(counts[order], starts)
    return SampledCounts(items[starts], sums, None if texts is None else texts[order][starts])


def threshold(counts: SampledCounts, sampling: Sampling, level: int) -> Histogram:
    """What may be published of a round: the items that at least tau sampled users hold, with their sampled counts."""
    shown = counts.at_least(sampling.threshold)
    texts = tuple(shown.texts.tolist()) if shown.texts is not None else None
    return Histogram(level, sampling, shown.items, shown.counts, texts)
