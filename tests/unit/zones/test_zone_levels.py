"""The encoding of zones against loops, and the division of the budget against a search through all divisions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sfumato.schemas.places import Places
from sfumato.transforms.locations.shards import ShardGroup, key_dtype
from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE, AdditiveNoise
from sfumato.transforms.statistics.tree_least_squares import NoisyLevel, fit_levels
from sfumato.transforms.zones.zone_levels import ZoneEncoding, level_shares, mean_variances
from tests.rejections import rejects
from tests.seeds import seeded_rng


@pytest.mark.parametrize("categories", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_shards_sums_are_those_of_plain_loops(categories: int, weighted: bool) -> None:
    rng = seeded_rng(1)
    places, zones, shards, rows = Places(3, categories), 50, 4, 700
    parents = rng.integers(0, 7, zones)
    parents[:7] = np.arange(7)
    shard, category, zone = (rng.integers(0, high, rows) for high in (shards, categories, zones))
    keys = (shard << places.bits | category << 2 * places.depth | zone).astype(key_dtype(places))
    order = np.argsort(keys)
    weights = rng.integers(1, 9, rows) if weighted else None
    clients = None if weights is None else np.zeros(rows, dtype=np.uint32)
    group = ShardGroup(0, shards, places, keys[order], None, None if weights is None else weights[order], clients)
    encoding = ZoneEncoding("tract", parents, np.full(7, 1 / 7), categories)
    expected = np.zeros((shards, categories * 7), dtype=np.int64)
    for row in range(rows):
        expected[shard[row], category[row] * 7 + parents[zone[row]]] += 1 if weights is None else weights[row]
    np.testing.assert_array_equal(encoding.count(group, slice(0, shards)), expected)
    np.testing.assert_array_equal(encoding.count(group, slice(1, 3)), expected[1:3])
    (entries,) = encoding.entries_of(group, slice(0, shards))
    np.testing.assert_array_equal(entries, (category * 7 + parents[zone])[order])
    assert encoding.length == categories * 7
    assert math.isclose(encoding.shares.sum(), 1)


def test_other_zones_are_another_question() -> None:
    parents = np.arange(6) // 2
    one = ZoneEncoding("tract", parents, np.full(3, 1 / 3))
    others = [
        ZoneEncoding("ward", parents, np.full(3, 1 / 3)),
        ZoneEncoding("tract", parents[::-1].copy(), np.full(3, 1 / 3)),
        ZoneEncoding("tract", parents, np.full(4, 1 / 4)),
        ZoneEncoding("tract", parents, np.full(3, 1 / 3), 2),
    ]
    assert len({encoding.fingerprint for encoding in (one, *others)}) == 5


def loss(shares: tuple[float, ...], sizes: list[int], noise: AdditiveNoise, budget: float) -> float:
    own = [noise.stddev(share * budget) ** 2 if share else math.inf for share in shares]
    return math.fsum(map(math.log, mean_variances(own, sizes)))


@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN])
@pytest.mark.parametrize("budget", [0.1, 1.0])
@pytest.mark.parametrize("sizes", [[300, 9], [100, 50], [2500, 400, 20], [40, 4, 1], [40_000, 2_500, 60]])
def test_no_division_is_better(sizes: list[int], budget: float, noise: AdditiveNoise) -> None:
    """Of all divisions in steps of a per cent whose finest level has its least share."""
    found = level_shares(sizes, noise, budget)
    assert math.isclose(sum(found), 1)
    alone = noise.stddev(budget)
    assert noise.stddev(found[0] * budget) <= 1.25 * alone
    mine, coarser = loss(found, sizes, noise, budget), len(sizes) - 1
    for units in itertools.product(range(41), repeat=coarser):
        finest = 100 - sum(units)
        if finest > 0 and noise.stddev(finest / 100 * budget) <= 1.25 * alone:
            tried = (finest / 100, *(one / 100 for one in units))
            assert mine <= loss(tried, sizes, noise, budget) + 0.02


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_no_level_is_worse_than_a_quarter_more_than_the_finest_alone(epsilon: float) -> None:
    sizes = [1000, 100, 10, 1]
    shares = level_shares(sizes, LAPLACE, epsilon)
    levels = [
        NoisyLevel(np.zeros((1, size)), LAPLACE.stddev(share * epsilon) ** 2) if share else NoisyLevel(None)
        for size, share in zip(sizes, shares, strict=True)
    ]
    parents = [np.arange(size) // 10 for size in sizes[:-1]]
    for size, found in zip(sizes, fit_levels(levels, parents), strict=True):
        alone = LAPLACE.stddev(epsilon) * math.sqrt(1000 / size)
        assert np.sqrt(found.variance).max() <= 1.25 * alone * (1 + 1e-9)


def test_the_variances_of_a_regular_tree_are_those_of_the_fit() -> None:
    sizes, own = [240, 24, 6, 1], [2.0, 5.0, math.inf, 40.0]
    levels = [
        NoisyLevel(None) if one == math.inf else NoisyLevel(np.zeros((1, size)), one)
        for size, one in zip(sizes, own, strict=True)
    ]
    parents = [np.arange(240) // 10, np.arange(24) // 4, np.zeros(6, int)]
    for expected, found in zip(mean_variances(own, sizes), fit_levels(levels, parents), strict=True):
        np.testing.assert_allclose(found.variance, expected)


def test_too_many_levels_are_refused() -> None:
    with rejects("levels"):
        level_shares([64, 32, 16, 8, 4, 2, 1], LAPLACE, 1.0)
