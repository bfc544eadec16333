"""Fixtures of the pages' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.transforms.release.browsing import ARGUMENTS, CHROMIUM, Browser, Visit


@pytest.fixture(scope="package", autouse=True)
def full_size_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.transforms.release.picture.DPI", 160)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium): the page was not tried")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: the page was not tried"
    )
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield Browser(chromium)
        chromium.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """opened(text, **context) -> a visit; all are closed, and checked, at the end."""
    visits = []

    def visit(text: str, **context: Any) -> Visit:
        file = tmp_path / f"page-{len(visits)}.html"
        file.write_text(text, encoding="utf-8")
        visits.append(Visit(browser, file, **context))
        return visits[-1]

    yield visit
    for one in visits:
        if one.is_open:
            one.close()
