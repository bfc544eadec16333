"""Draws of the exponential mechanism beside every border's exact probability, and the errors of plans."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from sfumato.transforms.quantiles import exponential_draw
from sfumato.transforms.quantiles.exponential_draw import DrawPlan, border_weights, draw_border, plan_draws
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p
from tests.unit.quantiles.borders import STEPS, below, probabilities, spread

# One draw of the exponential mechanism beside every border's exact probability.

KEY = bytes(range(32))
LOGS = [(0, 0), (3, 2), (2100, 1024)]


def random_logs(number: int) -> tuple[list[int], int]:
    generator = seeded_rng(number)
    bits = int(generator.integers(1, 4))
    return generator.choice([0, 0, 1, 2, 5, 1024, 2000, 3333], 1 << bits).tolist(), bits


@pytest.mark.parametrize("number", range(20))
def test_runs_are_the_borders_around_some_ranks(number: int) -> None:
    counts, bits = random_logs(number)
    generator, users, ranks = seeded_rng(number), spread(counts, bits), below(counts)
    first, last = sorted(generator.integers(0, users.steps + 1, 2).tolist())
    assert [users.below(first), users.below(last)] == [ranks[first], ranks[last]]
    low = float(generator.uniform(ranks[first] - 1, ranks[last]))
    high = float(generator.uniform(low, ranks[last] + 1))
    borders, lengths, found = users.runs(first, last, low, high)
    assert (lengths >= 1).all()
    assert (borders[1:] == borders[:-1] + lengths[:-1]).all()
    assert (found[1:] > found[:-1]).all()
    begin, end = int(borders[0]), int(borders[-1] + lengths[-1])
    assert np.array_equal(np.repeat(found, lengths), ranks[begin:end])
    left_out = np.concatenate((ranks[first:begin], ranks[end : last + 1]))
    assert not ((left_out >= low) & (left_out <= high)).any()
    assert begin == first or ranks[begin] <= low
    assert end == last + 1 or ranks[end - 1] >= high


@pytest.mark.parametrize("counts", LOGS)
@pytest.mark.parametrize(("share", "epsilon"), [(0.5, 1.0), (0.1, 0.25), (1.0, 3.0)])
@pytest.mark.parametrize(("first", "last"), [(0, 2 * STEPS), (17, 1400), (STEPS, STEPS), (1000, 1030)])
def test_weights_are_those_of_every_border(
    counts: tuple[int, int], share: float, epsilon: float, first: int, last: int
) -> None:
    borders, lengths, weights = border_weights(spread(counts, 1), first, last, share, epsilon)
    found = np.zeros(last - first + 1)
    for border, length, weight in zip(borders, lengths, weights, strict=True):
        found[border - first : border - first + length] = weight
    exact = probabilities(counts, first, last, share, epsilon)
    total = mpmath.fsum(found) + 2.0**-120 * len(found)
    for weight, probability in zip(found.tolist(), exact, strict=True):
        assert abs((weight + 2.0**-120) / total / probability - 1) < 2**-26


@pytest.mark.false_alarm(1e-9)  # one p-value
@pytest.mark.slow
@pytest.mark.parametrize("counts", [(3, 2), (700, 30)])
def test_draws_have_the_probabilities_of_the_borders(counts: tuple[int, int]) -> None:
    users, count = spread(counts, 1), 4000
    exact = np.array(probabilities(counts, 0, users.steps, 0.3, 0.4), dtype=float)
    drawn = np.array([draw_border(users, 0, users.steps, 0.3, 0.4, KEY, number) for number in range(count)])
    assert chi_square_p(drawn - STEPS, exact) > FLAKE_RATE
    wrong = np.array(probabilities(counts, 0, users.steps, 0.3, 0.4, mpmath.mpf("0.4")), dtype=float)
    if counts[0] > 100:  # the test sees a rate that is 1.4 times as high
        assert chi_square_p(drawn - STEPS, wrong) < FLAKE_RATE


@pytest.mark.slow
def test_the_second_term_is_drawn_uniformly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second term as large as the first: half of the draws are anywhere."""
    users = spread((400, 0), 1)
    monkeypatch.setattr(exponential_draw, "_FLOOR", 0.01)
    drawn = np.array([draw_border(users, 0, users.steps, 0.5, 20.0, KEY, number) for number in range(4000)])
    outside = (np.abs(below((400, 0))[drawn] - 200) > 3).mean()
    # The first term's weights add up to about 3 borders' (few users: each run has two or three), the second's to 20.
    total = border_weights(users, 0, users.steps, 0.5, 20.0)
    mass = 0.01 * (users.steps + 1)
    expected = mass / (mass + float((total[1] * total[2]).sum())) * (np.abs(below((400, 0)) - 200) > 3).mean()
    assert abs(outside - expected) < 6.2 * math.sqrt(expected * (1 - expected) / 4000)


