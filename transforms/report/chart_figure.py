"""The chart figure: bars, dots, curves and bits with their intervals, as a PNG or SVG file. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, MultipleLocator
from numpy.typing import NDArray

from sfumato.schemas.views import (
    BarsBody,
    BitRow,
    BitTexts,
    CurveBody,
    MomentsBody,
    PageView,
    QuantileRow,
    TimelineBody,
)  # fmt: skip
from sfumato.transforms.report.canvas import (
    DPI,
    FAINT,
    GROUND,
    INK,
    SOFT,
    Canvas,
    PictureFormat,
    drawable,
    label,
    on_pixels,
    palette,
)  # fmt: skip

SQUASHED = "#5b5566"
REACH = (-0.6, 1.6)  # the shares of bits that a chart shows at most: noise beyond them is written as a number
ChartBody = BarsBody | CurveBody | MomentsBody | TimelineBody
_WIDE, _LEFT, _RIGHT = 9.4, 0.95, 0.45  # inches
_LONG_LEFT = 2.75  # with names on the left
_ABOVE, _BELOW = 0.45, 0.75  # inches above and below each axes
_MOST_BARS, _MOST_CHARTS = 30, 3
_ROW = 0.27  # inches
_INFERNO = palette("count")


@dataclass(frozen=True)
class _Chart:
    """One of the axes: how tall it is, how far from the left edge, in inches, and what draws it."""

    tall: float
    left: float
    draw: Callable[[Axes], None]


def chart_picture(view: PageView, body: ChartBody, format: PictureFormat = "png") -> bytes:
    """The picture of what is no map; equal arguments give equal bytes.

    Args:
        view: whose title, headline and guarantee stand around the chart.
        body: the view's own body, or one within it.
        format: of the file.
    """
    charts, notes = _charts(body)
    tall = sum(chart.tall + _ABOVE + _BELOW for chart in charts)
    canvas = Canvas(view, _WIDE, on_pixels(tall), notes)
    top = on_pixels(tall)
    for chart in charts:
        top -= chart.tall + _ABOVE + _BELOW
        chart.draw(canvas.axes(chart.left, top + _BELOW, _WIDE - chart.left - _RIGHT, chart.tall))
    return canvas.to_bytes(format)


def _charts(body: ChartBody) -> tuple[list[_Chart], list[str]]:
    if isinstance(body, BarsBody):
        return [_ranked(body)], [body.explanation, *_left_out(body), "Whiskers: 95% intervals."]
    if isinstance(body, CurveBody):
        notes = ["The share of users below a value. Band and whiskers: 95% intervals."]
        counted = [_Chart(3.0, _LEFT, lambda axes: _draw_histogram(axes, body))] if body.histogram else []
        return [*counted, _Chart(4.0 if counted else 5.0, _LEFT, lambda axes: _draw_curve(axes, body))], notes
    if isinstance(body, MomentsBody):
        quantities = list(dict.fromkeys(bit.quantity for bit in body.bits))[:_MOST_CHARTS]
        of_bits = [[bit for bit in body.bits if bit.quantity == one] for one in quantities]
        bits = [
            _Chart(3.5 if i == 0 else 1.7, _LEFT, _bits_drawer(one, i, body.bit_texts)) for i, one in enumerate(of_bits)
        ]
        groups = [_ranked(one) for one in body.groups[:1]]
        charts = [*groups, *bits] or [_Chart(2.0, _LEFT, lambda axes: _draw_spread(axes, body))]
        return charts, ["Whiskers: 95% intervals."]
    return [_Chart(4.0, _LEFT, lambda axes: _draw_spending(axes, body))], ["Dashed: the ledger's limits."]


# --- bars and dots ---


def _leaves(body: BarsBody) -> list[int]:
    """The rows that no other row extends, the largest first."""
    inner = {bar.parent for bar in body.bars}
    rows = [row for row in range(len(body.bars)) if row not in inner]
    return sorted(rows, key=lambda row: (-body.bars[row].value, row))


def _left_out(body: BarsBody) -> list[str]:
    many = len(_leaves(body))
    return [f"The {_MOST_BARS} largest of {many:,}."] if many > _MOST_BARS else []


def _ranked(body: BarsBody) -> _Chart:
    """Bars from zero; dots on an axis of their own where values have a reference or may be negative."""
    bars = [body.bars[row] for row in _leaves(body)[:_MOST_BARS]]
    value, low, high = (np.array([getattr(bar, name) for bar in bars]) for name in ("value", "low", "high"))
    names = [label(bar.name) + ("…" if bar.cut else "") for bar in bars]
    as_dots = body.reference is not None or bool((value < 0).any())
    rows = np.arange(len(bars))

    def draw(axes: Axes) -> None:
        axes.set_ylim(max(len(bars), 3) - 0.4, -0.6)
        if as_dots:
            _draw_dots(axes, value, low, high, body.reference)
        else:
            axes.set_xlim(0, float(max(high.max(initial=0.0), value.max(initial=0.0))) * 1.02 or 1.0)
            shade = 0.32 + 0.48 * np.sqrt(np.maximum(value, 0) / (value.max(initial=0.0) or 1.0))
            axes.barh(rows, value, height=0.68, color=_INFERNO[np.rint(255 * shade).astype(int)], zorder=2)
            _whiskers(axes, value, low, high, rows)
        axes.set_yticks(rows, names, fontsize=9, color=INK, parse_math=False)
        _number_axis(axes, body.unit)
        if not bars:
            axes.text(0.5, 0.5, f"No {body.noun} was published.", color=SOFT, fontsize=12, transform=axes.transAxes)

    return _Chart(max(len(bars), 3) * _ROW, _LONG_LEFT, draw)


def _whiskers(
    axes: Axes,
    value: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    rows: NDArray[np.integer],
) -> None:
    known = np.isfinite(low) & np.isfinite(high)
    margins = np.maximum([value - low, high - value], 0)[:, known]
    axes.errorbar(
        value[known], rows[known], xerr=margins, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.4, capthick=1.1,
        zorder=4,
    )  # fmt: skip


def axis_ends(value: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> tuple[float, float]:
    """Where an axis of values, float64[n], finite, and their intervals begins and ends, a little room included.

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


