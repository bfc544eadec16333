"""Counts of zones: what one user changes, what their levels cost together, and zones in which nobody is.

Each test also runs the opposite, such as a user in two zones, and sees it.
"""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.region import Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.geo.zone_file import ZoneLevel, Zones
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.zones.plan import ZoneLevels, level_shares
from sfumato.transforms.zones.release import zones_files
from tests.seeds import seeded_rng

KEY = RunKey.derive(FixedSecret(b"attack on zones" * 3), {"job": "attack"})
SIZE = 64


def nested() -> Zones:
    """64 squares in 4 rows, and all of them."""
    shapes = np.empty(SIZE, dtype=object)
    shapes[:] = [shapely.box(i % 16, i // 16, i % 16 + 1, i // 16 + 1) for i in range(SIZE)]
    rows = ZoneLevel("row", tuple("abcd"), np.arange(SIZE) // 16)
    return Zones(tuple(map(str, range(SIZE))), shapes, "square", (rows, ZoneLevel("all", ("all",), np.zeros(4, int))))


def parameters(shares: tuple[float, ...] | None = None, **options: Any) -> CountParameters:
    zones = nested()
    shares = shares or level_shares([64, 4, 1], LAPLACE, 0.998)
    options = {"trust": "central", "epsilon": 1.0, "population": 500, **options}
    return CountParameters(depth=ZoneLocator(zones).depth, method=ZoneLevels(zones, shares), **options)


def rows_of(codes: np.ndarray[Any, np.dtype[np.uint64]], places: Places, first: int = 0) -> Rows:
    """One user for each code."""
    users = keyed_hash(KEY.subkey("users"), np.arange(first, first + len(codes)))
    order = np.argsort(users & ~places.mask)
    return Rows(places, (users & ~places.mask)[order], codes[order])


def state_of(codes: np.ndarray[Any, np.dtype[np.uint64]], own: CountParameters) -> CountState:
    return run_in_memory(rows_of(codes, Places(own.depth)), 500, own, KEY)


@pytest.mark.parametrize("trust", ["central", "secagg"])
def test_one_user_changes_one_zone_of_each_asked_level_by_one(trust: str) -> None:
    """The number of users that the plan uses is held, as it is noisy: then the noise of both runs is the same."""
    options = {"trust": trust} | ({"shard_size": 100} if trust == "secagg" else {})
    own = parameters((0.8, 0.1, 0.1), **options)
    codes = seeded_rng(1).integers(0, SIZE, 500).astype(np.uint64)
    before, after = state_of(codes, own), state_of(np.append(codes, np.uint64(37)), own)
    changed = [two.counts - one.counts for one, two in zip(before.results, after.results, strict=True)]
    assert [np.flatnonzero(one).tolist() for one in changed] == [[0], [37 // 16], [37]]
    assert [float(np.abs(one).sum()) for one in changed] == [1.0, 1.0, 1.0]
    # The opposite: a user in two zones changes two, which the noise does not cover.
    twice = state_of(np.append(codes, np.array([37, 5], dtype=np.uint64)), own)
    assert np.abs(twice.results[-1].counts - before.results[-1].counts).sum() == 2


@pytest.mark.parametrize(
    ("epsilon", "shares"), [(0.1, (1.0, 0.0, 0.0)), (1.0, (0.8, 0.05, 0.15)), (4.0, (0.8, 0.0, 0.2))]
)
def test_levels_and_the_count_of_users_cost_epsilon_together(epsilon: float, shares: tuple[float, ...]) -> None:
    own = parameters(shares, epsilon=epsilon)
    state = state_of(np.zeros(500, dtype=np.uint64), own)
    spent = [result.cost for result in state.results]
    assert math.fsum([*[one for one in spent if one], state.population.cost]) == epsilon
    for result in state.results:
        cost = result.cost
        assert cost is not None
        decay = math.exp(-cost)  # a user adds one to one entry: discrete Laplace noise of this decay is enough
        assert math.isclose(result.noise_stddev, math.sqrt(2 * decay) / (1 - decay), rel_tol=1e-9)


def published(codes: np.ndarray[Any, np.dtype[np.uint64]]) -> dict[str, bytes]:
    own = parameters()
    method = own.method
    assert isinstance(method, ZoneLevels)
    metadata = ReleaseMetadata("zones", "one", "2026-11-20T00:00:00+00:00", "key file", True, {"columns": {}})
    return zones_files(state_of(codes, own), own, method, metadata)


@pytest.mark.usefixtures("blank_pictures")
def test_the_list_of_zones_does_not_depend_on_the_users() -> None:
    """All users in one zone, or in all: the same zones in the same order, with the same errors."""
    one = published(np.zeros(500, dtype=np.uint64))
    every = published((np.arange(500) % SIZE).astype(np.uint64))
    tables = [pq.read_table(io.BytesIO(files["zones.parquet"])) for files in (one, every)]
    for column in ("zone", "level", "parent", "stddev", "area", "geometry"):
        assert tables[0][column].equals(tables[1][column])
    assert not tables[0]["users"].equals(tables[1]["users"])
    empty = tables[0]["users"].to_numpy()[1:SIZE]
    assert (empty != 0).all()  # reconciled with the level above: no count of a zone without users is 0


def test_other_zones_have_other_noise_under_the_same_key() -> None:
    """Two releases of one key whose zones differ would tell users apart by their difference."""
    own = parameters((1.0, 0.0, 0.0))
    assert isinstance(own.method, ZoneLevels)
    codes = np.zeros(500, dtype=np.uint64)
    moved = seeded_rng(2).permutation(SIZE)
    rows = ZoneLevel("row", tuple("abcd"), moved // 16)
    other = replace(own, method=ZoneLevels(replace(own.method.zones, levels=(rows,)), (0.5, 0.5)))
    first = parameters((0.5, 0.5, 0.0))
    noise = [state_of(codes, one).results[0].counts[1:] for one in (first, other)]
    assert not np.array_equal(*noise)
