"""The picture of a model of range queries."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes, Field
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges.counts_model import GridModel, PartitionModel
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.noisy_counts import NoisyGrid, Partition, strip_edges
from sfumato.transforms.release.picture_ranges import density, ranges_picture, ranges_thumbnail
from tests.transforms.ranges.models import FIELD, grid_model, partition_model
from tests.transforms.ranges.samples import slope_model
from tests.transforms.release.test_picture import pixels


@pytest.mark.parametrize("make", [grid_model, partition_model, slope_model])
def test_picture_is_colourful_large_and_repeatable(make: object) -> None:
    model = make()  # type: ignore[operator]
    data = ranges_picture(model, "How many people in any square")
    image = pixels(data)
    assert min(image.shape[:2]) >= 1000
    assert len(np.unique((image * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 100
    assert data == ranges_picture(model, "How many people in any square")
    assert f"differential privacy with ε = {model.epsilon:g}".encode() in data
    assert b"How many people in any square" in data
    unsafe = ranges_picture(model, "Squares", safe=False)
    assert b"NOT private" in unsafe
    assert b"protected" not in unsafe


@pytest.mark.parametrize("make", [grid_model, partition_model, slope_model])
@pytest.mark.parametrize("most", [64, 512])
def test_density_is_what_the_model_answers(make: object, most: int) -> None:
    model = make()  # type: ignore[operator]
    shown = density(model, most)
    assert max(shown.users.shape) <= most
    assert shown.areas.sum() == pytest.approx(np.prod(FIELD.metres) / 1e6)
    rows, columns = shown.users.shape
    np.testing.assert_allclose(shown.per_km2 * shown.areas, shown.users)
    row, column = rows // 3, columns // 4
    square = [np.array([one]) for one in _place(shown.users.shape, row, column, model)]
    assert model.model.answer(Boxes(*square)).users[0] == pytest.approx(shown.users[row, column])


def _place(shape: tuple[int, int], row: int, column: int, model: RangeModel) -> tuple[float, float, float, float]:
    grid = getattr(model.model, "grid", None)
    if grid is not None and grid.users.shape == shape:
        x, y = grid.x_edges.astype(float), grid.y_edges.astype(float)
    else:
        x = y = np.linspace(0.0, FIELD.side, shape[0] + 1)
    return x[column], y[row], x[column + 1], y[row + 1]


def test_what_is_lost_in_noise_is_grey_and_the_rest_is_not() -> None:
    strips = strip_edges(FIELD.side, 1024)
    users = np.zeros((4, 4))
    users[0, 3], users[2, 1] = 5000.0, 15.0
    model = RangeModel(FIELD, GridModel(NoisyGrid(strips, strips, users, 10.0)), "grid", 0.14)
    image = pixels(ranges_thumbnail(model))
    assert image.shape == (4, 4, 3)
    chroma = image.max(axis=2) - image.min(axis=2)
    assert np.argwhere(chroma > 0.2).tolist() == [[0, 3]]  # row 0 in the north, column 3 in the east
    assert image[2, 1].mean() > image[2, 0].mean()  # grey, and still lighter than nobody
    assert density(model).lost.sum() == 15


def test_parts_are_judged_as_wholes() -> None:
    """Half the field has 400 users, known to 50; small pieces of it are lost in noise, and the half is not."""
    x0, x1 = np.array([0, 2048]), np.array([2048, 4096])
    zero, side = np.zeros(2, np.int64), np.full(2, 4096)
    parts = Partition(4096, x0, zero, x1, side, np.array([400.0, 60.0]), np.array([2500.0, 2500.0]))
    shown = density(RangeModel(FIELD, PartitionModel(parts), "privtree", 0.1), 64)
    assert not shown.lost[:, :32].any()
    assert shown.lost[:, 32:].all()


@pytest.mark.parametrize("region", [Region(-180, -90, 180, 90), Region(10, 37.700, 10.15, 37.703)])
@pytest.mark.parametrize("users", [0.0, 1e-9, 1e12])
def test_odd_regions_and_numbers_are_drawn(region: Region, users: float) -> None:
    strips = strip_edges(4096, 2048)
    field = Field(Grid(region, 12))
    model = RangeModel(field, GridModel(NoisyGrid(strips, strips, np.full((2, 2), users), 0.0)), "grid", 1.0)
    assert pixels(ranges_picture(model, "Squares")).shape[0] > 300
    assert pixels(ranges_thumbnail(model)).shape == (2, 2, 3)
