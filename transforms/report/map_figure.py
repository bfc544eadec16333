"""The map figure: cells of a quadtree and the geography around them, in Web Mercator. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import shapely
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

from sfumato.schemas.known_digits import with_interval
from sfumato.schemas.region import EARTH_RADIUS_KM, area_km2
from sfumato.schemas.views import PageView
from sfumato.schemas.views.flow_views import FlowTable
from sfumato.schemas.views.map_views import Basemap, Layer, MapBody, Measure
from sfumato.schemas.views.view_parts import Bounds
from sfumato.transforms.report.canvas import DPI, FAINT, INK, LEFT_EDGE, SOFT, VOID, Canvas, label, on_pixels, palette
from sfumato.transforms.report.map_frame import Frame
from sfumato.transforms.report.map_names import Names, draw_names, draw_zone_names, is_sparse
from sfumato.transforms.report.scales import FADE, nice, position

UNKNOWN = "#e3dcd0"  # a cell without a value: none of any scale's colours
_INCHES = 8.0  # the map's longer side
_LEFT, _RIGHT, _ABOVE, _BELOW = 0.95, 1.45, 0.14, 0.42  # inches round the map, for ticks and colour bar
_NARROWEST = 7.4  # inches, of a picture
_MARGIN = 0.03  # of the region's longer side, around it, where geography goes on
_ZONE_MARGIN = 0.07  # the same around zones, which reach its borders, as on the page
_LEAST = 0.03  # inches of a cell on bare ground, at least
_CROWD = 20_000  # cells, among which a small one is not lost
_HATCH, _HATCH_PIXELS = "#1f1a2430", 7  # from line to line, of cells
_MOST_ARCS, _WIDEST_ARC, _BEND = 60, 5.0, 0.18  # arcs; points; of an arc's length, to the left of its direction
_ARC_ENDS = "#0b63ad", "#b0103f"  # of origins and destinations
_ARCS = "Arcs: the largest flows. Wider arcs carry more trips; each runs from its blue end to its red end."
_AREAS = {"land": "#f6f1e8", "water": "#dfe8ee"}
_FADED, _UNDER = 0.3, "#ece8e0"  # what a hatched cell keeps of its colour, and the colour of the rest
_HATCHED = {
    "count": "No colour: may be empty.",
    "trips": "No colour: may have none.",
    "change": "Hatched: within noise and sampling error.",
}
_FAINT_CELLS = 0.3  # opacity of the cells under arcs
_MOST_LISTED, _LIST_LINE = 12, 0.21  # zones under their map; inches a line


def map_canvas(view: PageView, body: MapBody, measure: int = 0, flows: FlowTable | None = None) -> Canvas:
    """Draws one measure of the layer that the page shows first, with the view's texts and basemap.

    body: the view's own, or a map within it. flows: the largest are drawn as arcs over the cells.
    """
    layer, basemap = body.layers[-1], view.basemap
    values = layer.measures[measure]
    listed = listed_zones(layer, values)
    below = on_pixels(_LIST_LINE * (math.ceil(len(listed) / 2) + 2)) if listed else 0.0
    frame = Frame.around(body.start or body.region, round(_INCHES * DPI), margin_of(view, body))
    wide, tall = frame.width / DPI, frame.height / DPI
    canvas = Canvas(
        view,
        on_pixels(max(wide + _LEFT + _RIGHT, _NARROWEST)),
        on_pixels(max(tall, 1.8) + _ABOVE + _BELOW + below),
        [*_notes(body, values, basemap), "" if flows is None else _ARCS],
    )
    left = on_pixels((canvas.width - wide - _LEFT - _RIGHT) / 2 + _LEFT)
    low = on_pixels(_BELOW + below + max(1.8 - tall, 0) / 2)
    axes = canvas.axes(left, low, wide, tall)
    opacity = draw_map(axes, body, values, basemap, frame, flows, [row for row, *_ in listed])
    _draw_degrees(axes, frame, wide, tall)
    if listed:
        _draw_list(canvas.axes(LEFT_EDGE, 0.1, canvas.width - 2 * LEFT_EDGE, below - 0.1), listed, layer, values)
    bar = canvas.axes(left + wide + 0.22, _BELOW + below, 0.16, max(tall, 1.8))
    draw_colours(bar, values, body, opacity)
    return canvas


def listed_zones(layer: Layer, values: Measure) -> list[tuple[int, float, float, float]]:
    """Returns the named zones of a measure's list that have numbers on the map, see `Measure.listed`."""
    if not (layer.shapes and layer.named and values.kind in ("count", "change")):
        return []
    return [one for one in values.listed if values.kind == "count" or not values.uncertain[one[0]]][:_MOST_LISTED]


