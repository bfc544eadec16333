"""The text of the release's page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.release.page import Layer, Rates, render_page
from sfumato.transforms.release.page_layer import map_top
from tests.transforms.release.city import (
    REGION,
    SHARDS,
    city_density,
    city_manifest,
    embedded,
    posterior_layer,
)


def test_the_made_up_city_is_what_the_tests_need(layers: list[Layer]) -> None:
    last = layers[-1]
    assert 1000 < len(last.level) < 3000
    assert any((layer.count < 0).any() for layer in layers)
    partial = (last.area > 0) & (last.area < 4 ** (10 - last.level))
    assert partial.any()
    for layer in layers:
        assert layer.area.sum() == 4**10  # every place belongs to exactly one node


def test_page_is_self_contained(layers: list[Layer]) -> None:
    text = render_page(city_manifest(layers), layers, city_density(64))
    markup = re.sub(r"(?s)(?<=<script).*?(?=</script>)", "", text)
    for address in re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", markup):
        assert address.startswith(("data:", "#")) or address in {
            "manifest.json",
            "cells.parquet",
            "density.npy",
        }
    assert not re.search(r"@import|url\s*\(|@font-face", markup)
    script = text[text.rindex("<script>") :]
    assert not re.search(
        r"https?://(?!www\.w3\.org/2000/svg)|fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon|innerHTML|eval\(",
        script,
    )
    assert "default-src &#x27;none&#x27;" in text


def test_page_links_totals_where_they_are_published(layers: list[Layer]) -> None:
    manifest = city_manifest(layers)
    assert "totals.parquet" not in [name for name, _ in embedded(render_page(manifest, layers, None))["files"]]
    manifest["errors"] = {"sums": "totals.parquet has what adds up errors"}
    assert "totals.parquet" in [name for name, _ in embedded(render_page(manifest, layers, None))["files"]]


def test_page_links_its_sibling_files(layers: list[Layer]) -> None:
    text = render_page(city_manifest(layers), layers, None)
    for name in ("cells.parquet", "density.npy", "manifest.json"):
        assert f'"{name}"' in text


def test_nothing_in_the_manifest_can_leave_its_script(layers: list[Layer]) -> None:
    attack = '</script><script>alert(1)</script><!-- <img src=x> & \u2028 {{style}} {{data}}"'
    manifest = city_manifest(layers) | {"release_id": attack, "warnings": [attack], attack: attack}
    text = render_page(manifest, layers, None)
    assert text.count("</script>") == 2
    assert text.count("<script") == 2
    assert "<!--" not in text
    assert "\u2028" not in text[text.index("<script") :]
    assert "<img" not in text
    assert embedded(text)["manifest"]["warnings"] == [attack]
    title = re.search(r"<title>(.*?)</title>", text)
    assert title
    assert "<" not in title[1]


def test_hostile_source_of_noise_is_escaped_in_the_banner(layers: list[Layer]) -> None:
    manifest = city_manifest(layers, safe=False)
    manifest["privacy"]["randomness"]["source"] = "<b onclick=x>"
    text = render_page(manifest, layers, None)
    assert "&lt;b onclick=x&gt;" in text
    assert "<b onclick" not in text


def test_counts_are_rounded_to_a_tenth_and_survive(layers: list[Layer]) -> None:
    packed = embedded(render_page(city_manifest(layers), layers, None))["layers"]
    for layer, twin in zip(layers, packed, strict=True):
        np.testing.assert_allclose(twin["count"], layer.count, atol=0.0501)
        assert twin["cell_id"] == layer.cell_id
        assert twin["area"] == layer.area.tolist()
        assert twin["stddev"] == pytest.approx(layer.stddev, rel=1e-5)


def test_shares_of_a_cell_keep_digits_below_their_noise(layers: list[Layer]) -> None:
    """Small pieces of one cell share its count and its noise: a tenth of a user would be all that they have."""
    last = layers[-1]
    noise = np.geomspace(3e-4, 3, len(last.level))
    pieces = replace(last, count=last.count * noise / 3, deviations=noise, combined=True, entries=len(noise) + 5)
    packed = embedded(render_page(city_manifest(layers), [*layers, pieces], None))["layers"]
    assert [layer["combined"] for layer in packed] == [False] * len(layers) + [True]
    assert [layer["deviations"] for layer in packed[:-1]] == [None] * len(layers)
    assert [layer["entries"] for layer in packed[:-1]] == [len(layer.level) for layer in layers]
    assert packed[-1]["entries"] == len(noise) + 5
    assert (np.abs(packed[-1]["count"] - pieces.count) < noise / 20).all()
    np.testing.assert_allclose(packed[-1]["deviations"], noise, rtol=1e-3)


def test_counts_of_very_different_deviation_keep_their_own_digits() -> None:
    layer = posterior_layer(most=2000)
    spread = np.geomspace(1e-4, 1e3, len(layer.level))
    packed = embedded(render_page({}, [replace(layer, deviations=spread)], None))["layers"][0]
    assert (np.abs(packed["count"] - layer.count) <= np.maximum(spread / 20, 1e-9)).all()
    longest = max(len(f"{count}") for count, one in zip(packed["count"], spread, strict=True) if one > 1)
    assert longest <= len("12345.6")


def test_rates_reach_the_page_rounded_to_what_their_intervals_support() -> None:
    layer = posterior_layer(most=1000, names=("yes", "no", "perhaps"))
    assert layer.rates
    data = embedded(render_page({}, [replace(posterior_layer(most=3000), combined=False), layer], None))
    assert data["layers"][0]["rates"] is None
    packed = data["layers"][1]["rates"]
    assert packed["names"] == ["yes", "no", "perhaps"]
    rate, low, high = (np.array(packed[name], dtype=float) for name in ("rate", "low", "high"))
    assert np.isnan(layer.rates.rate).any()
    for values in (rate, low, high):
        np.testing.assert_array_equal(np.isnan(values), np.isnan(layer.rates.rate))
    known = ~np.isnan(rate)
    width = (layer.rates.high - layer.rates.low)[known]
    assert (np.abs(rate - layer.rates.rate)[known] <= width / 20).all()
    assert (low <= layer.rates.low)[known].all()  # outward: an interval never reads narrower than it is
    assert (high >= layer.rates.high)[known].all()
    assert (high[known] - low[known] <= 1.25 * width).all()
    assert max(len(str(value)) for value in rate[known]) <= len("0.12345")
    assert len(data["rate_scales"]) == 3
    for scale in data["rate_scales"]:
        assert 0 <= scale["low"] < scale["high"] <= 1
        assert scale["wide"] == pytest.approx((scale["high"] - scale["low"]) / 2)
    assert embedded(render_page({}, [replace(layer, rates=None)], None))["rate_scales"] is None


def test_layers_with_different_categories_are_refused() -> None:
    one, other = (posterior_layer(most=3000, names=names) for names in (("a", "b"), ("b", "a")))
    with pytest.raises(ValueError, match=r"^rates: all layers must have the same names"):
        render_page({}, [replace(one, combined=False), other], None)


GOOD_RATES = {
    "names": ["a", "b"],
    "rate": np.array([[0.1, np.nan, 1.0], [0.5, np.nan, 0.0]]),
    "low": np.array([[0.0, np.nan, 0.9], [0.5, np.nan, 0.0]]),
    "high": np.array([[0.2, np.nan, 1.0], [0.5, np.nan, 0.3]]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", []),
        ("names", ["a", "a"]),
        ("names", ["a", 2]),
        ("rate", np.zeros(3)),
        ("rate", np.zeros((3, 3))),
        ("low", np.zeros((2, 2))),
        ("low", np.zeros((2, 3))),  # a number where the rate is NaN
        ("high", np.array([[0.2, np.nan, 1.1], [0.5, np.nan, 0.3]])),
        ("high", np.array([[0.2, np.nan, np.inf], [0.5, np.nan, 0.3]])),
        ("low", np.array([[-0.1, np.nan, 0.9], [0.5, np.nan, 0.0]])),
    ],
)
def test_rates_without_sense_are_refused(name: str, value: object) -> None:
    Rates(**GOOD_RATES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^{name}: must"):
        Rates(**(GOOD_RATES | {name: value}))  # type: ignore[arg-type]


def test_rates_outside_their_interval_or_for_other_nodes_are_refused(layers: list[Layer]) -> None:
    with pytest.raises(ValueError, match=r"^rate: must lie in its interval"):
        Rates(["a"], np.array([[0.5]]), np.array([[0.6]]), np.array([[0.7]]))
    with pytest.raises(ValueError, match=r"^rates: must hold one rate for each"):
        replace(layers[0], rates=Rates(**GOOD_RATES))  # type: ignore[arg-type]


def test_the_scale_of_users_is_made_for_the_release(layers: list[Layer]) -> None:
    for layer in (layers[-1], posterior_layer()):
        top = embedded(render_page(city_manifest([layer]), [layer], None))["top"]
        assert top == pytest.approx(map_top(layer, REGION, 10), rel=1e-5)
        cosine = np.cos(np.radians(REGION["north"] - (layer.y + 0.5) / 2.0**layer.level * 0.12))
        km2 = layer.area / 4**10 * 0.16 * 0.12 * (math.pi * 6371.0088 / 180) ** 2 * cosine
        density = np.divide(layer.count, km2, out=np.zeros(len(km2)), where=km2 > 0)
        # All is sure enough here that the users alone decide: at most 1% of them live where it is denser.
        denser = layer.count[density > top].sum() / layer.count[density > 0].sum()
        assert 0.003 < denser <= 0.01
        assert map_top(layer, REGION, 10, users=7.0) == pytest.approx(
            7 * top / np.maximum(layer.count, 0)[layer.area > 0].sum(), rel=0.1
        )
    lonely = replace(layers[-1], count=np.full(len(layers[-1].count), -1.0))
    assert map_top(lonely, REGION, 10) == 1
    assert map_top(replace(layers[-1], stddev=0.0), REGION, 10) > 0


def test_cells_fitted_to_noise_do_not_set_the_scale() -> None:
    """Many users in tiny cells that no answer tells from empty ones, as in a fit to few users' answers."""
    sure = posterior_layer(most=2000)
    n = 40
    layer = replace(
        sure,
        level=np.concatenate([sure.level, np.full(n, 10)]),
        x=np.concatenate([sure.x, 20 * np.arange(n)]),
        y=np.concatenate([sure.y, np.arange(n)]),
        count=np.concatenate([sure.count, np.full(n, 0.5 * sure.count.sum() / n)]),  # a third of all
        area=np.concatenate([sure.area, np.ones(n, np.int64)]),
        cell_id=[*sure.cell_id, *(f"t{i}" for i in range(n))],
        deviations=np.concatenate([sure.deviations, np.full(n, 10 * sure.count.sum() / n)]),  # type: ignore[list-item]
    )
    assert map_top(layer, REGION, 10) <= 1.3 * map_top(sure, REGION, 10)
    known = replace(layer, deviations=np.ones(len(layer.level)))
    assert map_top(known, REGION, 10) > 5 * map_top(sure, REGION, 10)


