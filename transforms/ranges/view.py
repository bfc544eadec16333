"""The page of a model of range queries, from its published files: the model itself and a coarse map of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.guarantee import Trust
from sfumato.schemas.known_digits import NOISE_Z, Z, about
from sfumato.schemas.ranges import BASE_DEPTH, Boxes
from sfumato.schemas.region import interleave
from sfumato.schemas.release import MANIFEST_FILE, MODEL_FILE, RANGES_PICTURE
from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import RangesBody
from sfumato.schemas.views.map_views import MapBody, Measure
from sfumato.schemas.views.view_parts import Bounds, Section
from sfumato.transforms.observability.text_tables import counted, significant
from sfumato.transforms.ranges.field_counts import MIN_CLUMPING, NoisyGrid, clumping, strip_at, strip_edges
from sfumato.transforms.ranges.model import Answers, GridModel, Model, RangeModel, TreeModel
from sfumato.transforms.ranges.model_file import read_model
from sfumato.transforms.ranges.networks.examples import AROUND
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.report.layers import cell_layer
from sfumato.transforms.report.numbers import length
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.scales import density_scale
from sfumato.transforms.report.sections import facts, get, number

MAX_NUMBERS = 1_000_000  # that a page holds of a model
MAX_STRIPS = 512  # along a side, of the raster of a model that a page cannot hold itself
_MAP_LEVEL = 8  # the background's finest cells: 256 a side
_ERROR_PLACES, _ERROR_SIZES = 16, 8  # a raster's errors: squares at this many places a side, of this many sizes
_START_PLACES = 24  # places a side among which the first square's is chosen
_AT_ONCE = 1 << 17  # boxes
_ALIKE = 0.06  # four cells whose densities differ by at most this share of the largest are drawn as one
_FILES = {
    MODEL_FILE: "the model, which answers any square without data or network",
    RANGES_PICTURE: "the released density as a picture",
    MANIFEST_FILE: "the guarantee, every parameter, every version",
}
_METHODS = {
    "grid": "the noisy counts of a uniform grid",
    "adaptive": "the cells of a private heatmap",
}
_NETWORKS = {
    "network": "local networks, trained on simulated populations to weigh the noisy counts of a grid",
    "paper_networks": "the published form of spatial neural histograms: a network for each of several sizes, fitted "
    "to the noisy counts of a grid",
}
_TRUST: dict[str, str] = {
    Trust.CENTRAL: "by the operator of the job, who sees the exact counts",
    Trust.SECAGG: "in every group's sum; the server sees no single report (secure aggregation)",
}
_ANSWERS = {
    "grid": "An answer is the sum of the noisy counts in the square. Where the square's border cuts a cell, people are "
    "assumed to be spread evenly in it, and the share inside counts.",
    "raster": "The model answers any square, but is too large for a page. This page contains its answers to a raster "
    f"of {MAX_STRIPS} × {MAX_STRIPS} cells and adds them up. The model's direct answers, from the command below, may "
    "differ slightly.",
    "network": "An answer is computed by neural networks from the noisy counts in and around the square. They were "
    "trained on simulated populations. Squares larger than the networks were made for are answered directly from the "
    "counts. Answers are calibrated for squares around people and are biased upwards in empty places. Do not add up "
    "many small squares: query a large one, or run the command below with --additive for answers that add up.",
}
_ERRORS = {
    "lower bound": "The stated interval is too narrow for some squares. It includes the noise and the uncertainty of "
    "the part at the square's centre. The release does not show how unevenly people are spread inside parts, or how "
    "errors of neighbouring parts are correlated.",
    "estimate": "In squares around people, the stated interval contains the true number about 95 times in 100. It "
    "includes the noise and the model's estimate of the error from people being spread unevenly.",
}


def ranges_view(files: Files, model: RangeModel | None = None) -> PageView:
    """Returns the page of a release's published files, by name: the manifest and the model.

    model: what the file of the model holds, if it is in memory already.
    """
    release = Released(files)
    manifest, sizes = release.manifest, release.manifest["sizes_metres"]
    model = model or read_model(files[MODEL_FILE], MODEL_FILE)
    body = ranges_body(model, (float(sizes[0]), float(sizes[1])))
    population, noise = number(manifest, "privacy.population.users"), number(manifest, "privacy.noise_stddev")
    users = population or number(manifest, "results.users") or 0.0
    stddev = number(manifest, "privacy.population.noise_stddev") or 0.0
    many = f"how many of about {about(users, max(stddev, users / 1000))} users are in it"
    width, height = model.field.metres
    between = f"{length(sizes[0])} to {length(sizes[1])}"
    noise_facts = facts(
        ("Where noise is added", _TRUST.get(str(get(manifest, "privacy.trust")))),
        ("Noise of a count", None if noise is None else f"± {significant(NOISE_Z * noise, 2)} users (95%)"),
        ("Number of users", None if population is None else counted(population, stddev)),
    )
    reading = Section(title="How to read an answer", paragraphs=_reading(body, between), facts=noise_facts)
    return release.page(
        body,
        [reading, _making(manifest, model)],
        facts(("Area", f"{length(width)} × {length(height)}"), ("Made for squares of", between)),
        _FILES,
        [RANGES_PICTURE],
        title="Private range queries",
        headline=f"Draw a square: {many if users > 0 else 'how many users are in it'}",
        description="Draw a square on a map and read how many users are in it, from differentially private counts.",
        job="ranges build",
    )


def _reading(body: RangesBody, sizes: str) -> list[str]:
    kind, any_uncertain = body.model["kind"], any(body.background.layers[0].measures[0].uncertain)
    found = [_ANSWERS[kind] if kind in _ANSWERS else _ANSWERS["grid"], _ERRORS[body.model["error"]]]
    if any_uncertain:
        found.append(
            "Parts of the map without a colour may be empty: noise could explain their counts. They still count in "
            "squares."
        )
    return [
        *found,
        f"The model was made for squares of {sizes}. It also answers others, possibly with larger errors. For a small "
        "square with few people, it can only give an upper bound.",
        "The guarantee does not depend on the number of squares you query. All answers are computed from the same "
        "release; the data are never read again.",
    ]


def _making(manifest: Mapping[str, Any], model: RangeModel) -> Section:
    method, parts = str(get(manifest, "method", model.method)), number(manifest, "results.parts")
    cell = get(manifest, "cell_metres")
    width = f" of {length(cell[0])} × {length(cell[1])}" if cell else ""
    text = _NETWORKS.get(model.model.KIND) or _METHODS.get(method, "see the documentation of the command")
    texts = [f"Method “{method}”: {text}."]
    if isinstance(model.model, GridModel | LocalNetwork) and parts:
        texts.append(
            f"The region was divided into {parts:,.0f} cells{width}, and the users in each were counted once, with "
            "noise."
        )
    texts.append(
        "For thousands of squares, query the model on your own machine. It needs no data and no network: sfumato "
        "ranges answer --model . --queries squares.parquet --output answers.parquet, where squares.parquet has the "
        "columns x and y (degrees, of the centre) and size (metres)."
    )
    return Section(title="How it was made", paragraphs=texts)


def ranges_body(model: RangeModel, sizes_metres: tuple[float, float]) -> RangesBody:
    """Returns the page's body for a model. sizes_metres: the least and the largest side that it was made for."""
    region = Bounds(**asdict(model.field.grid.region))
    start = _start(model, sizes_metres)
    return RangesBody(
        region=region, sizes_metres=sizes_metres, start=start, model=embedded_model(model), background=background(model)
    )


