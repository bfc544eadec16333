"""Texts of all pages on a release's guarantee, from its manifest. Pure.

A key that a manifest lacks costs the page that line, not the page.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import SEES, TAIL_SUMS, days_averaged
from sfumato.schemas.log_roles import zones_word
from sfumato.schemas.slots import LOGS_OWN
from sfumato.schemas.views.view_parts import Fact, Section, Table
from sfumato.transforms.report.numbers import tiny

_VAGUE = 10  # an epsilon above this one promises next to nothing
_NOUNS = dict.fromkeys(("heatmap", "ranges", "flows"), "map")
_NOUNS |= {"histogram": "list", "hotspots": "list", "quantiles": "curve"}  # without a region
_SOURCES = {
    "operating system": "a secret key from the operating system",
    "key file": "a secret key from a file: private as long as it stays secret",
}
Manifest = Mapping[str, Any]


def get(manifest: Manifest, path: str, default: Any = None) -> Any:
    """Returns the value at a path such as `privacy.epsilon`; `default` where there is none or null."""
    value: Any = manifest
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return default if value is None else value


def number(manifest: Manifest, path: str) -> float | None:
    """Returns the finite number at a path; None where there is none."""
    value = get(manifest, path)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def facts(*rows: tuple[str, str | None]) -> list[Fact]:
    """Returns facts, without those whose text is None."""
    return [Fact(term=term, text=text) for term, text in rows if text is not None]


def tail_sums(manifest: Manifest, query: Manifest | None = None) -> int:
    """Returns the number of Laplace terms whose sum matches the tail of a sub-query's noise.

    With Laplace noise that is the number of live shards or of servers; 1 with a curator's noise and where it is not
    stated.

    Args:
        manifest: of a heatmap or of zones.
        query: an entry of its `privacy.sub_queries`; None for the last one.

    Raises:
        RequestError: the manifest states noise of an unknown kind.
    """
    query = (get(manifest, "privacy.sub_queries") or [{}])[-1] if query is None else query
    stated = number(query, "shards") or number(query, "servers") or 1
    sums = max(int(stated) - int(number(query, "shards_lost") or 0), 1)
    if (kind := get(manifest, "privacy.noise", "laplace")) not in TAIL_SUMS:
        known = " or ".join(TAIL_SUMS)
        raise RequestError(f"noise: the release has noise of an unknown kind, {kind!r}; it must be {known}")
    return TAIL_SUMS[kind](sums)


def table_section(title: str, heads: list[str], rows: list[list[str]], *, names: int = 0) -> Section:
    """Returns a section that is one table, of numbers but for its first `names` columns."""
    numeric = [place >= names for place in range(len(heads))]
    return Section(title=title, table=Table(title=title, heads=heads, rows=rows, numeric=numeric))


def noun(manifest: Manifest) -> str:
    """Returns the noun for the release, such as `map`."""
    return "map" if get(manifest, "region") else _NOUNS.get(str(manifest.get("job")).split()[0], "release")


def is_safe(manifest: Manifest) -> bool:
    """Returns whether the manifest states that the seed of the randomness is secret, or does not state it."""
    return get(manifest, "privacy.randomness.safe", True) is not False


def guarantee(manifest: Manifest) -> str:
    """Describes the guarantee in two plain sentences."""
    epsilon, delta = number(manifest, "privacy.epsilon"), number(manifest, "privacy.delta") or 0.0
    this = f"this {noun(manifest)}"
    if not is_safe(manifest):
        return f"A demonstration seed made {this}. It protects nobody."
    if epsilon is None and get(manifest, "privacy.meter") is not None:
        return "No differential privacy: users sent parts of their values unchanged. Only sums are published."
    if epsilon is None:
        return "The manifest states no privacy budget, so this page promises nothing."
    if epsilon > _VAGUE:
        return (
            f"A privacy budget of ε = {epsilon:g} promises almost nothing. Anyone who studies {this} may become "
            "almost certain whether you were in the data."
        )
    failure = f", except with a probability of {tiny(delta)}" if delta > 0 else ""
    return (
        f"Whether or not you were in the data, anyone who looks at {this} sees nearly the same thing. No conclusion's "
        f"odds change by more than a factor of {_odds_factor(epsilon)}{failure}."
    )


def alarm(manifest: Manifest, what: str = "The noise") -> str | None:
    """Returns a warning if the release used a known seed, else None. what: what the seed generated."""
    if is_safe(manifest):
        return None
    source = get(manifest, "privacy.randomness.source", "unknown")
    return (
        f"Demonstration seed: NOT private. {what} came from a known source ({source}), so anyone with that source can "
        "undo it. Do not publish this release."
    )


def problems(manifest: Manifest) -> list[str]:
    """Returns problems to show first: gaps in the manifest, then its warnings."""
    unknown = "The manifest does not state the source of its randomness, so its secrecy cannot be judged."
    gaps = [unknown] if get(manifest, "privacy.randomness.safe") is None else []
    return [*gaps, *map(str, get(manifest, "warnings", []))]


def chips(manifest: Manifest, *own: Fact) -> list[Fact]:
    """Returns the facts next to the title: budget, facts of the job, day of creation."""
    epsilon, delta = number(manifest, "privacy.epsilon"), number(manifest, "privacy.delta") or 0.0
    budget = "unknown" if epsilon is None else f"ε = {epsilon:g}"
    return [
        *facts(("Privacy budget", budget + (f", δ = {tiny(delta)}" if delta > 0 else ""))),
        *own,
        *facts(("Times", get(manifest, "times") and _clocks(manifest))),
        *facts(("Made", _day(manifest.get("created")))),
    ]


def _clocks(manifest: Manifest) -> str:
    """Returns by whose clocks a release reads times, where some may state no zone."""
    zone = get(manifest, "parameters.time_zone")
    return str(zone) if zone else f"local, {LOGS_OWN}"


def period(manifest: Manifest, mean: str = "mean of {} days") -> str | None:
    """Returns the days and hours of the records, as in `9 to 15 Nov 2026 (7 days together), 8–9 h`.

    None if a manifest states none. mean: the words for several days whose mean the counts are.
    """
    begin, end = days_of(manifest)
    days, last = _day(begin), _day(end)
    if days and last and days != last:
        first = days.split()
        differing = max(place for place, word in enumerate(last.split()) if word != first[place])
        begin = " ".join(first[: differing + 1])  # the year is written once
        several = "{} days together" if days_averaged(manifest) == 1 else mean
        days = f"{begin} to {last} ({several.format(days_together(manifest))})"
    return ", ".join(filter(None, (days, hours(manifest)))) or None


def hours(manifest: Manifest) -> str:
    """Returns the hours of the records, as in `8–9 h`; empty for all."""
    text = str(get(manifest, "parameters.hours", "")).replace("-", "–")
    return text and f"{text} h"


def radius_of(manifest: Manifest) -> float | None:
    """Returns how far zones reach from the points that they were made around, in metres; None without points."""
    return number(manifest, "parameters.radius") or number(manifest, "parameters.zones.radius")


def zone_noun(manifest: Manifest) -> str:
    """Returns what readers call a zone: by its ids' column or its file, or a place if it was made around a point."""
    levels = get(manifest, "zones.levels", [])
    word = zones_word(str(levels[0]["name"]), str(get(manifest, "zones.source", ""))) if len(levels) == 1 else None
    return word or ("zone" if radius_of(manifest) is None else "place")


