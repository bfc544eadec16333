"""The release's picture: the density as a PNG, drawn on Agg's own canvas, without pyplot or global state."""

from __future__ import annotations

import io
import math

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from sfumato.schemas.region import Region
from sfumato.transforms.release.picture_scale import KNEE, density_top, nice, written_top

METRES_PER_DEGREE = 6_371_008.8 * math.pi / 180
UNSAFE = "Made with a demonstration seed: NOT private."

CLIPPED = 1.001  # times the top: what is denser is told apart from it no longer
_MAX_SIDE = 2048  # pixels of the density that are drawn; finer cells are added up first
GROUND, INK, SOFT, FAINT, ALARM = "#0b0a0f", "#f1ece4", "#b3aba0", "#4a4453", "#ff6b6b"
DPI = 160
_MAP_INCHES = 8.0  # the map's longer side
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.95, 1.45, 0.95, 0.95  # inches round the map


def render_picture(
    density: NDArray[np.float64],
    region: Region,
    *,
    title: str = "Private heatmap",
    users: float | None = None,
    users_stddev: float = 0.0,
    epsilon: float | None = None,
    safe: bool = True,
    top: float | None = None,
) -> bytes:
    """The picture as the bytes of a PNG file; equal arguments give equal bytes.

    Args:
        density: float64[side, side], share of the users in each cell, row 0 in the north. Zeros are welcome;
            negative values are drawn as zeros.
        region: what the density covers.
        title: the line above the map.
        users: how many users the density's sum stands for; colours are then in users per km^2, else in
            percent of all users per km^2.
        users_stddev: standard deviation of `users`, for the caption.
        epsilon: the privacy budget that the caption states.
        safe: False for noise from a known seed; the caption then says that the picture is not private.
        top: the density of the brightest colour, in the colours' unit, such as `page_layer.map_top` gives it; by
            default that of `written_top`. What is denser is drawn in that colour too, and the scale says so.

    Raises:
        ValueError: the density is not a square of finite numbers, or a number is not finite and >= 0.
    """
    _check(density)
    for name, value in (("users", users), ("epsilon", epsilon), ("top", top)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}: must be a finite number >= 0, got {value}")

    shares = coarsened(density)
    values = per_square_km(shares, region) * (100.0 if users is None else users)
    norm = log_like(values, written_top(values, shares) if top is None else top)
    clipped = bool((values > CLIPPED * float(norm.vmax or 1.0)).any())
    return map_picture(
        values,
        region,
        norm=norm,
        colours=colormaps["inferno"],
        ticks=_ticks_from_zero(norm, clipped),
        unit="% of all users per km²" if users is None else "users per km²",
        extend="max" if clipped else "neither",
        title=title,
        captions=[_caption(users, epsilon, safe, users_stddev)],
        colour=SOFT if safe else ALARM,
    )


def map_picture(
    values: NDArray[np.float64],
    region: Region,
    *,
    norm: Normalize,
    colours: Colormap,
    ticks: list[float] | None,
    unit: str,
    title: str,
    captions: list[str],
    colour: str,
    extend: str = "neither",
    percent: bool = False,
    over: NDArray[np.uint8] | None = None,
) -> bytes:
    """A PNG of values over a region, float64[rows, columns], row 0 in the north, with frame, scale and colour bar.

    NaN is drawn in the colour map's own colour for what is missing. `ticks` and `unit` dress the colour bar,
    which None leaves out; `captions` are one or two lines below the map, in `colour`. extend: at which ends the map
    has values beyond the scale: neither, min, max or both. percent: the values are shares. over: uint8[any, any, 4],
    red, green, blue and opacity, laid over the map.
    """
    middle = (region.south + region.north) / 2
    cosine = max(math.cos(math.radians(middle)), 0.01)
    ground_width = (region.east - region.west) * METRES_PER_DEGREE * cosine
    ground_height = (region.north - region.south) * METRES_PER_DEGREE

    longer = max(ground_width, ground_height)
    wide, tall = _MAP_INCHES * ground_width / longer, _MAP_INCHES * ground_height / longer  # inches
    full_wide, full_tall = max(wide + _LEFT + _RIGHT, 7.4), max(tall, 1.8) + _TOP + _BOTTOM
    frame = full_tall - _TOP - _BOTTOM  # taller than the map only where the region is a sliver
    low = _BOTTOM + (frame - tall) / 2
    left = (full_wide - wide - _LEFT - _RIGHT) / 2 + _LEFT
    figure = Figure(figsize=(full_wide, full_tall), dpi=DPI, facecolor=GROUND)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((left / full_wide, low / full_tall, wide / full_wide, tall / full_tall))
    axes.set_facecolor("#08070b")
    image = axes.imshow(
        values,
        cmap=colours,
        norm=norm,
        extent=(region.west, region.east, region.south, region.north),
        aspect=1 / cosine,
        interpolation="nearest" if values.shape[0] < _MAP_INCHES * DPI else "antialiased",
    )
    if over is not None:
        axes.imshow(over, extent=image.get_extent(), aspect=1 / cosine, interpolation="antialiased")
    _dress_map(axes, wide, tall)
    if tall > 0.6:
        _scale_bar(axes, ground_width, wide, tall)

    if ticks is not None:
        bar_left = left + wide + 0.22
        bar_axes = figure.add_axes((bar_left / full_wide, _BOTTOM / full_tall, 0.16 / full_wide, frame / full_tall))
        _dress_bar(figure.colorbar(image, cax=bar_axes, extend=extend), ticks, unit, percent)

    edge = _LEFT / full_wide
    above = (frame + _BOTTOM + 0.36) / full_tall
    figure.text(edge, above, title, color=INK, fontsize=19, family="serif", va="baseline", parse_math=False)
    for line, caption in enumerate(reversed(captions)):
        low = (0.3 if len(captions) == 1 else 0.18) + 0.22 * line
        figure.text(edge, low / full_tall, caption, color=colour, fontsize=10, va="baseline", parse_math=False)
    return png(canvas, title, " ".join(captions))


