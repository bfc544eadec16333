"""The files and the manifest of quantiles: post-processing of published values. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.guarantee import CURATED_BY
from sfumato.schemas.release import (
    BINS_FILE,
    BINS_SCHEMA,
    CURVE_FILE,
    CURVE_SCHEMA,
    QUANTILES_FILE,
    QUANTILES_SCHEMA,
    RANGES_FILE,
    RANGES_SCHEMA,
)
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.release import (
    BOUND,
    EMPTY,
    CountMetadata,
    empty_level_warnings,
    measured,
    privacy_entries,
    sample_manifest,
)
from sfumato.transforms.histogram.sampling_round import WHOLE, Histogram, Trie
from sfumato.transforms.quantiles.curve import Search, build_hierarchy, quantile
from sfumato.transforms.quantiles.plan import MECHANISMS, QuantilesPlan
from sfumato.transforms.quantiles.private_quantiles import PrivateDistribution
from sfumato.transforms.quantiles.view import quantiles_view
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import release_manifest

_COMPOSITION = "the users of one level's parts or bins are disjoint; the epsilons of levels and of the admission add up"
_NOBODY = "There seem to be no users: no quantile is published."

_BORDER_SHARE = 0.01  # of the users; more of them in a bin at a border of the range bring a warning


def mechanism_rounds(plan: QuantilesPlan, users: float) -> list[dict[str, Any]]:
    """Returns what each level costs and draws, as the manifest states it. users: about how many there are."""
    if plan.method == "exponential":
        draws = plan.draws(users)
        of_level = Counter(draw.level for draw in draws.draws)
        return [
            {"index": level, "epsilon": epsilon, "draws": of_level[level]}
            for level, epsilon in enumerate(draws.epsilons)
        ]
    epsilon = plan.hierarchy.level_epsilon
    stddev = math.sqrt(plan.hierarchy.own_variance)
    return [
        {"index": index, "level": level, "epsilon": epsilon, "noise": "laplace", "noise_stddev": stddev}
        for index, level in enumerate(plan.levels)
    ]


def quantiles_files(result: PrivateDistribution, metadata: CountMetadata[QuantilesPlan]) -> dict[str, bytes]:
    """Returns the files of quantiles and ranges, by name; the manifest is the last. Tables of nobody have no rows."""
    plan, admission = metadata.plan, result.admission
    assert isinstance(metadata.counted, NumberItems)
    rounds = mechanism_rounds(plan, result.users) if result.users > 1 else []
    mechanism = f"{MECHANISMS[plan.method]}{plan.BY_WHOM}"
    assumptions = CURATED_BY[plan.TRUST]
    content = {
        "privacy": privacy_entries(
            metadata, plan.TRUST, BOUND, mechanism, rounds, admission, _COMPOSITION, assumptions
        ),
        "results": {"published": len(result.quantiles), "estimated_users": max(result.users, 0.0), "hidden_count": 0},
    }
    warnings = border_warnings(result.curve, metadata.counted) if result.quantiles else [_NOBODY]
    manifest = release_manifest(metadata.release, content, warnings)
    answers = list(result.ranges) if metadata.release.parameters.get("ranges") else None
    tables = quantile_tables(result.curve, list(result.quantiles), answers)
    return build_release(tables, manifest, quantiles_view)


def search_files(search: Search, metadata: CountMetadata[SamplePlan]) -> dict[str, bytes]:
    """Returns the files of interactive quantiles, by name; the manifest is the last."""
    rounds = [(WHOLE, published) for published in search.published]
    assert isinstance(metadata.counted, NumberItems)
    nonempty = [users for users, published in zip(search.users, search.published, strict=True) if published]
    warnings = border_warnings(search.curve, metadata.counted) if nonempty else [EMPTY]
    manifest = sample_manifest(metadata, rounds, float(np.mean(nonempty or [0.0])), search.admission, warnings)
    return build_release(quantile_tables(search.curve, list(search.quantiles)), manifest, quantiles_view)


def hierarchy_files(
    trie: Trie, metadata: CountMetadata[SamplePlan], shares: Sequence[float], ranges: Sequence[tuple[float, float]]
) -> dict[str, bytes]:
    """Returns the files of quantiles and ranges from a trie over bins, by name; without rows if the trie is empty."""
    items = metadata.counted
    assert isinstance(items, NumberItems)
    hierarchy = build_hierarchy(trie, items.scale)
    curve = hierarchy.curve()
    warnings = [*empty_level_warnings(trie, "--bits"), *(border_warnings(curve, items) if hierarchy.users else ())]
    rounds = [(one.level, len(one)) for one in trie.levels]
    manifest = sample_manifest(metadata, rounds, hierarchy.users, trie.admission, warnings)
    quantiles = [quantile(curve, share) for share in shares] if hierarchy.users else []
    answers = [hierarchy.answer(low, high) for low, high in ranges] if hierarchy.users else []
    bins = pa.concat_tables([bins_table(one, items) for one in trie.levels])
    tables = {BINS_FILE: bins, **quantile_tables(curve, quantiles, answers if ranges else None)}
    return build_release(tables, manifest, quantiles_view)


def bins_table(histogram: Histogram, items: NumberItems) -> pa.Table:
    """Returns published bins of one level by BINS_SCHEMA."""
    width = 1 << (items.bits - histogram.level)
    first = histogram.items.astype(np.float64) * width
    borders = {"low": items.scale.at(first), "high": items.scale.at(first + width)}
    table = {"level": np.full(len(histogram), histogram.level), **borders, **measured(histogram)}
    return pa.table(table, schema=BINS_SCHEMA)


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


def quantile_tables(
    curve: Curve, quantiles: list[Quantile], ranges: list[RangeAnswer] | None = None
) -> dict[str, pa.Table]:
    """Returns the tables of a distribution by file name. ranges: None without --ranges."""
    tables = {QUANTILES_FILE: pa.Table.from_pylist([asdict(one) for one in quantiles], QUANTILES_SCHEMA)}
    if ranges is not None:
        tables[RANGES_FILE] = pa.Table.from_pylist([asdict(one) for one in ranges], RANGES_SCHEMA)
    tables[CURVE_FILE] = pa.table([curve.value, curve.share, curve.low, curve.high], schema=CURVE_SCHEMA)
    return tables