def _draw_dots(
    axes: Axes,
    value: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    reference: float | None,
) -> None:
    marks = np.append(value, [] if reference is None else [reference])
    left, right = axis_ends(marks, np.append(low, marks[len(value) :]), np.append(high, marks[len(value) :]))
    axes.set_xlim(left, right)
    rows = np.arange(len(value))
    starts, stops = np.maximum(low, left), np.minimum(high, right)
    axes.hlines(rows, starts, stops, color=_INFERNO[158], lw=3, alpha=0.75, zorder=2)
    axes.plot(value, rows, "o", color=INK, ms=5, mec=GROUND, mew=1.2, zorder=3)
    if reference is not None:
        axes.axvline(reference, color=SOFT, lw=1, ls=(0, (2, 3)), zorder=1)


def _number_axis(axes: Axes, unit: str) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axes.set_xlabel(drawable(unit), color=SOFT, fontsize=10, labelpad=7, parse_math=False)
    axes.grid(axis="x", color="#ffffff14", lw=0.7)


def _number(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.6g}"
    return text.replace("-", "−")


# --- curves ---


def _value_ends(body: CurveBody) -> tuple[float, float]:
    """Where the axis of values begins and ends, for histogram and curve alike."""
    ends = [*body.value, *(end for one in body.quantiles for end in (one.low, one.high))]
    ends += [end for row in body.histogram for end in (row.low, row.high)]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def _draw_histogram(axes: Axes, body: CurveBody) -> None:
    """Users by intervals of the value; what is not published may hold so many users at most."""
    rows = body.histogram
    low, high = (np.array([getattr(row, name) for row in rows]) for name in ("low", "high"))
    users, least, most = (
        np.array([getattr(row, name) for row in rows]) for name in ("users", "users_low", "users_high")
    )
    axes.bar(low, users, width=high - low, align="edge", color=_INFERNO[158], ec=GROUND, lw=0.6, zorder=2)
    axes.vlines((low + high) / 2, np.maximum(least, 0), most, color=INK, lw=0.9, alpha=0.8, zorder=3)
    if body.hidden:
        axes.axhspan(0, body.hidden, facecolor="none", edgecolor="#ffffff30", hatch="////", lw=0, zorder=1)
    axes.set_xlim(*_value_ends(body))
    axes.set_ylim(0, float(most.max()) * 1.05)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda one, _: _number(one)))
    _number_axis(axes, label(body.column, 60))
    _head(
        axes,
        "users by value; hatched: an interval that is not shown may hold so many" if body.hidden else "users by value",
    )


