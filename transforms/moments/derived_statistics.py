"""The statistics of `sfumato moments`: a registry, and what each makes of its quantities' means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import FixedPoint, Statistic
from sfumato.transforms.moments.statistic_kinds import (
    GEOMETRIC_MEAN,
    LOG_PRODUCT,
    MEAN,
    MOMENT,
    VARIANCE,
    Given,
    Means,
    StatisticKind,
    Variance,
)

STATISTICS: dict[str, StatisticKind] = {
    kind.name: kind for kind in (MEAN, VARIANCE, MOMENT, GEOMETRIC_MEAN, LOG_PRODUCT)
}


@dataclass(frozen=True, eq=False)
class Result:
    """A statistic in G groups: value, stddev, low, high, clients float64[G]; see MomentEstimate."""

    value: NDArray[np.float64]
    stddev: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    clients: NDArray[np.float64]


def find_kind(statistic: Statistic) -> StatisticKind:
    """The kind of a statistic. Raises RequestError, with the known names, for a name or power that does not exist."""
    name, colon, power = statistic.name.partition(":")
    kind = STATISTICS.get(name)
    if kind is not None and (power in map(str, kind.powers) if kind.powers else not colon):
        return kind
    known = [
        f"{one.name}:K (K from {one.powers[0]} to {one.powers[-1]})" if one.powers else one.name
        for one in STATISTICS.values()
    ]
    raise RequestError(f"statistics: there are {', '.join(known[:-1])} and {known[-1]}; got {statistic.name!r}")


def kinds_of(statistic: Statistic, variance: Variance) -> tuple[str, ...]:
    """The quantities whose means a statistic needs, by kind. Raises RequestError for an unknown statistic."""
    return find_kind(statistic).quantities(statistic.power, variance)


def evaluate(
    statistic: Statistic,
    variance: Variance,
    means: Mapping[str, Means],
    centre: float,
    users: NDArray[np.float64],
    form: FixedPoint,
    users_variance: NDArray[np.float64] | float = 0.0,
    level: float = 0.95,
) -> Result:
    """A statistic from its quantities' means, within what values of this form can have.

    centre: what `square` is about. users: float64[G], all of each group; users_variance: of that, where it is noisy.
    level: of the means' intervals, and of the result's.
    """
    z = float(-ndtri((1 - level) / 2))
    found = [means[kind] for kind in kinds_of(statistic, variance)]
    value, low, high, clients = find_kind(statistic).evaluate(found, Given(variance, centre, users, users_variance, z))
    least, most = possible(statistic, form)
    low, value, high = (np.clip(one, least, most) for one in (low, value, high))
    return Result(value, (high - low) / (2 * z), low, high, clients)


def possible(statistic: Statistic, form: FixedPoint) -> tuple[float, float]:
    """The least and the greatest that a statistic can be, of values in the form's range."""
    return find_kind(statistic).possible(form, statistic.power)