def png(canvas: FigureCanvasAgg, title: str, description: str) -> bytes:
    """The canvas as the bytes of a PNG file that says what it shows and no time of making."""
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Title": title, "Description": description, "Software": "sfumato"})
    return file.getvalue()


def bare_png(colours: NDArray[np.float64]) -> bytes:
    """Colours, float64[rows, columns, 3] in 0..1, as the bytes of a PNG file without frame or words."""
    file = io.BytesIO()
    imsave(file, colours, format="png", metadata={"Software": "sfumato"})
    return file.getvalue()


def render_thumbnail(density: NDArray[np.float64], side: int = 512) -> bytes:
    """The bare density as a PNG of at most `side` pixels each way, without frame or words."""
    _check(density)
    values = coarsened(density, side)
    shades = np.asarray(log_like(values)(values), dtype=np.float64)
    return bare_png(colormaps["inferno"](shades)[..., :3])


def _check(density: NDArray[np.float64]) -> None:
    if density.ndim != 2 or density.shape[0] != density.shape[1] or density.shape[0] == 0:
        raise ValueError(f"density: must be a square array, got shape {density.shape}")
    if not np.isfinite(density).all():
        raise ValueError("density: must be finite numbers, got NaN or infinity")


def coarsened(density: NDArray[np.float64], most: int = _MAX_SIDE) -> NDArray[np.float64]:
    """The density with cells added up in fours until a side is at most `most`. Negatives count as 0."""
    values = np.clip(density, 0.0, None)
    while values.shape[0] > most and values.shape[0] % 2 == 0:
        values = values[::2] + values[1::2]
        values = values[:, ::2] + values[:, 1::2]
    return values


def per_square_km(density: NDArray[np.float64], region: Region) -> NDArray[np.float64]:
    """Shares per cell, float64[rows, columns], row 0 in the north, over the cell's spherical area in km^2."""
    rows, columns = density.shape
    latitude = np.radians(np.linspace(region.north, region.south, rows + 1))
    radius_km = METRES_PER_DEGREE * 180 / math.pi / 1000
    band = radius_km**2 * math.radians(region.east - region.west) * -np.diff(np.sin(latitude))
    per_km2: NDArray[np.float64] = density / (np.maximum(band, 1e-300)[:, None] / columns)
    return per_km2


def log_like(values: NDArray[np.float64], top: float | None = None) -> FuncNorm:
    """Colours by log(1 + value / knee), from 0 to `top`, by default the `density_top` of cells of equal area."""
    top = density_top(values, values) if top is None else top
    knee = top * KNEE

    def forward(value: NDArray[np.float64]) -> NDArray[np.float64]:
        logarithm: NDArray[np.float64] = np.log1p(np.maximum(value, 0) / knee)
        return logarithm

    def backward(shade: NDArray[np.float64]) -> NDArray[np.float64]:
        value: NDArray[np.float64] = np.expm1(shade) * knee
        return value

    return FuncNorm((forward, backward), vmin=0.0, vmax=top, clip=True)


def _dress_map(axes: Axes, wide: float, tall: float) -> None:
    """Degrees along two sides, as many as `wide` x `tall` inches have room for."""

    def degrees(plus: str, minus: str, locator: MaxNLocator) -> FuncFormatter:
        def text(value: float, _position: int | None) -> str:
            ticks = np.diff(locator())
            digits = max(0, math.ceil(-math.log10(float(ticks.min())) - 1e-9)) if len(ticks) else 2
            return f"{abs(value):.{digits}f}° {minus if value < 0 else plus}"

        return FuncFormatter(text)

    for axis, signs, room in ((axes.xaxis, ("E", "W"), wide / 1.7), (axes.yaxis, ("N", "S"), tall / 1.2)):
        locator = MaxNLocator(nbins=max(int(room), 1), steps=[1, 2, 5, 10])
        axis.set_major_locator(locator)
        axis.set_major_formatter(degrees(*signs, locator))
    axes.tick_params(colors=SOFT, labelsize=9, length=4, width=0.7, direction="out")
    for spine in axes.spines.values():
        spine.set_color(FAINT)
        spine.set_linewidth(0.8)


