"""Distribution functions: exact on samples without loss, within their own error on real ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sfumato.transforms.histogram.curve import banded, build_hierarchy, check_shares, quantile, search_quantiles
from sfumato.transforms.histogram.item_encoding import NumberBins
from sfumato.transforms.histogram.sampling_round import Histogram, NumberPrefixes, Sampling, grow_trie
from sfumato.transforms.histogram.user_sample import ItemCounts, add_counts, threshold
from tests.rejections import rejects
from tests.seeds import seeded_rng

BITS = 8
NEARLY_ALL = Sampling(2**32 - 1, 1)  # what is left of sampling's error is 1.5e-5 of a user's square root


def counts_of(values: np.ndarray) -> ItemCounts:
    items, counts = np.unique(values, return_counts=True)
    return ItemCounts(items.astype(np.uint64), counts)


def draw(values: np.ndarray, sampling: Sampling, rng: np.random.Generator) -> ItemCounts:
    return counts_of(values[rng.random(len(values)) < sampling.rate])


def trie_of(values: np.ndarray, sampling: Sampling, levels: tuple[int, ...], seed: int | None = None):
    rng = seeded_rng(seed)
    shown = []
    for level in levels:
        sampled = counts_of(values) if seed is None else draw(values, sampling, rng)
        coarse = counts_of(np.repeat(sampled.items.astype(np.int64) >> (BITS - level), sampled.counts))
        shown.append(threshold(coarse, sampling, level))
    return grow_trie(shown, NumberPrefixes(2, BITS))


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    rng = seeded_rng(3)
    return np.clip(rng.normal(90, 30, 60_000), 0, 255).astype(np.int64)


def test_a_hierarchy_without_sampling_is_the_empirical_distribution(values: np.ndarray) -> None:
    hierarchy = build_hierarchy(trie_of(values, NEARLY_ALL, (3, 5, 8)), NumberBins(0.0, 256.0, BITS))
    assert hierarchy.users == pytest.approx(len(values))
    edges, below = hierarchy.edges, hierarchy.below
    assert below == pytest.approx([(values < edge).sum() for edge in edges], abs=1e-3)
    assert (np.diff(edges) > 0).all()
    answer = hierarchy.answer(40, 100)
    assert answer.users == pytest.approx(((values >= 40) & (values < 100)).sum(), abs=1e-3)
    middle = quantile(hierarchy.curve(), 0.5)
    assert middle.value == pytest.approx(np.median(values) + 0.5, abs=0.5)
    assert middle.low <= middle.value <= middle.high


@pytest.mark.parametrize("levels", [(8,), (2, 5, 8), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_errors_are_as_large_as_they_claim(values: np.ndarray, levels: tuple[int, ...]) -> None:
    """Standardised errors of range counts over 60 samples: their variance is 1 within the law of a chi-square.

    The stated deviation may be too large by the correlation of a range's two ends, not too small.
    """
    sampling = Sampling.from_rate(0.2, 5)
    ranges = [(0.0, 80.0), (64.0, 128.0), (90.0, 130.0)]
    truth = np.array([((values >= low) & (values < high)).sum() for low, high in ranges])
    errors = []
    for seed in range(60):
        hierarchy = build_hierarchy(trie_of(values, sampling, levels, seed), NumberBins(0.0, 256.0, BITS))
        answers = [hierarchy.answer(low, high) for low, high in ranges]
        errors.append([(a.users - t) / a.stddev for a, t in zip(answers, truth, strict=True)])
    mean_square = np.square(errors).mean(axis=0)
    assert (mean_square < stats.chi2.isf(1e-9, 60) / 60).all(), mean_square
    assert (mean_square > 0.2).all(), mean_square  # and not several times too large


def test_missing_bins_get_what_their_parent_has_left() -> None:
    """Node 0 of two has 100 users, of whom its child 0 shows 60: the 40 others are spread over child 1, unseen."""
    sampling = NEARLY_ALL
    top = Histogram(1, sampling, np.array([0, 1], np.uint64), np.array([100, 50]))
    low = Histogram(2, sampling, np.array([0], np.uint64), np.array([60]))
    trie = grow_trie([top, low], NumberPrefixes(2, 2))
    hierarchy = build_hierarchy(trie, NumberBins(0.0, 4.0, 2))
    assert hierarchy.edges.tolist() == [0, 1, 2, 4]  # node 1 was not divided
    assert hierarchy.below == pytest.approx([0, 60, 100, 150], rel=1e-6)
    assert hierarchy.answer(0.5, 1.0).users == pytest.approx(30, rel=1e-6)


def test_rounding_leaves_no_negative_variance() -> None:
    """Many users of few values: a variance of 0 came out as -2e-10, and the run failed after its charge."""
    sampling, leaves = Sampling.from_rate(0.3, 20), np.arange(5, 256, 7, dtype=np.uint64)
    for seed in (21, 34, 42):
        generator, shown = seeded_rng(seed), []
        for level in (3, 6, 8):
            drawn = generator.binomial(30_000, sampling.rate, len(leaves))
            counts = add_counts([ItemCounts(leaves >> np.uint64(BITS - level), drawn)])
            shown.append(threshold(counts, sampling, level))
        hierarchy = build_hierarchy(grow_trie(shown, NumberPrefixes(2, BITS)), NumberBins(0.0, 1.0, BITS))
        assert hierarchy.path.min() >= 0
        assert np.isfinite(hierarchy.curve().low).all()


def test_a_search_without_sampling_finds_the_bin(values: np.ndarray) -> None:
    rounds = [counts_of(values)] * BITS
    shares = (0.05, 0.5, 0.5, 0.93)
    search = search_quantiles(rounds, NEARLY_ALL, shares, 0.0, 256.0)
    for share, found in zip(shares, search.quantiles, strict=True):
        place = int(found.value)
        assert (values < place).mean() < share <= (values < place + 1).mean()
        assert found.share == share
    assert search.users == pytest.approx([len(values)] * BITS)
    assert search.published[0] == 2  # all searches begin at one split


def test_a_search_over_samples_errs_as_it_says(values: np.ndarray) -> None:
    sampling = Sampling.from_rate(0.1, 12)
    rng = seeded_rng(5)
    inside = 0
    for _ in range(40):
        search = search_quantiles([draw(values, sampling, rng) for _ in range(BITS)], sampling, (0.3, 0.8), 0.0, 256.0)
        for found in search.quantiles:
            true = np.quantile(values, found.share)
            inside += found.low - 1 <= true <= found.high + 1  # a bin is 1 wide
    assert inside >= stats.binom.ppf(1e-9, 80, 0.95)


def test_a_search_reads_only_what_passes_the_threshold() -> None:
    """Nine users below every split are not published by a threshold of ten, so they cannot move the search."""
    sampling = Sampling(2**31, 10)
    few = [ItemCounts(np.array([0, 255], np.uint64), np.array([9, 500]))] * BITS
    none = [ItemCounts(np.array([255], np.uint64), np.array([500]))] * BITS
    found, expected = (search_quantiles(r, sampling, (0.01,), 0.0, 256.0) for r in (few, none))
    assert found.quantiles == expected.quantiles
    assert np.array_equal(found.curve.share, expected.curve.share)


def test_a_search_ends_where_a_round_publishes_nothing() -> None:
    """It says what it has found: nothing at all, or the part of the range that it has come to."""
    sampling = Sampling(2**31, 10)
    nothing = ItemCounts(np.array([0], np.uint64), np.array([9]))
    empty = search_quantiles([nothing] * BITS, sampling, (0.5,), 0.0, 1.0)
    assert (empty.quantiles, empty.users, empty.published) == ((), (0.0,) * BITS, (0,) * BITS)
    assert (empty.curve.low == 0).all()
    assert (empty.curve.high == 1).all()
    some = ItemCounts(np.array([10, 200], np.uint64), np.array([100, 300]))  # a quarter lies below 128
    search = search_quantiles([some, some, *[nothing] * (BITS - 2)], sampling, (0.5,), 0.0, 256.0)
    (found,) = search.quantiles
    assert found.value == 224  # the middle of [192, 256), the second half of the second half
    assert found.low <= 200 <= found.high
    assert search.published == (2, 2, *[0] * (BITS - 2))


def test_an_empty_trie_is_a_distribution_of_which_nothing_is_known() -> None:
    empty = Histogram(3, Sampling(2**31, 10), np.empty(0, np.uint64), np.empty(0, np.int64))
    finer = Histogram(8, Sampling(2**31, 10), np.array([5], np.uint64), np.array([20]))
    hierarchy = build_hierarchy(grow_trie([empty, finer], NumberPrefixes(2, BITS)), NumberBins(0.0, 256.0, BITS))
    assert hierarchy.users == 0
    curve = hierarchy.curve()
    assert (curve.value.tolist(), curve.low.tolist(), curve.high.tolist()) == ([0, 256], [0, 0], [1, 1])


def test_the_band_is_ordered_and_encloses_all_that_may_be_between_two_points() -> None:
    share = np.array([0, 0.4, 0.5, 0.9, 1])
    curve = banded(np.arange(5.0), share, np.array([0, 0.1, 0.49, 0.7, 1]), np.array([0, 0.7, 0.51, 1.1, 1]))
    assert (np.diff(curve.low) >= 0).all()
    assert (np.diff(curve.high) >= 0).all()
    assert (curve.low <= curve.share).all()
    assert (curve.share <= curve.high).all()
    # On (1, 2) the true curve may jump at once or at the end.
    inside = (curve.value >= 1) & (curve.value <= 2)
    assert curve.low[inside].min() <= 0.1
    assert curve.high[inside].max() >= 0.51
    found = quantile(curve, 0.45)
    assert (found.low, found.high) == (0.0, 2.0)
    assert 1 < found.value < 2


@pytest.mark.parametrize("users", [800, 3000])
def test_the_band_holds_the_truth_where_much_is_hidden(users: int) -> None:
    """Few users over a wide range: most stretches are not published, and the band says so."""
    rng = seeded_rng(1)
    values = np.clip(rng.normal(90, 30, users), 0, 255).astype(np.int64)
    sampling = Sampling.from_rate(0.26, 24)
    edges = np.arange(257.0)
    truth = np.array([(values < edge).mean() for edge in edges])
    missed = 0.0
    for seed in range(20):
        hierarchy = build_hierarchy(trie_of(values, sampling, (4, 6, 8), seed), NumberBins(0.0, 256.0, BITS))
        search = search_quantiles([draw(values, sampling, rng) for _ in range(BITS)], sampling, (0.1, 0.5), 0.0, 256.0)
        for curve in (hierarchy.curve(), search.curve):
            # The band at a value: the widest of the two points there.
            low = [curve.low[curve.value <= edge][-1] for edge in edges]
            high = [curve.high[curve.value >= edge][0] for edge in edges]
            missed += ((truth < np.array(low) - 1e-9) | (truth > np.array(high) + 1e-9)).mean() / 40
    assert missed < 0.05
    assert (hierarchy.curve().high - hierarchy.curve().low).max() > 0.02


@pytest.mark.parametrize("shares", [(), (0.0,), (0.5, 1.0), (float("nan"),)])
def test_shares_outside_the_open_interval_are_refused(shares: tuple[float, ...]) -> None:
    with rejects("quantiles"):
        check_shares(shares)
