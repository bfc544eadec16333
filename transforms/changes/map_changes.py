"""Changes between two published heatmaps, with a stated false discovery rate. Pure post-processing.

A node of the quadtree that both maps know is tested for the null hypothesis that equally many users are expected there
in both. The noise of the two maps is independent, and each user's location is a draw of its own, so the difference D
of the unbiased users has the variance v1 + v2 + 2 m: of the noise of each map, and of two counts with the mean m.

1. Nodes are filtered by the precision-weighted mean of both maps, which is independent of D under the null hypothesis:
   where nearly nobody is in either map, no change is large enough to be seen. Fewer tests give
   more power.
2. A p-value allows for the noise's tails, which are heavier than a normal distribution's: a sum of k discrete Laplace
   variables is a normal one whose variance is a Gamma variable of shape k.
3. Benjamini and Hochberg (1995) over the tested nodes of all levels at once. A descent from the root (Yekutieli 2008)
   would miss a move within a node, whose sum does not change.
4. Found nodes lie within each other. A list or a map shows the most significant of them only; that list has a false
   discovery rate of its own, by focused Benjamini-Hochberg (Katsevich, Sabatti, Bogomolov 2023).
5. The interval of a change that was found is widened for having been selected: Benjamini and Yekutieli (2005), false
   coverage rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray
from scipy import special

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.release import TOTALS_FILE, changes_schema
from sfumato.schemas.tree import Tree, node_levels, node_names, node_positions
from sfumato.transforms.geo.cell_indexes import index_columns
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.sections import tail_sums
from sfumato.transforms.statistics.bisection import bisect_each
from sfumato.transforms.statistics.posterior.full_tree import by_family
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts

Floats = NDArray[np.float64]

FALSE_DISCOVERY_RATE = 0.05
MIN_SNR = 2.0  # of the mean of both maps; a change of z standard deviations has at least an expected mean of z
_SHAPES = 200  # points of the Gamma distribution that a p-value is summed over
_BLOCK = 256  # nodes at a time, whose values for all points fit a processor's cache
_COLUMNS = (
    "leaf", "before", "after", "difference", "stddev", "low", "high", "p_value", "q_value", "changed", "changed_low",
    "changed_high", "shown",
)  # fmt: skip
_MIN_MEAN = 0.25  # users that a node is taken to have at least, so that empty ones are no certainty


@dataclass(frozen=True)
class MapCounts:
    """Users of a map's nodes without shrinkage."""

    region: Region
    counts: UnbiasedCounts  # of the full tree over the map's cells
    # The tree of the last sub-query. Its noise is independent of every tree, so a node is unbiased if it is a union of
    # this tree's entries. What is finer has the counts of an earlier sub-query only, whose noise decided where not to
    # look again, or is spread by area.
    measured: Tree
    tail_sums: int  # see `report.sections.tail_sums`

    def known(self) -> list[NDArray[np.bool_]]:
        """Returns by level whether each node is a union of entries that the last sub-query measured."""
        full = self.counts.full
        entry_levels = node_levels(self.measured.entries)[full.owners(self.measured)]
        least = full.by_level(entry_levels.astype(np.float64))
        for level in range(len(full.codes) - 1, 0, -1):
            least[level - 1][full.parents[level]] = by_family(least[level]).min(axis=1)
        return [values >= level for level, values in enumerate(least)]


