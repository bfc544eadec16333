"""The picture of a map's published cells: users per square kilometre, the rest is ground. Pure."""

from __future__ import annotations

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, LogNorm, to_rgb
from numpy.typing import NDArray

from sfumato.schemas.charts import check_cells
from sfumato.schemas.region import Region
from sfumato.transforms.release.picture import ALARM, SOFT, UNSAFE, bare_png, in_words, map_picture, per_square_km, tiny

CELLS_GROUND = "#191720"
_FINEST = 10  # levels of the drawn raster: 2^10 cells a side are about a pixel each
_SPARSEST = 8  # however few cells there are, none is drawn larger than a 2^8th of the map
_ROOM = 256  # cells of the raster for each published one, before it is coarsened to make them seen
# Inferno without its darkest quarter, so that the least published cell stands out from the ground.
_COLOURS = ListedColormap(colormaps["inferno"](np.linspace(0.28, 1.0, 256))).with_extremes(bad=CELLS_GROUND)


def render_cells_picture(
    level: int,
    x: NDArray[np.int64],
    y: NDArray[np.int64],
    count: NDArray[np.float64],
    region: Region,
    *,
    title: str = "Private map",
    epsilon: float | None = None,
    delta: float | None = None,
    hidden_count: float | None = None,
    safe: bool = True,
) -> bytes:
    """The picture as the bytes of a PNG file; equal arguments give equal bytes.

    Args:
        level: depth of the cells; a region has 2^level of them a side. Fine or sparse cells are added up into
            larger ones to be seen; the caption then says so.
        x: int64[n], columns, from the west.
        y: int64[n], rows, from the north.
        count: float64[n], estimated users, >= 0.
        region: what the level's grid covers.
        title: the line above the map.
        epsilon, delta: the guarantee that the caption states.
        hidden_count: the largest number of users that a cell which is not shown can have, at 99%.
        safe: False where the users were drawn by a known seed; the caption then says that nothing is private.

    Raises:
        ValueError: cells outside the grid, or counts that are not finite and >= 0.
    """
    check_cells(level, x, y, count)
    drawn = _drawn_level(level, len(count))
    users = cells_raster(level, x, y, count, drawn)
    values = per_square_km(users, region)
    values[users <= 0] = np.nan
    low, top = _ends(values)
    captions = sample_captions(
        f"About {in_words(count.sum())} users in {len(count):,} {'cell' if len(count) == 1 else 'cells'}"
        if len(count)
        else "",
        epsilon,
        delta,
        safe,
    )
    if safe:
        times = 2 ** (level - drawn)
        larger = f" Drawn in squares of {times} × {times} cells." if times > 1 else ""
        nothing = "" if len(count) else "No cell was published. "
        captions.append(f"{nothing}A cell left dark has {few_users(hidden_count)}.{larger if len(count) else ''}")
    return map_picture(
        values,
        region,
        norm=LogNorm(low, top, clip=True),
        colours=_COLOURS,
        ticks=_ticks(low, top) if len(count) else None,
        unit="users per km²",
        title=title,
        captions=captions,
        colour=SOFT if safe else ALARM,
    )


def render_cells_thumbnail(level: int, x: NDArray[np.int64], y: NDArray[np.int64], count: NDArray[np.float64]) -> bytes:
    """The bare cells as a PNG of at most 512 pixels each way, without frame or words."""
    check_cells(level, x, y, count)
    values = cells_raster(level, x, y, count, min(_drawn_level(level, len(count)), 9))
    values[values <= 0] = np.nan
    shades = LogNorm(*_ends(values), clip=True)(values)
    colours = np.where(np.isnan(values)[..., None], to_rgb(CELLS_GROUND), _COLOURS(shades.filled(0.0))[..., :3])
    return bare_png(colours)


def cells_raster(
    level: int, x: NDArray[np.int64], y: NDArray[np.int64], count: NDArray[np.float64], drawn: int
) -> NDArray[np.float64]:
    """Cells of a level added up into float64[2^drawn, 2^drawn], row 0 in the north, drawn <= level; 0: no cell."""
    shift = level - drawn
    place = ((np.asarray(y, np.int64) >> shift) << drawn) + (np.asarray(x, np.int64) >> shift)
    sums = np.bincount(place, weights=count, minlength=4**drawn)
    return sums.astype(np.float64).reshape(1 << drawn, 1 << drawn)  # no cell at all would make integers


def sample_captions(who: str, epsilon: float | None, delta: float | None, safe: bool) -> list[str]:
    """The first line under a picture of what was sampled: who is shown ("" for everybody), and the guarantee."""
    if not safe:
        return [UNSAFE]
    if epsilon is None:
        return [f"{who}."] if who else []
    protected = "each protected by" if who else "Every user is protected by"
    budget = f"ε = {epsilon:g}" + ("" if delta is None else f" and δ = {tiny(delta)}")
    return [f"{who}{', ' if who else ''}{protected} differential privacy with {budget}."]


def few_users(hidden_count: float | None) -> str:
    """How many users something that is not shown may have, as the rest of a sentence."""
    if hidden_count is None:
        return "too few users to be shown, or nobody"
    return f"at most {hidden_count:,.0f} users (99% sure), or nobody"


def _drawn_level(level: int, n: int) -> int:
    drawn = min(level, _FINEST)
    while drawn > _SPARSEST and 4**drawn > _ROOM * n:
        drawn -= 1
    return drawn


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """Least and (nearly) largest positive value, apart enough for a scale."""
    positive = values[values > 0]
    if not positive.size:
        return 0.1, 1.0
    low, top = float(positive.min()), float(np.quantile(positive, 0.9995))
    return (low, top) if top > 1.01 * low else (low / 10, low)


def _ticks(low: float, top: float) -> list[float]:
    ticks: list[float] = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(top)) + 1):
        for tick in (10.0**power, 2 * 10.0**power, 5 * 10.0**power):
            apart = not ticks or math.log(tick / ticks[-1]) > 0.06 * math.log(top / low)
            if low <= tick <= top and apart:
                ticks.append(tick)
    return ticks
