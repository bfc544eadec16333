"""Pictures of maps and charts: each kind of cell looks its own way, geography lies where it belongs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import shapely
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.typing import NDArray

from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import Bar, BarsBody, BitRow, CurveBody, MomentsBody, QuantileRow, RangeRow
from sfumato.schemas.views.map_views import Basemap, Layer, MapBody, Place, Zone
from sfumato.schemas.views.view_parts import Bounds  # fmt: skip
from sfumato.transforms.release.builder import picture
from sfumato.transforms.report.canvas import drawable, label, palette
from sfumato.transforms.report.chart_figure import axis_ends
from sfumato.transforms.report.map_figure import UNKNOWN, draw_cells, map_canvas, measure_values
from sfumato.transforms.report.map_frame import Frame, mercator
from tests.unit.report.samples import REGION, layer_of, map_of, pixels, view_of

# Known and low, known and high, high but uncertain, unknown: north-west, north-east, south-west, south-east.
FOUR = layer_of({(1, 0, 0): 0.05, (1, 1, 0): 0.9, (1, 0, 1): 0.9, (1, 1, 1): None}, uncertain=[(1, 0, 1)])
COAST = Basemap(
    source="Survey",
    land=[[[(0, 0), (0.5, 0), (0.5, 1), (0, 1), (0, 0)], [(0.1, 0.1), (0.3, 0.1), (0.3, 0.3), (0.1, 0.3), (0.1, 0.1)]]],
    lines=[[(0, 0), (1, 1)]],
    zones=[Zone(name="Zone", rings=[[(0.6, 0.6), (0.8, 0.6), (0.8, 0.8), (0.6, 0.6)]])],
    places=[Place(name="Harbour", longitude=0.5, latitude=0.5)],
)


def map_picture(view: PageView, body: MapBody) -> bytes:
    return map_canvas(view, body).png()


def cells_of(body: MapBody, frame: Frame) -> NDArray[np.float64]:
    """The pixels of the cells on a white ground, without anything else: float64[height, width, 3] in 0..1."""
    figure = Figure(figsize=(frame.width / 100, frame.height / 100), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.set(xlim=(0, frame.width), ylim=(frame.height, 0))
    draw_cells(axes, body, body.layers[0].measures[0], frame)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3] / 255


def quarters(body: MapBody, side: int = 200) -> list[NDArray[np.float64]]:
    image, half = cells_of(body, Frame.around(body.region, side)), side // 2
    return [
        image[rows, columns].reshape(-1, 3)
        for rows in (np.s_[:half], np.s_[half:])
        for columns in (np.s_[:half], np.s_[half:])
    ]


def test_each_kind_of_cell_looks_its_own_way() -> None:
    low, high, poor, unknown = quarters(map_of(FOUR))
    assert [len(np.unique(np.round(one, 4), axis=0)) for one in (low, high, unknown)] == [1, 1, 1]
    assert len(np.unique(np.round(poor, 4), axis=0)) == 2  # the tone, and lines
    np.testing.assert_allclose(unknown[0], [int(UNKNOWN[at : at + 2], 16) / 255 for at in (1, 3, 5)], atol=1 / 255)
    assert low[0].sum() > high[0].sum() + 0.5  # a dark colour means more
    assert poor.mean(axis=0).sum() > high[0].sum() + 0.4


@pytest.mark.parametrize("smooth", [False, True])
def test_a_count_that_may_be_zero_has_no_colour_unless_smooth(smooth: bool) -> None:
    """A finer cell without a colour lets the ground through, not the coarser cell that it lies on."""
    layer = layer_of({(0, 0, 0): 1e6, (1, 0, 0): 1e6, (1, 1, 1): 0.0}, kind="count", uncertain=[(1, 0, 0)])
    counted = layer.measures[0].model_copy(update={"smooth": smooth})
    first, second, third, none = quarters(map_of(layer.model_copy(update={"measures": [counted]})))
    assert second.max() == third.max() < 1
    assert (first < 1).all() == smooth
    assert (none == 1).all()  # a count of 0 fades out


@pytest.mark.slow
def test_the_picture_says_what_it_shows_and_is_the_same_again() -> None:
    body = map_of(FOUR, missing="Not published: at most 12 users.")
    data = map_picture(view_of(body), body)
    assert data == map_picture(view_of(body), body)
    for text in ("Private map", "About 200,000 users", "Hatched: too uncertain", "Grey: too few users", "with ε = 1"):
        assert text.encode() in data
    assert b"at most 12" not in data  # cells cover the region
    sure = map_of(layer_of({(1, 0, 0): 0.5}), missing="Not published: at most 12 users.")
    data = map_picture(view_of(sure), sure)
    assert b"No colour: not published, at most 12 users." in data
    assert b"Hatched" not in data
    assert b"Grey" not in data
    counted = map_of(layer_of({(0, 0, 0): 5.0}, kind="count", uncertain=[(0, 0, 0)]))
    assert b"No colour: may be empty." in map_picture(view_of(counted), counted)


@pytest.mark.slow
def test_an_unsafe_release_raises_the_alarm_not_the_promise() -> None:
    body = map_of(FOUR)
    data = map_picture(view_of(body, alarm="Made with a demonstration seed: NOT private."), body)
    assert b"NOT private" in data
    assert b"protected by" not in data
    alarmed, calm = pixels(data), pixels(map_picture(view_of(body), body))
    reddish = [(image[..., 0] - image[..., 1:].max(axis=2) > 0.3)[-60:].sum() for image in (alarmed, calm)]
    assert reddish[0] > 300
    assert reddish[1] == 0


def test_a_count_is_coloured_by_density_in_what_its_cell_owns() -> None:
    region = Bounds(west=0, south=59.5, east=1, north=60.5)
    layer = layer_of({(0, 0, 0): 100.0, (1, 0, 0): 100.0}, kind="count", area=0.5)
    whole, quarter = measure_values(layer, layer.measures[0], region)
    km2 = 6371.0088**2 * math.radians(1) * (math.sin(math.radians(60.5)) - math.sin(math.radians(59.5)))
    assert whole == pytest.approx(100 / (0.5 * km2))
    assert quarter == pytest.approx(100 / (0.5 * km2 / 4), rel=0.02)  # a northern cell is a little smaller
    nothing = layer_of({(0, 0, 0): 100.0}, kind="count", area=0.0)
    assert math.isnan(measure_values(nothing, nothing.measures[0], region)[0])


def test_geography_lies_under_and_over_the_cells() -> None:
    body = map_of(layer_of({(1, 1, 1): 0.5}), missing="No cell.")  # the south-east
    plain, drawn = map_picture(view_of(body), body), map_picture(view_of(body, basemap=COAST), body)
    assert b"Geography: Survey." in drawn
    assert b"Geography" not in map_picture(view_of(body, basemap=COAST.model_copy(update={"source": ""})), body)
    assert b"Geography" not in plain
    frame, image = Frame.around(REGION, 1280, 0.03), pixels(drawn)
    rows, columns = image.shape[:2]
    right = round(columns - 1.45 * 160)  # inches of ticks and colour bar
    top = next(
        row for row in range(rows) if abs(image[row, right - 40] - image[200, right - 40]).max() < 1e-6 and row > 120
    )

    def colour(longitude: float, latitude: float) -> NDArray[np.float64]:
        x = right - frame.width + round(float(frame.columns(np.array(longitude))))
        return image[top + round(float(frame.rows(np.array(latitude)))), x]

    land, lake, sea, cell = colour(0.2, 0.6), colour(0.2, 0.17), colour(0.7, 0.9), colour(0.8, 0.3)
    assert land[0] > sea[0]
    assert land[2] - land[0] < sea[2] - sea[0]
    np.testing.assert_allclose(lake, sea, atol=1 / 255)
    np.testing.assert_allclose(cell, palette("rate", on_ground=True)[128], atol=0.02)


MIXED = layer_of({(0, 0, 0): 1e-300, (3, 1, 1): None, (20, 0, 0): 9e9}, kind="count")
CITY = (-122.51, 37.70, -122.50, 37.80)


@pytest.mark.parametrize(
    ("region", "layer"),
    [
        ((-180, -90, 180, 90), MIXED),
        ((0, 89.0, 1, 90.0), MIXED),
        ((12.0, 50.0, 12.0001, 50.0001), MIXED),
        (CITY, layer_of({})),
    ],
)
def test_odd_regions_and_values_are_drawn(region: tuple[float, float, float, float], layer: Layer) -> None:
    body = map_of(layer, Bounds(**dict(zip(("west", "south", "east", "north"), region, strict=True))), missing="None.")
    assert pixels(map_picture(view_of(body, basemap=COAST), body)).shape[0] > 300


def test_zones_have_names_outlines_and_days() -> None:
    """A name that is wider than its zone is over, under or beside it, where it covers no neighbour."""

    def square(west: float, south: float, side: float) -> list[list[tuple[float, float]]]:
        return [[(west + x * side, south + y * side) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]]

    zones = {
        "Wide": square(0.1, 0.4, 0.2),
        "A name beside it": square(0.5, 0.45, 0.02),
        "Between two": square(0.5, 0.42, 0.02),
        "The lower one": square(0.5, 0.39, 0.02),
        "Outlined": square(0.7, 0.4, 0.2),
    }
    layer = layer_of({(3, x, 0): 9e3 for x in range(5)}, kind="count", uncertain=[(3, 4, 0)])
    changed = {"shapes": [*zones.values()], "cell_id": [*zones], "named": True}
    body = map_of(layer.model_copy(update=changed), missing="No zone here.")
    canvas = map_canvas(view_of(body, place="Harbour", period="9 Nov 2026"), body)
    written = {one.get_text() for one in canvas.figure.findobj(Text)}
    assert {*zones, "Harbour · 9 Nov 2026"} <= written
    assert not [one for one in canvas.figure.axes[0].lines if one.get_marker() == "o"]
    data = canvas.png()
    assert b"Outlined without a colour: may be empty." in data
    axes, frame, image = canvas.figure.axes[0].get_window_extent(), Frame.around(REGION, 1280, 0.07), pixels(data)
    x = round(axes.x0 + float(frame.columns(np.array(0.7))))
    y = round(image.shape[0] - axes.y1 + float(frame.rows(np.array(0.45))))
    line = image[y, x - 6 : x + 7].sum(axis=1)
    assert line[4:9].min() < line[[0, 1, -2, -1]].min() - 0.2


@pytest.mark.parametrize(("radius", "area", "is_cut"), [(300.0, 0.9, False), (None, 0.1, False), (None, 0.9, True)])
def test_coast_is_under_stops_and_over_districts(radius: float | None, area: float, is_cut: bool) -> None:
    """The shore at half of the region's width crosses the zone, whose name is elsewhere."""
    shape = [[(0.3, 0.3), (0.7, 0.3), (0.7, 0.7), (0.3, 0.7), (0.3, 0.3)]]
    layer = layer_of({(0, 0, 0): 9e3}, kind="count")
    changed = {"shapes": [shape], "cell_id": ["Wide"], "named": True, "radius": radius, "area": [area]}
    body = map_of(layer.model_copy(update=changed), missing="No zone here.")
    canvas = map_canvas(view_of(body, basemap=COAST.model_copy(update={"places": [], "lines": []})), body)
    image, axes = pixels(canvas.png()), canvas.figure.axes[0].get_window_extent()
    at = Frame.around(REGION, 1280, 0.07).pixels([(0.5, 0.35)])[0]
    x, y = round(axes.x0 + at[0]), round(image.shape[0] - axes.y1 + at[1])
    row = image[y, x - 6 : x + 7]
    assert (float(np.ptp(row, axis=0).max()) > 0.1) == is_cut


