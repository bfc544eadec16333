"""Names on a map figure: of places and of zones, none over another. Pure."""

from __future__ import annotations

import math

import numpy as np
import shapely
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from sfumato.schemas.region import inner_points
from sfumato.schemas.views.map_views import Basemap, Layer, Measure
from sfumato.transforms.report.canvas import DPI, INK, VOID, label
from sfumato.transforms.report.map_frame import Frame

_MOST_NAMES, _MOST_ZONES = 24, 40  # of a basemap; of a layer
_NAME_SIZE, _FOREMOST_SIZE = 8, 9.5  # points
_NARROW = 0.5  # inches: a narrower zone may have its name beside it
_SYMBOL = 1.2  # inches: a narrower zone of few has its name beside it, and no other name over it
_CROWDED = 0.5  # of the region's area: zones that fill more leave no ground between them
_BADGE = 0.15  # inches across, of a number on a zone
_NEAR = np.arange(0.06, 1.0, 0.06)  # inches from the foremost place to its name
_WAYS = np.arange(0, 2 * math.pi, math.pi / 24)
_ASIDE = 0.07  # inches, at least, from a name beside its zone to another zone
_ZONE = 1000  # the rank of a zone's name, behind those of all places


def is_sparse(layer: Layer) -> bool:
    """Returns whether a layer's zones have names, and ground between them."""
    return layer.named and sum(layer.area) < _CROWDED


