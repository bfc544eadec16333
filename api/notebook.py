"""A release in a notebook: its picture, or its page as a widget in a frame."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sfumato.schemas.errors import RequestError

if TYPE_CHECKING:
    from sfumato.releases import Release

_WIDTH = 800  # pixels of a picture in a notebook
_HEIGHTS = (300, 4000)
# A front end that strips frames leaves the picture under it. So does a reader without scripts, and paper. A frame
# prefers the colours that `color-scheme` says: those of JupyterLab, of VS Code and of this project's documents.
_STYLE = """
.sfumato-widget iframe{color-scheme:light dark}
[data-jp-theme-light=true] .sfumato-widget iframe,.vscode-light .sfumato-widget iframe,
[data-md-color-scheme=default] .sfumato-widget iframe{color-scheme:light}
[data-jp-theme-light=false] .sfumato-widget iframe,.vscode-dark .sfumato-widget iframe,
[data-md-color-scheme=slate] .sfumato-widget iframe{color-scheme:dark}
@media print,(scripting:none){.sfumato-widget iframe{display:none}}
"""
Bundle = dict[str, str]


@dataclass(frozen=True, repr=False)
class Widget:
    """A release's page in a frame of a notebook, with a picture where scripts do not run. See `Release.widget`.

    Attributes:
        release: what is shown.
        height: of the frame, in CSS pixels.
        page: the page's HTML. It has no links to other files.
    """

    release: Release
    height: int
    page: str = field(repr=False)

    def __repr__(self) -> str:
        return f"<Widget of\n{self.release!r}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        """Returns HTML for notebooks, and the picture for what shows no HTML, such as PDF by LaTeX."""
        # In single quotes, because a page has few of them and thousands of double quotes.
        page = self.page.replace("&", "&amp;").replace("'", "&#39;")
        frame = (
            f'<iframe title="{escaped(_alt(self.release))}" sandbox="allow-scripts allow-downloads" '
            'referrerpolicy="no-referrer" style="position:absolute;inset:0;width:100%;height:100%;border:0" '
            f"srcdoc='{page}'></iframe>"
        )
        place = f'<div style="position:relative;height:{self.height}px;overflow:hidden">'
        picture, bundle = _picture(self.release, f"max-width:100%;max-height:{self.height}px")
        shown = f'<div class="sfumato-widget"><style>{_STYLE}</style>{place}{picture}{frame}</div>'
        return bundle | {
            "text/plain": repr(self),
            "text/html": f"{shown}<p>{escaped(self.release.guarantee)}</p></div>",
        }


def make_widget(release: Release, height: int) -> Widget:
    """Returns the page of a release as a widget. Raises RequestError: see `Release.widget`."""
    if not isinstance(height, int) or not _HEIGHTS[0] <= height <= _HEIGHTS[1]:
        raise RequestError(f"height: must be a number of pixels from {_HEIGHTS[0]} to {_HEIGHTS[1]:,}, got {height!r}")
    # The views of all jobs, which reading a release does without.
    from sfumato.pipelines.operations.readers import release_view
    from sfumato.transforms.report.report import render_page

    view = release_view(release)
    # In a notebook nothing lies next to the page.
    alone = view.model_copy(update={"files": [], "picture": None, "timeline": None})
    return Widget(release, height, render_page(alone))


def picture_bundle(release: Release, link: str) -> Bundle:
    """Returns the default of a notebook: the release's picture and guarantee. Nothing in it is run.

    link: HTML of a link to the page, or an empty text.
    """
    heading = f"sfumato {release.manifest.get('job')}: {release.manifest.get('release_id')}"
    picture, bundle = _picture(release, "max-width:480px")
    shown = f'<div style="max-width:640px"><h4>{escaped(heading)}</h4>{picture}<p>{escaped(release.guarantee)}</p>'
    return bundle | {"text/plain": repr(release), "text/html": f"{shown}{link}</div>"}


def _picture(release: Release, style: str) -> tuple[str, Bundle]:
    """Returns HTML of the release's picture, or of the error that takes its place, and what a notebook keeps of it by
    type.
    """
    try:
        encoded = _encoded_picture(release)
    except (RequestError, OSError) as error:
        return f"<p>{escaped(error)}</p>", {}
    if encoded is None:
        return "", {}
    shown = f'<img alt="{escaped(_alt(release))}" style="{style}" src="data:image/png;base64,{encoded}">'
    return shown, {"image/png": encoded}


def _encoded_picture(release: Release) -> str | None:
    """Returns the release's first picture as base64, at most 800 pixels wide and with 256 colours; None without one.

    A picture of a map with a million users shrinks from 670 kB to 100 kB so.
    """
    name = next((name for name in sorted(release.listed or ()) if name.endswith(".png")), None)
    if name is None:
        return None
    from PIL import Image  # comes with matplotlib

    made = io.BytesIO()
    with Image.open(io.BytesIO(release.read(name))) as picture:
        small = picture.convert("RGB")
    small.thumbnail((_WIDTH, 4 * _WIDTH), Image.Resampling.LANCZOS)
    few = small.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode()


def _alt(release: Release) -> str:
    numbers = f"; its numbers are in the tables {', '.join(release.tables)}" if release.tables else ""
    return f"Result of sfumato {release.manifest.get('job')}{numbers}"


def escaped(text: object) -> str:
    """Returns a text in HTML."""
    return html.escape(str(text), quote=True)
