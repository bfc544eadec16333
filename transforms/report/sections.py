"""What the pages of all jobs share: numbers in words, the guarantee, and the parts of the report. Pure.

Everything is said from the manifest. A key that a manifest lacks costs the page that line, not the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sfumato.schemas.views import Basemap, Body, Fact, FileLink, PageView, Section, Table

Z = 1.96  # standard deviations on each side that hold 95% of a normal law
_VAGUE = 10  # an epsilon above this one promises next to nothing
_DIGITS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_SOURCES = {
    "operating system": "a secret key from the operating system",
    "key file": "a secret key from a file: private as long as it stays secret",
}
_METRES_PER_DEGREE = 6371008.8 * math.pi / 180


# --- numbers in words ---


def significant(value: float, digits: int = 3) -> str:
    """A number with at most so many significant digits, such as 1,230 or 0.0456; an integer keeps its zeros."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "unknown"
    behind = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{round(value, behind):,.{max(behind, 0)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def whole(value: float) -> str:
    """A number without decimals, such as 12,345."""
    return f"{value:,.0f}".replace("-", "−")


def known(value: float, margin: float) -> str:
    """A number rounded to the first digit of its margin: 319,942 ± 812 is 319,900."""
    if not (margin > 0 and math.isfinite(margin)):
        return significant(value, 6)
    behind = -math.floor(math.log10(margin) + 1e-9)
    return f"{round(value, behind) + 0.0:,.{max(behind, 0)}f}".replace("-", "−")


def about(value: float, margin: float = 0.0) -> str:
    """A large number for a headline: what is known of it, with three digits at most, such as 320,000 or 1.2 million."""
    rough = round(value, -math.floor(math.log10(margin))) if margin >= 1 else value
    for size, unit in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if rough >= size * 0.9995:
            return f"{significant(rough / size)} {unit}"
    return significant(rough, 3 if abs(rough) >= 100 else 2)


def tiny(value: float) -> str:
    """A small number, such as a delta: powers of ten below a thousandth."""
    if not 0 < value < 1e-3:
        return significant(value)
    mantissa, power = f"{value:.2e}".split("e")
    times = "" if float(mantissa) == 1 else f"{float(mantissa):g} × "
    return f"{times}10{str(int(power)).translate(_DIGITS)}"


def percent(share: float, digits: int = 0) -> str:
    """A share in percent."""
    return f"{100 * share:,.{digits}f}%".replace("-", "−")


def plural(count: float, one: str, many: str | None = None) -> str:
    """A number with its noun, such as 3 cells."""
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"


def metres(length: float) -> str:
    """A length, such as 950 m or 1.2 km."""
    if length >= 995:
        return f"{significant(length / 1000)} km"
    return f"{significant(length)} m" if length >= 1 else f"{significant(100 * length)} cm"


def ground_metres(region: Mapping[str, float]) -> tuple[float, float]:
    """Width and height of a region in metres, the width at its middle latitude."""
    middle = math.radians((region["north"] + region["south"]) / 2)
    width = (region["east"] - region["west"]) * max(math.cos(middle), 0.01)
    return width * _METRES_PER_DEGREE, (region["north"] - region["south"]) * _METRES_PER_DEGREE


def sent_bytes(bits: float) -> str:
    """An amount of data, such as 35 bytes or 1.2 MB."""
    size = bits / 8
    if size >= 1e6:
        return f"{significant(size / 1e6)} MB"
    return f"{significant(size / 1e3)} kB" if size >= 1e4 else f"{whole(size)} bytes"


# --- the manifest ---


def get(manifest: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a path such as `privacy.epsilon`; `default` where there is none or null."""
    value: Any = manifest
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return default if value is None else value


def number(manifest: Mapping[str, Any], path: str) -> float | None:
    """The finite number at a path; None where there is none."""
    value = get(manifest, path)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def is_safe(manifest: Mapping[str, Any]) -> bool:
    """Whether nobody knows the seed of the release's randomness, as far as the manifest says."""
    return get(manifest, "privacy.randomness.safe", True) is not False


# --- the guarantee ---


def odds_factor(epsilon: float) -> str:
    """e to the power epsilon, rounded up so that it stays above 1."""
    factor = math.exp(epsilon)
    if factor >= 100:
        digits = 2 - math.floor(math.log10(factor))
    else:
        digits = min(max(math.ceil(-math.log10(math.expm1(epsilon))), 2), 15)
    up = math.ceil(factor * 10**digits - 1e-6) / 10**digits
    text = f"{up:,.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def surest(epsilon: float) -> str:
    """The surest that an even bet on one user's presence can become: a percentage below 100, rounded up."""
    rest = 100 / (1 + math.exp(epsilon))
    digits = min(max(math.ceil(-math.log10(rest)), 1), 12)
    return f"{100 - math.floor(rest * 10**digits + 1e-6) / 10**digits:.{digits}f}%"


def guarantee(manifest: Mapping[str, Any], noun: str) -> str:
    """What the release promises, in two sentences. noun: what it is, such as `map`."""
    epsilon, delta = number(manifest, "privacy.epsilon"), number(manifest, "privacy.delta") or 0.0
    if not is_safe(manifest):
        return f"This {noun} was made with a demonstration seed. It protects no one."
    if epsilon is None:
        return "The manifest names no privacy budget. Nothing can be promised."
    if epsilon > _VAGUE:
        return (
            f"A privacy budget of ε = {significant(epsilon)} promises next to nothing. From this {noun}, somebody may "
            "become all but certain whether you were in the data."
        )
    failure = f" The probability that this fails is at most {tiny(delta)}." if delta > 0 else ""
    return (
        f"Whether or not you were in the data, anyone who looks at this {noun} sees nearly the same thing. No "
        f"conclusion's odds change by more than a factor of {odds_factor(epsilon)}.{failure}"
    )


def alarm(manifest: Mapping[str, Any], what: str = "The noise") -> str | None:
    """What a known seed makes of the release; None for a secret key."""
    if is_safe(manifest):
        return None
    source = get(manifest, "privacy.randomness.source", "unknown")
    return f"{what} came from a known source ({source}): anyone who has it can undo it. Do not publish this release."


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """What a reader must know first: gaps in the manifest, then its own warnings."""
    found = []
    if get(manifest, "privacy.randomness.safe") is None:
        found.append("The manifest does not say where the randomness came from: its secrecy cannot be judged.")
    return [*found, *map(str, get(manifest, "warnings", []))]


def budget_fact(manifest: Mapping[str, Any]) -> Fact:
    """The chip that names epsilon and delta."""
    epsilon, delta = number(manifest, "privacy.epsilon"), number(manifest, "privacy.delta") or 0.0
    text = "unknown" if epsilon is None else f"ε = {significant(epsilon)}"
    return Fact(term="Privacy budget", text=text + (f", δ = {tiny(delta)}" if delta > 0 else ""))


# --- the report ---


def facts(*rows: tuple[str, str | None]) -> list[Fact]:
    """Facts without those whose text is None."""
    return [Fact(term=term, text=text) for term, text in rows if text is not None]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> Table:
    """A table whose first `texts` columns hold texts and whose others hold numbers."""
    return Table(
        title=title,
        heads=list(heads),
        rows=[list(row) for row in rows],
        numeric=[i >= texts for i in range(len(heads))],
    )


def promise(manifest: Mapping[str, Any], noun: str, more: Sequence[tuple[str, str | None]] = ()) -> Section:
    """What is promised to whom. more: facts of the job's own, after those of every job."""
    epsilon, delta = number(manifest, "privacy.epsilon"), number(manifest, "privacy.delta") or 0.0
    paragraphs = []
    if epsilon is not None and epsilon <= _VAGUE:
        paragraphs.append(
            f"Suppose someone thinks it an even bet that you are in the data. However they study this {noun}, and "
            f"whatever else they know, they cannot become more than {surest(epsilon)} sure that you are in it, nor "
            f"more than {surest(epsilon)} sure that you are not."
        )
    if not is_safe(manifest):
        paragraphs.insert(0, "With a secret key, the following would hold.")
    is_protected = get(manifest, "privacy.participation.protected", True)
    source = get(manifest, "privacy.randomness.source")
    failure = f"δ = {tiny(delta)}: the bound may fail with at most this probability"
    rows = (
        ("Who is protected", f"each {get(manifest, 'privacy.unit', 'user')} with all their records"),
        ("What is compared", get(manifest, "privacy.adjacency")),
        ("What each user adds", get(manifest, "privacy.contribution_bound")),
        (
            "Privacy budget",
            None if epsilon is None else f"ε = {significant(epsilon)}. The factor above is e to the power ε.",
        ),
        (
            "Probability of failure",
            failure
            if delta > 0
            else "none: δ = 0" + ("" if is_protected else ", given who takes part, which is not protected"),
        ),
        ("Who takes part", None if is_protected else get(manifest, "privacy.participation.description")),
        ("Mechanism", get(manifest, "privacy.mechanism")),
        (
            "Randomness",
            "a seed that anybody can guess: not private" if not is_safe(manifest) else _SOURCES.get(source, source),
        ),
        *more,
    )
    return Section(
        title=f"What this {noun} promises", lead=guarantee(manifest, noun), paragraphs=paragraphs, facts=facts(*rows)
    )


def trust(manifest: Mapping[str, Any]) -> Section:
    """What the guarantee assumes."""
    assumed = get(manifest, "privacy.assumptions") or get(manifest, "assumptions") or []
    missing = ["The manifest names no assumptions. Ask whoever made this release."]
    return Section(title="What must be trusted", paragraphs=[str(one) for one in assumed] or missing)


def details(manifest: Mapping[str, Any], more: Sequence[tuple[str, str | None]] = ()) -> list[Section]:
    """Folded: parameters, versions and identity. more: further facts on the release's identity."""
    identity = [(name, str(get(manifest, name, "unknown"))) for name in ("release_id", "job", "created")]
    parts = {
        "Parameters": _written(get(manifest, "parameters", {})),
        "Versions": _written(get(manifest, "versions", {})),
        "Ledger": _written(get(manifest, "ledger", {})),
        "This release": facts(*identity, *more),
    }
    return [Section(title=title, facts=rows, folded=True) for title, rows in parts.items() if rows]


def _written(values: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(term=str(name), text=value if isinstance(value, str) else json.dumps(value))
        for name, value in values.items()
    ]


def page_view(
    manifest: Mapping[str, Any],
    *,
    title: str,
    noun: str,
    headline: str,
    description: str,
    chips: Sequence[Fact],
    sections: Sequence[Section],
    files: Sequence[tuple[str, str]],
    body: Body,
    picture: str | None = None,
    basemap: Basemap | None = None,
    randomness: str = "The noise",
) -> PageView:
    """A page with what all jobs share: guarantee, alarm, problems, trust, details and the date.

    Args:
        manifest: as published, without its list of files.
        noun: what the release is, such as `map`.
        chips: the job's own facts beside the title; budget and date are added.
        sections: the job's own parts of the report, `promise` among them.
        files: name and description of each file beside the page.
        randomness: what a known seed gives away, as the beginning of a sentence.
    """
    created = str(get(manifest, "created", ""))
    return PageView(
        title=title,
        headline=headline,
        description=description,
        job=str(get(manifest, "job", "unknown")),
        release_id=str(get(manifest, "release_id", "")),
        created=created,
        chips=[budget_fact(manifest), *chips, *facts(("Made", _day(created)))],
        guarantee=guarantee(manifest, noun),
        alarm=alarm(manifest, randomness),
        problems=problems(manifest),
        files=[FileLink(name=name, description=text) for name, text in files],
        picture=picture,
        sections=[*sections, trust(manifest), *details(manifest)],
        manifest=dict(manifest),
        basemap=basemap,
        timeline=get(manifest, "timeline"),
        tiles=get(manifest, "parameters.tiles"),
        body=body,
    )


def _day(created: str) -> str | None:
    try:
        made = datetime.fromisoformat(created)
    except ValueError:
        return None
    return f"{made.day} {made:%b %Y}"
