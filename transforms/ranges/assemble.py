"""Everything that a release of a model of range queries holds, made of what was collected with noise alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    ASSUMPTIONS,
    EXACT_NOISE,
    PRIVACY_UNIT,
    TRUSTED_SERVER,
)
from sfumato.schemas.ranges import Field, Sizes
from sfumato.schemas.release import MANIFEST_FILE, MODEL_FILE, PAGE_FILE, RANGES_PICTURE
from sfumato.transforms.heatmap.manifest import heatmap_manifest
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.ranges.collect import Built, Counts
from sfumato.transforms.ranges.counts import NoisyGrid
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.model import Model, RangeModel, model_bytes
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.ranges.networks.paper import PaperNetworks
from sfumato.transforms.ranges.plan import ADAPTIVE, RangesPlan
from sfumato.transforms.release.metadata import UNSAFE, ReleaseMetadata, manifest_bytes, release_manifest
from sfumato.transforms.release.page_ranges import ranges_page
from sfumato.transforms.release.picture_ranges import ranges_picture

_MECHANISM = "discrete Laplace noise on counts of disjoint parts of the region, added once by a trusted server"
_BOUND = "one location a user, chosen {} by the key"
_FROM_RELEASE = (
    "This model is made of a published heatmap and nothing else (post-processing): it costs nothing beyond what that "
    "release cost, whose guarantee is repeated here."
)
_PUBLIC = (
    "The squares of the workload, and the data that the tuner learned from, are public: what is published depends on "
    "them, and nothing protects whoever is in them."
)


def ranges_files(built: Built, plan: RangesPlan, metadata: ReleaseMetadata) -> dict[str, bytes]:
    """The files of a release by name, the manifest last."""
    collected = built.collected
    state, heatmap, warnings = collected.state, plan.heatmap, []
    if state is None or heatmap is None:
        privacy = _central_privacy(plan, metadata)
    else:
        # What the heatmap's own release would say; that its key is safe or not is said below.
        manifest = heatmap_manifest(state, heatmap, replace(metadata, safe=True), plan.field.grid)
        privacy, warnings = {**manifest["privacy"], "randomness": metadata.source}, manifest["warnings"]
        del privacy["population"]  # told below
    if {"workload", "tuner"} & set(plan.options):
        privacy["assumptions"] = [*privacy["assumptions"], _PUBLIC]
    if built.diverged:
        rest = "the noisy grid answers" if built.model.method == PlainGrid.NAME else "the others answer"
        warnings = [*warnings, f"The training of {built.diverged} of the networks diverged; {rest}."]
    counts = collected.counts
    noise = counts.noise_stddev if isinstance(counts, NoisyGrid) else None
    content = {
        **_place(plan.field, built.model.method, plan.sizes),
        "cell_metres": _cell_metres(counts, plan.field),
        "privacy": {**privacy, "trust": plan.trust, "noise_stddev": noise},
        "population": asdict(collected.population),
        "results": {**_results(built.model.model, counts), **_learned(built.model.model)},
    }
    return _files(built.model, release_manifest(metadata, content, warnings), metadata.safe)


@dataclass(frozen=True)
class HeatmapRelease:
    """A published heatmap that a model is made of. manifest: its own; estimate: the map in its cells."""

    field: Field
    estimate: Estimate
    manifest: Mapping[str, Any]
    digest: str


def files_of_release(
    release: HeatmapRelease, model: RangeModel, sizes: Sizes, metadata: ReleaseMetadata
) -> dict[str, bytes]:
    """The files of a model that was made of a published heatmap; its guarantee is that release's."""
    privacy = dict(release.manifest["privacy"])
    population = privacy.pop("population")
    assumptions = [*privacy.pop("assumptions"), _FROM_RELEASE]
    trust = "central" if release.manifest["parameters"].get("noise") == "central" else "secagg"
    content = {
        **_place(release.field, ADAPTIVE, sizes),
        "cell_metres": None,
        "privacy": {**privacy, "trust": trust, "noise_stddev": None, "assumptions": assumptions},
        "population": population,
        "results": _results(model.model, release.estimate),
    }
    warnings = [one for one in release.manifest.get("warnings", []) if one != UNSAFE]
    return _files(model, release_manifest(metadata, content, warnings), metadata.safe)


def _files(model: RangeModel, manifest: Mapping[str, Any], safe: bool) -> dict[str, bytes]:
    title = f"How many people in any square, by method {model.method}"
    return {
        MODEL_FILE: model_bytes(replace(model, safe=safe)),
        RANGES_PICTURE: ranges_picture(model, title, safe=safe),
        PAGE_FILE: ranges_page(model, manifest).encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }


def _place(field: Field, method: str, sizes: Sizes) -> dict[str, Any]:
    return {
        "region": asdict(field.grid.region),
        "grid": {"depth": field.grid.depth, "side": field.side},
        "method": method,
        "sizes_metres": [sizes.low, sizes.high],
    }


def _cell_metres(counts: Counts, field: Field) -> list[float] | None:
    """Width and height of a cell, where all that was counted are alike."""
    if not isinstance(counts, NoisyGrid):
        return None
    rows, columns = counts.users.shape
    return [field.metres[0] / columns, field.metres[1] / rows]


def _central_privacy(plan: RangesPlan, metadata: ReleaseMetadata) -> dict[str, Any]:
    columns = metadata.parameters["columns"]
    weighted = columns["weight"] is not None or columns["time"] is not None
    chosen = "in proportion to her records' weights" if weighted else "uniformly"
    return {
        "unit": PRIVACY_UNIT,
        "contribution_bound": _BOUND.format(chosen),
        "adjacency": ADD_OR_REMOVE,
        "epsilon": plan.counting.epsilon,
        "delta": 0.0,
        "mechanism": _MECHANISM,
        "randomness": metadata.source,
        "assumptions": [TRUSTED_SERVER, *ASSUMPTIONS[2:], EXACT_NOISE],
    }


def _results(model: Model, counts: Counts) -> dict[str, Any]:
    users = counts.counts if isinstance(counts, Estimate) else counts.users
    return {"kind": model.KIND, "parts": users.size, "users": float(users.sum()), "stated_error": model.ERROR}


def _learned(model: Model) -> dict[str, Any]:
    """What networks are a function of, besides the versions that every release states. The key is not bound to it."""
    if not isinstance(model, LocalNetwork | PaperNetworks):
        return {}
    return {"learned_with": {name: version(name) for name in ("jax", "optax")}}
