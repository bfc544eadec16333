"""The files and the manifest of counts, by a sample or with noise: post-processing of published values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    ADJACENCY_TEXTS,
    PRIVACY_UNIT,
    SAMPLING_ASSUMPTIONS,
    NoiseRound,
    SampleRound,
    Trust,
)
from sfumato.schemas.region import Grid, area_km2, deinterleave
from sfumato.schemas.release import (
    CELLS_FILE,
    ITEMS_FILE,
    ZONES_FILE,
    counted_zones_schema,
    hot_cells_schema,
    items_schema,
)
from sfumato.schemas.tree import node_names
from sfumato.transforms.geo.cell_indexes import index_columns
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.histogram.central_counts import CentralCountPlan, NoisyHistogram, NoisyLevels
from sfumato.transforms.histogram.central_counts_view import counts_view
from sfumato.transforms.histogram.item_encoding import CellItems, Items, ListedItems, ZoneItems
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.sampling_round import WHOLE, Histogram, Trie
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata, release_manifest
from sfumato.transforms.report.sections import zone_noun

BOUND = "one record a user, chosen uniformly at random among their records"
_MECHANISM = "sample and threshold: no noise is added to the counts of items"
ADMISSION = "discrete Laplace noise on two counts of users, which admit the run"
EMPTY = "Nothing has enough sampled users to be published: this release is empty."
_Plan = TypeVar("_Plan")


def measured(histogram: Histogram | NoisyHistogram) -> dict[str, NDArray[Any]]:
    """Returns the columns of counts and their errors."""
    columns = {"count": histogram.counts, "stddev": histogram.stddev}
    if isinstance(histogram, Histogram):
        return {**columns, "sampled": histogram.sampled}
    low, high = histogram.intervals
    return {**columns, "low": low, "high": high}


def cells_table(histogram: Histogram | NoisyHistogram, grid: Grid) -> pa.Table:
    """Returns published cells of one level by hot_cells_schema."""
    level = histogram.level or grid.depth
    x, y = deinterleave(histogram.items)
    levels = np.full(len(x), level)
    west, south, east, north = grid.bounds(x, y, levels)
    table = {
        "cell_id": node_names(histogram.items | np.uint64(1 << (2 * level))),
        "depth": levels.astype(np.int8),
        "west": west,
        "south": south,
        "east": east,
        "north": north,
        **measured(histogram),
        "density": histogram.counts / area_km2(west, south, east, north),
        **index_columns(grid, levels, west, south, east, north),
        "geometry": shapely.to_wkb(shapely.box(west, south, east, north)),
    }
    return pa.table(table, schema=hot_cells_schema(isinstance(histogram, NoisyHistogram)))


def zones_table(histogram: Histogram | NoisyHistogram, zones: Zones) -> pa.Table:
    """Returns published zones by counted_zones_schema, in the order of the zones."""
    codes = histogram.items.astype(np.int64)
    table = {
        "zone": np.array(zones.ids, dtype=object)[codes],
        **({} if zones.labels is None else {"name": np.array(zones.labels, dtype=object)[codes]}),
        **measured(histogram),
        "area": zones.areas_km2[codes],
        "density": histogram.counts / zones.areas_km2[codes],
        "longitude": zones.points[codes, 0],
        "latitude": zones.points[codes, 1],
        "geometry": shapely.to_wkb(zones.geometries[codes]),
    }
    schema = counted_zones_schema(isinstance(histogram, NoisyHistogram), zones.labels is not None)
    return pa.table(table, schema=schema)


def item_names(histogram: Histogram | NoisyHistogram) -> list[str]:
    """Names of published items or prefixes: texts, integers, or the first digits of integers."""
    if histogram.texts is not None:
        return list(histogram.texts)
    if histogram.level == WHOLE:
        return [str(number) for number in histogram.items.view(np.int64).tolist()]
    return [f"{number:0{histogram.level}d}" for number in histogram.items.tolist()]


def items_table(histogram: Histogram | NoisyHistogram) -> pa.Table:
    """Returns published items of one level, most frequent first. Whole items that are integers stay integers."""
    histogram = histogram.only(np.argsort(-histogram.counts, kind="stable"))
    integers = len(histogram) and histogram.texts is None and histogram.level == WHOLE
    names = pa.array(histogram.items.view(np.int64)) if integers else pa.array(item_names(histogram), pa.string())
    table = {"item": names, "level": np.full(len(histogram), histogram.level), **measured(histogram)}
    return pa.table(table, schema=items_schema(names.type, isinstance(histogram, NoisyHistogram)))


@dataclass(frozen=True)
class CountMetadata(Generic[_Plan]):
    """The facts known before the run: the release's identity, its plan, and the counted items."""

    release: ReleaseMetadata
    plan: _Plan
    counted: Items