def embedded_model(model: RangeModel) -> dict[str, Any]:
    """Returns the page's copy of a model, in JSON types: all its arrays, or a raster of its answers."""
    own = model.model
    if isinstance(own, GridModel) and own.grid.users.size <= MAX_NUMBERS:
        parts = _grid(own.grid)
    elif isinstance(own, LocalNetwork) and 2 * own.grid.users.size <= MAX_NUMBERS:
        parts = _network(own)
    else:
        parts = _raster(model)
    field = {"side": model.field.side, "metres": list(model.field.metres)}
    return {**field, "min_clumping": MIN_CLUMPING, "error": own.ERROR, **parts}


def _network(model: LocalNetwork) -> dict[str, Any]:
    return {
        **_grid(model.grid),
        "kind": "network",
        "around": [list(one) for one in AROUND],
        "smoothing": model.smoothing,
        "low": list(model.queries.low),
        "high": list(model.queries.high),
        "networks": [{name: _numbers(values, 8) for name, values in one.items()} for one in model.networks],
    }


def _grid(grid: NoisyGrid) -> dict[str, Any]:
    edges = {"x_edges": grid.x_edges.tolist(), "y_edges": grid.y_edges.tolist()}
    noise = {"noise": grid.noise_stddev**2, "clumping": clumping(grid)}
    return {"kind": "grid", **edges, "users": _numbers(grid.users), **noise}


