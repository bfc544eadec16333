"""The attack on bits: what colluders can add where the server picks the bit, and that picking it adds more."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bit_errors import CLIENTS, EXPONENTIAL, NORMAL
from benchmarks.bit_poisoning import Attack, least, piecewise, pushed, rounded


def shifts(method: str, picks: bool, attack: Attack, runs: int) -> np.ndarray:
    return np.array([np.subtract(*pushed(method, picks, attack, run)) for run in range(runs)])


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_with_bits_that_the_server_picks_colluders_add_what_the_largest_reports_do(epsilon: float | None) -> None:
    """Of an unbiased estimate: their share times (the largest report minus the mean), within six standard errors."""
    attack = Attack(NORMAL, 10, epsilon, 0.05)
    found = shifts("weighted", False, attack, 30)
    # A report of 1 counts as 1 / gain - (1 - p) / gain: more than the bit where it may be flipped.
    largest = 1.0 if epsilon is None else 1 / (1 - np.exp(-epsilon))
    expected = 0.05 * (largest * 1023 - 600)
    assert abs(found.mean() - expected) < 6 * found.std() / np.sqrt(30)


def test_colluders_who_pick_the_bit_add_more() -> None:
    attack = Attack(NORMAL, 16, None, 0.05)
    least_shift = np.subtract(*least(attack, 0))
    server, client = (shifts("adaptive", picks, attack, 4).mean() for picks in (False, True))
    assert server == pytest.approx(least_shift, rel=0.1)
    assert client > 1.5 * server


def test_one_in_a_hundred_who_pick_ruin_an_estimate_that_the_server_picks_save() -> None:
    """Values that need few of 16 bits: without an attack on the high bits they count as empty."""
    attack = Attack(EXPONENTIAL, 16, 2.0, 0.01)
    server, client = (shifts("adaptive", picks, attack, 4).mean() for picks in (False, True))
    assert abs(server) < 100 < 1000 < client


def test_baselines_have_their_largest_reports() -> None:
    attack = Attack(NORMAL, 10, 2.0, 0.05)
    for estimate, largest in ((rounded, 1 / (1 - np.exp(-2))), (piecewise, (1 / np.tanh(0.5) + 1) / 2)):
        found = np.array([np.subtract(*estimate(attack, run)) for run in range(30)])
        assert abs(found.mean() - 0.05 * (largest * 1023 - 600)) < 6 * found.std() / np.sqrt(30)
    assert attack.colluders == CLIENTS // 20