def test_only_the_last_layer_can_be_combined(layers: list[Layer]) -> None:
    with pytest.raises(ValueError, match=r"^layers: only the last can be combined"):
        render_page(city_manifest(layers), [replace(layers[0], combined=True), *layers[1:]], None)


def test_nan_numpy_values_and_odd_types_become_plain_json(layers: list[Layer]) -> None:
    manifest = city_manifest(layers)
    manifest["parameters"] = {
        "a": float("nan"),
        "b": np.float64(2.5),
        "c": (1, np.int64(2)),
        "d": Path("x"),
        5: None,
    }
    read = embedded(render_page(manifest, layers, None))["manifest"]["parameters"]
    assert read == {"a": None, "b": 2.5, "c": [1, 2], "d": "x", "5": None}


def test_missing_region_and_grid_are_filled_in_and_told(layers: list[Layer]) -> None:
    read = embedded(render_page({}, layers, None))
    assert read["manifest"]["grid"]["depth"] == 10
    assert read["manifest"]["region"] == {"west": 0, "south": 0, "east": 1, "north": 1}
    assert any("region" in problem for problem in read["problems"])
    assert any("noise" in problem for problem in read["problems"])
    for region in (
        {"west": 0, "south": 0, "east": 1},
        REGION | {"east": -75.0},
        REGION | {"north": math.nan},
    ):
        assert embedded(render_page({"region": region}, layers, None))["manifest"]["region"]["north"] == 1