def _raster(model: RangeModel) -> dict[str, Any]:
    """Returns the model's answers to small cells, and its errors for squares of several sizes all over the region.

    Errors of cells do not add up to those of squares, so the model answers squares themselves.
    """
    edges = strip_edges(model.field.side, model.field.side / MAX_STRIPS)
    # Rounded, because the last digits of powers depend on the machine.
    sizes = _numbers(np.geomspace(max(model.field.metres) / MAX_STRIPS, min(model.field.metres), _ERROR_SIZES))
    stddev = [model.model.answer(_squares(model, _ERROR_PLACES, size)).stddev for size in sizes]
    errors = {"sizes": sizes, "places": _ERROR_PLACES, "stddev": _numbers(np.concatenate(stddev), 4)}
    users = _numbers(_cell_users(model.model, Boxes.between(edges, edges)), 3)
    return {"kind": "raster", "x_edges": edges.tolist(), "y_edges": edges.tolist(), "users": users, "errors": errors}


def _cell_users(model: Model, cells: Boxes) -> NDArray[np.float64]:
    """Returns the users of cells, which add up, unlike the model's answers to small squares."""
    table = model.additive_table
    return _answers(model, cells).users if table is None else np.maximum(table.sum(cells), 0.0)


def _answers(model: Model, boxes: Boxes) -> Answers:
    found = [model.answer(boxes.part(slice(at, at + _AT_ONCE))) for at in range(0, len(boxes), _AT_ONCE)]
    return Answers(np.concatenate([one.users for one in found]), np.concatenate([one.stddev for one in found]))


def _squares(model: RangeModel, places: int, size: float) -> Boxes:
    """Returns squares of a size in metres around places * places points, row by row, clipped to the field."""
    side, (width, height) = model.field.side, model.field.cell_metres
    middles = (np.arange(places) + 0.5) * (side / places)
    y, x = (one.ravel() for one in np.meshgrid(middles, middles, indexing="ij"))
    return Boxes.around(x, y, np.full(x.shape, size / width), np.full(x.shape, size / height)).clipped(side)


def _start(model: RangeModel, sizes: tuple[float, float]) -> tuple[float, float, float]:
    """Returns the first square: of a size that the model was made for and that one can see, where most users are."""
    low, high = sizes
    size = min(max(float(f"{min(model.field.metres) / 12:.2g}"), low), high)
    row, column = divmod(int(np.argmax(model.model.answer(_squares(model, _START_PLACES, size)).users)), _START_PLACES)
    region = model.field.grid.region
    x = region.west + (column + 0.5) / _START_PLACES * (region.east - region.west)
    y = region.north - (row + 0.5) / _START_PLACES * (region.north - region.south)
    return round(x, 6), round(y, 6), size


