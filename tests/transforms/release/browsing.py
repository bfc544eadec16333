"""A browser for tests of pages (Debian's chromium): opens a file offline, remembers errors and requests."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.transforms.release.city import REGION

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Browser:
    """A running chromium that lends tabs. A tab that comes back is blank and is lent again.

    A document opens in a used tab in a quarter of the processor time of a new one. Pages keep nothing outside of
    their document (no storage, no cookies), so a tab carries nothing from one test to the next.
    """

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium
        self._idle: dict[str, list[Any]] = {}

    def lend(self, options: dict[str, Any]) -> Any:
        """A blank tab with the network off. options: those of Playwright's `new_context`."""
        if idle := self._idle.get(repr(options)):
            return idle.pop()
        context = self.chromium.new_context(**options)
        context.set_offline(True)
        tab = context.new_page()
        tab.set_default_timeout(20_000)
        return tab

    def take_back(self, tab: Any, options: dict[str, Any]) -> None:
        tab.goto("about:blank")
        tab.mouse.move(0, 0)  # off whatever the next page shows
        self._idle.setdefault(repr(options), []).append(tab)


class Visit:
    """A page opened from its file, with the network off, whose errors and requests are remembered."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.is_open = True
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.address = file.as_uri()
        self._browser = browser
        self._options = {"viewport": {"width": 1200, "height": 800}, "reduced_motion": "reduce"} | options
        self._listeners = {
            "console": self._on_console,
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        self.page = browser.lend(self._options)
        for event, listener in self._listeners.items():
            self.page.on(event, listener)
        self.page.goto(self.address)
        canvas = self.page.locator("#canvas")
        self.box = canvas.bounding_box() if canvas.count() else {}

    def _on_console(self, message: Any) -> None:
        # Reading pixels is the tests' own doing; the page itself never does.
        if message.type in {"error", "warning"} and "willReadFrequently" not in message.text:
            self.errors.append(message.text)

    def settle(self) -> None:
        self.page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def until(self, condition: str) -> None:
        """Waits until a condition holds. (Playwright's own wait needs eval, which the page forbids.)"""
        end = time.monotonic() + 20
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, f"never came true: {condition}"
            self.page.wait_for_timeout(20)

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def picture(self) -> str:
        self.settle()
        return str(self.run("document.getElementById('canvas').toDataURL()"))

    def colours(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Red, green and blue, float64[n, 3] in 0..255, of the canvas at places in 0..1 from the north-west."""
        corners = [[REGION["west"], REGION["north"]], [REGION["east"], REGION["south"]]]
        script = """([points, nw, se]) => {
          const c = document.getElementById('canvas');
          const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          const [x0, y0] = sfumato.project(nw[0], nw[1]), [x1, y1] = sfumato.project(se[0], se[1]);
          return points.map(([u, v]) => {
            const at = 4 * (Math.floor(y0 + v * (y1 - y0)) * c.width + Math.floor(x0 + u * (x1 - x0)));
            return [...all.slice(at, at + 3)];
          });
        }"""
        return np.array(self.run(script, [points.tolist(), *corners]), dtype=np.float64)

    def view(self) -> dict[str, float]:
        self.settle()
        return dict(self.run("sfumato.view"))

    def place(self, lon: float, lat: float) -> tuple[float, float]:
        x, y = self.run("([lon, lat]) => sfumato.project(lon, lat)", [lon, lat])
        return self.box["x"] + x, self.box["y"] + y

    def leave(self) -> None:
        """Gives the tab back to the browser."""
        self.is_open = False
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self._browser.take_back(self.page, self._options)

    def close(self) -> None:
        """Leaves the page, which must have run without an error and fetched nothing but itself."""
        self.leave()
        assert self.errors == []
        assert self.requests == [self.address]
