"""Tonight's users of every node of a full quadtree, from what is accumulated by weekday. Pure.

The shares of a family of four siblings over the nights of a week follow a hierarchical normal model.
A family's contrast is the share of each child in its parent's users less what is expected without data: four numbers
that add up to 0. On weekday d, of the group g (Monday to Friday, or the weekend), it is

    s_d = L + G_g + D_d,    the level + the group's effect + the weekday's effect,

and in one night x = s_d + W. The effects are independent and normal, the same in all directions. Their variances are a
multiple of the family's roughness rho (`inference`). Each KIND of family has its own rho and multiples. The accumulator
of a weekday is a measurement of s_d: the weighted mean of all its nights with its precision (1 / variance).

Source: Lindley and Smith (1972), Bayes estimates for the linear model; the mixture over kinds is empirical Bayes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.statistics.posterior.full_tree import FullTree, SubtreeSums, by_family
from sfumato.transforms.statistics.posterior.inference import ROUGHNESS, SIGNAL, Learner, predict_contrasts, project

Floats = NDArray[np.float64]
WEEK = 7
_WEEKEND = np.arange(WEEK) >= 5
# Variance of the group's, the weekday's and the night's effect over that of the level, with a prior probability.
_RHYTHMS = np.array([
    [0.002, 0.0005, 0.0005, 0.4],
    [0.03, 0.002, 0.002, 0.3],
    [0.3, 0.01, 0.01, 0.2],
    [0.1, 0.1, 0.1, 0.1],
])  # fmt: skip
_LEVEL = np.repeat(ROUGHNESS, len(_RHYTHMS)) / 3  # of each coordinate: rho is the sum over three
_GROUP, _DAY, _NIGHT = (np.tile(one, len(ROUGHNESS)) * _LEVEL for one in _RHYTHMS[:, :3].T)
PRIOR = np.tile(_RHYTHMS[:, 3], len(ROUGHNESS)) / len(ROUGHNESS)
_BLOCK = 512  # families at a time, whose values for all kinds fit a processor's cache
_EVEN = 0.5  # the part of a family's variance that is even over its members; the rest is in proportion to their users
_LEAST_USERS = 0.25  # of a parent whose children's shares are measured


@dataclass(frozen=True)
class WeekData:
    """The knowledge about n families."""

    mean: Floats  # float64[n, 7, 4], accumulated contrasts by weekday; 0 where there are none
    precision: Floats  # float64[n, 7], of each coordinate
    weekday: int  # of tonight, 0 is Monday
    # float64[n, 4], tonight's measured contrasts, which are part of `mean` already; 0 where there are none.
    tonight: Floats
    noise: Floats  # float64[n], variance of tonight's measurement; infinite where there is none
    chance: Floats  # float64[n], variance of a night's numbers of users about their expectation
    night_scale: float = 1.0  # multiplies the variance of the night's effect


@dataclass(frozen=True)
class WeekPosterior:
    """The contrasts of n families tonight."""

    mean: Floats  # float64[n, 4]
    variance: Floats  # float64[n], of each of three coordinates
    night: Floats  # float64[n], expected variance of the night's effect, without chance
    roughness: Floats  # float64[n], expected rho


def has_weekday_like(precision: Floats, weekday: int) -> bool:
    """Returns whether accumulators, float64[n, 7], know a night of a weekday's group."""
    return bool((precision[:, _WEEKEND[weekday] == _WEEKEND] > 0).any())


def infer_week(data: WeekData, learner: Learner, strong: NDArray[np.bool_]) -> WeekPosterior:
    """Learns how common each kind is among the families of a level, and infers each family's contrasts tonight."""
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(data.mean), _BLOCK)]
    parts = [_by_kind(data, block) for block in blocks]
    logs = np.concatenate([part[0] for part in parts])
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    posterior = likelihood * learner.learn(likelihood, strong)[strong.astype(np.int64)]
    posterior /= posterior.sum(axis=1, keepdims=True)
    found = [
        _tonight(data, block, posterior[block], part[1], part[2]) for block, part in zip(blocks, parts, strict=True)
    ]
    mean, variance = (np.concatenate([one[i] for one in found]) for i in range(2))
    return WeekPosterior(mean, variance, (posterior * _NIGHT).sum(axis=1), (posterior * 3 * _LEVEL).sum(axis=1))