@dataclass(frozen=True, eq=False)
class Changes:
    """The nodes that two maps share, and how their users differ. Arrays of n nodes, level by level."""

    node: NDArray[np.uint64]  # uint64[n], a 1 and then the node's path
    leaf: NDArray[np.bool_]  # bool[n], whether it is a cell; others are merged regions
    # before, after: float64[n], unbiased users; may be negative. `before` is scaled if shares are compared.
    before: Floats
    after: Floats
    difference: Floats  # float64[n], after - before
    stddev: Floats  # float64[n], of the difference under the null hypothesis
    low: Floats  # low, high: float64[n], ends of the 95% interval of the difference, for each node separately
    high: Floats
    p_value: Floats  # float64[n], NaN where the node was not tested
    # float64[n], the least false discovery rate at which the node is found; NaN where it was not tested.
    q_value: Floats
    changed: NDArray[np.bool_]  # bool[n], q_value is at most the false discovery rate
    # changed_low, changed_high: float64[n], the interval with false coverage rate; NaN where not changed.
    changed_low: Floats
    changed_high: Floats
    # bool[n], disjoint changed nodes below the root, the most significant ones; their false discovery rate is kept as
    # well.
    shown: NDArray[np.bool_]
    scale: float  # that `before` was multiplied by; 1 unless shares are compared
    grid: Grid  # the region, and the depth of the finer map

    @property
    def tested(self) -> NDArray[np.bool_]:
        """Returns whether each node was tested: bool[n]."""
        return ~np.isnan(self.p_value)

    def table(self) -> pa.Table:
        """Returns one row per node as GeoParquet (`changes_schema`)."""
        level, x, y = node_positions(self.node)
        bounds = self.grid.bounds(x, y, level)
        columns = {
            "cell_id": node_names(self.node),
            "depth": level.astype(np.int8),
            **dict(zip(("west", "south", "east", "north"), bounds, strict=True)),
            **{name: pa.array(getattr(self, name), from_pandas=True) for name in _COLUMNS},
            **index_columns(self.grid, level, *bounds),
            "geometry": shapely.to_wkb(shapely.box(*bounds)),
        }
        return pa.table(columns, schema=changes_schema())


def find_changes(
    before: MapCounts, after: MapCounts, rate: float = FALSE_DISCOVERY_RATE, *, shares: bool = False
) -> Changes:
    """Tests every node that two maps share.

    Args:
        before, after: the maps, of the same region.
        rate: false discovery rate, in 0..1: the expected share of wrong ones among the changed nodes, at most.
        shares: compare shares of all users: `before` is scaled to as many users as `after` has.
    """
    rows = [_known_nodes(one) for one in (before, after)]
    node, *places = np.intersect1d(rows[0][0], rows[1][0], assume_unique=True, return_indices=True)
    (users_before, noise_before), (users_after, noise_after) = (
        (users[place], variance[place]) for (_, users, variance), place in zip(rows, places, strict=True)
    )
    scale, scale_variance = 1.0, 0.0
    if shares and users_before[0] > 0 and users_after[0] > 0:
        scale = float(users_after[0] / users_before[0])
        scale_variance = scale**2 * float(noise_before[0] / users_before[0] ** 2 + noise_after[0] / users_after[0] ** 2)
        noise_before = scale**2 * noise_before + users_before**2 * scale_variance
        users_before = scale * users_before
    difference, noise = users_after - users_before, noise_before + noise_after
    mean = (users_before * noise_after + users_after * noise_before) / noise
    sampling = (1 + scale) * np.maximum(mean, _MIN_MEAN)
    stddev = np.sqrt(noise + sampling)
    mean_stddev = np.sqrt(noise_before * noise_after / noise)
    tested = mean >= MIN_SNR * mean_stddev
    # How many Laplace variables the difference's noise is like, at least: by its kurtosis, the heaviest of all nodes.
    part = noise_before / noise
    shape = float(np.min(1 / (part**2 / before.tail_sums + (1 - part) ** 2 / after.tail_sums)))
    tails = _Tails(noise / stddev**2, shape)
    p_value = np.where(tested, tails.probability(np.abs(difference) / stddev), np.nan)
    q_value = _q_values(p_value)
    changed = np.nan_to_num(q_value, nan=1.0) <= rate
    margin = stddev * tails.quantile(0.05)
    selected = np.where(changed, stddev * tails.quantile(rate * changed.sum() / max(tested.sum(), 1)), np.nan)
    return Changes(
        node=node,
        leaf=~np.isin(node, node >> np.uint64(2)),
        before=users_before,
        after=users_after,
        difference=difference,
        stddev=stddev,
        low=difference - margin,
        high=difference + margin,
        p_value=p_value,
        q_value=q_value,
        changed=changed,
        changed_low=difference - selected,
        changed_high=difference + selected,
        shown=_focused(node, p_value, rate),
        scale=scale,
        grid=Grid(before.region, max(before.counts.full.depth, after.counts.full.depth)),
    )


