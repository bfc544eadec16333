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


class Visit:
    """A page opened from its file, with the network off, whose errors and requests are remembered."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.address = file.as_uri()
        self.context = browser.new_context(
            **({"viewport": {"width": 1200, "height": 800}, "reduced_motion": "reduce"} | context)
        )
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.address)
        canvas = self.page.locator("#canvas")
        self.box = canvas.bounding_box() if canvas.count() else {}

    def _hear(self, message: Any) -> None:
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

    def close(self) -> None:
        """Closes the page, which must have run without an error and fetched nothing but itself."""
        self.context.close()
        assert self.errors == []
        assert self.requests == [self.address]
