"""How users are spread inside cells: what is learned from a tree's families, on densities whose roughness is known."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, TreeMeasurement, measure
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts, WithinCells, learn_within_cells
from tests.seeds import seeded_rng

DEPTH = 6


def cascade(rho: float, users: int, rng: np.random.Generator) -> np.ndarray:
    """Users by cell of level DEPTH: every family splits its density by a Dirichlet variable of this roughness."""
    shares = np.ones(1)
    alpha = (0.75 / rho - 1) / 4  # the energy of Dirichlet(alpha, ...): 3/4 / (4 alpha + 1)
    for _ in range(DEPTH):
        shares = (shares[:, None] * rng.dirichlet([alpha] * 4, len(shares))).ravel()
    return rng.multinomial(users, shares)


def learned(users: np.ndarray, noise: float, rng: np.random.Generator) -> WithinCells:
    tree = Tree.uniform(DEPTH, DEPTH)
    full = FullTree.from_trees(tree)
    counts = users + rng.normal(0, noise, len(users))
    own = measure(full, [TreeMeasurement(tree, counts, np.full(len(users), noise**2))])
    unbiased = UnbiasedCounts.from_measurements(full, own, float(users.sum()), noise**2)
    return learn_within_cells(unbiased, users.astype(float), np.full(len(users), noise**2))


@pytest.mark.parametrize("rho", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("noise", [1.0, 10.0])
def test_the_roughness_of_a_cascade_is_found_beneath_noise_and_sampling(rho: float, noise: float) -> None:
    """One level below the finest known one, on average over 8 maps.

    The law is continued to families of a quarter of the users, so it is not exact: within a third.
    """
    found = []
    for key in range(8):
        rng = seeded_rng([key, int(100 * rho), int(noise)])
        users = cascade(rho, 400_000, rng)
        within = learned(users, noise, rng)
        found.append(np.average(within.roughness[:, 0], weights=np.maximum(within.squared, 0)))
    assert np.mean(found) == pytest.approx(rho, rel=1 / 3)


def test_moments_of_users_are_never_negative() -> None:
    rng = seeded_rng(3)
    within = learned(cascade(0.1, 1000, rng), 50.0, rng)
    assert (within.users >= 0).all()
    assert (within.squared >= within.users**2).all()
    assert ((within.roughness > 0) & (within.roughness < 0.75)).all()


def test_a_map_of_one_cell_has_the_first_guess() -> None:
    tree = Tree.uniform(DEPTH, 0)
    full = FullTree.from_trees(tree)
    unbiased = UnbiasedCounts(full, [np.array([100.0])], [np.array([4.0])], 4.0)
    within = learn_within_cells(unbiased, np.array([100.0]), np.array([4.0]))
    assert within.roughness[0, 0] == pytest.approx(0.1)
