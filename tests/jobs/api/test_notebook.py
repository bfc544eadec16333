"""Releases in notebooks: a picture by default, the page as a widget, and what is left where scripts do not run."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import sfumato
from tests.browser.browsers import CHROMIUM, chromium
from tests.jobs.api.conftest import KINDS

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


# --- in browsers ---


def notebook_of(*shown: Any) -> Any:
    """A notebook with a cell for each value, as if Jupyter had run it."""
    # Its import takes as long as that of Beam: it is left to the process that shows a notebook.
    v4 = pytest.importorskip("nbformat", reason="the extra `test` is not installed").v4
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_page_lives_in_a_widget(
    visit: Any, releases: dict[str, sfumato.Release], tmp_path: Path, kind: str
) -> None:
    page = visit(exported(notebook_of(releases[kind].widget()), tmp_path / "a.html").as_uri())
    assert inside(page).locator("#stage").inner_text().strip()


@pytest.mark.slow
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


@pytest.mark.slow
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
