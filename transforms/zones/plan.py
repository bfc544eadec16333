"""The plan of zones, and `ZoneLevels`, the method that `transforms/counting` runs for them. Pure.

There is a sub-query for each queried level. The budget is divided over the levels.

A user adds one to one zone of each level. The sub-queries of levels compose: their costs add up to the budget.

Shares. The finest level has enough of the budget for noise of at most MAX_FINEST_NOISE times the deviation that it
would have with the whole budget: some 80% of epsilon. So no level ever has a larger error than 1.25 times that of
adding up the finest level. Of all divisions into units of half a per cent, the one is taken with the least product
over levels of the mean variance after constrained inference (`tree_least_squares`), for a tree in which all
zones of a level have equally many children. A level whose sum of finer zones is about as good as a count of its own is
not queried. Only the numbers of zones and the budget decide, which are public.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.counting.methods.base import Method
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, Query
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.additive_noise import AdditiveNoise
from sfumato.transforms.secagg.encodings import Encoding, parts_and_cells, tally
from sfumato.transforms.statistics.tree_least_squares import upward_variances

MAX_LEVELS = 6
MAX_FINEST_NOISE = 1.25  # standard deviations of the finest level's noise, in those of a query of only this level
_UNITS = 200  # of the budget


@dataclass(frozen=True, eq=False)
class ZoneEncoding(Encoding):
    """One entry for each category and zone of a level, in order of categories, then of zones."""

    level: str  # its name
    zone_of_code: NDArray[np.int64]  # int64[finest zones]: a finest zone's index is its code; the zone that holds it
    share_of_zone: NDArray[np.float64]  # float64[zones], each zone's share of the area of all
    categories: int = 1  # of the auxiliary data; 1 without

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
        if self.categories != group.places.bins:
            raise ValueError(f"the encoding has {self.categories} categories, the shards {group.places.bins} bins")
        part, codes = parts_and_cells(group, block)
        sums = tally(part, self.zone_of_code[codes], group, block, len(self.share_of_zone))
        # The bits of a category may hold more categories than exist.
        return sums.reshape(block.stop - block.start, -1)[:, : self.length]

    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.signedinteger[Any]]]:
        part, codes = parts_and_cells(group, block)
        category = part & ((1 << group.places.bin_bits) - 1)
        yield category * len(self.share_of_zone) + self.zone_of_code[codes]


@dataclass(frozen=True, eq=False)
class ZoneLevels(Method):
    """One sub-query for each level with a share, from the coarsest to the finest.

    `shares` are of the budget that the noisy user count leaves, one for each level; 0 for a level that is not queried.
    """

    NAME: ClassVar[str] = "zones"
    CATEGORIES: ClassVar[bool] = True
    LAST_QUERY_COVERS_MAP: ClassVar[bool] = True  # all zones

    zones: Zones
    shares: tuple[float, ...]

    @property
    def queried(self) -> tuple[int, ...]:
        """The levels with a share, in the order of their sub-queries: from the coarsest to 0, the finest."""
        return tuple(level for level in range(len(self.shares) - 1, -1, -1) if self.shares[level] > 0)

    def most_sub_queries(self, depth: int) -> int:
        return len(self.queried)

    def next_query(self, state: CountState, depth: int) -> Query | None:
        done = len(state.results)
        if done == len(self.queried):
            return None
        is_last = done + 1 == len(self.queried)
        level = self.queried[done]
        budget = ALL_REMAINING if is_last else self.shares[level] * state.initial_budget.remaining
        return Query(self.encoding(level, state.categories), budget)

    def encoding(self, level: int, categories: int = 1) -> ZoneEncoding:
        """Returns what users send for a level."""
        zone_of_code = self.zones.ancestors[level]
        areas = np.bincount(zone_of_code, self.zones.areas_km2, len(self.zones.ids_of_levels[level]))
        return ZoneEncoding(self.zones.level_names[level], zone_of_code, areas / areas.sum(), categories)

    def decode(self, state: CountState, depth: int) -> Estimate:
        """Raises TypeError: zones are no cells of a quadtree. `tree_least_squares` has their estimates."""
        raise TypeError("zones have no map of a quadtree's cells")


def zones_parameters(given: CountParameters, zones: Zones) -> CountParameters:
    """Returns the given parameters with the levels to query, each with its share of the budget. Raises RequestError."""
    sizes = [len(ids) for ids in zones.ids_of_levels]
    budget = given.budget.total - given.admission().cost
    shares = level_shares(sizes, given.noise_kind, budget, given.distribution_gamma or 1)
    return replace(given, method=ZoneLevels(zones, shares))


def level_shares(
    sizes: Sequence[int], noise: AdditiveNoise, budget: float, sensitivity: float = 1
) -> tuple[float, ...]:
    """Returns the share of the budget for each level, see the module.

    Args:
        sizes: numbers of zones, from the finest level to the coarsest.
        noise: of the counts.
        budget: of all levels, in the unit of the noise.
        sensitivity: of one level's counts.

    Returns:
        Multiples of 1 / 200 that add up to 1; 0 for a level that is not queried.

    Raises RequestError if there are too many levels.
    """
    if len(sizes) > MAX_LEVELS:
        raise RequestError(f"levels: at most {MAX_LEVELS}, got {len(sizes)}")
    least = noise.min_cost(sensitivity)
    costs = [budget * unit / _UNITS for unit in range(_UNITS + 1)]
    # The variance of a count that costs this many units.
    variance = [math.inf if cost < least else noise.stddev(cost, sensitivity) ** 2 for cost in costs]
    limit = MAX_FINEST_NOISE**2 * variance[_UNITS]
    finest = next(unit for unit, one in enumerate(variance) if one <= limit)
    coarser, rest = range(1, len(sizes)), _UNITS - finest
    best = [_UNITS, *[0] * len(coarser)]
    for number in range(1, min(len(coarser), rest) + 1):
        for chosen in itertools.combinations(coarser, number):
            each = rest // number
            units = [_UNITS - each * number, *[each if level in chosen else 0 for level in coarser]]
            best = min(best, _descended(units, finest, sizes, variance), key=lambda one: _loss(one, sizes, variance))
    return tuple(one / _UNITS for one in best)


def _descended(units: list[int], finest: int, sizes: Sequence[int], variance: Sequence[float]) -> list[int]:
    """Returns the division that no move of units from one queried level to another improves.

    finest: the least of level 0.
    """
    queried = [level for level, share in enumerate(units) if share]
    least = dict.fromkeys(queried, 1) | {0: finest}
    loss, step = _loss(units, sizes, variance), 8
    while step:
        moved = False
        for giver, taker in itertools.permutations(queried, 2):
            if units[giver] - step < least[giver]:
                continue
            tried = [one - step * (level == giver) + step * (level == taker) for level, one in enumerate(units)]
            if (better := _loss(tried, sizes, variance)) < loss - 1e-9:
                units, loss, moved = tried, better, True
        step = step if moved else step // 2
    return units


def _loss(units: Sequence[int], sizes: Sequence[int], variance: Sequence[float]) -> float:
    found = mean_variances([variance[one] if one else math.inf for one in units], sizes)
    return math.fsum(math.log(one) for one in found)


def mean_variances(own: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Returns the variance of a zone of each level after inference, where all zones of a level have equally many parts.

    Hay et al. 2010 (PVLDB 3), with unequal noise. own: variance of each level's noisy counts, from the finest; infinite
    for a level that is not queried. sizes: numbers of zones.
    """
    upward = upward_variances(own, [below / above for below, above in itertools.pairwise(sizes)])
    found = [upward[-1]]
    for level in range(len(sizes) - 1, 0, -1):
        share = sizes[level] / sizes[level - 1]
        found.append(upward[level - 1] * (1 - share) + share**2 * found[-1])
    return found[::-1]
