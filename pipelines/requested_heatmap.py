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
from sfumato.transforms.release.published_release import open_release


def requested_start(request: HeatmapRequest) -> WarmStart | None:
    """The earlier release from which a heatmap starts, if any. Raises RequestError where the heatmap cannot be made."""
    grid = Grid(request.region, request.parameters.depth)
    starts = [start for folder in request.warm_start or () if (start := open_warm_start(folder, grid)) is not None]
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


def open_warm_start(path: str | None, grid: Grid) -> WarmStart | None:
    """The earlier release at a path; None without a path. Raises RequestError unless it fits the grid."""
    if path is None:
        return None
    try:
        release = open_release(path)
        return WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE, MAX_CELLS), grid)
    except RequestError as error:
        raise RequestError(str(error) if str(error).startswith("warm_start") else f"warm_start: {error}") from None
