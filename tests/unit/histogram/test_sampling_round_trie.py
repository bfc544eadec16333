"""Prefix codes and the tries that grow of them."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.histogram.sampling_round import (
    WHOLE,
    Histogram,
    NumberPrefixes,
    Sampling,
    TextPrefixes,
    grow_trie,
    spread_levels,
)
from sfumato.transforms.privacy.keys import keyed_hash
from tests.rejections import rejects
from tests.seeds import seeded_rng

KEY = b"k" * 32
SAMPLING = Sampling.from_rate(0.5, 10)


def numbers(level: int, items: list[int], sampled: list[int] | None = None) -> Histogram:
    counts = np.array(sampled or [10] * len(items), dtype=np.int64)
    return Histogram(level, SAMPLING, np.array(items, dtype=np.uint64), counts)


def texts(level: int, names: list[str]) -> Histogram:
    codes = keyed_hash(KEY, np.array([*names, ""], dtype=object)[:-1])
    order = np.argsort(codes)
    return Histogram(level, SAMPLING, codes[order], np.full(len(names), 10), tuple(np.array(names)[order].tolist()))


@pytest.mark.parametrize(("base", "depth"), [(4, 20), (10, 9), (2, 30)])
def test_prefixes_of_numbers_are_their_leading_digits(base: int, depth: int) -> None:
    items = seeded_rng(0).integers(0, base**depth, 500).astype(np.uint64)
    for level in (1, depth // 2, depth):
        codes, names = NumberPrefixes(base, depth).cut(items, None, level, KEY)
        assert names is None
        assert codes.tolist() == [int(np.base_repr(i, base).zfill(depth)[:level], base) for i in items.tolist()]
    assert NumberPrefixes(base, depth).cut(items, None, WHOLE, KEY)[0] is items


def test_prefixes_of_texts_are_their_first_characters() -> None:
    names = np.array(["café", "cat", "c", "", "日本橋"], dtype=object)
    codes, cut = TextPrefixes(8).cut(keyed_hash(KEY, names), names, 2, KEY)
    assert cut is not None
    assert cut.tolist() == ["ca", "ca", "c", "", "日本"]
    assert codes[0] == codes[1]
    assert len(set(codes.tolist())) == 4
    assert np.array_equal(codes, keyed_hash(KEY, cut))


def test_a_prefix_without_its_parent_is_dropped_and_all_below_it() -> None:
    top, middle = numbers(1, [0, 2]), numbers(2, [1, 5, 8, 9])  # 5 lies under 1, which was not published
    bottom = numbers(3, [4, 6, 20, 35], [11, 30, 99, 20])  # 20 lies under 5
    trie = grow_trie([top, middle, bottom], NumberPrefixes(4, 3))
    assert [one.items.tolist() for one in trie.levels] == [[0, 2], [1, 8, 9], [4, 6, 35]]
    assert [rows.tolist() for rows in trie.parents] == [[0, 1, 1], [0, 0, 1]]
    assert trie.cut is None
    assert trie.users == 40
    best = grow_trie([top, middle, bottom], NumberPrefixes(4, 3), top=2)
    assert best.cut == 11
    assert best.users == 40
    assert best.levels[-1].items.tolist() == [6, 35]
    assert best.parents[-1].tolist() == [0, 1]
    assert best.levels[0] is not None
    assert best.levels[1].items.tolist() == [1, 8, 9]  # what was paid for is published


def test_tries_of_texts() -> None:
    levels = [texts(1, ["c", "b"]), texts(3, ["caf", "bar", "dog", "c"])]
    trie = grow_trie(levels, TextPrefixes(3))
    shown = trie.levels[1].texts
    assert shown is not None
    assert sorted(shown) == ["bar", "c", "caf"]
    above = trie.levels[0].texts
    assert above is not None
    assert [above[row] for row in trie.parents[0]] == [name[0] for name in shown]


def test_nothing_published_anywhere() -> None:
    trie = grow_trie([numbers(1, []), numbers(2, [3])], NumberPrefixes(4, 2))
    assert [len(one) for one in trie.levels] == [0, 0]
    empty = Histogram(1, SAMPLING, np.empty(0, np.uint64), np.empty(0, np.int64))
    assert not any(map(len, grow_trie([empty, texts(2, ["ab"])], TextPrefixes(2)).levels))


def test_levels_are_spread_up_to_the_depth() -> None:
    assert spread_levels(12, 3) == (4, 8, 12)
    assert spread_levels(10, 3) == (4, 7, 10)
    assert spread_levels(5, 5) == (1, 2, 3, 4, 5)
    for levels in (0, 6):
        with rejects("levels"):
            spread_levels(5, levels)


def test_codes_that_do_not_fit_are_refused() -> None:
    with rejects("depth"):
        NumberPrefixes(10, 20)
    with rejects("depth"):
        TextPrefixes(0)
