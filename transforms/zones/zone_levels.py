"""The sub-queries of zones: one for each level that is asked, and how the budget is divided over levels. Pure.

A user adds one to one zone of each level. The sub-queries of levels compose: their costs add up to the budget.

Shares. The finest level has at least MIN_FINEST_SHARE of the budget. So its standard deviation is at most 1.25 times
that of asking the finest level alone (for Laplace noise the deviation is in proportion to 1 / epsilon, for Gaussian
noise to 1 / sqrt(rho)). Of all divisions into units of half a per cent, that one is taken which has the least product
over levels of the mean variance after constrained inference (`zone_estimates`), for a tree in which all zones of a
level have equally many children. A level whose sum of finer zones is about as good as a count of its own is not asked.
Only the numbers of zones decide, which are public.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.heatmap.methods.base import Method
from sfumato.transforms.heatmap.state import ALL_REMAINING, Estimate, HeatmapState, Query
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.secagg.encodings import Encoding, parts_and_cells, tally
from sfumato.transforms.zones.zone_file import Zones

MAX_LEVELS = 6
_UNITS = 200  # of the budget
# Of the budget, by the unit of the noise: the variance is in proportion to 1 / epsilon^2, and to 1 / rho.
MIN_FINEST_SHARE = {"epsilon": 0.8, "rho": 0.64}
_POWER = {"epsilon": 2, "rho": 1}


@dataclass(frozen=True, eq=False)
class ZoneEncoding(Encoding):
    """One entry for each category and zone of a level, in order of categories, then of zones.

    Attributes:
        level: its name.
        zone_of_code: int64[finest zones], the zone of this level that holds each finest zone, which is its code.
        share_of_zone: float64[zones], each zone's share of the area of all.
        categories: of the auxiliary data; 1 without.
    """

    level: str
    zone_of_code: NDArray[np.int64]
    share_of_zone: NDArray[np.float64]
    categories: int = 1

    @property
    def length(self) -> int:  # type: ignore[override]
        """Zones of the level, times the categories."""
        return self.categories * len(self.share_of_zone)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.zone_of_code.tobytes()).hexdigest()
        return f"zones {self.level} {len(self.share_of_zone)} {self.categories} {digest}"

    @property
    def shares(self) -> NDArray[np.float64]:
        return np.tile(self.share_of_zone / self.categories, self.categories)

    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        """See Encoding.count. Raises ValueError where the group has other categories."""
        if self.categories != group.places.categories:
            raise ValueError(f"the encoding has {self.categories} categories, the shards {group.places.categories}")
        part, codes = parts_and_cells(group, block)
        sums = tally(part, self.zone_of_code[codes], group, block, len(self.share_of_zone))
        # The bits of a category may hold more categories than exist.
        return sums.reshape(block.stop - block.start, -1)[:, : self.length]

    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.signedinteger[Any]]]:
        part, codes = parts_and_cells(group, block)
        category = part & ((1 << group.places.category_bits) - 1)
        yield category * len(self.share_of_zone) + self.zone_of_code[codes]


@dataclass(frozen=True, eq=False)
class ZoneLevels(Method):
    """One sub-query for each level with a share, from the coarsest to the finest.

    Attributes:
        zones: to count, with their levels.
        shares: of the budget that the noisy user count leaves, one for each level; 0 for a level that is not asked.
    """

    NAME: ClassVar[str] = "zones"
    TEXT: ClassVar[str] = "every zone of every level that is asked"
    CATEGORIES: ClassVar[bool] = True

    zones: Zones
    shares: tuple[float, ...]

    @property
    def asked(self) -> tuple[int, ...]:
        """The levels with a share, in the order of their sub-queries: from the coarsest to 0, the finest."""
        return tuple(level for level in range(len(self.shares) - 1, -1, -1) if self.shares[level] > 0)

    def max_rounds(self, depth: int) -> int:
        return len(self.asked)

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        done = len(state.results)
        if done == len(self.asked):
            return None
        is_last = done + 1 == len(self.asked)
        level = self.asked[done]
        budget = ALL_REMAINING if is_last else self.shares[level] * state.initial_budget.remaining
        return Query(self.encoding(level, state.categories), budget)

    def encoding(self, level: int, categories: int = 1) -> ZoneEncoding:
        """What users send for a level."""
        zone_of_code = self.zones.ancestors[level]
        areas = np.bincount(zone_of_code, self.zones.areas_km2, len(self.zones.ids_of_levels[level]))
        return ZoneEncoding(self.zones.level_names[level], zone_of_code, areas / areas.sum(), categories)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """Raises TypeError: zones are no cells of a quadtree. `zone_estimates` has their estimates."""
        raise TypeError("zones have no map of a quadtree's cells")


def level_shares(sizes: Sequence[int], unit: str) -> tuple[float, ...]:
    """The share of the budget for each level, see the module.

    Args:
        sizes: numbers of zones, from the finest level to the coarsest.
        unit: of the budget, `epsilon` or `rho`.

    Returns:
        Multiples of 1 / 200 that add up to 1; 0 for a level that is not asked.

    Raises:
        RequestError: there are too many levels.
    """
    if len(sizes) > MAX_LEVELS:
        raise RequestError(f"levels: at most {MAX_LEVELS}, got {len(sizes)}")
    coarser, rest = range(1, len(sizes)), _UNITS - math.ceil(MIN_FINEST_SHARE[unit] * _UNITS)
    best = [_UNITS, *[0] * len(coarser)]
    for number in range(1, len(sizes)):
        for chosen in itertools.combinations(coarser, number):
            units = [_UNITS - rest // number * number, *[rest // number if level in chosen else 0 for level in coarser]]
            best = min(best, _descended(units, sizes, unit), key=lambda one: _loss(one, sizes, unit))
    return tuple(one / _UNITS for one in best)


def _descended(units: list[int], sizes: Sequence[int], unit: str) -> list[int]:
    """The division that no move of some units from one asked level to another betters."""
    asked = [level for level, share in enumerate(units) if share]
    least = dict.fromkeys(asked, 1) | {0: math.ceil(MIN_FINEST_SHARE[unit] * _UNITS)}
    loss, step = _loss(units, sizes, unit), 8
    while step:
        moved = False
        for giver, taker in itertools.permutations(asked, 2):
            if units[giver] - step < least[giver]:
                continue
            tried = [one - step * (level == giver) + step * (level == taker) for level, one in enumerate(units)]
            if (better := _loss(tried, sizes, unit)) < loss - 1e-12:
                units, loss, moved = tried, better, True
        step = step if moved else step // 2
    return units


def _loss(units: Sequence[int], sizes: Sequence[int], unit: str) -> float:
    """The sum over levels of the logarithms of `mean_variances`."""
    return math.fsum(math.log(one) for one in mean_variances([one / _UNITS for one in units], sizes, unit))


def mean_variances(shares: Sequence[float], sizes: Sequence[int], unit: str) -> list[float]:
    """The variance of a zone of each level after constrained inference, in that of one sub-query with the whole budget.

    All zones of a level have sizes[level - 1] / sizes[level] children. Hay et al. 2010 (PVLDB 3), with unequal noise.
    """
    own = [share ** -_POWER[unit] if share else math.inf for share in shares]
    upward = [own[0]]
    for level in range(1, len(sizes)):
        below = sizes[level - 1] / sizes[level] * upward[-1]
        upward.append(1 / (1 / own[level] + 1 / below))
    found = [upward[-1]]
    for level in range(len(sizes) - 1, 0, -1):
        share = sizes[level] / sizes[level - 1]
        found.append(upward[level - 1] * (1 - share) + share**2 * found[-1])
    return found[::-1]
