"""Users of zones from a published heatmap: how often the stated intervals hold the truth, and the errors.

    SFUMATO_DATA=... python -m benchmarks.release_zones [--keys 12] [--maps cabs,manhattan,city,tokyo]
                                                        [--users 10000,100000,1000000] [--trust central]
                                                        [--depth 10]

Each key draws users without replacement from a map's points and makes a heatmap at epsilon 1 with the default method,
in memory. A map of pixels has one point a user, at a random place in its pixel. The truth is the number of users whose
counted location is in a zone.

Zones: `tracts`, 300 Voronoi cells of random users; `h3 ~N`, H3 cells of the resolution with about N of them in the
region; `strips`, 100 lines between random users, a hundredth of the region's side wide; `in a cell`, 200 polygons at
random places inside finest known cells, 0.2 to 0.8 of their sides wide. The cells are those of random users; `shores`,
30 Voronoi cells of random users, each in two zones: where the map's smoothed density is high, with 90% of its users,
and the rest; `districts`, of the synthetic city's own map, between shores, parks and avenues.

- covered: shares of zones, of zones that hold somebody, and of these weighted by their users, whose 95% interval holds
  the truth, in per cent. noise alone: of zones that hold somebody, with the deviation of the noise alone, which is
  the lower bound that `Release.total` states where an area cuts cells.
- independent: of all zones, with errors of cut cells that are independent (without border errors).
- error: root mean square error in users; stated: of the deviations; counts: error of the area's share of `count`,
  which is shrunk and has no deviation of its own for sums.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import shapely
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from benchmarks.city_people import make_people
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Places, Region, area_km2
from sfumato.schemas.tree import node_positions
from sfumato.transforms.counting.estimator import unbiased_counts
from sfumato.transforms.counting.methods import Adaptive
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.geo.cell_indexes import INDEXES, index_cells
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret
from sfumato.transforms.statistics.posterior.unbiased import learn_within_cells, user_intervals
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.synth.city_map import city_geojson
from sfumato.transforms.zones.area_estimates import estimate_areas

MAPS = ("cabs", "manhattan", "city", "tokyo")
_CABS, _TOKYO = Region(-122.51, 37.70, -122.35, 37.82), Region(139.47, 35.51, 139.91, 35.87)
_MANHATTAN = Region(-74.03, 40.69, -73.90, 40.80)  # of a synthetic map without a place of its own
_PIXELS = 150  # along a side of the map whose density is smoothed for `shores`
_SIZES = (0, 1, 10, 100, 1000, 1_000_000)
Points = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass
class Found:
    """Per zone: the truth, the estimate with its deviation and interval, the noise alone, and summed counts."""

    truth: list[NDArray[np.float64]] = field(default_factory=list)
    users: list[NDArray[np.float64]] = field(default_factory=list)
    stddev: list[NDArray[np.float64]] = field(default_factory=list)
    low: list[NDArray[np.float64]] = field(default_factory=list)
    high: list[NDArray[np.float64]] = field(default_factory=list)
    noise: list[NDArray[np.float64]] = field(default_factory=list)
    counts: list[NDArray[np.float64]] = field(default_factory=list)
    independent_low: list[NDArray[np.float64]] = field(default_factory=list)
    independent_high: list[NDArray[np.float64]] = field(default_factory=list)

    def rows(self, label: list[str], by_size: bool) -> list[list[str]]:
        """Lines of the table: for all zones, or for each class of true users."""
        truth, users, stddev, low, high, noise, counts, independent_low, independent_high = (
            np.concatenate(one) for one in vars(self).values()
        )
        independent = (independent_low <= truth) & (truth <= independent_high)
        covered, bare_low, bare_high = (low <= truth) & (truth <= high), *user_intervals(users, noise)
        bare = (bare_low <= truth) & (truth <= bare_high)

        def line(name: list[str], of: NDArray[np.bool_]) -> list[str]:
            here = of & (truth > 0)
            shares = [covered[of].mean(), covered[here].mean() if here.any() else np.nan]
            shares += [np.average(covered[of], weights=truth[of]) if here.any() else np.nan]
            shares += [bare[here].mean() if here.any() else np.nan, independent[of].mean()]
            errors = [np.sqrt(np.mean((one - truth)[of] ** 2)) for one in (users, counts)]
            mean = np.sqrt(np.mean(stddev[of] ** 2))
            numbers = [f"{100 * one:.1f}" for one in shares]
            return [*name, f"{of.sum():,}", *numbers, *(f"{one:.2f}" for one in (errors[0], mean, errors[1]))]

        if not by_size:
            return [line(label, np.ones(len(truth), dtype=bool))]
        classes = [(low, high, (truth >= low) & (truth < high)) for low, high in itertools.pairwise(_SIZES)]
        names = [f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}" for low, high, _ in classes]
        names[-1] = f"{_SIZES[-2]:,} and more"
        return [line([*label, name], of) for name, (*_, of) in zip(names, classes, strict=True) if of.any()]


def load(name: str, key: int) -> tuple[Region, Points]:
    """A map's region, and points of which users are drawn: longitudes and latitudes."""
    if name == "manhattan":
        image = np.load(Path(os.environ["SFUMATO_DATA"]) / "manhattan_like_1024x1024.npy").ravel().astype(np.float64)
        rng = np.random.default_rng([key, 1])
        row, column = np.divmod(rng.choice(len(image), 1_500_000, p=image / image.sum()), 1024)
        x, y = ((one + rng.random(len(one))) / 1024 for one in (column, row))
        region = _MANHATTAN
        longitude = region.west + x * (region.east - region.west)
        return region, (longitude, region.north - y * (region.north - region.south))
    if name == "city":
        people, region = make_people(0, 1_200_000, city=build_city()), PENUMBRA
    elif name == "cabs":
        people, region = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "sf_cabs_starts.parquet"), _CABS
    else:
        table = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "foursquare_tokyo_checkins.parquet").to_pandas()
        people, region = table.sample(frac=1.0, random_state=key).drop_duplicates("user_id"), _TOKYO
    longitude, latitude = np.asarray(people["longitude"], float), np.asarray(people["latitude"], float)
    here = region.holds(longitude, latitude)
    return region, (longitude[here], latitude[here])


