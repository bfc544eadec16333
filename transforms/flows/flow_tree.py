"""Noisy counts of trips by pair: the only place where flows get noise. Pure.

Pairs of cells are the nodes of a tree with 16 children a node (`user_trips`). A level from which the tree starts is
chosen by a noisy number of users: there all pairs are measured. A pair with many trips is split, at most
MAX_SPLITS times. So every trip is counted in one pair of each level down to the pair that it ends in, and the epsilons
of these add up to the budget of the tree.

Pairs of public zones are all measured at once. A place is first cut to a cell of level MAX_PAIR_DEPTH of the zones'
rectangle, as without zones. It is in the zone that holds the centre of that cell. So trips, their rule and their bound
are those of cells.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, deinterleave
from sfumato.transforms.flows.flow_estimate import MeasuredLevel, posterior_counts
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, Codes, count_prefixes, split_pairs
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace
from sfumato.transforms.privacy.keys import RunKey


def measure_flows(
    codes: Codes, counts: NDArray[np.int64], bits: int, plan: FlowPlan, users: float, key: RunKey
) -> list[MeasuredLevel]:
    """Draws the noise of a release: everything that is made of the result is post-processing.

    A trip is in one pair of each measured level on its way to the pair that it ends in. A change of one trip costs the
    epsilons of these pairs over K, at most tree_epsilon / K together, and a user adds or removes at most K trips.

    Args:
        codes: uint64[n] ascending, distinct codes of pairs of level bits / 4, at least plan.depth.
        counts: int64[n], trips of each pair, at most plan.max_trips of each user.
        bits: of a code.
        plan: the budget.
        users: a noisy number of users.
        key: of the run's noise.
    """
    levels = plan.levels(users)
    # Another noise under one key would share the draws: the difference of two releases would have next to none.
    key = key.narrowed({"plan": asdict(plan), "levels": list(levels)})
    nodes = np.arange(16 ** levels[0], dtype=np.uint64)
    measured = []
    for splits, level in enumerate(levels):
        is_last = level == levels[-1]
        exact = count_prefixes(codes, counts, nodes, bits - 4 * level)
        is_split = np.zeros(len(nodes), dtype=bool)
        if not is_last:
            epsilon = plan.split_epsilon
            rough = exact + discrete_laplace(key, f"splits {level}", nodes, 1, epsilon, plan.max_trips)[:, 0]
            expected = posterior_counts(rough, epsilon / plan.max_trips, np.zeros(len(nodes), np.int64)).mean
            is_split = expected >= plan.split_limit(splits + 1, level + 1 == levels[-1])
        epsilon = plan.final_epsilon(splits, is_last)
        noisy = np.zeros(len(nodes), np.int64)
        noise = discrete_laplace(key, f"trips {level}", nodes[~is_split], 1, epsilon, plan.max_trips)[:, 0]
        noisy[~is_split] = exact[~is_split] + noise
        measured.append(MeasuredLevel(level, nodes, is_split, noisy, epsilon / plan.max_trips))
        nodes = (nodes[is_split][:, None] << np.uint64(4) | np.arange(16, dtype=np.uint64)).ravel()
        if not len(nodes):
            break
    return measured


@dataclass(frozen=True)
class ZonedCells:
    """A `Locator` of cells whose centres are in a zone; other places have no cell."""

    zones: Zones
    depth: int = field(default=MAX_PAIR_DEPTH, init=False)

    @cached_property
    def _locator(self) -> ZoneLocator:
        return ZoneLocator(self.zones)

    @property
    def _grid(self) -> Grid:
        return Grid(self.zones.region, MAX_PAIR_DEPTH)

    def locate(self, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> tuple[NDArray[np.bool_], Codes]:
        """See Locator.locate."""
        inside, codes = self._grid.locate(longitude, latitude)
        cells = codes.astype(np.uint64)
        is_zoned = self.zone_of(cells) >= 0
        inside = inside.copy()
        inside[inside] = is_zoned
        return inside, cells[is_zoned]

    def zone_of(self, cells: Codes) -> NDArray[np.int64]:
        """Returns the index of the zone that holds the centre of each cell, int64[n]; negative for none."""
        x, y = deinterleave(cells)
        west, south, east, north = self._grid.bounds(x, y, np.full(len(x), MAX_PAIR_DEPTH))
        return self._locator.zone_of((west + east) / 2, (south + north) / 2)


def measure_zone_flows(
    codes: Codes, counts: NDArray[np.int64], cells: ZonedCells, plan: FlowPlan, key: RunKey
) -> MeasuredLevel:
    """Draws the noise of a release: one count of each pair of zones, also where nobody travelled.

    A trip is in one pair, so a change of the K trips of a user costs the tree's epsilon. Arguments are those of
    `measure_flows`, but for the cells of the zones, in which all pairs of `codes` are.

    Returns the pairs of the m zones as nodes origin * m + destination, all m^2 in ascending order; level is 0.
    """
    zones = len(cells.zones)
    origins, destinations = (cells.zone_of(one) for one in split_pairs(codes, MAX_PAIR_DEPTH))
    exact = np.zeros(zones**2, np.int64)
    np.add.at(exact, origins * zones + destinations, counts)
    nodes = np.arange(zones**2, dtype=np.uint64)
    # Another noise under one key would share the draws: the difference of two releases would have next to none.
    key = key.narrowed({"plan": asdict(plan), "zones": cells.zones.digest})
    noise = discrete_laplace(key, "trips of zones", nodes, 1, plan.tree_epsilon, plan.max_trips)[:, 0]
    rate = plan.tree_epsilon / plan.max_trips
    return MeasuredLevel(0, nodes, np.zeros(len(nodes), dtype=bool), exact + noise, rate)