def test_listed_zones_are_numbered_in_a_crowd() -> None:
    """The list under the map has the twelve highest, with the numbers on their zones. No name covers a number."""
    at = {f"Stop {x + 17 * y}": (0.02 + 0.06 * x, 0.02 + 0.06 * y) for y in range(17) for x in range(17)}
    values = [9e3 - 10 * (number * 37 % len(at)) for number in range(len(at))]
    highest = sorted(range(len(at)), key=lambda row: -values[row])[:20]
    listed = [(row, values[row], values[row] - 4, values[row] + 4) for row in highest]
    layer = layer_of({(9, x, 0): 1.0 for x in range(len(at))}, kind="count")
    measure = layer.measures[0].model_copy(update={"value": values, "listed": listed, "unit": "riders"})
    shapes = [[list(shapely.Point(middle).buffer(0.028).exterior.coords)] for middle in at.values()]
    changed = {"shapes": shapes, "cell_id": [*at], "named": True, "area": [0.0] * len(at), "measures": [measure]}
    body = map_of(layer.model_copy(update=changed), missing="None.")
    axes, below, _ = map_canvas(view_of(body), body).figure.axes
    frame, (numbers, names) = Frame.around(REGION, 1280, 0.07), ([], [])
    for text in axes.texts:
        (numbers if text.get_text().isdecimal() else names).append(text)
    assert sorted(int(one.get_text()) for one in numbers) == [*range(1, 13)]
    for one in numbers:
        place = [*at.values()][highest[int(one.get_text()) - 1]]
        np.testing.assert_allclose(one.get_position(), frame.pixels([place])[0], atol=0.1)
    texts = [one.get_text() for one in below.texts]
    assert "riders" in texts[0]
    assert [text for text in texts if text in at] == [[*at][row] for row in highest[:12]]
    assert f"{values[highest[0]]:,.0f} (8,996 to 9,004)" in texts
    for name in names:
        (left, low), (right, high) = axes.transData.inverted().transform(name.get_window_extent())
        assert not any(left < x < right and high < y < low for x, y in (one.get_position() for one in numbers))


