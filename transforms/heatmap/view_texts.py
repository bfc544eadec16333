"""The words of a heatmap's page: how to read it, how it was made, and the cost of each sub-query. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sfumato.schemas.guarantee import Trust
from sfumato.schemas.known_digits import Z
from sfumato.schemas.ledger import Period
from sfumato.schemas.release import CELLS_FILE
from sfumato.schemas.timeline import PlaceChange, stated_rotation
from sfumato.schemas.views.map_views import MapBody
from sfumato.schemas.views.view_parts import Section, Table
from sfumato.transforms.counting.methods import METHODS
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.report.numbers import CHANGES, changes_table, night_sentences, plural
from sfumato.transforms.report.sections import Manifest, get, tail_sums

_NOISE = {
    Trust.CENTRAL: "A trusted curator saw the exact sums of the reports and added noise to each sum once. There was no "
    "secure aggregation.",
    Trust.SPLIT: "Two servers received shares of the reports. A share discloses nothing. Each server added its own "
    "noise to its share of each sum, and only the total of both was seen.",
    "client": "Users reported in {groups}. Every phone adds its share of the noise, so a group's sum is noisy before "
    "anyone sees it. Groups with too few reports are discarded.",
    "shard": "Users reported in {groups}. A group's sum is noisy before anyone sees it. Groups with too few reports "
    "are discarded.",
}
_POSTERIOR = (
    "The answers contain random noise, drawn once. A count is the average over all maps that could have produced these "
    "answers. It is never negative, and follows its surroundings where the answers are uninformative."
)
_NIGHTS = (
    "The answers contain random noise, drawn once. A count is estimated for this day from the answers of all days "
    "that the map uses. It is never negative, and follows its surroundings and earlier days where the answers are "
    "uninformative."
)
_AS_COUNTED = (
    "Every count contains random noise, drawn once. Negative counts are caused by noise and are published unchanged, "
    "because raising them to zero would bias every total upward."
)
_RATES = (
    "A rate is the share of a cell's users in a category, shrunk towards the average where data are few. Its 95% "
    "interval is pointwise: it holds for each cell separately, and includes the noise and the sampling error of few "
    "users. A cell is listed as high only if an interval that holds for all cells at once lies above the average."
)
_SLOTS = (
    "The maps of single time slots and the map of all slots were estimated together: the slots of a place add up to "
    "its total. A place's profile over the slots follows its surroundings where its own answers are uninformative."
)
_USER_SLOTS = (
    " A user counts in up to {} slots, so the map of all slots counts user-slots: a user in three slots counts three "
    "times."
)


def rests_on_several(manifest: Manifest) -> bool:
    """Returns whether the estimate is based on more than one night."""
    return sum(Period.parse(text).length for text in get(manifest, "nights.rests_on", [])) > 1


def how_to_read_it(manifest: Manifest, body: MapBody, cells: int) -> Section:
    """Explains counts, intervals and colours. cells: number in the release, which may exceed that of the map."""
    layer = body.layers[-1]
    users = layer.measures[0]
    unsure = sum(users.uncertain)
    margins = [(high - low) / 2 for low, high in zip(users.low, users.high, strict=True) if low is not None is not high]
    margin = float(np.median(margins)) if margins else 0.0
    words = _NIGHTS if get(manifest, "nights") else _POSTERIOR if is_posterior(manifest) else _AS_COUNTED
    drawn = "Their colours follow their surroundings." if users.smooth else "They have no colour."
    texts = [
        f"{words} The 95% interval of a typical cell is "
        f"± {significant(margin, 2)} users. Relative errors are small in crowded places and large in quiet ones.",
        f"{unsure:,} of the {plural(len(users.uncertain), 'cell')} may be empty. {drawn} Sums of several cells are "
        "known better than single cells.",
    ]
    if layer.level and layer.level[0] == layer.level[-1]:
        texts.append("All cells have the same size.")
    else:
        texts.append(
            "Cells are small where there are many users and large where there are few. A partly divided cell covers "
            "the area outside its finer cells."
        )
    if cells > len(users.value):
        texts.append(
            f"The map has {cells:,} cells, added up to {len(users.value):,} on this page. {CELLS_FILE} contains all."
        )
    if users.scale.ticks and users.scale.ticks[-1][1].startswith("≥"):
        texts.append("The colour scale ends where few users are, so crowded cells do not darken all others.")
    if len(layer.measures) > 1:
        texts.append(_RATES)
    if body.slots is not None:
        most = most_slots(manifest)
        texts.append(_SLOTS + (_USER_SLOTS.format(most) if most > 1 else ""))
    return Section(title="How to read it", paragraphs=texts)


def how_it_was_made(manifest: Manifest) -> Section:
    """Describes the method, the noise, earlier releases, and the upload of a phone."""
    queries, parallel = get(manifest, "privacy.sub_queries", []), get(manifest, "privacy.composition") == "parallel"
    method = get(manifest, "parameters.method", "adaptive")
    trust = get(manifest, "privacy.trust")
    noise = trust if trust in _NOISE else get(manifest, "parameters.noise_source", "shard")
    counts_all = get(manifest, "parameters.contribution") == "all"
    reported = "the share of their records in each cell" if counts_all else "a cell"
    rotation = stated_rotation(manifest)
    who = "Every user" if rotation is None else f"Every user of cohort {rotation.cohort} of {rotation.cohorts}"
    others = "" if rotation is None else " The other users report nothing."
    # A method that another program registered is not known here.
    sentence = METHODS[method].SENTENCE if method in METHODS else f"The method is {method}."
    texts = [
        f"The map took {plural(len(queries), 'sub-query', 'sub-queries')}. {who} reports {reported}; only "
        f"noisy sums of these reports are used.{others} {sentence}".strip()
    ]
    if (kept := get(manifest, "parameters.keep_top") or 100) < 100:
        texts.append(f"Only the {kept:g}% of cells with the largest noisy sums are kept.")
    if parallel and len(queries) > 1:
        texts.append(
            "Each user answered only one sub-query, so each user's cost is at most that of the most expensive "
            "sub-query. The key assigned users to sub-queries at random."
        )
    if (earlier := get(manifest, "parameters.warm_start")) is not None:
        name = earlier.get("release_id", "") if isinstance(earlier, Mapping) else ""
        carried = ""
        if rests_on_several(manifest):
            carried = " The map also uses the noisy answers of that day and of earlier ones."
        in_both = "whose records are in both" if rotation is None else "who was queried for both"
        texts.append(
            f"It started from an earlier release{f', {name},' if name else ''} which showed where to use fine cells."
            f"{carried} That release had a budget of its own: for a user {in_both}, the two add up."
        )
    groups = plural(get(manifest, "privacy.cohort.shards") or 1, "group")
    texts.append(_NOISE.get(noise, _NOISE["shard"]).format(groups=groups))
    bits = get(manifest, "communication.bits_per_client")
    if bits is not None:
        texts.append(f"Each phone would upload {'at most ' * parallel}{bits / 8000:,.3g} kB.")
    return Section(title="How it was made", paragraphs=texts)


def nights_section(manifest: Manifest) -> list[Section]:
    """Returns who was queried, the nights used, and the places that changed; nothing for a single map."""
    rests_on = get(manifest, "nights.rests_on")
    texts = night_sentences(stated_rotation(manifest), rests_on, get(manifest, "nights.started_anew"))
    if not texts:
        return []
    changes = [PlaceChange.from_manifest(one) for one in get(manifest, "nights.changes", [])]
    if changes:
        number = "One place differs" if len(changes) == 1 else f"{len(changes):,} places differ"
        texts.append(f"{number} from the number expected from earlier days. {CHANGES}")
    elif rests_on_several(manifest):
        texts.append("No place differs significantly from the number expected from earlier days.")
    table = changes_table(changes) if changes else None
    return [Section(title="This day compared with earlier ones", paragraphs=texts, table=table)]


def round_table(manifest: Manifest) -> Section:
    """Returns the cost and the noise of each sub-query."""
    queries, trust = get(manifest, "privacy.sub_queries", []), get(manifest, "privacy.trust")
    bins = get(manifest, "auxiliary.entries_per_node", 1)
    heads = ["Round", "Spent", "Entries queried", "Noise at 95%, users"]
    heads += [] if trust in (Trust.CENTRAL, Trust.SPLIT) else ["Groups", "Groups lost"]
    heads += [] if trust == Trust.CENTRAL else ["Sent per phone, bytes"]
    rows = []
    for place, one in enumerate(queries):
        row = [f"{place + 1}", query_cost(one), f"{one['vector_length'] // bins:,}"]
        row.append(f"± {significant(deviations(manifest, one) * one['noise_stddev'], 2)}")
        if one["shards"] is not None:
            row += [f"{one['shards']:,}", f"{one['shards_lost']:,}"]
        if one["bits_per_client"] is not None:
            row.append(f"{math.ceil(one['bits_per_client'] / 8):,}")
        rows.append(row)
    table = Table(title="Table of sub-queries", heads=heads, rows=rows, numeric=[False, *[True] * (len(heads) - 1)])
    return Section(title="Round by round", table=table)


def query_cost(query: Mapping[str, Any]) -> str:
    """Returns the cost of a sub-query: an epsilon, or a rho with Gaussian noise."""
    return f"ε = {query['epsilon']:.3g}" if "epsilon" in query else f"ρ = {query['rho']:.3g}"


def most_slots(manifest: Manifest) -> int:
    """Returns the most slots in which a user counts; 1 without slots."""
    return int(get(manifest, "parameters.columns.records_per_user", 1))


def deviations(manifest: Manifest, query: Mapping[str, Any] | None) -> float:
    """Returns standard deviations to each side that hold 95%, of a sub-query's answers or of the published counts.

    A sum of discrete Laplace variables, one a shard, lies between the normal distribution's 1.96 and one variable's
    2.12; the second term is Cornish and Fisher's for the kurtosis 3 / shards. A posterior has no such noise.
    """
    if query is None and is_posterior(manifest):
        return Z
    return Z + 0.206 / tail_sums(manifest, query)


def is_posterior(manifest: Manifest) -> bool:
    """Returns whether the counts are averages over all maps that could have produced the answers."""
    return bool(get(manifest, "parameters.estimator") == "bayes")
