"""The files of a heatmap's release, made of the final state alone: all of it is post-processing. Pure."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from sfumato.schemas.guarantee import (
    SubQuery,
)
from sfumato.schemas.region import Grid
from sfumato.schemas.release import (
    CELLS_FILE,
    DENSITY_FILE,
    MANIFEST_FILE,
    PAGE_FILE,
    PICTURE_FILE,
    RATES_PICTURE,
    TOTALS_FILE,
)
from sfumato.schemas.tree import node_names, node_positions
from sfumato.transforms.heatmap.cells import cells_table, interval_columns, totals_table
from sfumato.transforms.heatmap.manifest import category_names, combined_sub_query, heatmap_manifest, uses_posterior
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.posterior.estimator import unbiased_counts
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.heatmap.raster import coarsen, estimate_density, gaussian_heatmap, painted
from sfumato.transforms.heatmap.rates import Rates, estimate_rates
from sfumato.transforms.heatmap.state import Estimate, HeatmapState, NoisyCounts
from sfumato.transforms.release.metadata import ReleaseMetadata, manifest_bytes, parquet_bytes
from sfumato.transforms.release.page import Layer, render_page
from sfumato.transforms.release.page import Rates as PageRates
from sfumato.transforms.release.page_layer import map_top
from sfumato.transforms.release.picture import render_picture
from sfumato.transforms.release.picture_rates import render_rates_picture
from sfumato.transforms.secagg.encodings import TreeEncoding

# The most cells on a page, in the map and in all its layers. A browser cannot show more, so finer cells are added up.
_MAX_MAP_CELLS, _MAX_PAGE_CELLS = 1 << 16, 100_000


def add_up_to(estimate: Estimate, users: float) -> Estimate:
    """The estimate with cells that add up to this many users, the number that the release states.

    Where no cell is negative, all are scaled. Otherwise the difference is spread over the cells by their variances, as
    least squares does: among n cells of equal noise a cell moves by about 1 / sqrt(n) of its standard deviation.
    Counts by category do not change.

    Args:
        estimate: of a method.
        users: at least 0.

    Returns:
        The same tree with other counts; the estimate itself where nothing can be scaled.
    """
    counts, variance = estimate.counts, estimate.stddev**2
    total, spread = float(counts.sum()), float(variance.sum())
    if counts.min() >= 0:
        return replace(estimate, counts=counts * (users / total)) if total > 0 else estimate
    return replace(estimate, counts=counts + variance * ((users - total) / spread)) if spread > 0 else estimate


def published_estimate(
    state: HeatmapState, parameters: HeatmapParameters, grid: Grid, categories: Sequence[str] = ()
) -> tuple[Estimate, UnbiasedCounts | None, Rates | None]:
    """What the table of cells is made of.

    Args:
        state: after the last sub-query.
        categories: names of the auxiliary data's categories; none without such data.

    Returns:
        The map, which adds up to the estimated number of users; the unbiased counts, None where their errors are
        independent or unknown; the rates of the categories, None without categories.
    """
    users, _ = state.users_estimate()
    estimate = add_up_to(parameters.method.decode(state, grid.depth), users)
    unbiased = unbiased_counts(estimate, state) if uses_posterior(parameters) else None
    return estimate, unbiased, _rates(estimate, categories, state, state.results[-1])


def release_files(
    state: HeatmapState, parameters: HeatmapParameters, metadata: ReleaseMetadata, grid: Grid, blur: float = 0.0
) -> dict[str, bytes]:
    """The release's files by name, the manifest last. With two categories a picture of their rate is among them.

    blur: standard deviation, in sides of the region, of a Gaussian filter over the density (paper 001, Section 2.3);
    the cells stay as they are.
    """
    manifest = heatmap_manifest(state, parameters, metadata, grid)
    users, users_stddev = state.users_estimate()
    categories = category_names(parameters, metadata)
    estimate, unbiased, rates = published_estimate(state, parameters, grid, categories)
    raster = gaussian_heatmap(estimate_density(estimate), blur)
    array = io.BytesIO()
    np.save(array, raster)
    layers = _layers(state, estimate, categories)
    layers[-1] = _with_intervals(layers[-1], estimate, unbiased)
    pictures = {}
    if rates is not None and len(rates.names) == 1:
        pictures[RATES_PICTURE] = _rates_picture(estimate, rates, state, metadata, grid)
    return {
        CELLS_FILE: parquet_bytes(cells_table(estimate, grid, categories, rates, unbiased)),
        **({} if unbiased is None else {TOTALS_FILE: parquet_bytes(totals_table(estimate, unbiased))}),
        DENSITY_FILE: array.getvalue(),
        PICTURE_FILE: render_picture(
            raster,
            grid.region,
            users=users,
            users_stddev=users_stddev,
            epsilon=state.budget.total,
            safe=metadata.safe,
            # As on the page, which knows the noise; a raster does not. A blurred map has its own.
            top=map_top(layers[-1], asdict(grid.region), grid.depth, users=users) if not blur else None,
        ),
        **pictures,
        PAGE_FILE: render_page(manifest, layers, raster).encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }


def _with_intervals(layer: Layer, estimate: Estimate, unbiased: UnbiasedCounts | None) -> Layer:
    """Adds the intervals of `cells.parquet` to the map. Cells that were merged for the page have none."""
    if unbiased is None:
        return layer
    columns = interval_columns(estimate, unbiased)
    rows = {name: row for row, name in enumerate(node_names(estimate.tree.entries))}
    row = np.array([rows.get(name, -1) for name in layer.cell_id], dtype=np.int64)
    published = (row >= 0) & (layer.area == estimate.tree.areas[row])
    low, high = (np.where(published, columns[name][row], np.nan) for name in ("users_low", "users_high"))
    return replace(layer, users_low=low, users_high=high)


def _rates_picture(
    estimate: Estimate, rates: Rates, state: HeatmapState, metadata: ReleaseMetadata, grid: Grid
) -> bytes:
    """The picture of the one rate that two categories have."""
    shown, auxiliary = _for_page(rates), metadata.parameters["columns"]["auxiliary"]
    name, column = rates.names[0], auxiliary["column"]
    users, users_stddev = state.users_estimate()
    return render_rates_picture(
        painted(estimate.tree, shown.rate[0]),
        painted(estimate.tree, shown.high[0] - shown.low[0]),
        grid.region,
        category=column if name == "true" else f"{column} = {name}",
        users=users,
        users_stddev=users_stddev,
        epsilon=state.budget.total,
        safe=metadata.safe,
    )


def _layers(state: HeatmapState, estimate: Estimate, categories: Sequence[str]) -> list[Layer]:
    """A layer for each sub-query of a tree's entries, and the map where that differs from the last result."""
    layers = []
    for place, result in enumerate(state.results):
        if isinstance(result.encoding, TreeEncoding):
            layers.append((result.to_estimate(), result, result.spent, _remaining(state, place)))
    last = layers[-1][0] if layers else None
    combined = last is None or last.tree != estimate.tree or not np.array_equal(last.stddev, estimate.stddev)
    if last is not None and not combined:  # or the method has dropped some cells
        combined = bool(np.any((estimate.counts == 0) & (last.counts != 0)))
    if not combined:  # the last result, with cells that add up to the number of users
        layers[-1] = (estimate, *layers[-1][1:])
    else:
        layers.append(
            (estimate, state.results[-1], combined_sub_query(state), _remaining(state, len(state.results) - 1))
        )
    rooms = _rooms([len(shown.counts) for shown, *_ in layers])
    made = []
    for (full, result, spent, remaining), room in zip(layers, rooms, strict=True):
        shown = coarsen(full, room)
        rates = _rates(shown, categories, state, result)
        layer = _layer(shown, spent, remaining, None if rates is None else _for_page(rates), len(full.counts))
        if state.is_central:  # one sum, with one noise
            layer = replace(layer, shards=1, shards_lost=0)
        made.append(layer)
    return [*made[:-1], replace(made[-1], combined=combined)]


