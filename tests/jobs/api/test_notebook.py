"""Releases in notebooks: a picture by default, the page as a widget, and what is left where scripts do not run."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import html
import io
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import sfumato
from tests.browser.browsers import CHROMIUM, chromium
from tests.jobs.api.conftest import KINDS

nbformat = pytest.importorskip("nbformat", reason="the extra `test` is not installed")
FRAME = ".sfumato-widget iframe"


class Page(HTMLParser):
    """The elements of HTML, each with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def html_of(shown: Any) -> str:
    return str(shown._repr_mimebundle_()["text/html"])


# --- the picture ---


@pytest.mark.slow
def test_a_notebook_shows_picture_guarantee_and_link(release: sfumato.Release) -> None:
    bundle = release._repr_mimebundle_()
    page = Page(bundle["text/html"])
    assert [tag for tag, _ in page.elements if tag in ("img", "a", "script", "iframe")] == ["img", "a"]
    (picture,), (link,) = page.all("img"), page.all("a")
    assert picture["src"] == f"data:image/png;base64,{bundle['image/png']}"
    assert "sfumato" in picture["alt"]
    assert Path(link["href"].removeprefix("file://")).exists()
    assert "ε" in bundle["text/html"]
    assert bundle["text/plain"] == repr(release)
    with Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))) as drawn:
        assert drawn.width <= 800


def test_a_link_to_a_relative_path_is_relative(
    releases: dict[str, sfumato.Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that is given to others does not show where its author keeps files."""
    monkeypatch.chdir(tmp_path)
    kept = releases["quantiles"].save("my map")
    (link,) = Page(html_of(kept)).all("a")
    assert link["href"] == "my%20map/index.html"
    assert str(tmp_path) not in "".join(kept._repr_mimebundle_().values())
    assert str(tmp_path) not in "".join(kept.widget()._repr_mimebundle_().values())


@pytest.mark.parametrize("widget", [False, True])
def test_a_notebook_escapes_what_a_manifest_says(releases: dict[str, sfumato.Release], widget: bool) -> None:
    evil = """'"><script>alert("x")</script><img src=x onerror='alert(1)'>"""
    heatmap = releases["heatmap"]
    stated = {**heatmap.manifest, "release_id": evil} | ({} if widget else {"job": evil})
    release = dataclasses.replace(heatmap, manifest=stated)
    page = Page(html_of(release.widget() if widget else release))
    assert not page.all("script")
    assert len(page.all("img")) == 1
    assert not any("onerror" in attributes for _, attributes in page.elements)
    if widget:
        inside = Page(page.all("iframe")[0]["srcdoc"])
        assert not inside.all("img")
        assert not any("onerror" in attributes for _, attributes in inside.elements)


def test_notebook_names_a_damaged_or_missing_picture(releases: dict[str, sfumato.Release], tmp_path: Path) -> None:
    kept = releases["quantiles"].save(tmp_path / "kept")
    (tmp_path / "kept" / "quantiles.png").write_bytes(b"no picture")
    bundle = kept._repr_mimebundle_()
    assert "quantiles.png is damaged" in bundle["text/html"]
    assert "image/png" not in bundle
    files = {name: one for name, one in kept.manifest["files"].items() if not name.endswith(".png")}
    bare = dataclasses.replace(kept, manifest={**kept.manifest, "files": files})
    assert "<img" not in html_of(bare)


# --- the widget ---


def test_widget_may_run_its_page_and_nothing_more(release: sfumato.Release) -> None:
    bundle = release.widget()._repr_mimebundle_()
    page = Page(bundle["text/html"])
    (frame,) = page.all("iframe")
    assert frame["sandbox"].split() == ["allow-scripts", "allow-downloads"]
    assert "src" not in frame
    assert not page.all("script")
    assert f"<p>{html.escape(release.guarantee)}</p></div>" in bundle["text/html"]
    assert bundle["text/html"].count("<!doctype html>") == 1
    assert "image/png" in bundle
    (policy,) = (one["content"] for one in Page(frame["srcdoc"]).all("meta") if "http-equiv" in one)
    assert "default-src 'none'" in policy
    links = [one.get("href", "") for one in Page(frame["srcdoc"]).all("a")]
    assert all(one.startswith("#") for one in links)


def test_a_widget_adds_little_more_than_its_page_to_a_notebook(releases: dict[str, sfumato.Release]) -> None:
    release = releases["heatmap"]
    page = len(release.read("index.html"))
    added = [len(nbformat.writes(notebook_of(one))) for one in (release.widget(), release)]
    pictures = len(release._repr_mimebundle_()["image/png"])
    assert page < added[0] < 1.15 * page + 2 * pictures
    assert added[1] < 10_000 + 2 * pictures


@pytest.mark.parametrize("height", [0, 299, 4001, 500.0, "500"])
def test_a_widget_of_an_impossible_height_is_refused(releases: dict[str, sfumato.Release], height: Any) -> None:
    with pytest.raises(sfumato.RequestError, match=r"height: must be a number of pixels from 300 to 4,000"):
        releases["heatmap"].widget(height=height)


# --- in browsers ---


def notebook_of(*shown: Any) -> Any:
    """A notebook with a cell for each value, as if Jupyter had run it."""
    v4 = nbformat.v4
    cells = []
    for value in shown:
        output = v4.new_output("execute_result", data=value._repr_mimebundle_(), execution_count=1)
        cells.append(v4.new_code_cell("release", outputs=[output], execution_count=1, id=f"cell-{len(cells)}"))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return v4.new_notebook(cells=cells, metadata=kernel)


def exported(notebook: Any, place: Path, **settings: Any) -> Path:
    from nbconvert import HTMLExporter

    # Without these two nbconvert's own page asks for scripts from the web.
    body, _ = HTMLExporter(require_js_url="", mathjax_url="", **settings).from_notebook_node(notebook)
    place.write_text(body)
    return place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium): the widget was not tried")
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with chromium() as running:
        yield running


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """visit(file) opens a file without a network; at the end no page had an error or asked for anything."""
    contexts: list[Any] = []
    seen: list[str] = []

    def open_page(address: str, offline: bool = True, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1300, "height": 1000}, **options)
        contexts.append(context)
        context.set_offline(offline)
        page = context.new_page()
        if offline:
            page.on("request", lambda one: seen.append(one.url))
            page.on("console", lambda one: one.type == "error" and seen.append(one.text))
            page.on("pageerror", lambda one: seen.append(str(one)))
        page.goto(address)
        return page

    yield open_page
    for one in contexts:
        one.close()
    assert [one for one in seen if not one.startswith(("file:", "data:", "blob:", "about:"))] == []


