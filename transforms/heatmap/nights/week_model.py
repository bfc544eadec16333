"""The users' shares of a family of four siblings over the nights of a week: a hierarchical normal model. Pure.

A family's contrast is the share of each child in its parent's users less what is expected without data: four numbers
that add up to 0. On weekday d, of the group g (Monday to Friday, or the weekend), it is

    s_d = L + G_g + D_d,    the level + the group's effect + the weekday's effect,

and in one night x = s_d + W. The effects are independent and normal, the same in all directions. Their variances are a
multiple of the family's roughness rho (`contrasts`). Each KIND of family has its own rho and multiples. The accumulator
of a weekday is a measurement of s_d: the weighted mean of all its nights with its precision (1 / variance).

Source: Lindley and Smith (1972), Bayes estimates for the linear model; the mixture over kinds is empirical Bayes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.posterior.contrasts import ROUGHNESS, Learner

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


@dataclass(frozen=True)
class WeekData:
    """What is known of n families.

    Attributes:
        mean: float64[n, 7, 4], accumulated contrasts by weekday; 0 where there are none.
        precision: float64[n, 7], of each coordinate.
        weekday: of tonight, 0 is Monday.
        tonight: float64[n, 4], tonight's measured contrasts, which are part of `mean` already; 0 where there are none.
        noise: float64[n], variance of tonight's measurement; infinite where there is none.
        chance: float64[n], variance of a night's numbers of users about their expectation.
        night_scale: multiplies the variance of the night's effect.
    """

    mean: Floats
    precision: Floats
    weekday: int
    tonight: Floats
    noise: Floats
    chance: Floats
    night_scale: float = 1.0


@dataclass(frozen=True)
class WeekPosterior:
    """The contrasts of n families tonight.

    Attributes:
        mean: float64[n, 4].
        variance: float64[n], of each of three coordinates.
        night: float64[n], expected variance of the night's effect, without chance.
        roughness: float64[n], expected rho.
    """

    mean: Floats
    variance: Floats
    night: Floats
    roughness: Floats


def has_weekday_like(precision: Floats, weekday: int) -> bool:
    """Whether accumulators, float64[n, 7], know a night of a weekday's group."""
    return bool((precision[:, _WEEKEND[weekday] == _WEEKEND] > 0).any())


def infer_week(data: WeekData, learner: Learner, strong: NDArray[np.bool_]) -> WeekPosterior:
    """Learns how common each kind is among the families of a level, and infers each family's contrasts tonight."""
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(data.mean), _BLOCK)]
    parts = [_by_kind(data, block) for block in blocks]
    logs = np.concatenate([part[0] for part in parts])
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    posterior = likelihood * learner.learn(likelihood, strong).of_families(strong)
    posterior /= posterior.sum(axis=1, keepdims=True)
    found = [
        _tonight(data, block, posterior[block], part[1], part[2]) for block, part in zip(blocks, parts, strict=True)
    ]
    mean, variance = (np.concatenate([one[i] for one in found]) for i in range(2))
    return WeekPosterior(mean, variance, (posterior * _NIGHT).sum(axis=1), (posterior * 3 * _LEVEL).sum(axis=1))


def _by_kind(data: WeekData, block: slice) -> tuple[Floats, Floats, Floats]:
    """For each family and kind: the logarithm of the likelihood, the mean of s_d (n, kinds, 4) and its variance."""
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
    """Mean float64[n, 4] and variance of x, over all kinds. Tonight's measurement enters the night's effect alone."""
    noise = data.noise[block, None]
    night = data.night_scale * _NIGHT + data.chance[block, None]
    taken = night / (night + noise)
    by_kind = centre + taken[:, :, None] * (data.tonight[block, None, :] - centre)
    left = 1 - taken
    mean = (posterior[:, :, None] * by_kind).sum(axis=1)
    doubt = ((by_kind - mean[:, None, :]) ** 2).sum(axis=2) / 3
    return mean, (posterior * (left * night + left**2 * spread + doubt)).sum(axis=1)
