"""A release's published files, opened for its page. Pure."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.schemas.log_roles import users_word
from sfumato.schemas.parquet_table import parquet_table
from sfumato.schemas.region import Region
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.schemas.views import Body, PageView
from sfumato.schemas.views.chart_views import BarsBody
from sfumato.schemas.views.map_views import Geography, MapBody
from sfumato.schemas.views.view_parts import Bounds, Fact, FileLink, Section, ViewPart
from sfumato.transforms.report.numbers import middle
from sfumato.transforms.report.place_names import PlaceNames
from sfumato.transforms.report.sections import (
    alarm,
    chips,
    file_name,
    get,
    guarantee,
    period,
    problems,
    radius,
    user_id_column,
)

Files = Mapping[str, bytes]
_Part = TypeVar("_Part", bound=ViewPart)
_USERS = re.compile(r"\b([Uu])ser(s?)\b(?![-_])")
# Fields of a view that hold what the data, the operator or the software names.
_GIVEN = frozenset(
    ("manifest", "basemap", "tiles", "heading", "place", "cell_id", "zones", "bars", "rows", "file_name",
     "job", "release_id", "created", "picture")
)  # fmt: skip


class Released:
    """A release's published files, by name, opened for its page. Files that the page does not use may be missing.

    `manifest` is the content of manifest.json, without the list of files.
    """

    def __init__(self, files: Files):
        self.files = files
        self.manifest = {name: one for name, one in json.loads(files[MANIFEST_FILE]).items() if name != "files"}

    def table(self, name: str, without: Collection[str] = ()) -> pa.Table:
        """Returns a published table. without: columns that are not read."""
        content = self.files[name]
        names = pq.read_schema(io.BytesIO(content)).names
        return parquet_table(content, [column for column in names if column not in without])

    @cached_property
    def _geography(self) -> Geography:
        return Geography.of(self.files)

    @property
    def place(self) -> str | None:
        """Returns the name of the place that the map shows; None if it has none."""
        return self._geography.place

    @property
    def place_names(self) -> PlaceNames:
        """Returns the names of places by the map's geography."""
        return PlaceNames(self._geography.basemap)

    @property
    def region(self) -> Region:
        """Returns the map's region."""
        return Region(**self.manifest["region"])

    @property
    def bounds(self) -> Bounds:
        """Returns the map's region as a page shows it."""
        return Bounds(**self.manifest["region"])

    def page(
        self,
        body: Body,
        sections: list[Section],
        own_chips: Sequence[Fact],
        files: Mapping[str, str],
        pictures: Sequence[str],
        noise: str = "The noise",
        **texts: Any,
    ) -> PageView:
        """Returns the page with the parts that the manifest states for every job.

        Args:
            body: what it shows.
            sections: of the report.
            own_chips: facts next to the title that other jobs do not have.
            files: descriptions of all files that a release of the job may have, by name.
            pictures: names of the pictures, that of the page first.
            noise: what a known seed can undo.
            texts: title, headline and description; other fields of PageView replace those of the manifest.
        """
        manifest, geography = self.manifest, self._geography
        present = {*self.files, *pictures}
        fields = {
            **{name: str(manifest.get(name, "")) for name in ("job", "release_id", "created")},
            "heading": get(manifest, "title"),
            "place": geography.place or (middle(self.region) if get(manifest, "region") else None),
            "period": ", ".join(filter(None, (period(manifest), radius(manifest)))) or None,
            "file_name": file_name(manifest, geography.place),
            "chips": chips(manifest, *own_chips),
            "guarantee": guarantee(manifest),
            "alarm": alarm(manifest, noise),
            "problems": problems(manifest),
            "files": [FileLink(name=name, description=text) for name, text in files.items() if name in present],
            "picture": pictures[0],
            "sections": sections,
            "timeline": get(manifest, "timeline"),
            "manifest": manifest,
            "basemap": geography.basemap,
            "tiles": geography.tiles,
            "body": body,
        }
        view = PageView(**{**fields, **texts})
        return worded(view, view)


def worded(part: _Part, view: PageView) -> _Part:
    """Returns a view, or a part of its page, that calls users what the title or the column of their ids says."""
    word = users_word(user_id_column(view.manifest), view.heading or "")
    is_plain = word == "user" or not isinstance(view.body, MapBody | BarsBody)  # others have texts of their own
    return part if is_plain or any(map(_USERS.search, _names(view))) else _reworded(part, word)


def _names(view: PageView) -> list[str]:
    """Returns the names that the sentences of a map or of bars repeat."""
    body, geography, sides = view.body, view.basemap, ("release_id", "before.release_id", "after.release_id")
    names = [user_id_column(view.manifest), *(str(get(view.manifest, side, "")) for side in sides)]
    names += [] if geography is None else [one.name for group in (geography.zones, geography.places) for one in group]
    if isinstance(body, BarsBody):
        return [*names, *(bar.name for bar in body.bars)]
    layers = body.layers if isinstance(body, MapBody) else []
    return [*names, *(name for layer in layers if layer.named for name in layer.cell_id)]


def _reworded(part: Any, word: str) -> Any:
    """Returns a text or a part of a view that calls users by another word; names and numbers stay."""
    if isinstance(part, str):
        several = "people" if word == "person" else f"{word}s"
        return _USERS.sub(lambda found: _like(found[0], several if found[2] else word), part)
    if isinstance(part, list) and part and isinstance(part[0], str | ViewPart):
        return [_reworded(one, word) for one in part]
    if isinstance(part, ViewPart):
        return part.model_copy(update={name: _reworded(one, word) for name, one in part if name not in _GIVEN})
    return part


def _like(text: str, word: str) -> str:
    return word.capitalize() if text[0].isupper() else word
