"""Releases of jobs: their pictures are drawn in the tests with the marker `drawn` alone."""

from __future__ import annotations

import pytest

from tests.job_fixtures import fast_pipelines, fixed_code  # noqa: F401  (fixtures of this folder)
from tests.releases import Releases


@pytest.fixture(autouse=True)
def _pictures(blank_pictures: None) -> None:
    """Every test here uses `blank_pictures`."""


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    """One release of each kind, made once a session."""
    return Releases(tmp_path_factory)
