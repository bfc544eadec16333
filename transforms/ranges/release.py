"""The files of a release of a model of range queries, made from noisy counts only. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    ADJACENCY_TEXTS,
    CURATOR,
    EXACT_NOISE,
    PRIVACY_UNIT,
    SHARED_ASSUMPTIONS,
)
from sfumato.schemas.ranges import BASE_DEPTH, Field, Sizes
from sfumato.schemas.region import Grid
from sfumato.schemas.release import CELLS_FILE, MODEL_FILE
from sfumato.transforms.counting.manifest import heatmap_manifest, population_entry
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.nights.warm_start import WarmStart
from sfumato.transforms.ranges.field_counts import NoisyGrid
from sfumato.transforms.ranges.methods import PlainGrid
from sfumato.transforms.ranges.model import Model, RangeModel
from sfumato.transforms.ranges.model_file import model_bytes
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.ranges.networks.paper import PaperNetworks
from sfumato.transforms.ranges.plan import ADAPTIVE, Built, Counts, RangesPlan
from sfumato.transforms.ranges.view import ranges_view
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import UNSAFE, ReleaseMetadata, release_manifest
from sfumato.transforms.release.published_release import open_release

_MECHANISM = "discrete {} noise on counts of disjoint parts of the region, added once by a trusted curator"
_BOUND = "one location a user, chosen {}"
_FROM_RELEASE = (
    "This model is computed only from a published heatmap (post-processing). It costs nothing beyond that release, "
    "and the guarantee stated here is that of the release."
)
_PUBLIC = (
    "The squares of the workload and the training data of the tuner are public. The release depends on them, and the "
    "guarantee does not protect the users in them."
)


def ranges_files(built: Built, plan: RangesPlan, metadata: ReleaseMetadata) -> dict[str, bytes]:
    """Returns the files of a release by name, the manifest last."""
    collected = built.collected
    state, heatmap, warnings = collected.state, plan.heatmap, []
    if state is None or heatmap is None:
        privacy = _central_privacy(plan, metadata)
    else:
        # The statement of the heatmap's own release. `_files` and `randomness` state whether the key is safe.
        manifest = heatmap_manifest(state, heatmap, replace(metadata, safe=True), plan.field.grid)
        privacy, warnings = {**manifest["privacy"], "randomness": metadata.source}, manifest["warnings"]
    if {"workload", "tuner"} & set(plan.options):
        privacy["assumptions"] = [*privacy["assumptions"], _PUBLIC]
    if built.diverged:
        rest = "the noisy grid answers" if built.model.method == PlainGrid.NAME else "the other networks answer"
        warnings = [*warnings, f"The training of {built.diverged} of the networks diverged; {rest}."]
    counts, noise, cell = collected.counts, None, None
    if isinstance(counts, NoisyGrid):
        noise, (rows, columns) = counts.noise_stddev, counts.users.shape
        cell = [plan.field.metres[0] / columns, plan.field.metres[1] / rows]
    content = {
        **_scope(plan.field, built.model.method, plan.sizes),
        "cell_metres": cell,  # width and height; None unless all cells are alike
        "privacy": {
            **privacy,
            "trust": plan.count_parameters.trust,
            "noise_stddev": noise,
            "population": population_entry(collected.population, plan.count_parameters.noise_kind),
        },
        "results": _results(built.model.model, counts),
    }
    return _files(built.model, release_manifest(metadata, content, warnings), metadata)


@dataclass(frozen=True)
class HeatmapRelease:
    """A published heatmap, the source of a model: its region in base cells, its map, and the digest of its files."""

    field: Field
    estimate: Estimate
    manifest: Mapping[str, Any]
    digest: str


def files_of_release(
    release: HeatmapRelease, model: RangeModel, sizes: Sizes, metadata: ReleaseMetadata
) -> dict[str, bytes]:
    """Returns the files of a model of a published heatmap. The guarantee is that of the heatmap."""
    privacy = dict(release.manifest["privacy"])
    assumptions = [*privacy.pop("assumptions"), _FROM_RELEASE]
    content = {
        **_scope(release.field, ADAPTIVE, sizes),
        "cell_metres": None,
        "privacy": {**privacy, "noise_stddev": None, "assumptions": assumptions},
        "results": _results(model.model, release.estimate),
    }
    warnings = [warning for warning in release.manifest.get("warnings", []) if warning != UNSAFE]
    return _files(model, release_manifest(metadata, content, warnings), metadata)


def _files(model: RangeModel, manifest: Mapping[str, Any], metadata: ReleaseMetadata) -> dict[str, bytes]:
    parts = {MODEL_FILE: model_bytes(replace(model, safe=metadata.safe)), **metadata.geography_files}
    return build_release(parts, manifest, partial(ranges_view, model=model))


def _scope(field: Field, method: str, sizes: Sizes) -> dict[str, Any]:
    return {
        "region": asdict(field.grid.region),
        "grid": {"depth": field.grid.depth, "side": field.side},
        "method": method,
        "sizes_metres": [sizes.low, sizes.high],
    }


def _central_privacy(plan: RangesPlan, metadata: ReleaseMetadata) -> dict[str, Any]:
    columns = metadata.parameters["columns"]
    weighted = columns["weight"] is not None or columns["time"] is not None
    parameters = plan.count_parameters
    kind = parameters.noise_kind
    chosen = "at random in proportion to their records' weights" if weighted else "uniformly at random"
    return {
        "unit": PRIVACY_UNIT,
        "contribution_bound": _BOUND.format(chosen),
        "adjacency": ADJACENCY_TEXTS[ADD_OR_REMOVE],
        "epsilon": parameters.epsilon,
        "delta": parameters.stated_delta,
        **({} if kind.UNIT == "epsilon" else {kind.UNIT: parameters.budget.total}),
        "noise": kind.NAME,
        "mechanism": _MECHANISM.format(kind.NAME.capitalize()),
        "randomness": metadata.source,
        "assumptions": [CURATOR, *SHARED_ASSUMPTIONS, EXACT_NOISE],
    }


def _results(model: Model, counts: Counts) -> dict[str, Any]:
    users = counts.counts if isinstance(counts, Estimate) else counts.users
    found: dict[str, Any] = {
        "kind": model.KIND,
        "parts": users.size,
        "users": float(users.sum()),
        "stated_error": model.ERROR,
    }
    if isinstance(
        model, LocalNetwork | PaperNetworks
    ):  # the versions decide networks, but the key is not bound to them
        found["learned_with"] = {name: version(name) for name in ("jax", "optax")}
    return found


def open_heatmap(path: str) -> HeatmapRelease:
    """Opens a published heatmap. Raises RequestError if there is none, or its map is damaged."""
    try:
        release = open_release(path)
        grid = release.grid
        if grid is None:
            job = release.manifest.get("job")
            raise RequestError(f"warm_start: must be a release of `sfumato heatmap`, got one of {job!r}")
        start = WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE), grid)
        estimate = _scaled_to_all_users(start.estimate, release.manifest)
    except RequestError as error:
        raise RequestError(f"release: {str(error).removeprefix('warm_start: ')}") from None
    return HeatmapRelease(Field(Grid(grid.region, BASE_DEPTH)), estimate, release.manifest, release.digest)


def _scaled_to_all_users(estimate: Estimate, manifest: Mapping[str, Any]) -> Estimate:
    """Scales the map of a sample of the users to all users. Raises RequestError for a damaged manifest."""
    try:
        privacy = manifest["privacy"]
        rate = float(privacy["cohort"]["sampling_rate"])
        complete = isinstance(privacy["assumptions"], list) and isinstance(privacy["randomness"]["source"], str)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"the release's manifest lacks a part of its guarantee ({error!r})") from None
    if not (complete and 0 < rate <= 1):
        raise RequestError("the release's manifest is damaged")
    return replace(estimate, counts=estimate.counts / rate, stddev=estimate.stddev / rate)
