"""The page of a release of zones as a view, made of its published files only. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.known_digits import NOISE_Z, Z, about
from sfumato.schemas.region import Region, ground_metres
from sfumato.schemas.release import MANIFEST_FILE, RATES_PICTURE, ZONES_FILE, ZONES_PICTURE
from sfumato.schemas.views import PageView
from sfumato.schemas.views.map_views import Layer, MapBody
from sfumato.schemas.views.view_parts import Section, Table
from sfumato.transforms.geo.zone_file import INDEXES, MAX_SHOWN, level_title
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.report.count_measures import (
    busiest_text,
    count_measure,
    ends_at_once,
    rate_measures,
    rate_names,
    simultaneous_deviations,
)
from sfumato.transforms.report.layers import finest_metres, zone_layer, zone_names
from sfumato.transforms.report.numbers import length, plural
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.scales import colour_weight, count_scale, density_scale
from sfumato.transforms.report.sections import (
    Manifest,
    around_points,
    facts,
    get,
    no_zone_here,
    number,
    radius_of,
    tail_sums,
    zone_noun,
)

_NOISE = {  # by trust model
    Trust.CENTRAL: "A trusted curator saw the exact sums and added noise to each once.",
    Trust.SPLIT: "Two servers received shares of the reports, which disclose nothing. Each added its own noise to its "
    "share of each sum, and only the total of both was seen.",
}
_FILES = {
    ZONES_FILE: "one row for each zone of each level: estimated users with their intervals, density, rates, polygon",
    ZONES_PICTURE: "the map of users as a picture",
    RATES_PICTURE: "the map of the rate as a picture",
    MANIFEST_FILE: "the guarantee, every parameter, every version",
}


def zones_view(files: Files) -> PageView:
    """Returns the page of a release of `sfumato zones`. files: by name."""
    release = Released(files)
    manifest, table = release.manifest, release.table(ZONES_FILE)
    levels = get(manifest, "zones.levels", [])
    noun = zone_noun(manifest)
    shown = [level for level in levels if level["zones"] <= MAX_SHOWN]
    rows = {level["name"]: table.filter(pc.equal(table["level"], level["name"])) for level in levels}
    errors = {name: _error(*(np.asarray(zones[end]) for end in ("low", "high"))) for name, zones in rows.items()}
    body = MapBody(
        region=release.bounds,
        depth=0,
        layers=[_layer(rows[level["name"]], level, manifest, release.region) for level in reversed(shown)],
        missing=f"{no_zone_here(manifest)}.",
        finest_metres=finest_metres(np.asarray(table["area"]), release.region),
    )
    users, deviation = (number(manifest, f"results.{name}") or 0.0 for name in ("users", "users_stddev"))
    some = about(users, max(deviation, users / 200))
    zones = plural(levels[0]["zones"], noun)
    headline = f"About {some} users in {zones}"
    if users < Z * deviation:
        most = about(max(users, 0) + Z * deviation, deviation)
        headline = f"Fewer than {most} users in {zones}: indistinguishable from none"
    busiest = _busiest(rows[levels[0]["name"]], levels[0]["name"], manifest)
    queries, groups = get(manifest, "privacy.sub_queries", []), get(manifest, "privacy.cohort.shards") or 1
    made = [
        f"Every user reports one {noun} of each queried level, in "
        f"{plural(len(queries), 'sub-query', 'sub-queries')}. The list of {noun}s is public, so it reveals nothing "
        "about anyone.",
        _NOISE.get(
            get(manifest, "privacy.trust"),
            f"Users reported in {plural(groups, 'group')}. A group's sum is noisy before anyone sees it.",
        ),
    ]
    return release.page(
        body,
        [
            _how_to_read_it(
                manifest,
                errors[levels[0]["name"]],
                len(shown) < len(levels),
                [] if busiest is None else [f"{headline}."],
            ),
            Section(title="How it was made", paragraphs=made),
            *([_level_table(manifest, errors)] if len(levels) > 1 else []),
        ],
        facts(
            (
                f"{noun.capitalize()}s",
                ", ".join(
                    f"{level_title(level['name'], len(levels), noun)}: {level['zones']:,}" for level in levels
                ).removeprefix(f"{noun.capitalize()}s: "),
            ),
            (f"Error of a {noun}", f"{errors[levels[0]['name']]} users (95%)"),
        ),
        _FILES,
        [ZONES_PICTURE, *([RATES_PICTURE] if rate_names(manifest, one=True) else [])],
        title=f"Users by {noun}",
        headline=busiest or headline,
        description=f"How many users are in each of {zones}, without exposing anyone.",
    )


def _layer(rows: pa.Table, level: Mapping[str, Any], manifest: Manifest, region: Region) -> Layer:
    """Returns the zones of a level, with their users and rates. rows: of the level in the release's table."""
    users, stddev, low, high, areas = (
        np.asarray(rows[name], dtype=np.float64) for name in ("users", "stddev", "low", "high", "area")
    )
    seen = np.maximum(users, 0)
    weight = colour_weight(seen, stddev)
    listed = np.ones(len(users))  # by their users: a zone is a place of its own, whatever its area
    sums = tail_sums(manifest)
    radius, noun = radius_of(manifest), zone_noun(manifest)
    if radius is not None:  # circles are cut where they overlap: less area, which says nothing about the point
        scale = count_scale(seen, weight, users > simultaneous_deviations(len(users), sums) * stddev, "users")
    else:
        scale = density_scale(seen / areas, weight)
    return zone_layer(
        level_title(level["name"], len(get(manifest, "zones.levels", [])), noun),
        f"{plural(level['zones'], noun)}. {_one_zone(noun)} The error of each count is {_error(low, high)} users (95%, "
        f"for this {noun} only).",
        rows,
        shapely.from_wkb(rows["geometry"].to_numpy(zero_copy_only=False)),
        areas,
        region,
        [
            count_measure(users, stddev, low, high, scale, sums, listed, place=noun),
            *rate_measures(rows, manifest, noun),
        ],
        named=level["name"] not in INDEXES,
        noun=noun,
        radius=radius,
    )


