"""The registry of the statistics of `sfumato moments`, and their evaluation from quantities' means. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import EVERYBODY, SUMS, MomentEstimate, Statistic
from sfumato.transforms.moments.bit_means import Z_95
from sfumato.transforms.moments.statistic_kinds import (
    CORRELATION,
    COVARIANCE,
    GEOMETRIC_MEAN,
    LOG_PRODUCT,
    MEAN,
    MOMENT,
    VARIANCE,
    Forms,
    Means,
    StatisticContext,
    StatisticKind,
    Variance,
)
from sfumato.transforms.statistics.shrinkage import shrink

STATISTICS: dict[str, StatisticKind] = {
    kind.name: kind for kind in (MEAN, VARIANCE, MOMENT, GEOMETRIC_MEAN, LOG_PRODUCT, COVARIANCE, CORRELATION)
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
    """The kind of a statistic. Raises RequestError, with the known names, for an unknown name or power."""
    base_name, colon, power = statistic.name.partition(":")
    found = STATISTICS.get(base_name)
    if found is not None and (power in map(str, found.powers) if found.powers else not colon):
        return found
    known = [
        f"{name}:K (K from {kind.powers[0]} to {kind.powers[-1]})" if kind.powers else name
        for name, kind in STATISTICS.items()
    ]
    raise RequestError(f"statistics: there are {', '.join(known[:-1])} and {known[-1]}; got {statistic.name!r}")


def quantities_of(statistic: Statistic, variance: Variance) -> tuple[str, ...]:
    """The kinds of the quantities whose means a statistic needs. Raises RequestError for an unknown statistic."""
    return find_kind(statistic).quantities(statistic.power, variance)


def evaluate(
    statistic: Statistic,
    variance: Variance,
    means: Mapping[str, Means],
    centres: tuple[float, float],
    users: NDArray[np.float64],
    forms: Forms,
    users_variance: NDArray[np.float64] | float = 0.0,
    level: float = 0.95,
) -> Result:
    """Computes a statistic from its quantities' means, clipped to the range that values of these forms allow.

    Args:
        statistic: the statistic.
        variance: how a variance is computed: about the centre, or raw.
        means: by quantity, each of G groups.
        centres: the centres of `square` and `second_square`, and of `product`.
        users: float64[G], all users of each group.
        forms: of the values.
        users_variance: of users, where that is noisy.
        level: of the means' intervals and of the result's.
    """
    z = float(-ndtri((1 - level) / 2))
    quantity_means = [means[kind] for kind in quantities_of(statistic, variance)]
    value, low, high, clients = find_kind(statistic).evaluate(
        quantity_means, StatisticContext(variance, centres[0], users, users_variance, z, centres[1])
    )
    smallest, largest = value_range(statistic, forms)
    low, value, high = (np.clip(column, smallest, largest) for column in (low, value, high))
    return Result(value, (high - low) / (2 * z), low, high, clients)


def value_range(statistic: Statistic, forms: Forms) -> tuple[float, float]:
    """The smallest and the largest value of a statistic, for values in the forms' ranges."""
    return find_kind(statistic).value_range(forms, statistic.power)


def shrunk(estimates: Sequence[MomentEstimate], forms: Forms) -> list[MomentEstimate]:
    """The same estimates in the same order, those of groups shrunk towards everybody's according to their noise.

    The largest of many noisy numbers is mostly large by chance. A page may sort and colour the shrunk ones. SUMS stay
    unchanged.
    """
    found = list(estimates)
    for name in dict.fromkeys(one.statistic for one in estimates):
        places = [i for i, one in enumerate(estimates) if one.statistic == name and one.group != EVERYBODY]
        if name in SUMS or not places:
            continue
        everybody = next(one for one in estimates if one.statistic == name and one.group == EVERYBODY)
        rows = [estimates[i] for i in places]
        stddev = np.maximum([one.stddev for one in rows], 1e-9 * max(abs(everybody.value), forms[0].step))
        value, variance = shrink(np.array([one.value for one in rows]), stddev**2, everybody.value)
        ends = value_range(Statistic(name), forms)
        low, high = (np.clip(value + sign * Z_95 * np.sqrt(variance), *ends) for sign in (-1, 1))
        columns = zip(places, value.tolist(), np.sqrt(variance).tolist(), low.tolist(), high.tolist(), strict=True)
        for i, centre, deviation, least, most in columns:
            found[i] = replace(found[i], value=centre, stddev=deviation, low=least, high=most)
    return found
