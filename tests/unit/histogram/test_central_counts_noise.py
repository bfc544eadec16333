"""What is published of exact counts: noise on those that the data name, or on all public ones, and the most of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sfumato.transforms.histogram.central_counts import CentralCountPlan, noisy_levels
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey

KEY = RunKey.derive(FixedSecret(b"noisy histograms" * 2), {"job": "noisy"})
COUNTS = ItemCounts(np.arange(1, 400, 2, dtype=np.uint64), np.arange(1, 201))


def test_counts_from_the_threshold_on_are_published_with_the_items_own_noise() -> None:
    plan = CentralCountPlan(epsilon=2.0, delta=1e-6)
    (shown,) = noisy_levels([COUNTS], plan, KEY, (0,)).levels
    noise = plan.noises[0]
    assert (shown.noisy >= noise.threshold).all()
    exact = dict(zip(COUNTS.items.tolist(), COUNTS.counts.tolist(), strict=True))
    errors = shown.noisy - np.array([exact[item] for item in shown.items.tolist()])
    assert 0 < np.abs(errors).max() <= noise.limit
    assert {item for item, count in exact.items() if count >= noise.threshold + noise.limit} <= set(
        shown.items.tolist()
    )
    # The noise of an item depends on no other item.
    (fewer,) = noisy_levels([COUNTS.only(COUNTS.items > 200)], plan, KEY, (0,)).levels
    there = shown.items > 200
    assert (fewer.items == shown.items[there]).all()
    assert (fewer.noisy == shown.noisy[there]).all()


def test_another_noise_another_round_or_key_draws_anew() -> None:
    plan = CentralCountPlan(epsilon=2.0, delta=1e-6, domains=(None, None))
    even = replace(plan, domains=(None,))
    drawn = [*noisy_levels([COUNTS, COUNTS], plan, KEY, (0, 0)).levels]
    drawn += noisy_levels([COUNTS], even, KEY, (0,)).levels
    drawn += noisy_levels([COUNTS], replace(even, epsilon=2.001), KEY, (0,)).levels
    drawn += noisy_levels([COUNTS], even, KEY.narrowed({"other": 1}), (0,)).levels
    tops = [tuple((one.noisy[-20:] - COUNTS.counts[-20:]).tolist()) for one in drawn]
    assert len(set(tops)) == len(tops)


def test_public_items_are_all_published_present_or_not() -> None:
    plan = CentralCountPlan(epsilon=1.0, domains=(1024,), bound=ItemBound(2))
    (shown,) = noisy_levels([COUNTS], plan, KEY, (5,)).levels
    assert shown.items.tolist() == list(range(1024))
    exact = np.zeros(1024)
    exact[COUNTS.items.astype(int)] = COUNTS.counts
    errors = shown.counts - exact
    # Absent items have the same noise: a chi-square bound of 6.1 standard deviations (probability below 1e-9).
    for part in (exact > 0, exact == 0):
        assert abs(errors[part].mean()) < 6.1 * shown.stddev[0] / np.sqrt(part.sum())
        assert 0.5 < errors[part].std() / shown.stddev[0] < 1.6
    assert (shown.noisy < 0).any()


def test_top_keeps_the_largest_noisy_counts_and_says_what_it_cut() -> None:
    plan = CentralCountPlan(epsilon=2.0, delta=1e-6)
    everything = noisy_levels([COUNTS], plan, KEY, (0,))
    kept = noisy_levels([COUNTS], plan, KEY, (0,), top=7)
    order = np.sort(everything.levels[0].noisy)[::-1]
    assert sorted(kept.levels[0].noisy.tolist(), reverse=True) == order[:7].tolist()
    assert (everything.levels[0].cut, kept.levels[0].cut) == (None, order[7])
    assert noisy_levels([COUNTS], plan, KEY, (0,), top=10**6).levels[0].cut is None


@pytest.mark.parametrize("domain", [None, 64])
def test_nobody_is_an_empty_or_a_noisy_histogram(domain: int | None) -> None:
    nobody = ItemCounts(np.empty(0, np.uint64), np.empty(0, np.int64))
    (shown,) = noisy_levels([nobody], CentralCountPlan(domains=(domain,)), KEY, (0,)).levels
    assert len(shown) == (domain or 0)
    assert [len(one) for one in shown.intervals] == [len(shown)] * 2
