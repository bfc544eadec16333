"""Fixtures of the browser tests: tabs of both browsers, and a release on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsers import CHROMIUM, FIREFOX, ChromiumTab, Firefox, FirefoxTab, Tab, chromium
from tests.job_fixtures import fast_pipelines, fixed_code  # noqa: F401  (fixtures of this folder)

Open = Callable[..., Tab]
_AXE = resources.files("axe_playwright_python").joinpath("axe.min.js")


def barriers(tab: Tab) -> list[list[str]]:
    """What axe finds serious or critical for those who see or hear otherwise: impact, rule and element."""
    tab.run(f"(() => {{ {_AXE.read_text(encoding='utf-8')}; return true; }})()")
    found = tab.run("axe.run().then(found => found.violations.map(one => [one.impact, one.id, one.nodes[0].html]))")
    return [one for one in found if one[0] in {"serious", "critical"}]


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def running(downloads: Path) -> Iterator[Callable[[str], Any]]:
    """running(name) is the browser of that name, started once."""
    with ExitStack() as stack:
        started: dict[str, Any] = {}

        def start(name: str) -> Any:
            if {"chromium": CHROMIUM, "firefox": FIREFOX}[name] is None:
                package = "chromium" if name == "chromium" else "firefox-esr"
                pytest.skip(f"no {name} on this machine (Debian: apt-get install {package}): the page was not tried")
            if name not in started and name == "chromium":
                pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
                started[name] = stack.enter_context(chromium())
            elif name not in started:
                started[name] = Firefox(downloads)
                stack.callback(started[name].close)
            return started[name]

        yield start


@pytest.fixture(params=["chromium", "firefox"])
def browser(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(browser: str, running: Callable[[str], Any], downloads: Path) -> Iterator[Open]:
    """opened(file, link) is a tab with the page; at the end it must have no error and have fetched nothing."""
    tabs: list[Any] = []

    def visit(
        file: Path, link: str = "", *, width: int = 1200, height: int = 800, touch: bool = False, scheme: str = "dark"
    ) -> Tab:
        started = running(browser)
        if browser == "chromium":
            tabs.append(ChromiumTab(started, width, height, touch, downloads, scheme))
        else:
            tabs.append(FirefoxTab(started, width, height))
        tabs[-1].open(file.as_uri() + link)
        tabs[-1].until("document.documentElement.classList.contains('live')")
        return tabs[-1]  # type: ignore[no-any-return]

    yield visit
    for tab in tabs:
        tab.close()
        assert tab.errors == []
        assert [one for one in tab.requests if not one.startswith(("file:", "data:", "blob:"))] == []
