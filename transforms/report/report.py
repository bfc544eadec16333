"""A view as one HTML page that fetches nothing. Pure.

The script and the style sheet are the bundle that `web/` builds. The policy names their hashes, so no other code could
run even if it were in the page. The view travels in the page as base64 of gzip of JSON: no text in it can end the
element that holds it.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import re
import zlib
from importlib import resources

import jinja2
from markupsafe import Markup

from sfumato.schemas.views import PageView
from sfumato.schemas.views.flow_views import TimelineBody
from sfumato.schemas.views.view_parts import tile_host as host_of
from sfumato.transforms.report.released import worded
from sfumato.transforms.report.sections import common_sections

_PACKAGE = "sfumato.transforms.report"
_COMPRESSION = 5  # level 9 takes ten times as long for 4% less
_FETCHED = " 'self' file:"  # a page that is opened from a disk has no origin that 'self' could name


def render_page(view: PageView) -> str:
    """Returns the whole page: the first screen's data and script, and the report as plain HTML.

    The same view gives the same text.

    Args:
        view: what to show. Tiles of `view.tiles` are allowed by the policy; nothing else is fetched, but for the
            pictures next to the page and the maps of a timeline's nights.
    """
    script, style = (_text("bundle", name) for name in ("page.js", "page.css"))
    tile_host = "" if view.tiles is None else host_of(view.tiles)
    others = _FETCHED if isinstance(view.body, TimelineBody) else ""
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'{others}; style-src '{_digest(style)}'; "
        f"img-src data: blob:{_FETCHED}{f' {tile_host}' if tile_host else ''}; base-uri 'none'; form-action 'none'"
    )
    data = view.model_copy(update={"sections": [], "files": []}).model_dump_json()  # the report is in the page already
    # Parameters and versions, which are folded, are quoted.
    common = [one if one.folded else worded(one, view) for one in common_sections(view.manifest)]
    template = _environment().get_template("page.html.j2")
    return template.render(
        view=view,
        sections=[*view.sections, *common],
        policy=policy,
        tile_host=tile_host,
        style=Markup(style),
        script=Markup(script),
        data=base64.b64encode(gzip.compress(data.encode(), _COMPRESSION, mtime=0)).decode(),
    )


def view_in_page(page: str) -> PageView:
    """Returns the view of a page of `render_page`, without its report. Raises ValueError if it has none."""
    found = re.search(r'<script type="text/plain" id="view">([\w+/=]+)</script>', page)
    if found is None:
        raise ValueError("the page holds no view")
    try:
        return PageView.model_validate_json(gzip.decompress(base64.b64decode(found[1])))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"the page's view is damaged ({error})") from None


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(loader=jinja2.FunctionLoader(_text), autoescape=True, undefined=jinja2.StrictUndefined)


def _text(*path: str) -> str:
    return resources.files(_PACKAGE).joinpath(*path).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
