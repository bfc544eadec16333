"""The picture of a release of moments: bit means as in Figure 5(b) of paper 002, and the groups' values. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.moments import EVERYBODY, BitMeans, MomentEstimate
from sfumato.transforms.release.moment_words import figures, guarantee, place_value, quantity_title, statistic_title
from sfumato.transforms.release.picture import ALARM, DPI, FAINT, GROUND, INK, SOFT, UNSAFE, png
from sfumato.transforms.release.picture_charts import dark_axes, drawable, label

SQUASHED = "#5b5566"
REACH = (-0.6, 1.6)  # the shares that a chart shows at most: noise beyond them is drawn as an arrow
_MOST_GROUPS, _MOST_CHARTS = 30, 3
_WIDE, _LEFT, _RIGHT = 9.4, 0.95, 0.45  # inches
_ABOVE, _BELOW = 1.5, 1.3  # inches above and below all axes
_FIRST, _NEXT, _ROW, _APART = 3.5, 1.7, 0.25, 0.95  # inches: the first chart, further ones, a group, between them
_Z = 1.96  # standard deviations on each side that hold 95% of a normal law
_LONGEST_LABEL = 24  # characters
_VAGUE = 0.45  # a share whose standard deviation is this large may be any in 0..1
_KEY = 0.11  # inches between axes and the words above them


def render_moments_picture(
    estimates: Sequence[MomentEstimate],
    bits: Sequence[BitMeans],
    *,
    title: str,
    column: str,
    epsilon: float | None,
    bits_per_client: int,
    safe: bool,
) -> bytes:
    """The bytes of a PNG file; equal arguments give equal bytes.

    The share of clients whose bit is set, for each bit of the first quantity, bright where the bit carries signal and
    grey where it was squashed, with whiskers of 1.96 standard deviations; bits of negative values stand on the left.
    Below it smaller charts of the next two quantities, and the first statistic of the 30 groups with most clients.

    Args:
        estimates: everybody's numbers and the groups', in the order asked for; may be none.
        bits: one a quantity; may be none.
        title: the line above it all.
        column: what the values are.
        epsilon: the local guarantee that the caption states, a client; None without one.
        bits_per_client: how many bits each client gave.
        safe: False where the draws came from a known seed; the caption then says that nothing is private.

    Raises:
        ValueError: epsilon is not a finite number > 0, or a client gave less than one bit.
    """
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon: must be a finite number > 0, or None, got {epsilon}")
    if bits_per_client < 1:
        raise ValueError(f"bits_per_client: must be at least 1, got {bits_per_client}")
    everybody, shown, groups = first_statistic(estimates)
    order = sorted(range(len(groups)), key=lambda i: (-_size(groups[i].clients), i))[:_MOST_GROUPS]
    drawn = sorted((groups[i] for i in order), key=lambda one: -_size(one.value))
    heights = [_FIRST if i == 0 else _NEXT for i in range(min(len(bits), _MOST_CHARTS))]
    heights += [max(len(drawn), 2) * _ROW] if drawn else []
    heights = heights or [_NEXT]

    captions = [guarantee(epsilon, bits_per_client)] if safe else [UNSAFE]
    if safe and bits:
        outside = " Noise may lead a share below 0% or above 100%." if epsilon is not None else ""
        left_out = (
            " Squashed bits are probably empty, and hardly count." if any(np.any(one.squashed) for one in bits) else ""
        )
        captions.append(f"Whiskers: ± at 95%.{outside}{left_out}")
    full = _ABOVE + sum(heights) + _APART * (len(heights) - 1) + _BELOW
    figure = Figure(figsize=(_WIDE, full), dpi=DPI, facecolor=GROUND)
    canvas = FigureCanvasAgg(figure)
    name = label(column, 40)
    _write(figure, full, title, _answers(estimates, name), captions, SOFT if safe else ALARM)
    top = full - _ABOVE
    for i, height in enumerate(heights):
        inset = 2.2 if drawn and i == len(heights) - 1 else _LEFT
        axes = dark_axes(figure, (inset / _WIDE, (top - height) / full, 1 - (inset + _RIGHT) / _WIDE, height / full))
        top -= height + _APART
        if drawn and i == len(heights) - 1:
            _draw_groups(axes, drawn, everybody, len(groups))
            _name_axis(axes, f"{statistic_title(shown)} of {name}, ± at 95%")
        elif i < len(bits):
            _draw_bits(axes, bits[i], 0.5 if i else 0.2)
            if i == 0:
                _head(axes, "share of the clients whose bit is set")
                _key(axes, bits[:_MOST_CHARTS])
            _name_axis(axes, f"what a set bit adds to {quantity_title(bits[i].quantity, name)}")
        else:
            axes.set_axis_off()
            axes.text(0, 0.5, "No bit was read.", color=SOFT, fontsize=12)
    return png(canvas, readable(title), " ".join(captions))


def first_statistic(
    estimates: Sequence[MomentEstimate],
) -> tuple[MomentEstimate | None, str, list[MomentEstimate]]:
    """Everybody's first statistic, its name, and the groups' values of it, in their order; None and "" without any."""
    everybody = next((one for one in estimates if one.group == EVERYBODY), None)
    name = (everybody or estimates[0]).statistic if estimates else ""
    return everybody, name, [one for one in estimates if one.group != EVERYBODY and one.statistic == name]


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


def unclear(bits: BitMeans) -> NDArray[np.bool_]:
    """Bits that were asked about too rarely to tell anything of their share, bool[n]; squashed ones are told apart."""
    sure = np.isfinite(bits.mean) & (bits.stddev < _VAGUE)
    return np.asarray(~sure & ~np.asarray(bits.squashed))


def contributions(bits: BitMeans) -> NDArray[np.float64]:
    """What each bit adds to the quantity's mean, float64[n]; 0 for a bit that was squashed or never read."""
    added = np.where(bits.squashed, 0.0, bits.weight * bits.mean)
    return np.where(np.isfinite(added), added, 0.0)


