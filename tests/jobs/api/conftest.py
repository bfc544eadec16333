"""A small synthetic city, as the examples of the public API have it in `logs/`, and one release of each job."""

from __future__ import annotations

from pathlib import Path

import pytest

import sfumato
from tests.once import made_once

REGION = (3.00, 1.00, 3.13, 1.13)
SAMPLED = {"epsilon": 1.0, "delta": 1e-6}


@pytest.fixture(scope="session")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `logs/*.parquet` has 5,000 users."""
    return made_once(tmp_path_factory, "city", lambda folder: sfumato.synth(folder / "logs", users=5_000, seed=1))


@pytest.fixture(scope="session")
def releases(city: Path) -> dict[str, sfumato.Release]:
    """A release of each job, by the job's name and what it counts."""
    logs = city / "logs" / "*.parquet"
    return {
        "heatmap": sfumato.heatmap(logs, region=REGION, depth=6),
        "histogram of items": sfumato.histogram(logs, column="infected", **SAMPLED),
        "histogram of cells": sfumato.histogram(logs, region=REGION, cells=3, **SAMPLED),
        "hotspots": sfumato.hotspots(logs, region=REGION, depth=4, levels=2, **SAMPLED),
        "quantiles": sfumato.quantiles(logs, column="km_from_home", range=(0, 30), **SAMPLED),
        "moments": sfumato.moments(logs, column="km_from_home", bits=12, fraction_bits=6, epsilon=4.0),
        "flows": sfumato.flows(logs, region=REGION, time_column="timestamp"),
        "ranges": sfumato.ranges(logs, region=REGION, method="grid", sizes=(500, 5000)),
    }
