"""Shuffled and local forms of a map: their shares with little noise, and the bounds that they rest on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.baselines.location_oracles import local_epsilon, reported_shares, share_messages, shuffled_noise_shares
from tests.seeds import seeded_rng


def test_reports_and_shuffled_noise_find_the_shares() -> None:
    counts = np.zeros(256, np.int64)
    counts[[3, 77, 200]] = 500_000, 300_000, 200_000
    generator = seeded_rng(5)
    for shares in (reported_shares(counts, 6.0, 4, generator), shuffled_noise_shares(counts, 1.0, 1e-8, generator)):
        assert shares.sum() == pytest.approx(1)
        assert np.abs(shares - counts / 1e6).sum() < 0.02
    coarse = reported_shares(counts, 6.0, 2, generator)  # 16 cells, each of 16 equal ones
    assert (np.ptp(coarse.reshape(16, 16), axis=1) == 0).all()


def test_the_largest_local_epsilon_meets_the_bound() -> None:
    users, epsilon, delta = 10**6, 1.0, 1e-8
    local = local_epsilon(users, epsilon, delta)
    growth = math.exp(local)
    spread = 8 * math.sqrt(growth * math.log(4 / delta) / users) + 8 * growth / users
    assert math.log(1 + (growth - 1) / (growth + 1) * spread) == pytest.approx(epsilon)
    assert local <= math.log(users / (16 * math.log(2 / delta)))
    assert local_epsilon(200, epsilon, delta) == epsilon  # too few to hide in


def test_messages_of_additive_shares_as_printed() -> None:
    """Balle et al.: 10,000 parties with 32-bit numbers send 12 messages for a security of 2^-40."""
    assert share_messages(10_000, 32) == 12
