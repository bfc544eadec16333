"""The posterior of the users of every node of a full quadtree, given all measurements. Pure.

A family is the four children of a node with T users. Its contrast is each child's users minus T / 4: the four values
sum to zero, so three are free. The energy of a contrast is its sum of squares. A family of roughness rho has the
expected energy S = rho T^2, evenly in all directions. rho is one of ROUGHNESS, from nearly even to all users in one
child. A measured contrast has the energy E of the noise on top. A prior of rho is learned from all families of a level,
and differences that noise can explain are shrunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.statistics.posterior.full_tree import FullTree, NodeMeasurements, SubtreeSums, add_up, by_family

Floats = NDArray[np.float64]

ROUGHNESS = np.geomspace(1e-4, 0.74, 14)
LARGEST = 0.75  # roughness of a family all of whose users are in one child: (3/4)^2 + 3 (1/4)^2
FLAT = np.full(len(ROUGHNESS), 1 / len(ROUGHNESS))
SIGNAL = 4.0  # deviations of the contrast's noise: a family with a larger T is strong
_ITERATIONS = 30  # of EM
_PULL = 4.0  # families that the weights of the level above count as
_CARRY = 0.97  # share of the weights that a level takes from the one above; the rest is flat
_MAX_FAMILIES = 1 << 14  # that weights are learned from: more would not change them
_MAX_SLOPE = 1.3  # of a coefficient; 1 continues the slope between neighbours as a plane
_MIN_FAMILIES = 8  # that a coefficient is learned from
_REUSE = 1 / 25  # see `_reestimate_leaves`


class Learner:
    """Learns the prior probabilities of each kind of family, level by level, from the root down.

    A kind is a roughness, or a roughness with more attributes. Each level starts from the weights of the one above.
    Strong and weak families (T above or below SIGNAL deviations) have weights of their own. The first weak families
    start from the weights of the strong ones.

    prior: float64[kinds], the weights before any family is seen.
    """

    def __init__(self, prior: Floats = FLAT) -> None:
        self._prior = prior
        self._found: list[Floats | None] = [None, None]

    def learn(self, likelihood: Floats, strong: NDArray[np.bool_]) -> Floats:
        """Returns the most probable weights of weak and of strong families, float64[2, kinds], found by EM.

        likelihood: float64[n, kinds], of n families.
        """
        for is_strong in (True, False):
            families = likelihood[strong == is_strong]
            if len(families):
                begin = self._weights(is_strong)
                self._found[is_strong] = _learn(families, _CARRY * begin + (1 - _CARRY) * self._prior)
        return np.stack([self._weights(False), self._weights(True)])

    def _weights(self, is_strong: bool) -> Floats:
        """Returns the weights of strong or weak families; before any is seen, those of the others, else the prior."""
        for found in (self._found[is_strong], self._found[not is_strong]):
            if found is not None:
                return found
        return self._prior


def _learn(likelihood: Floats, begin: Floats) -> Floats:
    likelihood = likelihood[:: 1 + len(likelihood) // _MAX_FAMILIES]
    weights = begin
    for _ in range(_ITERATIONS):
        posterior = likelihood * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        weights = (posterior.sum(axis=0) + _PULL * begin) / (len(posterior) + _PULL)
    return weights


class Energies:
    """The energies of signal S and of noise E of n families at each roughness: float64[n, 14] each.

    Args:
        squared: float64[n], T^2 or its expectation.
        users: float64[n], T.
        noise: float64[n], energy of the privacy noise.
        sampling: energy that each user adds because users are a sample; (0.75 - rho) of it shows in contrasts.
    """

    def __init__(self, squared: Floats, users: Floats, noise: Floats, sampling: float):
        self.signal = ROUGHNESS * squared[:, None]
        self.noise = np.maximum(noise[:, None] + sampling * (LARGEST - ROUGHNESS) * users[:, None], 1e-9)

    @property
    def kept(self) -> Floats:
        """Returns S / (S + E): the share of a measured contrast that shrinkage keeps."""
        return self.signal / (self.signal + self.noise)

    def likelihood(self, energy: Floats) -> Floats:
        """Returns the likelihood of measured energies float64[n], up to a factor for each family: of three normal
        variates.
        """
        total = self.signal + self.noise
        logs = -1.5 * (np.log(total) + energy[:, None] / total)
        return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))

    def unknown(self) -> Floats:
        """Returns S E / (S + E): the energy that stays unknown after a measurement."""
        return self.noise * self.kept


def project(children: Floats, total: Floats) -> Floats:
    """Returns the nearest points to rows float64[n, 4] that are >= 0 and add up to `total`, float64[n] >= 0."""
    falling = -np.sort(-children, axis=1)
    excess = (np.cumsum(falling, axis=1) - total[:, None]) / np.arange(1, 5)
    last = np.maximum((falling > excess).sum(axis=1), 1) - 1
    return np.asarray(np.maximum(children - excess[np.arange(len(children)), last][:, None], 0.0))


@dataclass(frozen=True)
class Families:
    """The n families of a level on the way down."""

    users: Floats  # float64[n], of the parents
    noise: Floats  # float64[n], energy of the noise in the measured contrasts, in squared users
    posterior: Floats  # float64[n, 14], probabilities of ROUGHNESS
    weights: Floats  # of the level's kinds, see `Learner.learn`


@dataclass(frozen=True)
class Posterior:
    """The posterior of a full tree's nodes."""

    full: FullTree
    users: list[Floats]  # by level and node
    variance: list[Floats]  # of the errors of `users`, by level and node
    measured: SubtreeSums  # the estimate of the measurements without a prior
    families: list[Families | None]  # by level; None for the root
    slope: float  # the share of the gradient between neighbours that continues inside a leaf, in [0, 1]


