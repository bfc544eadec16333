"""The page as one text, its layers and files: what its policy allows, and that nothing breaks out of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from shapely.geometry import box

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import NORMAL_SUMS
from sfumato.schemas.region import Region
from sfumato.schemas.views import PageView
from sfumato.schemas.views.map_views import Basemap
from sfumato.schemas.views.view_parts import FileLink, Section, Table
from sfumato.transforms.report.layers import simple_paths
from sfumato.transforms.report.released import Released
from sfumato.transforms.report.report import render_page
from sfumato.transforms.report.sections import alarm, common_sections, guarantee, period, tail_sums
from tests import ROOT
from tests.seeds import seeded_rng
from tests.unit.release.city import city_release
from tests.unit.report.samples import layer_of, map_of, view_of

HOSTILE = "</script></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--{{ 7 * 7 }}\u2028"


def map_view(cells: int = 4, **fields: Any) -> PageView:
    """A map of so many cells of one level with values like those of a real one."""
    side = int(np.ceil(np.sqrt(cells)))
    rng = seeded_rng(1)
    users = np.round(rng.gamma(0.6, 60, cells), 1)
    places = np.array(
        [np.full(cells, int(np.ceil(np.log2(max(side, 2))))), np.arange(cells) % side, np.arange(cells) // side]
    )
    layer = layer_of(dict(zip(map(tuple, places.T.tolist()), users.tolist(), strict=True)), kind="count")
    low, high = (np.round(users + way * rng.random(cells) * 20, 1).tolist() for way in (-1, 1))
    measure = layer.measures[0].model_copy(update={"low": low, "high": high})
    view = view_of(map_of(layer.model_copy(update={"measures": [measure]})), manifest={"job": "heatmap"})
    return PageView.model_validate({**view.model_dump(), **fields})


def embedded(page: str) -> Any:
    found = re.search(r'<script type="text/plain" id="view">([A-Za-z0-9+/=]*)</script>', page)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


class Elements(HTMLParser):
    """The tags and attributes of a page, and the texts of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._in: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag if tag in self.raw else None

    def handle_endtag(self, tag: str) -> None:
        self._in = None

    def handle_data(self, data: str) -> None:
        if self._in:
            self.raw[self._in].append(data)


def test_the_policy_names_one_script_one_style_and_no_address() -> None:
    found = Elements(render_page(map_view()))
    (policy,) = (a["content"] for tag, a in found.tags if tag == "meta" and a.get("http-equiv"))
    assert policy
    for kind in ("script", "style"):
        (digest,) = re.findall(rf"{kind}-src 'sha256-([^']*)'(?:;|$)", policy)
        text = found.raw[kind][-1]
        assert digest == base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert not any(
        "style" in attributes or any(name.startswith("on") for name in attributes) for _, attributes in found.tags
    )
    addresses = [a.get(name) or "" for _, a in found.tags for name in ("src", "href") if a.get(name)]
    assert [one for one in addresses if "//" in one and not one.startswith("data:")] == []


def test_tiles_are_allowed_only_of_a_server_that_is_named() -> None:
    tiles = "https://tile.example.org/{z}/{x}/{y}.png"
    page = html.unescape(render_page(map_view(tiles=tiles)))
    assert re.search(r"img-src [^;]*https://tile\.example\.org[;\s]", page)
    assert "https://tile.example.org then sees which part of the map you look at" in page
    assert "tile.example.org" not in render_page(map_view())
    with pytest.raises(ValueError, match="tiles"):
        map_view(tiles="https://a.example'; script-src *; x/{z}/{x}/{y}")


def test_no_text_of_a_view_can_break_out_of_it() -> None:
    texts = ("title", "headline", "description", "release_id", "created", "guarantee", "alarm", "job")
    table = Table(title=HOSTILE, heads=[HOSTILE], rows=[[HOSTILE]], numeric=[False])
    view = map_view(
        **dict.fromkeys(texts, HOSTILE),
        problems=[HOSTILE],
        files=[FileLink(name=HOSTILE, description=HOSTILE)],
        sections=[Section(title=HOSTILE, lead=HOSTILE, paragraphs=[HOSTILE], table=table)],
        manifest={
            "job": HOSTILE,
            "parameters": {HOSTILE: HOSTILE},
            "privacy": {"assumptions": [HOSTILE], "mechanism": HOSTILE},
        },
        basemap=Basemap(source=HOSTILE),
        picture=HOSTILE,
    )
    clean, found = Elements(render_page(map_view())), Elements(render_page(view))
    assert found.raw["script"][1:] == clean.raw["script"][1:]
    assert found.raw["style"] == clean.raw["style"]
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert not any("onerror" in attributes for _, attributes in found.tags)
    assert embedded(render_page(view))["headline"] == HOSTILE
    assert "49" not in re.sub(
        r"<(script|style)[^>]*>.*?</\1>|<meta http-equiv[^>]*>", "", render_page(view), flags=re.DOTALL
    )


def test_equal_views_give_equal_pages_and_the_data_are_the_views() -> None:
    view = map_view(sections=[Section(title="A part", paragraphs=["of the report"])])
    assert render_page(view) == render_page(view.model_copy(deep=True))
    data = embedded(render_page(view))
    assert data["body"] == json.loads(view.model_dump_json())["body"]
    assert data["sections"] == []  # they are in the page already
    assert "of the report" in render_page(view)


