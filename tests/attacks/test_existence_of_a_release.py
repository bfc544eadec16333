"""Attack 2 of the table: `--population N --shard_size 16777216 --dropout 0` succeeded if and only if n >= N."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from benchmarks.evaluation.in_memory import run_in_memory
from sfumato.schemas.errors import RefusedError
from sfumato.schemas.places import Places
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.schedule import start
from sfumato.transforms.locations.read import BuildShards
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.admission import UserCounts, check_admission, count_users
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.attacks.test_noise_independent_of_data import crowd

POPULATION = 500
KEYS = [RunKey.derive(FixedSecret(b"existence" * 4), {"number": number}) for number in range(12)]


def parameters_of(**values: Any) -> HeatmapParameters:
    own = {"depth": 8, "population": POPULATION, "shard_size": 1 << 24, "dropout": 0.0}
    return heatmap_parameters("adaptive", {**own, **values})


def is_published(users: int, parameters: HeatmapParameters, key: RunKey) -> bool:
    try:
        run_in_memory(crowd(users), POPULATION, parameters, key)
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize("users", [0, POPULATION - 1, POPULATION, POPULATION + 1])
def test_a_shard_answers_however_few_users_it_has(users: int) -> None:
    """In the paper's model the outcome showed whether there are as many users as said: that model is not protected."""
    assert all(is_published(users, parameters_of(), key) for key in KEYS)
    paper = parameters_of(participation="paper")
    assert [is_published(users, paper, key) for key in KEYS[:2]] == [users >= POPULATION] * 2


def test_whether_a_run_goes_on_depends_on_the_noisy_count_alone() -> None:
    """The outcome of a user more is that of the same noisy count, whatever the true one is."""
    rule = parameters_of(epsilon=30).admission()
    for key in KEYS:
        counts = [count_users(UserCounts(users), rule, key) for users in (POPULATION - 1, POPULATION)]
        for admission in counts:
            check_admission(admission, rule)  # neither is refused: 10% and the noise are allowed for
            start(admission, parameters_of(epsilon=30))
        assert counts[1].users - counts[0].users == 1


def test_every_planned_shard_group_exists_without_any_user() -> None:
    """Groups were made of users, so that who was missing took theirs along."""
    for weighted in (False, True):
        cohort = replace(Cohort.plan(200_000, None, 100, 0.05), participation="planned")
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            nobody = pipeline | "Nobody" >> beam.Create([], reshuffle=False).with_output_types(bytes)
            planned = pipeline | "Cohort" >> beam.Create([cohort])
            built = nobody | BuildShards(Places(8), planned, Spill(), weighted)
            sizes = built | beam.Map(lambda group: (group.first, group.shards, int(group.sizes().sum())))
            step = 1 << cohort.shift(weighted)
            expected = [(first, min(step, 2000 - first), 0) for first in range(0, 2000, step)]
            assert_that(sizes, equal_to(expected))
