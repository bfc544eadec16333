"""The heatmap's page: one HTML text with the map, its controls and the privacy report. It loads nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.release.page_shell import (
    PALETTE,
    fill,
    map_image,
    plain,
    render_shell,
    repair_depth,
    repair_randomness,
    repair_region,
)
from sfumato.transforms.release.picture import render_thumbnail

MAX_LEVEL = 20
# Parts of one script, in this order.
_SCRIPTS = (
    "page_words.js",
    "page_pieces.js",
    "page_ground.js",
    "page_layers.js",
    "page_map.js",
    "page_steps.js",
    "page_rounds.js",
    "page_report.js",
)
_FILES = (
    ("cells.parquet", "one row for each cell: bounds, estimated users, noise, density, shape"),
    ("density.npy", "the density on the finest grid, row 0 in the north, adding up to 1"),
    ("manifest.json", "the guarantee, every parameter, every version"),
)
_STILL = """<p class="noscript">Scripts are off, so this is the published density as a still picture. The numbers are in
<a href="manifest.json">manifest.json</a> and <a href="cells.parquet">cells.parquet</a>.</p>"""
_ALARM = "The noise came from a known source ({}), so anyone who has it can take the noise away again."
_ROUNDING = 1e-9  # how far below 0 a sum of epsilons may leave the remaining budget


@dataclass(frozen=True, eq=False)
class Layer:
    """One sub-query's map, or the one made of them all: the nodes that own an entry, by level, coarse to fine.

    Raises ValueError where the arrays disagree in length or a value makes no sense.

    Attributes:
        index: the sub-query's number, from 0 or 1 as the manifest counts.
        epsilon: what the sub-query spent.
        remaining: what was left of the budget after it.
        stddev: standard deviation of the noise in one entry, in users; a typical one where they differ.
        vector_length: entries of the vector that each client sent.
        shards: groups that were asked; `shards_lost` of them gave no answer.
        level: int[n], depth of the node; the root is 0.
        x: int[n], the node's column at its level, counted from the west.
        y: int[n], the node's row at its level, counted from the north.
        count: float64[n], noisy estimated users; may be negative.
        area: int64[n], cells of the finest grid that the node covers, its descendants' left out; may be 0.
        cell_id: n names, such as r213.
        deviations: float64[n], every count's own standard deviation, in users; None where all are `stddev`.
        entries: cells before finer ones were added up for the page; None where none were.
        combined: the map is no sub-query's answer as it came. Then it is the release, and its figures are those of
            all sub-queries together.
    """

    index: int
    epsilon: float
    remaining: float
    stddev: float
    vector_length: int
    shards: int
    shards_lost: int
    level: NDArray[np.integer[Any]]
    x: NDArray[np.integer[Any]]
    y: NDArray[np.integer[Any]]
    count: NDArray[np.float64]
    area: NDArray[np.int64]
    cell_id: list[str]
    deviations: NDArray[np.float64] | None = None
    entries: int | None = None
    combined: bool = False

    def __post_init__(self) -> None:
        n = len(self.level)
        for name in ("level", "x", "y", "count", "area"):
            shape = np.shape(getattr(self, name))
            if shape != (n,):
                raise ValueError(f"{name}: must hold one value for each of the {n} nodes, got shape {shape}")
        if len(self.cell_id) != n:
            raise ValueError(f"cell_id: must hold one name for each of {n} nodes, got {len(self.cell_id)}")
        for name, least in (("epsilon", 0.0), ("remaining", -_ROUNDING), ("stddev", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"{name}: must be a finite number >= 0, got {value}")
        if not 0 <= self.shards_lost <= self.shards:
            raise ValueError(f"shards_lost: must lie in 0..{self.shards}, got {self.shards_lost}")
        if not np.isfinite(self.count).all():
            raise ValueError("count: must be finite numbers")
        if self.deviations is not None:
            deviations = np.asarray(self.deviations)
            if deviations.shape != (n,):
                raise ValueError(f"deviations: must hold one value for each of the {n} nodes, got {deviations.shape}")
            if not (np.isfinite(deviations) & (deviations >= 0)).all():
                raise ValueError("deviations: must be finite numbers >= 0")
        if self.entries is not None and self.entries < n:
            raise ValueError(f"entries: must be at least the {n} nodes that are shown, got {self.entries}")
        if not isinstance(self.combined, bool):
            raise ValueError(f"combined: must be True or False, got {self.combined!r}")
        level = np.asarray(self.level, dtype=np.int64)
        if n and not (level.min() >= 0 and level.max() <= MAX_LEVEL and (np.diff(level) >= 0).all()):
            raise ValueError(f"level: must lie in 0..{MAX_LEVEL} and ascend: the map is painted in that order")
        side = np.int64(1) << level
        for name in ("x", "y"):
            place = np.asarray(getattr(self, name), dtype=np.int64)
            if not ((place >= 0) & (place < side)).all():
                raise ValueError(f"{name}: must lie in 0..2^level - 1")
        if not (np.asarray(self.area) >= 0).all():
            raise ValueError("area: must be a number of cells >= 0")


def render_page(manifest: Mapping[str, Any], layers: Iterable[Layer], density: NDArray[np.float64] | None) -> str:
    """The whole page as one text.

    Args:
        manifest: the release's manifest. A missing key costs the page that line, not the page.
        layers: one for each sub-query that has a map, in the order in which they were asked, and at most one more that
            is combined. The last is the release. Sub-queries without a map are known from the manifest.
        density: float64[side, side], row 0 in the north, or None. It is shown where scripts do not run.

    Raises:
        ValueError: no layer, a combined one before the last, or a density that is not a finite square.
    """
    layers = list(layers)
    if not layers:
        raise ValueError("layers: a page needs the map of at least one sub-query, got none")
    if any(layer.combined for layer in layers[:-1]):
        raise ValueError("layers: only the last can be combined: it is the release")
    facts = plain(manifest)
    problems = [*repair_region(facts), *repair_randomness(facts, "the noise")]
    repair_depth(facts, _finest_depth(layers[-1]))
    still = _STILL
    if density is not None:
        alt = "The published density, bright where many users are"
        still += map_image(render_thumbnail(density), alt, facts["region"])
    return render_shell(
        title="Private heatmap",
        facts=facts,
        problems=problems,
        data={"palette": PALETTE, "layers": [_pack(layer) for layer in layers]},
        files=_FILES,
        stage=fill(
            "page_heatmap.html", {"map": fill("page_map.html", {"key": "lost in noise", "fade": "the fading of noise"})}
        ),
        scripts=_SCRIPTS,
        styles=("page.css", "page_heatmap.css"),
        still=still,
        alarm=_ALARM,
    )


def _finest_depth(layer: Layer) -> int:
    """Depth of the finest grid: a deepest node has no descendants, so it covers 4^(depth - level) cells."""
    if not len(layer.level):
        return 0
    return int(layer.level[-1]) + max(int(layer.area[-1]).bit_length() - 1, 0) // 2


def _pack(layer: Layer) -> dict[str, Any]:
    """The layer in JSON's types, rounded far below the noise: to a tenth of a user, or finer where cells share one."""
    deviations, digits = None, 1
    if layer.deviations is not None:
        deviations = [float(f"{one:.4g}") for one in layer.deviations.tolist()]
        noisy = layer.deviations[layer.deviations > 0]
        digits = min(max(1 - math.floor(math.log10(noisy.min())), 1), 9) if noisy.size else 1
    return {
        "index": int(layer.index),
        "epsilon": float(f"{layer.epsilon:.9g}"),
        "remaining": float(f"{max(layer.remaining, 0.0):.9g}"),
        "stddev": float(f"{layer.stddev:.6g}"),
        "vector_length": int(layer.vector_length),
        "shards": int(layer.shards),
        "shards_lost": int(layer.shards_lost),
        "level": np.asarray(layer.level).tolist(),
        "x": np.asarray(layer.x).tolist(),
        "y": np.asarray(layer.y).tolist(),
        "count": (np.round(layer.count, digits) + 0.0).tolist(),
        "area": np.asarray(layer.area).tolist(),
        "cell_id": [str(name) for name in layer.cell_id],
        "deviations": deviations,
        "entries": len(layer.level) if layer.entries is None else int(layer.entries),
        "combined": layer.combined,
    }