def sample_manifest(
    metadata: CountMetadata[SamplePlan],
    rounds: Sequence[tuple[int, int]],
    users: float,
    admission: NoisyUserCounts | None,
    warnings: Sequence[str] = (),
    cut: int | None = None,
) -> dict[str, Any]:
    """Returns the manifest of a release. cut: see SamplePlan.hidden_count.

    rounds: (level, number of published items) of each. users: estimated users of all items of the first round.
    """
    plan, sampling = metadata.plan, metadata.plan.sampling
    rounds_composition = "one round, exact" if plan.rounds == 1 else "privacy loss distributions"
    shown = [
        SampleRound(number, round_level(level, metadata.counted), sampling.rate, sampling.threshold, published)
        for number, (level, published) in enumerate(rounds)
    ]
    content = metadata.counted.place()
    privacy = privacy_entries(
        metadata,
        Trust.SECAGG,
        BOUND,
        _MECHANISM,
        [asdict(sample_round) for sample_round in shown],
        admission,
        f"{rounds_composition}; the epsilon of the admission is added",
        SAMPLING_ASSUMPTIONS,
    )
    if admission is not None:
        privacy["admission"]["sampling_rate"] = plan.ADMISSION_RATE
    content["privacy"] = {
        **privacy,
        "round_guarantee": {"epsilon": plan.rounds_epsilon, "delta": plan.round_delta},
        "contact": plan.contact_manifest,
    }
    hidden = plan.hidden_count(cut)
    content["results"] = {"published": rounds[-1][1], "estimated_users": users, "hidden_count": hidden}
    warnings = [*_delta_warnings(plan.delta, plan.population or users), *warnings]
    return release_manifest(metadata.release, content, warnings)


def privacy_entries(
    metadata: CountMetadata[Any],
    trust: Trust,
    bound: str,
    mechanism: str,
    rounds: Sequence[Any],
    admission: NoisyUserCounts | None,
    composition: str,
    assumptions: Sequence[str],
) -> dict[str, Any]:
    """Returns the manifest's entry `privacy` of counts. rounds: what each costs and draws, in JSON's types."""
    plan = metadata.plan
    return {
        "unit": PRIVACY_UNIT,
        "contribution_bound": bound,
        "adjacency": ADJACENCY_TEXTS[ADD_OR_REMOVE],
        "trust": trust,
        "epsilon": plan.epsilon,
        "epsilon_spent": plan.epsilon,
        "delta": plan.delta,
        "delta_spent": plan.delta_spent,
        "mechanism": f"{mechanism}; {ADMISSION}",
        "randomness": metadata.release.source,
        "rounds": rounds,
        "rounds_guarantee": {"epsilon": plan.rounds_epsilon, "delta": plan.delta_spent},
        "admission": None if admission is None else admission.entry(),
        "composition": composition,
        "population": {"users": plan.population, "source": "unknown" if plan.population is None else "given"},
        "assumptions": list(assumptions),
    }


def _delta_warnings(delta: float, users: float) -> list[str]:
    """Returns a warning where delta is not below 1 / users. users: a public or an estimated number."""
    if users * delta < 1:
        return []
    return [
        f"delta {delta:g} is not below 1 / {users:,.0f} users: such a guarantee allows a mechanism that exposes one of "
        "them; lower --delta."
    ]


def empty_level_warnings(trie: Trie, option: str) -> list[str]:
    """Returns a warning where the last level is empty. option: the option that sets the number of levels."""
    deepest = next((histogram for histogram in reversed(trie.levels) if len(histogram)), None)
    if deepest is trie.levels[-1]:
        return []
    if deepest is None:
        return [EMPTY]
    return [
        f"No item of the last level has enough sampled users to be published; level {deepest.level} has "
        f"{len(deepest)} items. A smaller {option} would spend the budget there."
    ]


