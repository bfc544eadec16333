"""A small synthetic city, as the examples of the public API have it in `logs/`, and one release of each job."""

from __future__ import annotations

from pathlib import Path

import pytest

import sfumato
from tests.once import made_once
from tests.releases import Releases

REGION = (3.00, 1.00, 3.13, 1.13)
KINDS = {
    "heatmap": "monday",
    "histogram of items": "words",
    "histogram of cells": "histogram",
    "hotspots": "hotspots",
    "quantiles": "quantiles",
    "moments": "moments",
    "ranges": "ranges",
}


@pytest.fixture(scope="session")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `logs/*.parquet` has 5,000 users."""
    return made_once(tmp_path_factory, "city", lambda folder: sfumato.synth(folder / "logs", users=5_000, seed=1))


@pytest.fixture(scope="session")
def releases(published: Releases) -> dict[str, sfumato.Release]:
    """A release of each job, by the job's name and what it counts."""
    return {name: sfumato.open_release(published[kind]) for name, kind in KINDS.items()}


@pytest.fixture(params=KINDS)
def release(request: pytest.FixtureRequest, releases: dict[str, sfumato.Release]) -> sfumato.Release:
    """Each of them."""
    return releases[request.param]
