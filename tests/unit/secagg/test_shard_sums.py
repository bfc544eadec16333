"""Sums of shards: their counts, their lost shards, and their noise over thousands of keys."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato.schemas.region import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import (
    NoiseSource,
    ShardQuery,
    decode,
    draw_shard_noise,
    encode,
    sum_client_shares,
    sum_shards,
    survivors,
)
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf, polya_difference_pmf

KEY = RunKey.derive(FixedSecret(b"secagg" * 4), {})
WIDE = Window(1 << 40, 1 << 39)


def group_of(shards: int, users: int, depth: int = 4, seed: int = 0) -> ShardGroup:
    rng = seeded_rng(seed)
    keys = (np.repeat(np.arange(shards), users) << (2 * depth)) | rng.integers(0, 4**depth, shards * users)
    return ShardGroup(0, shards, Places(depth), np.sort(keys.astype(np.uint32)))


def query(epsilon: float, required: int, level: int = 3, window: Window = WIDE, index: int = 1) -> ShardQuery:
    return ShardQuery(index, TreeEncoding(Tree.uniform(4, level)), epsilon, window, Noise(required=required))


def noise_of(group: ShardGroup, q: ShardQuery, mode: str) -> np.ndarray:
    block = slice(0, group.shards)
    if mode == "shard":
        return draw_shard_noise(group.numbers(), group.sizes(), q, KEY)
    return sum_client_shares(group, block, None, q, KEY)


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(
    ("share", "epsilon", "mode"),
    [(1.0, 1.0, "shard"), (1.0, 0.2, "client"), (1.05, 0.4, "client"), (1.6, 0.4, "shard")],
)
def test_both_noise_modes_have_the_law_of_all_survivors_shares(share: float, epsilon: float, mode: str) -> None:
    """The noise that the guarantee names at exactly the required size, and neither 30% less nor 30% more."""
    required, reach = 100, math.ceil(24 / epsilon)
    group = group_of(64, int(required * share))

    def law(epsilon: float) -> np.ndarray:
        return discrete_laplace_pmf(epsilon, reach) if share == 1 else polya_difference_pmf(share, epsilon, reach)

    noise = [noise_of(group, query(epsilon, required, level=4, index=i), mode).ravel() for i in range(4)]
    sample = np.concatenate(noise)
    assert chi_square_p(sample, law(epsilon)) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(sample, law(epsilon / scale)) < FLAKE_RATE


def test_sums_are_counts_plus_the_keyed_noise_of_live_shards() -> None:
    group = group_of(10, 100)
    q = query(0.5, required=100)
    totals = sum_shards(group, q, KEY)
    noise = discrete_laplace(q.bind(KEY), "shard noise 1", group.numbers(), 64, 0.5)
    assert totals.live == 10
    assert np.array_equal(totals.sums, (q.encoding.count(group, slice(0, 10)) + noise).sum(axis=0))


@pytest.mark.parametrize("users", [1, 30, 3000])
def test_both_ways_of_counting_agree_with_one_user_at_a_time(users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(7, users, seed=users)
    tree = Tree.uniform(4, 1).refine(np.array([4, 6], np.uint64), np.array([5], np.uint64))
    tree = tree.refine(tree.entries[[3, 5]], tree.entries[[4]])
    block = slice(2, 6)
    expected = np.zeros((4, len(tree.entries)), dtype=int)
    present, entries = set(tree.nodes.tolist()), tree.entries.tolist()
    for key in group.keys.tolist():
        shard, node = key >> 8, (key & 255) | 256
        while node not in present:
            node >>= 2
        if 2 <= shard < 6:
            expected[shard - 2, entries.index(node)] += 1
    by_default = TreeEncoding(tree).count(group, block)
    monkeypatch.setattr("sfumato.transforms.secagg.encodings._MAX_TABLE_LEVEL", -1)
    by_search = TreeEncoding(tree).count(group, block)
    assert by_default.tolist() == by_search.tolist() == expected.tolist()


def test_shards_below_the_bound_reveal_nothing() -> None:
    keys = np.concatenate([(s << 8) + np.zeros(n, dtype=np.uint32) for s, n in enumerate([99, 100, 0, 101])])
    group = ShardGroup(0, 4, Places(4), keys.astype(np.uint32))
    sub_query = query(0.5, required=100)
    totals = sum_shards(group, sub_query, KEY)
    assert totals.live == 2
    noise = draw_shard_noise(group.numbers()[[1, 3]], np.array([100, 101]), sub_query, sub_query.bind(KEY))
    assert totals.sums[0] == 201 + noise[:, 0].sum()
    nothing = sum_shards(group, query(0.5, required=102), KEY)
    assert nothing.live == 0
    assert not nothing.sums.any()


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("mode", ["shard", "client"])
def test_vanished_clients_take_their_value_and_their_share_along(mode: str) -> None:
    """What is left is the survivors' counts and their shares, by distribution: 64 shards of exactly known survivors."""
    group, required, epsilon = group_of(64, 400), 200, 0.4
    residuals = []
    for index in range(1, 31):
        q = query(epsilon, required, level=4, index=index)
        present = survivors(group, index, KEY, 0.3)
        assert present is not None
        assert abs(present.mean() - 0.7) < 7 * math.sqrt(0.21 / 25_600)
        totals = sum_shards(group, q, KEY, mode, 0.3)
        assert totals.live == 64
        residuals.append(totals.sums - q.encoding.count(group.only(present), slice(0, 64)).sum(axis=0))
    sample = np.concatenate(residuals)
    # Sizes differ by shard and sub-query, but their sum is all that the distribution of the noise depends on.
    shape = 64 * 400 * 0.7 / required
    assert chi_square_p(sample, polya_difference_pmf(shape, epsilon, 250)) > FLAKE_RATE
    # If vanished clients left their shares behind, the shape would be 1 / 0.7 of that.
    for wrong in (shape / 0.7, shape * 0.7):
        assert chi_square_p(sample, polya_difference_pmf(wrong, epsilon, 250)) < FLAKE_RATE
    # Of 400 users 360 stay with a probability below 1e-21.
    assert sum_shards(group, query(epsilon, required=360), KEY, mode, 0.3).live == 0