def _scale_bar(axes: Axes, ground_width: float, wide: float, tall: float) -> None:
    """A bar of a round number of metres, at least half an inch, on a map of `wide` x `tall` inches."""
    length = nice(ground_width * max(1 / 9, 0.5 / wide))
    if length > 0.9 * ground_width:  # a sliver of a region: no room for a bar
        return
    bar = wide * length / ground_width
    x, y = wide - 0.25 - bar, 0.22  # inches from the map's lower left corner
    for left, low, width, height, colour, alpha in (
        (x - 0.12, y - 0.1, bar + 0.24, 0.42, "#08070b", 0.6),
        (x, y, bar / 2, 0.045, INK, 1.0),
        (x + bar / 2, y, bar / 2, 0.045, "#77717f", 1.0),
    ):
        corner = (left / wide, low / tall)
        box = Rectangle(corner, width / wide, height / tall, transform=axes.transAxes, lw=0)
        box.set(color=colour, alpha=alpha)
        axes.add_patch(box)
    label = f"{length / 1000:,g} km" if length >= 1000 else f"{length:g} m"
    words = ((x + bar / 2) / wide, (y + 0.11) / tall)
    axes.text(*words, label, transform=axes.transAxes, color=INK, fontsize=9, ha="center")


def _ticks_from_zero(norm: FuncNorm, clipped: bool) -> list[float]:
    """Round values, no two close to each other; the top too where it is the least of what has its colour."""
    top = float(norm.vmax or 1.0)
    ticks, last = [0.0], 0.0
    for power in range(math.floor(math.log10(top)) - 3, math.floor(math.log10(top)) + 1):
        for tick in (10.0**power, 3 * 10.0**power):
            place = float(norm(tick))
            if tick < top and place - last > 0.07 and not (clipped and place > 0.95):
                ticks.append(tick)
                last = place
    return [*ticks, top] if clipped else ticks


def _dress_bar(bar: Colorbar, ticks: list[float], unit: str, percent: bool) -> None:
    above = ticks[-1] if bar.extend in {"max", "both"} else None
    below = ticks[0] if bar.extend in {"min", "both"} else None

    def text(value: float, _position: int | None) -> str:
        word = f"{100 * value:.3g}%" if percent else f"{value:,.0f}" if value >= 1 else f"{value:g}"
        if value == above:
            return f"≥ {word}"
        return f"≤ {word}" if value == below else word

    bar.ax.yaxis.set_major_locator(FixedLocator(ticks))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(text))
    bar.ax.tick_params(colors=SOFT, labelsize=9, length=3, width=0.7)
    bar.set_label(unit, color=SOFT, fontsize=10, labelpad=9)
    bar.outline.set_edgecolor(FAINT)


def in_words(users: float) -> str:
    """A number of users as a person would say it: 912,345 or 54.6 million."""
    size, unit = next(((s, u) for s, u in ((1e9, "billion"), (1e6, "million")) if users >= s), (1.0, ""))
    return f"{users / size:,.4g} {unit}" if unit else f"{users:,.0f}"


def tiny(value: float) -> str:
    """A number such as a delta, as a person would write it: 0.01 or 2.5 × 10⁻⁹."""
    if value >= 1e-3 or value <= 0:
        return f"{value:.3g}"
    mantissa, power = f"{value:.2e}".split("e-")
    raised = str(int(power)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return ("" if float(mantissa) == 1 else f"{float(mantissa):g} × ") + f"10⁻{raised}"


def users_in_words(users: float, stddev: float = 0.0) -> str:
    """A number of users with its error at 95%, where that is 1% of it or more; a bound where they may be none.

    Args:
        users: at least 0.
        stddev: standard deviation of `users`; 0 where it is not known.
    """
    margin = 1.96 * stddev
    if stddev > 0 and users < margin:
        return f"Fewer than {in_words(math.ceil(users + margin))} users, too few to tell from none"
    return f"About {in_words(users)}" + (f" ± {in_words(margin)}" if margin >= 0.01 * users > 0 else "") + " users"


def _caption(users: float | None, epsilon: float | None, safe: bool, users_stddev: float = 0.0) -> str:
    """The line under the map."""
    if not safe:
        return UNSAFE
    who = "" if users is None else users_in_words(users, users_stddev)
    if epsilon is None:
        return f"{who}." if who else ""
    budget = f"differential privacy with ε = {epsilon:g}"
    return f"{who}, each protected by {budget}." if who else f"Every user is protected by {budget}."
