"""The text of the page of moments."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.moments import BitMeans, MomentEstimate
from sfumato.transforms.release.page_moments import CellMeans, render_means_thumbnail, render_moments_page
from tests.transforms.release.city import embedded
from tests.transforms.release.moment_samples import (
    estimate,
    estimates,
    groups,
    mean_cells,
    moments_manifest,
    split_bits,
    unsigned_bits,
)
from tests.transforms.release.test_picture import pixels

ATTACK = '</script><script>alert(1)</script><!-- <img src=x> & \u2028 {{style}} {{data}}"'


def pages(**manifest: Any) -> list[str]:
    bits, both, raw = unsigned_bits(), split_bits(), unsigned_bits(None)
    return [
        render_moments_page(moments_manifest(**manifest), estimates(bits), bits),
        render_moments_page(moments_manifest(**manifest), estimates(bits) + groups(40), bits),
        render_moments_page(moments_manifest(signed="split", **manifest), estimates(both, ("mean", "variance")), both),
        render_moments_page(moments_manifest(**{"epsilon": None} | manifest), estimates(raw), raw),
        render_moments_page(moments_manifest(**manifest), estimates(bits), bits, CellMeans(**mean_cells())),
    ]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return pages()


def still(text: str) -> str:
    return text.split("<noscript>")[1].split("</noscript>")[0]


def test_pages_are_self_contained_and_repeatable(texts: list[str]) -> None:
    assert pages() == texts
    for text in texts:
        markup = re.sub(r"(?s)(?<=<script).*?(?=</script>)", "", text)
        for address in re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", markup):
            assert address.startswith(("data:", "#")) or address.endswith((".json", ".parquet", ".png"))
        assert not re.search(r"@import|url\s*\(\s*(?!#)|@font-face| style=", markup)
        script = text[text.rindex("<script>") :]
        assert not re.search(
            r"https?://(?!www\.w3\.org/2000/svg)|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", script
        )
        assert "default-src &#x27;none&#x27;" in text


def test_words_of_other_jobs_stay_with_them(texts: list[str]) -> None:
    for text in texts:
        shown = re.sub(r"(?s)<script type=.application/json.*?</script>|<style>.*?</style>", "", text)
        shown = re.sub(r"(?m)//.*$|/\*\*.*?\*/", "", shown)
        assert not re.search(r"[Ss]ub-quer|hidden_count|threshold|was drawn with probability|was dropped", shown)


def test_numbers_survive() -> None:
    bits = split_bits()
    read = embedded(render_moments_page(moments_manifest(), estimates(bits), bits))["bits"]
    for packed, given in zip(read, bits, strict=True):
        order = np.argsort(given.weight)
        for name in ("weight", "mean", "stddev", "reports", "read_probability"):
            np.testing.assert_allclose(packed[name], getattr(given, name)[order], rtol=1e-6)
        assert packed["squashed"] == given.squashed[order].tolist()
        added = np.where(given.squashed, 0, given.weight * given.mean)
        np.testing.assert_allclose(packed["added"], added[order], rtol=1e-6)
    made = groups(3, ("mean", "variance"))
    read = embedded(render_moments_page(moments_manifest(), estimates(bits) + made, bits))["groups"]
    assert [one["title"] for one in read] == ["Mean", "Variance"]
    assert read[1]["name"] == ["District 1", "District 2", "District 3", "other"]
    np.testing.assert_allclose(read[0]["low"], [one.low for one in made if one.statistic == "mean"], rtol=1e-6)
    cells = CellMeans(**mean_cells())
    read = embedded(render_moments_page(moments_manifest(), estimates(bits), bits, cells))
    np.testing.assert_allclose(read["groups"][0]["value"], cells.value, rtol=1e-6)
    assert (read["layers"][0]["x"], read["layers"][0]["y"]) == (cells.x.tolist(), cells.y.tolist())


def test_nothing_in_names_or_manifest_can_leave_its_script() -> None:
    manifest = moments_manifest(column=ATTACK, warnings=[ATTACK], release_id=ATTACK)
    bits = [replace(one, quantity=ATTACK) for one in unsigned_bits()]
    numbers = [*estimates(bits), *(replace(one, group=ATTACK, statistic=ATTACK) for one in groups(2))]
    cells = CellMeans(**mean_cells() | {"cell_id": [ATTACK] * len(mean_cells()["x"])})
    for text in (
        render_moments_page(manifest, numbers, bits),
        render_moments_page(manifest, numbers, bits, cells),
        render_moments_page(manifest, numbers, bits, files=[(ATTACK, ATTACK)]),
    ):
        assert text.count("</script>") == 2
        assert text.count("<script") == 2
        assert "<!--" not in text
        assert "\u2028" not in text[text.index("<script") :]
        assert not re.search(r"<img(?! alt=)", text)
        assert embedded(text)["manifest"]["warnings"] == [ATTACK]


def test_without_scripts_the_numbers_and_the_guarantee_are_read(texts: list[str]) -> None:
    one, many, both, raw, mapped = map(still, texts)
    assert "Each client gave one bit, randomised with ε = 2: local differential privacy." in one
    assert "Each client gave one bit, as it is: no differential privacy." in raw
    assert "<td>District 7</td>" in many
    assert "<td>Variance</td>" in both
    assert one.count("<img") == 1
    assert mapped.count("<img") == 2
    assert mapped.count("<tr>") == 2 + 101
    links = [link for link, _ in embedded(texts[4])["files"]]
    assert links == ["moments.parquet", "bits.parquet", "cells.parquet", "moments.png", "manifest.json"]
    for text in (one, many, both, raw):
        assert "cells.parquet" not in text


def test_a_known_seed_sounds_the_alarm_and_promises_nothing() -> None:
    for text in pages(safe=False):
        before = text.split('<script type="application/json"')[0]
        assert "NOT private" in before
        assert "undo the protection of every report" in before
        assert "randomised with" not in before


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"privacy": None, "results": 3, "parameters": "x", "column": 7, "fixed_point": []},
        {"privacy": {"meter": 3, "epsilon": "2", "trust": "local"}, "region": "nowhere"},
        {"privacy": {"meter": {"bits_per_client": -1}, "epsilon": math.nan, "trust": "local"}},
    ],
)
def test_poor_manifests_cost_lines_not_the_page(manifest: dict[str, Any]) -> None:
    bits = unsigned_bits()
    for cells in (None, CellMeans(**mean_cells())):
        text = render_moments_page(manifest, estimates(bits), bits, cells)
        assert "draws" in " ".join(embedded(text)["problems"])
        assert "local differential privacy" not in still(text)


def test_odd_numbers_and_empty_lists_are_drawn() -> None:
    odd = np.array([math.nan, math.inf, -math.inf])
    bits = BitMeans("value", 2.0 ** np.arange(3), odd, odd, odd, np.array([True, False, False]), odd)
    numbers = [
        MomentEstimate(group, "mean", value, value, -math.inf, math.inf, value)
        for group in ("everybody", "a", "b")
        for value in odd.tolist()
    ]
    none = CellMeans(3, *[np.zeros(0, int)] * 2, [], *[np.zeros(0)] * 4, np.zeros(0, np.int8))
    odd_cells = CellMeans(3, np.arange(3), np.arange(3), ["a", "b", "c"], odd, odd, odd, odd, np.zeros(3, np.int8))
    for cells in (None, none, odd_cells):
        for text in (render_moments_page({}, [], [], cells), render_moments_page({}, numbers, [bits], cells)):
            assert not re.search(r"\bNaN\b|\bInfinity\b", text.split('id="sfumato-data">')[1].split("</script>")[0])
    assert embedded(render_moments_page({}, numbers, [bits]))["statistics"][0]["value"] == "unknown"


def test_half_a_character_can_be_written() -> None:
    render_moments_page(moments_manifest(column="\ud800"), [estimate("\ud800", "mean", 1, 1)], []).encode()


def test_cells_must_fit_their_grid() -> None:
    good = mean_cells(4)
    with pytest.raises(ValueError, match=r"^value: must hold one value for each of"):
        CellMeans(**good | {"value": good["value"][:-1]})
    with pytest.raises(ValueError, match=r"^y: must lie in 0\.\.2\^level - 1"):
        CellMeans(**good | {"y": good["y"] + 16})
    with pytest.raises(ValueError, match=r"^level: must lie in 0\.\.20, got 21"):
        CellMeans(**good | {"level": 21})


def test_thumbnail_is_bright_where_values_are_high_and_dark_where_none_are() -> None:
    cells = CellMeans(
        2,
        np.array([0, 3, 1]),
        np.array([0, 1, 2]),
        ["a", "b", "c"],
        np.array([-5.0, 9.0, math.nan]),
        *[np.zeros(3)] * 3,
        np.zeros(3, np.int8),
    )
    image = pixels(render_means_thumbnail(cells))
    ground = image[3, 3]
    assert image.shape == (4, 4, 3)
    assert image[1, 3].sum() > image[0, 0].sum() > ground.sum()
    assert (image[2, 1] == ground).all()
    fine = replace(cells, level=12, x=np.array([0, 4095, 9]))
    assert pixels(render_means_thumbnail(fine)).shape == (512, 512, 3)
