"""What a page and its pictures show: typed views, made of published artefacts only.

A room (`heatmap`, `histogram`, ...) makes a `PageView` from a release's published files. `transforms/report`, which
imports nothing but schemas, renders it. The page's script reads the same JSON; `web/src/views.ts` has its types.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from sfumato.schemas.views.chart_views import BarsBody, CurveBody, MomentsBody, RangesBody
from sfumato.schemas.views.flow_views import FlowsBody, TimelineBody
from sfumato.schemas.views.map_views import Basemap, MapBody
from sfumato.schemas.views.view_parts import Fact, FileLink, Section, Tiles, ViewPart

Body = Annotated[
    MapBody | BarsBody | CurveBody | MomentsBody | RangesBody | FlowsBody | TimelineBody, Field(discriminator="kind")
]


class PageView(ViewPart):
    """A whole page.

    Attributes:
        title: what the page is, such as `Private heatmap`.
        heading: the operator's title, above the headline; None without one.
        headline: the first line of the first screen.
        place: the region's name, or its middle in degrees; None without a map.
        period: days of the records, in words; None if they are not stated.
        file_name: of the files that a reader saves, without what follows its dot.
        description: one sentence for search engines and link previews.
        job: the command that made the release.
        chips: two to four facts next to the title.
        guarantee: two sentences.
        alarm: a warning if the release used a known seed; None for a secret key.
        problems: gaps and warnings of the manifest.
        picture: file name of the preview picture; None without one.
        timeline: relative link to the timeline that contains the release; None if unknown.
        sections: the report.
        manifest: the published manifest, without the list of files.
        tiles: URL pattern of a tile server that the operator named; None without.
    """

    title: str
    heading: str | None = None
    headline: str
    place: str | None = None
    period: str | None = None
    file_name: str = "sfumato"
    description: str
    job: str
    release_id: str
    created: str
    chips: list[Fact] = []
    guarantee: str
    alarm: str | None = None
    problems: list[str] = []
    files: list[FileLink] = []
    picture: str | None = None
    timeline: str | None = None
    sections: list[Section] = []
    manifest: dict[str, Any]
    basemap: Basemap | None = None
    tiles: Tiles | None = None
    body: Body

    @property
    def map(self) -> MapBody | None:
        """The map that represents the release in its picture; None where charts do."""
        if isinstance(self.body, RangesBody):
            return self.body.background
        return self.body if isinstance(self.body, MapBody) else getattr(self.body, "map", None)
