"""Texts of the page of moments by a trusted curator, from its manifest only. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.schemas.charts import readable
from sfumato.schemas.known_digits import laplace_z
from sfumato.schemas.views.view_parts import Fact, Section
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.report.numbers import percent
from sfumato.transforms.report.sections import facts, get

PROMISE = "A trusted curator added up the values, one record of each user, and added noise to the sums once."


def _columns(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the names of both columns, as readable text; the second is empty without one."""
    return readable(str(manifest["column"])), readable(str(get(manifest, "second.column", "")))


def reading(manifest: Mapping[str, Any]) -> list[str]:
    """Describes the intervals and the range."""
    found = [
        "A 95% interval contains the value for the counted records, one record per user, about 95 times in 100 or a "
        "little more often. It allows only for the noise: other records of the users, or other users, would give "
        "another value."
    ]
    first, second = _columns(manifest)
    values_of = f"Values of {first}" if second else "Values"
    for values, at in ((values_of, "range"), (f"Those of {second}", "second.range")):
        if get(manifest, at) is not None:
            low, high = (f"{get(manifest, f'{at}.{end}'):.15g}" for end in ("low", "high"))
            chosen = "The range was chosen from noisy counts of users by powers of two. " * (
                get(manifest, f"{at}.source") != "given"
            )
            found.append(
                f"{values} lie between {low} and {high}; others were moved to the nearest end. {chosen}".strip()
            )
    return found


def values_chip(manifest: Mapping[str, Any]) -> str | None:
    """Returns the range, next to the title; None where no value was used."""
    if get(manifest, "range") is None:
        return None
    return f"{get(manifest, 'range.low'):.6g} to {get(manifest, 'range.high'):.6g}".replace("-", "−")


def made(manifest: Mapping[str, Any]) -> Section:
    """Describes how the sums were computed."""
    of_pairs = get(manifest, "second") is not None
    place = "places of both values within their ranges set" if of_pairs else "place of a value within the range sets"
    products = ", all powers and the products of both columns" if of_pairs else " and all powers"
    return Section(
        title="How it was made",
        paragraphs=[
            f"The {place} what a user adds to each of a few sums; the additions always total 1. So the same noise "
            f"protects the number of users, their sum{products}.",
            "A mean is a ratio of noisy sums. Its interval contains all means that are consistent with the noisy sums "
            "(Fieller's method). Where the number of users is indistinguishable from 0, the mean is unknown.",
            "Sums of all users are the totals of all groups, so totals agree.",
        ],
    )


def measured(manifest: Mapping[str, Any]) -> Section:
    """Returns the noise, and the users outside the range of each column."""
    noise, z = get(manifest, "privacy.noise_stddev"), laplace_z(0.95)
    first, second = _columns(manifest)
    given = (first, "its range") if second else ("values", "the range")
    rows: list[Fact] = facts(
        ("Noise on a number of users", f"± {significant(z * noise, 2)} users (95%)"),
        *(
            (
                f"Users with {values} {side} {span}",
                f"{percent(clipped[side])} ± {percent(z * clipped['stddev'], 2)} (95%)",
            )
            for (values, span), at in ((given, "clipped"), ((second, "its range"), "second_clipped"))
            if (clipped := get(manifest, f"results.{at}")) is not None
            for side in ("below", "above")
        ),
    )
    return Section(title="What was measured", facts=rows)
