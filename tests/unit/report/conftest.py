"""Pictures in the size in which they are published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def whole_pictures() -> Iterator[None]:
    """These tests look at the pictures."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("canvas", "map_figure", "map_names", "chart_figure"):
            patch.setattr(f"sfumato.transforms.report.{module}.DPI", 160)
        yield
