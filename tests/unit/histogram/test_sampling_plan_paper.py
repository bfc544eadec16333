"""The paper's sampling rate and threshold: its printed numbers, and its bound of delta against the exact delta."""

from __future__ import annotations

import itertools
import math

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import rounds_delta
from sfumato.transforms.histogram.sampling_plan import PaperSamplePlan, SamplePlan, corollary_rate, paper_sampling
from tests.rejections import rejects


def test_the_paper_s_numeric_example() -> None:
    """Section 3.1: epsilon 1, alpha 1/6: p = 0.105, and with a threshold of 20 delta is below 1e-8."""
    sampling = paper_sampling(1.0, 1e-8)
    assert sampling.rate == pytest.approx((1 - math.exp(-1)) / 6, abs=2**-31)
    assert sampling.threshold == 20


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_exact_delta_is_within_the_budget(rounds: int) -> None:
    """Also where the threshold is 1 or 2, and at an epsilon above 1, for which the paper does not state its lemma."""
    for epsilon, delta in itertools.product((0.05, 0.5, 1.0, 4.0), (1e-8, 1e-4, 0.1, 0.5)):
        sampling = paper_sampling(epsilon, delta, rounds=rounds)
        assert rounds_delta(epsilon, sampling.rate, sampling.threshold, rounds) <= delta
        assert sampling.rate <= corollary_rate(epsilon / rounds)


def test_a_plan_of_the_paper_states_the_exact_delta() -> None:
    plan, ours = PaperSamplePlan(population=1_000_000), SamplePlan(population=1_000_000)
    assert plan.sampling == paper_sampling(0.99, 1e-8, 1_000_000)
    assert plan.delta_spent < 1e-13
    assert ours.delta_spent > 0.99e-8
    assert ours.hidden_count() < plan.hidden_count() / 2


def test_too_few_users_and_bad_numbers_are_refused() -> None:
    assert paper_sampling(1.0, 1e-8, 190).threshold == 20
    with rejects("population"):
        paper_sampling(1.0, 1e-8, 189)
    for wrong in ({"epsilon": 0.0}, {"delta": 1.0}, {"population": 0}, {"rounds": 0}):
        with pytest.raises(RequestError, match=f"{next(iter(wrong))}: must be"):
            paper_sampling(**{"epsilon": 1.0, "delta": 1e-8, **wrong})
