"""Totals of cells of a release, with the standard deviation of their error."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.heatmap.posterior.estimator import unbiased_counts
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import publish
from tests.rejections import rejects
from tests.unit.release.city import city_release


def test_totals_add_up_errors_that_go_together(tmp_path) -> None:
    made = city_release("adaptive")
    publish(str(tmp_path / "out"), made.files, "made-up", False)
    release = open_release(tmp_path / "out")
    cells = release.cells
    assert (cells["users_low"] <= cells["users_unbiased"].clip(lower=0) + 1e-9).all()
    assert (cells["users_unbiased"] <= cells["users_high"] + 1e-9).all()
    chosen = (cells["west"] < cells["west"].median()).to_numpy()
    users, stddev = release.total(chosen)
    assert users == pytest.approx(cells["users_unbiased"][chosen].sum())
    expected = unbiased_counts(made.estimate, made.state).total(chosen.astype(float))
    assert (users, stddev) == pytest.approx(expected)
    everybody, none = release.total(np.ones(len(cells)))
    assert (everybody, none) == pytest.approx(made.state.users_estimate(), abs=1e-6)
    with rejects("cells"):
        release.total(np.ones(len(cells) + 1))


def test_independent_errors_add_up_by_their_squares(tmp_path) -> None:
    publish(str(tmp_path / "out"), city_release("flat", depth=4).files, "made-up", False)
    release = open_release(tmp_path / "out")
    weights = np.linspace(0, 1, len(release.cells))
    users, stddev = release.total(weights)
    assert users == pytest.approx(release.cells["count"] @ weights)
    assert stddev == pytest.approx(np.sqrt(((release.cells["stddev"] * weights) ** 2).sum()))


def test_methods_that_cannot_know_their_error_say_lower_bound() -> None:
    assert "lower bound" in city_release("emd", depth=4).manifest["errors"]["stddev"]
    assert "totals.parquet" in city_release("adaptive").manifest["errors"]["sums"]
