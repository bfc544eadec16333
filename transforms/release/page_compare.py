"""The page of a comparison: truth and estimates side by side, error curves, the table. One HTML text; it loads nothing.

It has the look of the releases' pages (page_shell.py), but it shows exact data and is no release: it says so first.
"""

from __future__ import annotations

import html
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import FuncNorm
from numpy.typing import NDArray

from sfumato.schemas.comparison import EVALUATION, YARDSTICK, Outcome, Setting, Value
from sfumato.schemas.release import MANIFEST_FILE, RUNS_FILE, TABLE_FILE
from sfumato.transforms.evaluation.comparison_table import (
    RATIO_OF,
    Mean,
    Row,
    amount_text,
    best_rows,
    in_groups,
    option_names,
    reading,
    share_text,
    value_text,
)
from sfumato.transforms.evaluation.density_metrics import METRICS
from sfumato.transforms.release.page_shell import PALETTE, Files, fill, image, plain, render_shell, repair_region
from sfumato.transforms.release.picture import coarsened, log_like

MOST_PICTURES = 96
_MOST_PICTURE_BYTES = 5_000_000  # of all together, before base64 makes them a third larger
_SIDE = 256
_WORST_HEIGHT = 4.0  # a picture's height over its width, however narrow the region
_RATIO = f"{RATIO_OF} / {YARDSTICK}"
_FILES: Files = (
    (TABLE_FILE, "one row for each setting: means and standard errors over keys"),
    (RUNS_FILE, "one row for each run"),
    (MANIFEST_FILE, "every parameter, every version, and the table"),
)
_STILL = (
    '<p class="noscript">Scripts are off, so these are the pictures and the table alone. The numbers are also in '
    f'<a href="{TABLE_FILE}">{TABLE_FILE}</a> and <a href="{RUNS_FILE}">{RUNS_FILE}</a>.</p>'
)


def render_comparison(
    metadata: Mapping[str, Any],
    rows: Sequence[Row],
    outcomes: Sequence[Outcome],
    truth: NDArray[np.float64],
    metrics: Sequence[str],
) -> str:
    """The whole page as one text.

    Args:
        metadata: release_id, created, parameters, versions, region. A missing one costs the page that line.
        rows: what the table shows, of `summarise`.
        outcomes: whose pictures are shown; of each setting, that of the first key which has one.
        truth: the exact density float64[side, side], row 0 in the north. Its range is the colours' range.
        metrics: names, in the table's order.

    Raises:
        ValueError: the truth is not a finite square.
    """
    known = plain(metadata)
    problems = repair_region(known)
    ordered = [row for group in in_groups(rows) for row in group]
    album = _Album(truth, known["region"])
    at, left_out = album.add_all(ordered, outcomes)
    shared, own = option_names(rows)
    best = best_rows(rows, metrics)
    words = f"Of {len(at) + left_out:,} settings with a picture, {len(at):,} are shown" if left_out else ""
    return render_shell(
        title="Comparison of methods",
        metadata=known,
        problems=problems,
        data={
            "rows": [_pack(row, at.get(row.setting)) for row in ordered],
            "metrics": [{"name": name, "help": METRICS[name].help, "better": METRICS[name].better} for name in metrics],
            "shared": shared,
            "own": own,
            "start": _start(ordered, at, shared, own),
            "left_out": left_out,
        },
        files=_FILES,
        stage=fill(
            "page_compare.html",
            {
                "notice": html.escape(EVALUATION),
                "legend": _legend(album.norm),
                "album": "".join(album.figures()),
                "left_out": f"{words}: the others are left out to keep this page small." if words else "",
                "reading": html.escape(reading(rows, bool(best))),
                "table": _table(ordered, metrics, shared, own, best),
            },
        ),
        scripts=("page_words.js", "page_pieces.js", "page_compare.js", "page_compare_chart.js"),
        styles=("page.css", "page_charts.css", "page_compare.css"),
        still=_STILL,
        alarm="",
    )


@dataclass(frozen=True)
class _Picture:
    png: bytes
    labels: list[str]


