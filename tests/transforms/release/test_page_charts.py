"""The text of the pages of items, cells and quantiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.charts import CellLayer, Curve, ItemBars
from sfumato.transforms.release.page_charts import render_cells_page, render_items_page, render_quantiles_page
from tests.transforms.release.city import embedded
from tests.transforms.release.samples import city_cells, prefix_items, sample_manifest, trip_lengths, zipf_items

ATTACK = '</script><script>alert(1)</script><!-- <img src=x> & \u2028 {{style}} {{data}}"'
NO_ITEMS = ItemBars([], np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(0))
NO_CELLS = CellLayer(4, np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(0), [], 0.5, 20)
NO_CURVE = Curve(*[np.zeros(0)] * 4)


def pages(manifest: Callable[..., dict[str, Any]]) -> list[str]:
    return [
        render_items_page(manifest("histogram"), zipf_items(200)),
        render_items_page(manifest("hotspots", (2, 4, 8, 0)), prefix_items(n=200)),
        render_cells_page(manifest("histogram", (6,)), city_cells((6,))),
        render_cells_page(manifest("hotspots", (3, 5, 7)), city_cells((3, 5, 7))),
        render_quantiles_page(manifest("quantiles", (0, 0)), *trip_lengths()),
    ]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return pages(sample_manifest)


def test_pages_are_self_contained(texts: list[str]) -> None:
    for text in texts:
        markup = re.sub(r"(?s)(?<=<script).*?(?=</script>)", "", text)
        for address in re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", markup):
            assert address.startswith(("data:", "#")) or address.endswith((".json", ".parquet"))
        assert not re.search(r"@import|url\s*\(\s*(?!#)|@font-face| style=", markup)
        script = text[text.rindex("<script>") :]
        assert not re.search(
            r"https?://(?!www\.w3\.org/2000/svg)|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", script
        )
        assert "default-src &#x27;none&#x27;" in text


def test_equal_arguments_give_equal_pages(texts: list[str]) -> None:
    assert pages(sample_manifest) == texts


def test_words_of_the_heatmap_stay_with_the_heatmap(texts: list[str]) -> None:
    for text in texts:
        shown = re.sub(r"(?s)<script type=.application/json.*?</script>|<style>.*?</style>", "", text)
        assert not re.search(r"[Ss]ub-quer|spent\b|lost in noise|[Nn]oisy", re.sub(r"(?m)//.*$|/\*\*.*?\*/", "", shown))


def test_files_are_linked_and_may_be_named() -> None:
    text = render_items_page(sample_manifest("histogram"), zipf_items(50), files=[("x.csv", "a table")])
    assert embedded(text)["files"] == [["x.csv", "a table"]]
    assert 'href="x.csv"' in text


def test_numbers_survive() -> None:
    items = prefix_items(n=300)
    read = embedded(render_items_page(sample_manifest("hotspots"), items))["items"]
    assert read["name"] == items.name
    assert read["level"] == items.level.tolist()
    assert read["parent"] == items.parent.tolist()
    np.testing.assert_allclose(read["count"], items.count, rtol=1e-6)
    np.testing.assert_allclose(read["stddev"], items.stddev, rtol=1e-6)


@pytest.mark.parametrize("job", ["histogram", "hotspots"])
def test_nothing_in_names_or_manifest_can_leave_its_script(job: str) -> None:
    manifest = sample_manifest(job, parameters={"column": ATTACK}, warnings=[ATTACK], release_id=ATTACK)
    items = replace(zipf_items(60), name=[ATTACK] * len(zipf_items(60).name))
    cells = replace(city_cells((4,))[0], cell_id=[ATTACK] * len(city_cells((4,))[0].x))
    for text in (
        render_items_page(manifest, items),
        render_cells_page(manifest, [cells]),
        render_quantiles_page(manifest, *trip_lengths()),
    ):
        assert text.count("</script>") == 2
        assert text.count("<script") == 2
        assert "<!--" not in text
        assert "\u2028" not in text[text.index("<script") :]
        assert not re.search(r"<img(?! alt=)", text)
        assert embedded(text)["manifest"]["warnings"] == [ATTACK]


def test_half_a_character_can_be_written() -> None:
    items = replace(zipf_items(60), name=["\ud800"] * len(zipf_items(60).name))
    render_items_page(sample_manifest("histogram"), items).encode()


def test_without_scripts_the_largest_and_the_guarantee_are_read() -> None:
    items = zipf_items(300)
    still = render_items_page(sample_manifest("histogram"), items).split("<noscript>")[1].split("</noscript>")[0]
    assert f"<td>{items.name[0]}</td><td>{items.count[0]:,.0f}</td>" in still
    assert still.count("<tr>") == 101
    assert "ε = 1 and δ = 10⁻⁸" in still
    assert "at most 118 users" in still
    prefixes = prefix_items(n=300)
    still = render_items_page(sample_manifest("hotspots"), prefixes).split("<noscript>")[1].split("</noscript>")[0]
    assert "…" not in still  # whole items where there are some


def test_a_known_seed_sounds_the_alarm_and_promises_nothing() -> None:
    for text in pages(lambda *given: sample_manifest(*given, safe=False)):
        before = text.split('<script type="application/json"')[0]
        assert "NOT private" in before
        assert "tell who was drawn" in before
        assert "protected by" not in before


def test_empty_releases_and_empty_manifests_are_drawn() -> None:
    for manifest in ({}, {"privacy": None, "results": 3, "parameters": "x", "region": "nowhere", "grid": []}):
        assert "draws" in embedded(render_items_page(manifest, NO_ITEMS))["problems"][0]
        read = embedded(render_cells_page(manifest, [NO_CELLS]))
        assert read["manifest"]["grid"]["depth"] == 4
        assert any("region" in problem for problem in read["problems"])
        assert embedded(render_quantiles_page(manifest, NO_CURVE, [], []))["curve"]["value"] == []


def test_layers_must_be_there_and_ascend() -> None:
    cells = city_cells((3, 5))
    with pytest.raises(ValueError, match=r"^layers: a page needs"):
        render_cells_page({}, [])
    with pytest.raises(ValueError, match=r"^layers: levels must ascend"):
        render_cells_page({}, cells[::-1])
