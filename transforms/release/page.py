"""The release's page: one HTML text with the map, its controls and the privacy report. It loads nothing.

The templates `page.html`, `page.css` and `page_*.js` lie beside this module. The manifest and the layers travel
inside the page as JSON that no value can break out of, and a content security policy names the hashes of the
one script and the one style sheet, so that nothing else could run or be fetched even if it were there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.release.picture import render_thumbnail

MAX_LEVEL = 20
# Parts of one script, in this order: words and layers; the map; the panel and the report.
_SCRIPTS = ("page_data.js", "page_map.js", "page_report.js")
_ROUNDING = 1e-9  # how far below 0 a sum of epsilons may leave the remaining budget
_REGION_KEYS = ("west", "south", "east", "north")

# Inferno (S. van der Walt and N. Smith, CC0), every eighth colour: uniform to the eye.
_PALETTE = (
    "0000040403120b0724150b37210c4a2f0a5b3d09654a0c6b57106e64156e71196e7d1e6d8a226a972766a32c61b0315bbc3754"
    "c73e4cd24644db503be45a31eb6628f1731df68013f98e09fb9d07fcac11fbbc21f9cb35f5db4cf2ea69f3f68afcffa4"
)


@dataclass(frozen=True, eq=False)
class Layer:
    """One sub-query's map: the tree nodes that own an entry, sorted by level, coarse to fine.

    Raises ValueError where the arrays disagree in length or a value makes no sense.

    Attributes:
        index: the sub-query's number, from 0 or 1 as the manifest counts.
        epsilon: what the sub-query spent.
        remaining: what was left of the budget after it.
        stddev: standard deviation of the noise in one entry, in users.
        vector_length: entries of the vector that each client sent.
        shards: groups that were asked; `shards_lost` of them gave no answer.
        level: int[n], depth of the node; the root is 0.
        x: int[n], the node's column at its level, counted from the west.
        y: int[n], the node's row at its level, counted from the north.
        count: float64[n], noisy estimated users; may be negative.
        area: int64[n], cells of the finest grid that the node covers, its descendants' left out; may be 0.
        cell_id: n names, such as r213.
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
        layers: one a sub-query, in the order in which they were asked; the last is the release.
        density: float64[side, side], row 0 in the north, or None. It is shown where scripts do not run.

    Raises:
        ValueError: no layer, or a density that is not a finite square.
    """
    layers = list(layers)
    if not layers:
        raise ValueError("layers: a page needs the map of at least one sub-query, got none")
    facts = _plain(manifest)
    problems = _repair(facts, layers)
    style, script = _template("page.css"), "".join(map(_template, _SCRIPTS))
    fields = {
        "csp": html.escape(
            f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        "title": html.escape(f"Private heatmap {facts.get('release_id') or ''}".strip()),
        "banner": _banner(facts),
        "preview": "" if density is None else _preview(density, facts["region"]),
        "style": style,
        "script": script,
        "data": _embed(
            {
                "manifest": facts,
                "problems": problems,
                "palette": _PALETTE,
                "layers": [_pack(layer) for layer in layers],
            }
        ),
    }
    # One pass, so that nothing inside a value is ever taken for a field.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], _template("page.html"))


def _template(name: str) -> str:
    return resources.files("sfumato.transforms.release").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embed(value: object) -> str:
    """JSON that is also safe between <script> tags: no tag, comment or entity can begin in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    """The value in JSON's own types. NaN and infinity become null, what JSON does not know becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _repair(facts: dict[str, Any], layers: list[Layer]) -> list[str]:
    """Fills in what the map cannot be drawn without, and says so in words for the reader."""
    problems = []
    region = facts.get("region")
    sides = [region.get(key) for key in _REGION_KEYS] if isinstance(region, dict) else []
    numbers = [float(side) for side in sides if isinstance(side, int | float)]
    if len(numbers) != 4 or numbers[0] >= numbers[2] or numbers[1] >= numbers[3]:
        facts["region"] = dict(zip(_REGION_KEYS, (0.0, 0.0, 1.0, 1.0), strict=True))
        problems.append("The manifest names no usable region: places and distances on this map mean nothing.")
    if _randomness(facts).get("safe") is None:
        problems.append("The manifest does not say where the noise came from: its secrecy cannot be judged.")
    grid = facts.get("grid")
    if not isinstance(grid, dict) or not isinstance(grid.get("depth"), int):
        facts["grid"] = {"depth": _finest_depth(layers[-1])}
    return problems


def _finest_depth(layer: Layer) -> int:
    """Depth of the finest grid: a deepest node has no descendants, so it covers 4^(depth - level) cells."""
    if not len(layer.level):
        return 0
    return int(layer.level[-1]) + max(int(layer.area[-1]).bit_length() - 1, 0) // 2


def _pack(layer: Layer) -> dict[str, Any]:
    """The layer in JSON's types, rounded: a tenth of a user is far below any noise."""
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
        "count": (np.round(layer.count, 1) + 0.0).tolist(),
        "area": np.asarray(layer.area).tolist(),
        "cell_id": [str(name) for name in layer.cell_id],
    }


def _randomness(facts: dict[str, Any]) -> dict[str, Any]:
    privacy = facts.get("privacy")
    found = privacy.get("randomness") if isinstance(privacy, dict) else None
    return found if isinstance(found, dict) else {}


def _banner(facts: dict[str, Any]) -> str:
    """The alarm, written here so that it also shows where scripts do not run."""
    randomness = _randomness(facts)
    if randomness.get("safe", True) is not False:
        return ""
    source = html.escape(str(randomness.get("source") or "unknown"))
    return (
        '<div class="banner" id="banner" role="alert"><strong>Demonstration seed: NOT private.</strong> '
        f"The noise came from a known source ({source}), so anyone who has it can take the noise away again. "
        "Do not publish this release.</div>"
    )


def _preview(density: NDArray[np.float64], region: dict[str, float]) -> str:
    """The density as an <img>, for readers without scripts."""
    picture = base64.b64encode(render_thumbnail(density)).decode()
    tall = (region["north"] - region["south"]) / (region["east"] - region["west"])
    tall /= max(math.cos(math.radians((region["north"] + region["south"]) / 2)), 0.01)
    return (
        '<img alt="The published density, bright where many users are" width="512" '
        f'height="{round(512 * tall)}" src="data:image/png;base64,{picture}">'
    )
