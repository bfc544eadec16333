"""The picture of a category's rate, as a PNG: what is known poorly is hatched, what is unknown left dark. Pure."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.region import Region
from sfumato.transforms.release.picture import ALARM, SOFT, UNSAFE, map_picture, users_in_words
from sfumato.transforms.release.picture_scale import RATE_PALETTE, WIDE, nice, rate_ends

RATES_GROUND = "#1b1922"  # where there is no rate: none of the scale's colours
_MOST_SIDE = 2048  # pixels of the rates that are drawn; of finer ones every second, fourth, ... is
_HATCH_SIDE = 1024  # the hatching is drawn on so many pixels or more
_HATCH_STEP = 12  # pixels from line to line
_COLOURS = LinearSegmentedColormap.from_list(
    "rates", ["#" + RATE_PALETTE[at : at + 6] for at in range(0, len(RATE_PALETTE), 6)]
).with_extremes(bad=RATES_GROUND)


def render_rates_picture(
    rate: NDArray[np.float64],
    width: NDArray[np.float64],
    region: Region,
    *,
    category: str,
    title: str = "Private rates",
    users: float | None = None,
    users_stddev: float = 0.0,
    epsilon: float | None = None,
    safe: bool = True,
) -> bytes:
    """The picture as the bytes of a PNG file; equal arguments give equal bytes.

    Args:
        rate: float64[side, side], share of a cell's users in the category, row 0 in the north; NaN where unknown.
        width: float64[side, side], widths of the rates' 95% intervals; NaN where unknown.
        region: what the rates cover.
        category: what the rate is the share of, for the scale.
        title: the line above the map.
        users: how many users the map speaks of.
        users_stddev: standard deviation of `users`.
        epsilon: the privacy budget that the caption states.
        safe: False for noise from a known seed; the caption then says that the picture is not private.

    Raises:
        ValueError: the arrays are no squares of one size, a rate or width lies outside 0..1, or a number is not finite
            and >= 0.
    """
    _check(rate, width)
    for name, value in (("users", users), ("epsilon", epsilon)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}: must be a finite number >= 0, got {value}")
    every = max(1, -(-rate.shape[0] // _MOST_SIDE))
    rate, width = rate[::every, ::every], width[::every, ::every]
    values = np.where(np.isfinite(rate) & np.isfinite(width), rate, np.nan)
    low, high = rate_ends(values, width)
    norm = Normalize(low, high, clip=True)
    wide = np.isfinite(values) & (np.nan_to_num(width) > WIDE * (high - low))
    step = nice((high - low) / 5)
    ticks = [low, *(n * step for n in range(math.floor(low / step + 1e-9) + 1, math.ceil(high / step - 1e-9))), high]
    return map_picture(
        values,
        region,
        norm=norm,
        colours=_COLOURS,
        ticks=ticks,
        unit=f"share of users, {readable(category)}",
        title=title,
        captions=_captions(users, users_stddev, epsilon, safe, wide, values, high - low),
        colour=SOFT if safe else ALARM,
        extend=_beyond(values, low, high),
        percent=True,
        over=_hatching(norm, values, wide) if wide.any() else None,
    )


def _check(rate: NDArray[np.float64], width: NDArray[np.float64]) -> None:
    if rate.ndim != 2 or rate.shape[0] != rate.shape[1] or rate.shape[0] == 0:
        raise ValueError(f"rate: must be a square array, got shape {rate.shape}")
    if width.shape != rate.shape:
        raise ValueError(f"width: must have the rates' shape {rate.shape}, got {width.shape}")
    for name, values in (("rate", rate), ("width", width)):
        if not ((values >= 0) & (values <= 1) | np.isnan(values)).all():
            raise ValueError(f"{name}: must lie in 0..1, or be NaN where it is unknown")


def _beyond(values: NDArray[np.float64], low: float, high: float) -> str:
    """At which ends there are rates beyond the scale."""
    below, above = bool((values < low - 1e-9).any()), bool((values > high + 1e-9).any())
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]


def _hatching(norm: Normalize, values: NDArray[np.float64], wide: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Wide cells again, toned down and hatched, uint8[pixels, pixels, 4]; the rest is clear."""
    times = -(-_HATCH_SIDE // len(values))
    colour = 255 * _COLOURS(np.asarray(norm(np.nan_to_num(values)), dtype=np.float64))[..., :3]
    grey = 0.3 * colour[..., :1] + 0.55 * colour[..., 1:2] + 0.15 * colour[..., 2:]
    toned = 0.5 * colour + 0.5 * (0.5 * grey + 18)
    sheet = np.concatenate([toned, np.where(wide, 255.0, 0.0)[..., None]], axis=2).astype(np.uint8)
    sheet = sheet.repeat(times, axis=0).repeat(times, axis=1)
    place = np.add.outer(np.arange(len(sheet)), np.arange(len(sheet))) % _HATCH_STEP
    for line, light in ((place < 2, 40), (place == 2, -30)):
        sheet[line, :3] = np.clip(sheet[line, :3].astype(np.int16) + light, 0, 255).astype(np.uint8)
    return sheet


def _captions(
    users: float | None,
    users_stddev: float,
    epsilon: float | None,
    safe: bool,
    wide: NDArray[np.bool_],
    values: NDArray[np.float64],
    extent: float,
) -> list[str]:
    who = "Every user is" if users is None else f"{users_in_words(users, users_stddev)}, each"
    promise = "" if epsilon is None else f"{who} protected by differential privacy with ε = {epsilon:g}."
    hatched = f"Hatched: known to ± {100 * WIDE * extent / 2:.2g} points or worse, at 95%." if wide.any() else ""
    dark = "Dark: too few users to tell." if np.isnan(values).any() else ""
    captions = [promise if safe else UNSAFE, " ".join(part for part in (hatched, dark) if part)]
    return [caption for caption in captions if caption]
