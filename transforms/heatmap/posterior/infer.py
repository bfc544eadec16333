"""The users of every node of a full quadtree, from all that was measured: down the tree, shrinking contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.posterior.contrasts import ROUGHNESS, SIGNAL, Energies, Learner, Weights, project
from sfumato.transforms.heatmap.posterior.levels import FullTree, by_family, to_children
from sfumato.transforms.heatmap.posterior.measurements import Own, Sums, add_up

_MOST_SLOPE = 1.3  # neighbours that differ say no more than this times what a plane would
_FEWEST = 8  # families from which a coefficient is learned
_TWICE = 1 / 25  # see `_settle`


@dataclass(frozen=True)
class Families:
    """What is known of a level's n families, on the way down.

    users: float64[n], of the parents. noise: float64[n], energy of the noise in the measured contrasts. posterior:
    float64[n, 14], over ROUGHNESS. weights: of the level.
    """

    users: NDArray[np.float64]
    noise: NDArray[np.float64]
    posterior: NDArray[np.float64]
    weights: Weights


@dataclass(frozen=True)
class Posterior:
    """What is known of a full tree's nodes.

    users, variance: by level and node; a variance is that of the estimate's error. measured: what the measurements say
    without any prior, from below. families: by level, None for the root's. slope: how much of the neighbours' gradient
    goes on inside a leaf, in [0, 1].
    """

    full: FullTree
    users: list[NDArray[np.float64]]
    variance: list[NDArray[np.float64]]
    measured: Sums
    families: list[Families | None]
    slope: float


def infer(
    full: FullTree,
    own: Own,
    users: float,
    sampling: float,
    noise: Own | None = None,
    guide: Sequence[NDArray[np.float64]] | None = None,
    users_variance: float = 0.0,
) -> Posterior:
    """The posterior of a tree's nodes, whose root has `users` users, known to a variance of `users_variance`.

    own: measurements, every leaf's among them. sampling: share of a node's users by which its variance grows because
    they are a sample of everybody; 0 where everybody is in the cohort. noise: the same measurements with the variance
    of their noise alone, where `own` has more. guide: users of the same nodes at an earlier time, by level and node:
    shares that it predicts count as far as today's measurements bear them out.

    Down from the root, a family at a time: the measured members are reconciled with their parent's users by their
    variances; their contrast is predicted from the slope between the parent's neighbours, and from the guide, with
    coefficients learned from all families of the level; what is left of it is shrunk (see `contrasts`); the result is
    the nearest one without negative users. At the end `_settle`.
    """
    measured = add_up(full, own)
    counts, spread = [_root(users, users_variance, measured)], [np.zeros(1)]
    families: list[Families | None] = [None]
    learner = Learner()
    slopes: list[tuple[int, float]] = []  # families that each is learned from, and the slope
    for level in range(1, len(full.codes)):
        parents = full.parents[level]
        total = counts[level - 1][parents]
        members, variance = by_family(measured.users[level]), by_family(measured.variance[level])
        whole = variance.sum(axis=1)
        reconciled = members + variance / whole[:, None] * (total - members.sum(axis=1))[:, None]
        contrast = reconciled - total[:, None] / 4
        noisy = np.maximum((variance - variance**2 / whole[:, None]).sum(axis=1), 1e-12)
        scale = noisy + sampling * 0.75 * total
        strong = total > SIGNAL * np.sqrt(scale)

        bases = []
        if level >= 2:
            bases.append(full.gradient(level - 1, parents, counts))
        if guide is not None:
            earlier = by_family(guide[level])
            before = earlier.sum(axis=1, keepdims=True)
            bases.append(total[:, None] * (earlier / np.where(before > 0, before, 1) - np.where(before > 0, 0.25, 0)))
        predicted, slope = _predict(bases, contrast, 1 / (scale + (0.05 * total) ** 2 + 1e-9), strong, total)
        if level >= 2 and slope is not None:
            slopes.append((len(total), slope))

        left = contrast - predicted
        energy = (left**2).sum(axis=1)
        energies = Energies.of(total**2, total, noisy, sampling)
        likelihood = energies.likelihood(energy)
        weights = learner.learn(likelihood, strong)
        posterior = likelihood * weights.of(strong)
        posterior /= posterior.sum(axis=1, keepdims=True)
        kept = (posterior * energies.kept).sum(axis=1)
        doubt = (posterior * (energies.kept - kept[:, None]) ** 2).sum(axis=1)  # of which roughness it is
        unknown = (posterior * energies.unknown()).sum(axis=1) + doubt * energy
        children = project(total[:, None] / 4 + predicted + kept[:, None] * left, total)
        shares = children / np.maximum(total, 1e-12)[:, None]
        above = spread[level - 1][parents]
        counts.append(children.ravel())
        spread.append((unknown[:, None] / 4 + above[:, None] * shares**2).ravel())
        families.append(Families(total, noisy, posterior, weights))
    typical = sum(n * one for n, one in slopes) / max(sum(n for n, _ in slopes), 1)
    result = Posterior(full, counts, spread, measured, families, min(typical, 1.0))
    if len(full.codes) == 1:
        return result
    return _settle(result, own, noise or own, sampling, users, users_variance)


def _root(users: float, variance: float, measured: Sums) -> NDArray[np.float64]:
    """The users in all, float64[1]: as they are known, and as the measurements add up to, by inverse variance."""
    if variance <= 0:
        return np.array([users])
    weights = 1 / variance, 1 / float(measured.variance[0][0])
    return np.array([max((users * weights[0] + float(measured.users[0][0]) * weights[1]) / sum(weights), 0.0)])


def _predict(
    bases: Sequence[NDArray[np.float64]],
    contrast: NDArray[np.float64],
    weight: NDArray[np.float64],
    strong: NDArray[np.bool_],
    total: NDArray[np.float64],
) -> tuple[NDArray[np.float64], float | None]:
    """Contrasts float64[n, 4] from bases of that shape, and the least coefficient of the first, None without any.

    Coefficients are those of weighted least squares over the strong and over the weak families, in [0, _MOST_SLOPE].
    """
    predicted, first = np.zeros_like(contrast), []
    for kind in (strong, ~strong):
        if not bases or kind.sum() < _FEWEST:
            continue
        found = _least_squares([basis[kind] for basis in bases], contrast[kind], weight[kind])
        predicted[kind] = sum(c * basis[kind] for c, basis in zip(found, bases, strict=True))
        first.append(float(found[0]))
    predicted = np.clip(predicted, -total[:, None] / 4, total[:, None] / 4)
    return predicted - predicted.mean(axis=1, keepdims=True), min(first, default=None)


def _least_squares(
    bases: list[NDArray[np.float64]], wanted: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Non-negative coefficients of one basis or two: one with a negative coefficient is left out."""
    # Plain sums: what a linear-algebra library returns depends on its threads, and a tree must not.
    gram = np.array([[float((weight[:, None] * a * b).sum()) for b in bases] for a in bases])
    gram += np.diag(1e-3 * np.diag(gram) + 1e-12)
    right = np.array([float((weight[:, None] * a * wanted).sum()) for a in bases])
    if len(bases) == 2:
        determinant = gram[0, 0] * gram[1, 1] - gram[0, 1] ** 2
        both = np.array([gram[1, 1] * right[0] - gram[0, 1] * right[1], gram[0, 0] * right[1] - gram[0, 1] * right[0]])
        if determinant > 0 and (both >= 0).all():
            return np.asarray(np.minimum(both / determinant, _MOST_SLOPE))
        right = np.where(both > 0, right, 0.0)
    return np.asarray(np.clip(right / np.diag(gram), 0.0, _MOST_SLOPE))


