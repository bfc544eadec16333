"""The files of a heatmap's release, made of the final state alone: all of it is post-processing. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.region import Grid
from sfumato.schemas.release import (
    ANSWERS_FILE,
    CELLS_FILE,
    DENSITY_FILE,
    NIGHTS_FILE,
    SLOT_MAPS_FILE,
    SLOTS_FILE,
    TOTALS_FILE,
)
from sfumato.transforms.heatmap.cells import answers_table, cells_table, totals_table
from sfumato.transforms.heatmap.heatmap_view import heatmap_view
from sfumato.transforms.heatmap.manifest import category_names, heatmap_manifest
from sfumato.transforms.heatmap.nights_before import NIGHT_INTERVALS, NIGHT_STDDEV, Night, night_map, nights_content
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.posterior.estimator import unbiased_counts
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.heatmap.raster import estimate_density
from sfumato.transforms.heatmap.rates import Rates, estimate_rates
from sfumato.transforms.heatmap.slot_maps import SlotMaps
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.secagg.encodings import TreeEncoding


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
    """What the table of cells is made of. With a rotation it is scaled from the asked users to all users.

    Args:
        state: after the last sub-query.
        categories: names of the auxiliary data's categories; none without such data.

    Returns:
        The map, which adds up to the estimated number of users; the unbiased counts, None where their errors are
        independent or unknown; the rates of the categories, None without categories.
    """
    users, _ = state.users_estimate()
    estimate = add_up_to(parameters.method.decode(state, grid.depth), users)
    unbiased = unbiased_counts(estimate, state) if parameters.method.errors == "posterior" else None
    spent = state.results[-1].spent  # whose users by category the estimate has
    answered = spent.shards - spent.shards_lost
    noisy_sums = state.noise.tail_sums(1 if state.is_central else answered)
    rates = estimate_rates(estimate, categories, noisy_sums, state.cohort.shards / answered)
    if state.rotation == 1:
        return estimate, unbiased, rates
    if unbiased is None:  # the posterior's deviations hold the sampling of users, those of the noise do not
        sampling = (1 - 1 / state.rotation) * np.maximum(estimate.counts, 0)
        estimate = replace(estimate, stddev=np.sqrt(estimate.stddev**2 + sampling))
    return estimate.scaled(state.rotation), None if unbiased is None else unbiased.scaled(state.rotation), rates


def release_files(
    state: HeatmapState,
    parameters: HeatmapParameters,
    metadata: ReleaseMetadata,
    grid: Grid,
    night: Night | None = None,
) -> dict[str, bytes]:
    """The release's files by name, the manifest last. With two categories a picture of their rate is among them.

    Args:
        state: after the last sub-query.
        night: the night whose map it is, and those that it continues; None makes the map of the answers alone.
    """
    categories = category_names(parameters, metadata)
    estimate, unbiased, rates = published_estimate(state, parameters, grid, categories)
    slots = SlotMaps.from_state(state, estimate)
    manifest = heatmap_manifest(state, parameters, metadata, grid, slots)
    finest, intervals, parts = estimate, None, dict[str, pa.Table | bytes](metadata.geography_files)
    if night is not None:
        after, tonight = night_map(state, night)
        finest = tonight.estimate
        estimate, *intervals = tonight.on(estimate.tree)
        manifest["nights"] = nights_content(after, tonight, night)
        manifest["errors"] |= {"stddev": NIGHT_STDDEV, "intervals": NIGHT_INTERVALS}
        parts[NIGHTS_FILE] = after.to_table()
    parts[CELLS_FILE] = cells_table(estimate, grid, categories, rates, unbiased, intervals)
    parts[DENSITY_FILE] = _array_bytes(estimate_density(finest))
    if unbiased is not None:
        parts[TOTALS_FILE] = totals_table(estimate, unbiased)
    if answers := [result for result in state.map_results if isinstance(result.encoding, TreeEncoding)]:
        parts[ANSWERS_FILE] = answers_table(answers, state.rotation)
    if slots is not None:
        parts[SLOTS_FILE] = slots.table(grid, tuple(manifest["slots"]["names"]))
        parts[SLOT_MAPS_FILE] = _array_bytes(slots.raster(estimate))
    return build_release(parts, manifest, heatmap_view)


def _array_bytes(array: NDArray[Any]) -> bytes:
    """An array as an npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