def _by_kind(data: WeekData, block: slice) -> tuple[Floats, Floats, Floats]:
    """Returns for each family and kind: the logarithm of the likelihood, the mean of s_d (n, kinds, 4) and its
    variance.
    """
    mean, precision = data.mean[block], data.precision[block, None, :]
    day = _DAY[:, None] * precision
    weight = precision / (1 + day)  # of a weekday's accumulator as a measurement of L + G
    logs = np.log1p(day).sum(axis=2)
    square = (weight * (mean**2).sum(axis=2)[:, None, :]).sum(axis=2)
    groups: list[tuple[Floats, Floats, Floats, Floats]] = []
    for kind in (False, True):
        days = kind == _WEEKEND
        total = weight[:, :, days].sum(axis=2)
        summed = np.einsum("fkd,fdc->fkc", weight[:, :, days], mean[:, days])
        shrunk = 1 + _GROUP * total
        logs += np.log(shrunk)
        square -= (summed**2).sum(axis=2) * _GROUP / shrunk
        groups.append((total, summed, total / shrunk, summed / shrunk[:, :, None]))
    level_weight, level_sum = groups[0][2] + groups[1][2], groups[0][3] + groups[1][3]
    logs += np.log1p(_LEVEL * level_weight)
    square -= (level_sum**2).sum(axis=2) * _LEVEL / (1 + _LEVEL * level_weight)

    own, other = groups[:: -1 if _WEEKEND[data.weekday] else 1]
    level = _LEVEL / (1 + _LEVEL * other[2])  # variance of L, given the other group
    group = level + _GROUP
    rest = np.maximum(own[0] - weight[:, :, data.weekday], 0.0)
    rest_sum = own[1] - weight[:, :, data.weekday, None] * mean[:, None, data.weekday]
    known = 1 + group * rest
    centre = (level[:, :, None] * other[3] + group[:, :, None] * rest_sum) / known[:, :, None]
    spread = group / known + _DAY
    today = precision[:, :, data.weekday]
    known = 1 + spread * today
    centre = (centre + (spread * today)[:, :, None] * mean[:, None, data.weekday]) / known[:, :, None]
    return -1.5 * logs - 0.5 * square, centre, spread / known


def _tonight(data: WeekData, block: slice, posterior: Floats, centre: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Returns the mean float64[n, 4] and variance of x, over all kinds. Tonight's measurement enters the night's effect
    only.
    """
    noise = data.noise[block, None]
    night = data.night_scale * _NIGHT + data.chance[block, None]
    taken = night / (night + noise)
    by_kind = centre + taken[:, :, None] * (data.tonight[block, None, :] - centre)
    left = 1 - taken
    mean = (posterior[:, :, None] * by_kind).sum(axis=1)
    doubt = ((by_kind - mean[:, None, :]) ** 2).sum(axis=2) / 3
    return mean, (posterior * (left * night + left**2 * spread + doubt)).sum(axis=1)


@dataclass(frozen=True)
class Accumulated:
    """The shares of children in their parents' users: weighted means over nights, by level and node.

    Level 0, the root, has no shares. Its arrays are there so that levels are indices.
    """

    mean: list[Floats]  # float64[n, 7] each, by weekday
    precision: list[Floats]  # float64[n, 7] each, 1 / variance; 0 where nothing was measured
    night: list[Floats]  # float64[n / 4] each, by family: the variance of shares from night to night, as learned so far
    roughness: list[Floats]  # float64[n / 4] each, the expected roughness, as learned so far

    @classmethod
    def empty(cls, full: FullTree) -> Accumulated:
        """Returns the state in which nothing is known of any node."""
        nodes, families = [len(codes) for codes in full.codes], [len(codes) // 4 for codes in full.codes]
        return cls(
            *([np.zeros((n, WEEK)) for n in nodes] for _ in range(2)),
            *([np.zeros(n) for n in families] for _ in range(2)),
        )


@dataclass(frozen=True)
class NightPosterior:
    """Tonight's users."""

    full: FullTree
    users: list[Floats]  # float64[n] by level and node
    variance: list[Floats]  # of these, for the numbers of users tonight (and not their expectation), by level and node
    share_variance: list[Floats]  # float64[n / 4] by level, of each coordinate of a family's shares
    accumulated: Accumulated  # with tonight's measurements
    slope: float  # see `Estimate`; the mean over levels, weighted by their numbers of families


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
    3. The rest is inferred by the model of a week.
    4. The children become the nearest numbers that are not negative and add up to their parent.

    Args:
        full: the tree.
        before: of the nights before, for the nodes of `full`.
        weekday: of tonight, 0 is Monday.
        users: of the root.
        users_variance: of their error.
        tonight: measured users of the nodes of `full`, with an infinite variance where there is no measurement; None
            predicts from the nights before.
        night_scale: multiplies the variance from night to night, see `VarianceScales`.
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
    """Returns measured users float64[n, 4] as shares of the parents' users, which they then add up to, and their
    variances.
    """
    summed = variance.sum(axis=1, keepdims=True)
    part = np.where(np.isfinite(summed), variance / np.where(np.isfinite(summed), summed, 1), 0.25)
    share = (users + part * (total - users.sum(axis=1))[:, None]) / total[:, None]
    return share, variance / total[:, None] ** 2


def per_coordinate(variance: Floats) -> Floats:
    """Returns the mean variance of three coordinates of four reconciled numbers: float64[..., 4] -> float64[...]."""
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
