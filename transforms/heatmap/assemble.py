"""Everything that a heatmap's release holds, made of the final state alone: all of it is post-processing. Pure."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    ADJACENCY,
    ASSUMPTIONS,
    EXACT_NOISE,
    FLOATING_NOISE,
    PRIVACY_UNIT,
    TRUSTED_SERVER,
    SubQuery,
)
from sfumato.schemas.region import Grid
from sfumato.schemas.release import (
    CELLS_FILE,
    DENSITY_FILE,
    MANIFEST_FILE,
    PAGE_FILE,
    PICTURE_FILE,
)
from sfumato.schemas.tree import node_names, node_positions
from sfumato.transforms.heatmap.blur import gaussian_heatmap
from sfumato.transforms.heatmap.cells import cells_table
from sfumato.transforms.heatmap.methods.trees import tree_of
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.raster import coarsen, density
from sfumato.transforms.heatmap.state import Answer, Estimate, HeatmapState
from sfumato.transforms.release.facts import ReleaseFacts, manifest_bytes, parquet_bytes, release_manifest
from sfumato.transforms.release.page import Layer, render_page
from sfumato.transforms.release.picture import render_picture
from sfumato.transforms.secagg.encodings import TreeEncoding

_NOTABLE_DELTA = 1e-6
# A page with more cells is too much for a browser, so finer ones are added up for it: in the map, in all its layers.
_MAX_MAP_CELLS, _MAX_PAGE_CELLS = 1 << 16, 100_000
# What only secure aggregation has. With central noise it is null in the manifest, and vector_length is what is counted.
_OF_SECURE_AGGREGATION = ("shards", "shards_lost", "required_survivors", "modulus", "bits_per_client")
_MECHANISM = "distributed discrete Laplace (Polya shares) over secure-aggregation shards"
_CENTRAL = "discrete Laplace, added once to the sums by a trusted server"
_ONE = "one location a user, chosen uniformly by the key"
_ALL = "one distribution a user over the cells of all her locations, in whole numbers that add up to {}"


def heatmap_manifest(
    state: HeatmapState, parameters: HeatmapParameters, facts: ReleaseFacts, grid: Grid
) -> dict[str, Any]:
    """The manifest: identity, guarantee, spending by sub-query, communication, parameters, versions, warnings.

    With central noise there are no shards and no modulus, and nothing was measured of what a client sends to the
    trusted server: the fields on them are null.
    """
    population, cohort = state.population, state.cohort
    central = parameters.noise == "central"
    participation = participation_delta(state, parameters)
    spent = [answer.spent for answer in state.answers]
    gamma = parameters.distribution_gamma

    def known(fields: dict[str, Any]) -> dict[str, Any]:
        return {k: None if central and k in _OF_SECURE_AGGREGATION else value for k, value in fields.items()}

    content = {
        "region": asdict(grid.region),
        "grid": {"depth": grid.depth, "side": grid.side},
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": _ALL.format(gamma) if gamma else _ONE,
            "adjacency": ADD_OR_REMOVE if central else ADJACENCY,
            "epsilon": state.budget.total,
            "epsilon_spent": state.budget.spent,
            "delta": 0.0,
            "mechanism": _CENTRAL if central else _MECHANISM,
            "randomness": facts.source,
            "population": {
                "source": population.source,
                "users": population.users,
                "epsilon": population.epsilon,
                "noise_stddev": population.noise_stddev,
            },
            "cohort": known(
                {
                    "users": cohort.users,
                    "sampling_rate": cohort.sampling_rate,
                    "shards": cohort.shards,
                    "required_survivors": cohort.required_survivors,
                }
            ),
            "sub_queries": [known(asdict(one)) for one in spent],
            "participation": {"protected": central, "delta": participation},
            "assumptions": _assumptions(parameters),
        },
        "communication": known(
            {
                "vector_entries": sum(one.vector_length for one in spent),
                "bits_per_client": sum(one.bits_per_client for one in spent),
            }
        ),
    }
    return release_manifest(facts, content, _warnings(state, parameters, participation))


def _assumptions(parameters: HeatmapParameters) -> list[str]:
    if parameters.noise == "central":
        return [TRUSTED_SERVER, *ASSUMPTIONS[2:], EXACT_NOISE]  # in place of what secure aggregation assumes
    return [*ASSUMPTIONS, FLOATING_NOISE if parameters.noise == "client" else EXACT_NOISE]


def _warnings(state: HeatmapState, parameters: HeatmapParameters, participation: float) -> list[str]:
    warnings = []
    if parameters.users is not None and parameters.users > state.population.users:
        warnings.append(
            f"{parameters.users:,} users were asked for, and there are about {state.population.users:,.0f} in all."
        )
    if parameters.noise == "client":
        warnings.append(f"{FLOATING_NOISE} Publish what --noise shard makes.")
    if participation > _NOTABLE_DELTA:
        warnings.append(
            f"Shards are so small that a user's taking part decides with chance {participation:.1g} whether her shard "
            "is lost; a larger shard_size or dropout makes that negligible."
        )
    last = state.answers[-1].spent
    if last.shards_lost:
        warnings.append(
            f"{last.shards_lost} of {last.shards} shards had too few survivors in the last sub-query; "
            "the others speak for them."
        )
    if parameters.allow_overflow and parameters.noise != "central":
        warnings.append("Overflow was allowed: counts may have wrapped around the modulus.")
    return warnings


def participation_delta(state: HeatmapState, parameters: HeatmapParameters) -> float:
    """Chance that one user's taking part decides in some sub-query whether her shard lives: a Poisson probability.

    0 with central noise, where no shard is lost.

    A function of public figures: the expected size of a shard and the number of survivors that it needs.
    """
    if parameters.noise == "central":
        return 0.0
    cohort, dropout = state.cohort, parameters.simulated_dropout
    expected = max(cohort.users / cohort.shards * (1 - dropout), 1e-9)
    others = cohort.required_survivors - 1
    at_the_border = math.exp(others * math.log(expected) - expected - math.lgamma(others + 1))
    return min(1.0, at_the_border * (len(state.answers) if dropout else 1))


def release_files(
    state: HeatmapState, parameters: HeatmapParameters, facts: ReleaseFacts, grid: Grid, blur: float = 0.0
) -> dict[str, bytes]:
    """The release's files by name, the manifest last.

    blur: standard deviation, in sides of the region, of a Gaussian filter over the density (paper 001, Section 2.3);
    the cells stay as they are.
    """
    manifest = heatmap_manifest(state, parameters, facts, grid)
    estimate = parameters.method.decode(state, grid.depth)
    raster = gaussian_heatmap(density(estimate.tree, estimate.counts), blur)
    array = io.BytesIO()
    np.save(array, raster)
    return {
        CELLS_FILE: parquet_bytes(cells_table(estimate, grid)),
        DENSITY_FILE: array.getvalue(),
        PICTURE_FILE: render_picture(
            raster,
            grid.region,
            users=state.cohort.users,
            epsilon=state.budget.total,
            safe=facts.safe,
        ),
        PAGE_FILE: render_page(manifest, _layers(state, estimate, parameters.noise == "central"), raster).encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }


def _layers(state: HeatmapState, estimate: Estimate, central: bool) -> list[Layer]:
    """A layer for each sub-query that asked for a tree's entries, and the map where that is not the last answer."""
    layers = []
    remaining = state.budget.total - state.population.epsilon
    for answer in state.answers:
        remaining -= answer.spent.epsilon
        if isinstance(answer.encoding, TreeEncoding):
            stddev = np.full(len(answer.counts), answer.spent.noise_stddev)
            layers.append((Estimate(tree_of(answer), answer.counts, stddev), answer.spent, remaining))
    combined = state.answers[-1].counts is not estimate.counts
    if combined:
        layers.append((estimate, _together(state.answers), remaining))
    rooms = _rooms([len(shown.counts) for shown, _, _ in layers])
    made = [_layer(*layer, room) for layer, room in zip(layers, rooms, strict=True)]
    if central:  # one sum, with one noise
        made = [replace(layer, shards=1, shards_lost=0) for layer in made]
    return [*made[:-1], replace(made[-1], combined=combined)]


def _rooms(entries: list[int]) -> list[int]:
    """How many cells of each layer, of so many entries, the page has room for: first the last one's, the map's."""
    rooms = [min(size, _MAX_MAP_CELLS) for size in entries]
    others = sorted(range(len(entries) - 1), key=entries.__getitem__)
    left = _MAX_PAGE_CELLS - rooms[-1]
    for done, place in enumerate(others):  # the small ones first: what they leave the large ones share
        rooms[place] = min(rooms[place], left // (len(others) - done))
        left -= rooms[place]
    return rooms


def _together(answers: tuple[Answer, ...]) -> SubQuery:
    """All sub-queries as if they were one."""
    spent = [answer.spent for answer in answers]
    return replace(
        spent[-1],
        epsilon=math.fsum(one.epsilon for one in spent),
        vector_length=sum(one.vector_length for one in spent),
        shards_lost=max(one.shards_lost for one in spent),
    )


def _layer(estimate: Estimate, spent: SubQuery, remaining: float, room: int) -> Layer:
    shown = coarsen(estimate, room)
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
        entries=len(estimate.counts),
    )
