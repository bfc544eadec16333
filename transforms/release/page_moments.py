"""The page of means and moments by bit pushing (paper 002): numbers, bits, meter, groups, map. Loads nothing. Pure."""

from __future__ import annotations

import html
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.moments import EVERYBODY, BitMeans, MomentEstimate
from sfumato.schemas.release import BITS_FILE, CELLS_FILE, MANIFEST_FILE, MOMENTS_FILE, MOMENTS_PICTURE
from sfumato.transforms.release.moment_words import (
    figures,
    guarantee,
    place_value,
    quantity_name,
    quantity_title,
    statistic_title,
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
)
from sfumato.transforms.release.picture import bare_png
from sfumato.transforms.release.picture_cells import CELLS_GROUND
from sfumato.transforms.release.picture_moments import (
    REACH,
    contributions,
    first_statistic,
    render_moments_picture,
    unclear,
)

ALARM = (
    "Who gave which bit, and how it was randomised, was drawn by a known source ({}), so anyone who has it can undo "
    "the protection of every report."
)
MAX_LEVEL = 20
_WIDE = 900  # pixels to show the picture in
_FINEST = 9  # levels of the still map: 2^9 pixels a side
_DARKEST = 0.28  # of inferno: the colour of the lowest cell, apart from the ground's
_MANIFEST = (MANIFEST_FILE, "the guarantee, the meter, every parameter, every version")
_FILES: Files = (
    (MOMENTS_FILE, "one row for each statistic of everybody and of each group, with its 95% interval"),
    (BITS_FILE, "one row for each bit: its share, reports, and whether it was squashed"),
    (MOMENTS_PICTURE, "the bits and the groups as a picture"),
    _MANIFEST,
)
_CELL_FILE = (CELLS_FILE, "one row for each published cell: bounds, statistics, shape")


@dataclass(frozen=True, eq=False)
class CellMeans:
    """One statistic of the published cells of a map, all of one level.

    Raises ValueError where the columns disagree in length or a cell lies outside the level's grid.

    Attributes:
        level: depth of the cells; the grid has 2^level cells a side.
        x: int64[n], the cell's column, counted from the west.
        y: int64[n], the cell's row, counted from the north.
        cell_id: n names, such as r213.
        value: float64[n], the statistic, in the column's unit; NaN where it is not known.
        low, high: float64[n], the ends of 95% intervals.
        clients: float64[n], how many answered for it, estimated.
        differs: int8[n], 1 where the value is above everybody's for certain, all cells taken together, -1 where it is
            below, else 0.
    """

    level: int
    x: NDArray[np.int64]
    y: NDArray[np.int64]
    cell_id: Sequence[str]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    clients: NDArray[np.float64]
    differs: NDArray[np.int8]

    def __post_init__(self) -> None:
        if not 0 <= self.level <= MAX_LEVEL:
            raise ValueError(f"level: must lie in 0..{MAX_LEVEL}, got {self.level}")
        for name in ("x", "y", "value", "low", "high", "clients", "differs"):
            if np.shape(getattr(self, name)) != (len(self.cell_id),):
                raise ValueError(f"{name}: must hold one value for each of the {len(self.cell_id)} cells")
        for name in ("x", "y"):
            place = np.asarray(getattr(self, name))
            if not ((place >= 0) & (place < 1 << self.level)).all():
                raise ValueError(f"{name}: must lie in 0..2^level - 1")


