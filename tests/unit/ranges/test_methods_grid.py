from dataclasses import replace

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.additive_noise import GAUSSIAN
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, sigma_for_rho
from sfumato.transforms.ranges.methods import PlainGrid, UniformGrid, collect_grid
from sfumato.transforms.ranges.model import GridModel
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_gaussian_pmf
from tests.unit.ranges.method_checks import assert_discrete_laplace
from tests.unit.ranges.oracle import image, run_key, spec_of, town

PEOPLE = town(6, 3000)
LARGER_TOWN = town(6, 4000)


def test_cells_are_of_the_width_asked_for_in_metres() -> None:
    asked = spec_of(6, 3000.0, 30.0)
    width, height = asked.field.cell_metres
    found = PlainGrid(8 * height).collect(PEOPLE, asked, run_key(1))
    assert found.users.shape == (8, round(64 * width / (8 * height)))
    assert found.side == 64


def test_counts_are_exact_at_the_largest_epsilon() -> None:
    found = collect_grid(PEOPLE, 5.0, 9.0, 30.0, run_key(1), "a")
    base = image(PEOPLE)
    assert found.users.shape == (7, 13)
    for row in range(7):
        for column in range(13):
            y, x = slice(*found.y_edges[row : row + 2]), slice(*found.x_edges[column : column + 2])
            assert found.users[row, column] == base[y, x].sum()


def test_noise_is_that_of_the_whole_epsilon() -> None:
    lines = np.arange(65)
    exact = PEOPLE.on_grid(lines, lines)
    added = [collect_grid(PEOPLE, 1, 1, 0.4, run_key(key), "a").users - exact for key in range(20)]
    assert_discrete_laplace(np.concatenate(added).ravel(), 0.4, wrong=0.4 * 1.1)
    stated = collect_grid(PEOPLE, 1, 1, 0.4, run_key(1), "a").noise_stddev
    # Squares of Laplace noise have a standard deviation of sqrt(5) times their mean.
    assert np.var(added) == pytest.approx(stated**2, rel=6 * np.sqrt(5 / 81920))


def test_gaussian_noise_is_that_of_the_whole_rho() -> None:
    exact, rho = PEOPLE.on_grid(np.arange(65), np.arange(65)), 0.01
    found = [collect_grid(PEOPLE, 1, 1, rho, run_key(key), "a", GAUSSIAN) for key in range(20)]
    added = np.concatenate([one.users - exact for one in found]).astype(np.int64).ravel()
    for factor, right in ((1.0, True), (0.9, False)):
        sigma = sigma_for_rho(rho, factor)
        assert (chi_square_p(added, discrete_gaussian_pmf(sigma, np.arange(-50, 51))) > FLAKE_RATE) is right
    assert found[0].noise_stddev == pytest.approx(sigma_for_rho(rho), rel=1e-9)


def test_a_spec_with_a_rho_spends_it_and_states_as_much_laplace_noise() -> None:
    spec = replace(spec_of(6, 4000.0, 0.5), rho=0.01)
    grid = PlainGrid(8 * spec.field.cell_metres[1]).collect(PEOPLE, spec, run_key(1))
    assert (spec.noise, spec.cost) == (GAUSSIAN, 0.01)
    assert grid.noise_stddev == GAUSSIAN.stddev(0.01)


def test_the_key_and_the_label_make_the_noise() -> None:
    one, again = (collect_grid(PEOPLE, 4, 4, 0.5, run_key(1), "a").users for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert (collect_grid(PEOPLE, 4, 4, 0.5, run_key(2), "a").users != one).any()
    assert (collect_grid(PEOPLE, 4, 4, 0.5, run_key(1), "b").users != one).any()


def test_a_grid_is_answered_by_a_grids_model() -> None:
    asked = spec_of(6, 3000.0, 1.0)
    method = PlainGrid(100_000.0)
    assert isinstance(method.model(method.collect(PEOPLE, asked, run_key(1)), asked, ()), GridModel)
    assert method.trainings(method.collect(PEOPLE, asked, run_key(1)), asked) == ()


@pytest.mark.parametrize(
    ("users", "epsilon", "side"),
    [(4000.0, 1.0, 20), (4000.0, 0.1, 6), (10.0, 1.0, 1), (0.0, 1.0, 1), (-50.0, 1.0, 1), (4e9, 1.0, 64)],
)
def test_cells_follow_the_rule(users: float, epsilon: float, side: int) -> None:
    found = UniformGrid().collect(LARGER_TOWN, spec_of(6, users, epsilon), run_key(1))
    assert found.users.shape == (side, side)
    assert found.noise_stddev == discrete_laplace_stddev(epsilon)


def test_the_constant_is_an_option() -> None:
    assert UniformGrid(ug_constant=40.0).cells_per_side(4000.0, 1.0) == 10
    found = UniformGrid(ug_constant=40.0).collect(LARGER_TOWN, spec_of(6, 4000.0, 1.0), run_key(1))
    assert found.users.shape == (10, 10)


def test_a_uniform_grids_counts_are_exact_at_the_largest_epsilon() -> None:
    found = UniformGrid().collect(LARGER_TOWN, spec_of(6, 4000.0, 30.0), run_key(1))
    assert found.users.shape == (64, 64)
    np.testing.assert_array_equal(found.users, LARGER_TOWN.on_grid(found.x_edges, found.y_edges))


def test_a_uniform_grids_noise_is_that_of_the_whole_epsilon() -> None:
    added = []
    for key in range(80):
        found = UniformGrid().collect(LARGER_TOWN, spec_of(6, 4000.0, 0.8), run_key(key))
        added.append((found.users - LARGER_TOWN.on_grid(found.x_edges, found.y_edges)).ravel())
    assert_discrete_laplace(np.concatenate(added), 0.8, wrong=0.8 * 1.1)


@pytest.mark.parametrize("constant", [0.0, -1.0, float("nan"), float("inf")])
def test_constants_out_of_range_are_refused(constant: float) -> None:
    with pytest.raises(RequestError, match="ug_constant"):
        UniformGrid(ug_constant=constant)
