"""The charts of a view as a picture: bars, dots, curves and bits with their intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import BarsBody, BitRow, BitTexts, CurveBody, MomentsBody, QuantileRow, RangeRow
from sfumato.transforms.report.canvas import DPI, FAINT, GROUND, INK, SOFT, Canvas, drawable, label, on_pixels, palette

SQUASHED = "#b8ada0"
REACH = (-0.6, 1.6)  # the shares of bits that a chart shows at most: noise beyond them is written as a number
ChartBody = BarsBody | CurveBody | MomentsBody
Chart = tuple[float, float, Callable[[Axes], None]]  # height and left edge in inches, and what draws it
Array = NDArray[np.float64]
_WIDE, _LEFT, _RIGHT = 9.4, 0.95, 0.45  # inches
_LONG_LEFT = 2.75  # with names on the left
_ABOVE, _BELOW = 0.45, 0.75  # inches above and below each axes
_MOST_BARS, _MOST_CHARTS = 30, 3
_ROW = 0.27  # inches
_BAND, _BAR, _LINE = (tuple(palette("count")[shade].tolist()) for shade in (158, 190, 199))
_WHISKERS: dict[str, Any] = {"ecolor": INK, "elinewidth": 1.1, "capsize": 2.4, "capthick": 1.1, "zorder": 4}
_DOT: dict[str, Any] = {"color": INK, "marker": "o", "ms": 5, "mec": GROUND, "mew": 1.2}
_DOTTED = (0, (2, 3))


def chart_canvas(view: PageView, body: ChartBody) -> Canvas:
    """Draws what is no map: the view's own body, or one within it, between the view's title and its guarantee."""
    charts, notes = _charts(body)
    top = on_pixels(sum(height + _ABOVE + _BELOW for height, _, _ in charts))
    canvas = Canvas(view, _WIDE, top, notes)
    for height, left, draw in charts:
        top -= height + _ABOVE + _BELOW
        draw(canvas.axes(left, top + _BELOW, _WIDE - left - _RIGHT, height))
    return canvas


def _charts(body: ChartBody) -> tuple[list[Chart], list[str]]:
    """Returns the charts from top to bottom, and the sentences under them."""
    if isinstance(body, BarsBody):
        leaves = len(_leaves(body))
        cut = f"The {_MOST_BARS} largest of {leaves:,}." if leaves > _MOST_BARS else ""
        return [_bars(body)], [body.explanation, cut, "Whiskers: 95% intervals."]
    if isinstance(body, CurveBody):
        histogram: list[Chart] = [(3.0, _LEFT, partial(_draw_histogram, body=body))] if body.histogram else []
        curve: Chart = (4.0 if histogram else 5.0, _LEFT, partial(_draw_curve, body=body))
        return [*histogram, curve], ["The share of users below a value. Band and whiskers: 95% intervals."]
    charts = [_bars(groups) for groups in body.groups[:1]]
    for place, quantity in enumerate(list(dict.fromkeys(bit.quantity for bit in body.bits))[:_MOST_CHARTS]):
        bits = [bit for bit in body.bits if bit.quantity == quantity]
        draw = partial(_draw_bits, bits=bits, texts=body.bit_texts, is_first=place == 0)
        charts.append((1.7 if place else 3.5, _LEFT, draw))
    return charts or [(2.0, _LEFT, partial(_draw_spread, body=body))], ["Whiskers: 95% intervals."]


# --- bars and dots ---


def _leaves(body: BarsBody) -> list[int]:
    """Returns the rows that no other row extends, the largest first."""
    inner = {bar.parent for bar in body.bars}
    return sorted((row for row in range(len(body.bars)) if row not in inner), key=lambda row: -body.bars[row].value)


def _bars(body: BarsBody) -> Chart:
    """Returns bars from zero; dots on an axis of their own where values have a reference or may be negative."""
    bars = [body.bars[row] for row in _leaves(body)[:_MOST_BARS]]
    value, low, high = _columns(bars, "value", "low", "high")
    names = [label(bar.name) + ("…" if bar.cut else "") for bar in bars]
    rows, margins = np.arange(len(bars)), np.maximum([value - low, high - value], 0)

    def draw(axes: Axes) -> None:
        if body.reference is None and not (value < 0).any():
            axes.barh(rows, value, height=0.68, color=_BAR, zorder=2)
            axes.errorbar(value, rows, xerr=margins, fmt="none", **_WHISKERS)
            axes.set_xlim(0, float(max(high.max(initial=0.0), value.max(initial=0.0))) * 1.02 or 1.0)
        else:
            marks = np.append(value, [] if body.reference is None else [body.reference])
            ends = (np.append(end, marks[len(value) :]) for end in (low, high))
            axes.errorbar(value, rows, xerr=margins, ecolor=_BAND, elinewidth=3, ls="none", **_DOT)
            axes.set_xlim(axis_ends(marks, *ends))
        if body.reference is not None:
            axes.axvline(body.reference, color=SOFT, lw=1, ls=_DOTTED, zorder=1)
        axes.set_ylim(max(len(names), 3) - 0.4, -0.6)
        axes.set_yticks(range(len(names)), names, fontsize=9, color=INK, parse_math=False)
        _number_axis(axes, body.unit)
        if not bars:
            axes.text(0.5, 0.5, f"No {body.noun} was published.", color=SOFT, fontsize=12, transform=axes.transAxes)

    return max(len(bars), 3) * _ROW, _LONG_LEFT, draw


def _columns(rows: Sequence[Any], *names: str) -> list[Array]:
    """Returns attributes of rows, float64[n] each."""
    return [np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in names]


def axis_ends(value: Array, low: Array, high: Array) -> tuple[float, float]:
    """Returns the ends of an axis of values, float64[n], and of their intervals, with a little room.

    An interval reaches at most one and a half times the values' own range beyond them: one that is known poorly does
    not hide how the others differ.
    """
    if not value.size:
        return 0.0, 1.0
    least, most = float(value.min()), float(value.max())
    reach = 1.5 * (most - least) or math.inf
    ends = np.concatenate([np.maximum(low, least - reach), np.minimum(high, most + reach), value])
    ends = ends[np.isfinite(ends)]
    spare = 0.03 * float(np.ptp(ends)) or 0.05 * abs(least) or 1.0
    return float(ends.min()) - spare, float(ends.max()) + spare


def _number_axis(axes: Axes, unit: str) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    axes.set_xlabel(drawable(unit), color=SOFT, fontsize=10, labelpad=7, parse_math=False)
    axes.grid(color="#1f1a2418", lw=0.7)


def _number(value: float, _: int) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.6g}"
    return text.replace("-", "−")


def _percent(share: float, _: int) -> str:
    return f"{100 * share:.0f}%".replace("-", "−")


def _head(axes: Axes, text: str) -> None:
    axes.set_title(drawable(text), loc="left", color=INK, fontsize=10, pad=8, parse_math=False)


def _legend(axes: Axes, keys: list[Patch], below: bool = False) -> None:
    """Draws a key above the axes on the right, or at its lower end."""
    axes.legend(
        handles=keys, ncols=3, loc="lower right", bbox_to_anchor=(1, 0 if below else 1), frameon=False, borderpad=0,
        labelcolor=SOFT, fontsize=9.5, handlelength=0.8, handleheight=0.8,
    )  # fmt: skip


# --- curves ---


def _value_ends(body: CurveBody) -> tuple[float, float]:
    """Returns the ends of the axis of values, the same for histogram and curve."""
    rows: list[QuantileRow | RangeRow] = [*body.quantiles, *body.histogram]
    ends = [*body.value, *(end for row in rows for end in (row.low, row.high))]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def _draw_histogram(axes: Axes, body: CurveBody) -> None:
    """Draws users by value; an unpublished interval may have up to `hidden` users."""
    low, high, users, least, most = _columns(body.histogram, "low", "high", "users", "users_low", "users_high")
    margins = np.maximum([users - np.maximum(least, 0), most - users], 0)
    axes.bar(low, users, high - low, align="edge", color=_BAND, ec=GROUND, lw=0.6, zorder=2)
    axes.errorbar((low + high) / 2, users, yerr=margins, fmt="none", **_WHISKERS)
    if body.hidden:
        axes.axhspan(0, body.hidden, facecolor="none", edgecolor="#1f1a2438", hatch="////", lw=0, zorder=1)
    axes.set(xlim=_value_ends(body), ylim=(0, float(most.max()) * 1.05))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    _number_axis(axes, label(body.column, 60))
    hidden = "; hatched: the most users of a value range not shown" if body.hidden else ""
    _head(axes, f"users by value{hidden}")


def _draw_curve(axes: Axes, body: CurveBody) -> None:
    left, right = _value_ends(body)
    axes.fill_between(body.value, np.clip(body.low, 0, 1), np.clip(body.high, 0, 1), color=_BAND, alpha=0.3, lw=0)
    axes.plot(body.value, body.share, color=_LINE, lw=2, marker="." if len(body.value) < 60 else None, zorder=3)
    digits, last = max(0, math.ceil(-math.log10((right - left) / 2000))), -1.0
    for row in sorted(body.quantiles, key=lambda row: row.share):
        axes.plot([left, row.value, row.value], [row.share, row.share, 0], color=INK, lw=0.7, ls=_DOTTED, alpha=0.7)
        margins = [[row.value - row.low], [row.high - row.value]]
        axes.errorbar(row.value, row.share, xerr=margins, clip_on=False, **_DOT, **_WHISKERS)
        if row.share - last < 0.045:  # no room for its text
            continue
        last, is_at_edge = row.share, row.high > right - 0.12 * (right - left)
        axes.annotate(
            f"{100 * row.share:g}%: {row.value:,.{digits}f}".replace("-", "−"),
            (row.low if is_at_edge else row.high, row.share), (-9 if is_at_edge else 9, -13),
            textcoords="offset points", ha="right" if is_at_edge else "left", color=INK, fontsize=9, zorder=6,
            bbox={"facecolor": GROUND, "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        )  # fmt: skip
    axes.set(xlim=(left, right), ylim=(0, 1))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    _number_axis(axes, label(body.column, 60))


# --- moments ---


def _draw_spread(axes: Axes, body: MomentsBody) -> None:
    """Draws the first statistic on the axis of values, one standard deviation around it, and the others' text.

    The page draws the same (`spreadChart` of web/src/products/moments.ts).
    """
    if not body.statistics:
        axes.set_axis_off()
        return
    first = body.statistics[0]
    least, most = body.limits
    wide = max(body.deviation or 0.0, 2 * (first.high - first.low), (most - least) / 1000)
    left, right = max(min(first.low, first.value - 3 * wide), least), min(max(first.high, first.value + 3 * wide), most)
    if body.deviation is not None:
        ends = max(first.value - body.deviation, left), min(first.value + body.deviation, right)
        axes.axvspan(*ends, 0.2, 0.8, color=_BAND, alpha=0.6, lw=0)
        text = "one standard deviation of the values on each side"
        _legend(axes, [Patch(color=_BAND, alpha=0.6, label=text)], below=True)
    margins = [[first.value - first.low], [first.high - first.value]]
    axes.errorbar(first.value, 0.5, xerr=margins, **_DOT, **_WHISKERS)
    axes.set(xlim=(left, right), ylim=(0, 1), yticks=[])
    _number_axis(axes, body.column)
    _head(axes, "; ".join(f"{one.name.lower()} {one.text} ({one.range})" for one in body.statistics))


def _draw_bits(axes: Axes, bits: list[BitRow], texts: BitTexts, is_first: bool) -> None:
    """Draws bars in the order of the rows, with a key over the first chart."""
    share, low, high = np.nan_to_num(_columns(bits, "share", "low", "high"))
    known, place = np.array([bit.share is not None for bit in bits]), np.arange(len(bits))
    known &= np.array([bit.dropped for bit in bits]) | (high - low < 1.75)  # enough is known to draw it
    margins = np.where(known, np.maximum([share - low, high - share], 0), 0)
    bottom = max(float(low.min(where=known, initial=0)), REACH[0])
    top = min(float(high.max(where=known, initial=1)), REACH[1])
    axes.axhspan(0, 1, fc="#1f1a240d", ec=FAINT, lw=0.9, zorder=0)
    bars = axes.bar(place, np.clip(share, *REACH), width=0.78, zorder=2)
    axes.errorbar(place[known], share[known], yerr=margins[:, known], fmt="none", **_WHISKERS)
    for bar, bit, is_known in zip(bars, bits, known, strict=True):
        bar.set(**{"fc": SQUASHED if bit.dropped else _BAR} if is_known else {"fc": "none", "ec": FAINT, "ls": "--"})
    for row in np.flatnonzero((share < REACH[0]) | (share > REACH[1])):
        up = bool(share[row] > 0)
        text = ("↑ " if up else "↓ ") + _percent(share[row], 0)
        axes.text(
            place[row], top if up else bottom, text, color=INK, fontsize=8, ha="center", va="top" if up else "bottom"
        )
    names = [drawable(bit.place) for bit in bits]
    room = axes.get_window_extent().width / len(names) * 72 / DPI  # points
    every = math.ceil(max(map(len, names)) * 5.4 / room)
    kept = place[::-1][::every][::-1]
    axes.set(xlim=(-0.7, max(len(bits) - 0.3, 0.7)), ylim=(bottom - 0.03, top + 0.03))
    axes.set_xticks(kept, [names[row] for row in kept], fontsize=8.5, parse_math=False)
    axes.set_xlabel(
        drawable(f"{texts.place} {bits[0].quantity}"), color=SOFT, fontsize=10, labelpad=7, parse_math=False
    )
    axes.yaxis.set_major_locator(MaxNLocator(6 if is_first else 3, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.grid(axis="y", color="#1f1a2414", lw=0.7)
    if is_first:
        _head(axes, texts.share)
        keys = [Patch(color=_BAR, label="carries signal")]
        keys += [Patch(color=SQUASHED, label="probably empty")] * any(bit.dropped for bit in bits)
        keys += [Patch(fc="none", ec=SOFT, ls="--", label="too few reports")] * (not known.all())
        _legend(axes, keys)