def render_moments_page(
    manifest: Mapping[str, Any],
    estimates: Sequence[MomentEstimate],
    bits: Sequence[BitMeans],
    cells: CellMeans | None = None,
    files: Files | None = None,
) -> str:
    """The page as one text; usable up to about 1e5 groups or cells.

    Args:
        manifest: the release's manifest. A missing key costs the page that line, not the page.
        estimates: everybody's numbers and the groups', in the order asked for; may be none.
        bits: one a quantity; may be none.
        cells: the first statistic by cell of a map; the page then shows the map, and calls the groups cells.
        files: name and description of each file that lies beside the page; by default, those of the job.
    """
    metadata = plain(manifest)
    column = readable(str(metadata.get("column") or part_of(metadata, "parameters").get("column") or "the value"))
    problems = repair_randomness(metadata, "the draws")
    _, first, _ = first_statistic(estimates)
    overall = [one for one in estimates if one.group == EVERYBODY]
    groups = _groups(estimates)
    data: dict[str, Any] = {
        "column": column,
        "statistics": [_answer(one) for one in overall],
        "bits": [_pack_bits(one, column) for one in bits],
        "reach": REACH,
        "groups": groups,
    }
    scripts = ["page_words.js", "page_pieces.js", "page_moments_words.js", "page_moments_bits.js"]
    scripts += ["page_moments_groups.js"]
    shown_map = ""
    if cells is not None:
        problems = [*repair_region(metadata), *problems]
        repair_depth(metadata, cells.level)
        metadata["grid"]["depth"] = max(metadata["grid"]["depth"], cells.level)
        rows = _cell_rows(cells, first, overall)
        groups = groups or [rows]
        data |= {"palette": PALETTE, "layers": [_pack_cells(cells)], "cells": rows, "groups": groups}
        scripts += ["page_ground.js", "page_moments_cells.js", "page_map.js", "page_steps.js"]
        inner = fill("page_map.html", {"key": "no data", "fade": "changes nothing here"})
        shown_map = fill("page_moments_map.html", {"map": inner})
    if files is None:
        files = _FILES if cells is None else (*_FILES[:2], _CELL_FILE, *_FILES[2:])
    return render_shell(
        title="Private moments",
        metadata=metadata,
        problems=problems,
        data=plain(data),
        files=files,
        stage=fill("page_moments.html", {"map": shown_map}),
        scripts=(*scripts, "page_moments.js"),
        styles=("page.css", "page_charts.css", "page_moments.css"),
        still=_still(metadata, column, estimates, bits, cells, groups, files),
        alarm=ALARM,
    )


def render_means_thumbnail(cells: CellMeans) -> bytes:
    """The bare cells as a PNG of at most 512 pixels each way, dark where there is none, bright where values are high.

    Of cells that are finer than its pixels the last one of each pixel is drawn.
    """
    side = 1 << min(cells.level, _FINEST)
    shift = max(cells.level - _FINEST, 0)
    picture = np.broadcast_to(np.array(to_rgb(CELLS_GROUND)), (side, side, 3)).copy()
    known = np.isfinite(cells.value)
    low, high = _ends(cells)
    share = np.clip((cells.value[known] - low) / ((high - low) or 1.0), 0, 1)
    colours = colormaps["inferno"](_DARKEST + (1 - _DARKEST) * share)[..., :3]
    picture[cells.y[known] >> shift, cells.x[known] >> shift] = colours
    return bare_png(picture)


def _ends(cells: CellMeans) -> tuple[float, float]:
    """Where the colours of a map begin and end: all but the lowest and the highest fiftieth of the values."""
    known = cells.value[np.isfinite(cells.value)]
    low, high = np.quantile(known, [0.02, 0.98]) if known.size else (0.0, 0.0)
    return float(low), float(high)


def _answer(one: MomentEstimate) -> dict[str, Any]:
    """A number with its texts, in JSON's types but for NaN and infinity."""
    return {
        "statistic": one.statistic,
        "title": statistic_title(one.statistic),
        "value": figures(one.value, one.stddev),
        "low": figures(one.low, one.stddev),
        "high": figures(one.high, one.stddev),
        "stddev": figures(one.stddev, one.stddev),
        "clients": one.clients,
    }


def _pack_bits(bits: BitMeans, column: str) -> dict[str, Any]:
    """Bits in the order of their place values, those of negative values first."""
    order = np.argsort(bits.weight, kind="stable")
    added = contributions(bits)
    spread = np.abs(bits.weight * bits.stddev)
    return {
        "quantity": bits.quantity,
        "title": quantity_title(bits.quantity, column),
        "short": quantity_name(bits.quantity),
        "place": [place_value(float(bits.weight[i])) for i in order],
        "adds": [figures(float(added[i]), float(spread[i])) for i in order],
        "squashed": [bool(bits.squashed[i]) for i in order],
        "unclear": unclear(bits)[order],
        **{name: rounded(getattr(bits, name)[order]) for name in ("weight", "mean", "stddev", "reports")},
        "read_probability": rounded(bits.read_probability[order]),
        "added": rounded(added[order]),
    }


