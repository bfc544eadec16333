"""Pairs of public zones: where a cell lies, all pairs measured at once, and their flows. Pure.

A place is first cut to a cell of level MAX_PAIR_DEPTH of the zones' rectangle, as without zones. It is in the zone that
holds the centre of that cell. So trips, their rule and their bound are those of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, deinterleave
from sfumato.transforms.flows.count_posterior import posterior_counts
from sfumato.transforms.flows.flow_estimate import CLASSES, Flows, flows_and_rests
from sfumato.transforms.flows.flow_plan import FlowPlan
from sfumato.transforms.flows.flow_tree import MeasuredLevel
from sfumato.transforms.flows.pair_codes import MAX_PAIR_DEPTH, Codes, split_pairs
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.noise import discrete_laplace
from sfumato.transforms.zones.zone_file import Zones
from sfumato.transforms.zones.zone_raster import ZoneLocator

MAX_ZONES = 2000  # four million pairs are measured at once

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ZonedCells:
    """A `Locator` of cells whose centres are in a zone; other places have no cell."""

    zones: Zones
    _locator: ZoneLocator = field(init=False, repr=False, compare=False)
    depth: int = field(default=MAX_PAIR_DEPTH, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_locator", ZoneLocator(self.zones))

    @property
    def grid(self) -> Grid:
        """The cells."""
        return Grid(self.zones.region, MAX_PAIR_DEPTH)

    def locate(self, longitude: Array, latitude: Array) -> tuple[NDArray[np.bool_], Codes]:
        """See Locator.locate."""
        inside, codes = self.grid.locate(longitude, latitude)
        cells = codes.astype(np.uint64)
        is_zoned = self.zone_of(cells) >= 0
        inside = inside.copy()
        inside[inside] = is_zoned
        return inside, cells[is_zoned]

    def zone_of(self, cells: Codes) -> NDArray[np.int64]:
        """The index of the zone that holds the centre of each cell, int64[n]; negative for none."""
        x, y = deinterleave(cells)
        west, south, east, north = self.grid.bounds(x, y, np.full(len(x), MAX_PAIR_DEPTH))
        return self._locator.zone_of((west + east) / 2, (south + north) / 2)


def measure_zone_flows(
    codes: Codes, counts: NDArray[np.int64], cells: ZonedCells, plan: FlowPlan, key: RunKey
) -> MeasuredLevel:
    """Draws the noise of a release: one count of each pair of zones, also where nobody travelled.

    A trip is in one pair, so a change of the K trips of a user costs the tree's epsilon.

    Args:
        codes: uint64[n], distinct codes of pairs of cells in zones.
        counts: int64[n], trips of each pair, at most plan.max_trips of each user.
        cells: of the zones.
        plan: the budget.
        key: of the run's noise.

    Returns:
        The pairs of the m zones as nodes origin * m + destination, all m^2 in ascending order; level is 0.
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


def estimate_zone_flows(levels: Sequence[MeasuredLevel]) -> Flows:
    """The flows of a release, from its noisy counts alone. The rest of an origin has the pair's code of the origin."""
    (measured,) = levels
    zones = round(len(measured.nodes) ** 0.5)
    noisy = measured.noisy.reshape(zones, zones).astype(np.float64)
    classes = np.digitize(_of_other_pairs(noisy).ravel() * measured.rate, CLASSES)
    posterior = posterior_counts(measured.noisy, measured.rate, classes)
    origins = (measured.nodes // np.uint64(zones)).astype(np.int64)
    return flows_and_rests(levels, [posterior], [origins], 0, zones)


def _of_other_pairs(counts: Array) -> Array:
    """What other pairs suggest for each, float64[m, m]: never its own count, so that its noise is independent of it.

    The mean of two: its origin's other trips times its destination's other ones, divided by those of neither; and the
    trips of the way back. Within one zone only the first.
    """
    one = counts.sum(axis=1, keepdims=True) - counts
    other = counts.sum(axis=0, keepdims=True) - counts
    neither = counts.sum() - one - other - counts
    product = np.maximum(one, 0) * np.maximum(other, 0) / np.maximum(neither, 1)
    back = counts.T.copy()
    np.fill_diagonal(back, np.diag(product))
    return np.asarray((product + back) / 2)
