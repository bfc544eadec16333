"""Made-up releases for tests of the page: five sub-queries of a city that never was, or any method's, and oracles."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region, interleave
from sfumato.transforms.evaluation.in_memory import Rows, run_in_memory
from sfumato.transforms.heatmap.heatmap_options import heatmap_parameters
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.release_files import add_up_to, release_files
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.page import Layer, Rates

REGION = {"west": -74.04, "south": 40.68, "east": -73.88, "north": 40.80}
USERS = 200_000
EPSILONS = (0.012, 0.03, 0.08, 0.2, 0.678)
SHARDS = 20


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


def city_layers(depth: int = 10, start: int = 2) -> list[Layer]:
    """Five sub-queries over the made-up city by a small adaptive quadtree; nodes may be divided in part."""
    rng = np.random.default_rng(20)
    pyramid = {depth: rng.poisson(city_density(1 << depth) * USERS).astype(np.float64)}
    for level in range(depth - 1, -1, -1):
        below = pyramid[level + 1]
        pyramid[level] = below[::2, ::2] + below[1::2, ::2] + below[::2, 1::2] + below[1::2, 1::2]

    tree = {(start, x, y) for x in range(1 << start) for y in range(1 << start)} | {(0, 0, 0)}
    layers, remaining = [], sum(EPSILONS)
    for index, epsilon in enumerate(EPSILONS):
        remaining = max(remaining - epsilon, 0.0)
        stddev = math.sqrt(2 * SHARDS) / epsilon
        count = {node: float(pyramid[node[0]][node[2], node[1]]) for node in tree}
        area = {node: 4 ** (depth - node[0]) for node in tree}
        # Deepest first: each takes what it covers from its nearest ancestor.
        for node in sorted(tree, reverse=True):
            whole, cells = pyramid[node[0]][node[2], node[1]], 4 ** (depth - node[0])
            above = node
            while above[0]:
                above = (above[0] - 1, above[1] >> 1, above[2] >> 1)
                if above in tree:
                    count[above] -= whole
                    area[above] -= cells
                    break
        owners = sorted(node for node in tree if len(_children(node) & tree) < 4)
        noisy = {node: count[node] + rng.laplace(0, epsilon**-1, SHARDS).sum() for node in owners}
        layers.append(
            Layer(
                index=index,
                epsilon=epsilon,
                remaining=remaining,
                stddev=stddev,
                vector_length=len(owners),
                shards=SHARDS,
                shards_lost=1 if index == 2 else 0,
                level=np.array([node[0] for node in owners]),
                x=np.array([node[1] for node in owners]),
                y=np.array([node[2] for node in owners]),
                count=np.array([noisy[node] for node in owners]),
                area=np.array([area[node] for node in owners]),
                cell_id=["r" + _path(*node) for node in owners],
            )
        )
        noise = 2 * math.sqrt(2 * SHARDS) / max(remaining, 1e-9)
        for node in owners:
            if noisy[node] > 14 * noise and node[0] < depth:
                tree |= _children(node)
                if noisy[node] > 300 * noise and node[0] + 2 <= depth:
                    tree |= set().union(*(_children(child) for child in _children(node)))
            elif noisy[node] < 2 * noise and node[0] > start:
                tree.discard(node)
    return layers


def _children(node: tuple[int, int, int]) -> set[tuple[int, int, int]]:
    level, x, y = node
    return {(level + 1, 2 * x + dx, 2 * y + dy) for dx in (0, 1) for dy in (0, 1)}


def _path(level: int, x: int, y: int) -> str:
    return "".join(str(2 * (x >> bit & 1) + (y >> bit & 1)) for bit in reversed(range(level)))


def city_manifest(layers: list[Layer], depth: int = 10, safe: bool = True) -> dict[str, Any]:
    bits = [layer.vector_length * 15 for layer in layers]
    return {
        "release_id": "2026-11-21-made-up-city",
        "job": "heatmap",
        "created": "2026-11-21T00:50:00Z",
        "region": REGION,
        "grid": {"depth": depth, "side": 2**depth},
        "privacy": {
            "unit": "user",
            "adjacency": "two datasets are neighbours when one holds all the records of one more user",
            "epsilon": 1.0,
            "epsilon_spent": 1.0,
            "delta": 0.0,
            "randomness": {"source": "operating system" if safe else "seed", "safe": safe},
            "population": {"source": "public", "users": float(USERS), "epsilon": 0.0, "stddev": 0.0},
            "cohort": {"users": float(USERS), "sampling_rate": 1.0},
            "sub_queries": [
                {
                    "index": layer.index,
                    "epsilon": layer.epsilon,
                    "vector_length": layer.vector_length,
                    "noise_stddev": layer.stddev,
                    "shards": layer.shards,
                    "shards_lost": layer.shards_lost,
                    "modulus": 1 << 15,
                    "bits_per_client": size,
                }
                for layer, size in zip(layers, bits, strict=True)
            ],
            "assumptions": [
                "The server adds up each group's answers without seeing any single one (secure aggregation).",
                "At most 5% of a group's phones drop out or withhold their noise.",
                "The noise key is secret and is never used for another release.",
            ],
        },
        "communication": {
            "vector_entries": sum(layer.vector_length for layer in layers),
            "bits_per_client": sum(bits),
        },
        "parameters": {
            "depth": depth,
            "shard_size": 10000,
            "dropout": 0.05,
            "calibration": 0.1,
            "modulus": "auto",
        },
        "versions": {"sfumato": "0.1.0", "numpy": np.__version__},
        "warnings": [],
    }


DEEPER = 4


def deepened(layer: Layer) -> Layer:
    """The city as one cell of a region 2^4 times wider: a grid of depth 14, finer than the page's bitmaps."""
    extra = 4 ** (10 + DEEPER) - 4**10
    side = np.int64(1) << layer.level
    x, y = layer.x + 7 * side, layer.y + 8 * side
    level = layer.level + DEEPER
    names = ["r" + _path(*node) for node in zip(level.tolist(), x.tolist(), y.tolist(), strict=True)]
    return replace(
        layer,
        level=np.concatenate([[0], level]),
        x=np.concatenate([[0], x]),
        y=np.concatenate([[0], y]),
        count=np.concatenate([[900.0], layer.count]),
        area=np.concatenate([[extra], layer.area]),
        cell_id=["r", *names],
    )


