"""The page of a release of zones as a view, made of its published files alone. Pure."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.known_digits import Z, about
from sfumato.schemas.region import Region, area_km2, ground_metres
from sfumato.schemas.release import MANIFEST_FILE, RATES_PICTURE, ZONES_FILE, ZONES_PICTURE
from sfumato.schemas.trust import Trust
from sfumato.schemas.views import Bounds, FileLink, Geography, Layer, MapBody, PageView, Path, Section, Table
from sfumato.transforms.heatmap.count_measures import count_measure, rate_measures, rate_names
from sfumato.transforms.report.numbers import length, plural
from sfumato.transforms.report.scales import density_scale
from sfumato.transforms.report.sections import (
    Manifest,
    alarm,
    chips,
    facts,
    get,
    guarantee,
    is_safe,
    noisy_sums,
    number,
    problems,
)
from sfumato.transforms.text_tables import significant

MAX_SHOWN = 20_000  # zones of a level; a level with more is not on the page
_MOST_POINTS = 150_000  # of the borders of a level
_RESOLUTION = 2048  # of the region's longer side: finer parts of a border are left out
_INDEXES = {"h3": "H3 cells", "quadkey": "Quadkey tiles"}
_FILES = {
    ZONES_FILE: "one row for each zone of each level: estimated users with their intervals, density, rates, polygon",
    ZONES_PICTURE: "the map of users as a picture",
    RATES_PICTURE: "the map of the rate as a picture",
    MANIFEST_FILE: "the guarantee, every parameter, every version",
}


def zones_view(files: Mapping[str, bytes]) -> PageView:
    """The page of a release of `sfumato zones`.

    Args:
        files: the release's files by name. Those that the page is not made of may be missing.
    """
    manifest = {name: entry for name, entry in json.loads(files[MANIFEST_FILE]).items() if name != "files"}
    geography = Geography.of(files)
    region = Region(**manifest["region"])
    table = pq.read_table(io.BytesIO(files[ZONES_FILE]))
    levels = get(manifest, "zones.levels", [])
    shown = [level for level in levels if level["zones"] <= MAX_SHOWN]
    body = MapBody(
        region=Bounds(**manifest["region"]),
        depth=0,
        layers=[_layer(table, level, manifest, region) for level in reversed(shown)],
        missing="No zone here.",
        finest_metres=finest_metres(np.asarray(table["area"]), region),
    )
    users, deviation = (number(manifest, f"results.{name}") or 0.0 for name in ("users", "users_stddev"))
    some = about(users, max(deviation, users / 200))
    zones = plural(levels[0]["zones"], "zone")
    headline = f"About {some} users in {zones}" + (", no one in particular" if is_safe(manifest) else "")
    if users < Z * deviation:
        most = about(max(users, 0) + Z * deviation, deviation)
        headline = f"Fewer than {most} users in {zones}, too few to tell from none"
    pictures = (ZONES_PICTURE, *([RATES_PICTURE] if rate_names(manifest, one=True) else []))
    return PageView(
        title="Users by zone",
        headline=headline,
        description=f"How many users are in each of {zones}, without exposing anyone.",
        job="zones",
        release_id=manifest["release_id"],
        created=manifest["created"],
        chips=chips(manifest, *facts(("Zones", _sizes(levels)), ("Error of a zone", _typical(levels[0])))),
        guarantee=guarantee(manifest),
        alarm=alarm(manifest),
        problems=problems(manifest),
        files=[FileLink(name=name, description=text) for name, text in _FILES.items() if name in {*files, *pictures}],
        picture=ZONES_PICTURE,
        sections=[
            _how_to_read_it(manifest, len(shown) < len(levels)),
            _how_it_was_made(manifest),
            _level_table(manifest),
        ],
        timeline=get(manifest, "timeline"),
        manifest=manifest,
        basemap=geography.basemap,
        tiles=geography.tiles,
        body=body,
    )


def _layer(table: pa.Table, level: Mapping[str, Any], manifest: Manifest, region: Region) -> Layer:
    """The zones of a level, with their users and rates."""
    rows = table.filter(pc.equal(table["level"], level["name"]))
    users, stddev, low, high, areas = (
        np.asarray(rows[name], dtype=np.float64) for name in ("users", "stddev", "low", "high", "area")
    )
    seen = np.maximum(users, 0)
    weight = seen * np.minimum(seen / np.maximum(1.96 * stddev, 1e-12), 1) ** 2
    scale = density_scale(seen / areas, weight)
    sums = noisy_sums((get(manifest, "privacy.sub_queries") or [{}])[-1])
    whole = float(area_km2(*(np.array([side]) for side in (region.west, region.south, region.east, region.north)))[0])
    return Layer(
        title=_title(level),
        note=f"{plural(level['zones'], 'zone')}. The users of each are known to "
        f"±\u00a0{significant(Z * level['stddev'], 2)} (95%, for a zone by itself).",
        level=[0] * len(rows),
        x=[0] * len(rows),
        y=[0] * len(rows),
        area=[float(f"{area / whole:.6g}") for area in areas.tolist()],
        cell_id=[readable(one) for one in rows["zone"].to_pylist()],
        measures=[
            count_measure(users, stddev, low, high, scale, (areas, sums), "zone"),
            *rate_measures(rows, manifest, "zone"),
        ],
        shapes=simple_paths(shapely.from_wkb(rows["geometry"].to_numpy(zero_copy_only=False)), region),
    )


def simple_paths(shapes: NDArray[np.object_], region: Region) -> list[list[Path]]:
    """The rings of each zone, those of its holes among them, simplified to what a page can show.

    Borders that two zones share stay shared where the file draws them with the same points.
    """
    longer = max(region.east - region.west, region.north - region.south)
    is_coverage, step = bool(shapely.coverage_is_valid(shapes)), longer / _RESOLUTION
    while True:
        simple = (
            shapely.coverage_simplify(shapes, step / 2)
            if is_coverage
            else shapely.simplify(shapes, step / 2, preserve_topology=True)
        )
        if shapely.get_num_coordinates(simple).sum() <= _MOST_POINTS or step > longer / 16:
            break
        step *= 2
    digits = max(math.ceil(1 - math.log10(longer / _RESOLUTION)), 0)
    found = []
    for shape in simple:
        points = [
            np.round(shapely.get_coordinates(ring), digits) for ring in shapely.get_rings(shapely.get_parts(shape))
        ]
        found.append([[(x, y) for x, y in ring.tolist()] for ring in points])
    return found


def finest_metres(areas: NDArray[np.float64], region: Region) -> tuple[float, float]:
    """How exactly places are written and how far a reader can zoom in: a tenth of the side of the smallest zone.

    Args:
        areas: of the zones, square kilometres.
        region: that holds them.
    """
    wide, tall = ground_metres(region)
    side = 100 * math.sqrt(max(float(areas.min(initial=np.inf)), 1e-6))
    return min(side, wide), min(side, tall)


def _title(level: Mapping[str, Any]) -> str:
    """What the zones of a level are called."""
    name = str(level["name"])
    return _INDEXES.get(name, readable(name))


def _typical(level: Mapping[str, Any]) -> str:
    return f"± {significant(Z * level['stddev'], 2)} users (95%)"


def _sizes(levels: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{_title(level)}: {level['zones']:,}" for level in levels)


def _how_to_read_it(manifest: Manifest, is_cut: bool) -> Section:
    levels = get(manifest, "zones.levels", [])
    texts = [
        "Every count carries random noise, drawn once, also that of an empty zone. A count below zero is noise too; it "
        f"is left as it came, because raising it to zero would tilt every total upward. {_typical(levels[0])} is the "
        "error of a zone of the finest level.",
        "A hatched zone may be empty: noise could explain its count.",
    ]
    if len(levels) > 1:
        texts.append(
            "Zones of a coarser level are exactly the sums of their parts. The counts of all levels were made to "
            "agree: the surer a count, the more it weighs."
        )
    if is_cut:
        texts.append(f"Levels of more than {MAX_SHOWN:,} zones are not on this page; {ZONES_FILE} has all.")
    wide, tall = ground_metres(Region(**manifest["region"]))
    texts.append(f"The zones lie within {length(wide)} × {length(tall)}. Borders are simplified on this page.")
    return Section(title="How to read it", paragraphs=texts)


def _how_it_was_made(manifest: Manifest) -> Section:
    queries = get(manifest, "privacy.sub_queries", [])
    central = get(manifest, "privacy.trust") == Trust.CENTRAL
    groups = plural(get(manifest, "privacy.cohort.shards") or 1, "group")
    texts = [
        f"Every user reports one zone of each level that was asked, in "
        f"{plural(len(queries), 'sub-query', 'sub-queries')}. The list of zones is public, so it says nothing about "
        "anyone.",
        "A trusted curator saw the exact sums and added noise to each once."
        if central
        else f"Users answered in {groups}. A group's sum has its noise before anyone sees it.",
    ]
    return Section(title="How it was made", paragraphs=texts)


def _level_table(manifest: Manifest) -> Section:
    heads = ["Level", "Zones", "Share of the budget", "Own noise, users (95%)", "Error of a zone, users (95%)"]
    rows = [
        [
            _title(level),
            f"{level['zones']:,}",
            f"{level['share']:.1%}" if level["share"] else "not asked",
            "" if level["noise_stddev"] is None else f"± {significant(Z * level['noise_stddev'], 2)}",
            f"± {significant(Z * level['stddev'], 2)}",
        ]
        for level in get(manifest, "zones.levels", [])
    ]
    table = Table(title="Table of levels", heads=heads, rows=rows, numeric=[False, *[True] * (len(heads) - 1)])
    return Section(title="Level by level", table=table)