def test_no_name_covers_a_stop_and_the_foremost_place_has_one() -> None:
    """Names of places give way to circles, but that of the foremost moves, without its dot if that is covered."""
    at = [(0.3, 0.5), (0.5, 0.5), (0.52, 0.52), (1.0, 0.0)]
    layer = layer_of({(5, x, 0): 9e3 - x for x in range(len(at))}, kind="count", area=0.001)
    shapes = [[list(shapely.Point(middle).buffer(0.02).exterior.coords)] for middle in at]
    names = ["Bordering", "Central", "Crossing", "Far"]
    body = map_of(layer.model_copy(update={"shapes": shapes, "cell_id": names, "named": True}), missing="None.")
    places = [("Village", 0.29, 0.49, 17), ("City", 0.5, 0.5, 10), ("Hamlet", 0.7, 0.8, 18), ("Capital", 3, 3, 0)]
    towns = [Place(name=name, longitude=x, latitude=y, rank=rank) for name, x, y, rank in places]
    basemap = Basemap(source="", places=towns)
    canvas = map_canvas(view_of(body, basemap=basemap), body)
    canvas.png()
    axes, frame = canvas.figure.axes[0], Frame.around(REGION, 1280, 0.07)
    written = {one.get_text(): one for one in axes.texts}
    assert {"City", "Hamlet", "Bordering"} <= written.keys()
    assert not {"Village", "Capital"} & written.keys()
    assert len([one for one in axes.lines if one.get_markersize() == 2.6]) == 1  # Hamlet's: a circle covers City's
    assert shapely.box(0, 0, frame.width, frame.height).contains(shapely.Polygon(frame.pixels(shapes[-1][0])))
    circles = [shapely.Polygon(frame.pixels(rings[0])) for rings in shapes]
    for text in axes.texts:
        (left, low), (right, high) = axes.transData.inverted().transform(text.get_window_extent())
        assert not shapely.intersects(shapely.box(left, high, right, low), circles).any(), text.get_text()
    assert not [one for one in axes.patches if isinstance(one, Rectangle) and not one.get_fill()]  # no border
    far = [town.model_copy(update={"latitude": 0.9}) if town.name == "City" else town for town in towns]
    view = view_of(body, basemap=basemap.model_copy(update={"places": far}))
    assert len([one for one in map_canvas(view, body).figure.axes[0].lines if one.get_markersize() == 2.6]) == 2


