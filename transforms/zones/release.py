"""The files of a release of zones, made of the final state and the public zones only: post-processing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.known_digits import NORMAL_Z
from sfumato.schemas.region import inner_points
from sfumato.schemas.release import ZONES_FILE, zones_schema
from sfumato.transforms.counting.manifest import auxiliary_content, category_names, counts_content, counts_warnings
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.rates import auxiliary_columns, rates_of_counts
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata, release_manifest
from sfumato.transforms.statistics.tree_least_squares import LevelEstimate, NoisyLevel, fit_levels
from sfumato.transforms.zones.plan import ZoneLevels
from sfumato.transforms.zones.view import zones_view

Array = NDArray[np.float64]
_LATTICE = 8  # sums of this many discrete Laplace variables have intervals of their own, which are exact
_STDDEV = "standard deviation of the noise, after all levels were made to agree by least squares"
_INTERVALS = "95% or more, for each zone separately, of the users who count in it; each user counts in one zone"
_SUMS = (
    "a zone of a coarser level is exactly the sum of its zones, and has the error of that sum; errors of zones of one "
    "level add up as independent ones do where one level was queried, and otherwise by the levels' noise (noise_stddev)"
)


@dataclass(frozen=True)
class ZoneCounts:
    """The estimates of a run."""

    levels: list[LevelEstimate]  # by category, from the finest level to the coarsest
    low: list[Array]  # and high: ends of the 95% intervals of each level's zones: float64[m] each
    high: list[Array]
    tail_sums: int  # see `CountState.answered_tail_sums`
    sampling_weight: float  # users that each counted user represents, where shards were lost


def zone_counts(state: CountState, method: ZoneLevels) -> ZoneCounts:
    """Returns the estimates of all levels, see `tree_least_squares`. state: after the last sub-query."""
    zones, last = method.zones, state.results[-1]
    sums = state.answered_tail_sums
    noisy: list[NoisyLevel] = [NoisyLevel(None) for _ in zones.level_names]
    for level, result in zip(method.queried, state.results, strict=True):
        kurtosis = state.noise.kind.kurtosis(result.cost, result.query.sensitivity) / sums
        counts = result.counts.reshape(state.categories, -1)
        noisy[level] = NoisyLevel(counts, result.noise_stddev**2, kurtosis)
    levels = fit_levels(noisy, [level.parents for level in zones.levels])
    low, high = [], []
    for estimate, ancestor in zip(levels, zones.ancestors, strict=True):
        users = estimate.counts.sum(axis=0)
        half = margins(state.categories * estimate.variance, estimate.kurtosis / state.categories)
        if len(method.queried) == 1 and state.gamma == 1 and state.noise.kind == LAPLACE and last.shards_lost == 0:
            # The counts are integers: sums of a few discrete Laplace variables have exact intervals.
            added = np.bincount(ancestor, minlength=len(users)) * sums * state.categories
            exact = lattice_margins(last.cost, added)
            half = np.where(np.isnan(exact), half, exact)
        low.append(users - half)
        high.append(users + half)
    return ZoneCounts(levels, low, high, sums, state.shard_plan.shards / last.shards_answered)


def margins(variance: Array, kurtosis: Array) -> Array:
    """Returns half the width of a 95% interval around an estimate: float64 of the input's shape.

    Cornish and Fisher's quantile with the fourth cumulant; errors are symmetric.
    """
    return np.asarray((NORMAL_Z + (NORMAL_Z**3 - 3 * NORMAL_Z) / 24 * kurtosis) * np.sqrt(variance))


def lattice_margins(epsilon: float, sums: NDArray[np.int64]) -> Array:
    """Returns half the width of a 95% interval around an integer count, where few Laplace variables were added up.

    It is the shortest symmetric interval of integers that holds the noise with at least 95%: at epsilon 1 it holds one
    discrete Laplace variable with 97.3%, and the next shorter one 92.7%.

    epsilon: of each variable. sums: int64[n], number of variables in the noise of each count. Returns float64[n]; NaN
    for more than 8 variables, where `margins` are as good.
    """
    half = np.full(len(sums), np.nan)
    decay = math.exp(-epsilon)
    reach = math.ceil(8 + 40 / epsilon)  # beyond it lies e^-40 of the mass
    variable = decay ** np.abs(np.arange(-reach, reach + 1)) * (1 - decay) / (1 + decay)
    mass = variable
    for number in range(1, _LATTICE + 1):
        chosen = sums == number
        if chosen.any():
            tail = np.cumsum(mass[::-1])[::-1][len(mass) // 2 :]  # P(Z >= 0), P(Z >= 1), ...
            half[chosen] = np.argmax(2 * tail[1:] <= 0.05)
        mass = np.convolve(mass, variable)
    return half


def zones_files(
    state: CountState, parameters: CountParameters, method: ZoneLevels, metadata: ReleaseMetadata
) -> dict[str, bytes]:
    """Returns the release's files by name, the manifest last. state: after the last sub-query."""
    found = zone_counts(state, method)
    table = _table(found, method.zones, category_names(parameters, metadata))
    manifest = _manifest(state, parameters, method, metadata, found)
    return build_release({ZONES_FILE: table, **metadata.geography_files}, manifest, zones_view)


