"""Releases of jobs: their pictures are laid out and written, and not drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tests.job_fixtures import fast_pipelines, fixed_code  # noqa: F401  (fixtures of this folder)
from tests.two_servers import City


@pytest.fixture
def finished(tmp_path: Path) -> City:
    """Two servers of which each has published its share of honest devices' reports."""
    return City.finished(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _pictures() -> Iterator[None]:
    """As `blank_pictures`, also for what a module's tests share: a release that is made again must have its bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)
        yield
