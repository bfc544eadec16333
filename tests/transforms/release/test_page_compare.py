"""The text of the page of a comparison."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from sfumato.schemas.comparison import EVALUATION, Outcome, Setting
from sfumato.transforms.evaluation.comparison_table import summarise
from sfumato.transforms.release import page_compare
from sfumato.transforms.release.page_compare import MOST_PICTURES, indexed_png, render_comparison
from sfumato.transforms.release.picture import render_thumbnail
from tests.transforms.evaluation.samples import FACTS, sample_outcomes, sample_truth
from tests.transforms.release.city import city_density, embedded

METRICS = ("mse", "similarity")
ATTACK = '</script><script>alert(1)</script><!-- <img src=x> & \u2028 {{style}} {{data}}"'


def page(outcomes: list[Outcome], truth: NDArray[np.float64] | None = None) -> str:
    truth = sample_truth() if truth is None else truth
    return render_comparison(FACTS, summarise(outcomes, METRICS), outcomes, truth, METRICS)


def pictures(text: str) -> list[NDArray[np.float64]]:
    """The album's pixels, float64[rows, columns, 3], in order."""
    album = text[text.index('id="album"') : text.index('id="curves"')]
    found = re.findall(r'src="data:image/png;base64,([^"]*)"', album)
    return [imread(io.BytesIO(base64.b64decode(one)))[..., :3] for one in found]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return sample_outcomes(METRICS, side=32)


@pytest.fixture(scope="module")
def text(outcomes: list[Outcome]) -> str:
    return page(outcomes)


def test_page_is_self_contained_and_says_what_it_is(text: str) -> None:
    markup = re.sub(r"(?s)(?<=<script).*?(?=</script>)", "", text)
    for address in re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", markup):
        assert address.startswith(("data:", "#")) or address in {"comparison.json", "table.csv", "runs.csv"}
    assert not re.search(r"@import|url\s*\(\s*(?!#)|@font-face| style=", markup)
    script = text[text.rindex("<script>") :]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", script)
    assert "default-src &#x27;none&#x27;" in text
    assert text.index(EVALUATION) < text.index("Pictures")
    shown = re.sub(r"(?s)<script.*?</script>|<style>.*?</style>", "", text)
    assert "differential privacy" not in shown  # nothing here is promised
    assert "Private" not in shown


def test_equal_arguments_give_equal_pages(text: str, outcomes: list[Outcome]) -> None:
    assert page(outcomes) == text


def test_nothing_in_names_can_leave_its_place(outcomes: list[Outcome]) -> None:
    named = [
        replace(one, setting=Setting(ATTACK, ((ATTACK, ATTACK), ("users", i)))) for i, one in enumerate(outcomes[:30])
    ]
    metadata = {"release_id": ATTACK, "parameters": {ATTACK: ATTACK}, "region": FACTS["region"]}
    hurt = render_comparison(metadata, summarise(named, METRICS), named, sample_truth(), METRICS)
    assert hurt.count("</script>") == 2
    assert hurt.count("<script") == 2
    assert "<!--" not in hurt
    assert not re.search(r"<img(?! alt=)", hurt)
    assert embedded(hurt)["rows"][0]["method"] == ATTACK


def test_numbers_survive(text: str, outcomes: list[Outcome]) -> None:
    rows = {row.setting: row for row in summarise(outcomes, METRICS)}
    read = embedded(text)["rows"]
    assert len(read) == len(rows)
    for one in read:
        row = rows[Setting(one["method"], tuple(one["options"].items()))]
        for name in METRICS:
            value, error, words = one["metrics"][name]
            assert words == row.metrics[name].text
            if value is None:
                assert words == "-"
            else:
                assert (value, error) == pytest.approx((row.metrics[name].value, row.metrics[name].error), rel=1e-8)
                assert words.split(" ± ")[0] in text[text.index("<tbody>") : text.index("</tbody>")]


def test_truth_has_the_colours_of_the_heatmaps_thumbnail(text: str) -> None:
    expected = imread(io.BytesIO(render_thumbnail(sample_truth())))[..., :3]
    assert np.abs(pictures(text)[0] - expected).max() < 1.5 / 255