def _rates(estimate: Estimate, categories: Sequence[str], state: HeatmapState, result: NoisyCounts) -> Rates | None:
    """The rates of an estimate whose users by category are of this result; None without auxiliary data."""
    answered = result.spent.shards - result.spent.shards_lost
    noisy_sums = 1 if state.is_central else answered
    return estimate_rates(estimate, categories, noisy_sums, state.cohort.shards / answered)


def _for_page(rates: Rates) -> PageRates:
    """The rates on the page: shrunk, within each cell's own interval, unknown where users are within the noise."""
    unknown = np.isnan(rates.rate) | np.isnan(rates.shrunk)
    low, high = (np.where(unknown, np.nan, end) for end in (rates.low, rates.high))
    listed = np.stack([rates.shrunk, rates.simultaneous_low, rates.simultaneous_high], axis=1)
    return PageRates(list(rates.names), np.clip(rates.shrunk, low, high), low, high, listed)


def _remaining(state: HeatmapState, place: int) -> float:
    """The budget that a user of a sub-query has left after it."""
    results = state.results[place : place + 1] if state.has_disjoint_cohorts else state.results[: place + 1]
    charged = math.fsum([state.population.epsilon, *(result.spent.epsilon for result in results)])
    return max(state.budget.total - charged, 0.0)


def _rooms(entries: list[int]) -> list[int]:
    """The cells of each layer that fit the page, by its entries. The map, which is the last layer, comes first."""
    rooms = [min(size, _MAX_MAP_CELLS) for size in entries]
    others = sorted(range(len(entries) - 1), key=entries.__getitem__)
    left = _MAX_PAGE_CELLS - rooms[-1]
    for done, place in enumerate(others):  # small ones first; large ones share the rest
        rooms[place] = min(rooms[place], left // (len(others) - done))
        left -= rooms[place]
    return rooms


def _layer(shown: Estimate, spent: SubQuery, remaining: float, rates: PageRates | None, entries: int) -> Layer:
    """A layer of the page. entries: of the estimate, before it was made coarser."""
    level, x, y = node_positions(shown.tree.entries)
    stddev = float(np.median(shown.stddev))
    return Layer(
        index=spent.index,
        epsilon=spent.epsilon,
        remaining=remaining,
        stddev=stddev,
        vector_length=spent.vector_length,
        shards=spent.shards,
        shards_lost=spent.shards_lost,
        level=level,
        x=x,
        y=y,
        count=shown.counts,
        area=shown.tree.areas,
        cell_id=node_names(shown.tree.entries),
        deviations=None if np.allclose(shown.stddev, stddev, rtol=1e-6, atol=0) else shown.stddev,
        entries=entries,
        rates=rates,
    )
