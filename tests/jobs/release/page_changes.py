"""Changes between nights that the page's script must find: pairs of maps, and an oracle that works pixel by pixel.

Run as a module, it writes web/test/changes.json, which the script's own tests read.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng
from scipy.integrate import quad
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import erfc, gammaln
from scipy.stats import false_discovery_control

from sfumato.schemas.tree import Tree, node_names
from sfumato.schemas.views.flow_views import NightMap
from sfumato.transforms.release.timeline_view import night_map
from tests import ROOT
from tests.jobs.release.test_timeline_view import a_release, a_tree, owners, read

FILE = ROOT / "web" / "test" / "changes.json"
DEPTH = 4
SUMS = (3, 12)  # noisy sums of each night


def a_pair(seed: int) -> list[tuple[Tree, NightMap]]:
    """Two nights of trees that differ a little; in the second, more people are in a few places."""
    rng, found = default_rng([5, seed]), []
    weight = rng.gamma(0.3, 1.0, (1 << DEPTH, 1 << DEPTH))
    first = a_tree(seed, DEPTH).nodes
    for number, sums in enumerate(SUMS):
        full = Tree.uniform(DEPTH, 2).nodes if seed else first[:1]
        shared = first[rng.random(len(first)) < 0.85]
        tree = Tree.of(DEPTH, np.concatenate([shared, full[rng.random(len(full)) < 0.9]]))
        owner = owners(tree)
        weight = np.where(rng.random(weight.shape) < 0.05 * number, 5 * weight + weight.mean(), weight)
        people = rng.poisson((6_000 + 2_000 * number) * weight / weight.sum())
        stddev = rng.uniform(1, 6, len(tree.entries))
        count = np.bincount(owner.ravel(), people.ravel(), len(stddev)) + stddev * rng.standard_normal(len(stddev))
        shards = {"privacy": {"sub_queries": [{"shards": sums + 1, "shards_lost": 1}]}}
        with tempfile.TemporaryDirectory() as folder:
            release = a_release(Path(folder), DEPTH, node_names(tree.entries), count, stddev, **shards)
            found.append((tree, read(night_map(f"2026-11-{19 + number}", release))))
    return found


def changes(pair: list[tuple[Tree, NightMap]]) -> list[list[Any]]:
    """Rows [pixel, pixels, share before, share after, z, q or None] of the smallest areas that are cells of both.

    pixel: number of the first pixel, by row; pixels: how many there are.
    """
    owner = [owners(tree).ravel() for tree, _ in pair]
    links = coo_array((np.ones(len(owner[0])), tuple(owner)), shape=[len(tree.entries) for tree, _ in pair])
    sides = links.shape
    joined = coo_array((links.data, (links.row, links.col + sides[0])), shape=(sum(sides), sum(sides)))
    areas = np.unique(connected_components(joined, directed=False)[1][owner[0]], return_inverse=True)[1]
    users, variance = [], []
    for own, (tree, night) in zip(owner, pair, strict=True):
        row = {name: i for i, name in enumerate(night.layer.cell_id)}
        rows = [row.get(name, -1) for name in node_names(tree.entries)]  # cells without an area are not there
        of_cell = dict(zip(own.tolist(), areas.tolist(), strict=True))
        total = np.zeros((2, areas.max() + 1))
        for cell, area in of_cell.items():
            total[:, area] += night.users[rows[cell]], night.stddev[rows[cell]] ** 2
        users.append(total[0])
        variance.append(total[1])
    scale = users[1].sum() / users[0].sum()
    noise = [scale**2 * variance[0], variance[1]]
    both = noise[0] + noise[1]
    mean = (scale * users[0] * noise[1] + users[1] * noise[0]) / both
    total = both + (1 + scale) * np.maximum(mean, 0.25)
    before, after = users[0] / users[0].sum(), users[1] / users[1].sum()
    z = (after - before) * users[1].sum() / np.sqrt(total)
    part = noise[0] / both
    shape = float(np.min(1 / (part**2 / SUMS[0] + (1 - part) ** 2 / SUMS[1])))
    tested = mean >= 2 * np.sqrt(noise[0] * noise[1] / both)
    p = np.array([_tail(one, share, shape) for one, share in zip(z[tested], (both / total)[tested], strict=True)])
    q = np.full(len(z), np.nan)
    q[tested] = false_discovery_control(p)
    first, pixels = np.unique(areas, return_index=True)[1], np.bincount(areas)
    rows = zip(first, pixels, before, after, z, q, strict=True)
    return [
        [int(one), int(n), *map(float, numbers), None if math.isnan(r) else float(r)] for one, n, *numbers, r in rows
    ]


def _tail(z: float, share: float, shape: float) -> float:
    """P(|X| >= |z|), where the noise's part of the variance has a Gamma distribution of this shape."""

    def density(log: float) -> float:
        value = math.exp(log)
        weight = math.exp(shape * (math.log(shape) + log) - shape * value - gammaln(shape))
        return float(weight * erfc(abs(z) / math.sqrt(2 * (1 + share * (value - 1)))))

    return float(quad(density, -12, 4, epsabs=1e-13, epsrel=1e-6, limit=400)[0])


def page_changes_text() -> str:
    """The file's text."""
    pairs = [a_pair(seed) for seed in range(3)]
    told = [
        {"nights": [json.loads(one.model_dump_json()) for _, one in pair], "changes": changes(pair)} for pair in pairs
    ]
    return json.dumps(told, allow_nan=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    FILE.write_text(page_changes_text())
