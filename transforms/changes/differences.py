"""Whether the users of places differ between two releases, with a stated false discovery rate. Pure post-processing.

A place that both releases know is tested for the null hypothesis that equally many users are expected there in both.
The noise of the two is independent, and each user's place is a draw of its own, so the difference D of the unbiased
users has the variance v1 + v2 + 2 m: of the noise of each release, and of two counts with the mean m.

1. Places are filtered by the precision-weighted mean of both releases, which is independent of D under the null
   hypothesis: where nearly nobody is in either, no change is large enough to be seen. Fewer tests give more power.
2. A p-value allows for the noise's tails, which are heavier than a normal distribution's: a sum of k discrete Laplace
   variables is a normal one whose variance is a Gamma variable of shape k.
3. Benjamini and Hochberg (1995) over the tested places of all levels at once. A descent from the whole (Yekutieli 2008)
   would miss a move within a place, whose sum does not change.
4. Found places lie within each other. A list or a map shows the most significant of them only; that list has a false
   discovery rate of its own, by focused Benjamini-Hochberg (Katsevich, Sabatti, Bogomolov 2023).
5. The interval of a change that was found is widened for having been selected: Benjamini and Yekutieli (2005), false
   coverage rate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import special

from sfumato.transforms.statistics.bisection import bisect_each

Floats = NDArray[np.float64]

FALSE_DISCOVERY_RATE = 0.05
MIN_SNR = 2.0  # of the mean of both releases; a change of z standard deviations has at least an expected mean of z
_SHAPES = 200  # points of the Gamma distribution that a p-value is summed over
_BLOCK = 256  # places at a time, whose values for all points fit a processor's cache
_MIN_MEAN = 0.25  # users that a place is taken to have at least, so that empty ones are no certainty
_COLUMNS = (
    "before", "after", "difference", "stddev", "low", "high", "p_value", "q_value", "changed", "changed_low",
    "changed_high", "shown",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Side:
    """One release's unbiased users of n places.

    users and variance, that of their noise, are float64[n]; also of means of several days. total: users in all, and the
    variance of their noise.
    tail_sums: see `report.sections.tail_sums`.
    """

    users: Floats
    variance: Floats
    total: tuple[float, float]
    tail_sums: int


@dataclass(frozen=True, eq=False)
class Differences:
    """How the users of n places differ between two releases."""

    # before, after: float64[n], unbiased users; may be negative. `before` is scaled if shares are compared.
    before: Floats
    after: Floats
    difference: Floats  # float64[n], after - before
    stddev: Floats  # float64[n], of the difference under the null hypothesis
    low: Floats  # low, high: float64[n], ends of the 95% interval of the difference, for each place separately
    high: Floats
    p_value: Floats  # float64[n], NaN where the place was not tested
    # float64[n], the least false discovery rate at which the place is found; NaN where it was not tested.
    q_value: Floats
    changed: NDArray[np.bool_]  # bool[n], q_value is at most the false discovery rate
    # changed_low, changed_high: float64[n], the interval with false coverage rate; NaN where not changed. Where no
    # place changed, the intervals of all places, which hold at once.
    changed_low: Floats
    changed_high: Floats
    # bool[n], disjoint changed places, the most significant ones; their false discovery rate is kept as well.
    shown: NDArray[np.bool_]
    scale: float  # that `before` was multiplied by; 1 unless shares are compared

    @property
    def tested(self) -> NDArray[np.bool_]:
        """Returns whether each place was tested: bool[n]."""
        return ~np.isnan(self.p_value)

    @property
    def columns(self) -> dict[str, pa.Array]:
        """Returns the columns of a table of changes that do not depend on what a place is."""
        return {name: pa.array(getattr(self, name), from_pandas=True) for name in _COLUMNS}


class Changes(Differences, ABC):
    """Changes between two releases that know the same places."""

    unit = "users"

    @property
    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Returns the manifest's entries about the places."""

    @property
    @abstractmethod
    def whole(self) -> int | None:
        """Returns the row of the place that holds all others, or None."""

    @abstractmethod
    def table(self) -> pa.Table:
        """Returns one row per place as GeoParquet."""

    @abstractmethod
    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Returns the places of some rows in words."""


def differences(
    before: Side, after: Side, parents: NDArray[np.int64], rate: float = FALSE_DISCOVERY_RATE, *, shares: bool = False
) -> Differences:
    """Tests each place.

    Args:
        before, after: the releases, with the same n places.
        parents: int64[n], the row of the smallest other place that holds it; -1 for none.
        rate: false discovery rate, in 0..1: the expected share of wrong ones among the changed places, at most.
        shares: compare shares of all users: `before` is scaled to the number of users of `after`.
    """
    users_before, noise_before, noise_after = before.users, before.variance, after.variance
    (total_before, variance_before), (total_after, variance_after) = before.total, after.total
    scale = 1.0
    if shares and total_before > 0 and total_after > 0:
        scale = total_after / total_before
        scale_variance = scale**2 * (variance_before / total_before**2 + variance_after / total_after**2)
        noise_before = scale**2 * noise_before + users_before**2 * scale_variance
        users_before = scale * users_before
    difference, noise = after.users - users_before, noise_before + noise_after
    mean = (users_before * noise_after + after.users * noise_before) / noise
    sampling = (1 + scale) * np.maximum(mean, _MIN_MEAN)
    stddev = np.sqrt(noise + sampling)
    mean_stddev = np.sqrt(noise_before * noise_after / noise)
    tested = mean >= MIN_SNR * mean_stddev
    # How many Laplace variables the difference's noise is like, at least: by its kurtosis, the heaviest of all places.
    part = noise_before / noise
    shape = float(np.min(1 / (part**2 / before.tail_sums + (1 - part) ** 2 / after.tail_sums)))
    tails = _Tails(noise / stddev**2, shape)
    p_value = np.where(tested, tails.probability(np.abs(difference) / stddev), np.nan)
    q_value = _q_values(p_value)
    changed = np.nan_to_num(q_value, nan=1.0) <= rate
    margin = stddev * tails.quantile(0.05)
    each = tails.quantile(rate * max(changed.sum(), 1) / max(tested.sum(), 1))
    selected = np.where(changed | ~changed.any(), stddev * each, np.nan)
    return Differences(
        before=users_before,
        after=after.users,
        difference=difference,
        stddev=stddev,
        low=difference - margin,
        high=difference + margin,
        p_value=p_value,
        q_value=q_value,
        changed=changed,
        changed_low=difference - selected,
        changed_high=difference + selected,
        shown=_focused(parents, p_value, rate),
        scale=scale,
    )


def whole_of(parents: NDArray[np.int64]) -> int | None:
    """Returns the row of the place that holds all others, or None. parents: see `differences`."""
    outermost = np.flatnonzero(parents < 0)
    return int(outermost[0]) if len(outermost) == 1 < len(parents) else None


class _Tails:
    """Two-sided tail probabilities of a sum of noise and sampling, in its standard deviations.

    Args:
        noise_share: float64[n], the noise's part of the variance, in 0..1.
        shape: of the Gamma distribution that the noise's variance has, over its mean.
    """

    def __init__(self, noise_share: Floats, shape: float):
        self._share = noise_share
        least, most = special.gammaincinv(shape, 1e-14), special.gammainccinv(shape, 1e-18)
        logs = np.linspace(np.log(max(least, 1e-12)), np.log(most), _SHAPES)
        self._variance = np.exp(logs) / shape
        weight = np.exp(shape * logs - np.exp(logs) - special.gammaln(shape))
        self._weight = weight / weight.sum()

    def probability(self, z: Floats) -> Floats:
        """Returns P(|X| >= z) for each of n variables: float64[n] -> float64[n]."""
        return self._probability(z, self._share)

    def quantile(self, alpha: float) -> Floats:
        """Returns float64[n]: z with P(|X| >= z) = alpha; read off at 65 shares of the noise."""
        shares = np.linspace(0, 1, 65)
        zero, far = np.zeros(65), np.full(65, 200.0)
        found, _ = bisect_each(lambda z: self._probability(z, shares) >= alpha, zero, far, 40)
        return np.asarray(np.interp(self._share, shares, found))

    def _probability(self, z: Floats, share: Floats) -> Floats:
        found = np.zeros(len(z))
        for first in range(0, len(z), _BLOCK):
            block = slice(first, first + _BLOCK)
            spread = np.sqrt(2 * (1 + share[block, None] * (self._variance - 1)))
            found[block] = special.erfc(z[block, None] / spread) @ self._weight
        return found


def _q_values(p_value: Floats) -> Floats:
    """Returns Benjamini-Hochberg q-values of float64[n]; NaN stays NaN and does not count."""
    found = np.full(len(p_value), np.nan)
    places = np.flatnonzero(~np.isnan(p_value))
    order = places[np.argsort(p_value[places], kind="stable")]
    scaled = p_value[order] * len(order) / np.arange(1, len(order) + 1)
    found[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return found


def _focused(parents: NDArray[np.int64], p_value: Floats, rate: float) -> NDArray[np.bool_]:
    """Returns the largest set of most significant disjoint places that keeps its own false discovery rate: bool[n].

    A place joins the list unless it lies around or within one that is in it. The one that holds all others never does.
    The list of the places with p <= t is kept for the largest t at which t times the number of tests is at most `rate`
    times the list's length.
    """
    tests, whole = int((~np.isnan(p_value)).sum()), whole_of(parents)
    listed: list[int] = []
    chosen: set[int] = set()
    above: set[int] = set()  # all places around the chosen, and these
    length = 0  # of the list that is kept
    for row in np.argsort(p_value, kind="stable")[:tests].tolist():
        if p_value[row] * tests > rate * tests:
            break
        lineage = [row]
        while (parent := int(parents[lineage[-1]])) >= 0:
            lineage.append(parent)
        if row != whole and row not in above and chosen.isdisjoint(lineage):
            listed.append(row)
            chosen.add(row)
            above.update(lineage)
        if p_value[row] * tests <= rate * len(listed):
            length = len(listed)
    shown = np.zeros(len(parents), dtype=bool)
    shown[listed[:length]] = True
    return shown
