"""Regions and their grids: codes of points, bounds of cells, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.schemas.rectangle import region_from
from sfumato.schemas.region import CLOSE, Grid, Region, close_points, deinterleave, great_circle_km, interleave
from tests.rejections import rejects
from tests.seeds import seeded_rng

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
    rng = seeded_rng(0)
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
        "1,2,3,x",
        "3,0,1,1",
        "0,1,1,0",
        "0,0,1,0",
        "nan,0,1,1",
        "0,0,1,91",
    ],
)
def test_bad_regions_are_refused(text: str) -> None:
    with rejects("region") as caught:
        Region.parse(text)
    assert "semicolons" not in str(caught.value)


def test_exchanged_east_and_west_are_told_the_right_order() -> None:
    with rejects("region") as caught:
        Region.parse("5.46,43.26,5.36,43.34")
    assert "--region=5.36,43.26,5.46,43.34" in str(caught.value)


@pytest.mark.parametrize("text", ["11.89", "1 2 3 4", "1; 2; 3; 4", "1, 2 3, 4", "11,8 57,6 12,1 57,8"])
def test_numbers_without_commas_are_told_to_have_some(text: str) -> None:
    with rejects("region") as caught:
        Region.parse(text)
    assert "commas, not spaces or semicolons" in str(caught.value)


@pytest.mark.parametrize("borders", [(0, 80, 1, 91), (0, -91, 1, -80), (-181, 0, 1, 1), (0, 0, 181, 1)])
def test_borders_beyond_all_degrees_are_refused(borders: tuple[float, ...]) -> None:
    """Of Python's function: a text is first taken for one in another order."""
    with rejects("region"):
        Region(*borders)


@pytest.mark.parametrize(
    "text",
    [
        "37.7,-122.51,37.82,-122.35",
        "-122.51,-122.35,37.7,37.82",
        "37.7,37.82,-122.51,-122.35",
        "-122.51,37.82,-122.35,37.7",
        "37.82,-122.51,37.7,-122.35",
    ],
)
def test_parse_names_the_region_of_another_order(text: str) -> None:
    with rejects("region") as caught:
        Region.parse(text)
    assert f"--region={CITY}" in str(caught.value)


def test_parse_refuses_numbers_that_are_close_in_pairs() -> None:
    with rejects("region") as caught:
        Region.parse("13,13.8,52.3,52.7")  # a valid region from Africa to Russia
    assert "--region=13,52.3,13.8,52.7" in str(caught.value)
    assert Region.parse("-10,35,30,60") == Region(-10, 35, 30, 60)
    assert Region.parse("5,15,48,55") == Region(5, 15, 48, 55)
    assert Region.parse("9.9,10,11.9,12") == Region(9.9, 10, 11.9, 12)  # two degrees of Nigeria


@pytest.mark.parametrize("depth", [0, 21, -1, 2.5, math.nan])
def test_bad_depths_are_refused(depth: float) -> None:
    with rejects("depth"):
        Grid(CITY, depth)  # type: ignore[arg-type]


def test_a_region_is_read_as_its_manifest_states_it() -> None:
    assert region_from(json.loads(json.dumps(asdict(CITY)))) == CITY


def test_close_points_are_within_their_distance() -> None:
    rng = seeded_rng(5)
    x, y = 13.0 + 0.05 * rng.random(120), 52.0 + 0.03 * rng.random(120)
    names = [f"p{number}" for number in range(120)]
    apart = np.stack([1000 * great_circle_km(np.radians(x), np.radians(y), *one) for one in zip(x, y, strict=True)])
    np.fill_diagonal(apart, np.inf)
    found = close_points(x, y, names, 1)
    assert found is not None
    assert found[0] == (apart.min(axis=1) <= CLOSE).sum()
    first, second = np.unravel_index(np.argmin(apart), apart.shape)
    assert {f"p{first}", f"p{second}"} <= set(found[1].split())
    assert f"({apart.min():.0f} m apart)" in found[1]
    assert close_points(np.array([13.0, 13.1]), np.array([52.0, 52.0]), names, 1) is None
    assert close_points(np.array([13.0]), np.array([52.0]), names, 1) is None