def zones_of(region: Region, points: Points, rng: np.random.Generator) -> dict[str, NDArray[np.object_]]:
    """Zones by kind, but those inside cells."""
    box = shapely.box(region.west, region.south, region.east, region.north)
    chosen = rng.choice(len(points[0]), 500)
    at = np.column_stack(points)[chosen]
    tracts = shapely.get_parts(shapely.voronoi_polygons(shapely.multipoints(at[:300]), extend_to=box))
    side = min(region.east - region.west, region.north - region.south)
    lines = shapely.linestrings(np.stack([at[300:400], at[400:500]], axis=1))
    found = {
        "tracts": shapely.intersection(tracts, box),
        "strips": shapely.intersection(shapely.buffer(lines, 0.005 * side, cap_style="flat"), box),
    }
    size = float(area_km2(*(np.array([one]) for one in (region.west, region.south, region.east, region.north)))[0])
    for many in (50, 500, 5000):
        resolution = INDEXES["h3"].resolution(size / many, region.north)
        found[f"h3 ~{many}"] = index_cells("h3", resolution, region)[1]
    return found


def inside_cells(bounds: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.object_]:
    """A pentagon at a random place in each of some rectangles float64[4, n], 0.2 to 0.8 of their sides wide."""
    west, south, east, north = bounds[:, :, None]
    size = rng.uniform(0.2, 0.8, (len(west), 1))
    turn = rng.uniform(0, 2 * np.pi, (len(west), 1)) + np.arange(5) * 2 * np.pi / 5
    x = rng.uniform(size / 2, 1 - size / 2) + size / 2 * np.cos(turn)
    y = rng.uniform(size / 2, 1 - size / 2) + size / 2 * np.sin(turn)
    return np.asarray(shapely.polygons(np.stack([west + x * (east - west), south + y * (north - south)], axis=2)))


def shores(region: Region, points: Points, rng: np.random.Generator) -> NDArray[np.object_]:
    """Zones whose borders follow steep changes of the density of a map's points: multipolygons."""
    box = shapely.box(region.west, region.south, region.east, region.north)
    spans = [[region.west, region.east], [region.south, region.north]]
    density = gaussian_filter(np.histogram2d(*points, bins=_PIXELS, range=spans)[0], 1.0)
    ordered = np.sort(density, axis=None)[::-1]
    column, row = np.nonzero(density > ordered[np.searchsorted(ordered.cumsum() / ordered.sum(), 0.9)])
    width, height = ((end - start) / _PIXELS for start, end in spans)
    west, south = region.west + column * width, region.south + row * height
    dense = shapely.union_all(shapely.box(west, south, west + width, south + height))
    dense = dense.buffer(0.4 * width).buffer(-0.8 * width).buffer(0.4 * width)  # fewer steps along the pixels
    at = np.column_stack(points)[rng.choice(len(points[0]), 30, replace=False)]
    wards = shapely.get_parts(shapely.voronoi_polygons(shapely.multipoints(at), extend_to=box))
    wards = shapely.intersection(wards, box)
    found = np.concatenate([shapely.intersection(wards, dense), shapely.difference(wards, dense)])
    parts, owner = shapely.get_parts(found, return_index=True)
    kept = shapely.area(parts) > 0
    return np.asarray(shapely.multipolygons(parts[kept], indices=np.unique(owner[kept], return_inverse=True)[1]))


