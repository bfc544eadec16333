"""Samples of users and the counts in them: keyed, mergeable, one item for each user.

Whether a user takes part in a round is a function of the run's key and the user's id. So a retried bundle draws the
same users, and the order of files and bundles has no effect. All values here are raw; only `threshold` returns
something that may be published.

A sampled job reads the records of the sampled users only, and the size of that sample has to stay secret. The admission
therefore counts an independent Poisson sample, whose rate is public; a job that counts all users has a rate of 1. A
user in it either has a usable record or has none. All rows without a user id count as one user. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.histogram.sampling_round import Histogram, Prefixes, Sampling
from sfumato.transforms.locations.spill import Spill, load
from sfumato.transforms.locations.users import any_repeated, by_user_group
from sfumato.transforms.privacy.admission import UserCounts
from sfumato.transforms.privacy.keys import WORDS_16_PER_BLOCK, RunKey, random_bits, random_bits_16

_USABLE = np.uint64(1)  # the bit of a user's hash that marks a usable record


@dataclass(frozen=True)
class Sampler:
    """Draws users for some rounds, each user in each round independently with the sampling rate (Poisson sampling).

    Every round needs its own sample: in one common sample, the counts of parents minus those of their children would
    reveal how many sampled users the threshold dropped.
    """

    key: RunKey
    sampling: Sampling
    rounds: int = 1

    def drawn(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Returns whether each user takes part in each round: bool[n, rounds]. users: uint64[n], their keyed hashes."""
        return self._draws(users) < np.uint32(self.sampling.rate_steps)

    def drawn_in_any_round(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Returns whether each user takes part in any round: bool[n]."""
        draws, steps = self._draws(users), np.uint32(self.sampling.rate_steps)
        drawn = draws[:, 0] < steps
        for number in range(1, self.rounds):  # column by column: far faster than a reduction of short rows
            drawn |= draws[:, number] < steps
        return drawn

    def _draws(self, users: NDArray[np.uint64]) -> NDArray[np.uint32]:
        blocks = -(-2 * self.rounds // WORDS_16_PER_BLOCK)
        subkey = self.key.subkey("participation")  # derived here, and so never pickled
        bits = random_bits_16(subkey, users, blocks * WORDS_16_PER_BLOCK)  # whole blocks: nothing is copied
        return bits.view("<u4")[:, : self.rounds]


@dataclass(frozen=True)
class Everybody:
    """Draws every user, where Sampler draws a sample."""

    key: RunKey

    def drawn_in_any_round(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.ones(len(users), dtype=bool)


RoundDraw = Sampler | Everybody


@dataclass(frozen=True, eq=False)
class Sample:
    """Records of sampled users, one row for each pair of a user and an item.

    Items and records have the narrowest type that holds them, because samples travel between workers.
    """

    users: NDArray[np.uint64]  # uint64[n], keyed hashes
    items: NDArray[np.unsignedinteger]  # unsigned[n], item codes
    records: NDArray[np.unsignedinteger]  # unsigned[n], the number of records of this user and item
    texts: Mapping[int, str] = field(default_factory=dict)  # of the codes; empty where codes are numbers
    # uint64[k], users of dropped rows, for a job that counts all users. They may have records too.
    unusable: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    has_each_user_once: bool = False  # whether no user has two rows; False where that was not found out

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def from_arrays(
        cls,
        users: NDArray[np.uint64],
        items: NDArray[np.unsignedinteger],
        records: NDArray[np.unsignedinteger] | None = None,
        texts: Mapping[int, str] | None = None,
    ) -> Sample:
        """Returns a sample with narrow arrays. records: None for one each."""
        records = np.broadcast_to(np.uint8(1), len(users)) if records is None else _narrow(records)
        return cls(users, _narrow(items), records, texts or {})

    def pack(self, spill: Spill) -> bytes:
        """Returns the sample as bytes that travel in its place (see Spill)."""
        types = self.items.dtype.str, self.records.dtype.str
        header = json.dumps([*types, list(self.texts.values()), self.has_each_user_once], ensure_ascii=False)
        codes = np.fromiter(self.texts, np.uint64, len(self.texts))
        columns = (self.users, self.items, self.records, codes, self.unusable)
        arrays = (np.ascontiguousarray(array).data for array in columns)
        return spill.store(header.encode(), *arrays)

    @classmethod
    def unpack(cls, stored: bytes) -> Sample:
        header, users, items, records, codes, unusable = load(stored)
        item_type, record_type, names, once = json.loads(bytes(header))
        texts = dict(zip(np.frombuffer(codes, np.uint64).tolist(), names, strict=True))
        arrays = np.frombuffer(items, item_type), np.frombuffer(records, record_type)
        hashes, dropped = (np.frombuffer(column, np.uint64) for column in (users, unusable))
        return cls(hashes, *arrays, texts, dropped, once)

    def user_counts(self) -> UserCounts:
        """Returns the users with a record, and those that have dropped rows only. All of their records must be here."""
        users = self.users if self.has_each_user_once else np.unique(self.users)
        return UserCounts(len(users), int((~np.isin(self.unusable, users)).sum()) if len(self.unusable) else 0)


def _narrow(values: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    return values.astype(np.min_scalar_type(int(values.max())) if len(values) else np.uint8, copy=False)


def merge(samples: Sequence[Sample]) -> Sample:
    """Returns one sample with equal (user, item) pairs added up; associative and commutative."""
    if len(samples) == 1:
        return samples[0]
    if not samples:
        return Sample.from_arrays(np.empty(0, np.uint64), np.empty(0, np.uint8))
    users = np.concatenate([sample.users for sample in samples])
    items = np.concatenate([sample.items for sample in samples])
    records = np.concatenate([sample.records for sample in samples])
    texts = {code: text for sample in samples for code, text in sample.texts.items()}
    unusable = np.unique(np.concatenate([sample.unusable for sample in samples]))
    return add_pairs(replace(Sample.from_arrays(users, items, records, texts), unusable=unusable))


def add_pairs(sample: Sample) -> Sample:
    """Returns the sample with the records of equal (user, item) pairs added up."""
    if sample.has_each_user_once:
        return sample
    if not any_repeated(sample.users):
        return replace(sample, has_each_user_once=True)
    order = np.lexsort((sample.items, sample.users))
    users, items = sample.users[order], sample.items[order]
    starts = run_starts(users, items)
    records = np.add.reduceat(sample.records[order], starts, dtype=np.uint64)
    pairs = Sample.from_arrays(users[starts], items[starts], records, sample.texts)
    return replace(pairs, unusable=sample.unusable)


def run_starts(*columns: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the first index of each run of equal rows of some columns. Without rows there is no run.

    A group of users may have no usable row. Whether it has one is secret, so an empty group must not raise an error.
    """
    is_first = np.ones(len(columns[0]), dtype=bool)
    is_first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.flatnonzero(is_first)


def one_item_per_user(sample: Sample) -> tuple[NDArray[np.uint64], NDArray[np.unsignedinteger]]:
    """Returns distinct users, uint64[n], and the item of one record of each, uniform among their records, by the user's
    hash.

    The choice depends on no other user and on no order. sample: all records of its users.
    """
    if sample.has_each_user_once or not any_repeated(sample.users):
        return sample.users, sample.items
    order = np.lexsort((sample.items, sample.users))
    users, items = sample.users[order], sample.items[order]
    starts = run_starts(users)
    ends = np.cumsum(sample.records[order], dtype=np.int64)
    before = np.concatenate(([0], ends))[starts]
    total = np.concatenate((ends[starts[1:] - 1], ends[-1:])) - before
    uniform = (users[starts] & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    position = before + (uniform * total).astype(np.int64)
    return users[starts], items[np.searchsorted(ends, position, side="right")]


@dataclass(frozen=True, eq=False)
class ItemCounts:
    """Raw counts by item: of sampled users, or of all users' bounded contributions."""

    items: NDArray[np.uint64]  # uint64[m] ascending, item codes
    counts: NDArray[np.int64]  # int64[m], sampled users, or the sum of contributions
    texts: NDArray[np.object_] | None = None  # object[m], the texts of the codes; None if codes are numbers

    def only(self, kept: NDArray[np.bool_] | NDArray[np.int64] | slice) -> ItemCounts:
        return ItemCounts(self.items[kept], self.counts[kept], None if self.texts is None else self.texts[kept])


def count_rounds(
    sample: Sample, sampler: Sampler, prefixes: Prefixes | None, levels: Sequence[int]
) -> list[ItemCounts]:
    """Returns the counts of every round, one for each level: the prefix length that it counts.

    sample: all records of its users. prefixes: None if all levels are whole items.
    """
    users, items = one_item_per_user(sample)
    drawn = sampler.drawn(users)
    item_key = sampler.key.subkey("items")
    rounds = []
    for number, level in enumerate(levels):
        counted = sum_by_item(items[drawn[:, number]])
        if sample.texts:
            counted = replace(counted, texts=texts_of(counted.items, sample.texts))
        if prefixes is not None:
            codes, shorter = prefixes.cut(counted.items, counted.texts, level, item_key)
            counted = add_counts([ItemCounts(codes, counted.counts, shorter)])
        rounds.append(counted)
    return rounds


def add_counts(counts: Iterable[ItemCounts]) -> ItemCounts:
    """Returns the sum, item by item."""
    parts = [part for part in counts if len(part.items)]
    if not parts:
        return ItemCounts(np.empty(0, np.uint64), np.empty(0, np.int64))
    items, numbers = (
        np.concatenate(arrays) for arrays in zip(*((part.items, part.counts) for part in parts), strict=True)
    )
    texts = None
    if any(part.texts is not None for part in parts):
        texts = np.concatenate([texts_of(part.items, {}) if part.texts is None else part.texts for part in parts])
    return sum_by_item(items, numbers, texts)


def texts_of(items: NDArray[np.uint64], texts: Mapping[int, str]) -> NDArray[np.object_]:
    """Returns the text of each item code, object[n].

    In a log of texts and integers, integers have no entry in `texts`.
    """
    numbers = items.astype(np.uint64).view(np.int64).tolist()
    return np.array(
        [texts.get(code, str(number)) for code, number in zip(items.tolist(), numbers, strict=True)], dtype=object
    )


def sum_by_item(
    items: NDArray[np.unsignedinteger],
    counts: NDArray[np.int64] | None = None,
    texts: NDArray[np.object_] | None = None,
) -> ItemCounts:
    """Sums counts over equal items, which have equal texts. counts: None for one each."""
    if texts is None and len(items) and int(items.max()) < 2 * len(items):  # few codes: a table is faster than a sort
        dense = np.bincount(items.astype(np.int64), counts).astype(np.int64)  # exact: far below 2^53
        present = np.flatnonzero(dense)
        return ItemCounts(present.astype(np.uint64), dense[present])
    if counts is None:
        items, counts = np.unique(items, return_counts=True)
        return ItemCounts(items.astype(np.uint64), counts.astype(np.int64))
    order = np.argsort(items, kind="stable")
    items = items[order]
    starts = run_starts(items)
    sums = np.add.reduceat(counts[order], starts)
    return ItemCounts(
        items[starts].astype(np.uint64, copy=False), sums, None if texts is None else texts[order][starts]
    )


def threshold_rounds(counts: Sequence[ItemCounts], sampling: Sampling, levels: Sequence[int]) -> list[Histogram]:
    """Returns the published part of every round; see `threshold`."""
    return [threshold(sampled, sampling, level) for sampled, level in zip(counts, levels, strict=True)]


def threshold(counts: ItemCounts, sampling: Sampling, level: int) -> Histogram:
    """Returns the published part of a round: the items with at least tau sampled users, and their sampled counts."""
    shown = counts.only(counts.counts >= sampling.threshold)
    texts = tuple(shown.texts.tolist()) if shown.texts is not None else None
    return Histogram(level, sampling, shown.items, shown.counts, texts)


@dataclass(frozen=True)
class AdmissionSampler:
    """Draws users for the admission, each independently with probability `rate`."""

    key: RunKey
    rate: float

    def drawn(self, users: NDArray[np.uint64], of: str = "admission sample") -> NDArray[np.uint64]:
        """Returns the drawn ones among users, uint64[n] keyed hashes. of: names the random bits."""
        if self.rate == 1:
            return users
        limit = np.uint64(min(int(self.rate * 2.0**64), 2**64 - 1))
        subkey = self.key.subkey(of)  # derived here, and so never pickled
        return users[random_bits(subkey, np.zeros_like(users), users)[:, 0] < limit]

    def drawn_without_id(self, users: int) -> int:
        """Returns how many of the users without an id are drawn; see `RowCounts.users_without_id`."""
        return len(self.drawn(np.arange(users, dtype=np.uint64), "admission sample of nobody"))


def mark_users(usable: Sequence[NDArray[np.uint64]], unusable: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the hashes of users with and without a usable record, marked so: uint64[n], possibly with repeats."""
    return np.concatenate([unusable & ~_USABLE, *(users | _USABLE for users in usable)])


def split_marked_users(users: NDArray[np.uint64], group_bits: int) -> list[tuple[int, NDArray[np.uint64]]]:
    """Splits marked hashes by user group, so that all records of a user meet: (group, the group's users)."""
    order, groups = by_user_group(users, group_bits)
    return [(number, users[order[rows]]) for number, rows in groups]


def merge_marked_users(users: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Returns the union of marked hashes: uint64[n], ascending; a function for `beam.CombinePerKey`."""
    ordered = np.sort(np.concatenate([np.empty(0, np.uint64), *users]))  # faster than np.unique, which hashes first
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]])


def count_marked_users(users: NDArray[np.uint64]) -> UserCounts:
    """Returns users with a usable record, and users without any, in a union of marked hashes."""
    usable = int((users & _USABLE).sum())
    everybody = len(merge_marked_users([users | _USABLE]))
    return UserCounts(usable, everybody - usable)