def margin_of(view: PageView, body: MapBody) -> float:
    """Returns how much wider than its region a map is on each side, as a share of the longer side."""
    if body.layers[-1].shapes:
        return _ZONE_MARGIN
    return _MARGIN if view.basemap or body.start else 0.0


def draw_map(
    axes: Axes,
    body: MapBody,
    values: Measure,
    basemap: Basemap | None,
    frame: Frame,
    flows: FlowTable | None = None,
    numbered: Sequence[int] = (),
) -> float:
    """Draws all that is within a map's frame. numbered: zones that have numbers. Returns the cells' opacity."""
    layer, opacity = body.layers[-1], 1.0 if flows is None else _FAINT_CELLS
    axes.set(xlim=(0, frame.width), ylim=(frame.height, 0), facecolor=VOID if basemap is None else _AREAS["land"])
    draw_cells(axes, body, values, frame, opacity)
    if basemap is not None:
        _draw_areas(axes, basemap, frame)
        is_under = layer.shapes is not None and (layer.radius is not None or is_sparse(layer))
        _draw_lines(axes, basemap, frame, None if layer.shapes else body.region, 1.5 if is_under else 3)
    names = Names(axes, frame, layer, _draw_scale_bar(axes, frame))
    names.number(list(numbered))
    if basemap is not None:
        names.write_foremost(basemap)
    draw_zone_names(names, values)
    if basemap is not None:
        draw_names(names, basemap)
    if flows is not None:
        _draw_arcs(axes, flows, body.region, frame)
    return opacity


def _draw_list(axes: Axes, listed: list[tuple[int, float, float, float]], layer: Layer, measure: Measure) -> None:
    """Writes the numbered zones, those with the highest counts or the changes, in two columns."""
    note = f"Highest counts: {measure.unit} (95% intervals for all at once)"
    if measure.kind == "change":
        note = measure.listed_note
    lines = math.ceil(len(listed) / 2)
    axes.set(xlim=(0, 2), ylim=(lines + 1, -0.6))
    axes.axis("off")
    texts: dict[str, Any] = {"fontsize": 9, "va": "center", "parse_math": False}
    axes.text(0, 0, note, color=SOFT, **texts)
    for place, (row, value, low, high) in enumerate(listed):
        column, line = divmod(place, lines)
        estimate, least, most = with_interval(value, low, high)
        axes.text(column + 0.06, line + 1, f"{place + 1}", color=INK, ha="right", **texts)
        axes.text(column + 0.09, line + 1, label(layer.cell_id[row], 28), color=INK, **texts)
        axes.text(column + 0.93, line + 1, f"{estimate} ({least} to {most})", color=INK, ha="right", **texts)


def _ramp(measure: Measure, body: MapBody) -> NDArray[np.float64]:
    """Returns the colours of a measure's scale with their opacity, float64[256, 4]: counts fade out towards 0."""
    colours, places = palette(measure.kind, on_ground=body.missing is not None), np.linspace(0, 1, 256)
    return np.column_stack([colours, np.minimum(places / FADE, 1) if measure.kind == "count" else np.ones(256)])