def _size(number: float) -> float:
    return number if math.isfinite(number) else -math.inf


def _name_axis(axes: Axes, words: str) -> None:
    axes.set_xlabel(words, color=SOFT, fontsize=10, labelpad=7, parse_math=False)


def _answers(estimates: Sequence[MomentEstimate], column: str) -> str:
    """Everybody's first two statistics in one line."""
    found = [one for one in estimates if one.group == EVERYBODY][:2]
    texts = [
        f"{statistic_title(one.statistic)} of {column}: {figures(one.value, one.stddev)}, from "
        f"{figures(one.low, one.stddev)} to {figures(one.high, one.stddev)} at 95%"
        for one in found
    ]
    return texts[0] if len(" · ".join(texts)) > 110 else " · ".join(texts) if texts else "Nothing was published."


def _write(figure: Figure, full: float, title: str, answer: str, captions: list[str], colour: str) -> None:
    edge = 0.45 / _WIDE
    heading = drawable(readable(title), "DejaVu Serif")
    figure.text(edge, 1 - 0.58 / full, heading, color=INK, fontsize=19, family="DejaVu Serif", parse_math=False)
    figure.text(edge, 1 - 0.87 / full, answer, color=INK, fontsize=11, parse_math=False)
    for line, caption in enumerate(reversed(captions)):
        figure.text(edge, (0.18 + 0.22 * line) / full, caption, color=colour, fontsize=10, parse_math=False)


def _draw_bits(axes: Axes, bits: BitMeans, step: float) -> None:
    """Bars over the bits by place value, those of negative values mirrored on the left. step: of the shares' ticks."""
    order = np.argsort(bits.weight, kind="stable")
    squashed, vague = np.asarray(bits.squashed)[order], unclear(bits)[order]
    read = np.isfinite(bits.mean[order])
    mean = np.where(read, bits.mean[order], 0.0)
    sure = read & np.isfinite(bits.stddev[order]) & ~vague
    margin = np.where(sure, _Z * bits.stddev[order], 0.0)
    gap = np.where(bits.weight[order] > 0, 0.6 if (bits.weight < 0).any() else 0.0, 0.0)
    place = np.arange(len(order), dtype=np.float64) + gap
    added = np.abs(contributions(bits))[order]
    shade = 0.55 + 0.27 * np.sqrt(added / (added.max(initial=0.0) or 1.0))
    colours = colormaps["inferno"](shade)
    colours[squashed] = to_rgba(SQUASHED)
    axes.axhspan(0, 1, color="#ffffff0d", lw=0, zorder=0)
    for edge in (0, 1):
        axes.axhline(edge, color=FAINT, lw=0.9, zorder=1)
    height = np.clip(mean, *REACH)
    axes.bar(place[sure], height[sure], width=0.78, color=colours[sure], zorder=2)
    hollow = read & ~sure
    axes.bar(place[hollow], height[hollow], width=0.78, fc="none", ec=FAINT, ls=(0, (2, 2)), zorder=2)
    axes.errorbar(
        place[sure], mean[sure], yerr=margin[sure], fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.4, capthick=1.1,
        zorder=4,
    )  # fmt: skip
    ends = np.concatenate([mean - margin, mean + margin, [0.0, 1.0]])
    low, high = max(float(ends.min()), REACH[0]), min(float(ends.max()), REACH[1])
    axes.set_ylim(low - 0.03, high + 0.03)
    for i in np.flatnonzero(read & ((mean < REACH[0]) | (mean > REACH[1]))):
        up = mean[i] > 0
        words = f"{'↑' if up else '↓'} {100 * mean[i]:.0f}%".replace("-", "−")
        axes.text(
            place[i], axes.get_ylim()[int(up)], words, color=INK, fontsize=8, ha="center", va="bottom" if up else "top"
        )
    for i in np.flatnonzero(~read):
        axes.text(place[i], 0.02, "not read", color=SOFT, fontsize=8, ha="center", va="bottom", rotation=90)
    axes.set_xlim(-0.7, float(place[-1]) + 0.7 if len(place) else 0.7)
    _label_bits(axes, place, bits.weight[order])
    axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%".replace("-", "−")))
    axes.grid(axis="y", color="#ffffff10", lw=0.7)


