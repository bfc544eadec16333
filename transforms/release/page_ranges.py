"""The page of a model of range queries: a map on which a square is drawn and its answer read. Loads nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.schemas.release import MANIFEST_FILE, MODEL_FILE, RANGES_PICTURE
from sfumato.transforms.ranges.counts_model import GridModel, PartitionModel
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.networks.features import AROUND
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.ranges.noisy_counts import MIN_CLUMPING, NoisyGrid, clumping, strip_edges
from sfumato.transforms.release.page_shell import (
    PALETTE,
    Files,
    fill,
    map_image,
    part_of,
    plain,
    render_shell,
    repair_randomness,
    rounded,
    still_words,
)
from sfumato.transforms.release.picture_ranges import MOST_STRIPS, density, ranges_thumbnail

MOST_NUMBERS = 1_000_000  # that a page holds of a model
_ERROR_PLACES, _ERROR_SIZES = 16, 8  # a raster's errors: squares at so many places a side, of so many sizes
_START_PLACES = 24  # places a side among which the first square's is chosen
_ALARM = "The noise came from a known source ({}), so anyone who has it can take the noise away again."
_FILES: Files = (
    (MODEL_FILE, "the model, which answers any square without data or network"),
    (RANGES_PICTURE, "the released density as a picture"),
    (MANIFEST_FILE, "the guarantee, every parameter, every version"),
)
_FADE = (
    "the fading of cells lost in noise, D between drawing and moving. Enter puts the square at the centre, square "
    "brackets change its size"
)


def ranges_page(model: RangeModel, manifest: Mapping[str, Any]) -> str:
    """The whole page as one text.

    The page answers squares itself, as the model does, where that is a grid or rectangles; of other models it holds
    their answers to the cells of a raster, and says so.

    Args:
        model: what answers.
        manifest: the release's manifest. A missing key costs the page that line, not the page.
    """
    metadata = plain(manifest)
    metadata["region"], metadata["grid"] = asdict(model.field.grid.region), {"depth": model.field.grid.depth}
    alt = "The released density, bright where many users are"
    safe = part_of(part_of(metadata, "privacy"), "randomness").get("safe") is not False
    links = [(MODEL_FILE, ""), (MANIFEST_FILE, "")]
    words = still_words("the released density as a still picture", links, _promise(model.epsilon, safe))
    return render_shell(
        title="Private range queries",
        metadata=metadata,
        problems=repair_randomness(metadata, "the noise"),
        data={
            "palette": PALETTE,
            "top": float(f"{density(model).top:.6g}"),
            "layers": [{}],
            "model": embedded_model(model),
            "start": _start(model),
        },
        files=_FILES,
        stage=fill("page_ranges.html", {"map": fill("page_map.html", {"key": "lost in noise", "fade": _FADE})}),
        scripts=(
            "page_words.js",
            "page_pieces.js",
            "page_ground.js",
            "page_ranges_model.js",
            "page_ranges_network.js",
            "page_map.js",
            "page_ranges_map.js",
            "page_ranges.js",
            "page_steps.js",
            "page_ranges_words.js",
        ),
        styles=("page.css", "page_heatmap.css", "page_ranges.css"),
        still=words + map_image(ranges_thumbnail(model), alt, metadata["region"]),
        alarm=_ALARM,
    )


def embedded_model(model: RangeModel) -> dict[str, Any]:
    """What the page holds of a model, in JSON's types: all that its answers are made of, or a raster of them."""
    own = model.model
    if isinstance(own, GridModel) and own.grid.users.size <= MOST_NUMBERS:
        parts = _grid(own.grid)
    elif isinstance(own, LocalNetwork) and 2 * own.grid.users.size <= MOST_NUMBERS:
        parts = _network(own)
    elif isinstance(own, PartitionModel) and 6 * len(own.partition.users) <= MOST_NUMBERS:
        parts = _partition(own)
    else:
        parts = _raster(model)
    return {
        "side": model.field.side,
        "metres": list(model.field.metres),
        "least_clumping": MIN_CLUMPING,
        "error": own.ERROR,
        **parts,
    }