def test_encode_and_decode_reduce_by_the_window() -> None:
    window = Window(100, 10)
    values = np.array([-10, -1, 0, 89])
    seen = encode(values, window)
    assert seen.tolist() == [90, 99, 0, 89]
    assert decode(seen, window).tolist() == values.tolist()
    assert decode(encode(np.array([90, -11]), window), window).tolist() == [-10, 89]  # wrapped


@pytest.mark.parametrize("modulus", [2, 64, 1 << 14, 3, 1000, 10_007])
def test_reduction_is_the_modulo_of_negative_numbers_too(modulus: int) -> None:
    values = np.arange(-3000, 3000)
    assert encode(values, Window(modulus, 0)).tolist() == [value % modulus for value in values.tolist()]


def test_client_vectors_summed_modulo_m_are_the_shards_sum() -> None:
    """Paper 000, Eq. 2: each client reduces its noisy vector, the server reduces the sum."""
    rng = seeded_rng(0)
    window = Window(257, 60)
    vectors = np.eye(8, dtype=np.int64)[rng.integers(0, 8, 100)] + rng.integers(-3, 4, (100, 8))
    by_client = np.mod(np.mod(vectors, 257).sum(axis=0), 257)
    assert np.array_equal(by_client, encode(vectors.sum(axis=0), window))


