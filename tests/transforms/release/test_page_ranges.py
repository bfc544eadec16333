"""The text of the page of a model of range queries."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.counts_model import GridModel
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.noisy_counts import NoisyGrid, strip_edges
from sfumato.transforms.release.page_ranges import MOST_NUMBERS, embedded_model, ranges_page
from tests.transforms.ranges.models import FIELD, grid_model, partition_model
from tests.transforms.ranges.samples import ranges_manifest, slope_model
from tests.transforms.release.city import embedded

ATTACK = '</script><script>alert(1)</script><!-- <img src=x> & \u2028 {{style}} {{data}}"'


def pages(**manifest: Any) -> list[str]:
    return [
        ranges_page(model, ranges_manifest(model, **manifest))
        for model in (grid_model(), partition_model(), slope_model())
    ]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return pages()


def test_pages_are_self_contained_and_repeatable(texts: list[str]) -> None:
    assert pages() == texts
    for text in texts:
        markup = re.sub(r"(?s)(?<=<script).*?(?=</script>)", "", text)
        for address in re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", markup):
            assert address.startswith(("data:", "#")) or address in ("manifest.json", "model.npz")
        assert not re.search(r"@import|url\s*\(\s*(?!#)|@font-face| style=", markup)
        script = text[text.rindex("<script>") :]
        assert not re.search(
            r"https?://(?!www\.w3\.org/2000/svg)|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", script
        )
        assert "default-src &#x27;none&#x27;" in text


def test_the_page_holds_all_of_a_grid() -> None:
    model = grid_model()
    grid = model.model.grid  # type: ignore[attr-defined]
    held = embedded(ranges_page(model, {}))["model"]
    assert held["kind"] == "grid"
    assert (held["x_edges"], held["y_edges"]) == (grid.x_edges.tolist(), grid.y_edges.tolist())
    assert held["users"] == grid.users.ravel().tolist()
    assert held["users"][0] == int(held["users"][0])
    assert min(held["users"]) < 0  # as they are; what an answer makes of it is the model's own
    assert held["noise"] == pytest.approx(grid.noise_stddev**2)
    assert held["metres"] == pytest.approx(FIELD.metres)


def test_the_page_holds_all_of_a_partition() -> None:
    model = partition_model()
    parts = model.model.partition  # type: ignore[attr-defined]
    held = embedded(ranges_page(model, {}))["model"]
    assert held["kind"] == "partition"
    for name in ("x0", "y0", "x1", "y1"):
        assert held[name] == getattr(parts, name).tolist()
    for name in ("users", "variance"):
        np.testing.assert_allclose(held[name], getattr(parts, name), rtol=1e-6)


def test_of_other_models_the_page_holds_a_raster_and_errors() -> None:
    model = slope_model()
    held = embedded_model(model)
    assert held["kind"] == "raster"
    assert len(held["x_edges"]) == len(held["y_edges"]) == 513
    whole = model.model.answer(Boxes(*(np.array([one]) for one in (0.0, 0.0, 4096.0, 4096.0)))).users[0]
    assert sum(held["users"]) == pytest.approx(whole, rel=1e-5)
    errors = held["errors"]
    assert len(errors["stddev"]) == len(errors["sizes"]) * errors["places"] ** 2
    assert errors["sizes"][0] < 50
    assert errors["sizes"][-1] == pytest.approx(min(FIELD.metres))
    # In the middle of the map, where no square is cut: a hundredth of the side in base cells, of geometric mean.
    middle = np.reshape(errors["stddev"], (len(errors["sizes"]), 16, 16))[:5, 8, 8]
    side = np.array(errors["sizes"][:5]) / math.sqrt(np.prod(FIELD.cell_metres))
    np.testing.assert_allclose(middle, 0.01 * side, rtol=2e-3)


def test_a_grid_too_fine_for_a_page_is_a_raster_there() -> None:
    strips = strip_edges(FIELD.side, 4.0)
    assert (len(strips) - 1) ** 2 > MOST_NUMBERS
    grid = NoisyGrid(strips, strips, np.ones((1024, 1024)), 1.0)
    held = embedded_model(RangeModel(FIELD, GridModel(grid), "grid", 1.0))
    assert held["kind"] == "raster"
    assert len(held["users"]) == 512 * 512
    assert set(held["users"]) == {4.0}


def test_the_first_square_lies_where_people_are(texts: list[str]) -> None:
    for text, model in zip(texts, (grid_model(), partition_model(), slope_model()), strict=True):
        start = embedded(text)["start"]
        answers, inside = model.answer(*(np.array([start[name]]) for name in ("x", "y", "size")))
        assert inside[0] > 0.5
        everywhere = model.answer(*(np.array([one]) for one in (-122.435, 37.765, 60_000.0)))[0].users[0]
        share = (start["size"] ** 2) / np.prod(FIELD.metres)
        assert answers.users[0] > 1.5 * share * everywhere


def test_nothing_in_the_manifest_can_leave_its_script() -> None:
    model = replace(grid_model(), method=ATTACK)
    text = ranges_page(model, ranges_manifest(model, warnings=[ATTACK], release_id=ATTACK))
    assert text.count("</script>") == 2
    assert text.count("<script") == 2
    assert "<!--" not in text
    assert "\u2028" not in text[text.index("<script") :]
    assert embedded(text)["manifest"]["warnings"] == [ATTACK]


def test_without_scripts_the_density_and_the_guarantee_are_seen(texts: list[str]) -> None:
    for text in texts:
        still = text.split("<noscript>")[1].split("</noscript>")[0]
        assert still.count("<img") == 1
        assert "Every user is protected by differential privacy with ε = " in still
        assert "sfumato ranges answer" in still
    for text in pages(safe=False):
        still = text.split("<noscript>")[1].split("</noscript>")[0]
        assert "protected" not in still
        assert 'id="banner"' in text


def test_words_of_other_jobs_stay_with_them(texts: list[str]) -> None:
    for text in texts:
        shown = re.sub(r"(?s)<script type=.application/json.*?</script>|<style>.*?</style>", "", text)
        shown = re.sub(r"(?m)//.*$|/\*\*.*?\*/", "", shown)
        assert not re.search(r"[Ss]ub-quer|hidden_count|threshold|was drawn with probability|bit pushing", shown)
