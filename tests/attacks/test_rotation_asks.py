"""On a night that does not ask a user, nothing that leaves the job depends on the user's records.

A rotation charges a user for the nights that ask their cohort. That is a promise about all other nights: with equal
keys, logs with and without the user give equal bytes there. And who is asked depends on the id and the key alone.
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Region
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap, bind_key
from sfumato.transforms.heatmap.state import HeatmapState
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.user_hashes import AskedUsers, cohort_of, rotation_key
from tests.conftest import write_files
from tests.seeds import seeded_rng

COHORTS, USERS = 3, 600
SECRET = FixedSecret(bytes(range(32)))
ROTATION_KEY = rotation_key(SECRET, "city", COHORTS)
REGION = Region(-1, 50, 1, 51)
PARAMETERS = HeatmapParameters(depth=5, shard_size=100, rotation=COHORTS)


def table(users: int) -> pa.Table:
    """Three records of each of the users 0 .. users - 1."""
    rng = seeded_rng(0)
    columns = {"latitude": rng.uniform(50, 51, 3 * USERS + 3), "longitude": rng.uniform(-1, 1, 3 * USERS + 3)}
    return pa.table({"user_id": np.repeat(np.arange(USERS + 1), 3), **columns}).slice(0, 3 * users)


def state_of(logs: str, cohort: int) -> HeatmapState:
    """The final state of a run that asks a cohort, under a key that other runs have too."""
    asked = AskedUsers(Rotation(cohort, COHORTS), ROTATION_KEY)
    key, place = RunKey.derive(SECRET, {"night": 1}), Path(logs) / f"{cohort}.state"
    with beam.Pipeline(runner=FnApiRunner()) as root:
        files = sorted(map(str, Path(logs).glob("*.parquet")))
        found = root | beam.Create(files) | PrivateHeatmap(REGION, PARAMETERS, key, asked=asked)
        _ = found | beam.Map(lambda state: place.write_bytes(pickle.dumps(state)))
    state = pickle.loads(place.read_bytes())
    assert isinstance(state, HeatmapState)
    return state


@pytest.fixture(scope="module")
def with_and_without(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder: Path = tmp_path_factory.mktemp("logs")
    for users in (USERS + 1, USERS):
        write_files(table(users), folder / str(users), 2)
    return str(folder / str(USERS + 1)), str(folder / str(USERS))


@pytest.mark.parametrize("cohort", range(1, COHORTS + 1))
def test_a_user_shows_on_the_nights_that_ask_them_alone(with_and_without: tuple[str, str], cohort: int) -> None:
    of_user = int(cohort_of(pa.array([USERS]), ROTATION_KEY, COHORTS)[0])
    one, other = (state_of(logs, cohort) for logs in with_and_without)
    if cohort != of_user:
        assert one.population == other.population
        assert len(one.results) == len(other.results)
        for mine, theirs in zip(one.results, other.results, strict=True):
            assert mine.spent == theirs.spent
            assert mine.encoding == theirs.encoding
            np.testing.assert_array_equal(mine.counts, theirs.counts)
        return
    assert one.population.counted == other.population.counted + 1  # type: ignore[operator]
    assert one.results[0].counts.sum() == other.results[0].counts.sum() + 1


def test_another_cohort_has_other_noise() -> None:
    """The same key for two cohorts would give their difference without noise."""
    asked = [AskedUsers(Rotation(cohort, COHORTS), ROTATION_KEY) for cohort in (1, 2)]
    run = RunKey.derive(SECRET, {})
    keys = [bind_key(run, REGION, PARAMETERS, LocationColumns(), None, one) for one in asked]
    assert keys[0].subkey("noise") != keys[1].subkey("noise")
    all_users = dataclasses.replace(PARAMETERS, rotation=1)
    assert bind_key(run, REGION, all_users, LocationColumns()).subkey("noise") != keys[0].subkey("noise")