def inside(page: Any, selector: str = FRAME) -> Any:
    """The widget's document, once its script has run."""
    frame = page.wait_for_selector(selector).content_frame()
    frame.wait_for_selector("html.live")
    return frame


def until(frame: Any, condition: str) -> None:
    """Waits until an expression is true. Playwright's own wait uses eval, which the page's policy forbids."""
    end = time.monotonic() + 20
    while not frame.evaluate(condition):
        assert time.monotonic() < end, f"never came true: {condition}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.drawn
def test_the_map_in_a_widget_works(visit: Any, releases: dict[str, sfumato.Release], tmp_path: Path) -> None:
    """It draws, zooms, shows values, scrolls to its report and gives files, in a notebook that became HTML."""
    release = releases["heatmap"]
    page = visit(exported(notebook_of(release.widget(height=700)), tmp_path / "a.html").as_uri(), accept_downloads=True)
    frame = inside(page)
    assert page.locator(FRAME).bounding_box()["height"] == 700
    assert frame.evaluate("self.origin") == "null"  # it cannot reach the notebook
    picture = "document.querySelector('.map-view canvas').toDataURL()"
    until(frame, f"{picture}.length > 5_000")  # an empty one has 2,000 characters
    frame.evaluate(f"self.before = {picture}")
    frame.get_by_role("button", name="Zoom in").click()
    until(frame, f"{picture} !== self.before")
    box = page.locator(FRAME).bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 380)
    until(frame, "!document.querySelector('.tip').hidden")
    assert "users" in frame.locator(".tip").inner_text()
    assert "Copy link" not in frame.locator("#tools").inner_text()
    frame.locator("a[href='#report']").last.click()
    until(frame, "scrollY > 200")
    assert frame.url == "about:srcdoc"
    with page.expect_download() as download:
        frame.get_by_role("button", name="Table").click()
    assert len(download.value.path().read_text().splitlines()) == len(release.cells) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_each_page_lives_in_a_widget(
    visit: Any, releases: dict[str, sfumato.Release], tmp_path: Path, kind: str
) -> None:
    page = visit(exported(notebook_of(releases[kind].widget()), tmp_path / "a.html").as_uri())
    assert inside(page).locator("#stage").inner_text().strip()


