"""Tonight's users of every node of a full quadtree, from what is accumulated by weekday. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.nights.week_model import PRIOR, WEEK, WeekData, infer_week
from sfumato.transforms.heatmap.posterior.contrasts import SIGNAL, Learner, project
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, by_family
from sfumato.transforms.heatmap.posterior.inference import predict_contrasts
from sfumato.transforms.heatmap.posterior.measurements import SubtreeSums

Floats = NDArray[np.float64]
_EVEN = 0.5  # the part of a family's variance that is even over its members; the rest is in proportion to their users
_LEAST_USERS = 0.25  # of a parent whose children's shares are measured


@dataclass(frozen=True)
class Accumulated:
    """The shares of children in their parents' users: weighted means over nights, by level and node.

    Level 0, the root, has no shares. Its arrays are there so that levels are indices.

    Attributes:
        mean: float64[n, 7] each, by weekday.
        precision: float64[n, 7] each, 1 / variance; 0 where nothing was measured.
        night: float64[n / 4] each, by family: the variance of shares from night to night, as learned so far.
        roughness: float64[n / 4] each, the expected roughness, as learned so far.
    """

    mean: list[Floats]
    precision: list[Floats]
    night: list[Floats]
    roughness: list[Floats]

    @classmethod
    def empty(cls, full: FullTree) -> Accumulated:
        """Nothing is known of any node."""
        nodes, families = [len(codes) for codes in full.codes], [len(codes) // 4 for codes in full.codes]
        return cls(
            *([np.zeros((n, WEEK)) for n in nodes] for _ in range(2)),
            *([np.zeros(n) for n in families] for _ in range(2)),
        )


@dataclass(frozen=True)
class NightPosterior:
    """Tonight's users.

    Attributes:
        full: the tree.
        users: float64[n] by level and node.
        variance: of these, for the numbers of users tonight (and not their expectation), by level and node.
        share_variance: float64[n / 4] by level, of each coordinate of a family's shares.
        accumulated: with tonight's measurements.
        slope: see `Estimate`; the mean over levels, weighted by their numbers of families.
    """

    full: FullTree
    users: list[Floats]
    variance: list[Floats]
    share_variance: list[Floats]
    accumulated: Accumulated
    slope: float


def infer_night(
    full: FullTree,
    before: Accumulated,
    weekday: int,
    users: float,
    users_variance: float,
    tonight: SubtreeSums | None = None,
    night_scale: float = 1.0,
) -> NightPosterior:
    """Goes down from the root, one level at a time.

    1. Tonight's measured users become shares of the parent's users, and join the accumulator of their weekday.
    2. The shares of each family are predicted from the slope between its parent's neighbours.
    3. The rest is inferred by `week_model`.
    4. The children become the nearest numbers that are not negative and add up to their parent.

    Args:
        full: the tree.
        before: of the nights before, for the nodes of `full`.
        weekday: of tonight, 0 is Monday.
        users: of the root.
        users_variance: of their error.
        tonight: measured users of the nodes of `full`, with an infinite variance where there is no measurement; None
            predicts from the nights before.
        night_scale: multiplies the variance from night to night, see `variance_scales`.
    """
    counts, spread = [np.array([users])], [np.array([users_variance])]
    night, roughness, share_variance = ([np.zeros(0)] for _ in range(3))
    means, precisions = [before.mean[0]], [before.precision[0]]
    learner, slopes = Learner(PRIOR), [(0, 0.0)]
    for level in range(1, len(full.codes)):
        parents = full.parents[level]
        total = np.maximum(counts[level - 1][parents], _LEAST_USERS)
        mean, precision = before.mean[level], before.precision[level]
        share, noise = np.zeros((len(total), 4)), np.full(len(total), np.inf)
        if tonight is not None:
            share, variance = measured_shares(
                by_family(tonight.users[level]), by_family(tonight.variance[level]), total
            )
            noise = per_coordinate(variance)
            once = variance + 1 / (4 * total[:, None]) + before.night[level][:, None]
            mean, precision = _accumulate(mean, precision, weekday, share.ravel(), once.ravel())
        contrast, weight = _contrasts(mean, precision)
        weights = weight.sum(axis=1)  # float64[n / 4], of a family over the week
        strong = weights > 3 * SIGNAL**2
        # The week's mean contrasts, from which the slope is learned.
        typical = (weight[:, :, None] * contrast).sum(axis=1) / np.maximum(weights, 1e-300)[:, None]
        bases = [full.gradient(level - 1, parents, counts) / total[:, None]] if level >= 2 else []
        fit = 1 / (1 / np.maximum(weights, 1e-30) + 0.05**2)
        predicted, slope = predict_contrasts(bases, typical, fit, strong, np.ones(len(total)))
        if slope is not None:
            slopes.append((len(total), slope))
        is_measured = np.isfinite(noise)[:, None]
        data = WeekData(
            mean=np.where(weight[:, :, None] > 0, contrast - predicted[:, None, :], 0.0),
            precision=weight,
            weekday=weekday,
            tonight=np.where(is_measured, share - 0.25 - predicted, 0.0),
            noise=noise,
            chance=1 / (4 * total),
            night_scale=night_scale,
        )
        found = infer_week(data, learner, strong)
        parent_users = counts[level - 1][parents]
        children = project(parent_users[:, None] * (0.25 + predicted + found.mean), parent_users)
        shares = children / np.maximum(parent_users, 1e-12)[:, None]
        energy = 3 * found.variance * parent_users**2  # of four children, in users squared: three coordinates
        part = (1 - _EVEN) * shares + _EVEN / 4
        spread.append((energy[:, None] * part + spread[level - 1][parents][:, None] * shares**2).ravel())
        counts.append(children.ravel())
        share_variance.append(found.variance)
        night.append(night_scale * found.night)
        roughness.append(found.roughness)
        means.append(mean)
        precisions.append(precision)
    slope = sum(n * one for n, one in slopes) / max(sum(n for n, _ in slopes), 1)
    return NightPosterior(
        full, counts, spread, share_variance, Accumulated(means, precisions, night, roughness), min(slope, 1.0)
    )


def measured_shares(users: Floats, variance: Floats, total: Floats) -> tuple[Floats, Floats]:
    """Measured users float64[n, 4] as shares of the parents' users, which they then add up to, and their variances."""
    summed = variance.sum(axis=1, keepdims=True)
    part = np.where(np.isfinite(summed), variance / np.where(np.isfinite(summed), summed, 1), 0.25)
    share = (users + part * (total - users.sum(axis=1))[:, None]) / total[:, None]
    return share, variance / total[:, None] ** 2