@pytest.mark.parametrize("counts", [(0, 0), (10**9, 0), (0, 10**9)])
def test_nobody_and_everybody_in_one_bin(counts: tuple[int, int]) -> None:
    users = spread(counts, 1)
    drawn = [draw_border(users, 0, users.steps, 0.5, 1.0, KEY, number) for number in range(50)]
    if sum(counts):
        middle = STEPS // 2 if counts[0] else 3 * STEPS // 2
        assert set(drawn) == {middle}  # each step holds a million users
    else:
        assert len(set(drawn)) > 40
    assert draw_border(users, 7, 7, 0.5, 1.0, KEY, 0) == 7


# The plan of draws: who splits what, the epsilons of levels, and the errors that they lead to.

DECILES = tuple(number / 10 for number in range(1, 10))


@pytest.mark.parametrize("shares", [(0.5,), (0.5, 0.9, 0.99), DECILES])
@pytest.mark.parametrize(("epsilon", "users"), [(0.1, 1e6), (1.0, 300.0), (0.01, 1.0)])
def test_draws_lie_between_parents_and_levels_are_disjoint(
    shares: tuple[float, ...], epsilon: float, users: float
) -> None:
    plan = plan_draws(shares, epsilon, users, 12)
    assert sum(plan.epsilons) == pytest.approx(epsilon, rel=1e-12)
    assert min(plan.epsilons) > 0
    assert len(plan.draws) == len(shares) + sum(end is not None for ends in plan.ends for end in ends)
    parts: dict[int, list[tuple[int, int]]] = {}
    rank = {number: place for place, number in enumerate(np.argsort([d.share for d in plan.draws], kind="stable"))}
    for number, draw in enumerate(plan.draws):
        parents = [one for one in (draw.low, draw.high) if one is not None]
        assert all(one < number and plan.draws[one].level < draw.level for one in parents)
        low = 0.0 if draw.low is None else plan.draws[draw.low].share
        high = 1.0 if draw.high is None else plan.draws[draw.high].share
        assert low <= draw.share <= high
        assert draw.share == pytest.approx(low + draw.relative * (high - low), abs=1e-12)
        parts.setdefault(draw.level, []).append(
            (-1 if draw.low is None else rank[draw.low], len(rank) if draw.high is None else rank[draw.high])
        )
    for level in parts.values():
        ordered = sorted(level)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ordered))
    for share, number, (low_end, high_end) in zip(shares, plan.quantiles, plan.ends, strict=True):
        assert plan.draws[number].share == share
        assert low_end is None or plan.draws[low_end].share < share
        assert high_end is None or plan.draws[high_end].share > share


def test_epsilons_are_those_of_least_error() -> None:
    """Any shift of epsilon from one level to another makes the weighted sum of variances larger."""
    plan = plan_draws(DECILES, 1.0, 1e6, 12)

    def variances(epsilons: np.ndarray) -> float:
        errors = propagated(plan, epsilons)
        return float((errors**2 * np.where(np.isin(np.arange(len(errors)), plan.quantiles), 1, 0.03)).sum())

    best = np.array(plan.epsilons)
    assert propagated(plan, best) == pytest.approx(plan.stddevs, rel=1e-9)
    for one in range(len(best)):
        for other in range(len(best)):
            if one != other:
                moved = best.copy()
                moved[one], moved[other] = moved[one] - 0.01, moved[other] + 0.01
                assert variances(moved) > variances(best)


def propagated(plan: DrawPlan, epsilons: np.ndarray) -> np.ndarray:
    """Standard deviations by simulation-free recursion: covariances of all draws' rank errors."""
    count = len(plan.draws)
    covariance = np.zeros((count + 1, count + 1))  # the last row is a border without error
    for number, draw in enumerate(plan.draws):
        low, high = (count if one is None else one for one in (draw.low, draw.high))
        row = (1 - draw.relative) * covariance[low] + draw.relative * covariance[high]
        covariance[number] = covariance[:, number] = row
        scale = 2 * max(draw.relative, 1 - draw.relative) / epsilons[draw.level]
        covariance[number, number] = (1 - draw.relative) * row[low] + draw.relative * row[high] + 2 * scale**2
    return np.sqrt(np.diag(covariance)[:-1])