class _Album:
    """Pictures on one colour scale, equal ones once. The first is the truth's.

    Colours stand for the density over that of an even spread, so pictures of different resolution compare.
    """

    def __init__(self, truth: NDArray[np.float64], region: Mapping[str, float]):
        if truth.ndim != 2 or truth.shape[0] != truth.shape[1] or not truth.size or not np.isfinite(truth).all():
            raise ValueError(f"truth: must be a square of finite numbers, got shape {truth.shape}")
        tall = (region["north"] - region["south"]) / (region["east"] - region["west"])
        tall /= max(math.cos(math.radians((region["north"] + region["south"]) / 2)), 0.01)
        self._height = max(round(_SIDE * min(tall, _WORST_HEIGHT)), 1)
        values = _relative(truth)
        self.norm = log_like(values)
        self._pictures = {b"": _Picture(self._png(values), ["truth"])}

    def add_all(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> tuple[dict[Setting, int], int]:
        """The number of each setting's picture in the album, and how many settings' pictures found no room."""
        found: dict[Setting, Outcome] = {}
        for one in sorted(outcomes, key=lambda one: one.key):
            if one.picture is not None and np.isfinite(one.picture).all():
                found.setdefault(one.setting, one)
        at: dict[Setting, int] = {}
        size = sum(len(one.png) for one in self._pictures.values())
        pictured = [row.setting for row in rows if row.setting in found]
        for setting in pictured:
            png = self._png(_relative(np.asarray(found[setting].picture, np.float64)))
            if png not in self._pictures:
                if len(self._pictures) == MOST_PICTURES or size + len(png) > _MOST_PICTURE_BYTES:
                    continue
                size += len(png)
                self._pictures[png] = _Picture(png, [])
            self._pictures[png].labels.append(_label(setting))
            at[setting] = list(self._pictures).index(png)
        return at, len(pictured) - len(at)

    def figures(self) -> list[str]:
        """The pictures as markup, in order."""
        return [
            f"<figure>{image(one.png, f'Density: {one.labels[0]}', _SIDE, self._height)}"
            f"<figcaption>{html.escape(_together(one.labels))}</figcaption></figure>"
            for one in self._pictures.values()
        ]

    def _png(self, values: NDArray[np.float64]) -> bytes:
        shades = np.asarray(self.norm(values), np.float64)
        return indexed_png(np.minimum(shades * _SIDE, _SIDE - 1).astype(np.uint8))


def indexed_png(shades: NDArray[np.uint8]) -> bytes:
    """A PNG of uint8[rows, columns], each a number among the 256 colours of `render_thumbnail`; a byte a pixel."""
    palette = np.round(colormaps["inferno"](np.arange(256))[:, :3] * 255).astype(np.uint8)
    rows, columns = shades.shape
    lines = np.zeros((rows, columns + 1), np.uint8)  # before each line stands its filter: none
    lines[:, 1:] = shades
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _relative(density: NDArray[np.float64]) -> NDArray[np.float64]:
    """The density over that of an even spread, of at most 256 cells a side."""
    values = coarsened(density, _SIDE)
    return values * values.size


def _label(setting: Setting) -> str:
    return ", ".join([setting.method, *(f"{name} {value_text(value)}" for name, value in setting.options)])


def _together(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]}, and {len(labels) - 1} more that look the same"


