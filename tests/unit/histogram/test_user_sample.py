"""Rows to items, and samples of users: against dictionaries of sets, exact laws, and a search among all borders."""

from __future__ import annotations

import datetime
import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato.schemas.locations import DROP_REASONS, NUMBERS, ItemColumns
from sfumato.transforms.histogram.item_encoding import ColumnItems, NumberBins, NumberItems
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, Sampling
from sfumato.transforms.histogram.user_sample import (
    ItemCounts,
    Sample,
    Sampler,
    add_counts,
    count_rounds,
    merge,
    one_item_per_user,
    threshold,
)
from sfumato.transforms.locations.spill import Spill, forget
from sfumato.transforms.privacy.admission import UserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.privacy.user_hashes import hash_users
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

KEY = RunKey.derive(FixedSecret(b"sample tests" * 3), {"job": "sample"})


def hashes(n: int, seed: int = 0) -> np.ndarray:
    return keyed_hash(KEY.subkey("test", seed), np.arange(n))


records = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(records, st.lists(st.integers(0, 60), max_size=4))
def test_merging_is_a_sum_and_no_cut_shows(pairs: list[tuple[int, int]], cuts: list[int]) -> None:
    users, names = hashes(9), np.arange(6, dtype=np.uint64) << np.uint64(40)
    borders = [0, *sorted(min(cut, len(pairs)) for cut in cuts), len(pairs)]
    parts = [pairs[begin:end] for begin, end in itertools.pairwise(borders)]
    samples = [
        Sample.from_arrays(users[[u for u, _ in part]], names[[i for _, i in part]]) if part else merge([])
        for part in parts
    ]
    merged = merge([*samples, merge([])])  # two at least, so that one of them is not handed back as it is
    expected = Counter((int(users[u]), int(names[i])) for u, i in pairs)
    got: Counter = Counter()
    for user, item, number in zip(merged.users.tolist(), merged.items.tolist(), merged.records.tolist(), strict=True):
        got[user, item] += number
    assert got == expected
    assert len(merged) == len(expected) or len({user for user, _ in expected}) == len(pairs)
    again = merge([merge(samples[::-1]), merge([])])
    chosen, chosen_again = (
        dict(zip(*map(np.ndarray.tolist, one_item_per_user(s)), strict=True)) for s in (merged, again)
    )
    assert chosen == chosen_again
    assert chosen.keys() == {user for user, _ in expected}
    assert all((user, item) in expected for user, item in chosen.items())


@pytest.mark.false_alarm(1e-9)
def test_an_item_is_chosen_in_proportion_to_its_records() -> None:
    users = hashes(20_000)
    sample = merge([Sample.from_arrays(users, np.full(len(users), item, np.uint64)) for item in (0, 1, 1, 1, 2, 2)])
    assert len(sample) == 3 * len(users)
    _, chosen = one_item_per_user(sample)
    seen = np.bincount(chosen.astype(int), minlength=3)
    assert stats.chisquare(seen, np.array([1, 3, 2]) / 6 * len(users)).pvalue > FLAKE_RATE


@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize("rate", [0.01, 0.25])
def test_sampler_draws_rounds_independently_at_the_rate(rate: float) -> None:
    n, rounds = 100_000, 5
    sampler = Sampler(KEY, Sampling.from_rate(rate, 10), rounds)
    drawn = sampler.drawn(hashes(n))
    assert drawn.shape == (n, rounds)
    assert np.array_equal(sampler.drawn_in_any_round(hashes(n)), drawn.any(axis=1))
    # A pair of rounds drawn from one sample would agree everywhere; independent ones fill the four cells by the rates.
    for a in range(rounds):
        for b in range(a):
            seen = np.bincount(2 * drawn[:, a] + drawn[:, b], minlength=4)
            expected = n * np.outer([1 - rate, rate], [1 - rate, rate]).ravel()
            likely = expected > 20  # below, a cell has heavier tails than the chi-square law
            wanted = expected[likely] * seen[likely].sum() / expected[likely].sum()
            assert stats.chisquare(seen[likely], wanted).pvalue > FLAKE_RATE / 10
    for wrong in (0.7 * rate, 1.3 * rate):  # the test would see a rate 30% off
        assert wrong > 1 or stats.binomtest(int(drawn.sum()), rounds * n, wrong).pvalue < FLAKE_RATE


