"""The page of a comparison: its rows and pictures, from the published files."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sfumato.schemas.comparison import EVALUATION, Outcome, Setting
from sfumato.schemas.views import ComparisonBody, PageView
from sfumato.transforms.evaluation import comparison_view as module
from sfumato.transforms.evaluation.comparison_files import comparison_files
from sfumato.transforms.evaluation.comparison_table import summarise
from sfumato.transforms.evaluation.comparison_view import MAX_PICTURES, comparison_view
from tests.transforms.evaluation.samples import FACTS, sample_outcomes, sample_truth
from tests.transforms.release.city import city_density

METRICS = ("mse", "similarity")


def view(outcomes: list[Outcome], truth: NDArray[np.float64] | None = None) -> PageView:
    files = comparison_files(outcomes, sample_truth() if truth is None else truth, METRICS, FACTS)
    return comparison_view({name: files[name] for name in ("manifest.json", "densities.parquet")})


def body(outcomes: list[Outcome], truth: NDArray[np.float64] | None = None) -> ComparisonBody:
    made = view(outcomes, truth).body
    assert isinstance(made, ComparisonBody)
    return made


def shades(made: ComparisonBody) -> list[NDArray[np.uint8]]:
    """The pictures' places on the scale, uint8[rows, columns]."""
    found = [base64.b64decode(one.removeprefix("data:image/png;base64,")) for one in made.pictures]
    return [np.asarray(Image.open(io.BytesIO(one))) for one in found]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return sample_outcomes(METRICS, side=32)


@pytest.fixture(scope="module")
def made(outcomes: list[Outcome]) -> ComparisonBody:
    return body(outcomes)


def test_numbers_survive(outcomes: list[Outcome], made: ComparisonBody) -> None:
    rows = {row.setting: row for row in summarise(outcomes, METRICS)}
    assert len(made.rows) == len(rows)
    for one in made.rows:
        row = rows[Setting(one.method, tuple(one.options.items()))]  # type: ignore[arg-type]
        assert one.private == row.private
        for name in METRICS:
            value, error, words = one.metrics[name]
            assert words == row.metrics[name].text
            if value is None:
                assert words == "-"
            else:
                assert (value, error) == pytest.approx((row.metrics[name].value, row.metrics[name].error), rel=1e-8)


def test_the_page_says_what_it_is(outcomes: list[Outcome]) -> None:
    shown = view(outcomes)
    assert EVALUATION in str(shown.alarm)
    assert "do not publish" in str(shown.alarm)
    text = shown.model_dump_json()
    assert "differential privacy" not in text  # nothing here is promised
    assert view(outcomes) == shown


def test_methods_stand_first_and_what_looked_at_the_truth_is_folded(outcomes: list[Outcome]) -> None:
    sections = view(outcomes).sections
    tables = [section.table for section in sections if section.table]
    assert [section.title for section in sections][:3] == ["Methods", "All settings", "Level by truth"]
    methods = [row[0] for row in tables[0].rows]
    assert methods == ["adaptive", "emd", "hierarchical", "flat", "count_min", "best_level (not private)"]
    assert [section.folded for section in sections][:3] == [False, False, True]
    assert {row[0] for row in tables[2].rows} == {"emd (level by truth)"}
    assert not any("by truth" in row[0] for row in tables[1].rows)
    assert len(tables[1].rows) + len(tables[2].rows) == len(summarise(outcomes, METRICS))


def test_the_headline_names_the_best(outcomes: list[Outcome]) -> None:
    assert view(outcomes).headline == "adaptive has the lowest mse in 6 of 6 settings, of 5 private methods"
    alone = [one for one in outcomes if one.setting.method == "flat"]
    assert view(alone).headline == "1 private method, flat, on exact data"