def _settle(before: Posterior, own: Own, noise: Own, sampling: float, users: float, users_variance: float) -> Posterior:
    """Once more the totals, now that it is known where the users are.

    On the way down a total is known as the sum of all that was measured below it, most of which is noise from where
    nobody is; what is wrong with it falls on the few leaves that do hold users. So every leaf is estimated again, from
    its own measurement and from a prior of the mean it has by now and of variance _TWICE times the energy of its
    family's contrast, in proportion to its share; sums of these are reconciled with the root by their variances. Leaves
    that stand far out of the noise then keep their measurement, the others their estimate.

    A leaf's measurement has already gone into its mean, so that this uses it twice; the factor _TWICE makes that
    harmless: below 1/10 the loss on smooth maps is less than 1%, and between 1/10 and 1/100 the gain on maps of few
    crowded places hardly changes (synthetic maps; see docs/results/accuracy.md).
    """
    full = before.full
    again = Own([one.copy() for one in noise.weighted], [one.copy() for one in noise.weights])
    spread = [one.copy() for one in before.variance]
    for level in range(1, len(full.codes)):
        family, leaf = before.families[level], full.leaves[level]
        if family is None or not leaf.any():
            continue
        mean = before.users[level]
        energy = to_children((family.posterior @ ROUGHNESS) * family.users**2)
        prior = np.maximum(_TWICE * energy * mean / np.maximum(to_children(family.users), 1e-9), 1e-9)[leaf]
        again.weighted[level][leaf] += mean[leaf] / prior
        again.weights[level][leaf] += 1 / prior
        trust = prior * noise.weights[level][leaf] / (prior * noise.weights[level][leaf] + 1)
        known = 1 / own.weights[level][leaf] + sampling * mean[leaf]  # as a measurement, with all its sampling
        spread[level][leaf] = (1 - trust) ** 2 * spread[level][leaf] + trust**2 * known
    sums = add_up(full, again)
    counts = [_root(users, users_variance, sums)]
    for level in range(1, len(full.codes)):
        members, variance = by_family(sums.users[level]), by_family(sums.variance[level])
        total = counts[level - 1][full.parents[level]]
        missing = (total - members.sum(axis=1)) / variance.sum(axis=1)
        counts.append(project(members + variance * missing[:, None], total).ravel())
    return Posterior(full, counts, spread, before.measured, before.families, before.slope)