def infer(
    full: FullTree,
    own: NodeMeasurements,
    users: float,
    sampling: float,
    noise: NodeMeasurements | None = None,
    guide: Sequence[Floats] | None = None,
) -> Posterior:
    """Returns the posterior of the nodes of a tree.

    Goes down from the root, one level at a time. In each family:

    1. The members' measurements are reconciled with their parent's users by their variances.
    2. Their contrast is predicted from the slope between the parent's neighbours and from the guide. The coefficients
       are learned from all families of the level.
    3. The rest of the contrast is shrunk.
    4. The members become the nearest numbers that are not negative.

    Then all leaves are estimated again (see `_reestimate_leaves`).

    Args:
        full: the tree.
        own: measurements of nodes, of every leaf among them.
        users: of the root.
        sampling: share of its users by which a node's variance grows because the cohort is a sample, or 0.
        noise: the same measurements with the variance of their noise only; None if `own` has no other variance.
        guide: users of the same nodes at an earlier time, by level and node. The weight of the shares that it predicts
            is learned from the measurements.
    """
    measured = add_up(full, own)
    counts, spread = [np.array([users])], [np.zeros(1)]
    families: list[Families | None] = [None]
    learner = Learner()
    slopes: list[tuple[int, float]] = []  # the number of families and the slope learned from them
    for level in range(1, len(full.codes)):
        parents = full.parents[level]
        total = counts[level - 1][parents]
        members, variance = by_family(measured.users[level]), by_family(measured.variance[level])
        summed = variance.sum(axis=1)
        reconciled = members + variance / summed[:, None] * (total - members.sum(axis=1))[:, None]
        contrast = reconciled - total[:, None] / 4
        noisy = np.maximum((variance - variance**2 / summed[:, None]).sum(axis=1), 1e-12)
        scale = noisy + sampling * 0.75 * total
        strong = total > SIGNAL * np.sqrt(scale)

        bases = []
        if level >= 2:
            bases.append(full.gradient(level - 1, parents, counts))
        if guide is not None:
            earlier = by_family(guide[level])
            before = earlier.sum(axis=1, keepdims=True)
            bases.append(total[:, None] * (earlier / np.where(before > 0, before, 1) - np.where(before > 0, 0.25, 0)))
        predicted, slope = predict_contrasts(bases, contrast, 1 / (scale + (0.05 * total) ** 2 + 1e-9), strong, total)
        if level >= 2 and slope is not None:
            slopes.append((len(total), slope))

        left = contrast - predicted
        energy = (left**2).sum(axis=1)
        energies = Energies(total**2, total, noisy, sampling)
        likelihood = energies.likelihood(energy)
        weights = learner.learn(likelihood, strong)
        posterior = likelihood * weights[strong.astype(np.int64)]
        posterior /= posterior.sum(axis=1, keepdims=True)
        kept = (posterior * energies.kept).sum(axis=1)
        doubt = (posterior * (energies.kept - kept[:, None]) ** 2).sum(axis=1)  # about the roughness
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
    return _reestimate_leaves(result, own, noise or own, sampling, users)


