"""A small synthetic city, as the examples of the public API have it in `logs/`."""

from __future__ import annotations

from pathlib import Path

import pytest

import sfumato


@pytest.fixture(scope="session")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `logs/*.parquet` has 5,000 users."""
    folder = tmp_path_factory.mktemp("city")
    sfumato.synth(folder / "logs", users=5_000, seed=1)
    return folder
