import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import check_globe, region_from
from sfumato.schemas.region import Grid, Plane, Region, area_unit, cell_areas, deinterleave, ground_metres, interleave

HALL = Plane(-100.0, 50.0, 300.0, 250.0, ("x", "y"))
CITY = Region.parse("-122.51,37.70,-122.35,37.82")


def test_the_papers_example() -> None:
    """Paper 000, Section 5.6: (x = 1100, y = 0101) is 10/11/00/01."""
    assert interleave(np.array([0b1100], np.uint32), np.array([0b0101], np.uint32))[0] == 0b10110001


@given(st.lists(st.tuples(st.integers(0, 2**20 - 1), st.integers(0, 2**20 - 1)), min_size=1))
def test_interleaving_against_bits(points: list[tuple[int, int]]) -> None:
    x, y = np.array(points, dtype=np.uint32).T
    codes = interleave(x, y)
    for (a, b), code in zip(points, codes.tolist(), strict=True):
        bits = "".join(f"{(a >> i) & 1}{(b >> i) & 1}" for i in range(19, -1, -1))
        assert code == int(bits, 2)
    back = deinterleave(codes)
    assert np.array_equal(back[0], x)
    assert np.array_equal(back[1], y)


@pytest.mark.parametrize("depth", [1, 5, 10, 20])
def test_codes_of_points_lie_in_the_cells_bounds(depth: int) -> None:
    rng = np.random.default_rng(0)
    grid = Grid(CITY, depth)
    east = rng.uniform(CITY.west, CITY.east, 1000)
    north = rng.uniform(CITY.south, CITY.north, 1000)
    x, y = deinterleave(grid.codes(east, north))
    west, south, east_border, north_border = grid.bounds(x, y, np.full(1000, depth))
    slack = 1e-12
    assert ((west - slack <= east) & (east <= east_border + slack)).all()
    assert ((south - slack <= north) & (north <= north_border + slack)).all()


def test_borders_belong_to_the_region() -> None:
    grid = Grid(CITY, 4)
    corners = grid.codes(np.array([CITY.west, CITY.east] * 2), np.array([CITY.north] * 2 + [CITY.south] * 2))
    assert corners.tolist() == [0, 0b10101010, 0b01010101, 0b11111111]


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3",
        "1,2,3,x",
        "",
        "3,0,1,1",
        "0,1,1,0",
        "0,0,0,1",
        "0,0,1,0",
        "nan,0,1,1",
        "-181,0,1,1",
        "0,0,1,91",
        "0,0,inf,1",
    ],
)
def test_bad_regions_are_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError, match="region"):
        Region.parse(text)


@pytest.mark.parametrize("depth", [0, 21, -1, 2.5, math.nan])
def test_bad_depths_are_refused(depth: float) -> None:
    with pytest.raises(RequestError, match=r"depth.*1\.\.20"):
        Grid(CITY, depth)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 7, 20])
def test_cells_of_a_plane_are_those_of_a_region_of_the_same_numbers(depth: int) -> None:
    rng, plane = np.random.default_rng(1), Plane.of(CITY, ("x", "y"))
    east, north = rng.uniform(CITY.west, CITY.east, 500), rng.uniform(CITY.south, CITY.north, 500)
    assert np.array_equal(Grid(plane, depth).codes(east, north), Grid(CITY, depth).codes(east, north))


def test_a_plane_has_its_own_unit() -> None:
    assert ground_metres(HALL) == (400.0, 200.0)
    sides = (np.array([side]) for side in (0.0, 100.0, 20.0, 110.0))
    assert cell_areas(HALL, *sides).tolist() == [200.0]
    assert (area_unit(HALL), area_unit(CITY)) == ("square unit", "km²")
    inside = HALL.holds(np.array([-100.0, 300.0, 301.0, math.nan]), np.array([50.0, 250.0, 100.0, 100.0]))
    assert inside.tolist() == [True, True, False, False]
    check_globe(CITY, "format")
    with pytest.raises(RequestError, match="axes x and y"):
        check_globe(HALL, "format")


def test_a_region_is_read_as_its_manifest_states_it() -> None:
    for region in (CITY, HALL):
        assert region_from(json.loads(json.dumps(asdict(region)))) == region
    assert Plane.of("-100,50,300,250", ("x", "y")) == Plane.of([-100, 50, 300, 250], ("x", "y")) == HALL
    assert Plane.of(CITY, ("x", "y")) != CITY


@pytest.mark.parametrize(
    ("text", "axes", "name"),
    [
        ("0,0,1", ("x", "y"), "region"),
        ("0,0,1,b", ("x", "y"), "region"),
        ("0,0,0,1", ("x", "y"), "region"),
        ("0,1,1,0", ("x", "y"), "region"),
        ("0,0,1,inf", ("x", "y"), "region"),
        ("0,nan,1,1", ("x", "y"), "region"),
        ("1000000000,0,1000000000.5,1", ("x", "y"), "region"),  # cells would share their borders
        ("0,0,1,1", ("x",), "axes"),
        ("0,0,1,1", ("x", "x"), "axes"),
        ("0,0,1,1", ("x", ""), "axes"),
        ("0,0,1,1", ("x", "y", "z"), "axes"),
    ],
)
def test_planes_that_are_none(text: str, axes: tuple[str, ...], name: str) -> None:
    with pytest.raises(RequestError, match=name):
        Plane.of(text, axes)
