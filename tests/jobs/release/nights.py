"""Nights of the made-up city for tests of the timeline: releases of the same city, and of one where people moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.region import Grid, Places, Region, interleave
from sfumato.transforms.heatmap.release import release_files
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from tests.seeds import seeded_rng
from tests.unit.release.city import REGION, city_density

MOVED = (0.30, 0.78)  # where people moved to, in sides of the region from the north-west
DEPTH = 7


def a_night(folder: Path, number: int, *, moved: float = 0.0, users: int = 20_000, **options: Any) -> Release:
    """Publishes the night of one number in a folder and opens it.

    Args:
        folder: where the release goes.
        number: of the night; cohort and noise depend on it.
        moved: share of the users who gathered at MOVED.
        users: of the night.
        options: of the heatmap.
    """
    values = {"depth": DEPTH, "shard_size": users // 4, "dropout": 0.0, "population": users, **options}
    parameters = heatmap_parameters("adaptive", values)
    rng = seeded_rng([31, number])
    density = city_density(1 << DEPTH)
    y, x = (np.mgrid[0 : 1 << DEPTH, 0 : 1 << DEPTH] + 0.5) / (1 << DEPTH)
    near = np.exp(-((x - MOVED[0]) ** 2 + (y - MOVED[1]) ** 2) / (2 * 0.03**2))
    cells = rng.choice(4**DEPTH, users, p=((1 - moved) * density + moved * near / near.sum()).ravel())
    codes = interleave((cells % (1 << DEPTH)).astype(np.uint32), (cells >> DEPTH).astype(np.uint32)).astype(np.uint64)
    hashes = np.sort(rng.integers(0, 1 << (64 - 2 * DEPTH), users, dtype=np.uint64)) << np.uint64(2 * DEPTH)
    key = RunKey.derive(FixedSecret(bytes([number]) * 32), {})
    state = run_in_memory(Rows(Places(DEPTH), hashes, codes, None), users, parameters, key)
    metadata = ReleaseMetadata(
        "heatmap", folder.name, "2026-11-21T00:50:00Z", "operating system", True, parameters.metadata()
    )
    files = release_files(state, parameters, metadata, Grid(Region(**REGION), DEPTH))
    publish(str(folder), files, folder.name, False)
    return open_release(folder)
