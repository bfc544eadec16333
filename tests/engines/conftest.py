"""Jobs on Flink, Spark and Prism."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_runs import write_city
from tests.job_fixtures import fast_pipelines, fixed_code  # noqa: F401  (fixtures of this folder)


@pytest.fixture(autouse=True)
def _pipes_collected() -> Iterator[None]:
    """Collects within the test what would else make a warning in another."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs in four files of small row groups, zones, and a key."""
    folder = tmp_path_factory.mktemp("engines")
    write_city(folder)
    return folder
