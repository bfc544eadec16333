"""Tests of benchmarks/month_ways.py: what ways spend, their measurements, and how coverage is counted."""

from datetime import date, timedelta

import numpy as np
import pytest

from benchmarks.month_counts import CountNight, draw_nights
from benchmarks.month_ways import (
    CLASSES,
    DELTA,
    EPSILON,
    GAUSSIAN_WAYS,
    REFERENCE,
    WAYS,
    WINDOW,
    Covered,
    Publisher,
    Way,
    publish_all,
    run_key,
    scaled_measurements,
)
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.trust import Trust
from sfumato.transforms.privacy.mechanism import rho_for_delta
from tests.seeds import seeded_rng

FIRST = date(2026, 10, 13)


@pytest.fixture(scope="module")
def nights() -> list[CountNight]:
    return list(draw_nights([FIRST + timedelta(number) for number in range(3)], 200_000, seed=1))


@pytest.mark.parametrize("way", [*WAYS, *GAUSSIAN_WAYS], ids=lambda way: way.name)
def test_no_user_spends_more_than_the_limit_in_any_window(way: Way) -> None:
    asked = [Rotation.of_night(FIRST + timedelta(night), way.cohorts).cohort for night in range(4 * WINDOW)]
    most = max(
        asked[at : at + WINDOW].count(cohort) for at in range(3 * WINDOW) for cohort in range(1, 1 + way.cohorts)
    )
    for trust in (Trust.SECAGG, Trust.CENTRAL):
        if way.gaussian and trust == Trust.SECAGG:
            continue
        parameters = way.parameters(trust)
        if way.gaussian:
            assert parameters.rho is not None
            assert most * parameters.rho == pytest.approx(rho_for_delta(EPSILON, DELTA), rel=1e-6)
        else:
            assert most * parameters.epsilon == pytest.approx(EPSILON)


@pytest.mark.parametrize("cohorts", [1, 30])
def test_measurements_are_of_all_users_with_their_variance(cohorts: int, nights: list[CountNight]) -> None:
    """Squared errors over the stated variance: their mean is 1 within 6 standard deviations, of a kurtosis up to 6."""
    way, trust = Way("test", cohorts), Trust.SECAGG
    squares = []
    for night in nights:
        state = night.run(cohorts, way.parameters(trust), run_key(0, way, night.day, trust), None)
        measured, users, stddev = scaled_measurements(state, cohorts)
        assert abs(users - night.users) < 6 * stddev
        for one in measured:
            truth = night.entry_counts(one.tree)
            squares.append((one.counts - truth) ** 2 / (one.variance + one.sampling * truth))
    found = np.concatenate(squares)
    assert abs(found.mean() - 1) < 6 * np.sqrt(5 / len(found))


def test_covered_counts_cells_with_users_by_size() -> None:
    rng = seeded_rng(0)
    truth = rng.integers(0, 3_000, 500)
    truth[:200] = rng.integers(0, 20, 200)
    low, high = truth + rng.normal(-1, 1, 500), truth + rng.normal(1, 1, 500)
    found = Covered.of(low, high, truth)
    for at, least in enumerate(CLASSES):
        end = CLASSES[at + 1] if at + 1 < len(CLASSES) else 10**9
        inside = [low[i] <= truth[i] <= high[i] for i in range(500) if least <= truth[i] < end]
        assert (found.cells[at], found.held[at]) == (len(inside), sum(inside))
    held = [users for users, least, most in zip(truth, low, high, strict=True) if least <= users <= most]
    assert (found.users, found.users_held) == (sum(truth), sum(held))


def test_publishers_that_were_kept_publish_the_same_again(nights: list[CountNight]) -> None:
    posterior = next(way for way in WAYS if way.memory == "posterior" and way.cohorts == WINDOW)
    maps, kept = publish_all(nights, [Publisher(way, Trust.SECAGG) for way in (REFERENCE, posterior)], [1])
    assert [len(one) for one in maps] == [3, 3]
    for publisher, before in zip(kept[1], maps, strict=True):
        again = publisher.publish(nights[1])
        assert np.array_equal(again.density, before[1].density)
        assert again.expected_error == before[1].expected_error > 0
