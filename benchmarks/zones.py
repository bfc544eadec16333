"""Errors of nested zones by how the budget is divided over levels, and the time of `sfumato zones` beside a heatmap.

    python -m benchmarks.zones [--keys 100] [--data bench_data] [--sizes 54.6] [--repeats 1]

The zones are 2,500 Voronoi cells of random points over the synthetic city, in 60 and in 6 larger ones. Errors: of all
zones of a level over all keys, of the published numbers, in users; the share of the 95% intervals that hold the exact
number. With --sizes, in millions of users, times are measured too, on logs of `benchmarks.speed`, made if missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray

from benchmarks.city_people import make_people
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.speed import MODES, REGION, data_set, watch
from sfumato.schemas.region import Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.geo.zone_file import ZoneLevel, Zones
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.zones.plan import ZoneLevels, level_shares
from sfumato.transforms.zones.release import zone_counts

SIZES = (2_500, 60, 6)
EPSILON, POPULATION_SHARE = 1.0, 0.002
GOAL_STDDEV, GOAL_SECONDS = 1.36, 5.0
USERS = 100_000


def tracts(seed: int = 1) -> Zones:
    """Voronoi cells in two coarser levels: each is in the nearest of 60 counties, these in the nearest of 6 states."""
    rng = np.random.default_rng(seed)
    west, south, east, north = REGION
    points = [rng.uniform([west, south], [east, north], (size, 2)) for size in SIZES]
    frame = shapely.box(*REGION)
    cells = shapely.get_parts(shapely.voronoi_polygons(shapely.multipoints(points[0]), extend_to=frame, ordered=True))
    geometries = np.empty(SIZES[0], dtype=object)
    geometries[:] = list(shapely.intersection(cells, frame))
    levels = []
    for name, (finer, coarser) in zip(("county", "state"), itertools.pairwise(points), strict=True):
        distance = ((finer[:, None] - coarser[None]) ** 2).sum(axis=2)
        distance[np.arange(len(coarser)), np.arange(len(coarser))] = -1  # no coarser zone is empty
        ids = tuple(f"{name}{number}" for number in range(len(coarser)))
        levels.append(ZoneLevel(name, ids, distance.argmin(axis=1)))
    return Zones(tuple(map(str, range(SIZES[0]))), geometries, "tract", tuple(levels), "Voronoi cells")


def write_geojson(zones: Zones, path: Path) -> None:
    """The zones as a file of polygons with their tract."""
    features = [
        {"type": "Feature", "properties": {"tract": one}, "geometry": json.loads(shapely.to_geojson(shape))}
        for one, shape in zip(zones.ids, zones.geometries, strict=True)
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))


def errors(zones: Zones, codes: NDArray[np.uint64], shares: tuple[float, ...], keys: int) -> list[tuple[float, ...]]:
    """For each level the root mean square error, the stated deviation, and the share of intervals that hold."""
    depth = ZoneLocator(zones).depth
    method = ZoneLevels(zones, shares)
    parameters = CountParameters(
        depth=depth,
        trust="central",
        epsilon=EPSILON,
        population_share=POPULATION_SHARE,
        shard_size=1 << 20,
        method=method,
    )
    places = Places(depth)
    hashes = keyed_hash(bytes(16), np.arange(len(codes))) & ~places.mask
    order = np.argsort(hashes)
    rows = Rows(places, hashes[order], codes[order])
    exact = [np.bincount(ancestor[codes.astype(np.int64)], minlength=size) for ancestor, size in zip(
        zones.ancestors, SIZES, strict=True)]  # fmt: skip
    found = np.zeros((len(SIZES), 3))
    for number in range(keys):
        key = RunKey.derive(FixedSecret(b"benchmark of zones" * 2), {"number": number})
        state = run_in_memory(rows, len(codes), parameters, key)
        counts = zone_counts(state, method)
        for level, truth in enumerate(exact):
            users, variance = counts.levels[level].counts[0], counts.levels[level].variance
            held = (counts.low[level] <= truth) & (truth <= counts.high[level])
            found[level] += [((users - truth) ** 2).mean(), variance.mean(), held.mean()]
    found /= keys
    return [(float(np.sqrt(square)), float(np.sqrt(variance)), float(held)) for square, variance, held in found]


def error_table(keys: int) -> str:
    """The table of errors by division of the budget."""
    zones = tracts()
    people = make_people(0, USERS, city=build_city())
    zone = ZoneLocator(zones).zone_of(people["longitude"].to_numpy(), people["latitude"].to_numpy())
    codes = zone[zone >= 0].astype(np.uint64)
    budget = EPSILON * (1 - POPULATION_SHARE)
    divisions: dict[str, Callable[[], tuple[float, ...]]] = {
        "finest alone": lambda: (1.0, 0.0, 0.0),
        "equal (Hay et al. 2010)": lambda: (1 / 3, 1 / 3, 1 / 3),
        "`sfumato zones`": lambda: level_shares(SIZES, LAPLACE, budget),
    }
    lines = [["division of ε", "level", "zones", "share", "error, users", "stated", "intervals hold", "goal"]]
    for name, shares_of in divisions.items():
        shares = shares_of()
        for level, (error, stated, held) in enumerate(errors(zones, codes, shares, keys)):
            goal = f"{GOAL_STDDEV}" if name == "finest alone" and level == 0 else ""
            lines.append(
                [
                    name,
                    zones.level_names[level],
                    f"{SIZES[level]:,}",
                    f"{shares[level]:.1%}",
                    f"{error:.3f}",
                    f"{stated:.3f}",
                    f"{held:.1%}",
                    goal,
                ]
            )
    return markdown_table(lines, left=(0, 1))


def time_table(data: Path, sizes: list[float], repeats: int) -> str:
    """The table of seconds of whole commands, heatmap and zones by turns."""
    lines = [["users", "mode", "heatmap, s", "zones, s", "difference, s", "goal, s", "peak, MB"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tracts.geojson"
        write_geojson(tracts(), path)
        region = ",".join(map(str, REGION))
        for millions in sizes:
            logs = ["--input", f"{data_set(data, millions)}/*.parquet", "--epsilon", "1", "--runner_config"]
            for mode, runner in list(MODES.items())[1:]:
                seconds: list[tuple[float, float]] = []
                peak = 0
                for _ in range(repeats):
                    _, by_cell, _ = watch("heatmap", *logs, runner, "--region", region, "--depth", "10")
                    _, by_zone, peak = watch("zones", *logs, runner, "--zones", str(path), "--id_column", "tract")
                    seconds.append((by_cell, by_zone))
                cell, zone = np.median(seconds, axis=0)
                lines.append(
                    [
                        f"{millions * 1e6:,.0f}",
                        mode,
                        f"{cell:.1f}",
                        f"{zone:.1f}",
                        f"{zone - cell:+.1f}",
                        f"{GOAL_SECONDS:g}",
                        f"{peak / 1e6:,.0f}",
                    ]
                )
    return markdown_table(lines, left=(1,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--sizes", default="")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    print(error_table(given.keys))
    if given.sizes:
        print(time_table(given.data, [float(one) for one in given.sizes.split(",")], given.repeats))


if __name__ == "__main__":
    main()