class Names:
    """Names on a map: each where nothing else is written, and once."""

    def __init__(self, axes: Axes, frame: Frame, layer: Layer, corner: tuple[float, float]):
        """corner: left and top, in pixels, of the rectangle at the lower right that no name covers."""
        self.axes, self.frame, self.layer = axes, frame, layer
        pixels = [frame.pixels([point for ring in rings for point in ring]) for rings in layer.shapes or ()]
        # Left, top, right and bottom of each zone, and whether it is a symbol, such as a stop's circle.
        self.boxes = np.array([[*one.min(axis=0), *one.max(axis=0)] for one in pixels]).reshape(-1, 4)
        self.is_symbol = (self.boxes[:, 2] - self.boxes[:, 0] < _SYMBOL * DPI) & is_sparse(layer)
        self._taken = [(*corner, float(frame.width), float(frame.height))]
        self._written: set[str] = set()

    def __len__(self) -> int:
        return len(self._written)

    def write(
        self,
        name: str,
        x: float,
        y: float,
        size: float = _NAME_SIZE,
        style: str = "normal",
        most: float = math.inf,
        others: NDArray[np.float64] | None = None,
    ) -> bool:
        """Writes a name over the pixel (x, y), if it is at most `most` pixels wide and has room.

        others: left, top, right and bottom of places that it must not cover, float64[n, 4], in pixels; None for all
            symbols.

        Returns:
            Whether it was written.
        """
        text, (wide, high) = label(name, 24), _size(name, size)
        box = np.array([x - wide / 2, y - high, x + wide / 2, y + 0.05 * DPI])
        if name in self._written or wide > most or box[:2].min() < 0:
            return False
        if box[2] > self.frame.width or box[3] > self.frame.height:
            return False
        if _overlap(box, self._covered(others)).any():
            return False
        self._taken.append(tuple(box.tolist()))
        self._written.add(name)
        self.axes.annotate(
            text, (x, y), (0, 4), textcoords="offset points", ha="center", va="bottom", color=INK, fontsize=size,
            path_effects=[withStroke(linewidth=3, foreground=VOID, alpha=0.95)], style=style, parse_math=False,
            zorder=4,
        )  # fmt: skip
        return True

    def _covered(self, others: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        return np.concatenate([self._taken, self.boxes[self.is_symbol] if others is None else others])

    def number(self, rows: list[int]) -> None:
        """Numbers zones in their middle, in this order; the first lie over others."""
        for place, row in reversed(list(enumerate(rows))):
            x, y = _middle(self.frame, (self.layer.shapes or [])[row]).coords[0]
            half, over = _BADGE * DPI / 2, 4.1 + 0.1 * (len(rows) - place)
            self._taken.append((x - half, y - half, x + half, y + half))
            self.axes.plot([x], [y], "o", ms=_BADGE * 72, color=INK, mec=VOID, mew=0.8, zorder=over)
            text = self.axes.text(x, y, f"{place + 1}", color=VOID, fontsize=6.5, zorder=over + 0.05)
            text.set(ha="center", va="center_baseline")

    def mark(self, x: float, y: float) -> None:
        """Draws the point of a place."""
        self.axes.plot([x], [y], "o", ms=2.6, color=INK, mec=VOID, mew=0.6, zorder=4)

    def write_foremost(self, basemap: Basemap) -> None:
        """Names the most important place in the frame where there is room near its point, marked if nothing covers it.

        It is left to a zone of that name, if there is one.
        """
        b = self.frame.bounds
        inside = [one for one in basemap.places if b.west < one.longitude < b.east and b.south < one.latitude < b.north]
        place = min(inside, key=lambda one: one.rank, default=None)
        if place is None or place.name in self.layer.cell_id:
            return
        x, y = self.frame.pixels([(place.longitude, place.latitude)])[0].tolist()
        dot = np.array([x - 3, y - 3, x + 3, y + 3])
        is_free = not _overlap(dot, self._covered()).any()
        left, low = _around(x, y, *_size(place.name, _FOREMOST_SIZE), _NEAR)
        spots = zip([x, *left.tolist()], [y, *low.tolist()], strict=True)
        if any(self.write(place.name, *at, _FOREMOST_SIZE) for at in spots) and is_free:
            self._taken.append(tuple(dot.tolist()))
            self.mark(x, y)


def _around(
    x: float, y: float, wide: float, high: float, reaches: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns where to write a name of this size around a point, the nearest first. reaches: to its edge, inches."""
    reach, way = (one.ravel() for one in np.meshgrid(reaches * DPI, _WAYS, indexing="ij"))
    return x + np.cos(way) * (reach + wide / 2), y + np.sin(way) * (reach + high / 2) + high / 2


def _size(name: str, size: float) -> tuple[float, float]:
    """Returns the width and height of a name on a map, in pixels. size: of its letters, points."""
    return len(label(name, 24)) * size * 0.62 * DPI / 72, size * 1.5 * DPI / 72


def _overlap(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns which rectangles share an area: bool[...].

    box, others: float64[..., 4] of left, top, right and bottom, broadcast against each other.
    """
    return np.asarray((box[..., :2] < others[..., 2:]).all(axis=-1) & (others[..., :2] < box[..., 2:]).all(axis=-1))


def draw_zone_names(names: Names, measure: Measure) -> None:
    """Names a layer's zones, the highest values first: in a zone that is wide enough, else next to it.

    So a name never seems to be that of a neighbour. Where there is no room, a zone has no name.
    """
    layer, boxes = names.layer, names.boxes
    if layer.shapes is None or not layer.named:
        return
    values = [-math.inf if one is None else one for one in measure.value]
    high, below = _NAME_SIZE * 1.5 * DPI / 72, 0.05 * DPI
    for row in np.argsort(-np.array(values), kind="stable").tolist():
        if len(names) >= _MOST_ZONES:
            return
        name, (left, top, right, bottom) = layer.cell_id[row], boxes[row].tolist()
        x, middle = (left + right) / 2, (top + bottom + high) / 2
        symbols = boxes[names.is_symbol & (np.arange(len(boxes)) != row)]
        is_symbol = bool(names.is_symbol[row])
        is_wide = right - left >= _NARROW * DPI
        heights = (middle, middle + 2 * high, middle - 1.5 * high)  # below or above its number
        within = {"most": right - left, "others": symbols}
        if not is_symbol and (any(names.write(name, x, y, **within) for y in heights) or is_wide):
            continue
        others = np.delete(boxes, row, axis=0) + np.array([-1, -1, 1, 1]) * _ASIDE * DPI
        wide, _ = _size(name, _NAME_SIZE)
        aside = wide / 2 + _ASIDE * DPI + 1
        beside = [(x, top - below), (x, bottom + high + below), (right + aside, middle), (left - aside, middle)]
        if is_symbol:
            reach = np.array([(right - left) / 2 / DPI + _ASIDE])
            beside += zip(*_around(x, (top + bottom) / 2, wide, high, reach), strict=True)
        if any(names.write(name, *at, others=others) for at in beside):
            continue
        if is_symbol:
            names.write(name, x, middle, most=right - left, others=symbols)


def _middle(frame: Frame, rings: list[list[tuple[float, float]]]) -> shapely.Point:
    """Returns a pixel within a polygon's largest part, in its middle if it is a circle or one that was cut."""
    part = max((shapely.Polygon(frame.pixels(ring)) for ring in rings), key=shapely.area)
    point: shapely.Point = inner_points(np.array([part], dtype=object))[0]
    return point


def draw_names(names: Names, basemap: Basemap) -> None:
    """Names the most important places, then zones at the middle of their extent."""
    frame, before = names.frame, len(names)
    named = [(place.name, place.longitude, place.latitude, place.rank) for place in basemap.places]
    for zone in basemap.zones:
        x, y = np.array([point for ring in zone.rings for point in ring]).T
        named.append((zone.name, float(x.min() + x.max()) / 2, float(y.min() + y.max()) / 2, _ZONE))
    for name, longitude, latitude, rank in sorted(named, key=lambda one: one[3]):
        if len(names) - before >= _MOST_NAMES:
            break
        x, y = float(frame.columns(np.array(longitude))), float(frame.rows(np.array(latitude)))
        style, size = ("italic" if rank == _ZONE else "normal"), _FOREMOST_SIZE if rank == 0 else _NAME_SIZE
        if names.write(name, x, y, size, style) and rank != _ZONE:
            names.mark(x, y)
