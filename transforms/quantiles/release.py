"""The files and the manifest of quantiles with a trusted curator: post-processing of published values. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from sfumato.schemas.guarantee import ADD_OR_REMOVE, ASSUMPTIONS, CURATOR, PRIVACY_UNIT
from sfumato.schemas.trust import Trust
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.release import BOUND, CountMetadata, border_warnings, quantile_tables
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.quantiles.plan import MECHANISMS, QuantilesPlan
from sfumato.transforms.quantiles.private_quantiles import PrivateDistribution
from sfumato.transforms.quantiles.view import quantiles_view
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import release_manifest

_ADMISSION = "discrete Laplace noise on two counts of users, which admit the run"
_COMPOSITION = "the users of one level's parts or bins are disjoint; the epsilons of levels and of the admission add up"
_EMPTY = "There seem to be no users: no quantile is published."


def mechanism_rounds(plan: QuantilesPlan, users: float) -> list[dict[str, Any]]:
    """What each level costs and draws, as the manifest states it. users: about how many there are."""
    if plan.method == "exponential":
        draws = plan.draws(users)
        of_level = Counter(draw.level for draw in draws.draws)
        return [
            {"index": level, "epsilon": epsilon, "draws": of_level[level]}
            for level, epsilon in enumerate(draws.epsilons)
        ]
    epsilon = plan.hierarchy.level_epsilon
    stddev = discrete_laplace_stddev(epsilon)
    return [
        {"index": index, "level": level, "epsilon": epsilon, "noise": "laplace", "noise_stddev": stddev}
        for index, level in enumerate(plan.levels)
    ]


def quantiles_files(result: PrivateDistribution, metadata: CountMetadata[QuantilesPlan]) -> dict[str, bytes]:
    """The files of quantiles and ranges, by name; the manifest is the last. Tables of nobody have no rows."""
    plan, admission = metadata.plan, result.admission
    assert isinstance(metadata.counted, NumberItems)
    rounds = mechanism_rounds(plan, result.users) if result.users > 1 else []
    content = {
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": BOUND,
            "adjacency": ADD_OR_REMOVE,
            "trust": Trust.CENTRAL,
            "epsilon": plan.epsilon,
            "epsilon_spent": plan.epsilon,
            "delta": plan.delta,
            "delta_spent": plan.delta,
            "mechanism": f"{MECHANISMS[plan.method]}; {_ADMISSION}",
            "randomness": metadata.release.source,
            "rounds": rounds,
            "rounds_guarantee": {"epsilon": plan.mechanism_epsilon, "delta": plan.delta},
            "admission": None if admission is None else asdict(admission),
            "composition": _COMPOSITION,
            "population": {"users": plan.population, "source": "unknown" if plan.population is None else "given"},
            "assumptions": [CURATOR, *ASSUMPTIONS[2:]],
        },
        "results": {"published": len(result.quantiles), "estimated_users": max(result.users, 0.0), "hidden_count": 0},
    }
    warnings = border_warnings(result.curve, metadata.counted) if result.quantiles else [_EMPTY]
    manifest = release_manifest(metadata.release, content, warnings)
    answers = list(result.ranges) if metadata.release.parameters.get("ranges") else None
    tables = quantile_tables(result.curve, list(result.quantiles), answers)
    return build_release(tables, manifest, quantiles_view)
