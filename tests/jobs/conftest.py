"""Releases of jobs: their pictures are drawn in the tests with the marker `drawn` alone."""

from __future__ import annotations

import pytest

from tests.job_fixtures import fast_pipelines, fixed_code  # noqa: F401  (fixtures of this folder)


@pytest.fixture(autouse=True)
def _pictures(blank_pictures: None) -> None:
    """Every test here uses `blank_pictures`."""
