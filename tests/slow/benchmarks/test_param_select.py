"""The published labels of paper 003's ParamSelect: the authors' split, their features, and errors in metres."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.param_select import PublishedWidths, paper_features, paper_split

_CITIES = ("Tulsa", "Boston", "Milwaukee")


@pytest.fixture
def labels(tmp_path: Path) -> PublishedWidths:
    """Labels in the authors' files: two cities of Gowalla, one of Veraset, and one without a label."""
    rows = [(f"gowalla_{city}", 20_000, 0.05 * 2**power) for city in _CITIES[:2] for power in range(5)]
    rows += [("Milwaukee", 100_000, epsilon) for epsilon in (0.05, 0.2)]
    widths = [",".join(map(str, (at, *row, 0.02 if row[0] != "Milwaukee" else 0.03))) for at, row in enumerate(rows)]
    text = "\n".join([",city,n,eps,best", *widths, "99,CABS_SFS,217438,0.05,"])
    (tmp_path / "snh_best_cell_width_gowalla.csv").write_text(text)
    names = [*_CITIES, *(f"gowalla_{city}" for city in _CITIES)]
    entropies = [f"{at},{name},1,{5 + at % 3}" for at, name in enumerate(names)]
    (tmp_path / "snh_city_features_gowalla.csv").write_text("\n".join([",city,hot10,entropy_512", *entropies]))
    return PublishedWidths.read(tmp_path)


def test_features_are_those_of_the_paper() -> None:
    assert paper_features(100, 0.25, 7.5) == (100, 0.25, 1 / 25, 1 / 5, 7.5)


def test_authors_train_on_cities_of_gowalla(labels: PublishedWidths) -> None:
    assert labels.city[labels.trained].tolist() == ["Tulsa"] * 5 + ["Boston"] * 5
    assert labels.city[~labels.trained].tolist() == ["Milwaukee"] * 2
    assert labels.features[-1].tolist() == [100_000, 0.2, 1 / 20_000, 1 / np.sqrt(20_000), 7]


def test_errors_are_in_metres_of_20_km(labels: PublishedWidths) -> None:
    """All cities of the training have cells of 0.02 tenths of 20 km, Milwaukee 0.03: 20 m off."""
    rows = {line.split("|")[1].strip(): line.split("|")[2:4] for line in paper_split(labels).splitlines()[2:]}
    assert [float(one) for one in rows["ParamSelect (ExtraTrees)"]] == [20.0, 20.0]
    ug = [2000 * (10 / np.sqrt(100_000 * epsilon / 10) - 0.03) for epsilon in (0.05, 0.2)]
    assert float(rows["the rule of ug"][0]) == pytest.approx(np.mean(ug), abs=0.05)