def _start(rows: Sequence[Row], at: Mapping[Setting, int], shared: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    """The options' values that are shown first: those in the middle, or of the nearest group that has pictures."""
    middle: dict[str, Value] = {}
    for name in (*shared, *own):
        values = sorted(
            {row.options[name] for row in rows if name in row.options}, key=lambda v: (isinstance(v, str), v)
        )
        middle[name] = values[(len(values) - 1) // 2]
    pictured = [row.options for row in rows if row.private and row.setting in at]
    nearest = min(pictured, key=lambda one: sum(one[name] != middle[name] for name in shared), default=middle)
    return middle | {name: nearest[name] for name in shared}


def _pack(row: Row, picture: int | None) -> dict[str, Any]:
    means = [(name, row.metrics[name]) for name in row.metrics]
    return {
        "method": row.setting.method,
        "private": row.private,
        "options": row.options,
        "texts": {name: value_text(value) for name, value in row.options.items()},
        "metrics": {name: [*_finite(mean), mean.text] for name, mean in means},
        "picture": picture,
    }


def _finite(mean: Mean) -> list[float | None]:
    return [float(f"{value:.9g}") if math.isfinite(value) else None for value in (mean.value, mean.error)]


def _legend(norm: FuncNorm) -> str:
    """The colours with their densities over that of an even spread, as an SVG that needs no style of its own."""
    top, wide = float(norm.vmax or 1.0), 300
    stops = [f"#{''.join(PALETTE)[i : i + 6]}" for i in range(0, 6 * 32, 6)]
    gradient = "".join(f'<stop offset="{i / 31:.4f}" stop-color="{colour}"/>' for i, colour in enumerate(stops))
    ticks, last = ['<text x="0" y="27" text-anchor="start">0</text>'], 12.0
    for power in range(math.floor(math.log10(top)) - 3, math.floor(math.log10(top)) + 1):
        for value in (10.0**power, 3 * 10.0**power):
            x = wide * float(norm(value))
            if value < top and last + 30 < x < wide - 16:
                last = x
                ticks.append(
                    f'<path d="M{x:.1f} 10v5"/><text x="{x:.1f}" y="27" text-anchor="middle">{value:g}×</text>'
                )
    return (
        f'<svg class="ramp-legend" viewBox="0 0 {wide} 30" width="{wide}" height="30" role="img" '
        f'aria-label="Colours, from none to {top:.3g} times the density of an even spread">'
        f'<defs><linearGradient id="inferno">{gradient}</linearGradient></defs>'
        f'<rect width="{wide}" height="10" rx="2" fill="url(#inferno)" stroke="none"/>{"".join(ticks)}</svg>'
    )


def _table(
    rows: Sequence[Row],
    metrics: Sequence[str],
    shared: Sequence[str],
    own: Sequence[str],
    best: set[tuple[Setting, str]],
) -> str:
    """The table's head and body; what a column sorts by stands in `data-v`, where it is not the text."""
    ratio, lost = any(row.ratio for row in rows), any(row.shards_lost > 0 for row in rows)
    heads = [(name, "") for name in shared] + [("method", "")] + [(name, "") for name in own]
    heads += [(name, METRICS[name].help) for name in metrics]
    heads += (
        [(_RATIO, "mean squared error over that of the non-private yardstick on the same cohorts")] if ratio else []
    )
    heads += [("entries", "numbers that a client sends in all sub-queries"), ("bits", "what a client sends in all")]
    heads += [("shards lost", "share of all shards with too few survivors")] if lost else []
    head = "".join(
        f'<th scope="col"{_METHOD if i == len(shared) else ""}{_title(words)}>{html.escape(text)}</th>'
        for i, (text, words) in enumerate(heads)
    )
    body = []
    for number, row in enumerate(rows):
        cells = [_option_cell(row, name) for name in shared]
        cells.append(f'<th scope="row">{html.escape(row.setting.method)}</th>')
        cells += [_option_cell(row, name) for name in own]
        cells += [_mean_cell(row.metrics[name], (row.setting, name) in best) for name in metrics]
        cells += [_mean_cell(row.ratio or Mean(math.nan, math.nan), False)] if ratio else []
        cells += [_number_cell(value, amount_text(value)) for value in (row.entries, row.bits)]
        cells += [_number_cell(row.shards_lost, share_text(row.shards_lost))] if lost else []
        body.append(f'<tr data-row="{number}"{"" if row.private else _OUTSIDE}>{"".join(cells)}</tr>')
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"


_OUTSIDE, _METHOD = ' class="outside"', ' class="method"'


def _title(words: str) -> str:
    return f' title="{html.escape(words)}"' if words else ""


def _option_cell(row: Row, name: str) -> str:
    value = row.options.get(name)
    sort = "" if value is None or isinstance(value, str) else f' data-v="{float(value)!r}"'
    return f"<td{sort}>{html.escape(value_text(value))}</td>"


def _number_cell(value: float, text: str) -> str:
    sort = f' data-v="{value!r}"' if math.isfinite(value) else ""
    return f"<td{sort}>{html.escape(text)}</td>"


def _mean_cell(mean: Mean, best: bool) -> str:
    value, sign, error = mean.text.partition(" ± ")
    words = f"<b>{value}</b>" if best else value
    sort = f' data-v="{mean.value!r}"' if math.isfinite(mean.value) else ""
    return f"<td{sort}>{words}{f' <small>± {error}</small>' if sign else ''}</td>"
