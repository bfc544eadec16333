"""An earlier release as the starting point of a new one: it is taken for public, and costs no more than it has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid
from sfumato.schemas.tree import Tree, node_levels
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.privacy.budget import check_epsilon

_TWO = np.uint64(2)
_BOUND = 2.0**62
_MOST_CELLS = 300_000  # the job's graph carries them, and services bound its size


@dataclass(frozen=True)
class WarmStart:
    """The map of an earlier release, of the same region and depth; that release's id and epsilon.

    safe: nobody can guess the key that its noise came from.
    """

    release_id: str
    estimate: Estimate
    epsilon: float
    safe: bool

    @classmethod
    def from_release(cls, manifest: Mapping[str, Any], cells: pa.Table, grid: Grid) -> WarmStart:
        """From a release's manifest and table of cells. Raises RequestError where they do not fit the grid."""
        if manifest.get("job") != "heatmap":
            raise RequestError(f"warm_start: a heatmap's release is needed, this one is of {manifest.get('job')!r}")
        try:
            region = tuple(float(manifest["region"][side]) for side in ("west", "south", "east", "north"))
            depth, release_id = int(manifest["grid"]["depth"]), str(manifest["release_id"])
            epsilon = check_epsilon("epsilon", float(manifest["privacy"]["epsilon"]))
            safe = manifest["privacy"]["randomness"]["safe"] is True
        except (KeyError, TypeError, ValueError, RequestError) as error:
            problem = f"the release's manifest lacks its region, grid or guarantee ({error!r})"
            raise RequestError(f"warm_start: {problem}") from None
        here = (grid.region.west, grid.region.south, grid.region.east, grid.region.north)
        if region != here:
            raise RequestError(f"warm_start: the release is of region {region}, this heatmap of {here}; give the same")
        if depth != grid.depth:
            raise RequestError(f"warm_start: the release has depth {depth}, this heatmap {grid.depth}; give the same")
        return cls(release_id, _estimate(cells, depth), epsilon, safe)

    def metadata(self) -> dict[str, Any]:
        """What the new release says of it: the id and epsilon, and a digest of what was taken from it."""
        return {"release_id": self.release_id, "epsilon": self.epsilon, "digest": digest(self.estimate)}


def digest(estimate: Estimate) -> str:
    """A digest of an estimate: to what a run's key is bound."""
    columns = (estimate.tree.nodes, estimate.counts, estimate.stddev)
    return hashlib.sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest()


def _estimate(cells: pa.Table, depth: int) -> Estimate:
    try:
        names, counts, stddev = (cells.column(name) for name in ("cell_id", "count", "stddev"))
        entries = _nodes(names.to_pylist())
        counts, stddev = (np.asarray(one.to_numpy(), dtype=np.float64) for one in (counts, stddev))
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"warm_start: the release's cells are damaged ({error})") from None
    if len(entries) > _MOST_CELLS:
        raise RequestError(f"warm_start: the release has {len(entries):,} cells, and {_MOST_CELLS:,} are the most")
    # NaN is not below the bound; nor is what no sum of users can be, and would overflow.
    if not (len(entries) and (np.abs(counts) < _BOUND).all() and (stddev < _BOUND).all() and (stddev >= 0).all()):
        raise RequestError("warm_start: the release's cells are damaged (counts or deviations that are no numbers)")
    order = np.argsort(entries)
    if int(node_levels(entries[order][-1:])[0]) > depth:
        raise RequestError(f"warm_start: the release's cells are damaged (finer than its depth, {depth})")
    tree = Tree.of(depth, _with_whole_parents(entries[order]))
    if not np.array_equal(tree.entries, entries[order]):
        raise RequestError("warm_start: the release's cells are damaged (they do not cover the region, or repeat)")
    return Estimate(tree, counts[order], stddev[order])


def _nodes(names: list[str]) -> NDArray[np.uint64]:
    """The nodes of cell ids: `r` and a digit 0..3 a level. Raises ValueError for anything else."""
    return np.array([int("1" + _digits(name), 4) for name in names], dtype=np.uint64)


def _digits(name: str) -> str:
    if not isinstance(name, str) or name[:1] != "r" or name.strip("0123") != "r" or len(name) > 31:
        raise ValueError(f"{name!r} is no cell's id")
    return name[1:]


def _with_whole_parents(entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The nodes, and those that own no entry because all four of their children are there."""
    nodes = entries
    while True:
        parents, children = np.unique(nodes[nodes > 1] >> _TWO, return_counts=True)
        whole = np.setdiff1d(parents[children == 4], nodes)
        if not len(whole):
            return nodes
        nodes = np.union1d(nodes, whole)


def check_prior(prior: Estimate | None, parameters: HeatmapParameters) -> None:
    """Raises RequestError where a heatmap of these parameters cannot start from an earlier map."""
    if prior is not None:
        parameters.method.check_warm_start()
    if prior is not None and prior.tree.depth != parameters.depth:
        raise RequestError(f"warm_start: the map has depth {prior.tree.depth}, not {parameters.depth}")
