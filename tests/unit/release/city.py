"""A city that never was, and the releases that methods make of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Places, Region, interleave
from sfumato.schemas.slots import Slots
from sfumato.schemas.views.map_views import Layer, MapBody
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.heatmap.release import add_up_to, release_files
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.view import heatmap_view
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.seeds import seeded_rng

REGION = {"west": -74.04, "south": 40.68, "east": -73.88, "north": 40.80}


def city_density(side: int = 1024) -> NDArray[np.float64]:
    """A made-up city, float64[side, side], sum 1: centres, suburbs, streets, a river, a bay and a park."""
    y, x = np.mgrid[0:side, 0:side] / side
    density = np.full((side, side), 0.02)
    for cx, cy, spread, weight in (
        (0.47, 0.46, 0.055, 60.0),
        (0.55, 0.56, 0.03, 75.0),
        (0.40, 0.32, 0.035, 30.0),
        (0.71, 0.40, 0.05, 14.0),
        (0.78, 0.72, 0.07, 8.0),
        (0.30, 0.78, 0.06, 10.0),
        (0.18, 0.50, 0.05, 6.0),
        (0.50, 0.50, 0.24, 5.0),
    ):
        density += weight * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * spread**2))
    along, across = (x * 0.92 + y * 0.39) * 26, (y * 0.92 - x * 0.39) * 26
    streets = np.minimum(np.abs(along - np.rint(along)), np.abs(across - np.rint(across))) < 0.07
    density *= np.where(streets, 3.0, 0.75)
    river = np.abs(x - 0.62 - 0.07 * np.sin(5 * y + 0.7) - 0.08 * y) < 0.022 + 0.012 * y
    bay = (x + 0.8 * y) > 1.52
    park = (np.abs(along - 15.6) < 1.1) & (np.abs(across - 7.0) < 2.6)
    density[river | bay] *= 0.002
    density[park] *= 0.03
    return density / density.sum()


@dataclass(frozen=True)
class CityRelease:
    """A method's release of the made-up city: what it was made of, and its files by name."""

    state: CountState
    parameters: CountParameters
    estimate: Estimate
    files: dict[str, bytes]

    @property
    def manifest(self) -> Any:
        return json.loads(self.files["manifest.json"])

    @property
    def page(self) -> str:
        return self.files["index.html"].decode()

    @property
    def layers(self) -> list[Layer]:
        """The page's layers, made of the files."""
        body = heatmap_view(self.files).body
        assert isinstance(body, MapBody)
        return body.layers


def slots_of_cells(cells: NDArray[np.int64], depth: int, slots: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """A slot for each cell: in the west most users are there in the first half of the slots, else in the second."""
    is_west = cells % (1 << depth) < 1 << (depth - 1)
    late = rng.random(len(cells)) < np.where(is_west, 0.2, 0.8)
    return (rng.integers(0, slots - slots // 2, len(cells)) + np.where(late, slots // 2, 0)).astype(np.uint64)


def city_rows(depth: int, users: int, gamma: int | None = None, slots: int = 1, seed: int = 8) -> Rows:
    """Users of the city, each with one location, and with one of the slots if there are several."""
    rng = seeded_rng(seed)
    cells = rng.choice(4**depth, users, p=city_density(1 << depth).ravel())
    codes = interleave((cells % (1 << depth)).astype(np.uint32), (cells >> depth).astype(np.uint32)).astype(np.uint64)
    places = Places(depth, slots)
    hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), users, dtype=np.uint64)) << np.uint64(places.bits)
    if slots > 1:
        codes |= slots_of_cells(cells, depth, slots, rng) << np.uint64(2 * depth)
    return Rows(places, hashes, codes, None if gamma is None else np.full(users, gamma))


def city_release(
    method: str,
    depth: int = 6,
    users: int = 4000,
    slots: Slots | None = None,
    region: Region | None = None,
    **options: Any,
) -> CityRelease:
    """The release that a method makes of users of the city, each with one location, in four shards."""
    values = {"depth": depth, "shard_size": users // 4, "dropout": 0.2, "population": users, **options}
    parameters = heatmap_parameters(method, values, slots=1 if slots is None else len(slots))
    rows = city_rows(depth, users, parameters.distribution_gamma, parameters.slots)
    state = run_in_memory(rows, users, parameters, RunKey.derive(FixedSecret(b"city" * 8), {}))
    stated = parameters.metadata()
    if slots is not None:
        stated["columns"] = LocationColumns(slots=slots).metadata()
    metadata = ReleaseMetadata("heatmap", "made-up", "2026-11-21T00:50:00Z", "operating system", True, stated)
    files = release_files(state, parameters, metadata, Grid(region or Region(**REGION), depth))
    estimate = add_up_to(parameters.method.decode(state, depth), state.users_estimate()[0])
    return CityRelease(state, parameters, estimate, files)
