"""Budgets of rounds, public domains, and every value that a plan refuses."""

from __future__ import annotations

import math

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.central_counts import MAX_DENSE_ITEMS, CentralCountPlan
from sfumato.transforms.histogram.count_noise import ItemBound


@pytest.mark.parametrize("domains", [(None,), (None, None, None), (4**4, 4**8), (4**2, 4**5), (16, None)])
@pytest.mark.parametrize("bound", [ItemBound(), ItemBound(20, 3)])
def test_rounds_and_admission_spend_no_more_than_the_budget(domains: tuple[int | None, ...], bound: ItemBound) -> None:
    plan = CentralCountPlan(epsilon=0.7, delta=1e-7, domains=domains, bound=bound)
    assert plan.admission_rule.sampling_rate == 1
    spent = math.fsum(noise.epsilon for noise in plan.noises) + plan.admission_rule.epsilon
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
    ("wrong", "match"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 1e-7}, "epsilon.* too small for the admission"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-9}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta": 0.0}, "delta: 0 needs noise on every item"),
        ({"delta": 0.0, "domains": (4**11,)}, "delta: 0 needs noise on every item"),
        ({"population": 0}, "population"),
        ({"max_bad_fraction": 2.0}, "max_bad_fraction"),
        ({"noise": "none"}, "noise"),
    ],
)
def test_bad_values_are_refused(wrong: dict, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        _ = CentralCountPlan(**wrong).noises and CentralCountPlan(**wrong).admission_rule