def draw_cells(axes: Axes, body: MapBody, measure: Measure, frame: Frame, opacity: float = 1.0) -> None:
    """Draws the cells or polygons of the layer that the page shows first, deeper cells over higher ones."""
    layer = body.layers[-1]
    values = measure_values(layer, measure, body.region)
    known, level = np.isfinite(values), np.asarray(layer.level)
    hatched = np.asarray(measure.uncertain, dtype=bool) & known & (measure.kind != "count")
    shades = position(measure.scale, np.where(known, values, measure.scale.low))
    colours = _ramp(measure, body)[np.rint(255 * shades).astype(np.int64)]
    colours[~known, :3] = np.array(list(bytes.fromhex(UNKNOWN[1:]))) / 255
    colours[hatched, :3] = _FADED * colours[hatched, :3] + (1 - _FADED) * np.array(to_rgb(_UNDER))
    colours[:, 3] *= opacity * _has_colour(layer, measure, body.region)
    if layer.shapes is None:
        _draw_squares(axes, *_squares(layer, colours, hatched, body, frame), frame)
        return
    paths = [_area([frame.pixels(ring) for ring in rings]) for rings in layer.shapes]
    for place, path in enumerate(paths):
        if max(path.get_extents().size) < 1:  # the pixel in which it begins
            paths[place] = Path.unit_rectangle().transformed(Affine2D().translate(*np.floor(path.get_extents().min)))
    bare = np.flatnonzero(layer.named & known & ~_has_colour(layer, measure, body.region)).tolist()
    outlines = [paths[row] for row in bare if paths[row].get_extents().width >= _LEAST * DPI]
    axes.add_collection(
        PathCollection(outlines, facecolors="none", edgecolors=INK, alpha=0.3, linewidths=0.6, zorder=2), autolim=False
    )
    for depth in np.unique(level).tolist():
        rows = np.flatnonzero(level == depth).tolist()
        _fill(axes, [paths[row] for row in rows], colours[rows])
        lined = [paths[row] for row in rows if hatched[row]]
        if lined:
            path = Path.make_compound_path(*lined)
            axes.add_artist(PathPatch(path, facecolor="none", edgecolor=_HATCH, hatch="/////", lw=0, zorder=2))


def _has_colour(layer: Layer, measure: Measure, region: Bounds) -> NDArray[np.bool_]:
    """Returns which cells have a colour of the measure: no count or rate where there may be no user at all: bool[n]."""
    counted = measure if measure.kind == "count" else layer.measures[0]
    if measure.kind not in ("count", "rate") or counted.kind != "count" or (measure is counted and measure.smooth):
        return np.ones(len(layer.level), dtype=bool)
    if counted.smooth:
        return np.asarray(position(counted.scale, measure_values(layer, counted, region)) >= FADE)
    return ~np.asarray(counted.uncertain, dtype=bool)


def _fill(axes: Axes, paths: list[Path], colours: NDArray[np.float64]) -> None:
    cells = PathCollection(paths, facecolors=colours, linewidths=0, antialiaseds=False, zorder=2)
    axes.add_collection(cells, autolim=False)  # the frame sets the limits


def _draw_squares(
    axes: Axes,
    level: NDArray[np.int64],
    colours: NDArray[np.float64],
    hatched: NDArray[np.bool_],
    sides: NDArray[np.float64],
    frame: Frame,
) -> None:
    """Draws squares, see `_squares`, as one image: deeper ones replace those that they lie on, also where they fade."""
    cells = np.full((frame.height, frame.width), len(level), np.int32)  # what each pixel shows: the last is none
    for depth in np.unique(level).tolist():
        own = level == depth
        across, down = (np.unique(one) for one in sides[..., own])
        column, row = np.searchsorted(across, sides[0, 0, own]), np.searchsorted(down, sides[1, 0, own])
        if (across[column + 1] != sides[0, 1, own]).any() or (down[row + 1] != sides[1, 1, own]).any():
            _fill(axes, _outlines(sides[..., own]), colours[own])  # enlarged ones overlap
            continue
        small = np.full((len(down) + 1, len(across) + 1), len(level), np.int32)  # with a rim around the squares
        small[row + 1, column + 1] = np.flatnonzero(own)
        y, x = (
            np.searchsorted(edges, np.arange(size) + 0.5) % len(edges)
            for edges, size in zip((down, across), cells.shape, strict=True)
        )
        shown = small[np.ix_(y, x)]
        np.copyto(cells, shown, where=shown < len(level))
    raster = np.rint(255 * np.vstack([colours, np.zeros(4)])).astype(np.uint8)[cells]
    diagonal = np.add.outer(np.arange(frame.height), np.arange(frame.width)) % _HATCH_PIXELS == 0
    lined = np.append(hatched, False)[cells] & diagonal
    *ink, opacity = to_rgba(_HATCH)
    raster[lined, :3] = np.rint((1 - opacity) * raster[lined, :3] + opacity * 255 * np.array(ink)).astype(np.uint8)
    axes.imshow(raster, extent=(0, frame.width, frame.height, 0), interpolation="nearest", aspect="auto", zorder=2)


def _outlines(sides: NDArray[np.float64]) -> list[Path]:
    (left, right), (top, bottom) = sides
    corners: Any = np.array([[left, top], [right, top], [right, bottom], [left, bottom]]).transpose(2, 0, 1)
    return list(PolyCollection(corners).get_paths())