def test_sampler_depends_on_key_user_and_round_alone() -> None:
    users = hashes(1000)
    sampler = Sampler(KEY, Sampling.from_rate(0.3, 5), 7)
    order = seeded_rng(1).permutation(1000)
    assert np.array_equal(sampler.drawn(users)[order], sampler.drawn(users[order]))
    other = Sampler(KEY.narrowed({"x": 1}), Sampling.from_rate(0.3, 5), 7)
    assert not np.array_equal(sampler.drawn(users), other.drawn(users))


# Three binomial numbers within tails of 1e-9 each, from below and above.


def test_counts_by_round_and_level_against_a_loop() -> None:
    rng = seeded_rng(5)
    n, levels = 5000, (1, 3, 3, 4)
    users, items = hashes(n), rng.integers(0, 4**4, n).astype(np.uint64)
    sampler = Sampler(KEY, Sampling.from_rate(0.4, 3), len(levels))
    drawn = sampler.drawn(users)
    found = count_rounds(Sample.from_arrays(users, items), sampler, NumberPrefixes(4, 4), levels)
    for number, (level, counts) in enumerate(zip(levels, found, strict=True)):
        expected = Counter(int(i) >> 2 * (4 - level) for i in items[drawn[:, number]])
        assert dict(zip(counts.items.tolist(), counts.counts.tolist(), strict=True)) == expected
        assert (np.diff(counts.items.astype(np.int64)) > 0).all()
    assert not np.array_equal(found[1].counts, found[2].counts)  # two rounds at one level are two samples


@pytest.mark.parametrize("spread", [1, 10**15])  # a dense table of codes, and a sort
@pytest.mark.parametrize("named", [False, True])
def test_adding_counts_adds_them_item_by_item(spread: int, named: bool) -> None:
    rng = seeded_rng(7)
    expected: Counter = Counter()
    parts = []
    for _ in range(5):
        items = np.unique(rng.integers(0, 30, 20)).astype(np.uint64) * np.uint64(spread)
        counts = rng.integers(1, 100, len(items))
        expected.update(dict(zip(items.tolist(), counts.tolist(), strict=True)))
        texts = np.array([f"item {i}" for i in items.tolist()], dtype=object)
        parts.append(ItemCounts(items, counts, texts if named else None))
    total = add_counts([*parts, add_counts([])])
    assert dict(zip(total.items.tolist(), total.counts.tolist(), strict=True)) == expected
    if named:
        assert total.texts is not None
        assert total.texts.tolist() == [f"item {i}" for i in total.items.tolist()]


def test_the_threshold_lets_tau_pass_and_tau_minus_one_not() -> None:
    counts = ItemCounts(np.array([3, 5, 9], np.uint64), np.array([7, 8, 6]), np.array(["a", "b", "c"], object))
    shown = threshold(counts, Sampling.from_rate(0.5, 7), 2)
    assert shown.items.tolist() == [3, 5]
    assert shown.sampled.tolist() == [7, 8]
    assert shown.texts == ("a", "b")
    assert shown.counts.tolist() == [14, 16]
    assert shown.stddev.tolist() == pytest.approx([(7 * 0.5) ** 0.5 / 0.5, (8 * 0.5) ** 0.5 / 0.5])