def _known_nodes(one: MapCounts) -> tuple[NDArray[np.uint64], Floats, Floats]:
    """Returns (node, users, variance of their noise) of the nodes that a map knows, level by level."""
    counts, known = one.counts, np.concatenate(one.known())
    users, variance = (np.concatenate(values)[known] for values in (counts.users, counts.node_variances()))
    return counts.full.tree.nodes[known], users, np.maximum(variance, np.finfo(np.float64).tiny)


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


def _focused(node: NDArray[np.uint64], p_value: Floats, rate: float) -> NDArray[np.bool_]:
    """Returns the largest set of most significant disjoint nodes that keeps its own false discovery rate: bool[n].

    A node joins the list unless it lies above or below one that is in it. The root, the sum of all, never does. The
    list of the nodes with p <= t is kept for the largest t at which t times the number of tests is at most `rate` times
    the list's length.
    """
    tests = int((~np.isnan(p_value)).sum())
    listed: list[int] = []
    chosen: set[int] = set()
    above: set[int] = set()  # all ancestors of the chosen
    length = 0  # of the list that is kept
    for row in np.argsort(p_value, kind="stable")[:tests].tolist():
        if p_value[row] * tests > rate * tests:
            break
        code = int(node[row])
        lineage = [code >> shift for shift in range(0, code.bit_length(), 2)]
        if code != 1 and code not in above and chosen.isdisjoint(lineage):
            listed.append(row)
            chosen.add(code)
            above.update(lineage)
        if p_value[row] * tests <= rate * len(listed):
            length = len(listed)
    shown = np.zeros(len(node), dtype=bool)
    shown[listed[:length]] = True
    return shown


def map_counts(release: Release) -> MapCounts:
    """Returns the unbiased users of a published heatmap. Raises RequestError where the release states none."""
    where, manifest = release.path, release.manifest
    if manifest.get("job") != "heatmap" or release.grid is None:
        raise RequestError(
            f"{where}: must be a heatmap, got a release of `sfumato {manifest.get('job')}`; create heatmaps of "
            "both days with one --region, and compare these"
        )
    if TOTALS_FILE not in manifest.get("errors", {}).get("sums", ""):
        raise RequestError(
            f"{where}: this heatmap does not state the errors of sums ({TOTALS_FILE}); create both maps with "
            "--method adaptive"
        )
    totals = release.arrow_table(TOTALS_FILE)
    node, users, variance = (totals[name].to_numpy() for name in ("node", "users", "variance"))
    try:
        last = manifest["privacy"]["sub_queries"][-1]
        measured = release.answered_tree(last["index"])
        counts = UnbiasedCounts.from_nodes(node, users, variance, release.grid.depth)
        return MapCounts(release.grid.region, counts, measured, tail_sums(manifest, last))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RequestError(f"{where}: the release is damaged ({error})") from None


def compare_releases(before: Release, after: Release, rate: float, *, shares: bool) -> Changes:
    """Returns the changes between two published heatmaps; see `find_changes`. Raises RequestError."""
    if before.manifest.get("release_id") == after.manifest.get("release_id"):
        raise RequestError(f"{after.path}: same release as {before.path}; name two different releases")
    counts = map_counts(before), map_counts(after)
    if counts[0].region != counts[1].region:
        raise RequestError(
            f"{after.path}: region {counts[1].region} differs from {counts[0].region} of {before.path}; changes "
            "require the same region"
        )
    return find_changes(*counts, rate, shares=shares)