def test_without_scripts_there_are_report_files_and_picture() -> None:
    release = city_release("adaptive", depth=4)
    page = release.page
    readable = html.unescape(re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL))
    for words in (
        "What this map promises",
        "Round by round",
        "What must be trusted",
        "cells.parquet",
        "Users reported in",
    ):
        assert words in readable
    assert '<noscript><div class="still">' in page
    assert '<img src="heatmap.png"' in page
    assert '<meta property="og:image" content="heatmap.png">' in page


def test_a_known_seed_is_named_at_the_top() -> None:
    manifest = {"job": "heatmap", "privacy": {"epsilon": 1.0, "randomness": {"source": "seed", "safe": False}}}
    assert "protects nobody" in guarantee(manifest)
    page = render_page(map_view(alarm=alarm(manifest)))
    assert page.index('role="alert"') < page.index("<main>")
    assert 'role="alert"' not in render_page(map_view())


@pytest.mark.parametrize(
    ("epsilon", "factor", "surest"), [(1.0, "2.72", "73.2%"), (0.001, "1.002", "50.1%"), (5, "148.5", "99.4%")]
)
def test_what_is_promised_is_rounded_away_from_the_bound(epsilon: float, factor: str, surest: str) -> None:
    manifest = {"job": "heatmap", "privacy": {"epsilon": epsilon, "randomness": {"safe": True}}}
    words = guarantee(manifest)
    if epsilon == 5:
        assert float(re.findall(r"factor of ([\d.]+)\.", words)[0]) >= np.exp(5)
    else:
        assert f"more than a factor of {factor}." in words
    (section,) = (one for one in common_sections(manifest) if one.title == "What this map promises")
    assert surest in section.paragraphs[0]


def test_an_empty_manifest_costs_lines_not_the_page() -> None:
    page = render_page(map_view(manifest={}))
    assert "What this" not in page
    assert "promises almost nothing" in guarantee({"privacy": {"epsilon": 40.0}})
    assert "promises nothing" in guarantee({})


def test_the_types_of_the_script_are_those_of_the_views() -> None:
    from web.views_schema import schema

    assert json.loads((ROOT / "web" / "views.schema.json").read_text()) == schema()


def test_simple_paths_leaves_no_gaps_and_keeps_holes() -> None:
    angle = np.linspace(0, 2 * np.pi, 4000, endpoint=False)
    disc = shapely.Polygon(np.stack([3.1 + 0.05 * np.cos(angle), 1.1 + 0.05 * np.sin(angle)], axis=1))
    frame = shapely.difference(box(3.0, 1.0, 3.2, 1.2), disc)
    shapes = np.array([frame, disc], dtype=object)
    made = simple_paths(shapes, Region(3.0, 1.0, 3.2, 1.2))
    assert [len(rings) for rings in made] == [2, 1]
    assert sum(len(ring) for rings in made for ring in rings) < 1000
    again = [shapely.Polygon(rings[0], rings[1:]) for rings in made]
    assert shapely.coverage_is_valid(np.array(again, dtype=object))


def released() -> Released:
    file = io.BytesIO()
    pq.write_table(pa.table({"count": [1.0], "geometry": [b""]}), file)
    manifest = {"job": "heatmap", "release_id": "r", "created": "2026-11-20T00:00:00+00:00", "files": {"a": {}}}
    return Released({"cells.parquet": file.getvalue(), "manifest.json": json.dumps(manifest).encode()})


def test_page_names_only_files_that_are_there() -> None:
    described = {"cells.parquet": "cells", "zones.parquet": "zones", "map.png": "a picture"}
    texts = {"title": "Map", "headline": "Users", "description": ""}
    view = released().page(map_of(layer_of({})), [], [], described, ["map.png"], **texts)
    assert [file.name for file in view.files] == ["cells.parquet", "map.png"]
    assert (view.job, view.release_id, view.picture) == ("heatmap", "r", "map.png")
    assert "files" not in view.manifest
    other = released().page(map_of(layer_of({})), [], [], {}, ["map.png"], **texts, job="ranges build")
    assert other.job == "ranges build"  # given fields replace those of the manifest
    assert released().table("cells.parquet", without={"geometry"}).column_names == ["count"]


def test_tail_sums_asks_for_the_kind_of_noise() -> None:
    def stated(noise: str) -> dict[str, Any]:
        return {"privacy": {"noise": noise, "sub_queries": [{"shards": 9}, {"shards": 7, "shards_lost": 2}]}}

    assert [tail_sums(stated(noise)) for noise in ("laplace", "gaussian")] == [5, NORMAL_SUMS]
    assert tail_sums(stated("laplace"), {"servers": 2}) == 2
    with pytest.raises(RequestError, match="uniform"):
        tail_sums(stated("uniform"))


@pytest.mark.parametrize(
    ("days", "hours", "text"),
    [
        ("2026-09-14", None, "14 Sep 2026"),
        ("2026-09-14:2026-09-14", "8-9", "14 Sep 2026, 8–9 h"),
        ("2026-09-14:2026-09-16", "8-9", "14 to 16 Sep 2026 (3 days together), 8–9 h"),
        ("2026-09-14:2026-10-14", None, "14 Sep to 14 Oct 2026 (31 days together)"),
        ("2025-12-31:2026-01-01", None, "31 Dec 2025 to 1 Jan 2026 (2 days together)"),
        ("", None, None),
    ],
)
def test_period(days: str, hours: str | None, text: str | None) -> None:
    stated = {"days_read": days, **({} if hours is None else {"hours": hours})}
    assert period({"parameters": stated}) == text