def test_no_two_questions_share_noise() -> None:
    """Another tree, epsilon or part of the shards under one run's key has other noise; the same has the same."""
    one = query(0.5, required=100)
    others = [
        replace(one, index=2),
        replace(one, encoding=TreeEncoding(Tree.uniform(one.encoding.tree.depth, 2))),
        replace(one, cost=0.5000000001),
        replace(one, shard_range=(0, 1)),
        replace(one, gamma=2),
    ]
    shards = np.arange(8, dtype=np.uint64)
    drawn = [
        discrete_laplace(sub_query.bind(KEY), "noise", np.arange(8, dtype=np.uint64), 64, 0.5)
        for sub_query in (one, *others)
    ]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(drawn, 2))
    again = replace(one, encoding=TreeEncoding(Tree(one.encoding.tree.depth, one.encoding.tree.nodes.copy())))
    assert np.array_equal(drawn[0], discrete_laplace(again.bind(KEY), "noise", shards, 64, 0.5))


SHARDS, USERS, REQUIRED = 3, 60, 50


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(
    ("noise", "epsilon"),
    [
        pytest.param("shard", 0.2, marks=pytest.mark.slow),
        pytest.param("client", 1.0, marks=pytest.mark.slow),
    ],
)
def test_an_answers_noise_is_that_of_all_survivors_of_all_shards(noise: NoiseSource, epsilon: float) -> None:
    """Three shards of 60 users where 50 are required: Polya(3 x 1.2) differences, over 4,000 keys and 64 entries."""
    rng = seeded_rng(0)
    keys = np.sort((np.repeat(np.arange(SHARDS), USERS) << 8) | rng.integers(0, 256, SHARDS * USERS))
    group = ShardGroup(0, SHARDS, Places(4), keys.astype(np.uint32))
    query = ShardQuery(1, TreeEncoding(Tree.uniform(4, 3)), epsilon, Window(1 << 30, 1 << 29), Noise(required=REQUIRED))
    truth = query.encoding.count(group, slice(0, SHARDS)).sum(axis=0)
    sample = np.concatenate([
        sum_shards(group, query, RunKey.derive(FixedSecret(b"whole noise " * 2), {"key": i}), noise).sums - truth
        for i in range(4000)
    ])  # fmt: skip
    reach, shape = math.ceil(30 / epsilon), SHARDS * USERS / REQUIRED
    assert chi_square_p(sample, polya_difference_pmf(shape, epsilon, reach)) > FLAKE_RATE
    for scale in (0.9, 1.1):  # with this many draws even a tenth would be noticed
        assert chi_square_p(sample, polya_difference_pmf(shape, epsilon / scale, reach)) < FLAKE_RATE


@pytest.mark.false_alarm(1e-8)
@pytest.mark.slow
def test_the_answer_respects_epsilon_between_neighbours() -> None:
    """Add one user to a live shard: no count of outcomes is likelier by more than e^epsilon, within sampling error.

    Any of the 21 may be the one: the entry of each is compared with entries of nobody in the shard of 20.
    """
    epsilon, draws = 0.7, 60_000
    outcomes = []
    for users, entries in ((20, slice(21, None)), (21, slice(21))):
        group = ShardGroup(0, 1, Places(3), np.arange(users, dtype=np.uint32))
        query = ShardQuery(1, TreeEncoding(Tree.uniform(3, 3)), epsilon, Window(1 << 30, 1 << 29), Noise(required=20))
        sums = [
            sum_shards(group, query, RunKey.derive(FixedSecret(b"neighbours " * 3), {"n": users, "i": i})).sums[entries]
            for i in range(draws // 21 + 1)
        ]
        outcomes.append(np.bincount(np.concatenate(sums)[:draws] + 40, minlength=90).astype(float))
    for one, two in (outcomes, outcomes[::-1]):
        excess = one - math.exp(epsilon) * two
        slack = 6.8 * np.sqrt(one + math.exp(2 * epsilon) * two + 1)
        assert (excess <= slack).all()
    # And the mechanism is not needlessly noisy: at half the epsilon the same comparison fails.
    assert (outcomes[1] - math.exp(epsilon / 2) * outcomes[0] > 6.2 * np.sqrt(outcomes[1] + 2 * outcomes[0] + 1)).any()
