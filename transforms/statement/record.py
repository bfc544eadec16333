"""The record of a release in the Differential Privacy Deployments Registry (commit 3e9c812a). Pure.

The fields are those of tier 3 of the registry's schema. Sentences and numbers come from the manifest, so that they are
the release's own. Fields that only a person can fill stay empty without their option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import (
    EXACT_NOISE,
    FLOATING_NOISE,
    PRIVACY_UNIT,
    SEES,
    Trust,
    entry_of,
    has_secret_key,
    two_sentences,
)
from sfumato.schemas.release import NEGATIVE
from sfumato.transforms.release.metadata import UNSAFE
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.sections import period
from sfumato.transforms.statement.request import StatementRequest

OPTIONS = {
    "name": "title", "data_curators": "curator", "intended_use": "purpose", "data_product_region": "place",
    "data_product_sector": "sector", "sources": "source", "registry_authors": "author",
}  # fmt: skip
"""The option with the text of a field that only a person can fill."""
ADDITIONS = {
    "data_domain": "add whose records these are, and how they were collected",
    "release_type_details": "add whether the same records will be used again",
    "preprocessing_and_hyperparameter_tuning": "add how epsilon and the options were chosen, and what was looked at in "
    "the logs before, such as with `sfumato inspect`: the guarantee does not cover that",
    "mechanisms": "add who may read the logs, the key and the ledger, and where the code is",
    "justification": "add why this epsilon and this method were chosen",
}
"""What a person can add to a field that follows from the manifest."""
_POST_PROCESSING = {
    "heatmap": "Noisy counts of all sub-queries are reconciled in one tree; the estimator `bayes` also shrinks them.",
    "zones": "Counts of nested levels are reconciled by least squares, so that levels add up.",
    "flows": "Counts of pairs are shrunk to expected values; pairs that probably have no trip are summed in rests.",
    "quantiles": "The distribution function and the answers to ranges follow from the private draws or counts.",
    "moments": "Moments are computed from noisy sums or tallies, and limited to their possible range.",
    "ranges": "The model is fitted to the noisy counts only.",
}
_UNKNOWN = "not stated"
_PUBLIC = (
    "Published as given: names, days, the region, lists of zones, groups or categories, and all other options in the "
    "manifest's `parameters`. A public figure that was taken from these logs is not protected."
)
_VARIANTS = {"rho": "Zero-concentrated DP", "delta": "Approximate DP", "epsilon": "Pure DP"}
_SIGNS = {"epsilon": "ε", "delta": "δ", "rho": "ρ"}
_ROLES = (
    "user_id", "column", "second", "group", "latitude", "longitude", "weight", "time", "auxiliary", "origin",
    "destination",
)  # fmt: skip
_ROUNDING = {
    "Laplace": f"{EXACT_NOISE} Random integers are compared with thresholds of 64 bits.",
    "Gaussian": "Discrete Gaussian noise is drawn with integers against thresholds of 128 bits; a last rejection step "
    "uses floating point, and every probability is exact within a factor of 1 ± 2^-46.",
    "sample and threshold": "Users are sampled by comparing random integers with an integer threshold.",
    "exponential mechanism": "Weights of the exponential mechanism are in floating point. Random numbers of 256 bits "
    "and a least weight bound the additional privacy loss of a draw by 2^-26.",
}
"""How random draws avoid the errors of floating point, by words of the manifest's mechanism."""
_TESTS = {
    "": "attacks/test_weak_keys.py::test_a_weak_key_is_refused_before_anything_is_charged",
    "Laplace": "unit/privacy/test_noise.py::test_thresholds_keep_every_likelihood_ratio_within_epsilon",
    "Gaussian": "attacks/test_gaussian_costs.py::test_no_users_vector_is_longer_than_the_sensitivity",
    "sample and threshold": "unit/histogram/test_accountant.py::test_delta_is_above_the_truth_and_hardly_so",
    "exponential mechanism": "attacks/test_central_quantiles.py::test_all_draws_together_cost_epsilon",
    "randomised": "unit/moments/local/test_tally.py::test_all_reports_together_never_tell_more_than_epsilon",
    "Bernstein": "attacks/test_central_sums.py::test_one_user_changes_the_sums_by_the_scale",
    "secure-aggregation": "attacks/test_participation.py::test_a_user_more_moves_their_own_entry_alone",
    "on every": "attacks/test_central_counts_add_or_remove.py::test_noise_for_a_smaller_bound_is_not_private",
    "noisy counts from": "unit/histogram/test_count_noise.py::test_delta_is_the_largest_divergence_of_a_users_items",
    "zones": "attacks/test_zones_add_or_remove.py::test_one_user_changes_one_zone_of_each_asked_level_by_one",
    "flows": "attacks/test_flows_contribution.py::test_a_user_with_10000_trips_adds_as_many_as_one_with_k",
    "ranges": "attacks/test_ranges_add_or_remove.py::test_a_user_changes_one_count_of_a_grid_by_one",
}
"""Tests of the threat model's promises, by the job or words of the mechanism that they are about; "" for all."""


