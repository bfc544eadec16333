"""The maps of every slot of time: their posterior given noisy counts by slot, and how a heatmap publishes them. Pure.

Model. A node's expected users by slot are a vector x that adds up to the node's users T, which are known from the map
of all slots. A node's children divide x:

    x_c = w_c x + e_c,   w_c = T_c / T,   sum of e_c over the children = 0.

So a child has its parent's profile over the slots, up to e_c. In the Fourier basis of the slots, which are a cycle, the
components of e_c are independent: N(0, kappa T_c^2), given that they add up to 0. kappa is the variance of the relative
difference between the profiles of parent and child. It has a value for each level and frequency: profiles differ more
at some scales than at others, and are smooth over neighbouring slots. The users of a leaf in a slot are a Poisson
number around x, measured with noise of variance v. In the basis that is a measurement of x with variance v + T / slots.

Inference is exact for given kappa: one pass up the tree (messages m with variances r about a node's x) and one pass
down, as a Kalman smoother on a tree (Chou, Willsky and Benveniste 1994, IEEE Trans. Automatic Control 39, 464). The
pass up also gives the likelihood of kappa from the contrasts of each family only, so kappa is learned from the noisy
counts, level by level from below (empirical Bayes).

Users. Given x, a leaf's count is Poisson: the estimate of users is x + x / (x + v) (y - x), where y is the noisy count.
It is between the expected users, where the noise is large, and the noisy count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.known_digits import Z_95
from sfumato.schemas.region import Grid
from sfumato.schemas.release import SLOTS_SCHEMA
from sfumato.schemas.tree import Tree, node_names, node_positions
from sfumato.transforms.counting.estimator import density, estimate_density, sampling_of
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.statistics.posterior.full_tree import FullTree
from sfumato.transforms.statistics.posterior.unbiased import CONTINUITY, user_intervals

Array = NDArray[np.float64]
KAPPAS = np.geomspace(1e-7, 0.3, 20)  # relative variances that are averaged by their likelihood
POOLING = 0.5  # weight of the likelihood of the level below: a level near the root has few families
_LEAST_USERS = 1e-3  # of a node, so that its variance is not 0
_LEAST_SHARE = 0.05  # of its parent's profile, that a child's expected users keep in every slot
_FITTING_STEPS = 30
_MAX_VALUES = 1 << 21  # of the array: 8 MB
# Discrete Laplace noise has heavier tails than a normal variable: 2.12 deviations for 95% of one of them (Cornish and
# Fisher, by the kurtosis 3 / sums).
_KURTOSIS_95 = 0.206


@dataclass(frozen=True)
class SlotPosterior:
    """The posterior of a full tree's nodes."""

    full: FullTree
    # By level, expected users of each node in each slot, float64[n, slots]; not negative. They add up to the node's
    # users over the slots, and to the parent's over siblings.
    expected: list[Array]
    variance: list[Array]  # by level, of the error of a node's expected users, on average over the slots, float64[n]

    def leaves(self) -> tuple[Array, Array]:
        """Returns expected users of the leaves, float64[slots, leaves], and their variances, float64[leaves]."""
        slots = self.expected[0].shape[1]
        expected = np.stack([self.full.leaf_values([one[:, slot] for one in self.expected]) for slot in range(slots)])
        return expected, self.full.leaf_values(self.variance)


def infer_slots(full: FullTree, counts: Array, noise: float, users: Array) -> SlotPosterior:
    """Returns the posterior of a tree's nodes in every slot.

    counts: float64[slots, leaves], noisy users, in the order of `full.tree`'s entries; noise: the variance of the noise
    in each of them; users: float64[leaves], over all slots.
    """
    slots = len(counts)
    basis, frequency = fourier_basis(slots)
    totals = full.sums(full.by_level(np.maximum(users, 0)))
    measured = full.by_level(noise + np.maximum(users, 0) / slots)
    by_component = [full.by_level(one) for one in basis @ counts]
    own = [np.stack([one[level] for one in by_component], axis=-1) for level in range(len(full.codes))]
    means, variances, kappas = _upward(full, own, measured, totals, frequency)
    found, spread = _downward(full, means, variances, kappas, totals)
    raw = [one @ basis + total[:, None] / slots for one, total in zip(found, totals, strict=True)]
    # A component's variance counts in every slot with its basis vector's square, which is 1 / slots on average.
    each = [one.sum(axis=1) / slots for one in spread]
    return SlotPosterior(full, _reconciled(full, raw, totals), each)