def user_id_column(manifest: Manifest) -> str:
    """Returns the name of the column of user ids; empty if a manifest states none."""
    columns = get(manifest, "parameters.columns", get(manifest, "parameters.counted.columns", {}))
    return str(columns.get("user_id", ""))


def radius(manifest: Manifest) -> str:
    """Returns how far records are from points, as in `within 300 m of a stop`; empty without points."""
    metres, noun = radius_of(manifest), zone_noun(manifest)
    return "" if metres is None else f"within {metres:g} m of a {'point' if noun == 'place' else noun}"


def no_zone_here(manifest: Manifest) -> str:
    """Returns what a spot on the map without a zone is, as a sentence without its full stop."""
    reach = radius(manifest)
    return f"Not {reach}" if reach else f"No {zone_noun(manifest)} here"


def around_points(manifest: Manifest, unit: str = "users") -> list[str]:
    """Returns how to read zones around points; no paragraph without points. unit: of what is counted."""
    if not (reach := radius(manifest)):
        return []
    return [
        f"A {zone_noun(manifest)}'s area is all that is {reach}, up to where another is nearer. Colours show {unit}, "
        f"not {unit} per km²."
    ]


def days_of(manifest: Manifest) -> tuple[str, str]:
    """Returns the first and last day of the records, charged or read, as a manifest writes them; empty if none."""
    read, _, last = str(get(manifest, "parameters.days_read", "")).partition(":")
    return str(get(manifest, "ledger.first_day", read)), str(get(manifest, "ledger.last_day", last or read))


def days_together(manifest: Manifest) -> int | None:
    """Returns how many days of records a release counts together; None if it states none."""
    try:
        first, last = map(datetime.fromisoformat, days_of(manifest))
    except ValueError:
        return None
    return (last - first).days + 1