def test_banner_only_for_an_unsafe_source(layers: list[Layer]) -> None:
    assert "NOT private" not in render_page(city_manifest(layers), layers, None).split("<script")[0]
    assert "NOT private" in render_page(city_manifest(layers, safe=False), layers, None).split("<script")[0]


def test_density_shows_where_scripts_do_not_run(layers: list[Layer]) -> None:
    manifest = city_manifest(layers)
    assert "data:image/png;base64," in render_page(manifest, layers, city_density(1024))
    assert "data:image/png;base64," in render_page(manifest, layers, np.zeros((3, 3)))
    assert "data:image/png;base64," not in render_page(manifest, layers, None)


@pytest.mark.parametrize("density", [np.zeros((2, 3)), np.zeros(4), np.zeros((0, 0)), np.full((2, 2), np.nan)])
def test_density_that_is_not_a_finite_square_is_refused(layers: list[Layer], density: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match=r"^density: must be"):
        render_page(city_manifest(layers), layers, density)


def test_a_budget_spent_to_the_last_digit_may_round_below_zero(layers: list[Layer]) -> None:
    packed = embedded(render_page({}, [replace(layers[-1], remaining=-1e-16)], None))["layers"]
    assert packed[0]["remaining"] == 0


def test_no_layer_is_refused(layers: list[Layer]) -> None:
    with pytest.raises(ValueError, match=r"^layers: a page needs"):
        render_page(city_manifest(layers), [], None)