def test_a_widget_follows_the_notebooks_theme(visit: Any, releases: dict[str, sfumato.Release], tmp_path: Path) -> None:
    page = visit(
        exported(notebook_of(releases["quantiles"].widget()), tmp_path / "a.html").as_uri(), color_scheme="null"
    )
    frame = inside(page)
    assert frame.get_by_role("button", name="Dark").is_visible()
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    until(frame, "matchMedia('(prefers-color-scheme: dark)').matches")
    frame.get_by_role("button", name="Light").wait_for()


def test_without_scripts_and_on_paper_the_picture_stands_there(
    visit: Any, releases: dict[str, sfumato.Release], tmp_path: Path
) -> None:
    file = exported(notebook_of(releases["heatmap"].widget()), tmp_path / "a.html")
    page = visit(file.as_uri(), java_script_enabled=False)
    assert not page.locator(FRAME).is_visible()
    assert page.locator(".sfumato-widget img").is_visible()
    paper = visit(file.as_uri())
    inside(paper)
    paper.emulate_media(media="print")
    assert not paper.locator(FRAME).is_visible()
    assert paper.locator(".sfumato-widget img").is_visible()


def test_where_frames_are_stripped_the_picture_stands_there(
    visit: Any, releases: dict[str, sfumato.Release], tmp_path: Path
) -> None:
    """As in viewers that trust no notebook: they drop frames, scripts and styles, and keep pictures."""
    notebook = notebook_of(releases["heatmap"].widget())
    data = notebook.cells[0].outputs[0].data
    data["text/html"] = re.sub(r"<(iframe|style)\b.*?</\1>| style=\"[^\"]*\"", "", data["text/html"], flags=re.DOTALL)
    assert len(data["text/html"]) < len(data["image/png"]) + 2_000
    page = visit(exported(notebook, tmp_path / "a.html").as_uri())
    picture = page.get_by_alt_text("Result of sfumato heatmap")
    assert picture.is_visible()
    assert picture.evaluate("one => one.naturalWidth") > 100
    assert "ε = 4" in page.inner_text("body")


@pytest.mark.slow
def test_a_pdf_has_the_picture(releases: dict[str, sfumato.Release]) -> None:
    """Through LaTeX, which takes no HTML."""
    from nbconvert import LatexExporter

    for shown in (releases["heatmap"].widget(), releases["heatmap"]):
        text, made = LatexExporter().from_notebook_node(notebook_of(shown))
        (name,) = made["outputs"]
        assert name.endswith(".png")
        assert name in text
        assert "srcdoc" not in text


# --- JupyterLab ---


@contextlib.contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """The address of a JupyterLab of this test's own, on the loopback interface."""
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed: the widget was not tried in it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        name: str(folder / "settings") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    started = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    options = [
        "--IdentityProvider.token=",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    log = folder / "jupyterlab.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*started, *options, f"--ServerApp.root_dir={folder}"],
            env=os.environ | settings,
            stdout=output,
            stderr=output,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api/status") as answer:
                if answer.status == 200:
                    break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(180)  # it ends its kernels first; a busy machine takes its time


@pytest.mark.slow
def test_jupyterlab_shows_a_strangers_notebook_the_picture(
    visit: Any, releases: dict[str, sfumato.Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases["heatmap"].save(tmp_path / "map")
    v4 = nbformat.v4
    cell = v4.new_code_cell("import sfumato\nsfumato.open_release('map').widget()", id="own")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(v4.new_notebook(cells=[cell], metadata=kernel), tmp_path / "own.ipynb")
    nbformat.write(notebook_of(releases["heatmap"].widget()), tmp_path / "strange.ipynb")
    with jupyterlab(tmp_path) as address:
        page = visit(f"{address}/lab/tree/strange.ipynb", offline=False)
        picture = page.get_by_alt_text(re.compile("Result of sfumato heatmap"))
        picture.wait_for(timeout=60_000)
        assert page.locator(".jp-OutputArea iframe").count() == 0
        page = visit(f"{address}/doc/tree/own.ipynb", offline=False)
        page.locator(".jp-Notebook .jp-CodeCell").wait_for(timeout=60_000)
        page.get_by_text("| Idle").wait_for(timeout=60_000)  # the kernel waits for cells
        page.locator(".jp-Notebook .jp-CodeCell .cm-content").click()
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector(FRAME, timeout=60_000)
        frame = inside(page)
        frame.get_by_role("button", name="Zoom in").click()
        assert "About" in frame.inner_text("h1")