def background(model: RangeModel) -> MapBody:
    """Returns a coarse map of the model's answers: cells of a quadtree, the larger the more alike what they hold."""
    field, own = model.field, model.model
    depth = min(_MAP_LEVEL, field.grid.depth)
    edges = strip_edges(field.side, field.side / (1 << depth))
    cells = Boxes.between(edges, edges)
    shape = (1 << depth, 1 << depth)
    level, x, y = _merged(_cell_users(own, cells).reshape(shape), _is_uncertain(own, cells).reshape(shape))
    width = field.side / 2.0**level
    shown = Boxes(x * width, y * width, (x + 1) * width, (y + 1) * width)
    users, stddev, uncertain = _cell_users(own, shown), _answers(own, shown).stddev, _is_uncertain(own, shown)
    km2 = shown.areas * field.cell_metres[0] * field.cell_metres[1] / 1e6
    margin = Z * stddev
    measure = Measure(
        name="Users",
        kind="count",
        unit="users",
        value=[*_numbers(users, 3)],
        low=[*_numbers(np.maximum(users - margin, 0), 3)],
        high=[*_numbers(users + margin, 3)],
        uncertain=uncertain.tolist(),
        scale=density_scale(users / km2, np.where(uncertain, 0.0, users)),
    )
    nodes = interleave(x.astype(np.uint32), y.astype(np.uint32)) | np.uint64(1) << (2 * level).astype(np.uint64)
    layer = cell_layer("Density", "The model's answers that add up, on cells of at most 256 a side.", nodes, [measure])
    region = Bounds(**asdict(field.grid.region))
    finest = (field.metres[0] / (1 << depth), field.metres[1] / (1 << depth))
    return MapBody(region=region, depth=depth, layers=[layer], finest_metres=finest)


def _merged(
    users: NDArray[np.float64], uncertain: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns (level, x, y) of the cells that remain after four alike were joined again and again; levels ascend.

    users: float64[2^d, 2^d], row 0 in the north. uncertain: of that shape; only cells equal in this are alike.
    """
    found, whole = [], np.ones(users.shape, dtype=bool)
    for level in range(users.shape[0].bit_length() - 1, -1, -1):
        kept, fours = whole, (1 << max(level - 1, 0), 2, 1 << max(level - 1, 0), 2)
        if level:
            most, least = (pick(users.reshape(fours), axis=(1, 3)) for pick in (np.max, np.min))
            unsure = uncertain.reshape(fours)
            joined = np.asarray(whole.reshape(fours).all(axis=(1, 3)) & (most - least <= _ALIKE * most))
            joined &= np.asarray(unsure.all(axis=(1, 3)) == unsure.any(axis=(1, 3)))
            kept = np.asarray(whole & ~joined.repeat(2, axis=0).repeat(2, axis=1))
            users, uncertain, whole = users.reshape(fours).sum(axis=(1, 3)), np.asarray(unsure.any(axis=(1, 3))), joined
        y, x = np.nonzero(kept)
        found.append(np.array([np.full(len(x), level), x, y], dtype=np.int64))
    levels, columns, rows = np.concatenate(found[::-1], axis=1)
    return levels, columns, rows


def _is_uncertain(model: Model, cells: Boxes) -> NDArray[np.bool_]:
    """Returns whether each cell's centre lies in a part of the model whose users may be nothing but noise: bool[cells].

    A small piece of a part is known less well than the part, so parts are judged and not pieces. A model without parts
    is judged by its answers to the cells.
    """
    x, y = cells.middles
    part: NDArray[np.integer[Any]]
    if isinstance(model, GridModel | LocalNetwork):
        grid = model.grid
        number = np.arange(grid.users.size, dtype=np.int32).reshape(grid.users.shape)
        users, stddev = grid.users.ravel(), np.full(grid.users.size, grid.noise_stddev)
        if isinstance(model, LocalNetwork):
            found = _answers(model, Boxes.between(grid.x_edges, grid.y_edges))
            users, stddev = found.users, found.stddev
        part = number[strip_at(grid.y_edges, y), strip_at(grid.x_edges, x)]
    elif isinstance(model, TreeModel):
        tree, users, stddev = model.estimate.tree, model.estimate.counts, model.estimate.stddev
        fine = float(1 << tree.depth) / (1 << BASE_DEPTH)
        part = tree.index.owners(interleave((x * fine).astype(np.uint32), (y * fine).astype(np.uint32)))
    else:
        found = _answers(model, cells)
        users, stddev, part = found.users, found.stddev, np.arange(len(cells))
    return np.asarray(users <= Z * stddev)[part]


def _numbers(values: NDArray[np.floating[Any]], digits: int = 7) -> list[float]:
    """Returns whole numbers as such, others to this many significant digits, row by row."""
    flat = np.asarray(values, dtype=np.float64).ravel().tolist()
    return [int(one) if one == int(one) else float(f"{one:.{digits}g}") for one in flat]