def _label_bits(axes: Axes, place: NDArray[np.float64], weight: NDArray[np.float64]) -> None:
    """Place values below the bars, as many as there is room for, the outermost first."""
    texts = [place_value(float(one)) for one in weight]
    room = axes.get_window_extent().width / max(len(texts), 1) * 72 / DPI  # points
    every = max(math.ceil(max((len(text) for text in texts), default=0) * 5.4 / max(room, 1e-9)), 1)
    rank = np.where(weight > 0, len(weight) - 1 - np.arange(len(weight)), np.arange(len(weight)))
    kept = np.flatnonzero(rank % every == 0)
    axes.set_xticks(place[kept], [texts[i] for i in kept], fontsize=8.5, parse_math=False)


def _head(axes: Axes, words: str) -> None:
    axes.annotate(
        words, (0, 1), (0, _KEY * 72), xycoords="axes fraction", textcoords="offset points", color=INK, fontsize=10
    )


def _key(axes: Axes, charts: Sequence[BitMeans]) -> None:
    """What the bars of all charts look like, above the axes on the right."""
    keys = [Patch(color=colormaps["inferno"](0.75), label="carries signal")]
    if any(np.any(one.squashed) for one in charts):
        keys.append(Patch(color=SQUASHED, label="squashed: probably empty"))
    if any(unclear(one).any() for one in charts):
        keys.append(Patch(fc="none", ec=SOFT, ls=(0, (2, 2)), label="asked too rarely to tell"))
    axes.legend(
        handles=keys, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), frameon=False, labelcolor=SOFT, fontsize=9.5,
        handlelength=0.8, handleheight=0.8, handletextpad=0.5, borderaxespad=0.35, borderpad=0,
    )  # fmt: skip


def _draw_groups(axes: Axes, groups: list[MomentEstimate], everybody: MomentEstimate | None, of: int) -> None:
    """A dot with its interval for each group, the highest value first; a line and a band where everybody is."""
    rows = np.arange(len(groups))
    value = np.array([one.value for one in groups])
    low, high = (np.array([getattr(one, end) for one in groups]) for end in ("low", "high"))
    if everybody is not None and math.isfinite(everybody.value):
        axes.axvline(everybody.value, color=SOFT, lw=1, ls=(0, (2, 3)), zorder=1)
        if math.isfinite(everybody.low) and math.isfinite(everybody.high):
            axes.axvspan(everybody.low, everybody.high, color="#ffffff12", lw=0, zorder=0)
    known = np.isfinite(value)
    left, right = axis_ends(value[known], low[known], high[known])
    axes.set_xlim(left, right)
    starts, stops = np.nan_to_num(low[known], nan=left), np.nan_to_num(high[known], nan=right)
    colour = colormaps["inferno"](0.62)
    axes.hlines(
        rows[known], np.maximum(starts, left), np.minimum(stops, right), color=colour, lw=3, alpha=0.75, zorder=2
    )
    axes.plot(value[known], rows[known], "o", color=INK, ms=5, mec=GROUND, mew=1.2, zorder=3)
    axes.set_ylim(max(len(groups), 2) - 0.4, -0.6)
    axes.set_yticks(rows, [label(one.group, _LONGEST_LABEL) for one in groups], fontsize=9, color=INK, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: figures(value, 10 * _step(axes))))
    axes.grid(axis="x", color="#ffffff10", lw=0.7)
    words = f"the {len(groups)} groups with most clients, of {of:,}" if len(groups) < of else "the groups"
    _head(axes, words)


def _step(axes: Axes) -> float:
    """What lies between the ticks of the values' axis."""
    ticks = axes.xaxis.get_majorticklocs()
    return float(ticks[1] - ticks[0]) if len(ticks) > 1 else 0.0