class LedgerAccount(NamedTuple):
    """What a ledger holds about the data set of a release: the number of charges, and sentences on what was spent."""

    charges: int
    sentences: Sequence[str]


def registry_record(
    release: Release, request: StatementRequest, summary: str, account: LedgerAccount | None = None, audited: str = ""
) -> dict[str, Any]:
    """Returns the record of a release, in the types of YAML and JSON.

    request: what a person says about the release. summary: what its job publishes. account: of the ledger, if any.
    audited: a sentence on an audit of the release; empty without one.
    Raises RequestError if the release has no differential privacy, so that it has no record.
    """
    manifest = release.manifest
    privacy = entry_of(manifest, "privacy")
    if not isinstance(privacy.get("epsilon"), int | float) or privacy.get("trust") not in tuple(Trust):
        raise RequestError(f"release: {request.release} has no differential privacy, so it has no record")
    participation, unsound = entry_of(privacy, "participation"), list[str]()
    if not has_secret_key(privacy):
        unsound.append(UNSAFE)
    if participation.get("protected") is False:
        unsound.append(str(participation.get("description")))
    title = request.title or str(manifest.get("title") or "")
    named = [title or str(manifest.get("release_id")), *request.curator, str(manifest.get("created"))[:4]]
    return {
        "url_slug": re.sub(r"\W+", "-", " ".join(named).casefold()).strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": _basic(manifest, request, summary, title),
            "dp_variant": {
                "variant_name": "Custom"
                if unsound
                else next(_VARIANTS[name] for name in _VARIANTS if privacy.get(name)),
                "data_domain": _data_domain(manifest),
                "unprotected_quantities": _bullets(*unsound, _PUBLIC),
            },
            "privacy_loss": {
                "privacy_unit": f"{privacy.get('unit', PRIVACY_UNIT)}-level",
                "privacy_unit_details": f"{privacy.get('adjacency', _UNKNOWN)}. Contribution of one user: "
                f"{privacy.get('contribution_bound', _UNKNOWN)}.",
                "privacy_parameters": {name: privacy[name] for name in _SIGNS if privacy.get(name)},
                "privacy_parameters_details": _bullets(*_parts(privacy)),
            },
            "deployment_model": _model(manifest, account),
            "accounting": _accounting(manifest, account),
            "implementation": _implementation(manifest, audited),
            "administrative": {
                "sources": "\n".join(request.source),
                "notes": _bullets(
                    f"Release {manifest.get('release_id')}, SHA-256 of its manifest.json: {release.digest}",
                    *(one for one in manifest.get("warnings") or () if one not in unsound),
                ),
                "registry_authors": list(request.author) or [""],
            },
        },
    }


def _bullets(*sentences: str) -> str:
    """Returns sentences as a list in Markdown, a line each, without empty ones."""
    return "".join(f"- {one[0].upper()}{one[1:]}\n" for one in sentences if one)


def _basic(manifest: Mapping[str, Any], request: StatementRequest, summary: str, title: str) -> dict[str, Any]:
    borders = ", ".join(f"{side} {degrees:g}" for side, degrees in entry_of(manifest, "region").items())
    is_network = "network" in str(entry_of(manifest, "results").get("kind"))
    method = "from a random sample" if entry_of(manifest, "privacy").get("trust") == Trust.SECAGG else "with noise"
    summary = summary.replace("from a random sample or with noise", method)
    return {
        "name": title,
        "data_curators": list(request.curator) or [""],
        "intended_use": request.purpose or "",
        "data_product_type": "Machine learning model" if is_network else "Summary statistics",
        "data_product_region": request.place or (f"{borders} (degrees)" if borders else ""),
        "description": f"{summary[:1].upper()}{summary[1:]}. {two_sentences(manifest)}",
        "publication_date": str(manifest.get("created"))[:10],
        **({} if request.sector is None else {"data_product_sector": request.sector}),
    }


def _parts(privacy: Mapping[str, Any]) -> list[str]:
    """Returns what each part of the release costs, and what was spent in all."""
    parts: dict[str, Any] = {
        "Noisy user count": privacy.get("population"),
        "Noisy counts of users that admit the run": privacy.get("admission"),
        "All rounds together": privacy.get("rounds_guarantee"),
        "Reports of one user, towards their collector": privacy.get("collector"),
        **{f"Sub-query {one.get('index')}": one for one in privacy.get("sub_queries") or ()},
        **{f"Share of {name}": {"epsilon": cost} for name, cost in entry_of(privacy, "shares").items()},
        "Spent": {name: privacy.get(f"{name}_spent") for name in _SIGNS},
    }
    found = []
    for name, part in parts.items():
        if costs := [f"{sign} = {part[key]:.6g}" for key, sign in _SIGNS.items() if part and part.get(key)]:
            found.append(f"{name}: {', '.join(costs)}.")
    return found


def _data_domain(manifest: Mapping[str, Any]) -> str:
    parameters = entry_of(manifest, "parameters")
    columns = entry_of(parameters, "columns") or entry_of(entry_of(parameters, "counted"), "columns") or parameters
    named: list[str] = []
    for value in (columns.get(role) for role in _ROLES):
        value = value.get("column") if isinstance(value, Mapping) else value
        named += [value] if isinstance(value, str) else list(value or ())
    if "day_column" in parameters:
        named.append(parameters["day_column"])
    days = period(manifest, mean="{} days")  # records are no mean
    dated = f" Records of {days}." if days else ""
    if entry_of(manifest, "privacy").get("devices"):
        return f"Reports of any number of devices, each of a location or of weights of locations.{dated}"
    columns_read = ", ".join(dict.fromkeys(named)) or _UNKNOWN
    return (
        "Logs of any number of users, with any number of rows per user and any values. "
        f"Columns read: {columns_read}.{dated}"
    )


def _model(manifest: Mapping[str, Any], account: LedgerAccount | None) -> dict[str, Any]:
    """Returns the group `deployment_model`: Central, because the job simulates secure aggregation and devices."""
    privacy, parameters = entry_of(manifest, "privacy"), entry_of(manifest, "parameters")
    trust, rotation = Trust(privacy["trust"]), entry_of(privacy, "rotation")
    is_real = trust is Trust.CENTRAL or privacy.get("devices")
    simulated = "" if is_real else " The job simulates this: its operator has the raw logs."
    charges = 1 if account is None else account.charges
    is_series = charges > 1 or bool(manifest.get("timeline") or rotation or parameters.get("warm_start"))
    cohort = f" Queries cohort {rotation['cohort']} of {rotation['cohorts']}." if rotation else ""
    return {
        "model_name": "Central",
        "model_name_details": f"Trust model `{trust}`: {SEES[trust]}.{simulated}",
        "actors": _bullets(
            "Users trust the operator of the job, who also has the key and the ledger, with their records.",
            "Readers, who may be adversaries, have the release only and need no trust. Those who read several releases "
            "are exposed to the sum of their costs.",
            *(one for one in privacy.get("assumptions") or () if one not in (EXACT_NOISE, FLOATING_NOISE)),
        ),
        "release_type": "Many releases" if is_series else "One release",
        "release_type_details": f"{'Recorded' if 'ledger' in manifest else 'Not recorded'} in a ledger.{cohort}",
        "data_source_type": "Dynamic" if is_series else "Static",
        "access_type": "Non-interactive",
        "access_type_details": "Readers get files. No question of theirs reaches the logs.",
    }


def _accounting(manifest: Mapping[str, Any], account: LedgerAccount | None) -> dict[str, str]:
    privacy, ledger, job = entry_of(manifest, "privacy"), entry_of(manifest, "ledger"), str(manifest.get("job"))
    rule = privacy.get("composition_rule") or privacy.get("composition") or "the costs of all parts add up"
    across = "Not recorded in a ledger. For a user in several releases the costs add up."
    if ledger:
        days = f"{ledger.get('first_day')} to {ledger.get('last_day')}"
        across = f"Charged to the data set `{ledger.get('dataset')}` for {days}, as entry {ledger.get('entry')}."
    return {
        "post_processing": _bullets(
            _POST_PROCESSING.get(job, ""),
            f"A number of users or trips {NEGATIVE}." if job in ("heatmap", "zones", "flows") else "",
            *(f"Errors ({name}): {text}" for name, text in entry_of(manifest, "errors").items()),
            "The page, pictures, exports and comparisons with other releases are made only of the published files.",
        ),
        "composition": _bullets(
            f"Within the release: {rule}.",
            "Gaussian noise is composed by ρ; ε follows from the sum at δ." if privacy.get("rho") else "",
            f"Across releases: {across}",
            *(() if account is None else account.sentences),
        ),
    }


def _implementation(manifest: Mapping[str, Any], audited: str) -> dict[str, str]:
    privacy = entry_of(manifest, "privacy")
    mechanism, job = str(privacy.get("mechanism", _UNKNOWN)), str(manifest.get("job"))
    is_floating = FLOATING_NOISE in (privacy.get("assumptions") or ())
    rounding = FLOATING_NOISE if is_floating else " ".join(_ROUNDING[word] for word in _ROUNDING if word in mechanism)
    versions = ", ".join(f"{name} {number}" for name, number in entry_of(manifest, "versions").items())
    tests = [f"`tests/{one}`" for word, one in _TESTS.items() if word in mechanism or word == job]
    return {
        "preprocessing_and_hyperparameter_tuning": _bullets(
            "Rows without a usable value are left out, and contributions are bounded, before any count.",
            "The job tunes nothing on exact logs: what it chooses follows from public figures, and from noisy counts "
            "whose cost is included.",
        ),
        "mechanisms": _bullets(
            f"{mechanism}.",
            f"Versions: {versions}." + (f" SHA-256 of the code: {manifest['code']}." if "code" in manifest else ""),
            f"Floating point: {rounding}",
            "Timing: readers get files and cannot measure a run. Its duration is not protected from those who see the "
            "operator's machines.",
            "Platform: a retried step draws the same noise again. A local run opens no port to others. Python and "
            "NumPy do not run in constant time, so caches and power are not covered.",
            f"Access: the key's source: {entry_of(privacy, 'randomness').get('source')}. In a local run the temporary "
            "files and a key file are readable by the operator's account only.",
        ),
        "justification": "Each promise of docs/explanation/threat_model.md has a test. Those of this mechanism:\n"
        + _bullets(*tests, audited),
    }
