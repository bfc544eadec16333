"""The files and the manifest of sample-and-threshold releases: post-processing of published values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato.schemas.charts import CellLayer, Curve, ItemBars, Quantile, RangeAnswer
from sfumato.schemas.guarantee import ADD_OR_REMOVE, PRIVACY_UNIT, SAMPLING_ASSUMPTIONS, SampleRound
from sfumato.schemas.release import (
    BINS_FILE,
    CELLS_FILE,
    CURVE_FILE,
    CURVE_SCHEMA,
    HISTOGRAM_PICTURE,
    HOTSPOTS_PICTURE,
    ITEMS_FILE,
    MANIFEST_FILE,
    PAGE_FILE,
    QUANTILES_FILE,
    QUANTILES_PICTURE,
    QUANTILES_SCHEMA,
    RANGES_FILE,
    RANGES_SCHEMA,
)
from sfumato.transforms.histogram.curve import quantile
from sfumato.transforms.histogram.hierarchy import build_hierarchy
from sfumato.transforms.histogram.histogram_tables import (
    bins_table,
    cell_positions,
    cells_table,
    item_names,
    items_table,
)
from sfumato.transforms.histogram.item_encoding import CellItems, Items, NumberItems
from sfumato.transforms.histogram.quantile_search import Search
from sfumato.transforms.histogram.sampling_plan import SamplePlan
from sfumato.transforms.histogram.trie import WHOLE, Trie
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.release.metadata import ReleaseMetadata, manifest_bytes, parquet_bytes, release_manifest
from sfumato.transforms.release.page_charts import render_cells_page, render_items_page, render_quantiles_page
from sfumato.transforms.release.picture_cells import render_cells_picture
from sfumato.transforms.release.picture_charts import render_items_picture, render_quantiles_picture

_PICTURES = {"histogram": HISTOGRAM_PICTURE, "hotspots": HOTSPOTS_PICTURE}
_BOUND = "one record a user, chosen uniformly among their records by the key"
_BORDER_SHARE = 0.01  # of the users; more of them in a bin at a border of the range bring a warning
_MECHANISM = (
    "sample and threshold: no noise is added to the counts of items; discrete Laplace noise is added to two counts of "
    "users, which admit the run"
)
_EMPTY = "No item has enough sampled users to be published: this release is empty."


@dataclass(frozen=True)
class SampleMetadata:
    """The release's identity, its plan, the counted items and the picture's title: all known before the run."""

    release: ReleaseMetadata
    plan: SamplePlan
    counted: Items
    title: str


def sample_manifest(
    metadata: SampleMetadata,
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
    content: dict[str, Any] = {}
    if isinstance(metadata.counted, CellItems):
        grid = metadata.counted.grid
        content = {"region": asdict(grid.region), "grid": {"depth": grid.depth, "side": grid.side}}
    shown = [
        SampleRound(number, level, sampling.rate, sampling.threshold, published)
        for number, (level, published) in enumerate(rounds)
    ]
    content["privacy"] = {
        "unit": PRIVACY_UNIT,
        "contribution_bound": _BOUND,
        "adjacency": ADD_OR_REMOVE,
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
    return release_manifest(metadata.release, content, [*_warnings(plan, users), *warnings])


def _warnings(plan: SamplePlan, users: float) -> list[str]:
    warnings = []
    population = plan.population if plan.population is not None else users
    if population * plan.delta >= 1:
        warnings.append(
            f"delta {plan.delta:g} is not below 1 / {population:,.0f} users: such a guarantee allows a mechanism that "
            "exposes one of them; lower --delta."
        )
    return warnings


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


def trie_files(trie: Trie, metadata: SampleMetadata) -> dict[str, bytes]:
    """The files of a histogram (a trie of one level) or of hot spots, by name; the manifest is the last."""
    shown = trie.deepest or trie.levels[-1]  # in the picture
    manifest = sample_manifest(
        metadata, _rounds(trie, metadata), trie.users, trie.admission, _empty_level_warnings(trie, "--depth"), trie.cut
    )
    plan, release = metadata.plan, metadata.release
    captions: dict[str, Any] = {
        "title": metadata.title,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "hidden_count": plan.hidden_count(trie.cut),
        "safe": release.safe,
    }
    if isinstance(metadata.counted, CellItems):
        grid = metadata.counted.grid
        layers = []
        for histogram in trie.levels:
            level, x, y, names = cell_positions(histogram, grid.depth)
            sampling = histogram.sampling
            layers.append(
                CellLayer(level, x, y, histogram.counts, histogram.stddev, names, sampling.rate, sampling.threshold)
            )
        finest = layers[trie.levels.index(shown)]
        table_file, table = CELLS_FILE, pa.concat_tables([cells_table(histogram, grid) for histogram in trie.levels])
        page = render_cells_page(manifest, layers)
        picture = render_cells_picture(finest.level, finest.x, finest.y, finest.count, grid.region, **captions)
    else:
        table_file, table = ITEMS_FILE, pa.concat_tables([items_table(histogram) for histogram in trie.levels])
        page = render_items_page(manifest, _bars(trie))
        picture = render_items_picture(item_names(shown), shown.counts, shown.stddev, **captions)
    return {
        table_file: parquet_bytes(table),
        _PICTURES[release.job]: picture,
        PAGE_FILE: page.encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }


def _bars(trie: Trie) -> ItemBars:
    before = np.concatenate(([0], np.cumsum([len(histogram) for histogram in trie.levels])))
    parents = [
        np.full(len(trie.levels[0]), -1),
        *(rows + start for rows, start in zip(trie.parents, before, strict=False)),
    ]
    return ItemBars(
        name=[name for histogram in trie.levels for name in item_names(histogram)],
        level=np.concatenate([np.full(len(histogram), histogram.level) for histogram in trie.levels]),
        parent=np.concatenate(parents),
        count=np.concatenate([histogram.counts for histogram in trie.levels]),
        stddev=np.concatenate([histogram.stddev for histogram in trie.levels]),
    )


def search_files(search: Search, metadata: SampleMetadata) -> dict[str, bytes]:
    """The files of interactive quantiles, by name; the manifest is the last."""
    rounds = [(WHOLE, published) for published in search.published]
    assert isinstance(metadata.counted, NumberItems)
    nonempty = [users for users, published in zip(search.users, search.published, strict=True) if published]
    warnings = _border_warnings(search.curve, metadata.counted) if nonempty else [_EMPTY]
    manifest = sample_manifest(metadata, rounds, float(np.mean(nonempty or [0.0])), search.admission, warnings)
    return _quantile_files(manifest, search.curve, list(search.quantiles), None, metadata)


def _rounds(trie: Trie, metadata: SampleMetadata) -> list[tuple[int, int]]:
    """(level, number of published items) of each round; the level of whole cells is the grid's depth."""
    full_depth = metadata.counted.grid.depth if isinstance(metadata.counted, CellItems) else WHOLE
    return [(histogram.level or full_depth, len(histogram)) for histogram in trie.levels]