def trie_files(trie: Trie, metadata: CountMetadata[SamplePlan]) -> dict[str, bytes]:
    """Returns the files of a histogram (a trie of one level) or of hot spots, by name; the manifest is the last."""
    rounds, warnings = [(one.level, len(one)) for one in trie.levels], empty_level_warnings(trie, "--depth")
    manifest = sample_manifest(metadata, rounds, trie.users, trie.admission, warnings, trie.cut)
    parts = {**count_tables(trie.levels, metadata.counted), **metadata.release.geography_files}
    return build_release(parts, manifest, counts_view)


def count_tables(levels: Sequence[Histogram | NoisyHistogram], counted: Items) -> dict[str, pa.Table]:
    """Returns the table of published cells or items of all levels, by file name."""
    if isinstance(counted, CellItems):
        return {CELLS_FILE: pa.concat_tables([cells_table(one, counted.grid) for one in levels])}
    if isinstance(counted, ZoneItems):
        return {ZONES_FILE: zones_table(levels[-1], counted.zones)}
    if isinstance(counted, ListedItems):
        levels = [replace(one, texts=tuple(counted.names[one.items.astype(np.int64)].tolist())) for one in levels]
    return {ITEMS_FILE: pa.concat_tables([items_table(one) for one in levels])}


def round_level(level: int, counted: Items) -> int:
    """Returns the level as a manifest states it: that of whole cells is the grid's depth."""
    return level or (counted.grid.depth if isinstance(counted, CellItems) else WHOLE)


def _noise_round(number: int, histogram: NoisyHistogram, metadata: CountMetadata[CentralCountPlan]) -> NoiseRound:
    noise, cut = histogram.noise, histogram.cut
    domain = metadata.plan.domains[number]
    return NoiseRound(
        index=number,
        level=round_level(histogram.level, metadata.counted),
        noise=noise.kind,
        epsilon=noise.epsilon,
        delta=noise.delta,
        noise_stddev=noise.stddev,
        sigma=noise.sigma,
        limit=noise.limit,
        threshold=noise.threshold,
        published=len(histogram),
        hidden_count=noise.hidden_count(threshold=None if cut is None else cut + 1),
        margin_at_once=None if domain is None else noise.simultaneous(domain),
    )


def central_files(counts: NoisyLevels, metadata: CountMetadata[CentralCountPlan]) -> dict[str, bytes]:
    """Returns the files of a histogram or of hot spots, by name; the manifest is the last."""
    levels = [replace(one, days=metadata.counted.days) for one in counts.levels]
    rounds = [_noise_round(number, one, metadata) for number, one in enumerate(levels)]
    plan, last = metadata.plan, levels[-1]
    users = 0.0 if counts.admission is None else max(counts.admission.users, 0.0)
    mechanism = "; ".join(dict.fromkeys(one.noise.text for one in levels))
    if (days := metadata.counted.days) > 1:
        mechanism += f"; each count is then divided by the {days} days"
    item, place = metadata.counted.NOUN, metadata.counted.place()
    if isinstance(metadata.counted, ZoneItems):
        item = zone_noun({**place, "parameters": metadata.release.parameters})
    composition = "epsilons and deltas of the rounds and of the admission are added up"
    privacy = privacy_entries(
        metadata,
        plan.TRUST,
        plan.bound.text(metadata.counted.record, item),
        mechanism,
        [asdict(one) for one in rounds],
        counts.admission,
        composition,
        plan.ASSUMPTIONS,
    )
    content = {**place, "privacy": {**privacy, **plan.STATED}}
    hidden = rounds[-1].hidden_count
    content["results"] = {"published": len(last), "estimated_users": users, "hidden_count": hidden}
    warnings = _delta_warnings(plan.delta, plan.population or users)
    if not len(last):
        noun = metadata.counted.NOUN
        warnings.append(f"No {noun} has a noisy count above the threshold: this release is empty at its last level.")
    parts = {**count_tables(levels, metadata.counted), **metadata.release.geography_files}
    return build_release(parts, release_manifest(metadata.release, content, warnings), counts_view)
