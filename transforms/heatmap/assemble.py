"""Everything that a heatmap's release holds, made of the final state alone: all of it is post-processing. Pure."""

from __future__ import annotations

import io
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from sfumato.schemas.guarantee import ADJACENCY, ASSUMPTIONS, EXACT_NOISE, FLOATING_NOISE, PRIVACY_UNIT
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
from sfumato.transforms.heatmap.raster import density
from sfumato.transforms.heatmap.schedule import Answer, HeatmapState
from sfumato.transforms.release.facts import ReleaseFacts, manifest_bytes, parquet_bytes, release_manifest
from sfumato.transforms.release.page import Layer, render_page
from sfumato.transforms.release.picture import render_picture

_NOTABLE_DELTA = 1e-6


def heatmap_manifest(state: HeatmapState, facts: ReleaseFacts, grid: Grid) -> dict[str, Any]:
    """The manifest: identity, guarantee, spending by sub-query, communication, parameters, versions, warnings."""
    population, cohort = state.population, state.cohort
    participation = participation_delta(state, facts)
    spent = [answer.spent for answer in state.answers]
    content = {
        "region": asdict(grid.region),
        "grid": {"depth": grid.depth, "side": grid.side},
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": "one location a user, chosen uniformly by the key",
            "adjacency": ADJACENCY,
            "epsilon": state.budget.total,
            "epsilon_spent": state.budget.spent,
            "delta": 0.0,
            "mechanism": "distributed discrete Laplace (Polya shares) over secure-aggregation shards",
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
            "participation": {"protected": False, "delta": participation},
            "assumptions": [*ASSUMPTIONS, FLOATING_NOISE if _by_client(facts) else EXACT_NOISE],
        },
        "communication": {
            "vector_entries": sum(one.vector_length for one in spent),
            "bits_per_client": sum(one.bits_per_client for one in spent),
        },
    }
    return release_manifest(facts, content, _warnings(state, facts, participation))


def _warnings(state: HeatmapState, facts: ReleaseFacts, participation: float) -> list[str]:
    warnings = []
    if _by_client(facts):
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
    if facts.parameters.get("allow_overflow"):
        warnings.append("Overflow was allowed: counts may have wrapped around the modulus.")
    return warnings


def _by_client(facts: ReleaseFacts) -> bool:
    return facts.parameters.get("noise") == "client"


def participation_delta(state: HeatmapState, facts: ReleaseFacts) -> float:
    """Chance that one user's taking part decides in some sub-query whether her shard lives: a Poisson probability.

    A function of public figures: the expected size of a shard and the number of survivors that it needs.
    """
    cohort, dropout = state.cohort, facts.parameters.get("simulated_dropout", 0.0)
    expected = max(cohort.users / cohort.shards * (1 - dropout), 1e-9)
    others = cohort.required_survivors - 1
    at_the_border = math.exp(others * math.log(expected) - expected - math.lgamma(others + 1))
    return min(1.0, at_the_border * (len(state.answers) if dropout else 1))


def release_files(state: HeatmapState, facts: ReleaseFacts, grid: Grid) -> dict[str, bytes]:
    """The release's files by name, the manifest last."""
    manifest = heatmap_manifest(state, facts, grid)
    final = state.answers[-1]
    raster = density(final.tree, final.counts)
    cells = cells_table(final.tree, final.counts, final.spent.noise_stddev, grid)
    array = io.BytesIO()
    np.save(array, raster)
    return {
        CELLS_FILE: parquet_bytes(cells),
        DENSITY_FILE: array.getvalue(),
        PICTURE_FILE: render_picture(
            raster,
            grid.region,
            users=state.cohort.users,
            epsilon=state.budget.total,
            safe=facts.safe,
        ),
        PAGE_FILE: render_page(manifest, _layers(state), raster).encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }


def _layers(state: HeatmapState) -> list[Layer]:
    layers, remaining = [], state.budget.total - state.population.epsilon
    for answer in state.answers:
        remaining -= answer.spent.epsilon
        layers.append(_layer(answer, remaining))
    return layers


def _layer(answer: Answer, remaining: float) -> Layer:
    level, x, y = node_positions(answer.tree.entries)
    spent = answer.spent
    return Layer(
        index=spent.index,
        epsilon=spent.epsilon,
        remaining=remaining,
        stddev=spent.noise_stddev,
        vector_length=spent.vector_length,
        shards=spent.shards,
        shards_lost=spent.shards_lost,
        level=level,
        x=x,
        y=y,
        count=answer.counts,
        area=answer.tree.areas,
        cell_id=node_names(answer.tree.entries),
    )
