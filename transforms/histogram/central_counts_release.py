"""The files and the manifest of counts with a trusted curator's noise: post-processing of published values. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sfumato.schemas.guarantee import ADD_OR_REMOVE, ASSUMPTIONS, CURATOR, PRIVACY_UNIT, NoiseRound
from sfumato.schemas.trust import Trust
from sfumato.transforms.histogram.bounded_items import ItemBound
from sfumato.transforms.histogram.central_counts_view import counts_view
from sfumato.transforms.histogram.central_plan import CentralCountPlan
from sfumato.transforms.histogram.count_noise import CountNoise
from sfumato.transforms.histogram.item_encoding import CellItems
from sfumato.transforms.histogram.noisy_histogram import NoisyHistogram, NoisyLevels
from sfumato.transforms.histogram.sampled_release import (
    CountMetadata,
    count_tables,
    delta_warnings,
    grid_entries,
    round_level,
)
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import release_manifest

_NOISE = {
    "laplace": "discrete Laplace noise",
    "truncated": "discrete Laplace noise within limits",
    "gaussian": "discrete Gaussian noise",
}


def bound_text(bound: ItemBound) -> str:
    """What a user adds to the counts of a round at most."""
    items = "one item" if bound.max_items == 1 else f"at most {bound.max_items} different items"
    records = (
        "the user counts once" if bound.max_records == 1 else f"at most {bound.max_records} of their records count"
    )
    return f"{items} a user, drawn by the key in proportion to the user's records; in each, {records}"


def noise_text(noise: CountNoise) -> str:
    """A round's noise and what it hides."""
    drawn = f"{_NOISE[noise.kind]} (standard deviation {noise.stddev:.3g})"
    if noise.threshold is None:
        return f"{drawn} on every item, present or not; all are published"
    return f"{drawn} on every count above 0; noisy counts from {noise.threshold:,} on are published"


def noise_round(number: int, histogram: NoisyHistogram, metadata: CountMetadata[CentralCountPlan]) -> NoiseRound:
    """A round as the manifest states it."""
    noise, cut = histogram.noise, histogram.cut
    domain = metadata.plan.domains[number]
    return NoiseRound(
        index=number,
        level=round_level(histogram.level, metadata.counted),
        noise=noise.kind,
        epsilon=noise.epsilon,
        delta=noise.delta,
        noise_stddev=noise.stddev,
        sigma=noise.sigma,
        limit=noise.limit,
        threshold=noise.threshold,
        published=len(histogram),
        hidden_count=noise.hidden_count(threshold=None if cut is None else cut + 1),
        margin_at_once=None if domain is None else noise.simultaneous(domain),
    )


def central_files(counts: NoisyLevels, metadata: CountMetadata[CentralCountPlan]) -> dict[str, bytes]:
    """The files of a histogram or of hot spots, by name; the manifest is the last."""
    rounds = [noise_round(number, one, metadata) for number, one in enumerate(counts.levels)]
    manifest = _manifest(counts, metadata, rounds)
    parts = {**count_tables(counts.levels, metadata.counted), **metadata.release.geography_files}
    return build_release(parts, manifest, counts_view)


def _manifest(
    counts: NoisyLevels, metadata: CountMetadata[CentralCountPlan], rounds: list[NoiseRound]
) -> dict[str, Any]:
    plan, last = metadata.plan, counts.levels[-1]
    users = 0.0 if counts.admission is None else max(counts.admission.users, 0.0)
    content = grid_entries(metadata.counted)
    content["privacy"] = {
        "unit": PRIVACY_UNIT,
        "contribution_bound": bound_text(plan.bound),
        "adjacency": ADD_OR_REMOVE,
        "trust": Trust.CENTRAL,
        "epsilon": plan.epsilon,
        "epsilon_spent": plan.epsilon,
        "delta": plan.delta,
        "delta_spent": plan.delta_spent,
        "mechanism": "; ".join(dict.fromkeys(noise_text(one.noise) for one in counts.levels))
        + "; discrete Laplace noise on two counts of users, which admit the run",
        "randomness": metadata.release.source,
        "rounds": [asdict(one) for one in rounds],
        "rounds_guarantee": {"epsilon": plan.rounds_epsilon, "delta": plan.delta_spent},
        "admission": None if counts.admission is None else asdict(counts.admission),
        "composition": "epsilons and deltas of the rounds and of the admission are added up",
        "population": {"users": plan.population, "source": "unknown" if plan.population is None else "given"},
        "assumptions": [CURATOR, *ASSUMPTIONS[2:]],
    }
    content["results"] = {
        "published": len(last),
        "estimated_users": users,
        "hidden_count": rounds[-1].hidden_count,
    }
    warnings = delta_warnings(plan.delta, plan.population or users)
    if not len(last):
        noun = "cell" if isinstance(metadata.counted, CellItems) else "item"
        warnings.append(f"No {noun} has a noisy count above the threshold: this release is empty at its last level.")
    return release_manifest(metadata.release, content, warnings)
