import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.methods.grid import UniformGrid
from tests.transforms.ranges.methods.common import assert_discrete_laplace
from tests.transforms.ranges.oracle import run_key, spec_of, town

PEOPLE = town(6, 4000)


@pytest.mark.parametrize(
    ("users", "epsilon", "side"),
    [(4000.0, 1.0, 20), (4000.0, 0.1, 6), (10.0, 1.0, 1), (0.0, 1.0, 1), (-50.0, 1.0, 1), (4e9, 1.0, 64)],
)
def test_cells_follow_the_rule(users: float, epsilon: float, side: int) -> None:
    found = UniformGrid().collect(PEOPLE, spec_of(6, users, epsilon), run_key(1))
    assert found.users.shape == (side, side)
    assert found.noise_stddev == discrete_laplace_stddev(epsilon)


def test_the_constant_is_an_option() -> None:
    assert UniformGrid(ug_constant=40.0).cells_per_side(4000.0, 1.0) == 10
    found = UniformGrid(ug_constant=40.0).collect(PEOPLE, spec_of(6, 4000.0, 1.0), run_key(1))
    assert found.users.shape == (10, 10)


def test_counts_are_exact_at_the_largest_epsilon() -> None:
    found = UniformGrid().collect(PEOPLE, spec_of(6, 4000.0, 30.0), run_key(1))
    assert found.users.shape == (64, 64)
    np.testing.assert_array_equal(found.users, PEOPLE.on_grid(found.x_edges, found.y_edges))


def test_noise_is_that_of_the_whole_epsilon() -> None:
    added = []
    for key in range(80):
        found = UniformGrid().collect(PEOPLE, spec_of(6, 4000.0, 0.8), run_key(key))
        added.append((found.users - PEOPLE.on_grid(found.x_edges, found.y_edges)).ravel())
    assert_discrete_laplace(np.concatenate(added), 0.8, wrong=0.8 * 1.1)


@pytest.mark.parametrize("constant", [0.0, -1.0, float("nan"), float("inf")])
def test_constants_out_of_range_are_refused(constant: float) -> None:
    with pytest.raises(RequestError, match="ug_constant"):
        UniformGrid(ug_constant=constant)
