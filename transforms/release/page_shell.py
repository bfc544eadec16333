"""What every page of a release shares: frame, content security policy, embedded facts, alarm, tables. Pure.

The templates `page*.html`, `page*.css` and `page_*.js` lie beside this module. The manifest and the data travel
inside the page as JSON that no value can break out of, and the policy names the hashes of the one script and the
one style sheet, so that nothing else could run or be fetched even if it were there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

# Inferno (S. van der Walt and N. Smith, CC0), every eighth colour: uniform to the eye.
PALETTE = (
    "0000040403120b0724150b37210c4a2f0a5b3d09654a0c6b57106e64156e71196e7d1e6d8a226a972766a32c61b0315bbc3754"
    "c73e4cd24644db503be45a31eb6628f1731df68013f98e09fb9d07fcac11fbbc21f9cb35f5db4cf2ea69f3f68afcffa4"
)
STILL_ROWS = 100  # of a table that is shown where scripts do not run
REGION_KEYS = ("west", "south", "east", "north")
Files = Sequence[tuple[str, str]]


def render_shell(
    *,
    title: str,
    metadata: dict[str, Any],
    problems: list[str],
    data: Mapping[str, Any],
    files: Files,
    stage: str,
    scripts: Iterable[str],
    styles: Iterable[str],
    still: str,
    alarm: str,
    loads: bool = False,
) -> str:
    """The whole page as one text.

    Args:
        title: what the page is, as in `Private heatmap`.
        metadata: the manifest in JSON's types (see `plain`).
        problems: what was wrong with the manifest, in words for the reader.
        data: what the scripts show, in JSON's types.
        files: name and description of each file that lies beside the page.
        stage: markup of the page's first screen.
        scripts: names of the parts of the one script, in order; they share one scope.
        styles: names of the parts of the style sheet, in order.
        still: markup that is shown where scripts do not run.
        alarm: what a known seed makes of this release, in one sentence of plain text; `{}` stands for the source.
        loads: the scripts may load further ones from the page's own place.
    """
    style = "".join(map(template, styles))
    script = '"use strict";\n(() => {\n' + "".join(map(template, scripts)) + "})();\n"
    # A page that is opened from a disk has no origin that 'self' could name, but a scheme.
    others = " 'self' file:" if loads else ""
    fields = {
        "csp": html.escape(
            f"default-src 'none'; script-src '{_digest(script)}'{others}; style-src '{_digest(style)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        "title": html.escape(f"{title} {metadata.get('release_id') or ''}".strip()),
        "name": html.escape(title),
        "kind": html.escape(title[:1].lower() + title[1:]),
        "banner": _banner(metadata, alarm),
        "still": still,
        "stage": stage,
        "style": style,
        "script": script,
        "data": _embed({"manifest": metadata, "problems": problems, "files": list(files), **data}),
    }
    return fill("page.html", fields)


def template(name: str) -> str:
    """The text of a file that lies beside this module."""
    return resources.files("sfumato.transforms.release").joinpath(name).read_text(encoding="utf-8")


def fill(name: str, fields: Mapping[str, str]) -> str:
    """A template with its `{{fields}}` filled in, in one pass: nothing inside a value is ever taken for a field."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template(name))


def plain(value: Any) -> Any:
    """The value in JSON's own types. NaN and infinity become null, what JSON does not know becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def part_of(metadata: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A part of the manifest, such as `privacy`; empty where it names none."""
    part = metadata.get(key)
    return part if isinstance(part, dict) else {}


def rounded(values: Iterable[float], digits: int = 7) -> list[float]:
    """Rounded to so many significant digits: the page's size, not its precision."""
    return [float(f"{value:.{digits}g}") for value in values]


def repair_region(metadata: dict[str, Any]) -> list[str]:
    """Gives the facts a region to draw where they have none that serves, and says so in words for the reader."""
    sides = [part_of(metadata, "region").get(key) for key in REGION_KEYS]
    numbers = [float(side) for side in sides if isinstance(side, int | float)]
    if len(numbers) == 4 and numbers[0] < numbers[2] and numbers[1] < numbers[3]:
        return []
    metadata["region"] = dict(zip(REGION_KEYS, (0.0, 0.0, 1.0, 1.0), strict=True))
    return ["The manifest names no usable region: places and distances on this map mean nothing."]


def repair_depth(metadata: dict[str, Any], depth: int) -> None:
    """Gives the facts the depth of the finest grid where they do not name it."""
    if not isinstance(part_of(metadata, "grid").get("depth"), int):
        metadata["grid"] = {"depth": depth}


def repair_randomness(metadata: dict[str, Any], what: str) -> list[str]:
    """A complaint in words for the reader where the manifest does not say where `what` came from."""
    if _randomness(metadata).get("safe") is not None:
        return []
    return [f"The manifest does not say where {what} came from: its secrecy cannot be judged."]


def image(png: bytes, alt: str, width: int, height: int) -> str:
    """A PNG as an <img> that fetches nothing. `alt` is plain text; sizes in pixels."""
    source = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(alt)}" width="{width}" height="{height}" src="data:image/png;base64,{source}">'


def map_image(png: bytes, alt: str, region: Mapping[str, float]) -> str:
    """A picture of a region as an <img>, its sides in the ground's proportion."""
    tall = (region["north"] - region["south"]) / (region["east"] - region["west"])
    tall /= max(math.cos(math.radians((region["north"] + region["south"]) / 2)), 0.01)
    return image(png, alt, 512, round(512 * tall))


def still_words(what: str, files: Files, promise: str) -> str:
    """What stands above `what` is shown where scripts do not run. `what` and `promise` are markup."""
    links = " and ".join(f'<a href="{html.escape(name)}">{html.escape(name)}</a>' for name, _ in files)
    return f'<p class="noscript">Scripts are off, so these are {what}. All is in {links}. {promise}</p>'


def still_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts, for where scripts do not run."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f'<table class="still"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embed(value: object) -> str:
    """JSON that is also safe between <script> tags: no tag, comment or entity can begin in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _randomness(metadata: dict[str, Any]) -> dict[str, Any]:
    return part_of(part_of(metadata, "privacy"), "randomness")


def _banner(metadata: dict[str, Any], alarm: str) -> str:
    """The alarm, written here so that it also shows where scripts do not run."""
    randomness = _randomness(metadata)
    if randomness.get("safe", True) is not False:
        return ""
    source = html.escape(str(randomness.get("source") or "unknown"))
    return (
        '<div class="banner" id="banner" role="alert"><strong>Demonstration seed: NOT private.</strong> '
        f"{html.escape(alarm).replace('{}', source)} Do not publish this release.</div>"
    )