def test_draw_cells_north_is_up_and_west_is_left() -> None:
    body = map_of(layer_of({(3, 0, 0): 1.0}), missing="None.")
    image = cells_of(body, Frame.around(REGION, 64))
    assert image[:8, :8].sum(axis=2).max() < 0.8
    assert image[8:].sum(axis=2).min() > 2.7


def test_draw_cells_paints_deep_cells_over_their_parents() -> None:
    """Against a direct search, on a region where a degree of latitude is twice as long as one of longitude."""
    north = Bounds(west=10, south=60, east=11, north=61)
    cells = {(0, 0, 0): 0.1, (1, 1, 0): 0.3, (2, 0, 3): 0.5, (3, 5, 1): 0.7, (6, 10, 20): 0.9, (6, 63, 63): 1.0}
    frame = Frame.around(north, 300)
    image, colours, wrong = cells_of(map_of(layer_of(cells), north), frame), palette("rate"), 0
    # The same points with every SFUMATO_TEST_SEED: each misses with 0.1%, and more would only miss more often.
    for u, v in np.random.default_rng(1).uniform(0, 1, (200, 2)).tolist():
        over = [value for (level, *at), value in cells.items() if [int(u * 2**level), int(v * 2**level)] == at]
        pixel = image[int(frame.rows(np.array(61 - v))), int(frame.columns(np.array(10 + u)))]
        found = np.abs(pixel - colours).sum(axis=1).argmin() / 255
        wrong += abs(found - over[-1]) > 0.02
    assert wrong <= 4  # where the point's pixel has its middle in another cell