def embedded(text: str) -> Any:
    """What the page's own JSON says."""
    match = re.search(r'<script type="application/json" id="sfumato-data">(.*?)</script>', text, re.DOTALL)
    assert match
    return json.loads(match[1])


def margin(layer: Layer) -> float:
    """95% of the noise: the normal law's 1.96 deviations, and a little more where few shards make it up."""
    return layer.stddev * (1.96 + 0.206 / (layer.shards - layer.shards_lost))


def node_at(layer: Layer, u: float, v: float) -> int:
    """The deepest node that holds (u, v), by looking at every node."""
    side = 2.0**layer.level
    inside = (layer.x <= u * side) & (u * side < layer.x + 1) & (layer.y <= v * side) & (v * side < layer.y + 1)
    return int(np.flatnonzero(inside)[-1])  # levels ascend


@dataclass(frozen=True)
class CityRelease:
    """A method's release of the made-up city: what it was made of, and its files by name."""

    state: HeatmapState
    parameters: HeatmapParameters
    estimate: Estimate
    files: dict[str, bytes]

    @property
    def manifest(self) -> Any:
        return json.loads(self.files["manifest.json"])

    @property
    def page(self) -> str:
        return self.files["index.html"].decode()

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The page's layers as its own JSON has them, lists of numbers as arrays."""
        layers = embedded(self.page)["layers"]
        return [
            {
                name: np.array(value) if isinstance(value, list) and name != "cell_id" else value
                for name, value in layer.items()
            }
            for layer in layers
        ]