@pytest.mark.parametrize("name", ["x", "y", "count", "area", "cell_id"])
def test_arrays_of_different_lengths_are_refused(layers: list[Layer], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: must hold one"):
        replace(layers[0], **{name: getattr(layers[0], name)[:-1]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", math.nan),
        ("stddev", -1.0),
        ("remaining", math.inf),
        ("remaining", -0.001),
        ("shards_lost", SHARDS + 1),
        ("count", np.array([math.nan, 1.0])),
        ("level", np.array([1, 0])),
        ("level", np.array([0, 21])),
        ("x", np.array([0, 2])),
        ("y", np.array([-1, 0])),
        ("area", np.array([0, -1])),
        ("deviations", np.array([1.0])),
        ("deviations", np.array([1.0, math.nan])),
        ("deviations", np.array([-1.0, 1.0])),
        ("entries", 1),
        ("combined", 1),
    ],
)
def test_values_without_sense_are_refused(name: str, value: object) -> None:
    good = Layer(
        0, 0.5, 0.5, 3.0, 2, SHARDS, 0,
        np.array([0, 1]), np.array([0, 1]), np.array([0, 1]),
        np.array([5.0, -1.0]), np.array([3, 1]), ["r", "r3"],
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"^{name}: must"):
        replace(good, **{name: value})