def test_shades_mean_the_same_in_all_pictures_of_whatever_resolution() -> None:
    truth = city_density(64)
    coarse = truth.reshape(32, 2, 32, 2).sum(axis=(1, 3))
    spread = np.broadcast_to(coarse.repeat(2, 0).repeat(2, 1) / 4, truth.shape)
    halved = truth / 2
    options = (("depth", 5), ("depth", 6), ("depth", 7))
    runs = [
        Outcome(Setting("flat", (option,)), 0, {"mse": 1.0, "similarity": 1.0}, 1, 1, 0.0, picture.astype(np.float32))
        for option, picture in zip(options, (coarse, spread, halved), strict=True)
    ]
    shown = shades(body(runs, truth))
    assert [one.shape[0] for one in shown] == [64, 32, 64, 64]
    np.testing.assert_array_equal(shown[1].repeat(2, 0).repeat(2, 1), shown[2])
    assert shown[3].mean() < shown[0].mean() - 5  # not brightened to a range of its own
    scale = body(runs, truth).scale
    relative = truth * truth.size
    place = np.log1p(relative / (scale.knee or 1)) / np.log1p(scale.high / (scale.knee or 1))
    assert np.abs(shown[0] - np.clip(255 * place, 0, 255)).max() <= 0.51


def test_a_large_truth_is_shown_at_256_cells() -> None:
    assert shades(body(sample_outcomes(METRICS, keys=1, side=16), city_density(512)))[0].shape == (256, 256)


def test_the_first_keys_picture_is_shown_and_equal_ones_are_published_once() -> None:
    setting = Setting("flat", ())
    first, second = (city_density(16) + shift for shift in (0.0, 0.01))
    scores = {"mse": 1.0, "similarity": 1.0}
    runs = [
        Outcome(setting, key, scores, 1, 1, 0.0, picture.astype(np.float32))
        for key, picture in ((1, second), (0, first))
    ]
    runs.append(Outcome(setting, 2, scores, 1, 1))
    shown = body([*runs, replace(runs[1], setting=Setting("emd", ()))])
    assert len(shown.pictures) == 2
    assert [one.picture for one in shown.rows] == [1, 1]
    assert "and 1 more that look the same" in shown.captions[1]
    np.testing.assert_array_equal(shades(body([runs[1]]))[1], shades(shown)[1])


def test_pictures_have_limits_that_the_page_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    scores = {"mse": 1.0, "similarity": 1.0}
    runs = [
        Outcome(
            Setting("flat", (("users", i),)), 0, scores, 1, 1, 0.0, rng.random((256, 256)).astype(np.float32) / 2**15
        )
        for i in range(120)
    ]
    shown = view(runs)
    assert isinstance(shown.body, ComparisonBody)
    count = len(shown.body.pictures)
    assert sum(map(len, shown.body.pictures)) < 4.2e6  # noise is the worst case of all
    assert f"{121 - count} settings have no picture here" in json.dumps([one.paragraphs for one in shown.sections])
    assert shown.body.start["users"] < count  # one that has a picture
    small = [replace(one, picture=one.picture[:16, :16]) for one in runs if one.picture is not None]
    assert len(body(small).pictures) == MAX_PICTURES
    assert "have no picture here" not in view(small[:95]).model_dump_json()
    monkeypatch.setattr(module, "MAX_PICTURE_BYTES", 0)
    assert len(body(small).pictures) == 1


def test_runs_without_pictures_and_metrics_still_make_a_page() -> None:
    runs = [Outcome(Setting("flat", ()), 0, {"mse": np.nan}, 0, 0, 1.0)]
    shown = body(runs, np.zeros((4, 4)))
    assert shown.rows[0].metrics["mse"] == (None, None, "-")
    assert shown.rows[0].picture is None
    broken = [replace(runs[0], picture=np.full((4, 4), np.nan, np.float32))]
    assert body(broken).rows[0].picture is None
    assert len(body([]).pictures) == 1


@pytest.mark.parametrize("truth", [np.ones((2, 3)), np.ones(4), np.zeros((0, 0)), np.full((2, 2), np.nan)])
def test_truth_must_be_a_finite_square(truth: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="truth: must be a square of finite numbers"):
        view([], truth)
