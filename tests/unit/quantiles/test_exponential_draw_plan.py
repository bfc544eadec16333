"""The plan of draws: who splits what, the epsilons of levels, and the errors that they lead to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sfumato.transforms.quantiles.exponential_draw import DrawPlan, plan_draws

DECILES = tuple(number / 10 for number in range(1, 10))


@pytest.mark.parametrize("shares", [(0.5,), (0.5, 0.9, 0.99), DECILES, tuple(k / 100 for k in range(1, 100))])
@pytest.mark.parametrize(("epsilon", "users"), [(1.0, 1e6), (0.1, 1e6), (1.0, 300.0), (0.01, 1.0), (5.0, 1e9)])
def test_every_draw_is_between_its_parents_and_a_level_is_disjoint(
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


def test_margins_of_intervals_grow_as_epsilon_falls() -> None:
    wide, narrow = (plan_draws((0.5,), epsilon, 1e6, 12) for epsilon in (0.1, 1.0))
    distances = [0.5 - plan.draws[plan.ends[0][0] or 0].share for plan in (wide, narrow)]
    assert distances[0] / distances[1] == pytest.approx(10, rel=0.1)  # and one user for the rank's rounding