def _border_warnings(curve: Curve, items: NumberItems) -> list[str]:
    """Warnings where much of the distribution lies in the range's first or last bin, so perhaps outside the range."""
    width = (items.high - items.low) / (1 << items.bits)
    inner = np.interp([items.low + width, items.high - width], curve.value, curve.share)
    shares = {f"lowest {width:.3g}": inner[0], f"highest {width:.3g}": 1 - inner[1]}
    return [
        f"{share:.1%} of the users have values in the {end} of the range, where values outside it count too. A wider "
        "--range would show their distribution."
        for end, share in shares.items()
        if share > _BORDER_SHARE
    ]


def hierarchy_files(
    trie: Trie, metadata: SampleMetadata, shares: Sequence[float], ranges: Sequence[tuple[float, float]]
) -> dict[str, bytes]:
    """The files of quantiles and ranges from a trie over bins, by name; without rows where the trie is empty."""
    items = metadata.counted
    assert isinstance(items, NumberItems)
    hierarchy = build_hierarchy(trie, items.bits, items.low, items.high)
    curve = hierarchy.curve()
    warnings = [*_empty_level_warnings(trie, "--bits"), *(_border_warnings(curve, items) if hierarchy.users else ())]
    manifest = sample_manifest(metadata, _rounds(trie, metadata), hierarchy.users, trie.admission, warnings)
    quantiles = [quantile(curve, share) for share in shares] if hierarchy.users else []
    answers = [hierarchy.answer(low, high) for low, high in ranges] if hierarchy.users else []
    bins = pa.concat_tables([bins_table(histogram, items) for histogram in trie.levels])
    files = _quantile_files(manifest, curve, quantiles, answers if ranges else None, metadata)
    return {BINS_FILE: parquet_bytes(bins), **files}


def _quantile_files(
    manifest: dict[str, Any],
    curve: Curve,
    quantiles: list[Quantile],
    ranges: list[RangeAnswer] | None,
    metadata: SampleMetadata,
) -> dict[str, bytes]:
    """The files of a distribution. ranges: None without --ranges."""
    items = metadata.counted
    assert isinstance(items, NumberItems)
    plan = metadata.plan
    points = pa.table([curve.value, curve.share, curve.low, curve.high], schema=CURVE_SCHEMA)
    return {
        QUANTILES_FILE: parquet_bytes(pa.Table.from_pylist([asdict(row) for row in quantiles], QUANTILES_SCHEMA)),
        **(
            {RANGES_FILE: parquet_bytes(pa.Table.from_pylist([asdict(row) for row in ranges], RANGES_SCHEMA))}
            if ranges is not None
            else {}
        ),
        CURVE_FILE: parquet_bytes(points),
        QUANTILES_PICTURE: render_quantiles_picture(
            curve,
            quantiles,
            title=metadata.title,
            column=items.columns.column,
            epsilon=plan.epsilon,
            delta=plan.delta,
            safe=metadata.release.safe,
        ),
        PAGE_FILE: render_quantiles_page(manifest, curve, quantiles, ranges or []).encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }
