"""The manifest of a heatmap's release, made of the final state only. Pure post-processing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    ADJACENCY_TEXTS,
    ASSUMPTIONS,
    COMPOSITIONS,
    CURATED_BY,
    DEVICE_ASSUMPTIONS,
    EXACT_NOISE,
    FLOATING_NOISE,
    PARTICIPATION,
    PRIVACY_UNIT,
    WARM_START,
    WARM_START_OF_COHORTS,
    ZERO_OUT,
    Population,
    Trust,
)
from sfumato.schemas.region import Grid
from sfumato.schemas.release import TOTALS_FILE
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.slots import clocks_text
from sfumato.transforms.counting.methods import Errors
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.rates import LEVEL, published_categories
from sfumato.transforms.counting.state import CountState, NoisyCounts
from sfumato.transforms.privacy.additive_noise import AdditiveNoise
from sfumato.transforms.release.metadata import ReleaseMetadata, release_manifest

# Fields that are null without shards.
_SHARD_FIELDS = ("shards", "shards_lost", "required_survivors", "modulus")
_ONE = "one location a user, chosen {}"
_UNIFORMLY, _WEIGHTED = "uniformly at random", "at random in proportion to the weights of the user's records"
_TOP = "one location a user, the {} with most of their records or weight"
_TOP_SLOT = "one location a user, the cell and slot with most of their records or weight"
_ALL = "one distribution a user over the {}s of all their locations, in integers with sum {}"
_DEVICES = "one report a user in each round, made by their device, of {}"
_ROUNDED = (
    "one distribution a user over the {}s of all their locations, times {}, with independent rounding of every "
    "entry: a sum below that plus the vector's length"
)
_ONE_SLOT = (
    "; that record counts once in all, in the slot of its time, one of {} ({}, {}): the map of a slot is of the users "
    "whose counted record is in it, not of all who were there"
)
_SEVERAL_SLOTS = (
    "at most {} records a user, each in another slot of {} ({}, {}) and drawn uniformly from the user's records there; "
    "the slots are drawn uniformly from those where the user has records. Every count is of user-slots: a user counts "
    "once in each of their drawn slots, and as often in the map of all slots"
)
_SLOTS = (
    "users by slot of local time, estimated together: slots.parquet has users of cells with 95% intervals, which are "
    "pointwise and hold only the noise; slots.npy has the users of every slot on a grid. The slots of a cell add up "
    "to the map of all slots."
)
_COHORT = "; only of the users of cohort {}, which a keyed hash of their ids chooses; counts are scaled to all users"
_BINS = "; each location with its category, one of {} bins of its {}"
_POSTERIOR_STDDEV = (
    "standard deviation of the posterior, on average over cells; a lower bound for cells that are chosen by their "
    "counts, and for sums of cells"
)
_INTERVALS = (
    "users_low to users_high: pointwise 95% intervals of cells, from the last sub-query's noise, without "
    "shrinkage; cells finer than it measured have an earlier sub-query's counts and are biased"
)
_SUMS = (
    "Release.total(cells) gives users of a sum of cells without shrinkage and their standard deviation, by {}; "
    "unbiased for cells that the last sub-query measured"
)
_NOISE_STDDEV = (
    "standard deviation of the noise; a lower bound if shards were lost or only a part of the users was queried"
)
_LOWER_BOUND = "lower bound: only the noise, without errors from spreading, dropping, collisions or shrinkage"
_ERRORS: dict[Errors, dict[str, str]] = {  # the entry on the meaning of the published standard deviations
    "posterior": {"stddev": _POSTERIOR_STDDEV, "intervals": _INTERVALS, "sums": _SUMS.format(TOTALS_FILE)},
    "independent": {"stddev": _NOISE_STDDEV, "sums": "errors of cells are independent: variances add up"},
    "lower bound": {"stddev": _LOWER_BOUND, "sums": _LOWER_BOUND},
}
_RATES = (
    "shares of a cell's users by category, with intervals for the probability of a category. The intervals include "
    "noise and sampling, because users are a sample (an upper bound of sampling where users have distributions), and "
    "are pointwise. A cell with a simultaneous interval, which holds for all cells at once, has a rate above the "
    "average"
)


def heatmap_manifest(
    state: CountState,
    parameters: CountParameters,
    metadata: ReleaseMetadata,
    grid: Grid,
    slots: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Returns the manifest: identity, guarantee, spending by sub-query, communication, parameters, versions, warnings.

    state: after the last sub-query; slots: the users of the region in each slot, None without slots.
    """
    content: dict[str, Any] = {
        "region": asdict(grid.region),
        "grid": {"depth": grid.depth, "side": grid.side},
        **counts_content(state, parameters, metadata),
        "errors": _ERRORS[parameters.method.errors],
        **auxiliary_content(parameters, metadata),
    }
    if slots is not None:
        stated = metadata.parameters["columns"]["slots"]
        content["slots"] = {**stated, "level": LEVEL, "description": _SLOTS, "region": slots}
    return release_manifest(metadata, content, counts_warnings(state, parameters))


def counts_content(
    state: CountState, parameters: CountParameters, metadata: ReleaseMetadata, place: str = "cell"
) -> dict[str, Any]:
    """Returns the manifest's entries on privacy, the number of users and communication, of cells or of zones.

    state: after the last sub-query; place: what is counted, in one word.
    """
    shard_plan, protected = state.shard_plan, parameters.protects_participation
    cohort = None if parameters.rotation == 1 else Rotation.parse(metadata.parameters["rotation"])
    kind, total, spent = state.noise.kind, parameters.budget.total, state.budget.spent
    # The epsilon of all charges at the release's delta.
    epsilon_spent = parameters.epsilon if spent == total else kind.epsilon(spent, parameters.delta)
    composition = "parallel" if state.has_disjoint_shards else "sequential"

    def known(fields: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields. Those of shards are null without any, and what a client sends where no client sends."""
        null: tuple[str, ...] = _SHARD_FIELDS if parameters.is_one_batch else ()
        null += ("bits_per_client",) if parameters.trust == Trust.CENTRAL else ()
        return {name: None if name in null else value for name, value in fields.items()}

    return {
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": _contribution(parameters, metadata, place),
            "adjacency": ADJACENCY_TEXTS[ADD_OR_REMOVE if protected else ZERO_OUT],
            "trust": parameters.trust,
            **({"devices": True} if "tasks" in metadata.parameters else {}),
            "epsilon": parameters.epsilon,
            "epsilon_spent": epsilon_spent,
            "delta": parameters.stated_delta,
            **({} if kind.UNIT == "epsilon" else {kind.UNIT: total, f"{kind.UNIT}_spent": spent}),
            "noise": kind.NAME,
            "mechanism": kind.MECHANISMS[parameters.trust],
            "randomness": metadata.source,
            **({} if cohort is None else {"rotation": {"cohort": cohort.cohort, "cohorts": cohort.cohorts}}),
            "population": population_entry(state.population, kind),
            "cohort": known(
                {
                    "users": shard_plan.users,
                    "sampling_rate": shard_plan.sampling_rate,
                    "shards": shard_plan.shards,
                    **state.noise.entry(),
                }
            ),
            "composition": composition,
            "composition_rule": COMPOSITIONS[composition],
            "sub_queries": [known(_sub_query(one, state.rotation)) for one in state.results],
            "participation": {
                "model": parameters.participation,
                "protected": protected,
                "epsilon": 0.0 if protected else None,
                "delta": 0.0 if protected else 1.0,
                "description": PARTICIPATION[parameters.participation],
            },
            "assumptions": _assumptions(state, parameters, metadata),
        },
        "results": _results(state),
        "communication": known({"vector_entries": state.entries_per_client, "bits_per_client": state.bits_per_client}),
    }


def _results(state: CountState) -> dict[str, float]:
    """Returns the users, and where a user counts in several slots the user-slots that the maps count."""
    counted, stddev = state.all_users_estimate()
    if state.records_per_user == 1:
        return {"users": counted, "users_stddev": stddev}
    users_stddev = state.population.noise_stddev * state.shard_plan.sampling_rate
    users = {"users": max(state.counted_users, 0.0), "users_stddev": users_stddev}
    return {**users, "user_slots": counted, "user_slots_stddev": stddev}


def population_entry(population: Population, noise: AdditiveNoise) -> dict[str, Any]:
    """Returns the manifest's entry on the number of users. The cost of the noisy count is named for its unit."""
    return {noise.UNIT if name == "cost" else name: value for name, value in asdict(population).items()}


def _sub_query(answer: NoisyCounts, rotation: int) -> dict[str, Any]:
    """Returns a sub-query's fields, with its noise in users of the published map."""
    return {**answer.entry(), "noise_stddev": rotation * answer.noise_stddev}


def category_names(parameters: CountParameters, metadata: ReleaseMetadata) -> tuple[str, ...]:
    """Returns the names of the categories; none without auxiliary data."""
    return tuple(metadata.parameters["columns"]["auxiliary"]["categories"]) if parameters.categories > 1 else ()


def auxiliary_content(parameters: CountParameters, metadata: ReleaseMetadata) -> dict[str, Any]:
    """Returns the manifest's entry on auxiliary data; empty without."""
    categories = category_names(parameters, metadata)
    if not categories:
        return {}
    published = [categories[index] for index in published_categories(categories)]
    rates = {"categories": published, "level": LEVEL, "includes": ["sampling", "noise"], "description": _RATES}
    column = metadata.parameters["columns"]["auxiliary"]["column"]
    bins = {"column": column, "categories": list(categories), "entries_per_node": len(categories)}
    return {"auxiliary": {**bins, "rates": rates}}


def _contribution(parameters: CountParameters, metadata: ReleaseMetadata, place: str) -> str:
    """Returns the bound on one user's contribution, as a text."""
    gamma, columns = parameters.distribution_gamma, metadata.parameters.get("columns", {})
    if "tasks" in metadata.parameters:
        bound = _DEVICES.format(f"whole weights of entries, {gamma} in all" if gamma else "one entry")
    elif gamma is not None:
        bound = (_ALL if parameters.rounding == "systematic" else _ROUNDED).format(place, gamma)
    elif parameters.contributes == "top":
        bound = _TOP.format(place) if parameters.slots == 1 else _TOP_SLOT
    else:
        weighted = columns.get("weight") is not None or columns.get("time") is not None
        bound = _ONE.format(_WEIGHTED if weighted else _UNIFORMLY)
    if parameters.slots > 1:
        stated, most = columns["slots"], parameters.records_per_user
        clocks = clocks_text(metadata.parameters.get("time_zone"), metadata.times)
        slots = len(stated["names"]), stated["kind"], clocks
        return _SEVERAL_SLOTS.format(most, *slots) if most > 1 else bound + _ONE_SLOT.format(*slots)
    if parameters.rotation > 1:
        bound += _COHORT.format(metadata.parameters["rotation"].replace("/", " of "))
    return bound + (_BINS.format(parameters.categories, place) if parameters.categories > 1 else "")


def _assumptions(state: CountState, parameters: CountParameters, metadata: ReleaseMetadata) -> list[str]:
    starts = WARM_START if parameters.rotation == 1 else WARM_START_OF_COHORTS
    earlier = [starts] if metadata.parameters.get("warm_start") else []
    if "tasks" in metadata.parameters:
        return [*DEVICE_ASSUMPTIONS, EXACT_NOISE]
    if parameters.is_one_batch:  # without the assumptions of secure aggregation
        return [*CURATED_BY[parameters.trust], EXACT_NOISE, *earlier]
    noise = FLOATING_NOISE if parameters.noise_source == "client" else EXACT_NOISE
    return [*ASSUMPTIONS, *state.noise.assumptions(), noise, *earlier]


def counts_warnings(state: CountState, parameters: CountParameters) -> list[str]:
    """Returns the manifest's warnings on how the counts were made."""
    warnings = []
    if parameters.users is not None and parameters.users > state.population.users:
        warnings.append(
            f"{parameters.users:,} users were requested, and the logs have about {state.population.users:,.0f}."
        )
    if parameters.noise_source == "client":
        warnings.append(f"{FLOATING_NOISE} Publish a run with --noise_source shard instead.")
    if not parameters.protects_participation:
        warnings.append(f"Who takes part is not protected (participation paper). {PARTICIPATION['paper']}")
    # Disjoint shards are queried once each; others are all queried in every sub-query.
    queried, where = state.results[-1:], " in the last sub-query"
    if state.has_disjoint_shards:
        queried, where = state.results, ""
    if lost := sum(answer.shards_lost for answer in queried):
        shards = sum(answer.shards for answer in queried)
        warnings.append(f"{lost} of {shards} shards were lost{where}; the others represent them.")
    if parameters.allow_overflow and not parameters.is_one_batch:
        warnings.append("Overflow was allowed: counts may have wrapped around the modulus.")
    return warnings
