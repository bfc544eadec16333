"""What a heatmap's page says of its method, noise and errors, from the manifest. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sfumato.schemas.ledger import Period
from sfumato.schemas.release import CELLS_FILE
from sfumato.schemas.timeline import stated_rotation
from sfumato.schemas.trust import Trust
from sfumato.schemas.views import MapBody, Section
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.report.numbers import plural
from sfumato.transforms.report.sections import Manifest, get
from sfumato.transforms.text_tables import significant

_NOISE = {
    Trust.CENTRAL: "A trusted curator saw the exact sums of the answers and added noise to each sum once. There was no "
    "secure aggregation.",
    "client": "Users answered in {groups}. Every phone adds its share of the noise, so that a group's sum has noise "
    "before anyone sees it. A group in which too many fell silent is thrown away unread.",
    "shard": "Users answered in {groups}. A group's sum has its noise before anyone sees it. A group in which too many "
    "fell silent is thrown away unread.",
}
_POSTERIOR = (
    "The answers carry random noise, drawn once. A count is the average over all maps that could have led to these "
    "answers. It is never below zero, and where the answers say little it follows its surroundings."
)
_NIGHTS = (
    "The answers carry random noise, drawn once. A count is estimated from the answers of all nights on which the map "
    "rests, and holds for this night. It is never below zero, and where the answers say little it follows its "
    "surroundings and the nights before."
)
_AS_COUNTED = (
    "Every count carries random noise, drawn once. A count below zero is noise too; it is left as it came, because "
    "raising it to zero would tilt every total upward."
)
_RATES = (
    "A rate is the share of a cell's users in a category, shrunk towards the average where little is known. Its 95% "
    "interval holds for each cell by itself and includes noise and how few the users are. A cell is listed as high "
    "only where an interval that holds for all cells at once lies above the average."
)
_SLOTS = (
    "The map of a slot of time and the map of all slots were estimated together: the slots of a place add up to its "
    "number in all. A place's profile over the slots follows its surroundings where its own answers say little."
)
_USER_SLOTS = (
    " A user counts in up to {} slots, so the map of all slots is of user-slots: a user in three slots counts three "
    "times."
)


def rests_on_several(manifest: Manifest) -> bool:
    """Whether the estimate rests on more nights than one."""
    return sum(Period.parse(text).length for text in get(manifest, "nights.rests_on", [])) > 1


def how_to_read_it(manifest: Manifest, body: MapBody, cells: int) -> Section:
    """What a count, its interval and the hatching mean. cells: of the release, which may be more than the map's."""
    layer = body.layers[-1]
    users = layer.measures[0]
    hatched = sum(users.uncertain)
    margins = [(high - low) / 2 for low, high in zip(users.low, users.high, strict=True) if low is not None is not high]
    margin = float(np.median(margins)) if margins else 0.0
    is_bayes = get(manifest, "parameters.estimator") == "bayes"
    words = _NIGHTS if get(manifest, "nights") else _POSTERIOR if is_bayes else _AS_COUNTED
    texts = [
        f"{words} The 95% interval of a typical cell reaches "
        f"{significant(margin, 2)} users to each side. Crowded places are known well and quiet places poorly.",
        f"{hatched:,} of the {plural(len(users.uncertain), 'cell')} are hatched: they may be empty. Several cells "
        "together are known better than each alone.",
        _sizes(body),
    ]
    if cells > len(users.value):
        texts.append(
            f"The map has {cells:,} cells, added up to {len(users.value):,} on this page. {CELLS_FILE} has all."
        )
    if users.scale.ticks and users.scale.ticks[-1][1].startswith("≥"):
        texts.append("The scale of colours ends where few users live, so that crowded cells do not darken all others.")
    if len(layer.measures) > 1:
        texts.append(_RATES)
    if body.slots is not None:
        most = int(get(manifest, "parameters.columns.records_per_user", 1))
        texts.append(_SLOTS + (_USER_SLOTS.format(most) if most > 1 else ""))
    return Section(title="How to read it", paragraphs=texts)


def how_it_was_made(manifest: Manifest) -> Section:
    """The method, the noise, what came before, and what a phone would send."""
    queries, parallel = get(manifest, "privacy.sub_queries", []), get(manifest, "privacy.composition") == "parallel"
    method = get(manifest, "parameters.method", "adaptive")
    is_central = get(manifest, "privacy.trust") == Trust.CENTRAL
    noise = Trust.CENTRAL if is_central else get(manifest, "parameters.noise_source", "shard")
    told = "the share of their records in each cell" if get(manifest, "parameters.contribution") == "all" else "a cell"
    rotation = stated_rotation(manifest)
    who = "Every user" if rotation is None else f"Every user of cohort {rotation.cohort} of {rotation.cohorts}"
    others = "" if rotation is None else " The other users report nothing."
    texts = [
        f"The map took {plural(len(queries), 'sub-query', 'sub-queries')}. {who} reports {told}; what is used are "
        f"sums of these reports with noise.{others} {_sentence_of(method)}".strip()
    ]
    if get(manifest, "parameters.keep_top") is not None:
        texts.append(f"Only the {manifest['parameters']['keep_top']:g}% of cells with the largest noisy sums are kept.")
    if parallel and len(queries) > 1:
        texts.append(
            "Each user answered one sub-query alone, so no user spends more than the dearest one costs. The key drew "
            "who answered which."
        )
    if (earlier := get(manifest, "parameters.warm_start")) is not None:
        name = earlier.get("release_id", "") if isinstance(earlier, Mapping) else ""
        carried = ""
        if rests_on_several(manifest):
            carried = " The map is estimated from the noisy answers of that night and of those before it as well."
        in_both = "whose records are in both" if rotation is None else "who was asked for both"
        texts.append(
            f"It began with an earlier release{f', {name},' if name else ''} which said where to look closely."
            f"{carried} That release had a budget of its own: for a user {in_both}, the two add up."
        )
    groups = plural(get(manifest, "privacy.cohort.shards") or 1, "group")
    texts.append(_NOISE.get(noise, _NOISE["shard"]).format(groups=groups))
    bits = get(manifest, "communication.bits_per_client")
    if bits is not None:
        texts.append(f"On phones it would cost each one {'at most ' * parallel}{bits / 8000:,.3g} kB of upload.")
    return Section(title="How it was made", paragraphs=texts)


def _sentence_of(method: str) -> str:
    """How a method of this name makes a map."""
    if method not in METHODS:
        return (
            f"This version of sfumato does not have the method {method}: sfumato 0.1 of November 2026 or earlier has "
            "it, or the program that made the map."
        )
    return METHODS[method].SENTENCE


def _sizes(body: MapBody) -> str:
    levels = body.layers[-1].level
    if levels and levels[0] == levels[-1]:
        return "All cells are of one size."
    return (
        "Cells are small where many users are and large where few are. A cell that was divided in part stands for what "
        "its finer cells leave over."
    )