def test_draw_cells_loses_no_cell_however_small() -> None:
    cells = {(9, 100, 100): 1.0, (18, 3, 9): 1.0, (20, 524_287, 1000): 1.0, (20, 1_048_575, 1_048_575): 1.0}
    lit = cells_of(map_of(layer_of(cells)), Frame.around(REGION, 256)).sum(axis=2) < 1
    assert lit.sum() == 4
    assert lit[255, 255]


def test_draw_cells_polygons_have_holes_and_none_is_lost() -> None:
    def square(west: float, south: float, side: float) -> list[tuple[float, float]]:
        return [(west, south), (west + side, south), (west + side, south + side), (west, south + side), (west, south)]

    shapes = [
        [square(0.1, 0.1, 0.4), [*square(0.2, 0.2, 0.1)[:2], (0.3, 0.25), *square(0.2, 0.2, 0.1)[2:]]],  # with a hole
        [square(0.6, 0.6, 0.1), square(0.8, 0.8, 0.1), square(0.82, 0.82, 0.05)],  # two parts, one with a hole
        [square(0.90001, 0.10001, 1e-5)],  # smaller than a pixel
        [square(3, 3, 1)],  # beyond the frame
    ]
    layer = layer_of({(0, 0, 0): 1.0}, area=0.1)
    measure = layer.measures[0].model_copy(
        update={"value": [1.0] * 4, "low": [1.0] * 4, "high": [1.0] * 4, "uncertain": [False] * 4}
    )
    zeros = {name: [0] * 4 for name in ("level", "x", "y")}
    layer = layer.model_copy(
        update={**zeros, "area": [0.1] * 4, "cell_id": list("abcd"), "measures": [measure], "shapes": shapes}
    )
    lit = cells_of(map_of(layer), Frame(REGION, 100, 100)).sum(axis=2) < 1
    frame = Frame(REGION, 100, 100)

    def at(x: float, y: float) -> bool:
        return bool(lit[int(frame.rows(np.array(y))), int(frame.columns(np.array(x)))])

    assert all(at(*one) for one in ((0.15, 0.15), (0.65, 0.65), (0.81, 0.81)))
    assert not any(at(*one) for one in ((0.05, 0.05), (0.25, 0.25), (0.75, 0.75), (0.85, 0.85)))
    assert lit.sum() == pytest.approx(1500 + 100 + 75 + 1, abs=10)