def predict_contrasts(
    bases: Sequence[Floats], contrast: Floats, weight: Floats, strong: NDArray[np.bool_], total: Floats
) -> tuple[Floats, float | None]:
    """Predicts contrasts float64[n, 4] from bases of that shape.

    Weighted least squares gives a coefficient in [0, _MAX_SLOPE] for each basis, for strong and weak families apart.

    Returns:
        The contrasts, and the smaller coefficient of the first basis; None where none was learned.
    """
    predicted, first = np.zeros_like(contrast), []
    for kind in (strong, ~strong):
        if not bases or kind.sum() < _MIN_FAMILIES:
            continue
        found = _least_squares([basis[kind] for basis in bases], contrast[kind], weight[kind])
        predicted[kind] = sum(c * basis[kind] for c, basis in zip(found, bases, strict=True))
        first.append(float(found[0]))
    predicted = np.clip(predicted, -total[:, None] / 4, total[:, None] / 4)
    return predicted - predicted.mean(axis=1, keepdims=True), min(first, default=None)


def _least_squares(bases: list[Floats], target: Floats, weight: Floats) -> Floats:
    """Returns non-negative coefficients of one basis or two. A basis with a negative coefficient is left out."""
    # Plain sums: the result of a linear-algebra library depends on its threads, and a tree must not.
    gram = np.array([[float((weight[:, None] * a * b).sum()) for b in bases] for a in bases])
    gram += np.diag(1e-3 * np.diag(gram) + 1e-12)
    right = np.array([float((weight[:, None] * a * target).sum()) for a in bases])
    if len(bases) == 2:
        determinant = gram[0, 0] * gram[1, 1] - gram[0, 1] ** 2
        both = np.array([gram[1, 1] * right[0] - gram[0, 1] * right[1], gram[0, 0] * right[1] - gram[0, 1] * right[0]])
        if determinant > 0 and (both >= 0).all():
            return np.asarray(np.minimum(both / determinant, _MAX_SLOPE))
        right = np.where(both > 0, right, 0.0)
    return np.asarray(np.clip(right / np.diag(gram), 0.0, _MAX_SLOPE))


def _reestimate_leaves(
    before: Posterior, own: NodeMeasurements, noise: NodeMeasurements, sampling: float, users: float
) -> Posterior:
    """Estimates all leaves again, after the leaves with users are known.

    On the way down, a node's total is the sum of all measurements below it. Most of that sum is noise of empty leaves,
    and its error falls on the few leaves with users. So every leaf is estimated again, from its own measurement
    and from a prior. The prior's mean is the leaf's estimate so far. Its variance is _REUSE times the energy of its
    family's contrast, in proportion to the leaf's share. These estimates are then reconciled with the root, level by
    level, by their variances. Leaves far above the noise then keep their measurement, the others their estimate.

    This uses a leaf's measurement twice, because its mean contains it already, and treats the two as independent. The
    factor _REUSE makes that harmless, as measured: intervals of cells are made by `unbiased`, not from these variances.
    Below 1/10 the error on smooth maps grows by less than 1%. Between 1/100 and 1/10 the gain on maps of few crowded
    places hardly changes (synthetic maps, see docs/results/accuracy.md).
    """
    full = before.full
    again = NodeMeasurements([one.copy() for one in noise.weighted], [one.copy() for one in noise.weights])
    spread = [one.copy() for one in before.variance]
    for level in range(1, len(full.codes)):
        family, leaf = before.families[level], full.leaves[level]
        if family is None or not leaf.any():
            continue
        mean = before.users[level]
        energy = np.repeat((family.posterior @ ROUGHNESS) * family.users**2, 4)
        prior = np.maximum(_REUSE * energy * mean / np.maximum(np.repeat(family.users, 4), 1e-9), 1e-9)[leaf]
        again.weighted[level][leaf] += mean[leaf] / prior
        again.weights[level][leaf] += 1 / prior
        trust = prior * noise.weights[level][leaf] / (prior * noise.weights[level][leaf] + 1)
        known = 1 / own.weights[level][leaf] + sampling * mean[leaf]  # the whole variance of the measurement
        spread[level][leaf] = (1 - trust) ** 2 * spread[level][leaf] + trust**2 * known
    sums = add_up(full, again)
    counts = [np.array([users])]
    for level in range(1, len(full.codes)):
        members, variance = by_family(sums.users[level]), by_family(sums.variance[level])
        total = counts[level - 1][full.parents[level]]
        missing = (total - members.sum(axis=1)) / variance.sum(axis=1)
        counts.append(project(members + variance * missing[:, None], total).ravel())
    return Posterior(full, counts, spread, before.measured, before.families, before.slope)
