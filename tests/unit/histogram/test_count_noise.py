"""Noise and thresholds of central counts against enumerated distributions, and what is published of exact counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sfumato.transforms.histogram.central_counts import MAX_DENSE_ITEMS, CentralCountPlan, noisy_levels
from sfumato.transforms.histogram.count_noise import ItemBound, choose_noise
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.histogram.oracle import count_law, counts_delta

KEY = RunKey.derive(FixedSecret(b"count noise test" * 2), {"job": "noise"})
KINDS = ("laplace", "truncated", "gaussian")
ITEMS = keyed_hash(KEY.subkey("items"), np.arange(20_000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("epsilon", "delta", "items", "records"),
    [(1.0, 1e-6, 1, 1), (1.0, 1e-3, 1, 3), (2.0, 1e-3, 2, 2), (3.0, 1e-3, 3, 1)],
)
def test_delta_is_the_largest_divergence_of_a_users_items(
    kind: str, epsilon: float, delta: float, items: int, records: int
) -> None:
    bound = ItemBound(items, records)
    noise = choose_noise(epsilon, delta, bound, kind)
    exact = counts_delta(noise, bound, epsilon, 160)
    assert exact <= noise.delta * (1 + 1e-9) <= delta * (1 + 1e-9)
    # The Gaussian's bound is above the truth by a factor 1 + 1 / (24 sigma^2) in the noise.
    assert exact >= (0.75 if kind == "gaussian" else 1 - 1e-6) * noise.delta
    lower = replace(noise, threshold=noise.threshold - 1)  # any other item that one user holds would be shown
    assert counts_delta(lower, bound, epsilon, 160) > delta


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("items", [1, 2])
def test_delta_of_public_items(kind: str, items: int) -> None:
    bound = ItemBound(items, 2)
    delta = 0.0 if kind == "laplace" else 1e-3
    noise = choose_noise(1.5, delta, bound, kind, public=True)
    assert (noise.delta, noise.threshold, noise.hidden_count()) == (delta, None, 0)
    exact = counts_delta(noise, bound, 1.5, 160)
    assert exact <= delta + 1e-12
    assert counts_delta(noise, bound, 1.4, 160) > delta
    assert exact >= 0.75 * delta


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("items", "records"), [(1, 1), (3, 2)])
def test_noise_has_its_distribution(kind: str, items: int, records: int) -> None:
    """Also a test of the test: noise of 0.7 or 1.4 times the size fails."""
    noise = choose_noise(2.0, 0.02, ItemBound(items, records), kind)
    drawn = noise.draw(KEY, "test", ITEMS)
    k = np.arange(-400, 401)
    law = noise.survival(k) - noise.survival(k + 1)
    assert law.sum() == pytest.approx(1)
    assert noise.stddev == pytest.approx(np.sqrt(law @ k**2), rel=1e-9)
    assert np.allclose(law, count_law(replace(noise, threshold=None), 0, 400)[1:], atol=1e-12)
    common = np.abs(k) <= np.abs(k[law * len(ITEMS) > 20]).max()

    def p_value(values: np.ndarray) -> float:
        seen = np.array([(values == one).sum() for one in k[common]])
        rest = len(values) - seen.sum()
        left = max(1 - law[common].sum(), 0.0)
        if left * len(values) < 5:
            return float(stats.chisquare(seen, law[common] / law[common].sum() * seen.sum()).pvalue)
        expected = np.append(law[common], left) * len(values)
        return float(stats.chisquare(np.append(seen, rest), expected / expected.sum() * len(values)).pvalue)

    assert p_value(drawn) > FLAKE_RATE
    for wrong in (0.7, 1.4):
        assert p_value(np.rint(drawn * wrong).astype(np.int64)) < FLAKE_RATE
    if noise.limit is not None:
        assert np.abs(drawn).max() == noise.limit
    some = seeded_rng(0).permutation(len(ITEMS))[:500]
    assert (noise.draw(KEY, "test", ITEMS[some]) == drawn[some]).all()  # of the item alone
    assert (noise.draw(KEY, "other", ITEMS) != drawn).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("epsilon", "items"), [(0.1, 1), (0.5, 4)])
def test_intervals_hold_for_every_published_count(kind: str, epsilon: float, items: int) -> None:
    noise = choose_noise(epsilon, 1e-8, ItemBound(items), kind)
    reach = 12 * noise.quantile(0.16) + 2 * noise.threshold
    y = np.arange(noise.threshold, noise.threshold + 2 * reach)
    low, high = noise.intervals(y)
    assert (low >= 1).all()
    assert ((low <= y) & (y <= high)).all()

    def covered(count: int) -> float:
        law = noise.survival(y - count) - noise.survival(y + 1 - count)
        return float(law[(low <= count) & (count <= high)].sum() / law.sum())

    likely = [one for one in (1, 2, noise.threshold // 2) if noise.survival(np.array(noise.threshold - one)) > 1e-12]
    for count in (*likely, *range(noise.threshold - 3, noise.threshold + 60, 7), reach):
        assert covered(count) >= 0.95 - 1e-6
    law = noise.survival(y - reach) - noise.survival(y + 1 - reach)
    plain = law[np.abs(y - reach) <= noise.quantile(0.025) - 1].sum()
    assert covered(reach) < plain + 0.03  # far from the threshold no wider than they need to be


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_intervals_of_public_items(kind: str) -> None:
    noise = choose_noise(0.3, 1e-6, ItemBound(), kind, public=True)
    k = np.arange(-3000, 3000)
    law = noise.survival(k) - noise.survival(k + 1)
    low, high = noise.intervals(k)
    assert 0.95 <= law[(low <= 0) & (high >= 0)].sum() <= 0.965
    margin = noise.simultaneous(1000)
    assert 0.95 <= (1 - law[np.abs(k) > margin].sum()) ** 1000 <= 0.97


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_count_is_absent_in_a_hundredth_of_cases(kind: str) -> None:
    noise = choose_noise(0.5, 1e-6, ItemBound(2), kind)
    hidden = noise.hidden_count()
    shown = noise.survival(noise.threshold - np.array([hidden, hidden + 1]))
    assert shown[0] <= 0.99 < shown[1]
    assert noise.hidden_count(threshold=noise.threshold + 9) == hidden + 9


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-5, 1e-300), (1.0, 1e-14), (50.0, 0.99)])
def test_extreme_budgets_are_kept(epsilon: float, delta: float) -> None:
    for kind in KINDS if delta > 1e-15 else KINDS[:2]:
        noise = choose_noise(epsilon, delta, ItemBound(3, 2), kind)
        assert noise.delta <= delta
        assert noise.threshold > 2
        assert noise.hidden_count() >= 0
        low, high = noise.intervals(np.array([noise.threshold]))
        assert 1 <= low[0] <= noise.threshold <= high[0]


@pytest.mark.parametrize("delta", [1e-300, 1e-16, 1e-15])
@pytest.mark.parametrize("items", [1, 20])
def test_choose_noise_keeps_a_tiny_delta(delta: float, items: int) -> None:
    """Its draws end at 10 sigma: with a threshold there, delta would be 3e-24 for each item, whatever was asked for."""
    chosen = choose_noise(0.1, delta, ItemBound(items))
    assert 0 < chosen.delta <= delta
    assert (chosen.kind == "gaussian") == (delta >= 1e-15 and items > 1)


def test_auto_is_the_one_that_hides_least() -> None:
    for items, best in ((1, "truncated"), (2, "truncated"), (4, "gaussian"), (30, "gaussian")):
        found = {kind: choose_noise(1.0, 1e-8, ItemBound(items), kind) for kind in KINDS}
        chosen = choose_noise(1.0, 1e-8, ItemBound(items))
        assert chosen == found[best]
        assert chosen.hidden_count() == min(one.hidden_count() for one in found.values())
        assert found["truncated"].threshold <= found["laplace"].threshold


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *(("epsilon", {"epsilon": bad}) for bad in (0.0, float("nan"), 1e-9)),
        *(("delta", {"delta": bad}) for bad in (0.0, 1.0, float("nan"))),
        ("noise", {"kind": "uniform"}),
        ("noise", {"kind": "truncated", "public": True}),
        *(("noise", {"kind": "gaussian", **more}) for more in ({"delta": 1e-30}, {"public": True, "delta": 0.0})),
    ],
)
def test_choose_noise_rejects_bad_values(option: str, wrong: dict) -> None:
    with rejects(option):
        choose_noise(**{"epsilon": 1.0, "delta": 1e-8, "bound": ItemBound(), **wrong})


# --- noisy levels ---


LEVELS_KEY = RunKey.derive(FixedSecret(b"noisy histograms" * 2), {"job": "noisy"})
COUNTS = ItemCounts(np.arange(1, 400, 2, dtype=np.uint64), np.arange(1, 201))


def test_noisy_levels_publish_counts_from_the_threshold_on() -> None:
    plan = CentralCountPlan(epsilon=2.0, delta=1e-6)
    (shown,) = noisy_levels([COUNTS], plan, LEVELS_KEY, (0,)).levels
    noise = plan.noises[0]
    assert (shown.noisy >= noise.threshold).all()
    exact = dict(zip(COUNTS.items.tolist(), COUNTS.counts.tolist(), strict=True))
    errors = shown.noisy - np.array([exact[item] for item in shown.items.tolist()])
    assert 0 < np.abs(errors).max() <= noise.limit
    assert {item for item, count in exact.items() if count >= noise.threshold + noise.limit} <= set(
        shown.items.tolist()
    )
    # The noise of an item depends on no other item.
    (fewer,) = noisy_levels([COUNTS.only(COUNTS.items > 200)], plan, LEVELS_KEY, (0,)).levels
    there = shown.items > 200
    assert (fewer.items == shown.items[there]).all()
    assert (fewer.noisy == shown.noisy[there]).all()


def test_noisy_levels_bind_noise_to_plan_round_and_key() -> None:
    plan = CentralCountPlan(epsilon=2.0, delta=1e-6, domains=(None, None))
    even = replace(plan, domains=(None,))
    large = replace(COUNTS, counts=COUNTS.counts + 400)  # above the threshold and the noise of any round: all are shown
    drawn = [*noisy_levels([large, large], plan, LEVELS_KEY, (0, 0)).levels]
    drawn += noisy_levels([large], even, LEVELS_KEY, (0,)).levels
    drawn += noisy_levels([large], replace(even, epsilon=2.001), LEVELS_KEY, (0,)).levels
    drawn += noisy_levels([large], even, LEVELS_KEY.narrowed({"other": 1}), (0,)).levels
    noises = [tuple((one.noisy - large.counts).tolist()) for one in drawn]
    assert len(set(noises)) == len(noises)  # two draws of 200 are equal with a probability of 0.6^200


@pytest.mark.false_alarm(1e-9)
def test_public_items_are_all_published_present_or_not() -> None:
    plan = CentralCountPlan(epsilon=1.0, domains=(1024,), bound=ItemBound(2))
    (shown,) = noisy_levels([COUNTS], plan, LEVELS_KEY, (5,)).levels
    assert shown.items.tolist() == list(range(1024))
    exact = np.zeros(1024)
    exact[COUNTS.items.astype(int)] = COUNTS.counts
    errors = shown.counts - exact
    # Absent items have the same noise. Means of 200 Laplace variables or more: 7 deviations have a probability below
    # 1e-10. Of 200 squares the mean is beyond 0.25 or 2.56 with less.
    for part in (exact > 0, exact == 0):
        assert abs(errors[part].mean()) < 7 * shown.stddev[0] / np.sqrt(part.sum())
        assert 0.5 < errors[part].std() / shown.stddev[0] < 1.8
    assert (shown.noisy < 0).any()


def test_noisy_levels_keep_the_top_and_state_what_they_cut() -> None:
    plan = CentralCountPlan(epsilon=2.0, delta=1e-6)
    everything = noisy_levels([COUNTS], plan, LEVELS_KEY, (0,))
    kept = noisy_levels([COUNTS], plan, LEVELS_KEY, (0,), top=7)
    order = np.sort(everything.levels[0].noisy)[::-1]
    assert sorted(kept.levels[0].noisy.tolist(), reverse=True) == order[:7].tolist()
    assert (everything.levels[0].cut, kept.levels[0].cut) == (None, order[7])
    assert noisy_levels([COUNTS], plan, LEVELS_KEY, (0,), top=10**6).levels[0].cut is None


# --- plans ---


@pytest.mark.parametrize("domains", [(None,), (4**4, 4**8), (16, None)])
@pytest.mark.parametrize("bound", [ItemBound(), ItemBound(20, 3)])
def test_plan_spends_no_more_than_the_budget(domains: tuple[int | None, ...], bound: ItemBound) -> None:
    plan = CentralCountPlan(epsilon=0.7, delta=1e-7, domains=domains, bound=bound)
    assert plan.admission_rule.sampling_rate == 1
    spent = math.fsum(noise.epsilon for noise in plan.noises) + plan.admission_rule.cost
    assert spent == pytest.approx(0.7, rel=1e-12)
    assert plan.delta_spent <= 1e-7 * (1 + 1e-12)
    if len(domains) > 1:
        assert plan.noises[-1].epsilon == pytest.approx(0.96 * plan.rounds_epsilon)
    for number, (noise, domain) in enumerate(zip(plan.noises, domains, strict=True)):
        assert (noise.threshold is None) == plan.is_public(number) == (domain is not None and domain <= MAX_DENSE_ITEMS)
        assert noise.bound == bound


def test_delta_that_a_public_round_leaves_goes_to_the_threshold() -> None:
    plan = CentralCountPlan(domains=(256, 4**8))
    assert plan.noises[0].delta == 0
    assert plan.noises[1].delta > 0.5 * plan.delta


def test_small_maps_are_purely_private() -> None:
    assert CentralCountPlan(domains=(4**6,)).without_unused_delta().delta == 0
    assert CentralCountPlan(domains=(4**7,)).without_unused_delta().delta == 1e-8
    large = CentralCountPlan(delta=0.0, domains=(4**7,))
    assert (large.noises[0].threshold, large.delta_spent) == (None, 0.0)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *(("epsilon", {"epsilon": bad}) for bad in (-1.0, math.nan, 1e-7)),  # 1e-7: too small for the admission
        *(("delta", {"delta": bad}) for bad in (1.0, -1e-9, math.nan, 0.0)),
        ("delta", {"delta": 0.0, "domains": (4**11,)}),  # 0 needs noise on every item
        ("population", {"population": 0}),
        ("max_bad_fraction", {"max_bad_fraction": 2.0}),
        ("noise", {"noise": "none"}),
    ],
)
def test_central_plan_rejects_bad_values(option: str, wrong: dict) -> None:
    with rejects(option):
        _ = CentralCountPlan(**wrong).noises and CentralCountPlan(**wrong).admission_rule


# --- pages ---


# --- tables ---


@pytest.mark.parametrize("public", [False, True])
def test_choose_noise_has_no_gaussian_beyond_its_range(public: bool) -> None:
    """Its deviation would be below the least one: a large epsilon is no error of the noise that is chosen."""
    for epsilon in (30.0, 200.0, 1e4):
        assert choose_noise(epsilon, 1e-8, ItemBound(2), public=public).stddev < 1
    with rejects("noise"):
        choose_noise(1e4, 1e-8, ItemBound(2), kind="gaussian", public=public)
