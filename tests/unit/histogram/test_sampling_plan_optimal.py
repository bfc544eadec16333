"""What is chosen keeps the guarantee, and no other threshold has a smaller expected error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import delta, max_rate, rounds_delta
from sfumato.transforms.histogram.sampling_plan import (
    choose_sampling,
    corollary_rate,
    corollary_threshold,
    expected_error,
    relative_error,
)
from sfumato.transforms.histogram.sampling_round import Sampling
from tests.rejections import rejects


@pytest.mark.parametrize(
    ("epsilon", "rounds", "population", "items"),
    [(0.1, 1, None, None), (1.0, 1, 10**6, 64), (4.0, 1, 10**6, 16384), (1.0, 3, 10**5, None), (1.0, 12, 10**6, 64)],
)
def test_the_guarantee_is_kept_and_used_up(
    epsilon: float, rounds: int, population: int | None, items: int | None
) -> None:
    chosen = choose_sampling(epsilon, 1e-8, population, items, rounds)
    assert rounds_delta(epsilon, chosen.rate, chosen.threshold, rounds) <= 1e-8
    assert rounds_delta(epsilon, chosen.rate * 1.001, chosen.threshold, rounds) > 1e-8
    assert choose_sampling(epsilon, 1e-8, population, items, rounds) == chosen


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(("population", "items"), [(None, None), (10**6, 64), (10**6, 1024), (10**6, 16384)])
def test_the_paper_s_choice_has_a_larger_error(epsilon: float, population: int | None, items: int | None) -> None:
    paper = Sampling.from_rate(corollary_rate(epsilon), corollary_threshold(1e-8))
    ours = expected_error(choose_sampling(epsilon, 1e-8, population, items), population, items)
    assert ours < 0.95 * expected_error(paper, population, items)


@pytest.mark.parametrize(("epsilon", "population", "items"), [(1.0, None, None), (0.2, 10**6, 64), (2.0, 10**5, 1000)])
def test_no_other_threshold_is_better(epsilon: float, population: int | None, items: int | None) -> None:
    best = expected_error(choose_sampling(epsilon, 1e-8, population, items), population, items)
    for threshold in np.unique(np.geomspace(3, 1024, 60).astype(int)).tolist():
        other = Sampling.from_rate(max_rate(epsilon, 1e-8, threshold), threshold)
        # Thresholds are compared at rates good to 1e-3, and the error moves less than in proportion.
        assert expected_error(other, population, items) >= best * (1 - 1e-3)


def test_few_items_for_many_users_ask_for_a_high_rate_and_a_large_threshold() -> None:
    few, unlimited = choose_sampling(1.0, 1e-8, 10**6, 64), choose_sampling(1.0, 1e-8)
    assert few.rate > 1 - math.exp(-1.0) > unlimited.rate  # beyond what Theorem 1 allows
    assert few.threshold > 90
    assert unlimited.threshold < 40


@pytest.mark.parametrize(
    ("count", "rate", "threshold"), [(1, 0.3, 1), (7, 0.5, 3), (60, 0.3, 20), (60, 0.3, 5), (90, 0.9, 81)]
)
def test_expected_errors_of_one_item_against_its_whole_law(count: int, rate: float, threshold: int) -> None:
    x = np.arange(count + 1)
    estimate = np.where(x >= threshold, x / rate, 0)
    truth = stats.binom.pmf(x, count, rate) @ np.abs(estimate - count) / count
    assert relative_error(np.array([count]), rate, threshold)[0] == pytest.approx(truth, rel=1e-12)


def test_expected_errors_of_a_catalogue_against_the_sum_over_its_items() -> None:
    sampling, users = Sampling.from_rate(0.2, 9), 10**5
    for items, tolerance in ((150, 1e-12), (3000, 1e-3)):  # ranks beyond 200 come in groups
        truth = 0.0
        for exponent in (1, 2):
            weights = np.arange(1.0, items + 1) ** -exponent
            counts = np.maximum(np.rint(users * weights / weights.sum()), 1).astype(np.int64)
            truth += weights / weights.sum() @ relative_error(counts, sampling.rate, 9) / 2
        assert expected_error(sampling, users, items) == pytest.approx(truth, rel=tolerance)


def test_publishing_nothing_has_an_error_of_one() -> None:
    assert expected_error(Sampling(1, 1000), 10**4, 100) == pytest.approx(1.0)


def test_too_few_users_are_told_so() -> None:
    with rejects("population"):
        choose_sampling(1.0, 1e-8, 20)
    with pytest.raises(RequestError, match="in 5 round"):
        choose_sampling(1.0, 1e-8, 40, 10, 5)
    chosen = choose_sampling(1.0, 1e-8, 100)
    assert 100 * chosen.rate >= chosen.threshold


@pytest.mark.parametrize(("wanted", "rounds"), [(1e-12, 12), (1e-40, 1), (0.4, 1), (1e-6, 100)])
def test_unusual_deltas(wanted: float, rounds: int) -> None:
    chosen = choose_sampling(1.0, wanted, rounds=rounds)
    assert rounds_delta(1.0, chosen.rate, chosen.threshold, rounds) <= wanted
    assert delta(1.0, chosen.rate, chosen.threshold) > 0


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, math.nan])
def test_bad_numbers_are_refused(bad: int) -> None:
    for name in ("population", "items", "rounds"):
        with pytest.raises(RequestError, match=f"{name}: must be"):
            choose_sampling(1.0, 1e-8, **{name: bad})
    with rejects("population"):
        expected_error(Sampling(5, 5), bad)
    with rejects("items"):
        expected_error(Sampling(5, 5), 100, bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_budgets_are_refused(bad: float) -> None:
    with rejects("epsilon"):
        choose_sampling(bad, 1e-8)
    with rejects("delta"):
        choose_sampling(1.0, bad)