@pytest.mark.parametrize("place", ["in line", "in memory", "in a folder"])
def test_what_travels_in_a_samples_place_is_the_sample(place: str, tmp_path: Path) -> None:
    texts = {7: 'é, "quoted"', 2**63: ""}
    full = Sample.from_arrays(hashes(3), np.array([7, 2**63, 7], np.uint64), np.array([1, 70_000, 2], np.uint64), texts)
    spill = Spill({"in line": None, "in memory": "memory:test sample", "in a folder": str(tmp_path)}[place])
    for sample in (full, merge([]), Sample.from_arrays(hashes(2), np.array([1, 2], np.uint64))):
        back = Sample.unpack(sample.pack(spill))
        for name in ("users", "items", "records"):
            assert np.array_equal(getattr(back, name), getattr(sample, name))
            assert getattr(back, name).dtype == getattr(sample, name).dtype
        assert dict(back.texts) == dict(sample.texts)
    forget("memory:test sample")


KEYS = 6000


def law(counts: tuple[int, ...], sampling: Sampling, rounds: int = 1) -> dict[tuple, float]:
    """The probability of every published histogram: a tuple a round of each item's sampled count, 0 for absent."""
    per_item = []
    for count in counts:
        weights: Counter = Counter()
        for sampled in range(count + 1):
            shown = sampled if sampled >= sampling.threshold else 0
            weights[shown] += stats.binom.pmf(sampled, count, sampling.rate)
        per_item.append(list(weights.items()))
    one = {
        tuple(shown for shown, _ in outcome): float(np.prod([weight for _, weight in outcome]))
        for outcome in itertools.product(*per_item)
    }
    if rounds == 1:
        return one
    return {
        tuple(shown for shown, _ in outcome): float(np.prod([weight for _, weight in outcome]))
        for outcome in itertools.product(one.items(), repeat=rounds)
    }


@pytest.mark.false_alarm(2e-9)
@pytest.mark.slow
@pytest.mark.parametrize(("records", "rounds"), [(3, 1), (1, 2)])
def test_released_counts_follow_their_law_with_or_without_a_user(records: int, rounds: int) -> None:
    """The code's histograms under 6,000 keys: with a user, without them, and with all their records more than once.

    A second sample for a user with more records, a threshold off by one, or one sample for two rounds would each
    move the law.
    """
    sampling = Sampling.from_rate(0.4, 3)
    for holders in ((6, 4), (5, 4)):
        seen: Counter = Counter()
        for number in range(KEYS):
            key = RunKey.derive(FixedSecret(b"privacy tests" * 2), {"number": number})
            seen[released(key, holders, sampling, records, rounds)] += 1
        expected = law(holders, sampling, rounds)
        outcomes = sorted(expected, key=expected.__getitem__, reverse=True)
        assert set(seen) <= set(outcomes)
        observed = np.array([seen[outcome] for outcome in outcomes], dtype=float)
        wanted = KEYS * np.array([expected[outcome] for outcome in outcomes])
        enough = int((wanted >= 30).sum())  # the rare ones go together
        observed, wanted = (np.append(a[:enough], a[enough:].sum()) for a in (observed, wanted))
        assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > FLAKE_RATE
        other = law((holders[0] + 1, holders[1]), sampling, rounds)  # the test would notice one user more
        moved = KEYS * np.array([other[outcome] for outcome in outcomes])
        moved = np.append(moved[:enough], KEYS - moved[:enough].sum())
        assert stats.chisquare(observed, moved).pvalue < FLAKE_RATE


def released(key: RunKey, holders: tuple[int, ...], sampling: Sampling, records: int, rounds: int) -> tuple:
    """What the job's own stages publish: users with `records` records each, in two batches."""
    items = np.repeat(np.arange(len(holders), dtype=np.uint64), holders)
    users = keyed_hash(key.subkey("users"), np.arange(len(items)))
    sampler = Sampler(key, sampling, rounds)
    drawn = sampler.drawn_in_any_round(users)
    batch = Sample.from_arrays(users[drawn], items[drawn])
    counts = count_rounds(merge([batch] * records), sampler, None, (0,) * rounds)
    shown = []
    for one in counts:
        histogram = threshold(one, sampling, 0)
        found = dict(zip(histogram.items.tolist(), histogram.sampled.tolist(), strict=True))
        shown.append(tuple(found.get(item, 0) for item in range(len(holders))))
    return shown[0] if rounds == 1 else tuple(shown)


