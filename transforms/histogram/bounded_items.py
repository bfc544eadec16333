"""Bounded contributions of all users to counts of items: at most K items a user, at most R records an item. Pure.

Which items of a user count is a function of the run's key, the user's id and the user's own records. So a retried
bundle keeps the same items, and no other user, no order and no file has an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.histogram.sampling_round import check_count
from sfumato.transforms.histogram.trie import WHOLE, Prefixes
from sfumato.transforms.histogram.user_sample import ItemCounts, Sample, add_pairs, run_starts, sum_by_item, texts_of
from sfumato.transforms.privacy.keys import RunKey, random_bits


@dataclass(frozen=True)
class ItemBound:
    """What a user may add to the counts of one round.

    Attributes:
        max_items: the most distinct items of a user that count, >= 1.
        max_records: the most that a user adds to the count of one item, >= 1. With 1, users are counted; with more,
            the records of each user and item, up to this many.

    Raises:
        RequestError: a value is out of range.
    """

    max_items: int = 1
    max_records: int = 1

    def __post_init__(self) -> None:
        check_count("max_items_per_user", self.max_items)
        check_count("max_records_per_item", self.max_records)


@dataclass(frozen=True)
class Everybody:
    """Draws every user, where Sampler draws a sample."""

    key: RunKey
    draws_all: ClassVar[bool] = True

    def drawn_in_any_round(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """All true: bool[n]."""
        return np.ones(len(users), dtype=bool)


def choose_items(sample: Sample, max_items: int, key: RunKey) -> Sample:
    """The distinct items of each user, at most `max_items` of them: a keyed draw without replacement.

    Each draw takes one of the user's remaining items with a probability in proportion to its records. These are the
    items with the smallest keyed exponential variates of rate `records` (Efraimidis and Spirakis, Weighted random
    sampling with a reservoir, Information Processing Letters 97, 2006).

    Args:
        sample: all records of its users.
        max_items: >= 1.
        key: of the counts.
    """
    pairs = add_pairs(sample)  # ordered by user where a user has several items
    if pairs.has_each_user_once:
        return pairs
    users = pairs.users
    starts = run_starts(users)
    sizes = np.diff(starts, append=len(users))
    if sizes.max(initial=0) <= max_items:
        return pairs
    bits = random_bits(key.subkey("chosen items"), users, pairs.items.astype(np.uint64))[:, 0]
    uniform = ((bits >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # in (0, 1]
    order = np.lexsort((-np.log(uniform) / pairs.records, users))
    rank = np.arange(len(users)) - np.repeat(starts, sizes)
    kept = np.sort(order[rank < max_items])
    return replace(pairs, users=users[kept], items=pairs.items[kept], records=pairs.records[kept])


def count_items(
    sample: Sample, bound: ItemBound, key: RunKey, prefixes: Prefixes | None, levels: Sequence[int]
) -> list[ItemCounts]:
    """The counts of every round, one for each level: of all users, with bounded contributions.

    At each level a user adds min(records, max_records) to each prefix of their chosen items, so to at most `max_items`
    prefixes.

    Args:
        sample: all records of its users.
        bound: of each user's contributions.
        key: of the counts.
        prefixes: the prefix code; None if all levels are whole items.
        levels: the prefix length that each round counts.
    """
    chosen = choose_items(sample, bound.max_items, key)
    rounds = []
    for level in levels:
        shorter = chosen if prefixes is None or level == WHOLE else _cut(chosen, prefixes, level, key.subkey("items"))
        amounts = None if bound.max_records == 1 else np.minimum(shorter.records.astype(np.int64), bound.max_records)
        counted = sum_by_item(shorter.items, amounts)
        if shorter.texts:
            texts = texts_of(counted.items, shorter.texts)
            counted = replace(counted, texts=texts)
        rounds.append(counted)
    return rounds


def _cut(sample: Sample, prefixes: Prefixes, level: int, item_key: bytes) -> Sample:
    """The sample with prefixes in place of items, each user's records of one prefix added up."""
    if not sample.texts:
        codes, _ = prefixes.cut(sample.items.astype(np.uint64), None, level, item_key)
        shorter_items = Sample.from_arrays(sample.users, codes, sample.records)
        return add_pairs(replace(shorter_items, has_each_user_once=sample.has_each_user_once))
    items, places = np.unique(sample.items.astype(np.uint64), return_inverse=True)
    texts = texts_of(items, sample.texts)
    codes, shorter = prefixes.cut(items, texts, level, item_key)
    names = {} if shorter is None else dict(zip(codes.tolist(), shorter.tolist(), strict=True))
    return add_pairs(Sample.from_arrays(sample.users, codes[places], sample.records, names))
