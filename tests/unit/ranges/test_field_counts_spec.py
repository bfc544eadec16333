from dataclasses import replace

import pytest

from sfumato.schemas.ranges import Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges.field_counts import CollectionSpec, clamp_width

FIELD = Field(Grid(Region(-122.5, 37.7, -122.36, 37.81), 12))
WANTED = CollectionSpec(FIELD, 217_438.0, 0.2, Sizes(25.0, 100.0))


def test_the_rule_by_hand() -> None:
    """In a region of 16 km, at squares of 25 m and n epsilon of 1e4: 46 x 5 x 11.2468 / 63.0957 m."""
    side = 16_000 / 111_195.08
    spec = CollectionSpec(Field(Grid(Region(0, -side / 2, side, side / 2), 12)), 1e5, 0.1, Sizes(12.5, 50.0))
    assert spec.default_width == pytest.approx(46 * 5 * 11.2468 / 63.0957, rel=1e-4)


def test_more_users_and_less_noise_make_finer_cells_and_larger_squares_wider_ones() -> None:
    width = WANTED.default_width
    assert replace(WANTED, users=4 * WANTED.users).default_width == pytest.approx(width / 4**0.45)
    assert replace(WANTED, epsilon=0.8).default_width == pytest.approx(width / 4**0.45)
    assert replace(WANTED, sizes=Sizes(100.0, 400.0)).default_width == pytest.approx(2 * width)


@pytest.mark.parametrize("users", [-12.0, 0.0, 1.0])
def test_noisy_numbers_of_users_make_cells_that_fit(users: float) -> None:
    assert replace(WANTED, users=users).default_width == replace(WANTED, users=1.0).default_width
    assert replace(WANTED, users=users, epsilon=1e-9).default_width == min(FIELD.metres)


def test_no_cell_is_smaller_than_a_base_cell_or_larger_than_the_region() -> None:
    assert replace(WANTED, users=1e12).default_width == max(FIELD.cell_metres)
    assert clamp_width(1e-3, FIELD) == max(FIELD.cell_metres)
    assert clamp_width(1e9, FIELD) == min(FIELD.metres)
    assert clamp_width(50.0, FIELD) == 50.0
