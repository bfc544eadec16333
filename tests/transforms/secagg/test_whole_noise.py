"""Slow statistics: the noise of whole answers, over thousands of keys."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.schemas.places import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import NoiseMode, ShardQuery, sum_shards
from tests.statistics import FLAKE_RATE, chi_square_p, polya_difference_pmf

SHARDS, USERS, REQUIRED = 3, 60, 50


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["shard", "client"])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_an_answers_noise_is_that_of_all_survivors_of_all_shards(noise: NoiseMode, epsilon: float) -> None:
    """Three shards of 60 users where 50 are required: Polya(3 x 1.2) differences, over 4,000 keys and 64 entries."""
    rng = np.random.default_rng(0)
    keys = np.sort((np.repeat(np.arange(SHARDS), USERS) << 8) | rng.integers(0, 256, SHARDS * USERS))
    group = ShardGroup(0, SHARDS, Places(4), keys.astype(np.uint32))
    query = ShardQuery(1, TreeEncoding(Tree.uniform(4, 3)), epsilon, Window(1 << 30, 1 << 29), REQUIRED)
    truth = query.encoding.count(group, slice(0, SHARDS)).sum(axis=0)
    sample = np.concatenate([
        sum_shards(group, query, RunKey.derive(FixedSecret(b"whole noise " * 2), {"key": i}), noise).sums - truth
        for i in range(4000)
    ])  # fmt: skip
    reach, shape = math.ceil(30 / epsilon), SHARDS * USERS / REQUIRED
    assert chi_square_p(sample, polya_difference_pmf(shape, epsilon, reach)) > FLAKE_RATE
    for scale in (0.9, 1.1):  # with this many draws even a tenth would be noticed
        assert chi_square_p(sample, polya_difference_pmf(shape, epsilon / scale, reach)) < FLAKE_RATE


@pytest.mark.slow
def test_the_answer_respects_epsilon_between_neighbours() -> None:
    """Add one user to a live shard: no count of outcomes is likelier by more than e^epsilon, within sampling error."""
    epsilon, draws = 0.7, 60_000
    without = np.sort(np.arange(20, dtype=np.uint32) % 4)
    outcomes = []
    for users in (without, np.sort(np.append(without, np.uint32(2)))):
        group = ShardGroup(0, 1, Places(1), users)
        query = ShardQuery(1, TreeEncoding(Tree.uniform(1, 1)), epsilon, Window(1 << 30, 1 << 29), 20)
        sums = [
            sum_shards(group, query, RunKey.derive(FixedSecret(b"neighbours " * 3), {"n": len(users), "i": i})).sums[2]
            for i in range(draws)
        ]
        outcomes.append(np.bincount(np.array(sums) + 40, minlength=90).astype(float))
    for one, two in (outcomes, outcomes[::-1]):
        excess = one - math.exp(epsilon) * two
        slack = 6.2 * np.sqrt(one + math.exp(2 * epsilon) * two + 1)
        assert (excess <= slack).all()
    # And the mechanism is not needlessly noisy: at half the epsilon the same comparison fails.
    assert (outcomes[1] - math.exp(epsilon / 2) * outcomes[0] > 6.2 * np.sqrt(outcomes[1] + 2 * outcomes[0] + 1)).any()
