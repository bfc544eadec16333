"""What a heatmap takes from an earlier release: a map to start from. All of it is public.

A start costs nothing beyond the epsilon of the earlier release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import region_from
from sfumato.schemas.region import Grid
from sfumato.schemas.tree import Tree, nodes_from_names
from sfumato.transforms.counting.parameters import digest
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.privacy.budget import check_epsilon

MAX_COUNT = 2.0**62  # users; sums of larger counts would overflow
MAX_CELLS = 300_000  # the job's graph holds the cells, and services limit its size


@dataclass(frozen=True)
class WarmStart:
    """The state that a new heatmap takes from an earlier release."""

    release_id: str  # of the earlier release
    estimate: Estimate  # its map
    epsilon: float  # its cost
    safe: bool  # whether the key of its noise is secret
    added: tuple[str, ...] = ()  # ids of later releases, whose answers a night's map adds

    @classmethod
    def from_release(cls, manifest: Mapping[str, Any], cells: pa.Table, grid: Grid) -> WarmStart:
        """Reads the manifest and the `cells.parquet` of a release for a new heatmap's grid.

        Raises RequestError if the release is not of a heatmap, is damaged, or has another region or depth.
        """
        if manifest.get("job") != "heatmap":
            raise RequestError(f"warm_start: must be a release of a heatmap, got one of {manifest.get('job')!r}")
        try:
            region = region_from(manifest["region"])
            depth, release_id = int(manifest["grid"]["depth"]), str(manifest["release_id"])
            epsilon = check_epsilon(float(manifest["privacy"]["epsilon"]))
            safe = manifest["privacy"]["randomness"]["safe"] is True
        except (KeyError, TypeError, ValueError, RequestError) as error:
            problem = f"the release's manifest lacks its region, grid or guarantee ({error!r})"
            raise RequestError(f"warm_start: {problem}") from None
        if region != grid.region:
            here = grid.region
            raise RequestError(f"warm_start: the release is of region {region}, this heatmap of {here}; give the same")
        if depth != grid.depth:
            raise RequestError(f"warm_start: the release has depth {depth}, this heatmap {grid.depth}; give the same")
        return cls(release_id, _read_estimate(cells, depth), epsilon, safe)

    def metadata(self) -> dict[str, Any]:
        """Returns the entry in the new release's manifest: the earlier releases' ids, the first's epsilon, the map's
        digest.
        """
        added = {"added": list(self.added)} if self.added else {}
        return {"release_id": self.release_id, "epsilon": self.epsilon, "digest": digest(self.estimate), **added}


def _read_estimate(cells: pa.Table, depth: int) -> Estimate:
    """Returns the map of a table of cells, in any order.

    Raises RequestError if the cells are not a map of this depth.
    """
    try:
        entries = nodes_from_names(cells.column("cell_id").to_pylist(), depth)
        counts, stddev = (np.asarray(cells.column(name).to_numpy(), dtype=np.float64) for name in ("count", "stddev"))
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"warm_start: the release's cells are damaged ({error})") from None
    if len(entries) > MAX_CELLS:
        raise RequestError(f"warm_start: must have at most {MAX_CELLS:,} cells, got {len(entries):,}")
    # Comparisons with NaN are false.
    if not (len(entries) and (abs(counts) < MAX_COUNT).all() and ((stddev >= 0) & (stddev < MAX_COUNT)).all()):
        raise RequestError("warm_start: the release's cells are damaged (counts or deviations that are no numbers)")
    order = np.argsort(entries)
    tree = Tree.of(depth, with_complete_parents(entries[order]))
    if not np.array_equal(tree.entries, entries[order]):
        raise RequestError("warm_start: the release's cells are damaged (they do not cover the region, or repeat)")
    return Estimate(tree, counts[order], stddev[order])


def with_complete_parents(entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Adds the nodes that own no entry because all four of their children exist."""
    nodes = entries
    while True:
        parents, children = np.unique(nodes[nodes > 1] >> np.uint64(2), return_counts=True)
        complete = np.setdiff1d(parents[children == 4], nodes)
        if not len(complete):
            return nodes
        nodes = np.union1d(nodes, complete)
