"""Notebooks as pages of the site: their links lead to pages, and each can be downloaded. MkDocs calls this hook."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.exceptions import PluginError


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """The HTML of a page; that of a notebook with links to pages. Raises PluginError where there is no such page."""
    here = page.file.src_uri
    if not here.endswith(".ipynb"):
        return html

    def linked(match: re.Match[str]) -> str:
        found = files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(here), match[1])))
        if found is None:
            raise PluginError(f"{here}: there is no page {match[1]}, to which it links")
        return f'href="{found.url_relative_to(page.file)}"'

    download = f'<p><a href="{posixpath.basename(here)}" download>Download this notebook</a></p>'
    return download + re.sub(r'href="([^"#:]+\.(?:md|ipynb))"', linked, html)