def city_release(method: str, depth: int = 6, users: int = 4000, **options: Any) -> CityRelease:
    """The release that a method makes of users of the city, each with one location, in four shards."""
    values = {"depth": depth, "shard_size": users // 4, "dropout": 0.2, "population": users, **options}
    parameters = heatmap_parameters(method, values)
    rng = np.random.default_rng(8)
    cells = rng.choice(4**depth, users, p=city_density(1 << depth).ravel())
    codes = interleave((cells % (1 << depth)).astype(np.uint32), (cells >> depth).astype(np.uint32)).astype(np.uint64)
    hashes = np.sort(rng.integers(0, 1 << (64 - 2 * depth), users, dtype=np.uint64)) << np.uint64(2 * depth)
    gamma = parameters.distribution_gamma
    rows = Rows(Places(depth), hashes, codes, None if gamma is None else np.full(users, gamma))
    state = run_in_memory(rows, users, parameters, RunKey.derive(FixedSecret(b"city" * 8), {}))
    metadata = ReleaseMetadata(
        "heatmap", "made-up", "2026-11-21T00:50:00Z", "operating system", True, parameters.metadata()
    )
    files = release_files(state, parameters, metadata, Grid(Region(**REGION), depth))
    estimate = add_up_to(parameters.method.decode(state, depth), state.users_estimate()[0])
    return CityRelease(state, parameters, estimate, files)


HOTSPOT = (0.40, 0.32)  # of the rate, from the north-west


def posterior_layer(users: float = USERS, depth: int = 10, most: float = 60.0, names: tuple[str, ...] = ()) -> Layer:
    """The city as an estimator would publish it: fine cells of very different deviation, and rates of `names`.

    Cells divide until at most `most` users are in one. The first category gathers at HOTSPOT.
    """
    rng = np.random.default_rng(21)
    expected = city_density(1 << depth) * users
    y, x = (np.mgrid[0 : 1 << depth, 0 : 1 << depth] + 0.5) / (1 << depth)
    near = np.exp(-((x - HOTSPOT[0]) ** 2 + (y - HOTSPOT[1]) ** 2) / (2 * 0.05**2))
    pyramid = {depth: np.stack([expected, expected * (0.06 + 0.4 * near)])}
    for level in range(depth - 1, -1, -1):
        pyramid[level] = pyramid[level + 1].reshape(2, 1 << level, 2, 1 << level, 2).sum(axis=(2, 4))
    found, open_nodes = [], np.zeros((1, 2), np.int64)
    for level in range(depth + 1):
        divided = (pyramid[level][0][open_nodes[:, 1], open_nodes[:, 0]] > most) & (level < depth) | (level < 2)
        found.append(np.column_stack([np.full((~divided).sum(), level), open_nodes[~divided]]))
        below = 2 * open_nodes[divided][:, None, :] + np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
        open_nodes = below.reshape(-1, 2)
    nodes = np.concatenate(found)
    level, x, y = nodes.T
    mean, share = (np.array([pyramid[d][k][v, u] for d, u, v in nodes.tolist()]) for k in (0, 1))
    noise, spread = 12.0, 0.5 * mean  # of the answers; of what a model would have expected
    deviation = 1 / np.sqrt(1 / noise**2 + 1 / np.maximum(spread, 1e-3) ** 2)
    count = np.maximum(mean + deviation * np.clip(rng.standard_normal(len(mean)), -2, 2) * 0.7, 0)
    rates = None
    if names:
        rest = (mean - share) * (np.arange(1, len(names)) / max(sum(range(1, len(names))), 1))[:, None]
        true = np.vstack([share, rest]) / np.maximum(mean, 1e-9)
        known = np.maximum(rng.poisson(mean), 1)
        wide = 1.96 * np.sqrt(true * (1 - true) / known + 2 * (noise / 4 / known) ** 2)
        rate = np.clip(true + wide / 1.96 * rng.standard_normal(true.shape), 0, 1)
        rate[:, known < 8] = np.nan
        low, high = np.maximum(rate - wide, 0), np.minimum(rate + wide, 1)
        ends = np.where(low > 0.25, low - 0.05, np.nan), np.where(low > 0.25, np.minimum(high + 0.05, 1), np.nan)
        rates = Rates(list(names), rate, low, high, np.stack([0.99 * rate, *ends], axis=1))
    return Layer(
        index=2,
        epsilon=1.0,
        remaining=0.0,
        stddev=float(np.median(deviation)),
        vector_length=len(nodes),
        shards=SHARDS,
        shards_lost=0,
        level=level,
        x=x,
        y=y,
        count=count,
        area=4 ** (depth - level),
        cell_id=["r" + _path(*node) for node in nodes.tolist()],
        deviations=deviation,
        combined=True,
        rates=rates,
    )
