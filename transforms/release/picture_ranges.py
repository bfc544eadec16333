"""The picture of a model of range queries: the density that it answers from, users per square kilometre. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import FuncNorm
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.counts_model import GridModel, PartitionModel
from sfumato.transforms.ranges.model import Answers, Model, RangeModel
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.ranges.noisy_counts import Partition, strip_edges
from sfumato.transforms.release.picture import ALARM, CLIPPED, SOFT, UNSAFE, bare_png, log_like, map_picture
from sfumato.transforms.release.picture_scale import written_top

MOST_STRIPS = 512  # along a side, of the raster of a model that has no parts of its own
_FINEST = 1024  # cells a side, about the picture's pixels
_STILL = 512  # cells a side of the page's still
_AT_ONCE = 1 << 17  # boxes
_Z = 1.96  # standard deviations on each side that hold 95% of a normal law
_LOST = "Grey cells are lost in noise: they may hold nobody."


@dataclass(frozen=True)
class Density:
    """A model's answers to the cells of a raster.

    users: float64[rows, columns], row 0 in the north. lost: bool of that shape, in a part whose users noise may have
    made up alone. areas: float64 of that shape, in km^2; the field's base cells are of one size. top: the density, in
    users per km^2, of the brightest colour.
    """

    users: NDArray[np.float64]
    lost: NDArray[np.bool_]
    areas: NDArray[np.float64]
    top: float

    @property
    def per_km2(self) -> NDArray[np.float64]:
        """Users per square kilometre."""
        return self.users / self.areas

    def colours(self) -> NDArray[np.float64]:
        """Red, green and blue, float64[rows, columns, 3] in 0..1: those of the scale, greyed where lost."""
        shades = np.asarray(log_like(self.per_km2, self.top)(self.per_km2), dtype=np.float64)
        plain = colormaps["inferno"](shades)[..., :3]
        grey = plain @ (0.3, 0.55, 0.15)
        greyed = (0.12 * plain + 0.62 * grey[..., None]) * 0.72 + np.array([19, 18, 25]) / 255  # as the page has it
        return np.where(self.lost[..., None], greyed, plain)


def density(model: RangeModel, most: int = _FINEST) -> Density:
    """A model's density, in its own cells where it is a grid with at most so many a side, and else on a raster."""
    own, side = model.model, model.field.side
    if isinstance(own, GridModel) and max(own.grid.users.shape) <= most:
        x_edges, y_edges = own.grid.x_edges, own.grid.y_edges
    else:
        strips = most if isinstance(own, GridModel | PartitionModel) else min(most, MOST_STRIPS)  # others are slow
        x_edges = y_edges = strip_edges(side, side / strips)
    cells, shape = Boxes.between(x_edges, y_edges), (len(y_edges) - 1, len(x_edges) - 1)
    width, height = model.field.cell_metres
    km2 = width * height / 1e6  # of a base cell
    found = _answers(own, cells)
    if isinstance(own, LocalNetwork):  # whose answers to small cells add up to too much
        found = Answers(np.maximum(own.grid.table(own.cells).sum(cells), 0.0), found.stddev)
    lost = np.zeros(len(cells), dtype=bool)
    users, stddev, areas = found.users, found.stddev, cells.areas * km2
    if isinstance(own, GridModel):
        lost = users <= _Z * stddev
    elif isinstance(own, PartitionModel):
        # A small piece of a part is known less than the part, so parts are judged, not pieces.
        parts = own.partition
        users, stddev, areas = np.maximum(parts.users, 0.0), np.sqrt(parts.variance), _areas(parts) * km2
        lost = _painted(parts, users <= _Z * stddev, cells)
    known = np.minimum(users / np.maximum(_Z * stddev, 1e-12), 1.0)
    top = written_top(users / areas, users * known**2)
    return Density(found.users.reshape(shape), lost.reshape(shape), (cells.areas * km2).reshape(shape), top)


def ranges_picture(model: RangeModel, title: str, *, safe: bool = True) -> bytes:
    """The picture as the bytes of a PNG file; equal arguments give equal bytes.

    Args:
        model: what is drawn: its own answers to small cells.
        title: the line above the map.
        safe: False for noise from a known seed; the caption then says that the picture is not private.
    """
    shown = density(model)
    values = shown.per_km2
    norm = log_like(values, shown.top)
    clipped = bool((values > CLIPPED * shown.top).any())
    over = np.dstack([shown.colours(), shown.lost])
    budget = f"Every user is protected by differential privacy with ε = {model.epsilon:g}." if safe else UNSAFE
    return map_picture(
        values,
        model.field.grid.region,
        norm=norm,
        colours=colormaps["inferno"],
        ticks=_ticks(norm, clipped),
        unit="users per km²",
        extend="max" if clipped else "neither",
        title=title,
        captions=[budget, _LOST] if shown.lost.any() else [budget],
        colour=SOFT if safe else ALARM,
        over=np.rint(255 * over).astype(np.uint8),
    )


def ranges_thumbnail(model: RangeModel) -> bytes:
    """The bare density as a PNG of at most 512 pixels each way, without frame or words."""
    return bare_png(density(model, _STILL).colours())


def _answers(model: Model, boxes: Boxes) -> Answers:
    found = [model.answer(boxes.part(slice(at, at + _AT_ONCE))) for at in range(0, len(boxes), _AT_ONCE)]
    return Answers(np.concatenate([one.users for one in found]), np.concatenate([one.stddev for one in found]))


def _areas(parts: Partition) -> NDArray[np.float64]:
    """In base cells."""
    return np.asarray((parts.x1 - parts.x0) * (parts.y1 - parts.y0), dtype=np.float64)


def _painted(parts: Partition, flags: NDArray[np.bool_], cells: Boxes) -> NDArray[np.bool_]:
    """Whether most of each cell lies in parts with a flag."""
    return np.asarray(parts.table(flags * _areas(parts)).sum(cells) > cells.areas / 2)


def _ticks(norm: FuncNorm, clipped: bool) -> list[float]:
    """Round values, no two close to each other; the top too where it is the least of what has its colour."""
    top = float(norm.vmax or 1.0)
    ticks = [0.0]
    for power in range(math.floor(math.log10(top)) - 3, math.floor(math.log10(top)) + 1):
        for tick in (10.0**power, 3 * 10.0**power):
            place = float(norm(tick))
            if tick < top and place - float(norm(ticks[-1])) > 0.07 and not (clipped and place > 0.95):
                ticks.append(tick)
    return [*ticks, top] if clipped else ticks
