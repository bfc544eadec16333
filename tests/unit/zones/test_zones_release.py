"""The published estimates of zones: intervals of all levels over many keys, rates, Gaussian noise, distributions."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely
from numpy.typing import NDArray

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.places import Places
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.locations.distributions import Distributions
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.zones.zone_file import ZoneLevel, Zones
from sfumato.transforms.zones.zone_levels import ZoneLevels
from sfumato.transforms.zones.zone_raster import ZoneLocator
from sfumato.transforms.zones.zones_release import ZoneCounts, zone_counts, zones_files
from tests.seeds import seeded_rng

USERS, SIZES, KEYS = 3_000, (60, 12, 3), 150
METADATA = ReleaseMetadata("zones", "one", "2026-11-20T00:00:00+00:00", "key file", True, {"columns": {}})


def nested() -> Zones:
    shapes = np.empty(SIZES[0], dtype=object)
    shapes[:] = [shapely.box(i % 12, i // 12, i % 12 + 1, i // 12 + 1) for i in range(SIZES[0])]
    rng = seeded_rng(1)
    parents = [np.concatenate([np.arange(above), rng.integers(0, above, below - above)]) for below, above in (
        SIZES[:2], SIZES[1:])]  # fmt: skip
    levels = [
        ZoneLevel(name, tuple(f"{name}{i}" for i in range(size)), parent)
        for name, size, parent in zip(("row", "part"), SIZES[1:], parents, strict=True)
    ]
    return Zones(tuple(map(str, range(SIZES[0]))), shapes, "square", tuple(levels), "squares")


ZONES = nested()
CODES = (seeded_rng(2).beta(0.5, 2, USERS) * SIZES[0]).astype(np.uint64)  # crowded and empty zones


def run(number: int, shares: tuple[float, ...], codes: NDArray[np.uint64] = CODES, **options: Any) -> ZoneCounts:
    method = ZoneLevels(ZONES, shares)
    parameters = HeatmapParameters(depth=ZoneLocator(ZONES).depth, method=method, **{"trust": "central", **options})
    places = Places(parameters.depth, parameters.categories)
    users = keyed_hash(bytes(16), np.arange(len(codes))) & ~places.mask
    order = np.argsort(users)
    key = RunKey.derive(FixedSecret(b"tests of zones" * 3), {"number": number})
    return zone_counts(run_in_memory(Rows(places, users[order], codes[order]), USERS, parameters, key), method)


TRUTH = [np.bincount(ancestor[CODES.astype(np.int64)], minlength=size) for ancestor, size in zip(
    ZONES.ancestors, SIZES, strict=True)]  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "options"),
    [
        ((1.0, 0.0, 0.0), {}),
        ((1.0, 0.0, 0.0), {"epsilon": 0.3}),
        ((0.8, 0.0, 0.2), {}),
        ((0.5, 0.3, 0.2), {"epsilon": 2.0}),
        ((0.7, 0.2, 0.1), {"noise": "gaussian", "delta": 1e-6}),
        ((0.8, 0.0, 0.2), {"trust": "secagg", "shard_size": 500}),
    ],
)
def test_intervals_hold_and_errors_are_as_stated(shares: tuple[float, ...], options: dict[str, Any]) -> None:
    """Of 150 keys. Errors of a level's zones are nearly independent, so that 60 zones have 9,000 intervals."""
    found = [run(number, shares, **options) for number in range(KEYS)]
    for level, truth in enumerate(TRUTH):
        users = np.stack([one.levels[level].counts[0] for one in found])
        held = np.mean([(one.low[level] <= truth) & (truth <= one.high[level]) for one in found])
        spare = 5 * math.sqrt(0.05 * 0.95 / (KEYS * SIZES[level]) * (1 + (level > 0)))
        assert 0.93 - spare < held < 0.975 + spare
        variance = float(found[0].levels[level].variance.mean())
        error = float(((users - truth) ** 2).mean())
        assert abs(error / variance - 1) < 5 * math.sqrt(6 / (KEYS * SIZES[level]))
        bias = (users.mean(axis=0) - truth) / np.sqrt(found[0].levels[level].variance / KEYS)
        assert np.abs(bias).max() < 5


def test_users_of_distributions_are_in_users() -> None:
    """Every user has a third of their weight in each of three zones."""
    method = ZoneLevels(ZONES, (0.8, 0.0, 0.2))
    own = HeatmapParameters(
        depth=ZoneLocator(ZONES).depth, method=method, trust="central", contribution="all", gamma=3, epsilon=8.0
    )
    places = Places(own.depth)
    users = np.sort(keyed_hash(bytes(16), np.arange(USERS)) & ~places.mask)
    rows = Distributions(
        np.repeat(users, 3), np.tile(np.array([4, 5, 6], places.dtype), USERS), np.ones(3 * USERS, np.int64)
    )
    key = RunKey.derive(FixedSecret(b"tests of zones" * 3), {})
    state = run_in_memory(Rows(places, rows.users, rows.codes.astype(np.uint64), rows.weights), USERS, own, key)
    found = zone_counts(state, method).levels[0]
    np.testing.assert_allclose(found.counts[0][4:7], USERS / 3, atol=8 * math.sqrt(found.variance.max()))
    assert abs(found.counts[0].sum() - USERS) < 8 * math.sqrt(SIZES[0] * found.variance.max())


@pytest.mark.usefixtures("blank_pictures")
def test_rates_of_zones_hold_the_probability() -> None:
    """A third of all users have the property, in crowded zones: intervals hold it, and the zones' average is near."""
    rng = seeded_rng(5)
    sick = rng.random(USERS) < 1 / 3
    depth = ZoneLocator(ZONES).depth
    codes = CODES | (sick.astype(np.uint64) << np.uint64(2 * depth))
    auxiliary = {"columns": {"auxiliary": {"column": "sick", "categories": ["false", "true"]}}}
    metadata = ReleaseMetadata("zones", "one", METADATA.created, "key file", True, auxiliary)
    method = ZoneLevels(ZONES, (0.8, 0.0, 0.2))
    own = HeatmapParameters(depth=depth, method=method, trust="central", categories=2)
    places = Places(depth, 2)
    users = keyed_hash(bytes(16), np.arange(USERS)) & ~places.mask
    order = np.argsort(users)
    key = RunKey.derive(FixedSecret(b"tests of zones" * 3), {})
    state = run_in_memory(Rows(places, users[order], codes[order]), USERS, own, key)
    files = zones_files(state, own, method, metadata)
    table = pq.read_table(io.BytesIO(files["zones.parquet"])).to_pandas()
    crowded = table[(table["level"] == "square") & (table["users"] > 20)]
    held = ((crowded["rate_low"] <= 1 / 3) & (crowded["rate_high"] >= 1 / 3)).sum()
    assert len(crowded) > 25
    assert held >= len(crowded) - 6  # of 30 at 95%: 6 miss with a probability of 3e-3 at most
    assert abs(table["rate"].iloc[-3:].mean() - 1 / 3) < 0.1
    assert {"index.html", "zones.png", "rates.png"} <= set(files)
