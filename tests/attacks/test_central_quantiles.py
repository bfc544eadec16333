"""Attacks on quantiles with a trusted curator: one user more moves no sequence of draws by more than epsilon.

By brute force over all borders, with 50 digits: what a draw and all draws together cost, that a draw costs no less than
90% of it, and that half the noise, or a plan in which two draws of a level share users, would be caught.
"""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest

from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.quantiles.exponential_draw import DrawPlan, plan_draws
from sfumato.transforms.quantiles.plan import HierarchyNoise
from sfumato.transforms.quantiles.private_quantiles import draw_borders, measure_hierarchy
from tests.unit.quantiles.borders import below, probabilities, spread

KEY = RunKey.derive(FixedSecret(bytes(range(32))), {"of": "attacks"})
LOGS = [(0, 0), (3, 0), (0, 3), (2, 4), (40, 1)]  # users of two bins; the range's ends, ties, empty bins
WORST = [  # logs found by a search for the largest loss of a draw at the shares 0.5, 0.1 and 0.95
    ((300, 0, 300, 0), (300, 0, 301, 0)),
    ((5, 5, 0, 100), (6, 5, 0, 100)),
    ((300, 3, 10, 2), (300, 3, 10, 3)),
]
NEIGHBOURS = [(log, tuple(np.add(log, one).tolist())) for log in LOGS for one in ((1, 0), (0, 1))]


def losses(
    log: tuple[int, ...], other: tuple[int, ...], share: float, epsilon: float, rate: mpmath.mpf | None = None
) -> list[mpmath.mpf]:
    """log of P[border | log] / P[border | other], for every border."""
    laws = [probabilities(counts, 0, len(log) * 1024, share, epsilon, rate) for counts in (log, other)]
    return [mpmath.log(one / two) for one, two in zip(*laws, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(("share", "epsilon"), [(0.5, 1.0), (0.1, 0.3), (0.95, 1.0)])
def test_a_draw_costs_epsilon_and_not_much_less(share: float, epsilon: float) -> None:
    worst = max(max(map(abs, losses(*pair, share, epsilon))) for pair in NEIGHBOURS + WORST)
    assert 0.9 * epsilon <= worst <= epsilon * (1 + mpmath.mpf(10) ** -12)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.95])
def test_the_rate_of_a_utility_that_only_rises_would_cost_more(share: float) -> None:
    """Without the factor 2 of the exponential mechanism."""
    rate = mpmath.mpf(1) / max(share, 1 - share)
    assert max(max(map(abs, losses(*pair, share, 1.0, rate))) for pair in WORST) > 1.8


def path_loss(plan: DrawPlan, borders: list[int], log: tuple[int, ...], other: tuple[int, ...]) -> float:
    """log of P[borders | log] / P[borders | other]: the whole release's privacy loss."""
    loss = mpmath.mpf(0)
    for draw, border in zip(plan.draws, borders, strict=True):
        first = 0 if draw.low is None else borders[draw.low]
        last = len(log) * 1024 if draw.high is None else borders[draw.high]
        one, two = (
            probabilities(counts, first, last, draw.relative, plan.epsilons[draw.level])[border - first]
            for counts in (log, other)
        )
        loss += mpmath.log(one / two)
    return float(loss)


@pytest.mark.parametrize("number", range(6))
def test_all_draws_together_cost_epsilon(number: int) -> None:
    """Drawn releases, and releases that an adversary would pick: all borders at the user, or at the range's ends."""
    plan = plan_draws((0.25, 0.5, 0.75), 1.0, 20, 12)
    log, other = NEIGHBOURS[number]
    at = int(np.flatnonzero(below(other) - below(log))[0])
    drawn = draw_borders(spread(log, len(log) // 2), plan, KEY.narrowed({"number": number}))
    order = np.argsort(np.argsort([draw.share for draw in plan.draws], kind="stable"), kind="stable")
    picked = [[at] * len(plan.draws), [0] * len(plan.draws), (at - 4 + order).clip(0, 2048).tolist()]
    found = [abs(path_loss(plan, borders, log, other)) for borders in (drawn, *picked)]
    assert max(found) <= sum(plan.epsilons) * (1 + 1e-12)


@pytest.mark.slow
def test_a_plan_whose_draws_share_users_would_be_caught() -> None:
    """Every draw over all users, at its level's epsilon: what recursive splitting must not do."""
    plan = plan_draws((0.25, 0.5, 0.75), 1.0, 600, 12)
    costs = [max(map(abs, losses(*WORST[0], draw.share, plan.epsilons[draw.level]))) for draw in plan.draws]
    assert sum(costs) > 1.1


def test_one_user_is_in_one_part_of_each_level() -> None:
    plan = plan_draws(tuple(k / 10 for k in range(1, 10)), 1.0, 50, 12)
    log = (30, 21, 0, 9)
    borders = draw_borders(spread(log, 2), plan, KEY)
    for user in itertools.chain(range(0, 4096, 97)):
        levels = []
        for draw in plan.draws:
            first = 0 if draw.low is None else borders[draw.low]
            last = 4096 if draw.high is None else borders[draw.high]
            levels += [draw.level] if first <= user < last else []
        assert len(levels) == len(set(levels))


def test_a_user_is_in_one_bin_of_each_level_of_the_hierarchy() -> None:
    noise = HierarchyNoise(4, (1, 2, 4), 0.9)
    one, two = (measure_hierarchy(spread(counts, 4), noise, KEY) for counts in ([3] * 16, [3] * 9 + [4] + [3] * 6))
    changed = [np.abs(after - before) for before, after in zip(one, two, strict=True)]
    assert [int(level.sum()) for level in changed] == [1, 1, 1]
    assert noise.level_epsilon * len(changed) == pytest.approx(noise.epsilon)


def test_a_retried_bundle_draws_the_same() -> None:
    plan = plan_draws((0.1, 0.5, 0.9), 1.0, 60, 12)
    once, again = (draw_borders(spread((30, 21, 0, 9), 2), plan, KEY) for _ in range(2))
    assert once == again
    assert once != draw_borders(spread((30, 21, 0, 9), 2), plan, KEY.narrowed({"another": "run"}))