def _one_zone(noun: str) -> str:
    """Returns what the count of a zone, called `noun`, leaves out."""
    return (
        f"Each user counts in one of them, that of one record drawn at random. So a {noun}'s count is not the number "
        f"of its visitors, who may have been in other {noun}s too."
    )


def _error(low: NDArray[np.float64], high: NDArray[np.float64]) -> str:
    """Returns half the width of the 95% intervals of a level's zones; of their median, where they differ."""
    return f"±\u00a0{significant(float(np.median(high - low)) / 2, 2)}"


def _own_noise(stddev: float) -> str:
    """Returns half the width of a 95% interval of a sub-query's noise."""
    return f"±\u00a0{significant(NOISE_Z * stddev, 2)}"


def _busiest(rows: pa.Table, level: str, manifest: Manifest) -> str | None:
    """Returns which zones of a level are the busiest; None where this is not certain, or zones have no names."""
    users, low, high = (np.asarray(rows[name], dtype=np.float64) for name in ("users", "low", "high"))
    if level in INDEXES or not len(users):
        return None
    names = [readable(name) for name in zone_names(rows)]
    ends = ends_at_once(low, high, tail_sums(manifest))
    return busiest_text(names, users, *ends, "users", 0.0, zone_noun(manifest))


def _how_to_read_it(manifest: Manifest, error: str, is_cut: bool, first: list[str]) -> Section:
    """Returns the section.

    error: of a zone of the finest level. is_cut: whether levels are not shown. first: sentences before the others.
    """
    levels, noun = get(manifest, "zones.levels", []), zone_noun(manifest)
    texts = [
        *first,
        _one_zone(noun),
        f"Every count contains random noise, drawn once, including that of an empty {noun}. Negative counts are caused "
        "by noise and are published unchanged, because raising them to zero would bias every total upward. The error "
        f"of a {noun}{' of the finest level' if len(levels) > 1 else ''} is {error} users (95%).",
        f"A {noun} without a colour may be empty: noise could explain its count, with all {noun}s considered.",
        *around_points(manifest),
    ]
    if len(levels) > 1:
        texts.append(
            "Zones of a coarser level are exactly the sums of their parts. The counts of all levels were adjusted to "
            "agree, weighted by their precision."
        )
    if is_cut:
        texts.append(f"Levels of more than {MAX_SHOWN:,} zones are not on this page; {ZONES_FILE} contains all.")
    wide, tall = ground_metres(Region(**manifest["region"]))
    texts.append(f"The {noun}s lie within {length(wide)} × {length(tall)}. Borders are simplified on this page.")
    return Section(title="How to read it", paragraphs=texts)


def _level_table(manifest: Manifest, errors: Mapping[str, str]) -> Section:
    """Returns the table of levels. errors: of a zone of each level, by the level's name."""
    heads = ["Level", "Zones", "Share of the budget", "Own noise, users (95%)", "Error of a zone, users (95%)"]
    levels = get(manifest, "zones.levels", [])
    rows = [
        [
            level_title(level["name"], len(levels)),
            f"{level['zones']:,}",
            f"{level['share']:.1%}" if level["share"] else "not queried",
            "" if level["noise_stddev"] is None else _own_noise(level["noise_stddev"]),
            errors[level["name"]],
        ]
        for level in levels
    ]
    table = Table(title="Table of levels", heads=heads, rows=rows, numeric=[False, True, True, True, True])
    return Section(title="Level by level", table=table)