def measure(name: str, users: int, trust: str, depth: int, keys: int) -> tuple[dict[str, Found], float]:
    """What was found by kind of zones, and the mean seconds of an estimate of 300 tracts."""
    found: dict[str, Found] = {}
    spent = 0.0
    for key in range(keys):
        rng = np.random.default_rng([key, users])
        region, everybody = load(name, key)
        chosen = rng.permutation(len(everybody[0]))[:users]
        points = (everybody[0][chosen], everybody[1][chosen])
        grid = Grid(region, depth)
        codes, places = grid.codes(*points), Places(depth)
        many = len(codes)
        hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), many, dtype=np.uint64)) << np.uint64(places.bits)
        parameters = CountParameters(depth=depth, population=many, epsilon=1.0, method=Adaptive(), trust=trust)
        run_key = RunKey.derive(seed_secret(key), {"benchmark": "release zones", "users": users})
        state = run_in_memory(Rows(places, hashes, codes), many, parameters, run_key)
        estimate = parameters.method.decode(state, depth)
        unbiased = unbiased_counts(estimate, state)
        began = time.perf_counter()
        within = learn_within_cells(unbiased, estimate.counts, estimate.stddev**2)
        kinds = zones_of(region, points, rng)
        owner = unbiased.full.tree.index.owners(codes)
        some = rng.choice(many, 200)
        leaf, x, y = node_positions(unbiased.full.tree.entries[owner[some]])
        kinds["in a cell"] = inside_cells(np.stack(grid.bounds(x, y, leaf)), rng)
        kinds["shores"] = shores(region, everybody, rng)
        if name == "city":
            features = json.loads(city_geojson(region))["features"]
            districts = [one["geometry"] for one in features if one["properties"].get("boundary") == "district"]
            kinds["districts"] = np.array([shapely.from_geojson(json.dumps(one)) for one in districts])
        located = shapely.STRtree(shapely.points(*points))
        for kind, shapes in kinds.items():
            one = found.setdefault(kind, Found())
            zone, _ = located.query(shapes, predicate="contains")
            one.truth.append(np.bincount(zone, minlength=len(shapes)).astype(np.float64))
            began = time.perf_counter()
            ours, without = (
                estimate_areas(grid, unbiased, within, shapes, borders=borders) for borders in (True, False)
            )
            spent += (time.perf_counter() - began) / 2 * (kind == "tracts")
            one.users.append(ours.users)
            one.stddev.append(ours.stddev)
            for ends, values in zip((one.low, one.high), ours.intervals(), strict=True):
                ends.append(values)
            one.noise.append(np.sqrt(ours.noise_variance))
            for part, values in zip((one.independent_low, one.independent_high), without.intervals(), strict=True):
                part.append(values)
            shrunk = unbiased.full.by_level(estimate.counts)
            counted = type(unbiased)(unbiased.full, shrunk, unbiased.measured_variance, unbiased.total_variance)
            one.counts.append(estimate_areas(grid, counted, within, shapes, borders=False).users)
    return found, spent / keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=12)
    parser.add_argument("--maps", default=",".join(MAPS))
    parser.add_argument("--users", default="10000,100000,1000000")
    parser.add_argument("--trust", default="secagg")
    parser.add_argument("--depth", type=int, default=10)
    options = parser.parse_args()
    rows, totals = [], dict[str, Found]()
    for name in options.maps.split(","):
        largest = {"tokyo": 1_467, "cabs": 200_000}.get(name, 10**9)
        for users in sorted({min(int(one), largest) for one in options.users.split(",")}):
            found, seconds = measure(name, users, options.trust, options.depth, options.keys)
            print(f"{name}, {users:,}: {seconds:.2f} s for 300 tracts", file=sys.stderr)
            for kind, one in found.items():
                rows += one.rows([f"{name}, {users:,}", kind], False)
                print(rows[-1], file=sys.stderr)
                total = totals.setdefault(kind, Found())
                for attribute in vars(total):
                    getattr(total, attribute).extend(getattr(one, attribute))
    heads = [
        "number",
        "covered",
        "populated",
        "by user",
        "noise alone",
        "independent",
        "error",
        "stated",
        "counts",
    ]
    sizes = [line for kind, one in totals.items() for line in one.rows([kind], True)]
    print(f"{options.keys} keys")
    for first, lines in ((["map, users", "zones"], rows), (["zones", "true users"], sizes)):
        print(f"\n{markdown_table([[*first, *heads], *lines], left=(0, 1))}", end="")


if __name__ == "__main__":
    main()