def _groups(estimates: Sequence[MomentEstimate]) -> list[dict[str, Any]]:
    """For each statistic the groups' rows, in their order; none without groups."""
    found: dict[str, list[MomentEstimate]] = {}
    for one in estimates:
        if one.group != EVERYBODY:
            found.setdefault(one.statistic, []).append(one)
    overall = {one.statistic: one for one in estimates if one.group == EVERYBODY}
    return [
        {
            "title": statistic_title(name),
            "everybody": overall[name].value if name in overall else None,
            "name": [readable(row.group) for row in rows],
            "text": [figures(row.value, row.stddev) for row in rows],
            "range": [f"{figures(row.low, row.stddev)} to {figures(row.high, row.stddev)}" for row in rows],
            **{part: rounded([getattr(row, part) for row in rows]) for part in ("value", "low", "high", "clients")},
        }
        for name, rows in found.items()
    ]


def _cell_rows(cells: CellMeans, first: str, overall: Sequence[MomentEstimate]) -> dict[str, Any]:
    texts = _cell_texts(cells)
    return {
        "title": statistic_title(first) or "Value",
        "everybody": overall[0].value if overall else None,
        "name": [readable(name) for name in cells.cell_id],
        "text": [text for text, _ in texts],
        "range": [span for _, span in texts],
        "differs": np.asarray(cells.differs).tolist(),
        **{part: rounded(getattr(cells, part)) for part in ("value", "low", "high", "clients")},
    }


def _cell_texts(cells: CellMeans) -> list[tuple[str, str]]:
    rows = zip(cells.value.tolist(), cells.low.tolist(), cells.high.tolist(), strict=True)
    return [
        (figures(value, (high - low) / 4), f"{figures(low, (high - low) / 4)} to {figures(high, (high - low) / 4)}")
        for value, low, high in rows
    ]


def _pack_cells(cells: CellMeans) -> dict[str, Any]:
    """Where the map draws them; values, texts and names are those of the cells' rows."""
    known = cells.value[np.isfinite(cells.value)]
    ends, spread = _ends(cells), (_ends(cells)[1] - _ends(cells)[0]) / 20
    beyond = [bool((known < ends[0]).any()), False, bool((known > ends[1]).any())]
    ticks = [figures(ends[0] + share * (ends[1] - ends[0]), spread) for share in (0.0, 0.5, 1.0)]
    return {
        "depth": int(cells.level),
        "x": np.asarray(cells.x).tolist(),
        "y": np.asarray(cells.y).tolist(),
        "ends": ends,
        "ticks": [f"{sign} {text}" if out else text for sign, text, out in zip("≤ ≥", ticks, beyond, strict=True)],
    }


def _still(
    metadata: dict[str, Any],
    column: str,
    estimates: Sequence[MomentEstimate],
    bits: Sequence[BitMeans],
    cells: CellMeans | None,
    groups: list[dict[str, Any]],
    files: Files,
) -> str:
    """What is shown where scripts do not run: the guarantee, the picture, the numbers."""
    privacy = part_of(metadata, "privacy")
    epsilon, gave = part_of(privacy, "collector").get("epsilon"), part_of(privacy, "meter").get("bits_per_client")
    known = epsilon if isinstance(epsilon, int | float) and epsilon > 0 else None
    told = privacy.get("trust") in {"local", "none"} and (known is not None) == (privacy["trust"] == "local")
    count = gave if isinstance(gave, int) and gave > 0 else 1
    safe = part_of(privacy, "randomness").get("safe") is not False
    promise = html.escape(guarantee(known, count)) if safe and told else ""
    parts = [still_words("a still picture and the numbers", files, promise)]
    picture = render_moments_picture(
        estimates, bits, title="Private moments", column=column, epsilon=known, bits_per_client=count, safe=safe
    )
    wide, tall = struct.unpack(">II", picture[16:24])
    parts.append(image(picture, "How often each bit is set, and the groups' values", _WIDE, round(_WIDE * tall / wide)))
    overall = [_answer(one) for one in estimates if one.group == EVERYBODY]
    rows = [(one["title"], one["value"], f"{one['low']} to {one['high']}") for one in overall]
    parts.append(still_table(("Everybody", "Value", "At 95%"), rows))
    if cells is not None:
        parts.append(
            map_image(render_means_thumbnail(cells), "The cells, bright where values are high", metadata["region"])
        )
    for group in groups:
        columns = zip(group["name"], group["text"], group["range"], strict=True)
        parts.append(
            still_table(("Group" if cells is None else "Cell", group["title"], "At 95%"), list(columns)[:STILL_ROWS])
        )
    return "".join(parts)