def file_name(manifest: Manifest, place: str | None) -> str:
    """Returns a name for saved files: job, title or place, and days, as in `heatmap-berlin-2026-11-20`.

    A release without stated days has the day on which it was made.
    """
    first, last = days_of(manifest)
    days = [first] if first == last else [first, "to", last]
    parts = [
        manifest.get("job", ""),
        manifest.get("title") or place or "",
        *(days if first else [str(manifest.get("created", ""))[:10]]),
    ]
    return "-".join(slug for part in parts if (slug := re.sub(r"[\W_]+", "-", str(part)).strip("-").lower()))


def _day(written: object) -> str | None:
    """Returns a date or time of a manifest as in `9 Nov 2026`; None if it is not one."""
    try:
        day = datetime.fromisoformat(str(written))
    except ValueError:
        return None
    return f"{day.day} {day:%b %Y}"


def common_sections(manifest: Manifest) -> list[Section]:
    """Returns the sections on the guarantee and trust, and folded parameters, versions and identity."""
    identity = {name: manifest[name] for name in ("release_id", "job", "created") if name in manifest}
    region = get(manifest, "region")
    parts = {
        "Parameters": get(manifest, "parameters", {}),
        "Versions": get(manifest, "versions", {}),
        "Ledger": get(manifest, "ledger", {}),
        "This release": identity if region is None else {**identity, "region": region},
    }
    folded = []
    for title, values in parts.items():
        if values:
            texts = {str(name): one if isinstance(one, str) else json.dumps(one) for name, one in values.items()}
            folded.append(Section(title=title, facts=facts(*texts.items()), folded=True))
    # Changes are post-processing: the guarantees of the two releases apply, as a separate section states.
    promises = get(manifest, "privacy") and get(manifest, "job") != "changes"
    if not promises:
        return folded
    assumed = get(manifest, "privacy.assumptions") or get(manifest, "assumptions")
    assumed = assumed or ["The manifest states no assumptions. Ask the publisher of this release."]
    trust = Section(title="What must be trusted", paragraphs=[str(one) for one in assumed])
    return [_promise(manifest), trust, *folded]


def _promise(manifest: Manifest) -> Section:
    epsilon, delta = number(manifest, "privacy.epsilon"), number(manifest, "privacy.delta") or 0.0
    this = noun(manifest)
    paragraphs = [] if is_safe(manifest) else ["With a secret key, the following would hold."]
    if epsilon is not None and epsilon <= _VAGUE:
        paragraphs.append(
            f"Suppose someone gives even odds that you are in the data. However they study this {this}, and "
            f"whatever else they know, they cannot become more than {_most_certain(epsilon)} sure that you are in it, "
            f"or more than {_most_certain(epsilon)} sure that you are not."
        )
    is_protected = get(manifest, "privacy.participation.protected", True)
    source = get(manifest, "privacy.randomness.source")
    budget = None if epsilon is None else f"ε = {epsilon:g}"
    failure = f"δ = {tiny(delta)}: the bound fails with at most this probability"
    if not delta:
        failure = "none: δ = 0" + ("" if is_protected else ", given who takes part, which is not protected")
    column = (named := user_id_column(manifest)) and f", by the column {named}"
    sees = SEES.get(get(manifest, "privacy.trust"))
    rows = facts(
        ("Who is protected", f"each {get(manifest, 'privacy.unit', 'user')} with all their records{column}"),
        ("What is compared", get(manifest, "privacy.adjacency")),
        ("What each user adds", get(manifest, "privacy.contribution_bound")),
        ("Privacy budget", budget and f"{budget}. The factor above is e to the power ε."),
        ("Probability of failure", failure if epsilon is not None else None),
        ("Who takes part", None if is_protected else get(manifest, "privacy.participation.description")),
        ("Trust model", sees and f"{get(manifest, 'privacy.trust')}: {sees}"),
        ("Mechanism", get(manifest, "privacy.mechanism")),
        ("Randomness", _SOURCES.get(source, source) if is_safe(manifest) else "a seed that anyone can guess"),
    )
    return Section(title=f"What this {this} promises", lead=guarantee(manifest), paragraphs=paragraphs, facts=rows)


def _odds_factor(epsilon: float) -> str:
    """Returns e to the power epsilon, rounded up so that it stays above 1."""
    factor = math.exp(epsilon)
    digits = 2 - math.floor(math.log10(factor)) if factor >= 100 else max(math.ceil(-math.log10(factor - 1)), 2)
    text = f"{math.ceil(factor * 10**digits - 1e-6) / 10**digits:,.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _most_certain(epsilon: float) -> str:
    """Returns the highest certainty that even odds on one user's presence can become: a percentage, rounded up."""
    rest = 100 / (1 + math.exp(epsilon))
    digits = max(math.ceil(-math.log10(rest)), 1)
    return f"{100 - math.floor(rest * 10**digits + 1e-6) / 10**digits:.{digits}f}%"