WORLD = Bounds(west=-180, south=-90, east=180, north=90)
NORTH = Bounds(west=10, south=60, east=11, north=61)


def test_the_projection_is_web_mercators() -> None:
    assert mercator(85.0511287798066) == pytest.approx(math.pi, abs=1e-9)  # a square world
    assert mercator(0.0) == 0
    assert mercator(60.0) == pytest.approx(math.log(math.tan(math.pi / 4 + math.pi / 6)))
    assert np.isfinite(mercator(np.array([-90.0, 90.0]))).all()


def test_pixels_and_degrees_agree() -> None:
    bounds = Bounds(west=-70, south=-55, east=-60, north=-20)
    frame = Frame.around(bounds, 700, margin=0.1)
    assert frame.columns(np.array([frame.bounds.west, frame.bounds.east])) == pytest.approx([0, frame.width])
    assert frame.rows(np.array([frame.bounds.north, frame.bounds.south])) == pytest.approx([0, frame.height])
    assert max(frame.width, frame.height) == 700
    assert frame.bounds.west < bounds.west < bounds.east < frame.bounds.east
    low, high = frame.rows(np.array([bounds.south, bounds.north]))
    assert frame.height - low == pytest.approx(high, abs=1)  # as much room in the north as in the south


def test_a_frame_keeps_proportions_and_leaves_out_the_poles() -> None:
    frame = Frame.around(NORTH, 600)
    assert frame.width / frame.height == pytest.approx(math.cos(math.radians(60.5)), rel=0.01)
    assert frame.middle_latitude == pytest.approx(60.5, abs=0.01)
    world = Frame.around(WORLD, 500, margin=0.1)
    assert (world.width, world.height) == (500, 500)
    assert world.bounds.north == pytest.approx(85.0511, abs=1e-3)
    polar = Frame.around(Bounds(west=0, south=89, east=1, north=90), 300)  # nothing but the pole
    assert polar.height > 0
    assert polar.bounds.south == pytest.approx(89)


def bars_of(values: list[float], **changes: Any) -> BarsBody:
    bars = [Bar(name=f"item {i}", value=one, low=one - 1, high=one + 1) for i, one in enumerate(values)]
    body = BarsBody(unit="users", noun="item", explanation="Each user counts once.", bars=bars)
    return body.model_copy(update=changes)


def bit(share: float | None, low: float | None, high: float | None, place: str = "1", dropped: bool = False) -> BitRow:
    return BitRow(quantity="km", place=place, share=share, low=low, high=high, reports=10, dropped=dropped)


