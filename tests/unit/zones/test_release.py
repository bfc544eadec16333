"""Levels of zones, the division of the budget, published estimates, their intervals, and the page."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely
from numpy.typing import NDArray
from scipy import stats

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.region import Places
from sfumato.schemas.views.map_views import MapBody
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.geo.zone_file import ZoneLevel, Zones
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.locations.shards import ShardGroup, key_dtype
from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.report.map_figure import measure_values
from sfumato.transforms.report.report import render_page
from sfumato.transforms.statistics.tree_least_squares import NoisyLevel, fit_levels
from sfumato.transforms.zones import view as zones_view
from sfumato.transforms.zones.plan import ZoneEncoding, ZoneLevels, level_shares, mean_variances
from sfumato.transforms.zones.release import (
    ZoneCounts,
    lattice_margins,
    margins,
    zone_counts,
    zones_files,
)
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.zones.polygons import voronoi, zones_of


@pytest.mark.parametrize("categories", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_shards_sums_are_those_of_plain_loops(categories: int, weighted: bool) -> None:
    rng = seeded_rng(1)
    places, zones, shards, rows = Places(3, categories), 50, 4, 700
    parents = rng.integers(0, 7, zones)
    parents[:7] = np.arange(7)
    shard, category, zone = (rng.integers(0, high, rows) for high in (shards, categories, zones))
    keys = (shard << places.bits | category << 2 * places.depth | zone).astype(key_dtype(places))
    order = np.argsort(keys)
    weights = rng.integers(1, 9, rows) if weighted else None
    clients = None if weights is None else np.zeros(rows, dtype=np.uint32)
    group = ShardGroup(0, shards, places, keys[order], None, None if weights is None else weights[order], clients)
    encoding = ZoneEncoding("tract", parents, np.full(7, 1 / 7), categories)
    expected = np.zeros((shards, categories * 7), dtype=np.int64)
    for row in range(rows):
        expected[shard[row], category[row] * 7 + parents[zone[row]]] += 1 if weights is None else weights[row]
    np.testing.assert_array_equal(encoding.count(group, slice(0, shards)), expected)
    np.testing.assert_array_equal(encoding.count(group, slice(1, 3)), expected[1:3])
    (entries,) = encoding.entries_of(group, slice(0, shards))
    np.testing.assert_array_equal(entries, (category * 7 + parents[zone])[order])
    assert encoding.length == categories * 7
    assert math.isclose(encoding.shares.sum(), 1)


def test_other_zones_are_another_question() -> None:
    parents = np.arange(6) // 2
    one = ZoneEncoding("tract", parents, np.full(3, 1 / 3))
    others = [
        ZoneEncoding("ward", parents, np.full(3, 1 / 3)),
        ZoneEncoding("tract", parents[::-1].copy(), np.full(3, 1 / 3)),
        ZoneEncoding("tract", parents, np.full(4, 1 / 4)),
        ZoneEncoding("tract", parents, np.full(3, 1 / 3), 2),
    ]
    assert len({encoding.fingerprint for encoding in (one, *others)}) == 5


def loss(shares: tuple[float, ...], sizes: list[int], noise: AdditiveNoise, budget: float) -> float:
    own = [noise.stddev(share * budget) ** 2 if share else math.inf for share in shares]
    return math.fsum(map(math.log, mean_variances(own, sizes)))


@pytest.mark.parametrize(
    ("sizes", "budget", "noise"),
    [
        ([300, 9], 0.1, LAPLACE),
        ([100, 50], 1.0, GAUSSIAN),
        ([2500, 400, 20], 1.0, LAPLACE),
        ([40, 4, 1], 0.1, GAUSSIAN),
    ],
)
def test_no_division_is_better(sizes: list[int], budget: float, noise: AdditiveNoise) -> None:
    """Of all divisions in steps of a per cent whose finest level has its least share."""
    found = level_shares(sizes, noise, budget)
    assert math.isclose(sum(found), 1)
    alone = noise.stddev(budget)
    assert noise.stddev(found[0] * budget) <= 1.25 * alone
    mine, coarser = loss(found, sizes, noise, budget), len(sizes) - 1
    for units in itertools.product(range(41), repeat=coarser):
        finest = 100 - sum(units)
        if finest > 0 and noise.stddev(finest / 100 * budget) <= 1.25 * alone:
            tried = (finest / 100, *(one / 100 for one in units))
            assert mine <= loss(tried, sizes, noise, budget) + 0.02


def test_the_variances_of_a_regular_tree_are_those_of_the_fit() -> None:
    sizes, own = [240, 24, 6, 1], [2.0, 5.0, math.inf, 40.0]
    levels = [
        NoisyLevel(None) if one == math.inf else NoisyLevel(np.zeros((1, size)), one)
        for size, one in zip(sizes, own, strict=True)
    ]
    parents = [np.arange(240) // 10, np.arange(24) // 4, np.zeros(6, int)]
    for expected, found in zip(mean_variances(own, sizes), fit_levels(levels, parents), strict=True):
        np.testing.assert_allclose(found.variance, expected)


pytestmark = pytest.mark.usefixtures("blank_pictures")
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


def state_of(codes: NDArray[np.uint64], own: CountParameters, number: int = 0) -> CountState:
    """The state after counting users with one place each."""
    places = Places(own.depth, own.categories)
    users = keyed_hash(bytes(16), np.arange(len(codes))) & ~places.mask
    order = np.argsort(users)
    key = RunKey.derive(FixedSecret(b"tests of zones" * 3), {"number": number})
    return run_in_memory(Rows(places, users[order], codes[order]), len(codes), own, key)


def central(zones: Zones, shares: tuple[float, ...], **options: Any) -> CountParameters:
    method = ZoneLevels(zones, shares)
    return CountParameters(depth=ZoneLocator(zones).depth, method=method, **{"trust": "central", **options})


def run(number: int, shares: tuple[float, ...], **options: Any) -> ZoneCounts:
    own = central(ZONES, shares, **options)
    return zone_counts(state_of(CODES, own, number), own.method)


TRUTH = [np.bincount(ancestor[CODES.astype(np.int64)], minlength=size) for ancestor, size in zip(
    ZONES.ancestors, SIZES, strict=True)]  # fmt: skip


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(
    ("shares", "options"),
    [
        ((0.5, 0.3, 0.2), {"epsilon": 2.0}),
        ((0.8, 0.0, 0.2), {"trust": "secagg", "shard_size": 500}),
    ],
)
def test_intervals_hold_and_errors_are_as_stated(shares: tuple[float, ...], options: dict[str, Any]) -> None:
    """Of 150 keys. Errors of a level's zones are nearly independent, so that 60 zones have 9,000 intervals.

    Limits are 7 deviations (3e-12) of 84 figures that are normal nearly, as sums of 150 or more.
    """
    found = [run(number, shares, **options) for number in range(KEYS)]
    for level, truth in enumerate(TRUTH):
        users = np.stack([one.levels[level].counts[0] for one in found])
        held = np.mean([(one.low[level] <= truth) & (truth <= one.high[level]) for one in found])
        spare = 7 * math.sqrt(0.05 * 0.95 / (KEYS * SIZES[level]) * (1 + (level > 0)))
        assert 0.93 - spare < held < 0.975 + spare
        variance = float(found[0].levels[level].variance.mean())
        error = float(((users - truth) ** 2).mean())
        assert abs(error / variance - 1) < 7 * math.sqrt(6 / (KEYS * SIZES[level]))
        bias = (users.mean(axis=0) - truth) / np.sqrt(found[0].levels[level].variance / KEYS)
        assert np.abs(bias).max() < 7


@pytest.mark.false_alarm(2 * FLAKE_RATE)
def test_rates_of_zones_hold_the_share_of_their_users() -> None:
    """A third of all users have the property: intervals of crowded zones hold the share of those who do."""
    sick = seeded_rng(5).random(USERS) < 1 / 3
    own = central(ZONES, (0.8, 0.0, 0.2), categories=2)
    auxiliary = {"columns": {"auxiliary": {"column": "sick", "categories": ["false", "true"]}}}
    metadata = ReleaseMetadata("zones", "one", METADATA.created, "key file", True, auxiliary)
    state = state_of(CODES | (sick.astype(np.uint64) << np.uint64(2 * own.depth)), own)
    files = zones_files(state, own, own.method, metadata)
    table = pq.read_table(io.BytesIO(files["zones.parquet"])).to_pandas()
    exact = np.concatenate(
        [
            np.bincount(ancestor[CODES[sick].astype(np.int64)], minlength=size) / np.maximum(truth, 1)
            for ancestor, size, truth in zip(ZONES.ancestors, SIZES, TRUTH, strict=True)
        ]
    )
    crowded = np.concatenate(TRUTH) > 30
    held = ((table["rate_low"] <= exact) & (exact <= table["rate_high"]))[crowded]
    assert len(held) > 25
    assert held.sum() >= stats.binom.ppf(FLAKE_RATE, len(held), 0.94)
    assert (table["rate"] - exact)[-3:].abs().max() < 0.1  # of zones with hundreds of users
    assert {"index.html", "zones.png", "rates.png"} <= set(files)


def discrete_laplace(rng: np.random.Generator, epsilon: float, shape: tuple[int, ...]) -> NDArray[np.int64]:
    decay = math.exp(-epsilon)
    return rng.geometric(1 - decay, shape) - rng.geometric(1 - decay, shape)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.998, 2.0])
def test_the_kurtosis_is_that_of_the_discrete_distribution(epsilon: float) -> None:
    k = np.arange(-2000, 2001)
    decay = math.exp(-epsilon)
    mass = decay ** np.abs(k) * (1 - decay) / (1 + decay)
    variance = (mass * k**2).sum()
    np.testing.assert_allclose(
        LAPLACE.kurtosis(epsilon), (mass * k.astype(float) ** 4).sum() / variance**2 - 3, rtol=1e-9
    )


@pytest.mark.parametrize("epsilon", [0.1, 0.998, 3.0])
def test_intervals_of_integers_hold_95_per_cent(epsilon: float) -> None:
    """By summation of the exact distribution: at least 95%, which no shorter one has."""
    sums = np.array([1, 2, 3, 8, 9])
    half = lattice_margins(epsilon, sums)
    assert np.isnan(half).tolist() == [False] * 4 + [True]
    decay = math.exp(-epsilon)
    k = np.arange(-3000, 3001)
    one = decay ** np.abs(k) * (1 - decay) / (1 + decay)
    for number, margin in zip(sums[:4], half, strict=False):
        mass = one
        for _ in range(int(number) - 1):
            mass = np.convolve(mass, one, mode="same")
        assert mass[np.abs(k) <= margin].sum() >= 0.95 > mass[np.abs(k) < margin].sum()


@pytest.mark.false_alarm(1e-9)
def test_intervals_of_every_level_cover_95_per_cent() -> None:
    """4,000 draws of 56 zones: limits of 7 deviations (3e-12) for 118 figures, normal nearly."""
    sizes, epsilons = (40, 12, 4), (0.8, 0.12, 0.08)
    parents = [np.arange(40) % 12, np.arange(12) % 4]
    rng = seeded_rng(7)
    draws = 4_000
    truth = [rng.poisson(30, sizes[0]).astype(float)]
    for parent in parents:
        truth.append(np.bincount(parent, truth[-1]))
    levels = []
    for exact, epsilon in zip(truth, epsilons, strict=True):
        decay = math.exp(-epsilon)
        variance = 2 * decay / (1 - decay) ** 2
        noisy = exact + discrete_laplace(rng, epsilon, (draws, len(exact)))
        levels.append(NoisyLevel(noisy, variance, LAPLACE.kurtosis(epsilon)))
    for exact, found in zip(truth, fit_levels(levels, parents), strict=True):
        error = found.counts - exact
        half = margins(found.variance, found.kurtosis)
        covered = (np.abs(error) <= half).mean()
        spare = 7 * math.sqrt(0.95 * 0.05 / draws)  # errors of zones are correlated: as if there were one of them
        assert 0.95 - spare < covered < 0.95 + spare
        np.testing.assert_allclose(error.var(axis=0), found.variance, rtol=7 * math.sqrt(5 / draws))
        assert np.abs(error.mean(axis=0) / np.sqrt(found.variance / draws)).max() < 7


EVIL = "<script>alert(1)</script>"


def files_of(zones: Zones, **stated: float) -> dict[str, bytes]:
    shares = (0.8, *[0.0] * (len(zones.levels) - 1), 0.2) if zones.levels else (1.0,)
    own = central(zones, shares)
    codes = seeded_rng(1).integers(0, len(zones), 900).astype(np.uint64)
    return zones_files(state_of(codes, own), own, own.method, replace(METADATA, parameters={"zones": stated}))


def with_rows(zones: Zones) -> Zones:
    parents = np.arange(len(zones)) % 4
    return Zones(zones.ids, zones.geometries, "tract", (ZoneLevel("county", ("a", "b", "c", EVIL), parents),))


def test_every_level_is_a_layer_of_polygons_the_finest_last() -> None:
    zones = with_rows(zones_of(voronoi(40, seed=1)))
    view = zones_view.zones_view(files_of(zones))
    body = view.body
    assert isinstance(body, MapBody)
    assert [(layer.title, len(layer.level)) for layer in body.layers] == [("county", 4), ("tract", 40)]
    coarse = body.layers[0].shapes
    assert coarse is not None
    rings = [shapely.Polygon(ring) for one in coarse for ring in one]  # counties of many parts, without holes
    assert abs(shapely.union_all(rings).area - 0.04) < 1e-4
    fine = body.layers[-1]
    assert fine.shapes is not None
    total = shapely.union_all([shapely.Polygon(rings[0]) for rings in fine.shapes])
    assert abs(total.area - 0.04) < 1e-4
    assert abs(sum(fine.area) - 1) < 1e-3  # shares of the region
    assert fine.cell_id == [str(i) for i in range(40)]
    assert EVIL not in render_page(view)


def test_zones_around_points_are_places_coloured_by_users() -> None:
    """Others are zones, coloured by users per km²."""
    for stated, unit, noun in ({"radius": 300.0}, "users", "place"), ({}, "users per km²", "zone"):
        view = zones_view.zones_view(files_of(zones_of(voronoi(40, seed=1)), **stated))
        body = view.body
        assert view.title == f"Users by {noun}"
        texts = "".join(text for section in view.sections for text in section.paragraphs)
        assert ("within 300 m of a point" in texts) == bool(stated)
        assert ("zone" in texts) != bool(stated)
        assert isinstance(body, MapBody)
        layer = body.layers[-1]
        users = layer.measures[0]
        assert users.scale.unit == unit
        values = measure_values(layer, users, body.region)
        assert (values == np.array(users.value)).all() == bool(stated)
        assert 0.5 < users.scale.high / values.max() <= 1.1