def per_coordinate(variance: Floats) -> Floats:
    """The mean variance of three coordinates of four reconciled numbers: float64[..., 4] -> float64[...]."""
    finite = np.asarray(np.isfinite(variance).all(axis=-1, keepdims=True))
    variance = np.where(finite, variance, 1.0)
    left = variance * (1 - variance / variance.sum(axis=-1, keepdims=True))
    return np.asarray(np.where(finite[..., 0], left.sum(axis=-1) / 3, np.inf))


def _accumulate(
    mean: Floats, precision: Floats, weekday: int, share: Floats, variance: Floats
) -> tuple[Floats, Floats]:
    """Adds a night to the accumulators of its weekday."""
    mean, precision = mean.copy(), precision.copy()
    weight = 1 / variance
    before = precision[:, weekday]
    after = before + weight
    value = np.where(weight > 0, share, 0.0)
    mean[:, weekday] = np.where(after > 0, (before * mean[:, weekday] + weight * value) / np.maximum(after, 1e-300), 0)
    precision[:, weekday] = after
    return mean, precision


def _contrasts(mean: Floats, precision: Floats) -> tuple[Floats, Floats]:
    """Contrasts by family and weekday, float64[n / 4, 7, 4], and their precision float64[n / 4, 7]."""
    shares = np.swapaxes(mean.reshape(-1, 4, WEEK), 1, 2)
    weight = np.swapaxes(precision.reshape(-1, 4, WEEK), 1, 2)
    known = np.asarray((weight > 0).all(axis=2))
    variance = np.where(known[:, :, None], 1 / np.where(known[:, :, None], weight, 1), np.inf)
    reconciled, _ = measured_shares(shares.reshape(-1, 4), variance.reshape(-1, 4), np.ones(len(shares) * WEEK))
    contrast = np.where(known[:, :, None], reconciled.reshape(shares.shape) - 0.25, 0.0)
    return contrast, 1 / per_coordinate(variance)