def estimated_users(expected: Array, variance: Array, counts: Array, noise: float) -> tuple[Array, Array]:
    """Returns users of the leaves in each slot, and standard deviations of their errors: float64[slots, leaves] each.

    expected: float64[slots, leaves], with variances of errors float64[leaves]; counts: float64[slots, leaves], noisy
    users; noise: variance of the noise.
    """
    kept = expected / (expected + noise)
    users = np.maximum(expected + kept * (counts - expected), 0)
    total, shown = expected.sum(axis=0), users.sum(axis=0)
    users = np.where(shown > 0, users * (total / np.where(shown > 0, shown, 1)), expected)
    return users, np.sqrt(kept * noise + (1 - kept) ** 2 * variance)


def fourier_basis(slots: int) -> tuple[Array, NDArray[np.int64]]:
    """Returns the orthonormal real Fourier basis without the constant: float64[slots - 1, slots]; and frequencies,
    int64.
    """
    angle = 2 * np.pi * np.arange(slots) / slots
    rows, frequencies = [], []
    for k in range(1, slots // 2 + 1):
        waves = (np.cos(k * angle),) if 2 * k == slots else (np.cos(k * angle), np.sin(k * angle))
        rows += [wave / np.linalg.norm(wave) for wave in waves]
        frequencies += [k] * len(waves)
    return np.array(rows), np.array(frequencies)


class _Family:
    """The families of a level's nodes: n families of four children, K components.

    Args:
        users: float64[4 n].
        kappa: float64[K].
        mean, variance: float64[4 n, K], m and r, the messages about the children.
    """

    def __init__(self, users: Array, kappa: Array, mean: Array, variance: Array):
        children = np.maximum(users, _LEAST_USERS).reshape(-1, 4, 1)
        self.share = children / children.sum(axis=1, keepdims=True)  # float64[n, 4, 1], w, of the parent's users
        self.prior = kappa * children**2  # float64[n, 4, K], s, the variance of e before it must add up to 0
        self.mean, self.variance = (one.reshape(-1, 4, mean.shape[1]) for one in (mean, variance))

    def _weights(self) -> tuple[Array, Array]:
        """Returns 1 / (s + r), float64[n, 4, K], and the sum of s r / (s + r), float64[n, 1, K]."""
        weight = 1 / (self.prior + self.variance)
        return weight, (self.prior * self.variance * weight).sum(axis=1, keepdims=True)

    def _solved(self, values: Array) -> Array:
        """Returns (Q + R)^-1 values, by Sherman and Morrison: Q = diag(s) - s s' / sum(s) is the covariance of e."""
        weight, left = self._weights()
        scaled = self.prior * weight
        return np.asarray(values * weight + scaled * (scaled * values).sum(axis=1, keepdims=True) / left)

    def _gain(self, values: Array) -> Array:
        """Returns Q (Q + R)^-1 values."""
        solved = self._solved(values)
        summed = self.prior.sum(axis=1, keepdims=True)
        return np.asarray(self.prior * (solved - (self.prior * solved).sum(axis=1, keepdims=True) / summed))

    def message(self) -> tuple[Array, Array]:
        """Returns what the children say about their parent: mean and variance, float64[n, K] each."""
        precision = (self.share * self._solved(self.share * np.ones_like(self.mean))).sum(axis=1)
        return np.asarray((self.share * self._solved(self.mean)).sum(axis=1) / precision), 1 / precision

    def log_likelihood(self) -> Array:
        """Returns the log likelihood of all contrasts between siblings, up to a constant: float64[K]."""
        weight, left = self._weights()
        solved = self._solved(self.mean)
        precision = (self.share * self._solved(self.share * np.ones_like(self.mean))).sum(axis=1)
        energy = (self.mean * solved).sum(axis=1) - (self.share * solved).sum(axis=1) ** 2 / precision
        determinant = np.log(left[:, 0] / self.prior.sum(axis=1)) - np.log(weight).sum(axis=1)
        return np.asarray(-0.5 * (energy + determinant + np.log(precision)).sum(axis=0))

    def posterior(self, parent: Array, variance: Array) -> tuple[Array, Array]:
        """Returns the mean and variance of the children, float64[4 n, K] each, of those of their parents, float64[n, K]
        each.
        """
        before = self.share * parent[:, None, :]
        mean = before + self._gain(self.mean - before)
        own = self.prior * self.variance * self._weights()[0]
        own = own - own**2 / own.sum(axis=1, keepdims=True)
        passed = self.share - self._gain(self.share * np.ones_like(self.mean))
        return mean.reshape(-1, mean.shape[2]), (own + passed**2 * variance[:, None, :]).reshape(-1, mean.shape[2])


def _upward(
    full: FullTree, own: list[Array], measured: list[Array], totals: list[Array], frequency: NDArray[np.int64]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Returns the messages about every node, by level: means and variances, float64[n, K], and the learned kappa,
    float64[K].

    Args:
        own: by level, components of the leaves' counts, float64[n, K]; other nodes have none.
        measured: by level, variance of the leaves' components, float64[n].
        totals: by level, users of the nodes.
        frequency: int64[K], of the components. Those of one frequency share their kappa.
    """
    finest, components = len(full.codes) - 1, len(frequency)
    means, variances, kappas = ([np.zeros(0)] * (finest + 1) for _ in range(3))
    above: tuple[Array, Array] | None = None
    below = np.zeros((len(KAPPAS), components))
    for level in range(finest, -1, -1):
        mean, variance = own[level].copy(), np.repeat(measured[level][:, None], components, axis=1)
        if above is not None:
            mean[full.parents[level + 1]], variance[full.parents[level + 1]] = above
        means[level], variances[level] = mean, variance
        if level == 0:
            break
        ones = np.ones(components)
        likelihood = np.stack(
            [_Family(totals[level], kappa * ones, mean, variance).log_likelihood() for kappa in KAPPAS]
        )
        likelihood = np.stack([likelihood[:, frequency == one].sum(axis=1) for one in frequency], axis=1)
        below = likelihood + POOLING * below
        weight = np.exp(below - below.max(axis=0))
        kappas[level] = (weight * KAPPAS[:, None]).sum(axis=0) / weight.sum(axis=0)
        above = _Family(totals[level], kappas[level], mean, variance).message()
    return means, variances, kappas


def _downward(
    full: FullTree, means: list[Array], variances: list[Array], kappas: list[Array], totals: list[Array]
) -> tuple[list[Array], list[Array]]:
    """Returns the posterior means and variances of every node's components, by level: float64[n, K]. See `_upward`."""
    found, spread = [means[0]], [variances[0]]
    for level in range(1, len(full.codes)):
        family = _Family(totals[level], kappas[level], means[level], variances[level])
        mean, variance = family.posterior(found[-1][full.parents[level]], spread[-1][full.parents[level]])
        found.append(mean)
        spread.append(variance)
    return found, spread


def _reconciled(full: FullTree, raw: list[Array], totals: list[Array]) -> list[Array]:
    """Returns expected users that are not negative and add up, by level and node: float64[n, slots].

    From the root down, each family's table of children and slots is fitted to its children's users and to its parent's
    users by slot (iterative proportional fitting, Deming and Stephan 1940).
    """
    root = np.maximum(raw[0], _LEAST_SHARE * totals[0][:, None] / raw[0].shape[1])
    found = [root * (totals[0][:, None] / np.maximum(root.sum(axis=1, keepdims=True), 1e-12))]
    for level in range(1, len(full.codes)):
        parent = found[-1][full.parents[level]][:, None, :]
        users = np.maximum(totals[level], 1e-9).reshape(-1, 4, 1)
        share = users / users.sum(axis=1, keepdims=True)
        users = share * parent.sum(axis=2, keepdims=True)
        table = np.maximum(raw[level].reshape(len(parent), 4, -1), _LEAST_SHARE * share * parent) + 1e-12
        for _ in range(_FITTING_STEPS):
            table = table * (users / np.maximum(table.sum(axis=2, keepdims=True), 1e-300))
            table = table * (parent / np.maximum(table.sum(axis=1, keepdims=True), 1e-300))
        found.append(table.reshape(-1, table.shape[2]))
    return found


@dataclass(frozen=True, eq=False)
class SlotMaps:
    """The maps of S slots on a tree of T cells."""

    tree: Tree  # of the cells that the sub-query by slot counted
    # users, stddev: float64[S, T], estimated users and the standard deviations of their errors. Users are not negative,
    # and add up over the slots to the map's users.
    users: Array
    stddev: Array
    expected: Array  # float64[S, T], users to expect in such a slot, see the module
    unbiased: Array  # unbiased, low, high: float64[S, T], users with the noise only and their 95% intervals
    low: Array
    high: Array
    region: Array  # region, region_stddev: float64[S], unbiased users of the whole region and their standard deviations
    region_stddev: Array

    @classmethod
    def from_state(cls, state: CountState, estimate: Estimate) -> SlotMaps | None:
        """Returns the maps of a run; None without slots. estimate: the published map of all slots."""
        result = state.slot_result
        if result is None:
            return None
        tree = result.tree
        full = FullTree.from_trees(tree)
        counts, noise = result.counts.reshape(state.slots, -1), result.noise_stddev**2
        owner = FullTree.from_trees(estimate.tree).owners(tree)
        total = np.bincount(owner, np.maximum(estimate.counts, 0), len(tree.entries)).astype(np.float64)
        posterior = infer_slots(full, counts, noise, total)
        expected, error = posterior.leaves()
        users, stddev = estimated_users(expected, error, counts, noise)
        # The users of shards that are not in the result, and of a population beyond those who take part, are estimated.
        answered = result.shards_answered / state.shard_plan.shards
        sampling = 1 / answered - 1 + sampling_of(state)
        deviations = Z_95 + _KURTOSIS_95 / state.tail_sums
        margin = deviations * np.sqrt(noise + sampling * np.maximum(counts, expected)) + CONTINUITY
        region, region_stddev = _region(state, counts, noise, sampling)
        return cls(
            tree,
            users,
            np.sqrt(stddev**2 + sampling * expected),
            expected,
            counts,
            np.maximum(counts - margin, 0),
            np.maximum(counts + margin, 0),
            region,
            region_stddev,
        )

    def table(self, grid: Grid, names: tuple[str, ...]) -> pa.Table:
        """Returns `slots.parquet`, by SLOTS_SCHEMA: slot after slot, in the order of the tree's entries."""
        slots, cells = self.users.shape
        level, x, y = node_positions(self.tree.entries)
        bounds = zip(("west", "south", "east", "north"), grid.bounds(x, y, level), strict=True)
        slot = np.repeat(np.arange(slots, dtype=np.int16), cells)
        columns = {
            "cell_id": pa.array(node_names(self.tree.entries) * slots),
            "depth": np.tile(level.astype(np.int8), slots),
            **{name: np.tile(values, slots) for name, values in bounds},
            "slot": slot,
            "slot_name": pa.DictionaryArray.from_arrays(pa.array(slot), pa.array(names)),
            "users": self.users.ravel(),
            "stddev": self.stddev.ravel(),
            "expected": self.expected.ravel(),
            "users_unbiased": self.unbiased.ravel(),
            "users_low": self.low.ravel(),
            "users_high": self.high.ravel(),
        }
        return pa.table(columns, schema=SLOTS_SCHEMA)

    def raster(self, estimate: Estimate) -> NDArray[np.float32]:
        """Returns `slots.npy`: users of each slot on a grid, float32[S, 2^d, 2^d], row 0 in the north.

        Inside a cell of the slots' tree users are spread as those of all slots are in `estimate`, the published map. d
        is the grid's depth, or as fine as the array stays below 8 MB.
        """
        slots, depth = len(self.users), self.tree.depth
        while slots * 4**depth > _MAX_VALUES and depth > 1:
            depth -= 1
        maps = np.stack([density(self.tree, users, depth) * users.sum() for users in self.users])
        total = maps.sum(axis=0)
        maps = np.divide(maps, total, out=np.full_like(maps, 1 / slots), where=total > 0)
        return np.asarray(maps * (estimate_density(estimate, depth) * self.users.sum()), dtype=np.float32)

    def profile(self) -> list[dict[str, Any]]:
        """Returns the users of the whole region in each slot with 95% intervals, for the manifest."""
        low, high = user_intervals(self.region, self.region_stddev)
        rows = zip(self.region.tolist(), self.region_stddev.tolist(), low.tolist(), high.tolist(), strict=True)
        return [dict(zip(("users", "stddev", "low", "high"), row, strict=True)) for row in rows]


def _region(state: CountState, counts: Array, noise: float, sampling: float) -> tuple[Array, Array]:
    """Returns unbiased users of the region in each slot, which add up to its users, and standard deviations: float64[S]
    each.

    Generalised least squares: the difference between the region's users, from all noisy figures, and the sum of the
    slots is shared out evenly, because all slots have the same noise.
    """
    slots = len(counts)
    summed, variance = counts.sum(axis=1), noise * counts.shape[1]
    users, stddev = state.users_estimate()
    found = summed + (users - summed.sum()) / slots
    spread = variance * (1 - 1 / slots) + stddev**2 / slots**2 + sampling * np.maximum(found, 0)
    return found, np.sqrt(spread)
