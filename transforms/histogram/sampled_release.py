"""The files and the manifest of sample-and-threshold releases: post-processing of published values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.guarantee import ADD_OR_REMOVE, PRIVACY_UNIT, SAMPLING_ASSUMPTIONS, SampleRound
from sfumato.schemas.release import (
    BINS_FILE,
    CELLS_FILE,
    CURVE_FILE,
    CURVE_SCHEMA,
    ITEMS_FILE,
    QUANTILES_FILE,
    QUANTILES_SCHEMA,
    RANGES_FILE,
    RANGES_SCHEMA,
)
from sfumato.schemas.trust import Trust
from sfumato.transforms.histogram.curve import quantile
from sfumato.transforms.histogram.hierarchy import build_hierarchy
from sfumato.transforms.histogram.histogram_tables import bins_table, cells_table, items_table
from sfumato.transforms.histogram.item_encoding import CellItems, Items, ListedItems, NumberItems
from sfumato.transforms.histogram.noisy_histogram import NoisyHistogram
from sfumato.transforms.histogram.quantile_search import Search
from sfumato.transforms.histogram.sampled_view import sampled_view
from sfumato.transforms.histogram.sampling_plan import SamplePlan
from sfumato.transforms.histogram.sampling_round import Histogram
from sfumato.transforms.histogram.trie import WHOLE, Trie
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata, release_manifest

BOUND = "one record a user, chosen uniformly among their records by the key"
_BORDER_SHARE = 0.01  # of the users; more of them in a bin at a border of the range bring a warning
_MECHANISM = (
    "sample and threshold: no noise is added to the counts of items; discrete Laplace noise is added to two counts of "
    "users, which admit the run"
)
_EMPTY = "No item has enough sampled users to be published: this release is empty."


_Plan = TypeVar("_Plan")


@dataclass(frozen=True)
class CountMetadata(Generic[_Plan]):
    """What is known before the run: the release's identity, its plan, and the counted items."""

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
    """The manifest of a release.

    Args:
        metadata: what is known before the run.
        rounds: (level, number of published items) of each round.
        users: estimated users of all items of the first round.
        admission: the noisy counts of users that admitted the run.
        warnings: more warnings for the manifest.
        cut: see SamplePlan.hidden_count.
    """
    plan, sampling = metadata.plan, metadata.plan.sampling
    rounds_composition = "one round, exact" if plan.rounds == 1 else "privacy loss distributions"
    content = grid_entries(metadata.counted)
    shown = [
        SampleRound(number, level, sampling.rate, sampling.threshold, published)
        for number, (level, published) in enumerate(rounds)
    ]
    content["privacy"] = {
        "unit": PRIVACY_UNIT,
        "contribution_bound": BOUND,
        "adjacency": ADD_OR_REMOVE,
        "trust": Trust.SECAGG,
        "epsilon": plan.epsilon,
        "epsilon_spent": plan.epsilon,
        "delta": plan.delta,
        "delta_spent": plan.delta_spent,
        "mechanism": _MECHANISM,
        "randomness": metadata.release.source,
        "rounds": [asdict(sample_round) for sample_round in shown],
        "rounds_guarantee": {"epsilon": plan.rounds_epsilon, "delta": plan.delta_spent},
        "round_guarantee": {"epsilon": plan.rounds_epsilon, "delta": plan.round_delta},
        "admission": None
        if admission is None
        else {**asdict(admission), "sampling_rate": plan.admission_rule.sampling_rate},
        "composition": f"{rounds_composition}; the epsilon of the admission is added",
        "contact": plan.contact_manifest,
        "population": {"users": plan.population, "source": "unknown" if plan.population is None else "given"},
        "assumptions": list(SAMPLING_ASSUMPTIONS),
    }
    content["results"] = {
        "published": rounds[-1][1],
        "estimated_users": users,
        "hidden_count": plan.hidden_count(cut),
    }
    return release_manifest(
        metadata.release, content, [*delta_warnings(plan.delta, plan.population or users), *warnings]
    )


def grid_entries(counted: Items) -> dict[str, Any]:
    """The manifest's entries on a map; none without one."""
    if not isinstance(counted, CellItems):
        return {}
    return {"region": asdict(counted.grid.region), "grid": {"depth": counted.grid.depth, "side": counted.grid.side}}


def delta_warnings(delta: float, users: float) -> list[str]:
    """A warning where delta is not below 1 / users. users: a public or an estimated number."""
    if users * delta < 1:
        return []
    return [
        f"delta {delta:g} is not below 1 / {users:,.0f} users: such a guarantee allows a mechanism that exposes one of "
        "them; lower --delta."
    ]


def _empty_level_warnings(trie: Trie, option: str) -> list[str]:
    """A warning where the last level is empty. option: the option that sets the number of levels."""
    deepest = trie.deepest
    if deepest is trie.levels[-1]:
        return []
    if deepest is None:
        return [_EMPTY]
    return [
        f"No item of the last level has enough sampled users to be published; level {deepest.level} has "
        f"{len(deepest)} items. A smaller {option} would spend the budget there."
    ]


