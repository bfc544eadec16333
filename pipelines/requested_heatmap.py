"""What a request of a heatmap starts from. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

from dataclasses import replace

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid
from sfumato.schemas.release import CELLS_FILE
from sfumato.transforms.heatmap.heatmap_request import HeatmapRequest
from sfumato.transforms.heatmap.nights_before import nights_before
from sfumato.transforms.heatmap.schedule import check_plan
from sfumato.transforms.heatmap.warm_start import MAX_CELLS, WarmStart, check_prior
from sfumato.transforms.release.published_release import Release, open_start


def requested_start(request: HeatmapRequest) -> WarmStart | None:
    """The earlier release from which a heatmap starts, if any. Raises RequestError where the heatmap cannot be made."""
    grid = Grid(request.region, request.parameters.depth)
    starts = [open_start(folder, lambda one: start_of(one, grid)) for folder in request.warm_start or ()]
    start = starts[0] if starts else None
    if start is not None and request.night is not None:
        state = nights_before(request.warm_start or (), request.night).state
        if state is not None:
            expected = state.predict(request.night, float(start.estimate.counts.sum()))
            start = replace(start, estimate=expected, added=tuple(one.release_id for one in starts[1:]))
    prior = None if start is None else start.estimate
    check_prior(prior, request.parameters)
    if not all(one.safe for one in starts) and request.seed is None:
        raise RequestError(
            "warm_start: anybody can guess the key of that release and remove its noise, and the new release "
            "would reveal some of the exact counts; start from a release that was made without --seed"
        )
    check_plan(request.parameters, prior)
    return start


def start_of(release: Release, grid: Grid) -> WarmStart:
    """The map of an earlier release. Raises RequestError unless it fits the grid."""
    return WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE, MAX_CELLS), grid)
