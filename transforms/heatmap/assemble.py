"""Everything that a heatmap's release holds, made of the final state alone: all of it is post-processing. Pure."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sfumato.schemas.guarantee import (
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
_MAX_PAGE_CELLS = 1 << 16  # a page with more cells is too much for a browser: finer ones are added up for it
_MECHANISM = "distributed discrete Laplace (Polya shares) over secure-aggregation shards"
_CENTRAL = "discrete Laplace, added once to the sums by a trusted server"
_ONE = "one location a user, chosen uniformly by the key"
_ALL = "one distribution a user over the cells of all her locations, in whole numbers that add up to {}"


def heatmap_manifest(
    state: HeatmapState, parameters: HeatmapParameters, facts: ReleaseFacts, grid: Grid
) -> dict[str, Any]:
    """The manifest: identity, guarantee, spending by sub-query, communication, parameters, versions, warnings."""
    population, cohort = state.population, state.cohort
    central = parameters.noise == "central"
    participation = participation_delta(state, parameters)
    spent = [answer.spent for answer in state.answers]
    gamma = parameters.distribution_gamma
    content = {
        "region": asdict(grid.region),
        "grid": {"depth": grid.depth, "side": grid.side},
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": _ALL.format(gamma) if gamma else _ONE,
            "adjacency": ADJACENCY,
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
            "cohort": {
                "users": cohort.users,
                "sampling_rate": cohort.sampling_rate,
                "shards": cohort.shards,
                "required_survivors": cohort.required_survivors,
            },
            "sub_queries": [asdict(one) for one in spent],
            "participation": {"protected": central, "delta": participation},
            "assumptions": _assumptions(parameters),
        },
        "communication": {
            "vector_entries": sum(one.vector_length for one in spent),
            "bits_per_client": sum(one.bits_per_client for one in spent),
        },
    }
    return release_manifest(facts, content, _warnings(state, parameters, participation))


def _assumptions(parameters: HeatmapParameters) -> list[str]:
    if parameters.noise == "central":
        return [TRUSTED_SERVER, *ASSUMPTIONS[1:], EXACT_NOISE]
    return [*ASSUMPTIONS, FLOATING_NOISE if parameters.noise == "client" else EXACT_NOISE]


def _warnings(state: HeatmapState, parameters: HeatmapParameters, participation: float) -> list[str]:
    warnings = []
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
    if parameters.allow_overflow:
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
    state: HeatmapState, parameters: HeatmapParameters, facts: ReleaseFacts, grid: Grid
) -> dict[str, bytes]:
    """The release's files by name, the manifest last."""
    manifest = heatmap_manifest(state, parameters, facts, grid)
    estimate = parameters.method.decode(state, grid.depth)
    raster = density(estimate.tree, estimate.counts)
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
        PAGE_FILE: render_page(manifest, _layers(state, estimate), raster).encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }


def _layers(state: HeatmapState, estimate: Estimate) -> list[Layer]:
    """A layer a sub-query where the last of them is the map; else the one map that was made of them all."""
    last = state.answers[-1]
    if not (isinstance(last.encoding, TreeEncoding) and last.counts is estimate.counts):
        return [_layer(estimate, _together(state.answers), 0.0)]
    layers, remaining = [], state.budget.total - state.population.epsilon
    for answer in state.answers:
        remaining -= answer.spent.epsilon
        stddev = np.full(len(answer.counts), answer.spent.noise_stddev)
        layers.append(_layer(Estimate(tree_of(answer), answer.counts, stddev), answer.spent, remaining))
    return layers


def _together(answers: tuple[Answer, ...]) -> SubQuery:
    """All sub-queries as if they were one."""
    spent = [answer.spent for answer in answers]
    return replace(
        spent[-1],
        epsilon=math.fsum(one.epsilon for one in spent),
        vector_length=sum(one.vector_length for one in spent),
        shards_lost=max(one.shards_lost for one in spent),
    )


def _layer(estimate: Estimate, spent: SubQuery, remaining: float) -> Layer:
    shown = coarsen(estimate, _MAX_PAGE_CELLS)
    level, x, y = node_positions(shown.tree.entries)
    return Layer(
        index=spent.index,
        epsilon=spent.epsilon,
        remaining=remaining,
        stddev=float(np.median(shown.stddev)),
        vector_length=spent.vector_length,
        shards=spent.shards,
        shards_lost=spent.shards_lost,
        level=level,
        x=x,
        y=y,
        count=shown.counts,
        area=shown.tree.areas,
        cell_id=node_names(shown.tree.entries),
    )
