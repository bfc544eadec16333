import numpy as np
import pytest

from sfumato.transforms.ranges.networks import examples
from sfumato.transforms.ranges.networks.examples import CONCENTRATIONS, sample_world
from tests.seeds import seeded_rng
from tests.unit.ranges.networks.common import clumped, coarse, counted

SUBDIVISION = 2  # cells of a world along each side of a grid's cell
SMALL = seeded_rng(5).poisson(6, (13, 22)).astype(float)


def size_biased(users: np.ndarray, times: int) -> float:
    """How many users share a cell with a user, on average, where times x times cells are one."""
    cells = coarse(users, times)
    return float((cells**2).sum() / cells.sum())


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (13, 22), (32, 32)])
@pytest.mark.parametrize("noise", [0.01, 3.0, 300.0])
def test_a_world_has_four_cells_for_each_of_the_grid_and_all_users(shape: tuple[int, int], noise: float) -> None:
    users = seeded_rng(1).poisson(6, shape).astype(float) + 1
    world = sample_world(counted(users, noise), users.sum(), seeded_rng(1))
    assert world.shape == (SUBDIVISION * shape[0], SUBDIVISION * shape[1])
    assert (world >= 0).all()
    assert world.sum() == pytest.approx(users.sum(), rel=1e-9)


def test_where_users_and_counts_disagree_the_counts_hold() -> None:
    grid = counted(SMALL, 3.0)
    total, deviation = grid.users.sum(), 3.0 * np.sqrt(SMALL.size)
    near, far = total + 2.9 * deviation, total + 3.1 * deviation
    assert sample_world(grid, near, seeded_rng(1)).sum() == pytest.approx(near)
    assert sample_world(grid, far, seeded_rng(1)).sum() == pytest.approx(total)
    assert sample_world(counted(SMALL - 500, 3.0), 1e6, seeded_rng(1)).sum() == pytest.approx(1.0)


def test_the_generator_makes_the_world() -> None:
    grid = counted(SMALL, 3.0)
    one, again = (sample_world(grid, SMALL.sum(), seeded_rng(4)) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert (sample_world(grid, SMALL.sum(), seeded_rng(5)) != one).any()


def test_without_noise_the_counts_are_met_cell_by_cell() -> None:
    grid = counted(SMALL, 1e-5)
    world = sample_world(grid, SMALL.sum(), seeded_rng(1))
    # Laplace noise in 286 cells stays below 40 of its deviations but for one in 1e20.
    np.testing.assert_allclose(coarse(world, SUBDIVISION), SMALL, atol=40e-5 * 4)
    assert world.std() > SMALL.std() / SUBDIVISION**2  # below the cells, users are not spread evenly


@pytest.mark.parametrize("nodes", [3, 2000])
@pytest.mark.parametrize("users", [0.5, 20.0, 3000.0])  # of few, shares are proposed by the prior; of many, by counts
def test_shares_sum_to_one_where_the_grid_is_and_are_nothing_elsewhere(nodes: int, users: float) -> None:
    inside = np.tile([1.0, 0.5, 1.0, 0.0], (nodes, 1))
    inside[0] = 0.0
    noise = 9.0 * np.sqrt(inside)
    measured = users / 2.5 * inside + seeded_rng(2).normal(size=inside.shape) * noise
    some = examples._Nodes(np.where(inside.any(axis=1), users, 0.0), measured, inside, noise)
    typical = np.full(len(CONCENTRATIONS), 1 / len(CONCENTRATIONS))
    shares, weights, typical = examples._draw_shares(some, typical, False, seeded_rng(1))
    np.testing.assert_allclose(shares[1:].sum(axis=1), 1.0)
    assert (shares >= 0).all()
    assert (shares[inside == 0] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert typical.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_prior_shares_are_as_uneven_as_a_dirichlets(concentration: float) -> None:
    drawn = examples._dirichlet(np.full(40_000, concentration), seeded_rng(1))
    np.testing.assert_allclose(drawn.sum(axis=1), 1.0)
    for moment, expected in (
        (drawn[:, 0], 0.25),
        ((drawn**2).sum(axis=1), (concentration + 1) / (4 * concentration + 1)),
    ):
        assert moment.mean() == pytest.approx(expected, abs=6 * moment.std() / np.sqrt(len(moment)))


def test_choices_follow_their_probabilities() -> None:
    probabilities = np.tile([3.0, 0.0, 1.0], (40_000, 1))
    found = np.bincount(examples._choose(probabilities, seeded_rng(1)), minlength=3) / len(probabilities)
    assert found[1] == 0
    assert found[0] == pytest.approx(0.75, abs=6 * np.sqrt(0.75 * 0.25 / len(probabilities)))


def test_where_nothing_is_known_of_the_cells_the_total_is_met_and_any_cell_may_have_users() -> None:
    worlds = [sample_world(counted(SMALL, 1e5), 1000.0, seeded_rng(seed)) for seed in range(3)]
    assert [world.sum() for world in worlds] == pytest.approx([1000.0] * 3)
    assert abs(np.corrcoef(worlds[0].ravel(), worlds[1].ravel())[0, 1]) < 0.5


def test_an_even_population_has_even_worlds() -> None:
    users = seeded_rng(1).poisson(20, (32, 32)).astype(float)
    for noise, highest in (
        # Well measured: no world is less even than Poisson counts about the noisy counts, (20 + (20 + 25)) / 20.
        (5.0, 3.25),
        # Drowned in noise: shares of the least uneven Dirichlet have, over five levels, variance 5 * 0.025 * 20^2 = 50
        # about the users that noise leaves open; twice that, and the Poisson 20, make 6 times the mean. Room to 10.
        (28.0, 10.0),
    ):
        grid = counted(users, noise)
        world = sample_world(grid, users.sum(), seeded_rng(1))
        cells = seeded_rng(9).poisson(coarse(world, SUBDIVISION))
        assert 0.8 < cells.var() / cells.mean() < highest
    plain = np.maximum(grid.users, 0.0)
    assert plain.var() / plain.mean() > 20
    uneven = clumped(32, 60, int(users.sum()), 1.0, 3)
    cells = coarse(sample_world(counted(uneven, 28.0), users.sum(), seeded_rng(1)), SUBDIVISION)
    assert cells.var() / cells.mean() > 20


def test_a_clumped_population_has_worlds_as_clumped() -> None:
    users = clumped(64, 1000, 20_000, 0.7, 1)
    grid = counted(users, 28.0)
    worlds = [
        seeded_rng(9).poisson(coarse(sample_world(grid, users.sum(), seeded_rng(seed)), SUBDIVISION)).astype(float)
        for seed in range(4)
    ]
    even = seeded_rng(1).poisson(users.mean(), users.shape).astype(float)
    for times in (1, 4):
        truth = size_biased(users, times)

        def off(value: float, truth: float = truth) -> float:
            return abs(np.log(value / truth))

        # A third: half of all users are in a few dozen clumps, each known to within the noise of its few cells.
        # On average over worlds 0.09 was seen; 0.59 and 0.40 of counts as they are, cut off below 0.
        assert off(float(np.mean([size_biased(world, times) for world in worlds]))) < np.log(4 / 3)
        assert off(size_biased(np.maximum(grid.users, 0.0), times)) > np.log(4 / 3)
        assert off(size_biased(even, times)) > np.log(4 / 3)