def test_colours_mean_the_same_in_all_pictures_of_whatever_resolution() -> None:
    truth = city_density(64)
    coarse = truth.reshape(32, 2, 32, 2).sum(axis=(1, 3))
    spread = np.broadcast_to(coarse.repeat(2, 0).repeat(2, 1) / 4, truth.shape)
    halved = truth / 2
    options = (("depth", 5), ("depth", 6), ("depth", 7))
    outcomes = [
        Outcome(Setting("flat", (option,)), 0, {"mse": 1.0, "similarity": 1.0}, 1, 1, 0.0, picture.astype(np.float32))
        for option, picture in zip(options, (coarse, spread, halved), strict=True)
    ]
    shown = pictures(page(outcomes, truth))
    assert [one.shape[0] for one in shown] == [64, 32, 64, 64]
    np.testing.assert_array_equal(shown[1].repeat(2, 0).repeat(2, 1), shown[2])
    assert shown[3].mean() < shown[0].mean() - 0.02  # not brightened to a range of its own


def test_a_large_truth_is_shown_at_256_cells() -> None:
    assert pictures(page(sample_outcomes(METRICS, keys=1, side=16), city_density(512)))[0].shape == (256, 256, 3)


def test_the_first_keys_picture_is_shown_and_equal_ones_travel_once(outcomes: list[Outcome]) -> None:
    setting = Setting("flat", ())
    first, second = (city_density(16) + shift for shift in (0.0, 0.01))
    scores = {"mse": 1.0, "similarity": 1.0}
    runs = [
        Outcome(setting, key, scores, 1, 1, 0.0, picture.astype(np.float32))
        for key, picture in ((1, second), (0, first))
    ]
    runs.append(Outcome(setting, 2, scores, 1, 1))
    same = replace(runs[1], setting=Setting("emd", ()))
    text = page([*runs, same])
    assert len(pictures(text)) == 2
    assert [one["picture"] for one in embedded(text)["rows"]] == [1, 1]
    np.testing.assert_array_equal(pictures(page([runs[1]]))[1], pictures(text)[1])
    assert "and 1 more that look the same" in text


def test_pictures_have_limits_that_the_page_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    scores = {"mse": 1.0, "similarity": 1.0}
    outcomes = [
        Outcome(
            Setting("flat", (("users", i),)), 0, scores, 1, 1, 0.0, rng.random((256, 256)).astype(np.float32) / 2**15
        )
        for i in range(120)
    ]
    text = page(outcomes)
    shown = pictures(text)
    assert len(shown) <= MOST_PICTURES
    assert len(text) < 8e6  # noise is the worst case of all
    assert f"Of 120 settings with a picture, {len(shown) - 1} are shown" in text
    assert embedded(text)["left_out"] == 121 - len(shown)
    small = [replace(one, picture=one.picture[:16, :16]) for one in outcomes if one.picture is not None]
    assert len(pictures(page(small))) == MOST_PICTURES
    assert "are shown: the others" not in page(small[:95])
    assert embedded(text)["start"]["users"] < len(shown)  # one that has a picture
    monkeypatch.setattr(page_compare, "_MOST_PICTURE_BYTES", 0)
    assert len(pictures(page(small))) == 1


def test_runs_without_pictures_and_metrics_still_make_a_page() -> None:
    outcomes = [Outcome(Setting("flat", ()), 0, {"mse": np.nan}, 0, 0, 1.0)]
    text = page(outcomes, np.zeros((4, 4)))
    assert embedded(text)["rows"][0]["metrics"]["mse"] == [None, None, "-"]
    assert embedded(text)["rows"][0]["picture"] is None
    broken = [replace(outcomes[0], picture=np.full((4, 4), np.nan, np.float32))]
    assert embedded(page(broken))["rows"][0]["picture"] is None
    assert len(pictures(page([]))) == 1


@pytest.mark.parametrize("truth", [np.ones((2, 3)), np.ones(4), np.zeros((0, 0)), np.full((2, 2), np.nan)])
def test_truth_must_be_a_finite_square(truth: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match="truth: must be a square of finite numbers"):
        page([], truth)


def test_indexed_png_holds_every_colour() -> None:
    shades = np.arange(256, dtype=np.uint8).reshape(8, 32)
    read = imread(io.BytesIO(indexed_png(shades)))
    assert read.shape[:2] == (8, 32)
    assert len(np.unique(read.reshape(256, -1), axis=0)) == 256
    assert read[0, 0, :3].sum() < read[7, 31, :3].sum()


def test_without_scripts_there_are_table_and_pictures(text: str, outcomes: list[Outcome]) -> None:
    rows = summarise(outcomes, METRICS)
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    assert body.count("<tr") == len(rows)
    assert "Scripts are off" in text.split("<noscript>")[1]
    assert "adaptive, users 10,000, epsilon 0.5, calibration 0.1</figcaption>" in text


def test_a_missing_region_is_said(outcomes: list[Outcome]) -> None:
    text = render_comparison({}, summarise(outcomes, METRICS), outcomes, sample_truth(), METRICS)
    assert any("region" in problem for problem in embedded(text)["problems"])