def _squares(
    layer: Layer, colours: NDArray[np.float64], hatched: NDArray[np.bool_], body: MapBody, frame: Frame
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Returns levels, colours, hatching and sides of the n squares that are drawn for cells.

    Sides are in pixels, float64[2, 2, n]: left and right, then top and bottom. Cells smaller than a pixel are averaged.
    A few cells on bare ground have at least `_LEAST` inches, so that none is lost.
    """
    region, (level, x, y) = body.region, (np.asarray(one, dtype=np.int64) for one in (layer.level, layer.x, layer.y))
    wide = frame.width * (region.east - region.west) / (frame.bounds.east - frame.bounds.west)
    up = np.maximum(level - int(math.log2(max(wide, 1.0))), 0)
    cells = (level - up, x >> up, y >> up)
    lengths = tuple(int(one.max(initial=0)) + 1 for one in cells)  # a cell as one number is found ten times as fast
    drawn, place, number = np.unique(np.ravel_multi_index(cells, lengths), return_inverse=True, return_counts=True)
    level, x, y = np.unravel_index(drawn, lengths)
    colours = np.stack([np.bincount(place, one, len(number)) for one in colours.T], axis=1) / number[:, None]
    hatched = np.bincount(place, hatched, len(number)) > number / 2
    ends = np.array([[0], [1]])
    columns = frame.columns(region.west + (x + ends) / 2.0**level * (region.east - region.west))
    rows = frame.rows(region.north - (y + ends) / 2.0**level * (region.north - region.south))
    least = 1 if body.missing is None or len(drawn) > _CROWD else max(round(_LEAST * DPI), 1)
    for edges in (columns, rows):
        small = edges[1] - edges[0] < least
        edges[:, small] = np.floor(edges[:, small].mean(axis=0)) - least // 2 + ends * least
    return level, colours, hatched, np.stack([columns, rows])


def measure_values(layer: Layer, measure: Measure, region: Bounds) -> NDArray[np.float64]:
    """Returns the coloured values, float64[n]; NaN if unknown. Counts are divided by owned area if their scale is."""
    values = np.array([math.nan if one is None else one for one in measure.value], dtype=np.float64)
    if measure.kind != "count" or measure.scale.unit == measure.unit:
        return values
    level, x, y = (np.asarray(one, dtype=np.float64) for one in (layer.level, layer.x, layer.y))
    width, height = (side / 2.0**level for side in (region.east - region.west, region.north - region.south))
    west, north = region.west + x * width, region.north - y * height
    area = area_km2(west, north - height, west + width, north)
    area = area * np.asarray(layer.area)
    return np.where(area > 0, values / np.maximum(area, 1e-300), math.nan)


def _notes(body: MapBody, measure: Measure, basemap: Basemap | None) -> list[str]:
    layer = body.layers[-1]
    is_bare = float(np.sum(np.asarray(layer.area) / 4.0 ** np.asarray(layer.level))) < 0.999  # of the region's area
    missing = (body.missing or "").rstrip(".").replace(":", ",")
    kind = "trips" if measure.unit == "trips" else measure.kind
    hatching = _HATCHED.get(kind, "Hatched: too uncertain for a colour.")
    if layer.shapes is not None and layer.named and kind == "count":
        hatching = "Outlined without a colour: may be empty."
    value, unsure = np.array([one is not None for one in measure.value], bool), np.array(measure.uncertain, bool)
    return [
        hatching if (value & unsure).any() and not measure.smooth else "",
        "Grey: too few users for an estimate." if not value.all() else "",
        f"No colour: {missing[:1].lower()}{missing[1:]}." if missing and is_bare else "",
        f"Geography: {basemap.source}." if basemap and basemap.source else "",
    ]


def _draw_areas(axes: Axes, basemap: Basemap, frame: Frame) -> None:
    """Draws land and water under the cells. On a map with only land, the rest is water."""
    if basemap.land:
        axes.set_facecolor(_AREAS["water"])
    for name in ("land", "water"):
        areas = [_area([frame.pixels(ring) for ring in one]) for one in getattr(basemap, name)]
        axes.add_collection(PathCollection(areas, facecolors=_AREAS[name], edgecolors="none", zorder=1))


def _area(rings: list[NDArray[np.float64]]) -> Path:
    """Returns a path whose holes (in an odd number of other rings) have the opposite direction, as Agg requires."""
    if len(rings) == 1:
        return Path(rings[0], closed=True)
    loops = np.array([shapely.LinearRing(ring) for ring in rings])
    middles = shapely.points([(ring[0] + ring[1]) / 2 for ring in rings])
    inside = shapely.contains(shapely.polygons(loops)[:, None], middles[None])
    np.fill_diagonal(inside, False)
    is_turned = shapely.is_ccw(loops) ^ (inside.sum(axis=0) % 2 == 1)
    turned = [ring[::-1] if turn else ring for ring, turn in zip(rings, is_turned, strict=True)]
    return Path.make_compound_path(*(Path(ring, closed=True) for ring in turned))


def _draw_lines(axes: Axes, basemap: Basemap, frame: Frame, region: Bounds | None, zorder: float) -> None:
    """Draws shores, lines and zones, and the border of a region, which would cut through zones at it.

    zorder: over the cells, or under zones with ground between them, such as stops, which a line would cut.
    """
    shores = [frame.pixels(ring) for area in (*basemap.land, *basemap.water) for ring in area]
    zones = [frame.pixels(ring) for zone in basemap.zones for ring in zone.rings]
    lines = [frame.pixels(line) for line in basemap.lines]
    for paths, style in (
        (shores, {"colors": "#305478", "alpha": 0.6, "linewidths": 0.7}),
        (lines, {"colors": "#2d2337", "alpha": 0.26, "linewidths": 0.5}),
        (zones, {"colors": "#2d2337", "alpha": 0.5, "linewidths": 0.6, "linestyles": (0, (4, 3))}),
    ):
        axes.add_collection(LineCollection(paths, zorder=zorder, **style))
    if region is None:
        return
    west, east = frame.columns(np.array([region.west, region.east])).tolist()
    north, south = frame.rows(np.array([region.north, region.south])).tolist()
    axes.add_patch(Rectangle((west, north), east - west, south - north, fill=False, ec=FAINT, lw=0.8, zorder=3))


def _draw_arcs(axes: Axes, flows: FlowTable, region: Bounds, frame: Frame) -> None:
    """Draws the largest flows between different cells as arcs that bend to the left of their direction."""
    level, *places = (
        np.asarray(one, dtype=np.float64)
        for one in (flows.level, flows.origin_x, flows.origin_y, flows.destination_x, flows.destination_y)
    )
    if flows.centres is None:
        x1, y1, x2, y2 = ((place + 0.5) / 2.0**level for place in places)
        (x1, x2) = (region.west + x * (region.east - region.west) for x in (x1, x2))
        (y1, y2) = (region.north - y * (region.north - region.south) for y in (y1, y2))
    else:
        centres = np.asarray(flows.centres, dtype=np.float64).reshape(-1, 2)
        (x1, y1), (x2, y2) = centres[flows.origin_x].T, centres[flows.destination_x].T
    moving = np.flatnonzero((x1 != x2) | (y1 != y2))[:_MOST_ARCS]
    if not len(moving):
        return
    ends = [(frame.columns(x[moving]), frame.rows(y[moving])) for x, y in ((x1, y1), (x2, y2))]
    (left, top), (right, low) = ends
    t = np.linspace(0, 1, 25)[None, :]
    bend = 2 * _BEND * t * (1 - t)
    columns = left[:, None] * (1 - t) + right[:, None] * t + bend * (low - top)[:, None]
    rows = top[:, None] * (1 - t) + low[:, None] * t - bend * (right - left)[:, None]
    trips = np.asarray(flows.trips)[moving]
    widths = 0.4 + (_WIDEST_ARC - 0.4) * trips / trips.max()
    points = np.stack([columns, rows], axis=2)
    segments = np.stack([points[:, :-1], points[:, 1:]], axis=2)
    shades = np.clip(np.linspace(-0.3, 1.3, segments.shape[1]), 0, 1)
    origin, destination = (np.array(to_rgb(colour)) for colour in _ARC_ENDS)
    colours = origin + np.outer(shades, destination - origin)
    lines = LineCollection(
        list(segments[::-1].reshape(-1, 2, 2)),  # the largest last
        colors=np.tile(colours, (len(moving), 1)),
        linewidths=np.repeat(widths[::-1], len(shades)),
        zorder=3.5,
    )
    axes.add_collection(lines)


def _draw_degrees(axes: Axes, frame: Frame, wide: float, tall: float) -> None:
    """Draws degrees along two sides, with the ticks that fit into `wide` x `tall` inches."""
    b = frame.bounds
    for axis, ends, signs, room, at in (
        (axes.xaxis, (b.west, b.east), "EW", wide / 1.7, frame.columns),
        (axes.yaxis, (b.south, b.north), "NS", tall / 1.2, frame.rows),
    ):
        ticks = np.asarray(MaxNLocator(nbins=max(int(room), 1), steps=[1, 2, 5, 10]).tick_values(*ends))
        digits = max(0, math.ceil(-math.log10(float(np.diff(ticks).min())) - 1e-9)) if len(ticks) > 1 else 2
        ticks = ticks[(ticks >= ends[0] - 1e-9) & (ticks <= ends[1] + 1e-9)]
        axis.set_major_locator(FixedLocator(at(ticks).tolist()))
        texts = [f"{abs(tick):.{digits}f}° {signs[int(tick < 0)]}" for tick in ticks.tolist()]
        axis.set_major_formatter(FixedFormatter(texts))
    axes.tick_params(colors=SOFT, labelsize=9, length=4, width=0.7, direction="out", pad=3)
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.8, visible=True)


def _draw_scale_bar(axes: Axes, frame: Frame) -> tuple[float, float]:
    """Draws a bar of a round number of metres, at least half an inch, right at the frame's middle latitude.

    Returns the left and top of its ground, in pixels; the frame's lower right corner where there is no room for a bar.
    """
    middle = frame.middle_latitude
    degrees = frame.bounds.east - frame.bounds.west
    metres = EARTH_RADIUS_KM * 1000 * math.radians(degrees) * max(math.cos(math.radians(middle)), 0.01)
    length = nice(metres / frame.width * max(frame.width / 9, DPI / 2))
    bar, unit = frame.width * length / metres, DPI / 160
    if bar > 0.9 * frame.width or frame.height <= 0.6 * DPI:  # a sliver of a region
        return float(frame.width), float(frame.height)
    x, y = frame.width - 40 * unit - bar, frame.height - 36 * unit
    for left, top, width, height, colour, alpha in (
        (x - 20 * unit, y - 50 * unit, bar + 40 * unit, 68 * unit, VOID, 0.6),
        (x, y, bar / 2, 7 * unit, INK, 1.0),
        (x + bar / 2, y, bar / 2, 7 * unit, "#77717f", 1.0),
    ):
        axes.add_patch(Rectangle((left, top), width, height, lw=0, color=colour, alpha=alpha, zorder=5))
    text = f"{length / 1000:,g} km" if length >= 1000 else f"{length:g} m"
    if frame.bounds.north - frame.bounds.south > 2:  # the scale differs visibly from south to north
        text += " at the equator" if abs(middle) < 0.5 else f" at {abs(middle):.0f}° {'S' if middle < 0 else 'N'}"
    at = (x + bar / 2, "center") if bar > 170 * unit else (x + bar, "right")
    axes.text(at[0], y - 9 * unit, text, color=INK, fontsize=9, zorder=5, ha=at[1])
    return x - 20 * unit, y - 50 * unit


def draw_colours(axes: Axes, measure: Measure, body: MapBody, opacity: float) -> None:
    """Draws the legend: the colours of a measure's scale with its ticks and unit."""
    scale, colours = measure.scale, _ramp(measure, body)
    unit = {"rate": measure.name, "change": f"{measure.name}, {measure.unit}"}.get(measure.kind, scale.unit)
    axes.set_facecolor(VOID)
    axes.imshow(
        colours[:, None], alpha=opacity, extent=(0, 1, 0, 1), aspect="auto", origin="lower", interpolation="nearest"
    )
    axes.set(xticks=[], ylim=(0, 1))
    axes.yaxis.tick_right()
    places = position(scale, np.array([value for value, _ in scale.ticks], dtype=np.float64)).tolist()
    ticks: list[tuple[float, str]] = []
    order = [len(places) - 1, *range(len(places) - 1)] if places else []  # the top has the right of way, then zero
    for tick in order:
        if all(abs(places[tick] - place) > 0.025 for place, _ in ticks):
            ticks.append((places[tick], scale.ticks[tick][1]))
    axes.yaxis.set_major_locator(FixedLocator([place for place, _ in ticks]))
    axes.yaxis.set_major_formatter(FixedFormatter([text for _, text in ticks]))
    axes.tick_params(colors=SOFT, labelsize=9, length=3, width=0.7, pad=3)
    axes.yaxis.set_label_position("right")
    axes.set_ylabel(unit, color=SOFT, fontsize=10, labelpad=9, parse_math=False)
    for spine in axes.spines.values():
        spine.set(color=FAINT, visible=True)