def _table(found: ZoneCounts, zones: Zones, categories: Sequence[str]) -> pa.Table:
    """Returns the zones of all levels, by `zones_schema`."""
    tables = []
    shapes, points, areas = zones.geometries, zones.points, zones.areas_km2
    for place, (name, ids, estimate) in enumerate(
        zip(zones.level_names, zones.ids_of_levels, found.levels, strict=True)
    ):
        if place:
            parents = zones.levels[place - 1].parents
            areas = np.bincount(parents, areas, len(ids)).astype(np.float64)
            parts = np.split(shapes[np.argsort(parents, kind="stable")], np.cumsum(np.bincount(parents))[:-1])
            shapes = np.array([shapely.union_all(part) for part in parts], dtype=object)
            points = shapely.get_coordinates(inner_points(shapes))
        above = zones.levels[place] if place < len(zones.levels) else None
        users, categories_of_users = estimate.counts.sum(axis=0), len(estimate.counts)
        columns: dict[str, Any] = {
            "zone": list(ids),
            **({} if zones.labels is None else {"name": [None] * len(ids) if place else list(zones.labels)}),
            "level": [name] * len(ids),
            "parent": [None] * len(ids) if above is None else [above.ids[i] for i in above.parents.tolist()],
            "users": users,
            "stddev": np.sqrt(categories_of_users * estimate.variance),
            "low": found.low[place],
            "high": found.high[place],
            "area": areas,
            "density": users / areas,
            "longitude": points[:, 0],
            "latitude": points[:, 1],
        }
        rates = None
        if categories:
            stddev, everywhere = np.sqrt(estimate.variance), np.ones(len(ids), dtype=bool)
            rates = rates_of_counts(
                estimate.counts, stddev, everywhere, categories, found.tail_sums, found.sampling_weight
            )
            columns |= auxiliary_columns(estimate.counts, categories, rates)
        columns["geometry"] = shapely.to_wkb(shapes)
        tables.append(
            pa.table(columns, schema=zones_schema(categories, rates.names if rates else (), zones.labels is not None))
        )
    return pa.concat_tables(tables)


def _manifest(
    state: CountState,
    parameters: CountParameters,
    method: ZoneLevels,
    metadata: ReleaseMetadata,
    found: ZoneCounts,
) -> dict[str, Any]:
    zones = method.zones
    answers = dict(zip(method.queried, state.results, strict=True))
    levels = []
    for place, (name, ids, estimate) in enumerate(
        zip(zones.level_names, zones.ids_of_levels, found.levels, strict=True)
    ):
        noise = answers[place].noise_stddev * math.sqrt(state.categories) if place in answers else None
        stddev = math.sqrt(state.categories * float(estimate.variance.mean()))
        levels.append(
            {"name": name, "zones": len(ids), "share": method.shares[place], "noise_stddev": noise, "stddev": stddev}
        )
    manifest = {
        "region": asdict(zones.region),
        "zones": {"source": zones.source, "sha256": zones.digest, "levels": levels},
        **counts_content(state, parameters, metadata, "zone"),
        "errors": {"stddev": _STDDEV, "intervals": _INTERVALS, "sums": _SUMS},
        **auxiliary_content(parameters, metadata),
    }
    return release_manifest(metadata, manifest, counts_warnings(state, parameters))