CURVE = CurveBody(
    column="km", value=[0, 1, 2, 4], share=[0, 0.5, 0.8, 1], low=[0, 0.4, 0.7, 1], high=[0, 0.6, 0.9, 1],
    quantiles=[QuantileRow(share=0.5, value=1, low=0.8, high=1.2), QuantileRow(share=0.99, value=3.9, low=3.7, high=4)],
    ranges=[]
)  # fmt: skip
BITS = [
    bit(0.5, 0.4, 0.6),
    bit(-0.9, -1.2, -0.6, "2"),
    bit(0.2, -1, 2, "4"),
    bit(0.1, 0, 0.2, "8", dropped=True),
    bit(None, None, None, "16"),
]
MOMENTS = MomentsBody(
    column="km", limits=(0, 9), statistics=[], groups=[bars_of([3.0, -1.0], reference=2.0)], bits=BITS
)
COUNTED = CURVE.model_copy(
    update={
        "histogram": [RangeRow(low=0, high=1, users=50, users_low=40, users_high=60)],
        "hidden": 9.0,
        "points": [1.0],
    }
)
BODIES = [bars_of([5.0, 3.0]), COUNTED, MOMENTS]


def texts_of(body: Any) -> dict[str, Text]:
    """The texts of a picture by what they say."""
    texts: Any = picture(view_of(body)).figure.findobj(Text)
    return {text.get_text(): text for text in texts}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.kind)
def test_picture_of_every_chart_says_its_promise(body: Any) -> None:
    data = picture(view_of(body)).png()
    assert "with ε = 1".encode() in data
    image = pixels(data)
    assert image.shape[1] == 1504
    assert len(np.unique(np.round(image * 255) @ (1, 256, 65536))) > 30


def test_a_wide_interval_does_not_hide_how_values_differ() -> None:
    value, low, high = np.array([1.0, 2.0, 3.0]), np.array([0.9, -1e6, 2.9]), np.array([1.1, 1e6, 3.1])
    left, right = axis_ends(value, low, high)
    assert -2.5 < left < 0.9
    assert 3.1 < right < 6.5
    assert axis_ends(np.array([]), np.array([]), np.array([])) == (0.0, 1.0)
    assert all(map(math.isfinite, axis_ends(np.array([5.0]), np.array([math.nan]), np.array([math.inf]))))


def test_names_from_the_logs_do_nothing_but_be_read() -> None:
    assert label("a" * 60) == "a" * 33 + "…"
    assert label("") == "(empty)"
    assert "\u202e" not in label("x\u202ey")
    assert drawable("a\U000f0000") == "a□"
    body = bars_of([1.0])
    hostile = body.bars[0].model_copy(update={"name": "$\\frac{1}{2}$ <b>&"})
    text = texts_of(body.model_copy(update={"bars": [hostile]}))["$\\frac{1}{2}$ <b>&"]
    assert not text.get_parse_math()


def test_degrees_have_their_hemisphere() -> None:
    def labels(body: Any) -> str:
        axes = [axis for one in picture(view_of(body)).figure.axes for axis in (one.xaxis, one.yaxis)]
        texts = [text for axis in axes for text in getattr(axis.get_major_formatter(), "seq", ())]
        return "".join(sorted({text[-1] for text in texts if "°" in text}))

    assert labels(map_of(FOUR, Bounds(west=-3, south=50, east=-1, north=52))) == "NW"
    assert labels(map_of(FOUR, Bounds(west=1, south=-52, east=3, north=-50))) == "ES"


@pytest.mark.parametrize("south", [0.0, -65.0])
def test_the_scale_bar_is_right_at_its_latitude(south: float) -> None:
    body = map_of(FOUR, Bounds(west=10, south=south, east=11, north=south + 1))
    figure = picture(view_of(body)).figure
    (text,) = (one.get_text() for one in figure.findobj(Text) if one.get_text().endswith((" km", " m")))
    bar = 2 * next(one.get_width() for one in figure.findobj(Rectangle) if one.get_facecolor() == to_rgba("#77717f"))
    number, unit = text.split()
    metres = float(number) * {"km": 1000, "m": 1}[unit]
    across = 111_195 * math.cos(math.radians(south + 0.5))  # of a degree
    assert metres / bar * Frame.around(body.region, 1280).width == pytest.approx(across, rel=0.02)