def _network(model: LocalNetwork) -> dict[str, Any]:
    """The grid, what networks make of its cells, and the networks."""
    grid = model.grid
    return {
        **_grid(grid),
        "kind": "network",
        "shown": rounded(model.cells.ravel().tolist(), 4),
        "around": [list(one) for one in AROUND],
        "smoothing": model.smoothing,
        "low": list(model.queries.low),
        "high": list(model.queries.high),
        "networks": [
            {name: [float(f"{one:.8g}") for one in values.ravel().tolist()] for name, values in weights.items()}
            for weights in model.networks
        ],
    }


def _grid(grid: NoisyGrid) -> dict[str, Any]:
    return {
        "kind": "grid",
        "x_edges": grid.x_edges.tolist(),
        "y_edges": grid.y_edges.tolist(),
        "users": _numbers(grid.users),
        "noise": grid.noise_stddev**2,
        "clumping": clumping(grid),
    }


def _partition(model: PartitionModel) -> dict[str, Any]:
    parts = model.partition
    corners = {name: getattr(parts, name).tolist() for name in ("x0", "y0", "x1", "y1")}
    return {"kind": "partition", **corners, "users": _numbers(parts.users), "variance": _numbers(parts.variance)}


def _raster(model: RangeModel) -> dict[str, Any]:
    """The model's answers to small cells, and its errors for squares of several sizes all over the region.

    Errors of cells do not add up to those of squares, so squares are asked about themselves.
    """
    strips = strip_edges(model.field.side, model.field.side / MOST_STRIPS).tolist()
    sizes = np.geomspace(max(model.field.metres) / MOST_STRIPS, min(model.field.metres), _ERROR_SIZES)
    stddev = [model.model.answer(_squares(model, _ERROR_PLACES, size)).stddev for size in sizes]
    return {
        "kind": "raster",
        "x_edges": strips,
        "y_edges": strips,
        "users": rounded(density(model, MOST_STRIPS).users.ravel().tolist(), 4),
        "errors": {
            "sizes": sizes.tolist(),
            "places": _ERROR_PLACES,
            "stddev": rounded(np.concatenate(stddev).tolist(), 4),
        },
    }


def _squares(model: RangeModel, places: int, size: float) -> Boxes:
    """Squares of a size in metres round places * places points of the field, row by row; what of them lies in it."""
    side, (width, height) = model.field.side, model.field.cell_metres
    middles = (np.arange(places) + 0.5) * (side / places)
    y, x = (one.ravel() for one in np.meshgrid(middles, middles, indexing="ij"))
    return Boxes.around(x, y, np.full(x.shape, size / width), np.full(x.shape, size / height)).clipped(side)


def _start(model: RangeModel) -> dict[str, float]:
    """The first square: large enough to be seen, where among some places most users are."""
    size = float(f"{min(model.field.metres) / 15:.2g}")
    best = int(np.argmax(model.model.answer(_squares(model, _START_PLACES, size)).users))
    row, column = divmod(best, _START_PLACES)
    region = model.field.grid.region
    x = region.west + (column + 0.5) / _START_PLACES * (region.east - region.west)
    y = region.north - (row + 0.5) / _START_PLACES * (region.north - region.south)
    return {"x": round(x, 6), "y": round(y, 6), "size": size}


def _promise(epsilon: float, safe: bool) -> str:
    """Markup for where scripts do not run."""
    ask = "Answers to squares need scripts, or <code>sfumato ranges answer</code>."
    return f"{ask} Every user is protected by differential privacy with ε = {epsilon:g}." if safe else ask


def _numbers(values: NDArray[np.float64]) -> list[float]:
    """Whole numbers as such, others to seven digits, row by row."""
    flat = values.ravel().tolist()
    return [int(one) if one == int(one) else float(f"{one:.7g}") for one in flat]