def trie_files(trie: Trie, metadata: CountMetadata[SamplePlan]) -> dict[str, bytes]:
    """The files of a histogram (a trie of one level) or of hot spots, by name; the manifest is the last."""
    manifest = sample_manifest(
        metadata,
        _rounds(trie.levels, metadata.counted),
        trie.users,
        trie.admission,
        _empty_level_warnings(trie, "--depth"),
        trie.cut,
    )
    parts = {**count_tables(trie.levels, metadata.counted), **metadata.release.geography_files}
    return build_release(parts, manifest, sampled_view)


def count_tables(levels: Sequence[Histogram | NoisyHistogram], counted: Items) -> dict[str, pa.Table]:
    """The table of published cells or items of all levels, by file name."""
    if isinstance(counted, CellItems):
        return {CELLS_FILE: pa.concat_tables([cells_table(one, counted.grid) for one in levels])}
    if isinstance(counted, ListedItems):
        levels = [replace(one, texts=tuple(counted.names[one.items.astype(np.int64)].tolist())) for one in levels]
    return {ITEMS_FILE: pa.concat_tables([items_table(one) for one in levels])}


def search_files(search: Search, metadata: CountMetadata[SamplePlan]) -> dict[str, bytes]:
    """The files of interactive quantiles, by name; the manifest is the last."""
    rounds = [(WHOLE, published) for published in search.published]
    assert isinstance(metadata.counted, NumberItems)
    nonempty = [users for users, published in zip(search.users, search.published, strict=True) if published]
    warnings = border_warnings(search.curve, metadata.counted) if nonempty else [_EMPTY]
    manifest = sample_manifest(metadata, rounds, float(np.mean(nonempty or [0.0])), search.admission, warnings)
    return build_release(quantile_tables(search.curve, list(search.quantiles)), manifest, sampled_view)


def _rounds(levels: Sequence[Histogram], counted: Items) -> list[tuple[int, int]]:
    """(level, number of published items) of each round."""
    return [(round_level(one.level, counted), len(one)) for one in levels]


def round_level(level: int, counted: Items) -> int:
    """The level as a manifest states it: that of whole cells is the grid's depth."""
    return level or (counted.grid.depth if isinstance(counted, CellItems) else WHOLE)


def border_warnings(curve: Curve, items: NumberItems) -> list[str]:
    """Warnings where much of the distribution lies in the range's first or last bin, so perhaps outside the range."""
    first, last = items.scale.at(np.array([1.0, (1 << items.bits) - 1.0])).tolist()
    inner = np.interp([first, last], curve.value, curve.share)
    shares = {f"lowest {first - items.low:.3g}": inner[0], f"highest {items.high - last:.3g}": 1 - inner[1]}
    return [
        f"{share:.1%} of the users have values in the {end} of the range, where values outside it count too. A wider "
        "--range would show their distribution."
        for end, share in shares.items()
        if share > _BORDER_SHARE
    ]


def hierarchy_files(
    trie: Trie, metadata: CountMetadata[SamplePlan], shares: Sequence[float], ranges: Sequence[tuple[float, float]]
) -> dict[str, bytes]:
    """The files of quantiles and ranges from a trie over bins, by name; without rows where the trie is empty."""
    items = metadata.counted
    assert isinstance(items, NumberItems)
    hierarchy = build_hierarchy(trie, items.scale)
    curve = hierarchy.curve()
    warnings = [*_empty_level_warnings(trie, "--bits"), *(border_warnings(curve, items) if hierarchy.users else ())]
    manifest = sample_manifest(
        metadata, _rounds(trie.levels, metadata.counted), hierarchy.users, trie.admission, warnings
    )
    quantiles = [quantile(curve, share) for share in shares] if hierarchy.users else []
    answers = [hierarchy.answer(low, high) for low, high in ranges] if hierarchy.users else []
    bins = pa.concat_tables([bins_table(one, items) for one in trie.levels])
    tables = {BINS_FILE: bins, **quantile_tables(curve, quantiles, answers if ranges else None)}
    return build_release(tables, manifest, sampled_view)


def quantile_tables(
    curve: Curve, quantiles: list[Quantile], ranges: list[RangeAnswer] | None = None
) -> dict[str, pa.Table]:
    """The tables of a distribution by file name. ranges: None without --ranges."""
    tables = {QUANTILES_FILE: pa.Table.from_pylist([asdict(one) for one in quantiles], QUANTILES_SCHEMA)}
    if ranges is not None:
        tables[RANGES_FILE] = pa.Table.from_pylist([asdict(one) for one in ranges], RANGES_SCHEMA)
    tables[CURVE_FILE] = pa.table([curve.value, curve.share, curve.low, curve.high], schema=CURVE_SCHEMA)
    return tables
