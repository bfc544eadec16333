"""Two browsers for tests of pages, by one interface: Chromium through Playwright and Firefox through WebDriver BiDi.

A tab opens a file with the network off (Chromium) or a dead proxy (Firefox), and remembers errors and requests.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

CHROMIUM, FIREFOX = shutil.which("chromium"), shutil.which("firefox-esr")
_ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
_PREFERENCES = {
    "network.proxy.type": 1,  # everything but files goes to a proxy that is not there
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "network.proxy.allow_hijacking_localhost": False,
    "remote.prefs.recommended": True,
    "ui.prefersReducedMotion": 1,
    "layout.css.prefers-color-scheme.content-override": 0,  # dark
    "dom.events.asyncClipboard.readText": True,
    "browser.download.alwaysOpenPanel": False,
}
_PATIENCE = 20.0
_running: list[Any] = []
KEYS = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "Home": "\ue011",
    "End": "\ue010",
    "Control": "\ue009",
}


class Tab:
    """A tab of either browser. Places are CSS pixels of the viewport."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []

    def open(self, address: str) -> None:
        """Opens a page and waits until its script has run."""
        self.errors.clear()
        self.requests.clear()
        self._go(address)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        raise NotImplementedError

    def until(self, condition: str) -> Any:
        """Waits until an expression is true; returns its value."""
        end = time.monotonic() + _PATIENCE
        while not (value := self.run(condition)):
            assert time.monotonic() < end, f"never came true: {condition}; {self.errors}"
            time.sleep(0.02)
        return value

    def settle(self) -> None:
        """Waits for two frames."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def rest(self) -> None:
        """Waits until the page has not scrolled for half a second: Chromium scrolls on after a finger has left."""
        self.run(
            "new Promise(done => { let last = scrollY, since = performance.now(); const look = now => {"
            " if (scrollY !== last) [last, since] = [scrollY, now];"
            " if (now - since > 500) done(true); else requestAnimationFrame(look); }; requestAnimationFrame(look); })"
        )

    def centre(self, selector: str) -> tuple[float, float]:
        """The middle of an element that is scrolled into view."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = f"{found}.getBoundingClientRect()"
        x, y, width, height = self.run(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
        return x + width / 2, y + height / 2

    def click(self, selector: str) -> None:
        """Clicks the middle of an element."""
        x, y = self.centre(selector)
        self.move(x, y)
        self.drag([(x, y)])

    def text(self, selector: str) -> str:
        """The text of an element as it is shown."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def _go(self, address: str) -> None:
        raise NotImplementedError

    def move(self, x: float, y: float) -> None:
        """Moves the mouse."""
        raise NotImplementedError

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Presses the mouse at the first point and releases it at the last."""
        raise NotImplementedError

    def wheel(self, x: float, y: float, dy: float, control: bool = False) -> None:
        """Turns the wheel at a place, with Ctrl or without."""
        raise NotImplementedError

    def key(self, name: str) -> None:
        """Presses a key: a name of KEYS or a character."""
        raise NotImplementedError

    def fingers(self, paths: list[list[tuple[float, float]]]) -> None:
        """Moves fingers along paths of equal length, all at once."""
        raise NotImplementedError

    def screenshot(self, path: Path) -> None:
        """Writes what is shown as a PNG file."""
        raise NotImplementedError


class ChromiumTab(Tab):
    """A tab of Chromium."""

    def __init__(self, browser: Any, width: int, height: int, touch: bool, downloads: Path, scheme: str) -> None:
        super().__init__()
        options: dict[str, Any] = {"reduced_motion": "reduce", "color_scheme": scheme, "accept_downloads": True}
        options |= {"has_touch": True, "is_mobile": True, "device_scale_factor": 2} if touch else {}
        self._context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self._context.set_offline(True)
        self._context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self._context.new_page()
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("download", lambda one: one.save_as(downloads / one.suggested_filename))
        self._devtools = self._context.new_cdp_session(self.page) if touch else None

    def _go(self, address: str) -> None:
        self.page.goto("about:blank")
        self.requests.clear()
        self.page.goto(address)

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)

    def move(self, x: float, y: float) -> None:
        self.page.mouse.move(x, y)

    def drag(self, points: list[tuple[float, float]]) -> None:
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        for point in points[1:]:
            self.page.mouse.move(*point, steps=3)
        self.page.mouse.up()

    def wheel(self, x: float, y: float, dy: float, control: bool = False) -> None:
        self.page.mouse.move(x, y)
        if control:
            self.page.keyboard.down("Control")
        self.page.mouse.wheel(0, dy)
        if control:
            self.page.keyboard.up("Control")

    def key(self, name: str) -> None:
        self.page.keyboard.press(name)

    def fingers(self, paths: list[list[tuple[float, float]]]) -> None:
        assert self._devtools is not None
        for step in range(len(paths[0])):
            points = [{"x": path[step][0], "y": path[step][1], "id": i} for i, path in enumerate(paths)]
            kind = "touchMove" if step else "touchStart"
            self._devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        self._devtools.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def screenshot(self, path: Path) -> None:
        self.page.screenshot(path=path)

    def close(self) -> None:
        """Ends the tab."""
        self._context.close()