def test_users_without_a_usable_row_are_counted_once() -> None:
    def part(users: list[int], unusable: list[int]) -> Sample:
        one = Sample.from_arrays(np.array(users, np.uint64), np.full(len(users), 7, np.uint8))
        return replace(one, unusable=np.array(unusable, np.uint64))

    found = merge([part([1, 2], [3, 9]), part([4], [2, 9]), part([], [5])])
    assert found.user_counts() == UserCounts(usable=3, unusable=3)  # 3, 5 and 9: user 2 has a usable row elsewhere
    assert Sample.unpack(found.pack(Spill())).user_counts() == found.user_counts()
    twice = merge([part([1, 2], []), part([2], [])])
    assert not twice.has_each_user_once
    assert twice.user_counts() == UserCounts(usable=2)
    assert Sample.unpack(found.pack(Spill())).has_each_user_once


# --- items: every type a column may have, and every way a row can be bad ---


def everybody(users: np.ndarray) -> np.ndarray:
    return np.ones(len(users), bool)


def batch(values: pa.Array | list, users: pa.Array | list | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": values, "user_id": users or list(range(len(values)))})


def dropped(encoded) -> dict[str, int]:
    return {reason: number for reason, number in zip(DROP_REASONS, encoded.dropped, strict=True) if number}


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pa.array(["b", "a", None, "b", "é"]), ["b", "a", "b", "é"]),
        (pa.array(["b", "a", None, "b", "é"]).dictionary_encode(), ["b", "a", "b", "é"]),
        (pa.array([True, False, None, True, True]), ["true", "false", "true", "true"]),
        (pa.array([datetime.date(2026, 1, 2)] * 2 + [None]), ["2026-01-02"] * 2),
    ],
)
def test_texts_booleans_and_dates(values: pa.Array, names: list[str]) -> None:
    encoded = ColumnItems(ItemColumns("x")).encode(batch(values), KEY, everybody)
    assert [encoded.sample.texts[code] for code in encoded.sample.items.tolist()] == names
    codes = keyed_hash(KEY.subkey("items"), np.array([*names, ""], dtype=object)[:-1])
    assert np.array_equal(encoded.sample.items, codes)
    assert encoded.rows == len(values)
    assert dropped(encoded) == {"null_value": 1}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint32()])
def test_integers_stay_as_they_are(kind: pa.DataType) -> None:
    values = pa.array([5, 0, None, 7], kind)
    encoded = ColumnItems(ItemColumns("x")).encode(batch(values), KEY, everybody)
    assert encoded.sample.items.tolist() == [5, 0, 7]
    assert encoded.sample.texts == {}
    negative = ColumnItems(ItemColumns("x")).encode(batch(pa.array([-3])), KEY, everybody)
    assert negative.sample.items.astype(np.uint64).view(np.int64).tolist() == [-3]
    coded = ColumnItems(ItemColumns("x"), digits=1).encode(batch(pa.array([-3, 9, 10, None])), KEY, everybody)
    assert coded.sample.items.tolist() == [9]
    assert dropped(coded) == {"null_value": 1, "no_prefix_code": 2}
    dictionary = pa.array([4, 4, 2], kind).dictionary_encode()
    assert ColumnItems(ItemColumns("x")).encode(batch(dictionary), KEY, everybody).sample.items.tolist() == [4, 4, 2]


