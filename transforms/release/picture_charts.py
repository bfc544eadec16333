"""Pictures of counted items and of a distribution, as PNGs on Agg's own canvas. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile, check_amounts, readable
from sfumato.transforms.release.picture import ALARM, DPI, FAINT, GROUND, INK, SOFT, in_words, png
from sfumato.transforms.release.picture_cells import few_users, sample_captions

_MOST_BARS = 30
_WIDE = 9.4  # inches
_Z = 1.96  # standard deviations on each side that hold 95% of a normal law
_ABOVE, _BELOW = 0.95, 1.3  # inches round the axes
_CURVE_TALL = 5.0  # inches
QUANTILES_SHAPE = (900, round(900 * (_CURVE_TALL + _ABOVE + _BELOW) / _WIDE))  # width and height to show it in
_FONT, _TITLE_FONT = "DejaVu Sans", "DejaVu Serif"  # come with matplotlib: the picture is the same everywhere


def render_items_picture(
    name: Sequence[str],
    count: NDArray[np.float64],
    stddev: NDArray[np.float64],
    *,
    title: str = "Private histogram",
    epsilon: float | None = None,
    delta: float | None = None,
    hidden_count: float | None = None,
    safe: bool = True,
) -> bytes:
    """The 30 items with most users as bars, the bytes of a PNG file; equal arguments give equal bytes.

    Args:
        name: n items, as the logs wrote them.
        count: float64[n], estimated users, >= 0.
        stddev: float64[n], standard deviation of `count`; whiskers are 1.96 of it each way.
        title: the line above the bars.
        epsilon, delta: the guarantee that the caption states.
        hidden_count: the largest number of users that an item which is not shown can have, at 99%.
        safe: False where the users were drawn by a known seed; the caption then says that nothing is private.

    Raises:
        ValueError: columns of different lengths, or numbers that are not finite and >= 0.
    """
    for column, values in (("count", count), ("stddev", stddev)):
        if np.shape(values) != (len(name),):
            raise ValueError(f"{column}: must hold one value for each of the {len(name)} names")
        check_amounts(column, values)
    order = np.argsort(-count, kind="stable")[:_MOST_BARS]
    users, margin = count[order], _Z * stddev[order]
    captions = sample_captions(
        _holders(float(count.sum()), len(name)),
        epsilon,
        delta,
        safe,
    )
    reading = [f"The {len(order)} largest of {len(name):,}."] if len(order) < len(name) else []
    if safe:
        reading.append(f"Whiskers: ± at 95%. An item that was not published has {few_users(hidden_count)}.")
    captions += [" ".join(reading)] if reading else []

    figure, axes = _canvas(title, captions, SOFT if safe else ALARM, tall=max(len(order), 3) * 0.27, left=2.75)
    top = float((users + margin).max(initial=0.0)) * 1.02 or 1.0
    axes.set_xlim(0, top)
    axes.set_ylim(max(len(order), 3) - 0.4, -0.6)
    rows = np.arange(len(order))
    shade = 0.32 + 0.48 * np.sqrt(users / (users.max(initial=0.0) or 1.0))
    axes.barh(rows, users, height=0.68, color=colormaps["inferno"](shade), zorder=2)
    axes.errorbar(users, rows, xerr=margin, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.4, capthick=1.1, zorder=4)
    if hidden_count is not None and hidden_count > 0.004 * top:
        axes.axvspan(0, min(hidden_count, top), facecolor="none", edgecolor="#ffffff30", hatch="////", lw=0, zorder=3)
    axes.set_yticks(rows, [label(name[i]) for i in order], fontsize=9, color=INK, parse_math=False)
    axes.tick_params(axis="y", length=0, pad=8)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda users, _: f"{users:,.0f}" if users >= 1 else f"{users:g}"))
    axes.set_xlabel("estimated users", color=SOFT, fontsize=10, labelpad=7)
    axes.grid(axis="x", color="#ffffff14", lw=0.7)
    return png(figure, readable(title), " ".join(captions))


def render_quantiles_picture(
    curve: Curve,
    quantiles: Sequence[Quantile],
    *,
    title: str = "Private quantiles",
    column: str = "value",
    epsilon: float | None = None,
    delta: float | None = None,
    safe: bool = True,
) -> bytes:
    """A distribution's curve with its band and quantiles, the bytes of a PNG file; equal arguments give equal bytes.

    Args:
        curve: the function; may hold no point.
        quantiles: those to mark, each with its range.
        title: the line above the curve.
        column: what the values are.
        epsilon, delta: the guarantee that the caption states.
        safe: False where the users were drawn by a known seed; the caption then says that nothing is private.
    """
    captions = sample_captions("", epsilon, delta, safe)
    if safe:
        captions.append("The share of users below a value. Band and whiskers: ± at 95%.")
    figure, axes = _canvas(title, captions, SOFT if safe else ALARM, tall=_CURVE_TALL, left=0.95)
    axes.set_ylim(0, 1)
    ends = [*curve.value, *(end for one in quantiles for end in (one.low, one.high))]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    axes.set_xlim(*((low, high) if low < high else (low - 0.5, low + 0.5)))
    band, line = colormaps["inferno"](0.62), colormaps["inferno"](0.78)
    axes.fill_between(
        curve.value, np.clip(curve.low, 0, 1), np.clip(curve.high, 0, 1), color=band, alpha=0.3, lw=0, zorder=2
    )
    axes.plot(curve.value, curve.share, color=line, lw=2, marker="." if len(curve.value) < 60 else None, zorder=3)
    for one in quantiles:
        axes.plot([low, one.value, one.value], [one.share, one.share, 0], color=INK, lw=0.7, ls=(0, (2, 3)), alpha=0.7)
        axes.plot([one.low, one.high], [one.share, one.share], color=INK, lw=1.3, marker="|", ms=7, zorder=4)
        axes.plot([one.value], [one.share], color=INK, marker="o", ms=6, mec=GROUND, mew=1.5, zorder=5, clip_on=False)
    _mark(axes, quantiles, max(0, math.ceil(-math.log10((high - low or 1.0) / 2000))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.set_xlabel(label(column), color=SOFT, fontsize=10, labelpad=7, parse_math=False)
    axes.grid(color="#ffffff14", lw=0.7)
    return png(figure, readable(title), " ".join(captions))


def _canvas(title: str, captions: list[str], colour: str, *, tall: float, left: float) -> tuple[FigureCanvasAgg, Axes]:
    """A dark figure with axes `tall` inches high, `left` inches from its edge, a title and captions."""
    right = 0.45
    full = tall + _ABOVE + _BELOW
    figure = Figure(figsize=(_WIDE, full), dpi=DPI, facecolor=GROUND)
    canvas = FigureCanvasAgg(figure)
    axes = dark_axes(figure, (left / _WIDE, _BELOW / full, 1 - (left + right) / _WIDE, tall / full))
    edge = 0.45 / _WIDE
    heading = drawable(readable(title), _TITLE_FONT)
    figure.text(edge, 1 - 0.58 / full, heading, color=INK, fontsize=19, family=_TITLE_FONT, parse_math=False)
    for line, caption in enumerate(reversed(captions)):
        low = (0.3 if len(captions) == 1 else 0.18) + 0.22 * line
        figure.text(edge, low / full, caption, color=colour, fontsize=10, parse_math=False)
    return canvas, axes


def dark_axes(figure: Figure, place: tuple[float, float, float, float]) -> Axes:
    """Axes at left, bottom, width and height, in shares of the figure: lines on two sides only, no ticks."""
    axes = figure.add_axes(place)
    axes.set_facecolor(GROUND)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=9, length=0, pad=6)
    for side, spine in axes.spines.items():
        spine.set_color(FAINT)
        spine.set_visible(side in {"left", "bottom"})
    return axes


def _mark(axes: Axes, quantiles: Sequence[Quantile], digits: int) -> None:
    """Writes shares and values, with so many decimals, beside quantiles, where there is room."""
    last = -1.0
    for one in sorted(quantiles, key=lambda one: one.share):
        if one.share - last < 0.045:
            continue
        last = one.share
        words = f"{100 * one.share:g}%: {one.value:,.{digits}f}".replace("-", "−")
        axes.annotate(
            words, (max(one.value, one.high), one.share), (9, -13),
            textcoords="offset points", color=INK, fontsize=9, annotation_clip=False,
            bbox={"facecolor": GROUND, "edgecolor": "none", "alpha": 0.85, "pad": 1.5}, zorder=6,
        )  # fmt: skip


def _holders(users: float, items: int) -> str:
    """Whom a picture of items shows, without a full stop; "" for nobody."""
    if not items:
        return ""
    return f"About {in_words(users)} users who hold {'the one item' if items == 1 else f'one of {items:,} items'}"


def label(name: str, most: int = 34) -> str:
    """A name short enough for a label, at most so many characters, in glyphs that the font has."""
    text = readable(name) or "(empty)"
    return drawable(text if len(text) <= most else text[: most - 1] + "…")


def drawable(text: str, font: str = _FONT) -> str:
    """The text with a box for every character that a font cannot draw."""
    return "".join(one if _has_glyph(one, font) else "□" for one in text)


@cache
def _has_glyph(character: str, font: str) -> bool:
    return bool(get_font(findfont(font)).get_char_index(ord(character)))