class Firefox:
    """A running Firefox and the connection to it."""

    def __init__(self, downloads: Path) -> None:
        from websockets.sync.client import connect

        assert FIREFOX is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        preferences = _PREFERENCES | {"browser.download.folderList": 2, "browser.download.dir": str(downloads)}
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items())
        Path(self._profile.name, "user.js").write_text("".join(lines))
        command = [FIREFOX, "--headless", "--no-remote", "--profile", self._profile.name, "--remote-debugging-port=0"]
        log = Path(self._profile.name, "log")
        with log.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            self._stack = ExitStack()
            address = f"{self._address(log)}/session"
            self._socket = self._stack.enter_context(connect(address, max_size=None, open_timeout=_PATIENCE))
        except BaseException:
            self._end()
            raise
        self._number = 0
        self.listeners: dict[str, FirefoxTab] = {}
        self.send("session.new", {"capabilities": {}})
        self.send("session.subscribe", {"events": ["log.entryAdded", "network.beforeRequestSent"]})

    def send(self, method: str, parameters: dict[str, Any]) -> Any:
        """Sends a command and returns its result; events that come before it go to their tabs."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=_PATIENCE))
            if message.get("id") == self._number:
                assert message["type"] == "success", f"{method}: {message.get('message')}"
                return message["result"]
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        event = message.get("params", {})
        tab = self.listeners.get(event.get("context") or event.get("source", {}).get("context"))
        if tab is None:
            return
        if message["method"] == "network.beforeRequestSent":
            tab.requests.append(event["request"]["url"])
        elif event.get("level") == "error":
            tab.errors.append(str(event.get("text")))

    @staticmethod
    def _address(log: Path) -> str:
        end = time.monotonic() + 3 * _PATIENCE
        while "WebDriver BiDi listening on " not in (text := log.read_text()):
            assert time.monotonic() < end, f"Firefox did not start: {text}"
            time.sleep(0.05)
        return text.split("WebDriver BiDi listening on ")[1].split()[0]

    def close(self) -> None:
        """Ends the browser that was started."""
        self._stack.close()
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(_PATIENCE)
        self._profile.cleanup()


class FirefoxTab(Tab):
    """A tab of Firefox."""

    def __init__(self, browser: Firefox, width: int, height: int) -> None:
        super().__init__()
        self._browser = browser
        self._context = browser.send("browsingContext.create", {"type": "tab"})["context"]
        browser.listeners[self._context] = self
        browser.send(
            "browsingContext.setViewport", {"context": self._context, "viewport": {"width": width, "height": height}}
        )

    def _go(self, address: str) -> None:
        self._browser.send(
            "browsingContext.navigate", {"context": self._context, "url": "about:blank", "wait": "complete"}
        )
        self.requests.clear()
        self._browser.send("browsingContext.navigate", {"context": self._context, "url": address, "wait": "complete"})

    def run(self, script: str) -> Any:
        parameters = {
            "expression": f"(async () => JSON.stringify((await ({script})) ?? null))()",
            "target": {"context": self._context},
            "awaitPromise": True,
            "userActivation": True,
        }
        answer = self._browser.send("script.evaluate", parameters)
        assert answer["type"] == "success", f"{script}: {answer['exceptionDetails']['text']}"
        return json.loads(answer["result"]["value"])

    def _act(self, *sources: dict[str, Any]) -> None:
        self._browser.send("input.performActions", {"context": self._context, "actions": list(sources)})

    @staticmethod
    def _to(x: float, y: float, duration: int = 0) -> dict[str, Any]:
        return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": duration}

    def move(self, x: float, y: float) -> None:
        self._act({"type": "pointer", "id": "mouse", "actions": [self._to(x, y)]})

    def drag(self, points: list[tuple[float, float]]) -> None:
        moves = [self._to(*point, 30) for point in points[1:]]
        ends = {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}
        self._act({"type": "pointer", "id": "mouse", "actions": [self._to(*points[0]), ends[0], *moves, ends[1]]})

    def wheel(self, x: float, y: float, dy: float, control: bool = False) -> None:
        turn = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0, "deltaY": round(dy)}
        pause = {"type": "pause"}
        keys = [{"type": "keyDown", "value": KEYS["Control"]}, pause, {"type": "keyUp", "value": KEYS["Control"]}]
        self._act(
            {"type": "wheel", "id": "wheel", "actions": [pause, turn, pause]},
            *([{"type": "key", "id": "keys", "actions": keys}] if control else []),
        )

    def key(self, name: str) -> None:
        value = KEYS.get(name, name)
        self._act(
            {
                "type": "key",
                "id": "keys",
                "actions": [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}],
            }
        )

    def fingers(self, paths: list[list[tuple[float, float]]]) -> None:
        self._act(
            *(
                {
                    "type": "pointer",
                    "id": f"finger {i}",
                    "parameters": {"pointerType": "touch"},
                    "actions": [
                        self._to(*path[0]),
                        {"type": "pointerDown", "button": 0},
                        *(self._to(*point, 20) for point in path[1:]),
                        {"type": "pointerUp", "button": 0},
                    ],
                }
                for i, path in enumerate(paths)
            )
        )

    def screenshot(self, path: Path) -> None:
        data = self._browser.send("browsingContext.captureScreenshot", {"context": self._context})["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Ends the tab."""
        self._browser.send("browsingContext.close", {"context": self._context})


@contextmanager
def chromium() -> Iterator[Any]:
    """A running Chromium, for `ChromiumTab`: the one of this process, because Playwright starts once in it."""
    from playwright.sync_api import sync_playwright

    if _running:
        yield _running[0]
        return
    with sync_playwright() as running:
        _running.append(running.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS))
        yield _running[0]
        _running.pop().close()