def test_only_drawn_users_leave_anything_behind() -> None:
    users = pa.array([10, 11, 12, 10], pa.int64())
    hashes = hash_users(users, KEY.subkey("users"))
    encoded = ColumnItems(ItemColumns("x")).encode(
        batch(pa.array(["a", "rare", "b", "c"]), users), KEY, lambda found: np.isin(found, hashes[[0, 2]])
    )
    assert np.array_equal(encoded.sample.users, hashes[[0, 2, 3]])
    assert sorted(encoded.sample.texts.values()) == ["a", "b", "c"]  # 'rare' is not even in the vocabulary


def test_number_items_clamp_what_is_outside() -> None:
    items = NumberItems(ItemColumns("x", kinds=NUMBERS), -1.0, 1.0, 2)
    values = pa.array([-1.0, -0.51, -0.5, 0.999, 1.0, 7.0, -9.0, float("inf"), float("nan"), None])
    encoded = items.encode(batch(values), KEY, everybody)
    assert encoded.sample.items.tolist() == [0, 0, 1, 3, 3, 3, 0, 3]
    assert encoded.clamped == 3
    assert dropped(encoded) == {"not_finite": 1, "null_value": 1}
    assert items.encode(batch(pa.array([0, 1, -5])), KEY, everybody).sample.items.tolist() == [2, 3, 0]


@pytest.mark.parametrize("encode", [lambda array: array, lambda array: array.dictionary_encode()])
def test_text_that_is_not_utf8_is_dropped_whoever_is_drawn(encode) -> None:
    """A run that failed for it would show whether its user was drawn."""
    offsets = pa.py_buffer(np.array([0, 1, 3, 5], np.int32))
    broken = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xff\xfe\xc3\xa9"))
    for drawn in (everybody, lambda users: np.zeros(len(users), bool)):
        encoded = ColumnItems(ItemColumns("x")).encode(batch(encode(broken)), KEY, drawn)
        assert dropped(encoded) == {"not_utf8": 1}
        assert list(encoded.sample.texts.values()) == (["a", "é"] if drawn is everybody else [])


@pytest.mark.parametrize(
    ("option", "low", "high", "bits"),
    [("range", 1, 1, 8), ("range", 2, 1, 8), ("range", math.nan, 1, 8), ("range", 0, math.inf, 8),
     ("range", -1e308, 1e308, 8), ("bits", 0, 1, 0), ("bits", 0, 1, 31)],
)  # fmt: skip
def test_number_items_reject_bad_ranges(option: str, low: float, high: float, bits: int) -> None:
    with rejects(option):
        NumberItems(ItemColumns("x", kinds=NUMBERS), low, high, bits)


# --- bins of a range ---


@pytest.mark.parametrize("edges", [(), (0.1, 0.2, 0.3), (1e-9, 2e-9, 99.999999)])
@pytest.mark.parametrize("bits", [3, 12])
def test_a_value_is_in_the_bin_between_its_borders(bits: int, edges: tuple[float, ...]) -> None:
    bins = NumberBins(0.0, 100.0, bits, edges)
    borders = bins.at(np.arange((1 << bits) + 1))
    assert (np.diff(borders) > 0).all()
    assert set(edges) <= set(borders.tolist())
    rng = seeded_rng(bits)
    ends = np.array([*edges, 0.0, 100.0])
    near = np.concatenate([np.nextafter(ends, -np.inf), ends, np.nextafter(ends, np.inf)])
    values = np.clip(np.concatenate([rng.uniform(0, 100, 5_000), near]), 0, 100)
    found = bins.of(values)
    exact = np.clip(np.searchsorted(borders, values, side="right") - 1, 0, (1 << bits) - 1)
    assert (np.abs(found - exact) <= 1).all()  # a border that is no edge may err by rounding
    for edge in edges:
        assert (found[values < edge] < bins.place(np.array([edge]))[0]).all()
        assert (found[values >= edge] >= bins.place(np.array([edge]))[0]).all()
    assert bins.place(borders) == pytest.approx(np.arange((1 << bits) + 1), abs=1e-6)
