"""The posterior of users by slot: against dense Gaussian algebra, and on noisy counts of a known city."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap import slot_maps
from sfumato.transforms.heatmap.posterior.full_tree import FullTree
from sfumato.transforms.heatmap.slot_maps import (
    SlotPosterior,
    estimated_users,
    fourier_basis,
    infer_slots,
)
from tests.seeds import seeded_rng

Array = NDArray[np.float64]
# The root, two of its children split, one of their children split again.
SMALL = FullTree.from_trees(Tree.of(3, np.array([4 << 2, 6 << 2, (4 << 2 | 1) << 2], dtype=np.uint64)))


def dense(
    full: FullTree, counts: Array, measured: Array, totals: list[Array], kappa: list[float]
) -> tuple[Array, Array]:
    """Posterior mean and variance of one component of every node, level by level, by one large linear system.

    The root has a flat prior; e of a family is N(0, diag(s) - s s' / sum(s)).
    """
    sizes = [len(codes) for codes in full.codes]
    first = np.concatenate([[0], np.cumsum(sizes)])
    nodes = int(first[-1])
    loading, covariance = np.zeros((nodes, 1)), np.zeros((nodes, nodes))  # on the root's x, and of the rest
    loading[0] = 1
    for level in range(1, len(sizes)):
        for family, parent in enumerate(full.parents[level].tolist()):
            rows = first[level] + 4 * family + np.arange(4)
            users = np.maximum(totals[level][4 * family : 4 * family + 4], 1e-3)
            share, s = users / users.sum(), kappa[level] * users**2
            above = first[level - 1] + parent
            loading[rows] = share[:, None] * loading[above]
            cross = share[:, None] * covariance[above]
            covariance[rows] = cross
            covariance[:, rows] = cross.T
            own = np.diag(s) - np.outer(s, s) / s.sum()
            covariance[np.ix_(rows, rows)] = np.outer(share, share) * covariance[above, above] + own
    leaves = np.concatenate([first[level] + np.flatnonzero(leaf) for level, leaf in enumerate(full.leaves)])
    prior = covariance + 1e8 * loading @ loading.T
    gain = prior[:, leaves] @ np.linalg.inv(prior[np.ix_(leaves, leaves)] + np.diag(measured))
    return gain @ counts, np.diag(prior - gain @ prior[leaves])


def test_the_smoother_is_the_exact_posterior() -> None:
    rng = seeded_rng(3)
    leaves = len(SMALL.tree.entries)
    users = rng.uniform(0, 400, leaves)
    totals, measured = SMALL.sums(SMALL.by_level(users)), rng.uniform(5, 50, leaves)
    counts = rng.normal(0, 60, leaves)
    own = [one[:, None] for one in SMALL.by_level(counts)]
    variances = SMALL.by_level(measured)
    means, spread, kappas = slot_maps._upward(SMALL, own, variances, totals, np.array([1]))
    found, variance = slot_maps._downward(SMALL, means, spread, kappas, totals)
    wanted, exact = dense(SMALL, counts, measured, totals, [0.0, *(float(one[0]) for one in kappas[1:])])
    assert np.concatenate(found)[:, 0] == pytest.approx(wanted, rel=1e-3, abs=1e-2)
    assert np.concatenate(variance)[:, 0] == pytest.approx(exact, rel=2e-3)


def test_the_likelihood_of_a_family_is_that_of_its_contrasts() -> None:
    """Against the density of three contrasts of four children that do not move with the parent."""
    rng = seeded_rng(4)
    users, mean, variance = rng.uniform(1, 100, 4), rng.normal(0, 9, (4, 1)), rng.uniform(1, 9, (4, 1))
    share = users / users.sum()
    contrasts = np.linalg.svd(share[None, :])[2][1:]  # orthonormal to the share

    def log_density(kappa: float) -> float:
        s = kappa * users**2
        covariance = contrasts @ (np.diag(s) - np.outer(s, s) / s.sum() + np.diag(variance[:, 0])) @ contrasts.T
        value = contrasts @ mean[:, 0]
        return -0.5 * float(np.log(np.linalg.det(covariance)) + value @ np.linalg.solve(covariance, value))

    def found(kappa: float) -> float:
        return float(slot_maps._Family(users, np.array([kappa]), mean, variance).log_likelihood()[0])

    assert found(0.1) - found(1e-4) == pytest.approx(log_density(0.1) - log_density(1e-4), rel=1e-9)


@pytest.mark.parametrize("slots", [2, 3, 5, 7, 24, 168])
def test_the_basis_is_orthonormal_and_without_the_constant(slots: int) -> None:
    basis, frequency = fourier_basis(slots)
    assert basis.shape == (slots - 1, slots)
    assert basis @ basis.T == pytest.approx(np.eye(slots - 1), abs=1e-12)
    assert basis.sum(axis=1) == pytest.approx(np.zeros(slots - 1), abs=1e-12)
    assert frequency.tolist() == sorted(frequency.tolist())


def city(slots: int, users: float, seed: int) -> tuple[FullTree, Array]:
    """A uniform tree, and the expected users of its leaves by slot: two kinds of places with profiles of their own."""
    full, rng = FullTree.from_trees(Tree.uniform(6, 3)), seeded_rng(seed)
    hour = 2 * np.pi * np.arange(slots) / slots
    home, work = 1 + 0.7 * np.cos(hour), np.maximum(1 - 1.2 * np.cos(hour), 0.05)
    mix = np.repeat(rng.beta(0.7, 0.7, 16), 4)
    mass = rng.gamma(0.6, 1.0, 64)
    expected = mass * (home[:, None] / home.sum() * mix + work[:, None] / work.sum() * (1 - mix))
    return full, expected * (users / expected.sum())


def inferred(full: FullTree, truth: Array, noise: float, rng: np.random.Generator) -> tuple[SlotPosterior, Array]:
    counts = truth + rng.laplace(0, np.sqrt(noise / 2), truth.shape)
    return infer_slots(full, counts, noise, truth.sum(axis=0)), counts


def test_expected_users_add_up_over_slots_and_children_and_are_not_negative() -> None:
    full, expected = city(24, 2_000, 1)
    truth = seeded_rng(2).poisson(expected).astype(float)
    posterior, counts = inferred(full, truth, 50.0, seeded_rng(3))
    found, variance = posterior.leaves()
    users, stddev = estimated_users(found, variance, counts, 50.0)
    for values in (found, users):
        assert (values >= 0).all()
        assert values.sum(axis=0) == pytest.approx(truth.sum(axis=0), rel=1e-6, abs=1e-4)
    assert (stddev > 0).all()
    for level in range(1, len(full.codes)):
        summed = posterior.expected[level].reshape(-1, 4, 24).sum(axis=1)
        assert summed == pytest.approx(posterior.expected[level - 1][full.parents[level]], rel=1e-6, abs=1e-6)


def test_sharing_structure_beats_noisy_counts_and_the_product_of_map_and_profile() -> None:
    """Mean squared errors over 20 draws of a city and its noise."""
    errors = np.zeros(4)
    for seed in range(20):
        full, expected = city(24, 20_000, seed)
        rng = seeded_rng([seed, 7])
        truth = rng.poisson(expected).astype(float)
        posterior, counts = inferred(full, truth, 32.0, rng)
        found, variance = posterior.leaves()
        users, _ = estimated_users(found, variance, counts, 32.0)
        product = truth.sum(axis=0) * (counts.sum(axis=1) / counts.sum())[:, None]
        errors += [float(((one - truth) ** 2).mean()) for one in (users, counts, product)] + [
            float(((found - expected) ** 2).mean() / ((counts - expected) ** 2).mean())
        ]
    ours, noisy, independent, pattern = errors / 20
    assert ours < 0.6 * noisy
    assert ours < 0.8 * independent
    assert pattern < 0.25


def test_the_stated_deviation_is_that_of_the_error_on_average() -> None:
    ratios = []
    for seed in range(20):
        full, expected = city(24, 20_000, seed)
        rng = seeded_rng([seed, 9])
        truth = rng.poisson(expected).astype(float)
        posterior, counts = inferred(full, truth, 32.0, rng)
        users, stddev = estimated_users(*posterior.leaves(), counts, 32.0)
        ratios.append(float(((users - truth) ** 2).sum() / (stddev**2).sum()))
    assert 0.8 < np.mean(ratios) < 1.2


def test_without_users_there_is_no_warning_and_no_nan() -> None:
    full = FullTree.from_trees(Tree.uniform(4, 2))
    counts = seeded_rng(1).normal(0, 5, (7, 16))
    with np.errstate(all="raise", under="ignore"):
        posterior = infer_slots(full, counts, 25.0, np.zeros(16))
        users, stddev = estimated_users(*posterior.leaves(), counts, 25.0)
    assert np.isfinite(users).all()
    assert np.isfinite(stddev).all()
    assert users.sum() == pytest.approx(0, abs=1e-3)
