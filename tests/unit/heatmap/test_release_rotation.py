"""The map of one rotating cohort, scaled to all users: unbiased, and its intervals hold for all users."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RequestError, TooFewUsersError
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.release import interval_columns, published_estimate
from sfumato.transforms.privacy.admission import AdmissionRule, NoisyUserCounts, check_admission
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng

USERS, COHORTS, DEPTH, KEYS = 40_000, 10, 6, 40
GRID = Grid(Region(0, 0, 1, 1), DEPTH)
PARAMETERS = HeatmapParameters(depth=DEPTH, rotation=COHORTS, shard_size=1_000)


@pytest.mark.slow
def test_a_tenth_of_the_users_gives_the_map_of_all() -> None:
    rng, places = seeded_rng(5), Places(DEPTH, 1)
    centre, width = np.array([[0.3, 0.6], [0.7, 0.4]]), np.array([0.05, 0.15])
    kind = np.arange(USERS) % 2
    place = np.clip(rng.normal(centre[kind], width[kind][:, None]), 0.001, 0.999)
    codes = GRID.locate(place[:, 0], place[:, 1])[1].astype(np.uint64)
    exact = np.bincount(codes.astype(np.int64), minlength=4**DEPTH)
    inside, crowded, errors = [], [], []
    for number in range(KEYS):
        asked = rng.random(USERS) < 1 / COHORTS
        hashes = np.sort(rng.integers(0, 2**63, int(asked.sum()), dtype=np.uint64)) * np.uint64(2)
        rows = Rows(places, hashes & ~places.mask, rng.permutation(codes[asked]))
        key = RunKey.derive(FixedSecret(bytes([number + 1] * 32)), {})
        state = run_in_memory(rows, len(hashes), PARAMETERS, key)
        estimate, unbiased, _ = published_estimate(state, PARAMETERS, GRID)
        columns = interval_columns(estimate, unbiased)
        owner = estimate.tree.index.owners(np.arange(4**DEPTH, dtype=np.uint64))
        truth = np.bincount(owner, exact, len(estimate.counts))
        holds = (columns["users_low"] <= truth) & (truth <= columns["users_high"])
        inside.append(holds.mean())
        crowded.append(holds[truth > 50].mean())
        users, stddev = state.all_users_estimate()
        assert estimate.counts.sum() == pytest.approx(users)
        errors.append((users - USERS) / stddev)
    assert 0.93 < np.mean(inside) < 0.97
    assert 0.92 < np.mean(crowded) < 0.98
    # The mean of 40 standard normal errors is within 0.8 but with probability 4e-7, their mean square within 0.2..2.6.
    assert abs(np.mean(errors)) < 0.8
    assert 0.2 < np.mean(np.square(errors)) < 2.6


def test_the_least_number_of_users_is_of_all_cohorts() -> None:
    counted = NoisyUserCounts(users=120.0, unusable=0.0, epsilon=1.0, noise_stddev=1.0)
    check_admission(counted, AdmissionRule(1.0, min_users=1_000, cohorts=10))
    with pytest.raises(
        TooFewUsersError, match=r"about 120 users \(± 2, 95%\) in one of 10 cohorts, so about 1,200 in all"
    ):
        check_admission(counted, AdmissionRule(1.0, min_users=2_000, cohorts=10))


@pytest.mark.parametrize(
    ("option", "value"), [("population", 1000), ("users", 1000), ("participation", "paper"), ("slots", 24)]
)
def test_a_rotation_contradicts_some_options(option: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{option}: a rotation"):
        HeatmapParameters(**{option: value}, rotation=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("cohorts", [0, 367])
def test_a_rotation_has_a_cohort_for_each_day_of_a_year_at_most(cohorts: int) -> None:
    with pytest.raises(RequestError, match=r"^rotation"):
        HeatmapParameters(rotation=cohorts)
