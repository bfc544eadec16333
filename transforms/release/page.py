"""The heatmap's page: one HTML text with the map, its controls and the privacy report. It loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.release import TOTALS_FILE
from sfumato.transforms.release.page_layer import Layer, Rates, finest_depth, map_top, packed, rate_scales
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
from sfumato.transforms.release.picture_scale import RATE_PALETTE

# Parts of one script, in this order.
_SCRIPTS = (
    "page_words.js",
    "page_pieces.js",
    "page_ground.js",
    "page_layers.js",
    "page_rates.js",
    "page_map.js",
    "page_colours.js",
    "page_steps.js",
    "page_rounds.js",
    "page_report.js",
)
_CELLS = ("cells.parquet", "one row for each cell: bounds, estimated users, standard deviation, density, shape")
_CELLS_WITH_RATES = (_CELLS[0], f"{_CELLS[1]}, rates with their intervals")
_TOTALS = ("totals.parquet", "what adds up the errors of cells: `Release.total` gives users and standard deviation")
_FILES = (
    ("density.npy", "the density on the finest grid, row 0 in the north, adding up to 1"),
    ("manifest.json", "the guarantee, every parameter, every version"),
)
_STILL = """<p class="noscript">Scripts are off, so this is the published density as a still picture. The numbers are in
<a href="manifest.json">manifest.json</a> and <a href="cells.parquet">cells.parquet</a>.</p>"""
_ALARM = "The noise came from a known source ({}), so anyone who has it can take the noise away again."

__all__ = ["Layer", "Rates", "render_page"]


def render_page(manifest: Mapping[str, Any], layers: Iterable[Layer], density: NDArray[np.float64] | None) -> str:
    """The whole page as one text.

    Args:
        manifest: the release's manifest. A missing key costs the page that line, not the page.
        layers: one for each sub-query that has a map, in the order in which they were asked, and at most one more that
            is combined. The last is the release. Sub-queries without a map are known from the manifest.
        density: float64[side, side], row 0 in the north, or None. It is shown where scripts do not run.

    Raises:
        ValueError: no layer, a combined one before the last, rates of different categories, or a density that is not a
            finite square.
    """
    layers = list(layers)
    if not layers:
        raise ValueError("layers: a page needs the map of at least one sub-query, got none")
    if any(layer.combined for layer in layers[:-1]):
        raise ValueError("layers: only the last can be combined: it is the release")
    metadata = plain(manifest)
    problems = [*repair_region(metadata), *repair_randomness(metadata, "the noise")]
    repair_depth(metadata, finest_depth(layers[-1]))
    scales = rate_scales(layers)
    still = _STILL
    if density is not None:
        alt = "The published density, bright where many users are"
        still += map_image(render_thumbnail(density), alt, metadata["region"])
    return render_shell(
        title="Private heatmap",
        metadata=metadata,
        problems=problems,
        data={
            "palette": PALETTE,
            "rate_palette": RATE_PALETTE,
            "top": float(f"{map_top(layers[-1], metadata['region'], metadata['grid']['depth']):.6g}"),
            "rate_scales": scales,
            "layers": [packed(layer) for layer in layers],
        },
        files=(
            _CELLS if scales is None else _CELLS_WITH_RATES,
            *([_TOTALS] if TOTALS_FILE in str(metadata.get("errors")) else []),
            *_FILES,
        ),
        stage=fill(
            "page_heatmap.html",
            {"map": fill("page_map.html", {"key": "", "fade": "the fading, C what the colours show"})},
        ),
        scripts=_SCRIPTS,
        styles=("page.css", "page_heatmap.css"),
        still=still,
        alarm=_ALARM,
    )
