"""The maps of every slot of time, as a heatmap publishes them: a table, an array and the region's profile. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.region import Grid
from sfumato.schemas.release import SLOTS_SCHEMA
from sfumato.schemas.tree import Tree, node_names, node_positions
from sfumato.transforms.heatmap.posterior.estimator import sampling_of
from sfumato.transforms.heatmap.posterior.full_tree import FullTree
from sfumato.transforms.heatmap.posterior.slot_profiles import estimated_users, infer_slots
from sfumato.transforms.heatmap.posterior.unbiased import CONTINUITY, Z_95, user_intervals
from sfumato.transforms.heatmap.raster import density, estimate_density
from sfumato.transforms.heatmap.state import Estimate, HeatmapState

_MAX_VALUES = 1 << 21  # of the array: 8 MB
# Discrete Laplace noise has heavier tails than a normal variable: 2.12 deviations for 95% of one of them (Cornish and
# Fisher, by the kurtosis 3 / sums).
_KURTOSIS_95 = 0.206

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SlotMaps:
    """The maps of S slots on a tree of T cells.

    Attributes:
        tree: of the cells that the sub-query by slot counted.
        users, stddev: float64[S, T], estimated users and the standard deviations of their errors. Users are not
            negative, and add up over the slots to the map's users.
        expected: float64[S, T], users to expect in such a slot, see `slot_profiles`.
        unbiased, low, high: float64[S, T], users with the noise alone and their 95% intervals.
        region, region_stddev: float64[S], unbiased users of the whole region and their standard deviations.
    """

    tree: Tree
    users: Array
    stddev: Array
    expected: Array
    unbiased: Array
    low: Array
    high: Array
    region: Array
    region_stddev: Array

    @classmethod
    def from_state(cls, state: HeatmapState, estimate: Estimate) -> SlotMaps | None:
        """The maps of a run; None without slots.

        Args:
            state: after the last sub-query.
            estimate: the published map of all slots.
        """
        result = state.slot_result
        if result is None:
            return None
        tree, spent = result.tree, result.spent
        full = FullTree.from_trees(tree)
        counts, noise = result.counts.reshape(state.slots, -1), spent.noise_stddev**2
        owner = FullTree.from_trees(estimate.tree).owners(tree)
        total = np.bincount(owner, np.maximum(estimate.counts, 0), len(tree.entries)).astype(np.float64)
        posterior = infer_slots(full, counts, noise, total)
        expected, error = posterior.leaves()
        users, stddev = estimated_users(expected, error, counts, noise)
        # The users of shards that are not in the result, and of a population beyond the cohort, are estimated.
        answered = (spent.shards - spent.shards_lost) / state.cohort.shards
        sampling = 1 / answered - 1 + sampling_of(state)
        deviations = Z_95 + _KURTOSIS_95 / state.tail_sums
        margin = deviations * np.sqrt(noise + sampling * np.maximum(counts, expected)) + CONTINUITY
        region, region_stddev = _region(state, counts, noise, sampling)
        return cls(
            tree,
            users,
            np.sqrt(stddev**2 + sampling * expected),
            expected,
            counts,
            np.maximum(counts - margin, 0),
            np.maximum(counts + margin, 0),
            region,
            region_stddev,
        )

    def table(self, grid: Grid, names: tuple[str, ...]) -> pa.Table:
        """`slots.parquet`, by SLOTS_SCHEMA: slot after slot, in the order of the tree's entries.

        Args:
            grid: of the heatmap.
            names: of the slots.
        """
        slots, cells = self.users.shape
        level, x, y = node_positions(self.tree.entries)
        bounds = zip(("west", "south", "east", "north"), grid.bounds(x, y, level), strict=True)
        slot = np.repeat(np.arange(slots, dtype=np.int16), cells)
        columns = {
            "cell_id": pa.array(node_names(self.tree.entries) * slots),
            "depth": np.tile(level.astype(np.int8), slots),
            **{name: np.tile(values, slots) for name, values in bounds},
            "slot": slot,
            "slot_name": pa.DictionaryArray.from_arrays(pa.array(slot), pa.array(names)),
            "users": self.users.ravel(),
            "stddev": self.stddev.ravel(),
            "expected": self.expected.ravel(),
            "users_unbiased": self.unbiased.ravel(),
            "users_low": self.low.ravel(),
            "users_high": self.high.ravel(),
        }
        return pa.table(columns, schema=SLOTS_SCHEMA)

    def raster(self, estimate: Estimate) -> NDArray[np.float32]:
        """`slots.npy`: users of each slot on a grid, float32[S, 2^d, 2^d], row 0 in the north.

        Inside a cell of the slots' tree users are spread as those of all slots are. d is the grid's depth, or as fine
        as the array stays below 8 MB.

        Args:
            estimate: the published map of all slots.
        """
        slots, depth = len(self.users), self.tree.depth
        while slots * 4**depth > _MAX_VALUES and depth > 1:
            depth -= 1
        maps = np.stack([density(self.tree, users, depth) * users.sum() for users in self.users])
        total = maps.sum(axis=0)
        maps = np.divide(maps, total, out=np.full_like(maps, 1 / slots), where=total > 0)
        return np.asarray(maps * (estimate_density(estimate, depth) * self.users.sum()), dtype=np.float32)

    def profile(self) -> list[dict[str, Any]]:
        """The users of the whole region in each slot with 95% intervals, for the manifest."""
        low, high = user_intervals(self.region, self.region_stddev)
        rows = zip(self.region.tolist(), self.region_stddev.tolist(), low.tolist(), high.tolist(), strict=True)
        return [dict(zip(("users", "stddev", "low", "high"), row, strict=True)) for row in rows]


def _region(state: HeatmapState, counts: Array, noise: float, sampling: float) -> tuple[Array, Array]:
    """Unbiased users of the region in each slot, which add up to its users, and standard deviations: float64[S] each.

    Generalised least squares: the difference between the region's users, from all noisy figures, and the sum of the
    slots is shared out evenly, because all slots have the same noise.
    """
    slots = len(counts)
    summed, variance = counts.sum(axis=1), noise * counts.shape[1]
    users, stddev = state.users_estimate()
    found = summed + (users - summed.sum()) / slots
    spread = variance * (1 - 1 / slots) + stddev**2 / slots**2 + sampling * np.maximum(found, 0)
    return found, np.sqrt(spread)