def _draw_curve(axes: Axes, body: CurveBody) -> None:
    axes.set_ylim(0, 1)
    low, high = _value_ends(body)
    axes.set_xlim(low, high)
    band, line = _INFERNO[158], _INFERNO[199]
    axes.fill_between(
        body.value, np.clip(body.low, 0, 1), np.clip(body.high, 0, 1), color=band, alpha=0.3, lw=0, zorder=2
    )
    axes.plot(body.value, body.share, color=line, lw=2, marker="." if len(body.value) < 60 else None, zorder=3)
    if body.points and body.value:
        axes.plot(body.points, np.interp(body.points, body.value, body.share), "o", color=line, ms=4, zorder=4)
    for one in body.quantiles:
        axes.plot([low, one.value, one.value], [one.share, one.share, 0], color=INK, lw=0.7, ls=(0, (2, 3)), alpha=0.7)
        axes.plot([one.low, one.high], [one.share, one.share], color=INK, lw=1.3, marker="|", ms=7, zorder=4)
        axes.plot([one.value], [one.share], color=INK, marker="o", ms=6, mec=GROUND, mew=1.5, zorder=5, clip_on=False)
    _mark(axes, body.quantiles, high - 0.12 * (high - low), max(0, math.ceil(-math.log10((high - low or 1.0) / 2000))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    _number_axis(axes, label(body.column, 60))
    axes.grid(color="#ffffff14", lw=0.7)


def _mark(axes: Axes, quantiles: Sequence[QuantileRow], edge: float, digits: int) -> None:
    """Writes shares and values, with so many decimals, beside quantiles with room; to the left of those past `edge`."""
    last = -1.0
    for one in sorted(quantiles, key=lambda one: one.share):
        if one.share - last < 0.045:
            continue
        last = one.share
        text = f"{100 * one.share:g}%: {one.value:,.{digits}f}".replace("-", "−")
        x, gap, side = (one.low, -9, "right") if one.high > edge else (one.high, 9, "left")
        axes.annotate(
            text, (x, one.share), (gap, -13), textcoords="offset points", ha=side, color=INK, fontsize=9,
            annotation_clip=False, bbox={"facecolor": GROUND, "edgecolor": "none", "alpha": 0.85, "pad": 1.5}, zorder=6,
        )  # fmt: skip


def _draw_spending(axes: Axes, body: TimelineBody) -> None:
    """What had been spent of each limit, by day, in shares of the limit."""
    days = sorted({day for row in body.spending for day, _ in row.spent})
    place = {day: i for i, day in enumerate(days)}
    top = 1.0
    for i, row in enumerate(body.spending):
        spent = [amount / row.epsilon for _, amount in row.spent]
        top = max([top, *spent])
        colour = _INFERNO[(215, 158, 110, 240)[i % 4]]
        text = f"ε = {row.epsilon:g} in {row.days} {'day' if row.days == 1 else 'days'}"
        axes.step([place[day] for day, _ in row.spent], spent, where="mid", color=colour, lw=2, label=text)
    axes.axhline(1, color=SOFT, lw=1, ls=(0, (4, 3)))
    axes.set_ylim(0, 1.08 * top)
    every = max(math.ceil(len(days) / 7), 1)
    axes.xaxis.set_major_locator(FixedLocator(list(range(0, len(days), every))))
    axes.xaxis.set_major_formatter(FixedFormatter(days[::every]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
    axes.set_ylabel("spent, of the limit", color=SOFT, fontsize=10)
    axes.grid(axis="y", color="#ffffff14", lw=0.7)
    if body.spending:
        _legend(axes, *axes.get_legend_handles_labels())


# --- statistics of everybody ---


def _draw_spread(axes: Axes, body: MomentsBody) -> None:
    """The first statistic on the axis of values, one standard deviation of the values around it, and the others' text.

    As the page draws it (`spreadChart` of web/src/products/moments.ts).
    """
    if not body.statistics:
        axes.set_axis_off()
        return
    first, *others = body.statistics
    least, most = body.limits
    wide = max(body.deviation or 0.0, 2 * (first.high - first.low), (most - least) / 1000)
    left, right = max(min(first.low, first.value - 3 * wide), least), min(max(first.high, first.value + 3 * wide), most)
    axes.set_xlim(left, right)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    keys: list[Artist] = []
    if body.deviation is not None:
        ends = max(first.value - body.deviation, left), min(first.value + body.deviation, right)
        axes.axvspan(*ends, 0.2, 0.8, color=_INFERNO[158], alpha=0.6, lw=0)
        keys = [Patch(color=_INFERNO[158], alpha=0.6, label="one standard deviation of the values on each side")]
    margins = [[first.value - first.low], [first.high - first.value]]
    axes.errorbar(first.value, 0.5, xerr=margins, fmt="o", color=INK, ms=5, mec=GROUND, capsize=3, zorder=4)
    _number_axis(axes, body.column)
    _head(axes, drawable("; ".join(f"{one.name.lower()} {one.text} ({one.range})" for one in [first, *others])))
    if keys:
        axes.legend(
            handles=keys, loc="upper right", bbox_to_anchor=(1, 0.16), frameon=False, labelcolor=SOFT, fontsize=9.5
        )


# --- bits ---


def _bits_drawer(bits: list[BitRow], number: int, texts: BitTexts) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        _draw_bits(axes, bits, 0.5 if number else 0.2)
        axes.set_xlabel(
            drawable(f"{texts.place} {bits[0].quantity}"),
            color=SOFT,
            fontsize=10,
            labelpad=7,
            parse_math=False,
        )
        if number == 0:
            _head(axes, texts.share)
            keys = [Patch(color=_INFERNO[190], label="carries signal")]
            if any(bit.dropped for bit in bits):
                keys.append(Patch(color=SQUASHED, label="squashed: probably empty"))
            if any(not _is_known(bit) for bit in bits):
                keys.append(Patch(fc="none", ec=SOFT, ls=(0, (2, 2)), label="asked too rarely to tell"))
            _legend(axes, keys, [str(key.get_label()) for key in keys])

    return draw


def _head(axes: Axes, text: str) -> None:
    axes.annotate(text, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", color=INK, fontsize=10)


def _legend(axes: Axes, handles: Sequence[Artist], texts: Sequence[str]) -> None:
    """A key above the axes on the right, where it covers no data."""
    axes.legend(
        handles, texts, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), frameon=False, labelcolor=SOFT, fontsize=9.5,
        handlelength=0.8, handleheight=0.8, handletextpad=0.5, borderaxespad=0.35, borderpad=0,
    )  # fmt: skip


def _is_known(bit: BitRow) -> bool:
    """Whether enough is known of a share to draw it."""
    return bit.share is not None and (bit.dropped or (bit.high or 0) - (bit.low or 0) < 1.75)


def _draw_bits(axes: Axes, bits: list[BitRow], step: float) -> None:
    """Bars in the order of the rows. step: of the shares' ticks."""
    share, low, high = (np.array([getattr(bit, name) or 0.0 for bit in bits]) for name in ("share", "low", "high"))
    known, dropped = np.array([_is_known(bit) for bit in bits]), np.array([bit.dropped for bit in bits])
    place = np.arange(len(bits), dtype=np.float64)
    axes.axhspan(0, 1, color="#ffffff0d", lw=0, zorder=0)
    for edge in (0, 1):
        axes.axhline(edge, color=FAINT, lw=0.9, zorder=1)
    height = np.clip(share, *REACH)
    colours = [SQUASHED if one else tuple(_INFERNO[190]) for one in dropped]
    shown = [colour for colour, one in zip(colours, known, strict=True) if one]
    axes.bar(place[known], height[known], width=0.78, color=shown, zorder=2)
    axes.bar(place[~known], height[~known], width=0.78, fc="none", ec=FAINT, ls=(0, (2, 2)), zorder=2)
    axes.errorbar(
        place[known], share[known], yerr=np.maximum([share - low, high - share], 0)[:, known], fmt="none", ecolor=INK,
        elinewidth=1.1, capsize=2.4, capthick=1.1, zorder=4,
    )  # fmt: skip
    bottom = max(float(np.append(low[known], 0).min()), REACH[0])
    top = min(float(np.append(high[known], 1).max()), REACH[1])
    axes.set_ylim(bottom - 0.03, top + 0.03)
    for i in np.flatnonzero((share < REACH[0]) | (share > REACH[1])):
        up = bool(share[i] > 0)
        text = f"{'↑' if up else '↓'} {100 * share[i]:.0f}%".replace("-", "−")
        axes.text(place[i], (bottom, top)[up], text, color=INK, fontsize=8, ha="center", va=("top", "bottom")[up])
    axes.set_xlim(-0.7, max(len(bits) - 0.3, 0.7))
    texts = [drawable(bit.place) for bit in bits]
    room = axes.get_window_extent().width / max(len(texts), 1) * 72 / DPI  # points
    every = max(math.ceil(max((len(text) for text in texts), default=0) * 5.4 / max(room, 1e-9)), 1)
    kept = [i for i in range(len(bits)) if (len(bits) - 1 - i) % every == 0]
    axes.set_xticks(place[kept], [texts[i] for i in kept], fontsize=8.5, parse_math=False)
    axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda one, _: f"{100 * one:.0f}%".replace("-", "−")))
    axes.grid(axis="y", color="#ffffff10", lw=0.7)
