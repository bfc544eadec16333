"""Pages of what sample and threshold published: items, cells of a map, quantiles. One HTML text each; loads nothing.

They share the heatmap's look, map, words and report (page_shell.py); what differs lies in `page_items.js`,
`page_cells.js` with `page_places.js`, and `page_quantiles.js`. All are post-processing of published numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import CellLayer, Curve, ItemBars, Quantile, RangeAnswer, readable
from sfumato.schemas.release import (
    BINS_FILE,
    CELLS_FILE,
    CURVE_FILE,
    ITEMS_FILE,
    MANIFEST_FILE,
    QUANTILES_FILE,
    RANGES_FILE,
)
from sfumato.transforms.release.page_shell import (
    PALETTE,
    STILL_ROWS,
    Files,
    fill,
    image,
    map_image,
    part_of,
    plain,
    render_shell,
    repair_depth,
    repair_randomness,
    repair_region,
    rounded,
    still_table,
    still_words,
    template,
)
from sfumato.transforms.release.picture import tiny
from sfumato.transforms.release.picture_cells import few_users, render_cells_thumbnail
from sfumato.transforms.release.picture_charts import QUANTILES_SHAPE, render_quantiles_picture

ALARM = "The users were drawn by a known source ({}), so anyone who has it can tell who was drawn."
_STYLES = ("page.css", "page_charts.css")
_WORDS = ("page_words.js", "page_pieces.js", "page_samples.js")
_MANIFEST = (MANIFEST_FILE, "the guarantee, every round, every parameter, every version")
_ITEM_FILES: Files = (
    (ITEMS_FILE, "one row for each published item or prefix: estimated users, standard deviation"),
    _MANIFEST,
)
_CELL_FILES: Files = (
    (CELLS_FILE, "one row for each published cell: bounds, estimated users, standard deviation, shape"),
    _MANIFEST,
)
_COMPLETE = re.compile(r"\d+|\d{4}-\d{2}-\d{2}")  # numbers and dates, which no trie cuts on its last level


def render_items_page(manifest: Mapping[str, Any], items: ItemBars, files: Files = _ITEM_FILES) -> str:
    """The page of items, ranked as bars, or of prefixes as a tree; usable up to about 1e5 rows.

    Args:
        manifest: the release's manifest. A missing key costs the page that line, not the page.
        items: what was published.
        files: name and description of each file that lies beside the page.
    """
    metadata = plain(manifest)
    names = [readable(name) for name in items.name]
    cut = _cut(items, metadata)
    finest = 0 if (items.level == 0).any() else items.level.max(initial=0)
    order = np.flatnonzero(items.level == finest)
    order = order[np.argsort(-items.count[order], kind="stable")][:STILL_ROWS]
    rows = [(names[i] + ("…" if cut[i] else ""), *_estimate(items.count[i], items.stddev[i])) for i in order]
    return render_shell(
        title="Private hot spots" if metadata.get("job") == "hotspots" else "Private histogram",
        metadata=metadata,
        problems=repair_randomness(metadata, "the draws"),
        data={
            "items": {
                "name": names,
                "level": _integers(items.level),
                "cut": cut,
                "parent": _integers(items.parent),
                "count": rounded(items.count),
                "stddev": rounded(items.stddev),
            }
        },
        files=files,
        stage=template("page_items.html"),
        scripts=(*_WORDS, "page_items.js"),
        styles=_STYLES,
        still=_still(metadata, "the items with most users", files, still_table(("Name", "Users", "± at 95%"), rows)),
        alarm=ALARM,
    )


def render_cells_page(manifest: Mapping[str, Any], layers: Iterable[CellLayer], files: Files = _CELL_FILES) -> str:
    """The page of a map's cells: one layer of a histogram, or a layer for each level of hot spots.

    Args:
        manifest: the release's manifest. A missing key costs the page that line, not the page.
        layers: one a level, coarse to fine.
        files: name and description of each file that lies beside the page.

    Raises:
        ValueError: no layer, or levels that do not ascend.
    """
    layers = list(layers)
    levels = [layer.level for layer in layers]
    if not layers:
        raise ValueError("layers: a page needs the cells of at least one level, got none")
    if any(above >= below for above, below in pairwise(levels)):
        raise ValueError(f"layers: levels must ascend, got {levels}")
    metadata = plain(manifest)
    problems = [*repair_region(metadata), *repair_randomness(metadata, "the draws")]
    repair_depth(metadata, levels[-1])
    metadata["grid"]["depth"] = max(metadata["grid"]["depth"], levels[-1])
    last = next((layer for layer in reversed(layers) if layer.cell_id), layers[-1])
    order = np.argsort(-last.count, kind="stable")[:STILL_ROWS]
    rows = [(last.cell_id[i], *_estimate(last.count[i], last.stddev[i])) for i in order]
    thumbnail = render_cells_thumbnail(last.level, last.x, last.y, last.count)
    return render_shell(
        title="Private hot spots" if metadata.get("job") == "hotspots" else "Private histogram",
        metadata=metadata,
        problems=problems,
        data={"palette": PALETTE, "layers": [_pack(layer) for layer in layers]},
        files=files,
        stage=fill(
            "page_cells.html",
            {"map": fill("page_map.html", {"key": "not published", "fade": "the larger cells beneath"})},
        ),
        scripts=(
            *_WORDS,
            "page_ground.js",
            "page_cells.js",
            "page_map.js",
            "page_steps.js",
            "page_places.js",
        ),
        styles=_STYLES,
        still=_still(
            metadata,
            "the published cells as a still picture, and those with most users",
            files,
            map_image(thumbnail, "The published cells, bright where many users are", metadata["region"]),
            still_table(("Cell", "Users", "± at 95%"), rows),
        ),
        alarm=ALARM,
    )


def render_quantiles_page(
    manifest: Mapping[str, Any],
    curve: Curve,
    quantiles: Iterable[Quantile],
    ranges: Iterable[RangeAnswer],
    files: Files | None = None,
) -> str:
    """The page of a distribution: its curve with the 95% band, the asked quantiles and the asked ranges.

    Args:
        manifest: the release's manifest. A missing key costs the page that line, not the page.
        curve: the estimated distribution function; may hold no point.
        quantiles: as asked; may be none.
        ranges: as asked; may be none.
        files: name and description of each file that lies beside the page; by default, those of the job.
    """
    quantiles, ranges, metadata = list(quantiles), list(ranges), plain(manifest)
    files = _quantile_files(part_of(metadata, "parameters").get("method"), bool(ranges)) if files is None else files
    column = readable(str(part_of(metadata, "parameters").get("column", "value")))
    picture = render_quantiles_picture(curve, quantiles, title="Estimated distribution", column=column)
    still = [image(picture, "The estimated distribution function with its band", *QUANTILES_SHAPE)]
    if quantiles:
        write = _column([value for one in quantiles for value in (one.value, one.low, one.high)])
        shares = [
            (f"{100 * one.share:g}%", write(one.value), f"{write(one.low)} to {write(one.high)}") for one in quantiles
        ]
        still.append(still_table(("Share of users", "Lie below", "At 95%"), shares))
    if ranges:
        write = _column([value for one in ranges for value in (one.low, one.high)])
        answers = [
            (f"{write(one.low)} to below {write(one.high)}", *_estimate(one.users, one.stddev)) for one in ranges
        ]
        still.append(still_table(("Range", "Users", "± at 95%"), answers))
    return render_shell(
        title="Private quantiles",
        metadata=metadata,
        problems=repair_randomness(metadata, "the draws"),
        data={
            "column": column,
            "curve": {name: rounded(getattr(curve, name), 12) for name in ("value", "share", "low", "high")},
            "quantiles": [plain(vars(one)) for one in quantiles],
            "ranges": [plain(vars(one)) for one in ranges],
        },
        files=files,
        stage=template("page_quantiles.html"),
        scripts=(*_WORDS, "page_quantiles.js"),
        styles=_STYLES,
        still=_still(metadata, "the estimated distribution as a still picture, and what was asked", files, *still),
        alarm=ALARM,
    )


def _quantile_files(method: object, ranges: bool) -> Files:
    return [
        (QUANTILES_FILE, "the asked quantiles, each with its range"),
        *([(RANGES_FILE, "the asked ranges: estimated users, standard deviation")] if ranges else []),
        (CURVE_FILE, "the curve with its band"),
        *([(BINS_FILE, "one row for each published bin of every level")] if method == "hierarchical" else []),
        _MANIFEST,
    ]


def _pack(layer: CellLayer) -> dict[str, Any]:
    return {
        "level": int(layer.level),
        "x": _integers(layer.x),
        "y": _integers(layer.y),
        "count": rounded(layer.count),
        "stddev": rounded(layer.stddev),
        "cell_id": [readable(name) for name in layer.cell_id],
        "sampling_rate": float(layer.sampling_rate),
        "threshold": int(layer.threshold),
    }


def _integers(values: NDArray[np.int64]) -> list[int]:
    return [int(value) for value in values]


def _cut(items: ItemBars, metadata: dict[str, Any]) -> list[int]:
    """1 for each name that is the beginning of longer ones, as far as can be seen; 0 for a complete one."""
    rounds = part_of(metadata, "privacy").get("rounds")
    asked = [one.get("level") for one in rounds if isinstance(one, dict)] if isinstance(rounds, list) else []
    levels = {*items.level.tolist(), *(level for level in asked if isinstance(level, int))}
    greatest = math.inf if 0 in levels else max(levels, default=0)
    return [
        int(0 < level == len(name) and (level < greatest or not _COMPLETE.fullmatch(name)))
        for name, level in zip(items.name, items.level.tolist(), strict=True)
    ]


def _column(values: Sequence[float]) -> Callable[[float], str]:
    """Writes the numbers of a column with equally many decimals: as many as one of them needs, of six digits in all."""
    exponents = (int(Decimal(f"{value:.6g}").as_tuple().exponent) for value in values)
    places = min(max((-power for power in exponents if power < 0), default=0), 12)
    return lambda value: f"{value:,.{places}f}".replace("-", "−")


def _estimate(users: float, stddev: float) -> tuple[str, str]:
    return f"{users:,.0f}", f"{1.96 * stddev:,.0f}"


def _still(metadata: dict[str, Any], what: str, files: Files, *parts: str) -> str:
    """What is shown where scripts do not run: the guarantee in two sentences, and the largest numbers."""
    return still_words(what, files, _promise(metadata)) + "".join(parts)


def _promise(metadata: dict[str, Any]) -> str:
    privacy, results = part_of(metadata, "privacy"), part_of(metadata, "results")
    epsilon, delta, hidden = privacy.get("epsilon"), privacy.get("delta"), results.get("hidden_count")
    guarantee = [f"ε = {epsilon:g}"] if isinstance(epsilon, int | float) else []
    guarantee += [f"δ = {tiny(delta)}"] if isinstance(delta, int | float) else []
    unsafe = part_of(privacy, "randomness").get("safe") is False
    promised = f"Every user is protected by differential privacy with {' and '.join(guarantee)}. "
    absent = f"What is not shown has {few_users(hidden if isinstance(hidden, int | float) else None)}."
    return f"{promised if guarantee and not unsafe else ''}{absent}"
